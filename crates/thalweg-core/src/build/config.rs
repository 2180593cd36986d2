//! Configuration of a builder, fixed before the run.

use std::time::Duration;
use thalweg_wire::{EventId, RunNumber, SourceId};

/// Configuration of a builder, fixed before the run.
#[derive(Debug, Clone)]
pub struct BuilderConfig {
    /// Number of the run.
    pub run: RunNumber,
    /// Number of this builder within `builders`: it builds the events `e` with `e % builders == builder`.
    pub builder: u32,
    /// Number of builders that share the events; at least 1.
    pub builders: u32,
    /// Number of this builder among all builders of the run, whichever events they have, and number of those builders.
    /// Determines the source it starts with, and how far it spreads its fetches.
    pub rank: (u32, u32),
    /// Expected sources, and their names.
    pub sources: Vec<(SourceId, String)>,
    /// Indices of the sources that are fetched from first for each event: level 2 decides from their fragments whether
    /// the others are fetched from at all. Empty: every source is fetched from.
    pub level2: Vec<usize>,
    /// First event of the run.
    pub first: EventId,
    /// Limit of the bytes requested and not yet received, over all sources. One fetch is always allowed.
    pub window: Window,
    /// Bytes that the links hold on their way to the builder, whatever the window: any more would be lost. Slots are
    /// requested in pieces where this is less than a slot. `u64::MAX` where a link loses nothing.
    pub held: u64,
    /// Longest time for which an event waits for a source that has not mentioned it, and for which a source may be
    /// disconnected.
    pub deadline: Duration,
    /// Maximum number of open events: no source gets further ahead of the slowest than this. An offer may hold no more
    /// fragments than this; 0 is taken as 1.
    pub open_events: u32,
    /// Longest payload of a fragment, in bytes.
    pub max_payload: u32,
    /// Checks made on each record.
    pub check: Check,
    /// Time at which slots are released.
    pub hold: Hold,
}

/// Limit of the bytes requested and not yet received.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Window {
    /// This number of bytes, in whole slots, without pacing.
    Constant(u64),
    /// Bandwidth-delay product of this path and half of its buffer, in pieces and paced.
    Credit(Path),
    /// A rising number of bytes, up to `most`, until something is lost: to measure the capacity of the path.
    Search {
        /// Payload bytes in a segment (TCP's MSS).
        segment: u32,
        /// Window at which the search ends, in bytes.
        most: u64,
    },
}

/// The path from the sources to the builder, as far as they all share it: the last switch port.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Path {
    /// Payload bytes that the port carries per second: C.
    pub rate: f64,
    /// Time from a fetch to its data on an idle path: τ. A measured value takes its place.
    pub round_trip: Duration,
    /// Bytes that the port can queue before it drops any: B.
    pub buffer: u64,
    /// Payload bytes in a segment (TCP's MSS).
    pub segment: u32,
    /// Bytes that all sources together may send without a fetch.
    pub unasked: u64,
}

impl Path {
    /// φ: the part of the buffer that is filled. The other half is for traffic of others and for bursts.
    pub(crate) const BUFFER_SHARE: f64 = 0.5;

    /// Returns W, in bytes: the bandwidth-delay product and a part of the path's buffer, less what sources may send
    /// without a fetch.
    pub fn widest_window_bytes(&self) -> u64 {
        let window =
            self.rate * self.round_trip.as_secs_f64() + Self::BUFFER_SHARE * self.buffer as f64 - self.unasked as f64;
        // Less than two segments would be a stop-and-wait protocol.
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "bytes in flight fit")]
        let window = window.max(2.0 * f64::from(self.segment)) as u64;
        window
    }
}

/// Checks made on each record before it counts as built. The header is always checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Check {
    /// The header with its CRC.
    Headers,
    /// The payload's CRC too.
    Payloads,
}

/// Time for which a source's slot is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hold {
    /// Until its bytes have arrived in memory of this builder.
    UntilArrived,
    /// Until its events are closed and handed over: the bytes stay where they are.
    UntilClosed,
}
