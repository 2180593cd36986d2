//! `thalweg ls`, `info`, `verify` and `cat`: runs on disk, as people and programs see them.

use crate::Failure;
use std::process::ExitCode;

#[derive(Debug, clap::Subcommand)]
pub(crate) enum Command {}

pub(crate) fn show(command: Command, _json: bool) -> Result<ExitCode, Failure> {
    match command {}
}
