//! The source's half: offers until the builder has heard, serves fetches piece by piece.

use super::{AT_ONCE, GONE, Numbered, PART, PIECE, Retry, Standing, number, numbered, split};
use crate::offered::most_fetches;
use crate::{LinkError, Outstanding};
use std::collections::VecDeque;
use std::ops::Range;
use std::time::Duration;
use thalweg_wire::{Announcement, Disposition, Hello, Message};

/// What a source has to send.
#[derive(Debug)]
pub(crate) enum Transmit {
    /// A datagram.
    Control(Vec<u8>),
    /// A message, followed by `length` bytes of the arena.
    Piece { message: Message, arena_offset: u64, length: u32 },
}

/// The source's half.
#[derive(Debug)]
pub(crate) struct ReliableSource {
    hello: Hello,
    description: String,
    welcomed: bool,
    book: Option<Outstanding<Fate>>,
    /// The first ticket that was not offered over this link.
    unsent: u64,
    released: u64,
    standing: Standing,
    /// What the builder said that must not be reported twice.
    reported: Numbered,
    control: VecDeque<Vec<u8>>,
    /// What is being sent: ticket and range.
    serving: VecDeque<(u64, Range<u32>)>,
    most_serving: usize,
    retry: Retry,
    heard_at: Duration,
}

/// What the source knows of the builder's knowledge of an offer.
#[derive(Debug, Clone, Copy, Default)]
struct Fate {
    asked: bool,
    /// The builder has it.
    known: bool,
    /// Dropped since: only an echo of just this shows that the builder knows.
    changed: bool,
}

impl ReliableSource {
    pub(crate) fn new(hello: Hello, description: String, now: Duration) -> Self {
        let mut source = Self {
            hello,
            description,
            welcomed: false,
            book: None,
            unsent: 0,
            released: 0,
            standing: Standing::default(),
            reported: Numbered::default(),
            control: VecDeque::new(),
            serving: VecDeque::new(),
            most_serving: most_fetches(hello.slots, hello.slot_bytes),
            retry: Retry::from(now),
            heard_at: now,
        };
        source.send_hello();
        source
    }

    fn send_hello(&mut self) {
        let cell = Message::Hello(self.hello).encode();
        let text = self.description.as_bytes();
        for offset in (0..text.len().max(1)).step_by(PART) {
            let part = &text[offset..text.len().min(offset + PART)];
            #[expect(clippy::cast_possible_truncation, reason = "a description has at most 16 KiB")]
            let offset = (offset as u32).to_le_bytes();
            self.control.push_back([&cell[..], &offset, part].concat());
        }
    }

    pub(crate) fn offer(&mut self, offer: &Announcement, now: Duration) {
        if !self.waits() {
            self.retry = Retry::from(now);
        }
        let book = self.book.get_or_insert_with(|| {
            self.unsent = offer.ticket;
            Outstanding::starting_at(offer.ticket)
        });
        let eager = offer.disposition == Disposition::Eager;
        if offer.ticket >= book.next_ticket() {
            book.push(*offer, Fate { asked: eager, ..Fate::default() });
        } else if let Some((known, fate)) = book.get_mut(offer.ticket) {
            *known = *offer;
            if offer.ticket < self.unsent {
                fate.changed = true;
                self.send_offer(offer);
            }
        }
        self.send_offers();
    }

    /// Makes the offers that were not made yet. What was withdrawn must be known before its slot is offered again, and
    /// again: a builder does not take more offers with data than there can be.
    fn send_offers(&mut self) {
        // Before the welcome there is nobody to hear it.
        while self.welcomed
            && let Some((offer, _)) = self.book.as_ref().and_then(|book| book.get(self.unsent)).copied()
            && (offer.disposition.is_dropped() || self.seem_open() < 2 * self.hello.slots as usize + 2)
        {
            self.send_offer(&offer);
            self.unsent += 1;
        }
    }

    /// How many offers the builder may take to have data.
    fn seem_open(&self) -> usize {
        let seems_open = |(offer, fate): &&(Announcement, Fate)| {
            offer.ticket < self.unsent && (!offer.disposition.is_dropped() || fate.changed)
        };
        self.book.iter().flat_map(Outstanding::iter).filter(seems_open).count()
    }

