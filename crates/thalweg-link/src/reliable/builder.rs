//! The builder's half: puts offers in order, asks again for what did not come.

use super::{AT_ONCE, GONE, Numbered, Retry, SILENCE, Standing, TIMEOUT, number, numbered, split};
use crate::rules::{check_hello, check_offer};
use crate::{Eager, LinkError};
use std::collections::{BTreeMap, VecDeque};
use std::ops::DerefMut;
use std::time::Duration;
use thalweg_arena::Span;
use thalweg_wire::{Announcement, Capabilities, Disposition, Hello, IntervalMap, Losses, Message};

/// What a builder heard, with spans for places.
#[derive(Debug)]
pub(crate) enum Delivered {
    Hello(Hello, String),
    Arrived(u64, Span),
    Message(Message),
}

/// The builder's half.
#[derive(Debug)]
pub(crate) struct ReliableBuilder {
    eager: Eager,
    greeting: Option<Greeting>,
    standing: Standing,
    refusal: Option<Vec<u8>>,
    /// What was said of releases, and what of that the source has echoed.
    released: (u64, u64),
    /// The ticket that is to be reported next. Nothing before the welcome, which says where to begin.
    next: Option<u64>,
    /// The latest offer that was reported, and whether it is to be echoed.
    latest: Option<(Announcement, bool)>,
    /// Offers that came ahead of one that is still missing.
    early: BTreeMap<u64, Announcement>,
    /// Offers that were reported and are not released, and whether their bytes may come.
    offers: BTreeMap<u64, (Announcement, bool)>,
    /// Eager bytes for which there was no place yet.
    landings: BTreeMap<u64, Filling<Vec<u8>>>,
    /// Bytes of unreleased eager offers.
    unasked: u64,
    fetches: BTreeMap<u64, Fetching>,
    /// Tickets that were fetched before they were offered over this connection.
    foreseen: Vec<u64>,
    /// Fetches made, and the latest of them that got an answer.
    asked: (u64, u64),
    data_at: Duration,
    /// What the source said that must not be reported twice.
    reported: Numbered,
    /// The final counters, until all tickets they count have been offered.
    end: Option<Message>,
    control: VecDeque<Vec<u8>>,
    retry: Retry,
    heard_at: Duration,
    spoke_at: Duration,
    copied: u64,
    received: u64,
    losses: Losses,
}

#[derive(Debug)]
struct Greeting {
    hello: Hello,
    text: Filling<Vec<u8>>,
    complete: bool,
}

#[derive(Debug)]
struct Fetching {
    filling: Filling<Span>,
    /// Bytes of it that were asked for, from its beginning on.
    upto: u32,
    /// Its bytes come unasked.
    eager: bool,
    number: u64,
    retry: Retry,
    /// The source has dropped it: it is about to be called off.
    dropped: bool,
}

/// A place, and what of it has come.
#[derive(Debug)]
struct Filling<P> {
    place: P,
    got: IntervalMap,
}

impl<P: DerefMut<Target = [u8]>> Filling<P> {
    fn new(place: P) -> Self {
        Self { place, got: IntervalMap::new() }
    }

    fn is_complete(&self) -> bool {
        self.has(self.place.len() as u64)
    }

    /// Whether its first bytes are all here, up to that one.
    fn has(&self, upto: u64) -> bool {
        self.got.contains(&(0..upto))
    }

    /// Puts `piece` at `offset`, and says how many bytes were new. Nothing where it does not fit.
    fn put(&mut self, offset: u32, piece: &[u8]) -> Option<u64> {
        let start = offset as usize;
        self.place.get_mut(start..start.checked_add(piece.len())?)?.copy_from_slice(piece);
        Some(self.got.insert(u64::from(offset)..u64::from(offset) + piece.len() as u64))
    }
}

impl ReliableBuilder {
    pub(crate) fn new(eager: Eager, now: Duration) -> Self {
        Self {
            eager,
            greeting: None,
            standing: Standing::default(),
            refusal: None,
            released: (0, 0),
            next: None,
            latest: None,
            early: BTreeMap::new(),
            offers: BTreeMap::new(),
            landings: BTreeMap::new(),
            unasked: 0,
            fetches: BTreeMap::new(),
            foreseen: Vec::new(),
            asked: (0, 0),
            data_at: now,
            reported: Numbered::default(),
            end: None,
            control: VecDeque::new(),
            retry: Retry::from(now),
            heard_at: now,
            spoke_at: now,
            copied: 0,
            received: 0,
            losses: Losses::default(),
        }
    }

    /// Payload bytes put in place so far.
    pub(crate) fn copied(&self) -> u64 {
        self.copied
    }

