//! Assembly of datagrams into ordered fragments, and detection of losses. Without IO.
//!
//! Fragments are handed on in the order of their numbers. A missing or incomplete fragment is waited for until a number
//! of datagrams of later fragments have arrived (`reorders`), or no more of it has arrived for a while (`patience`), or
//! no buffer is free any more because later fragments hold all of them. Then it is lost.

use crate::instrument::clock::Clock;
use crate::instrument::format::{self, Format, Message, Part, Refusal};
use crate::instrument::{Partial, UdpConfig};
use std::ops::Range;
use std::time::Duration;
use thalweg_device::{
    Acquired, Buffer, CounterRules, DeviceError, Filled, Frame, FrameCounter, FrameNumber, MAX_PAYLOAD, Reassembly,
    Trust, describe_gaps,
};
use thalweg_wire::{IntervalMap, PayloadType, Status, TaiNanos};

/// Maximum number of separate parts of a fragment: more of them cannot result from reordering.
const MAX_PART_RANGES: usize = 1024;

/// Assembles fragments from the datagrams that a port has received.
#[derive(Debug)]
pub struct Assembler {
    format: Box<dyn Format>,
    size: usize,
    reorders: u64,
    patience: Duration,
    partial: Partial,
    /// Present time by this machine's clock; kept only if `needs_date` is true.
    date: TaiNanos,
    needs_date: bool,
    counter: FrameCounter,
    free: Vec<Buffer>,
    /// Total number of buffers, free and in use.
    buffers: usize,
    started: bool,
    /// True if a datagram found no buffer.
    starved: bool,
    entries: Reassembly<Entry>,
    /// Number of datagrams in all entries.
    held: u64,
    over: bool,
    counts: Counts,
}

/// A fragment that has not been handed on yet.
#[derive(Debug)]
struct Entry {
    buffer: Buffer,
    total: usize,
    /// Bytes that have arrived.
    received: IntervalMap,
    filled: Filled,
    packets: u64,
    copied: usize,
    /// Time at which the last of its datagrams arrived.
    last: Duration,
}

impl Entry {
    /// Creates an entry without bytes.
    fn new(buffer: Buffer, part: &Part, now: Duration) -> Self {
        let (total, filled, received) = (part.total, part.filled, IntervalMap::new());
        Self { buffer, total, received, filled, packets: 0, copied: 0, last: now }
    }

    fn is_whole(&self) -> bool {
        self.received.contains(&(0..self.total as u64))
    }

    /// Returns true if a part neither overlaps others nor is separate from too many.
    fn admits_part(&self, part: &Range<u64>) -> bool {
        let ranges = self.received.ranges();
        let follows = ranges.last().is_some_and(|last| last.end == part.start);
        follows || !self.received.overlaps(part) && ranges.len() < MAX_PART_RANGES
    }

    /// Records a part that arrived.
    fn record_part(&mut self, part: Range<u64>, now: Duration) {
        self.received.insert(part);
        self.packets += 1;
        self.last = now;
    }
}

/// Outcome of a datagram.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Taken {
    /// The datagram was taken, or counted and dropped.
    Done,
    /// The datagram needs a buffer, and none is free: the caller may give it again.
    NoBuffer,
}

impl Assembler {
    /// Creates an assembler for the datagrams of a device.
    ///
    /// # Errors
    /// Fails if an option of the device makes no sense.
    pub fn new(config: &UdpConfig) -> Result<Self, DeviceError> {
        let mut format = format::format_for_config(config)?;
        let expected = "from 1 byte to 1 GiB";
        let size = usize::try_from(config.size.0).ok().filter(|size| (1..=MAX_PAYLOAD).contains(size));
        let size = size.ok_or(DeviceError::Setting { option: "size", value: config.size.0, expected })?;
        let step = u64::from(config.step.unwrap_or(1));
        if step == 0 {
            return Err(DeviceError::Setting { option: "step", value: 0, expected: "1 or more" });
        }
        let rules = CounterRules {
            first: config.first,
            step,
            is_absolute: format.is_absolute(),
            ..CounterRules::new(format.counter_bits(), Trust::DATAGRAMS)
        };
        Ok(Self {
            counter: FrameCounter::new(rules),
            size,
            reorders: config.reorders.into(),
            patience: config.patience,
            partial: config.partial.unwrap_or(Partial::Lost),
            date: TaiNanos(0),
            needs_date: format.instrument_clock().is_some_and(|clock| clock.is_free_running()),
            format,
            free: Vec::new(),
            buffers: 0,
            started: false,
            starved: false,
            entries: Reassembly::default(),
            held: 0,
            over: false,
            counts: Counts::default(),
        })
    }

