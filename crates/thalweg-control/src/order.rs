//! What run control is told to do, and what it has the node do.

use crate::State;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::time::Duration;
use thalweg_wire::EventId;
use thiserror::Error;

/// What a person or a program asks of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Command {
    /// Begin the run: all sources are there.
    Start,
    /// Have all sources accept nothing for now.
    Pause,
    /// Have them go on.
    Resume,
    /// End the run at one event for all sources, with everything accounted for. Before it has begun: do not begin it.
    Stop,
    /// End the run now, closed as far as it is.
    Abort,
}

impl fmt::Display for Command {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Start => "start",
            Self::Pause => "pause",
            Self::Resume => "resume",
            Self::Stop => "stop",
            Self::Abort => "abort",
        })
    }
}

/// A command that means nothing in the state the run is in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("cannot {command}: the run is {state}")]
pub struct Refused {
    /// What was asked for.
    pub command: Command,
    /// The state.
    pub state: State,
}

/// What the node is to do. Orders are carried out in turn.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Order {
    /// Open the run, then say [`begun`](crate::RunControl::begun) or [`failed`](crate::RunControl::failed).
    Begin,
    /// Tell this source.
    Tell(usize, Tell),
    /// The run ends in front of this event: nothing at or beyond it is built.
    EndAt(EventId),
    /// Close the connection of this source with this reason, and give it up.
    Expel(usize, String),
    /// Build nothing more: what is not closed is lost.
    Abandon,
    /// Everything is built: get it onto the disk, then say [`closed`](crate::RunControl::closed).
    Close,
    /// No run began, and none will: turn all sources away with this reason.
    Leave(Cause),
}

/// What a source is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tell {
    /// The run has begun.
    Start,
    /// Accept nothing for now, and say how far you are.
    Pause,
    /// Go on accepting, as far as you were to go.
    Resume,
    /// Go on up to this event, not included, and end there.
    StopAt(EventId),
}

/// Why a run ends, or does not begin.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Cause {
    /// It has as many events as it was to have.
    Events,
    /// It has lasted as long as it was to.
    Duration,
    /// It was asked for.
    Command,
    /// It was asked for at once.
    Abort,
    /// All sources have ended or are given up.
    Sources,
    /// Another builder stops it.
    OtherBuilder,
    /// Another builder was asked to end it at once.
    AbortElsewhere,
    /// What it was for is found out.
    Found,
    /// Something behind this builder failed: the disk.
    Failure(String),
    /// These sources did not come within the timeout.
    Absent(Vec<usize>, Duration),
}
