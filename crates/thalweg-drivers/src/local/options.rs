//! Options of devices that are files: their `device = { kind = "stream", … }`, `"v4l2"`, `"comedi"` and `"dma"` tables.

use crate::local::{Card, Sampler, Stream, Video};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::PathBuf;
use thalweg_device::{
    Adapter, Counter, DeviceError, DeviceKind, DeviceOptions, Layout, MAX_PAYLOAD, OpenDevice, Rate, StoredType,
};
use thalweg_text::ByteSize;

/// Maximum number of samples of a channel in one fragment.
const MAX_SAMPLES: u32 = 1 << 26;

/// Records that a program writes into a pipe, or an instrument to a serial port, one after the other.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StreamConfig {
    /// Path of a named pipe, a serial port, or a file.
    pub file: PathBuf,
    /// Bytes in each record; may be left out where `type` and `shape` determine it, or where each record is preceded by
    /// its `length`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub record: Option<ByteSize>,
    /// Type of a record's elements; bytes without a stated meaning where left out.
    #[serde(default, rename = "type", skip_serializing_if = "Option::is_none")]
    pub stored: Option<StoredType>,
    /// Lengths of a record's axes, the last one without gaps; one axis where left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shape: Option<Vec<u64>>,
    /// Format of the number before each record that states the record's length in bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub length: Option<LengthPrefix>,
    /// Bytes in the longest record, where each is preceded by its `length`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size: Option<ByteSize>,
    /// Bytes before each record by which the next record is found where some bytes were lost.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mark: Option<Mark>,
    /// Bytes after each record, which belong to no record.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub end: Option<Mark>,
    /// Bit rate of a serial port, in bits per second; the port's present one where left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub baud: Option<u32>,
}

/// Bytes that are written as hexadecimal digits: 1 to 16.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Mark(Vec<u8>);

impl Mark {
    /// Returns the bytes of the mark.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

impl TryFrom<String> for Mark {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let pairs = text.as_bytes().chunks(2).map(|pair| {
            let digits = std::str::from_utf8(pair).ok().filter(|pair| pair.len() == 2 && !pair.starts_with('+'))?;
            u8::from_str_radix(digits, 16).ok()
        });
        let bytes = pairs.collect::<Option<Vec<u8>>>().filter(|bytes| (1..=16).contains(&bytes.len()));
        bytes.map(Self).ok_or_else(|| format!("'{text}' is not 1 to 16 bytes in hexadecimal digits, such as \"a55a\""))
    }
}

impl From<Mark> for String {
    fn from(mark: Mark) -> Self {
        mark.0.iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

impl StreamConfig {
    /// Returns the number of bytes in the longest record, or `None` if the options do not state it.
    pub(crate) fn longest_record_bytes(&self) -> Option<u64> {
        if self.length.is_some() || self.end.is_some() {
            return self.size.map(|size| size.0);
        }
        self.record.map(|record| record.0).or_else(|| self.stored?.element.array_bytes(self.shape.as_deref()?))
    }

    /// Checks the options, without opening anything. Returns the layout of the records, or `None` where their length
    /// varies.
    ///
    /// # Errors
    /// Options that do not go together, or that make no record.
    pub(crate) fn record_layout(&self) -> Result<Option<Layout>, DeviceError> {
        if self.baud == Some(0) {
            return Err(option_error("baud", "0 bits per second would hang up the line"));
        }
        if self.end.is_some() {
            if self.mark.is_some() || self.length.is_some() || self.record.is_some() || self.stored.is_some() {
                let problem = "records that end with a mark are bytes: remove mark, length, record and type";
                return Err(option_error("end", problem));
            }
            return self.check_record_size(
                "records that end with a mark need it: the size of the longest record in \
                bytes",
            );
        }
        let Some(length) = self.length else {
            if self.size.is_some() {
                let problem = "records without a `length` field all have the size `record`: remove it";
                return Err(option_error("size", problem));
            }
            return Layout::new(self.record, self.stored, self.shape.as_deref()).map(Some);
        };
        if self.record.is_some() || self.stored.is_some() || self.shape.is_some() {
            return Err(option_error("length", "each record states its length: remove record, type and shape"));
        }
        if !(1..=8).contains(&length.bytes) {
            return Err(option_error("length", "the number before each record has 1 to 8 bytes"));
        }
        self.check_record_size("records with a `length` field need it: the size of the longest record in bytes")
    }

    fn check_record_size(&self, problem: &str) -> Result<Option<Layout>, DeviceError> {
        let expected = "from 1 byte to 1 GiB, the bytes of the longest record";
        match self.size {
            Some(size) if (1..=MAX_PAYLOAD as u64).contains(&size.0) => Ok(None),
            Some(size) => Err(DeviceError::Setting { option: "size", value: size.0, expected }),
            None => Err(option_error("size", problem)),
        }
    }
}

fn option_error(option: &'static str, problem: &str) -> DeviceError {
    DeviceError::Option { option, problem: problem.to_owned() }
}

/// Format of a number before a record: `{ bytes = 4 }`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LengthPrefix {
    /// Number of bytes of the prefix: 1 to 8.
    pub bytes: u8,
    /// True if the least significant byte comes first.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub little_endian: bool,
}

/// A camera that the kernel has a driver for (V4L2).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct V4l2Config {
    /// Path of the video node, `/dev/video0`.
    pub file: PathBuf,
    /// Pixels in a row; the camera's present setting where left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub width: Option<u32>,
    /// Number of rows; the camera's present setting where left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub height: Option<u32>,
    /// Pixel format: the letters of V4L2, such as `GREY` or `Y16`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub format: Option<String>,
    /// Images per second.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate: Option<Rate>,
    /// Controls of the camera, by the names that v4l2-ctl has for them.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub controls: BTreeMap<String, i64>,
}

