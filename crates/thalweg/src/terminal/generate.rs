//! The files that a package has beside a program, from the program's own definition of its commands.

use crate::terminal::Failure;
use clap_complete::Shell;
use std::path::PathBuf;
use std::process::ExitCode;

/// Options of `generate`.
#[derive(Debug, clap::Args)]
pub struct Options {
    /// A directory that stands for /usr/share: man1, completions of bash, zsh and fish are written beneath it
    share: PathBuf,
}

/// Writes a program's man pages and shell completions.
///
/// # Errors
/// A directory or a file cannot be written.
pub fn generate_package_files(mut program: clap::Command, options: &Options) -> Result<ExitCode, Failure> {
    let name = program.get_name().to_owned();
    let man = make_directory(options, "man/man1")?;
    clap_mangen::generate_to(program.clone(), &man).map_err(|error| Failure::file_broken(&man, error))?;
    for (shell, place) in [
        (Shell::Bash, "bash-completion/completions"),
        (Shell::Zsh, "zsh/vendor-completions"),
        (Shell::Fish, "fish/vendor_completions.d"),
    ] {
        let place = make_directory(options, place)?;
        let written = clap_complete::generate_to(shell, &mut program, &name, &place);
        let written = written.map_err(|error| Failure::file_broken(&place, error))?;
        // bash-completion looks for a file named like the command.
        if shell == Shell::Bash {
            let named = place.join(&name);
            std::fs::rename(&written, &named).map_err(|error| Failure::file_broken(&named, error))?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn make_directory(options: &Options, name: &str) -> Result<PathBuf, Failure> {
    let path = options.share.join(name);
    std::fs::create_dir_all(&path).map_err(|error| Failure::file_usage(&path, error))?;
    Ok(path)
}
