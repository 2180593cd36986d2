//! A scenario in network namespaces of this host, in real time.

use crate::LabError;
use crate::network::{NAMESPACES, Namespace, Timing, delete_namespaces, run_batch};
use crate::report::Report;
use crate::rig::Rig;
use crate::scenario::{Carrier, Scenario};
use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

/// Lateness of an ordinary kernel's timers, with a margin.
const TIMER_SLACK: Duration = Duration::from_micros(250);

pub(crate) fn run_in_namespaces(scenario: &Scenario, directory: &Path, stop: &AtomicBool) -> Result<Report, LabError> {
    check_capabilities(scenario)?;
    delete_orphaned_namespaces();
    let prefix = format!("{PREFIX}{}-", std::process::id());
    let (timing, limit) = (Timing { slack: TIMER_SLACK }, scenario.measure.wall_limit);
    Rig { laboratory: "host", directory, prefix: &prefix, timing, limit, stop }.run_to_end(scenario)
}

/// Prefix of all namespaces' names; the number of the process that made them follows.
const PREFIX: &str = "thalweg-";

/// Deletes the namespaces of processes that were killed.
fn delete_orphaned_namespaces() {
    for entry in std::fs::read_dir(NAMESPACES).into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let Some((process, _)) = name.strip_prefix(PREFIX).and_then(|rest| rest.split_once('-')) else { continue };
        if process.parse::<u32>().is_ok() && !Path::new("/proc").join(process).exists() {
            delete_namespaces([&Namespace::with_name(name)].into_iter());
        }
    }
}

/// Fails if this host cannot run the scenario.
fn check_capabilities(scenario: &Scenario) -> Result<(), LabError> {
    if !rustix::process::geteuid().is_root() {
        let why = "creating network namespaces needs root; `--on virtual` needs no privileges".to_owned();
        return Err(LabError::Unavailable { what: "this host as a laboratory".to_owned(), why });
    }
    let path = "/proc/sys/net/ipv4/tcp_available_congestion_control";
    let known = std::fs::read_to_string(path).map_err(LabError::file_error(path))?;
    let control = scenario.traffic.control.congestion;
    if scenario.traffic.link == Carrier::Tcp && !known.split_whitespace().any(|name| name == control) {
        let why = format!(
            "this kernel has only {}; `thalweg cc load {control}` may add it, or use `--on virtual`",
            known.trim()
        );
        return Err(LabError::Unavailable { what: format!("the congestion control {control}"), why });
    }
    let network = &scenario.network;
    let kinds = [
        ("tbf rate 1gbit burst 1514 limit 1514", "a rate", true),
        ("netem delay 1ms", "a delay", !network.delay.is_zero()),
        ("netem loss 1%", "loss", network.loss > 0.0),
        (
            "red limit 100000 min 30000 max 30001 avpkt 1500 burst 20 ecn bandwidth 1gbit",
            "dctcp's marks",
            control == "dctcp",
        ),
    ];
    for (queue, what, _) in kinds.into_iter().filter(|(_, _, needed)| *needed) {
        let kind = queue.split(' ').next().unwrap_or_default();
        probe_queue(queue).map_err(|error| LabError::Unavailable {
            what: what.to_owned(),
            why: format!(
                "this kernel has no {kind} ({error}); use `--on virtual`, or a scenario with delay = \"0s\" \
                and loss = 0 runs here"
            ),
        })?;
    }
    Ok(())
}

/// Creates a kind of queue in a namespace of its own, as a test.
fn probe_queue(queue: &str) -> Result<(), LabError> {
    let space = Namespace::with_name(format!("{PREFIX}{}-probe", std::process::id()));
    run_batch("ip", &format!("netns add {}\n", space.name()))?;
    let tried =
        space.run_inside(|| run_batch("tc", &format!("qdisc add dev lo root {queue}\n"))).and_then(|tried| tried);
    delete_namespaces([&space].into_iter());
    tried
}
