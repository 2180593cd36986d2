//! Words delivered once and in order, over frames that are lost, duplicated and reordered. No socket and no clock: the
//! caller passes in received frames and the time.
//!
//! Each word has a number and is repeated until the other end has acknowledged it. Every frame acknowledges what its
//! sender has received: all words below a number, and a subset of the 64 after it. Losses follow from that: a word is
//! sent again when three frames sent after it have been acknowledged, or one that was sent a good round trip later (RFC
//! 9002, section 6.1). If nothing at all is received, the oldest words are sent again after a while, at growing
//! intervals.
//!
//! The round trip is measured by stamps that are echoed (RFC 7323, section 4).

use crate::LinkError;
use crate::error::{MAX_UNREAD_BYTES, check_unread_bytes};
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;
use thalweg_wire::{Content, Head, MESSAGE_LEN};

/// A message, or 64 bytes of the text after one.
pub(super) type Word = [u8; MESSAGE_LEN];

/// Maximum number of words on their way at a time, and of words kept here that arrived ahead of a missing one.
const MAX_WORDS_AHEAD: u32 = 1024;
/// Maximum number of probes whose answers wait to be sent: more are lost.
const MAX_PROBES: usize = 16;
/// Number of later frames that must be acknowledged before an earlier one counts as lost.
const FRAME_REORDER_THRESHOLD: u64 = 3;
/// Round trip that is assumed until one is measured; `WAIT` is the least and the most time to wait for an answer.
const FIRST_WAIT: Duration = Duration::from_millis(20);
const WAIT: (Duration, Duration) = (Duration::from_millis(5), Duration::from_millis(640));
/// Least time by which one frame is assumed to overtake another, however short the round trip.
const MIN_REORDER_TIME: Duration = Duration::from_millis(1);
/// Time without sending after which an end asks for an answer.
const KEEP_ALIVE_INTERVAL: Duration = Duration::from_secs(1);
/// Time without receiving after which the peer is considered gone.
const PEER_TIMEOUT: Duration = Duration::from_secs(10);

/// One end of a connection.
#[derive(Debug)]
pub(crate) struct Channel {
    connection: u64,
    /// Words that the other end has not acknowledged, from number `first` on. Numbers wrap.
    out: VecDeque<Out>,
    first: u32,
    is_acknowledged: bool,
    /// Index before which all words have been sent, or are to be sent again.
    sent: usize,
    /// True if some words before that index are to be sent again.
    again: bool,
    /// Number of frames with words that were sent, and number of the latest of them that was acknowledged.
    frames: (u64, u64),
    /// Number below which all words of the other end were received.
    received: u32,
    has_received: bool,
    early: BTreeMap<u32, Word>,
    /// True if an acknowledgement is to be sent.
    owes: bool,
    /// True if the other end is to be asked for an answer.
    asks: bool,
    /// Token that the builder has sent to this address, to be returned to it.
    token: u64,
    /// Probes of the path that have arrived, and are to be answered.
    probes: VecDeque<u32>,
    round_trip: Option<RoundTrip>,
    /// Latest stamp of the other end, and the time at which it came.
    stamp: Option<(u32, Duration)>,
    retry: Option<Retry>,
    received_at: Duration,
    sent_at: Duration,
}

#[derive(Debug)]
struct Out {
    word: Word,
    /// Number of the frame in which the word was last sent, and the time; `None` while it is to be sent.
    sent: Option<(u64, Duration)>,
    is_acknowledged: bool,
}

/// Estimate of the round trip (RFC 6298, section 2).
#[derive(Debug, Clone, Copy)]
struct RoundTrip {
    smoothed: Duration,
    variation: Duration,
}

/// Time at which the other end is asked again, and the wait that led to it.
#[derive(Debug, Clone, Copy)]
struct Retry {
    at: Duration,
    wait: Duration,
}

impl Channel {
    pub(super) fn new(connection: u64, now: Duration) -> Self {
        Self {
            connection,
            out: VecDeque::new(),
            first: 0,
            is_acknowledged: false,
            sent: 0,
            again: false,
            frames: (0, 0),
            received: 0,
            has_received: false,
            early: BTreeMap::new(),
            owes: false,
            asks: false,
            token: 0,
            probes: VecDeque::new(),
            round_trip: None,
            stamp: None,
            retry: None,
            received_at: now,
            sent_at: now,
        }
    }

    /// True if the other end has acknowledged a word.
    pub(super) fn is_acknowledged(&self) -> bool {
        self.is_acknowledged
    }

