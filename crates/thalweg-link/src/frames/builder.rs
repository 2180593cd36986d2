//! The builder's end: sends words, puts pieces in their places, and asks again for those that did not come.
//!
//! Every frame of a source carries the number of fetches that it has answered in full. Bytes of those that are missing
//! then, and have not come a moment later either (a frame may overtake another), are lost, and asked for again. They
//! are not asked for again before: a source that is slow, or busy with another builder, is left alone. If nothing more
//! comes, the source is asked for its progress.

use super::channel::{Channel, Word};
use super::path::BASE_BYTES;
use super::{Half, Texts};
use crate::copy::copy_counted;
use crate::error::{encode_refusal, protocol_error};
use crate::offered::FetchRequest;
use crate::rules::{check_hello, check_offer};
use crate::{BuilderLink, Bytes, LinkError, Received};
use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::time::Duration;
use thalweg_arena::Span;
use thalweg_frames::FrameIo;
use thalweg_wire::{Announcement, Capabilities, Content, Head, Hello, IntervalMap, Losses, Message, Refusal, Sender};

#[derive(Debug)]
pub(crate) struct FrameBuilder {
    channel: Channel,
    to: SocketAddr,
    /// Maximum length of a datagram to the source, in bytes.
    longest: usize,
    hello: Option<Hello>,
    texts: Texts,
    words: Vec<Word>,
    fetches: BTreeMap<u64, Fetch>,
    /// Tickets for which more was requested than was sent to the source.
    unsent: Vec<u64>,
    /// Fetches that were sent, and not answered in full as far as is known.
    asked: VecDeque<FetchRequest>,
    /// Number of the sent fetches that the source has answered.
    served: u32,
    /// Fetches to check, and the time to do so: they were answered, and some of their bytes are missing.
    late: VecDeque<(Duration, FetchRequest)>,
    /// Time at which the source is asked for its progress, and the wait that led to it.
    probe: Option<(Duration, Duration)>,
    copied: u64,
    /// Number of times that a byte of a datagram was copied before it is put in its place.
    copies: u64,
    received: u64,
    losses: Losses,
}

/// A fetch: its place, the ranges that have come, the number of bytes requested, and the number of those that the
/// source was asked for.
#[derive(Debug)]
struct Fetch {
    place: Span,
    got: IntervalMap,
    upto: u32,
    sent_upto: u32,
}

impl Fetch {
    fn is_complete(&self) -> bool {
        self.got.contains(&(0..self.place.len() as u64))
    }

    /// Returns the missing parts of a range.
    fn missing_ranges(&self, of: FetchRequest) -> impl Iterator<Item = FetchRequest> {
        let (start, end) = (u64::from(of.offset), u64::from(of.offset) + u64::from(of.length));
        let gaps =
            self.got.missing_ranges(end).map(move |gap| gap.start.max(start)..gap.end).filter(|gap| !gap.is_empty());
        #[expect(clippy::cast_possible_truncation, reason = "an offer has a 32-bit length")]
        gaps.map(move |gap| FetchRequest {
            ticket: of.ticket,
            offset: gap.start as u32,
            length: (gap.end - gap.start) as u32,
        })
    }
}

impl FrameBuilder {
    pub(super) fn new(connection: u64, to: SocketAddr, copies: u64, now: Duration) -> Self {
        Self {
            channel: Channel::new(connection, now),
            to,
            longest: BASE_BYTES,
            hello: None,
            texts: Texts::default(),
            words: Vec::new(),
            fetches: BTreeMap::new(),
            unsent: Vec::new(),
            asked: VecDeque::new(),
            served: 0,
            late: VecDeque::new(),
            probe: None,
            copied: 0,
            copies,
            received: 0,
            losses: Losses::default(),
        }
    }

    fn on_message(&mut self, message: Message, text: Vec<u8>, received: &mut Vec<Received>) -> Result<(), LinkError> {
        match (message, self.hello) {
            (Message::Hello(hello), None) => {
                check_hello(&hello)?;
                self.hello = Some(hello);
                let text = String::from_utf8(text)
                    .map_err(|_| LinkError::Protocol("the source's description is not UTF-8".into()))?;
                received.push(Received::Hello(hello, text));
            }
            (Message::Refuse { reason, .. }, _) => {
                return Err(LinkError::Refused { reason, text: "the source closed the connection".into() });
            }
            (_, None) => return protocol_error(format!("the first message must be a hello, not {message:?}")),
            (Message::Hello(_), _) => return protocol_error("the source sent a second hello".into()),
            (Message::Ignored { .. }, _) => {}
            (Message::Offer(offer), Some(hello)) => {
                check_offer(&offer, hello.capabilities.contains(Capabilities::WITHDRAWS))?;
                received.push(Received::Message(message));
            }
            // Pieces are not messages; and losses on the way are measured at this end.
            (Message::Data { .. } | Message::Losses(_), _) => {
                return protocol_error(format!("a message that is not used with datagrams: {message:?}"));
            }
            (message, _) if message.sending_end() == Sender::Source => received.push(Received::Message(message)),
            _ => return protocol_error(format!("the source sent a builder's message: {message:?}")),
        }
        Ok(())
    }

