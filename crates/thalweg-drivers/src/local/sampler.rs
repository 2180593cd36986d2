//! Boards that sample (comedi): samples into slots, and detection of samples that were lost.
//!
//! The kernel writes samples into a ring of its own, and from there into the slot. When the ring is full, the driver
//! stops sampling and reports it. The board is then restarted, and the time for which it stood still determines what
//! was lost.

use crate::local::ComediConfig;
use crate::local::comedi::{Board, Pace};
use crate::local::port::{Watch, file_error, invalid_input};
use crate::local::windows::Windows;
use rustix::fs::{Mode, OFlags, open};
use rustix::io::{Errno, read};
use rustix::time::{ClockId, clock_gettime};
use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;
use thalweg_device::{Acquired, Acquisition, Buffer, Description, DeviceError, DeviceOptions, Filled, Frame, TaiClock};
use thalweg_wire::{Element, Meaning, PayloadType, Status, TaiNanos};

/// Maximum number of fragments that may be posted.
const DEPTH: u32 = 8;
/// Time between two attempts to find a board that was unplugged.
const REOPEN_INTERVAL: Duration = Duration::from_millis(200);
/// Size of the kernel's ring: the seconds of samples that it holds, and its bounds in bytes.
const RING_SECONDS: f64 = 1.0;
const RING_BYTES: (u32, u32) = (64 << 10, 64 << 20);

/// A board that samples by itself.
#[derive(Debug)]
pub struct Sampler {
    config: ComediConfig,
    description: Description,
    payload_type: PayloadType,
    size: usize,
    open: Option<Open>,
    watch: Watch,
    clock: TaiClock,
    posted: VecDeque<Buffer>,
    /// Number of bytes of the current fragment that have arrived.
    has: usize,
    windows: Windows,
    /// Number of bytes before the next fragment that belong to no event.
    skips: usize,
    /// Time from one round of all channels to the next, in nanoseconds.
    nanos: u32,
    /// Time of the next attempt to find a board that is gone.
    again: Duration,
    counts: Counts,
}

#[derive(Debug)]
struct Open {
    fd: OwnedFd,
    board: Board,
    /// Channels in comedi's encoding.
    channels: Vec<u32>,
    pace: Pace,
}

#[derive(Debug, Clone, Copy, Default)]
struct Counts {
    overruns: u64,
    unplugged: u64,
}

impl Open {
    fn new(config: &ComediConfig) -> io::Result<Self> {
        let fd = open(&config.file, OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC, Mode::empty())?;
        let board = Board::read_description(fd.as_fd(), config.subdevice)
            .map_err(|_| invalid_input("it is not a comedi board"))?;
        let board = board.ok_or_else(|| match config.subdevice {
            Some(part) => invalid_input(format!("its subdevice {part} cannot sample by itself")),
            None => invalid_input("it cannot sample by itself"),
        })?;
        if let Some(channel) = config.channels.iter().find(|channel| u32::from(**channel) >= board.channels) {
            let highest = board.channels.saturating_sub(1);
            return Err(invalid_input(format!("channels: {channel}: it has 0 to {highest}")));
        }
        if config.channels.len() > board.most_channels as usize {
            return Err(invalid_input(format!("channels: it samples at most {} at once", board.most_channels)));
        }
        if !board.ranges.is_empty() && usize::from(config.range) >= board.ranges.len() {
            return Err(invalid_input(format!("range = {}: it has 0 to {}", config.range, board.ranges.len() - 1)));
        }
        board.select_part(fd.as_fd())?;
        // `CR_PACK`, against the board's ground.
        let channels: Vec<u32> =
            config.channels.iter().map(|channel| u32::from(config.range) << 16 | u32::from(*channel)).collect();
        let hertz = config.rate.hertz();
        let pace = board.find_pace(fd.as_fd(), &channels, (1e9 / hertz).round() as u32).map_err(|error| {
            invalid_input(format!("it cannot sample these channels at a rate of its own clock ({error})"))
        })?;
        let has = 1e9 / f64::from(pace.nanos);
        if (has - hertz).abs() > hertz * 0.01 {
            return Err(invalid_input(format!("rate = {hertz}: the nearest possible rate is {has:.3}")));
        }
        let bytes = if board.wide { 4.0 } else { 2.0 } * channels.len() as f64 * has * RING_SECONDS;
        let ring =
            board.request_memory(fd.as_fd(), (bytes as u32).clamp(RING_BYTES.0, RING_BYTES.1).next_multiple_of(4096));
        if ring.is_ok_and(|ring| f64::from(ring) < bytes / 10.0) {
            tracing::warn!(
                "{}: its driver buffers less than 0.1 s of samples: raise comedi_default_buf_maxsize_kb",
                config.file.display()
            );
        }
        Ok(Self { fd, board, channels, pace })
    }
}

