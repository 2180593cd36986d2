//! Replay of one thread of a VDIF recording (*VLBI Data Interchange Format Specification*, release 1.1.1, 2014,
//! <https://vlbi.org/vlbi-standards/vdif/>).
//!
//! One fragment is one data frame, its header included; one event is one frame time (second and frame number) across
//! all threads of the file. Each thread's device reads the headers of the whole file, so that all count the same
//! events: where other threads have a frame and this one has none, its fragment is without payload and has status
//! `missing`. A frame whose `invalid` bit is set has status `corrupt`. Frames are played in the order of their times. A
//! frame that comes twice is played once, and one that is cut off at the file's end is not played; the device's notes
//! give the numbers of these.
//!
//! A frame's time is that of its second and number, the same in all threads. The number of frames per second follows
//! from the configuration (`rate`, or `sample_rate`), or else from the headers' extension, or from the frame numbers at
//! the transition from one second to the next. If it is not known, a frame's time is that of its second.

use crate::file::InputFile;
use crate::replay::{Recording, Replay};
use crate::time::parse_utc_time;
use crate::{Description, DeviceError, Filled, VdifConfig};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::LazyLock;
use std::time::{Duration, SystemTime};
use thalweg_wire::{PayloadType, Status, TaiNanos};

/// Maximum number of frames in an index; frames of 8 KiB are then 256 GiB.
const MAX_FRAMES: usize = 1 << 25;
/// Length of a header in bytes, and of one in the legacy form without the last four words.
const HEADER_BYTES: usize = 32;
const LEGACY_HEADER_BYTES: usize = 16;

/// Opens the recording, reads all its frame headers, and indexes the frames of the requested thread.
pub(crate) fn open_recording(config: &VdifConfig) -> Result<Replay<Vdif>, DeviceError> {
    let file = InputFile::open(&config.file)?;
    let thread = match config.thread {
        Some(thread) => thread,
        None => match threads_in_file(&file)?[..] {
            [thread] => thread,
            ref threads => {
                return Err(DeviceError::Thread { file: config.file.clone(), wanted: None, threads: threads.to_vec() });
            }
        },
    };
    let index = Index::from_file(&file, thread)?;
    let Some(header) = index.first else {
        let threads = index.spans.into_keys().collect();
        return Err(DeviceError::Thread { file: config.file.clone(), wanted: Some(thread), threads });
    };
    let rate = index.frame_rate(&header, config)?;
    let missing = index.frames.iter().filter(|frame| frame.is_missing()).count();
    let description = Description {
        kind: "vdif".to_owned(),
        payload_type: PayloadType::VDIF.type_name().to_owned(),
        channels: Some(1 << header.channels_log2),
        sample_rate: configured_sample_rate(config, &header),
        bits: Some(header.bits),
        complex: Some(header.complex),
        record_bytes: Some(header.length as u64),
        samples: header.sample_count(),
        file: Some(config.file.display().to_string()),
        thread: Some(thread),
        station: Some(header.station_name()),
        frame_rate: rate,
        missing: Some(missing as u64),
        repeated: Some(index.repeated as u64).filter(|repeated| *repeated > 0),
        cut_off_bytes: index.cut_frame_of(thread).map(|cut| cut.left),
        notes: index.user_notes(thread, rate),
        ..Default::default()
    };
    let recording = Vdif { file, frames: index.frames, length: header.length, rate };
    Ok(Replay::new(recording, description, header.length, config.looped))
}

/// Returns samples per second and channel: as configured, or computed from the configured frame rate, or from the
/// header.
fn configured_sample_rate(config: &VdifConfig, header: &Header) -> Option<f64> {
    let configured = config.sample_rate.map(|rate| rate as f64);
    configured.or_else(|| Some(config.rate?.hertz() * header.sample_count()? as f64)).or(header.stated_sample_rate())
}

/// Returns the threads of a recording, in order. Reads all headers of the file.
pub(crate) fn recording_threads(path: &Path) -> Result<Vec<u16>, DeviceError> {
    threads_in_file(&InputFile::open(path)?)
}

/// Returns whether a file of unknown name begins like a VDIF recording, with two frames that fit together.
pub(crate) fn looks_like_vdif(file: &InputFile) -> bool {
    let Some(first) = read_header_at(file, 0) else { return false };
    let Some(second) = read_header_at(file, first.length as u64) else { return false };
    let [first_form, second_form] = [first, second].map(|h| (h.length, h.epoch, h.station, h.legacy));
    first_form == second_form && second.seconds.abs_diff(first.seconds) <= 1
}

/// Returns the plausible frame header at this offset, if there is one.
fn read_header_at(file: &InputFile, at: u64) -> Option<Header> {
    let left = usize::try_from(file.len().checked_sub(at)?).unwrap_or(usize::MAX);
    let mut bytes = [0; HEADER_BYTES];
    let bytes = &mut bytes[..left.min(HEADER_BYTES)];
    file.read_at(at, bytes).ok()?;
    Header::from_bytes(bytes).ok().filter(|header| !header.reserved)
}

fn threads_in_file(file: &InputFile) -> Result<Vec<u16>, DeviceError> {
    let mut threads = BTreeSet::new();
    let _ = for_each_frame(file, |_, header| {
        threads.insert(header.thread);
        Ok(())
    })?;
    Ok(threads.into_iter().collect())
}

