//! `thalweg node`: one node, in this process.

use crate::{Failure, print};
use serde::{Deserialize, Serialize};
use std::io::{BufRead, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;
use thalweg_link::Address;
use thalweg_node::{
    BuilderNode, BuilderReport, Feed, Progress, Snapshot, SourceNode, SourceReport, SourceSettings, Stop, Topology,
};

/// How often a node says how far it is.
const PROGRESS: Duration = Duration::from_millis(200);

#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// The node's name in the topology
    name: String,
    /// The topology
    file: PathBuf,
    /// Take the topology as one line of JSON from standard input, then commands; say everything in JSON
    #[arg(long, hide = true)]
    supervised: bool,
}

/// What a supervised node says, one JSON object per line.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Word {
    /// It listens here.
    Listening(Vec<Address>),
    /// It is so far.
    Progress(Snapshot),
    /// It is done.
    Source(SourceReport),
    /// It is done.
    Builder(Box<BuilderReport>),
    /// It could not be done.
    Failed {
        /// Why.
        error: String,
        /// Whether it was asked for the impossible.
        usage: bool,
        /// Whether it only follows from the end of another node.
        follows: bool,
    },
}

pub(crate) fn node(options: &Options, json: bool) -> Result<ExitCode, Failure> {
    if options.supervised {
        return Ok(supervised(&options.name));
    }
    run_alone(&Topology::load(&options.file)?, &options.name, json)
}

/// Runs a node to its end, and says what it did.
pub(crate) fn run_alone(topology: &Topology, name: &str, json: bool) -> Result<ExitCode, Failure> {
    let stop = Stop::new().map_err(Failure::broken)?;
    heed_signals(stop.clone())?;
    let progress = Progress::default();
    let (watch, done) = channel::<()>();
    let line = thread::spawn({
        let (progress, name) = (progress.clone(), name.to_owned());
        move || {
            let line = print::Line::new(&name);
            while done.recv_timeout(PROGRESS) == Err(RecvTimeoutError::Timeout) {
                line.show(&progress.snapshot());
            }
        }
    });
    let result = run(topology, name, &stop, &progress, |addresses| {
        let text: Vec<String> = addresses.iter().map(ToString::to_string).collect();
        eprintln!("{name}: listening on {}", text.join(", "));
    });
    drop(watch);
    let _ = line.join();
    Ok(match result? {
        Done::Source(report) => {
            print::source(&report, json);
            ExitCode::SUCCESS
        }
        Done::Builder(report) => print::run(&thalweg_node::RunReport::new(&[*report]), json),
    })
}

enum Done {
    Source(SourceReport),
    Builder(Box<BuilderReport>),
}

fn run(
    topology: &Topology,
    name: &str,
    stop: &Stop,
    progress: &Progress,
    listening: impl FnOnce(&[Address]),
) -> Result<Done, Failure> {
    thalweg_node::preflight(topology, Some(name))?;
    if topology.builders.iter().any(|builder| builder.name == name) {
        let node = BuilderNode::new(topology, name)?;
        listening(&node.addresses());
        return Ok(Done::Builder(Box::new(node.run(stop, progress)?)));
    }
    let Some(config) = topology.sources.iter().find(|source| source.name == name) else {
        let names = topology.names().join(", ");
        return Err(Failure::Usage(format!("there is no node '{name}' in the topology; it has {names}")));
    };
    let Some(mut device_config) = config.device.clone() else {
        return Err(Failure::Usage(format!(
            "source '{name}' has no `device` in the topology: another program pushes its data (thalweg.Source in Python), so there is no node to run here"
        )));
    };
    device_config.set_source(config.source_id());
    let device = thalweg_device::open(&device_config).map_err(Failure::usage)?;
    let settings = SourceSettings {
        name: config.name.clone(),
        id: config.source_id(),
        builders: topology.builders.iter().filter_map(|b| topology.address(b, config.link).cloned()).collect(),
        congestion: config.congestion.clone(),
        rate: config.rate,
        policy: config.policy,
        slots: config.slots,
        slot_bytes: config.slot_bytes(device.max_payload()),
        patience: topology.run.patience,
        cpu: config.cpu,
        feed: Feed::Device(device),
    };
    Ok(Done::Source(SourceNode::new(settings)?.run(stop, progress)?))
}

/// The first interrupt ends the run cleanly, the second one at once.
pub(crate) fn heed_signals(stop: Stop) -> Result<(), Failure> {
    let mut signals = crate::signals::ends()?;
    thread::spawn(move || {
        for _ in signals.forever() {
            stop.press();
        }
    });
    Ok(())
}

/// A node that another process watches: the topology and the commands come over standard input, and when that ends,
/// so does the node.
fn supervised(name: &str) -> ExitCode {
    let result = supervised_run(name);
    match result {
        Ok(Done::Source(report)) => say(&Word::Source(report)),
        Ok(Done::Builder(report)) => say(&Word::Builder(report)),
        Err(failure) => {
            let usage = matches!(failure, Failure::Usage(_));
            let follows = matches!(failure, Failure::Consequence(_));
            say(&Word::Failed { error: failure.to_string(), usage, follows });
            return ExitCode::from(failure.code());
        }
    }
    ExitCode::SUCCESS
}

fn supervised_run(name: &str) -> Result<Done, Failure> {
    let mut line = String::new();
    std::io::stdin().lock().read_line(&mut line).map_err(Failure::broken)?;
    let topology: Topology = serde_json::from_str(&line).map_err(Failure::usage)?;
    let stop = Stop::new().map_err(Failure::broken)?;
    thread::spawn({
        let stop = stop.clone();
        move || {
            // Each line asks for an end: the first for a clean one.
            for _ in std::io::stdin().lock().lines().map_while(Result::ok) {
                stop.press();
            }
            stop.at_once();
        }
    });
    let progress = Progress::default();
    let (watch, done) = channel::<()>();
    let teller = thread::spawn({
        let progress = progress.clone();
        move || {
            while done.recv_timeout(PROGRESS) == Err(RecvTimeoutError::Timeout) {
                say(&Word::Progress(progress.snapshot()));
            }
        }
    });
    let result = run(&topology, name, &stop, &progress, |addresses| say(&Word::Listening(addresses.to_vec())));
    drop(watch);
    let _ = teller.join();
    result
}

fn say(word: &Word) {
    let text = serde_json::to_string(word).unwrap_or_default();
    // A supervisor that is gone cannot be told; the end of standard input stops this node.
    let _ = writeln!(std::io::stdout().lock(), "{text}");
}