    /// Returns the length of the longest fragment, in bytes.
    pub fn longest_fragment_bytes(&self) -> usize {
        self.size
    }

    /// Returns the payload type of the fragments.
    pub fn payload_type(&self) -> PayloadType {
        self.format.payload_type()
    }

    /// Returns the axes of fragments that are arrays.
    pub fn fragment_shape(&self) -> Option<&[u64]> {
        self.format.fragment_shape()
    }

    /// Returns true if the caller must [set the date](Self::set_date) before it gives datagrams.
    pub fn needs_date(&self) -> bool {
        self.needs_date
    }

    /// Sets the date, by this machine's clock, of the datagrams that are given from now on.
    pub fn set_date(&mut self, date: TaiNanos) {
        self.date = date;
    }

    /// Returns the number of bytes before a datagram's payload, if each datagram is a fragment and its payload can be
    /// received in place.
    pub fn in_place_front_bytes(&self) -> Option<usize> {
        self.format.is_one_datagram_each().then(|| self.format.front_bytes())
    }

    /// Takes a buffer for a fragment.
    pub fn post_buffer(&mut self, buffer: Buffer) {
        self.free.push(buffer);
        // All buffers are posted here before the start.
        self.buffers += usize::from(!self.started);
        self.starved = false;
    }

    /// Starts handing fragments on.
    pub fn start_delivery(&mut self) {
        self.started = true;
    }

    /// Returns true if the next datagram can be received. This is always so where datagrams are copied, since the next
    /// one may belong to a fragment that has a buffer.
    pub fn has_room(&self) -> bool {
        !self.free.is_empty() || self.in_place_front_bytes().is_none()
    }

    /// Appends at most `most` buffers that datagrams can be received into. Each is returned by
    /// [`accept_in_place`](Self::accept_in_place) or [`return_unused_buffer`](Self::return_unused_buffer).
    pub fn take_buffers(&mut self, most: usize, buffers: &mut Vec<Buffer>) {
        let left = self.free.len().saturating_sub(most);
        buffers.extend(self.free.drain(left..).rev());
        self.starved |= buffers.is_empty();
    }

    /// Takes back a buffer into which nothing was received.
    pub fn return_unused_buffer(&mut self, buffer: Buffer) {
        self.free.push(buffer);
    }

    /// Returns true if the caller should report what the port [`record_port_drops`](Self::record_port_drops), although
    /// asking the port has a cost.
    pub fn needs_port_drops(&self) -> bool {
        self.counter.is_narrow_counter()
    }

    /// Records datagrams that the port dropped, before or among those that were given last.
    pub fn record_port_drops(&mut self, datagrams: u64) {
        self.counter.record_dropped(datagrams / self.format.datagrams_per_fragment(), self.entries.next_number());
    }

    /// Counts a datagram from another sender, which is not examined.
    pub fn count_stranger(&mut self) {
        self.counts.stranger += 1;
    }

    /// Takes a datagram that was received in place: its first bytes in `front`, the rest in a buffer. `length` is the
    /// datagram's full length in bytes, of which some may be missing.
    pub fn accept_in_place(&mut self, front: &[u8], mut buffer: Buffer, length: usize, now: Duration) {
        let room = self.size.min(buffer.payload_mut().len());
        let part = match length.checked_sub(front.len()) {
            _ if self.over => None,
            None => self.count_refusal(Refusal::Truncated),
            Some(body) if body > room => self.count_refusal(Refusal::Oversize),
            Some(body) => {
                let message = self.format.read_message(front, &buffer.payload_mut()[..body]);
                self.admit_message(message, now)
            }
        };
        match part {
            Some((number, part)) if !self.entries.contains(number) => {
                self.count_accepted(&buffer.payload_mut()[..part.total]);
                let entry = self.entries.get_or_begin(number, || Entry::new(buffer, &part, now));
                entry.record_part(0..part.total as u64, now);
            }
            other => {
                self.counts.duplicate += u64::from(other.is_some());
                self.free.push(buffer);
            }
        }
    }

