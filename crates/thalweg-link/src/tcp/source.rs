//! The source's end: messages and slots are sent in one queue, slots by `sendfile`.

use super::{connect_to_builder, is_peer_gone};
use crate::offered::{FetchRequest, Novelty, Offered};
use crate::sockets::{Connect, SocketLink};
use crate::{Address, Interest, LinkError, SourceGreeting, SourceLink};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};
use socket2::Socket;
use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::Duration;
use thalweg_arena::Arena;
use thalweg_sys::tcp::retransmitted_bytes;
use thalweg_wire::{Announcement, Disposition, Losses, MESSAGE_LEN, Message, Sender};

/// Room for messages from a builder, in bytes: more than the longest, a refusal with its text.
const INBOX_BYTES: usize = 4096;
/// Maximum number of times the inbox is emptied before other links have their turn.
const MAX_INBOX_READS: usize = 16;
/// Bytes after which a source looks for losses. The source reports what it finds, so that the builder asks for less at
/// a time.
const LOOK_FOR_LOSSES: u64 = 64 << 10;
/// Maximum number of bytes sent at a time if they have to be copied.
const COPIED_AT_ONCE: usize = 64 << 10;

#[derive(Debug)]
pub(super) struct TcpSource {
    socket: Socket,
    peer: String,
    arena: Arc<Arena>,
    offered: Offered,
    out: VecDeque<Out>,
    /// Bytes of messages in `out`.
    unread_bytes: usize,
    inbox: Vec<u8>,
    connected: bool,
    /// True if sending failed because the peer is gone. Messages that the peer sent before can still be received: they
    /// may contain the reason.
    gone: bool,
    /// Buffer for copies, if the kernel does not send the arena's pages as they are.
    copying: Option<Vec<u8>>,
    copied: u64,
    /// Known losses, and (`looked`) the number of bytes sent when they were last looked for.
    losses: Losses,
    looked: u64,
}

#[derive(Debug)]
enum Out {
    Bytes { bytes: Vec<u8>, sent: usize },
    Slot { offset: u64, left: usize },
}

impl TcpSource {
    /// Creates the link. The greeting is sent as soon as the connection is established.
    pub(super) fn new(socket: Socket, peer: &str, greeting: &SourceGreeting) -> Self {
        let mut link = Self {
            socket,
            peer: peer.to_owned(),
            arena: Arc::clone(&greeting.arena),
            offered: Offered::new(greeting.hello.slots, greeting.hello.slot_bytes),
            out: VecDeque::new(),
            unread_bytes: 0,
            inbox: Vec::with_capacity(INBOX_BYTES),
            connected: false,
            gone: false,
            copying: None,
            copied: 0,
            losses: Losses::default(),
            looked: 0,
        };
        link.send_message(&Message::Hello(greeting.hello));
        link.queue_bytes(greeting.description.as_bytes());
        link
    }

    fn queue_bytes(&mut self, more: &[u8]) {
        self.unread_bytes += more.len();
        match self.out.back_mut() {
            Some(Out::Bytes { bytes, .. }) => bytes.extend_from_slice(more),
            _ => self.out.push_back(Out::Bytes { bytes: more.to_vec(), sent: 0 }),
        }
    }

    fn queue_slot(&mut self, offer: &Announcement, asked: FetchRequest) {
        let FetchRequest { ticket, offset, length } = asked;
        self.send_message(&Message::Data { ticket, offset, length });
        self.out.push_back(Out::Slot { offset: offer.arena_offset + u64::from(offset), left: length as usize });
    }

    fn serve_fetch(&mut self, asked: FetchRequest) -> Result<(), LinkError> {
        if let Some((offer, _)) = self.offered.record_fetch(asked)? {
            self.queue_slot(&offer, asked);
            // Each answer is a message and a slot.
            self.offered.check_pending_fetches(self.out.len() / 2)?;
        }
        Ok(())
    }

    /// Processes the messages in the inbox.
    fn on_messages(&mut self, received: &mut Vec<Message>) -> Result<(), LinkError> {
        let mut at = 0;
        while let Some(cell) = self.inbox[at..].first_chunk::<MESSAGE_LEN>() {
            let message = Message::decode(cell)?;
            if let Message::Refuse { reason, text } = message {
                let text = self.inbox[at + MESSAGE_LEN..].get(..text as usize);
                let Some(text) = text else { break };
                return Err(LinkError::Refused { reason, text: String::from_utf8_lossy(text).into_owned() });
            }
            at += MESSAGE_LEN;
            match message {
                Message::Fetch { ticket, offset, length } => {
                    self.serve_fetch(FetchRequest { ticket, offset, length })?
                }
                Message::Release { below } => {
                    self.offered.release_tickets(below);
                    received.push(message);
                }
                Message::Ignored { .. } => {}
                message if message.sending_end() == Sender::Source => {
                    return Err(LinkError::Protocol(format!("the builder sent a source's message: {message:?}")));
                }
                _ => received.push(message),
            }
        }
        self.inbox.drain(..at);
        Ok(())
    }

