//! How a device is asked for: the `device = { kind = "…", … }` table of the topology file.

use crate::{Rate, StoredType};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use thalweg_wire::SourceId;
use thiserror::Error;

/// One device. In TOML: `device = { kind = "model-adc", size = "1MiB", seed = 1 }`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(
    tag = "kind",
    rename_all = "kebab-case",
    expecting = "a table, such as device = { kind = \"model-adc\", size = \"64KiB\" }"
)]
pub enum DeviceConfig {
    /// A digitizer computed from a seed; simulated.
    ModelAdc(ModelAdcConfig),
    /// A SigMF recording; replayed.
    Sigmf(SigmfConfig),
    /// One thread of a VDIF recording; replayed.
    Vdif(VdifConfig),
    /// PGM images, one after the other; replayed.
    Pgm(PgmConfig),
    /// TIFF images, page by page; replayed.
    Tiff(TiffConfig),
    /// The rows of a NumPy array; replayed.
    Npy(NpyConfig),
    /// Records of one size from a file; replayed.
    Raw(RawConfig),
}

impl DeviceConfig {
    /// The name of its kind, as written in a topology file.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::ModelAdc(_) => "model-adc",
            Self::Sigmf(_) => "sigmf",
            Self::Vdif(_) => "vdif",
            Self::Pgm(_) => "pgm",
            Self::Tiff(_) => "tiff",
            Self::Npy(_) => "npy",
            Self::Raw(_) => "raw",
        }
    }

    /// Tells a model which source it plays, unless it was configured with one: sources of one run then differ.
    pub fn set_source(&mut self, source: SourceId) {
        if let Self::ModelAdc(config) = self {
            config.source.get_or_insert(source);
        }
    }

    /// The files it plays.
    pub fn paths(&self) -> &[PathBuf] {
        match self {
            Self::ModelAdc(_) => &[],
            Self::Sigmf(config) => std::slice::from_ref(&config.file),
            Self::Vdif(config) => std::slice::from_ref(&config.file),
            Self::Pgm(config) => &config.files,
            Self::Tiff(config) => &config.files,
            Self::Npy(config) => std::slice::from_ref(&config.file),
            Self::Raw(config) => std::slice::from_ref(&config.file),
        }
    }

    /// Takes relative file names as relative to `base`, the topology file's directory.
    pub fn resolve_paths(&mut self, base: &Path) {
        let files: &mut [PathBuf] = match self {
            Self::ModelAdc(_) => &mut [],
            Self::Sigmf(config) => std::slice::from_mut(&mut config.file),
            Self::Vdif(config) => std::slice::from_mut(&mut config.file),
            Self::Pgm(config) => &mut config.files,
            Self::Tiff(config) => &mut config.files,
            Self::Npy(config) => std::slice::from_mut(&mut config.file),
            Self::Raw(config) => std::slice::from_mut(&mut config.file),
        };
        for file in files {
            *file = base.join(&*file);
        }
    }
}

/// The model ADC: see [`model_adc`](crate::model_adc).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ModelAdcConfig {
    /// Bytes in each fragment's payload.
    pub size: ByteSize,
    /// Where given, a payload has from so many bytes up to `size`: see [`payload_len`](crate::payload_len).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size_from: Option<ByteSize>,
    /// Chooses the waveforms. Below 2⁶³ where it is written in TOML.
    #[serde(default = "one")]
    pub seed: u64,
    /// Which source's waveforms, `"1.0"`; the node's own source where left out, and 0.0 where there is none.
    #[serde(default, skip_serializing_if = "Option::is_none", with = "source_id")]
    pub source: Option<SourceId>,
    /// How many different waveforms there are: event *e* has that of *e* mod `period`. 0: every event has its own.
    #[serde(default)]
    pub period: u64,
}