    /// Takes a datagram that was received elsewhere, and copies its payload.
    pub fn accept_datagram(&mut self, bytes: &[u8], now: Duration) -> Taken {
        if self.over {
            return Taken::Done;
        }
        let Some((front, body)) = bytes.split_at_checked(self.format.front_bytes()) else {
            self.counts.truncated += 1;
            return Taken::Done;
        };
        let message = self.format.read_message(front, body);
        let waits = match &message {
            Ok(Message::Part(part)) if self.free.is_empty() => {
                let number = self.counter.expected_number(part.number, self.entries.next_number());
                number.is_some_and(|number| !self.entries.contains(number))
            }
            // Others that arrived before the end still wait.
            Ok(Message::End) => self.starved,
            _ => false,
        };
        if waits {
            self.starved = true;
            return Taken::NoBuffer;
        }
        let Some((number, part)) = self.admit_message(message, now) else { return Taken::Done };
        let entry = match self.entries.get_mut(number) {
            Some(entry) => entry,
            // Its number was not expected, but is accepted: others like it have arrived.
            None => match self.free.pop() {
                Some(buffer) => self.entries.get_or_begin(number, || Entry::new(buffer, &part, now)),
                None => {
                    self.starved = true;
                    return Taken::NoBuffer;
                }
            },
        };
        let end = part.at + part.payload.len();
        let range = part.at as u64..end as u64;
        if entry.total == part.total && !range.is_empty() && entry.received.contains(&range) {
            self.counts.duplicate += 1;
        } else if entry.total != part.total || !entry.admits_part(&range) {
            self.counts.malformed += 1;
        } else {
            // An item of a SPEAD heap may be in any of the heap's packets.
            let timestamp = entry.filled.timestamp.or(part.filled.timestamp);
            if part.at == 0 {
                // The order of arrival is chance.
                entry.filled = part.filled;
            }
            entry.filled.timestamp = entry.filled.timestamp.or(timestamp);
            entry.buffer.payload_mut()[part.at..end].copy_from_slice(&body[part.payload]);
            entry.copied += end - part.at;
            entry.record_part(range, now);
            self.count_accepted(body);
        }
        Taken::Done
    }

    /// Counts a datagram that has been put in its place.
    fn count_accepted(&mut self, body: &[u8]) {
        self.counts.taken += 1;
        self.held += 1;
        self.format.learn_from_accepted(body);
    }

    /// Returns the number and the part of the fragment that a datagram holds, if the fragment is still waited for;
    /// otherwise counts the datagram and returns `None`.
    fn admit_message(&mut self, message: Result<Message, Refusal>, now: Duration) -> Option<(u64, Part)> {
        let part = match message {
            Ok(Message::Part(part)) => part,
            Ok(Message::End) => {
                self.over = true;
                return None;
            }
            Err(refusal) => return self.count_refusal(refusal),
        };
        if part.total > self.size {
            return self.count_refusal(Refusal::Oversize);
        }
        if part.at.checked_add(part.payload.len()).is_none_or(|end| end > part.total)
            || part.payload.is_empty() && part.total > 0
        {
            return self.count_refusal(Refusal::Malformed);
        }
        let (restarts, next) = (self.counter.restart_count(), self.entries.next_number());
        let number = match self.counter.accept_dated_count(part.number, next, now, part.taken) {
            FrameNumber::At(number) if number >= next => number,
            FrameNumber::At(number) if self.entries.was_lost(number) => {
                self.counts.late += 1;
                return None;
            }
            FrameNumber::At(_) => {
                self.counts.duplicate += 1;
                return None;
            }
            FrameNumber::Early => {
                self.counts.early += 1;
                return None;
            }
            FrameNumber::Stray => {
                self.counts.stray += 1;
                return None;
            }
        };
        if self.counter.restart_count() > restarts {
            self.counts.restarts += 1;
            tracing::warn!(number, "the instrument restarted its counter: losses in between are unknown");
            self.format.instrument_clock().into_iter().for_each(Clock::forget_setting);
        }
        let mut part = part;
        if let (Some(time), Some(clock)) = (part.time, self.format.instrument_clock()) {
            part.filled.timestamp = clock.date_of_ticks(time, self.date);
        }
        Some((number, part))
    }

    fn count_refusal(&mut self, refusal: Refusal) -> Option<(u64, Part)> {
        let counts = &mut self.counts;
        match refusal {
            Refusal::Malformed => counts.malformed += 1,
            Refusal::Truncated => counts.truncated += 1,
            Refusal::Oversize => counts.oversize += 1,
            Refusal::Other => counts.other_stream += 1,
            Refusal::Unnumbered => {
                if counts.unnumbered == 0 {
                    tracing::warn!("datagrams have no number without a rate: set the device's option rate");
                }
                counts.unnumbered += 1;
            }
        }
        None
    }

    /// Reports that the numbers from `first` on are right: see [`FrameCounter::confirm_numbers`].
    pub fn numbers_agree(&mut self, first: u64) {
        self.counter.confirm_numbers(first);
    }

