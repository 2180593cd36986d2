//! Commands of the program `thalweg`: detector data, from the buffer a device writes into, N-to-1 into built events on
//! disk.
//!
//! A laboratory's own program registers further kinds of devices, and calls [`main`]: see `examples/my-digitizer`.
#![forbid(unsafe_code)]

mod bench;
mod calibrate;
mod capture;
#[cfg(feature = "congestion-controls")]
mod cc;
mod check;
mod demo;
mod devices;
mod doctor;
mod generate;
mod lab;
mod live;
mod mount;
mod node;
mod outlet;
mod print;
mod pull;
mod push;
mod serve;
mod show;
mod signals;
mod source;
mod stay;
mod supervise;

use clap::{Parser, Subcommand};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::{Arc, LazyLock};
use tracing_subscriber::EnvFilter;

/// Carries detector data from the buffer a device writes into, N-to-1 into built events on disk, and proves what became
/// of every fragment.
#[derive(Debug, Parser)]
#[command(version = VERSION.as_str(), max_term_width = 80, help_template = HELP)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
    /// Print one JSON object as the last line of standard output, instead of text for people
    #[arg(long, global = true)]
    json: bool,
    /// Say more about what is going on, on standard error; twice for everything
    #[arg(short, long, global = true, action = clap::ArgAction::Count)]
    verbose: u8,
    /// Say nothing on standard error but errors: neither how far it is nor what it warns of
    #[arg(short, long, global = true, conflicts_with = "verbose")]
    quiet: bool,
    #[command(flatten)]
    color: colorchoice_clap::Color,
}

/// Help of the whole program: all commands in groups, on one screen of 80 × 24. `thalweg help COMMAND` shows more.
const HELP: &str = "\
{about}

{usage-heading} {usage}

Take data
  demo       the whole path at work      run        all nodes of a topology
  node       one of many hosts           source     from a pipe or serial port
  calibrate  what the links carry        capture    packets into a pcapng file
Look before
  check      a topology                  doctor     this machine
  devices    that are here               cc         congestion controls
Keep runs
  ls         in a directory              info       what a run is
  verify     read everything             cat        events and fragments
  salvage    what is whole of it         serve      runs on the network
  pull       from a data server          push       to a data server
  mount      a data server as files
Measure and rehearse
  bench      any leg of the path         lab        a system before it is bought
  reproduce  a paper's measurements      help       of a command: help COMMAND

Options: --json, -v, -q, --color WHEN, -h, -V: thalweg help run says more
";

/// Version text: the release, the commit it was built from if known, and the features it was built without.
static VERSION: LazyLock<String> = LazyLock::new(|| {
    let commit = git_version::git_version!(args = ["--always", "--dirty=-modified"], fallback = "unknown commit");
    let without = match cfg!(feature = "congestion-controls") {
        true => "",
        false => "\nbuilt without congestion controls",
    };
    let optimised = if cfg!(debug_assertions) { ", not optimised" } else { "" };
    format!("{} ({commit}{optimised}){without}", env!("CARGO_PKG_VERSION"))
});

#[derive(Debug, Subcommand)]
enum Command {
    /// Show the whole path at work: sources, one builder, a run on disk. Needs no file
    Demo(demo::Options),
    /// Run every node of a topology on this machine
    Run(File),
    /// Run one node of a topology: one of many hosts
    Node(node::Options),
    /// Feed a run with what a program writes into a pipe, or an instrument to a serial port
    Source(source::Options),
    /// Find out what each builder's link carries, by asking for more until something is lost; kept for the runs that
    /// follow
    Calibrate(calibrate::Options),
    /// Check a topology: whether `run` would refuse it here, or `node` one of its nodes. Starts no run
    Check(check::CheckOptions),
    /// List the devices that are here and reachable: cameras, video nodes, serial ports, PCI functions
    Devices(devices::Options),
    /// Examine this machine: what it can do, and what would lose data or cost speed. Changes nothing
    Doctor(doctor::Options),
    #[command(flatten)]
    Show(show::Command),
    /// Put runs on the network: a data server (HTTP), which also takes uploads
    Serve(serve::Options),
    /// Fetch a run, a file or a directory from a data server
    Pull(pull::Options),
    /// Show what a data server has as files, to any program (FUSE, read-only)
    Mount(mount::Options),
    /// Send a run or a file to a data server
    Push(push::Options),
    /// Measure any leg of the path: latency, bandwidth, memory, disks, pinning
    Bench(Box<bench::Options>),
    /// Write the packets of an interface into a pcapng file, as fast as the disk takes them
    Capture(capture::Options),
    /// Congestion controls for the running kernel: what it has, load more, unload them
    #[cfg(feature = "congestion-controls")]
    #[command(subcommand)]
    Cc(cc::Command),
    /// Not in this build
    #[cfg(not(feature = "congestion-controls"))]
    #[command(hide = true)]
    Cc {
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        words: Vec<std::ffi::OsString>,
    },
    /// Take a paper's measurements again on this machine, and say which of its findings hold
    Reproduce(bench::reproduce::Options),
    /// Rehearse a system before its hardware is bought: real TCP under virtual time, this host's namespaces, ns-3
    Lab(lab::Options),
    /// Write man pages and shell completions
    #[command(hide = true)]
    Generate(generate::Options),
}

#[derive(Debug, clap::Args)]
struct File {
    /// The topology
    file: PathBuf,
}

