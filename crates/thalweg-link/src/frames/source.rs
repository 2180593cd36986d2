//! The source's end: sends words, and answers fetches with pieces.

use super::channel::{Channel, Word};
use super::path::{BASE_BYTES, Path};
use super::{Half, Texts, message_words};
use crate::offered::{FetchRequest, Novelty, Offered};
use crate::{LinkError, SourceGreeting, SourceLink};
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use thalweg_arena::Arena;
use thalweg_frames::DatagramIo;
use thalweg_wire::{Announcement, Content, Disposition, HEAD_LEN, Head, Message, RECORD_ALIGN, Sender};

#[derive(Debug)]
pub(crate) struct FrameSource {
    channel: Channel,
    arena: Arc<Arena>,
    offered: Offered,
    /// Fetches that were not answered in full, in their order, each with its progress.
    asked: VecDeque<Answer>,
    /// Number of fetches that were answered in full.
    served: u32,
    /// Address of the builder, and the path to it.
    to: SocketAddr,
    path: Path,
    /// True if the path is searched for longer datagrams: the builder has answered.
    searches: bool,
    /// Length of datagrams for which a warning was logged.
    warned_bytes: usize,
    texts: Texts,
    words: Vec<Word>,
    /// Number of times that a byte is copied on its way out.
    copies: u64,
    /// Bytes of offers that were not dropped, and (`sent_bytes`) bytes that were sent.
    offered_bytes: u64,
    sent_bytes: u64,
}

#[derive(Debug)]
enum Answer {
    /// The remaining bytes lie at `arena_offset` in the arena.
    Ready { asked: FetchRequest, arena_offset: u64 },
    /// The offer is still to be made over this connection.
    Early(FetchRequest),
    /// There is nothing to send: the offer was dropped, or released.
    Moot,
}

impl FrameSource {
    pub(super) fn new(
        connection: u64,
        to: SocketAddr,
        (longest, copies): (usize, u64),
        greeting: &SourceGreeting,
        now: Duration,
    ) -> Self {
        let mut channel = Channel::new(connection, now);
        let hello = Message::Hello(greeting.hello);
        message_words(&hello, greeting.description.as_bytes()).for_each(|word| channel.push_word(word));
        Self {
            channel,
            arena: Arc::clone(&greeting.arena),
            offered: Offered::new(greeting.hello.slots, greeting.hello.slot_bytes),
            asked: VecDeque::new(),
            served: 0,
            to,
            path: Path::new(longest),
            searches: false,
            warned_bytes: 0,
            texts: Texts::default(),
            words: Vec::new(),
            copies,
            offered_bytes: 0,
            sent_bytes: 0,
        }
    }

    /// Returns the number of bytes of a slot that go into a datagram: whole cache lines.
    fn max_piece_bytes(&self) -> u32 {
        let room = self.path.max_datagram_bytes().saturating_sub(HEAD_LEN) / RECORD_ALIGN * RECORD_ALIGN;
        #[expect(clippy::cast_possible_truncation, reason = "a datagram has less than 64 KiB")]
        let piece = room.max(RECORD_ALIGN) as u32;
        piece
    }

    fn warn_of_narrow_path(&mut self) {
        if let Some(bytes) = self.path.narrow_path_bytes().filter(|bytes| *bytes != self.warned_bytes) {
            self.warned_bytes = bytes;
            tracing::warn!(
                "datagrams of more than {bytes} bytes do not reach {}, although the port can send longer ones: \
                 compare the MTU of all adapters and switches on the path",
                self.to
            );
        }
    }

    fn answer_for_fetch(&mut self, asked: FetchRequest) -> Result<Answer, LinkError> {
        if !self.offered.was_offered(asked.ticket) {
            return Ok(Answer::Early(asked));
        }
        let offer = self.offered.record_fetch(asked)?;
        Ok(offer.map_or(Answer::Moot, |(offer, _)| Answer::Ready {
            asked,
            arena_offset: offer.arena_offset + u64::from(asked.offset),
        }))
    }

    /// Returns the fetch that is answered next, with the position of its next byte in the arena.
    fn next_answer(&mut self) -> Result<Option<(&mut FetchRequest, &mut u64)>, LinkError> {
        while let Some(front) = self.asked.front() {
            match front {
                Answer::Ready { asked, .. } if asked.length > 0 => break,
                Answer::Early(asked) => match self.answer_for_fetch(*asked)? {
                    Answer::Early(_) => return Ok(None),
                    answer => self.asked[0] = answer,
                },
                _ => {
                    self.asked.pop_front();
                    self.served = self.served.wrapping_add(1);
                }
            }
        }
        Ok(match self.asked.front_mut() {
            Some(Answer::Ready { asked, arena_offset }) => Some((asked, arena_offset)),
            _ => None,
        })
    }

    /// Sends the next piece. Returns false if there is none.
    fn send_next_piece(&mut self, now: Duration, io: &mut dyn DatagramIo) -> Result<bool, LinkError> {
        let most = self.max_piece_bytes();
        let Some((asked, arena_offset)) = self.next_answer()? else { return Ok(false) };
        let (content, from) = (Content::Piece { ticket: asked.ticket, offset: asked.offset }, *arena_offset);
        let length = asked.length.min(most);
        let is_last = asked.length == length;
        let served = self.served.wrapping_add(u32::from(is_last));
        let piece = self
            .arena
            .piece_of_range(from, length as usize)
            .ok_or_else(|| LinkError::Protocol("the offer exceeds the arena".into()))?;
        let head = self.channel.build_head(content, length as usize, served, now);
        io.queue_datagram(self.to, &head.encode(&[]), Some(piece));
        self.path.on_piece_sent(now, self.channel.answer_timeout());
        self.sent_bytes += u64::from(length);
        if let Some((asked, arena_offset)) = self.next_answer()? {
            asked.offset += length;
            asked.length -= length;
            *arena_offset += u64::from(length);
        }
        self.next_answer()?;
        Ok(true)
    }

