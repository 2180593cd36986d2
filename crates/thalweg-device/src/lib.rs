//! Sources of data: devices that work by themselves, model digitizers, and replayed recordings.
//!
//! An [`Acquisition`] fills buffers that are posted to it, in its own order and time, and counts its losses.
//!
//! A [`Device`] stands for the hardware that writes fragments into a slot by DMA: the source node's hot thread asks it
//! for the next payload's length, passes it that many bytes of a slot, and receives the values for the fragment header.
//! A model is marked `simulated` and a recording `replayed`, in its [`Description`] and in every fragment's status.
//!
//! Kinds that this crate has, and those that the program registers:
//!
//! | kind | device | one fragment is |
//! | --- | --- | --- |
//! | `model-adc` | a 12-bit digitizer computed from a seed ([`model_adc`]) | `size` bytes of samples |
//! | `sigmf` | a SigMF recording | `samples_per_fragment` samples of every channel |
//! | `vdif` | one thread of a VDIF recording | one data frame with its header |
//! | `pgm` | PGM images, one after the other | one image |
//! | `tiff` | TIFF images, page by page | one image |
//! | `npy` | a NumPy array | what one index of its first axis holds |
//! | `raw` | a file of records of one size | one record |
//! | `udp` | an instrument that sends datagrams (`thalweg-drivers`) | a frame, a heap, a packet or several |
//! | `gige` | a GigE Vision camera (an [`Acquisition`], in `thalweg-gige`) | an image |
//! | `stream` | records out of a pipe or a serial port (an [`Acquisition`], in `thalweg-drivers`) | one record |
//! | `comedi` | a board that samples (an [`Acquisition`], in `thalweg-drivers`) | as many samples of each channel |
//! | `v4l2` | a camera that the kernel has a driver for (an [`Acquisition`], in `thalweg-drivers`) | one image |
//! | `dma` | a card whose driver reads by DMA (an [`Acquisition`], in `thalweg-drivers`) | what one read brings |
//! | `fit` | fits of another source's images (an [`Acquisition`], in `thalweg-drivers`) | a row of numbers |
//! | `edu` | QEMU's edu device (an [`Acquisition`], in `thalweg-pci`) | what it writes into a slot |
//! | `nvme` | an NVMe disk (an [`Acquisition`], in `thalweg-pci`) | a part of the disk, which it writes into a slot |
//!
//! Devices do not pace themselves: the source node determines the rate at which fragments are taken. Files are
//! untrusted input: their headers are compared with their contents, and errors name the file, the place and the field.
//!
//! # Files, in the order of the data path
//!
//! | file | contents |
//! | --- | --- |
//! | `config` | Configuration of a device: the `device = { kind = "…", … }` table of the topology file |
//! | `kind` | Kinds of devices: the options, checks and constructor of each, registered under a name |
//! | `recordings` | Options of models and recordings, the kinds of devices that are built in |
//! | `conformance` | Tests that every kind of device passes, for crates that add one: [`device_conformance!`](crate::device_conformance) |
//! | `counter` | Place of a number in a frame: a device's count, or its time |
//! | `acquisition` | Devices that work by themselves: buffers are posted and come back filled, in the device's order and time |
//! | `absence` | Number of frames that an absent device would have sent meanwhile, by its rate |
//! | `frame_counter` | Numbers of a device's frames, from the device's counter |
//! | `reassembly` | Reassembly of frames from packets, in the order of the frames' numbers. Without IO |
//! | `by_time` | Events numbered by time: for devices that share a clock, or a trigger, and no counter |
//! | `on_time` | A device that works by itself, whose frames are numbered by their time stamps |
//! | `tap` | Copies of a device's payloads for an observer that never holds the device up |
//! | `adc` | The model ADC: traces like those of a 12-bit digitizer, each sample of which anyone can compute again |
//! | `replay` | Common part of all recordings: consecutive records, played once or repeatedly |
//! | `vdif` | Replay of one thread of a VDIF recording (*VLBI Data Interchange Format Specification*, release 1.1.1, 2014, <https://vlbi.org/vlbi-standards/vdif/>) |
//! | `sigmf` | Replay of a SigMF recording (the Signal Metadata Format, <https://sigmf.org>, version 1.2) |
//! | `sigmf_files` | Metadata and samples of a SigMF recording: from two files, an archive, or a collection |
//! | `pgm` | Replay of camera images stored as binary PGM files (Netpbm `P5`, <https://netpbm.sourceforge.net/doc/pgm.html>) |
//! | `tiff` | Replay of images stored as TIFF (*TIFF Revision 6.0*, 1992, and BigTIFF), page by page |
//! | `npy` | Replay of a NumPy array, fragment by fragment along its first axis (`.npy`, versions 1 to 3, <https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html>) |
//! | `layout` | Layout of a device's records, where it has to be configured: a number of bytes, or an array |
//! | `raw` | Replay of a file of records of one size, such as a front end's packets or frames without a header |
//! | `guess` | Devices for a file, recognised by its name and its first bytes: for `thalweg demo --input FILE…` |
//! | `file` | File of a recording: opened once, read at given offsets straight into the slot; errors name the file |
//! | `stored` | Array elements in the byte order of a file; in a fragment they are always little-endian |
//! | `clock` | The clock that dates fragments and runs |
//! | `device_clock` | Conversion from the ticks of a device's own clock to TAI |
//! | `gaps` | Text that lists the missing bytes of a fragment |
//! | `time` | Conversion from the UTC of recordings to the TAI of the fragment header |
//! | `rate` | Rates of recordings, in samples or fragments per second |
//! | `error` | Errors of devices: the file, the place in it, and what to do |
#![forbid(unsafe_code)]

