//! A node that takes part in one run after another: by commands on standard input (`thalweg node --stay`), or by those of
//! a control service (`--control`).

use crate::node::{self, Done, Kind};
use crate::print;
use crate::terminal::{Failure, json_line, outlet, service_manager, signals, start_thread};
use parking_lot::{Condvar, Mutex};
use std::io::{BufRead, Read};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;
use thalweg_node::service::{NodeReport, topology_digest};
use thalweg_node::{
    BuilderReport, Command, CommandRefusal, Handle, NodeCommand, RunOrder, RunReport, Snapshot, State, StepOrder,
    Topology,
};

/// Time after a failed run until the next one is prepared.
const RETRY_PAUSE: Duration = Duration::from_secs(1);
/// Maximum length of a line of standard input, in bytes.
const MAX_LINE_BYTES: u64 = 4096;
/// Time after which a change of the state is printed at the latest.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// Runs of a node that stays, for the threads that control it.
#[derive(Debug, Clone)]
pub(crate) struct Stay(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    handle: Handle,
    /// Number of runs taken part in so far, with the present one.
    runs: AtomicU64,
    /// True if no further run is to follow.
    leaves: AtomicBool,
    plan: Mutex<Plan>,
    /// Notifies of another topology, and of the request to leave.
    changed: Condvar,
}

/// Topology of the next run, and results of the last one.
#[derive(Debug, Clone, Default)]
pub(crate) struct Plan {
    /// The topology; `None` until a service has sent one.
    pub(crate) topology: Option<Topology>,
    /// Digest of the topology as it was given.
    pub(crate) digest: String,
    /// Number of requests to prepare, and that of the request which the present preparation answers.
    requests: u64,
    answered: u64,
    /// True from the beginning of a preparation to the end of its run.
    is_active: bool,
    /// True while a node exists that is ready to take part in a run, on a host that was found fit.
    pub(crate) is_prepared: bool,
    /// True if the present topology was armed: on a request, this host was found fit for it.
    pub(crate) is_armed: bool,
    /// Reason why the last run failed, or could not be prepared; empty if it did not.
    pub(crate) failure: String,
    /// Reports of the last runs, the oldest first.
    pub(crate) last_reports: Vec<NodeReport>,
}

/// Number of reports that are kept for a service that may be away.
const MAX_REPORTS: usize = 8;

impl Plan {
    /// Keeps the report of a builder. Where runs have numbers of the topology's, the next one has the number after it.
    fn keep_builder_report(&mut self, report: &BuilderReport, runs: u64) {
        self.keep_report(NodeReport::of_builder(report, runs));
        let number = self.topology.as_mut().map(|topology| &mut topology.run.number);
        number.into_iter().flatten().for_each(|number| *number = report.run.saturating_add(1));
    }

    fn keep_report(&mut self, report: NodeReport) {
        if self.last_reports.len() == MAX_REPORTS {
            self.last_reports.remove(0);
        }
        self.last_reports.push(report);
    }
}

impl Stay {
    pub(crate) fn new() -> Result<Self, Failure> {
        let handle = Handle::new().map_err(Failure::broken)?;
        handle.close_queue();
        Ok(Self(Arc::new(Inner {
            handle,
            runs: AtomicU64::new(0),
            leaves: AtomicBool::new(false),
            plan: Mutex::default(),
            changed: Condvar::new(),
        })))
    }

    /// Returns the handle on the node of the present run, and of all later ones.
    pub(crate) fn handle(&self) -> &Handle {
        &self.0.handle
    }

    /// Returns the number of runs taken part in so far, with the present one.
    pub(crate) fn run_count(&self) -> u64 {
        self.0.runs.load(Ordering::Relaxed)
    }

    /// Returns a copy of the plan.
    pub(crate) fn plan(&self) -> Plan {
        self.0.plan.lock().clone()
    }

    /// Returns a copy of the plan, and the snapshot that belongs to it: no run ends, and none is prepared, between them.
    pub(crate) fn plan_and_snapshot(&self) -> (Plan, Arc<Snapshot>) {
        let plan = self.0.plan.lock();
        (plan.clone(), self.0.handle.latest_snapshot())
    }

    /// Returns the name of a source, by its place in the topology.
    pub(crate) fn source_name(&self, source: usize) -> Option<String> {
        let plan = self.0.plan.lock();
        plan.topology.as_ref()?.sources.get(source).map(|source| source.name.clone())
    }

