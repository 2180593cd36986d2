//! Replay of a SigMF recording (the Signal Metadata Format, <https://sigmf.org>, version 1.2).
//!
//! One fragment is `samples_per_fragment` samples of every channel, interleaved as in the file. A fragment never
//! reaches from one capture segment into the next, since time may jump between them; the last one of each is sent
//! short. Samples are of any of the standard's types; a fragment has them little-endian.
//!
//! Of a dataset in another program's format (`core:dataset`, `core:header_bytes`, `core:trailing_bytes`) the samples
//! are played, but not the bytes before a capture's samples and after the last one.

use crate::file::InputFile;
use crate::replay::{Clock, Recording, Replay};
use crate::sigmf_files::{MAX_METADATA, Parts, is_file_name};
use crate::time::parse_utc_time;
use crate::{Description, DeviceError, Filled, MAX_PAYLOAD, Rate, SigmfConfig, StoredType};
use serde_json::Value;
use std::path::{Path, PathBuf};
use thalweg_wire::{Meaning, PayloadType, Status, TaiNanos};

/// Maximum length of a `global` object as JSON, in bytes. A longer one is left out of the device's description, which
/// has to travel in one message.
const MAX_DESCRIBED: usize = 8 << 10;
/// Approximate length of a fragment in bytes, where it is not configured.
const DEFAULT_FRAGMENT: u64 = 64 << 10;

/// Opens the recording and checks its metadata against its data.
pub(crate) fn open_recording(config: &SigmfConfig) -> Result<Replay<Sigmf>, DeviceError> {
    let parts = Parts::open_configured(config)?;
    let metadata = Metadata::parse_metadata(&parts.meta, &parts.meta_bytes)?;
    let file = parts.into_samples(metadata.dataset.as_deref())?;
    let frame = metadata.channels * metadata.stored.element.element_bytes() as u64;
    let samples = metadata.sample_count(&file, frame)?;
    let limit = MAX_PAYLOAD as u64 / frame;
    let per_fragment = match config.samples_per_fragment {
        None => (DEFAULT_FRAGMENT / frame).max(1).min(samples),
        Some(n) if (1..=limit).contains(&n) => n.min(samples),
        Some(value) => {
            let expected = "at least 1, and no more than make 1 GiB with all channels";
            return Err(DeviceError::Setting { option: "samples_per_fragment", value, expected });
        }
    };
    let segments = metadata.capture_segments(samples, per_fragment)?;
    let payload_type = PayloadType::new(Meaning::Samples, metadata.stored.element);
    let description = Description {
        kind: "sigmf".to_owned(),
        payload_type: payload_type.type_name().to_owned(),
        shape: Some(vec![per_fragment, metadata.channels]),
        channels: u32::try_from(metadata.channels).ok(),
        sample_rate: metadata.clock.0.map(Rate::hertz),
        bits: u32::try_from(metadata.stored.element.number_bytes() * 8).ok(),
        complex: metadata.stored.element.is_complex().then_some(true),
        record_bytes: Some(per_fragment * frame),
        samples: Some(per_fragment),
        file: Some(file.path().display().to_string()),
        notes: metadata.stored.byte_order_note(file.path()).into_iter().collect(),
        metadata: Some(metadata.described_global()),
        ..Default::default()
    };
    // At most MAX_PAYLOAD, so it is a length in memory.
    let longest = (per_fragment * frame) as usize;
    let Metadata { clock, stored, .. } = metadata;
    let recording = Sigmf { file, stored, payload_type, frame, samples, per_fragment, clock, segments };
    Ok(Replay::new(recording, description, longest, config.looped))
}

/// The recording, cut into fragments.
#[derive(Debug)]
pub(crate) struct Sigmf {
    file: InputFile,
    stored: StoredType,
    payload_type: PayloadType,
    /// Bytes in one sample of all channels.
    frame: u64,
    /// Samples per channel in the file.
    samples: u64,
    /// Samples per channel in a full fragment.
    per_fragment: u64,
    clock: Clock,
    /// Segments of the recording. At least one; each holds at least one sample.
    segments: Vec<Segment>,
}

