//! Cards whose driver reads by DMA into slots, several reads at a time (io_uring).
//!
//! The drivers of XDMA, QDMA and SIS8300 work like this: a read pins the reader's pages, the card writes into them, and
//! the read completes with the transfer. With io_uring the card finds the next transfer waiting, and does not wait for
//! this process between two transfers.
//!
//! Reads that are under way together complete in any order, and only the card can distinguish them: by a counter before
//! its data. Without a counter there is one read at a time.
//!
//! Slots are not registered with the ring (`IORING_REGISTER_BUFFERS`): these drivers pin pages themselves, by the
//! address that the reader gives, and are not made for pages that are pinned already.

use crate::local::DmaConfig;
use crate::local::port::{file_error, invalid_input};
use crate::local::transfers::Transfers;
use rustix::fs::{FileType, Mode, OFlags, fstat, open};
use rustix::io::Errno;
use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;
use thalweg_device::{Acquired, Acquisition, Buffer, Description, DeviceError, Frame, HeaderValues, Layout};
use thalweg_sys::uring::{Done, File, Memory, Operation, Ring};
use thalweg_wire::{Status, TaiNanos};

/// Time between two attempts to find a card that is gone.
const REOPEN_INTERVAL: Duration = Duration::from_millis(200);
/// Time after which a card that had no data is read again.
const EMPTY_PAUSE: Duration = Duration::from_millis(1);
/// Longest time of a transfer: a fixed part, and a rate in bytes per second. A longer read waits for the card.
const TRANSFER: (Duration, f64) = (Duration::from_micros(200), 1e8);
/// Offset that stands for the file's own position, for cards without addresses (`io_uring_enter(2)`).
const POSITION: u64 = u64::MAX;

/// A card that is read by DMA.
#[derive(Debug)]
pub struct Card {
    config: DmaConfig,
    description: Description,
    layout: Layout,
    size: usize,
    file: Option<Arc<OwnedFd>>,
    ring: Ring<Posted>,
    transfers: Transfers,
    posted: VecDeque<Buffer>,
    started: bool,
    over: bool,
    /// Time at which to look for a card that is gone, or to read a card that had no data.
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

/// A buffer that the card writes into.
#[derive(Debug)]
struct Posted {
    buffer: Buffer,
    /// Number of the read.
    read: u64,
}

// SAFETY: a payload's bytes are a part of an arena's mapping, which stays at its address for as long as there is a slot
// of it; the slot is the only one over these bytes, and they are reached through this value only.
unsafe impl Memory for Posted {
    fn as_mut_bytes(&mut self) -> &mut [u8] {
        self.buffer.payload_mut()
    }
}

impl Card {
    /// Opens the card that a topology names.
    ///
    /// # Errors
    /// Fails if the file cannot be opened, or an option makes no sense.
    pub fn open(config: &DmaConfig) -> Result<Self, DeviceError> {
        config.fragment_layout()?;
        Self::new(config, open_file(config).map_err(|error| file_error("opening", &config.file, error))?)
    }

    fn new(config: &DmaConfig, file: OwnedFd) -> Result<Self, DeviceError> {
        let layout = config.fragment_layout()?;
        let ring = Ring::new(config.concurrent_reads())
            .map_err(|error| file_error("making an io_uring for", &config.file, error))?;
        let description = Description {
            kind: "dma".into(),
            payload_type: layout.payload_type.type_name().to_owned(),
            record_bytes: Some(config.size.0),
            file: Some(config.file.display().to_string()),
            ..Description::default()
        };
        let longest = TRANSFER.0 + Duration::from_secs_f64(config.size.0 as f64 / TRANSFER.1);
        let bits = config.counter.map(|counter| 8 * counter.bytes);
        Ok(Self {
            config: config.clone(),
            description,
            layout,
            size: usize::try_from(config.size.0).unwrap_or(usize::MAX),
            file: Some(Arc::new(file)),
            ring,
            transfers: Transfers::new(config.concurrent_reads(), longest, bits),
            posted: VecDeque::new(),
            started: false,
            over: false,
            again: Duration::ZERO,
            counts: Counts::default(),
        })
    }

    /// Hands the card as many buffers as it may have.
    fn start_reads(&mut self, now: Duration) {
        while let Some(file) = &self.file
            && !self.over
            && now >= self.again
            && self.transfers.may_begin_read()
            && let Some(buffer) = self.posted.pop_front()
        {
            let offset = self.config.address.unwrap_or(POSITION);
            let (file, posted) =
                (File::Open(Arc::clone(file)), Posted { buffer, read: self.transfers.begin_read(now) });
            self.ring.push_operation(Operation::read_range(file, posted, 0..self.size, offset));
        }
        self.ring.submit_queued();
    }

