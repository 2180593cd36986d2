//! Completion queues, their channels, and what completed.

use crate::device::{Device, DeviceInner, VerbsError, event_sockets};
use crate::queue_pair::PostedQueues;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::collections::VecDeque;
use std::fmt;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Weak};
use std::time::Duration;
use thalweg_arena::{Ring, RingError, RingReceiver};
use thalweg_rnic::{Command, CompletedOperation, CompletionCell, CompletionEntry, Fault, FaultKind, Status};
use thiserror::Error;

/// Empty polls after which other threads are let run: the RNIC may wait for this processor.
const POLLS_PER_YIELD: u32 = 1 << 8;

/// Empty polls after which the kernel is asked whether the RNIC is still there.
const POLLS_PER_CHECK: u32 = 1 << 12;

/// A channel for events of completion queues. Clones are the same.
#[doc(alias = "ibv_comp_channel")]
#[derive(Debug, Clone)]
pub struct CompletionChannel {
    inner: Arc<ChannelInner>,
}

#[derive(Debug)]
struct ChannelInner {
    device: Arc<DeviceInner>,
    handle: u32,
    socket: OwnedFd,
}

impl Drop for ChannelInner {
    fn drop(&mut self) {
        let _ = self.device.call_rnic(Command::DestroyChannel(self.handle), Vec::new());
    }
}

impl CompletionChannel {
    /// Waits for the event of an armed completion queue and returns the queue's handle
    /// ([`CompletionQueue::queue_handle`]). `None` if there is none within `timeout`.
    ///
    /// # Errors
    /// The RNIC has ended.
    #[doc(alias = "ibv_get_cq_event")]
    pub fn wait_for_event(&self, timeout: Duration) -> Result<Option<u32>, VerbsError> {
        let message = self.inner.device.receive_message(&self.inner.socket, timeout)?;
        let handle = message.map(|message| message.first_chunk().map_or(0, |handle| u64::from_ne_bytes(*handle)));
        Ok(handle.map(|handle| handle as u32))
    }
}

/// The descriptor is readable when there is an event. With an embedded RNIC, a thread must drive it meanwhile.
impl AsFd for CompletionChannel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.inner.socket.as_fd()
    }
}

/// Completions that a program wants to be woken for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Notify {
    /// Any completion.
    Any,
    /// Completions of messages whose sender asks for it ([`SendFlags::SOLICITED`](crate::SendFlags::SOLICITED)), and failed ones.
    Solicited,
}

/// Result of arming.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use = "completions that are missed are slept over"]
pub enum Armed {
    /// The next completion sends an event.
    Armed,
    /// There is a completion already, and no event will be sent: poll.
    MissedCompletions,
}

/// Reason why a queue has no further completions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum PollError {
    /// Completions were lost.
    #[error(
        "the completion queue of {entries} entries overran: completions are lost, and its queue pairs are in error. Make it as long as all requests that may be outstanding, or poll more often"
    )]
    Overrun {
        /// Number of entries.
        entries: u32,
    },
    /// The RNIC has ended. All posted requests have completed with [`Status::Fatal`].
    #[error("the RNIC has ended: open it again")]
    RnicGone,
    /// The RNIC has damaged the queue's memory.
    #[error("the completion queue is damaged: {0}")]
    Damaged(#[from] RingError),
    /// The RNIC has written an entry that no program of this version understands.
    #[error("the completion queue has an entry that is none: the RNIC is of another version")]
    Unknown,
}

/// A completion queue. Clones are the same.
#[doc(alias = "ibv_cq")]
#[derive(Debug, Clone)]
pub struct CompletionQueue {
    pub(crate) inner: Arc<CompletionQueueInner>,
}

#[derive(Debug)]
pub(crate) struct CompletionQueueInner {
    device: Arc<DeviceInner>,
    pub(crate) handle: u32,
    channel: Option<CompletionChannel>,
    state: Mutex<PollState>,
}

#[derive(Debug)]
struct PollState {
    ring: RingReceiver,
    entries: u32,
    /// Queue pairs that complete here, by number.
    queues: HashMap<u32, Weak<PostedQueues>>,
    /// The one of the last completion.
    last: Option<(u32, Arc<PostedQueues>)>,
    /// Completions that were taken out of the ring, and come before those in it.
    kept: VecDeque<Completion>,
    /// Completions that this side has made up, since the RNIC has ended.
    made_up: VecDeque<Completion>,
    failed: Option<PollError>,
    empty_polls: u32,
}

