//! Handle on a running node: sends commands to it from another thread, and reads its snapshots.

use crate::{BuilderReport, NodeCommand, Sample};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeSet, VecDeque};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use thalweg_arena::Doorbell;
use thalweg_core::control::{Command, State};
use thiserror::Error;

/// Maximum number of reports of runs that are kept until they are taken.
const MAX_REPORTS: usize = 1024;

/// Queue of commands to a node, and its latest snapshot. Clones are handles on the same node. A handle may serve the
/// nodes of one run after another: between two of them it refuses commands.
///
/// The node's hot thread never waits for a lock: while another thread is reading, it tries again at its next turn.
#[derive(Debug, Clone)]
pub struct Handle(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    queue: Mutex<Queue>,
    /// Number of times that an end was requested.
    presses: AtomicU32,
    bell: Doorbell,
    snapshot: Mutex<Arc<Snapshot>>,
    /// True if a newer snapshot is wanted.
    wanted: AtomicBool,
    /// Reports of runs that others have followed without a gap, and that were not taken.
    reports: Mutex<Vec<BuilderReport>>,
    samples: Mutex<SampleStore>,
    /// True if newer fragments are wanted.
    wants_samples: AtomicBool,
}

/// Copies of fragments, and requests for newer ones.
#[derive(Debug, Default)]
struct SampleStore {
    /// Latest fragment of each source, as far as it was requested.
    copies: Vec<Option<Arc<Sample>>>,
    /// Places of the sources whose next fragment is to be copied.
    wanted: BTreeSet<usize>,
}

#[derive(Debug, Default)]
struct Queue {
    requests: VecDeque<Request>,
    /// True between two runs: no node carries commands out.
    is_closed: bool,
}

/// A command on its way to the node.
#[derive(Debug)]
pub(crate) struct Request {
    pub(crate) command: NodeCommand,
    reply: Option<SyncSender<Result<(), CommandRefusal>>>,
}

impl Request {
    /// Answers the request. Returns the refusal if there is one and the sender of the command waits for no reply.
    pub(crate) fn answer(self, result: Result<(), CommandRefusal>) -> Option<CommandRefusal> {
        match self.reply {
            // A sender that is gone does not want the reply any more.
            Some(reply) => _ = reply.try_send(result),
            None => return result.err(),
        }
        None
    }
}

/// Reason why a node does not carry out a command, as a sentence.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{0}")]
pub struct CommandRefusal(pub String);

impl CommandRefusal {
    /// Returns the refusal of a command that no node carries out: one run has ended, and the next is not prepared.
    pub fn between_runs(command: &NodeCommand) -> Self {
        Self(format!(
            "cannot {command}: the node is not ready for the next run; repeat the command after its next state is shown"
        ))
    }
}

impl Handle {
    /// Creates a handle for a node that is created later.
    ///
    /// # Errors
    /// The system has no more file descriptors.
    pub fn new() -> Result<Self, thalweg_arena::DoorbellError> {
        Ok(Self(Arc::new(Shared {
            queue: Mutex::default(),
            presses: AtomicU32::new(0),
            bell: Doorbell::new()?,
            snapshot: Mutex::default(),
            wanted: AtomicBool::new(true),
            reports: Mutex::default(),
            samples: Mutex::default(),
            wants_samples: AtomicBool::new(false),
        })))
    }

    /// Sends a command to the node, which carries commands out in order, and logs those that it refuses. Returns false
    /// between two runs: no node receives it.
    pub fn send_command(&self, command: impl Into<NodeCommand>) -> bool {
        self.put_request(Request { command: command.into(), reply: None }).is_none()
    }

    /// Sends a command to the node. The reply arrives when the node has carried it out, or has refused it; if the node
    /// ends before, the sender is dropped.
    pub fn request(&self, command: impl Into<NodeCommand>) -> Receiver<Result<(), CommandRefusal>> {
        let (reply, replies) = sync_channel(1);
        if let Some(request) = self.put_request(Request { command: command.into(), reply: Some(reply) }) {
            let refusal = CommandRefusal::between_runs(&request.command);
            request.answer(Err(refusal));
        }
        replies
    }

    /// Puts a request into the queue, and returns it if there is no node.
    fn put_request(&self, request: Request) -> Option<Request> {
        let mut queue = lock_ignoring_poison(&self.0.queue);
        if queue.is_closed {
            return Some(request);
        }
        queue.requests.push_back(request);
        drop(queue);
        self.wake_node();
        None
    }

    /// Requests a clean end; if called again, an immediate one. Returns the number of requests so far.
    pub fn request_end(&self) -> u32 {
        let presses = self.0.presses.fetch_add(1, Ordering::Relaxed).saturating_add(1);
        self.send_command(if presses == 1 { Command::Stop } else { Command::Abort });
        presses
    }

    /// Returns whether an end was requested.
    pub fn was_end_requested(&self) -> bool {
        self.0.presses.load(Ordering::Relaxed) > 0
    }

    /// Begins the time of the next node: commands are taken, and no end was requested.
    pub fn open_queue(&self) {
        self.0.presses.store(0, Ordering::Relaxed);
        lock_ignoring_poison(&self.0.queue).is_closed = false;
    }