    /// Sends what the socket accepts of the first entry of the queue. Returns true if all of it was sent.
    fn send_front_entry(&mut self) -> Result<bool, Errno> {
        let more = if self.out.len() > 1 { SendFlags::MORE } else { SendFlags::empty() };
        let flags = more | SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        match self.out.front_mut() {
            None => Ok(true),
            Some(Out::Bytes { bytes, sent }) => {
                let n = rustix::net::send(&self.socket, &bytes[*sent..], flags)?;
                *sent += n;
                self.unread_bytes -= n;
                self.losses.sent += n as u64;
                Ok(*sent == bytes.len())
            }
            Some(Out::Slot { offset, left }) => {
                let n = if let Some(copy) = &mut self.copying {
                    // The last fallback. The arena is ours, but ours to read only slot by slot: so it is read as a
                    // file.
                    copy.resize((*left).min(COPIED_AT_ONCE), 0);
                    let read = rustix::io::pread(self.arena.fd(), &mut copy[..], *offset)?;
                    let n = rustix::net::send(&self.socket, &copy[..read], flags)?;
                    self.copied += 2 * n as u64;
                    n
                } else {
                    let mut at = *offset;
                    match rustix::fs::sendfile(&self.socket, self.arena.fd(), Some(&mut at), *left) {
                        Err(Errno::INVAL | Errno::NOSYS) => {
                            tracing::warn!("sendfile is not possible from this arena: payloads are copied by send()");
                            self.copying = Some(Vec::new());
                            return Ok(false);
                        }
                        sent => sent?,
                    }
                };
                if n == 0 {
                    // The arena ends before the end of the offer.
                    return Err(Errno::FAULT);
                }
                *offset += n as u64;
                *left -= n;
                self.losses.sent += n as u64;
                Ok(*left == 0)
            }
        }
    }

    /// Looks for losses, and reports them if there are new ones.
    fn look_for_losses(&mut self) {
        self.looked = self.losses.sent;
        let Some(again) = retransmitted_bytes(&self.socket) else { return };
        if again != self.losses.again {
            self.losses.again = again;
            self.send_message(&Message::Losses(self.losses));
        }
    }
}

impl Connect for TcpSource {
    fn connect_to_builder(
        to: &Address,
        congestion: Option<&str>,
        greeting: &SourceGreeting,
    ) -> Result<Self, LinkError> {
        connect_to_builder(to.place(), congestion, greeting)
    }
}

impl SocketLink for TcpSource {
    type Received = Message;

    fn descriptor(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    fn wait_interest(&self) -> Interest {
        Interest { read: true, write: !self.out.is_empty() }
    }

    fn flush_messages(&mut self) -> Result<(), LinkError> {
        if !self.connected {
            if let Some(error) = self.socket.take_error().map_err(LinkError::from_system_call("connecting"))? {
                return Err(LinkError::from_system_call(format!("connecting to tcp:{}", self.peer))(error));
            }
            if self.socket.peer_addr().is_err() {
                return Ok(());
            }
            self.connected = true;
        }
        for asked in self.offered.take_early_fetches() {
            self.serve_fetch(asked)?;
        }
        while !self.gone && !self.out.is_empty() {
            match self.send_front_entry() {
                Ok(true) => {
                    self.out.pop_front();
                    if self.losses.sent - self.looked >= LOOK_FOR_LOSSES {
                        self.look_for_losses();
                    }
                }
                Ok(false) => {}
                Err(Errno::AGAIN) => return self.offered.check_unread_bytes(self.unread_bytes),
                Err(Errno::INTR) => {}
                Err(error) if is_peer_gone(error) => self.gone = true,
                Err(error) => return Err(LinkError::from_system_call(format!("sending to tcp:{}", self.peer))(error)),
            }
        }
        // Only left if the peer is gone.
        self.out.clear();
        Ok(())
    }

    fn receive_messages(&mut self, received: &mut Vec<Message>) -> Result<bool, LinkError> {
        self.flush_messages()?;
        if !self.connected {
            return Ok(false);
        }
        for _ in 0..MAX_INBOX_READS {
            match rustix::net::recv(&self.socket, rustix::buffer::spare_capacity(&mut self.inbox), RecvFlags::DONTWAIT)
            {
                Ok((_, 0)) => return Err(LinkError::Closed),
                Ok(_) => {}
                Err(Errno::AGAIN) if self.gone => return Err(LinkError::Closed),
                Err(Errno::AGAIN) => return Ok(false),
                Err(Errno::INTR) => continue,
                Err(error) if is_peer_gone(error) => return Err(LinkError::Closed),
                Err(error) => {
                    return Err(LinkError::from_system_call(format!("receiving from tcp:{}", self.peer))(error));
                }
            }
            let full = self.inbox.len() == self.inbox.capacity();
            self.on_messages(received)?;
            if !full {
                return Ok(false);
            }
        }
        // Not flushed: what the caller sends next shares the last packet of the answers.
        Ok(true)
    }

    fn close_link(&mut self) {
        if self.offered.has_fetched_offers() {
            // The kernel would send the remaining bytes from the slots as they are by then: so it sends nothing more,
            // and the connection is reset.
            let _ = self.socket.set_linger(Some(Duration::ZERO));
        } else {
            let _ = self.flush_messages();
        }
    }
}

impl SourceLink for TcpSource {
    fn announce_offer(&mut self, offer: &Announcement) {
        let novelty = self.offered.record_offer(offer);
        if novelty != Novelty::Released {
            self.send_message(&Message::Offer(*offer));
        }
        if novelty == Novelty::New && offer.disposition == Disposition::Eager {
            self.queue_slot(offer, FetchRequest { ticket: offer.ticket, offset: 0, length: offer.bytes });
        }
    }

    fn withdraw_offer(&mut self, ticket: u64) -> bool {
        self.offered.may_withdraw(ticket)
    }

    fn send_message(&mut self, message: &Message) {
        self.queue_bytes(&message.encode());
    }

    fn copied_bytes(&self) -> u64 {
        self.copied
    }
}
