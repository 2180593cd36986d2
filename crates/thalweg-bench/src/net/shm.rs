//! Messages through shared memory, as Thalweg's shm link carries them: bytes in an arena, announced by 64-byte cells in
//! a ring. An end that sleeps is woken by a byte over a pair of sockets.
//!
//! Each end has an arena that it writes and the other reads, and a ring in each direction. *copy* copies a message into
//! the arena and out of it at the other end, as a message-passing library would; one of up to 48 bytes goes inside the
//! cell. *handover* announces the place where the device left it, and it is read in place. A place is
//! used again when the other end has reported that it is done: by its answer in a conversation, by a cell of its own in
//! a stream.

use super::control::{Control, Job, Watchdog, Work, connection_error};
use super::exchange::Messages;
use super::{Exchange, Method, PEER_TIMEOUT, Phase, Tally, Wait};
use crate::BenchError;
use std::io::Read;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use thalweg_arena::{
    Arena, CELL_BYTES, Ring, RingReceiver, RingSender, Span, View, recv_fds, send_fds, wake_over_socket,
};

/// Bytes of a message that fit into a cell after its head.
const CELL_PAYLOAD_BYTES: usize = CELL_BYTES - CELL_HEADER_BYTES;
const CELL_HEADER_BYTES: usize = 16;

/// Number of cells in a ring, and upper limit of messages in flight.
const RING_CELL_COUNT: u32 = 64;

/// Memory that messages in flight may take, in bytes: they should stay in the cache.
const MESSAGE_MEMORY_BYTES: usize = 1 << 20;

/// One end of the shared memory.
#[derive(Debug)]
pub(super) struct Shared {
    to: RingSender,
    from: RingReceiver,
    /// Cell that was received by `waiting` and not processed yet.
    ahead: Option<[u8; CELL_BYTES]>,
    /// Socket over which each end wakes the other.
    peer: UnixStream,
    arena: Span,
    their_arena: Arc<Arena>,
    /// View of the whole arena of the other end.
    view: View,
    method: Method,
    wait: Wait,
    check: bool,
    /// Whether places are returned by cells of their own.
    stream: bool,
    size: usize,
    /// Number of messages that the arena holds, `stride` bytes apart.
    places: usize,
    stride: usize,
    in_flight: usize,
    next: usize,
    messages: Messages,
    received: Vec<u8>,
    tally: Tally,
}

/// Sets up the asking end.
pub(super) fn set_up_asking_end(control: &Control, job: &Job) -> Result<Shared, BenchError> {
    let (arena, stride, places) = create_message_arena(job)?;
    let there = Ring::create("bench-there", RING_CELL_COUNT).map_err(|error| control.peer_error(error))?;
    let back = Ring::create("bench-back", RING_CELL_COUNT).map_err(|error| control.peer_error(error))?;
    let (peer, theirs) = UnixStream::pair().map_err(|error| control.peer_error(error))?;
    let fds = [there.fd(), back.fd(), theirs.as_fd(), arena.arena().fd()];
    send_fds(control.unix_stream()?, b"m", &fds).map_err(|error| control.peer_error(error))?;
    let [their_arena] = receive_descriptors::<1>(control)?;
    let shared =
        Shared::new(job, there.into_sender(), back.into_receiver(), peer, (arena, stride, places), their_arena);
    shared.map_err(|error| control.peer_error(error))
}

/// Sets up the serving end.
pub(super) fn set_up_serving_end(control: &Control, job: &Job) -> Result<Box<dyn Exchange>, BenchError> {
    let [there, back, peer, their_arena] = receive_descriptors::<4>(control)?;
    let (arena, stride, places) = create_message_arena(job)?;
    send_fds(control.unix_stream()?, b"m", &[arena.arena().fd()]).map_err(|error| control.peer_error(error))?;
    let to = Ring::import(back).map_err(|error| control.peer_error(error))?.into_sender();
    let from = Ring::import(there).map_err(|error| control.peer_error(error))?.into_receiver();
    let shared = Shared::new(job, to, from, peer.into(), (arena, stride, places), their_arena);
    Ok(Box::new(shared.map_err(|error| control.peer_error(error))?))
}