    fn send_offer(&mut self, offer: &Announcement) {
        self.control.push_back(Message::Offer(*offer).encode().to_vec());
        if offer.disposition == Disposition::Eager {
            self.serving.push_back((offer.ticket, 0..offer.bytes));
        }
    }

    pub(crate) fn may_withdraw(&self, ticket: u64) -> bool {
        self.book.as_ref().and_then(|book| book.get(ticket)).is_none_or(|(_, fate)| !fate.asked)
    }

    pub(crate) fn send(&mut self, message: &Message, now: Duration) {
        if !self.waits() {
            self.retry = Retry::from(now);
        }
        if self.standing.push(message) && self.welcomed {
            self.control.extend(self.standing.datagram());
        }
    }

    /// A datagram from the builder.
    pub(crate) fn on_datagram(
        &mut self,
        datagram: &[u8],
        now: Duration,
        said: &mut Vec<Message>,
    ) -> Result<(), LinkError> {
        let (message, body) = split(datagram)?;
        self.heard_at = now;
        match message {
            Message::Refuse { reason, .. } => {
                return Err(LinkError::Refused { reason, text: String::from_utf8_lossy(body).into_owned() });
            }
            Message::Welcome(welcome) => {
                self.control.push_back(numbered(&message, number(body)));
                if self.reported.is_new(number(body)) {
                    self.welcomed = true;
                    self.release(welcome.released_below);
                    said.push(message);
                    self.send_offers();
                    self.control.extend(self.standing.datagram());
                    self.retry = Retry::from(now);
                }
            }
            Message::Start { .. }
            | Message::Pause
            | Message::StopAt { .. }
            | Message::Assign(_)
            | Message::Room(_)
            | Message::LeaveOut { .. }
            | Message::Bye => {
                self.control.push_back(numbered(&message, number(body)));
                if self.reported.is_new(number(body)) {
                    said.push(message);
                }
            }
            Message::Release { below } => {
                if below > self.released {
                    self.release(below);
                    self.retry = Retry::from(now);
                    said.push(message);
                }
                self.control.push_back(Message::Release { below: self.released }.encode().to_vec());
            }
            Message::Fetch { ticket, offset, length } => self.serve(ticket, offset, length)?,
            Message::Paused { .. }
            | Message::Told { .. }
            | Message::End(_)
            | Message::Heard(_)
            | Message::Left(_)
            | Message::Passed { .. } => {
                if self.standing.echoed(number(body)) {
                    self.control.extend(self.standing.datagram());
                    self.retry = Retry::from(now);
                }
            }
            Message::Offer(offer) => {
                if self.book.as_ref().is_none_or(|book| offer.ticket >= book.next_ticket()) {
                    return Err(LinkError::Protocol(format!("the builder echoed an offer never made: {offer:?}")));
                }
                if let Some((known, fate)) = self.book.as_mut().and_then(|book| book.get_mut(offer.ticket)) {
                    fate.changed &= *known != offer;
                }
                self.knows(offer.ticket, now);
                self.send_offers();
            }
            Message::Ignored { .. } => {}
            Message::Hello(_) | Message::Data { .. } | Message::Losses(_) => {
                return Err(LinkError::Protocol(format!("the builder sent a source's message: {message:?}")));
            }
        }
        Ok(())
    }

    /// The builder knows this offer, and those before it.
    fn knows(&mut self, ticket: u64, now: Duration) {
        let Some(book) = &mut self.book else { return };
        let first = book.next_ticket() - book.len() as u64;
        for number in (first..=ticket).rev() {
            match book.get_mut(number) {
                Some((_, fate)) if !fate.known => fate.known = true,
                _ => break,
            }
            self.retry = Retry::from(now);
        }
    }

    fn release(&mut self, below: u64) {
        self.released = self.released.max(below);
        if let Some(book) = &mut self.book {
            book.release(below).for_each(drop);
            self.unsent = self.unsent.max(book.next_ticket() - book.len() as u64);
        }
        self.send_offers();
    }

