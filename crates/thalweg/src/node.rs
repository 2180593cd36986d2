//! `thalweg node`: one node, in this process.

use crate::live::{self, Goal};
use crate::preflight::OpenSource;
use crate::run_options::RunOptions;
use crate::terminal::{Failure, outlet, progress, service_manager, signals, start_thread};
use crate::{controlled, print, stay, terminal, watchdog};
use serde::{Deserialize, Serialize};
use std::io::BufRead;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;
use thalweg_link::Address;
use thalweg_node::{
    BuilderNode, BuilderReport, Feed, Handle, NodeError, Snapshot, SourceNode, SourceNodeConfig, SourceReport,
    SourceSettings, Topology,
};
use thalweg_text::parse_duration;

/// Time from one progress message of a node to the next.
const PROGRESS: Duration = Duration::from_millis(200);

#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// The node's name in the topology
    name: String,
    /// The topology
    #[arg(required_unless_present = "control")]
    file: Option<PathBuf>,
    /// Take the topology as one line of JSON from standard input, then commands; write everything in JSON
    #[arg(long, hide = true)]
    supervised: bool,
    /// Do not report its progress
    #[arg(long, hide = true, requires = "supervised")]
    unwatched: bool,
    /// Stay for several runs, controlled by commands on standard input: start, pause, resume, next, step LABEL, stop, abort, status, quit
    #[arg(long)]
    stay: bool,
    /// Stay for several runs, controlled by the service at this address (thalweg control), which also sends the
    /// topology; several with commas between them. The environment has the token: THALWEG_CONTROL_TOKEN
    #[arg(long, value_name = "URL", value_delimiter = ',', conflicts_with_all = ["file", "stay", "supervised"])]
    control: Vec<String>,
    #[command(flatten)]
    run: RunOptions,
    /// Builders: the file for the distribution of the credit over time
    #[arg(long, hide = true, conflicts_with_all = ["supervised", "stay"])]
    trace: Option<PathBuf>,
    /// From one line of the trace to the next
    #[arg(long, hide = true, default_value = "1ms", value_parser = parse_duration)]
    trace_every: Duration,
}

/// Message of a supervised node, one JSON object per line.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum NodeMessage {
    /// Addresses on which the node listens.
    Listening(Vec<Address>),
    /// Progress of the node.
    Progress(Snapshot),
    /// Report of a source at its end.
    Source(Box<SourceReport>),
    /// Report of a builder at its end.
    Builder(Box<BuilderReport>),
    /// Error that ended the node.
    Failed {
        /// Reason as text.
        error: String,
        /// True if the request was impossible.
        usage: bool,
        /// True if the failure only follows from the end of another node.
        follows: bool,
    },
}

pub(crate) fn run_node_command(options: &Options, json: bool) -> Result<ExitCode, Failure> {
    if options.supervised {
        return Ok(run_supervised(options));
    }
    if !options.control.is_empty() {
        return controlled::follow_services(&options.name, &options.control, json);
    }
    let file = options.file.as_deref().unwrap_or(Path::new(""));
    let topology = options.run.load_topology(file, Some(&options.name))?;
    check_node_name(&topology, &options.name)?;
    check_addresses_known(&topology)?;
    match options.stay {
        true => stay::stay_for_runs(topology, &options.name, json),
        false => {
            let kind = match &options.trace {
                Some(file) => Kind::Traced { file, every: options.trace_every },
                None => Kind::Single,
            };
            run_single_node(&topology, &options.name, kind, json)
        }
    }
}

/// Runs a node to its end, and reports the result.
pub(crate) fn run_single_node(
    topology: &Topology,
    name: &str,
    kind: Kind<'_>,
    json: bool,
) -> Result<ExitCode, Failure> {
    thalweg_node::log_context::set_process_node(name);
    let handle = Handle::new().map_err(Failure::broken)?;
    stop_on_signals(handle.clone())?;
    let line = live::Line::new(name, Goal::from(&topology.run), {
        let handle = handle.clone();
        move || (*handle.latest_snapshot()).clone()
    });
    let is_prepared = Arc::new(AtomicBool::new(false));
    watchdog::watch_node(handle.clone(), true, {
        let is_prepared = Arc::clone(&is_prepared);
        move || is_prepared.load(Ordering::Relaxed)
    })?;
    let result = run_node(topology, name, &handle, kind, |addresses| {
        print_listening(name, addresses);
        is_prepared.store(true, Ordering::Relaxed);
        service_manager::report_ready();
    });
    is_prepared.store(false, Ordering::Relaxed);
    line.clear_line();
    Ok(match result? {
        Done::Source(report) => {
            print::print_source_report(&report, json);
            ExitCode::SUCCESS
        }
        Done::Builder(report) => print::print_run_report(&thalweg_node::RunReport::new(&[*report]), json),
    })
}