    /// Ends the time of a node: until the next one, commands are refused. Returns those that came too late for the node
    /// and whose senders wait for no reply.
    pub fn close_queue(&self) -> Vec<NodeCommand> {
        let mut queue = lock_ignoring_poison(&self.0.queue);
        queue.is_closed = true;
        let late = std::mem::take(&mut queue.requests);
        drop(queue);
        let refused = late.into_iter().filter_map(|request| {
            let command = request.command.clone();
            let refusal = CommandRefusal::between_runs(&command);
            request.answer(Err(refusal)).map(|_| command)
        });
        refused.collect()
    }

    /// Returns the node's latest snapshot, and requests a newer one. With ten calls a second, the snapshot returned is
    /// a tenth of a second old. The last one of a run is that of its end.
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

    /// Returns the latest fragment of a source that was copied, by the place of the source in the topology. Builders
    /// alone have them.
    pub fn latest_sample(&self, source: usize) -> Option<Arc<Sample>> {
        lock_ignoring_poison(&self.0.samples).copies.get(source).cloned().flatten()
    }

    /// Requests a copy of the next fragment of a source.
    pub fn request_sample(&self, source: usize) {
        lock_ignoring_poison(&self.0.samples).wanted.insert(source);
        self.0.wants_samples.store(true, Ordering::Release);
        self.wake_node();
    }

    /// Wakes the node for a turn, without a command.
    pub(crate) fn wake_node(&self) {
        // The counter of an eventfd is full only after 2^64 rings.
        let _ = self.0.bell.wake_waiter();
    }

    /// Removes and returns the next request.
    pub(crate) fn next_request(&self) -> Option<Request> {
        match self.0.queue.try_lock() {
            Ok(mut queue) => queue.requests.pop_front(),
            Err(TryLockError::Poisoned(queue)) => queue.into_inner().requests.pop_front(),
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

    /// Publishes the last snapshot of a node, wanted or not.
    pub(crate) fn publish_final_snapshot(&self, snapshot: Snapshot) {
        *lock_ignoring_poison(&self.0.snapshot) = Arc::new(snapshot);
    }

    /// Forgets the snapshot of the last run: the node is prepared for another one, and has published nothing of it yet.
    pub fn forget_snapshot(&self) {
        self.publish_final_snapshot(Snapshot { state: State::Configured, ..Snapshot::default() });
    }

    /// Removes the requests for newer fragments, and marks the sources that they are for.
    pub(crate) fn take_sample_requests(&self, wanted: &mut [bool]) {
        if !self.0.wants_samples.swap(false, Ordering::Acquire) {
            return;
        }
        let Ok(mut store) = self.0.samples.try_lock() else {
            self.0.wants_samples.store(true, Ordering::Relaxed);
            return self.wake_node();
        };
        for source in std::mem::take(&mut store.wanted) {
            wanted.get_mut(source).into_iter().for_each(|wanted| *wanted = true);
        }
    }

    /// Publishes copies of fragments, and removes them from `samples`. Those that are not there leave the earlier ones
    /// in place. Returns false, and does nothing, while another thread reads.
    pub(crate) fn publish_samples(&self, samples: &mut [Option<Sample>]) -> bool {
        let Ok(mut store) = self.0.samples.try_lock() else { return false };
        store.copies.resize(samples.len(), None);
        for (shown, sample) in store.copies.iter_mut().zip(samples) {
            if let Some(sample) = sample.take() {
                *shown = Some(Arc::new(sample));
            }
        }
        true
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

/// State of a node at one moment. Counts are those of the run so far; at its end the last snapshot has the final ones.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Snapshot {
    /// State of the node's run.
    pub state: State,
    /// Number of the run; 0 before it is known.
    #[serde(default)]
    pub run: u32,
    /// Time of the snapshot by the node's monotonic clock, in nanoseconds: for rates, from two snapshots.
    #[serde(default)]
    pub at_nanos: u64,
    /// Sentence that names what this state waits for; empty if it waits for nothing.
    pub waits: String,
    /// Reasons why the run is incomplete, as far as they are known.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub reasons: Vec<String>,
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
    /// Total time in which a source took nothing from its device though it should have, in nanoseconds.
    #[serde(default)]
    pub dead_nanos: u64,
    /// First event that is not closed.
    #[serde(default)]
    pub oldest_event: u64,
    /// Event before which the run ends, as far as that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub end_event: Option<u64>,
    /// Latest events that were closed incomplete, the oldest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub incomplete_events: Vec<IncompleteEvent>,
    /// Sources connected.
    pub connected: u64,
    /// A row for each source and its link, as a builder sees them, in the order of the topology.
    pub sources: Vec<SourceRow>,
}

/// Event that was closed incomplete.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct IncompleteEvent {
    /// Number of the event.
    pub event: u64,
    /// Sources without a fragment, by their place in the topology.
    pub missing: Vec<usize>,
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
    /// Events that were closed without a fragment of it while it was silent.
    #[serde(default)]
    pub absent: u64,
}
