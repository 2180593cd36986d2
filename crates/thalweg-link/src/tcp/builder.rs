//! The builder's end: payloads are received in their final place, messages after them into the stash.

use super::stash::Stash;
use super::{is_peer_gone, send_without_delay};
use crate::copy::copy_counted;
use crate::error::{MAX_UNREAD_BYTES, check_unread_bytes, encode_refusal, protocol_error};
use crate::offered::FetchRequest;
use crate::rules::{check_fetch_order, check_hello, check_offer};
use crate::sockets::SocketLink;
use crate::{BuilderLink, Bytes, Eager, Interest, LinkError, Received};
use rustix::io::Errno;
use rustix::net::SendFlags;
use socket2::Socket;
use std::collections::{BTreeMap, VecDeque};
use std::io::IoSliceMut;
use std::os::fd::{AsFd, BorrowedFd};
use thalweg_arena::Span;
use thalweg_wire::{Announcement, Capabilities, Disposition, Losses, Message, Refusal, Sender};

/// Bytes received from one link before other links have their turn.
const FAIR_SHARE: usize = 4 << 20;

#[derive(Debug)]
pub(super) struct TcpBuilder {
    socket: Socket,
    eager: Eager,
    greeted: bool,
    withdraws: bool,
    /// Fetches that were made and not answered in full.
    pending: VecDeque<Pending>,
    /// Tickets for which more was requested than was sent to the source.
    unsent: Vec<u64>,
    /// Fetches that were sent and not answered: data come in this order.
    asked: VecDeque<FetchRequest>,
    /// Eager offers that are not released, by ticket.
    ahead: BTreeMap<u64, Ahead>,
    /// Bytes of the offers in `ahead`.
    unasked: u64,
    /// Ticket and length of the bytes that must follow, if the last message was an eager offer.
    following: Option<(u64, u32)>,
    phase: Phase,
    stash: Stash,
    out: Vec<u8>,
    /// True if sending failed because the source is gone. Messages that it sent before are still to be received.
    gone: bool,
    copied: u64,
    received: u64,
    losses: Losses,
}

#[derive(Debug)]
struct Pending {
    ticket: u64,
    place: Span,
    /// Number of bytes that have come, of bytes that were requested, and of requested bytes that were sent to the
    /// source.
    at: usize,
    upto: u32,
    sent_upto: u32,
    /// True if the bytes come without a fetch.
    eager: bool,
}

#[derive(Debug)]
struct Ahead {
    length: u32,
    /// Bytes that came before there was a place for them.
    landed: Option<Vec<u8>>,
}

/// Type of the next bytes of the stream.
#[derive(Debug)]
enum Phase {
    Message,
    Hello {
        message: Message,
        text: Vec<u8>,
    },
    /// Bytes of an offer; those that come now end at `end`. While some are missing the stash is empty.
    Payload {
        place: Destination,
        end: usize,
    },
}

#[derive(Debug)]
enum Destination {
    /// A place that was set aside.
    Set(Pending),
    /// The bytes of an eager offer that had no place yet: its ticket, its bytes, and the number of bytes that have
    /// come.
    Landing(u64, Vec<u8>, usize),
}

impl Destination {
    /// Returns the room for the next bytes, up to `end`.
    fn remaining_room(&mut self, end: usize) -> &mut [u8] {
        match self {
            Self::Set(Pending { place, at, .. }) => &mut place[*at..end],
            Self::Landing(_, bytes, at) => &mut bytes[*at..end],
        }
    }

    /// Records that `bytes` have come.
    fn record_received(&mut self, bytes: usize) {
        match self {
            Self::Set(Pending { at, .. }) | Self::Landing(_, _, at) => *at += bytes,
        }
    }

    fn filled_bytes(&self) -> usize {
        match self {
            Self::Set(Pending { at, .. }) | Self::Landing(_, _, at) => *at,
        }
    }

    /// Returns the ticket if there was no place for its bytes yet.
    fn landing_ticket(&self) -> Option<u64> {
        match self {
            Self::Set(_) => None,
            Self::Landing(ticket, ..) => Some(*ticket),
        }
    }

    /// True if the bytes were requested by a fetch.
    fn was_requested(&self) -> bool {
        matches!(self, Self::Set(Pending { eager: false, .. }))
    }
}

impl Pending {
    fn new(offer: &Announcement, place: Span, upto: u32) -> Self {
        let eager = offer.disposition == Disposition::Eager;
        Self { ticket: offer.ticket, place, at: 0, upto, sent_upto: 0, eager }
    }
}

