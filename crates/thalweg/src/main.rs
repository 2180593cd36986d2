//! `thalweg`: detector data, from the buffer a device writes into, N-to-1 into built events on disk.
#![forbid(unsafe_code)]

mod bench;
mod calibrate;
mod cc;
mod demo;
mod doctor;
mod lab;
mod mount;
mod node;
mod outlet;
mod print;
mod pull;
mod push;
mod serve;
mod show;
mod signals;
mod stay;
mod supervise;

use clap::{Parser, Subcommand};
use std::io::IsTerminal;
use std::path::PathBuf;
use std::process::ExitCode;
use tracing_subscriber::EnvFilter;

/// Carries detector data from the buffer a device writes into, over shared memory or TCP, N-to-1 into built events on
/// disk, and proves what became of every fragment.
#[derive(Debug, Parser)]
#[command(version, max_term_width = 100)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
    /// Print one JSON object as the last line of standard output, instead of text for people
    #[arg(long)]
    json: bool,
    /// Say more about what is going on, on standard error; twice for everything
    #[arg(short, long, global = true, action = clap::ArgAction::Count)]
    verbose: u8,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Show the whole path at work: sources, one builder, a run on disk. Needs no file
    Demo(Json<demo::Options>),
    /// Run every node of a topology on this machine
    Run(Json<File>),
    /// Run one node of a topology: one of many hosts
    Node(Json<node::Options>),
    /// Find out what each builder's link carries, by asking for more until something is lost; kept for the runs that
    /// follow
    Calibrate(Json<calibrate::Options>),
    /// Check a topology: whether `run` would refuse it here, or `node` one of its nodes. Starts nothing
    Check(Json<demo::CheckOptions>),
    /// Examine this machine: what it can do, and what would lose data or cost speed. Changes nothing
    Doctor(Json<doctor::Options>),
    #[command(flatten)]
    Show(show::Command),
    /// Put runs on the network: a data server (HTTP), which also takes uploads
    Serve(Json<serve::Options>),
    /// Fetch a run, a file or a directory from a data server
    Pull(Json<pull::Options>),
    /// Show what a data server has as files, to any program (FUSE, read-only)
    Mount(Json<mount::Options>),
    /// Send a run or a file to a data server
    Push(Json<push::Options>),
    /// Measure any leg of the path: latency, bandwidth, memory, disks, pinning
    Bench(Box<bench::Options>),
    /// Congestion controls for the running kernel: what it has, load more, unload them
    #[command(subcommand)]
    Cc(cc::Command),
    /// Take a paper's measurements again on this machine, and say which of its findings hold
    Reproduce(bench::reproduce::Options),
    /// Rehearse a system before its hardware is bought: real TCP under virtual time, this host's namespaces, ns-3
    Lab(lab::Options),
}

#[derive(Debug, clap::Args)]
struct File {
    /// The topology
    file: PathBuf,
}

/// A command with `--json` among its own options, where people write it too. `bench`, whose `--json` names a file, is
/// why the program's own does not reach into every command.
#[derive(Debug, clap::Args)]
struct Json<T: clap::Args> {
    #[command(flatten)]
    options: T,
    /// Print one JSON object as the last line of standard output, instead of text for people
    #[arg(long)]
    json: bool,
}

impl Command {
    fn json(&self) -> bool {
        match self {
            Self::Demo(options) => options.json,
            Self::Run(options) => options.json,
            Self::Check(options) => options.json,
            Self::Node(options) => options.json,
            Self::Calibrate(options) => options.json,
            Self::Doctor(options) => options.json,
            Self::Serve(options) => options.json,
            Self::Pull(options) => options.json,
            Self::Mount(options) => options.json,
            Self::Push(options) => options.json,
            Self::Show(command) => command.json(),
            Self::Cc(command) => command.json(),
            Self::Bench(options) => options.json(),
            Self::Reproduce(options) => options.json(),
            Self::Lab(options) => options.json(),
        }
    }
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let level = match arguments.verbose {
        0 => "warn",
        1 => "info",
        _ => "debug",
    };
    // fuser warns of every question of the kernel's that a file system may leave unanswered.
    let level = format!("{level},fuser=error");
    let filter = EnvFilter::try_from_env("THALWEG_LOG").unwrap_or_else(|_| EnvFilter::new(level));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(outlet::Log)
        .with_ansi(std::io::stderr().is_terminal())
        .with_target(false)
        .init();

    let json = arguments.json || arguments.command.json();
    let result = match arguments.command {
        Command::Demo(Json { options, .. }) => demo::demo(&options, json, arguments.verbose),
        Command::Run(Json { options, .. }) => demo::run(&options.file, json, arguments.verbose),
        Command::Node(Json { options, .. }) => node::node(&options, json),
        Command::Calibrate(Json { options, .. }) => calibrate::calibrate(&options, json, arguments.verbose),
        Command::Check(Json { options, .. }) => demo::check(&options, json),
        Command::Doctor(Json { options, .. }) => doctor::doctor(&options, json),
        Command::Show(command) => show::show(command, json),
        Command::Cc(command) => cc::cc(command, json),
        Command::Serve(Json { options, .. }) => serve::serve(&options, json),
        Command::Pull(Json { options, .. }) => pull::pull(&options, json),
        Command::Mount(Json { options, .. }) => mount::mount(&options, json),
        Command::Push(Json { options, .. }) => push::push(&options, json),
        Command::Bench(options) => bench::bench(&options, json),
        Command::Reproduce(options) => bench::reproduce::reproduce(&options, json),
        Command::Lab(options) => lab::lab(&options, json),
    };
    let mut code = result.unwrap_or_else(|failure| {
        outlet::stderr().put(format!("thalweg: {}\n", thalweg_page::text::plain_lines(&failure.to_string())));
        if json {
            let error = print::json_line(&serde_json::json!({ "error": failure.to_string() }));
            outlet::stdout().put(error.unwrap_or_default());
        }
        ExitCode::from(failure.code())
    });
    match outlet::stdout().flush(outlet::RESULT_TIME) {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => {
            outlet::stderr().put(format!("thalweg: writing to standard output: {error}\n"));
            // What it was before says more, unless it was success.
            if code == ExitCode::SUCCESS {
                code = ExitCode::FAILURE;
            }
        }
        _ => {}
    }
    let _ = outlet::stderr().flush(outlet::LOG_TIME);
    code
}

/// Why a command could not do what it was asked.
#[derive(Debug)]
enum Failure {
    /// What was asked for cannot be: exit code 2.
    Usage(String),
    /// It went wrong while it was done: exit code 1.
    Broken(String),
    /// It went wrong because another node ended, which knows why: exit code 1.
    Consequence(String),
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

impl From<thalweg_node::TopologyError> for Failure {
    fn from(error: thalweg_node::TopologyError) -> Self {
        Self::usage(error)
    }
}
