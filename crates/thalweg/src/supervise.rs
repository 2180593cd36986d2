//! Runs every node of a topology on this machine, each in a process of its own, and watches them.

use crate::node::NodeMessage;
use crate::print;
use crate::terminal::{Failure, signals, start_thread};
use std::collections::BTreeMap;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};
use thalweg_node::{Assignment, BuilderReport, RunReport, Snapshot, Topology};
use thalweg_sys::netns::Network;

/// Time to wait for nodes that are to stop at once, before they are killed.
const GRACE: Duration = Duration::from_secs(5);

/// Maximum length of a node's line, in bytes: the report of a builder with thousands of sources has a few MiB.
const LONGEST_LINE: u64 = 64 << 20;

/// Outcome of a run that was supervised.
#[derive(Debug)]
pub(crate) struct Watched {
    /// Report of the builders.
    pub(crate) report: RunReport,
    /// Nodes that failed, with the reasons.
    pub(crate) failures: Vec<String>,
}

enum News {
    Message(usize, NodeMessage),
    /// A node's standard output has ended.
    Silent(usize),
    Signal,
}

struct Node {
    name: String,
    child: Child,
    stdin: Option<ChildStdin>,
    over: bool,
}

/// All running nodes, which are killed if this is dropped before they end.
struct Nodes(Vec<Node>);

impl Drop for Nodes {
    fn drop(&mut self) {
        for node in &mut self.0 {
            request_stop(node, 2);
            drop(node.stdin.take());
        }
        let begun = Instant::now();
        for node in &mut self.0 {
            while matches!(node.child.try_wait(), Ok(None)) {
                if begun.elapsed() > GRACE {
                    let _ = node.child.kill();
                    let _ = node.child.wait();
                } else {
                    thread::sleep(Duration::from_millis(10));
                }
            }
        }
    }
}

/// Runs a topology to the end, each node on a host of its own if there is a network of them. `show` receives the
/// progress.
pub(crate) fn supervise_topology(
    mut topology: Topology,
    network: Option<&Network>,
    verbose: u8,
    show: &dyn Fn(Snapshot),
) -> Result<Watched, Failure> {
    let (sender, news) = channel();
    signals::on_interrupt({
        let sender = sender.clone();
        move || _ = sender.send(News::Signal)
    })?;
    let mut nodes = Nodes(Vec::new());
    let builders = topology.builders.len();
    if builders > 1 && topology.run.record && topology.run.number.is_none() {
        // All builders share one run: the next number that none has used.
        let listed = thalweg_store::list_runs(&topology.run.directory).unwrap_or_default();
        let numbered = listed.iter().filter(|run| run.has_numbered_name());
        topology.run.number = Some(numbered.map(|run| run.run).max().unwrap_or(0) + 1);
    }

    // Builders start first: the system may choose their ports.
    for index in 0..builders {
        let name = topology.builders[index].name.clone();
        nodes.0.push(start_node(&name, &topology, network, verbose, index, &sender)?);
    }
    let mut watch = Watch::new(builders, killed_builder_remedy(&topology));
    while watch.listening.iter().any(Option::is_none) {
        watch.process_next_event(&mut nodes, &news, show)?;
        if let Some(failure) = watch.fatal.take() {
            return Err(failure);
        }
    }
    for (builder, addresses) in topology.builders.iter_mut().zip(&mut watch.listening) {
        builder.listen = addresses.take().unwrap_or_default();
    }
    // By room, the others notice by themselves that a builder was killed. The supervisor learns of their
    // progress only now and then.
    let by_room = topology.run.assignment == Assignment::ByRoom;
    // A source receives nothing about the others: with hundreds of them, each would read about all.
    let mut own = Topology { sources: Vec::new(), ..topology.clone() };
    // A source without a device belongs to another program: the builders wait for it.
    for source in topology.sources.iter().filter(|source| source.device.is_some() && source.fitted_source().is_none()) {
        let index = nodes.0.len();
        let fits = topology.sources.iter().filter(|other| other.fitted_source() == Some(&source.name));
        own.sources = std::iter::once(source).chain(fits).cloned().collect();
        nodes.0.push(start_node(&source.name, &own, network, verbose, index, &sender)?);
    }
    while !nodes.0.iter().all(|node| node.over) {
        watch.process_next_event(&mut nodes, &news, show)?;
        // A node that could not even start leaves the others waiting for it.
        if watch.fatal.is_some() && !watch.begun && !(by_room && watch.killed) {
            break;
        }
    }
    drop(nodes);
    let reports: Vec<BuilderReport> = watch.builders.into_iter().flatten().collect();
    // If events are assigned, a run goes on without a builder that died, and reports that.
    let left_out: usize = reports.iter().map(|report| report.left_out.len()).sum();
    match watch.fatal.or(watch.follows) {
        Some(failure) if reports.len() + left_out < builders => Err(failure),
        _ => {
            let report = RunReport { devices: watch.devices, ..RunReport::new(&reports) };
            Ok(Watched { report, failures: watch.failures })
        }
    }
}

