//! A virtual laboratory: N sources and a builder behind one switch port, rehearsed before any hardware is bought.
//!
//! A [`Scenario`] says what network there is, what it carries and how long it is looked at; a [`Laboratory`] runs it and
//! returns a [`Report`]:
//!
//! - *virtual*: Linux's own TCP and Thalweg's own programs, in a User-Mode Linux [`kernel`] under virtual time. Processors
//!   take no time there; only links and timers do. Needs no privilege and no hardware, and the host's load does not matter.
//! - *host*: the same programs in network namespaces of this host, in real time.
//! - *ns3*: a model of both in the network simulator [ns-3](ns3), for a second opinion.
#![forbid(unsafe_code)]

mod counters;
mod error;
mod host;
pub mod kernel;
mod machine;
mod network;
pub mod ns3;
mod queue;
pub mod render;
pub mod report;
mod rig;
pub mod scenario;
pub mod sweep;
pub mod tdaq;
mod topology;

pub use error::LabError;
pub use machine::guest;
pub use report::Report;
pub use scenario::Scenario;

use kernel::{Kernel, Progress};
use std::path::Path;
use std::sync::atomic::AtomicBool;

/// Who runs a scenario.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Laboratory {
    /// The virtual machine.
    #[default]
    Virtual,
    /// Network namespaces of this host.
    Host,
    /// ns-3.
    Ns3,
}

impl std::str::FromStr for Laboratory {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "virtual" => Ok(Self::Virtual),
            "host" => Ok(Self::Host),
            "ns3" => Ok(Self::Ns3),
            _ => Err(format!("'{text}' is not a laboratory: use 'virtual', 'host' or 'ns3'")),
        }
    }
}

/// Runs a scenario. `directory` exists and is the run's own: the topology and what each node says are left there. `stop` ends
/// it early, as an error; `progress` hears about a kernel that must be built first.
pub fn run(
    scenario: &Scenario,
    laboratory: Laboratory,
    directory: &Path,
    stop: &AtomicBool,
    progress: impl FnMut(Progress),
) -> Result<Report, LabError> {
    match laboratory {
        Laboratory::Virtual => machine::run(scenario, &Kernel::build(progress)?, directory, stop),
        Laboratory::Host => host::run(scenario, directory, stop),
        Laboratory::Ns3 => ns3::run(scenario, stop),
    }
}