/// A board that samples voltages, with a driver of comedi (<https://www.comedi.org>). A fragment has the same number of
/// samples of each channel.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ComediConfig {
    /// Path of the board's file, `/dev/comedi0`.
    pub file: PathBuf,
    /// Number of the subdevice; the first that reads by command where left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub subdevice: Option<u32>,
    /// Channels, in the order in which they are sampled.
    pub channels: Vec<u8>,
    /// Number of the range, the same for all channels.
    #[serde(default)]
    pub range: u8,
    /// Samples per second, of each channel.
    pub rate: Rate,
    /// Samples in a fragment, of each channel.
    pub samples: u32,
}

/// A card with a driver whose reads are transfers by DMA into the reader's memory, such as XDMA, QDMA and SIS8300 have.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DmaConfig {
    /// Path of the card's file, `/dev/xdma0_c2h_0`.
    pub file: PathBuf,
    /// Bytes in the longest fragment: the length of each read.
    pub size: ByteSize,
    /// Type of a fragment's elements; bytes without a stated meaning where left out.
    #[serde(default, rename = "type", skip_serializing_if = "Option::is_none")]
    pub stored: Option<StoredType>,
    /// Address on the card at which each read begins, in bytes: for an engine with addresses. Left out: for one that
    /// streams.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<u64>,
    /// Place in each fragment of the card's count of fragments.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub counter: Option<Counter>,
    /// Number of reads under way at a time; 4 with a `counter`, which distinguishes them, and 1 without.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reads: Option<u32>,
}

impl DmaConfig {
    /// Returns the number of reads under way at a time.
    pub fn concurrent_reads(&self) -> u32 {
        self.reads.unwrap_or(if self.counter.is_some() { 4 } else { 1 })
    }

    /// Checks the options, and returns the layout of the fragments.
    ///
    /// # Errors
    /// The option with an impossible value.
    pub(crate) fn fragment_layout(&self) -> Result<Layout, DeviceError> {
        if !(1..=MAX_PAYLOAD as u64).contains(&self.size.0) {
            let expected = "from 1 byte to 1 GiB, the bytes of the longest fragment";
            return Err(DeviceError::Setting { option: "size", value: self.size.0, expected });
        }
        if !(1..=16).contains(&self.concurrent_reads()) {
            return Err(option_error("reads", "the number of transfers must be 1 to 16"));
        }
        match self.counter {
            None if self.concurrent_reads() > 1 => {
                let problem = "several transfers complete in any order: set the position of the card's `counter`";
                return Err(option_error("reads", problem));
            }
            Some(counter) if !counter.is_within(self.size.0) => {
                return Err(option_error("counter", "it must be 1 to 8 bytes within the fragment"));
            }
            _ => {}
        }
        Layout::new(Some(self.size), self.stored, None)
    }
}

