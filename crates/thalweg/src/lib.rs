//! Commands of the program `thalweg`: detector data, from the buffer a device writes into, N-to-1 into built events on
//! disk.
//!
//! A laboratory's own program registers further kinds of devices, and calls [`main`]: see `examples/my-digitizer`.
#![forbid(unsafe_code)]

mod calibrate;
mod capture;
mod check;
mod controlled;
mod demo;
mod devices;
mod doctor;
mod export;
mod live;
mod manual;
mod mount;
mod node;
pub mod preflight;
mod print;
mod pull;
mod push;
mod rdma;
mod run_options;
mod serve;
mod show;
mod siblings;
mod source;
mod stay;
mod supervise;
pub mod terminal;
mod watchdog;

use clap::{CommandFactory, Parser, Subcommand};
use std::process::ExitCode;
use std::sync::LazyLock;
use terminal::{Failure, GlobalOptions, generate, run_program, version_text};

/// Carries detector data from the buffer a device writes into, N-to-1 into built events on disk, and proves what became
/// of every fragment.
#[derive(Debug, Parser)]
#[command(version = VERSION.as_str(), max_term_width = 80, help_template = HELP)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
    #[command(flatten)]
    global: GlobalOptions,
}

/// Help of the whole program: all commands in groups, on one screen of 80 × 24. `thalweg help COMMAND` shows more.
const HELP: &str = "\
{about}

{usage-heading} {usage}

Look before, and take data
  check      a topology                  doctor     this machine
  devices    that are here               calibrate  what the links carry
  demo       try the whole path          run        all nodes of a topology
  node       one of many hosts           source     from a pipe or serial port
  control    run control, with a page    ctl        commands to run control
  top        run control in a terminal   capture    packets into a pcapng file
Keep runs
  ls         in a directory              info       what a run is
  verify     read everything             cat        events and fragments
  salvage    a damaged run               serve      runs on the network
  pull       from a data server          push       to a data server
  mount      a data server as files      export     to NeXus, Parquet, ROOT, ...
Measure and rehearse
  bench      any leg of the path         lab        a system before it is bought
  reproduce  a paper's measurements      rdma       verbs programs, no hardware
  cc         congestion controls         help       of a command: help COMMAND

Options: --json, -v, -q, --color WHEN, -h, -V: thalweg help run says more
";

static VERSION: LazyLock<String> = LazyLock::new(version_text);

#[derive(Debug, Subcommand)]
enum Command {
    /// Run sources and a builder on this machine, without any configuration, and record a run
    Demo(demo::Options),
    /// Run every node of a topology on this machine
    Run(demo::RunFile),
    /// Run one node of a topology: one of many hosts
    Node(node::Options),
    /// Send records from a pipe or a serial port to a run
    Source(source::Options),
    /// Run control of an experiment: a service with a page, an API and commands, which the nodes connect to
    Control(siblings::Words),
    /// Command a run control service, or ask it
    Ctl(siblings::Words),
    /// Show the status of a run control service in a terminal, with keys for its commands
    Top(siblings::Words),
    /// Measure the capacity of each builder's link, by increasing requests until data are lost, and keep it for later
    /// runs
    Calibrate(calibrate::Options),
    /// Check whether `run`, or `node` for one node, would accept a topology on this machine, without starting a run
    Check(check::CheckOptions),
    /// List the reachable devices: cameras, video devices, serial ports, PCI functions
    Devices(devices::Options),
    /// Examine this machine: capabilities, and conditions that would lose data or cost speed. Changes nothing
    Doctor(doctor::Options),
    #[command(flatten)]
    Show(show::Command),
    /// Serve runs over HTTP, optionally with uploads
    Serve(serve::Options),
    /// Fetch a run, a file or a directory from a data server
    Pull(pull::Options),
    /// Mount a data server as a read-only file system (FUSE)
    Mount(mount::Options),
    /// Send a run or a file to a data server
    Push(push::Options),
    /// Write a run as a file of another format: NeXus (HDF5), SigMF, Parquet, Zarr, ROOT or CSV
    Export(export::Options),
    /// Measure any leg of the path: latency, bandwidth, memory, disks, pinning
    Bench(siblings::Words),
    /// Capture the packets of an interface into a pcapng file at the speed of the disk
    Capture(capture::Options),
    /// Congestion controls for the running kernel: what it has, load more, unload them
    Cc(siblings::Words),
    /// Take a paper's measurements again on this machine, and say which of its findings hold
    Reproduce(siblings::Words),
    /// Rehearse a system before its hardware is bought: real TCP under virtual time, this host's namespaces, ns-3
    Lab(siblings::Words),
    /// Run programs that use RDMA verbs (perftest, UCX, ...) on a machine without RDMA hardware
    #[command(subcommand)]
    Rdma(rdma::Command),
    /// Write man pages and shell completions
    #[command(hide = true)]
    Generate(generate::Options),
}

