//! The states of a run, as people and programs see them.

use serde::{Deserialize, Serialize};
use std::fmt;

/// The state of a run. What it waits for is told apart from it, in a sentence.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// No run is prepared.
    #[default]
    Idle,
    /// Memory, addresses and the directory are there; sources are waited for.
    Configured,
    /// All sources are there; a start is waited for.
    Armed,
    /// On the way from armed to running: the run is being opened.
    Starting,
    /// Events are built.
    Running,
    /// On the way from running to paused: sources are asked how far they are.
    Pausing,
    /// Sources accept nothing until they are told to go on.
    Paused,
    /// On the way from running or paused to idle: the end was decided on, or is about to be, and is waited for.
    Stopping,
    /// The last part of stopping: everything is built, and goes to disk.
    Closing,
    /// The run could not be begun.
    Error,
}

impl State {
    /// Its name, as commands, JSON and documents use it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Idle => "idle",
            Self::Configured => "configured",
            Self::Armed => "armed",
            Self::Starting => "starting",
            Self::Running => "running",
            Self::Pausing => "pausing",
            Self::Paused => "paused",
            Self::Stopping => "stopping",
            Self::Closing => "closing",
            Self::Error => "error",
        }
    }

    /// Whether a run has begun and is not over.
    pub fn has_begun(self) -> bool {
        matches!(self, Self::Running | Self::Pausing | Self::Paused | Self::Stopping | Self::Closing)
    }
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}