mod absence;
mod acquisition;
mod adc;
mod by_time;
mod clock;
mod config;
pub mod conformance;
mod counter;
mod device_clock;
mod error;
mod file;
mod frame_counter;
mod gaps;
mod guess;
mod kind;
mod layout;
mod npy;
mod on_time;
mod pgm;
mod rate;
mod raw;
mod reassembly;
mod recordings;
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
pub use adc::{model_adc, model_payload_len};
pub use by_time::{Beat, BeatCounts, Beats, Numbered};
pub use clock::TaiClock;
pub use config::DeviceConfig;
pub use counter::Counter;
pub use device_clock::DeviceClock;
pub use error::DeviceError;
pub use frame_counter::{CounterRules, FrameCounter, FrameNumber, Trust};
pub use gaps::describe_gaps;
pub use guess::devices_for;
pub use kind::{AnyOptions, DeviceKind, DeviceOptions, Observed, OpenDevice, kind_names, register_kind};
pub use layout::Layout;
pub use on_time::OnTime;
pub use rate::Rate;
pub use reassembly::Reassembly;
pub use recordings::{ModelAdcConfig, NpyConfig, PgmConfig, RawConfig, SigmfConfig, TiffConfig, VdifConfig};
pub use stored::StoredType;
pub use tap::{Copied, Copies, Next, tap_acquisition, tap_device};
pub use vdif::{VdifFrame, checked_vdif_rate};

use serde::{Deserialize, Serialize};
use std::fmt::Debug;
pub use thalweg_frames::Adapter;
use thalweg_wire::{EventId, PayloadType, Status, TaiNanos};

/// Maximum length of any device's payload, in bytes. A fragment's length is a 32-bit number on the wire, and a header
/// in a file must not be able to request all memory there is.
pub const MAX_PAYLOAD: usize = 1 << 30;

/// Maximum number of axes of a payload: enough for a detector's panels of pixels of samples in colours.
pub const MAX_AXES: usize = 8;

/// Producer of fragments that is asked for each. One device belongs to one source node's hot thread.
///
/// The caller gives each event in turn, without leaving one out, to either [`fill_payload`](Self::fill_payload) or
/// [`skip_fragment`](Self::skip_fragment). The first event it gives, whatever its number, is the recording's first record.
pub trait Device: Debug + Send {
    /// Returns the description of the data that the device produces, for the run's `run.json`.
    fn description(&self) -> &Description;

    /// Returns the length of the longest payload that the device will ever produce, in bytes; at most [`MAX_PAYLOAD`].
    fn max_payload_bytes(&self) -> usize;

    /// Returns the contents of a recording; `None` for other devices.
    fn recording_contents(&self) -> Option<Contents> {
        None
    }

    /// Returns the length of the next fragment's payload, in bytes; `None` when the recording is over. It may be 0: the
    /// recording has a gap there (status `missing`).
    fn next_payload_len(&mut self) -> Option<usize>;

    /// Returns a key of the payload's content. Two events with the same key have the same payload bytes: a slot that
    /// still holds them need not be filled again, as with the ring of a DMA engine. `None`: always fill.
    fn content_key(&self, event: EventId) -> Option<u64>;

