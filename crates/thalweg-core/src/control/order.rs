//! Commands to run control, and its orders to the node.

use crate::control::State;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::time::Duration;
use thalweg_wire::EventId;
use thiserror::Error;

/// A command of a user or a program to a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Command {
    /// Begins the run: all sources are connected.
    Start,
    /// Makes all sources accept nothing for now.
    Pause,
    /// Makes all sources accept events again.
    Resume,
    /// Ends the run at one event for all sources, with everything accounted for. Before the run has begun: it does not
    /// begin.
    Stop,
    /// Ends the run now; events that are not closed are lost.
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

/// A command that has no meaning in the present state of the run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("cannot {command}: the run is {state}")]
pub struct Refused {
    /// The command.
    pub command: Command,
    /// State of the run.
    pub state: State,
}

/// An order to the node. Orders are carried out in sequence.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Order {
    /// Opens the run; the node then calls [`run_opened`](crate::control::RunControl::run_opened) or [`run_failed`](crate::control::RunControl::run_failed).
    Begin,
    /// Sends this message to this source.
    SourceCommand(usize, SourceCommand),
    /// Ends the run before this event: nothing at or beyond it is built.
    EndAt(EventId),
    /// Notes that a step of a scan begins at this event.
    MarkStep(EventId),
    /// Ends the run under way before this event, at which the next one begins: events from there on are offered for the
    /// next run.
    SwitchAt(EventId),
    /// Closes the run under way, of which everything is built, and builds the next one from now on; the node then calls
    /// [`next_run_opened`](crate::control::RunControl::next_run_opened).
    BeginNext,
    /// Closes the connection of this source with this reason, and gives it up.
    Expel(usize, String),
    /// Stops building: events that are not closed are lost.
    Abandon,
    /// Closes the run, of which everything is built: writes it to disk; the node then calls
    /// [`run_closed`](crate::control::RunControl::run_closed).
    Close,
    /// Refuses all sources with this reason: no run began, and none will.
    Leave(Cause),
}

/// A message to a source.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SourceCommand {
    /// Notification that the run has begun.
    Start,
    /// Request to accept nothing for now, and to report the position.
    Pause,
    /// Request to accept events again, up to the end if one is set.
    Resume,
    /// Request to go on up to this event, not included, in the run under way, and from there on in the next one.
    NextRun {
        /// Number of the event.
        first: EventId,
        /// True if this source is not to reach it: the next run begins where it is.
        here: bool,
    },
    /// Request to go on up to this event, not included, and to end there.
    StopAt {
        /// Number of the event.
        end: EventId,
        /// True if this source is not to reach it: it ends where it is.
        end_here: bool,
    },
}

/// Reason why a run ends, or does not begin.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Cause {
    /// The run has the configured number of events.
    Events,
    /// The run has lasted for the configured time.
    Duration,
    /// A command to stop.
    Command,
    /// A command to stop at once.
    Abort,
    /// All sources have ended or are given up.
    Sources,
    /// Another builder ends the run.
    OtherBuilder,
    /// Another builder was commanded to end the run at once.
    AbortElsewhere,
    /// The measurement that the run was for is done.
    Found,
    /// A failure downstream of this builder: the disk.
    Failure(String),
    /// Sources that were not connected when the timeout had passed.
    Absent {
        /// Sources that never connected.
        missing: Vec<usize>,
        /// Sources that had connected before.
        left: Vec<usize>,
        /// The timeout.
        timeout: Duration,
    },
    /// The leading builder did not begin the run within this time.
    NotLed(Duration),
}
