//! Replay of a SigMF recording of 16-bit samples (the Signal Metadata Format, <https://sigmf.org>, version 1.2).
//!
//! One fragment is `samples_per_fragment` samples of every channel, interleaved as in the file. A fragment never
//! reaches from one capture segment into the next, since time may jump between them; the last one of each is sent
//! short.

use crate::file::InputFile;
use crate::replay::{Recording, Replay};
use crate::time::parse_utc;
use crate::{Description, DeviceError, Filled, MAX_PAYLOAD, SigmfConfig};
use serde_json::{Map, Value};
use std::path::{Path, PathBuf};
use thalweg_wire::{PayloadType, Status, TaiNanos};

/// Metadata longer than this are refused. Real ones are a few KiB; annotations can make them some MiB.
const MAX_METADATA: usize = 16 << 20;
/// A `global` object longer than this, as JSON, is left out of the device's description, which has to travel in one
/// message.
const MAX_DESCRIBED: usize = 8 << 10;
/// Bytes of a fragment, about, where its length is not stated.
const DEFAULT_FRAGMENT: u64 = 64 << 10;
/// Bytes in one sample of one channel.
const SAMPLE: u64 = 2;

/// The two files of the recording that `path` names: by either of them, or by their name without ending.
pub(crate) fn file_names(path: &Path) -> (PathBuf, PathBuf) {
    let known = path.extension().is_some_and(|ending| ending == "sigmf-meta" || ending == "sigmf-data");
    let stem = if known { path.with_extension("") } else { path.to_owned() };
    let with = |ending: &str| {
        let mut name = stem.clone().into_os_string();
        name.push(ending);
        PathBuf::from(name)
    };
    (with(".sigmf-meta"), with(".sigmf-data"))
}

/// Opens the recording and checks its metadata against its data.
pub(crate) fn open(config: &SigmfConfig) -> Result<Replay<Sigmf>, DeviceError> {
    let (meta, data) = file_names(&config.file);
    let metadata = Metadata::read(&meta)?;
    let file = InputFile::open(&data)?;
    let frame = metadata.channels * SAMPLE;
    if file.len() == 0 {
        return Err(DeviceError::Empty { file: data });
    }
    if !file.len().is_multiple_of(frame) {
        return Err(DeviceError::Leftover { file: data, length: file.len(), record: frame });
    }
    let samples = file.len() / frame;
    let limit = MAX_PAYLOAD as u64 / frame;
    let per_fragment = match config.samples_per_fragment {
        None => (DEFAULT_FRAGMENT / frame).max(1).min(samples),
        Some(n) if (1..=limit).contains(&n) => n.min(samples),
        Some(value) => {
            let expected = "at least 1, and no more than make 1 GiB with all channels";
            return Err(DeviceError::Setting { option: "samples_per_fragment", value, expected });
        }
    };
    let segments = metadata.segments(samples, per_fragment)?;
    let description = Description {
        kind: "sigmf".to_owned(),
        payload_type: PayloadType::SAMPLES_I16.name().to_owned(),
        channels: u32::try_from(metadata.channels).ok(),
        sample_rate: metadata.rate.map(|rate| rate.hertz),
        bits: Some(16),
        record_bytes: Some(per_fragment * frame),
        samples: Some(per_fragment),
        file: Some(data.display().to_string()),
        metadata: Some(metadata.described()),
        ..Default::default()
    };
    // At most MAX_PAYLOAD, so it is a length in memory.
    let longest = (per_fragment * frame) as usize;
    let recording = Sigmf { file, frame, samples, per_fragment, rate: metadata.rate, segments };
    Ok(Replay::new(recording, description, longest, config.looped))
}

/// The recording, cut into fragments.
#[derive(Debug)]
pub(crate) struct Sigmf {
    file: InputFile,
    /// Bytes in one sample of all channels.
    frame: u64,
    /// Samples per channel in the file.
    samples: u64,
    /// Samples per channel in a full fragment.
    per_fragment: u64,
    rate: Option<Rate>,
    /// At least one; each holds at least one sample.
    segments: Vec<Segment>,
}