/// Samples without a gap in time: a SigMF capture segment.
#[derive(Debug)]
struct Segment {
    first_sample: u64,
    samples: u64,
    first_record: u64,
    /// Number of bytes of the file up to the segment that are not samples.
    skipped: u64,
    began: TaiNanos,
}

impl Sigmf {
    /// Returns the segment that contains a record, its first sample counted within the segment, and its number of
    /// samples.
    fn locate_record(&self, record: u64) -> (&Segment, u64, u64) {
        let segment = &self.segments[self.segments.partition_point(|s| s.first_record <= record) - 1];
        let begin = (record - segment.first_record) * self.per_fragment;
        (segment, begin, self.per_fragment.min(segment.samples - begin))
    }
}

impl Recording for Sigmf {
    fn record_count(&self) -> u64 {
        self.segments.last().map_or(0, |last| last.first_record + last.samples.div_ceil(self.per_fragment))
    }

    fn payload_len(&self, record: u64) -> usize {
        (self.locate_record(record).2 * self.frame) as usize
    }

    fn header_values(&self, record: u64) -> Filled {
        let (segment, begin, samples) = self.locate_record(record);
        Filled {
            payload_type: self.payload_type,
            status: Status::REPLAYED,
            window: u32::try_from(self.clock.record_nanos(samples)).unwrap_or(u32::MAX),
            timestamp: Some(TaiNanos(segment.began.0.saturating_add(self.clock.record_nanos(begin)))),
        }
    }

    fn read_payload(&mut self, record: u64, payload: &mut [u8]) -> Result<(), DeviceError> {
        let (segment, begin, _) = self.locate_record(record);
        self.file.read_at(segment.skipped + (segment.first_sample + begin) * self.frame, payload)?;
        self.stored.to_little_endian(payload);
        Ok(())
    }

    fn pass_nanos(&self) -> u64 {
        let (Some(first), Some(last)) = (self.segments.first(), self.segments.last()) else { return 0 };
        // With gaps between its captures a pass takes longer than its samples.
        let with_gaps =
            last.began.0.saturating_sub(first.began.0).saturating_add(self.clock.record_nanos(last.samples));
        with_gaps.max(self.clock.record_nanos(self.samples))
    }
}

/// Fields of the metadata that are used.
#[derive(Debug)]
struct Metadata {
    file: PathBuf,
    global: Value,
    captures: Vec<Capture>,
    stored: StoredType,
    channels: u64,
    clock: Clock,
    /// Name of the file with the samples, if the metadata give one.
    dataset: Option<String>,
    /// Number of bytes after the last sample.
    trailing: u64,
}

#[derive(Debug)]
struct Capture {
    sample_start: u64,
    /// Number of bytes before the capture's samples that are not samples.
    header: u64,
    began: Option<TaiNanos>,
}

impl Capture {
    /// Reads a capture of a recording whose first sample has the number `offset`.
    fn read_capture(capture: &Fields, offset: u64) -> Result<Self, DeviceError> {
        let sample_start =
            capture.get("core:sample_start").as_u64().and_then(|start| start.checked_sub(offset)).ok_or_else(|| {
                capture.field_error("core:sample_start", "a sample number, not below global core:offset")
            })?;
        let header = capture.read_optional("core:header_bytes", "a number of bytes", Value::as_u64)?.unwrap_or(0);
        let expected = "a time in UTC since 1972, such as \"2020-03-01T12:00:00Z\"";
        let began =
            capture.read_optional("core:datetime", expected, |value| value.as_str().and_then(parse_utc_time))?;
        Ok(Self { sample_start, header, began })
    }
}