impl Drop for CompletionQueueInner {
    fn drop(&mut self) {
        let _ = self.device.call_rnic(Command::DestroyCompletionQueue(self.handle), Vec::new());
    }
}

impl Device {
    /// Creates a completion channel.
    ///
    /// # Errors
    /// The RNIC refuses, or has ended.
    #[doc(alias = "ibv_create_comp_channel")]
    pub fn create_channel(&self) -> Result<CompletionChannel, VerbsError> {
        let (socket, theirs) = event_sockets()?;
        self.create_channel_over(socket, theirs)
    }

    /// Creates a completion channel over a pair of connected sockets that keep the borders of messages: this program's end,
    /// and the RNIC's. Each message is the number of a completion queue, 64 bits in the machine's byte order.
    ///
    /// # Errors
    /// As [`create_channel`](Self::create_channel).
    pub fn create_channel_over(&self, socket: OwnedFd, theirs: OwnedFd) -> Result<CompletionChannel, VerbsError> {
        let handle = self.inner.call_for_handle(Command::CreateChannel, vec![theirs])?;
        Ok(CompletionChannel { inner: Arc::new(ChannelInner { device: Arc::clone(&self.inner), handle, socket }) })
    }

    /// Creates a completion queue of at least `entries` entries, in this program's memory.
    ///
    /// # Errors
    /// The RNIC refuses, or has ended.
    #[doc(alias = "ibv_create_cq")]
    pub fn create_completion_queue(
        &self,
        entries: u32,
        channel: Option<&CompletionChannel>,
    ) -> Result<CompletionQueue, VerbsError> {
        self.create_numbered_queue(entries, channel, None)
    }

    /// Creates a completion queue whose events have this number, instead of its handle.
    ///
    /// # Errors
    /// As [`create_completion_queue`](Self::create_completion_queue).
    pub fn create_numbered_queue(
        &self,
        entries: u32,
        channel: Option<&CompletionChannel>,
        event_number: Option<u64>,
    ) -> Result<CompletionQueue, VerbsError> {
        let (limit, requested) = (u64::from(self.rnic_limits().max_completions), u64::from(entries));
        if requested > limit {
            let what = "entries of a completion queue".into();
            return Err(thalweg_rnic::CommandError::Limit { what, limit, requested }.into());
        }
        let entries = entries.max(1).next_power_of_two();
        let ring = Ring::create("rdma-completions", entries)?;
        let fd = duplicate_fd(ring.fd())?;
        let channel_handle = channel.map(|channel| channel.inner.handle);
        let command = Command::CreateCompletionQueue { entries, channel: channel_handle, event_number };
        let handle = self.inner.call_for_handle(command, vec![fd])?;
        let state = PollState {
            ring: ring.into_receiver(),
            entries,
            queues: HashMap::new(),
            last: None,
            kept: VecDeque::new(),
            made_up: VecDeque::new(),
            failed: None,
            empty_polls: 0,
        };
        let device = Arc::clone(&self.inner);
        let inner = CompletionQueueInner { device, handle, channel: channel.cloned(), state: Mutex::new(state) };
        Ok(CompletionQueue { inner: Arc::new(inner) })
    }
}

impl CompletionQueue {
    /// Returns the number by which events name the queue.
    pub fn queue_handle(&self) -> u32 {
        self.inner.handle
    }

    /// Returns the number of queue pairs that complete here, each counted by its two queues, and of clones of this.
    pub fn user_count(&self) -> usize {
        Arc::strong_count(&self.inner) - 1
    }

    /// Returns the number of entries.
    pub fn entry_count(&self) -> u32 {
        self.inner.state.lock().entries
    }

    /// Returns the channel.
    pub fn event_channel(&self) -> Option<&CompletionChannel> {
        self.inner.channel.as_ref()
    }