/// Samples without a gap in time: a SigMF capture segment.
#[derive(Debug)]
struct Segment {
    first_sample: u64,
    samples: u64,
    first_record: u64,
    began: TaiNanos,
}

impl Sigmf {
    /// The segment a record lies in, its first sample counted within the segment, and its number of samples.
    fn locate(&self, record: u64) -> (&Segment, u64, u64) {
        let segment = &self.segments[self.segments.partition_point(|s| s.first_record <= record) - 1];
        let begin = (record - segment.first_record) * self.per_fragment;
        (segment, begin, self.per_fragment.min(segment.samples - begin))
    }
}

impl Recording for Sigmf {
    fn records(&self) -> u64 {
        self.segments.last().map_or(0, |last| last.first_record + last.samples.div_ceil(self.per_fragment))
    }

    fn payload_len(&self, record: u64) -> usize {
        (self.locate(record).2 * self.frame) as usize
    }

    fn filled(&self, record: u64) -> Filled {
        let (segment, begin, samples) = self.locate(record);
        let nanos = |samples| self.rate.map_or(0, |rate| rate.nanos(samples));
        Filled {
            payload_type: PayloadType::SAMPLES_I16,
            status: Status::REPLAYED,
            window: u32::try_from(nanos(samples)).unwrap_or(u32::MAX),
            timestamp: Some(TaiNanos(segment.began.0.saturating_add(nanos(begin)))),
        }
    }

    fn read(&mut self, record: u64, payload: &mut [u8]) -> Result<(), DeviceError> {
        let (segment, begin, _) = self.locate(record);
        self.file.read_at((segment.first_sample + begin) * self.frame, payload)
    }

    fn pass_nanos(&self) -> u64 {
        let nanos = |samples| self.rate.map_or(0, |rate| rate.nanos(samples));
        let (Some(first), Some(last)) = (self.segments.first(), self.segments.last()) else { return 0 };
        // With gaps between its captures a pass takes longer than its samples.
        last.began.0.saturating_sub(first.began.0).saturating_add(nanos(last.samples)).max(nanos(self.samples))
    }
}

/// Samples per second, as the exact number of millionths that nanoseconds are computed from.
#[derive(Debug, Clone, Copy)]
struct Rate {
    hertz: f64,
    micro: u64,
}

impl Rate {
    /// Nothing where a clock of that rate could not be counted: below a millionth or above 10¹² per second.
    fn new(hertz: f64) -> Option<Self> {
        let micro = (hertz * 1e6).round();
        (1.0..=1e18).contains(&micro).then_some(Self { hertz, micro: micro as u64 })
    }

    /// How long so many samples take, rounded down.
    fn nanos(self, samples: u64) -> u64 {
        let nanos = u128::from(samples) * 1_000_000_000_000_000 / u128::from(self.micro);
        u64::try_from(nanos).unwrap_or(u64::MAX)
    }
}

/// What is used of the metadata.
#[derive(Debug)]
struct Metadata {
    file: PathBuf,
    global: Map<String, Value>,
    captures: Vec<Capture>,
    channels: u64,
    rate: Option<Rate>,
}

#[derive(Debug)]
struct Capture {
    sample_start: u64,
    began: Option<TaiNanos>,
}