    /// True if a word of the other end was received.
    pub(super) fn has_received_word(&self) -> bool {
        self.has_received
    }

    /// True if the other end has acknowledged every word.
    pub(super) fn is_fully_acknowledged(&self) -> bool {
        self.out.is_empty()
    }

    /// Queues one more word.
    pub(super) fn push_word(&mut self, word: Word) {
        self.out.push_back(Out { word, sent: None, is_acknowledged: false });
    }

    /// Returns an error if more words wait than an end that reads would leave.
    pub(super) fn check_backlog(&self) -> Result<(), LinkError> {
        check_unread_bytes(self.out.len() * MESSAGE_LEN, MAX_UNREAD_BYTES)
    }

    /// Processes a received frame. Appends the words that it makes deliverable to `words`.
    pub(super) fn on_frame(&mut self, head: &Head, content: &[u8], now: Duration, words: &mut Vec<Word>) {
        self.received_at = now;
        self.owes |= head.answer;
        if self.stamp.is_none_or(|(stamp, _)| head.stamp.wrapping_sub(stamp).cast_signed() >= 0) {
            self.stamp = Some((head.stamp, now));
        }
        self.on_acknowledgements(head, now);
        match head.content {
            Content::Words { first, .. } => {
                let cells = content.as_chunks::<MESSAGE_LEN>().0;
                self.owes |= !cells.is_empty();
                for (number, word) in (0..).map(|at| first.wrapping_add(at)).zip(cells) {
                    self.on_word(number, word, words);
                }
            }
            Content::Probe { number } if self.probes.len() < MAX_PROBES => self.probes.push_back(number),
            Content::Challenge { token } => self.on_challenge(token),
            _ => {}
        }
    }

    /// Stores the token of a challenge. The builder knows of no connection before it has its token back: everything
    /// sent so far is sent again with the token.
    fn on_challenge(&mut self, token: u64) {
        if self.is_acknowledged() || token == self.token {
            return;
        }
        self.token = token;
        self.retry = None;
        for out in self.out.iter_mut().take(self.sent) {
            out.sent = None;
            self.again = true;
        }
    }

    fn on_word(&mut self, number: u32, word: &Word, words: &mut Vec<Word>) {
        match number.wrapping_sub(self.received) {
            0 => {
                words.push(*word);
                self.has_received = true;
                self.received = self.received.wrapping_add(1);
                while let Some(word) = self.early.remove(&self.received) {
                    words.push(word);
                    self.received = self.received.wrapping_add(1);
                }
            }
            1..MAX_WORDS_AHEAD => drop(self.early.insert(number, *word)),
            // Received before; or further ahead than any peer sends.
            _ => {}
        }
    }

    /// Processes the acknowledgements in a frame.
    fn on_acknowledgements(&mut self, head: &Head, now: Duration) {
        let below = head.received.wrapping_sub(self.first) as usize;
        // An old frame that comes late, or nonsense: words that were not sent cannot be acknowledged.
        if below > self.sent {
            return;
        }
        let (before, mut news) = (self.frames.1, below > 0);
        for out in self.out.drain(..below) {
            self.frames.1 = self.frames.1.max(out.sent.map_or(0, |(frame, _)| frame));
        }
        self.first = head.received;
        self.is_acknowledged |= below > 0;
        self.sent = self.sent.saturating_sub(below);
        let mut also = head.also;
        while also != 0 {
            let at = also.trailing_zeros() as usize + 1;
            also &= also - 1;
            if let Some(out) = self.out.get_mut(at).filter(|out| at < self.sent && !out.is_acknowledged) {
                out.is_acknowledged = true;
                news = true;
                self.frames.1 = self.frames.1.max(out.sent.map_or(0, |(frame, _)| frame));
            }
        }
        if !news {
            return;
        }
        if let Some(echo) = head.echo {
            let took = timestamp_micros(now).wrapping_sub(echo).cast_signed();
            self.record_round_trip(Duration::from_micros(u64::from(took.max(0).cast_unsigned())));
        }
        self.retry = None;
        if self.frames.1 > before {
            self.mark_lost_words(now);
        }
        self.start_retry_timer(now);
    }

    fn record_round_trip(&mut self, took: Duration) {
        let known = self.round_trip.get_or_insert(RoundTrip { smoothed: took, variation: took / 2 });
        known.variation = (known.variation * 3 + known.smoothed.abs_diff(took)) / 4;
        known.smoothed = (known.smoothed * 7 + took) / 8;
    }