    fn serve(&mut self, ticket: u64, offset: u32, length: u32) -> Result<(), LinkError> {
        let Some(book) = &mut self.book else { return Ok(()) };
        // Released, or not offered yet over this connection: the builder will learn, or ask again.
        let Some((offer, fate)) = book.get_mut(ticket) else { return Ok(()) };
        if offer.disposition.is_dropped() {
            return Ok(());
        }
        if offset.checked_add(length).is_none_or(|end| end > offer.bytes) {
            return Err(LinkError::Protocol(format!(
                "the builder asked for bytes {offset}+{length} of ticket {ticket}, which has {}",
                offer.bytes
            )));
        }
        // That does not show that the builder has heard the offer: it may know the ticket from an earlier connection.
        fate.asked = true;
        let range = offset..offset + length;
        let under_way =
            self.serving.iter().any(|(other, r)| *other == ticket && r.start <= range.start && range.end <= r.end);
        // What there is no room for will be asked for again.
        if !under_way && self.serving.len() < self.most_serving {
            self.serving.push_back((ticket, range));
        }
        Ok(())
    }

    /// Time passes. What has waited too long for an answer is said again.
    pub(crate) fn time(&mut self, now: Duration) -> Result<(), LinkError> {
        if now >= self.heard_at + GONE {
            return Err(LinkError::Closed);
        }
        if !self.waits() || !self.retry.is_due(now) {
            return Ok(());
        }
        self.retry.later(now);
        if !self.welcomed {
            self.send_hello();
            return Ok(());
        }
        self.control.extend(self.standing.datagram());
        let again = self.unheard().take(AT_ONCE).map(|offer| Message::Offer(*offer).encode().to_vec());
        let again: Vec<Vec<u8>> = again.collect();
        self.control.extend(again);
        Ok(())
    }

    fn unheard(&self) -> impl Iterator<Item = &Announcement> {
        let offers = self.book.iter().flat_map(Outstanding::iter);
        let is_unheard =
            |(offer, fate): &&(Announcement, Fate)| offer.ticket < self.unsent && (!fate.known || fate.changed);
        offers.filter(is_unheard).map(|(offer, _)| offer)
    }

    fn waits(&self) -> bool {
        !self.welcomed || !self.standing.is_empty() || self.unheard().next().is_some()
    }

    /// When [`time`](Self::time) has something to do next.
    pub(crate) fn deadline(&self) -> Duration {
        let gone = self.heard_at + GONE;
        if self.waits() { self.retry.at.min(gone) } else { gone }
    }

    /// The next datagram.
    pub(crate) fn next_transmit(&mut self) -> Option<Transmit> {
        if let Some(bytes) = self.control.pop_front() {
            return Some(Transmit::Control(bytes));
        }
        loop {
            let (ticket, range) = self.serving.front_mut()?;
            let ticket = *ticket;
            let offer = self.book.as_ref().and_then(|book| book.get(ticket)).map(|(offer, _)| *offer);
            let Some(offer) = offer.filter(|offer| !offer.disposition.is_dropped() && range.start < range.end) else {
                self.serving.pop_front();
                continue;
            };
            let (offset, length) = (range.start, range.len().min(PIECE as usize) as u32);
            range.start += length;
            let arena_offset = offer.arena_offset + u64::from(offset);
            return Some(Transmit::Piece { message: Message::Data { ticket, offset, length }, arena_offset, length });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reliable::TIMEOUT;
    use crate::reliable::tests::{HELLO, WELCOME};
    use thalweg_wire::EventId;

    #[test]
    fn a_fetch_does_not_show_that_the_offer_was_heard() {
        let offer = Announcement {
            ticket: 7,
            first: EventId(7),
            arena_offset: 0,
            count: 1,
            bytes: 64,
            disposition: Disposition::Held,
        };
        let mut now = Duration::ZERO;
        let mut source = ReliableSource::new(HELLO, String::new(), now);
        source.on_datagram(&numbered(&Message::Welcome(WELCOME), 0), now, &mut Vec::new()).unwrap();
        source.offer(&offer, now);
        // The builder knows the ticket from an earlier connection. What was said on this one is lost.
        source
            .on_datagram(&Message::Fetch { ticket: 7, offset: 0, length: 64 }.encode(), now, &mut Vec::new())
            .unwrap();
        while source.next_transmit().is_some() {}
        now += TIMEOUT.0;
        source.time(now).unwrap();
        let Some(Transmit::Control(again)) = source.next_transmit() else { panic!("nothing is said again") };
        assert_eq!(again, Message::Offer(offer).encode());
    }
}
