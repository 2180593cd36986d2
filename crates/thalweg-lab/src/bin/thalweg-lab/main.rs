//! The instruments of Thalweg: `bench`, `lab`, `reproduce` and `cc`, which the program `thalweg` runs by these names,
//! too.
#![forbid(unsafe_code)]

mod bench;
mod camera;
#[cfg(feature = "congestion-controls")]
mod cc;
mod lab;
mod manual;
mod reproduce;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};
use std::process::ExitCode;
use std::sync::LazyLock;
use thalweg::terminal::{Failure, GlobalOptions, generate, program_name, run_program, version_text};

/// Measures the legs of the path of detector data, and rehearses a system before its hardware is bought.
#[derive(Debug, Parser)]
#[command(name = "thalweg-lab", version = VERSION.as_str(), max_term_width = 80)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
    #[command(flatten)]
    global: GlobalOptions,
}

/// Version text, with the features that the program was built without.
static VERSION: LazyLock<String> = LazyLock::new(|| match cfg!(feature = "congestion-controls") {
    true => version_text(),
    false => format!("{}\nbuilt without congestion controls", version_text()),
});

#[derive(Debug, Subcommand)]
enum Command {
    /// Measure any leg of the path: latency, bandwidth, memory, disks, pinning
    Bench(Box<bench::Options>),
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
    Reproduce(reproduce::Options),
    /// Rehearse a system before its hardware is bought: real TCP under virtual time, this host's namespaces, ns-3
    Lab(lab::Options),
    /// Emulate GigE Vision cameras that send the images of files, to rehearse a readout without hardware
    Camera(camera::Options),
    /// Write man pages and shell completions
    #[command(hide = true)]
    Generate(generate::Options),
}

fn main() -> ExitCode {
    thalweg::register_kinds();
    let matches = Arguments::command().bin_name(program_name("thalweg-lab")).get_matches();
    let Arguments { command, global } = Arguments::from_arg_matches(&matches).unwrap_or_else(|error| error.exit());
    let json = global.json;
    run_program(global, || execute(command, json))
}

fn execute(command: Command, json: bool) -> Result<ExitCode, Failure> {
    match command {
        Command::Bench(options) => bench::run_bench(&options, json),
        #[cfg(feature = "congestion-controls")]
        Command::Cc(command) => cc::run_cc(command, json),
        #[cfg(not(feature = "congestion-controls"))]
        Command::Cc { words: _ } => Err(Failure::Usage(
            "this thalweg was built without congestion controls: build it on a machine with clang, libelf and zlib"
                .into(),
        )),
        Command::Reproduce(options) => reproduce::run_reproduce(&options, json),
        Command::Lab(options) => lab::run_lab(&options, json),
        Command::Camera(options) => camera::run_cameras(&options, json),
        Command::Generate(options) => generate::generate_package_files(Arguments::command(), &manual::MANUAL, &options),
    }
}