/// One thread's frames, one entry for each frame time of the recording.
#[derive(Debug)]
pub(crate) struct Vdif {
    file: InputFile,
    frames: Vec<Frame>,
    /// Bytes in each frame.
    length: usize,
    /// Frames per second, if known.
    rate: Option<u32>,
}

impl Vdif {
    fn frame_nanos(&self, frame: Frame) -> u64 {
        let since_second =
            self.rate.map_or(0, |rate| u64::from(frame.frame_number()) * 1_000_000_000 / u64::from(rate));
        frame.tai_second() * 1_000_000_000 + since_second
    }

    /// Returns the time that one frame covers, in nanoseconds; 0 if unknown.
    fn window_nanos(&self) -> u32 {
        self.rate.map_or(0, |rate| 1_000_000_000 / rate)
    }
}

impl Recording for Vdif {
    fn record_count(&self) -> u64 {
        self.frames.len() as u64
    }

    fn payload_len(&self, record: u64) -> usize {
        if self.frames[record as usize].is_missing() { 0 } else { self.length }
    }

    fn header_values(&self, record: u64) -> Filled {
        let frame = self.frames[record as usize];
        let mut status = Status::REPLAYED;
        status.set(Status::MISSING, frame.is_missing());
        status.set(Status::CORRUPT, frame.is_invalid());
        let timestamp = Some(TaiNanos(self.frame_nanos(frame)));
        Filled { payload_type: PayloadType::VDIF, status, window: self.window_nanos(), timestamp }
    }

    fn read_payload(&mut self, record: u64, payload: &mut [u8]) -> Result<(), DeviceError> {
        match self.frames[record as usize].place {
            Frame::MISSING_PLACE => Ok(()),
            place => self.file.read_at(place & !Frame::INVALID_BIT, payload),
        }
    }

    fn pass_nanos(&self) -> u64 {
        let (Some(first), Some(last)) = (self.frames.first(), self.frames.last()) else { return 0 };
        let last_takes = self.rate.map_or(1_000_000_000, |_| self.window_nanos().into());
        self.frame_nanos(*last) - self.frame_nanos(*first) + last_takes
    }

    fn marked_counts(&self) -> (u64, u64) {
        let invalid = self.frames.iter().filter(|frame| frame.is_invalid()).count();
        let missing = self.frames.iter().filter(|frame| frame.is_missing()).count();
        (invalid as u64, missing as u64)
    }
}

/// A frame time, and the place of this thread's frame in the file. 16 bytes, since there may be millions.
#[derive(Debug, Clone, Copy)]
struct Frame {
    /// TAI second since 1970 in the upper 40 bits, frame number in the lower 24: sorts by time.
    time: u64,
    /// Offset in the file, with [`Frame::INVALID_BIT`] if the frame is marked as invalid; or [`Frame::MISSING_PLACE`].
    place: u64,
}

impl Frame {
    const INVALID_BIT: u64 = 1 << 63;
    const MISSING_PLACE: u64 = u64::MAX;

    fn tai_second(self) -> u64 {
        self.time >> 24
    }

    fn frame_number(self) -> u32 {
        number_in_second(self.time)
    }

    fn is_missing(self) -> bool {
        self.place == Self::MISSING_PLACE
    }

    fn is_invalid(self) -> bool {
        !self.is_missing() && self.place & Self::INVALID_BIT != 0
    }
}

/// Returns the number of a frame in its second, from [`Frame::time`].
fn number_in_second(time: u64) -> u32 {
    (time & 0xff_ffff) as u32
}

/// Index of a recording's frames, for one thread.
struct Index {
    path: PathBuf,
    /// The first frame of the thread in the file.
    first: Option<Header>,
    frames: Vec<Frame>,
    /// Frames per second by the first header of any thread that states a sample rate, so that all threads have one.
    stated: Option<f64>,
    /// Highest frame number, and the largest number of frames seen in a second that is followed directly by the next.
    highest: u32,
    seen: Option<u32>,
    /// Times of each thread's first and last frame.
    spans: BTreeMap<u16, (u64, u64)>,
    /// Number of the thread's frames whose time another of its frames has as well.
    repeated: usize,
    /// Number of the thread's invalid frames whose time is far from all valid ones.
    undated: usize,
    cut: Option<Cut>,
}

/// Maximum distance of an invalid frame's time from the valid ones at which it is believed, in units of
/// [`Frame::time`]: ten seconds.
const MAX_INVALID_DISTANCE: u64 = 10 << 24;

