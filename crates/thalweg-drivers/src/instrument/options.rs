//! Options of an instrument: its `device = { kind = "udp", … }` table.

use crate::instrument::{Assembler, Listener, listener};
use serde::{Deserialize, Serialize};
use std::time::Duration;
use thalweg_device::{Adapter, Counter, DeviceError, DeviceKind, DeviceOptions, OpenDevice, Rate, StoredType};
use thalweg_text::ByteSize;
use thalweg_wire::tai_minus_utc;

/// An instrument that sends UDP datagrams of its own.
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
    #[serde(default = "patience", with = "thalweg_text::duration")]
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
    pub fn ticks_counter(&self) -> Counter {
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

fn sixteen() -> u32 {
    16
}

fn patience() -> Duration {
    Duration::from_millis(200)
}

fn buffer() -> ByteSize {
    ByteSize(32 << 20)
}

impl DeviceOptions for UdpConfig {
    fn open_device(&self, adapter: Option<&Adapter>) -> Result<OpenDevice, DeviceError> {
        Ok(OpenDevice::Acquisition(Box::new(Listener::open(self, adapter)?)))
    }

    fn check_options(&self) -> Result<(), DeviceError> {
        Assembler::new(self).map(drop)?;
        listener::check_options(self)
    }

    fn is_acquisition(&self) -> bool {
        true
    }

    fn has_timestamps(&self) -> bool {
        match self.format {
            DatagramFormat::Fixed => self.time.is_some(),
            DatagramFormat::Spead => false,
            DatagramFormat::Vdif | DatagramFormat::Vita49 => true,
        }
    }

    fn longest_payload_bytes(&self) -> Option<u64> {
        Some(self.size.0)
    }

    fn address_place(&self) -> String {
        self.listen.clone()
    }

    fn driven_port_address(&self) -> Option<&str> {
        self.listen.strip_prefix("dpdk:").filter(|place| place.contains(':'))
    }
}

impl DeviceKind for UdpConfig {
    const NAME: &'static str = "udp";
}

#[cfg(test)]
mod tests {
    use super::*;

    thalweg_device::device_conformance!(
        UdpConfig,
        [
            "listen = \"udp:127.0.0.1:0\"\nformat = \"vdif\"\nsize = \"8KiB\"\nthread = 3",
            "listen = \"udp:127.0.0.1:0\"\nformat = \"fixed\"\nsize = 100\ncounter = { at = 0, bytes = 8 }\n\
             time = { at = 8, bytes = 8, hertz = 1000000000, epoch = \"tai\" }\npatience = \"1s\"",
        ]
    );
}