/// An object of the metadata.
struct Fields<'a> {
    file: &'a Path,
    /// Name of the object, for messages.
    name: String,
    object: &'a Value,
}

impl Fields<'_> {
    /// Returns the value of a field; null if it is absent.
    fn get(&self, field: &str) -> &Value {
        self.object.get(field).unwrap_or(&Value::Null)
    }

    /// Returns the value of a field that may be absent, as `parse` reads it.
    fn read_optional<T>(
        &self,
        field: &str,
        expected: &'static str,
        parse: impl FnOnce(&Value) -> Option<T>,
    ) -> Result<Option<T>, DeviceError> {
        match self.get(field) {
            Value::Null => Ok(None),
            value => parse(value).map(Some).ok_or_else(|| self.field_error(field, expected)),
        }
    }

    fn field_error(&self, field: &str, expected: &'static str) -> DeviceError {
        bad_field_error(self.file, &format!("{} {field}", self.name), self.get(field), expected)
    }
}

impl Metadata {
    fn parse_metadata(path: &Path, bytes: &[u8]) -> Result<Self, DeviceError> {
        if bytes.len() > MAX_METADATA {
            let found = Value::from(format!("more than {MAX_METADATA} bytes"));
            return Err(bad_field_error(path, "the file's length", &found, "at most 16 MiB"));
        }
        let mut document: Value =
            serde_json::from_slice(bytes).map_err(|error| DeviceError::Json { file: path.to_owned(), error })?;
        let object = document.get("global").unwrap_or(&Value::Null);
        if !object.is_object() {
            return Err(bad_field_error(path, "global", object, "an object"));
        }
        let global = Fields { file: path, name: "global".to_owned(), object };

        let stored = global.get("core:datatype").as_str().and_then(parse_datatype).ok_or_else(|| {
            let expected = "r or c (real or complex), then f32, f64, i32, i16, u32 or u16 and _le or _be, or i8 or u8, such \
                            as \"cf32_le\"";
            global.field_error("core:datatype", expected)
        })?;
        if !matches!(global.get("core:metadata_only"), Value::Null | Value::Bool(false)) {
            let expected = "absent: a recording without samples cannot be played";
            return Err(global.field_error("core:metadata_only", expected));
        }
        let dataset = global.read_optional("core:dataset", "the name of a file beside the metadata", |value| {
            value.as_str().filter(|name| is_file_name(name)).map(str::to_owned)
        })?;
        let trailing = global.read_optional("core:trailing_bytes", "a number of bytes", Value::as_u64)?.unwrap_or(0);
        let channels = global.read_optional("core:num_channels", "a number from 1 to 65536", |value| {
            value.as_u64().filter(|n| (1..=65536).contains(n))
        })?;
        // Absent means one channel (SigMF 1.2, core:num_channels).
        let channels = channels.unwrap_or(1);
        let rate = global.read_optional("core:sample_rate", "samples per second, from 10^-6 to 10^12", |value| {
            value.as_f64().and_then(Rate::new)
        })?;
        let offset = global.read_optional("core:offset", "a number of samples", Value::as_u64)?.unwrap_or(0);

        let captures = match document.get("captures") {
            Some(Value::Array(captures)) => captures.as_slice(),
            found => return Err(bad_field_error(path, "captures", found.unwrap_or(&Value::Null), "an array")),
        };
        let captures: Vec<Capture> = captures
            .iter()
            .enumerate()
            .map(|(i, object)| {
                Capture::read_capture(&Fields { file: path, name: format!("captures[{i}]"), object }, offset)
            })
            .collect::<Result<_, DeviceError>>()?;
        let global = document["global"].take();
        Ok(Self { file: path.to_owned(), global, captures, stored, channels, clock: Clock(rate), dataset, trailing })
    }