impl Index {
    fn from_file(file: &InputFile, thread: u16) -> Result<Self, DeviceError> {
        let mut first: Option<Header> = None;
        let mut own: Vec<Frame> = Vec::new();
        let (mut times, mut invalid_times): (Vec<u64>, Vec<u64>) = Default::default();
        let mut stated = None;
        let mut spans = BTreeMap::new();
        let cut = for_each_frame(file, |at, header| {
            let time = header.tai_second() << 24 | u64::from(header.frame);
            let times_of_its_kind = if header.invalid { &mut invalid_times } else { &mut times };
            if times_of_its_kind.last() != Some(&time) {
                times_of_its_kind.push(time);
            }
            stated = stated.or_else(|| header.stated_frame_rate());
            if !header.invalid {
                let (begin, end) = spans.entry(header.thread).or_insert((time, time));
                (*begin, *end) = (time.min(*begin), time.max(*end));
            }
            if header.thread == thread {
                // One thread has one frame length; a change of it is damage, or another recording after the first.
                if header.length != first.get_or_insert(*header).length {
                    let found = format!("{} bytes", header.length);
                    return Err(header_error(file, at, "the frame length", found, "that of the thread's first frame"));
                }
                own.push(Frame { time, place: at | if header.invalid { Frame::INVALID_BIT } else { 0 } });
            }
            if times.len() + invalid_times.len() > MAX_FRAMES || own.len() > MAX_FRAMES {
                return Err(DeviceError::TooMany { file: file.path().to_owned(), limit: MAX_FRAMES });
            }
            Ok(())
        })?;
        // Frames that fill a gap may have no time: their clock is 0.
        let valid = times.iter().min().copied().zip(times.iter().max().copied());
        let credible = valid.map_or(0..=u64::MAX, |(first, last)| {
            first.saturating_sub(MAX_INVALID_DISTANCE)..=last.saturating_add(MAX_INVALID_DISTANCE)
        });
        let all = own.len();
        own.retain(|frame| !frame.is_invalid() || credible.contains(&frame.time));
        let undated = all - own.len();
        times.extend(invalid_times.into_iter().filter(|time| credible.contains(time)));
        times.sort_unstable();
        times.dedup();
        let highest = times.iter().map(|time| number_in_second(*time)).max().unwrap_or(0);
        let rolls =
            times.windows(2).filter(|pair| pair[1] >> 24 == (pair[0] >> 24) + 1 && number_in_second(pair[1]) == 0);
        let seen = rolls.map(|pair| number_in_second(pair[0]) + 1).max();
        // Of two frames for the same time the valid one is kept, and of two valid ones the first.
        own.sort_unstable_by_key(|frame| (frame.time, frame.place));
        let all = own.len();
        own.dedup_by_key(|frame| frame.time);
        let repeated = all - own.len();
        let mut present = own.into_iter().peekable();
        let frames = times
            .into_iter()
            .map(|time| {
                present.next_if(|frame| frame.time == time).unwrap_or(Frame { time, place: Frame::MISSING_PLACE })
            })
            .collect();
        Ok(Self { path: file.path().to_owned(), first, frames, stated, highest, seen, spans, repeated, undated, cut })
    }

    /// Returns frames per second, or `None` if they are not known, or if a frame number contradicts the headers.
    fn frame_rate(&self, header: &Header, config: &VdifConfig) -> Result<Option<u32>, DeviceError> {
        match (config.rate, config.sample_rate) {
            (None, None) => {
                let rate = self.stated.map_or(self.seen, checked_vdif_rate);
                Ok(rate.filter(|rate| *rate > self.highest))
            }
            (None, Some(value)) => {
                let frames =
                    header.sample_count().and_then(|samples| self.possible_frame_rate(value as f64 / samples as f64));
                let expected =
                    "such that a second has a whole number of the recording's frames, and no frame has a higher number";
                frames.map(Some).ok_or(DeviceError::Setting { option: "sample_rate", value, expected })
            }
            (Some(rate), None) => self.possible_frame_rate(rate.hertz()).map(Some).ok_or_else(|| {
                let problem = format!(
                    "{}: it must be the number of frames per second of one thread, a whole number; the recording has \
                     frame number {}, so that it is at least {}",
                    rate.hertz(),
                    self.highest,
                    u64::from(self.highest) + 1
                );
                DeviceError::Option { option: "rate", problem }
            }),
            (Some(_), Some(_)) => {
                let problem = "given together with sample_rate, which determines it too: write one of them".to_owned();
                Err(DeviceError::Option { option: "rate", problem })
            }
        }
    }

    /// Returns the number of frames per second, if it is possible and no frame has a higher number.
    fn possible_frame_rate(&self, rate: f64) -> Option<u32> {
        checked_vdif_rate(rate).filter(|rate| *rate > self.highest)
    }

    /// Returns the frame of this thread that the file's end cuts off, if any.
    fn cut_frame_of(&self, thread: u16) -> Option<Cut> {
        self.cut.filter(|cut| cut.may_belong_to(thread, &self.spans))
    }

    fn user_notes(&self, thread: u16, rate: Option<u32>) -> Vec<String> {
        let mut notes = Vec::new();
        let file = self.path.display();
        if self.repeated > 0 {
            notes
                .push(format!("{file}: repeated frames of thread {thread}, which are not replayed: {}", self.repeated));
        }
        if self.undated > 0 {
            notes.push(format!(
                "{file}: frames of thread {thread} marked as invalid, with a time far from all others, which are not \
                 replayed: {}",
                self.undated
            ));
        }
        if let Some(Cut { at, left, .. }) = self.cut_frame_of(thread) {
            notes.push(format!(
                "{file} ends in the middle of a frame: its last {left} bytes, from byte {at}, are not replayed"
            ));
        }
        if rate.is_none() {
            notes.push(format!(
                "{file} does not state the number of frames per second: each frame gets the time of its second; for \
                 exact times, set the option rate (frames per second of one thread) or sample_rate"
            ));
        }
        let mut spans = self.spans.iter();
        if let (Some((first, &(begin, end))), Some(own)) = (spans.next(), self.spans.get(&thread))
            && (own.0 > end || own.1 < begin)
        {
            notes.push(format!(
                "{file}: clocks disagree: thread {thread} has frames from {} to {}, thread {first} from {} to {} (TAI); \
                 their frames never belong to the same event, so that events are incomplete",
                format_date(own.0), format_date(own.1), format_date(begin), format_date(end)
            ));
        }
        notes
    }
}

/// Returns a frame's time as text, to the second.
fn format_date(time: u64) -> impl std::fmt::Display {
    humantime::format_rfc3339_seconds(SystemTime::UNIX_EPOCH + Duration::from_secs(time >> 24))
}

