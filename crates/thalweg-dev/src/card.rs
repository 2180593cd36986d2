//! Cards whose driver reads by DMA: a read is a transfer of the card's into the slot, and several are under way.
//!
//! So do the drivers of XDMA, QDMA and SIS8300: a read pins the reader's pages, the card writes there, and the read is over
//! when the transfer is. With io_uring the card finds the next transfer waiting, and does not wait for this process between
//! two.
//!
//! Reads that are under way together are over in any order, and nothing but the card tells them apart: by a counter in
//! front of its data. Without one there is one read at a time.
//!
//! Slots are not registered with the ring (`IORING_REGISTER_BUFFERS`): these drivers pin pages themselves, by the address
//! that the reader gives, and are not made for pages that are pinned already.

use rustix::fs::{FileType, Mode, OFlags, fstat, open};
use rustix::io::Errno;
use std::collections::VecDeque;
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;
use thalweg_device::{
    Acquired, Acquisition, Buffer, CounterRules, Description, DeviceError, DmaConfig, Filled, Frame, FrameCounter,
    FrameNumber, Layout, Trust,
};
use thalweg_uring::{Done, File, Memory, Operation, Ring};
use thalweg_wire::{Status, TaiNanos};

/// How often a card that is gone is looked for.
const AGAIN: Duration = Duration::from_millis(200);
/// How soon a card is asked again that had nothing.
const PAUSE: Duration = Duration::from_millis(1);
/// While a read is under way, so many times as many begin as may be under way together: however long it takes, its frame
/// comes behind no more than theirs.
const BEHIND: u32 = 4;
/// The file's own position, where the card has no addresses (`io_uring_enter(2)`).
const POSITION: u64 = u64::MAX;

/// A card.
#[derive(Debug)]
pub struct Card {
    config: DmaConfig,
    description: Description,
    layout: Layout,
    size: usize,
    file: Option<Arc<OwnedFd>>,
    ring: Ring<Posted>,
    /// Reads that are under way, by their numbers, and the number of the next.
    under_way: Vec<u64>,
    reads: u64,
    posted: VecDeque<Buffer>,
    numbers: Numbers,
    started: bool,
    over: bool,
    /// When to look for a card that is gone, and to ask one that had nothing.
    again: Duration,
    counts: Counts,
}

#[derive(Debug, Clone, Copy, Default)]
struct Counts {
    bytes: u64,
    without_counter: u64,
    empty: u64,
    failed: u64,
}

/// A buffer that the card writes to.
#[derive(Debug)]
struct Posted {
    buffer: Buffer,
    /// The number of the read.
    read: u64,
}

// SAFETY: a payload's bytes are a part of an arena's mapping, which stays where it is for as long as there is a slot of it;
// the slot is the only one over them, and nobody reaches it but through this value.
unsafe impl Memory for Posted {
    fn bytes(&mut self) -> &mut [u8] {
        self.buffer.payload()
    }
}

impl Card {
    /// The card that a topology names.
    ///
    /// # Errors
    /// It cannot be opened, or an option makes no sense.
    pub fn open(config: &DmaConfig) -> Result<Self, DeviceError> {
        config.check()?;
        Self::new(config, opened(config).map_err(|error| told("opening", config, error))?)
    }

    fn new(config: &DmaConfig, file: OwnedFd) -> Result<Self, DeviceError> {
        let layout = config.check()?;
        let ring = Ring::new(config.reads()).map_err(|error| told("making an io_uring for", config, error))?;
        let description = Description {
            kind: "dma".into(),
            payload_type: layout.payload_type.name().to_owned(),
            record_bytes: Some(config.size.0),
            file: Some(config.file.display().to_string()),
            ..Description::default()
        };
        Ok(Self {
            config: config.clone(),
            description,
            layout,
            size: usize::try_from(config.size.0).unwrap_or(usize::MAX),
            file: Some(Arc::new(file)),
            ring,
            under_way: Vec::new(),
            reads: 0,
            posted: VecDeque::new(),
            numbers: Numbers::new(config.counter.map(|counter| 8 * counter.bytes)),
            started: false,
            over: false,
            again: Duration::ZERO,
            counts: Counts::default(),
        })
    }

    /// Hands the card as many buffers as it may have. The first alone: it says where the counter begins.
    fn read(&mut self, now: Duration) {
        while let Some(file) = &self.file
            && !self.over
            && now >= self.again
            && self.may_read()
            && let Some(buffer) = self.posted.pop_front()
        {
            let offset = self.config.address.unwrap_or(POSITION);
            let (file, posted) = (File::Open(Arc::clone(file)), Posted { buffer, read: self.reads });
            self.ring.push(Operation::read(file, posted, 0..self.size, offset));
            self.under_way.push(self.reads);
            self.reads += 1;
        }
        self.ring.submit();
    }

