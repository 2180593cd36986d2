//! A scenario in the virtual machine: this program boots a kernel, and is the program that runs in it.

use crate::LabError;
use crate::kernel::{BootError, Kernel, Machine, boot_machine};
use crate::network::Timing;
use crate::report::Report;
use crate::rig::Rig;
use crate::scenario::Scenario;
use crate::topology::Memory;
use serde::{Deserialize, Serialize};
use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};
use thalweg_text::ByteSize;

/// Files of the request and the answer, in the directory that the machine shares.
const SCENARIO: &str = "scenario.toml";
const ANSWER: &str = "answer.json";

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Answer {
    Report(Box<Report>),
    Error(String),
}

/// Boots the machine and returns its answer. Runs outside of it.
pub(crate) fn run_in_machine(
    scenario: &Scenario,
    kernel: &Kernel,
    directory: &Path,
    stop: &AtomicBool,
) -> Result<Report, LabError> {
    let begun = Instant::now();
    let text = toml::to_string(scenario)
        .map_err(|error| LabError::system_error("writing the scenario")(std::io::Error::other(error)))?;
    let path = directory.join(SCENARIO);
    std::fs::write(&path, text).map_err(LabError::file_error(path))?;
    let program = std::env::current_exe().map_err(LabError::system_error("looking for this program"))?;
    let limit = scenario.measure.wall_limit;
    let outcome = boot_machine(&Machine {
        kernel,
        memory: required_memory(scenario),
        program: &program,
        args: &["lab".into(), "guest".into(), ".".into()],
        directory,
        wall_limit: limit,
        stop,
    });
    let outcome = match outcome {
        Err(BootError::Stopped) => return Err(LabError::Interrupted),
        outcome => outcome?,
    };
    let path = directory.join(ANSWER);
    let answer = std::fs::read_to_string(&path).ok().and_then(|text| serde_json::from_str(&text).ok());
    match answer {
        Some(Answer::Report(report)) => Ok(Report { wall_seconds: begun.elapsed().as_secs_f64(), ..*report }),
        Some(Answer::Error(error)) => Err(LabError::Guest(error)),
        None => {
            let console = outcome.console.trim();
            Err(LabError::Guest(format!("no answer (exit code {}); its console: {console}", outcome.code)))
        }
    }
}

/// Runs the scenario inside the machine and writes the answer.
///
/// # Errors
/// Fails if the answer cannot be written. The failure of a scenario is an answer.
pub fn run_guest(directory: &Path) -> Result<(), LabError> {
    let answer = match run_inside_machine(directory) {
        Ok(report) => Answer::Report(Box::new(report)),
        Err(error) => Answer::Error(error.to_string()),
    };
    let path = directory.join(ANSWER);
    let text = serde_json::to_string(&answer).map_err(|error| LabError::system_error("writing the answer")(error))?;
    std::fs::write(&path, text).map_err(LabError::file_error(path))
}

fn run_inside_machine(directory: &Path) -> Result<Report, LabError> {
    let scenario = Scenario::load_file(&directory.join(SCENARIO))?;
    // Bytes and packets that all of TCP, and the one processor, may hold: the machine has memory for them.
    // Every congestion control may be a namespace's default, as dctcp's receiver needs.
    let controls = "/proc/sys/net/ipv4/tcp_available_congestion_control";
    let controls = std::fs::read_to_string(controls).map_err(LabError::file_error(controls))?;
    for (name, value) in [
        ("net/ipv4/tcp_mem", "8000000 8000000 8000000"),
        ("net/core/netdev_max_backlog", "1000000"),
        ("net/ipv4/tcp_allowed_congestion_control", controls.trim()),
    ] {
        let path = Path::new("/proc/sys").join(name);
        std::fs::write(&path, value).map_err(LabError::file_error(path))?;
    }
    // Twice the run and a minute of the machine's time: more than the longest series of timeouts that still makes
    // progress. Calibrating a link takes some thousand round trips.
    let search = if scenario.measure.calibrate { 5000 * scenario.round_trip_time() } else { Duration::ZERO };
    let limit = 2 * (scenario.warm_up_time() + scenario.measured_time()) + Duration::from_secs(60) + search;
    let timing = Timing { slack: TIMER_SLACK };
    Rig { laboratory: "virtual", directory, prefix: "", timing, limit, stop: &AtomicBool::new(false) }
        .run_to_end(&scenario)
}

/// Lateness of timers under time travel: the clock counts in steps of 256 ns, and a timer cannot be nearer than 500 ns
/// (`TIMER_MULTIPLIER`, `TIMER_MIN_DELTA` in arch/um/include/linux/time-internal.h).
const TIMER_SLACK: Duration = Duration::from_nanos(1_000);

/// Returns the memory that the machine needs: for kernel and programs, for the nodes, and for the data under way that
/// TCP and the network hold (payload in pages, and about as much again around packets).
fn required_memory(scenario: &Scenario) -> ByteSize {
    let network = &scenario.network;
    let hosts = u64::from(network.senders + network.receivers + 1);
    let way = scenario.bandwidth_delay_bytes() + scenario.buffer_bytes_on_path();
    ByteSize(
        (384 << 20)
            + hosts * (12 << 20)
            + Memory::for_scenario(scenario).total_bytes(scenario)
            + 3 * way * u64::from(network.receivers),
    )
}