    /// Marks words that later ones have overtaken by too much, to be sent again.
    fn mark_lost_words(&mut self, now: Duration) {
        let (latest, patience) = (self.frames.1, self.reorder_tolerance());
        for out in self.out.iter_mut().take(self.sent).filter(|out| !out.is_acknowledged) {
            if let Some((frame, at)) = out.sent
                && (frame + FRAME_REORDER_THRESHOLD <= latest || frame < latest && at + patience <= now)
            {
                out.sent = None;
                self.again = true;
            }
        }
    }

    /// Returns the time by which a frame may arrive later than another that was sent with it.
    pub(super) fn reorder_tolerance(&self) -> Duration {
        self.round_trip.map_or(FIRST_WAIT, |known| known.smoothed + (known.smoothed / 8).max(MIN_REORDER_TIME))
    }

    /// Returns the time to wait for an answer.
    pub(super) fn answer_timeout(&self) -> Duration {
        self.round_trip
            .map_or(FIRST_WAIT, |known| known.smoothed + (known.variation * 4).max(MIN_REORDER_TIME))
            .clamp(WAIT.0, WAIT.1)
    }

    fn start_retry_timer(&mut self, now: Duration) {
        if self.retry.is_none() && self.sent > 0 {
            let wait = self.answer_timeout();
            self.retry = Some(Retry { at: now + wait, wait });
        }
    }

    /// Asks the other end for an answer, with the next frame.
    pub(super) fn request_answer(&mut self) {
        self.asks = true;
    }

    /// Handles timeouts.
    ///
    /// # Errors
    /// Nothing was received for too long.
    pub(super) fn handle_timeouts(&mut self, now: Duration) -> Result<(), LinkError> {
        if now >= self.received_at + PEER_TIMEOUT {
            return Err(LinkError::Closed);
        }
        if now >= self.sent_at + KEEP_ALIVE_INTERVAL {
            self.asks = true;
        }
        if let Some(retry) = &mut self.retry
            && retry.at <= now
        {
            retry.wait = (retry.wait * 2).min(WAIT.1);
            retry.at = now + retry.wait;
            self.asks = true;
            // As many as go into a frame: the answer shows which of the others were lost.
            for out in self.out.iter_mut().take(self.sent).filter(|out| !out.is_acknowledged).take(16) {
                out.sent = None;
                self.again = true;
            }
        }
        Ok(())
    }

    /// Returns the time at which [`handle_timeouts`](Self::handle_timeouts) has something to do.
    pub(super) fn next_deadline(&self) -> Duration {
        let deadline = (self.received_at + PEER_TIMEOUT).min(self.sent_at + KEEP_ALIVE_INTERVAL);
        self.retry.map_or(deadline, |retry| retry.at.min(deadline))
    }

    /// Returns the content of a frame of words, the first of which has number `first`.
    pub(super) fn words_content(&self, first: u32) -> Content {
        Content::Words { first, token: if self.is_acknowledged() { 0 } else { self.token } }
    }

    /// Returns the next answer to a probe.
    pub(super) fn next_probe_answer(&mut self) -> Option<Content> {
        self.probes.pop_front().map(|number| Content::Probed { number })
    }

    /// True if there is something to send.
    pub(super) fn has_words(&self) -> bool {
        self.owes || self.has_more_than_acknowledgement()
    }

    /// True if there is more to send than an acknowledgement, which any frame carries.
    pub(super) fn has_more_than_acknowledgement(&self) -> bool {
        self.asks || self.again || self.sent < self.out.len().min(MAX_WORDS_AHEAD as usize)
    }

    /// Appends at most `most` words to `content`, and returns the number of the first.
    pub(super) fn next_words(&mut self, most: usize, now: Duration, content: &mut Vec<u8>) -> u32 {
        let start = match self.again {
            true => self.out.iter().take(self.sent).position(|out| !out.is_acknowledged && out.sent.is_none()),
            false => None,
        };
        self.again = start.is_some();
        let start = start.unwrap_or(self.sent);
        self.frames.0 += 1;
        let frame = self.frames.0;
        let unsent = self.out.range_mut(start..).take(MAX_WORDS_AHEAD as usize - start.min(MAX_WORDS_AHEAD as usize));
        let mut count = 0;
        for out in unsent.take_while(|out| !out.is_acknowledged && out.sent.is_none()).take(most) {
            content.extend_from_slice(&out.word);
            out.sent = Some((frame, now));
            count += 1;
        }
        self.sent = self.sent.max(start + count);
        self.start_retry_timer(now);
        self.first.wrapping_add(start as u32)
    }

