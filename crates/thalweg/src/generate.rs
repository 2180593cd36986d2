//! `thalweg generate`: the files that a package has beside the program, from the program's own definition of its
//! commands.

use crate::{Arguments, Failure};
use clap::CommandFactory;
use clap_complete::Shell;
use std::path::PathBuf;
use std::process::ExitCode;

#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// A directory that stands for /usr/share: man1, completions of bash, zsh and fish are written beneath it
    share: PathBuf,
}

pub(crate) fn generate(options: &Options) -> Result<ExitCode, Failure> {
    let directory = |name: &str| {
        let path = options.share.join(name);
        let made = std::fs::create_dir_all(&path);
        made.map(|()| path.clone()).map_err(|error| Failure::Usage(format!("{}: {error}", path.display())))
    };
    let broken = |path: PathBuf| move |error| Failure::Broken(format!("{}: {error}", path.display()));
    let man = directory("man/man1")?;
    clap_mangen::generate_to(Arguments::command(), &man).map_err(broken(man))?;
    for (shell, place) in [
        (Shell::Bash, "bash-completion/completions"),
        (Shell::Zsh, "zsh/vendor-completions"),
        (Shell::Fish, "fish/vendor_completions.d"),
    ] {
        let place = directory(place)?;
        let written = clap_complete::generate_to(shell, &mut Arguments::command(), "thalweg", &place);
        let written = written.map_err(broken(place.clone()))?;
        // bash-completion looks for a file named like the command.
        if shell == Shell::Bash {
            let named = place.join("thalweg");
            std::fs::rename(&written, &named).map_err(broken(named))?;
        }
    }
    Ok(ExitCode::SUCCESS)
}
