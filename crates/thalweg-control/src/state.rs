//! The states of an experiment, and the commands that are legal in each.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;
use utoipa::ToSchema;

/// State of an experiment: that of its nodes, taken together.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum ExperimentState {
    /// No node has a topology.
    #[default]
    Idle,
    /// On the way from idle to configured: nodes are started and receive the topology.
    Configuring,
    /// All nodes have the topology.
    Configured,
    /// On the way from configured to armed: each host is examined, and sources connect to builders.
    Arming,
    /// All hosts are fit, and all sources are connected: a run can start.
    Armed,
    /// On the way from armed to running.
    Starting,
    /// Events are built.
    Running,
    /// On the way from running to paused.
    Pausing,
    /// Sources accept nothing until the run is resumed.
    Paused,
    /// On the way from one run to the next, without a gap.
    Switching,
    /// On the way to the end of the run, which is decided on.
    Stopping,
    /// The last part of stopping: everything is built, and is written to disk.
    Closing,
    /// A node cannot go on, or the service has lost one.
    Error,
}

impl ExperimentState {
    /// All states.
    pub const ALL: [Self; 13] = [
        Self::Idle,
        Self::Configuring,
        Self::Configured,
        Self::Arming,
        Self::Armed,
        Self::Starting,
        Self::Running,
        Self::Pausing,
        Self::Paused,
        Self::Switching,
        Self::Stopping,
        Self::Closing,
        Self::Error,
    ];

    /// Returns its name, as used in the API and in documents.
    pub fn name(self) -> &'static str {
        match self {
            Self::Idle => "idle",
            Self::Configuring => "configuring",
            Self::Configured => "configured",
            Self::Arming => "arming",
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
    pub fn has_run(self) -> bool {
        matches!(self, Self::Running | Self::Pausing | Self::Paused | Self::Switching | Self::Stopping | Self::Closing)
    }
}

impl fmt::Display for ExperimentState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl From<thalweg_node::State> for ExperimentState {
    fn from(state: thalweg_node::State) -> Self {
        use thalweg_node::State;
        match state {
            State::Idle => Self::Idle,
            State::Configured => Self::Configured,
            State::Armed => Self::Armed,
            State::Starting => Self::Starting,
            // The run goes on while the next one is agreed on.
            State::Running => Self::Running,
            State::Pausing => Self::Pausing,
            State::Paused => Self::Paused,
            State::Switching => Self::Switching,
            State::Stopping => Self::Stopping,
            State::Closing => Self::Closing,
            State::Error => Self::Error,
        }
    }
}

/// Name of a command to an experiment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum CommandName {
    /// Reads the topology file, starts nodes that are missing, and sends the topology to all.
    Configure,
    /// Examines each host, and waits until all sources are connected.
    Arm,
    /// Begins a run.
    Start,
    /// Ends the run at one event for all sources, with everything accounted for.
    Stop,
    /// Makes all sources accept nothing for now.
    Pause,
    /// Makes all sources accept events again.
    Resume,
    /// Ends the run now; events that are not closed are lost.
    Abort,
    /// Begins another run at an event that all sources agree on, without a gap.
    Next,
    /// Marks the beginning of a step of a scan, at an event that all sources agree on.
    Step,
}

impl CommandName {
    /// All commands.
    pub const ALL: [Self; 9] = [
        Self::Configure,
        Self::Arm,
        Self::Start,
        Self::Stop,
        Self::Pause,
        Self::Resume,
        Self::Abort,
        Self::Next,
        Self::Step,
    ];

    /// Returns the name, as in the API.
    pub fn name(self) -> &'static str {
        match self {
            Self::Configure => "configure",
            Self::Arm => "arm",
            Self::Start => "start",
            Self::Stop => "stop",
            Self::Pause => "pause",
            Self::Resume => "resume",
            Self::Abort => "abort",
            Self::Next => "next",
            Self::Step => "step",
        }
    }

    /// Returns the states in which the command is legal.
    fn legal_states(self) -> &'static [ExperimentState] {
        use ExperimentState as S;
        match self {
            // A node may be about to get the topology again; of a command under way, the experiment refuses it.
            Self::Configure => &[S::Idle, S::Configuring, S::Configured, S::Armed, S::Error],
            Self::Arm => &[S::Configured, S::Armed],
            Self::Start => &[S::Armed],
            Self::Stop => &[S::Running, S::Pausing, S::Paused, S::Switching],
            Self::Pause => &[S::Running],
            Self::Resume => &[S::Pausing, S::Paused],
            Self::Abort => &[S::Running, S::Pausing, S::Paused, S::Switching, S::Stopping, S::Closing],
            Self::Next => &[S::Running],
            Self::Step => &[S::Running, S::Paused],
        }
    }

    /// Checks whether the command is legal in a state.
    ///
    /// # Errors
    /// It is not; the sentence says why, and what to do instead.
    pub fn check_legal(self, state: ExperimentState) -> Result<(), String> {
        if self.legal_states().contains(&state) {
            return Ok(());
        }
        use ExperimentState as S;
        let advice = match (self, state) {
            (_, S::Configuring | S::Arming | S::Starting | S::Switching) => "wait until that is done",
            (Self::Configure, _) => "stop the run first",
            (_, S::Idle) => "configure the experiment first",
            (_, S::Error) => "read the reasons, then configure the experiment anew",
            (Self::Start, S::Configured) => "arm it first",
            (Self::Start | Self::Arm, _) => "a run is under way: stop it first",
            (Self::Stop, S::Stopping | S::Closing) => "the run is ending already; abort ends it at once",
            (Self::Pause, S::Pausing | S::Paused) => "it accepts nothing already; resume makes it go on",
            (Self::Resume, S::Running) => "it is not paused",
            (Self::Next, S::Paused) => "resume it first",
            (Self::Next | Self::Step, S::Pausing) => "wait until that is done",
            (Self::Pause | Self::Resume | Self::Next | Self::Step, S::Stopping | S::Closing) => "the run is ending",
            _ => "no run is under way",
        };
        Err(format!("cannot {self}: the experiment is {state}: {advice}"))
    }
}

impl fmt::Display for CommandName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for CommandName {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|command| command.name() == text);
        found.ok_or_else(|| {
            format!("there is no command '{text}'; the commands are {}", Self::ALL.map(Self::name).join(", "))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_refusal_names_the_command_the_state_and_a_remedy() {
        for state in ExperimentState::ALL {
            for command in CommandName::ALL {
                if let Err(reason) = command.check_legal(state) {
                    let start = format!("cannot {command}: the experiment is {state}: ");
                    assert!(reason.len() > start.len() && reason.starts_with(&start), "{reason}");
                }
            }
        }
        assert!(CommandName::Start.check_legal(ExperimentState::Armed).is_ok());
    }

    #[test]
    fn there_is_a_way_out_of_each_state_that_does_not_pass_by_itself() {
        use ExperimentState as S;
        let passes = [S::Configuring, S::Arming, S::Starting, S::Pausing, S::Switching, S::Stopping, S::Closing];
        for state in ExperimentState::ALL.into_iter().filter(|state| !passes.contains(state)) {
            assert!(CommandName::ALL.iter().any(|command| command.check_legal(state).is_ok()), "{state}");
        }
    }
}
