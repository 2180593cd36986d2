//! What a builder must know before the run.

use std::time::Duration;
use thalweg_wire::{EventId, RunNumber, SourceId};

/// What a builder must know before the run.
#[derive(Debug, Clone)]
pub struct BuilderConfig {
    /// The run.
    pub run: RunNumber,
    /// Which builder this is, of `builders`: it builds the events `e` with `e % builders == builder`.
    pub builder: u32,
    /// How many builders share the events; at least 1.
    pub builders: u32,
    /// Its number among all builders of the run, whoever has which events, and their count: where it begins to ask, and
    /// how far it spreads what it asks for.
    pub rank: (u32, u32),
    /// The expected sources, and their names.
    pub sources: Vec<(SourceId, String)>,
    /// Those of the sources, by their index, that are asked first of each event: level 2 decides on what they send
    /// whether the others are asked at all. None: every source is asked.
    pub level2: Vec<usize>,
    /// The first event of the run.
    pub first: EventId,
    /// Bytes that may be asked for and not yet received, over all sources. One fetch is always allowed.
    pub window: Window,
    /// Bytes that the links hold on their way to here, whatever the window: what is more would be lost. Slots are asked
    /// for in pieces where that is less than one. `u64::MAX` where a link loses nothing.
    pub held: u64,
    /// How long an event waits for a source that has not mentioned it, and how long a source may be away.
    pub deadline: Duration,
    /// How many events may be open: no source gets further ahead of the slowest than this. An offer may name no more
    /// fragments than this; 0 is taken as 1.
    pub open_events: u32,
    /// The longest payload of a fragment, in bytes.
    pub max_payload: u32,
    /// How closely to look.
    pub check: Check,
    /// When to release.
    pub hold: Hold,
}

/// How many bytes may be asked for and not yet received.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Window {
    /// So many, in whole slots, as fast as they come.
    Constant(u64),
    /// As many as this path carries and half of its buffer holds, in pieces and paced.
    Credit(Path),
    /// More and more, up to `most`, until something is lost: to find out what the path carries.
    Search {
        /// Payload bytes in a segment (TCP's MSS).
        segment: u32,
        /// Where to give up.
        most: u64,
    },
}

/// The way from the sources to the builder, as far as they all share it: the last switch port.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Path {
    /// Payload bytes that the port carries in a second: C.
    pub rate: f64,
    /// From a fetch to its data when nothing is in the way: τ. What is measured takes its place.
    pub round_trip: Duration,
    /// Bytes that wait in front of the port before any is dropped: B.
    pub buffer: u64,
    /// Payload bytes in a segment (TCP's MSS).
    pub segment: u32,
    /// Bytes that all sources together may send unasked.
    pub unasked: u64,
}

impl Path {
    /// φ: the part of the buffer that is filled. The other half is for what is not ours and for what comes in bursts.
    pub(crate) const SHARE: f64 = 0.5;

    /// W, in bytes: what the path carries, and a part of its buffer, without what sources may send unasked.
    pub fn widest(&self) -> u64 {
        let window = self.rate * self.round_trip.as_secs_f64() + Self::SHARE * self.buffer as f64 - self.unasked as f64;
        // Less than two segments would be a stop-and-wait protocol.
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "bytes in flight fit")]
        let window = window.max(2.0 * f64::from(self.segment)) as u64;
        window
    }
}

/// How closely each record is looked at before it counts as built. Its header is always checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Check {
    /// The header with its CRC.
    Headers,
    /// The payload's CRC too.
    Payloads,
}

/// How long a source's slot is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hold {
    /// Until its bytes have arrived in a place of ours.
    UntilArrived,
    /// Until its events are closed and handed over: the bytes stay where they are.
    UntilClosed,
}