    /// Handles a completed transfer. Returns its frame, or `None` if it has brought none.
    fn finish_transfer(
        &mut self,
        Done { memory, result, .. }: Done<Posted>,
        now: Duration,
    ) -> Result<Option<Frame>, DeviceError> {
        let Posted { mut buffer, read } = memory;
        self.transfers.end_read(read);
        match result {
            Ok(0) => self.over = true,
            Ok(bytes) => {
                let len = bytes as usize;
                self.counts.bytes += u64::from(bytes);
                let payload = &mut buffer.payload_mut()[..len];
                let count = self.config.counter.map(|counter| counter.read_count(payload));
                if count != Some(None) {
                    let restarts = self.transfers.restart_count();
                    let (number, is_certain) = self.transfers.number_frame(count.flatten(), now);
                    if (restarts, self.transfers.restart_count()) == (0, 1) {
                        let card = self.config.file.display();
                        tracing::warn!(
                            "{card}: its counter stopped or restarted: the number of lost fragments is unknown"
                        );
                    }
                    self.layout.to_little_endian(payload);
                    let payload_type = self.layout.payload_type;
                    let mut status = Status::empty();
                    status.set(Status::UNCERTAIN, !is_certain);
                    let filled = HeaderValues { payload_type, status, window: 0, timestamp: None };
                    return Ok(Some(Frame { buffer, number, len, filled, crc: None, copied: 0 }));
                }
                self.counts.without_counter += 1;
            }
            // The transfer belonged to a card that is gone.
            Err(_) if self.file.is_none() => {}
            // No data came for a while, the driver does not wait, or a signal arrived.
            Err(Errno::INTR | Errno::AGAIN | Errno::TIMEDOUT | Errno::CANCELED) => {
                self.counts.empty += 1;
                self.again = now + EMPTY_PAUSE;
            }
            // A file whose reads have never worked is most likely no such card.
            Err(error) if self.transfers.next_number() == 0 => {
                return Err(file_error("reading", &self.config.file, error));
            }
            Err(error) => {
                tracing::warn!("{}: a transfer failed ({error}); reopening the card", self.config.file.display());
                self.counts.failed += 1;
                self.file = None;
                self.again = now + REOPEN_INTERVAL;
            }
        }
        self.posted.push_front(buffer);
        Ok(None)
    }

    /// Opens the card again, after all reads that were requested from it before have ended.
    fn reopen_card(&mut self, now: Duration) {
        if !self.transfers.is_idle() || now < self.again {
            return;
        }
        self.again = now + REOPEN_INTERVAL;
        let Ok(file) = open_file(&self.config) else { return };
        tracing::info!("{} is back", self.config.file.display());
        self.again = now;
        self.transfers.restart_after_absence();
        self.file = Some(Arc::new(file));
    }
}

fn open_file(config: &DmaConfig) -> io::Result<OwnedFd> {
    let fd = open(&config.file, OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK, Mode::empty())?;
    if FileType::from_raw_mode(fstat(&fd)?.st_mode) != FileType::CharacterDevice {
        return Err(invalid_input(
            "it is not a character device: use `raw` to replay a file, and `stream` to read a \
            pipe",
        ));
    }
    // The file was opened without waiting, but reads are to wait.
    rustix::fs::fcntl_setfl(&fd, OFlags::empty())?;
    Ok(fd)
}

impl Acquisition for Card {
    fn description(&self) -> &Description {
        &self.description
    }

    fn max_payload_bytes(&self) -> usize {
        self.size
    }

    fn max_posted_buffers(&self) -> u32 {
        self.config.concurrent_reads()
    }

    fn reorder_depth(&self) -> u32 {
        self.transfers.reorder_depth()
    }

    fn post_buffer(&mut self, buffer: Buffer) {
        self.posted.push_back(buffer);
    }

    fn start_acquisition(&mut self, _at: TaiNanos) -> Result<(), DeviceError> {
        self.started = true;
        Ok(())
    }

    fn poll_acquired(&mut self, now: Duration) -> Result<Acquired, DeviceError> {
        if !self.started {
            return Ok(Acquired::NotYet);
        }
        loop {
            if let Some((first, count)) = self.transfers.next_lost_run() {
                return Ok(Acquired::Lost { first, count });
            }
            if self.file.is_none() {
                self.reopen_card(now);
            }
            self.start_reads(now);
            match self.ring.next_finished() {
                Some(done) => match self.finish_transfer(done, now)? {
                    Some(frame) => return Ok(Acquired::Frame(frame)),
                    None if self.file.is_none() => {}
                    // Others have their turn first.
                    None => return Ok(Acquired::NotYet),
                },
                None if self.over && self.transfers.is_idle() => return Ok(Acquired::Over),
                None => {
                    self.transfers.record_none_ended(now);
                    return Ok(Acquired::NotYet);
                }
            }
        }
    }

