//! What run control must know before the run.

use std::time::Duration;
use thalweg_wire::EventId;

/// What run control must know before the run.
#[derive(Debug, Clone)]
pub struct Config {
    /// How many sources are expected.
    pub sources: usize,
    /// How many builders share the events; at least 1.
    pub builders: u32,
    /// Whether this builder leads: it alone decides where the run ends. The others hear of it from the sources.
    pub leads: bool,
    /// Whether a run begins as soon as all sources are there. Otherwise it waits for
    /// [`Command::Start`](crate::Command), and for sources without limit.
    pub starts_alone: bool,
    /// The first event of the run.
    pub first: EventId,
    /// The run ends in front of this event.
    pub end: Option<EventId>,
    /// The run ends after so long.
    pub duration: Option<Duration>,
    /// How long sources are waited for at the beginning, and how long each may keep the run from ending.
    pub timeout: Duration,
}