    fn on_piece(
        &mut self,
        ticket: u64,
        offset: u32,
        piece: &[u8],
        now: Duration,
        received: &mut Vec<Received>,
    ) -> Result<(), LinkError> {
        // The piece came before, or the fetch was called off.
        let Some(fetch) = self.fetches.get_mut(&ticket) else { return Ok(()) };
        let (start, end) = (offset as usize, offset as usize + piece.len());
        if end > fetch.sent_upto as usize {
            return Err(LinkError::Protocol(format!(
                "received bytes {offset}+{} of ticket {ticket}, of which only {} were requested",
                piece.len(),
                fetch.sent_upto
            )));
        }
        let new = fetch.got.insert(start as u64..end as u64);
        if new == 0 {
            return Ok(());
        }
        self.copied += self.copies * piece.len() as u64 + copy_counted(&mut fetch.place[start..end], piece);
        self.received += new;
        if fetch.is_complete()
            && let Some(fetch) = self.fetches.remove(&ticket)
        {
            received.push(Received::Arrived { ticket, bytes: Bytes::Place(fetch.place) });
        }
        self.restart_probe_timer(now);
        Ok(())
    }

    /// Renews the wait: bytes that were requested have come, or more were requested.
    fn restart_probe_timer(&mut self, now: Duration) {
        let wait = self.channel.answer_timeout();
        self.probe = Some((now + wait, wait));
    }

    /// Processes the number of fetches that the source has answered.
    fn on_fetches_answered(&mut self, served: u32, now: Duration) {
        let more = served.wrapping_sub(self.served) as usize;
        // An old frame that comes late, or nonsense.
        if more > self.asked.len() {
            return;
        }
        self.served = served;
        let at = now + self.channel.reorder_tolerance();
        for asked in self.asked.drain(..more) {
            if self.fetches.get(&asked.ticket).is_some_and(|fetch| fetch.missing_ranges(asked).next().is_some()) {
                self.late.push_back((at, asked));
            }
        }
        if self.asked.is_empty() {
            self.probe = None;
        }
    }

    /// Repeats the requests for missing bytes of fetches that were answered long enough ago.
    fn repeat_lost_requests(&mut self, now: Duration) {
        while let Some((_, asked)) = self.late.front().copied().filter(|(at, _)| *at <= now) {
            self.late.pop_front();
            let Some(fetch) = self.fetches.get(&asked.ticket) else { continue };
            for FetchRequest { ticket, offset, length } in fetch.missing_ranges(asked) {
                self.channel.push_word(Message::Fetch { ticket, offset, length }.encode());
                self.asked.push_back(FetchRequest { ticket, offset, length });
                self.losses.sent += u64::from(length);
                self.losses.again += u64::from(length);
            }
        }
        if self.probe.is_none() && !self.asked.is_empty() {
            self.restart_probe_timer(now);
        }
    }

    /// Encodes the requested fetches: one message for each offer, regardless of the number of pieces requested since.
    fn queue_fetch_messages(&mut self, now: Duration) {
        if self.unsent.is_empty() {
            return;
        }
        let Self { unsent, fetches, channel, asked, losses, .. } = self;
        for ticket in unsent.drain(..) {
            // Otherwise it was called off in the meantime.
            if let Some(fetch) = fetches.get_mut(&ticket).filter(|fetch| fetch.upto > fetch.sent_upto) {
                let (offset, length) = (fetch.sent_upto, fetch.upto - fetch.sent_upto);
                channel.push_word(Message::Fetch { ticket, offset, length }.encode());
                asked.push_back(FetchRequest { ticket, offset, length });
                losses.sent += u64::from(length);
                fetch.sent_upto = fetch.upto;
            }
        }
        if self.probe.is_none() {
            self.restart_probe_timer(now);
        }
    }
}

impl Half for FrameBuilder {
    type Received = Received;
    const SENDS_PIECES: bool = false;