/// Runs the command that the program's arguments name, and returns its exit code: 0, 1 (the command failed) or 2 (the
/// request is impossible).
pub fn main() -> ExitCode {
    register_kinds();
    // A write beyond a limit (`ulimit -f`, a file system's) returns an error, and does not end the process.
    let _ = signal_hook::flag::register(signal_hook::consts::SIGXFSZ, Arc::default());
    let arguments = Arguments::parse();
    live::set_up(arguments.color, arguments.quiet);
    begin_log(&arguments);
    let json = arguments.json;
    let result = execute(arguments.command, json, arguments.verbose);
    let mut code = result.unwrap_or_else(|failure| {
        // If both go to one terminal, the message comes after earlier output.
        let _ = outlet::stdout().flush(outlet::LOG_TIME);
        outlet::stderr().put(live::said(&failure.to_string()));
        if json {
            let error = print::json_line(&serde_json::json!({ "error": failure.to_string() }));
            outlet::stdout().put(error.unwrap_or_default());
        }
        ExitCode::from(failure.code())
    });
    match outlet::stdout().flush(outlet::RESULT_TIME) {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => {
            outlet::stderr().put(format!("thalweg: writing to standard output: {error}\n"));
            // The earlier exit code tells more, unless it is success.
            if code == ExitCode::SUCCESS {
                code = ExitCode::FAILURE;
            }
        }
        _ => {}
    }
    let _ = outlet::stderr().flush(outlet::LOG_TIME);
    code
}

/// Registers the kinds of links and devices, before anything reads an address or a topology.
fn register_kinds() {
    thalweg_dpdk::register();
    thalweg_instrument::register();
    thalweg_gige::register();
    thalweg_pci::register();
    thalweg_dev::register();
    thalweg_features::register();
}

/// Starts writing the log to standard error.
fn begin_log(arguments: &Arguments) {
    let level = match arguments.verbose {
        0 if arguments.quiet => "error",
        0 => "warn",
        1 => "info",
        _ => "debug",
    };
    // fuser warns of every request of the kernel that a file system may leave unanswered.
    // A problem with a server's certificate is reported once, with the remedy.
    let level = format!("{level},fuser=error,rustls_platform_verifier=off");
    let filter = EnvFilter::try_from_env("THALWEG_LOG").unwrap_or_else(|_| EnvFilter::new(level));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(outlet::Log)
        .with_ansi(live::stderr_is_coloured())
        .with_target(false)
        .init();
}

fn execute(command: Command, json: bool, verbose: u8) -> Result<ExitCode, Failure> {
    match command {
        Command::Demo(options) => demo::demo(&options, json, verbose),
        Command::Run(options) => demo::run(&options.file, json, verbose),
        Command::Node(options) => node::node(&options, json),
        Command::Source(options) => source::source(options, json),
        Command::Calibrate(options) => calibrate::calibrate(&options, json, verbose),
        Command::Check(options) => check::check(&options, json),
        Command::Devices(options) => devices::devices(&options, json),
        Command::Doctor(options) => doctor::doctor(&options, json),
        Command::Show(command) => show::show(command, json),
        Command::Capture(options) => capture::capture(options, json),
        #[cfg(feature = "congestion-controls")]
        Command::Cc(command) => cc::cc(command, json),
        #[cfg(not(feature = "congestion-controls"))]
        Command::Cc { words: _ } => Err(Failure::Usage(
            "this thalweg was built without congestion controls: build it where clang, libelf and zlib are".into(),
        )),
        Command::Serve(options) => serve::serve(&options, json),
        Command::Pull(options) => pull::pull(&options, json),
        Command::Mount(options) => mount::mount(&options, json),
        Command::Push(options) => push::push(&options, json),
        Command::Bench(options) => bench::bench(&options, json),
        Command::Reproduce(options) => bench::reproduce::reproduce(&options, json),
        Command::Lab(options) => lab::lab(&options, json),
        Command::Generate(options) => generate::generate(&options),
    }
}

/// Reason why a command could not do what it was asked to do.
#[derive(Debug)]
enum Failure {
    /// The request is impossible: exit code 2.
    Usage(String),
    /// The command failed while it ran: exit code 1.
    Broken(String),
    /// The command failed because another node ended, which knows the reason: exit code 1.
    Consequence(String),
}

/// Starts a thread.
///
/// # Errors
/// Fails if the system has no room for another thread.
fn start_thread(work: impl FnOnce() + Send + 'static) -> Result<(), Failure> {
    let started = std::thread::Builder::new().spawn(work);
    started
        .map(drop)
        .map_err(|error| Failure::broken(format!("starting a thread: {error} (see pids.max and ulimit -u)")))
}

impl Failure {
    fn code(&self) -> u8 {
        match self {
            Self::Usage(_) => 2,
            Self::Broken(_) | Self::Consequence(_) => 1,
        }
    }

    fn usage(error: impl std::fmt::Display) -> Self {
        Self::Usage(error.to_string())
    }

    fn broken(error: impl std::fmt::Display) -> Self {
        Self::Broken(error.to_string())
    }
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (Self::Usage(text) | Self::Broken(text) | Self::Consequence(text)) = self;
        f.write_str(text)
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

impl From<thalweg_preflight::PreflightError> for Failure {
    fn from(error: thalweg_preflight::PreflightError) -> Self {
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
    use clap::CommandFactory;

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
