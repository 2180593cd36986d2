//! Devices: free-running hardware, model digitizers, and replayed recordings.
//!
//! An [`Acquisition`] is a free-running device: it fills buffers that are posted to it, in its own order and time, and
//! counts its losses.
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
//! | `npy` | a NumPy array | the elements at one index of its first axis |
//! | `raw` | a file of records of one size | one record |
//! | `udp` | an instrument that sends datagrams (`thalweg-drivers`) | a frame, a heap, a packet or several |
//! | `gige` | a GigE Vision camera (an [`Acquisition`], in `thalweg-gige`) | an image |
//! | `stream` | records out of a pipe or a serial port (an [`Acquisition`], in `thalweg-drivers`) | one record |
//! | `comedi` | a board that samples (an [`Acquisition`], in `thalweg-drivers`) | `samples` samples of each channel |
//! | `v4l2` | a camera that the kernel has a driver for (an [`Acquisition`], in `thalweg-drivers`) | one image |
//! | `dma` | a card whose driver reads by DMA (an [`Acquisition`], in `thalweg-drivers`) | the bytes of one read |
//! | `fit` | fits of another source's images (an [`Acquisition`], in `thalweg-drivers`) | a row of numbers |
//! | `edu` | QEMU's edu device (an [`Acquisition`], in `thalweg-pci`) | the bytes that it writes into a slot |
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
//! | `description` | Description of a device's data, for `run.json` |
//! | `recordings` | Options of models and recordings, the kinds of devices that are built in |
//! | `conformance` | Tests that every kind of device passes, for crates that add one: [`device_conformance!`](crate::device_conformance) |
//! | `counter` | Position of the device's counter, or of its time stamp, within a frame |
//! | `acquisition` | Free-running devices: buffers are posted and come back filled, in the device's order and time |
//! | `absence` | Number of frames that a disconnected device would have sent, computed from its rate |
//! | `frame_counter` | Numbers of a device's frames, from the device's counter |
//! | `reassembly` | Reassembly of frames from packets, in the order of the frames' numbers. Without IO |
//! | `by_time` | Events numbered by time: for devices that share a clock, or a trigger, and no counter |
//! | `on_time` | A free-running device whose frames are numbered by their time stamps |
//! | `tap` | Copies of a device's payloads for an observer that never holds the device up |
//! | `adc` | The model ADC: traces like those of a 12-bit digitizer; each sample can be computed again from the seed |
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
//! | `clock` | The TAI clock for the time stamps of fragments and runs |
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
mod description;
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
pub use acquisition::{Acquired, Acquisition, AsAcquisition, Buffer, Frame, FrameOrder, OrderedFrame};
pub use adc::{model_adc, model_payload_bytes};
pub use by_time::{Beat, BeatCounts, Beats, Numbered};
pub use clock::TaiClock;
pub use config::DeviceConfig;
pub use counter::Counter;
pub use description::{Description, OwnFields};
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

use std::fmt::Debug;
pub use thalweg_frames::Adapter;
use thalweg_wire::{EventId, PayloadType, Status, TaiNanos};

/// Maximum length of any device's payload, in bytes. A fragment's length is a 32-bit number on the wire, and the header
/// of a file must not make this process allocate all memory.
pub const MAX_PAYLOAD_BYTES: usize = 1 << 30;

/// Maximum number of axes of a payload: more than enough for panel, row, column, sample and colour.
pub const MAX_AXES: usize = 8;

/// Device that produces one fragment per request. Each belongs to one source node's hot thread.
///
/// The caller requests every event, in order, with either [`fill_payload`](Self::fill_payload) or
/// [`skip_fragment`](Self::skip_fragment). The first event requested, whatever its number, gets the recording's first
/// record.
pub trait Device: Debug + Send {
    /// Returns the description of the data that the device produces, for the run's `run.json`.
    fn description(&self) -> &Description;

    /// Returns the length of the longest payload that the device will ever produce, in bytes; at most [`MAX_PAYLOAD_BYTES`].
    fn max_payload_bytes(&self) -> usize;

    /// Returns the number of records, their times and their files; `None` if the device is no recording.
    fn recording_contents(&self) -> Option<Contents> {
        None
    }

    /// Returns the length of the next fragment's payload, in bytes, without advancing; `None` when the recording is
    /// over. The length is 0 where the recording has a gap (status `missing`).
    fn next_payload_bytes(&mut self) -> Option<usize>;

    /// Returns a key of the payload of `event`, or `None` if the payload must always be written. Events with the same
    /// key have the same payload bytes: a slot that still holds the payload of another such event is not filled again.
    fn content_key(&self, event: EventId) -> Option<u64>;

    /// Writes the next fragment's payload, that of `event`; `payload` is [`next_payload_bytes`](Self::next_payload_bytes) bytes long.
    ///
    /// # Errors
    /// The recording is over or cannot be read, or `payload` has another length. The device's position is unchanged.
    fn fill_payload(&mut self, event: EventId, payload: &mut [u8]) -> Result<HeaderValues, DeviceError>;

    /// Advances past the next fragment, that of `event`, without writing it: its bytes are in the slot already (by
    /// their [`content_key`](Self::content_key)), or it is dropped. Returns the same values as
    /// [`fill_payload`](Self::fill_payload).
    ///
    /// # Panics
    /// The recording is over ([`next_payload_bytes`](Self::next_payload_bytes) returns `None`).
    fn skip_fragment(&mut self, event: EventId) -> HeaderValues;
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
pub struct HeaderValues {
    /// Type of the payload.
    pub payload_type: PayloadType,
    /// Status with `simulated` or `replayed`, and the recording's own marks for the fragment.
    pub status: Status,
    /// Time that the payload covers, in nanoseconds; 0 if unknown.
    pub window: u32,
    /// Time of the first sample. `None` for a model: the source node inserts the time at which it received the
    /// fragment. For a recording, the recorded time, never the time of replay; without a recorded date, counted from 0.
    /// Each repetition of a recording is later than the one before by the recording's duration, so that time never goes
    /// back.
    pub timestamp: Option<TaiNanos>,
}

/// Opens the device that `config` describes, and checks it as far as possible before the run.
///
/// # Errors
/// The device is free-running (an [`Acquisition`]), an option makes no sense, or the recording cannot be read, is
/// empty, or does not have the expected format.
pub fn open_device(config: &DeviceConfig) -> Result<Box<dyn Device>, DeviceError> {
    if !config.is_acquisition()
        && let OpenDevice::Device(device) = config.open_device(None)?
    {
        return Ok(device);
    }
    Err(DeviceError::FreeRunning(config.kind_name().to_owned()))
}