struct Watch {
    listening: Vec<Option<Vec<thalweg_link::Address>>>,
    /// Snapshot of each builder.
    snapshots: Vec<Snapshot>,
    builders: Vec<Option<BuilderReport>>,
    /// Counters of devices.
    devices: BTreeMap<String, BTreeMap<String, u64>>,
    failures: Vec<String>,
    fatal: Option<Failure>,
    /// A failure caused by another one, which has not been reported yet.
    follows: Option<Failure>,
    begun: bool,
    /// True if a builder was killed.
    killed: bool,
    stop_requests: u32,
    /// Advice for the part of a run whose builder was killed.
    remedy: String,
}

/// Returns the advice for the part of a run whose builder was killed, to be added to the report of that; empty if nothing
/// is recorded.
fn killed_builder_remedy(topology: &Topology) -> String {
    let run = &topology.run;
    if !run.record {
        return String::new();
    }
    let which = run.number.map_or_else(|| "the newest run".to_owned(), |number| format!("run {number}"));
    format!(
        "; what it had recorded is in {which} under {}: read it with `thalweg verify`, and close it with `thalweg salvage`",
        run.directory.display()
    )
}

impl Watch {
    fn new(builders: usize, remedy: String) -> Self {
        Self {
            remedy,
            listening: vec![None; builders],
            snapshots: vec![Snapshot::default(); builders],
            builders: vec![None; builders],
            devices: BTreeMap::new(),
            failures: Vec::new(),
            fatal: None,
            follows: None,
            begun: false,
            killed: false,
            stop_requests: 0,
        }
    }

