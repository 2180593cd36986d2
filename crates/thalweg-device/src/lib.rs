//! Where bytes begin: devices that work by themselves, model digitizers, and replayed recordings.
//!
//! An [`Acquisition`] fills buffers that are posted to it, in its own order and time, and counts what it loses.
//!
//! A [`Device`] stands for the hardware that writes fragments into a slot by DMA: the source node's hot thread asks it
//! for the next payload's length, gives it that many bytes of a slot, and gets back what belongs in the fragment
//! header. A model says `simulated` and a recording says `replayed`, in its [`Description`] and in every fragment's
//! status.
//!
//! | kind | what it is | one fragment is |
//! | --- | --- | --- |
//! | `model-adc` | a 12-bit digitizer computed from a seed ([`model_adc`]) | `size` bytes of samples |
//! | `sigmf` | a SigMF recording | `samples_per_fragment` samples of every channel |
//! | `vdif` | one thread of a VDIF recording | one data frame with its header |
//! | `pgm` | PGM images, one after the other | one image |
//! | `tiff` | TIFF images, page by page | one image |
//! | `npy` | a NumPy array | what one index of its first axis holds |
//! | `raw` | a file of records of one size | one record |
//! | `udp` | an instrument that sends datagrams (`thalweg-instrument`) | a frame, a heap, a packet or several |
//! | `gige` | a GigE Vision camera (an [`Acquisition`], in `thalweg-gige`) | an image |
//! | `stream` | records out of a pipe or a serial port (an [`Acquisition`], in `thalweg-dev`) | one record |
//! | `comedi` | a board that samples (an [`Acquisition`], in `thalweg-dev`) | so many samples of each channel |
//! | `v4l2` | a camera that the kernel has a driver for (an [`Acquisition`], in `thalweg-dev`) | one image |
//! | `fit` | fits of another source's images (an [`Acquisition`], in `thalweg-features`) | a row of numbers |
//! | `edu` | QEMU's edu device (an [`Acquisition`], in `thalweg-pci`) | what it writes into a slot |
//! | `nvme` | an NVMe disk (an [`Acquisition`], in `thalweg-pci`) | a part of the disk, which it writes into a slot |
//!
//! How fast fragments are taken is not the device's business: the source node paces. Files are input from a stranger:
//! what their headers say is compared with what is there, and errors name the file, the place and the field.
//!
//! # Files, in the order of the data's way
//!
//! | file | what is in it |
//! | --- | --- |
//! | `config` | How a device is asked for: the `device = { kind = "…", … }` table of the topology file |
//! | `acquisition` | Devices that work by themselves: buffers are posted and come back filled, in the device's order and time |
//! | `absence` | What a device that is away would have sent meanwhile, by its rate |
//! | `frame_counter` | From a device's counter to the numbers of its frames |
//! | `by_time` | Events numbered by time: for devices that share a clock, or a trigger, and no counter |
//! | `on_time` | A device that works by itself, whose frames are numbered by their time stamps |
//! | `tap` | What a device takes, seen by somebody beside it: a copy of each payload, and nobody waits for who looks at it |
//! | `adc` | The model ADC: traces like those of a 12-bit digitizer, each sample of which anyone can compute again |
//! | `replay` | What all recordings have in common: records in a row, played once or again and again |
//! | `vdif` | Replay of one thread of a VDIF recording (*VLBI Data Interchange Format Specification*, release 1.1.1, 2014, <https://vlbi.org/vlbi-standards/vdif/>) |
//! | `sigmf` | Replay of a SigMF recording (the Signal Metadata Format, <https://sigmf.org>, version 1.2) |
//! | `sigmf_files` | Where a SigMF recording's metadata and samples are: in two files, in an archive, or named by a collection |
//! | `pgm` | Replay of camera images stored as binary PGM files (Netpbm `P5`, <https://netpbm.sourceforge.net/doc/pgm.html>) |
//! | `tiff` | Replay of images stored as TIFF (*TIFF Revision 6.0*, 1992, and BigTIFF), page by page |
//! | `npy` | Replay of a NumPy array, fragment by fragment along its first axis (`.npy`, versions 1 to 3, <https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html>) |
//! | `layout` | What the records of a device are, where somebody has to say it: so many bytes, or an array |
//! | `raw` | Replay of a file of records of one size, such as a front end's packets or frames without a header |
//! | `guess` | Which devices a file makes, by its name and its first bytes: for `thalweg demo --input FILE…` |
//! | `file` | A recording's file: opened once, read at stated places straight into the slot, each failure named |
//! | `stored` | Array elements as a file has them, in its byte order: each fragment has them little-endian |
//! | `clock` | The clock that dates fragments and runs |
//! | `device_clock` | From the ticks of a device's own clock to TAI |
//! | `gaps` | What of a fragment did not come, in words |
//! | `time` | From the UTC that recordings carry to the TAI of the fragment header |
//! | `duration` | Durations as people write them in a topology file: `"10s"`, `"500ms"` |
//! | `rate` | Rates of recordings, in samples or fragments per second |
//! | `error` | What can be wrong with a device: the file, the place in it, and what to do |
#![forbid(unsafe_code)]

