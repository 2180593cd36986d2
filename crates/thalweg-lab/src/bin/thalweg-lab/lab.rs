//! `thalweg lab`: rehearse a system before its hardware is bought.

mod machine;
mod outputs;
pub(crate) mod sweep;

use crate::bench::{INTERRUPTED, command_line, stop_on_signals};
use outputs::{OutputPath, Outputs};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};
use thalweg::terminal::{Failure, Output, outlet, progress::Busy};
use thalweg_lab::kernel::{self, Kernel, Progress};
use thalweg_lab::scenario::{Assignment, Carrier, Control, InvalidValue, Measure, Network, Traffic, defaults};
use thalweg_lab::{LabError, Laboratory, Report, RunProgress, Scenario, render};
use thalweg_text::plot::Provenance;
use thalweg_text::{
    BitRate, ByteSize, FileFormat, format_bit_rate, format_seconds, format_volume, parse_duration, wrap_words,
};

#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// Run a scenario file
    Run(Run),
    /// Many senders, one receiver behind a switch port that cannot hold what they all send
    Incast(Incast),
    /// Every combination of a scenario's lists: tables, checks, pictures; goes on where it was interrupted
    Sweep(sweep::Options),
    /// Build the virtual machine's kernel now (about three minutes), not when it is first needed
    Build,
    /// A shell in the virtual machine, to look around
    Shell,
    /// A command in another machine: a whole PC with PCI devices behind an IOMMU, NICs for DPDK, Debian's kernel
    Machine(machine::Options),
    /// Program that runs in the virtual machine
    #[command(hide = true)]
    Guest {
        /// Directory that it shares with the outside
        directory: PathBuf,
    },
}

#[derive(Debug, clap::Args)]
struct Run {
    /// The scenario
    file: PathBuf,
    #[command(flatten)]
    how: How,
}

#[derive(Debug, clap::Args)]
struct How {
    /// Laboratory that runs it: virtual (real TCP under virtual time), host (namespaces of this machine, in real time,
    /// as root), ns3, model (this program's own event builder in a network of queues, simulated)
    #[arg(long, default_value = "virtual", value_name = "LABORATORY")]
    on: Laboratory,
    /// Give up after this time, by the clock on the wall
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    wall_limit: Option<Duration>,
    /// Exit with code 1 if the offered rate is not carried: less than 99 % of it, or an event incomplete. Needs an
    /// interval
    #[arg(long)]
    must_carry: bool,
    /// Write the results to this file, too; its ending gives the format: .svg (charts), .html (page), .json or .csv
    /// (data), .md (Markdown). A directory gets report.json, report.html and the output of each node. May be given
    /// several times
    #[arg(long, value_name = "FILE|DIRECTORY")]
    out: Vec<OutputPath>,
}

#[derive(Debug, clap::Args)]
struct Incast {
    /// Number of senders
    #[arg(long, default_value_t = 3)]
    senders: u32,
    /// The rate of every link
    #[arg(long, default_value_t = defaults::rate())]
    rate: BitRate,
    /// One way from sender to receiver
    #[arg(long, default_value = "0.1ms", value_parser = parse_duration)]
    delay: Duration,
    /// Size of the buffer of the receiver's switch port
    #[arg(long, default_value = "340kB")]
    buffer: ByteSize,
    /// Longest IP packet, in bytes
    #[arg(long, default_value_t = defaults::mtu())]
    mtu: u32,
    /// Fraction of packets lost on the way: 0.05 or 5%
    #[arg(long, default_value_t = 0.0, value_parser = parse_fraction)]
    loss: f64,
    /// Payload bytes in each fragment
    #[arg(long, default_value = "64KiB")]
    size: ByteSize,
    /// credit, credit+CONTROL, or a congestion control of TCP alone: bic, cubic, highspeed, htcp, hybla, lp, scalable,
    /// vegas, veno, westwood, reno, bbr, dctcp
    #[arg(long, default_value_t)]
    control: Control,
    /// Link that carries it: tcp; with credit only, udp, rdma or rdma-efe
    #[arg(long, value_name = "tcp|udp|rdma|rdma-efe", default_value = "tcp")]
    link: Carrier,
    /// From one event to the next; without it sources always have more
    #[arg(long, value_parser = parse_duration)]
    interval: Option<Duration>,
    /// One event at a time
    #[arg(long)]
    barrier: bool,
    /// Loss recovery without RACK and tail loss probes
    #[arg(long)]
    classic_recovery: bool,
    /// Other TCP flows through the receiver's port
    #[arg(long, default_value_t = 0)]
    cross: u32,
    /// Duration of the measurement, in seconds of the network's time
    #[arg(long, default_value_t = 1.0)]
    seconds: f64,
    /// Instead of measuring: the builder finds out what its link carries, as `thalweg calibrate` has it do
    #[arg(long)]
    calibrate: bool,
    #[command(flatten)]
    how: How,
}