    /// Bytes that were asked for and have come.
    pub(crate) fn received(&self) -> u64 {
        self.received
    }

    /// What was asked for twice.
    pub(crate) fn losses(&self) -> Losses {
        self.losses
    }

    /// Asks for the first bytes of an offer. Where all are here already their place comes back.
    pub(crate) fn begin_fetch(
        &mut self,
        offer: &Announcement,
        into: Span,
        upto: u32,
        now: Duration,
    ) -> Result<Option<Span>, LinkError> {
        let Announcement { ticket, bytes, disposition, .. } = *offer;
        self.asked.0 += 1;
        let (retry, eager) = (Retry::from(now), disposition == Disposition::Eager);
        let filling = Filling::new(into);
        let mut fetching = Fetching { filling, upto, eager, number: self.asked.0, retry, dropped: false };
        match self.offers.get_mut(&ticket) {
            Some((known, may_come)) => {
                let (known, _) = (*known, std::mem::replace(may_come, true));
                if known.bytes as usize != fetching.filling.place.len() {
                    return Err(LinkError::Protocol(format!(
                        "ticket {ticket} was offered with {bytes} bytes, and then with {}",
                        known.bytes
                    )));
                }
            }
            // Known from an earlier connection, and not offered again yet.
            None => self.foreseen.push(ticket),
        }
        if let Some(landing) = self.landings.remove(&ticket) {
            for range in landing.got.ranges() {
                #[expect(clippy::cast_possible_truncation, reason = "a landing has a 32-bit length")]
                let (start, piece) = (range.start as u32, &landing.place[range.start as usize..range.end as usize]);
                self.copied += fetching.filling.put(start, piece).unwrap_or(0);
            }
            if fetching.filling.is_complete() {
                return Ok(Some(fetching.filling.place));
            }
        } else {
            self.control.push_back(Message::Fetch { ticket, offset: 0, length: upto }.encode().to_vec());
            self.losses.sent += u64::from(upto);
        }
        self.fetches.insert(ticket, fetching);
        Ok(None)
    }

    /// Asks for more of an offer.
    pub(crate) fn extend_fetch(&mut self, ticket: u64, upto: u32, now: Duration) {
        let Some(fetching) = self.fetches.get_mut(&ticket).filter(|fetching| upto > fetching.upto) else { return };
        let (offset, length) = (fetching.upto, upto - fetching.upto);
        self.asked.0 += 1;
        // While an earlier part of it is overdue, that is what is asked for again.
        if fetching.filling.has(offset.into()) {
            (fetching.number, fetching.retry) = (self.asked.0, Retry::from(now));
        }
        fetching.upto = upto;
        self.losses.sent += u64::from(length);
        self.control.push_back(Message::Fetch { ticket, offset, length }.encode().to_vec());
    }

    /// Calls a fetch off.
    pub(crate) fn cancel(&mut self, ticket: u64) {
        self.fetches.remove(&ticket);
    }

    pub(crate) fn release(&mut self, below: u64, now: Duration) {
        if !self.waits() {
            self.retry = Retry::from(now);
        }
        self.released.0 = self.released.0.max(below);
        while let Some(first) = self.offers.first_entry()
            && *first.key() < below
        {
            let (ticket, (offer, _)) = first.remove_entry();
            self.landings.remove(&ticket);
            if offer.disposition == Disposition::Eager {
                self.unasked -= u64::from(offer.bytes);
            }
        }
        // Over an earlier link the builder has heard of tickets that were not offered over this one, and now will not
        // be.
        self.next = self.next.map(|next| next.max(below));
        self.early = self.early.split_off(&below);
        self.control.push_back(Message::Release { below: self.released.0 }.encode().to_vec());
    }

    pub(crate) fn send(&mut self, message: &Message, now: Duration) {
        if !self.waits() {
            self.retry = Retry::from(now);
        }
        if let Message::Welcome(welcome) = message {
            self.next = Some(welcome.released_below);
            self.released = (welcome.released_below, welcome.released_below);
        }
        if self.standing.push(message) {
            self.send_standing();
        }
    }

    fn send_standing(&mut self) {
        // Good-bye comes last: nobody listens behind it.
        if self.standing.front() != Some(&Message::Bye) || !self.is_waiting_for_release() {
            self.control.extend(self.standing.datagram());
        }
    }

    pub(crate) fn refuse(&mut self, datagram: Vec<u8>) {
        self.control.push_back(datagram.clone());
        self.refusal = Some(datagram);
    }