/// Kind of a node: for one run that begins when all sources have come, or for every run that it is commanded to begin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind<'a> {
    Single,
    /// Single; a builder also writes the distribution of its credit to a file.
    Traced {
        file: &'a Path,
        every: Duration,
    },
    Waiting,
}

pub(crate) fn print_listening(name: &str, addresses: &[Address]) {
    if progress::is_quiet() || addresses.is_empty() {
        return;
    }
    let text: Vec<String> = addresses.iter().map(ToString::to_string).collect();
    outlet::stderr().put_text(format!("{name}: listening on {}\n", text.join(", ")));
}

pub(crate) enum Done {
    Source(Box<SourceReport>),
    Builder(Box<BuilderReport>),
}

/// Runs a node to the end of its run. Calls `prepared` when it is ready to take part, with the addresses on which it
/// listens, if it is a builder.
pub(crate) fn run_node(
    topology: &Topology,
    name: &str,
    handle: &Handle,
    kind: Kind<'_>,
    prepared: impl FnOnce(&[Address]),
) -> Result<Done, Failure> {
    check_node_name(topology, name)?;
    terminal::raise_open_file_limit();
    crate::preflight::run_preflight(topology, Some(name))?;
    if topology.builders.iter().any(|builder| builder.name == name) {
        let mut node = match kind {
            Kind::Single | Kind::Traced { .. } => BuilderNode::new(topology, name)?,
            Kind::Waiting => BuilderNode::new_waiting(topology, name)?,
        };
        if let Kind::Traced { file, every } = kind {
            node.trace(file, every)?;
        }
        prepared(&node.listening_addresses());
        return Ok(Done::Builder(Box::new(node.run(handle)?)));
    }
    let config = topology.sources.iter().find(|source| source.name == name);
    let opened = config.map(|config| crate::preflight::open_device(topology, config)).transpose()?.flatten();
    let (Some(config), Some(device)) = (config, opened) else {
        return Err(Failure::Usage(format!(
            "source '{name}' has no `device` in the topology: another program pushes its data (thalweg.Source in \
             Python), so that it has no node"
        )));
    };
    let OpenSource { feed, slot_bytes, fits } = device;
    for note in feed.device_description().iter().flat_map(|description| &description.notes) {
        tracing::warn!("{name}: {note}");
    }
    let node = prepare_source(kind, source_settings(topology, config, feed, slot_bytes))?;
    let fits = fits.into_iter().map(|(index, OpenSource { feed, slot_bytes, .. })| {
        prepare_source(kind, source_settings(topology, &topology.sources[index], feed, slot_bytes))
    });
    let fits = fits.collect::<Result<Vec<SourceNode>, NodeError>>()?;
    prepared(&[]);
    thread::scope(|scope| {
        let mut running = Vec::new();
        for fit in fits {
            let handle = Handle::new().map_err(Failure::broken)?;
            running.push((handle.clone(), scope.spawn(move || fit.run(&handle))));
        }
        let report = node.run(handle);
        if report.is_err() {
            // No more data comes: a node that still waits for a builder waits in vain.
            for (handle, _) in &running {
                handle.request_end();
            }
        }
        let ended: Vec<_> = running.into_iter().map(|(_, fit)| fit.join()).collect();
        let report = report?;
        for fit in ended {
            fit.map_err(|_| Failure::broken("the thread of a fit ended early"))??;
        }
        Ok(Done::Source(Box::new(report)))
    })
}

/// Creates a source node, which waits for its builders without limit if the node stays for several runs.
fn prepare_source(kind: Kind<'_>, settings: SourceSettings) -> Result<SourceNode, NodeError> {
    let node = SourceNode::new(settings)?;
    Ok(if kind == Kind::Waiting { node.waiting() } else { node })
}

fn source_settings(topology: &Topology, config: &SourceNodeConfig, feed: Feed, slot_bytes: usize) -> SourceSettings {
    SourceSettings {
        name: config.name.clone(),
        id: config.source_id(),
        builders: topology.builders.iter().filter_map(|b| topology.builder_address(b, config.link).cloned()).collect(),
        adapter: config.adapter.clone(),
        congestion: config.congestion.clone(),
        rate: config.rate,
        burst: config.burst,
        policy: config.policy,
        slots: config.slots,
        slot_bytes,
        timeout: topology.run.timeout,
        wait: config.wait,
        cpu: config.cpu,
        feed,
    }
}