impl DeviceOptions for StreamConfig {
    fn open_device(&self, _adapter: Option<&Adapter>) -> Result<OpenDevice, DeviceError> {
        Ok(OpenDevice::Acquisition(Box::new(Stream::open(self)?)))
    }

    fn check_options(&self) -> Result<(), DeviceError> {
        self.record_layout().map(drop)
    }

    fn is_acquisition(&self) -> bool {
        true
    }

    fn has_timestamps(&self) -> bool {
        false
    }

    fn longest_payload_bytes(&self) -> Option<u64> {
        self.longest_record_bytes()
    }

    thalweg_device::device_paths!(file);
}

impl DeviceKind for StreamConfig {
    const NAME: &'static str = "stream";
}

impl DeviceOptions for V4l2Config {
    fn open_device(&self, _adapter: Option<&Adapter>) -> Result<OpenDevice, DeviceError> {
        Ok(OpenDevice::Acquisition(Box::new(Video::open(self)?)))
    }

    fn is_acquisition(&self) -> bool {
        true
    }

    thalweg_device::device_paths!(file);

    // Each slot may be one that the driver is given.
    fn files_per_slot(&self) -> u64 {
        1
    }
}

impl DeviceKind for V4l2Config {
    const NAME: &'static str = "v4l2";
    const ADDRESS: Option<&'static str> = Some("v4l2:FILE");

    fn from_address_place(place: &str) -> Option<Self> {
        let (file, controls) = (place.into(), BTreeMap::new());
        Some(Self { file, width: None, height: None, format: None, rate: None, controls })
    }
}

impl DeviceOptions for ComediConfig {
    fn open_device(&self, _adapter: Option<&Adapter>) -> Result<OpenDevice, DeviceError> {
        Ok(OpenDevice::Acquisition(Box::new(Sampler::open(self)?)))
    }

    fn check_options(&self) -> Result<(), DeviceError> {
        if self.channels.is_empty() {
            return Err(option_error("channels", "name at least one"));
        }
        // The time from one sample to the next, in nanoseconds, has 32 bits.
        if !(0.3..=1e9).contains(&self.rate.hertz()) {
            return Err(option_error("rate", "the sample rate must be 0.3 to 1000000000 per second"));
        }
        if !(1..=MAX_SAMPLES).contains(&self.samples) {
            return Err(option_error("samples", "1 to 67108864 are possible"));
        }
        Ok(())
    }

    fn is_acquisition(&self) -> bool {
        true
    }

    thalweg_device::device_paths!(file);
}

impl DeviceKind for ComediConfig {
    const NAME: &'static str = "comedi";
}

impl DeviceOptions for DmaConfig {
    fn open_device(&self, _adapter: Option<&Adapter>) -> Result<OpenDevice, DeviceError> {
        Ok(OpenDevice::Acquisition(Box::new(Card::open(self)?)))
    }

    fn check_options(&self) -> Result<(), DeviceError> {
        self.fragment_layout().map(drop)
    }

    fn is_acquisition(&self) -> bool {
        true
    }

    fn has_timestamps(&self) -> bool {
        false
    }

    fn longest_payload_bytes(&self) -> Option<u64> {
        Some(self.size.0)
    }

    thalweg_device::device_paths!(file);
}

impl DeviceKind for DmaConfig {
    const NAME: &'static str = "dma";
}

#[cfg(test)]
mod tests {
    use super::*;

    mod stream {
        use super::*;
        thalweg_device::device_conformance!(
            StreamConfig,
            [
                "file = \"-\"\nend = \"0d0a\"\nsize = 80",
                "file = \"/dev/ttyS0\"\nmark = \"a55a\"\nrecord = 10\nbaud = 115200"
            ]
        );
    }

    mod v4l2 {
        use super::*;
        thalweg_device::device_conformance!(V4l2Config, ["file = \"/dev/video0\"\ncontrols = { Gain = 3 }"]);
    }

    mod comedi {
        use super::*;
        thalweg_device::device_conformance!(
            ComediConfig,
            ["file = \"/dev/comedi0\"\nchannels = [0, 1]\nrate = 1000\nsamples = 100"]
        );
    }

    mod dma {
        use super::*;
        thalweg_device::device_conformance!(
            DmaConfig,
            ["file = \"/dev/xdma0_c2h_0\"\nsize = \"64KiB\"\ncounter = { at = 0, bytes = 4 }\nreads = 2"]
        );
    }
}