    /// A datagram from the source.
    pub(crate) fn on_datagram(
        &mut self,
        datagram: &[u8],
        now: Duration,
        said: &mut Vec<Delivered>,
    ) -> Result<(), LinkError> {
        let (message, body) = split(datagram)?;
        self.heard_at = now;
        if let Some(refusal) = &self.refusal {
            self.control.push_back(refusal.clone());
            return Ok(());
        }
        match message {
            Message::Hello(hello) => return self.on_hello(hello, body, said),
            Message::Refuse { reason, .. } => {
                return Err(LinkError::Refused { reason, text: String::from_utf8_lossy(body).into_owned() });
            }
            Message::Fetch { .. } | Message::Losses(_) => {
                return Err(LinkError::Protocol(format!("the source sent a builder's message: {message:?}")));
            }
            // It overtook the hello, or the welcome: it will be said again.
            _ if self.next.is_none() => return Ok(()),
            Message::Offer(offer) => self.on_offer(offer, said)?,
            Message::Data { ticket, offset, .. } => self.on_data(ticket, offset, body, now, said)?,
            Message::Paused { .. }
            | Message::Told { .. }
            | Message::End(_)
            | Message::Heard(_)
            | Message::Left(_)
            | Message::Passed { .. } => {
                let number = number(body);
                self.control.push_back(numbered(&message, number));
                if self.reported.is_new(number) {
                    match message {
                        Message::End(_) => self.end = Some(message),
                        _ => said.push(Delivered::Message(message)),
                    }
                }
            }
            Message::Release { below } => {
                if below > self.released.0 {
                    return Err(LinkError::Protocol(format!(
                        "the source echoed release {below}, which was never said"
                    )));
                }
                if below > self.released.1 {
                    self.released.1 = below;
                    self.retry = Retry::from(now);
                    if !self.is_waiting_for_release() && self.standing.front() == Some(&Message::Bye) {
                        self.send_standing();
                    }
                }
            }
            Message::Ignored { .. } => {}
            Message::Welcome(_)
            | Message::Start { .. }
            | Message::Pause
            | Message::StopAt { .. }
            | Message::Assign(_)
            | Message::Room(_)
            | Message::LeaveOut { .. }
            | Message::Bye => {
                if self.standing.echoed(number(body)) {
                    self.retry = Retry::from(now);
                    self.send_standing();
                }
            }
        }
        if let Some(Message::End(books)) = self.end
            && self.next.is_some_and(|next| next >= books.tickets)
        {
            said.extend(self.end.take().map(Delivered::Message));
        }
        Ok(())
    }

    fn on_hello(&mut self, hello: Hello, body: &[u8], said: &mut Vec<Delivered>) -> Result<(), LinkError> {
        let protocol = |text: &str| LinkError::Protocol(text.to_owned());
        check_hello(&hello)?;
        let greeting = self.greeting.get_or_insert_with(|| Greeting {
            hello,
            // At most 16 KiB: checked where messages are decoded.
            text: Filling::new(vec![0; hello.description as usize]),
            complete: false,
        });
        if greeting.hello != hello {
            return Err(protocol("the source said hello twice"));
        }
        let (offset, part) = body.split_first_chunk().ok_or_else(|| protocol("a hello without its part"))?;
        if !part.is_empty() {
            let put = greeting.text.put(u32::from_le_bytes(*offset), part);
            put.ok_or_else(|| protocol("a part of the description lies outside of it"))?;
        }
        if !greeting.complete && greeting.text.is_complete() {
            greeting.complete = true;
            let text = String::from_utf8(std::mem::take(&mut greeting.text.place));
            greeting.text.place = vec![0; hello.description as usize];
            let text = text.map_err(|_| protocol("the source's description is not UTF-8"))?;
            said.push(Delivered::Hello(hello, text));
        }
        Ok(())
    }

