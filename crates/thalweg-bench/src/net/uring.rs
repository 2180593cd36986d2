//! Messages through io_uring: a send and the receive that waits for its answer go to the kernel in one system call, and
//! several sends of a stream too.

use super::control::{Job, Work, connection_error};
use super::exchange::{Messages, message_number};
use super::stream::socket_error;
use super::{Exchange, PEER_TIMEOUT, Phase, Tally};
use crate::BenchError;
use io_uring::types::{Fd, SubmitArgs, Timespec};
use io_uring::{IoUring, opcode, squeue};
use rustix::io::Errno;
use std::os::fd::{AsRawFd, OwnedFd};

/// Number of sends of a stream that go to the kernel together.
const SENDS_PER_SUBMIT: usize = 8;

const SEND_USER_DATA: u64 = 1;
const RECEIVE_USER_DATA: u64 = 2;

/// One end of a connection driven by io_uring.
pub(super) struct Uring {
    ring: IoUring,
    socket: OwnedFd,
    /// Whether it is TCP, where bytes may arrive in pieces; otherwise one datagram is one message.
    bytes: bool,
    stream: bool,
    check: bool,
    size: usize,
    messages: Messages,
    received: Vec<u8>,
    /// Number of sends that were not submitted yet; `in_flight` counts those submitted and not finished.
    queued: usize,
    in_flight: usize,
    receiving: bool,
    answered: Option<i32>,
    tally: Tally,
}

impl Uring {
    pub(super) fn new(socket: OwnedFd, job: &Job, bytes: bool) -> Result<Self, BenchError> {
        if bytes {
            socket2::SockRef::from(&socket)
                .set_tcp_nodelay(true)
                .map_err(BenchError::os_error("setting TCP_NODELAY"))?;
        }
        let ring = IoUring::builder()
            .setup_single_issuer()
            .setup_defer_taskrun()
            .build(2 * SENDS_PER_SUBMIT as u32)
            .map_err(|error| BenchError::Unavailable { what: "io_uring".into(), why: error.to_string() })?;
        Ok(Self {
            ring,
            socket,
            bytes,
            stream: job.work == Work::Receive,
            check: job.check_data,
            size: job.size,
            messages: Messages::new(job.size),
            received: vec![0; job.size],
            queued: 0,
            in_flight: 0,
            receiving: false,
            answered: None,
            tally: Tally::default(),
        })
    }

    fn push_entry(&mut self, entry: &squeue::Entry) -> Result<(), BenchError> {
        // SAFETY: entries point into `messages` and `received`, which are `Vec`s of fixed length and not freed before
        // their operations are over (see `drop`); `messages` is never written, and `received` is looked at only when
        // its one operation has completed.
        let pushed = unsafe { self.ring.submission().push(entry) };
        pushed.map_err(|_| connection_error("the submission queue of io_uring is full"))
    }

    /// Submits, and waits for `wait_for` completions.
    fn submit_and_wait(&mut self, wait_for: usize) -> Result<(), BenchError> {
        let timeout = Timespec::new().sec(PEER_TIMEOUT.as_secs());
        let arguments = SubmitArgs::new().timespec(&timeout);
        self.in_flight += std::mem::take(&mut self.queued);
        loop {
            self.tally.calls += 1;
            match self.ring.submitter().submit_with_args(wait_for, &arguments) {
                Ok(_) => break,
                Err(error) if error.raw_os_error() == Some(Errno::INTR.raw_os_error()) => {}
                Err(error) if error.raw_os_error() == Some(Errno::TIME.raw_os_error()) => {
                    return Err(socket_error("waiting for io_uring", Errno::AGAIN));
                }
                Err(error) => return Err(BenchError::os_error("io_uring_enter")(error)),
            }
        }
        let mut wrong = None;
        for completion in self.ring.completion() {
            let result = completion.result();
            if completion.user_data() == RECEIVE_USER_DATA {
                self.answered = Some(result);
                self.receiving = false;
            } else {
                self.in_flight = self.in_flight.saturating_sub(1);
                if result != self.size as i32 {
                    wrong.get_or_insert(result);
                }
            }
        }
        match wrong {
            None => Ok(()),
            Some(error) if error < 0 => Err(socket_error("sending through io_uring", Errno::from_raw_os_error(-error))),
            Some(_) => Err(connection_error("the connection ended in the middle of a message")),
        }
    }
}