    /// Returns the number of samples per channel in the file, if it is a whole number, each of `frame` bytes.
    fn sample_count(&self, file: &InputFile, frame: u64) -> Result<u64, DeviceError> {
        let headers = self.captures.iter().fold(self.trailing, |sum, capture| sum.saturating_add(capture.header));
        let Some(length) = file.len().checked_sub(headers) else {
            return Err(DeviceError::Metadata {
                file: self.file.clone(),
                field: "the sum of core:header_bytes and core:trailing_bytes".to_owned(),
                found: headers.to_string(),
                expected: "no more than the data file has",
            });
        };
        if length == 0 {
            return Err(DeviceError::Empty { file: file.path().to_owned() });
        }
        if !length.is_multiple_of(frame) {
            return Err(DeviceError::Leftover { file: file.path().to_owned(), length, record: frame });
        }
        Ok(length / frame)
    }

    /// Returns the capture segments of a data file with `samples` samples per channel.
    fn capture_segments(&self, samples: u64, per_fragment: u64) -> Result<Vec<Segment>, DeviceError> {
        // Samples before the first capture, or all where there is none, are played as well.
        let mut starts = vec![(0, None, 0)];
        for (i, capture) in self.captures.iter().enumerate() {
            let (previous, _, skipped) = starts[starts.len() - 1];
            if capture.sample_start < previous || capture.sample_start > samples {
                return Err(DeviceError::Metadata {
                    file: self.file.clone(),
                    field: format!("captures[{i}] core:sample_start"),
                    found: capture.sample_start.to_string(),
                    expected: "not below that of the capture before it, and within the data file",
                });
            }
            starts.push((capture.sample_start, capture.began, capture.header.saturating_add(skipped)));
        }
        // A capture without a date follows the one before it without a gap, as its samples do; the samples before the
        // first dated capture end at its date. Where no capture has a date, time begins at 0.
        let dated = starts.iter().find_map(|&(start, began, _)| Some((start, began?)));
        let (start, began) = dated.unwrap_or_default();
        let (mut known_sample, mut known_time) = (0, TaiNanos(began.0.saturating_sub(self.clock.record_nanos(start))));
        let mut segments: Vec<Segment> = Vec::new();
        for (i, &(first_sample, began, skipped)) in starts.iter().enumerate() {
            let passed = self.clock.record_nanos(first_sample - known_sample);
            let began = began.unwrap_or(TaiNanos(known_time.0.saturating_add(passed)));
            (known_sample, known_time) = (first_sample, began);
            let end = starts.get(i + 1).map_or(samples, |(next, ..)| *next);
            if end > first_sample {
                let first_record =
                    segments.last().map_or(0, |last| last.first_record + last.samples.div_ceil(per_fragment));
                segments.push(Segment { first_sample, samples: end - first_sample, first_record, skipped, began });
            }
        }
        Ok(segments)
    }

    /// Returns the `global` object for the device's description, or a note that it was omitted if it is too long to
    /// travel.
    fn described_global(&self) -> Value {
        let length = self.global.to_string().len();
        if length <= MAX_DESCRIBED {
            return self.global.clone();
        }
        serde_json::json!({ "omitted": format!("{length} bytes of global metadata, which are in {}", self.file.display()) })
    }
}

fn bad_field_error(file: &Path, field: &str, found: &Value, expected: &'static str) -> DeviceError {
    // The value comes from an untrusted file, so it is shortened.
    let mut found = if found.is_null() { "missing".to_owned() } else { found.to_string() };
    if let Some((end, _)) = found.char_indices().nth(60) {
        found.truncate(end);
        found.push('…');
    }
    DeviceError::Metadata { file: file.to_owned(), field: field.to_owned(), found, expected }
}