/// A SigMF recording: `.sigmf-meta` beside `.sigmf-data`, or one of an archive (`.sigmf`) or collection
/// (`.sigmf-collection`).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SigmfConfig {
    /// Either of the two files, or their common name without ending; or an archive, or a collection.
    pub file: PathBuf,
    /// The recording of an archive or collection; may be left out where there is only one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub recording: Option<String>,
    /// Samples of each channel in one fragment; as many as make about 64 KiB where left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub samples_per_fragment: Option<u64>,
    /// Begin again when the recording is over.
    #[serde(default, rename = "loop")]
    pub looped: bool,
}

/// One thread of a VDIF recording.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VdifConfig {
    /// The recording.
    pub file: PathBuf,
    /// The thread to play; may be left out where the recording has only one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub thread: Option<u16>,
    /// Samples per second and channel, where its headers do not say it, or say it wrongly.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sample_rate: Option<u64>,
    /// Data frames per second of each thread, where the recording does not tell, or tells it wrongly.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate: Option<Rate>,
    /// Begin again when the recording is over.
    #[serde(default, rename = "loop")]
    pub looped: bool,
}

/// PGM images of one size, played in the order given.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PgmConfig {
    /// Image files; a directory stands for its `*.pgm`, by name.
    pub files: Vec<PathBuf>,
    /// Images per second, for their times.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate: Option<Rate>,
    /// Begin again when the sequence is over.
    #[serde(default, rename = "loop")]
    pub looped: bool,
}

/// TIFF images of one size and type, played in the order given, page by page.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TiffConfig {
    /// Image files; a directory stands for its `*.tif` and `*.tiff`, by name.
    pub files: Vec<PathBuf>,
    /// Images per second, for their times.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate: Option<Rate>,
    /// Begin again when the sequence is over.
    #[serde(default, rename = "loop")]
    pub looped: bool,
}

/// A NumPy array (`.npy`), whose first axis counts fragments.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NpyConfig {
    /// The file.
    pub file: PathBuf,
    /// Fragments per second, for their times.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate: Option<Rate>,
    /// Begin again when the array is over.
    #[serde(default, rename = "loop")]
    pub looped: bool,
}

/// A file of records of one size, with or without a header in front.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RawConfig {
    /// The file.
    pub file: PathBuf,
    /// Bytes of a header in front of the first record, which are not played.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub skip: ByteSize,
    /// Bytes in each record; may be left out where `type` and `shape` say it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub record: Option<ByteSize>,
    /// What a record is made of; bytes without a stated meaning where left out.
    #[serde(default, rename = "type", skip_serializing_if = "Option::is_none")]
    pub stored: Option<StoredType>,
    /// A record's axes, the last one without gaps; one axis where left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shape: Option<Vec<u64>>,
    /// Records per second, for their times.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate: Option<Rate>,
    /// Begin again when the recording is over.
    #[serde(default, rename = "loop")]
    pub looped: bool,
}

impl RawConfig {
    /// Bytes in each record, where the options say it.
    pub fn record_bytes(&self) -> Option<u64> {
        let of_shape = || self.stored?.element.bytes_of(self.shape.as_deref()?);
        self.record.map(|record| record.0).or_else(of_shape)
    }
}

fn one() -> u64 {
    1
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "the signature that serde calls")]
fn is_zero(size: &ByteSize) -> bool {
    size.0 == 0
}

/// A number of bytes; written as a number, or as text with a unit: `4096`, `"64KiB"`, `"1MiB"`, `"1.5 MB"`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct ByteSize(pub u64);

/// Why a text is not a number of bytes.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error(
    "'{0}' is not a size: write a number of bytes, or one with a unit (B, KiB, MiB, GiB, kB, MB, GB), such as 64KiB"
)]
pub struct ByteSizeError(String);

const UNITS: [(&str, u64); 8] = [
    ("GiB", 1 << 30),
    ("MiB", 1 << 20),
    ("KiB", 1 << 10),
    ("GB", 1_000_000_000),
    ("MB", 1_000_000),
    ("kB", 1_000),
    ("KB", 1_000),
    ("B", 1),
];

impl FromStr for ByteSize {
    type Err = ByteSizeError;