mod absence;
mod acquisition;
mod adc;
mod by_time;
mod clock;
mod config;
mod device_clock;
pub mod duration;
mod error;
mod file;
mod frame_counter;
mod gaps;
mod guess;
mod layout;
mod npy;
mod on_time;
mod pgm;
mod rate;
mod raw;
mod replay;
mod sigmf;
mod sigmf_files;
mod stored;
mod tap;
mod tiff;
mod time;
mod vdif;

pub use absence::Absence;
pub use acquisition::{Acquired, Acquisition, AsAcquisition, Buffer, Frame, FrameOrder, InTurn};
pub use adc::{model_adc, payload_len};
pub use by_time::{Beat, BeatCounts, Beats, Numbered};
pub use clock::TaiClock;
pub use config::{
    ComediConfig, Counter, DatagramFormat, DeviceConfig, DmaConfig, EduConfig, EnvelopeConfig, Epoch, FeatureValue,
    Features, FitConfig, FitKind, GigeConfig, InterferometerConfig, LengthPrefix, Mark, ModelAdcConfig, NpyConfig,
    NvmeConfig, Partial, PgmConfig, RawConfig, SigmfConfig, StreamConfig, TiffConfig, TimeField, UdpConfig, V4l2Config,
    VdifConfig,
};
pub use device_clock::DeviceClock;
pub use error::DeviceError;
pub use frame_counter::{CounterRules, FrameCounter, FrameNumber, Trust};
pub use gaps::gaps_text;
pub use guess::devices_for;
pub use layout::Layout;
pub use on_time::OnTime;
pub use rate::Rate;
pub use stored::StoredType;
pub use tap::{Copied, Copies, Next, tap_acquisition, tap_device};
pub use vdif::{VdifFrame, vdif_rate};

use serde::{Deserialize, Serialize};
use std::fmt::Debug;
use thalweg_wire::{EventId, PayloadType, Status, TaiNanos};

/// The longest payload any device here produces, in bytes. A fragment's length is a 32-bit number on the wire, and a
/// header in a file must not be able to ask for all memory there is.
pub const MAX_PAYLOAD: usize = 1 << 30;

/// The most axes that a payload has: enough for a detector's panels of pixels of samples in colours.
pub const MAX_AXES: usize = 8;

/// Where fragments come from. One device belongs to one source node's hot thread.
///
/// The caller gives each event in turn, without leaving one out, to either [`fill`](Self::fill) or
/// [`skip`](Self::skip). The first event it gives, whatever its number, is the recording's first record.
pub trait Device: Debug + Send {
    /// What it produces: goes into the run's `run.json`.
    fn description(&self) -> &Description;

    /// The longest payload it will ever produce, in bytes; at most [`MAX_PAYLOAD`].
    fn max_payload(&self) -> usize;

    /// What there is to play, where it is a recording.
    fn contents(&self) -> Option<Contents> {
        None
    }

    /// Length of the next fragment's payload, in bytes; nothing when the recording is over. It may be 0: the recording
    /// has a gap there (status `missing`).
    fn next_len(&mut self) -> Option<usize>;

    /// Two events with the same key have the same payload bytes: a slot that still holds it need not be filled again,
    /// as with the ring of a DMA engine. Nothing: always fill.
    fn content_key(&self, event: EventId) -> Option<u64>;

    /// Writes the next fragment's payload, that of `event`; `payload` is [`next_len`](Self::next_len) bytes long.
    ///
    /// # Errors
    /// Where the recording is over or cannot be read, or `payload` has another length. The device stands where it stood
    /// before.
    fn fill(&mut self, event: EventId, payload: &mut [u8]) -> Result<Filled, DeviceError>;

    /// Advances past the next fragment, that of `event`, without writing it: it is in place already (its
    /// [`content_key`](Self::content_key) is that of the slot), or is dropped. Returns what `fill` would.
    ///
    /// # Panics
    /// Where the recording is over ([`next_len`](Self::next_len) says so).
    fn skip(&mut self, event: EventId) -> Filled;
}

/// What a recording holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Contents {
    /// Records: a fragment each.
    pub records: u64,
    /// When the first and the last were taken. From 0 on where the recording has no date, and 0 where it has no times.
    pub first: TaiNanos,
    /// See [`first`](Self::first).
    pub last: TaiNanos,
    /// Nanoseconds from the first to the end of the last; 0 where unknown.
    pub nanos: u64,
    /// The files of the first and of the last, where it has several.
    pub files: Option<[String; 2]>,
    /// Records that it says are invalid.
    pub invalid: u64,
    /// Records that it has no payload of.
    pub missing: u64,
}

