//! Records from a pipe, a serial port or standard input, read into slots as they arrive.
//!
//! The kernel writes each record into its slot. If no reader takes the records, the pipe fills up and the writer waits:
//! nothing is lost. On a serial port the sender does not wait; the driver counts what it loses.

use crate::local::StreamConfig;
use crate::local::framing::{Framer, Framing, Next};
use crate::local::port::{Port, Read, Watch, file_error};
use crate::local::records::{Records, Rule};
use rustix::io::{Errno, IoSliceMut};
use std::collections::VecDeque;
use std::os::fd::BorrowedFd;
use std::path::PathBuf;
use std::time::Duration;
use thalweg_device::{Acquired, Acquisition, Buffer, Description, DeviceError, Filled, Frame, Layout};
use thalweg_wire::{PayloadType, Status, TaiNanos};

/// Maximum number of records that one call reads.
const MAX_BURST_RECORDS: usize = 64;
/// Time between two attempts to find a port that was unplugged.
const REOPEN_INTERVAL: Duration = Duration::from_millis(200);
/// Time without bytes after which no more of the current record is expected on a line.
const QUIET_TIME: Duration = Duration::from_millis(100);
/// Number of bytes of a line that are read at a time.
const LINE_READ_BYTES: usize = 64 << 10;

/// A stream of records.
#[derive(Debug)]
pub struct Stream {
    description: Description,
    file: PathBuf,
    baud: Option<u32>,
    port: Option<Port>,
    watch: Option<Watch>,
    layout: Option<Layout>,
    longest: usize,
    records: Records,
    /// Framer of records with marks, if the options name a mark.
    framer: Option<Framer>,
    /// Buffer for the bytes of a line that are read at a time.
    piece: Vec<u8>,
    /// Time at which the last byte arrived.
    latest: Duration,
    /// True if an unknown number of records was lost: later ones may belong to other events.
    uncertain: bool,
    /// True if bytes were skipped since the last record.
    skips: bool,
    /// Error that ends the stream, after what arrived before has been taken.
    failure: Option<DeviceError>,
    posted: VecDeque<Buffer>,
    filled: VecDeque<Acquired>,
    /// Number of the current record.
    number: u64,
    over: bool,
    /// Time of the next attempt to find a port that is gone.
    again: Duration,
    /// Count of the driver at the beginning of the run.
    before: u64,
    counts: Counts,
}

#[derive(Debug, Clone, Copy, Default)]
struct Counts {
    bytes: u64,
    cut_off: u64,
    skipped: u64,
    unplugged: u64,
    /// Errors that the driver of a serial port has counted.
    overruns: Option<u64>,
}

impl Stream {
    /// Opens the file that a topology names.
    ///
    /// # Errors
    /// Fails if the file cannot be opened, or an option makes no sense.
    pub fn open(config: &StreamConfig) -> Result<Self, DeviceError> {
        let port = Port::open(&config.file, config.baud);
        Self::new(config, port.map_err(|error| file_error("opening", &config.file, error))?)
    }

    /// Takes records from standard input; `config.file` is only a name.
    ///
    /// # Errors
    /// Fails if an option makes no sense.
    pub fn from_standard_input(config: &StreamConfig) -> Result<Self, DeviceError> {
        if config.baud.is_some() {
            let problem = "it needs a serial port that is opened by name".to_owned();
            return Err(DeviceError::Option { option: "baud", problem });
        }
        Self::new(config, Port::from_standard_input().map_err(|error| file_error("opening", &config.file, error))?)
    }