impl Capture {
    /// The capture of this number. `bad` makes an error of a field, what is there and what should be.
    fn read(
        i: usize,
        capture: &Value,
        offset: u64,
        bad: impl Fn(&str, &Value, &'static str) -> DeviceError,
    ) -> Result<Self, DeviceError> {
        let field = |name: &str| capture.get(name).unwrap_or(&Value::Null);
        let wrong = |name: &str, expected| bad(&format!("captures[{i}] {name}"), field(name), expected);
        let sample_start = field("core:sample_start")
            .as_u64()
            .and_then(|start| start.checked_sub(offset))
            .ok_or_else(|| wrong("core:sample_start", "a sample number, not below global core:offset"))?;
        if !(field("core:header_bytes").is_null() || field("core:header_bytes") == &Value::from(0)) {
            return Err(wrong("core:header_bytes", "absent: only recordings without gaps can be replayed"));
        }
        let began =
            match field("core:datetime") {
                Value::Null => None,
                value => Some(value.as_str().and_then(parse_utc).ok_or_else(|| {
                    wrong("core:datetime", "a time in UTC since 1972, such as \"2020-03-01T12:00:00Z\"")
                })?),
            };
        Ok(Self { sample_start, began })
    }
}

impl Metadata {
    fn read(path: &Path) -> Result<Self, DeviceError> {
        let bytes = InputFile::open(path)?.head(MAX_METADATA + 1)?;
        Self::parse(path, &bytes)
    }

    fn parse(path: &Path, bytes: &[u8]) -> Result<Self, DeviceError> {
        let bad = |field: &str, found: &Value, expected| {
            // A stranger's value is shown, but not all of it.
            let mut found = if found.is_null() { "missing".to_owned() } else { found.to_string() };
            if let Some((end, _)) = found.char_indices().nth(60) {
                found.truncate(end);
                found.push('…');
            }
            DeviceError::Metadata { file: path.to_owned(), field: field.to_owned(), found, expected }
        };
        if bytes.len() > MAX_METADATA {
            let found = Value::from(format!("more than {MAX_METADATA} bytes"));
            return Err(bad("the file's length", &found, "at most 16 MiB"));
        }
        let mut document: Value =
            serde_json::from_slice(bytes).map_err(|error| DeviceError::Json { file: path.to_owned(), error })?;
        let global = match document.get_mut("global").map(Value::take) {
            Some(Value::Object(global)) => global,
            found => return Err(bad("global", &found.unwrap_or_default(), "an object")),
        };
        let global_field = |name: &str| global.get(name).unwrap_or(&Value::Null);

        if global_field("core:datatype") != "ri16_le" {
            let expected = "\"ri16_le\" (real signed 16-bit little-endian samples), the one type this program replays; \
                            convert the recording, or replay it as raw records";
            return Err(bad("global core:datatype", global_field("core:datatype"), expected));
        }
        for name in ["core:dataset", "core:metadata_only", "core:trailing_bytes"] {
            let value = global_field(name);
            if !(value.is_null() || value == &Value::Bool(false) || value == &Value::from(0)) {
                let expected = "absent: only recordings whose samples fill a .sigmf-data file can be replayed";
                return Err(bad(&format!("global {name}"), value, expected));
            }
        }
        // Absent means one channel (SigMF 1.2, core:num_channels).
        let channels = match global_field("core:num_channels") {
            Value::Null => 1,
            value => value
                .as_u64()
                .filter(|n| (1..=65536).contains(n))
                .ok_or_else(|| bad("global core:num_channels", value, "a number from 1 to 65536"))?,
        };
        let rate = match global_field("core:sample_rate") {
            Value::Null => None,
            value => Some(
                value
                    .as_f64()
                    .and_then(Rate::new)
                    .ok_or_else(|| bad("global core:sample_rate", value, "samples per second, from 10^-6 to 10^12"))?,
            ),
        };
        let offset = match global_field("core:offset") {
            Value::Null => 0,
            value => value.as_u64().ok_or_else(|| bad("global core:offset", value, "a number of samples"))?,
        };

        let captures = match document.get("captures") {
            Some(Value::Array(captures)) => captures.as_slice(),
            found => return Err(bad("captures", found.unwrap_or(&Value::Null), "an array")),
        };
        let captures: Vec<Capture> = captures
            .iter()
            .enumerate()
            .map(|(i, capture)| Capture::read(i, capture, offset, bad))
            .collect::<Result<_, DeviceError>>()?;
        Ok(Self { file: path.to_owned(), global, captures, channels, rate })
    }

