//! The completion management table: completion queues in the programs' memory, their events, and their overrun.

use crate::attributes::{AsyncEvent, CompletedOperation, Fault, FaultKind, QueueState, Status};
use crate::descriptor::{CompletionCell, CompletionEntry, SendFlags};
use crate::engine::Engine;
use crate::queue_pair::{TakenReceive, Transfer};
use thalweg_arena::RingSender;

/// A completion queue.
#[derive(Debug)]
pub(crate) struct CompletionQueue {
    pub(crate) client: u32,
    pub(crate) channel: Option<u32>,
    /// Number in its events; its handle if it has none.
    event_number: Option<u64>,
    ring: RingSender,
    /// Entries were put in and not published; one of them is urgent.
    unpublished: bool,
    urgent: bool,
    overrun: bool,
}

impl CompletionQueue {
    pub(crate) fn new(client: u32, channel: Option<u32>, event_number: Option<u64>, ring: RingSender) -> Self {
        Self { client, channel, event_number, ring, unpublished: false, urgent: false, overrun: false }
    }
}

/// Result of a receive.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ReceiveResult {
    pub(crate) status: Status,
    pub(crate) operation: CompletedOperation,
    pub(crate) bytes: u32,
    pub(crate) immediate: Option<u64>,
    pub(crate) invalidated: Option<u32>,
    pub(crate) fault: Fault,
    pub(crate) solicited: bool,
}

impl ReceiveResult {
    pub(crate) fn failed_receive(status: Status, fault: Fault) -> Self {
        let operation = CompletedOperation::Receive;
        Self { status, operation, bytes: 0, immediate: None, invalidated: None, fault, solicited: false }
    }
}

impl Engine {
    /// Completes a send request: with an entry if it failed or is signaled.
    pub(crate) fn complete_send(&mut self, queue: u32, transfer: &Transfer, status: Status, fault: Fault) {
        let Some(pair) = self.queues.get(queue) else { return };
        let signaled = pair.signal_all || transfer.request.flags.contains(SendFlags::SIGNALED);
        if status == Status::Success && !signaled {
            return;
        }
        let operation = transfer.request.operation;
        let bytes =
            if operation.is_read_or_atomic() && status == Status::Success { transfer.total_bytes as u32 } else { 0 };
        let entry = CompletionEntry {
            id: transfer.request.id,
            status,
            operation: operation.completed_operation(),
            queue,
            bytes,
            index: transfer.index,
            immediate: None,
            invalidated: None,
            fault,
        };
        self.push_completion(pair.send_completions, entry, status != Status::Success);
    }

    /// Completes a receive.
    pub(crate) fn complete_receive(&mut self, queue: u32, taken: &TakenReceive, result: ReceiveResult) {
        let Some(pair) = self.queues.get(queue) else { return };
        let entry = CompletionEntry {
            id: taken.receive.id,
            status: result.status,
            operation: result.operation,
            queue,
            bytes: result.bytes,
            index: taken.index,
            immediate: result.immediate,
            invalidated: result.invalidated,
            fault: result.fault,
        };
        self.push_completion(pair.receive_completions, entry, result.solicited || result.status != Status::Success);
    }

    fn push_completion(&mut self, queue: u32, entry: CompletionEntry, urgent: bool) {
        let Some(completions) = self.completions.get_mut(queue) else { return };
        if completions.overrun {
            return;
        }
        // Full, or damaged by its program: both harm its own queue pairs only (RFC 5040 section 8.1.1).
        if completions.ring.push(&CompletionCell::Entry(entry).encode_cell()).is_err() {
            completions.overrun = true;
            self.overrun.push(queue);
            return;
        }
        completions.urgent |= urgent;
        if !std::mem::replace(&mut completions.unpublished, true) {
            self.unpublished.push(queue);
        }
    }

    /// Shows programs the entries that were put in, and wakes those that wait for them; brings the queue pairs of
    /// completion queues that have overrun into the error state.
    #[inline]
    pub(crate) fn publish_completions(&mut self) {
        while !self.unpublished.is_empty() || !self.overrun.is_empty() {
            while let Some(queue) = self.unpublished.pop() {
                self.publish_queue(queue);
            }
            while let Some(queue) = self.overrun.pop() {
                self.report_overrun(queue);
            }
        }
    }

    fn publish_queue(&mut self, queue: u32) {
        let Some(completions) = self.completions.get_mut(queue) else { return };
        completions.unpublished = false;
        let urgent = std::mem::take(&mut completions.urgent);
        let wake = if urgent { completions.ring.publish() } else { completions.ring.publish_quietly() };
        let number = completions.event_number.unwrap_or(u64::from(queue));
        let channel = completions.channel.filter(|_| wake).and_then(|channel| self.channels.get_mut(channel));
        if let Some(channel) = channel {
            self.events_wait |= channel.events.send_event(number.to_ne_bytes().to_vec());
        }
    }

    fn report_overrun(&mut self, queue: u32) {
        let Some(completions) = self.completions.get(queue) else { return };
        let (client, entries) = (completions.client, completions.ring.cells());
        self.notices.push(queue);
        self.send_async_event(client, &AsyncEvent::CompletionOverrun { queue, entries });
        let pairs = self.queues.iter().filter(|(_, pair)| pair.completes_in(queue));
        let pairs: Vec<u32> = pairs.map(|(number, _)| number).collect();
        let fault = Fault::new(FaultKind::CompletionOverrun, 0, 0, u64::from(entries));
        for pair in pairs {
            self.fail_queue_by_fault(pair, fault);
        }
    }

    /// Puts the notice of its overrun into each completion queue that has room again: its last entry.
    pub(crate) fn post_overrun_notices(&mut self) {
        for queue in std::mem::take(&mut self.notices) {
            let Some(completions) = self.completions.get_mut(queue) else { continue };
            let notice = CompletionCell::Overrun(completions.ring.cells()).encode_cell();
            match completions.ring.push(&notice) {
                Err(thalweg_arena::PushError::Full) => self.notices.push(queue),
                Err(thalweg_arena::PushError::Ring(_)) => {}
                Ok(()) => {
                    completions.urgent = true;
                    self.publish_queue(queue);
                }
            }
        }
    }

    /// Brings a queue pair into the error state because of a fault that is no request's, and reports it.
    pub(crate) fn fail_queue_by_fault(&mut self, queue: u32, fault: Fault) {
        let Some(pair) = self.queues.get(queue) else { return };
        if pair.state == QueueState::Error {
            return;
        }
        let client = pair.client;
        self.send_async_event(client, &AsyncEvent::QueueFatal { queue, cause: fault.to_string() });
        self.fail_queue(queue, "the peer's queue pair failed");
    }
}
