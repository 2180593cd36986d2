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
    /// The expected sources, and their names.
    pub sources: Vec<(SourceId, String)>,
    /// The first event of the run.
    pub first: EventId,
    /// Bytes that may be asked for and not yet received, over all sources. One fetch is always allowed.
    pub window: u64,
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
