//! A scenario in ns-3: a second opinion by TCPs that share no line with Linux's. It takes more senders than a kernel
//! does.
//!
//! ns-3 (<https://www.nsnam.org>) is not part of Thalweg: an installed one is looked for, and the scenario's program
//! (`ns3/incast.cc`) is compiled against it once. The network is the scenario's, by the same definitions: the queue
//! before a receiver counts IP packets and 14 bytes of Ethernet and not the packet on the wire, and links take the time
//! of as many bytes, so that [`Scenario::ceiling_bits_per_second`] holds here too. Senders and receivers are models of
//! Thalweg's sources and builders: requests and answers over persistent TCP connections, and under `credit` the rule of
//! `thalweg-core`'s scheduler with its constants.
//!
//! The report's [notes](Report::notes) list where it is expected to disagree with Linux, and the settings that keep
//! this small.

mod compare;
mod install;
mod output;
mod process;

pub use compare::compare_reports;

use crate::network::{ecn_threshold_bytes, port_notes, tcp_buffer_bytes};
use crate::scenario::{Assignment, Carrier, InvalidValue, Scenario};
use crate::topology::Memory;
use crate::{LabError, Report};
use install::Ns3;
use output::Output;
use std::process::Command;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

/// Runs a scenario in ns-3. The first run with an ns-3 compiles the program, which takes some ten seconds. `stop` ends
/// it early, with an error.
///
/// # Errors
///
/// Fails with [`LabError::Unavailable`] if no ns-3 or no compiler is installed; with [`LabError::Limit`] if it takes
/// longer than `measure.wall_limit` once compiled; with others if the program cannot be compiled or ends with an error.
pub fn run_in_ns3(scenario: &Scenario, stop: &AtomicBool) -> Result<Report, LabError> {
    let begun = Instant::now();
    let ns3 = Ns3::find_installation(stop)?;
    let mut command = Command::new(ns3.compiled_program(stop)?);
    command.args(program_arguments(scenario));
    let limit = scenario.measure.wall_limit;
    let ended = process::run_to_end("ns-3", &mut command, limit, stop)?;
    if !ended.status.success() {
        return Err(LabError::Node { name: "ns-3".into(), output: ended.error_summary() });
    }
    let mut report = Output::parse_output(&ended.out, scenario)?.into_report(scenario, history_step(scenario));
    report.notes = report_notes(scenario, &ns3);
    report.wall_seconds = begun.elapsed().as_secs_f64();
    Ok(report)
}

/// Fails if the scenario needs a feature that `ns3/incast.cc` lacks.
pub(crate) fn check_scenario(scenario: &Scenario) -> Result<(), InvalidValue> {
    let Scenario { network, traffic, .. } = scenario;
    let sized = network.unlike.iter().position(|sender| sender.size.is_some() || sender.sizes.is_some());
    let lacking = [
        (sized.map(|at| format!("network.sender.{at}")), "in ns3, senders can only differ in their `rate`"),
        (
            (!network.unlike_receivers.is_empty()).then(|| "network.receiver".into()),
            "in ns3, all receivers are alike, and none stalls or dies",
        ),
        (network.shared.is_some().then(|| "network.shared".into()), "ns3 models one switch only"),
        (network.tree.is_some().then(|| "network.tree".into()), "ns3 models one switch only"),
        (
            (traffic.assignment != Assignment::Modulo).then(|| "traffic.assignment".into()),
            "ns3 has event e at builder e mod M",
        ),
        ((traffic.link != Carrier::Tcp).then(|| "traffic.link".into()), "ns3 has TCP only"),
        (traffic.burst.is_some().then(|| "traffic.burst".into()), "the events of ns3 come one by one"),
    ];
    match lacking.into_iter().find_map(|(key, what)| Some((key?, what))) {
        Some((key, what)) => Err(InvalidValue { key, problem: format!("{what}: use `--on virtual`") }),
        None => Ok(()),
    }
}

