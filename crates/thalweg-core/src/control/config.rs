//! Configuration of run control, fixed before the run.

use std::time::Duration;
use thalweg_wire::EventId;

/// Configuration of run control, fixed before the run.
#[derive(Debug, Clone)]
pub struct Config {
    /// Number of expected sources.
    pub sources: usize,
    /// Number of builders that share the events; at least 1.
    pub builders: u32,
    /// True if this builder leads: it alone decides where the run ends. The others learn it from the sources.
    pub leads: bool,
    /// True if a run begins as soon as all sources are connected to the builder that leads; builders that do not lead
    /// begin after it. Otherwise the run waits for [`Command::Start`](crate::control::Command), and for sources without
    /// limit.
    pub starts_alone: bool,
    /// First event of the run.
    pub first: EventId,
    /// Event before which the run ends; `None` if no number of events is configured.
    pub end: Option<EventId>,
    /// Duration after which the run ends; `None` if none is configured.
    pub duration: Option<Duration>,
    /// Time for which sources are waited for at the beginning, and for which each may keep the run from ending.
    pub timeout: Duration,
}