    /// The capture segments of a data file with so many samples per channel.
    fn segments(&self, samples: u64, per_fragment: u64) -> Result<Vec<Segment>, DeviceError> {
        // Samples in front of the first capture, or all where there is none, are played too.
        let mut starts = vec![(0, None)];
        for (i, capture) in self.captures.iter().enumerate() {
            let (previous, _) = starts[starts.len() - 1];
            if capture.sample_start < previous || capture.sample_start > samples {
                return Err(DeviceError::Metadata {
                    file: self.file.clone(),
                    field: format!("captures[{i}] core:sample_start"),
                    found: capture.sample_start.to_string(),
                    expected: "not below that of the capture before it, and within the data file",
                });
            }
            starts.push((capture.sample_start, capture.began));
        }
        // A capture without a date follows the one before it at once, as its samples do; what lies in front of the
        // first that has one ends there. Where none has one, time begins at 0.
        let nanos = |samples| self.rate.map_or(0, |rate| rate.nanos(samples));
        let dated = starts.iter().find_map(|&(start, began)| Some((start, began?)));
        let (start, began) = dated.unwrap_or_default();
        let mut known = (0, TaiNanos(began.0.saturating_sub(nanos(start))));
        let mut segments: Vec<Segment> = Vec::new();
        for (i, &(first_sample, began)) in starts.iter().enumerate() {
            let follows = || TaiNanos(known.1.0.saturating_add(nanos(first_sample - known.0)));
            let began = began.unwrap_or_else(follows);
            known = (first_sample, began);
            let end = starts.get(i + 1).map_or(samples, |(next, _)| *next);
            if end > first_sample {
                let first_record =
                    segments.last().map_or(0, |last| last.first_record + last.samples.div_ceil(per_fragment));
                segments.push(Segment { first_sample, samples: end - first_sample, first_record, began });
            }
        }
        Ok(segments)
    }

    /// The `global` object for the device's description; where it is too long to travel, a word that says so.
    fn described(&self) -> Value {
        let global = Value::Object(self.global.clone());
        let length = global.to_string().len();
        if length <= MAX_DESCRIBED {
            return global;
        }
        serde_json::json!({ "omitted": format!("{length} bytes of global metadata, which are in {}", self.file.display()) })
    }
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
        (dir, SigmfConfig { file, samples_per_fragment: Some(4), looped: false })
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
        let mut device = open(&config).unwrap();
        assert_eq!(device.max_payload(), 16);
        let mut played = Vec::new();
        for (event, (len, micros)) in (0..).zip([(16, 0), (16, 4), (8, 8)]) {
            assert_eq!(device.next_len(), Some(len));
            let mut payload = vec![0; len];
            let filled = device.fill(EventId(event), &mut payload).unwrap();
            assert_eq!(filled.timestamp, Some(TaiNanos(NOON + micros * 1000)));
            assert_eq!(filled.window, len as u32 / 4 * 1000);
            assert_eq!(filled.status, Status::REPLAYED);
            played.extend(payload.chunks(2).map(|b| i16::from_le_bytes([b[0], b[1]])));
        }
        assert_eq!(played, samples);
        assert_eq!(device.next_len(), None);
    }

