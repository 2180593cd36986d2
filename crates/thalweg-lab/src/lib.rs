//! A virtual laboratory: N sources and M builders behind switches, tested before any hardware is bought.
//!
//! A [`Scenario`] describes a network, its traffic and the measured time; a [`Laboratory`] runs it and returns a
//! [`Report`]:
//!
//! - *virtual*: Linux's own TCP and Thalweg's own programs, in a User-Mode Linux [`kernel`] under virtual time.
//!   Processors take no time there; only links and timers do. No privilege and no hardware is needed, and the host's
//!   load does not matter.
//! - *host*: the same programs in network namespaces of this host, in real time.
//! - *ns3*: a model of both in the network simulator [ns-3](ns3), for a second opinion.
//! - *model*: Thalweg's own event builder in a simulated network of queues, without sockets: for hundreds of builders,
//!   and for experiments that are repeated a hundred times.
//!
//! # Files, in the order of the data path
//!
//! | file | what is in it |
//! | --- | --- |
//! | `scenario` | The scenario: a network of senders behind switches, their traffic, and the measurement |
//! | `topology` | The topology of a scenario's nodes: Thalweg's own defaults unless the scenario overrides them |
//! | `network` | The scenario's network, made of network namespaces: one per host and switch, a veth pair per cable |
//! | `queue` | Queries a queue of the kernel for its backlog, its drops and the bytes it sent |
//! | `machine` | A scenario in the virtual machine: this program boots a kernel, and is the program that runs in it |
//! | `steps` | Steps of a build that is done once, and whose result is kept in the user's cache |
//! | `kernel` | The kernel of the virtual laboratory: User-Mode Linux with time travel |
//! | `rig` | A scenario on a Linux kernel, this one or the virtual machine's |
//! | `host` | A scenario in network namespaces of this host, in real time |
//! | `ns3` | A scenario in ns-3: a second opinion by TCPs that share no line with Linux's |
//! | `model` | A scenario as a model: Thalweg's own event builder in a network of FIFOs |
//! | `counters` | TCP's counters of a network namespace: proc_net(5), `/proc/net/snmp` and `/proc/net/netstat` |
//! | `progress` | Progress of a scenario: a small file in its directory |
//! | `report` | Result of a laboratory: one type for all of them |
//! | `verdict` | The answer of a run: offered and carried rate, and the limit |
//! | `render` | A report as a self-contained page: no server, no scripts, no fonts |
//! | `sweep` | A sweep: one scenario with lists in it |
//! | `reproduce` | Published measurements repeated in the laboratory |
//! | `pc` | An emulated PC (QEMU): PCI devices behind an IOMMU, VFIO, NICs for DPDK |
//! | `image_camera` | A GigE Vision camera without hardware, for rehearsals and tests |
//! | `congestion` | TCP congestion controls for a running kernel, as BPF programs |
//! | `error` | Reasons why a laboratory has no result |
#![forbid(unsafe_code)]

#[cfg(feature = "congestion-controls")]
pub mod congestion;
mod counters;
mod error;
mod host;
pub mod image_camera;
pub mod kernel;
mod machine;
mod model;
mod network;
pub mod ns3;
pub mod pc;
mod progress;
mod queue;
pub mod render;
pub mod report;
pub mod reproduce;
mod rig;
pub mod scenario;
mod steps;
pub mod sweep;
mod topology;
pub mod verdict;

pub use error::LabError;
pub use machine::run_guest;
pub use progress::RunProgress;
pub use report::Report;
pub use scenario::Scenario;
pub use steps::StepError;
pub use verdict::Verdict;

use kernel::{Kernel, Progress};
use scenario::{InvalidValue, MOST_RECEIVERS, MOST_SENDERS};
use std::path::Path;
use std::sync::atomic::AtomicBool;

/// Means of running a scenario.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Laboratory {
    /// The virtual machine.
    #[default]
    Virtual,
    /// Network namespaces of this host.
    Host,
    /// The network simulator ns-3.
    Ns3,
    /// A model around Thalweg's own event builder.
    Model,
}

impl Laboratory {
    /// Returns the largest number of senders. On a Linux kernel each is a process with memory of its own, in a network
    /// namespace of its own.
    pub fn max_senders(self) -> u32 {
        match self {
            Self::Virtual | Self::Host => 512,
            Self::Ns3 | Self::Model => MOST_SENDERS,
        }
    }

    /// Returns the largest number of receivers.
    pub fn max_receivers(self) -> u32 {
        match self {
            Self::Virtual | Self::Host | Self::Ns3 => 64,
            Self::Model => MOST_RECEIVERS,
        }
    }

    fn check_scenario(self, scenario: &Scenario) -> Result<(), InvalidValue> {
        let (senders, most) = (scenario.network.senders, self.max_senders());
        if senders > most {
            let problem = format!(
                "{senders}: it must be 1 to {most} in a laboratory on Linux, 1 to {MOST_SENDERS} in the others"
            );
            return scenario::invalid_value("network.senders", problem);
        }
        let (receivers, most) = (scenario.network.receivers, self.max_receivers());
        if receivers > most {
            let problem = format!("{receivers}: it must be 1 to {most} in this laboratory");
            return scenario::invalid_value("network.receivers", problem);
        }
        match self {
            Self::Ns3 => ns3::check_scenario(scenario),
            Self::Model => model::check_scenario(scenario),
            Self::Virtual | Self::Host => Ok(()),
        }
    }
}