/// Parses a fraction, which may be in percent.
fn parse_fraction(text: &str) -> Result<f64, String> {
    let (number, unit) = text.strip_suffix('%').map_or((text, 1.0), |percent| (percent.trim_end(), 0.01));
    let value: f64 = number.parse().map_err(|_| format!("'{text}' is no fraction: write 0.05 or 5%"))?;
    Ok(value * unit)
}

impl Incast {
    fn to_scenario(&self) -> Result<Scenario, InvalidValue> {
        let scenario = Scenario {
            network: Network {
                senders: self.senders,
                receivers: 1,
                rate: self.rate,
                delay: self.delay,
                loss: self.loss,
                buffer: self.buffer,
                mtu: self.mtu,
                ..Network::default()
            },
            traffic: Traffic {
                control: self.control,
                link: self.link,
                size: Some(self.size),
                sizes: None,
                interval: self.interval,
                burst: None,
                assignment: Assignment::Modulo,
                barrier: self.barrier,
                cross: self.cross,
                classic_recovery: self.classic_recovery,
            },
            measure: Measure { seconds: self.seconds, calibrate: self.calibrate, ..Measure::default() },
        };
        scenario.check_values().map(|()| scenario)
    }
}

pub(crate) fn run_lab(options: &Options, json: bool) -> Result<ExitCode, Failure> {
    match &options.command {
        Command::Run(run) => run_and_print(Scenario::load_file(&run.file).map_err(Failure::usage)?, &run.how, json),
        Command::Incast(incast) => run_and_print(incast.to_scenario().map_err(Failure::usage)?, &incast.how, json),
        Command::Sweep(options) => sweep::run_sweep(options, json),
        Command::Build => {
            let path = with_kernel_progress(|progress| Kernel::build_or_cached(progress))
                .map_err(failure)?
                .path()
                .display()
                .to_string();
            let mut output = Output::new();
            match json {
                true => output.json(&serde_json::json!({ "kernel": path }))?,
                false => output.text(&format!("{path}\n"))?,
            }
            output.flush()?;
            Ok(ExitCode::SUCCESS)
        }
        Command::Shell => {
            let kernel = with_kernel_progress(|progress| Kernel::build_or_cached(progress)).map_err(failure)?;
            kernel::run_shell(&kernel, SHELL_MEMORY, Path::new(".")).map_err(failure)?;
            Ok(ExitCode::SUCCESS)
        }
        Command::Machine(options) => machine::run_in_machine(options, json),
        Command::Guest { directory } => {
            thalweg_lab::run_guest(directory).map_err(failure)?;
            Ok(ExitCode::SUCCESS)
        }
    }
}

const SHELL_MEMORY: ByteSize = ByteSize(1 << 30);

fn run_and_print(mut scenario: Scenario, how: &How, json: bool) -> Result<ExitCode, Failure> {
    if let Some(limit) = how.wall_limit {
        scenario.measure.wall_limit = limit;
    }
    if how.must_carry && scenario.traffic.interval.is_none() {
        return Err(Failure::Usage(NOTHING_OFFERED.into()));
    }
    let outputs = Outputs::open_all(&how.out)?;
    let stop = stop_on_signals()?.shared_flag();
    let kept;
    let directory = match &outputs.directory {
        Some(out) => {
            std::fs::create_dir_all(out).map_err(|error| Failure::Broken(format!("{}: {error}", out.display())))?;
            out.clone()
        }
        None => {
            kept = tempfile::tempdir().map_err(Failure::broken)?;
            kept.path().to_owned()
        }
    };
    let began = rfc3339_now();
    let report = with_scenario_progress(&directory, |progress| {
        thalweg_lab::run_scenario(&scenario, how.on, &directory, &stop, progress)
    });
    let mut report = match report {
        Err(LabError::Interrupted) => {
            outlet::stderr().put_text("interrupted: there is no result\n");
            return Ok(ExitCode::from(INTERRUPTED));
        }
        other => other.map_err(failure)?,
    };
    report.provenance = machine_provenance(&render::report_subject(&report), &began);
    let mut output = Output::new();
    match json {
        true => output.json(&report)?,
        false => output.text(&report_text(&report))?,
    }
    if let Some(out) = &outputs.directory {
        for (name, format) in [("report.html", FileFormat::Html), ("report.json", FileFormat::Json)] {
            sweep::write_report(out, name, &report_file(&report, format)?)?;
        }
    }
    outputs.write_files(|format| report_file(&report, format))?;
    output.flush()?;
    let carried = report.verdict.as_ref().and_then(|verdict| verdict.carries_offered);
    Ok(if how.must_carry && carried != Some(true) { ExitCode::from(1) } else { ExitCode::SUCCESS })
}

/// Error of `--must-carry` without a rate that is offered.
const NOTHING_OFFERED: &str = "--must-carry: the scenario offers no rate that could be carried, as its sources always \
    have more: set `interval`, the time from one event to the next";

/// Returns the current time as RFC 3339.
pub(crate) fn rfc3339_now() -> String {
    humantime::format_rfc3339_seconds(std::time::SystemTime::now()).to_string()
}