    #[test]
    fn in_a_loop_time_goes_on() {
        let (_dir, mut config) = recording(&two_channels(), &[0; 20]);
        config.looped = true;
        let mut device = open(&config).unwrap();
        let times: Vec<u64> = (7..12).map(|event| device.skip(EventId(event)).timestamp.unwrap().0 - NOON).collect();
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
        let mut device = open(&config).unwrap();
        let mut found = Vec::new();
        while let Some(len) = device.next_len() {
            let filled = device.skip(EventId(found.len() as u64));
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
            let mut device = open(&config).unwrap();
            (0..3).map(|event| device.skip(EventId(event)).timestamp.unwrap().0).collect()
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
        let mut device = open(&config).unwrap();
        assert_eq!((device.next_len(), device.max_payload()), (Some(6), 6));
        let filled = device.skip(EventId(0));
        assert_eq!((filled.timestamp, filled.window), (Some(TaiNanos(0)), 0));
    }

    #[test]
    fn either_file_and_the_bare_name_are_the_same_recording() {
        let (_dir, config) = recording(&two_channels(), &[0; 4]);
        for ending in ["", ".sigmf-meta", ".sigmf-data"] {
            let file = format!("{}{ending}", config.file.display()).into();
            assert!(open(&SigmfConfig { file, ..config.clone() }).is_ok(), "{ending}");
        }
    }

    #[test]
    fn errors_name_the_file_and_the_field() {
        let cases = [
            ("/global/core:datatype", json!("cf32_le"), "core:datatype is \"cf32_le\""),
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
            *meta.pointer_mut(place).unwrap() = value;
            let (_dir, config) = recording(&meta, &[0; 20]);
            let error = open(&config).unwrap_err().to_string();
            assert!(error.contains("pulse.1.sigmf-meta") && error.contains(expected), "{error}");
        }
        let (_dir, config) = recording(&two_channels(), &[0; 19]);
        let error = open(&config).unwrap_err().to_string();
        assert!(
            error.contains("pulse.1.sigmf-data is 38 bytes long") && error.contains("2 bytes left over"),
            "{error}"
        );
        let (_dir, config) = recording(&two_channels(), &[]);
        assert!(matches!(open(&config), Err(DeviceError::Empty { .. })));
        let (dir, config) = recording(&two_channels(), &[0; 4]);
        std::fs::remove_file(dir.path().join("pulse.1.sigmf-data")).unwrap();
        assert!(open(&config).unwrap_err().to_string().contains("pulse.1.sigmf-data"));
        std::fs::write(dir.path().join("pulse.1.sigmf-meta"), "{ \"global\": ").unwrap();
        assert!(matches!(open(&config), Err(DeviceError::Json { .. })));
    }

    #[test]
    fn metadata_that_cannot_travel_are_left_out_by_name() {
        let mut meta = two_channels();
        meta["global"]["core:description"] = json!("x".repeat(10_000));
        let (_dir, config) = recording(&meta, &[0; 4]);
        let described = open(&config).unwrap().description().metadata.clone().unwrap();
        assert!(described["omitted"].as_str().unwrap().contains("pulse.1.sigmf-meta"), "{described}");
    }

    #[test]
    fn real_recordings_are_played_whole() {
        for (name, channels, rate) in [("scope-2ch", 2, 250e6), ("scope-4ch", 4, 2.5e6)] {
            let file = crate::file::recording(&format!("{name}.sigmf-meta"));
            let expected = std::fs::read(file.with_extension("sigmf-data")).unwrap();
            let mut device = open(&SigmfConfig { file, samples_per_fragment: None, looped: false }).unwrap();
            assert_eq!((device.description().channels, device.description().sample_rate), (Some(channels), Some(rate)));
            assert_eq!(device.description().metadata.as_ref().unwrap()["core:datatype"], "ri16_le");
            let mut played = Vec::new();
            for event in 0.. {
                let Some(len) = device.next_len() else { break };
                assert!(len <= device.max_payload());
                let end = played.len();
                played.resize(end + len, 0);
                device.fill(EventId(event), &mut played[end..]).unwrap();
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
            if let Ok(metadata) = Metadata::parse(Path::new("x"), meta.to_string().as_bytes())
                && let Ok(segments) = metadata.segments(samples, per_fragment)
            {
                prop_assert_eq!(segments.iter().map(|s| s.samples).sum::<u64>(), samples);
                prop_assert!(segments.windows(2).all(|s| s[0].first_record < s[1].first_record));
            }
        }

        #[test]
        fn any_bytes_are_metadata_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = Metadata::parse(Path::new("x"), &bytes);
        }
    }
}