    fn on_message(&mut self, message: Message, received: &mut Vec<Message>) -> Result<(), LinkError> {
        match message {
            Message::Fetch { ticket, offset, length } => {
                let answer = self.answer_for_fetch(FetchRequest { ticket, offset, length })?;
                self.asked.push_back(answer);
                self.offered.check_pending_fetches(self.asked.len())?;
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
        Ok(())
    }
}

impl Half for FrameSource {
    type Received = Message;
    const SENDS_PIECES: bool = true;

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
        received: &mut Vec<Message>,
    ) -> Result<(), LinkError> {
        match head.content {
            Content::Piece { ticket, .. } => {
                return Err(LinkError::Protocol(format!("the builder sent bytes of ticket {ticket}")));
            }
            Content::Probe { .. } => return Err(LinkError::Protocol("the builder sent a probe of the path".into())),
            _ => {}
        }
        let mut words = std::mem::take(&mut self.words);
        self.channel.on_frame(head, content, now, &mut words);
        let wait = self.channel.answer_timeout();
        if let Content::Probed { number } = head.content {
            self.path.on_probe_answer(number, now, self.channel.reorder_tolerance(), wait);
            self.warn_of_narrow_path();
        }
        if !self.searches && self.channel.is_acknowledged() {
            self.searches = true;
            self.path.start_search(now, wait);
        }
        for word in words.drain(..) {
            if let Some((message, text)) = self.texts.on_word(&word)? {
                if let Message::Refuse { reason, .. } = message {
                    return Err(LinkError::Refused { reason, text: String::from_utf8_lossy(&text).into_owned() });
                }
                self.on_message(message, received)?;
            }
        }
        self.words = words;
        Ok(())
    }

    fn handle_timeouts(&mut self, now: Duration) -> Result<(), LinkError> {
        self.channel.handle_timeouts(now)?;
        self.path.handle_timeouts(now, self.channel.answer_timeout());
        self.warn_of_narrow_path();
        Ok(())
    }

    fn limit_datagrams(&mut self, longest: usize) {
        self.path.limit_datagrams_to(longest);
    }

    fn next_deadline(&self) -> Duration {
        self.path.next_deadline().into_iter().fold(self.channel.next_deadline(), Duration::min)
    }

    /// Puts one frame into the burst. Words go first: they are few, and the other end waits for them.
    fn send_next_frame(
        &mut self,
        now: Duration,
        io: &mut dyn DatagramIo,
        room: &mut Vec<u8>,
    ) -> Result<bool, LinkError> {
        let has_pieces = self.next_answer()?.is_some();
        let (to, longest) = (self.to, self.path.max_datagram_bytes().min(BASE_BYTES));
        if self.channel.has_more_than_acknowledgement() || self.channel.has_words() && !has_pieces {
            // Padded until it is answered: no answer is longer than the frame that it answers.
            let padded = if self.channel.is_acknowledged() { 0 } else { longest };
            super::send_words(&mut self.channel, self.served, to, (longest, padded), now, io, room);
            return Ok(true);
        }
        if self.searches && self.path.is_raise_due(now) {
            self.path.search_longer(io.max_datagram_bytes(to).ok(), now, self.channel.answer_timeout());
        }
        if let Some((number, padded)) = self.path.next_probe() {
            super::send_bare_frame(
                &mut self.channel,
                Content::Probe { number },
                self.served,
                to,
                padded,
                now,
                io,
                room,
            );
            return Ok(true);
        }
        self.send_next_piece(now, io)
    }

    fn stop_transfers(&mut self) {
        self.asked.clear();
    }

    fn redirect_to(&mut self, address: SocketAddr) {
        self.to = address;
    }

    fn for_new_connection(_connection: u64, _from: SocketAddr, _copies: u64, _now: Duration) -> Option<Self> {
        None
    }
}

impl SourceLink for FrameSource {
    fn announce_offer(&mut self, offer: &Announcement) {
        // Frames are never sent without a fetch.
        let disposition = if offer.disposition == Disposition::Eager { Disposition::Held } else { offer.disposition };
        let offer = Announcement { disposition, ..*offer };
        let novelty = self.offered.record_offer(&offer);
        let bytes = u64::from(offer.bytes);
        match (novelty, offer.disposition.is_dropped()) {
            (Novelty::New, false) => self.offered_bytes += bytes,
            (Novelty::Again, true) => self.offered_bytes = self.offered_bytes.saturating_sub(bytes),
            _ => {}
        }
        if novelty != Novelty::Released {
            self.send_message(&Message::Offer(offer));
        }
    }

    fn withdraw_offer(&mut self, ticket: u64) -> bool {
        self.offered.may_withdraw(ticket)
    }

    fn send_message(&mut self, message: &Message) {
        self.channel.push_word(message.encode());
    }

    /// Returns the bytes copied, including those still to be sent: a source reports its copies when it has offered
    /// everything, and not yet sent everything.
    fn copied_bytes(&self) -> u64 {
        self.copies * self.sent_bytes.max(self.offered_bytes)
    }
}