/// Runs the command that the program's arguments name, and returns its exit code: 0, 1 (the command failed) or 2 (the
/// request is impossible).
pub fn main() -> ExitCode {
    register_kinds();
    if let Some(command) = siblings::help_is_asked_for() {
        return run_program(GlobalOptions::default(), || siblings::run_sibling(&command));
    }
    let Arguments { command, global } = Arguments::parse();
    run_program(global.clone(), || execute_command(command, &global))
}

/// Registers the kinds of links and devices, before anything reads an address or a topology.
pub fn register_kinds() {
    thalweg_dpdk::register_link();
    thalweg_rdma_link::register_links();
    thalweg_drivers::register_kinds();
    thalweg_gige::register_kinds();
    thalweg_pci::register_kinds();
}

fn execute_command(command: Command, global: &GlobalOptions) -> Result<ExitCode, Failure> {
    let &GlobalOptions { json, verbose, quiet, .. } = global;
    match command {
        Command::Demo(options) => demo::run_demo(&options, json, verbose),
        Command::Run(options) => demo::run_topology_file(&options, json, verbose),
        Command::Node(options) => node::run_node_command(&options, json),
        Command::Source(options) => source::run_source(options, json),
        Command::Calibrate(options) => calibrate::run_calibrate(&options, json),
        Command::Check(options) => check::run_check(&options, json),
        Command::Devices(options) => devices::list_devices(&options, json),
        Command::Doctor(options) => doctor::run_doctor(&options, json),
        Command::Show(command) => show::run_show_command(command, json),
        Command::Capture(options) => capture::run_capture(options, json),
        Command::Serve(options) => serve::run_serve(&options, json),
        Command::Pull(options) => pull::run_pull(&options, json),
        Command::Mount(options) => mount::run_mount(&options, json),
        Command::Push(options) => push::run_push(&options, json),
        Command::Export(options) => export::run_export(&options, json, quiet),
        Command::Rdma(command) => rdma::execute(command, global),
        Command::Bench(_) | Command::Cc(_) | Command::Reproduce(_) | Command::Lab(_) => siblings::run_sibling("lab"),
        Command::Control(_) | Command::Ctl(_) | Command::Top(_) => siblings::run_sibling("control"),
        Command::Generate(options) => generate::generate_package_files(Arguments::command(), &manual::MANUAL, &options),
    }
}

impl From<thalweg_node::NodeError> for Failure {
    fn from(error: thalweg_node::NodeError) -> Self {
        match error.to_string() {
            text if error.is_usage() => Self::Usage(text),
            text if error.is_consequence() => Self::Consequence(text),
            text => Self::Broken(text),
        }
    }
}

impl From<crate::preflight::PreflightError> for Failure {
    fn from(error: crate::preflight::PreflightError) -> Self {
        match error.to_string() {
            text if error.is_usage() => Self::Usage(text),
            text => Self::Broken(text),
        }
    }
}

