//! Reasons why a laboratory has no result.

use std::io;
use std::path::PathBuf;
use std::time::Duration;
use thiserror::Error;

/// Reason why a scenario has no report.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum LabError {
    /// The scenario cannot be read or is not valid.
    #[error(transparent)]
    Scenario(#[from] crate::scenario::ScenarioError),
    /// The scenario has a part that this laboratory cannot run, though another can.
    #[error(transparent)]
    Invalid(#[from] crate::scenario::InvalidValue),
    /// The laboratory cannot run this scenario, or is not available here.
    #[error("{what} is not available here: {why}")]
    Unavailable {
        /// Name of the missing part.
        what: String,
        /// Reason, and what can be done.
        why: String,
    },
    /// A system call failed.
    #[error("{doing}: {error}")]
    Os {
        /// Action that failed, and its object.
        doing: String,
        /// The kernel's error.
        #[source]
        error: io::Error,
    },
    /// A file cannot be used.
    #[error("{}: {error}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The system's error.
        #[source]
        error: io::Error,
    },
    /// `ip` or `tc` refused.
    #[error("{command}: {output}")]
    Command {
        /// The command that was run.
        command: String,
        /// Error output of the command.
        output: String,
    },
    /// A node of the scenario ended with an error.
    #[error("{name}: {output}")]
    Node {
        /// Name of the node.
        name: String,
        /// Last lines of the node's error output.
        output: String,
    },
    /// A builder was killed, as the scenario specifies, and the other nodes did not continue.
    #[error("{} killed, as the scenario says, and the others did not go on without: {then}", were(dead))]
    Death {
        /// Names of the killed nodes.
        dead: Vec<String>,
        /// Error of the other nodes.
        then: Box<Self>,
    },
    /// Something did not end within its time limit.
    #[error("{what} did not end within {} and was killed", humantime::format_duration(*limit))]
    Limit {
        /// Name of what did not end.
        what: String,
        /// Limit of its time.
        limit: Duration,
    },
    /// The virtual machine failed.
    #[error(transparent)]
    Boot(#[from] crate::kernel::BootError),
    /// The virtual machine's kernel cannot be built.
    #[error(transparent)]
    Kernel(#[from] crate::kernel::KernelError),
    /// The scenario failed inside the virtual machine; its error is the text.
    #[error("in the virtual machine: {0}")]
    Guest(String),
    /// The run was interrupted.
    #[error("interrupted")]
    Interrupted,
}

fn were(names: &[String]) -> String {
    format!("{} {}", names.join(", "), if names.len() == 1 { "was" } else { "were" })
}

impl LabError {
    /// Returns a conversion for `map_err` that adds the action that failed.
    pub(crate) fn system_error<E: Into<io::Error>>(doing: impl Into<String>) -> impl FnOnce(E) -> Self {
        let doing = doing.into();
        move |error| Self::Os { doing, error: error.into() }
    }

    /// Returns a conversion for `map_err` that adds the file.
    pub(crate) fn file_error(path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |error| Self::File { path, error }
    }

    /// True if the request is at fault, not its execution.
    pub fn is_usage(&self) -> bool {
        matches!(self, Self::Scenario(_) | Self::Invalid(_) | Self::Unavailable { .. })
    }
}
