//! What all formats have in common: from a datagram to its place in a fragment.

use crate::clock::{Clock, Ticks};
use crate::{DatagramFormat, UdpConfig};
use crate::{fixed, spead, vdif, vita49};
use std::fmt::Debug;
use std::ops::Range;
use thalweg_device::{DeviceError, Filled, Layout};
use thalweg_wire::{PayloadType, Status, TaiNanos};

/// Reads datagrams of one kind.
pub(crate) trait Format: Debug + Send {
    /// Bytes in front of what [`read`](Self::read) calls the body.
    fn front(&self) -> usize {
        0
    }

    /// Bits in the instrument's counter of fragments.
    fn bits(&self) -> u32 {
        64
    }

    /// Whether that counter is one of time, which goes on while the instrument is away and does not begin anew.
    fn is_absolute(&self) -> bool {
        false
    }

    /// Datagrams in a fragment, where all have as many.
    fn packets(&self) -> u64 {
        1
    }

    /// Whether each datagram is one fragment, whose payload is the body.
    fn whole(&self) -> bool;

    /// What fragments are made of, where that is stated: all have as many bytes.
    fn layout(&self) -> Option<&Layout> {
        None
    }

    /// What the fragments are.
    fn payload_type(&self) -> PayloadType {
        self.layout().map_or(PayloadType::RAW, |layout| layout.payload_type)
    }

    /// What a datagram says.
    fn read(&self, front: &[u8], body: &[u8]) -> Result<Said, Refusal>;

    /// The axes of fragments that are arrays.
    fn shape(&self) -> Option<&[u64]> {
        self.layout()?.shape.as_deref()
    }

    /// Makes of a whole fragment, as the instrument sends it, what a fragment has.
    fn to_little_endian(&self, payload: &mut [u8]) {
        self.layout().into_iter().for_each(|layout| layout.to_little_endian(payload));
    }

    /// The clock by which [`time`](Part::time) is a date, where [`read`](Self::read) does not date fragments itself.
    fn clock(&mut self) -> Option<&mut Clock> {
        None
    }

    /// A datagram that was read was taken: what is to be learned from the first holds for all from now on.
    fn accepted(&mut self, body: &[u8]) {
        let _ = body;
    }
}

/// What a datagram says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Said {
    /// A part of a fragment, or all of it.
    Part(Part),
    /// There will be no more.
    End,
}

/// A part of a fragment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Part {
    /// The instrument's count of the fragment.
    pub(crate) number: u64,
    /// Where in the fragment it lies.
    pub(crate) at: usize,
    /// Bytes in the fragment.
    pub(crate) total: usize,
    /// Which bytes of the body they are.
    pub(crate) payload: Range<usize>,
    /// What goes into the fragment's header.
    pub(crate) filled: Filled,
    /// When it was taken, by the instrument's clock.
    pub(crate) time: Option<Ticks>,
    /// The same, to less than the time between two of them.
    pub(crate) taken: Option<TaiNanos>,
}

impl Part {
    /// All of a fragment.
    pub(crate) fn whole(number: u64, body: &[u8], filled: Filled, time: Option<Ticks>) -> Said {
        Said::Part(Self { number, at: 0, total: body.len(), payload: 0..body.len(), filled, time, taken: None })
    }
}

/// Why a datagram is not taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// It is not what it should be.
    Malformed,
    /// It is shorter than it says.
    Truncated,
    /// It belongs to another stream, or is of a kind that is not recorded.
    Other,
    /// Nobody says how many frames a second has, so that it has no number.
    Unnumbered,
}

/// What is known of a fragment of which only its time may be known.
pub(crate) fn filled(payload_type: PayloadType, timestamp: Option<TaiNanos>) -> Filled {
    Filled { payload_type, status: Status::empty(), window: 0, timestamp }
}

/// Returns what fragments of a device are made of, where its options state it.
pub(crate) fn layout_of(config: &UdpConfig) -> Result<Option<Layout>, DeviceError> {
    match (config.stored, config.shape.as_deref()) {
        (None, None) => Ok(None),
        (stored, shape) => Layout::new(Some(config.size), stored, shape).map(Some),
    }
}

/// The format of a device, where its options go together.
pub(crate) fn of(config: &UdpConfig) -> Result<Box<dyn Format>, DeviceError> {
    use DatagramFormat::{Fixed, Spead, Vdif, Vita49};
    let options: [(&'static str, bool, &[DatagramFormat]); 14] = [
        // The packets' own count begins anew every 16, and their times are counted from the first that comes.
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
