//! Commands of the programs beside this one: the instruments (`thalweg-lab`) and run control (`thalweg-control`).

use crate::terminal::Failure;
use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, ExitCode};

/// A program beside this one, and its commands.
#[derive(Debug)]
struct Sibling {
    program: &'static str,
    commands: &'static [&'static str],
}

const SIBLINGS: [Sibling; 2] = [
    Sibling { program: "thalweg-lab", commands: &["bench", "lab", "reproduce", "cc"] },
    Sibling { program: "thalweg-control", commands: &["control", "ctl", "top"] },
];

/// Arguments of a command that another program reads.
#[derive(Debug, clap::Args)]
#[command(
    disable_help_flag = true,
    after_help = "A command of a program beside this one: see thalweg-lab(1) and thalweg-control(1)."
)]
pub(crate) struct Words {
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "ARGUMENTS")]
    _words: Vec<OsString>,
}

/// Returns the command of another program whose help the arguments of this process ask for (`help COMMAND`).
pub(crate) fn help_is_asked_for() -> Option<String> {
    let mut words = std::env::args().skip(1);
    words.next().filter(|word| word == "help")?;
    words.next().filter(|word| SIBLINGS.iter().any(|sibling| sibling.commands.contains(&word.as_str())))
}

/// Becomes the program that has this command, with the arguments of this process. Returns only if that program cannot be
/// started.
pub(crate) fn run_sibling(command: &str) -> Result<ExitCode, Failure> {
    let sibling = SIBLINGS.iter().find(|sibling| sibling.commands.contains(&command));
    let Some(Sibling { program: name, commands }) = sibling else {
        return Err(Failure::Usage(format!("no program beside thalweg has the command '{command}'")));
    };
    let program = sibling_path(name);
    let mut words = std::env::args_os();
    let own_name = words.next().unwrap_or_else(|| "thalweg".into());
    let error = Command::new(&program).arg0(own_name).args(words).exec();
    Err(Failure::Usage(format!(
        "{}: {error}; {} are commands of the program {name}, which is installed beside thalweg, and built with \
         `cargo build -p {name}`",
        program.display(),
        commands.join(", ")
    )))
}

/// Returns the path of a program: beside this one, or else as `PATH` has it.
fn sibling_path(name: &str) -> PathBuf {
    let here = std::env::current_exe().ok().map(|program| program.with_file_name(name));
    here.filter(|program| program.exists()).unwrap_or_else(|| name.into())
}