    fn new(config: &StreamConfig, port: Port) -> Result<Self, DeviceError> {
        let layout = config.record_layout()?;
        let longest = usize::try_from(config.longest_record_bytes().unwrap_or(0)).unwrap_or(usize::MAX);
        let rule = match config.length {
            Some(prefix) => Rule::Prefixed { prefix, longest },
            None => Rule::Fixed(longest),
        };
        let framing = match (&config.mark, &config.end) {
            (Some(mark), _) => Some(Framing::Begins(mark.as_bytes().to_vec(), rule)),
            (None, Some(end)) => Some(Framing::Ends(end.as_bytes().to_vec(), longest)),
            (None, None) => None,
        };
        let mut framer = framing.map(Framer::new);
        if let Some(framer) = framer.as_mut().filter(|_| port.is_serial()) {
            framer.join_midway();
        }
        let watch = port.signals_readiness().then(|| Watch::new(&port)).transpose();
        let payload_type = layout.as_ref().map_or(PayloadType::RAW, |layout| layout.payload_type);
        let description = Description {
            kind: "stream".into(),
            payload_type: payload_type.type_name().to_owned(),
            shape: layout.as_ref().and_then(|layout| layout.shape.clone()),
            record_bytes: Some(longest as u64),
            file: Some(config.file.display().to_string()),
            notes: layout.as_ref().and_then(|layout| layout.byte_order_note(&config.file)).into_iter().collect(),
            ..Description::default()
        };
        Ok(Self {
            description,
            file: config.file.clone(),
            baud: config.baud,
            port: Some(port),
            watch: watch.map_err(|error| file_error("waiting for", &config.file, error))?,
            layout,
            longest,
            records: Records::new(rule),
            framer,
            piece: Vec::new(),
            latest: Duration::ZERO,
            uncertain: false,
            skips: false,
            failure: None,
            posted: VecDeque::new(),
            filled: VecDeque::new(),
            number: 0,
            over: false,
            again: Duration::ZERO,
            before: 0,
            counts: Counts::default(),
        })
    }

    /// Reads the bytes that are there, as far as there are buffers. Returns true if any were there.
    fn read_available(&mut self, now: Duration) -> Result<bool, DeviceError> {
        if self.framer.is_some() {
            return self.read_marked(now);
        }
        if self.records.record_len() == Some(0) {
            // The record's length came with a record that took the last buffer.
            self.records.receive_bytes(0);
            self.finish_record(0);
            return Ok(true);
        }
        let Some(port) = &mut self.port else { return self.reopen_port(now).map(|()| false) };
        let mut next = [0; 8];
        let has = self.records.received_bytes();
        let read = match self.records.record_len() {
            // The length before the record comes first.
            None => port.read_available(&mut [IoSliceMut::new(self.records.missing_head_mut())]),
            Some(len) => {
                let after = self.records.next_head_bytes();
                let mut places: Vec<_> = match after {
                    0 => self
                        .posted
                        .iter_mut()
                        .take(MAX_BURST_RECORDS)
                        .map(|buffer| &mut buffer.payload_mut()[..len])
                        .collect(),
                    _ => self.posted.front_mut().map(|buffer| &mut buffer.payload_mut()[..len]).into_iter().collect(),
                };
                if let Some(front) = places.first_mut() {
                    *front = &mut std::mem::take(front)[has..];
                }
                let mut places: Vec<_> = places.into_iter().map(IoSliceMut::new).collect();
                if after > 0 {
                    places.push(IoSliceMut::new(&mut next[..after]));
                }
                port.read_available(&mut places)
            }
        };
        match read.map_err(|error| file_error("reading", &self.file, error))? {
            Read::Bytes(bytes) => {
                self.count_overruns();
                // Records that precede an impossible length are taken first.
                self.failure = self.receive_bytes(bytes, &next).err();
                return Ok(true);
            }
            Read::NotYet => self.count_overruns(),
            Read::End => {
                self.drop_incomplete();
                self.over = true;
            }
            Read::Gone => {
                self.handle_unplugged();
                self.again = now + REOPEN_INTERVAL;
            }
        }
        Ok(false)
    }

    /// Reads like [`read_available`](Self::read_available), for records with marks.
    fn read_marked(&mut self, now: Duration) -> Result<bool, DeviceError> {
        if self.take_record(false) {
            return Ok(true);
        }
        let Some(port) = &mut self.port else { return self.reopen_port(now).map(|()| false) };
        self.piece.resize(LINE_READ_BYTES, 0);
        let read = port.read_available(&mut [IoSliceMut::new(&mut self.piece)]);
        match read.map_err(|error| file_error("reading", &self.file, error))? {
            Read::Bytes(came) => {
                self.count_overruns();
                let piece = std::mem::take(&mut self.piece);
                self.push_line_bytes(&piece[..came], now);
                self.piece = piece;
                return Ok(true);
            }
            Read::NotYet => {
                self.count_overruns();
                return Ok(self.take_when_quiet(now));
            }
            Read::End => {
                while self.take_record(true) {}
                self.drop_incomplete();
                self.over = true;
            }
            Read::Gone => {
                while self.take_record(true) {}
                self.handle_unplugged();
                self.again = now + REOPEN_INTERVAL;
            }
        }
        Ok(false)
    }