impl Sampler {
    /// Opens the board that a topology names, and sets it up as configured.
    ///
    /// # Errors
    /// Fails if the file does not exist, is no such board, or lacks a configured channel, range or rate.
    pub fn open(config: &ComediConfig) -> Result<Self, DeviceError> {
        config.check_options()?;
        let open = Open::new(config).map_err(|error| file_error("opening", &config.file, error))?;
        let watch = Watch::new(&open.fd).map_err(|error| file_error("waiting for", &config.file, error))?;
        let Open { board, pace, .. } = &open;
        let element = if board.wide { Element::U32 } else { Element::U16 };
        let payload_type = PayloadType::new(Meaning::Samples, element);
        let channels = config.channels.len();
        let size = element.element_bytes() * channels * config.samples as usize;
        let rate = 1e9 / f64::from(pace.nanos);
        let volts = board.ranges.get(usize::from(config.range));
        let description = Description {
            kind: "comedi".into(),
            payload_type: payload_type.type_name().to_owned(),
            shape: Some(vec![config.samples.into(), channels as u64]),
            channels: u32::try_from(channels).ok(),
            sample_rate: Some(rate),
            samples: Some(config.samples.into()),
            bits: board.maximum.map(|maximum| maximum.checked_ilog2().map_or(0, |bits| bits + 1)),
            record_bytes: Some(size as u64),
            file: Some(config.file.display().to_string()),
            metadata: Some(serde_json::json!({
                "board": board.name, "driver": board.driver, "channels": config.channels, "range": volts,
                "max_value": board.maximum,
            })),
            ..Description::default()
        };
        tracing::info!("{}: {} ({}), {rate:.3} samples per second", config.file.display(), board.name, board.driver);
        let nanos = pace.nanos;
        Ok(Self {
            config: config.clone(),
            description,
            payload_type,
            size,
            open: Some(open),
            watch,
            clock: TaiClock,
            posted: VecDeque::new(),
            has: 0,
            windows: Windows::new(config.samples, nanos),
            skips: 0,
            nanos,
            again: Duration::ZERO,
            counts: Counts::default(),
        })
    }

    /// Starts the board. What it would have sampled by now is lost.
    fn start_board(&mut self) -> Result<Acquired, DeviceError> {
        let Some(Open { fd, board, channels, pace }) = &self.open else { return Ok(Acquired::NotYet) };
        match board.begin_sampling(fd.as_fd(), channels, *pace) {
            Ok(()) => {}
            // The board was unplugged, which the next read reports.
            Err(Errno::NODEV) => return Ok(Acquired::NotYet),
            Err(error) => return Err(file_error("starting", &self.config.file, error)),
        }
        self.has = 0;
        let (lost, skipped) = self.windows.begin_sampling(monotonic_now(), self.clock.now());
        self.skips = self.size / self.config.samples as usize * skipped as usize;
        Ok(lost.map_or(Acquired::NotYet, |(first, count)| Acquired::Lost { first, count }))
    }

    fn handle_unplugged(&mut self, now: Duration) {
        tracing::warn!("{} was unplugged; waiting for it", self.config.file.display());
        self.open = None;
        self.counts.unplugged += 1;
        self.again = now + REOPEN_INTERVAL;
    }

    fn reopen_board(&mut self, now: Duration) -> Result<Acquired, DeviceError> {
        if now < self.again {
            return Ok(Acquired::NotYet);
        }
        self.again = now + REOPEN_INTERVAL;
        let Ok(open) = Open::new(&self.config) else { return Ok(Acquired::NotYet) };
        let element = if open.board.wide { Element::U32 } else { Element::U16 };
        if (element, open.pace.nanos)
            != (self.payload_type.meaning_and_element().map_or(Element::U8, |it| it.1), self.nanos)
        {
            return Ok(Acquired::NotYet);
        }
        self.watch.add_file(&open.fd).map_err(|error| file_error("waiting for", &self.config.file, error))?;
        tracing::info!("{} is back", self.config.file.display());
        self.open = Some(open);
        self.start_board()
    }
}