    /// Returns the head of a frame that is sent now.
    pub(super) fn build_head(&mut self, content: Content, length: usize, served: u32, now: Duration) -> Head {
        self.sent_at = now;
        self.owes = false;
        let numbers = self.early.keys().map(|number| number.wrapping_sub(self.received).wrapping_sub(1));
        let also = numbers.filter(|at| *at < 64).fold(0, |also, at| also | 1 << at);
        let echo = self.stamp.map(|(stamp, at)| stamp.wrapping_add(wrapping_micros(now.saturating_sub(at))));
        let answer = std::mem::take(&mut self.asks);
        #[expect(clippy::cast_possible_truncation, reason = "a datagram has less than 64 KiB")]
        let length = length as u16;
        Head {
            content,
            length,
            connection: self.connection,
            answer,
            received: self.received,
            also,
            served,
            stamp: timestamp_micros(now),
            echo,
        }
    }
}

/// Returns the head that informs a peer that there is no connection of this number.
pub(super) fn connection_over_head(connection: u64) -> Head {
    head_without_channel(connection, Content::Over)
}

/// Returns the head of a frame from an end that has no connection of this number.
pub(super) fn head_without_channel(connection: u64, content: Content) -> Head {
    Head { content, length: 0, connection, answer: false, received: 0, also: 0, served: 0, stamp: 0, echo: None }
}

fn timestamp_micros(now: Duration) -> u32 {
    wrapping_micros(now)
}