    /// Returns the next completion; `None` if there is none now.
    ///
    /// # Errors
    /// There will be no further ones: see [`PollError`].
    #[doc(alias = "ibv_poll_cq")]
    #[inline]
    pub fn poll_one(&self) -> Result<Option<Completion>, PollError> {
        let mut state = self.inner.state.lock();
        if let Some(completion) = state.take_entry()? {
            state.empty_polls = 0;
            return Ok(Some(completion));
        }
        let worked = self.inner.device.make_progress_by_poll();
        if worked && let Some(completion) = state.take_entry()? {
            state.empty_polls = 0;
            return Ok(Some(completion));
        }
        self.after_empty_poll(&mut state)
    }

    /// Returns the next completion that is in the queue, without doing an embedded RNIC's work; for a program that does
    /// that by itself ([`Device::make_progress`](crate::Device::make_progress)).
    ///
    /// # Errors
    /// As [`poll_one`](Self::poll_one).
    #[inline]
    pub fn take_ready(&self) -> Result<Option<Completion>, PollError> {
        self.inner.state.lock().take_entry()
    }

    /// Appends up to `limit` completions to `completions` and returns their number.
    ///
    /// # Errors
    /// There are none, and will be no further ones: see [`PollError`].
    pub fn poll_into(&self, completions: &mut Vec<Completion>, limit: usize) -> Result<usize, PollError> {
        let mut count = 0;
        while count < limit {
            match self.poll_one() {
                Ok(Some(completion)) => completions.push(completion),
                Ok(None) => break,
                Err(_) if count > 0 => break,
                Err(error) => return Err(error),
            }
            count += 1;
        }
        Ok(count)
    }

    /// Arms the queue: one event is sent to its channel with the next completion.
    ///
    /// # Errors
    /// The RNIC has ended, or the queue has failed.
    #[doc(alias = "ibv_req_notify_cq")]
    pub fn request_notification(&self, notify: Notify) -> Result<Armed, PollError> {
        let mut state = self.inner.state.lock();
        let has_some = !state.kept.is_empty() || !state.made_up.is_empty();
        if self.inner.device.is_gone() || state.failed.is_some() || has_some {
            return Ok(Armed::MissedCompletions);
        }
        let armed = match notify {
            Notify::Any => state.ring.prepare_wait(),
            Notify::Solicited => state.ring.prepare_wait_urgent(),
        };
        Ok(if armed { Armed::Armed } else { Armed::MissedCompletions })
    }

    /// Asks for one event with the next completion from now on, whatever is in the queue already (`ibv_req_notify_cq`): poll
    /// after this, before waiting.
    pub fn request_next_event(&self, notify: Notify) {
        self.inner.state.lock().ring.request_wakeup(notify == Notify::Solicited);
    }

    /// Looks after the RNIC, now and then. Once it has ended, all requests that were posted complete.
    #[cold]
    fn after_empty_poll(&self, state: &mut PollState) -> Result<Option<Completion>, PollError> {
        if let Some(completion) = state.made_up.pop_front() {
            return Ok(Some(completion));
        }
        state.empty_polls = state.empty_polls.wrapping_add(1);
        let device = &self.inner.device;
        if !device.is_gone() {
            if state.empty_polls.is_multiple_of(POLLS_PER_YIELD) {
                std::thread::yield_now();
            }
            if !state.empty_polls.is_multiple_of(POLLS_PER_CHECK) || device.check_presence() {
                return Ok(None);
            }
            // It may have completed something before it ended.
            if let Some(completion) = state.take_entry()? {
                return Ok(Some(completion));
            }
        }
        state.make_up_completions(self.inner.handle);
        state.made_up.pop_front().map(Some).ok_or(PollError::RnicGone)
    }

    pub(crate) fn add_queue(&self, number: u32, posted: &Arc<PostedQueues>) {
        self.inner.state.lock().queues.insert(number, Arc::downgrade(posted));
    }

    /// Drops the completions of a queue pair that was reset.
    pub(crate) fn discard_completions_of(&self, number: u32) {
        let mut state = self.inner.state.lock();
        let mut others = VecDeque::new();
        // A queue that has failed says so when it is polled.
        while let Ok(Some(completion)) = state.take_entry() {
            if completion.queue_number() != number {
                others.push_back(completion);
            }
        }
        state.kept = others;
    }

    pub(crate) fn remove_queue(&self, number: u32) {
        let mut state = self.inner.state.lock();
        state.queues.remove(&number);
        state.last = None;
    }
}