    fn may_read(&self) -> bool {
        let most = if self.numbers.begun { self.config.reads() } else { 1 };
        self.under_way.len() < most as usize && self.reads - self.oldest() < u64::from(self.reorders())
    }

    /// The first read that is under way; the next, where none is.
    fn oldest(&self) -> u64 {
        self.under_way.first().copied().unwrap_or(self.reads)
    }

    /// A transfer is over. Nothing where it brought nothing.
    fn ended(
        &mut self,
        Done { memory, result, .. }: Done<Posted>,
        now: Duration,
    ) -> Result<Option<Frame>, DeviceError> {
        let Posted { mut buffer, read } = memory;
        self.under_way.retain(|other| *other != read);
        match result {
            Ok(0) => self.over = true,
            Ok(bytes) => {
                let len = bytes as usize;
                self.counts.bytes += u64::from(bytes);
                let payload = &mut buffer.payload()[..len];
                let count = self.config.counter.map(|counter| counter.read(payload));
                if count != Some(None) {
                    let restarts = self.numbers.restarts();
                    let number = self.numbers.of(count.flatten(), self.reads, now);
                    if (restarts, self.numbers.restarts()) == (0, 1) {
                        let card = self.config.file.display();
                        tracing::warn!(
                            "{card}: its counter stood still or began anew: what is lost there is not known"
                        );
                    }
                    self.layout.to_little_endian(payload);
                    let payload_type = self.layout.payload_type;
                    let mut status = Status::empty();
                    status.set(Status::UNCERTAIN, !self.numbers.is_certain(number));
                    let filled = Filled { payload_type, status, window: 0, timestamp: None };
                    return Ok(Some(Frame { buffer, number, len, filled, crc: None, copied: 0 }));
                }
                self.counts.without_counter += 1;
            }
            // It was of a card that is gone.
            Err(_) if self.file.is_none() => {}
            // Nothing came for a while, its driver does not wait, or a signal came.
            Err(Errno::INTR | Errno::AGAIN | Errno::TIMEDOUT | Errno::CANCELED) => {
                self.counts.empty += 1;
                self.again = now + PAUSE;
            }
            // What never worked is most likely no such card.
            Err(error) if self.numbers.next == 0 => return Err(told("reading", &self.config, error.into())),
            Err(error) => {
                tracing::warn!("{}: a transfer failed ({error}); the card is opened again", self.config.file.display());
                self.counts.failed += 1;
                self.file = None;
                self.again = now + AGAIN;
            }
        }
        self.posted.push_front(buffer);
        Ok(None)
    }

    /// Opens the card again, once all that was asked of it before is over.
    fn look_again(&mut self, now: Duration) {
        if !self.under_way.is_empty() || now < self.again {
            return;
        }
        self.again = now + AGAIN;
        let Ok(file) = opened(&self.config) else { return };
        tracing::info!("{} is there again", self.config.file.display());
        self.again = now;
        self.numbers.anew();
        self.file = Some(Arc::new(file));
    }
}

fn opened(config: &DmaConfig) -> io::Result<OwnedFd> {
    let fd = open(&config.file, OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK, Mode::empty())?;
    if FileType::from_raw_mode(fstat(&fd)?.st_mode) != FileType::CharacterDevice {
        let why = "it is no character device: `raw` plays a file, and `stream` reads pipes";
        return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
    }
    // Opened without waiting, and read by waiting.
    rustix::fs::fcntl_setfl(&fd, OFlags::empty())?;
    Ok(fd)
}

fn told(doing: &'static str, config: &DmaConfig, error: io::Error) -> DeviceError {
    DeviceError::File { doing, file: config.file.clone(), error }
}

impl Acquisition for Card {
    fn description(&self) -> &Description {
        &self.description
    }

    fn max_payload(&self) -> usize {
        self.size
    }

    fn depth(&self) -> u32 {
        self.config.reads()
    }

    fn reorders(&self) -> u32 {
        BEHIND * self.config.reads()
    }

    fn post(&mut self, buffer: Buffer) {
        self.posted.push_back(buffer);
    }

    fn start(&mut self, _at: TaiNanos) -> Result<(), DeviceError> {
        self.started = true;
        Ok(())
    }