#[expect(clippy::cast_possible_truncation, reason = "a clock that goes round")]
fn wrapping_micros(time: Duration) -> u32 {
    time.as_micros() as u32
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use thalweg_wire::{GOLDEN_GAMMA, HEAD_LEN, mix_bits};

    /// Frames on their way to one end, by the time they arrive.
    #[derive(Default)]
    struct Route {
        frames: BTreeMap<(Duration, u64), (Head, Vec<u8>)>,
        random: u64,
        sent: u64,
    }

    impl Route {
        /// Carries a frame. Of a hundred frames, `lost` are lost and some come twice; each takes its own time.
        fn carry(&mut self, head: Head, content: &[u8], now: Duration, lost: u64, jitter: u64) {
            let mut draw = || {
                self.random = self.random.wrapping_add(GOLDEN_GAMMA);
                mix_bits(self.random)
            };
            let copies = if draw() % 100 < lost { 0 } else { 1 + draw() % 20 / 19 };
            for _ in 0..copies {
                self.sent += 1;
                let at = now + Duration::from_micros(100 + draw() % (jitter + 1));
                self.frames.insert((at, self.sent), (head, content.to_vec()));
            }
        }
    }

    fn send(channel: &mut Channel, route: &mut Route, now: Duration, lost: u64, jitter: u64) {
        while channel.has_words() {
            let mut content = Vec::new();
            let first = channel.next_words(20, now, &mut content);
            let head = channel.build_head(Content::Words { first, token: 0 }, content.len(), 0, now);
            assert!(content.len() <= u16::MAX as usize - HEAD_LEN);
            route.carry(head, &content, now, lost, jitter);
        }
    }

    fn word(number: u32) -> Word {
        let mut word = [0; MESSAGE_LEN];
        word[..4].copy_from_slice(&number.to_le_bytes());
        word
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        /// Words of both ends are delivered once and in order under any impairment, and with no more delay than that
        /// requires.
        #[test]
        fn words_are_received_once_and_in_order(
            seed: u64,
            first in prop_oneof![Just(0), u32::MAX - 2000..=u32::MAX],
            lost in 0u64..40,
            jitter in 0u64..20_000,
            bursts in proptest::collection::vec((0usize..2, 1u32..400, 0u64..5_000), 1..12),
        ) {
            let mut now = Duration::ZERO;
            // Numbers begin with 0; the connection may have carried almost as many words as there are numbers.
            let begun = || Channel { first, received: first, ..Channel::new(7, now) };
            let mut ends = [begun(), begun()];
            let mut routes = [Route { random: seed, ..Route::default() }, Route { random: !seed, ..Route::default() }];
            let (mut sent, mut received) = ([0u32; 2], [0u32; 2]);
            let mut due: Vec<(Duration, usize, u32)> = Vec::new();
            let mut at = now;
            for (end, count, pause) in bursts {
                due.push((at, end, count));
                at += Duration::from_micros(pause);
            }
            due.reverse();
            loop {
                while let Some((_, end, count)) = due.pop_if(|(at, ..)| *at <= now) {
                    (sent[end]..sent[end] + count).for_each(|number| ends[end].push_word(word(number)));
                    sent[end] += count;
                }
                for end in 0..2 {
                    while let Some(first) = routes[1 - end].frames.first_entry().filter(|first| first.key().0 <= now) {
                        let (head, content) = first.remove();
                        let mut words = Vec::new();
                        ends[end].on_frame(&head, &content, now, &mut words);
                        for received_word in words {
                            prop_assert_eq!(received_word, word(received[1 - end]));
                            received[1 - end] += 1;
                        }
                    }
                    ends[end].handle_timeouts(now).unwrap();
                    send(&mut ends[end], &mut routes[end], now, lost, jitter);
                }
                prop_assert!((0..2).all(|end| ends[end].has_received_word() == (received[1 - end] > 0)));
                prop_assert!((0..2).all(|end| !ends[end].is_acknowledged() || received[end] > 0));
                if due.is_empty() && received == sent && ends.iter().all(Channel::is_fully_acknowledged) {
                    break;
                }
                let arrivals = routes.iter().filter_map(|route| route.frames.first_key_value()).map(|((at, _), _)| *at);
                let next = arrivals.chain(due.last().map(|(at, ..)| *at)).chain(ends.iter().map(Channel::next_deadline)).min();
                now = next.unwrap().max(now + Duration::from_nanos(1));
                prop_assert!(now < Duration::from_secs(60), "received {:?} of {:?}", received, sent);
            }
        }

        /// A peer that acknowledges and sends arbitrary words.
        #[test]
        fn nonsense_neither_panics_nor_makes_room(
            heads in proptest::collection::vec(
                (any::<(u32, u64, u32, u32)>(), any::<Option<u32>>(), any::<u32>(), 0usize..5, 0usize..30),
                0..100,
            ),
        ) {
            let (mut channel, mut words) = (Channel::new(7, Duration::ZERO), Vec::new());
            for ((received, also, served, stamp), echo, first, cells, pushed) in heads {
                (0..pushed).for_each(|_| channel.push_word([1; MESSAGE_LEN]));
                let mut frames = 0;
                while channel.has_words() {
                    channel.next_words(20, Duration::ZERO, &mut Vec::new());
                    channel.build_head(Content::Words { first: 0, token: 0 }, 0, 0, Duration::ZERO);
                    frames += 1;
                    prop_assert!(frames <= 2 + channel.out.len(), "words are sent without end");
                }
                // Near the true values, and far from them.
                for (received, first) in [(received, first), (received % 64, first % 4096)] {
                    let content = Content::Words { first, token: 0 };
                    let head = Head { content, length: 0, connection: 7, answer: false, received, also, served, stamp, echo };
                    channel.on_frame(&head, &vec![2; cells * MESSAGE_LEN], Duration::from_millis(1), &mut words);
                    prop_assert!(channel.early.len() <= MAX_WORDS_AHEAD as usize);
                    channel.handle_timeouts(Duration::from_millis(2)).unwrap();
                }
            }
        }
    }

    #[test]
    fn a_word_that_three_frames_have_overtaken_is_sent_again_at_once() {
        let (mut here, mut there) = (Channel::new(7, Duration::ZERO), Channel::new(7, Duration::ZERO));
        let mut frames = Vec::new();
        for number in 0..4 {
            here.push_word(word(number));
            let mut content = Vec::new();
            let first = here.next_words(20, Duration::ZERO, &mut content);
            frames
                .push((here.build_head(Content::Words { first, token: 0 }, content.len(), 0, Duration::ZERO), content));
        }
        let mut words = Vec::new();
        frames[1..].iter().for_each(|(head, content)| there.on_frame(head, content, Duration::ZERO, &mut words));
        assert!(words.is_empty());
        let answer = there.build_head(Content::Words { first: 0, token: 0 }, 0, 0, Duration::ZERO);
        here.on_frame(&answer, &[], Duration::from_micros(100), &mut Vec::new());
        let mut content = Vec::new();
        assert_eq!((here.next_words(20, Duration::from_micros(100), &mut content), &content[..]), (0, &word(0)[..]));
    }

    #[test]
    fn a_silent_peer_is_gone() {
        let mut channel = Channel::new(7, Duration::ZERO);
        assert!(
            channel.handle_timeouts(Duration::from_millis(9_999)).is_ok() && channel.has_words(),
            "it asks for an answer"
        );
        assert!(matches!(channel.handle_timeouts(Duration::from_secs(10)), Err(LinkError::Closed)));
    }
}
