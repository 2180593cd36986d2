//! Messages as datagrams in bursts, sent and received as Thalweg's own links do.

use super::control::{Job, connection_error};
use super::exchange::{Messages, message_number};
use super::{Exchange, PEER_TIMEOUT, Phase, Tally, Wait};
use crate::BenchError;
use rustix::event::{PollFd, PollFlags, poll};
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};
use thalweg_arena::{Arena, Span};
use thalweg_frames::{Arrival, DatagramIo, FramesError};

/// Bytes of a message in its head: phase and number. The rest lies in an arena, as a slot does.
const MESSAGE_HEADER_BYTES: usize = 9;
/// Number of empty polls before the clock is read.
const POLLS_PER_CLOCK_READ: u32 = 1 << 12;

/// One end of a pair of ports.
#[derive(Debug)]
pub(super) struct Frames {
    io: Box<dyn DatagramIo>,
    /// Address of the other end; at the serving end, that of the first sender.
    peer: Option<SocketAddr>,
    poll: bool,
    check: bool,
    messages: Messages,
    /// Arena with the messages, back to back: no other part of it is sent.
    arena: Arc<Arena>,
    _bytes: Span,
    /// Marks and ends that were received and not returned yet.
    phases: VecDeque<Phase>,
    last_number: Option<u64>,
    tally: Tally,
}

impl Frames {
    /// Makes one end that exchanges bursts of messages of the job's size, with `peer` if that is known.
    pub(super) fn new(mut io: Box<dyn DatagramIo>, peer: Option<SocketAddr>, job: &Job) -> Result<Self, BenchError> {
        if let Some(peer) = peer {
            let longest = io.max_datagram_bytes(peer).map_err(port_error)?;
            if job.size > longest {
                return Err(BenchError::Unavailable {
                    what: format!("a datagram of {} bytes", job.size),
                    why: format!("{longest} is the most that gets to {peer}: see the MTU that `ip link` shows"),
                });
            }
        }
        let messages = Messages::new(job.size);
        let mut bytes = Arena::create("messages", messages.all_bytes().len())
            .map_err(|error| connection_error(&error.to_string()))?;
        bytes[..messages.all_bytes().len()].copy_from_slice(messages.all_bytes());
        let arena = Arc::clone(bytes.arena());
        io.register_memory(&arena).map_err(port_error)?;
        io.reserve_receive_bytes(8 << 20);
        Ok(Self {
            io,
            peer,
            poll: job.wait == Wait::Poll,
            check: job.check_data,
            messages,
            arena,
            _bytes: bytes,
            phases: VecDeque::new(),
            last_number: None,
            tally: Tally::default(),
        })
    }

    /// Returns the port at which the other end reaches this one.
    pub(super) fn local_port(&self) -> u16 {
        self.io.local_address().port()
    }

    /// Receives all pending datagrams and returns the number of messages.
    fn receive_pending(&mut self) -> Result<u64, BenchError> {
        let Self { io, peer, check, messages, phases, last_number, tally, .. } = self;
        let (before, copies, mut wrong) = (tally.received, io.copies_per_byte().1, None);
        tally.calls += u64::from(!io.is_cheap_to_poll());
        let received = io.receive_datagrams(&mut |from: SocketAddr, arrival: Arrival<'_>| {
            let Arrival::Datagram(datagram) = arrival else { return };
            if *peer.get_or_insert(from) != from || datagram.is_empty() {
                return;
            }
            tally.received_bytes += datagram.len() as u64;
            tally.copied += copies * datagram.len() as u64;
            *last_number = message_number(datagram);
            match Phase::from_byte(datagram[0]) {
                Phase::Ordinary if *check => {
                    wrong = wrong.take().or_else(|| messages.check_received(datagram, 0, tally.received).err());
                }
                Phase::Ordinary => {}
                phase => phases.push_back(phase),
            }
            tally.received += 1;
        });
        received.map_err(port_error)?;
        wrong.map_or(Ok(self.tally.received - before), Err)
    }

    fn wait_for_events(&self, what: PollFlags) -> Result<(), BenchError> {
        let Some(fd) = self.io.descriptor().filter(|_| !self.poll) else { return Ok(()) };
        wait_until_ready(fd, what, PEER_TIMEOUT)
            .and_then(|ready| if ready { Ok(()) } else { Err(connection_error("nothing comes any more")) })
    }
}