    fn from_str(text: &str) -> Result<Self, ByteSizeError> {
        let error = || ByteSizeError(text.to_owned());
        let trimmed = text.trim();
        let (number, unit) = UNITS
            .iter()
            .find_map(|(name, unit)| Some((trimmed.strip_suffix(name)?.trim_end(), *unit)))
            .unwrap_or((trimmed, 1));
        // Decimals are allowed as far as they give whole bytes: 1.5KiB is 1536, 1.5 is nothing.
        let (whole, decimals) = number.split_once('.').unwrap_or((number, ""));
        let digits = |text: &str| text.bytes().all(|b| b.is_ascii_digit());
        if whole.is_empty() || number.ends_with('.') || decimals.len() > 9 || !digits(whole) || !digits(decimals) {
            return Err(error());
        }
        let scale = 10u128.pow(decimals.len() as u32);
        let scaled: u128 = format!("{whole}{decimals}").parse().map_err(|_| error())?;
        let bytes = scaled.checked_mul(u128::from(unit)).filter(|bytes| bytes % scale == 0).ok_or_else(error)?;
        u64::try_from(bytes / scale).map(Self).map_err(|_| error())
    }
}

impl fmt::Display for ByteSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Without the commas it can be read again.
        f.write_str(&thalweg_page::text::size(self.0).replace(',', ""))
    }
}

impl Serialize for ByteSize {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_u64(self.0)
    }
}

impl<'de> Deserialize<'de> for ByteSize {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(SizeVisitor)
    }
}

struct SizeVisitor;

impl de::Visitor<'_> for SizeVisitor {
    type Value = ByteSize;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a size, such as 4096 or \"64KiB\"")
    }

    fn visit_u64<E: de::Error>(self, value: u64) -> Result<ByteSize, E> {
        Ok(ByteSize(value))
    }

    fn visit_i64<E: de::Error>(self, value: i64) -> Result<ByteSize, E> {
        u64::try_from(value).map(ByteSize).map_err(|_| E::invalid_value(de::Unexpected::Signed(value), &self))
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<ByteSize, E> {
        text.parse().map_err(E::custom)
    }
}

/// Source ids as text, `"3.17"`.
mod source_id {
    use super::{Deserialize, Deserializer, Serializer, SourceId, de};

    #[expect(clippy::ref_option, reason = "the signature that serde calls")]
    pub(super) fn serialize<S: Serializer>(id: &Option<SourceId>, serializer: S) -> Result<S::Ok, S::Error> {
        match id {
            Some(id) => serializer.collect_str(id),
            None => serializer.serialize_none(),
        }
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<SourceId>, D::Error> {
        let text: Option<String> = Option::deserialize(deserializer)?;
        text.map(|text| text.parse().map_err(de::Error::custom)).transpose()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, Deserialize, Serialize)]
    struct Table {
        device: DeviceConfig,
    }

    fn device(toml: &str) -> Result<DeviceConfig, String> {
        toml::from_str::<Table>(toml).map(|table| table.device).map_err(|error| error.to_string())
    }

