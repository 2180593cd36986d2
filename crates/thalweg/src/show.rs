//! `thalweg ls`, `info`, `verify`, `cat` and `salvage`: runs on disk, as people and programs see them.

mod cat;
mod info;
mod ls;
mod place;
mod salvage;
mod verify;

use crate::print::Output;
use crate::{Failure, Json};
use std::process::ExitCode;

#[derive(Debug, clap::Subcommand)]
pub(crate) enum Command {
    /// List the runs in a directory
    Ls(Json<ls::Options>),
    /// Show what a run is: its sources, how it ended, and what became of every fragment
    Info(Json<info::Options>),
    /// Read everything in a run and say what does not agree
    Verify(Json<verify::Options>),
    /// Print a run's events and fragments
    Cat(Json<cat::Options>),
    /// Write what is whole of a damaged run into a new one
    Salvage(Json<salvage::Options>),
}

impl Command {
    pub(crate) fn json(&self) -> bool {
        match self {
            Self::Ls(options) => options.json,
            Self::Info(options) => options.json,
            Self::Verify(options) => options.json,
            Self::Cat(options) => options.json,
            Self::Salvage(options) => options.json,
        }
    }
}

pub(crate) fn show(command: Command, json: bool) -> Result<ExitCode, Failure> {
    let mut out = Output::new();
    let code = match command {
        Command::Ls(Json { options, .. }) => ls::ls(&options, json, &mut out),
        Command::Info(Json { options, .. }) => info::info(&options, json, &mut out),
        Command::Verify(Json { options, .. }) => verify::verify(&options, json, &mut out),
        Command::Cat(Json { options, .. }) => cat::cat(&options, json, &mut out),
        Command::Salvage(Json { options, .. }) => salvage::salvage(&options, json, &mut out),
    }?;
    out.flush()?;
    Ok(code)
}
