//! A handle on a running node: what is asked of it, from another thread, and what it shows.

use serde::{Deserialize, Serialize};
use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use thalweg_arena::Doorbell;
use thalweg_control::{Command, State};

/// One queue of commands to a node, and one snapshot of it. Clones are handles on the same node.
///
/// The node's hot thread waits for no lock: where another thread is just reading, it looks again at its next turn.
#[derive(Debug, Clone)]
pub struct Handle(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    commands: Mutex<VecDeque<Command>>,
    /// How often an end was asked for.
    presses: AtomicU32,
    bell: Doorbell,
    snapshot: Mutex<Arc<Snapshot>>,
    /// Somebody wants to see a newer one.
    wanted: AtomicBool,
}

impl Handle {
    /// A handle for a node to come.
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
        })))
    }

    /// Asks the node for something. It carries commands out in turn.
    pub fn send(&self, command: Command) {
        lock(&self.0.commands).push_back(command);
        self.wake();
    }

    /// Asks for a clean end; asked again, for an end at once. Returns how often it was asked for by now.
    pub fn press(&self) -> u32 {
        let presses = self.0.presses.fetch_add(1, Ordering::Relaxed).saturating_add(1);
        self.send(if presses == 1 { Command::Stop } else { Command::Abort });
        presses
    }

    /// Whether an end was asked for.
    pub fn was_pressed(&self) -> bool {
        self.0.presses.load(Ordering::Relaxed) > 0
    }

    /// What the node showed last. A newer one is on its way when this returns; asked ten times a second, what is seen
    /// is a tenth of a second old.
    pub fn snapshot(&self) -> Arc<Snapshot> {
        self.0.wanted.store(true, Ordering::Relaxed);
        self.wake();
        Arc::clone(&lock(&self.0.snapshot))
    }

    /// Lets the node look around, without asking for anything.
    pub(crate) fn wake(&self) {
        // The counter of an eventfd is full only after 2^64 rings.
        let _ = self.0.bell.ring();
    }

    /// What is asked for next.
    pub(crate) fn next_command(&self) -> Option<Command> {
        match self.0.commands.try_lock() {
            Ok(mut commands) => commands.pop_front(),
            Err(TryLockError::Poisoned(commands)) => commands.into_inner().pop_front(),
            Err(TryLockError::WouldBlock) => {
                self.wake();
                None
            }
        }
    }

    /// The bell was heard.
    pub(crate) fn clear(&self) {
        let _ = self.0.bell.clear();
    }

    /// Shows what `snapshot` gives, if somebody wants to see it.
    pub(crate) fn show(&self, snapshot: impl FnOnce() -> Snapshot) {
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

/// No state that is kept under these locks can be left half changed.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// One look at a node.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Snapshot {
    /// The state of its run.
    pub state: State,
    /// What that waits for, in a sentence; empty where it waits for nothing.
    pub waits: String,
    /// Payload bytes built or accepted.
    pub bytes: u64,
    /// Fragments built or accepted.
    pub fragments: u64,
    /// Events closed.
    pub events: u64,
    /// Events closed incomplete.
    pub incomplete: u64,
    /// How often the node was held up by what is behind it.
    pub stalls: u64,
    /// For how long in all, in nanoseconds.
    pub stalled_nanos: u64,
    /// Sources connected.
    pub connected: u64,
    /// A row for each source and its link, as a builder sees them, in the order of the topology.
    pub sources: Vec<SourceRow>,
}

/// A source and its link, as a builder sees them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct SourceRow {
    /// Whether it is connected.
    pub connected: bool,
    /// Whether it was given up for this run.
    pub given_up: bool,
    /// Whether it has sent its final counters.
    pub ended: bool,
    /// Payload bytes built in a second, since the look before.
    pub bytes_per_second: f64,
    /// Offers that are open.
    pub backlog: u64,
    /// Bytes asked for and not yet received.
    pub credit: u64,
    /// For how long it has owed bytes, in nanoseconds.
    pub owes_nanos: u64,
    /// Bytes sent again because they were lost, as the source says.
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
    /// Fragments of events beyond the end of the run.
    pub beyond_end: u64,
}
