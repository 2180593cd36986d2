//! The states of a run, as shown to people and programs.

use serde::{Deserialize, Serialize};
use std::fmt;

/// State of a run. What the state waits for is reported separately, in a sentence.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// No run is prepared.
    #[default]
    Idle,
    /// Memory, addresses and the directory are ready; waiting for sources.
    Configured,
    /// All sources are connected; waiting for a start.
    Armed,
    /// On the way from armed to running: the run is being opened.
    Starting,
    /// Events are built.
    Running,
    /// On the way from running to paused: the positions of the sources are requested.
    Pausing,
    /// Sources accept nothing until the run is resumed.
    Paused,
    /// On the way from one run to the next: the event at which the next one begins was decided on, or is about to be,
    /// and has not been reached by all sources.
    Switching,
    /// On the way from running or paused to idle: the end was decided on, or is about to be, and has not been reached.
    Stopping,
    /// The last part of stopping: everything is built, and is written to disk.
    Closing,
    /// The run could not be begun.
    Error,
}

impl State {
    /// Returns its name, as used in commands, JSON and documents.
    pub fn name(self) -> &'static str {
        match self {
            Self::Idle => "idle",
            Self::Configured => "configured",
            Self::Armed => "armed",
            Self::Starting => "starting",
            Self::Running => "running",
            Self::Pausing => "pausing",
            Self::Paused => "paused",
            Self::Switching => "switching",
            Self::Stopping => "stopping",
            Self::Closing => "closing",
            Self::Error => "error",
        }
    }

    /// Returns whether a run has begun and is not over.
    pub fn has_begun(self) -> bool {
        matches!(self, Self::Running | Self::Pausing | Self::Paused | Self::Switching | Self::Stopping | Self::Closing)
    }
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}