    fn process_next_event(
        &mut self,
        nodes: &mut Nodes,
        news: &Receiver<News>,
        show: &dyn Fn(Snapshot),
    ) -> Result<(), Failure> {
        match news.recv_timeout(Duration::from_secs(1)) {
            Ok(News::Message(index, message)) => self.handle_message(index, message, nodes, show),
            Ok(News::Silent(index)) => self.handle_node_end(index, &mut nodes.0[index]),
            Ok(News::Signal) => {
                self.stop_requests += 1;
                for (index, node) in nodes.0.iter_mut().enumerate() {
                    // For a clean end only the builders are informed; for an end at once, every node.
                    if index < self.builders.len() || self.stop_requests > 1 {
                        request_stop(node, self.stop_requests);
                    }
                }
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return Err(Failure::broken("lost contact to all nodes")),
        }
        Ok(())
    }

    fn handle_message(&mut self, index: usize, message: NodeMessage, nodes: &mut Nodes, show: &dyn Fn(Snapshot)) {
        match message {
            NodeMessage::Listening(addresses) => self.listening[index] = Some(addresses),
            NodeMessage::Progress(snapshot) => {
                self.begun |= snapshot.state.has_begun();
                if let Some(shown) = self.snapshots.get_mut(index) {
                    *shown = snapshot;
                }
                show(print::total_snapshot(&self.snapshots));
            }
            NodeMessage::Builder(report) => {
                self.begun = true;
                self.builders[index] = Some(*report);
            }
            // The other results of a source are in the builders' ledgers.
            NodeMessage::Source(report) if report.device.is_empty() => {}
            NodeMessage::Source(report) => {
                self.devices.insert(report.name, report.device);
            }
            NodeMessage::Failed { error, usage, follows } => {
                let text = format!("{}: {error}", nodes.0[index].name);
                self.failures.push(text.clone());
                match (usage, follows) {
                    (true, _) => self.fatal.get_or_insert(Failure::Usage(text)),
                    (false, true) => self.follows.get_or_insert(Failure::Consequence(text)),
                    (false, false) => self.fatal.get_or_insert(Failure::Broken(text)),
                };
            }
        }
    }

    fn handle_node_end(&mut self, index: usize, node: &mut Node) {
        node.over = true;
        let status = node.child.wait();
        let killed = status.is_ok_and(|status: ExitStatus| {
            use std::os::unix::process::ExitStatusExt;
            status.signal().is_some()
        });
        if killed {
            let text = match index < self.builders.len() {
                true => format!("{}: the process was killed{}", node.name, self.remedy),
                false => format!("{}: the process was killed", node.name),
            };
            self.failures.push(text.clone());
            if index < self.builders.len() {
                self.killed = true;
                self.fatal.get_or_insert(Failure::Broken(text));
            }
        }
    }
}

/// Writes one line for each request of the user: the first for a clean end, the second for an end at once.
fn request_stop(node: &mut Node, times: u32) {
    if times > 2 {
        let _ = node.child.kill();
    } else if let Some(stdin) = &mut node.stdin {
        // For a node that is gone the write may fail.
        let _ = stdin.write_all(if times == 1 { b"stop\n" } else { b"stop\nstop\n" });
    }
}

fn start_node(
    name: &str,
    topology: &Topology,
    network: Option<&Network>,
    verbose: u8,
    index: usize,
    news: &Sender<News>,
) -> Result<Node, Failure> {
    let program = std::env::current_exe().map_err(Failure::broken)?;
    let mut command = Command::new(program);
    command.args(["node", "--supervised"]).stdin(Stdio::piped()).stdout(Stdio::piped());
    for _ in 0..verbose {
        command.arg("-v");
    }
    // The builders know the progress of a run. With hundreds of sources, each would wake up for figures that no one
    // looks at.
    if index >= topology.builders.len() {
        command.arg("--unwatched");
    }
    // A name may look like an option.
    command.args(["--", name, "-"]);
    // An interrupt from the terminal is for the supervisor alone.
    command.process_group(0);
    let mut child = match network {
        Some(network) => {
            let host = u16::try_from(index).map_err(Failure::broken)?;
            network.run_on_host(host, || command.spawn()).map_err(Failure::usage)?
        }
        None => command.spawn(),
    }
    .map_err(Failure::broken)?;
    let mut stdin = child.stdin.take();
    let mut text = serde_json::to_string(topology).map_err(Failure::broken)?;
    text.push('\n');
    if let Some(stdin) = &mut stdin {
        stdin.write_all(text.as_bytes()).map_err(Failure::broken)?;
    }
    if let Some(stdout) = child.stdout.take() {
        let news = news.clone();
        start_thread(move || {
            let _ = for_each_line(BufReader::new(stdout), |line| {
                if let Ok(message) = serde_json::from_slice(line) {
                    let _ = news.send(News::Message(index, message));
                }
            });
            let _ = news.send(News::Silent(index));
        })?;
    }
    Ok(Node { name: name.to_owned(), child, stdin, over: false })
}

/// Reads lines to the end. Lines longer than any that a node writes are skipped.
fn for_each_line(mut from: impl BufRead, mut take: impl FnMut(&[u8])) -> io::Result<()> {
    let mut line = Vec::new();
    let mut whole = true;
    while from.by_ref().take(LONGEST_LINE).read_until(b'\n', &mut line)? > 0 {
        let ends = line.ends_with(b"\n");
        if ends && whole {
            take(&line);
        }
        whole = ends;
        line.clear();
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_that_does_not_end_is_passed_over_and_the_next_one_is_read() {
        let endless = io::repeat(b'x').take(3 * LONGEST_LINE + 5);
        let input = b"first\n".chain(endless).chain(&b"\nlast\nbroken off"[..]);
        let mut lines = Vec::new();
        for_each_line(BufReader::new(input), |line| lines.push(String::from_utf8_lossy(line).into_owned())).unwrap();
        assert_eq!(lines, ["first\n", "last\n"]);
    }
}
