//! Messages over UDP. A message that is longer than a datagram is sent as several.

use super::control::{Job, Watchdog, Work, connection_error};
use super::exchange::{Messages, message_number};
use super::stream::socket_error;
use super::{Exchange, Method, PEER_TIMEOUT, Phase, Tally, Wait};
use crate::BenchError;
use rustix::io::Errno;
use rustix::net::{RecvAncillaryBuffer, RecvFlags, SendAncillaryBuffer, SendFlags};
use std::io::{IoSlice, IoSliceMut};
use std::net::UdpSocket;

/// Longest payload of a UDP datagram over IPv4, in bytes: 65,535 less 20 of IP (RFC 791) and 8 of UDP (RFC 768).
pub(super) const MAX_UDP_PAYLOAD_BYTES: usize = 65_507;

/// One end of a pair of connected UDP sockets.
#[derive(Debug)]
pub(super) struct Datagrams {
    socket: UdpSocket,
    method: Method,
    poll: bool,
    check: bool,
    /// Whether `receive` returns whole messages, as in a conversation; in a stream it returns after each datagram.
    whole: bool,
    size: usize,
    messages: Messages,
    received: Vec<u8>,
    tally: Tally,
}

impl Datagrams {
    /// Makes one end. In a conversation only whole messages count as received. A datagram carries the phase in its
    /// first byte, and the pattern has none of its values where the second and third datagram of a message begin.
    pub(super) fn new(socket: UdpSocket, job: &Job) -> Result<Self, BenchError> {
        let set = socket.set_read_timeout(Some(PEER_TIMEOUT));
        set.and_then(|()| socket.set_write_timeout(Some(PEER_TIMEOUT)))
            .map_err(BenchError::os_error("setting up a UDP socket"))?;
        Ok(Self {
            socket,
            method: job.method,
            poll: job.wait == Wait::Poll,
            check: job.check_data,
            whole: job.work == Work::Answer,
            size: job.size,
            messages: Messages::new(job.size),
            received: vec![0; job.size.min(MAX_UDP_PAYLOAD_BYTES)],
            tally: Tally::default(),
        })
    }

    fn send_datagram(&mut self, phase: Phase, at: usize, length: usize) -> Result<(), Errno> {
        let piece = &self.messages.message_bytes(phase)[at..at + length];
        self.tally.calls += 1;
        if self.method == Method::Sendmsg {
            let (first, second) = piece.split_at(piece.len() / 2);
            let pieces = [IoSlice::new(first), IoSlice::new(second)];
            rustix::net::sendmsg(&self.socket, &pieces, &mut SendAncillaryBuffer::default(), SendFlags::NOSIGNAL)?;
        } else {
            rustix::io::write(&self.socket, piece)?;
        }
        Ok(())
    }

    fn receive_datagram(&mut self) -> Result<usize, Errno> {
        let into = &mut self.received[..];
        self.tally.calls += 1;
        let flags = if self.poll { RecvFlags::DONTWAIT } else { RecvFlags::empty() };
        if self.method == Method::Sendmsg {
            let half = into.len() / 2;
            let (first, second) = into.split_at_mut(half);
            let mut pieces = [IoSliceMut::new(first), IoSliceMut::new(second)];
            return rustix::net::recvmsg(&self.socket, &mut pieces, &mut RecvAncillaryBuffer::default(), flags)
                .map(|message| message.bytes);
        }
        match self.poll {
            true => rustix::net::recv(&self.socket, into, flags).map(|(count, _)| count),
            false => rustix::io::read(&self.socket, into),
        }
    }
}

impl Exchange for Datagrams {
    #[inline]
    fn send_message(&mut self, phase: Phase) -> Result<(), BenchError> {
        let mut at = 0;
        while at < self.size {
            let length = (self.size - at).min(MAX_UDP_PAYLOAD_BYTES);
            match self.send_datagram(phase, at, length) {
                Ok(()) => {
                    at += length;
                    self.tally.sent += 1;
                }
                Err(Errno::INTR) => {}
                // The other host's kernel rejected an earlier datagram: the socket is gone.
                Err(Errno::CONNREFUSED) => return Err(connection_error("no process receives its datagrams any more")),
                Err(error) => return Err(socket_error("sending over UDP", error)),
            }
        }
        self.tally.copied += self.size as u64;
        Ok(())
    }

    #[inline]
    fn receive_message(&mut self) -> Result<Phase, BenchError> {
        let mut at = 0;
        let mut phase = Phase::Ordinary;
        let mut watchdog = Watchdog::default();
        loop {
            let count = match self.receive_datagram() {
                Ok(count) => count,
                Err(Errno::INTR) => continue,
                Err(Errno::CONNREFUSED) => return Err(connection_error("no process receives its datagrams any more")),
                Err(Errno::AGAIN) if self.poll => {
                    watchdog.count_empty_poll("waiting for a message over UDP")?;
                    continue;
                }
                Err(error) => return Err(socket_error("receiving over UDP", error)),
            };
            if self.whole && count != (self.size - at).min(MAX_UDP_PAYLOAD_BYTES) {
                // A piece was lost: this one begins the next message, or belongs to none.
                if count != self.size.min(MAX_UDP_PAYLOAD_BYTES) {
                    continue;
                }
                at = 0;
            }
            if at == 0 {
                phase = Phase::from_byte(self.received[0]);
            }
            if self.check && (self.whole || self.size <= MAX_UDP_PAYLOAD_BYTES) {
                self.messages.check_received(&self.received[..count], at, self.tally.received)?;
            }
            self.tally.received += 1;
            self.tally.received_bytes += count as u64;
            self.tally.copied += count as u64;
            at += count;
            if !self.whole || at >= self.size {
                return Ok(phase);
            }
        }
    }

    fn has_pending_message(&mut self) -> Result<bool, BenchError> {
        self.tally.calls += 1;
        super::control::has_pending_data(&self.socket)
    }

    fn set_next_number(&mut self, number: u64) {
        self.messages.write_number(number);
    }

    fn last_number_received(&self) -> Option<u64> {
        message_number(&self.received)
    }

    fn counters(&self) -> Tally {
        self.tally
    }
}
