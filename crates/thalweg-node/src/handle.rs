//! Handle on a running node: sends commands to it from another thread, and reads its snapshots.

use crate::{BuilderReport, NodeCommand};
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use thalweg_arena::Doorbell;
use thalweg_core::control::{Command, State};

/// Maximum number of reports of runs that are kept until they are taken.
const MAX_REPORTS: usize = 1024;

/// Queue of commands to a node, and its latest snapshot. Clones are handles on the same node.
///
/// The node's hot thread never waits for a lock: while another thread is reading, it tries again at its next turn.
#[derive(Debug, Clone)]
pub struct Handle(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    commands: Mutex<VecDeque<NodeCommand>>,
    /// Number of times that an end was requested.
    presses: AtomicU32,
    bell: Doorbell,
    snapshot: Mutex<Arc<Snapshot>>,
    /// True if a newer snapshot is wanted.
    wanted: AtomicBool,
    /// Reports of runs that others have followed without a gap, and that were not taken.
    reports: Mutex<Vec<BuilderReport>>,
}

impl Handle {
    /// Creates a handle for a node that is created later.
    ///
    /// # Errors
    /// The system has no more file descriptors.
    pub fn new() -> Result<Self, thalweg_arena::DoorbellError> {
        Ok(Self(Arc::new(Shared {
            commands: Mutex::default(),
            presses: AtomicU32::new(0),
            bell: Doorbell::new()?,
            snapshot: Mutex::default(),
            wanted: AtomicBool::new(true),
            reports: Mutex::default(),
        })))
    }

    /// Sends a command to the node, which carries commands out in order.
    pub fn send_command(&self, command: impl Into<NodeCommand>) {
        lock_ignoring_poison(&self.0.commands).push_back(command.into());
        self.wake_node();
    }

    /// Requests a clean end; if called again, an immediate one. Returns the number of requests so far.
    pub fn request_end(&self) -> u32 {
        let presses = self.0.presses.fetch_add(1, Ordering::Relaxed).saturating_add(1);
        self.send_command(if presses == 1 { Command::Stop } else { Command::Abort });
        presses
    }

    /// Removes and returns the commands that the node has not carried out: those that came too late for it.
    pub fn take_commands(&self) -> Vec<NodeCommand> {
        lock_ignoring_poison(&self.0.commands).drain(..).collect()
    }

    /// Returns whether an end was requested.
    pub fn was_end_requested(&self) -> bool {
        self.0.presses.load(Ordering::Relaxed) > 0
    }

    /// Returns the node's latest snapshot, and requests a newer one. With ten calls a second, the snapshot returned is
    /// a tenth of a second old.
    pub fn latest_snapshot(&self) -> Arc<Snapshot> {
        self.0.wanted.store(true, Ordering::Relaxed);
        self.wake_node();
        Arc::clone(&lock_ignoring_poison(&self.0.snapshot))
    }

    /// Removes and returns the reports of runs that others have followed without a gap: those of runs that are on disk,
    /// oldest first. The report of the last run is that of the node.
    pub fn take_reports(&self) -> Vec<BuilderReport> {
        std::mem::take(&mut *lock_ignoring_poison(&self.0.reports))
    }

    /// Keeps the report of a run that another one has followed. Of more than `MAX_REPORTS` that nothing takes, the
    /// oldest are dropped.
    pub(crate) fn publish_report(&self, report: BuilderReport) {
        // Whoever holds this lock moves a list of reports, and nothing else.
        let mut reports = lock_ignoring_poison(&self.0.reports);
        if reports.len() >= MAX_REPORTS {
            reports.remove(0);
        }
        reports.push(report);
    }

    /// Wakes the node for a turn, without a command.
    pub(crate) fn wake_node(&self) {
        // The counter of an eventfd is full only after 2^64 rings.
        let _ = self.0.bell.wake_waiter();
    }

    /// Removes and returns the next command.
    pub(crate) fn next_command(&self) -> Option<NodeCommand> {
        match self.0.commands.try_lock() {
            Ok(mut commands) => commands.pop_front(),
            Err(TryLockError::Poisoned(commands)) => commands.into_inner().pop_front(),
            Err(TryLockError::WouldBlock) => {
                self.wake_node();
                None
            }
        }
    }

    /// Clears the doorbell after it has woken the node.
    pub(crate) fn clear_doorbell(&self) {
        let _ = self.0.bell.clear_wakeups();
    }

    /// Publishes the result of `snapshot`, if a newer one is wanted.
    pub(crate) fn publish_snapshot(&self, snapshot: impl FnOnce() -> Snapshot) {
        if !self.0.wanted.swap(false, Ordering::Relaxed) {
            return;
        }
        match self.0.snapshot.try_lock() {
            Ok(mut shown) => *shown = Arc::new(snapshot()),
            Err(_) => self.0.wanted.store(true, Ordering::Relaxed),
        }
    }
}

impl AsFd for Handle {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.bell.as_fd()
    }
}

/// Locks a mutex, poisoned or not: no state that is kept under these locks can be left half changed.
fn lock_ignoring_poison<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// State of a node at one moment.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Snapshot {
    /// State of the node's run.
    pub state: State,
    /// Sentence that names what this state waits for; empty if it waits for nothing.
    pub waits: String,
    /// Payload bytes built or accepted.
    pub bytes: u64,
    /// Fragments built or accepted.
    pub fragments: u64,
    /// Events closed.
    pub events: u64,
    /// Events closed incomplete.
    pub incomplete: u64,
    /// Number of times that the node was held up by the stage after it.
    pub stalls: u64,
    /// Total duration of these `stalls`, in nanoseconds.
    pub stalled_nanos: u64,
    /// Sources connected.
    pub connected: u64,
    /// A row for each source and its link, as a builder sees them, in the order of the topology.
    pub sources: Vec<SourceRow>,
}

/// Source and its link, as a builder sees them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct SourceRow {
    /// True if it is connected.
    pub connected: bool,
    /// True if it was given up for this run.
    pub given_up: bool,
    /// True if it has sent its final counters.
    pub ended: bool,
    /// Payload bytes built per second, since the previous snapshot.
    pub bytes_per_second: f64,
    /// Number of open offers.
    pub backlog: u64,
    /// Bytes requested and not yet received.
    pub credit: u64,
    /// Time for which it has owed bytes, in nanoseconds.
    pub owes_nanos: u64,
    /// Bytes sent again because they were lost, by the source's own count.
    pub sent_again: u64,
    /// Payload bytes built.
    pub bytes: u64,
    /// Fragments that it has offered.
    pub accepted: u64,
    /// Fragments built.
    pub built: u64,
    /// Fragments of events that a trigger level rejected.
    pub rejected: u64,
    /// Fragments dropped at the source.
    pub dropped: u64,
    /// Fragments lost in the source's device.
    pub lost_in_device: u64,
    /// Fragments that came after their event was closed.
    pub late: u64,
    /// Fragments that arrived damaged.
    pub corrupt: u64,
    /// Fragments that were not delivered.
    pub lost: u64,
    /// Fragments of events at or beyond the end of the run.
    pub beyond_end: u64,
}
