//! Options of a camera: its `device = { kind = "gige", … }` table.

use crate::Camera;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;
use thalweg_device::{Adapter, DeviceError, DeviceKind, DeviceOptions, OpenDevice, Rate};
use thalweg_text::ByteSize;

/// A GigE Vision camera: see the crate `thalweg-gige`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GigeConfig {
    /// Address of the camera: its IP address, its MAC address, its serial number, or the name that its user gave it.
    pub address: String,
    /// Interface on which the camera is looked for, by name or address; all of them where left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interface: Option<String>,
    /// Length of the longest frame, in bytes; the camera's own value where left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size: Option<ByteSize>,
    /// Features that are set before the run, by the camera's own names.
    #[serde(default, skip_serializing_if = "Features::is_empty")]
    pub features: Features,
    /// Frames per second. Frames that the camera could not send while it was away are counted by this rate; the
    /// camera's own value where left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate: Option<Rate>,
    /// Length of the longest packet in bytes, with its IP header; found out where left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub packet: Option<u32>,
    /// True if packets that do not come are requested again.
    #[serde(default = "yes", skip_serializing_if = "Clone::clone")]
    pub resend: bool,
    /// Time to wait for a frame of which packets are missing while none of its packets come.
    #[serde(default = "patience", with = "thalweg_text::duration")]
    pub patience: Duration,
    /// Time without an answer after which the camera is taken to be away, and takes the program to be away.
    #[serde(default = "heartbeat", with = "thalweg_text::duration")]
    pub heartbeat: Duration,
    /// Bytes of packets that the kernel keeps until they are received.
    #[serde(default = "buffer")]
    pub buffer: ByteSize,
}

fn yes() -> bool {
    true
}

fn heartbeat() -> Duration {
    Duration::from_secs(3)
}

fn patience() -> Duration {
    Duration::from_millis(200)
}

fn buffer() -> ByteSize {
    ByteSize(32 << 20)
}

/// Values for a camera's features: a table, or a list of tables where the order matters.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Features {
    /// Names of the features, each with its value.
    pub values: Vec<(String, FeatureValue)>,
    /// True if the features are to be set in this order.
    pub ordered: bool,
}

impl Features {
    /// Returns whether there are no features to set.
    pub fn is_empty(&self) -> bool {
        self.values.is_empty()
    }
}

/// Value for a feature; a command is executed if its value is `true`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(untagged, expecting = "true, false, a number or a text")]
pub enum FeatureValue {
    /// Yes or no, or a command.
    Switch(bool),
    /// A whole number.
    Integer(i64),
    /// A number.
    Number(f64),
    /// An entry of an enumeration, or a text.
    Text(String),
}

// No number is NaN: reading one is refused.
impl Eq for FeatureValue {}

impl fmt::Display for FeatureValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Switch(value) => value.fmt(f),
            Self::Integer(value) => value.fmt(f),
            Self::Number(value) => value.fmt(f),
            Self::Text(value) => value.fmt(f),
        }
    }
}

impl Serialize for Features {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let values = self.values.iter();
        match self.ordered {
            true => serializer.collect_seq(values.map(|(name, value)| BTreeMap::from([(name, value)]))),
            false => serializer.collect_map(values.map(|(name, value)| (name, value))),
        }
    }
}

impl<'de> Deserialize<'de> for Features {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(FeaturesVisitor)
    }
}

struct FeaturesVisitor;

impl<'de> de::Visitor<'de> for FeaturesVisitor {
    type Value = Features;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("features, such as { ExposureTime = 5000.0 }, or a list of such tables")
    }

    fn visit_map<A: de::MapAccess<'de>>(self, mut map: A) -> Result<Features, A::Error> {
        let mut values = Vec::new();
        while let Some((name, value)) = map.next_entry::<String, FeatureValue>()? {
            if matches!(value, FeatureValue::Number(number) if !number.is_finite()) {
                return Err(de::Error::custom(format!("{name} is not a number")));
            }
            values.push((name, value));
        }
        Ok(Features { values, ordered: false })
    }

    fn visit_seq<A: de::SeqAccess<'de>>(self, mut seq: A) -> Result<Features, A::Error> {
        let mut all = Vec::new();
        while let Some(Features { values, .. }) = seq.next_element()? {
            all.extend(values);
        }
        Ok(Features { values: all, ordered: true })
    }
}

impl DeviceOptions for GigeConfig {
    fn open_device(&self, _adapter: Option<&Adapter>) -> Result<OpenDevice, DeviceError> {
        Ok(OpenDevice::Acquisition(Box::new(Camera::open(self)?)))
    }

    fn check_options(&self) -> Result<(), DeviceError> {
        crate::camera::check_options(self)
    }

    fn is_acquisition(&self) -> bool {
        true
    }

    fn longest_payload_bytes(&self) -> Option<u64> {
        self.size.map(|size| size.0)
    }

    fn address_place(&self) -> String {
        self.address.clone()
    }

    fn is_found_by_search(&self) -> bool {
        true
    }
}

impl DeviceKind for GigeConfig {
    const NAME: &'static str = "gige";
    const ADDRESS: Option<&'static str> = Some("gige:NAME");

    fn from_address_place(place: &str) -> Option<Self> {
        toml::from_str(&format!("address = {place:?}")).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    thalweg_device::device_conformance!(
        GigeConfig,
        [
            "address = \"GV01\"",
            "address = \"10.0.0.5\"\nsize = \"1MiB\"\nfeatures = { Gain = 3, ExposureTime = 1.5 }",
            "address = \"x\"\nresend = false\nfeatures = [{ B = \"On\" }, { A = true, C = -1 }]",
        ]
    );

    #[test]
    fn a_feature_has_one_value() {
        let error = toml::from_str::<GigeConfig>("address = \"x\"\nfeatures = { Gain = [1] }").unwrap_err();
        assert!(error.to_string().contains("a number or a text"), "{error}");
    }
}
