//! Common interface of all formats: the place of a datagram in a fragment.

use crate::instrument::clock::{Clock, Ticks};
use crate::instrument::{DatagramFormat, UdpConfig};
use crate::instrument::{fixed, spead, vdif, vita49};
use std::fmt::Debug;
use std::ops::Range;
use thalweg_device::{DeviceError, HeaderValues, Layout};
use thalweg_wire::{PayloadType, Status, TaiNanos};

/// Reader of datagrams of one format.
pub(crate) trait Format: Debug + Send {
    /// Returns the number of bytes before the part that [`read_message`](Self::read_message) takes as the body.
    fn front_bytes(&self) -> usize {
        0
    }

    /// Returns the number of bits in the instrument's counter of fragments.
    fn counter_bits(&self) -> u32 {
        64
    }

    /// Returns true if that counter is one of time, which goes on while the instrument is away and does not restart.
    fn is_absolute(&self) -> bool {
        false
    }

    /// Returns the number of datagrams in a fragment, where all fragments have the same number.
    fn datagrams_per_fragment(&self) -> u64 {
        1
    }

    /// Returns true if each datagram is one fragment, whose payload is the body.
    fn is_one_datagram_each(&self) -> bool;

    /// Returns the layout of fragments, if the options state it: all fragments have the same number of bytes then.
    fn fragment_layout(&self) -> Option<&Layout> {
        None
    }

    /// Returns the payload type of the fragments.
    fn payload_type(&self) -> PayloadType {
        self.fragment_layout().map_or(PayloadType::RAW, |layout| layout.payload_type)
    }

    /// Reads the header of a datagram.
    fn read_message(&self, front: &[u8], body: &[u8]) -> Result<Message, Refusal>;

    /// Returns the axes of fragments that are arrays.
    fn fragment_shape(&self) -> Option<&[u64]> {
        self.fragment_layout()?.shape.as_deref()
    }

    /// Converts the payload of a whole fragment from the instrument's byte order to little-endian.
    fn to_little_endian(&self, payload: &mut [u8]) {
        self.fragment_layout().into_iter().for_each(|layout| layout.to_little_endian(payload));
    }

    /// Returns the clock by which [`time`](Part::time) is a date, where [`read_message`](Self::read_message) does not date fragments
    /// itself.
    fn instrument_clock(&mut self) -> Option<&mut Clock> {
        None
    }

    /// Records that a datagram that was read has been taken: properties learned from the first hold for all from now
    /// on.
    fn learn_from_accepted(&mut self, body: &[u8]) {
        let _ = body;
    }
}

/// Content of a datagram.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Message {
    /// A part of a fragment, or all of it.
    Part(Part),
    /// The end of the stream: no more datagrams follow.
    End,
}

/// Part of a fragment that a datagram holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Part {
    /// Number of the fragment, by the instrument's count.
    pub(crate) number: u64,
    /// Offset of the part in the fragment, in bytes.
    pub(crate) at: usize,
    /// Length of the fragment, in bytes.
    pub(crate) total: usize,
    /// Byte range of the part in the body.
    pub(crate) payload: Range<usize>,
    /// Values of the fragment's header.
    pub(crate) filled: HeaderValues,
    /// Time of the data, by the instrument's clock.
    pub(crate) time: Option<Ticks>,
    /// Time of the data, more precise than the time between two fragments.
    pub(crate) taken: Option<TaiNanos>,
}

impl Part {
    /// Returns a part that is a whole fragment.
    pub(crate) fn whole_fragment(number: u64, body: &[u8], filled: HeaderValues, time: Option<Ticks>) -> Message {
        Message::Part(Self { number, at: 0, total: body.len(), payload: 0..body.len(), filled, time, taken: None })
    }
}

/// Reason why a datagram is not taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// The datagram does not have the expected form.
    Malformed,
    /// The datagram is shorter than it declares.
    Truncated,
    /// The fragment is longer than the device's option `size`.
    Oversize,
    /// The datagram belongs to another stream, or is of a kind that is not recorded.
    Other,
    /// The number of frames in a second is not known, so that the datagram has no number.
    Unnumbered,
}

/// Returns header values with at most a time and no other facts.
pub(crate) fn header_values(payload_type: PayloadType, timestamp: Option<TaiNanos>) -> HeaderValues {
    HeaderValues { payload_type, status: Status::empty(), window: 0, timestamp }
}

/// Returns the layout of a device's fragments, if its options state it.
pub(crate) fn layout_from_options(config: &UdpConfig) -> Result<Option<Layout>, DeviceError> {
    match (config.stored, config.shape.as_deref()) {
        (None, None) => Ok(None),
        (stored, shape) => Layout::new(Some(config.size), stored, shape).map(Some),
    }
}

/// Returns the format of a device; fails if its options do not go together.
pub(crate) fn format_for_config(config: &UdpConfig) -> Result<Box<dyn Format>, DeviceError> {
    use DatagramFormat::{Fixed, Spead, Vdif, Vita49};
    let options: [(&'static str, bool, &[DatagramFormat]); 14] = [
        // The packets' own count wraps around every 16, and their times are counted from the first one that arrives.
        ("first", config.first.is_some(), &[Vdif, Spead, Fixed]),
        ("step", config.step.is_some(), &[Spead, Fixed]),
        ("rate", config.rate.is_some(), &[Vdif, Vita49]),
        ("thread", config.thread.is_some(), &[Vdif]),
        ("sequence", config.sequence, &[Vdif]),
        ("stream", config.stream.is_some(), &[Vita49]),
        ("header", config.header.is_some(), &[Fixed]),
        ("counter", config.counter.is_some(), &[Fixed]),
        ("index", config.index.is_some(), &[Fixed]),
        ("packets", config.packets.is_some(), &[Fixed]),
        ("type", config.stored.is_some(), &[Spead, Fixed]),
        ("shape", config.shape.is_some(), &[Spead, Fixed]),
        ("time", config.time.is_some(), &[Spead, Fixed]),
        ("partial", config.partial.is_some(), &[Spead, Fixed]),
    ];
    for (option, given, formats) in options {
        if given && !formats.contains(&config.format) {
            let names: Vec<_> = formats.iter().map(|format| format.name()).collect();
            let problem = format!("it belongs to format {}, not {}", names.join(" or "), config.format.name());
            return Err(DeviceError::Option { option, problem });
        }
    }
    Ok(match config.format {
        Vdif => Box::new(vdif::Vdif::new(config)?),
        Spead => Box::new(spead::Spead::new(config)?),
        Vita49 => Box::new(vita49::Vita49::new(config)),
        Fixed => Box::new(fixed::Fixed::new(config)?),
    })
}