impl TcpBuilder {
    pub(super) fn new(socket: Socket, eager: Eager) -> Self {
        Self {
            socket,
            eager,
            greeted: false,
            withdraws: false,
            pending: VecDeque::new(),
            asked: VecDeque::new(),
            ahead: BTreeMap::new(),
            unasked: 0,
            following: None,
            phase: Phase::Message,
            stash: Stash::default(),
            unsent: Vec::new(),
            out: Vec::new(),
            gone: false,
            copied: 0,
            received: 0,
            losses: Losses::default(),
        }
    }

    /// Processes what is in the stash. Stops after an eager offer and returns true then: the caller now has the chance
    /// to fetch it, so that its bytes need not land elsewhere first.
    fn parse_stash(&mut self, received: &mut Vec<Received>) -> Result<bool, LinkError> {
        while !self.stash.is_empty() {
            match &mut self.phase {
                Phase::Message => {
                    let Some(cell) = self.stash.next_message_cell() else { break };
                    self.on_message(Message::decode(&cell)?, received)?;
                    if self.following.is_some() {
                        return Ok(true);
                    }
                }
                Phase::Hello { message, text } => {
                    text.extend_from_slice(self.stash.take_bytes(message.body_bytes() - text.len()));
                }
                Phase::Payload { place, end } => {
                    let asked = place.was_requested();
                    let rest = place.remaining_room(*end);
                    let bytes = self.stash.take_bytes(rest.len());
                    self.copied += copy_counted(&mut rest[..bytes.len()], bytes);
                    self.received += if asked { bytes.len() as u64 } else { 0 };
                    place.record_received(bytes.len());
                }
            }
            self.finish_phase(received)?;
        }
        Ok(false)
    }

    fn on_message(&mut self, message: Message, received: &mut Vec<Received>) -> Result<(), LinkError> {
        if let Some((ticket, _)) = self.following
            && !matches!(message, Message::Data { .. })
        {
            return protocol_error(format!(
                "the bytes of ticket {ticket} must follow its eager offer, not {message:?}"
            ));
        }
        match message {
            Message::Hello(hello) if !self.greeted => {
                check_hello(&hello)?;
                self.greeted = true;
                self.withdraws = hello.capabilities.contains(Capabilities::WITHDRAWS);
                self.phase = Phase::Hello { message, text: Vec::new() };
            }
            Message::Refuse { reason, .. } => {
                return Err(LinkError::Refused { reason, text: "the source closed the connection".into() });
            }
            _ if !self.greeted => return protocol_error(format!("the first message must be a hello, not {message:?}")),
            Message::Hello(_) => return protocol_error("the source sent a second hello".into()),
            Message::Ignored { .. } => {}
            Message::Offer(offer) => {
                check_offer(&offer, self.withdraws)?;
                if offer.disposition == Disposition::Eager {
                    self.expect_eager_payload(&offer)?;
                } else if offer.disposition.is_dropped() {
                    // Nothing of it may arrive any more: the fetch is about to be called off.
                    self.asked.retain(|asked| asked.ticket != offer.ticket);
                }
                received.push(Received::Message(message));
            }
            Message::Data { ticket, offset, length } => self.begin_payload(ticket, offset, length)?,
            Message::Losses(losses) => self.losses = losses,
            message if message.sending_end() == Sender::Source => received.push(Received::Message(message)),
            _ => return protocol_error(format!("the source sent a builder's message: {message:?}")),
        }
        Ok(())
    }

    /// Enters an eager offer: its bytes follow at once, if it is within the bounds.
    fn expect_eager_payload(&mut self, offer: &Announcement) -> Result<(), LinkError> {
        let total = self.unasked + u64::from(offer.bytes);
        if offer.bytes > self.eager.limit || total > self.eager.credit.into() {
            return Err(LinkError::Protocol(format!(
                "{} bytes sent without a request, {total} in all; the limits are {} and {}",
                offer.bytes, self.eager.limit, self.eager.credit
            )));
        }
        if self.ahead.insert(offer.ticket, Ahead { length: offer.bytes, landed: None }).is_some() {
            return Err(LinkError::Protocol(format!("ticket {} was offered eagerly twice", offer.ticket)));
        }
        self.unasked = total;
        self.following = Some((offer.ticket, offer.bytes));
        Ok(())
    }