    fn word_channel(&mut self) -> &mut Channel {
        &mut self.channel
    }

    fn is_fully_acknowledged(&self) -> bool {
        self.channel.is_fully_acknowledged()
    }

    fn on_frame(
        &mut self,
        head: &Head,
        content: &[u8],
        now: Duration,
        received: &mut Vec<Received>,
    ) -> Result<(), LinkError> {
        if let Content::Probed { .. } | Content::Challenge { .. } = head.content {
            return Err(LinkError::Protocol("the source sent a builder's frame".into()));
        }
        let mut words = std::mem::take(&mut self.words);
        self.channel.on_frame(head, content, now, &mut words);
        if let Content::Piece { ticket, offset } = head.content {
            self.on_piece(ticket, offset, content, now, received)?;
        }
        for word in words.drain(..) {
            if let Some((message, text)) = self.texts.on_word(&word)? {
                self.on_message(message, text, received)?;
            }
        }
        self.words = words;
        self.on_fetches_answered(head.served, now);
        Ok(())
    }

    fn handle_timeouts(&mut self, now: Duration) -> Result<(), LinkError> {
        self.channel.handle_timeouts(now)?;
        self.repeat_lost_requests(now);
        if let Some((at, wait)) = &mut self.probe
            && *at <= now
        {
            self.channel.request_answer();
            *wait = (*wait * 2).min(super::LONGEST_PROBE);
            *at = now + *wait;
        }
        Ok(())
    }

    fn limit_datagrams(&mut self, longest: usize) {
        self.longest = self.longest.min(longest);
    }

    fn next_deadline(&self) -> Duration {
        let probe = self.probe.map(|(at, _)| at);
        let late = self.late.front().map(|(at, _)| *at);
        probe.into_iter().chain(late).fold(self.channel.next_deadline(), Duration::min)
    }

    fn send_next_frame(&mut self, now: Duration, io: &mut dyn FrameIo, room: &mut Vec<u8>) -> Result<bool, LinkError> {
        self.queue_fetch_messages(now);
        if let Some(probed) = self.channel.next_probe_answer() {
            super::send_bare_frame(&mut self.channel, probed, 0, self.to, 0, now, io, room);
            return Ok(true);
        }
        if !self.channel.has_words() {
            return Ok(false);
        }
        super::send_words(&mut self.channel, 0, self.to, (self.longest, 0), now, io, room);
        Ok(true)
    }

    fn stop_transfers(&mut self) {
        self.fetches.clear();
        self.unsent.clear();
        self.asked.clear();
        self.late.clear();
        self.probe = None;
    }

    fn redirect_to(&mut self, address: SocketAddr) {
        self.to = address;
    }

    fn for_new_connection(connection: u64, from: SocketAddr, copies: u64, now: Duration) -> Option<Self> {
        Some(Self::new(connection, from, copies, now))
    }
}

impl BuilderLink for FrameBuilder {
    fn maps_source_memory(&self) -> bool {
        false
    }

    fn begin_fetch(&mut self, offer: &Announcement, into: Option<Span>, upto: u32) -> Result<Option<Bytes>, LinkError> {
        let place = into.unwrap_or_else(|| {
            unreachable!(
                "a link of frames cannot map memory: a fetch needs a \
            destination"
            )
        });
        let fetch = Fetch { place, got: IntervalMap::new(), upto, sent_upto: 0 };
        self.fetches.insert(offer.ticket, fetch);
        self.unsent.push(offer.ticket);
        Ok(None)
    }

    fn extend_fetch(&mut self, ticket: u64, upto: u32) {
        if let Some(fetch) = self.fetches.get_mut(&ticket).filter(|fetch| upto > fetch.upto) {
            if fetch.upto == fetch.sent_upto {
                self.unsent.push(ticket);
            }
            fetch.upto = upto;
        }
    }

    fn received_bytes(&self) -> u64 {
        self.received
    }

    fn known_losses(&self) -> Losses {
        self.losses
    }

    fn cancel_fetch(&mut self, ticket: u64) {
        self.fetches.remove(&ticket);
    }

    fn release_tickets(&mut self, below: u64) {
        self.channel.push_word(Message::Release { below }.encode());
    }

    fn send_message(&mut self, message: &Message) {
        self.channel.push_word(message.encode());
    }

    fn refuse_source(&mut self, reason: Refusal, text: &str) {
        let bytes = encode_refusal(reason, text);
        super::split_into_words(&bytes).for_each(|word| self.channel.push_word(word));
    }

    fn copied_bytes(&self) -> u64 {
        self.copied
    }
}