impl Exchange for Uring {
    fn send_message(&mut self, phase: Phase) -> Result<(), BenchError> {
        let message = self.messages.message_bytes(phase);
        // MSG_WAITALL: the kernel continues until all is sent (io_uring_enter(2), IORING_OP_SEND).
        let entry = opcode::Send::new(Fd(self.socket.as_raw_fd()), message.as_ptr(), message.len() as u32)
            .flags(libc::MSG_WAITALL | libc::MSG_NOSIGNAL)
            .build()
            .user_data(SEND_USER_DATA);
        // Linked: the next one begins when this is done, or messages would be interleaved.
        let last = !self.stream || self.queued + 1 == SENDS_PER_SUBMIT || phase != Phase::Ordinary;
        let entry = if last { entry } else { entry.flags(squeue::Flags::IO_LINK) };
        self.push_entry(&entry)?;
        self.queued += 1;
        self.tally.sent += 1;
        self.tally.copied += self.size as u64;
        if self.stream && last { self.flush_pending() } else { Ok(()) }
    }

    fn flush_pending(&mut self) -> Result<(), BenchError> {
        while self.queued + self.in_flight > 0 {
            self.submit_and_wait(self.queued + self.in_flight)?;
        }
        Ok(())
    }

    fn receive_message(&mut self) -> Result<Phase, BenchError> {
        let flags = if self.bytes { libc::MSG_WAITALL } else { 0 };
        let into = (self.received.as_mut_ptr(), self.received.len() as u32);
        let entry = opcode::Recv::new(Fd(self.socket.as_raw_fd()), into.0, into.1).flags(flags).build();
        self.push_entry(&entry.user_data(RECEIVE_USER_DATA))?;
        self.receiving = true;
        let count = loop {
            self.submit_and_wait(self.queued + self.in_flight + 1)?;
            if let Some(count) = self.answered.take() {
                break count;
            }
        };
        if count < 0 {
            return Err(socket_error("receiving through io_uring", Errno::from_raw_os_error(-count)));
        }
        if count as usize != self.size {
            return Err(connection_error("the connection ended in the middle of the measurement"));
        }
        if self.check {
            self.messages.check_received(&self.received, 0, self.tally.received)?;
        }
        self.tally.received += 1;
        self.tally.received_bytes += self.size as u64;
        self.tally.copied += self.size as u64;
        Ok(Phase::from_byte(self.received[0]))
    }

    fn has_pending_message(&mut self) -> Result<bool, BenchError> {
        self.tally.calls += 1;
        super::control::has_pending_data(&self.socket)
    }

    fn set_next_number(&mut self, number: u64) {
        // The kernel may be reading the last message: a stamp is for conversations, which wait for their sends.
        if !self.bytes && self.queued + self.in_flight == 0 {
            self.messages.write_number(number);
        }
    }

    fn last_number_received(&self) -> Option<u64> {
        (!self.bytes).then(|| message_number(&self.received)).flatten()
    }

    fn counters(&self) -> Tally {
        self.tally
    }
}

impl Drop for Uring {
    /// Makes the kernel finish, since it may still read the messages and write to the receive buffer; otherwise leaks
    /// that memory.
    fn drop(&mut self) {
        let _ = rustix::net::shutdown(&self.socket, rustix::net::Shutdown::Both);
        while self.in_flight + usize::from(self.receiving) > 0 {
            let before = self.in_flight + usize::from(self.receiving);
            if self.submit_and_wait(1).is_err() && before == self.in_flight + usize::from(self.receiving) {
                std::mem::forget(std::mem::replace(&mut self.messages, Messages::new(1)));
                std::mem::forget(std::mem::take(&mut self.received));
                return;
            }
        }
    }
}