    fn begin_payload(&mut self, ticket: u64, offset: u32, length: u32) -> Result<(), LinkError> {
        let sent = FetchRequest { ticket, offset, length };
        let eager = self.following.take();
        match eager {
            Some((expected, bytes)) if (FetchRequest { ticket: expected, offset: 0, length: bytes }) != sent => {
                return Err(LinkError::Protocol(format!(
                    "received bytes {offset}+{length} of ticket {ticket} after the eager offer of ticket {expected}, \
                     {bytes} bytes"
                )));
            }
            // If it was requested as well, that request is answered.
            Some(_) => self.asked.retain(|asked| asked.ticket != ticket),
            None => {
                let Some(asked) = self.asked.pop_front() else { return unrequested_bytes(ticket) };
                check_fetch_order(sent, asked)?;
            }
        }
        let pending = self.pending.iter().position(|pending| pending.ticket == ticket);
        let place = match pending.and_then(|at| self.pending.remove(at)) {
            Some(pending) if pending.at == offset as usize && pending.at + length as usize <= pending.place.len() => {
                Destination::Set(pending)
            }
            // The length is within the limit for eager offers.
            None if eager.is_some() => Destination::Landing(ticket, vec![0; length as usize], 0),
            _ => return unrequested_bytes(ticket),
        };
        self.phase = Phase::Payload { place, end: offset as usize + length as usize };
        Ok(())
    }

    /// Reports what is complete and turns to the next message.
    fn finish_phase(&mut self, received: &mut Vec<Received>) -> Result<(), LinkError> {
        let complete = match &mut self.phase {
            Phase::Message => false,
            Phase::Hello { message, text } => text.len() == message.body_bytes(),
            Phase::Payload { place, end } => place.filled_bytes() == *end,
        };
        if !complete {
            return Ok(());
        }
        match std::mem::replace(&mut self.phase, Phase::Message) {
            Phase::Hello { message: Message::Hello(hello), text } => {
                let text = String::from_utf8(text)
                    .map_err(|_| LinkError::Protocol("the source's description is not UTF-8".into()))?;
                received.push(Received::Hello(hello, text));
            }
            Phase::Payload { place: Destination::Set(pending), .. } if pending.at < pending.place.len() => {
                self.pending.push_front(pending);
            }
            Phase::Payload { place: Destination::Set(Pending { ticket, place, .. }), .. } => {
                received.push(Received::Arrived { ticket, bytes: Bytes::Place(place) });
            }
            Phase::Payload { place: Destination::Landing(ticket, bytes, _), .. } => {
                // An offer that was released while it was on the way is not needed.
                if let Some(ahead) = self.ahead.get_mut(&ticket) {
                    ahead.landed = Some(bytes);
                }
            }
            Phase::Message | Phase::Hello { .. } => {}
        }
        Ok(())
    }

    /// Encodes the requested fetches: one message for each offer, regardless of the number of pieces requested since.
    fn queue_fetch_messages(&mut self) {
        let Self { unsent, pending, phase, asked, out, .. } = self;
        let mut arriving = match phase {
            Phase::Payload { place: Destination::Set(pending), .. } => Some(pending),
            _ => None,
        };
        for ticket in unsent.drain(..) {
            let fetch = pending.iter_mut().chain(arriving.as_deref_mut()).find(|pending| pending.ticket == ticket);
            // Otherwise it was called off in the meantime.
            if let Some(Pending { sent_upto, upto, .. }) = fetch.filter(|pending| pending.upto > pending.sent_upto) {
                let (offset, length) = (*sent_upto, *upto - *sent_upto);
                out.extend_from_slice(&Message::Fetch { ticket, offset, length }.encode());
                asked.push_back(FetchRequest { ticket, offset, length });
                *sent_upto = *upto;
            }
        }
    }
}

fn unrequested_bytes<T>(ticket: u64) -> Result<T, LinkError> {
    protocol_error(format!("received bytes of ticket {ticket} that were not requested"))
}

impl SocketLink for TcpBuilder {
    type Received = Received;