/// What a device says of one fragment; goes into its header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Filled {
    /// What the payload is made of.
    pub payload_type: PayloadType,
    /// `simulated` or `replayed`, and what the recording says of the fragment.
    pub status: Status,
    /// How much time the payload covers, in nanoseconds; 0 where unknown.
    pub window: u32,
    /// When its first sample was taken; of a recording always what that says, and never when it is played. A recording
    /// without a date begins at 0, as far as it says how time goes by. Where it is repeated its clock runs on: each
    /// pass is later by the length of one pass, so that time never goes back. Nothing where a model is asked: now.
    pub timestamp: Option<TaiNanos>,
}

/// What a device produces, for `run.json`. What has no meaning for a kind of device, or is not known, is left out.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Description {
    /// `model-adc`, `sigmf`, `vdif`, `pgm`, `tiff`, `npy`, `raw`, `gige`, `edu`, `nvme`,
    /// `stream`, `v4l2`, `comedi`, `fit`, or `udp-` and a format.
    pub kind: String,
    /// Name of the payload type, as [`PayloadType::name`].
    pub payload_type: String,
    /// Made by a model, not measured.
    pub simulated: bool,
    /// Played from a recording.
    pub replayed: bool,
    /// Played again from the beginning when it is over.
    #[serde(rename = "loop")]
    pub looped: bool,
    /// Lengths of the axes of a full fragment's payload, where it is an array: the last one without gaps.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub shape: Option<Vec<u64>>,
    /// Fragments per second by which they are dated, where that was stated.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fragment_rate: Option<f64>,
    /// Channels, interleaved sample by sample.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub channels: Option<u32>,
    /// Samples per second and channel.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sample_rate: Option<f64>,
    /// Bits that mean something in a sample or pixel.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bits: Option<u32>,
    /// Whether a sample is a complex number (VDIF).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub complex: Option<bool>,
    /// Pixels in an image's row.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub width: Option<u32>,
    /// Rows in an image.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub height: Option<u32>,
    /// What a pixel is, by the name that the camera gives it (GenICam PFNC).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pixel_format: Option<String>,
    /// Who made the camera.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub manufacturer: Option<String>,
    /// Which camera it is: its model.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// The camera's serial number.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub serial: Option<String>,
    /// The value of a white pixel.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_value: Option<u32>,
    /// Bytes in a full fragment's payload.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub record_bytes: Option<u64>,
    /// Bytes in the smallest fragment's payload, where they differ.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub record_bytes_from: Option<u64>,
    /// Samples per channel in a full fragment.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub samples: Option<u64>,
    /// Fragments in one pass over the recording.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub records: Option<u64>,
    /// The model's seed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seed: Option<u64>,
    /// The source number the model's samples are computed from.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub source: Option<u32>,
    /// How many different waveforms the model makes before it repeats them; 0: it never does.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub period: Option<u64>,
    /// The recording: the file, or the first file of a sequence.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub file: Option<String>,
    /// The VDIF thread that is played.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub thread: Option<u16>,
    /// The VDIF station: its number, or its two letters.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub station: Option<String>,
    /// Data frames per second, where it could be inferred.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub frame_rate: Option<u32>,
    /// Frames of this thread that the recording lacks, though other threads have them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub missing: Option<u64>,
    /// Frames of this thread that come a second time, and are not played.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub repeated: Option<u64>,
    /// Bytes at the recording's end that are no whole frame, and are not played.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cut_off_bytes: Option<u64>,
    /// What a person should know of the recording before it is played.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
    /// The SigMF recording's `global` object.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub metadata: Option<serde_json::Value>,
}

/// Opens the device that `config` describes, and checks what can be checked before the run.
///
/// # Errors
/// Where the device works by itself, an option makes no sense, or the recording cannot be read, is empty, or is not what its format says.
pub fn open(config: &DeviceConfig) -> Result<Box<dyn Device>, DeviceError> {
    Ok(match config {
        DeviceConfig::ModelAdc(config) => Box::new(adc::ModelAdc::new(config)?),
        DeviceConfig::Sigmf(config) => Box::new(sigmf::open(config)?),
        DeviceConfig::Vdif(config) => Box::new(vdif::open(config)?),
        DeviceConfig::Pgm(config) => Box::new(pgm::open(config)?),
        DeviceConfig::Tiff(config) => Box::new(tiff::open(config)?),
        DeviceConfig::Npy(config) => Box::new(npy::open(config)?),
        DeviceConfig::Raw(config) => Box::new(raw::open(config)?),
        by_itself => return Err(DeviceError::WorksByItself(by_itself.kind())),
    })
}