/// Returns the origin of figures that were measured on this machine, from this time on.
pub(crate) fn machine_provenance(subject: &str, began: &str) -> Provenance {
    thalweg_bench::Host::probe_this_machine(None).provenance(subject, began, &command_line())
}

/// Returns a report in the format of a file.
fn report_file(report: &Report, format: FileFormat) -> Result<String, Failure> {
    match format {
        FileFormat::Svg => render::report_svg(report).map_err(Failure::broken),
        FileFormat::Html => render::report_page(report).map_err(Failure::broken),
        FileFormat::Csv => Ok(render::report_csv(report)),
        FileFormat::Markdown => Ok(render::report_markdown(report)),
        FileFormat::Json => serde_json::to_string_pretty(report).map(|text| text + "\n").map_err(Failure::broken),
    }
}

/// Returns the report for people: the main figures, each receiver if there are several, and remarks.
fn report_text(report: &Report) -> String {
    let sentence = report.verdict.as_ref().map_or("", |verdict| &verdict.sentence);
    let mut out = wrap_words("", sentence);
    for warning in &report.warnings {
        out.push_str(&wrap_words("  warning: ", &warning.text));
    }
    out.push_str(&format!("\n{}\n\n", render::scenario_headline(report)));
    let summary = render::summary_rows(report);
    let width = summary.iter().filter_map(|row| row.first()).map(String::len).max().unwrap_or(0);
    for row in &summary {
        if let [name, value] = &row[..] {
            out.push_str(&format!("  {name:width$}  {value}\n"));
        }
    }
    if report.receivers.len() > 1 {
        for one in &report.receivers {
            let rate = format_bit_rate(one.goodput_bits_per_second);
            out.push_str(&format!("  {:width$}  {rate}\n", one.name));
        }
    }
    out.push('\n');
    out.extend(report.notes.iter().map(|note| wrap_words("  note: ", note)));
    out
}

/// Runs an action that may need a kernel built first, and shows the progress of the build.
fn with_kernel_progress<T>(act: impl FnOnce(&mut dyn FnMut(Progress)) -> T) -> T {
    let busy = Busy::new("laboratory".into());
    act(&mut |progress| busy.now(build_progress_text(progress)))
}

fn build_progress_text(progress: Progress) -> String {
    match progress {
        Progress::Waiting => "waiting for another process that builds the kernel".into(),
        Progress::Unpacking => "building the kernel, once: unpacking its source".into(),
        Progress::Compiling { done, of } => format!("building the kernel, once: {done} of {of} files"),
    }
}

/// Runs a scenario in a directory as `kernel` runs an action, and also shows the progress of the scenario.
fn with_scenario_progress<T>(directory: &Path, act: impl FnOnce(&mut dyn FnMut(Progress)) -> T) -> T {
    let busy = Busy::new("laboratory: creating the network".into());
    let (over, is_over) = channel::<()>();
    thread::scope(|scope| {
        let busy = &busy;
        scope.spawn(move || {
            // Files of an earlier run in the directory do not belong to this one.
            let earlier = RunProgress::read_latest(directory);
            let mut began = None;
            while is_over.recv_timeout(LOOK) == Err(RecvTimeoutError::Timeout) {
                if let Some(far) =
                    RunProgress::read_latest(directory).filter(|far| Some(*far) != earlier && far.done > 0.0)
                {
                    let (at, before) = *began.get_or_insert((Instant::now(), far.done));
                    busy.now(scenario_progress_text(&far, at.elapsed(), before));
                }
            }
        });
        let result = act(&mut |progress| busy.now(build_progress_text(progress)));
        drop(over);
        result
    })
}

/// Returns the progress of a scenario as text, and the remaining time by this host's clock.
fn scenario_progress_text(far: &RunProgress, since: Duration, before: f64) -> String {
    let RunProgress { done, bytes, bits_per_second } = far;
    let left = match done - before {
        so_far if so_far > 0.0 => {
            format!(", {} left", format_seconds((1.0 - done).max(0.0) * since.as_secs_f64() / so_far))
        }
        _ => String::new(),
    };
    let rate = format_bit_rate(*bits_per_second);
    format!("laboratory: {:.0} %, {}, {rate}{left}", 100.0 * done, format_volume(*bytes))
}

/// Time from one look at the progress to the next.
const LOOK: Duration = Duration::from_millis(200);

/// Returns the failure of a command whose laboratory failed.
pub(crate) fn failure(error: impl Into<LabError>) -> Failure {
    let error = error.into();
    if error.is_usage() { Failure::usage(error) } else { Failure::broken(error) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fraction_may_be_in_percent() {
        assert_eq!(["0.05", "5%", "5 %"].map(parse_fraction), [Ok(0.05), Ok(0.05), Ok(0.05)]);
        assert_eq!(parse_fraction("five").unwrap_err(), "'five' is no fraction: write 0.05 or 5%");
    }
}