    fn on_offer(&mut self, offer: Announcement, said: &mut Vec<Delivered>) -> Result<(), LinkError> {
        let ticket = offer.ticket;
        let capabilities = self.greeting.as_ref().map_or(Capabilities::empty(), |greeting| greeting.hello.capabilities);
        check_offer(&offer, capabilities.contains(Capabilities::WITHDRAWS))?;
        if ticket < self.released.0 {
            // The source has not heard of it.
            self.control.push_back(Message::Release { below: self.released.0 }.encode().to_vec());
            return Ok(());
        }
        let next = self.next.unwrap_or(0);
        if ticket < next {
            return self.offered_again(offer, said);
        }
        // As many again may be under way that the source has dropped, or believes released.
        let most = self.greeting.as_ref().map_or(0, |greeting| 2 * greeting.hello.slots as usize + 2);
        let entry = self.early.entry(ticket).or_insert(offer);
        if !entry.disposition.is_dropped() {
            *entry = offer;
        }
        if self.with_data() > most {
            return Err(LinkError::Protocol(format!("more than {most} offers are open: more than its slots can hold")));
        }
        self.latest = self.latest.map(|(latest, _)| (latest, true));
        while let Some(offer) = self.early.remove(&self.next.unwrap_or(0)) {
            self.latest = Some((offer, true));
            self.next = Some(offer.ticket + 1);
            let eager = offer.disposition == Disposition::Eager;
            let foreseen = self.foreseen.iter().position(|ticket| *ticket == offer.ticket);
            foreseen.map(|at| self.foreseen.swap_remove(at));
            self.offers.insert(offer.ticket, (offer, eager || foreseen.is_some()));
            if eager {
                self.expect(&offer)?;
            }
            if offer.disposition.is_dropped()
                && let Some(fetching) = self.fetches.get_mut(&offer.ticket)
            {
                fetching.dropped = true;
            }
            said.push(Delivered::Message(Message::Offer(offer)));
        }
        Ok(())
    }

    /// An offer that was reported before is made again, or dropped.
    fn offered_again(&mut self, offer: Announcement, said: &mut Vec<Delivered>) -> Result<(), LinkError> {
        let ticket = offer.ticket;
        let Some((known, _)) = self.offers.get_mut(&ticket) else { return Ok(()) };
        // Dropping is final: an earlier word that comes later does not undo it.
        if known.disposition.is_dropped() || *known == offer {
            let echo = Message::Offer(*known).encode().to_vec();
            self.latest = self.latest.map(|(latest, _)| (latest, true));
            if known.disposition.is_dropped() {
                self.control.push_back(echo);
            }
            return Ok(());
        }
        self.control.push_back(Message::Offer(offer).encode().to_vec());
        if known.disposition == Disposition::Eager {
            self.unasked -= u64::from(known.bytes);
            self.landings.remove(&ticket);
        }
        *known = offer;
        if let Some(fetching) = self.fetches.get_mut(&ticket) {
            fetching.dropped |= offer.disposition.is_dropped();
        }
        if offer.disposition == Disposition::Eager {
            self.expect(&offer)?;
        }
        said.push(Delivered::Message(Message::Offer(offer)));
        Ok(())
    }

    /// How many offers with data are open. What a source has withdrawn takes none of its slots, and may be any number
    /// behind one that is not released.
    fn with_data(&self) -> usize {
        let reported = self.offers.values().map(|(offer, _)| offer);
        reported.chain(self.early.values()).filter(|offer| !offer.disposition.is_dropped()).count()
    }

    /// An eager offer: room for what comes of it, if it is within the bounds.
    fn expect(&mut self, offer: &Announcement) -> Result<(), LinkError> {
        let total = self.unasked + u64::from(offer.bytes);
        self.unasked = total;
        if offer.bytes > self.eager.limit || total > self.eager.credit.into() {
            return Err(LinkError::Protocol(format!(
                "{} bytes sent unasked, {total} in all; the limits are {} and {}",
                offer.bytes, self.eager.limit, self.eager.credit
            )));
        }
        if !self.fetches.contains_key(&offer.ticket) {
            self.landings.insert(offer.ticket, Filling::new(vec![0; offer.bytes as usize]));
        }
        Ok(())
    }

    fn on_data(
        &mut self,
        ticket: u64,
        offset: u32,
        piece: &[u8],
        now: Duration,
        said: &mut Vec<Delivered>,
    ) -> Result<(), LinkError> {
        let bad = |text: &str| {
            Err(LinkError::Protocol(format!("bytes {offset}+{} of ticket {ticket} were sent: {text}", piece.len())))
        };
        match self.offers.get(&ticket) {
            Some((_, false)) => return bad("they were not asked for"),
            Some((offer, true)) if offset as usize + piece.len() > offer.bytes as usize && offer.bytes > 0 => {
                return bad("it has fewer");
            }
            _ => {}
        }
        if let Some(fetching) = self.fetches.get_mut(&ticket) {
            if fetching.dropped {
                return Ok(());
            }
            if offset as usize + piece.len() > fetching.upto as usize {
                return bad("fewer were asked for");
            }
            let Some(new) = fetching.filling.put(offset, piece) else { return bad("fewer were asked for") };
            self.copied += piece.len() as u64;
            if new > 0 {
                self.received += if fetching.eager { 0 } else { new };
                self.data_at = now;
                self.asked.1 = self.asked.1.max(fetching.number);
                fetching.retry = Retry::from(now);
            }
            if fetching.filling.is_complete()
                && let Some(fetching) = self.fetches.remove(&ticket)
            {
                said.push(Delivered::Arrived(ticket, fetching.filling.place));
            }
        } else if let Some(landing) = self.landings.get_mut(&ticket) {
            landing.put(offset, piece);
            self.copied += piece.len() as u64;
        }
        // Otherwise it came a second time, or overtook its offer, or is released.
        Ok(())
    }