/// Returns the name of a laboratory, and that its data are simulated if they are.
pub fn laboratory_title(name: &str) -> String {
    match name {
        "model" | "ns3" => format!("{name} (simulated)"),
        _ => name.to_owned(),
    }
}

/// Writes the name that [`FromStr`](std::str::FromStr) parses.
impl std::fmt::Display for Laboratory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Virtual => "virtual",
            Self::Host => "host",
            Self::Ns3 => "ns3",
            Self::Model => "model",
        })
    }
}

impl std::str::FromStr for Laboratory {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "virtual" => Ok(Self::Virtual),
            "host" => Ok(Self::Host),
            "ns3" => Ok(Self::Ns3),
            "model" => Ok(Self::Model),
            _ => Err(format!("'{text}' is not a laboratory: use 'virtual', 'host', 'ns3' or 'model'")),
        }
    }
}

/// Runs a scenario. `directory` exists and is the run's own: the topology and the output of each node are left there.
/// `stop` ends the run early; `progress` is called if a kernel must be built first.
///
/// # Errors
/// Fails if the laboratory is not available or cannot run this scenario, or a part of it fails or does not end; with
/// [`LabError::Interrupted`] if it was stopped.
pub fn run_scenario(
    scenario: &Scenario,
    laboratory: Laboratory,
    directory: &Path,
    stop: &AtomicBool,
    progress: impl FnMut(Progress),
) -> Result<Report, LabError> {
    laboratory.check_scenario(scenario)?;
    let machine = thalweg_bench::Watch::begin();
    let report = match laboratory {
        Laboratory::Virtual => machine::run_in_machine(scenario, &Kernel::build_or_cached(progress)?, directory, stop),
        Laboratory::Host => host::run_in_namespaces(scenario, directory, stop),
        Laboratory::Ns3 => ns3::run_in_ns3(scenario, stop),
        Laboratory::Model => model::run_model(scenario, stop),
    };
    let mut report = report?;
    let conditions = machine.end(&[]);
    let warnings = conditions.warnings();
    match laboratory {
        Laboratory::Host => {
            report.warnings = warnings;
            report.processors_busy = Some(conditions.processors_busy);
        }
        // Processors take no time in these: only the time on the wall is longer.
        Laboratory::Virtual | Laboratory::Ns3 | Laboratory::Model => {
            let busy =
                warnings.into_iter().map(|warning| format!("{}; only the real time depends on it", warning.text));
            report.notes.extend(busy);
        }
    }
    report.verdict = Some(Verdict::for_report(&report));
    Ok(report)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ns3_refuses_what_its_models_lack() {
        let front = "[network]\nsenders = 4\nreceivers = 2\n";
        for (behind, key) in [
            ("[[network.sender]]\nnumber = 1\nsize = \"1 MiB\"\n", "network.sender.0"),
            ("[[network.receiver]]\nnumber = 1\nrate = \"100 Mbit/s\"\n", "network.receiver"),
            ("[network.shared]\nsenders = 2\n", "network.shared"),
            ("[network.tree]\nleaves = 2\n", "network.tree"),
            ("[traffic]\ninterval = \"1ms\"\nburst = 8\n", "traffic.burst"),
        ] {
            let scenario = Scenario::parse(&format!("{front}{behind}")).unwrap();
            assert!(
                Laboratory::Virtual.check_scenario(&scenario).is_ok()
                    && Laboratory::Host.check_scenario(&scenario).is_ok()
            );
            let error = Laboratory::Ns3.check_scenario(&scenario).unwrap_err();
            assert_eq!(error.key, key);
            assert!(error.problem.contains("ns3") && error.problem.contains("--on virtual"), "{error}");
        }
        let slow = format!("{front}[[network.sender]]\nnumber = 1\nrate = \"100 Mbit/s\"\n");
        assert!(Laboratory::Ns3.check_scenario(&Scenario::parse(&slow).unwrap()).is_ok());
    }

    #[test]
    fn a_thousand_senders_are_for_ns3_and_the_others_say_so() {
        let scenario = Scenario::parse("[network]\nsenders = 1000\n").unwrap();
        assert!(Laboratory::Ns3.check_scenario(&scenario).is_ok());
        for laboratory in [Laboratory::Virtual, Laboratory::Host] {
            // Refused before anything is built or created.
            let error = run_scenario(&scenario, laboratory, Path::new("/nowhere"), &AtomicBool::new(false), |_| {})
                .unwrap_err();
            assert!(error.is_usage());
            assert_eq!(
                error.to_string(),
                "network.senders: 1000: it must be 1 to 512 in a laboratory on Linux, 1 to 1000 in the others"
            );
        }
        assert!(Laboratory::Host.check_scenario(&Scenario::parse("[network]\nsenders = 512\n").unwrap()).is_ok());
        let builders = Scenario::parse("[network]\nsenders = 3\nreceivers = 65\n").unwrap();
        for laboratory in [Laboratory::Virtual, Laboratory::Host, Laboratory::Ns3] {
            let error = laboratory.check_scenario(&builders).unwrap_err().to_string();
            assert_eq!(error, "network.receivers: 65: it must be 1 to 64 in this laboratory");
        }
        let error = Scenario::parse("[network]\nsenders = 1001\n").unwrap_err().to_string();
        assert_eq!(error, "line 2: network.senders: 1001: it must be 1 to 1000\n  senders = 1001");
    }
}