/// Parses a type by the standard's grammar (SigMF 1.2, *Dataset Format*).
fn parse_datatype(datatype: &str) -> Option<StoredType> {
    let name = match datatype.split_at_checked(1)? {
        ("r", stored) => stored.to_owned(),
        ("c", _) => datatype.to_owned(),
        _ => return None,
    };
    let stored: StoredType = name.parse().ok()?;
    // `rci16_le` would be parsed as well; and the byte order may be left out for single bytes only, where it must be.
    let complex = stored.element.is_complex() == datatype.starts_with('c');
    let ordered = datatype.ends_with("_le") || datatype.ends_with("_be");
    (complex && ordered == (stored.element.number_bytes() > 1)).then_some(stored)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Device;
    use proptest::prelude::*;
    use serde_json::json;
    use thalweg_wire::EventId;

    fn recording(meta: &Value, samples: &[i16]) -> (tempfile::TempDir, SigmfConfig) {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("pulse.1");
        let bytes: Vec<u8> = samples.iter().flat_map(|sample| sample.to_le_bytes()).collect();
        std::fs::write(dir.path().join("pulse.1.sigmf-meta"), meta.to_string()).unwrap();
        std::fs::write(dir.path().join("pulse.1.sigmf-data"), bytes).unwrap();
        (dir, SigmfConfig { file, recording: None, samples_per_fragment: Some(4), looped: false })
    }

    fn two_channels() -> Value {
        json!({
            "global": { "core:datatype": "ri16_le", "core:version": "1.2.0", "core:num_channels": 2, "core:sample_rate": 1e6 },
            "captures": [{ "core:sample_start": 0, "core:datetime": "2020-03-01T12:00:00Z" }],
            "annotations": []
        })
    }

    const NOON: u64 = (1_583_064_000 + 37) * 1_000_000_000;

    #[test]
    fn samples_come_as_recorded_with_their_time() {
        let samples: Vec<i16> = (0..20).collect();
        let (_dir, config) = recording(&two_channels(), &samples);
        let mut device = open_recording(&config).unwrap();
        assert_eq!(device.max_payload_bytes(), 16);
        let mut played = Vec::new();
        for (event, (len, micros)) in (0..).zip([(16, 0), (16, 4), (8, 8)]) {
            assert_eq!(device.next_payload_len(), Some(len));
            let mut payload = vec![0; len];
            let filled = device.fill_payload(EventId(event), &mut payload).unwrap();
            assert_eq!(filled.timestamp, Some(TaiNanos(NOON + micros * 1000)));
            assert_eq!(filled.window, len as u32 / 4 * 1000);
            assert_eq!(filled.status, Status::REPLAYED);
            played.extend(payload.chunks(2).map(|b| i16::from_le_bytes([b[0], b[1]])));
        }
        assert_eq!(played, samples);
        assert_eq!(device.next_payload_len(), None);
    }

    #[test]
    fn all_types_of_the_standard_are_known_and_no_others() {
        let mut names = vec!["ri8".to_owned(), "ru8".to_owned(), "ci8".to_owned(), "cu8".to_owned()];
        for domain in ["r", "c"] {
            for number in ["f32", "f64", "i32", "i16", "u32", "u16"] {
                names.extend(["le", "be"].map(|order| format!("{domain}{number}_{order}")));
            }
        }
        assert_eq!(names.len(), 28);
        for name in names {
            let stored = parse_datatype(&name).unwrap_or_else(|| panic!("{name}"));
            assert_eq!(
                (stored.element.is_complex(), stored.big_endian),
                (name.starts_with('c'), name.ends_with("_be"))
            );
        }
        for name in ["", "r", "i16_le", "rci16_le", "ccf32_le", "rf32", "ri8_le", "rf16_le", "ré"] {
            assert_eq!(parse_datatype(name), None, "{name}");
        }
    }

    #[test]
    fn big_endian_complex_samples_become_little_endian_and_it_is_said() {
        let mut meta = two_channels();
        meta["global"]["core:datatype"] = json!("ci16_be");
        let (_dir, config) = recording(&meta, &[1, 2, 3, 4, 5, 6, 7, 8].map(i16::swap_bytes));
        let mut device = open_recording(&config).unwrap();
        let description = device.description();
        assert_eq!((description.payload_type.as_str(), description.complex), ("samples-ci16", Some(true)));
        assert_eq!(description.shape, Some(vec![2, 2]));
        assert!(description.notes[0].contains("ci16 is big-endian; fragments have it"), "{:?}", description.notes);
        let mut payload = [0; 16];
        device.fill_payload(EventId(0), &mut payload).unwrap();
        let numbers: Vec<i16> = payload.chunks(2).map(|b| i16::from_le_bytes([b[0], b[1]])).collect();
        assert_eq!(numbers, [1, 2, 3, 4, 5, 6, 7, 8]);
    }

    #[test]
    fn what_another_programs_format_has_around_the_samples_is_not_played() {
        let mut meta = two_channels();
        meta["global"]["core:dataset"] = json!("theirs.dat");
        meta["global"]["core:trailing_bytes"] = json!(3);
        meta["captures"] = json!([
            { "core:sample_start": 0, "core:header_bytes": 5 },
            { "core:sample_start": 1, "core:header_bytes": 2 },
        ]);
        let (dir, config) = recording(&meta, &[]);
        std::fs::write(dir.path().join("theirs.dat"), b"introABCDheEFGHIJKLend").unwrap();
        let mut device = open_recording(&config).unwrap();
        let mut played = Vec::new();
        while let Some(len) = device.next_payload_len() {
            let mut payload = vec![0; len];
            device.fill_payload(EventId(played.len() as u64), &mut payload).unwrap();
            played.push(payload);
        }
        assert_eq!(played, [b"ABCD".to_vec(), b"EFGHIJKL".to_vec()]);
    }

    #[test]
    fn in_a_loop_time_goes_on() {
        let (_dir, mut config) = recording(&two_channels(), &[0; 20]);
        config.looped = true;
        let mut device = open_recording(&config).unwrap();
        let times: Vec<u64> =
            (7..12).map(|event| device.skip_fragment(EventId(event)).timestamp.unwrap().0 - NOON).collect();
        assert_eq!(times, [0, 4000, 8000, 10_000, 14_000]);
        assert_eq!(device.content_key(EventId(12)), Some(2));
    }

    #[test]
    fn a_fragment_does_not_reach_over_a_gap_in_time() {
        let mut meta = two_channels();
        meta["captures"] = json!([
            { "core:sample_start": 1, "core:datetime": "2020-03-01T12:00:00Z" },
            { "core:sample_start": 7, "core:datetime": "2020-03-01T12:00:01Z" },
        ]);
        let (_dir, config) = recording(&meta, &[0; 20]);
        let mut device = open_recording(&config).unwrap();
        let mut found = Vec::new();
        while let Some(len) = device.next_payload_len() {
            let filled = device.skip_fragment(EventId(found.len() as u64));
            found.push((len / 4, filled.timestamp.unwrap().0.wrapping_sub(NOON).cast_signed()));
        }
        assert_eq!(found, [(1, -1000), (4, 0), (2, 4000), (3, 1_000_000_000)]);
        assert_eq!(device.description().records, Some(4));
    }

    #[test]
    fn a_capture_without_a_date_follows_the_one_before_it() {
        let times = |captures: Value| -> Vec<u64> {
            let (_dir, config) =
                recording(&json!({ "global": two_channels()["global"], "captures": captures }), &[0; 24]);
            let mut device = open_recording(&config).unwrap();
            (0..3).map(|event| device.skip_fragment(EventId(event)).timestamp.unwrap().0).collect()
        };
        let capture = |start: u64, date: &str| match date {
            "" => json!({ "core:sample_start": start }),
            date => json!({ "core:sample_start": start, "core:datetime": date }),
        };
        let noon = "2020-03-01T12:00:00Z";
        let later = "2020-03-01T12:00:01Z";
        let dated = json!([capture(0, noon), capture(4, ""), capture(8, later)]);
        assert_eq!(times(dated), [NOON, NOON + 4000, NOON + 1_000_000_000]);
        assert_eq!(times(json!([capture(0, ""), capture(4, noon), capture(8, "")])), [NOON - 4000, NOON, NOON + 4000]);
        // Without any date the time is that since the beginning.
        assert_eq!(times(json!([capture(0, ""), capture(4, "")])), [0, 4000, 8000]);
    }

    #[test]
    fn a_recording_without_rate_or_date_has_no_time() {
        let (_dir, mut config) =
            recording(&json!({"global": {"core:datatype": "ri16_le"}, "captures": []}), &[1, 2, 3]);
        config.samples_per_fragment = None;
        let mut device = open_recording(&config).unwrap();
        assert_eq!((device.next_payload_len(), device.max_payload_bytes()), (Some(6), 6));
        let filled = device.skip_fragment(EventId(0));
        assert_eq!((filled.timestamp, filled.window), (Some(TaiNanos(0)), 0));
    }

    #[test]
    fn either_file_and_the_bare_name_are_the_same_recording() {
        let (_dir, config) = recording(&two_channels(), &[0; 4]);
        for ending in ["", ".sigmf-meta", ".sigmf-data"] {
            let file = format!("{}{ending}", config.file.display()).into();
            assert!(open_recording(&SigmfConfig { file, ..config.clone() }).is_ok(), "{ending}");
        }
    }

    #[test]
    fn errors_name_the_file_and_the_field() {
        let cases = [
            ("/global/core:datatype", json!("cf16_le"), "core:datatype is \"cf16_le\""),
            ("/global/core:dataset", json!("../x"), "core:dataset is \"../x\""),
            ("/global/core:metadata_only", json!(true), "core:metadata_only is true"),
            ("/global/core:trailing_bytes", json!(1000), "core:trailing_bytes is 1000"),
            ("/captures/0/core:header_bytes", json!(u64::MAX), "core:trailing_bytes is 18446744073709551615"),
            ("/captures/0/core:header_bytes", json!(-1), "core:header_bytes is -1"),
            ("/global/core:datatype", Value::Null, "core:datatype is missing"),
            ("/global/core:num_channels", json!(0), "core:num_channels is 0"),
            ("/global/core:num_channels", json!(1u64 << 63), "core:num_channels is 9223372036854775808"),
            ("/global/core:sample_rate", json!(-1), "core:sample_rate is -1"),
            ("/global/core:sample_rate", json!("fast"), "core:sample_rate is \"fast\""),
            ("/captures/0/core:sample_start", json!(11), "captures[0] core:sample_start is 11"),
            ("/captures/0/core:datetime", json!("yesterday"), "captures[0] core:datetime is \"yesterday\""),
            ("/captures", json!(3), "captures is 3"),
            ("/global", json!([]), "global is []"),
        ];
        for (place, value, expected) in cases {
            let mut meta = two_channels();
            let (object, field) = place.rsplit_once('/').unwrap();
            match meta.pointer_mut(object).filter(|_| !object.is_empty()) {
                Some(object) => object[field] = value,
                None => meta[field] = value,
            }
            let (_dir, config) = recording(&meta, &[0; 20]);
            let error = open_recording(&config).unwrap_err().to_string();
            assert!(error.contains("pulse.1.sigmf-meta") && error.contains(expected), "{error}");
        }
        let (_dir, config) = recording(&two_channels(), &[0; 19]);
        let error = open_recording(&config).unwrap_err().to_string();
        assert!(
            error.contains("pulse.1.sigmf-data has 38 bytes of data") && error.contains("2 bytes left over"),
            "{error}"
        );
        let (_dir, config) = recording(&two_channels(), &[]);
        assert!(matches!(open_recording(&config), Err(DeviceError::Empty { .. })));
        let (dir, config) = recording(&two_channels(), &[0; 4]);
        std::fs::remove_file(dir.path().join("pulse.1.sigmf-data")).unwrap();
        assert!(open_recording(&config).unwrap_err().to_string().contains("pulse.1.sigmf-data"));
        std::fs::write(dir.path().join("pulse.1.sigmf-meta"), "{ \"global\": ").unwrap();
        assert!(matches!(open_recording(&config), Err(DeviceError::Json { .. })));
    }

    #[test]
    fn metadata_that_cannot_travel_are_left_out_by_name() {
        let mut meta = two_channels();
        meta["global"]["core:description"] = json!("x".repeat(10_000));
        let (_dir, config) = recording(&meta, &[0; 4]);
        let described = open_recording(&config).unwrap().description().metadata.clone().unwrap();
        assert!(described["omitted"].as_str().unwrap().contains("pulse.1.sigmf-meta"), "{described}");
    }

    #[test]
    fn real_recordings_are_played_whole() {
        for (name, channels, rate) in [("scope-2ch", 2, 250e6), ("scope-4ch", 4, 2.5e6)] {
            let file = crate::file::recording_path(&format!("{name}.sigmf-meta"));
            let expected = std::fs::read(file.with_extension("sigmf-data")).unwrap();
            let mut device =
                open_recording(&SigmfConfig { file, recording: None, samples_per_fragment: None, looped: false })
                    .unwrap();
            assert_eq!((device.description().channels, device.description().sample_rate), (Some(channels), Some(rate)));
            assert_eq!(device.description().metadata.as_ref().unwrap()["core:datatype"], "ri16_le");
            let mut played = Vec::new();
            for event in 0.. {
                let Some(len) = device.next_payload_len() else { break };
                assert!(len <= device.max_payload_bytes());
                let end = played.len();
                played.resize(end + len, 0);
                device.fill_payload(EventId(event), &mut played[end..]).unwrap();
            }
            assert!(played == expected, "{name}");
        }
    }

    fn json_value() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<u64>().prop_map(Value::from),
            (0u64..30).prop_map(Value::from),
            any::<f64>().prop_map(Value::from),
            "[a-z0-9:_TZ.-]{0,24}".prop_map(Value::from),
            Just(json!("ri16_le")),
        ];
        leaf.prop_recursive(2, 8, 4, |inner| {
            prop_oneof![
                proptest::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
                proptest::collection::btree_map("[a-z]{1,3}", inner, 0..4)
                    .prop_map(|map| Value::Object(map.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #[test]
        fn any_metadata_are_used_or_refused(
            datatype in prop_oneof![Just(json!("ri16_le")), json_value()],
            fields in proptest::collection::vec((0usize..6, json_value()), 0..3),
            starts in proptest::collection::vec((json_value(), json_value()), 0..4),
            samples in 1u64..100,
            per_fragment in 1u64..40,
        ) {
            const NAMES: [&str; 6] = ["core:num_channels", "core:sample_rate", "core:offset", "core:dataset", "core:extensions", "x"];
            let mut meta = json!({ "global": { "core:datatype": datatype }, "captures": [] });
            for (name, value) in fields {
                meta["global"][NAMES[name]] = value;
            }
            meta["captures"] = starts
                .into_iter()
                .map(|(start, time)| json!({ "core:sample_start": start, "core:datetime": time }))
                .collect();
            if let Ok(metadata) = Metadata::parse_metadata(Path::new("x"), meta.to_string().as_bytes())
                && let Ok(segments) = metadata.capture_segments(samples, per_fragment)
            {
                prop_assert_eq!(segments.iter().map(|s| s.samples).sum::<u64>(), samples);
                prop_assert!(segments.windows(2).all(|s| s[0].first_record < s[1].first_record));
            }
        }

        #[test]
        fn any_bytes_are_metadata_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = Metadata::parse_metadata(Path::new("x"), &bytes);
        }
    }
}