    /// Sets the topology of the next run, and prepares for it. Returns the number of this request.
    pub(crate) fn set_topology(&self, topology: Topology) -> u64 {
        let mut plan = self.0.plan.lock();
        plan.digest = topology_digest(&topology);
        (plan.topology, plan.is_armed) = (Some(topology), false);
        self.request_preparation(&mut plan)
    }

    /// Prepares for the next run anew, which examines this host. Returns the number of this request.
    pub(crate) fn prepare_anew(&self) -> u64 {
        self.request_preparation(&mut self.0.plan.lock())
    }

    fn request_preparation(&self, plan: &mut Plan) -> u64 {
        plan.requests += 1;
        plan.failure.clear();
        if plan.is_active {
            self.0.handle.request_end();
        }
        self.0.changed.notify_all();
        plan.requests
    }

    /// Returns the result of a request to prepare, with the reason if it failed; `None` while it is under way.
    pub(crate) fn preparation_result(&self, request: u64) -> Option<Result<(), String>> {
        let plan = self.0.plan.lock();
        match plan.answered >= request {
            true if plan.is_prepared => Some(Ok(())),
            true if !plan.failure.is_empty() => Some(Err(plan.failure.clone())),
            _ => None,
        }
    }

    /// Notes that this host was found fit on a request to arm, or that it was not.
    pub(crate) fn set_armed(&self, is_armed: bool) {
        self.0.plan.lock().is_armed = is_armed;
    }

    /// Begins the next run: waits for a topology, and takes commands. Returns `None` if there is to be none.
    fn begin_run(&self) -> Option<Topology> {
        let mut plan = self.0.plan.lock();
        while plan.topology.is_none() && !self.is_leaving() {
            self.0.changed.wait(&mut plan);
        }
        self.0.runs.fetch_add(1, Ordering::Relaxed);
        (plan.answered, plan.is_active) = (plan.requests, true);
        self.0.handle.open_queue();
        plan.topology.clone().filter(|_| !self.is_leaving())
    }

    /// Ends a run. Returns the commands that came too late for it.
    fn end_run(&self, result: Result<&Done, &Failure>) -> Vec<NodeCommand> {
        let mut plan = self.0.plan.lock();
        let runs = self.run_count();
        (plan.is_active, plan.is_prepared) = (false, false);
        plan.failure.clear();
        match result {
            Ok(Done::Builder(report)) => plan.keep_builder_report(report, runs),
            Ok(Done::Source(report)) => plan.keep_report(NodeReport::of_source(report, runs)),
            Err(_) if plan.requests > plan.answered => {}
            Err(failure) => plan.failure = failure.to_string(),
        }
        self.0.handle.close_queue()
    }

    /// Prints and keeps the reports of runs that others have followed without a gap.
    fn report_followed_runs(&self, json: bool) {
        for report in self.0.handle.take_reports() {
            self.0.plan.lock().keep_builder_report(&report, self.run_count());
            print::print_run_report(&RunReport::new(&[report]), json);
        }
    }

    /// Notes that the node is prepared, and keeps the addresses on which it listens, with the ports that the system
    /// chose, for the next run.
    fn note_prepared(&self, name: &str, addresses: &[thalweg_link::Address]) {
        let mut plan = self.0.plan.lock();
        self.0.handle.forget_snapshot();
        plan.is_prepared = true;
        plan.failure.clear();
        let builders = plan.topology.iter_mut().flat_map(|topology| &mut topology.builders);
        if let Some(builder) = builders.into_iter().find(|builder| builder.name == name) {
            builder.listen = addresses.to_vec();
        }
    }

    /// Waits until the next attempt after a failure, another topology or the request to leave.
    fn wait_after_failure(&self) {
        let mut plan = self.0.plan.lock();
        if plan.requests == plan.answered && !self.is_leaving() {
            self.0.changed.wait_for(&mut plan, RETRY_PAUSE);
        }
    }

    /// Returns whether no further run is to follow.
    pub(crate) fn is_leaving(&self) -> bool {
        self.0.leaves.load(Ordering::Relaxed)
    }

    /// Ends the present run, and prevents further ones. Returns the number of times that this was requested.
    pub(crate) fn leave_after_run(&self) -> u32 {
        let _plan = self.0.plan.lock();
        self.0.leaves.store(true, Ordering::Relaxed);
        self.0.changed.notify_all();
        self.0.handle.request_end()
    }

    /// Makes interrupts and terminations end the node: the first one cleanly, the second one at once.
    pub(crate) fn leave_on_signals(&self) -> Result<(), Failure> {
        let stay = self.clone();
        signals::on_interrupt(move || {
            if stay.leave_after_run() > 2 {
                std::process::exit(1);
            }
        })
    }
}