    /// Returns the next fragment or loss in order, if it is known. `now` is the time at which the port was last found
    /// empty: datagrams that wait there may be the missing ones.
    pub fn next_acquired(&mut self, now: Duration) -> Option<Acquired> {
        let Some((number, first)) = self.entries.oldest() else {
            return self.over.then_some(Acquired::Over);
        };
        let here = number == self.entries.next_number();
        let is_whole = here && first.is_whole();
        let later = self.held - if here { first.packets } else { 0 };
        if !(is_whole
            || self.over
            || later > self.reorders
            || self.is_out_of_buffers()
            || now >= self.oldest_deadline())
        {
            return None;
        }
        if !here {
            return Some(self.entries.lose_until(number));
        }
        let (_, entry) = self.entries.take_oldest()?;
        self.held -= entry.packets;
        self.counts.incomplete += u64::from(!is_whole);
        if !is_whole && self.partial == Partial::Lost {
            self.free.push(entry.buffer);
            self.starved = false;
            return Some(self.entries.lose_until(number + 1));
        }
        Some(Acquired::Frame(self.finish_fragment(number, entry)))
    }

    /// Returns the next fragment, with zeros for its missing bytes.
    fn finish_fragment(&mut self, number: u64, entry: Entry) -> Frame {
        let Entry { buffer, total: len, received, mut filled, copied, .. } = entry;
        let gaps: Vec<_> = received.missing_ranges(len as u64).collect();
        if !gaps.is_empty() {
            tracing::warn!(number, "incomplete: {} did not arrive and are zero", describe_gaps(&gaps, len));
        }
        if !self.counter.is_certain(number) {
            filled.status |= Status::UNCERTAIN;
        }
        let mut frame = self.entries.hand_on(Frame { buffer, number, len, filled, crc: None, copied }, &gaps);
        self.format.to_little_endian(&mut frame.buffer.payload_mut()[..len]);
        frame
    }

    /// Returns true if fragments that wait for an earlier one hold all buffers. No one gives another buffer then.
    /// Without a buffer nothing more can be received in place; where datagrams are received elsewhere, nothing more
    /// that belongs to none of these fragments.
    fn is_out_of_buffers(&self) -> bool {
        let cannot_be_received = self.free.is_empty() && self.in_place_front_bytes().is_some();
        (self.starved || cannot_be_received) && self.entries.frames().len() >= self.buffers
    }

    /// Returns the time at which the next fragment is given up.
    fn oldest_deadline(&self) -> Duration {
        self.entries.oldest().map_or(Duration::MAX, |(_, first)| first.last + self.patience)
    }

    /// Returns the time at which to ask for the [`next_acquired`](Self::next_acquired) fragment although nothing has
    /// arrived.
    pub fn next_deadline(&self) -> Option<Duration> {
        let (number, first) = self.entries.oldest()?;
        let at_once = number == self.entries.next_number() && first.is_whole() || self.is_out_of_buffers();
        Some(if at_once { Duration::ZERO } else { self.oldest_deadline() })
    }

    /// Returns the counters.
    pub fn counts(&self) -> Counts {
        self.counts
    }
}

/// Counters of datagrams by outcome, and of lost fragments.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Datagrams that were a fragment, or a part of one, that was waited for.
    pub taken: u64,
    /// Datagrams that had arrived before.
    pub duplicate: u64,
    /// Datagrams whose fragment had been given up.
    pub late: u64,
    /// Datagrams numbered before the run's first number.
    pub early: u64,
    /// Datagrams with a number far from all others.
    pub stray: u64,
    /// Datagrams that did not have the expected form.
    pub malformed: u64,
    /// Datagrams shorter than they declared.
    pub truncated: u64,
    /// Datagrams of fragments longer than `size`.
    pub oversize: u64,
    /// Datagrams from a sender that is not the configured one.
    pub stranger: u64,
    /// Datagrams of another thread, stream or kind.
    pub other_stream: u64,
    /// Datagrams that have no number, since the number of frames in a second is not known.
    pub unnumbered: u64,
    /// Fragments of which some datagrams did not arrive.
    pub incomplete: u64,
    /// Number of times that the instrument restarted its count.
    pub restarts: u64,
}