impl From<thalweg_node::TopologyError> for Failure {
    fn from(error: thalweg_node::TopologyError) -> Self {
        Self::usage(error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the lines of the sources of this program's crates, without comments and tests, each with its file.
    fn source_lines() -> Vec<(String, String)> {
        // The instruments are a program beside, with options of their own.
        const OTHERS: [&str; 6] = [
            "thalweg-lab",
            "thalweg-bench",
            "thalweg-control",
            "thalweg-world",
            "thalweg-testing",
            "thalweg-link-conformance",
        ];
        let mut directories = vec![std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("..")];
        let mut lines = Vec::new();
        while let Some(directory) = directories.pop() {
            for path in std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path()) {
                let name = path.file_name().unwrap().to_str().unwrap().to_owned();
                if path.is_dir() && !OTHERS.contains(&&name[..]) && !["tests", "examples"].contains(&&name[..]) {
                    directories.push(path);
                } else if name.ends_with(".rs") && !["tests.rs", "build.rs"].contains(&&name[..]) {
                    let text = std::fs::read_to_string(&path).unwrap();
                    let code = text.split("#[cfg(test)]").next().unwrap().lines().map(str::trim);
                    let code = code.filter(|line| !line.starts_with("//"));
                    lines.extend(code.map(|line| (path.display().to_string(), line.to_owned())));
                }
            }
        }
        lines
    }

    /// Returns the words of a text that follow `before`, up to a character that is not of a name.
    fn words_after<'a>(text: &'a str, before: &'a str) -> impl Iterator<Item = &'a str> {
        text.match_indices(before).filter_map(move |(at, _)| {
            let begins = text[..at].chars().next_back().is_none_or(|char| !char.is_alphanumeric() && char != '-');
            let word = &text[at + before.len()..];
            let end = word.find(|char: char| !char.is_ascii_lowercase() && char != '-').unwrap_or(word.len());
            (begins && end > 0).then_some(&word[..end])
        })
    }

    /// Returns the long options of a command and of all below it.
    fn long_options(command: &clap::Command) -> Vec<String> {
        let own = command.get_arguments().filter_map(|option| option.get_long().map(str::to_owned));
        own.chain(command.get_subcommands().flat_map(long_options)).collect()
    }

    #[test]
    fn each_command_and_option_that_a_message_advises_exists() {
        // Programs other than this one, whose options a line may name.
        const OTHER_PROGRAMS: [&str; 8] =
            ["systemctl", "prlimit", "v4l2-ctl", "devbind", "unshare", "git_version", "arguments.push", "command.arg"];
        let program = Arguments::command();
        let commands: Vec<&str> = program.get_subcommands().map(clap::Command::get_name).chain(["help"]).collect();
        let mut known = long_options(&program);
        known.extend(["help", "version"].map(str::to_owned));
        let lines = source_lines();
        let (mut advised, mut wrong) = (0, Vec::new());
        for (file, line) in &lines {
            let code_of_others =
                OTHER_PROGRAMS.iter().any(|other| line.contains(other)) || file.contains("dpdk/src/environment.rs");
            let text = line.find('"').map_or("", |begins| &line[begins..]);
            let text = if text.is_empty() && line.contains('`') { line } else { text };
            for command in words_after(text, "`thalweg ").filter(|command| !command.starts_with('-')) {
                advised += 1;
                if !commands.contains(&command) {
                    wrong.push(format!("{file}: there is no command {command}: {line}"));
                }
            }
            for option in words_after(text, "--").filter(|_| !code_of_others) {
                advised += 1;
                if !known.iter().any(|known| known == option) {
                    wrong.push(format!("{file}: there is no option --{option}: {line}"));
                }
            }
        }
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
        assert!(advised > 60, "only {advised} found in {} lines", lines.len());
    }

    #[test]
    fn the_help_has_all_commands_and_fits_a_screen() {
        let mut program = Arguments::command().term_width(80);
        let help = program.render_help().to_string();
        assert!(help.lines().count() <= 24 && help.lines().all(|line| line.chars().count() <= 80), "{help}");
        let column =
            |line: &str, at: usize| line.get(at..).and_then(|rest| rest.split_whitespace().next().map(str::to_owned));
        let rows = help.lines().filter(|line| line.starts_with("  "));
        let mut shown: Vec<String> = rows.flat_map(|row| [column(row, 0), column(row, 41)]).flatten().collect();
        let commands = program.get_subcommands().filter(|command| !command.is_hide_set());
        let mut there: Vec<String> = commands.map(|command| command.get_name().to_owned()).collect();
        shown.sort_unstable();
        there.sort_unstable();
        assert_eq!(shown, there, "{help}");
    }
}