    #[test]
    fn a_topology_names_its_devices() {
        let model = device(r#"device = { kind = "model-adc", size = "1MiB", seed = 7, source = "1.2", period = 32 }"#);
        let expected = ModelAdcConfig {
            size: ByteSize(1 << 20),
            size_from: None,
            seed: 7,
            source: Some(SourceId::new(1, 2)),
            period: 32,
        };
        assert_eq!(model, Ok(DeviceConfig::ModelAdc(expected)));
        let vdif = device(r#"device = { kind = "vdif", file = "a.vdif", thread = 3, loop = true }"#);
        assert_eq!(
            vdif,
            Ok(DeviceConfig::Vdif(VdifConfig {
                file: "a.vdif".into(),
                thread: Some(3),
                sample_rate: None,
                rate: None,
                looped: true
            }))
        );
    }

    #[test]
    fn what_was_read_can_be_written_and_read_again() {
        for text in [
            r#"device = { kind = "model-adc", size = 1000 }"#,
            r#"device = { kind = "model-adc", size = 1000, source = "0.9" }"#,
            r#"device = { kind = "model-adc", size = 1000, size_from = 10 }"#,
            r#"device = { kind = "sigmf", file = "x", samples_per_fragment = 10 }"#,
            r#"device = { kind = "vdif", file = "x" }"#,
            r#"device = { kind = "pgm", files = ["a", "b"], loop = true }"#,
            r#"device = { kind = "sigmf", file = "x.sigmf", recording = "y" }"#,
            r#"device = { kind = "vdif", file = "x", rate = 1600 }"#,
            r#"device = { kind = "tiff", files = ["a"], rate = 12.5 }"#,
            r#"device = { kind = "npy", file = "x" }"#,
            r#"device = { kind = "raw", file = "x", record = "2KiB" }"#,
            r#"device = { kind = "raw", file = "x", skip = 512, type = "ci16_be", shape = [64, 2], rate = 1e-3 }"#,
        ] {
            let config = device(text).unwrap();
            assert!(text.contains(&format!("\"{}\"", config.kind())));
            let toml = toml::to_string(&Table { device: config.clone() }).unwrap();
            assert_eq!(device(&toml), Ok(config.clone()));
            assert_eq!(serde_json::from_str::<DeviceConfig>(&serde_json::to_string(&config).unwrap()).unwrap(), config);
        }
    }

    #[test]
    fn a_misspelt_option_is_named() {
        let error = device(r#"device = { kind = "raw", file = "x", record = 8, looped = true }"#).unwrap_err();
        assert!(error.contains("looped") && error.contains("`loop`"), "{error}");
        let error = device(r#"device = { kind = "tape" }"#).unwrap_err();
        assert!(error.contains("tape") && error.contains("model-adc"), "{error}");
        let error = device(r#"device = { kind = "raw", file = "x", record = "8 bits" }"#).unwrap_err();
        assert!(error.contains("8 bits"), "{error}");
        let error = device(r#"device = { kind = "npy", file = "x", rate = "100 Hz" }"#).unwrap_err();
        assert!(error.contains("\"100 Hz\"") && error.contains("without a unit, such as 100.0"), "{error}");
        let error = device(r#"device = { kind = "npy", file = "x", rate = 0 }"#).unwrap_err();
        assert!(error.contains("0.0") && error.contains("from 1e-6"), "{error}");
        let error = device(r#"device = { kind = "raw", file = "x", type = "float32" }"#).unwrap_err();
        assert!(error.contains("'float32' is not a type: write one of u8") && error.contains("_be"), "{error}");
    }

    #[test]
    fn sizes_are_read_as_people_write_them() {
        for (text, bytes) in [
            ("0", 0),
            ("4096", 4096),
            ("64KiB", 65536),
            ("64 KiB", 65536),
            ("1.5kB", 1500),
            ("1.5 MiB", 3 << 19),
            ("2GB", 2_000_000_000),
            ("7B", 7),
        ] {
            assert_eq!(text.parse(), Ok(ByteSize(bytes)), "{text}");
        }
        for text in ["", "KiB", "1.5", "1.", ".5KiB", "-1", "1e3", "1 k", "99999999999999999999", "17179869184GiB"] {
            assert!(text.parse::<ByteSize>().is_err(), "{text}");
        }
        assert_eq!(ByteSize(3 << 19).to_string(), "1536 KiB");
        assert_eq!(ByteSize(1001).to_string(), "1001 B");
        for bytes in [0, 1, 1001, 340_000, 3 << 19, 5_000_000_000, u64::MAX] {
            assert_eq!(ByteSize(bytes).to_string().parse(), Ok(ByteSize(bytes)), "{bytes}");
        }
    }

    #[test]
    fn file_names_are_relative_to_the_topology() {
        let mut config = device(r#"device = { kind = "pgm", files = ["a.pgm", "/b.pgm"] }"#).unwrap();
        config.resolve_paths(Path::new("/lab"));
        let DeviceConfig::Pgm(pgm) = config else { panic!() };
        assert_eq!(pgm.files, [PathBuf::from("/lab/a.pgm"), PathBuf::from("/b.pgm")]);
    }
}