impl Counts {
    /// Returns the counters with their names.
    pub fn named_counts(&self) -> [(&'static str, u64); 13] {
        [
            ("datagrams", self.taken),
            ("duplicate", self.duplicate),
            ("late", self.late),
            ("early", self.early),
            ("stray", self.stray),
            ("malformed", self.malformed),
            ("truncated", self.truncated),
            ("oversize", self.oversize),
            ("stranger", self.stranger),
            ("other_stream", self.other_stream),
            ("unnumbered", self.unnumbered),
            ("incomplete", self.incomplete),
            ("restarts", self.restarts),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::cell::RefCell;
    use std::collections::BTreeMap;
    use thalweg_arena::SlotPool;
    use thalweg_device::InTurn;

    const NOW: Duration = Duration::from_secs(5);

    /// Returns an assembler of fragments of 8 bytes, in `packets` datagrams each (1 or 4).
    fn assembler(packets: u32, reorders: u32, slots: u32) -> (Assembler, SlotPool) {
        let text = format!(
            "listen = \"udp:0.0.0.0:1\"\nformat = \"fixed\"\nsize = 8\nheader = 8\nreorders = {reorders}\n\
             counter = {{ at = 0, bytes = 8 }}\npackets = {packets}\nfirst = 0"
        );
        let mut assembler = Assembler::new(&toml::from_str(&text).unwrap()).unwrap();
        let mut pool = SlotPool::new("slots", slots, 128).unwrap();
        while let Some(slot) = pool.take_slot() {
            assembler.post_buffer(Buffer::new(slot));
        }
        assembler.start_delivery();
        (assembler, pool)
    }

    fn datagram(number: u64, packets: u32) -> Vec<u8> {
        [&number.to_be_bytes()[..], &vec![number as u8; 8 / packets as usize]].concat()
    }

    /// Gives the assembler a datagram, in place or elsewhere.
    fn give(assembler: &mut Assembler, bytes: &[u8]) -> Taken {
        let Some(front) = assembler.in_place_front_bytes() else { return assembler.accept_datagram(bytes, NOW) };
        let mut buffers = Vec::new();
        assembler.take_buffers(1, &mut buffers);
        let Some(mut buffer) = buffers.pop() else { return Taken::NoBuffer };
        let front = &bytes[..front.min(bytes.len())];
        let rest = &bytes[front.len()..];
        let room = rest.len().min(assembler.longest_fragment_bytes());
        buffer.payload_mut()[..room].copy_from_slice(&rest[..room]);
        let mut whole = vec![0; assembler.in_place_front_bytes().unwrap_or(0)];
        whole[..front.len()].copy_from_slice(front);
        assembler.accept_in_place(&whole, buffer, bytes.len(), NOW);
        Taken::Done
    }

    /// Returns the fragments that are handed on, and the numbers of lost ones in between. Their buffers are posted
    /// again.
    fn out(assembler: &mut Assembler, now: Duration) -> Vec<Result<(u64, Vec<u8>), u64>> {
        let mut all = Vec::new();
        while let Some(acquired) = assembler.next_acquired(now) {
            match acquired {
                Acquired::Frame(mut frame) => {
                    all.push(Ok((frame.number, frame.buffer.payload_mut()[..frame.len].to_vec())));
                    assembler.post_buffer(frame.buffer);
                }
                Acquired::Lost { count, .. } | Acquired::Missed { count, .. } => all.push(Err(count)),
                Acquired::NotYet | Acquired::Over => break,
            }
        }
        all
    }

    #[test]
    fn fragments_come_out_in_order_and_what_is_missing_is_lost() {
        for packets in [1, 4] {
            let (mut assembler, _pool) = assembler(packets, 8, 32);
            let lost = [2, 7, 8];
            for number in (0..20u64).filter(|number| !lost.contains(number)) {
                for packet in 0..u64::from(packets) {
                    give(&mut assembler, &datagram(number * u64::from(packets) + packet, packets));
                }
            }
            let mut came = out(&mut assembler, NOW);
            came.extend(out(&mut assembler, NOW + Duration::from_secs(1)));
            let numbers: Vec<_> = came.into_iter().map(|one| one.map(|(number, _)| number)).collect();
            let mut expected = vec![Ok(0), Ok(1), Err(1), Ok(3), Ok(4), Ok(5), Ok(6), Err(2)];
            expected.extend((9..20).map(Ok));
            assert_eq!(numbers, expected);
        }
    }

    #[test]
    fn one_datagram_that_is_missing_loses_its_fragment_and_gives_the_buffer_back() {
        let (mut assembler, _pool) = assembler(4, 3, 3);
        (0..16).filter(|number| *number != 5).for_each(|number| {
            give(&mut assembler, &datagram(number, 4));
        });
        let came = out(&mut assembler, NOW);
        assert_eq!(came[0], Ok((0, vec![0, 0, 1, 1, 2, 2, 3, 3])));
        assert_eq!(came[1], Err(1));
        assert!(matches!(came[2], Ok((2, _))), "{came:?}");
        assert_eq!(give(&mut assembler, &datagram(5, 4)), Taken::Done);
        let counts = assembler.counts();
        assert_eq!((counts.incomplete, counts.late, counts.duplicate), (1, 1, 0), "{counts:?}");
    }

    #[test]
    fn a_fragment_with_gaps_is_taken_where_that_is_asked_for_and_says_so() {
        let text = "listen = \"udp:0.0.0.0:1\"\nformat = \"fixed\"\nsize = 8\nheader = 8\nreorders = 3\nfirst = 0\n\
                    counter = { at = 0, bytes = 8 }\npackets = 4\npartial = \"damaged\"\ntype = \"u16_be\"";
        let mut assembler = Assembler::new(&toml::from_str(text).unwrap()).unwrap();
        let mut pool = SlotPool::new("slots", 4, 128).unwrap();
        while let Some(slot) = pool.take_slot() {
            let mut buffer = Buffer::new(slot);
            // Bytes that were in a slot before must not be in any fragment.
            buffer.payload_mut().fill(0xee);
            assembler.post_buffer(buffer);
        }
        assembler.start_delivery();
        // All datagrams of the third fragment are lost.
        (0..20).filter(|number| ![5, 6, 8, 9, 10, 11].contains(number)).for_each(|number| {
            assert_eq!(give(&mut assembler, &datagram(number, 4)), Taken::Done);
        });
        let mut came = Vec::new();
        while let Some(acquired) = assembler.next_acquired(NOW) {
            came.push(match acquired {
                Acquired::Frame(mut frame) => {
                    let payload = frame.buffer.payload_mut()[..frame.len].to_vec();
                    let is_damaged = frame.filled.status.contains(Status::CORRUPT);
                    assembler.post_buffer(frame.buffer);
                    Ok((frame.number, is_damaged, payload))
                }
                Acquired::Lost { first, count } => Err((first, count)),
                other => panic!("{other:?}"),
            });
        }
        let expected = [
            Ok((0, false, vec![0, 0, 1, 1, 2, 2, 3, 3])),
            Ok((1, true, vec![4, 4, 0, 0, 0, 0, 7, 7])),
            Err((2, 1)),
            Ok((3, false, vec![12, 12, 13, 13, 14, 14, 15, 15])),
            Ok((4, false, vec![16, 16, 17, 17, 18, 18, 19, 19])),
        ];
        assert_eq!(came, expected);
        assert_eq!(assembler.counts().incomplete, 1);
    }

    #[test]
    fn later_fragments_that_hold_all_buffers_do_not_wait_for_ever() {
        // Datagrams received in place cannot arrive any more: there is no place for them.
        let (mut assembler, _pool) = assembler(1, 1000, 4);
        for number in 1..=4 {
            assert_eq!(out(&mut assembler, NOW), []);
            assert_eq!(give(&mut assembler, &datagram(number, 1)), Taken::Done);
        }
        assert!(!assembler.has_room() && assembler.next_deadline() == Some(Duration::ZERO));
        assert_eq!(out(&mut assembler, NOW).len(), 5);
    }

    #[test]
    fn parts_of_fragments_that_hold_all_buffers_are_received_and_what_needs_another_ends_the_wait() {
        let (mut assembler, _pool) = self::assembler(4, 1000, 4);
        for number in (1..20).filter(|number| number / 4 < 4) {
            assert_eq!(give(&mut assembler, &datagram(number, 4)), Taken::Done);
        }
        assert_eq!(out(&mut assembler, NOW), [], "the first of the first fragment may still come");
        assert!(assembler.has_room() && assembler.next_deadline() > Some(NOW));
        assert_eq!(give(&mut assembler, &datagram(16, 4)), Taken::NoBuffer);
        assert_eq!(assembler.next_deadline(), Some(Duration::ZERO));
        let came = out(&mut assembler, NOW);
        assert_eq!((came.len(), &came[0]), (4, &Err(1)));
    }

    /// Returns a packet of a SPEAD-64-48 heap of one byte; or, without a number, the end of the stream.
    fn spead(number: Option<u64>) -> Vec<u8> {
        let items = number.map_or(vec![(6, 2)], |number| vec![(1, number), (2, 1), (3, 0), (4, 1)]);
        let pointers = items.iter().flat_map(|(item, value)| (1 << 63 | item << 48 | value).to_be_bytes());
        [0x53, 4, 2, 6, 0, 0, 0, items.len() as u8].into_iter().chain(pointers).chain([7]).collect()
    }

    #[test]
    fn the_end_of_a_stream_waits_for_those_that_came_before_it() {
        let text = "listen = \"udp:0.0.0.0:1\"\nformat = \"spead\"\nsize = 8\nfirst = 0";
        let mut assembler = Assembler::new(&toml::from_str(text).unwrap()).unwrap();
        let mut pool = SlotPool::new("slots", 1, 128).unwrap();
        assembler.post_buffer(Buffer::new(pool.take_slot().unwrap()));
        assembler.start_delivery();
        let mut waiting: Vec<_> = [Some(0), Some(1), Some(2), None].map(spead).into();
        let mut came = 0;
        for _ in 0..4 {
            waiting.retain(|bytes| assembler.accept_datagram(bytes, NOW) == Taken::NoBuffer);
            came += out(&mut assembler, NOW).iter().filter(|one| one.is_ok()).count();
        }
        assert_eq!((waiting.len(), came, assembler.counts().taken), (0, 3, 3));
        assert!(assembler.over);
    }

    #[test]
    fn each_datagram_is_counted_once() {
        for packets in [1, 4] {
            let (mut assembler, _pool) = assembler(packets, 8, 32);
            let strange = [vec![0; 3], [&[0; 8][..], &[0; 100]].concat(), datagram(1 << 60, packets)];
            let given: Vec<_> =
                [0, 1, 1, 3, 3].map(|number| datagram(number, packets)).into_iter().chain(strange).collect();
            given.iter().for_each(|bytes| assert_eq!(give(&mut assembler, bytes), Taken::Done));
            let counts = assembler.counts();
            let sum: u64 = counts.named_counts().iter().map(|(_, count)| count).sum();
            assert_eq!(
                (sum, counts.taken, counts.duplicate, counts.stray),
                (given.len() as u64, 3, 2, 1),
                "{counts:?}"
            );
        }
    }

    proptest! {
        /// Datagrams are lost, swapped within the bound, and sent twice: each fragment that was sent whole is handed on
        /// once, with its bytes, and all others are lost.
        #[test]
        fn what_is_whole_comes_and_the_rest_is_lost(
            lost in proptest::collection::hash_set(0u64..160, 0..12),
            twice in proptest::collection::hash_set(0u64..160, 0..12),
            swaps in proptest::collection::vec((0usize..160, 1usize..6), 0..30),
            packets in prop_oneof![Just(1u32), Just(4)],
        ) {
            let mut sent: Vec<u64> = (0..160).filter(|n| !lost.contains(n))
                .flat_map(|n| std::iter::repeat_n(n, 1 + usize::from(twice.contains(&n)))).collect();
            let mut moved = std::collections::HashSet::new();
            for (at, by) in swaps {
                // No datagram is moved twice, so that none is moved further.
                if at + by < sent.len() && moved.insert(at) && moved.insert(at + by) {
                    sent.swap(at, at + by);
                }
            }
            let (mut assembler, _pool) = assembler(packets, 32, 64);
            let mut came = Vec::new();
            for number in &sent {
                prop_assert_eq!(give(&mut assembler, &datagram(*number, packets)), Taken::Done);
                came.extend(out(&mut assembler, NOW));
            }
            came.extend(out(&mut assembler, NOW + Duration::from_secs(1)));
            let each = u64::from(packets);
            let whole = |fragment: u64| (0..each).all(|packet| !lost.contains(&(fragment * each + packet)));
            let fragments: Vec<u64> = came.iter().filter_map(|one| one.as_ref().ok().map(|one| one.0)).collect();
            let expected: Vec<u64> = (0..160 / each).filter(|fragment| whole(*fragment)).collect();
            prop_assert_eq!(&fragments, &expected);
            for (number, bytes) in came.iter().flatten() {
                let right: Vec<u8> = (0..each)
                    .flat_map(|packet| vec![(number * each + packet) as u8; 8 / packets as usize]).collect();
                prop_assert_eq!(bytes, &right);
            }
            let gone: u64 = came.iter().filter_map(|one| one.as_ref().err()).sum();
            let last = expected.last().map_or(0, |last| last + 1);
            prop_assert!(gone >= last - expected.len() as u64);
        }
    }

    /// For any datagrams, numbers are handed on in order and once, nothing is written out of bounds, and no buffer is
    /// lost.
    #[test]
    fn any_datagrams() {
        let taken = RefCell::new(BTreeMap::new());
        proptest!(|(
        datagrams in proptest::collection::vec(
            prop_oneof![
                proptest::collection::vec(any::<u8>(), 0..64),
                (0u64..50, 0usize..20).prop_map(|(n, len)| [&n.to_be_bytes()[..], &vec![1; len]].concat()),
                // SPEAD: a header, and items with a meaning.
                proptest::collection::vec((0u64..8, 0u64..20), 0..6).prop_map(|items| {
                    let mut bytes = vec![0x53, 4, 2, 6, 0, 0, 0, items.len() as u8];
                    let pointer = |(item, value): (u64, u64)| (1 << 63 | item << 48 | value).to_be_bytes();
                    bytes.extend(items.into_iter().flat_map(pointer));
                    bytes.extend([5; 20]);
                    bytes
                }),
                // VDIF: frames of 8 bytes after the header, of thread 0, with or without 8 bytes before it.
                (any::<bool>(), 0u32..3, 0u32..12).prop_map(|(front, second, number)| {
                    let words = [second, 50 << 24 | number, 1 << 29 | 5, 1 << 26, 0, 0, 0, 0, 1, 2];
                    let sequence = [second * 10 + number, 0];
                    let front = &sequence[..if front { 2 } else { 0 }];
                    front.iter().chain(&words).flat_map(|word| word.to_le_bytes()).collect()
                }),
                // SPEAD: a whole heap.
                (0u64..50).prop_map(|number| spead(Some(number))),
                // VITA-49: a packet with a time, three a second.
                (0u32..50).prop_map(|number| {
                    let (second, pico) = (1_700_000_000 + number / 3, u64::from(number % 3) * 333_333_333_333);
                    let head = 0x1060_0006 | (number & 15) << 16;
                    let words = [head, 7, second, (pico >> 32) as u32, pico as u32, 5];
                    words.map(u32::to_be_bytes).concat()
                }),
                // VITA-49: a header of the right length.
                (0u32..8, 0u32..16, 2u32..8).prop_map(|(flags, count, words)| {
                    let head = flags << 26 | count << 16 | words;
                    std::iter::once(head).chain(1..words).flat_map(u32::to_be_bytes).collect()
                }),
            ],
            0..80,
        ),
        format in prop_oneof![Just("vdif\"\nrate = 10 #"), Just("vdif\"\nsequence = true #"), Just("vdif\"\nrate = 10\nsequence = true #"), Just("spead"),
            Just("vita49"), Just("vita49\"\nrate = 3 #"),
            Just("fixed\"\nheader = 8\ncounter = { at = 0, bytes = 2 }\npackets = 4 #"),
            Just("fixed\"\nheader = 8\ncounter = { at = 6, bytes = 2 } #"),
            Just("fixed\"\npartial = \"damaged\"\nheader = 8\ncounter = { at = 0, bytes = 2 }\npackets = 4\ntype = \"f32_be\"\n\
                  time = { at = 3, bytes = 2, hertz = 7 } #")],
        waits in 0u64..300,
        )| {
        let text = format!("listen = \"udp:0.0.0.0:1\"\nsize = 48\nformat = \"{format}\"");
        let mut assembler = Assembler::new(&toml::from_str(&text).unwrap()).unwrap();
        let mut pool = SlotPool::new("slots", 4, 128).unwrap();
        while let Some(slot) = pool.take_slot() {
            assembler.post_buffer(Buffer::new(slot));
        }
        assembler.start_delivery();
        let mut order = thalweg_device::FrameOrder::new(0);
        for (at, bytes) in datagrams.iter().enumerate() {
            let now = NOW + Duration::from_millis(waits) * at as u32;
            give(&mut assembler, bytes);
            while let Some(acquired) = assembler.next_acquired(now) {
                match acquired {
                    Acquired::Frame(frame) => prop_assert!(order.insert_frame(frame).is_none(), "it came twice"),
                    Acquired::Lost { first, count } | Acquired::Missed { first, count } => order.record_lost(first, count),
                    Acquired::NotYet | Acquired::Over => break,
                }
                while let Some(turn) = order.next_in_turn(false) {
                    if let InTurn::Frame(frame) = turn {
                        prop_assert!(frame.len <= 48);
                        assembler.post_buffer(frame.buffer);
                    }
                }
            }
        }
        prop_assert_eq!(assembler.free.len() + assembler.entries.frames().len(), 4);
        *taken.borrow_mut().entry(format).or_default() += assembler.counts().taken;
        });
        let taken: BTreeMap<&str, u64> = taken.into_inner();
        assert!(taken.len() == 9 && taken.values().all(|taken| *taken > 0), "{taken:?}");
    }
}