    /// Writes the next fragment's payload, that of `event`; `payload` is [`next_payload_len`](Self::next_payload_len) bytes long.
    ///
    /// # Errors
    /// The recording is over or cannot be read, or `payload` has another length. The device's position is unchanged.
    fn fill_payload(&mut self, event: EventId, payload: &mut [u8]) -> Result<Filled, DeviceError>;

    /// Advances past the next fragment, that of `event`, without writing it: it is in place already (its
    /// [`content_key`](Self::content_key) is that of the slot), or is dropped. Returns what `fill` would.
    ///
    /// # Panics
    /// The recording is over ([`next_payload_len`](Self::next_payload_len) returns `None`).
    fn skip_fragment(&mut self, event: EventId) -> Filled;
}

/// Contents of a recording.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Contents {
    /// Number of records: a fragment each.
    pub records: u64,
    /// Time of the first record. Counted from 0 if the recording has no date, and 0 if it has no times.
    pub first: TaiNanos,
    /// Time of the last record, as for [`first`](Self::first).
    pub last: TaiNanos,
    /// Nanoseconds from the first record to the end of the last; 0 if unknown.
    pub nanos: u64,
    /// Files of the first and of the last record, if the recording has several.
    pub files: Option<[String; 2]>,
    /// Number of records that the recording marks as invalid.
    pub invalid: u64,
    /// Number of records without a payload.
    pub missing: u64,
}

/// Values that a device gives for one fragment's header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Filled {
    /// Type of the payload.
    pub payload_type: PayloadType,
    /// Status with `simulated` or `replayed`, and the recording's own marks for the fragment.
    pub status: Status,
    /// Time that the payload covers, in nanoseconds; 0 if unknown.
    pub window: u32,
    /// Time of the first sample. For a recording always the recorded time, never the time of playing. A recording
    /// without a date begins at 0, and goes on as far as it records the passing of time. In a repeated recording the
    /// clock runs on: each pass is later by the length of one pass, so that time never goes back. `None` for a model:
    /// now.
    pub timestamp: Option<TaiNanos>,
}

/// Description of the data that a device produces, for `run.json`. Fields that have no meaning for a kind of device, or
/// are not known, are left out.
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
    /// True if a sample is a complex number (VDIF).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub complex: Option<bool>,
    /// Pixels in an image's row.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub width: Option<u32>,
    /// Rows in an image.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub height: Option<u32>,
    /// Type of a pixel, by the camera's own name (GenICam PFNC).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pixel_format: Option<String>,
    /// Manufacturer of the camera.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub manufacturer: Option<String>,
    /// Model of the camera.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// Serial number of the camera.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub serial: Option<String>,
    /// Value of a white pixel.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_value: Option<u32>,
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
    /// Seed of the model.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seed: Option<u64>,
    /// Number of the source that the model's samples are computed from.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub source: Option<u32>,
    /// Number of different waveforms that the model makes before it repeats them; 0: it never repeats them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub period: Option<u64>,
    /// Path of the recording: the file, or the first file of a sequence.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub file: Option<String>,
    /// Number of the VDIF thread that is played.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub thread: Option<u16>,
    /// Name of the VDIF station: its number, or its two letters.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub station: Option<String>,
    /// Data frames per second, if known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub frame_rate: Option<u32>,
    /// Number of frames of this thread that the recording lacks, though other threads have them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub missing: Option<u64>,
    /// Number of frames of this thread that come a second time, and are not played.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub repeated: Option<u64>,
    /// Number of bytes at the recording's end that are no whole frame, and are not played.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cut_off_bytes: Option<u64>,
    /// Notes on the recording that the user should read before it is played.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
    /// The SigMF recording's `global` object.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub metadata: Option<serde_json::Value>,
}

/// Opens the device that `config` describes, which is asked for its fragments, and checks what can be checked before
/// the run.
///
/// # Errors
/// The device has a pace of its own, an option makes no sense, or the recording cannot be read, is empty, or does not
/// have the expected format.
pub fn open_device(config: &DeviceConfig) -> Result<Box<dyn Device>, DeviceError> {
    if !config.is_acquisition()
        && let OpenDevice::Device(device) = config.open_device(None)?
    {
        return Ok(device);
    }
    Err(DeviceError::WorksByItself(config.kind_name().to_owned()))
}
