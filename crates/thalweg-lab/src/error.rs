//! Why a laboratory has no result.

use std::io;
use std::path::PathBuf;
use std::time::Duration;
use thiserror::Error;

/// Why a scenario has no report.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum LabError {
    /// The scenario itself.
    #[error(transparent)]
    Scenario(#[from] crate::scenario::ScenarioError),
    /// Of the scenario, what this laboratory cannot do though another can.
    #[error(transparent)]
    Wrong(#[from] crate::scenario::Wrong),
    /// A laboratory that cannot do this scenario, or is not to be had here.
    #[error("{what} cannot be had here: {why}")]
    Unavailable {
        /// What was asked for.
        what: String,
        /// Why, and what would mend it.
        why: String,
    },
    /// A system call failed.
    #[error("{doing}: {error}")]
    Os {
        /// What was being done, to what.
        doing: String,
        /// The kernel's answer.
        #[source]
        error: io::Error,
    },
    /// A file cannot be used.
    #[error("{}: {error}", path.display())]
    File {
        /// Which.
        path: PathBuf,
        /// Why.
        #[source]
        error: io::Error,
    },
    /// `ip` or `tc` refused.
    #[error("{command}: {said}")]
    Command {
        /// What was run.
        command: String,
        /// What it said.
        said: String,
    },
    /// A node of the scenario ended with an error.
    #[error("{name}: {said}")]
    Node {
        /// Which.
        name: String,
        /// Its last words.
        said: String,
    },
    /// A builder was killed, as the scenario says, and the others did not go on.
    #[error("{} killed, as the scenario says, and the others did not go on without: {then}", were(dead))]
    Death {
        /// Who was killed.
        dead: Vec<String>,
        /// What became of the others.
        then: Box<Self>,
    },
    /// Something that was to end did not.
    #[error("{what} did not end within {} and was killed", humantime::format_duration(*limit))]
    Limit {
        /// What.
        what: String,
        /// How long it was given.
        limit: Duration,
    },
    /// The virtual machine.
    #[error(transparent)]
    Boot(#[from] crate::kernel::BootError),
    /// Its kernel.
    #[error(transparent)]
    Kernel(#[from] crate::kernel::KernelError),
    /// What the machine inside said of its own failure.
    #[error("in the virtual machine: {0}")]
    Guest(String),
    /// Interrupted.
    #[error("interrupted")]
    Interrupted,
}

fn were(names: &[String]) -> String {
    format!("{} {}", names.join(", "), if names.len() == 1 { "was" } else { "were" })
}

impl LabError {
    /// For `map_err`: what was being done.
    pub(crate) fn os<E: Into<io::Error>>(doing: impl Into<String>) -> impl FnOnce(E) -> Self {
        let doing = doing.into();
        move |error| Self::Os { doing, error: error.into() }
    }

    /// For `map_err`: which file it was.
    pub(crate) fn file(path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |error| Self::File { path, error }
    }

    /// Whether what was asked for is at fault, not what became of it.
    pub fn is_usage(&self) -> bool {
        matches!(self, Self::Scenario(_) | Self::Wrong(_) | Self::Unavailable { .. })
    }
}