    /// Takes bytes that arrived on a line.
    fn push_line_bytes(&mut self, bytes: &[u8], now: Duration) {
        self.counts.bytes += bytes.len() as u64;
        self.latest = now;
        if let Some(framer) = &mut self.framer {
            framer.push_bytes(bytes);
        }
    }

    /// Notes that the line has no more bytes. Returns true if this has been so for a while, and something was taken for
    /// that reason.
    fn take_when_quiet(&mut self, now: Duration) -> bool {
        now >= self.latest + QUIET_TIME && self.take_record(true)
    }

    /// Takes one record, or skips bytes that belong to none. Returns true if there was either.
    fn take_record(&mut self, quiet: bool) -> bool {
        let (Some(framer), Some(buffer)) = (&mut self.framer, self.posted.front_mut()) else { return false };
        let len = match framer.next_record(quiet) {
            Next::Record(record) => {
                buffer.payload_mut()[..record.len()].copy_from_slice(record);
                record.len()
            }
            Next::Skipped(bytes) => {
                self.counts.skipped += bytes as u64;
                self.skips = true;
                return true;
            }
            Next::More => return false,
        };
        if std::mem::take(&mut self.skips) && self.number > 0 {
            tracing::warn!("{}: bytes were lost before record {}", self.file.display(), self.number + 1);
            self.record_loss();
        }
        self.finish_record(len);
        true
    }

    /// Notes that one record is lost, and perhaps more.
    fn record_loss(&mut self) {
        self.filled.push_back(Acquired::Lost { first: self.number, count: 1 });
        self.number += 1;
        self.uncertain = true;
    }

    /// Notes that `bytes` bytes arrived in the places that were read into; those after a record are the beginning of
    /// the next one's length.
    fn receive_bytes(&mut self, mut bytes: usize, next: &[u8; 8]) -> Result<(), DeviceError> {
        self.counts.bytes += bytes as u64;
        if self.records.record_len().is_none() {
            self.receive_head(bytes)?;
            bytes = 0;
        }
        while let Some(len) = self.records.record_len().filter(|len| bytes > 0 || *len == 0) {
            let took = bytes.min(len - self.records.received_bytes());
            if self.posted.is_empty() {
                break;
            }
            bytes -= took;
            if self.records.receive_bytes(took).is_some() {
                self.finish_record(len);
            }
            if bytes > 0 && self.records.record_len().is_none() {
                self.records.missing_head_mut()[..bytes].copy_from_slice(&next[..bytes]);
                self.receive_head(std::mem::take(&mut bytes))?;
            }
        }
        Ok(())
    }

    fn receive_head(&mut self, bytes: usize) -> Result<(), DeviceError> {
        let (at, file) = (self.records.at, &self.file);
        self.records.receive_head(bytes).map_err(|problem| DeviceError::Stream { file: file.clone(), at, problem })
    }

    fn finish_record(&mut self, len: usize) {
        let Some(mut buffer) = self.posted.pop_front() else { return };
        let mut payload_type = PayloadType::RAW;
        if let Some(layout) = &self.layout {
            payload_type = layout.payload_type;
            layout.to_little_endian(&mut buffer.payload_mut()[..len]);
        }
        let status = if self.uncertain { Status::UNCERTAIN } else { Status::empty() };
        let filled = Filled { payload_type, status, window: 0, timestamp: None };
        self.filled.push_back(Acquired::Frame(Frame {
            buffer,
            number: self.number,
            len,
            filled,
            crc: None,
            copied: 0,
        }));
        self.number += 1;
    }

    fn handle_unplugged(&mut self) {
        tracing::warn!("{} was unplugged; waiting for it", self.file.display());
        self.drop_incomplete();
        self.counts.unplugged += 1;
        self.port = None;
        self.uncertain = true;
    }