fn port_error(FramesError { doing, error }: FramesError) -> BenchError {
    BenchError::os_error(doing)(error)
}

fn wait_until_ready(fd: BorrowedFd<'_>, what: PollFlags, within: Duration) -> Result<bool, BenchError> {
    let within =
        rustix::time::Timespec { tv_sec: within.as_secs().cast_signed(), tv_nsec: within.subsec_nanos().into() };
    let ready = poll(&mut [PollFd::from_borrowed_fd(fd, what)], Some(&within));
    ready.map(|ready| ready > 0).map_err(BenchError::os_error("waiting for a port"))
}

impl Exchange for Frames {
    fn send_message(&mut self, phase: Phase) -> Result<(), BenchError> {
        let to = self.peer.ok_or_else(|| connection_error("no message was received that could be answered"))?;
        if !self.io.has_send_room() {
            self.flush_pending()?;
        }
        let (message, at) = (self.messages.message_bytes(phase), self.messages.message_offset(phase));
        let (head, rest) = message.split_at(MESSAGE_HEADER_BYTES.min(message.len()));
        let piece = self.arena.piece_of_range((at + head.len()) as u64, rest.len()).filter(|piece| !piece.is_empty());
        self.tally.copied += self.io.copies_per_byte().0 * rest.len() as u64;
        self.tally.sent += 1;
        self.io.queue_datagram(to, head, piece);
        Ok(())
    }

    fn flush_pending(&mut self) -> Result<(), BenchError> {
        let begun = Instant::now();
        // Where no other program handles the network, address resolution comes in between.
        if self.io.is_cheap_to_poll() {
            self.receive_pending()?;
        }
        loop {
            self.tally.calls += 1;
            if self.io.flush_burst().map_err(port_error)? {
                return Ok(());
            }
            if begun.elapsed() > PEER_TIMEOUT {
                return Err(connection_error("the port takes nothing any more"));
            }
            self.wait_for_events(PollFlags::OUT)?;
        }
    }

    /// Receives a message; a burst of ordinary messages counts as one.
    fn receive_message(&mut self) -> Result<Phase, BenchError> {
        self.flush_pending()?;
        let mut begun = None;
        loop {
            for _ in 0..POLLS_PER_CLOCK_READ {
                if let Some(phase) = self.phases.pop_front() {
                    return Ok(phase);
                }
                match self.receive_pending()? {
                    0 if self.poll || self.io.descriptor().is_none() => {}
                    0 if self.io.prepare_wait() => self.wait_for_events(PollFlags::IN)?,
                    0 => {}
                    _ if self.phases.is_empty() => return Ok(Phase::Ordinary),
                    _ => {}
                }
            }
            if begun.get_or_insert_with(Instant::now).elapsed() > PEER_TIMEOUT {
                return Err(connection_error("nothing comes any more"));
            }
        }
    }

    fn has_pending_message(&mut self) -> Result<bool, BenchError> {
        match self.io.descriptor() {
            Some(fd) => Ok(!self.phases.is_empty() || wait_until_ready(fd, PollFlags::IN, Duration::ZERO)?),
            None => Ok(!self.phases.is_empty()),
        }
    }

    fn set_next_number(&mut self, number: u64) {
        self.messages.write_number(number);
    }

    fn last_number_received(&self) -> Option<u64> {
        self.last_number
    }

    fn counters(&self) -> Tally {
        self.tally
    }
}
