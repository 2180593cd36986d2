//! `thalweg calibrate`: measures what the builders' links carry, and keeps the result for the runs that follow.

use crate::terminal::Failure;
use crate::{demo, node};
use std::path::PathBuf;
use std::process::ExitCode;

#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// The topology
    file: PathBuf,
    /// Only this node, on one of many hosts that all run their nodes at the same time
    node: Option<String>,
}

/// Runs a calibration: every source sends as much as it is asked for, and each builder asks for more and more until
/// something is lost.
pub(crate) fn run_calibrate(options: &Options, json: bool, verbose: u8) -> Result<ExitCode, Failure> {
    let topology = thalweg_node::Topology::load(&options.file, None)?.into_calibration();
    match &options.node {
        Some(name) => node::run_single_node(&topology, name, node::Kind::Single, json),
        None => demo::run_on_this_machine(topology, None, json, verbose),
    }
}