    /// Reads how much the driver has lost, before anything is taken that arrived later. A port that is gone no longer
    /// reports it.
    fn count_overruns(&mut self) {
        if let Some(counted) = self.port.as_ref().and_then(Port::overrun_count) {
            self.add_overruns(counted);
        }
    }

    /// Notes the driver's present count of losses.
    fn add_overruns(&mut self, counted: u64) {
        let lost = counted.saturating_sub(self.before);
        *self.counts.overruns.get_or_insert(0) += lost;
        self.before = counted;
        self.uncertain |= lost > 0;
    }

    /// Drops the incomplete record, of which no more comes.
    fn drop_incomplete(&mut self) {
        let bytes = self.framer.as_mut().map_or(0, Framer::clear_pending) + self.records.drop_incomplete();
        if bytes > 0 {
            tracing::warn!("{}: the last {bytes} bytes are not a whole record", self.file.display());
            self.counts.cut_off += bytes as u64;
            self.filled.push_back(Acquired::Lost { first: self.number, count: 1 });
            self.number += 1;
        }
    }

    /// Checks whether a port that was unplugged is there again.
    fn reopen_port(&mut self, now: Duration) -> Result<(), DeviceError> {
        if now < self.again {
            return Ok(());
        }
        self.again = now + REOPEN_INTERVAL;
        let Ok(port) = Port::open(&self.file, self.baud) else { return Ok(()) };
        if let Some(watch) = &self.watch {
            watch.add_file(&port).map_err(|error| file_error("waiting for", &self.file, error))?;
        }
        tracing::info!("{} is back", self.file.display());
        self.before = port.overrun_count().unwrap_or(0);
        self.join_midway();
        self.port = Some(port);
        Ok(())
    }

    /// Notes that the bytes to come may begin in the middle of a record.
    fn join_midway(&mut self) {
        if let Some(framer) = &mut self.framer {
            framer.join_midway();
        }
    }
}

impl Acquisition for Stream {
    fn description(&self) -> &Description {
        &self.description
    }

    fn max_payload_bytes(&self) -> usize {
        self.longest
    }

    fn max_posted_buffers(&self) -> u32 {
        MAX_BURST_RECORDS as u32
    }

    fn post_buffer(&mut self, buffer: Buffer) {
        self.posted.push_back(buffer);
    }

    fn start_acquisition(&mut self, _at: TaiNanos) -> Result<(), DeviceError> {
        let Some(port) = &self.port else { return Ok(()) };
        let before = port.overrun_count().unwrap_or(0);
        match port.discard_pending() {
            Ok(()) => self.before = before,
            Err(error) if matches!(Errno::from_io_error(&error), Some(Errno::IO | Errno::NODEV | Errno::NXIO)) => {
                self.handle_unplugged();
            }
            Err(error) => return Err(file_error("emptying", &self.file, error)),
        }
        Ok(())
    }

    fn poll_acquired(&mut self, now: Duration) -> Result<Acquired, DeviceError> {
        while self.filled.is_empty() && !self.over && !self.posted.is_empty() && self.failure.is_none() {
            if !self.read_available(now)? {
                break;
            }
        }
        Ok(match self.filled.pop_front() {
            Some(acquired) => acquired,
            None if self.failure.is_some() => return self.failure.take().map_or(Ok(Acquired::NotYet), Err),
            None if self.over => Acquired::Over,
            None => Acquired::NotYet,
        })
    }