    fn descriptor(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    fn wait_interest(&self) -> Interest {
        Interest { read: true, write: !self.out.is_empty() }
    }

    fn flush_messages(&mut self) -> Result<(), LinkError> {
        self.queue_fetch_messages();
        while !self.gone && !self.out.is_empty() {
            match rustix::net::send(&self.socket, &self.out, SendFlags::NOSIGNAL | SendFlags::DONTWAIT) {
                Ok(n) => {
                    self.out.drain(..n);
                    send_without_delay(&self.socket)?;
                }
                Err(Errno::AGAIN) => return check_unread_bytes(self.out.len(), MAX_UNREAD_BYTES),
                Err(Errno::INTR) => {}
                Err(error) if is_peer_gone(error) => self.gone = true,
                Err(error) => return Err(LinkError::from_system_call("sending to a source")(error)),
            }
        }
        // Only left if the peer is gone.
        self.out.clear();
        Ok(())
    }

    fn receive_messages(&mut self, received: &mut Vec<Received>) -> Result<bool, LinkError> {
        self.flush_messages()?;
        if self.parse_stash(received)? {
            return Ok(true);
        }
        let mut share = FAIR_SHARE;
        loop {
            let (outcome, direct, wanted) = match &mut self.phase {
                Phase::Payload { place, end } => {
                    debug_assert!(self.stash.is_empty(), "the stash would belong in front of what is received now");
                    let place = place.remaining_room(*end);
                    let room = self.stash.free_space();
                    let (direct, wanted) = (place.len(), place.len() + room.len());
                    let mut parts = [IoSliceMut::new(place), IoSliceMut::new(room)];
                    (rustix::io::readv(&self.socket, &mut parts), direct, wanted)
                }
                _ => {
                    let room = self.stash.free_space();
                    let wanted = room.len();
                    (rustix::io::read(&self.socket, room), 0, wanted)
                }
            };
            let count = match outcome {
                Ok(0) => return Err(LinkError::Closed),
                Ok(count) => count,
                Err(Errno::AGAIN) if self.gone => return Err(LinkError::Closed),
                Err(Errno::AGAIN) => return Ok(false),
                Err(Errno::INTR) => continue,
                Err(error) if is_peer_gone(error) => return Err(LinkError::Closed),
                Err(error) => return Err(LinkError::from_system_call("receiving from a source")(error)),
            };
            let placed = count.min(direct);
            if let Phase::Payload { place, .. } = &mut self.phase {
                place.record_received(placed);
                self.copied += placed as u64;
                self.received += if place.was_requested() { placed as u64 } else { 0 };
            }
            self.stash.record_received(count - placed);
            self.finish_phase(received)?;
            if self.parse_stash(received)? {
                return Ok(true);
            }
            if count < wanted && !self.gone {
                // Everything that was there was received: another call would return nothing.
                return Ok(false);
            }
            share = share.saturating_sub(count);
            if share == 0 {
                return Ok(true);
            }
        }
    }
}

impl BuilderLink for TcpBuilder {
    fn maps_source_memory(&self) -> bool {
        false
    }

    fn begin_fetch(&mut self, offer: &Announcement, into: Option<Span>, upto: u32) -> Result<Option<Bytes>, LinkError> {
        let into = into.unwrap_or_else(|| unreachable!("a TCP link cannot map memory: a fetch needs a destination"));
        let mut pending = Pending::new(offer, into, upto);
        let ticket = pending.ticket;
        let Some(ahead) = self.ahead.get_mut(&ticket) else {
            self.pending.push_back(pending);
            self.unsent.push(ticket);
            return Ok(None);
        };
        pending.eager = true;
        if ahead.length as usize != pending.place.len() {
            let (bytes, known) = (offer.bytes, ahead.length);
            let error = format!("ticket {ticket} was offered first with {known} bytes, then with {bytes}");
            return Err(LinkError::Protocol(error));
        }
        if let Some(bytes) = ahead.landed.take() {
            self.copied += copy_counted(&mut pending.place, &bytes);
            return Ok(Some(Bytes::Place(pending.place)));
        }
        match &mut self.phase {
            Phase::Payload { place, .. } if place.landing_ticket() == Some(ticket) => {
                // Part of it is here: the rest goes straight to its place.
                if let Destination::Landing(_, bytes, at) = place {
                    self.copied += copy_counted(&mut pending.place[..*at], &bytes[..*at]);
                    pending.at = *at;
                }
                *place = Destination::Set(pending);
            }
            _ => self.pending.push_back(pending),
        }
        Ok(None)
    }

    fn extend_fetch(&mut self, ticket: u64, upto: u32) {
        let arriving = match &mut self.phase {
            Phase::Payload { place: Destination::Set(pending), .. } => Some(pending),
            _ => None,
        };
        let Some(pending) = self.pending.iter_mut().chain(arriving).find(|pending| pending.ticket == ticket) else {
            return;
        };
        if pending.sent_upto == pending.upto {
            self.unsent.push(ticket);
        }
        pending.upto = pending.upto.max(upto);
    }

    fn received_bytes(&self) -> u64 {
        self.received
    }

    fn known_losses(&self) -> Losses {
        self.losses
    }

    fn cancel_fetch(&mut self, ticket: u64) {
        self.pending.retain(|pending| pending.ticket != ticket);
    }

    fn release_tickets(&mut self, below: u64) {
        while let Some(first) = self.ahead.first_entry()
            && *first.key() < below
        {
            self.unasked -= u64::from(first.remove().length);
        }
        self.send_message(&Message::Release { below });
    }

    fn send_message(&mut self, message: &Message) {
        self.out.extend_from_slice(&message.encode());
    }

    fn refuse_source(&mut self, reason: Refusal, text: &str) {
        self.out.extend_from_slice(&encode_refusal(reason, text));
    }

    fn copied_bytes(&self) -> u64 {
        self.copied
    }
}
