//! Description of a device's data, as `run.json` has it.

use indexmap::IndexMap;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::ops::Index;

/// Description of the data that a device produces, for `run.json`: fields that most kinds have in common, and those of
/// one kind. Fields that have no meaning for a kind of device, or are not known, are left out.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Description {
    /// Kind of the device: `model-adc`, `sigmf`, `vdif`, `pgm`, `tiff`, `npy`, `raw`, `gige`, `edu`, `nvme`, `stream`,
    /// `v4l2`, `comedi`, `dma`, `fit`, `udp-` and a format, or a kind that another crate registers.
    pub kind: String,
    /// Name of the payload type, as [`PayloadType::type_name`].
    pub payload_type: String,
    /// True if the data are made by a model, not measured.
    pub simulated: bool,
    /// True if the data are played from a recording.
    pub replayed: bool,
    /// True if the recording is played again from the beginning when it is over.
    #[serde(rename = "loop")]
    pub looped: bool,
    /// Lengths of the axes of a full fragment's payload, if it is an array: the last one without gaps.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shape: Option<Vec<u64>>,
    /// Fragments per second by which they are dated, if configured.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fragment_rate: Option<f64>,
    /// Number of channels, interleaved sample by sample.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub channels: Option<u32>,
    /// Samples per second and channel.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sample_rate: Option<f64>,
    /// Number of significant bits in a sample or pixel.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bits: Option<u32>,
    /// Bytes in a full fragment's payload.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub record_bytes: Option<u64>,
    /// Bytes in the smallest fragment's payload, if lengths differ.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub record_bytes_from: Option<u64>,
    /// Samples per channel in a full fragment.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub samples: Option<u64>,
    /// Fragments in one pass over the recording.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub records: Option<u64>,
    /// Path of the recording: the file, or the first file of a sequence.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub file: Option<String>,
    /// Notes on the recording that the user should read before it is played.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
    /// Fields of this kind alone.
    #[serde(flatten)]
    pub own: OwnFields,
}

/// Fields of a [`Description`] that only some kinds of devices have, each under its key in `run.json`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct OwnFields(IndexMap<String, Value>);

impl OwnFields {
    /// Adds a field. A value that is null, such as `None`, is left out.
    ///
    /// # Panics
    /// The value has no form in JSON: a map whose keys are not text.
    #[must_use]
    pub fn with(mut self, key: &str, value: impl Serialize) -> Self {
        let value = serde_json::to_value(value).expect("a value with a form in JSON");
        if !value.is_null() {
            self.0.insert(key.to_owned(), value);
        }
        self
    }
}

impl Index<&str> for OwnFields {
    type Output = Value;

    /// Returns the value of a field; null if there is no such field.
    fn index(&self, key: &str) -> &Value {
        self.0.get(key).unwrap_or(&Value::Null)
    }
}
