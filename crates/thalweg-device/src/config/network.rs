//! Devices that send packets: instruments and cameras.

use crate::{Rate, StoredType};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;
use thalweg_text::ByteSize;
use thalweg_wire::tai_minus_utc;

/// An instrument that sends UDP datagrams of its own: see the crate `thalweg-instrument`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct UdpConfig {
    /// Address that the instrument sends to: `udp:HOST:PORT`, `af-xdp:HOST:PORT`, `dpdk:HOST:PORT`.
    pub listen: String,
    /// Format of the datagrams.
    pub format: DatagramFormat,
    /// Length of the longest fragment, in bytes.
    pub size: ByteSize,
    /// Only accepted sender: an address, or an address with a port. Any sender where left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<String>,
    /// Number of later datagrams that may come before an earlier one that is not lost.
    #[serde(default = "sixteen")]
    pub reorders: u32,
    /// Time to wait for missing data while nothing else comes.
    #[serde(default = "patience", with = "crate::duration")]
    pub patience: Duration,
    /// Bytes of datagrams that the kernel keeps until they are received.
    #[serde(default = "buffer")]
    pub buffer: ByteSize,
    /// Number, in the instrument's own count, of the run's first event; the first number received where left out. VDIF:
    /// second since 1970 (TAI) times `rate` plus the frame's number, or the sequence number. Not for VITA-49.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first: Option<u64>,
    /// SPEAD and fixed: increment of the instrument's counter from one fragment to the next; 1 where left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step: Option<u32>,
    /// Frames (VDIF) or packets (VITA-49) per second.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate: Option<Rate>,
    /// VDIF: number of the thread; that of the first frame where left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub thread: Option<u16>,
    /// VDIF: each frame is preceded by a sequence number of 8 bytes (VTP).
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub sequence: bool,
    /// VITA-49: number of the stream; that of the first packet where left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stream: Option<u32>,
    /// Fixed: length of the header of each datagram, in bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub header: Option<u32>,
    /// Fixed: place of the counter in the header. It counts fragments where there is an `index`, else datagrams.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub counter: Option<Counter>,
    /// Fixed: place in the header of the datagram's number within its fragment; derived from the counter where left
    /// out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub index: Option<Counter>,
    /// Fixed: number of datagrams in a fragment; 1 where left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub packets: Option<u32>,
    /// SPEAD and fixed: type of a fragment's elements; bytes without a stated meaning where left out.
    #[serde(default, rename = "type", skip_serializing_if = "Option::is_none")]
    pub stored: Option<StoredType>,
    /// SPEAD and fixed: lengths of a fragment's axes, the last one without gaps; one axis where left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shape: Option<Vec<u64>>,
    /// Place of the instrument's time. Fixed: in the header. SPEAD: in an item.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub time: Option<TimeField>,
    /// SPEAD and fixed: treatment of a fragment of which datagrams are missing; it is lost where left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub partial: Option<Partial>,
}

impl UdpConfig {
    /// Returns `HOST:PORT` if the datagrams come by an adapter that the program drives itself, with DPDK.
    pub fn driven_port(&self) -> Option<&str> {
        self.listen.strip_prefix("dpdk:").filter(|place| place.contains(':'))
    }
}

/// Format of an instrument's datagrams.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DatagramFormat {
    /// VDIF data frames.
    Vdif,
    /// Packets of SPEAD heaps.
    Spead,
    /// VITA-49 signal data packets.
    Vita49,
    /// A payload after a header of known length with a counter.
    Fixed,
}

impl DatagramFormat {
    /// Returns the name of the format, as written in a topology file.
    pub fn name(self) -> &'static str {
        match self {
            Self::Vdif => "vdif",
            Self::Spead => "spead",
            Self::Vita49 => "vita49",
            Self::Fixed => "fixed",
        }
    }
}

/// Treatment of a fragment of which datagrams are missing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Partial {
    /// The fragment is lost in the device.
    Lost,
    /// The fragment is taken, with zeros for the missing data, and its status says that it is damaged.
    Damaged,
}

/// Place of a time before the data: `{ at = 24, bytes = 8, hertz = 10_000_000 }`, or in an item of a SPEAD heap:
/// `{ item = 0x1600, hertz = 1_712_000_000 }`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TimeField {
    /// Offset of the time's first byte.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub at: u32,
    /// Number of bytes of the time: 1 to 8.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub bytes: u32,
    /// Number of the SPEAD item that holds the time, instead of `at` and `bytes`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub item: Option<u32>,
    /// True if the least significant byte comes first.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub little_endian: bool,
    /// Number of ticks in a second.
    pub hertz: u64,
    /// Place of the nanoseconds, if the time counts whole seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nanoseconds: Option<Counter>,
    /// Epoch of the time. Left out: any, such as when the instrument was switched on. The times are then set by the
    /// arrival of the first datagram.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub epoch: Option<Epoch>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "as serde calls it")]
fn is_zero(value: &u32) -> bool {
    *value == 0
}

impl TimeField {
    /// Returns the place of the ticks.
    pub fn ticks(&self) -> Counter {
        Counter { at: self.at, bytes: self.bytes, little_endian: self.little_endian }
    }
}

/// Epoch of a clock, and the kind of its seconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Epoch {
    /// Since 1970, with leap seconds: the time that PTP distributes.
    Tai,
    /// Since 1970, without leap seconds: Unix time.
    Utc,
    /// Since 6 January 1980, with leap seconds.
    Gps,
}

/// The beginning of GPS time, 6 January 1980, in TAI seconds since 1970 (IS-GPS-200, section 3.3.4: TAI minus 19 s).
const GPS_EPOCH: u64 = 315_964_800 + 19;

impl Epoch {
    /// Returns the TAI second since 1970 that a second of this clock is; `None` if it cannot be known.
    pub fn tai_second(self, second: u64) -> Option<u64> {
        let offset = match self {
            Self::Tai => 0,
            Self::Utc => tai_minus_utc(second)?.into(),
            Self::Gps => GPS_EPOCH,
        };
        second.checked_add(offset)
    }
}

/// Place of a sequence counter before the data: `{ at = 0, bytes = 8 }`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Counter {
    /// Offset of the counter's first byte in the datagram or the fragment.
    pub at: u32,
    /// Number of bytes of the counter: 1 to 8.
    pub bytes: u32,
    /// True if the least significant byte comes first.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub little_endian: bool,
}

impl Counter {
    /// Returns whether the counter has 1 to 8 bytes, all of them within the first `length` bytes.
    pub fn is_within(&self, length: u64) -> bool {
        (1..=8).contains(&self.bytes) && u64::from(self.at) + u64::from(self.bytes) <= length
    }

    /// Returns the counter's value; `None` if `from` does not contain all of it.
    pub fn read(&self, from: &[u8]) -> Option<u64> {
        let (at, length) = (self.at as usize, self.bytes as usize);
        let bytes = from.get(at..)?.get(..length)?;
        let append = |value: u64, byte: &u8| value << 8 | u64::from(*byte);
        Some(if self.little_endian { bytes.iter().rev().fold(0, append) } else { bytes.iter().fold(0, append) })
    }
}

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
    #[serde(default = "patience", with = "crate::duration")]
    pub patience: Duration,
    /// Time without an answer after which the camera is taken to be away, and takes the program to be away.
    #[serde(default = "heartbeat", with = "crate::duration")]
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

fn sixteen() -> u32 {
    16
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
                return Err(de::Error::custom(format!("{name} is no number")));
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
