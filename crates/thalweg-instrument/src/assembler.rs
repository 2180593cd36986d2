//! From datagrams to fragments in order, and what is lost. Without IO.
//!
//! Fragments come out in the order of their numbers. One that is missing, or of which something is missing, is waited
//! for until so many datagrams of later ones have come (`reorders`), or nothing more of it has come for a while
//! (`patience`), or nobody has a buffer any more because later ones hold them all. Then it is lost.

use crate::clock::Clock;
use crate::format::{self, Format, Part, Refusal, Said};
use crate::{Partial, UdpConfig};
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;
use thalweg_device::{
    Acquired, Buffer, CounterRules, DeviceError, Filled, Frame, FrameCounter, FrameNumber, MAX_PAYLOAD, Trust,
    gaps_text,
};
use thalweg_wire::{PayloadType, Status, TaiNanos};

/// Runs of lost numbers that are remembered, to tell what is late from what comes twice.
const REMEMBERED: usize = 64;
/// Separate parts of a fragment: more of them are no reordering.
const MOST_RANGES: usize = 1024;

/// Puts fragments together from what a port has received.
#[derive(Debug)]
pub struct Assembler {
    format: Box<dyn Format>,
    size: usize,
    reorders: u64,
    patience: Duration,
    partial: Partial,
    /// Now, by this machine's clock, and whether that is asked for.
    date: TaiNanos,
    needs_date: bool,
    counter: FrameCounter,
    free: Vec<Buffer>,
    /// How many buffers there are, here and out.
    buffers: usize,
    started: bool,
    /// A datagram found no buffer.
    starved: bool,
    entries: BTreeMap<u64, Entry>,
    /// Datagrams in all entries.
    held: u64,
    next: u64,
    lost: VecDeque<(u64, u64)>,
    over: bool,
    counts: Counts,
}

/// A fragment that is not handed on yet.
#[derive(Debug)]
struct Entry {
    buffer: Buffer,
    total: usize,
    /// What of it is there, in order and apart from each other.
    ranges: Vec<(usize, usize)>,
    filled: Filled,
    packets: u64,
    copied: usize,
    /// When the last of them came.
    last: Duration,
}

impl Entry {
    fn is_whole(&self) -> bool {
        self.total == 0 || self.ranges[..] == [(0, self.total)]
    }

    /// Returns what of it is missing, in order.
    fn gaps(&self) -> Vec<(usize, usize)> {
        let begins = std::iter::once(0).chain(self.ranges.iter().map(|(_, end)| *end));
        let ends = self.ranges.iter().map(|(begin, _)| *begin).chain([self.total]);
        begins.zip(ends).filter(|(begin, end)| begin < end).collect()
    }

    /// Makes a note of a part. Why not, where it is there already, or overlaps what is.
    fn cover(&mut self, at: usize, end: usize) -> Result<(), Cover> {
        // Most parts come behind all others.
        if let Some(last) = self.ranges.last_mut()
            && last.1 == at
        {
            last.1 = end;
            return Ok(());
        }
        let behind = self.ranges.partition_point(|(begin, _)| *begin <= at);
        let before = behind.checked_sub(1).map(|index| self.ranges[index]);
        if before.is_some_and(|(_, covered)| end <= covered) {
            return Err(Cover::There);
        }
        let overlaps = before.is_some_and(|(_, covered)| covered > at);
        if overlaps
            || self.ranges.get(behind).is_some_and(|(begin, _)| *begin < end)
            || self.ranges.len() >= MOST_RANGES
        {
            return Err(Cover::Overlaps);
        }
        self.ranges.insert(behind, (at, end));
        self.ranges.dedup_by(|next, before| {
            let joins = before.1 == next.0;
            before.1 = if joins { next.1 } else { before.1 };
            joins
        });
        Ok(())
    }
}

enum Cover {
    There,
    Overlaps,
}

/// What became of a datagram.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Taken {
    /// It was taken, or counted and dropped.
    Done,
    /// It needs a buffer, and there is none: it may be given again.
    NoBuffer,
}