    fn poll(&mut self, now: Duration) -> Result<Acquired, DeviceError> {
        if !self.started {
            return Ok(Acquired::NotYet);
        }
        loop {
            if let Some((first, count)) = self.numbers.lost(self.oldest()) {
                return Ok(Acquired::Lost { first, count });
            }
            if self.file.is_none() {
                self.look_again(now);
            }
            self.read(now);
            match self.ring.finished() {
                Some(done) => match self.ended(done, now)? {
                    Some(frame) => return Ok(Acquired::Frame(frame)),
                    None if self.file.is_none() => {}
                    // Others have their turn first.
                    None => return Ok(Acquired::NotYet),
                },
                None if self.over && self.under_way.is_empty() => return Ok(Acquired::Over),
                None => return Ok(Acquired::NotYet),
            }
        }
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.ring.as_fd())
    }

    fn is_away(&self) -> bool {
        self.file.is_none()
    }

    fn next_time(&self) -> Option<Duration> {
        match self.file {
            // What is under way wakes by itself.
            None => self.under_way.is_empty().then_some(self.again),
            Some(_) => (self.started && self.may_read() && !self.posted.is_empty()).then_some(self.again),
        }
    }

    fn counters(&self) -> Vec<(&'static str, u64)> {
        let Counts { bytes, without_counter, empty, failed } = self.counts;
        let of_counter = [("without_counter", without_counter), ("restarts", self.numbers.restarts())];
        let of_counter = of_counter.into_iter().filter(|_| self.config.counter.is_some());
        [("bytes", bytes), ("empty", empty), ("failed", failed)].into_iter().chain(of_counter).collect()
    }
}

/// The numbers of frames, by the card's counter, which come in any order.
#[derive(Debug)]
struct Numbers {
    /// None where the card has no counter: frames are numbered as they come.
    counter: Option<FrameCounter>,
    /// The first number that no frame has had.
    next: u64,
    /// Those before it that have not come.
    missing: Vec<Missing>,
    /// It is known where the counter is.
    begun: bool,
    /// From this number on some may be missing that are not known.
    uncertain_from: Option<u64>,
}

/// Numbers that reads which began before this one may still bring.
#[derive(Debug)]
struct Missing {
    numbers: Range<u64>,
    before: u64,
}

impl Numbers {
    fn new(bits: Option<u32>) -> Self {
        let counter = bits.map(|bits| FrameCounter::new(CounterRules::new(bits, Trust::DRIVER)));
        Self { counter, next: 0, missing: Vec::new(), begun: false, uncertain_from: None }
    }

    fn restarts(&self) -> u64 {
        self.counter.as_ref().map_or(0, FrameCounter::restarts)
    }

    /// Whether a frame's number is more than a guess.
    fn is_certain(&self, number: u64) -> bool {
        self.counter.as_ref().is_none_or(|counter| counter.is_certain(number))
            && self.uncertain_from.is_none_or(|from| number < from)
    }

    /// The card was away: without a counter it is not known what was lost.
    fn anew(&mut self) {
        self.begun = false;
        if self.counter.is_none() {
            self.uncertain_from.get_or_insert(self.next);
        }
    }

    /// What a frame's number is. `before`: the next read to begin.
    fn of(&mut self, count: Option<u64>, before: u64, now: Duration) -> u64 {
        self.begun = true;
        let next = self.next;
        let (Some(counter), Some(count)) = (&mut self.counter, count) else {
            self.next += 1;
            return next;
        };
        let first_missing = self.missing.iter().map(|missing| missing.numbers.start).min().unwrap_or(next);
        let number = match counter.came(count, first_missing, now) {
            FrameNumber::At(number) if number >= next => number,
            FrameNumber::At(number) if take_missing(&mut self.missing, number) => return number,
            _ => counter.begin_anew(count, next, now),
        };
        if number > next {
            self.missing.push(Missing { numbers: next..number, before });
        }
        self.next = number + 1;
        number
    }

    /// The first numbers that no read brings any more, where `oldest` is the first that is under way, and how many.
    fn lost(&mut self, oldest: u64) -> Option<(u64, u64)> {
        let at = self.missing.iter().position(|missing| missing.before <= oldest)?;
        let Range { start, end } = self.missing.remove(at).numbers;
        Some((start, end - start))
    }
}