    fn readiness_fd(&self) -> Option<BorrowedFd<'_>> {
        self.watch.as_ref().map(Watch::as_fd)
    }

    fn has_room(&self) -> bool {
        !self.posted.is_empty()
    }

    fn is_away(&self) -> bool {
        self.port.is_none() && !self.over
    }

    fn next_poll_time(&self) -> Option<Duration> {
        if !self.filled.is_empty() || self.over {
            return Some(Duration::ZERO);
        }
        if self.has_room() && self.framer.as_ref().is_some_and(|framer| framer.pending_bytes() > 0) {
            return Some(self.latest + QUIET_TIME);
        }
        match &self.port {
            None => self.has_room().then_some(self.again),
            Some(port) if !port.signals_readiness() && self.has_room() => Some(Duration::ZERO),
            Some(_) => None,
        }
    }

    fn report_counters(&self) -> Vec<(&'static str, u64)> {
        let since = self.port.as_ref().and_then(Port::overrun_count).map(|now| now.saturating_sub(self.before));
        let Counts { bytes, cut_off, skipped, unplugged, overruns } = self.counts;
        let always =
            [("bytes", bytes), ("cut_off_bytes", cut_off), ("skipped_bytes", skipped), ("unplugged", unplugged)];
        let overruns = since.or(overruns).map(|_| ("overruns", since.unwrap_or(0) + overruns.unwrap_or(0)));
        always.into_iter().chain(overruns).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::local::trials::{Book, Draw, play_calm_trials, play_trials};
    use rustix::fs::{CWD, FileType, Mode, mknodat};
    use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
    use rustix::termios::{LocalModes, tcgetattr};
    use std::fs::File;
    use std::io::Write;
    use std::os::fd::OwnedFd;
    use std::path::Path;
    use thalweg_arena::SlotPool;

    fn config(file: &Path, record: u64) -> StreamConfig {
        toml::from_str(&format!("file = {file:?}\nrecord = {record}")).unwrap()
    }

    fn fifo() -> (tempfile::TempDir, PathBuf) {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("fifo");
        mknodat(CWD, &file, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
        (directory, file)
    }

    fn stream(config: &StreamConfig, slots: u32) -> (Stream, SlotPool) {
        let mut pool = SlotPool::new("slots", slots, 256).unwrap();
        let mut stream = Stream::open(config).unwrap();
        while let Some(slot) = pool.take_slot() {
            stream.post_buffer(Buffer::new(slot));
        }
        stream.start_acquisition(TaiNanos(0)).unwrap();
        (stream, pool)
    }

    /// Returns all records and losses that are there.
    fn all(stream: &mut Stream, now: u64) -> Vec<Result<(u64, Vec<u8>), u64>> {
        let mut all = Vec::new();
        loop {
            match stream.poll_acquired(Duration::from_secs(now)).unwrap() {
                Acquired::Frame(Frame { mut buffer, number, len, .. }) => {
                    all.push(Ok((number, buffer.payload_mut()[..len].to_vec())));
                    stream.post_buffer(buffer);
                }
                Acquired::Lost { first, count: 1 } => all.push(Err(first)),
                Acquired::Lost { .. } | Acquired::Missed { .. } => unreachable!("one record is cut off at a time"),
                Acquired::NotYet | Acquired::Over => return all,
            }
        }
    }

    #[test]
    fn a_pipe_without_a_writer_yet_is_not_over_and_one_that_was_closed_is() {
        let (_directory, file) = fifo();
        let (mut stream, _pool) = stream(&config(&file, 4), 8);
        assert_eq!(all(&mut stream, 0), []);
        assert!(!stream.over, "no program has written yet");
        let mut writer = File::options().write(true).open(&file).unwrap();
        writer.write_all(b"oneatwobthrc4").unwrap();
        let came = [(0, b"onea".to_vec()), (1, b"twob".to_vec()), (2, b"thrc".to_vec())];
        assert_eq!(all(&mut stream, 0), came.map(Ok));
        assert!(!stream.over);
        drop(writer);
        assert_eq!(all(&mut stream, 0), [Err(3)], "a byte of the fourth was there");
        assert!(stream.over);
        assert_eq!(stream.report_counters()[..2], [("bytes", 13), ("cut_off_bytes", 1)]);
    }

    #[test]
    fn records_that_say_how_long_they_are_come_one_by_one() {
        let (_directory, file) = fifo();
        let text = format!("file = {file:?}\nsize = 100\nlength = {{ bytes = 2 }}");
        let (mut stream, _pool) = stream(&toml::from_str(&text).unwrap(), 2);
        let mut writer = File::options().write(true).open(&file).unwrap();
        writer.write_all(b"\0\x03abc\0\0\0\x01d\0").unwrap();
        assert_eq!(all(&mut stream, 0), [(0, b"abc".to_vec()), (1, vec![]), (2, b"d".to_vec())].map(Ok));
        writer.write_all(b"\x64").unwrap();
        assert_eq!(all(&mut stream, 0), []);
        writer.write_all(&[7; 100]).unwrap();
        assert_eq!(all(&mut stream, 0), [Ok((3, vec![7; 100]))]);
        writer.write_all(b"\x01\0").unwrap();
        let error = stream.poll_acquired(Duration::ZERO).unwrap_err().to_string();
        assert!(error.contains("at byte 112: a record of 256 bytes is announced, but size is 100"), "{error}");
    }

    #[test]
    fn a_record_in_front_of_a_length_that_cannot_be_is_taken() {
        let (_directory, file) = fifo();
        let text = format!("file = {file:?}\nsize = 9\nlength = {{ bytes = 1 }}");
        let (mut stream, _pool) = stream(&toml::from_str(&text).unwrap(), 2);
        let mut writer = File::options().write(true).open(&file).unwrap();
        writer.write_all(b"\x03").unwrap();
        assert_eq!(all(&mut stream, 0), []);
        writer.write_all(b"abc\xff").unwrap();
        let Acquired::Frame(frame) = stream.poll_acquired(Duration::ZERO).unwrap() else { panic!("no frame") };
        assert_eq!((frame.number, frame.len), (0, 3));
        assert!(stream.poll_acquired(Duration::ZERO).is_err());
    }

    /// A line that loses bytes: records are found again, one is lost for each gap, and later ones are uncertain.
    #[test]
    fn on_a_line_that_loses_bytes_the_next_mark_is_found() {
        let directory = tempfile::tempdir().unwrap();
        let (instrument, name) = terminal();
        let port = directory.path().join("ttyUSB0");
        std::os::unix::fs::symlink(&name, &port).unwrap();
        let text = format!("file = {port:?}\nrecord = 4\nmark = \"a55a\"");
        let (mut stream, _pool) = stream(&toml::from_str(&text).unwrap(), 8);
        // It was joined in the middle of a record.
        rustix::io::write(&instrument, b"ne.\xa5\x5atwo.\xa5\x5athr.\xa5\x5afr.\xa5\x5afiv.").unwrap();
        let found = all(&mut stream, 1);
        let came = [Ok((0, b"two.".to_vec())), Ok((1, b"thr.".to_vec()))];
        assert_eq!(found, came, "the last one waits for what is behind it");
        assert_eq!(stream.next_poll_time(), Some(Duration::from_secs(1) + QUIET_TIME));
        assert_eq!(all(&mut stream, 2), [Err(2), Ok((3, b"fiv.".to_vec()))]);
        assert!(stream.uncertain);
        assert!(stream.report_counters().contains(&("skipped_bytes", 8)), "{:?}", stream.report_counters());
    }

    /// Returns a terminal's other end, and its name.
    fn terminal() -> (OwnedFd, PathBuf) {
        let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        grantpt(&master).unwrap();
        unlockpt(&master).unwrap();
        let name = ptsname(&master, Vec::new()).unwrap().into_string().unwrap();
        (master, name.into())
    }

    #[test]
    fn a_serial_port_gives_bytes_as_they_come_is_left_as_it_was_and_waited_for_when_unplugged() {
        let directory = tempfile::tempdir().unwrap();
        let port = directory.path().join("ttyUSB0");
        let (instrument, name) = terminal();
        std::os::unix::fs::symlink(&name, &port).unwrap();
        let kept = File::options().read(true).write(true).open(&name).unwrap();
        let canonical = || tcgetattr(&kept).unwrap().local_modes.contains(LocalModes::ICANON);
        rustix::io::write(&instrument, b"stale\n").unwrap();
        let (mut stream, _pool) = stream(&StreamConfig { baud: Some(115_200), ..config(&port, 3) }, 8);
        assert!(!canonical());
        rustix::io::write(&instrument, b"\x03\r\x00abc!").unwrap();
        let came = [(0, b"\x03\r\x00".to_vec()), (1, b"abc".to_vec())];
        assert_eq!(all(&mut stream, 0), came.map(Ok), "no byte means anything, and what is from before is gone");
        stream.port = None;
        assert!(canonical(), "it is left as it was");

        // Another port is plugged in there.
        drop((instrument, kept));
        let (instrument, name) = terminal();
        std::fs::remove_file(&port).unwrap();
        std::os::unix::fs::symlink(&name, &port).unwrap();
        assert_eq!(all(&mut stream, 1), []);
        rustix::io::write(&instrument, b"bcdef").unwrap();
        assert_eq!(all(&mut stream, 1).len(), 2);
        drop(instrument);
        assert_eq!(all(&mut stream, 2), []);
        assert_eq!(stream.counts.unplugged, 1);
        assert!(stream.port.is_none() && stream.next_poll_time() > Some(Duration::from_secs(2)));
    }

    /// Framing of the records: all of one length, with a length before each, or lines.
    #[derive(Debug, Clone, Copy, PartialEq)]
    enum Kind {
        Fixed,
        Prefixed,
        Lines,
    }

    const SHORTEST: u64 = 20;

    /// Returns a record that names its trigger at its beginning and at its end, in letters.
    fn record(kind: Kind, trigger: u64, draw: &mut Draw) -> Vec<u8> {
        let name: Vec<u8> = (0..8).map(|at| b'a' + (trigger / 26_u64.pow(at) % 26) as u8).collect();
        let length = if kind == Kind::Fixed { SHORTEST } else { draw.number_in(SHORTEST..60) } as usize;
        let payload = [&name[..], &vec![b'.'; length - 16], &name].concat();
        match kind {
            Kind::Fixed => [b"\xa5\x5a", &payload[..]].concat(),
            Kind::Prefixed => [b"\xa5\x5a", &[length as u8][..], &payload[..]].concat(),
            Kind::Lines => [&payload[..], b"\r\n"].concat(),
        }
    }

    /// Returns the trigger that a record names; `None` if the record was joined from two.
    fn trigger_of(payload: &[u8]) -> Option<u64> {
        let name =
            |bytes: &[u8]| bytes.iter().rev().fold(0, |name, letter| 26 * name + u64::from(letter.wrapping_sub(b'a')));
        let (first, last) = (payload.first_chunk::<8>()?, payload.last_chunk::<8>()?);
        (first == last).then(|| name(first))
    }

    /// A line that loses bytes, whose driver counts them or not, which is unplugged and plugged in again; and a source
    /// that stands still.
    fn trial(seed: u64, file: &Path, is_calm: bool) -> Book {
        let mut draw = Draw::new(seed);
        let kind = [Kind::Fixed, Kind::Prefixed, Kind::Lines][draw.number_in(0..3) as usize];
        let framing = match kind {
            Kind::Fixed => format!("record = {SHORTEST}\nmark = \"a55a\""),
            Kind::Prefixed => "size = 60\nlength = { bytes = 1 }\nmark = \"a55a\"".into(),
            Kind::Lines => "size = 60\nend = \"0d0a\"".into(),
        };
        let (mut stream, _pool) = stream(&toml::from_str(&format!("file = {file:?}\n{framing}")).unwrap(), 4);
        stream.join_midway();
        // The line begins in the middle of a record.
        let (mut book, mut next, mut origin) = (Book::new(0), 1, None);
        let mut line: Vec<u8> = record(kind, 0, &mut draw);
        line.drain(..draw.number_in(1..SHORTEST) as usize);
        let period = draw.micros_in(1000..300_000);
        let (mut now, mut sent, mut lost, mut spared, mut back) = (Duration::ZERO, Duration::ZERO, 0, 0, None);
        let room = draw.number_in(1000..4000) as usize;
        for _ in 0..250 {
            // The source looks: it takes all that is there at once.
            if back.is_some_and(|back| now >= back) {
                back = None;
                stream.before = lost;
                stream.join_midway();
            }
            if back.is_none() {
                let mut has_more = true;
                while has_more {
                    has_more = stream.take_record(false);
                    if !has_more && !line.is_empty() {
                        stream.add_overruns(lost);
                        stream.push_line_bytes(&std::mem::take(&mut line), now);
                        has_more = true;
                    } else if !has_more {
                        stream.add_overruns(lost);
                        has_more = stream.take_when_quiet(now);
                    }
                    take_all(&mut stream, &mut book, &mut origin);
                }
            }
            now += if draw.once_in(3) {
                period.mul_f64(draw.number_in(0..3000) as f64 / 1000.0)
            } else {
                draw.micros_in(0..20_000)
            };
            match draw.number_in(0..1000) {
                _ if is_calm => {}
                0 | 1 => now += draw.micros_in(1000..3_000_000),
                2 if back.is_none() => {
                    line.clear();
                    while stream.take_record(true) {
                        take_all(&mut stream, &mut book, &mut origin);
                    }
                    stream.handle_unplugged();
                    take_all(&mut stream, &mut book, &mut origin);
                    back = Some(now + draw.micros_in(1000..3_000_000));
                }
                _ => {}
            }
            // A record takes a part of the time to the next one, and its bytes arrive one by one.
            while sent < now {
                let mut bytes = record(kind, next, &mut draw);
                let at = draw.number_in(0..bytes.len() as u64) as usize;
                if !is_calm && spared == 0 && draw.once_in(500) {
                    // A few bytes are lost. At the end of lines only the driver can notice.
                    let end = bytes.len().min(at + draw.number_in(1..SHORTEST) as usize);
                    bytes.drain(at..end);
                    spared = 3;
                    lost += u64::from(kind == Kind::Lines || draw.once_in(2));
                } else if !is_calm && draw.once_in(1000) {
                    // A whole record is lost, and the driver counts it.
                    bytes.clear();
                    lost += 1;
                }
                spared = u64::saturating_sub(spared, 1);
                if back.is_none() {
                    let fits = if is_calm { bytes.len() } else { bytes.len().min(room.saturating_sub(line.len())) };
                    lost += u64::from(fits < bytes.len());
                    line.extend(&bytes[..fits]);
                }
                (next, sent) = (next + 1, sent + period);
            }
            // A part of the bytes arrives later.
            if back.is_none() && !line.is_empty() && draw.once_in(2) {
                let rest = line.split_off(draw.number_in(0..line.len() as u64) as usize);
                stream.take_record(false);
                stream.add_overruns(lost);
                stream.push_line_bytes(&std::mem::replace(&mut line, rest), now);
                take_all(&mut stream, &mut book, &mut origin);
                now += draw.micros_in(0..300_000);
            }
        }
        book
    }

    fn take_all(stream: &mut Stream, book: &mut Book, origin: &mut Option<u64>) {
        while let Some(acquired) = stream.filled.pop_front() {
            match acquired {
                Acquired::Frame(Frame { mut buffer, number, len, filled, .. }) => {
                    let trigger = trigger_of(&buffer.payload_mut()[..len]);
                    let origin = *origin.get_or_insert(trigger.unwrap_or(0));
                    let trigger = trigger.map_or(u64::MAX, |trigger| trigger.wrapping_sub(origin));
                    book.record_fragment(number, trigger, !filled.status.contains(Status::UNCERTAIN));
                    stream.post_buffer(buffer);
                }
                Acquired::Lost { first, count } => book.record_lost(first, count),
                other => panic!("{other:?}"),
            }
        }
    }

    /// `THALWEG_TRIALS` states the number of new ones.
    #[test]
    fn no_record_whose_status_is_good_is_another_triggers() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let (records, uncertain) = play_trials("stream", 40, |seed| trial(seed, file.path(), false));
        assert!(uncertain > 0 && records > uncertain);
    }

    #[test]
    fn no_number_is_uncertain_where_nothing_goes_wrong() {
        let file = tempfile::NamedTempFile::new().unwrap();
        play_calm_trials("stream", 10, |seed| trial(seed, file.path(), true));
    }

    #[test]
    fn what_is_no_stream_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let error = Stream::open(&config(directory.path(), 4)).unwrap_err().to_string();
        assert!(error.contains("it is not a pipe, a serial port or a file"), "{error}");
        let file = directory.path().join("file");
        std::fs::write(&file, b"12345678").unwrap();
        let error = Stream::open(&StreamConfig { baud: Some(9600), ..config(&file, 4) }).unwrap_err().to_string();
        assert!(error.contains("baud is only for serial ports"), "{error}");
        let (mut stream, _pool) = stream(&config(&file, 4), 1);
        assert!(stream.readiness_fd().is_none(), "a file has nothing to wait for");
        assert_eq!(all(&mut stream, 0).len(), 2);
        assert!(stream.over);
    }
}
