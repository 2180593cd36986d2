//! Options of models and recordings, the kinds of devices that are built in.

use crate::kind::Entry;
use crate::{DeviceError, DeviceKind, DeviceOptions, OpenDevice, Rate, StoredType};
use crate::{adc, npy, pgm, raw, sigmf, tiff, vdif};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use std::path::PathBuf;
use thalweg_frames::Adapter;
use thalweg_text::ByteSize;
use thalweg_wire::SourceId;

/// The kinds that need no registration.
pub(crate) static KINDS: &[Entry] = &[
    Entry::for_kind::<ModelAdcConfig>(),
    Entry::for_kind::<SigmfConfig>(),
    Entry::for_kind::<VdifConfig>(),
    Entry::for_kind::<PgmConfig>(),
    Entry::for_kind::<TiffConfig>(),
    Entry::for_kind::<NpyConfig>(),
    Entry::for_kind::<RawConfig>(),
];

/// The model ADC: see [`model_adc`](crate::model_adc).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ModelAdcConfig {
    /// Bytes in each fragment's payload.
    pub size: ByteSize,
    /// Smallest payload in bytes: lengths vary from this up to `size`, see [`model_payload_bytes`](crate::model_payload_bytes). All
    /// payloads have `size` bytes where left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size_from: Option<ByteSize>,
    /// Seed of the waveforms. Below 2⁶³ where it is written in TOML.
    #[serde(default = "one")]
    pub seed: u64,
    /// Source that the waveforms belong to, `"1.0"`; the node's own source where left out, and 0.0 where there is none.
    #[serde(default, skip_serializing_if = "Option::is_none", with = "source_id")]
    pub source: Option<SourceId>,
    /// Number of different waveforms: event *e* has that of *e* mod `period`. 0: every event has its own.
    #[serde(default)]
    pub period: u64,
}

/// Reads and writes source ids as text, `"3.17"`.
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

fn one() -> u64 {
    1
}

/// A SigMF recording: `.sigmf-meta` beside `.sigmf-data`, or one of an archive (`.sigmf`) or collection
/// (`.sigmf-collection`).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SigmfConfig {
    /// Path of either of the two files, or their common name without ending; or of an archive or a collection.
    pub file: PathBuf,
    /// Name of the recording in an archive or collection; may be left out where there is only one.
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
    /// Path of the recording.
    pub file: PathBuf,
    /// Number of the thread to play; may be left out where the recording has only one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub thread: Option<u16>,
    /// Samples per second and channel, where the headers do not state it, or state it wrongly.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sample_rate: Option<u64>,
    /// Data frames per second of each thread, where the recording does not state it, or states it wrongly.
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
    /// Path of the file.
    pub file: PathBuf,
    /// Fragments per second, for their times.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate: Option<Rate>,
    /// Begin again when the array is over.
    #[serde(default, rename = "loop")]
    pub looped: bool,
}

/// A file of records of one size, with or without a header before them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RawConfig {
    /// Path of the file.
    pub file: PathBuf,
    /// Bytes of a header before the first record, which are not played.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub skip: ByteSize,
    /// Bytes in each record; may be left out where `type` and `shape` determine it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub record: Option<ByteSize>,
    /// Type of a record's elements; bytes without a stated meaning where left out.
    #[serde(default, rename = "type", skip_serializing_if = "Option::is_none")]
    pub stored: Option<StoredType>,
    /// Lengths of a record's axes, the last one without gaps; one axis where left out.
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
    /// Returns the number of bytes in each record, or `None` if the options do not determine it.
    pub fn record_bytes(&self) -> Option<u64> {
        self.record.map(|record| record.0).or_else(|| self.stored?.element.array_bytes(self.shape.as_deref()?))
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "the signature that serde calls")]
fn is_zero(size: &ByteSize) -> bool {
    size.0 == 0
}

impl DeviceOptions for ModelAdcConfig {
    fn open_device(&self, _adapter: Option<&Adapter>) -> Result<OpenDevice, DeviceError> {
        Ok(OpenDevice::Device(Box::new(adc::ModelAdc::new(self)?)))
    }

    fn longest_payload_bytes(&self) -> Option<u64> {
        Some(self.size.0)
    }

    fn is_steady_stream(&self) -> bool {
        self.size_from.is_none()
    }

    fn set_default_source(&mut self, source: SourceId) {
        self.source.get_or_insert(source);
    }
}

impl DeviceKind for ModelAdcConfig {
    const NAME: &'static str = "model-adc";
}

impl DeviceOptions for SigmfConfig {
    fn open_device(&self, _adapter: Option<&Adapter>) -> Result<OpenDevice, DeviceError> {
        Ok(OpenDevice::Device(Box::new(sigmf::open_recording(self)?)))
    }

    crate::device_paths!(file);
}

impl DeviceKind for SigmfConfig {
    const NAME: &'static str = "sigmf";
}

impl DeviceOptions for VdifConfig {
    fn open_device(&self, _adapter: Option<&Adapter>) -> Result<OpenDevice, DeviceError> {
        Ok(OpenDevice::Device(Box::new(vdif::open_recording(self)?)))
    }

    crate::device_paths!(file);
}

impl DeviceKind for VdifConfig {
    const NAME: &'static str = "vdif";
}

impl DeviceOptions for PgmConfig {
    fn open_device(&self, _adapter: Option<&Adapter>) -> Result<OpenDevice, DeviceError> {
        Ok(OpenDevice::Device(Box::new(pgm::open_sequence(self)?)))
    }

    crate::device_paths!(files);
}

impl DeviceKind for PgmConfig {
    const NAME: &'static str = "pgm";
}

impl DeviceOptions for TiffConfig {
    fn open_device(&self, _adapter: Option<&Adapter>) -> Result<OpenDevice, DeviceError> {
        Ok(OpenDevice::Device(Box::new(tiff::open_pages(self)?)))
    }

    crate::device_paths!(files);
}

impl DeviceKind for TiffConfig {
    const NAME: &'static str = "tiff";
}

impl DeviceOptions for NpyConfig {
    fn open_device(&self, _adapter: Option<&Adapter>) -> Result<OpenDevice, DeviceError> {
        Ok(OpenDevice::Device(Box::new(npy::open_array(self)?)))
    }

    crate::device_paths!(file);
}

impl DeviceKind for NpyConfig {
    const NAME: &'static str = "npy";
}

impl DeviceOptions for RawConfig {
    fn open_device(&self, _adapter: Option<&Adapter>) -> Result<OpenDevice, DeviceError> {
        Ok(OpenDevice::Device(Box::new(raw::open_records(self)?)))
    }

    fn longest_payload_bytes(&self) -> Option<u64> {
        self.record_bytes()
    }

    fn is_steady_stream(&self) -> bool {
        self.looped
    }

    crate::device_paths!(file);
}

impl DeviceKind for RawConfig {
    const NAME: &'static str = "raw";
}
