//! The instruments, `bench`, `lab`, `reproduce` and `cc`: commands of a program of their own, `thalweg-lab`, which is
//! beside this one.

use crate::terminal::Failure;
use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, ExitCode};

/// Name of the program of the instruments.
const SIBLING: &str = "thalweg-lab";
const COMMANDS: [&str; 4] = ["bench", "lab", "reproduce", "cc"];

/// Arguments of an instrument, which that program reads.
#[derive(Debug, clap::Args)]
#[command(disable_help_flag = true, after_help = "A command of the program thalweg-lab: see thalweg-lab(1).")]
pub(crate) struct Words {
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "ARGUMENTS")]
    _words: Vec<OsString>,
}

/// Returns true if the arguments of this process are `help` and the name of an instrument.
pub(crate) fn help_is_asked_for() -> bool {
    let mut words = std::env::args_os().skip(1);
    words.next().is_some_and(|word| word == "help")
        && words.next().is_some_and(|word| COMMANDS.iter().any(|command| word == *command))
}

/// Becomes the program of the instruments, with the arguments of this process. Returns only if that program cannot be
/// started.
pub(crate) fn run_sibling() -> Result<ExitCode, Failure> {
    let program = sibling();
    let mut words = std::env::args_os();
    let name = words.next().unwrap_or_else(|| "thalweg".into());
    let error = Command::new(&program).arg0(name).args(words).exec();
    Err(Failure::Usage(format!(
        "{}: {error}; the instruments (bench, lab, reproduce, cc) are the program {SIBLING}, which is installed beside \
         thalweg, and built with `cargo build -p {SIBLING}`",
        program.display()
    )))
}

/// Returns the path of the program of the instruments: beside this program, or else as `PATH` has it.
fn sibling() -> PathBuf {
    let here = std::env::current_exe().ok().map(|program| program.with_file_name(SIBLING));
    here.filter(|program| program.exists()).unwrap_or_else(|| SIBLING.into())
}