/// Returns the program's arguments for a scenario, as `ns3/incast.cc` names them.
fn program_arguments(scenario: &Scenario) -> Vec<String> {
    let Scenario { network, traffic, .. } = scenario;
    let slow = network.unlike.iter().filter_map(|sender| Some((sender.number, sender.rate?)));
    let slow: Vec<String> =
        slow.map(|(number, rate)| format!("{number}:{}", scenario.queue_rate_for(rate).0)).collect();
    let (from, to) = scenario.payload_range();
    let (together, open) = Memory::for_scenario(scenario).open_slots(scenario);
    let mark = if traffic.control.congestion == "dctcp" {
        ecn_threshold_bytes(scenario, network.rate, network.buffer.0)
    } else {
        0
    };
    let all = [
        ("senders", network.senders.to_string()),
        ("builders", network.receivers.to_string()),
        ("rate", scenario.queue_rate_for(network.rate).0.to_string()),
        ("slow", slow.join(",")),
        ("delay", nanoseconds_text(network.delay)),
        ("loss", network.loss.to_string()),
        ("buffer", network.buffer.0.to_string()),
        ("mtu", network.mtu.to_string()),
        ("mark", mark.to_string()),
        ("control", ns3_control_name(traffic.control.congestion).to_owned()),
        ("credit", u8::from(traffic.control.credit).to_string()),
        ("from", from.to_string()),
        ("to", to.to_string()),
        ("together", together.to_string()),
        ("interval", nanoseconds_text(traffic.interval.unwrap_or_default())),
        ("open", open.to_string()),
        ("cross", traffic.cross.to_string()),
        ("socket", socket_payload_bytes(scenario).to_string()),
        ("warm", nanoseconds_text(scenario.warm_up_time())),
        ("measured", nanoseconds_text(scenario.measured_time())),
        ("look", nanoseconds_text(history_step(scenario))),
    ];
    // ns-3 does not take an empty value.
    all.into_iter().filter(|(_, value)| !value.is_empty()).map(|(name, value)| format!("--{name}={value}")).collect()
}

fn nanoseconds_text(time: Duration) -> String {
    time.as_nanos().to_string()
}

/// Returns the name in ns-3 of a congestion control of Linux.
fn ns3_control_name(name: &str) -> &'static str {
    match name {
        "bic" => "TcpBic",
        "highspeed" => "TcpHighSpeed",
        "htcp" => "TcpHtcp",
        "hybla" => "TcpHybla",
        "lp" => "TcpLp",
        "scalable" => "TcpScalable",
        "vegas" => "TcpVegas",
        "veno" => "TcpVeno",
        // Linux's westwood is Westwood+ (tcp_westwood.c).
        "westwood" => "TcpWestwoodPlus",
        // ns-3's NewReno grows in steps of bytes, its LinuxReno as tcp_reno_cong_avoid does.
        // It has no window that follows the credit: the closest is one that only losses reduce.
        "reno" | "thalweg" => "TcpLinuxReno",
        "bbr" => "TcpBbr",
        "dctcp" => "TcpDctcp",
        _ => "TcpCubic",
    }
}

/// Returns the payload bytes that a socket holds: the part of the buffer that Linux leaves for the window
/// (`tcp_adv_win_scale`).
fn socket_payload_bytes(scenario: &Scenario) -> u64 {
    tcp_buffer_bytes(scenario) / 2
}

/// Returns the time between two entries of the queue's history: a thousand in all.
fn history_step(scenario: &Scenario) -> Duration {
    ((scenario.warm_up_time() + scenario.measured_time()) / 1000).max(Duration::from_nanos(1))
}

/// Returns notes on features that ns-3 cannot model and on its settings, in sentences.
fn report_notes(scenario: &Scenario, ns3: &Ns3) -> Vec<String> {
    let Scenario { network, traffic, .. } = scenario;
    let version = &ns3.version;
    let mut notes = vec![
        format!("ns-3 {version}: models of TCP and of Thalweg's nodes, not Linux and not Thalweg's programs"),
        format!(
            "warm-up: the first {} do not count; retransmissions, timeouts and drops of the whole run are in whole_run",
            humantime::format_duration(scenario.warm_up_time())
        ),
        "loss recovery: SACK, PRR and limited transmit, but neither RACK nor tail loss probes nor undoing (F-RTO, \
         DSACK): what is lost at the end of an answer waits for the timer (at least 200 ms), where Linux probes after \
         two round trips; expect more timeouts and longer tails than in the virtual laboratory, less so with \
         classic_recovery there"
            .into(),
        format!(
            "set as Linux has it: segments of {} bytes, initial window 10, delayed acknowledgements (2 segments, 40 \
             ms), minRTO 200 ms, windows up to {} bytes, and the constants of bic, cubic, hybla and scalable",
            network.mtu - 52,
            socket_payload_bytes(scenario)
        ),
        "a sender's card holds what TCP sends; in Linux it would wait in the socket (TCP small queues): where a \
         sender's own link is the narrowest, delay-based controls see a longer round trip here"
            .into(),
        "builders: offers and releases take no bytes, nothing is sent unasked, processors take no time".into(),
    ];
    if ns3.is_older_than(43) {
        notes.push(format!(
            "ns-3 {version} has errors in TCP that 3.41 to 3.43 corrected (its issues 987, 989, 990, 1001, 1085, \
             1126: segments wrongly taken for lost or not, cubic without its Reno-friendly region): where losses \
             decide, a newer one is the better opinion"
        ));
    }
    if traffic.control.credit {
        notes.push(
            "credit: the scheduler's rule and constants, without what it learns from losses and from slow sources"
                .into(),
        );
    }
    if traffic.classic_recovery {
        notes.push("classic_recovery changes nothing: it is what ns-3 has".into());
    }
    notes.extend(port_notes(scenario));
    notes
}

#[cfg(test)]
mod tests;