/// Takes part in one run after another until the command `quit`.
pub(crate) fn stay_for_runs(topology: Topology, name: &str, json: bool) -> Result<ExitCode, Failure> {
    let stay = Stay::new()?;
    stay.leave_on_signals()?;
    start_thread({
        let stay = stay.clone();
        let sources =
            topology.sources.iter().map(|source| (source.id.clone(), source.name.clone())).collect::<Vec<_>>();
        move || read_commands(std::io::stdin().lock(), |line| execute_command(&stay, &sources, line))
    })?;
    print_state_changes(stay.clone(), name.to_owned(), json)?;
    stay.set_topology(topology);
    take_part_in_runs(&stay, name, json, true)
}

/// Takes part in one run after another until the node is to leave. `ends_if_unusable`: fails if the first run cannot be
/// prepared since the topology is not right.
pub(crate) fn take_part_in_runs(
    stay: &Stay,
    name: &str,
    json: bool,
    ends_if_unusable: bool,
) -> Result<ExitCode, Failure> {
    // A topology that a run was prepared with is right: later failures come from the machine, such as a device that is
    // unplugged.
    let mut was_prepared = false;
    let mut last_failure = String::new();
    // A node with a topology of its own reports its state here, one of a service its connection, too.
    crate::watchdog::watch_node(stay.handle().clone(), ends_if_unusable, {
        let stay = stay.clone();
        move || stay.plan().is_prepared
    })?;
    start_thread({
        let stay = stay.clone();
        move || loop {
            stay.report_followed_runs(json);
            thread::sleep(POLL_INTERVAL);
        }
    })?;
    while let Some(topology) = stay.begin_run() {
        let result = node::run_node(&topology, name, stay.handle(), Kind::Waiting, |addresses| {
            was_prepared = true;
            node::print_listening(name, addresses);
            service_manager::report_ready();
            stay.note_prepared(name, addresses);
        });
        stay.report_followed_runs(json);
        let late = stay.end_run(result.as_ref());
        let plan = stay.plan();
        let was_replaced = plan.requests > plan.answered;
        if !stay.is_leaving() && !was_replaced {
            // The request for its end would be among them.
            late.iter().for_each(report_unready);
        }
        match result {
            Ok(done) => {
                was_prepared = true;
                last_failure.clear();
                match done {
                    Done::Builder(report) => _ = print::print_run_report(&RunReport::new(&[*report]), json),
                    Done::Source(report) => print::print_source_report(&report, json),
                }
            }
            Err(failure @ Failure::Usage(_)) if ends_if_unusable && !was_prepared => return Err(failure),
            // The end of a node that was to end before a run began is no failure.
            Err(_) if stay.is_leaving() => break,
            Err(_) if was_replaced => {}
            Err(failure) => {
                // The warning is given once, and not once a second for as long as a device is away.
                let text = failure.to_string();
                if text != last_failure {
                    tracing::warn!("{name}: {text}; retrying");
                    last_failure = text;
                }
                stay.wait_after_failure();
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Passes each line of `input` to `execute`, until the input ends. Bytes that are no text become unknown commands, and so
/// does the beginning of a line that is too long; its remainder is skipped.
fn read_commands(mut input: impl BufRead, execute: impl Fn(&str)) {
    let (mut line, mut skips) = (Vec::new(), false);
    loop {
        match (&mut input).take(MAX_LINE_BYTES).read_until(b'\n', &mut line) {
            Ok(0) => break,
            Ok(_) => {
                let text = String::from_utf8_lossy(&line);
                let is_piece = line.len() as u64 == MAX_LINE_BYTES && !line.ends_with(b"\n");
                match is_piece {
                    _ if skips => {}
                    true => execute(&text),
                    false => execute(text.trim()),
                }
                skips = is_piece;
                line.clear();
            }
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(_) => break,
        }
    }
}

/// Executes one line of standard input. `sources`: ids and names, in the order of the topology.
fn execute_command(stay: &Stay, sources: &[(String, String)], line: &str) {
    match line {
        "" => {}
        "start" => execute_run_command(stay, Command::Start),
        "pause" => execute_run_command(stay, Command::Pause),
        "resume" => execute_run_command(stay, Command::Resume),
        "stop" => execute_run_command(stay, Command::Stop),
        "abort" => execute_run_command(stay, Command::Abort),
        "next" => execute_run_command(stay, NodeCommand::Next(RunOrder::default())),
        "quit" => _ = stay.leave_after_run(),
        "status" => {
            let snapshot = stay.handle().latest_snapshot();
            outlet::stdout().put_text(json_line(&status_json(&snapshot, sources)).unwrap_or_default());
        }
        step if step.starts_with("step ") => {
            let label = step["step ".len()..].trim().to_owned();
            execute_run_command(stay, NodeCommand::Step(StepOrder { label, ..StepOrder::default() }));
        }
        other => outlet::stderr().put_text(format!(
            "unknown command '{}': write start, pause, resume, next, step LABEL, stop, abort, status or quit\n",
            thalweg_text::replace_controls(other)
        )),
    }
}

/// Sends a command to the node, or reports that there is none at present.
fn execute_run_command(stay: &Stay, command: impl Into<NodeCommand>) {
    let command = command.into();
    if !stay.handle().send_command(command.clone()) {
        report_unready(&command);
    }
}

/// Reports a command that no node carries out.
fn report_unready(command: &NodeCommand) {
    outlet::stderr().put_text(format!("{}\n", CommandRefusal::between_runs(command)));
}

/// Returns the status of a node as JSON, with the id and the name of each source in its row. `sources` as in
/// [`execute_command`].
fn status_json(snapshot: &Snapshot, sources: &[(String, String)]) -> serde_json::Value {
    let mut status = serde_json::to_value(snapshot).unwrap_or_default();
    let rows = status["sources"].as_array_mut().into_iter().flatten().filter_map(serde_json::Value::as_object_mut);
    for (row, (id, name)) in rows.zip(sources) {
        row.insert("id".into(), id.as_str().into());
        row.insert("name".into(), name.as_str().into());
    }
    status
}

/// Prints the state of the run whenever it has changed since it was printed last. The beginning of another run is a change,
/// too: a run may be over within [`POLL_INTERVAL`].
fn print_state_changes(stay: Stay, name: String, json: bool) -> Result<(), Failure> {
    start_thread(move || {
        let (mut printed, mut printed_run) = (State::Idle, 0);
        loop {
            let (snapshot, run) = (stay.handle().latest_snapshot(), stay.run_count());
            let state = snapshot.state;
            if state != printed || run != printed_run && state != State::Idle {
                (printed, printed_run) = (state, run);
                if json {
                    let line = json_line(&serde_json::json!({ "node": name, "state": state }));
                    outlet::stdout().put_text(line.unwrap_or_default());
                } else {
                    outlet::stderr().put_text(format!("{name}: {state}\n"));
                }
            }
            thread::sleep(POLL_INTERVAL);
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;
    use thalweg_node::SourceRow;

    #[test]
    fn a_status_names_each_source() {
        let snapshot =
            Snapshot { sources: vec![SourceRow { built: 7, ..SourceRow::default() }], ..Snapshot::default() };
        let status = status_json(&snapshot, &[("1.0".into(), "adc-0".into())]);
        let row = &status["sources"][0];
        assert_eq!((&row["id"], &row["name"], &row["built"]), (&"1.0".into(), &"adc-0".into(), &7.into()));
    }

    /// A command between two runs was taken by the node of the run before, and lost.
    #[test]
    fn a_command_reaches_the_node_of_the_present_run_or_is_refused() {
        let stay = Stay::new().unwrap();
        let handle = stay.handle();
        assert!(!handle.send_command(Command::Start), "no node is ready");
        let refusal = handle.request(Command::Start).recv().unwrap().unwrap_err();
        assert!(refusal.to_string().starts_with("cannot start: the node is not ready"), "{refusal}");
        stay.set_topology(Topology::default());
        assert!(stay.begin_run().is_some());
        assert!(handle.send_command(Command::Start));
        let reply = handle.request(Command::Pause);
        let late = stay.end_run(Err(&Failure::broken("the device is unplugged")));
        assert_eq!(late, [NodeCommand::from(Command::Start)], "it came too late for the node");
        assert!(reply.recv().unwrap().is_err(), "it came too late, too");
        assert!(!handle.send_command(Command::Start), "the next run is not prepared");
        assert!(!stay.is_leaving());
        stay.leave_after_run();
        assert!(stay.is_leaving() && stay.begin_run().is_none());
    }

    #[test]
    fn what_is_no_text_costs_no_other_command() {
        let received = RefCell::new(Vec::new());
        let long = format!("start{}abort", " ".repeat(4091));
        let input = [b"start\n\xff\xfe\n pause \r\n", long.as_bytes(), b"\nstop"].concat();
        read_commands(&input[..], |line| received.borrow_mut().push(line.to_owned()));
        let lines = received.into_inner();
        assert_eq!(lines, ["start", "\u{fffd}\u{fffd}", "pause", &long[..4096], "stop"]);
    }
}