/// An incomplete frame at the end of the file.
#[derive(Debug, Clone, Copy)]
struct Cut {
    at: u64,
    left: u64,
    /// Thread of the frame, if the header is complete.
    thread: Option<u16>,
}

impl Cut {
    /// Returns whether it may be a frame of that thread. If its thread is unknown, it may be a frame of any.
    fn may_belong_to(self, thread: u16, known: &BTreeMap<u16, (u64, u64)>) -> bool {
        self.thread.filter(|own| known.contains_key(own)).is_none_or(|own| own == thread)
    }
}

/// Calls `visit` with the offset and header of each frame in the file. Returns the rest at its end if that is too short
/// for a frame like those before it.
fn for_each_frame(
    file: &InputFile,
    mut visit: impl FnMut(u64, &Header) -> Result<(), DeviceError>,
) -> Result<Option<Cut>, DeviceError> {
    if file.len() == 0 {
        return Err(DeviceError::Empty { file: file.path().to_owned() });
    }
    let mut bytes = [0; HEADER_BYTES];
    let mut at = 0;
    let mut longest = 0;
    while at < file.len() {
        let left = file.len() - at;
        let bytes = &mut bytes[..left.min(HEADER_BYTES as u64) as usize];
        file.read_at(at, bytes)?;
        let header = match Header::from_bytes(bytes) {
            Ok(header) => header,
            Err(HeaderError::Short(_)) if longest > 0 => return Ok(Some(Cut { at, left, thread: None })),
            Err(HeaderError::Short(needed)) => return Err(truncated_error(file, at, "the frame header", needed, left)),
            Err(HeaderError::Length(found)) => {
                let expected = "longer than its header; is this a VDIF recording from its first byte on?";
                return Err(header_error(file, at, "the frame length", format!("{found} bytes"), expected));
            }
        };
        if header.length as u64 > left {
            // A length that no frame had may be damage, after which more data follow.
            return match header.length <= longest {
                true => Ok(Some(Cut { at, left, thread: Some(header.thread) })),
                false => Err(truncated_error(file, at, "the data frame", header.length, left)),
            };
        }
        longest = longest.max(header.length);
        visit(at, &header)?;
        at += header.length as u64;
    }
    Ok(None)
}

fn header_error(file: &InputFile, at: u64, field: &'static str, found: String, expected: &'static str) -> DeviceError {
    DeviceError::Header { file: file.path().to_owned(), at, field, found, expected }
}

fn truncated_error(file: &InputFile, at: u64, what: &'static str, needed: usize, left: u64) -> DeviceError {
    DeviceError::Truncated { file: file.path().to_owned(), at, what, needed: needed as u64, left }
}

/// Reference epochs, in TAI seconds since 1970. An epoch has 6 bits.
static EPOCHS: LazyLock<[u64; 64]> = LazyLock::new(|| {
    std::array::from_fn(|epoch| {
        let begins = format!("{}-{:02}-01T00:00:00Z", 2000 + epoch / 2, 1 + 6 * (epoch % 2));
        parse_utc_time(&begins).unwrap_or_default().0 / 1_000_000_000
    })
});

/// A data frame header, words 0 to 4.
#[derive(Debug, Clone, Copy)]
struct Header {
    invalid: bool,
    legacy: bool,
    /// Seconds since the reference epoch.
    seconds: u32,
    /// Reference epoch, in half-years since 2000.
    epoch: u8,
    /// Number of the frame within the second.
    frame: u32,
    channels_log2: u8,
    /// Length of the frame in bytes, header included: below 2²⁷, the field having 24 bits of 8-byte units.
    length: usize,
    complex: bool,
    /// Bits in one sample, or in each component of a complex one: 1 to 32.
    bits: u32,
    thread: u16,
    station: u16,
    /// Word 4: extended data version and its first field. 0 in a legacy header.
    extension: u32,
    /// True if a bit is set that the specification reserves.
    reserved: bool,
}

/// Header of a data frame that has just arrived.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct VdifFrame {
    /// Second of the frame, in TAI since 1970.
    pub second: u64,
    /// Number of the frame within the second: below 2²⁴.
    pub number: u32,
    /// Length of the frame in bytes, header included.
    pub length: usize,
    /// Number of the thread.
    pub thread: u16,
    /// True if the header marks the samples as invalid.
    pub invalid: bool,
    /// Frames per second of a thread, if an extension gives a possible value.
    pub rate: Option<u32>,
}

impl VdifFrame {
    /// Reads the header at the beginning of any bytes. Returns `None` if they do not begin with a VDIF header.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let header = Header::from_bytes(bytes).ok()?;
        Some(Self {
            second: header.tai_second(),
            number: header.frame,
            length: header.length,
            thread: header.thread,
            invalid: header.invalid,
            rate: header.stated_frame_rate().and_then(checked_vdif_rate),
        })
    }
}

/// Returns the number of frames per second of a thread if `rate` is possible: by the specification each second has a
/// whole number of frames, and the field for their numbers has 24 bits.
pub fn checked_vdif_rate(rate: f64) -> Option<u32> {
    (rate.fract() == 0.0 && (1.0..16_777_216.0).contains(&rate)).then_some(rate as u32)
}

#[derive(Debug, PartialEq, Eq)]
enum HeaderError {
    /// The header needs this number of bytes.
    Short(usize),
    /// The frame has this number of bytes, not more than its header.
    Length(usize),
}

