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
pub fn generate(mut program: clap::Command, options: &Options) -> Result<ExitCode, Failure> {
    let name = program.get_name().to_owned();
    let directory = |name: &str| {
        let path = options.share.join(name);
        let made = std::fs::create_dir_all(&path);
        made.map(|()| path.clone()).map_err(|error| Failure::Usage(format!("{}: {error}", path.display())))
    };
    let broken = |path: PathBuf| move |error| Failure::Broken(format!("{}: {error}", path.display()));
    let man = directory("man/man1")?;
    clap_mangen::generate_to(program.clone(), &man).map_err(broken(man))?;
    for (shell, place) in [
        (Shell::Bash, "bash-completion/completions"),
        (Shell::Zsh, "zsh/vendor-completions"),
        (Shell::Fish, "fish/vendor_completions.d"),
    ] {
        let place = directory(place)?;
        let written = clap_complete::generate_to(shell, &mut program, &name, &place);
        let written = written.map_err(broken(place.clone()))?;
        // bash-completion looks for a file named like the command.
        if shell == Shell::Bash {
            let named = place.join(&name);
            std::fs::rename(&written, &named).map_err(broken(named))?;
        }
    }
    Ok(ExitCode::SUCCESS)
}
