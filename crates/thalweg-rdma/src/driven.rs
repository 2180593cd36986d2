//! An RNIC that the program's calls drive: that in software, or a device of the kernel.

use crate::adapter::{Adapter, Registered};
use crate::device::VerbsError;
use crate::memory::MemoryRange;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Instant;
use thalweg_arena::SharedMemory;
use thalweg_rnic::{Access, ClientId, Clock, Command, Engine, Reply};

/// Queue whose ring has new requests.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Rung {
    /// Send queue of a queue pair.
    Send(u32),
    /// Receive queue of a queue pair.
    Receive(u32),
    /// Shared receive queue.
    SharedReceive(u32),
}

/// An RNIC that the program's calls drive.
#[derive(Debug)]
pub(crate) enum DrivenRnic {
    Software(Box<Engine>),
    Device(Box<Adapter>),
}

impl DrivenRnic {
    pub(crate) fn add_client(&mut self) -> Result<Option<ClientId>, VerbsError> {
        match self {
            Self::Software(engine) => Ok(Some(engine.add_client()?)),
            Self::Device(_) => Ok(None),
        }
    }

    /// Carries out a command. A device has one program, and no client.
    pub(crate) fn execute_command(
        &mut self,
        client: Option<ClientId>,
        command: Command,
        fds: Vec<OwnedFd>,
    ) -> Result<Reply, VerbsError> {
        match (self, client) {
            (Self::Software(engine), Some(client)) => {
                engine.update_time(Instant::now());
                Ok(engine.execute_command(client, command, fds)?)
            }
            (Self::Software(_), None) => Err(VerbsError::RnicGone),
            (Self::Device(adapter), _) => adapter.execute_command(command, fds),
        }
    }

    /// Registers a range of a file.
    pub(crate) fn register_file(
        &mut self,
        (client, domain): (Option<ClientId>, u32),
        fd: OwnedFd,
        range: MemoryRange,
        access: Access,
    ) -> Result<Registered, VerbsError> {
        if let Self::Device(adapter) = self {
            return adapter.register_file(domain, &fd, range, access);
        }
        let MemoryRange { offset, length, base } = range;
        match self.execute_command(
            client,
            Command::RegisterRegion { domain, offset, length, base, access },
            vec![fd],
        )? {
            Reply::Handle(stag) => Ok(Registered { stag, peer_base: base }),
            other => Err(VerbsError::Answer(format!("{other:?}"))),
        }
    }

    /// Registers a range of memory that the program has mapped; in software, under the STag of a region if there is one.
    pub(crate) fn register_mapped(
        &mut self,
        (client, domain, stag): (Option<ClientId>, u32, Option<u32>),
        memory: Arc<SharedMemory>,
        range: MemoryRange,
        access: Access,
    ) -> Result<Registered, VerbsError> {
        match (self, client) {
            (Self::Software(engine), Some(client)) => {
                let bytes = (range.offset, range.length, range.base);
                let stag = engine.register_memory((client, domain, stag), memory, bytes, access)?;
                Ok(Registered { stag, peer_base: range.base })
            }
            (Self::Software(_), None) => Err(VerbsError::RnicGone),
            (Self::Device(adapter), _) if stag.is_some() => {
                Err(adapter.unsupported("registering other memory under the same STag"))
            }
            (Self::Device(adapter), _) => adapter.register_mapped(domain, memory, range, access),
        }
    }

    pub(crate) fn remove_client(&mut self, client: Option<ClientId>) {
        if let (Self::Software(engine), Some(client)) = (self, client) {
            engine.remove_client(client);
        }
    }

    #[inline]
    pub(crate) fn make_progress(&mut self, now: Instant, clock: Clock<'_>) -> bool {
        match self {
            Self::Software(engine) => engine.make_progress(now, clock),
            Self::Device(adapter) => adapter.make_progress(now),
        }
    }

    /// Does the work of a queue whose doorbell was rung.
    #[inline]
    pub(crate) fn progress_queue(&mut self, rung: Rung) {
        match (self, rung) {
            (Self::Software(engine), Rung::Send(queue)) => drop(engine.progress_queue(queue, &Instant::now)),
            // A message that waits for a receive is looked at in the next turn.
            (Self::Software(_), Rung::Receive(_) | Rung::SharedReceive(_)) => {}
            (Self::Device(adapter), Rung::Send(queue)) => adapter.post_sends(queue),
            (Self::Device(adapter), Rung::Receive(queue)) => adapter.post_receives(queue),
            (Self::Device(adapter), Rung::SharedReceive(queue)) => adapter.post_shared_receives(queue),
        }
    }

    /// Returns whether a queue pair has more to do than one call did.
    pub(crate) fn has_work_left(&mut self, queue: u32) -> bool {
        match self {
            Self::Software(engine) => engine.has_work_left(queue),
            Self::Device(_) => false,
        }
    }

    pub(crate) fn next_deadline(&self, queue: u32) -> Option<Instant> {
        match self {
            Self::Software(engine) => engine.next_deadline(queue),
            Self::Device(adapter) => adapter.next_deadline(),
        }
    }

    /// Prepares to sleep. `None` if there is something to do now; else the time at which there is at the latest.
    pub(crate) fn prepare_sleep(&mut self, now: Instant) -> Option<Option<Instant>> {
        match self {
            Self::Software(engine) => engine.prepare_sleep(now),
            Self::Device(adapter) => adapter.prepare_sleep(now),
        }
    }

    pub(crate) fn cancel_sleep(&mut self) {
        if let Self::Software(engine) = self {
            engine.cancel_sleep();
        }
    }

    pub(crate) fn poll_descriptor(&self) -> Option<Arc<OwnedFd>> {
        match self {
            Self::Software(engine) => engine.poll_descriptor(),
            Self::Device(adapter) => Some(adapter.poll_descriptor()),
        }
    }

    pub(crate) fn has_unsent(&self) -> bool {
        match self {
            Self::Software(engine) => engine.has_unsent(),
            Self::Device(adapter) => adapter.has_unsent(),
        }
    }

    /// Returns the bytes that the peer of a queue pair has read. A device does not count them.
    pub(crate) fn bytes_read_by_peer(&self, queue: u32) -> Option<u64> {
        match self {
            Self::Software(engine) => engine.bytes_read_by_peer(queue),
            Self::Device(_) => None,
        }
    }
}