/// Checks that the nodes that read this topology can find each other. A program that pushes receives its address on its
/// own.
fn check_addresses_known(topology: &Topology) -> Result<(), Failure> {
    for (source, builder) in
        topology.sources.iter().flat_map(|source| topology.builders.iter().map(move |b| (source, b)))
    {
        let address = topology.builder_address(builder, source.link).filter(|_| source.device.is_some());
        let chosen = address.filter(|address| address.host_port().is_some_and(|place| place.ends_with(":0")));
        if let Some(address) = chosen {
            return Err(Failure::Usage(format!(
                "builder '{}': listen {address}: port 0 lets the system choose a port, which source '{}' in another \
                 process cannot know: set a port (only `thalweg run`, which starts all nodes, can pass it on)",
                builder.name, source.name
            )));
        }
    }
    Ok(())
}

/// Fails if there is no node of that name.
pub(crate) fn check_node_name(topology: &Topology, name: &str) -> Result<(), Failure> {
    let names = topology.node_names();
    if !names.contains(&name) {
        let names = names.join(", ");
        return Err(Failure::Usage(format!("the topology has no node '{name}'; it has {names}")));
    }
    match topology.sources.iter().find(|source| source.name == name).and_then(SourceNodeConfig::fitted_source) {
        Some(of) => Err(Failure::Usage(format!(
            "source '{name}' fits the images of '{of}' and is part of its node: start node '{of}'"
        ))),
        None => Ok(()),
    }
}

/// Handles signals: the first interrupt ends the run cleanly, the second one at once.
pub(crate) fn stop_on_signals(handle: Handle) -> Result<(), Failure> {
    signals::on_interrupt(move || {
        // A third request means that the user does not want to wait for the disk either.
        if handle.request_end() > 2 {
            std::process::exit(1);
        }
    })
}

/// Runs a node that another process supervises: the topology and the commands come over standard input.
fn run_supervised(options: &Options) -> ExitCode {
    let (message, code) = match run_supervised_node(options) {
        Ok(Done::Source(report)) => (NodeMessage::Source(report), ExitCode::SUCCESS),
        Ok(Done::Builder(report)) => (NodeMessage::Builder(report), ExitCode::SUCCESS),
        Err(failure) => {
            let usage = matches!(failure, Failure::Usage(_));
            let follows = matches!(failure, Failure::Consequence(_));
            (NodeMessage::Failed { error: failure.to_string(), usage, follows }, ExitCode::from(failure.code()))
        }
    };
    outlet::stdout().put_text(message_line(&message));
    code
}

fn run_supervised_node(options: &Options) -> Result<Done, Failure> {
    let name = &options.name;
    let mut line = String::new();
    std::io::stdin().lock().read_line(&mut line).map_err(Failure::broken)?;
    let topology: Topology = serde_json::from_str(&line).map_err(Failure::usage)?;
    let handle = Handle::new().map_err(Failure::broken)?;
    start_thread({
        let handle = handle.clone();
        let is_builder = topology.builders.iter().any(|builder| builder.name == *name);
        let timeout = topology.run.timeout;
        move || {
            // Each line requests an end: the first a clean one.
            for _ in std::io::stdin().lock().split(b'\n').map_while(Result::ok) {
                handle.request_end();
            }
            end_orphaned_node(&handle, is_builder, timeout);
        }
    })?;
    let (_watch, done) = channel::<()>();
    if !options.unwatched {
        let handle = handle.clone();
        start_thread(move || {
            while done.recv_timeout(PROGRESS) == Err(RecvTimeoutError::Timeout) {
                // The supervisor adds the nodes up.
                let snapshot = Snapshot { sources: Vec::new(), ..(*handle.latest_snapshot()).clone() };
                outlet::stdout().put_if_idle(message_line(&NodeMessage::Progress(snapshot)));
            }
        })?;
    }
    run_node(&topology, name, &handle, Kind::Single, |addresses| {
        if !addresses.is_empty() {
            outlet::stdout().put_text(message_line(&NodeMessage::Listening(addresses.to_vec())));
        }
    })
}

/// Ends a node whose supervisor is gone. The end of standard input shows this, however the supervisor died. The
/// builders end the run as they do on request, and with them the sources. A source that no builder releases ends by
/// itself.
fn end_orphaned_node(handle: &Handle, is_builder: bool, timeout: Duration) {
    if !is_builder {
        thread::sleep(2 * timeout);
    }
    if !handle.was_end_requested() {
        handle.request_end();
    }
}

/// Returns the message as one line of JSON.
fn message_line(message: &NodeMessage) -> String {
    serde_json::to_string(message).unwrap_or_default() + "\n"
}