/// Whether a number has not come; it has, from now on.
fn take_missing(missing: &mut Vec<Missing>, number: u64) -> bool {
    let Some(at) = missing.iter().position(|missing| missing.numbers.contains(&number)) else { return false };
    let Missing { numbers, before } = missing.remove(at);
    let parts = [numbers.start..number, number + 1..numbers.end];
    let parts = parts.into_iter().filter(|part| !part.is_empty());
    missing.splice(at..at, parts.map(|numbers| Missing { numbers, before }));
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
    use std::path::Path;
    use thalweg_arena::SlotPool;
    use thalweg_skip::skipped;

    fn config(more: &str) -> DmaConfig {
        toml::from_str(&format!("file = \"/dev/card\"\nsize = 64\n{more}")).unwrap()
    }

    const COUNTER: &str = "counter = { at = 0, bytes = 2 }";

    /// A card whose transfers are what is sent to a socket that keeps messages apart.
    fn card(config: &DmaConfig) -> Option<(Card, OwnedFd, SlotPool)> {
        let (card, here) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
        let mut card = match Card::new(config, card) {
            Ok(card) => card,
            Err(error) => {
                skipped(format!("io_uring: {error}"));
                return None;
            }
        };
        let mut pool = SlotPool::new("slots", 8, 256).unwrap();
        while let Some(slot) = pool.take() {
            card.post(Buffer::new(slot));
        }
        card.start(TaiNanos(0)).unwrap();
        Some((card, here, pool))
    }

    /// Of a frame its number and content, of lost ones which.
    type Next = Result<(u64, Vec<u8>), Range<u64>>;

    /// What it says next, until it is over.
    fn next(card: &mut Card) -> Option<Next> {
        loop {
            match card.poll(Duration::ZERO).unwrap() {
                Acquired::Frame(Frame { mut buffer, number, len, .. }) => {
                    let bytes = buffer.payload()[..len].to_vec();
                    card.post(buffer);
                    return Some(Ok((number, bytes)));
                }
                Acquired::Lost { first, count } => return Some(Err(first..first + count)),
                Acquired::NotYet => card.ring.wait(None).unwrap(),
                Acquired::Over => return None,
                other @ Acquired::Missed { .. } => panic!("{other:?}"),
            }
        }
    }

    #[test]
    fn each_transfer_is_a_fragment_numbered_by_the_card_s_count() {
        let Some((mut card, here, _pool)) = card(&config(COUNTER)) else { return };
        let sent = [65_534_u16, 65_535, 0, 3, 4];
        for (at, count) in sent.into_iter().enumerate() {
            let bytes = [&count.to_be_bytes()[..], &vec![at as u8; 10 * at]].concat();
            rustix::io::write(&here, &bytes).unwrap();
        }
        // One that is too short for its count, and then the end.
        rustix::io::write(&here, b"1").unwrap();
        drop(here);
        let (mut came, mut lost) = (Vec::new(), Vec::new());
        while let Some(next) = next(&mut card) {
            match next {
                Ok(frame) => came.push(frame),
                Err(numbers) => lost.extend(numbers),
            }
        }
        came.sort();
        let numbers: Vec<u64> = came.iter().map(|(number, _)| *number).collect();
        assert_eq!((numbers, lost), (vec![0, 1, 2, 5, 6], vec![3, 4]));
        for (at, ((_, bytes), count)) in came.iter().zip(sent).enumerate() {
            assert_eq!((&bytes[..2], &bytes[2..]), (&count.to_be_bytes()[..], &vec![at as u8; 10 * at][..]));
        }
        let bytes = 2 * 5 + 10 * (1 + 2 + 3 + 4) + 1;
        assert_eq!(
            card.counters(),
            [("bytes", bytes), ("empty", 0), ("failed", 0), ("without_counter", 1), ("restarts", 0)]
        );
    }

    #[test]
    fn without_a_count_there_is_one_read_at_a_time_and_fragments_are_as_they_come() {
        let Some((mut card, here, _pool)) = card(&config("type = \"i16\"")) else { return };
        for at in 0..20_i16 {
            rustix::io::write(&here, &at.to_le_bytes()).unwrap();
        }
        drop(here);
        for at in 0..20_u16 {
            assert!(card.under_way.len() <= 1);
            assert_eq!(next(&mut card), Some(Ok((at.into(), at.to_le_bytes().to_vec()))));
        }
        assert_eq!(next(&mut card), None);
    }

    #[test]
    fn a_driver_that_does_not_wait_is_asked_a_thousand_times_a_second() {
        let Some((mut card, here, _pool)) = card(&config(COUNTER)) else { return };
        let memory = Posted { buffer: card.posted.pop_front().unwrap(), read: 0 };
        let nothing = Done { memory, result: Err(Errno::AGAIN), copied: false };
        assert!(card.ended(nothing, PAUSE).unwrap().is_none());
        assert!(card.counters().contains(&("empty", 1)));
        rustix::io::write(&here, &7_u16.to_be_bytes()).unwrap();
        assert!(matches!(card.poll(PAUSE).unwrap(), Acquired::NotYet));
        assert_eq!((card.reads, card.next_time()), (0, Some(PAUSE * 2)));
        while let Acquired::NotYet = card.poll(PAUSE * 2).unwrap() {
            card.ring.wait(None).unwrap();
        }
        assert_eq!(card.counters()[0], ("bytes", 2));
    }

    #[test]
    fn what_cannot_be_is_refused() {
        let refused = |more: &str| config(more).check().unwrap_err().to_string();
        assert!(refused("reads = 2").contains("say where the card has its `counter`"));
        let nothing = DmaConfig { size: thalweg_text::ByteSize(0), ..config("") }.check().unwrap_err().to_string();
        assert!(nothing.contains("size"), "{nothing}");
        assert!(refused("reads = 0").contains("1 to 16"));
        assert!(refused("counter = { at = 60, bytes = 5 }").contains("of the fragment"));
        let opened = |file: &Path| Card::open(&DmaConfig { file: file.into(), ..config("") }).unwrap_err().to_string();
        let file = tempfile::NamedTempFile::new().unwrap();
        assert!(opened(file.path()).contains("no character device"));
        assert!(opened(Path::new("/dev/no-such-card")).contains("No such file"));
    }

    proptest! {
        /// Frames are handed to the reads that wait, in order, and reads end in any order.
        #[test]
        fn every_frame_has_its_number_and_every_other_is_lost_once(
            bits in prop::sample::select(vec![8_u32, 16, 32, 64]),
            start in any::<u64>(),
            gaps in prop::collection::vec(prop_oneof![4 => Just(1_u64), 1 => 1_u64..8], 1..200),
            ends in prop::collection::vec(0_usize..4, 200),
        ) {
            let mask = u64::MAX >> (64 - bits);
            let truth: Vec<u64> = gaps.iter().scan(0, |next, gap| { *next += gap; Some(*next - gaps[0]) }).collect();
            let mut numbers = Numbers::new(Some(bits));
            // Reads that have a frame and are under way; the first is alone.
            let (mut under_way, mut reads) = (vec![0], 1);
            let (mut came, mut lost) = (Vec::new(), Vec::new());
            for end in ends {
                if under_way.is_empty() {
                    break;
                }
                let read = under_way.remove(end % under_way.len());
                prop_assert_eq!(numbers.of(Some(start.wrapping_add(truth[read]) & mask), reads as u64, Duration::ZERO), truth[read]);
                came.push(truth[read]);
                while under_way.len() < 4 && reads < truth.len() && reads - under_way.first().unwrap_or(&reads) < 16 {
                    under_way.push(reads);
                    reads += 1;
                }
                let oldest = *under_way.first().unwrap_or(&reads) as u64;
                while let Some((first, count)) = numbers.lost(oldest) {
                    lost.extend(first..first + count);
                }
            }
            prop_assert_eq!(numbers.restarts(), 0);
            let all: std::collections::BTreeSet<u64> = came.iter().chain(&lost).copied().collect();
            prop_assert_eq!(all.len(), came.len() + lost.len(), "none is both, or twice");
            if under_way.is_empty() {
                prop_assert_eq!(all.len() as u64, truth[truth.len() - 1] + 1);
            }
        }

        #[test]
        fn whatever_a_card_counts_no_number_comes_twice(counts in prop::collection::vec(any::<u16>(), 1..20)) {
            let mut numbers = Numbers::new(Some(16));
            let mut came = std::collections::HashSet::new();
            for (count, read) in counts.into_iter().zip(1..) {
                prop_assert!(came.insert(numbers.of(Some(count.into()), read, Duration::ZERO)));
                if let Some((first, count)) = numbers.lost(read - 1) {
                    prop_assert!((first..first + count).all(|number| came.insert(number)));
                }
            }
        }
    }

    #[test]
    fn a_count_that_begins_anew_or_stands_still_goes_on() {
        let mut numbers = Numbers::new(Some(32));
        assert_eq!([100, 101, 103].map(|count| numbers.of(Some(count), 9, Duration::ZERO)), [0, 1, 3]);
        assert_eq!((numbers.lost(8), numbers.lost(9), numbers.lost(9)), (None, Some((2, 1)), None));
        assert_eq!(
            [102, 103, 103, 1 << 30, 104].map(|count| numbers.of(Some(count), 9, Duration::ZERO)),
            [4, 5, 6, 7, 8]
        );
        assert_eq!(numbers.restarts(), 4);
        assert!(numbers.is_certain(3) && !numbers.is_certain(5));
    }
}