    /// Time passes. What has waited too long for an answer is asked again.
    pub(crate) fn time(&mut self, now: Duration) -> Result<(), LinkError> {
        if now >= self.heard_at + GONE {
            return Err(LinkError::Closed);
        }
        let said_release = Message::Release { below: self.released.0 }.encode();
        if self.waits() && self.retry.is_due(now) {
            self.retry.later(now);
            self.send_standing();
            if self.is_waiting_for_release() {
                self.control.push_back(said_release.to_vec());
            }
        }
        if self.next.is_some() && now >= self.spoke_at + SILENCE {
            self.control.push_back(said_release.to_vec());
        }
        let Self { fetches, control, asked, data_at, losses, .. } = self;
        for (ticket, fetching) in fetches.iter_mut().filter(|(_, fetching)| fetching.owes()) {
            if now < fetching.due(asked.1, *data_at) {
                continue;
            }
            fetching.retry.later(now);
            for gap in fetching.filling.got.gaps(fetching.upto.into()).take(AT_ONCE) {
                #[expect(clippy::cast_possible_truncation, reason = "a place has a 32-bit length")]
                let (offset, length) = (gap.start as u32, (gap.end - gap.start) as u32);
                control.push_back(Message::Fetch { ticket: *ticket, offset, length }.encode().to_vec());
                losses.sent += u64::from(length);
                losses.again += u64::from(length);
            }
        }
        Ok(())
    }

    fn waits(&self) -> bool {
        !self.standing.is_empty() || self.is_waiting_for_release()
    }

    /// Whether the source has not echoed the latest release.
    fn is_waiting_for_release(&self) -> bool {
        self.released.0 != self.released.1
    }

    /// When [`time`](Self::time) has something to do next.
    pub(crate) fn deadline(&self) -> Duration {
        let mut deadline = self.heard_at + GONE;
        if self.next.is_some() {
            deadline = deadline.min(self.spoke_at + SILENCE);
        }
        if self.waits() {
            deadline = deadline.min(self.retry.at);
        }
        let live = self.fetches.values().filter(|fetching| fetching.owes());
        live.map(|fetching| fetching.due(self.asked.1, self.data_at)).fold(deadline, Duration::min)
    }

    /// The next datagram.
    pub(crate) fn next_transmit(&mut self, now: Duration) -> Option<Vec<u8>> {
        if let Some((offer, echo @ true)) = &mut self.latest {
            *echo = false;
            self.control.push_back(Message::Offer(*offer).encode().to_vec());
        }
        let datagram = self.control.pop_front()?;
        self.spoke_at = now;
        Some(datagram)
    }
}

impl Fetching {
    /// Whether something of it was asked for and has not come.
    fn owes(&self) -> bool {
        !self.dropped && !self.filling.has(self.upto.into())
    }

    /// When to ask again. While bytes of earlier fetches come, this one waits for its turn.
    fn due(&self, latest_answered: u64, data_at: Duration) -> Duration {
        if self.number < latest_answered { self.retry.at } else { self.retry.at.max(data_at + TIMEOUT.0) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reliable::tests::{HELLO, WELCOME};
    use thalweg_wire::EventId;

    #[test]
    fn what_is_released_before_it_was_offered_again_is_not_waited_for() {
        let mut builder = ReliableBuilder::new(Eager { credit: 0, limit: 0 }, Duration::ZERO);
        let heard = |builder: &mut ReliableBuilder, datagram: &[u8]| {
            let mut said = Vec::new();
            builder.on_datagram(datagram, Duration::ZERO, &mut said).unwrap();
            said
        };
        heard(&mut builder, &[&Message::Hello(HELLO).encode()[..], &[0; 4]].concat());
        builder.send(&Message::Welcome(WELCOME), Duration::ZERO);
        // Ticket 7 had come over the connection before: its offer over this one is lost.
        builder.release(8, Duration::ZERO);
        let (disposition, first) = (Disposition::Held, EventId(8));
        let offer = Announcement { ticket: 8, first, arena_offset: 0, count: 1, bytes: 64, disposition };
        let said = heard(&mut builder, &Message::Offer(offer).encode());
        assert!(matches!(said[..], [Delivered::Message(Message::Offer(known))] if known == offer), "{said:?}");
    }
}