fn create_message_arena(job: &Job) -> Result<(Span, usize, usize), BenchError> {
    // Messages begin on cache lines; three more, which differ in their phase, lie after the places, for handover.
    let stride = job.size.next_multiple_of(64);
    let places = (MESSAGE_MEMORY_BYTES / stride).clamp(2, RING_CELL_COUNT as usize / 2);
    let mut span = Arena::create("bench-messages", stride * (places + Phase::ALL.len()))
        .map_err(|error| BenchError::Unavailable { what: "shared memory".into(), why: error.to_string() })?;
    let messages = Messages::new(job.size);
    for at in 0..places + Phase::ALL.len() {
        let phase = Phase::ALL[at.saturating_sub(places)];
        span[at * stride..][..job.size].copy_from_slice(messages.message_bytes(phase));
    }
    Ok((span, stride, places))
}

fn receive_descriptors<const N: usize>(control: &Control) -> Result<[OwnedFd; N], BenchError> {
    let (count, fds) = recv_fds(control.unix_stream()?, &mut [0], N).map_err(|error| control.peer_error(error))?;
    match <[OwnedFd; N]>::try_from(fds) {
        Ok(fds) if count == 1 => Ok(fds),
        _ => Err(control.peer_error("it did not hand over its memory")),
    }
}

impl Shared {
    fn new(
        job: &Job,
        to: RingSender,
        from: RingReceiver,
        peer: UnixStream,
        (arena, stride, places): (Span, usize, usize),
        their_arena: OwnedFd,
    ) -> Result<Self, thalweg_arena::ArenaError> {
        let their_arena = Arena::import(their_arena)?;
        let size = their_arena.size_bytes();
        let view = their_arena.view_range(0, size).ok_or(thalweg_arena::ArenaError::Size(size))?;
        Ok(Self {
            to,
            from,
            ahead: None,
            peer,
            arena,
            their_arena,
            view,
            method: job.method,
            wait: job.wait,
            check: job.check_data,
            stream: job.work == Work::Receive,
            size: job.size,
            places,
            stride,
            in_flight: 0,
            next: 0,
            messages: Messages::new(job.size),
            received: vec![0; job.size],
            tally: Tally::default(),
        })
    }

    /// Returns the memory that the other end writes.
    pub(super) fn other_arena_fd(&self) -> BorrowedFd<'_> {
        self.their_arena.fd()
    }

    fn fits_into_cell(&self) -> bool {
        self.method == Method::Copy && self.size <= CELL_PAYLOAD_BYTES
    }

    /// Returns the offset of a place that the other end is done with.
    fn next_free_offset(&mut self) -> Result<usize, BenchError> {
        while self.stream && self.in_flight == self.places {
            self.pop_cell()?;
            self.in_flight -= 1;
        }
        self.next = (self.next + 1) % self.places;
        self.in_flight += 1;
        Ok(self.next * self.stride)
    }

    fn push_cell(&mut self, cell: &[u8; CELL_BYTES]) -> Result<(), BenchError> {
        // Never full: no more cells are in flight than there are places, or one where messages are answered.
        self.to.push(cell).map_err(|error| connection_error(&error.to_string()))?;
        if self.to.publish() {
            self.tally.calls += 1;
            wake_over_socket(&self.peer).map_err(|error| connection_error(&error.to_string()))?;
        }
        Ok(())
    }

    fn pop_cell(&mut self) -> Result<[u8; CELL_BYTES], BenchError> {
        if let Some(cell) = self.ahead.take() {
            return Ok(cell);
        }
        let mut watchdog = Watchdog::default();
        loop {
            match self.from.pop() {
                Ok(Some(cell)) => return Ok(cell),
                Ok(None) if self.wait == Wait::Poll => {
                    watchdog.count_empty_poll("waiting for a message in shared memory")?
                }
                Ok(None) => {
                    if self.from.prepare_wait() {
                        self.sleep_until_woken()?;
                        self.from.cancel_wait();
                    }
                }
                Err(error) => return Err(connection_error(&error.to_string())),
            }
        }
    }

    fn sleep_until_woken(&mut self) -> Result<(), BenchError> {
        use rustix::event::{PollFd, PollFlags, poll};
        let timeout = rustix::time::Timespec { tv_sec: PEER_TIMEOUT.as_secs().cast_signed(), tv_nsec: 0 };
        self.tally.calls += 2;
        match poll(&mut [PollFd::new(&self.peer, PollFlags::IN)], Some(&timeout)) {
            Ok(0) => Err(BenchError::Silent {
                doing: "waiting for a message in shared memory".into(),
                timeout: PEER_TIMEOUT,
            }),
            Ok(_) => match self.peer.read(&mut [0; 64]) {
                Ok(0) => Err(connection_error("the other end closed the connection")),
                Ok(_) => Ok(()),
                Err(error) => Err(connection_error(&error.to_string())),
            },
            Err(rustix::io::Errno::INTR) => Ok(()),
            Err(error) => Err(BenchError::os_error("waiting to be woken")(error)),
        }
    }
}