impl PollState {
    #[inline]
    fn take_entry(&mut self) -> Result<Option<Completion>, PollError> {
        if let Some(completion) = self.kept.pop_front() {
            return Ok(Some(completion));
        }
        loop {
            if let Some(error) = self.failed {
                return Err(error);
            }
            let cell = match self.ring.pop() {
                Ok(Some(cell)) => cell,
                Ok(None) => return Ok(None),
                Err(error) => {
                    self.failed = Some(error.into());
                    continue;
                }
            };
            match CompletionCell::decode_cell(&cell) {
                Some(CompletionCell::Entry(entry)) => {
                    // Entries of queue pairs that were destroyed are dropped, as by rdma-core.
                    if self.retire_request(&entry) {
                        return Ok(Some(Completion(entry)));
                    }
                }
                Some(CompletionCell::Overrun(entries)) => self.failed = Some(PollError::Overrun { entries }),
                None => self.failed = Some(PollError::Unknown),
            }
        }
    }

    /// Notes that a request has completed. Returns false if its queue pair does not exist any more.
    #[inline]
    fn retire_request(&mut self, entry: &CompletionEntry) -> bool {
        if self.last.as_ref().is_none_or(|(number, _)| *number != entry.queue) {
            let Some(queue) = self.queues.get(&entry.queue).and_then(Weak::upgrade) else { return false };
            self.last = Some((entry.queue, queue));
        }
        if let Some((_, queue)) = &self.last {
            queue.retire_request(entry);
        }
        true
    }

    /// Completes all requests that are posted to queues which complete here.
    fn make_up_completions(&mut self, completions: u32) {
        self.last = None;
        let fault = Fault::new(FaultKind::ConnectionLost, 0, 0, 0);
        for (number, queue) in &self.queues {
            let Some(queue) = queue.upgrade() else { continue };
            for (id, operation) in queue.take_posted(completions) {
                let entry = CompletionEntry {
                    id,
                    status: Status::Fatal,
                    operation,
                    queue: *number,
                    bytes: 0,
                    index: 0,
                    immediate: None,
                    invalidated: None,
                    fault,
                };
                self.made_up.push_back(Completion(entry));
            }
        }
    }
}

pub(crate) fn duplicate_fd(fd: BorrowedFd<'_>) -> Result<OwnedFd, VerbsError> {
    rustix::io::fcntl_dupfd_cloexec(fd, 0).map_err(crate::device::os_error("duplicating a file descriptor"))
}

/// A completion.
#[doc(alias = "ibv_wc")]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Completion(CompletionEntry);

impl Completion {
    /// Returns the id that the request was posted with.
    #[doc(alias = "wr_id")]
    pub fn request_id(&self) -> u64 {
        self.0.id
    }

    /// Returns the result.
    pub fn status(&self) -> Status {
        self.0.status
    }

    /// Returns whether the request has succeeded.
    pub fn is_success(&self) -> bool {
        self.0.status == Status::Success
    }

    /// Returns the operation.
    pub fn operation(&self) -> CompletedOperation {
        self.0.operation
    }

    /// Returns the number of the queue pair.
    pub fn queue_number(&self) -> u32 {
        self.0.queue
    }

    /// Returns the length in bytes of a received message, of an RDMA write whose immediate was received, or of the data
    /// that was read; 0 for other operations.
    pub fn transferred_bytes(&self) -> u32 {
        self.0.bytes
    }

    /// Returns the immediate of a received message. (RFC 7306 has 8 bytes, verbs 4.)
    pub fn immediate_data(&self) -> Option<u32> {
        self.0.immediate.map(|immediate| immediate as u32)
    }

    /// Returns the STag that a received message has invalidated.
    pub fn invalidated_stag(&self) -> Option<u32> {
        self.0.invalidated
    }

    /// Returns the cause of a failure: the side, the reason, the limit and the value that exceeded it.
    pub fn fault(&self) -> Option<Fault> {
        (!self.is_success()).then_some(self.0.fault)
    }
}

/// Writes a sentence: which request of which queue pair, its result, and the cause if it failed.
impl fmt::Display for Completion {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        let CompletionEntry { id, status, operation, queue, fault, .. } = &self.0;
        write!(to, "work request {id} ({operation}) of queue pair {queue:#x}: {status}")?;
        if *status == Status::Success {
            return Ok(());
        }
        write!(to, "; {fault}")
    }
}