impl Assembler {
    /// For the datagrams of a device.
    ///
    /// # Errors
    /// An option of the device makes no sense.
    pub fn new(config: &UdpConfig) -> Result<Self, DeviceError> {
        let mut format = format::of(config)?;
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
            ..CounterRules::new(format.bits(), Trust::DATAGRAMS)
        };
        Ok(Self {
            counter: FrameCounter::new(rules),
            size,
            reorders: config.reorders.into(),
            patience: config.patience,
            partial: config.partial.unwrap_or(Partial::Lost),
            date: TaiNanos(0),
            needs_date: format.clock().is_some_and(|clock| clock.is_free_running()),
            format,
            free: Vec::new(),
            buffers: 0,
            started: false,
            starved: false,
            entries: BTreeMap::new(),
            held: 0,
            next: 0,
            lost: VecDeque::new(),
            over: false,
            counts: Counts::default(),
        })
    }

    /// Bytes in the longest fragment.
    pub fn longest(&self) -> usize {
        self.size
    }

    /// What fragments are.
    pub fn payload_type(&self) -> PayloadType {
        self.format.payload_type()
    }

    /// The axes of fragments that are arrays.
    pub fn shape(&self) -> Option<&[u64]> {
        self.format.shape()
    }

    /// Whether it is to be [told](Self::set_date) the date before datagrams are given to it.
    pub fn needs_date(&self) -> bool {
        self.needs_date
    }

    /// Sets the date of the datagrams that are given to it from now on, by this machine's clock.
    pub fn set_date(&mut self, date: TaiNanos) {
        self.date = date;
    }

    /// Bytes in front of a datagram's payload, where each datagram is a fragment and its payload can be received in its
    /// place.
    pub fn in_place(&self) -> Option<usize> {
        self.format.whole().then(|| self.format.front())
    }

    /// Takes a buffer for a fragment.
    pub fn post(&mut self, buffer: Buffer) {
        self.free.push(buffer);
        // Before the start all that there are come here.
        self.buffers += usize::from(!self.started);
        self.starved = false;
    }

    /// From now on fragments are handed on.
    pub fn start(&mut self) {
        self.started = true;
    }

    /// Whether the next datagram can be received: always where it is copied, since it may belong to a fragment that has a
    /// buffer.
    pub fn has_room(&self) -> bool {
        !self.free.is_empty() || self.in_place().is_none()
    }

    /// Buffers that datagrams can be received into, at most so many: each comes back by
    /// [`received`](Self::received) or [`unused`](Self::unused).
    pub fn take_buffers(&mut self, most: usize, buffers: &mut Vec<Buffer>) {
        let left = self.free.len().saturating_sub(most);
        buffers.extend(self.free.drain(left..).rev());
        self.starved |= buffers.is_empty();
    }

    /// A buffer that nothing was received into.
    pub fn unused(&mut self, buffer: Buffer) {
        self.free.push(buffer);
    }

    /// Whether it is to be told what the port [`dropped`](Self::dropped), though it costs something to ask.
    pub fn needs_drops(&self) -> bool {
        self.counter.is_narrow()
    }

    /// Takes note of datagrams that the port dropped, before or among those that were given last.
    pub fn dropped(&mut self, datagrams: u64) {
        self.counter.dropped(datagrams / self.format.packets(), self.next);
    }

    /// A datagram that is not to be looked at: for the counts.
    pub fn stranger(&mut self) {
        self.counts.stranger += 1;
    }

    /// A datagram was received in its place: the first bytes here, the rest in a buffer. `length` is what it had, of
    /// which more may be missing.
    pub fn received(&mut self, front: &[u8], mut buffer: Buffer, length: usize, now: Duration) {
        let body = length.checked_sub(front.len());
        let room = self.size.min(buffer.payload().len());
        let part = match body {
            _ if self.over => None,
            None => {
                self.counts.truncated += 1;
                None
            }
            Some(body) if body > room => {
                self.counts.oversize += 1;
                None
            }
            Some(body) => {
                let said = self.format.read(front, &buffer.payload()[..body]);
                self.admit(said, now)
            }
        };
        match part {
            Some((number, part)) if !self.entries.contains_key(&number) => {
                let (total, last) = (part.total, now);
                self.take(&buffer.payload()[..total]);
                let ranges = vec![(0, total)];
                self.entries
                    .insert(number, Entry { buffer, total, ranges, filled: part.filled, packets: 1, copied: 0, last });
                self.held += 1;
            }
            other => {
                self.counts.duplicate += u64::from(other.is_some());
                self.free.push(buffer);
            }
        }
    }

    /// A datagram came, and lies elsewhere.
    pub fn datagram(&mut self, bytes: &[u8], now: Duration) -> Taken {
        if self.over {
            return Taken::Done;
        }
        let Some((front, body)) = bytes.split_at_checked(self.format.front()) else {
            self.counts.truncated += 1;
            return Taken::Done;
        };
        let said = self.format.read(front, body);
        let waits = match &said {
            Ok(Said::Part(part)) if self.free.is_empty() => {
                self.counter.expects(part.number, self.next).is_some_and(|number| !self.entries.contains_key(&number))
            }
            // Others that came before the end still wait.
            Ok(Said::End) => self.starved,
            _ => false,
        };
        if waits {
            self.starved = true;
            return Taken::NoBuffer;
        }
        let Some((number, part)) = self.admit(said, now) else { return Taken::Done };
        let end = part.at + part.payload.len();
        let Self { entries, free, .. } = self;
        if let std::collections::btree_map::Entry::Vacant(place) = entries.entry(number) {
            // It was not expected, and is believed all the same: others like it have come.
            let Some(buffer) = free.pop() else {
                self.starved = true;
                return Taken::NoBuffer;
            };
            let (total, filled) = (part.total, part.filled);
            place.insert(Entry { buffer, total, ranges: Vec::new(), filled, packets: 0, copied: 0, last: now });
        }
        let Some(entry) = entries.get_mut(&number) else { return Taken::Done };
        if entry.total != part.total {
            self.counts.malformed += 1;
            return Taken::Done;
        }
        match entry.cover(part.at, end) {
            Ok(()) => {
                // An item of SPEAD's may be in any of its packets.
                let timestamp = entry.filled.timestamp.or(part.filled.timestamp);
                if part.at == 0 {
                    // Which came first is chance.
                    entry.filled = part.filled;
                }
                entry.filled.timestamp = entry.filled.timestamp.or(timestamp);
                entry.buffer.payload()[part.at..end].copy_from_slice(&body[part.payload]);
                entry.packets += 1;
                entry.copied += end - part.at;
                entry.last = now;
                self.held += 1;
                self.take(body);
            }
            Err(Cover::There) => self.counts.duplicate += 1,
            Err(Cover::Overlaps) => self.counts.malformed += 1,
        }
        Taken::Done
    }

    /// A datagram is in its place.
    fn take(&mut self, body: &[u8]) {
        self.counts.taken += 1;
        self.format.accepted(body);
    }

    /// The number and place of what was read, where it belongs to a fragment that is still waited for. Else it is
    /// counted.
    fn admit(&mut self, said: Result<Said, Refusal>, now: Duration) -> Option<(u64, Part)> {
        let part = match said {
            Ok(Said::Part(part)) => part,
            Ok(Said::End) => {
                self.over = true;
                return None;
            }
            Err(refusal) => return self.refuse(refusal),
        };
        if part.total > self.size {
            self.counts.oversize += 1;
            return None;
        }
        if part.at.checked_add(part.payload.len()).is_none_or(|end| end > part.total)
            || part.payload.is_empty() && part.total > 0
        {
            self.counts.malformed += 1;
            return None;
        }
        let restarts = self.counter.restarts();
        let number = match self.counter.came_dated(part.number, self.next, now, part.taken) {
            FrameNumber::At(number) if number >= self.next => number,
            FrameNumber::At(number) => {
                let lost = self.lost.iter().any(|(first, end)| (*first..*end).contains(&number));
                *(if lost { &mut self.counts.late } else { &mut self.counts.duplicate }) += 1;
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
        if self.counter.restarts() > restarts {
            self.counts.restarts += 1;
            tracing::warn!(number, "the instrument counts anew: what was lost meanwhile is not known");
            self.format.clock().into_iter().for_each(Clock::restarted);
        }
        let mut part = part;
        if let (Some(time), Some(clock)) = (part.time, self.format.clock()) {
            part.filled.timestamp = clock.date(time, self.date);
        }
        Some((number, part))
    }

    fn refuse(&mut self, refusal: Refusal) -> Option<(u64, Part)> {
        let counts = &mut self.counts;
        match refusal {
            Refusal::Malformed => counts.malformed += 1,
            Refusal::Truncated => counts.truncated += 1,
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

    /// The numbers from `first` on are right: see [`FrameCounter::numbers_agree`].
    pub fn numbers_agree(&mut self, first: u64) {
        self.counter.numbers_agree(first);
    }

    /// What comes next in order, where that is known. `now` is when the port was last found empty: what waits there may
    /// be what is missing.
    pub fn next(&mut self, now: Duration) -> Option<Acquired> {
        let Some((&number, first)) = self.entries.first_key_value() else {
            return self.over.then_some(Acquired::Over);
        };
        let here = number == self.next;
        if here && first.is_whole() {
            return self.hand_on(number);
        }
        let later = self.held - if here { first.packets } else { 0 };
        if !(self.over || later > self.reorders || self.is_stuck() || now >= self.due()) {
            return None;
        }
        let (begin, end) = (self.next, if here { number + 1 } else { number });
        if here && self.partial == Partial::Damaged {
            self.counts.incomplete += 1;
            return self.hand_on(number);
        }
        if here {
            let entry = self.remove(number)?;
            self.counts.incomplete += 1;
            self.free.push(entry.buffer);
            self.starved = false;
        }
        self.lost.push_back((begin, end));
        if self.lost.len() > REMEMBERED {
            self.lost.pop_front();
        }
        self.next = end;
        Some(Acquired::Lost { first: begin, count: end - begin })
    }

    /// The next fragment, with zeros for what is missing.
    fn hand_on(&mut self, number: u64) -> Option<Acquired> {
        let entry = self.remove(number)?;
        let gaps = entry.gaps();
        let Entry { mut buffer, total: len, mut filled, copied, .. } = entry;
        let payload = &mut buffer.payload()[..len];
        gaps.iter().for_each(|(begin, end)| payload[*begin..*end].fill(0));
        self.format.to_little_endian(payload);
        if !self.counter.is_certain(number) {
            filled.status |= Status::UNCERTAIN;
        }
        if !gaps.is_empty() {
            filled.status |= Status::CORRUPT;
            tracing::warn!(number, "incomplete: {} did not come, and are zeros", gaps_text(&gaps, len));
        }
        self.next = number + 1;
        Some(Acquired::Frame(Frame { buffer, number, len, filled, crc: None, copied }))
    }

    fn remove(&mut self, number: u64) -> Option<Entry> {
        let entry = self.entries.remove(&number)?;
        self.held -= entry.packets;
        Some(entry)
    }

    /// Whether fragments that wait for an earlier one hold all buffers: nobody gives one, and without one nothing more can
    /// be received in its place, or is, where it lies elsewhere and belongs to none of them.
    fn is_stuck(&self) -> bool {
        let cannot_be_received = self.free.is_empty() && self.in_place().is_some();
        (self.starved || cannot_be_received) && self.entries.len() >= self.buffers
    }

    /// When what is next is given up.
    fn due(&self) -> Duration {
        self.entries.first_key_value().map_or(Duration::MAX, |(_, first)| first.last + self.patience)
    }

    /// When to ask for the [`next`](Self::next) although nothing came.
    pub fn next_time(&self) -> Option<Duration> {
        let (number, first) = self.entries.first_key_value()?;
        let at_once = *number == self.next && first.is_whole() || self.is_stuck();
        Some(if at_once { Duration::ZERO } else { self.due() })
    }

    /// What it has counted.
    pub fn counts(&self) -> Counts {
        self.counts
    }
}

/// What became of datagrams, and of fragments that are lost.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Datagrams that were a fragment or a part of one that was waited for.
    pub taken: u64,
    /// That were there before.
    pub duplicate: u64,
    /// Whose fragment was given up before.
    pub late: u64,
    /// Before the run's first number.
    pub early: u64,
    /// With a number far from all others.
    pub stray: u64,
    /// That were not what they should be.
    pub malformed: u64,
    /// Shorter than they said.
    pub truncated: u64,
    /// Of fragments longer than `size`.
    pub oversize: u64,
    /// From somebody who is not listened to.
    pub stranger: u64,
    /// Of another thread, stream or kind.
    pub other_stream: u64,
    /// That have no number, since nobody says how many frames a second has.
    pub unnumbered: u64,
    /// Fragments of which some datagrams did not come.
    pub incomplete: u64,
    /// How often the instrument began to count anew.
    pub restarts: u64,
}

impl Counts {
    /// By name.
    pub fn list(&self) -> [(&'static str, u64); 13] {
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
    use thalweg_arena::SlotPool;
    use thalweg_device::InTurn;

    const NOW: Duration = Duration::from_secs(5);

    /// Four datagrams of two bytes make a fragment; or one of eight.
    fn assembler(packets: u32, reorders: u32, slots: u32) -> (Assembler, SlotPool) {
        let text = format!(
            "listen = \"udp:0.0.0.0:1\"\nformat = \"fixed\"\nsize = 8\nheader = 8\nreorders = {reorders}\n\
             counter = {{ at = 0, bytes = 8 }}\npackets = {packets}\nfirst = 0"
        );
        let mut assembler = Assembler::new(&toml::from_str(&text).unwrap()).unwrap();
        let mut pool = SlotPool::new("slots", slots, 128).unwrap();
        while let Some(slot) = pool.take() {
            assembler.post(Buffer::new(slot));
        }
        assembler.start();
        (assembler, pool)
    }

    fn datagram(number: u64, packets: u32) -> Vec<u8> {
        [&number.to_be_bytes()[..], &vec![number as u8; 8 / packets as usize]].concat()
    }

    /// Gives it a datagram, in one of the two ways.
    fn give(assembler: &mut Assembler, bytes: &[u8]) -> Taken {
        let Some(front) = assembler.in_place() else { return assembler.datagram(bytes, NOW) };
        let mut buffers = Vec::new();
        assembler.take_buffers(1, &mut buffers);
        let Some(mut buffer) = buffers.pop() else { return Taken::NoBuffer };
        let front = &bytes[..front.min(bytes.len())];
        let rest = &bytes[front.len()..];
        let room = rest.len().min(assembler.longest());
        buffer.payload()[..room].copy_from_slice(&rest[..room]);
        let mut whole = vec![0; assembler.in_place().unwrap_or(0)];
        whole[..front.len()].copy_from_slice(front);
        assembler.received(&whole, buffer, bytes.len(), NOW);
        Taken::Done
    }

    /// What comes out: fragments, and how many were lost in between. Buffers go back.
    fn out(assembler: &mut Assembler, now: Duration) -> Vec<Result<(u64, Vec<u8>), u64>> {
        let mut all = Vec::new();
        while let Some(acquired) = assembler.next(now) {
            match acquired {
                Acquired::Frame(mut frame) => {
                    all.push(Ok((frame.number, frame.buffer.payload()[..frame.len].to_vec())));
                    assembler.post(frame.buffer);
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
        while let Some(slot) = pool.take() {
            let mut buffer = Buffer::new(slot);
            // What was in a slot before is in no fragment.
            buffer.payload().fill(0xee);
            assembler.post(buffer);
        }
        assembler.start();
        // The third fragment is lost altogether.
        (0..20).filter(|number| ![5, 6, 8, 9, 10, 11].contains(number)).for_each(|number| {
            assert_eq!(give(&mut assembler, &datagram(number, 4)), Taken::Done);
        });
        let mut came = Vec::new();
        while let Some(acquired) = assembler.next(NOW) {
            came.push(match acquired {
                Acquired::Frame(mut frame) => {
                    let payload = frame.buffer.payload()[..frame.len].to_vec();
                    let is_damaged = frame.filled.status.contains(Status::CORRUPT);
                    assembler.post(frame.buffer);
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
        // Received in place, none can come any more: there is no place.
        let (mut assembler, _pool) = assembler(1, 1000, 4);
        for number in 1..=4 {
            assert_eq!(out(&mut assembler, NOW), []);
            assert_eq!(give(&mut assembler, &datagram(number, 1)), Taken::Done);
        }
        assert!(!assembler.has_room() && assembler.next_time() == Some(Duration::ZERO));
        assert_eq!(out(&mut assembler, NOW).len(), 5);
    }

    #[test]
    fn parts_of_fragments_that_hold_all_buffers_are_received_and_what_needs_another_ends_the_wait() {
        let (mut assembler, _pool) = self::assembler(4, 1000, 4);
        for number in (1..20).filter(|number| number / 4 < 4) {
            assert_eq!(give(&mut assembler, &datagram(number, 4)), Taken::Done);
        }
        assert_eq!(out(&mut assembler, NOW), [], "the first of the first fragment may still come");
        assert!(assembler.has_room() && assembler.next_time() > Some(NOW));
        assert_eq!(give(&mut assembler, &datagram(16, 4)), Taken::NoBuffer);
        assert_eq!(assembler.next_time(), Some(Duration::ZERO));
        let came = out(&mut assembler, NOW);
        assert_eq!((came.len(), &came[0]), (4, &Err(1)));
    }

    /// A packet of a SPEAD-64-48 heap of one byte; or the end of the stream.
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
        assembler.post(Buffer::new(pool.take().unwrap()));
        assembler.start();
        let mut waiting: Vec<_> = [Some(0), Some(1), Some(2), None].map(spead).into();
        let mut came = 0;
        for _ in 0..4 {
            waiting.retain(|bytes| assembler.datagram(bytes, NOW) == Taken::NoBuffer);
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
            let sum: u64 = counts.list().iter().map(|(_, count)| count).sum();
            assert_eq!(
                (sum, counts.taken, counts.duplicate, counts.stray),
                (given.len() as u64, 3, 2, 1),
                "{counts:?}"
            );
        }
    }

    proptest! {
        /// Datagrams that are lost, swapped within the bound, and come twice: each fragment that was sent whole comes
        /// out once, with its bytes, and all others are lost.
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
                // None is moved twice, so that none is moved further.
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

    /// Whatever comes: numbers come out in order and once, nothing is written outside, buffers are not lost.
    #[test]
    fn any_datagrams() {
        let taken = RefCell::new(BTreeMap::new());
        proptest!(|(
        datagrams in proptest::collection::vec(
            prop_oneof![
                proptest::collection::vec(any::<u8>(), 0..64),
                (0u64..50, 0usize..20).prop_map(|(n, len)| [&n.to_be_bytes()[..], &vec![1; len]].concat()),
                // SPEAD: a header, and items that mean something.
                proptest::collection::vec((0u64..8, 0u64..20), 0..6).prop_map(|items| {
                    let mut bytes = vec![0x53, 4, 2, 6, 0, 0, 0, items.len() as u8];
                    let pointer = |(item, value): (u64, u64)| (1 << 63 | item << 48 | value).to_be_bytes();
                    bytes.extend(items.into_iter().flat_map(pointer));
                    bytes.extend([5; 20]);
                    bytes
                }),
                // VDIF: frames of 8 bytes behind the header, of thread 0, with 8 bytes in front or without.
                (any::<bool>(), 0u32..3, 0u32..12).prop_map(|(front, second, number)| {
                    let words = [second, 50 << 24 | number, 1 << 29 | 5, 1 << 26, 0, 0, 0, 0, 1, 2];
                    let sequence = [second * 10 + number, 0];
                    let front = &sequence[..if front { 2 } else { 0 }];
                    front.iter().chain(&words).flat_map(|word| word.to_le_bytes()).collect()
                }),
                // SPEAD: a heap, whole.
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
        while let Some(slot) = pool.take() {
            assembler.post(Buffer::new(slot));
        }
        assembler.start();
        let mut order = thalweg_device::FrameOrder::new(0);
        for (at, bytes) in datagrams.iter().enumerate() {
            let now = NOW + Duration::from_millis(waits) * at as u32;
            give(&mut assembler, bytes);
            while let Some(acquired) = assembler.next(now) {
                match acquired {
                    Acquired::Frame(frame) => prop_assert!(order.came(frame).is_none(), "it came twice"),
                    Acquired::Lost { first, count } | Acquired::Missed { first, count } => order.lost(first, count),
                    Acquired::NotYet | Acquired::Over => break,
                }
                while let Some(turn) = order.next(false) {
                    if let InTurn::Frame(frame) = turn {
                        prop_assert!(frame.len <= 48);
                        assembler.post(frame.buffer);
                    }
                }
            }
        }
        prop_assert_eq!(assembler.free.len() + assembler.entries.len(), 4);
        *taken.borrow_mut().entry(format).or_default() += assembler.counts().taken;
        });
        let taken: BTreeMap<&str, u64> = taken.into_inner();
        assert!(taken.len() == 9 && taken.values().all(|taken| *taken > 0), "{taken:?}");
    }
}