fn little_endian_words<const N: usize>(bytes: &[u8]) -> [u32; N] {
    std::array::from_fn(|i| u32::from_le_bytes([bytes[4 * i], bytes[4 * i + 1], bytes[4 * i + 2], bytes[4 * i + 3]]))
}

impl Header {
    fn from_bytes(bytes: &[u8]) -> Result<Self, HeaderError> {
        if bytes.len() < LEGACY_HEADER_BYTES {
            return Err(HeaderError::Short(LEGACY_HEADER_BYTES));
        }
        let [w0, w1, w2, w3] = little_endian_words(bytes);
        let legacy = w0 >> 30 & 1 == 1;
        let own = if legacy { LEGACY_HEADER_BYTES } else { HEADER_BYTES };
        if bytes.len() < own {
            return Err(HeaderError::Short(own));
        }
        let length = (w2 & 0xff_ffff) as usize * 8;
        if length <= own {
            return Err(HeaderError::Length(length));
        }
        let [extension] = if legacy { [0] } else { little_endian_words(&bytes[LEGACY_HEADER_BYTES..]) };
        Ok(Self {
            invalid: w0 >> 31 == 1,
            legacy,
            seconds: w0 & 0x3fff_ffff,
            epoch: (w1 >> 24 & 0x3f) as u8,
            frame: w1 & 0xff_ffff,
            channels_log2: (w2 >> 24 & 0x1f) as u8,
            length,
            complex: w3 >> 31 == 1,
            bits: (w3 >> 26 & 0x1f) + 1,
            thread: (w3 >> 16 & 0x3ff) as u16,
            station: (w3 & 0xffff) as u16,
            extension,
            reserved: w1 >> 30 != 0,
        })
    }

    /// Returns the second of the frame, in TAI since 1970. The count from the reference epoch, which is UTC midnight of
    /// 1 January or 1 July, has no leaps: it is elapsed time.
    fn tai_second(&self) -> u64 {
        EPOCHS[usize::from(self.epoch)] + u64::from(self.seconds)
    }

    /// Returns the number of complete samples of all channels in the frame; `None` if samples do not fill the 32-bit
    /// words they are packed into.
    fn sample_count(&self) -> Option<u64> {
        let header = if self.legacy { LEGACY_HEADER_BYTES } else { HEADER_BYTES };
        let payload_bits = (self.length - header) as u64 * 8;
        let sample_bits = (u64::from(self.bits) * (1 + u64::from(self.complex))) << self.channels_log2;
        (self.bits.is_power_of_two() && payload_bits.is_multiple_of(sample_bits)).then(|| payload_bits / sample_bits)
    }

    /// Returns samples per second and channel, from extended data version 1 or 3
    /// (<https://vlbi.org/vlbi-standards/vdif/>, NICT and VLBA extensions): bit 23 is the unit, MHz or kHz, and the
    /// number below it the rate of complex samples, or half that of real ones.
    fn stated_sample_rate(&self) -> Option<f64> {
        let (version, number) = (self.extension >> 24, self.extension & 0x7f_ffff);
        let unit = if self.extension >> 23 & 1 == 1 { 1e6 } else { 1e3 };
        let per_sample = if self.complex { 1.0 } else { 2.0 };
        (matches!(version, 1 | 3) && number > 0).then(|| f64::from(number) * unit * per_sample)
    }

    /// Returns frames per second, by that sample rate.
    fn stated_frame_rate(&self) -> Option<f64> {
        self.stated_sample_rate().zip(self.sample_count()).map(|(rate, samples)| rate / samples as f64)
    }