/// Returns the time by the clock that is never set.
fn monotonic_now() -> Duration {
    let now = clock_gettime(ClockId::Monotonic);
    Duration::new(u64::try_from(now.tv_sec).unwrap_or(0), u32::try_from(now.tv_nsec).unwrap_or(0))
}

impl Acquisition for Sampler {
    fn description(&self) -> &Description {
        &self.description
    }

    fn max_payload_bytes(&self) -> usize {
        self.size
    }

    fn max_posted_buffers(&self) -> u32 {
        DEPTH
    }

    fn post_buffer(&mut self, buffer: Buffer) {
        self.posted.push_back(buffer);
    }

    fn start_acquisition(&mut self, _at: TaiNanos) -> Result<(), DeviceError> {
        let now = monotonic_now();
        self.start_board()?;
        self.windows.start_events(now);
        Ok(())
    }

    fn poll_acquired(&mut self, now: Duration) -> Result<Acquired, DeviceError> {
        let Some(open) = &self.open else { return self.reopen_board(now) };
        while let Some(front) = self.posted.front_mut() {
            // Samples to be skipped go to the place where the fragment follows.
            let place = if self.skips > 0 { 0..self.skips.min(self.size) } else { self.has..self.size };
            match read(&open.fd, &mut front.payload_mut()[place]) {
                // No more data comes: another program ended the command, or the ring had no room.
                Ok(0) | Err(Errno::PIPE) => {
                    tracing::warn!("{} was not read in time: samples are lost", self.config.file.display());
                    self.counts.overruns += 1;
                    return self.start_board();
                }
                Ok(bytes) if self.skips > 0 => self.skips -= bytes,
                Ok(bytes) => self.has += bytes,
                Err(Errno::AGAIN) => {
                    let round = (self.size / self.config.samples as usize).max(1);
                    let rounds = (self.has / round) as i64 - self.skips.div_ceil(round) as i64;
                    self.windows.record_all_read(monotonic_now(), rounds);
                    return Ok(Acquired::NotYet);
                }
                Err(Errno::INTR) => return Ok(Acquired::NotYet),
                Err(Errno::NODEV) => {
                    self.handle_unplugged(now);
                    return Ok(Acquired::NotYet);
                }
                Err(error) => return Err(file_error("reading", &self.config.file, error)),
            }
            if self.has == self.size
                && let Some(buffer) = self.posted.pop_front()
            {
                self.has = 0;
                let (number, time, is_certain) = self.windows.finish_fragment();
                let window = u32::try_from(self.windows.window_nanos()).unwrap_or(0);
                let (payload_type, mut status) = (self.payload_type, Status::empty());
                status.set(Status::UNCERTAIN, !is_certain);
                let filled = Filled { payload_type, status, window, timestamp: Some(time) };
                return Ok(Acquired::Frame(Frame { buffer, number, len: self.size, filled, crc: None, copied: 0 }));
            }
        }
        Ok(Acquired::NotYet)
    }

    fn readiness_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.watch.as_fd())
    }

    fn has_room(&self) -> bool {
        self.open.is_some() && !self.posted.is_empty()
    }

    fn is_away(&self) -> bool {
        self.open.is_none()
    }

    fn next_poll_time(&self) -> Option<Duration> {
        self.open.is_none().then_some(self.again)
    }

    fn report_counters(&self) -> Vec<(&'static str, u64)> {
        let Counts { overruns, unplugged } = self.counts;
        vec![("overruns", overruns), ("unplugged", unplugged)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_board_is_refused() {
        let config = |file: &str, more: &str| {
            let text = format!("file = {file:?}\nrate = 1000\nsamples = 100\nchannels = [0]\n{more}");
            toml::from_str::<ComediConfig>(&text).unwrap()
        };
        for (file, why) in [("/dev/null", "it is not a comedi board"), ("/dev/no-comedi", "No such file")] {
            let error = Sampler::open(&config(file, "")).unwrap_err().to_string();
            assert!(error.contains(why) && error.contains(file), "{error}");
        }
        let none = ComediConfig { channels: Vec::new(), ..config("/dev/null", "") };
        assert!(Sampler::open(&none).unwrap_err().to_string().contains("channels"));
    }
}