impl Exchange for Shared {
    #[inline]
    fn send_message(&mut self, phase: Phase) -> Result<(), BenchError> {
        let mut cell = [0; CELL_BYTES];
        cell[0] = phase as u8;
        if self.fits_into_cell() {
            if self.stream {
                self.next_free_offset()?;
            }
            cell[CELL_HEADER_BYTES..CELL_HEADER_BYTES + self.size].copy_from_slice(self.messages.message_bytes(phase));
            self.tally.copied += self.size as u64;
        } else {
            let mut place = self.next_free_offset()?;
            if self.method == Method::Copy {
                self.arena[place..place + self.size].copy_from_slice(self.messages.message_bytes(phase));
                self.tally.copied += self.size as u64;
            } else if phase != Phase::Ordinary {
                place = (self.places + phase as usize) * self.stride;
            }
            cell[8..16].copy_from_slice(&(place as u64).to_le_bytes());
        }
        self.tally.sent += 1;
        self.push_cell(&cell)
    }

    #[inline]
    fn receive_message(&mut self) -> Result<Phase, BenchError> {
        let cell = self.pop_cell()?;
        let phase = Phase::from_byte(cell[0]);
        if self.fits_into_cell() {
            self.received.copy_from_slice(&cell[CELL_HEADER_BYTES..CELL_HEADER_BYTES + self.size]);
            self.tally.copied += self.size as u64;
            if self.check {
                self.messages.check_received(&self.received, 0, self.tally.received)?;
            }
        } else {
            let mut place = [0; 8];
            place.copy_from_slice(&cell[8..16]);
            let place = usize::try_from(u64::from_le_bytes(place)).unwrap_or(usize::MAX);
            if place.checked_add(self.size).is_none_or(|end| end > self.view.len()) {
                return Err(connection_error("a message lies outside of shared memory"));
            }
            if self.method == Method::Copy || self.check {
                self.view.copy_bytes_to(place, &mut self.received);
            }
            if self.method == Method::Copy {
                self.tally.copied += self.size as u64;
            }
            if self.check {
                self.messages.check_received(&self.received, 0, self.tally.received)?;
            }
        }
        if self.stream {
            self.push_cell(&[0; CELL_BYTES])?;
        }
        self.tally.received += 1;
        self.tally.received_bytes += self.size as u64;
        Ok(phase)
    }

    fn has_pending_message(&mut self) -> Result<bool, BenchError> {
        if self.ahead.is_none() {
            self.ahead = self.from.pop().map_err(|error| connection_error(&error.to_string()))?;
        }
        Ok(self.ahead.is_some())
    }

    fn counters(&self) -> Tally {
        self.tally
    }
}