    fn readiness_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.ring.as_fd())
    }

    fn is_away(&self) -> bool {
        self.file.is_none()
    }

    fn next_poll_time(&self) -> Option<Duration> {
        match self.file {
            // Reads that are under way wake the caller through the ring.
            None => self.transfers.is_idle().then_some(self.again),
            Some(_) => {
                (self.started && self.transfers.may_begin_read() && !self.posted.is_empty()).then_some(self.again)
            }
        }
    }

    fn report_counters(&self) -> Vec<(&'static str, u64)> {
        let Counts { bytes, without_counter, empty, failed } = self.counts;
        let of_counter = [("without_counter", without_counter), ("restarts", self.transfers.restart_count())];
        let of_counter = of_counter.into_iter().filter(|_| self.config.counter.is_some());
        [("bytes", bytes), ("empty", empty), ("failed", failed)].into_iter().chain(of_counter).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
    use std::ops::Range;
    use std::path::Path;
    use thalweg_arena::SlotPool;
    use thalweg_testing::skip::skipped;

    fn config(more: &str) -> DmaConfig {
        toml::from_str(&format!("file = \"/dev/card\"\nsize = 64\n{more}")).unwrap()
    }

    const COUNTER: &str = "counter = { at = 0, bytes = 2 }";

    /// Returns a card whose transfers are the messages that are sent to a SEQPACKET socket.
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
        while let Some(slot) = pool.take_slot() {
            card.post_buffer(Buffer::new(slot));
        }
        card.start_acquisition(TaiNanos(0)).unwrap();
        Some((card, here, pool))
    }

    /// Number and content of a frame, or the numbers of lost ones.
    type Next = Result<(u64, Vec<u8>), Range<u64>>;

    /// Returns the next frame or loss; `None` at the end.
    fn next(card: &mut Card) -> Option<Next> {
        loop {
            match card.poll_acquired(Duration::ZERO).unwrap() {
                Acquired::Frame(Frame { mut buffer, number, len, .. }) => {
                    let bytes = buffer.payload_mut()[..len].to_vec();
                    card.post_buffer(buffer);
                    return Some(Ok((number, bytes)));
                }
                Acquired::Lost { first, count } => return Some(Err(first..first + count)),
                Acquired::NotYet => card.ring.wait_for_completion(None).unwrap(),
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
        // A transfer that is too short for the count, and then the end.
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
            card.report_counters(),
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
            assert!(card.transfers.is_idle() || !card.transfers.may_begin_read());
            assert_eq!(next(&mut card), Some(Ok((at.into(), at.to_le_bytes().to_vec()))));
        }
        assert_eq!(next(&mut card), None);
    }

    #[test]
    fn a_driver_that_does_not_wait_is_asked_a_thousand_times_a_second() {
        let Some((mut card, here, _pool)) = card(&config(COUNTER)) else { return };
        let memory = Posted { buffer: card.posted.pop_front().unwrap(), read: card.transfers.begin_read(EMPTY_PAUSE) };
        let nothing = Done { memory, result: Err(Errno::AGAIN), copied: false };
        assert!(card.finish_transfer(nothing, EMPTY_PAUSE).unwrap().is_none());
        assert!(card.report_counters().contains(&("empty", 1)));
        rustix::io::write(&here, &7_u16.to_be_bytes()).unwrap();
        assert!(matches!(card.poll_acquired(EMPTY_PAUSE).unwrap(), Acquired::NotYet));
        assert_eq!((card.transfers.is_idle(), card.next_poll_time()), (true, Some(EMPTY_PAUSE * 2)));
        while let Acquired::NotYet = card.poll_acquired(EMPTY_PAUSE * 2).unwrap() {
            card.ring.wait_for_completion(None).unwrap();
        }
        assert_eq!(card.report_counters()[0], ("bytes", 2));
    }

    #[test]
    fn what_cannot_be_is_refused() {
        let refused = |more: &str| config(more).fragment_layout().unwrap_err().to_string();
        assert!(refused("reads = 2").contains("set the position of the card's `counter`"));
        let nothing =
            DmaConfig { size: thalweg_text::ByteSize(0), ..config("") }.fragment_layout().unwrap_err().to_string();
        assert!(nothing.contains("size"), "{nothing}");
        assert!(refused("reads = 0").contains("1 to 16"));
        assert!(refused("counter = { at = 60, bytes = 5 }").contains("within the fragment"));
        let opened = |file: &Path| Card::open(&DmaConfig { file: file.into(), ..config("") }).unwrap_err().to_string();
        let file = tempfile::NamedTempFile::new().unwrap();
        assert!(opened(file.path()).contains("not a character device"));
        assert!(opened(Path::new("/dev/no-such-card")).contains("No such file"));
    }
}