    /// Returns the station's two letters, the first from the more significant byte, or its number.
    fn station_name(&self) -> String {
        let letters = self.station.to_be_bytes();
        if letters.iter().all(u8::is_ascii_graphic) {
            letters.iter().map(|b| char::from(*b)).collect()
        } else {
            self.station.to_string()
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::{Device, Rate};
    use proptest::prelude::*;
    use std::path::PathBuf;
    use thalweg_wire::EventId;

    /// A frame to be written: the header fields that tests vary.
    #[derive(Debug, Clone, Copy)]
    pub(crate) struct Written {
        pub(crate) thread: u16,
        pub(crate) seconds: u32,
        pub(crate) frame: u32,
        pub(crate) epoch: u8,
        pub(crate) legacy: bool,
        pub(crate) invalid: bool,
        pub(crate) edv: u32,
    }

    impl Written {
        pub(crate) fn at(thread: u16, seconds: u32, frame: u32) -> Self {
            Self { thread, seconds, frame, epoch: 28, legacy: false, invalid: false, edv: 0 }
        }

        /// 64 bytes of 2-bit real samples on one channel: 256 samples.
        pub(crate) fn bytes(self) -> Vec<u8> {
            let header = if self.legacy { 16 } else { 32 };
            let mut words = vec![
                u32::from(self.invalid) << 31 | u32::from(self.legacy) << 30 | self.seconds,
                u32::from(self.epoch) << 24 | self.frame,
                1 << 29 | ((header + 64) / 8),
                1 << 26 | u32::from(self.thread) << 16 | u32::from(u16::from_be_bytes(*b"Ef")),
            ];
            if !self.legacy {
                words.extend([self.edv, 0, 0, 0]);
            }
            let payload = [self.thread as u8, self.frame as u8].repeat(32);
            words.iter().flat_map(|w| w.to_le_bytes()).chain(payload).collect()
        }
    }

    pub(crate) fn recording(frames: &[Written]) -> (tempfile::TempDir, PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("scan.vdif");
        std::fs::write(&file, frames.iter().flat_map(|f| f.bytes()).collect::<Vec<u8>>()).unwrap();
        (dir, file)
    }

    fn config(file: &Path, thread: u16) -> VdifConfig {
        VdifConfig { file: file.to_owned(), thread: Some(thread), sample_rate: None, rate: None, looped: false }
    }

    fn play(device: &mut Replay<Vdif>) -> Vec<(Vec<u8>, Filled)> {
        let mut played = Vec::new();
        while let Some(len) = device.next_payload_len() {
            let mut payload = vec![0; len];
            let filled = device.fill_payload(EventId(played.len() as u64), &mut payload).unwrap();
            played.push((payload, filled));
        }
        played
    }

    #[test]
    fn each_thread_plays_its_frames_with_their_headers() {
        // Four frames a second, as the transition from one second to the next shows.
        let times = [(9, 2), (9, 3), (10, 0), (10, 1)];
        let frames: Vec<Written> =
            times.iter().flat_map(|&(second, frame)| [5, 2].map(|thread| Written::at(thread, second, frame))).collect();
        let (_dir, file) = recording(&frames);
        assert_eq!(recording_threads(&file).unwrap(), [2, 5]);
        for thread in [2, 5] {
            let mut device = open_recording(&config(&file, thread)).unwrap();
            assert_eq!(device.description().frame_rate, Some(4));
            assert_eq!(device.description().station.as_deref(), Some("Ef"));
            assert_eq!(device.description().samples, Some(256));
            let began = parse_utc_time("2014-01-01T00:00:09.5Z").unwrap();
            for ((payload, filled), (i, &(second, frame))) in play(&mut device).iter().zip((0..).zip(&times)) {
                assert_eq!(*payload, Written::at(thread, second, frame).bytes());
                assert_eq!((filled.status, filled.window), (Status::REPLAYED, 250_000_000));
                assert_eq!(filled.timestamp, Some(TaiNanos(began.0 + i * 250_000_000)));
            }
        }
    }

    #[test]
    fn a_frame_that_one_thread_lacks_does_not_shift_the_events() {
        let (_dir, file) = recording(&[
            Written::at(0, 5, 0),
            Written::at(1, 5, 0),
            Written::at(0, 5, 1),
            // Frames arrive out of order, as in networks.
            Written::at(1, 5, 2),
            Written::at(0, 5, 2),
        ]);
        let mut device = open_recording(&config(&file, 1)).unwrap();
        assert_eq!((device.description().records, device.description().missing), (Some(3), Some(1)));
        let lens: Vec<(usize, Status)> = play(&mut device).iter().map(|(p, filled)| (p.len(), filled.status)).collect();
        let missing = Status::REPLAYED | Status::MISSING;
        assert_eq!(lens, [(96, Status::REPLAYED), (0, missing), (96, Status::REPLAYED)]);
    }

    #[test]
    fn the_invalid_bit_is_kept() {
        let (_dir, file) = recording(&[Written::at(0, 5, 0), Written { invalid: true, ..Written::at(0, 5, 1) }]);
        let played = play(&mut open_recording(&VdifConfig { thread: None, ..config(&file, 0) }).unwrap());
        assert_eq!(played[1].1.status, Status::REPLAYED | Status::CORRUPT);
    }

    #[test]
    fn an_invalid_frame_whose_clock_is_0_moves_no_time_and_is_not_played() {
        let fill = Written { invalid: true, ..Written::at(0, 0, 0) };
        let (_dir, file) = recording(&[fill, Written::at(0, 5_000_000, 0), Written::at(0, 5_000_000, 1)]);
        let mut device = open_recording(&VdifConfig { looped: true, ..config(&file, 0) }).unwrap();
        assert_eq!(device.description().records, Some(2));
        assert!(device.description().notes.iter().any(|note| note.contains("marked as invalid")));
        let seconds: Vec<u64> =
            (0..4).map(|event| device.skip_fragment(EventId(event)).timestamp.unwrap().0 / 1_000_000_000).collect();
        assert!(seconds[2] - seconds[0] <= 1, "{seconds:?}");
    }

    #[test]
    fn without_a_stated_rate_a_frame_has_the_time_of_its_second() {
        let frames: Vec<Written> =
            (0..3).flat_map(|frame| [0, 1].map(|thread| Written::at(thread, 5, frame))).collect();
        let (_dir, file) = recording(&frames);
        let second = parse_utc_time("2014-01-01T00:00:05Z").unwrap();
        for thread in [0, 1] {
            let mut device = open_recording(&VdifConfig { looped: true, ..config(&file, thread) }).unwrap();
            let [note] = &device.description().notes[..] else { panic!("{:?}", device.description().notes) };
            assert!(note.contains("set the option rate (frames per second"), "{note}");
            let filled: Vec<Filled> = (0..4).map(|event| device.skip_fragment(EventId(event))).collect();
            assert!(filled[..3].iter().all(|filled| (filled.timestamp, filled.window) == (Some(second), 0)));
            // The next pass is later, by as many seconds as there are.
            assert_eq!(filled[3].timestamp, Some(TaiNanos(second.0 + 1_000_000_000)));
        }
    }

    #[test]
    fn the_rate_can_be_stated_and_must_be_possible() {
        let frames: Vec<Written> =
            (0..3).flat_map(|frame| [0, 1].map(|thread| Written::at(thread, 5, frame))).collect();
        let (_dir, file) = recording(&frames);
        let stated = |rate| VdifConfig { sample_rate: Some(rate), ..config(&file, 1) };
        // 256 samples to a frame.
        let mut device = open_recording(&stated(256 * 4)).unwrap();
        assert_eq!((device.description().sample_rate, device.description().frame_rate), (Some(1024.0), Some(4)));
        assert!(device.description().notes.is_empty());
        let began = parse_utc_time("2014-01-01T00:00:05Z").unwrap();
        for (filled, i) in play(&mut device).iter().map(|(_, filled)| filled).zip(0..) {
            assert_eq!(filled.timestamp, Some(TaiNanos(began.0 + i * 250_000_000)));
        }
        let frames = |rate| VdifConfig { rate: Rate::new(rate), ..config(&file, 1) };
        let device = open_recording(&frames(4.0)).unwrap();
        assert_eq!((device.description().sample_rate, device.description().frame_rate), (Some(1024.0), Some(4)));
        for rate in [2.0, 4.5, 1e9] {
            let error = open_recording(&frames(rate)).unwrap_err().to_string();
            assert!(
                error.contains(&format!("option rate: {rate}: it must be")) && error.contains("at least 3"),
                "{error}"
            );
        }
        let both = VdifConfig { sample_rate: Some(256 * 4), ..frames(4.0) };
        assert!(open_recording(&both).unwrap_err().to_string().contains("write one of them"));
        for rate in [0, 1, 1000, 256 * 2, u64::MAX] {
            let error = open_recording(&stated(rate)).unwrap_err().to_string();
            assert!(error.contains(&format!("sample_rate = {rate}: it must be")), "{error}");
        }
    }

    #[test]
    fn threads_of_one_frame_have_one_time_though_only_one_states_the_rate() {
        let edv = 3 << 24 | 64;
        let frames =
            [0, 1].map(|thread| Written { edv: if thread == 1 { edv } else { 0 }, ..Written::at(thread, 5, 250) });
        let (_dir, file) = recording(&frames);
        let times = [0, 1].map(|thread| play(&mut open_recording(&config(&file, thread)).unwrap())[0].1.timestamp);
        assert_eq!(times, [parse_utc_time("2014-01-01T00:00:05.5Z"); 2]);
    }

    #[test]
    fn frames_that_come_twice_and_a_cut_end_are_passed_over_and_reported() {
        let frames = [
            Written { invalid: true, ..Written::at(0, 5, 0) },
            Written::at(1, 5, 0),
            Written::at(0, 5, 0),
            Written::at(0, 5, 1),
            Written::at(0, 5, 1),
            Written::at(1, 5, 1),
        ];
        let (_dir, file) = recording(&frames);
        let whole = std::fs::read(&file).unwrap();
        std::fs::write(&file, &whole[..whole.len() - 1]).unwrap();
        let rate = 256 * 4;
        let opened = |thread| open_recording(&VdifConfig { sample_rate: Some(rate), ..config(&file, thread) }).unwrap();
        let mut device = opened(0);
        let notes = device.description().notes.join("\n");
        assert!(
            notes.contains("repeated frames of thread 0, which are not replayed: 2")
                && !notes.contains("ends in the middle"),
            "{notes}"
        );
        assert_eq!((device.description().repeated, device.description().cut_off_bytes), (Some(2), None));
        let status: Vec<Status> = play(&mut device).iter().map(|(_, filled)| filled.status).collect();
        assert_eq!(status, [Status::REPLAYED; 2], "of two the valid one");
        let mut device = opened(1);
        let notes = device.description().notes.join("\n");
        assert!(notes.contains("its last 95 bytes, from byte 480, are not replayed"), "{notes}");
        assert_eq!((device.description().repeated, device.description().cut_off_bytes), (None, Some(95)));
        assert_eq!(play(&mut device).last().unwrap().1.status, Status::REPLAYED | Status::MISSING);
        // The thread of a cut-off header is unknown.
        std::fs::write(&file, &whole[..whole.len() - 90]).unwrap();
        for thread in [0, 1] {
            let notes = opened(thread).description().notes.join("\n");
            assert!(notes.contains("its last 6 bytes, from byte 480"), "{notes}");
        }
    }

    #[test]
    fn threads_whose_clocks_disagree_are_reported_with_their_times() {
        let months = 86_400 * 60;
        let frames: Vec<Written> = (0..4)
            .flat_map(|thread| {
                (0..4).map(move |frame| Written::at(thread, (u32::from(thread) % 2) * months + 9, frame))
            })
            .collect();
        let (_dir, file) = recording(&frames);
        for thread in 0..4 {
            let device = open_recording(&VdifConfig { sample_rate: Some(256 * 4), ..config(&file, thread) }).unwrap();
            let notes = device.description().notes.join("\n");
            match thread % 2 {
                0 => assert_eq!(notes, ""),
                _ => assert!(
                    notes.contains(&format!("thread {thread} has frames from 2014-03-02T00:00:44Z"))
                        && notes.contains("thread 0 from 2014-01-01T00:00:44Z"),
                    "{notes}"
                ),
            }
        }
    }

    #[test]
    fn legacy_headers_are_half_as_long() {
        let frames = [0, 1].map(|frame| Written { legacy: true, ..Written::at(3, 5, frame) });
        let (_dir, file) = recording(&frames);
        let played = play(&mut open_recording(&config(&file, 3)).unwrap());
        assert_eq!(played.iter().map(|(p, _)| p.clone()).collect::<Vec<_>>(), frames.map(Written::bytes));
    }

    #[test]
    fn the_sample_rate_of_the_extension_gives_the_frame_rate() {
        // 64 kHz complex is 128 000 real samples a second, in frames of 256.
        let edv = 3 << 24 | 64;
        let (_dir, file) = recording(&[Written { edv, ..Written::at(0, 5, 250) }]);
        let device = open_recording(&config(&file, 0)).unwrap();
        assert_eq!((device.description().sample_rate, device.description().frame_rate), (Some(128e3), Some(500)));
        // An impossible frame number: the rate is not believed.
        let (_dir, file) = recording(&[Written { edv, ..Written::at(0, 5, 500) }]);
        assert_eq!(open_recording(&config(&file, 0)).unwrap().description().frame_rate, None);
    }

    #[test]
    fn in_a_loop_time_goes_on() {
        let (_dir, file) = recording(&[Written::at(0, 5, 1), Written::at(0, 6, 0), Written::at(0, 6, 1)]);
        let mut device = open_recording(&VdifConfig { looped: true, ..config(&file, 0) }).unwrap();
        let times: Vec<u64> = (0..5).map(|event| device.skip_fragment(EventId(event)).timestamp.unwrap().0).collect();
        let steps: Vec<u64> = times.windows(2).map(|pair| pair[1] - pair[0]).collect();
        assert_eq!(steps, [500_000_000; 4]);
        assert_eq!(device.content_key(EventId(5)), Some(2));
    }

    #[test]
    fn seconds_count_the_leaps_since_the_epoch() {
        // From baseband's sample_arochime.vdif: epoch 2000, and the time that baseband gives for it.
        let header = Written { epoch: 0, ..Written::at(0, 514_629_935, 0) }.bytes();
        let second = Header::from_bytes(&header).unwrap().tai_second();
        assert_eq!(second, parse_utc_time("2016-04-22T08:45:31Z").unwrap().0 / 1_000_000_000);
    }

    #[test]
    fn errors_name_the_file_and_the_byte() {
        let (_dir, file) = recording(&[Written::at(0, 5, 0), Written::at(1, 5, 0)]);
        let error = open_recording(&config(&file, 7)).unwrap_err().to_string();
        assert!(error.contains("scan.vdif: no thread 7; it has threads [0, 1]"), "{error}");
        let error = open_recording(&VdifConfig { thread: None, ..config(&file, 0) }).unwrap_err().to_string();
        assert!(error.contains("more than one thread; it has threads [0, 1]"), "{error}");

        let whole = std::fs::read(&file).unwrap();
        let failing = |bytes: &[u8]| {
            std::fs::write(&file, bytes).unwrap();
            open_recording(&config(&file, 0)).unwrap_err().to_string()
        };
        let error = failing(&whole[..95]);
        assert!(error.contains("scan.vdif: the data frame at byte 0 needs 96 bytes, but only 95 are left"), "{error}");
        let error = failing(&whole[..24]);
        assert!(error.contains("the frame header at byte 0 needs 32 bytes, but only 24 are left"), "{error}");
        let error = failing(&[&whole[..96], &[0; 40]].concat());
        assert!(error.contains("the frame length at byte 96 is 0 bytes"), "{error}");
        let mut longer = whole[..96].to_vec();
        longer[8] += 1;
        longer[4] = 1;
        let error = failing(&[&whole[..96], &longer, &[0; 8]].concat());
        assert!(error.contains("the frame length at byte 96 is 104 bytes"), "{error}");
        let error = failing(&[&whole[..96], &longer].concat());
        assert!(error.contains("the data frame at byte 96 needs 104 bytes, but only 96 are left"), "{error}");
        assert!(failing(b"").contains("no data"));
    }

    proptest! {
        #[test]
        fn any_header_is_read_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..40)) {
            if let Ok(header) = Header::from_bytes(&bytes) {
                prop_assert!(header.length > LEGACY_HEADER_BYTES && header.length < 1 << 27);
                prop_assert!(header.sample_count() != Some(0));
                let _ = (header.tai_second(), header.stated_sample_rate(), header.station_name());
                let _ = header.stated_frame_rate();
            }
        }

        /// For files of small frames with damaged bytes: whatever the headers contain, played frames lie within the
        /// file.
        #[test]
        fn a_damaged_recording_is_played_or_refused(
            frames in proptest::collection::vec((0u16..3, 0u32..3, 0u32..4), 1..8),
            damage in proptest::collection::vec((any::<proptest::sample::Index>(), any::<u8>()), 0..4),
            cut in any::<proptest::sample::Index>(),
        ) {
            let frames: Vec<Written> = frames.iter().map(|&(thread, s, f)| Written::at(thread, s, f)).collect();
            let (_dir, file) = recording(&frames);
            let mut bytes = std::fs::read(&file).unwrap();
            for (place, value) in damage {
                let place = place.index(bytes.len());
                bytes[place] = value;
            }
            bytes.truncate(cut.index(bytes.len() * 2));
            std::fs::write(&file, &bytes).unwrap();
            for looped in [false, true] {
                if let Ok(mut device) = open_recording(&VdifConfig { looped, ..config(&file, 0) }) {
                    for event in 0..10 {
                        let Some(len) = device.next_payload_len() else { break };
                        prop_assert!(len <= device.max_payload_bytes() && len <= bytes.len());
                        device.fill_payload(EventId(event), &mut vec![0; len]).unwrap();
                    }
                }
            }
        }
    }
}
