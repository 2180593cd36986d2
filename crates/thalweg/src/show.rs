//! `thalweg ls`, `info`, `verify`, `cat` and `salvage`: runs on disk, for people and programs.

mod cat;
mod info;
mod ls;
mod place;
mod salvage;
mod times;
mod verify;

use crate::terminal::{Failure, Output};
use std::process::ExitCode;

pub(crate) use verify::verify_with_progress as verified;

#[derive(Debug, clap::Subcommand)]
pub(crate) enum Command {
    /// List the runs in a directory
    Ls(ls::Options),
    /// Show a run: its sources, how it ended, and the ledger of all fragments
    Info(info::Options),
    /// Read a whole run and check it for damage
    Verify(verify::Options),
    /// Print a run's events and fragments
    Cat(cat::Options),
    /// Copy the intact data of a damaged run into a new run
    Salvage(salvage::Options),
}

pub(crate) fn run_show_command(command: Command, json: bool) -> Result<ExitCode, Failure> {
    let mut out = Output::new();
    let code = match command {
        Command::Ls(options) => ls::run_ls(&options, json, &mut out),
        Command::Info(options) => info::run_info(&options, json, &mut out),
        Command::Verify(options) => verify::run_verify(&options, json, &mut out),
        Command::Cat(options) => cat::run_cat(&options, json, &mut out),
        Command::Salvage(options) => salvage::run_salvage(&options, json, &mut out),
    }?;
    out.flush()?;
    Ok(code)
}
