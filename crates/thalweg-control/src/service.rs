//! The service: carries out the actions of the [`Experiment`], and keeps its status, history, messages and alarms.

pub(crate) mod latest;
mod managed;
mod node_processes;

use crate::access::{Role, Tokens};
use crate::alarms::{AlarmView, Alarms, find_conditions, find_undelivered};
use crate::audit::AuditLog;
use crate::config::ControlConfig;
use crate::experiment::{Action, Experiment, Now, Rejection, Request};
use crate::history::{Columns, History, Second, SourceSecond};
use crate::notices::Notices;
use crate::processes::Processes;
use crate::rates::Rates;
use crate::records::{Flag, NoteError, RunRecord};
use crate::state::CommandName;
use crate::status::{MessageView, ServiceView, Status};
use crate::storage::{Storage, StorageOrder, StoragePlace, StorageReport, StorageView};
use crate::view::{Addresses, events_left, experiment_status};
use parking_lot::Mutex;
use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use thalweg::terminal::service_manager::{self, KeepAlive};
use thalweg_node::Topology;
use thalweg_node::service::latest::LatestFragment;
use thalweg_node::service::{FromNode, NodeHello, Severity, ToNode, cut_text};
use tokio::sync::{mpsc, oneshot, watch};

/// Time from one status to the next.
pub const STATUS_INTERVAL: Duration = Duration::from_millis(100);
/// Time after the beginning of the service for which alarms stay as they were: nodes are still connecting.
const CONNECTING_TIME: Duration = Duration::from_secs(10);
/// Longest text of a message, in bytes; the remainder is cut off.
const MAX_MESSAGE_BYTES: usize = 4096;
/// Number of messages that are kept for clients that were away, and that a status shows.
const MAX_MESSAGES: usize = 1000;
const MAX_SHOWN_MESSAGES: usize = 50;

/// The service. Clones of its `Arc` belong to the connections of nodes and clients.
#[derive(Debug)]
pub struct Service {
    inner: Mutex<Inner>,
    /// Number of the latest status, which clients wait for.
    changed: watch::Sender<u64>,
    /// Number of the latest message.
    message_count: watch::Sender<u64>,
    /// Tokens of clients.
    pub tokens: Tokens,
    /// Log of all requests that change something.
    pub audit: AuditLog,
    topology_path: PathBuf,
    /// Directory of its files.
    directory: PathBuf,
    latest: latest::LatestFragments,
    begun: Instant,
}

#[derive(Debug)]
struct Inner {
    config: ControlConfig,
    experiment: Experiment,
    rates: Rates,
    history: History,
    alarms: Alarms,
    processes: Processes,
    restarts: node_processes::Restarts,
    storage: Storage,
    stored: StorageView,
    notices: Notices,
    messages: VecDeque<MessageView>,
    status: Arc<Status>,
    service: ServiceView,
    /// Nodes that are connected.
    links: BTreeMap<String, NodeLink>,
    last_connection: u64,
    addresses: Addresses,
    /// Requests whose answers clients wait for.
    answers: BTreeMap<u64, oneshot::Sender<Result<(), Rejection>>>,
    latest: BTreeMap<u64, oneshot::Sender<Option<LatestFragment>>>,
    last_ticket: u64,
    draining_of: Option<u64>,
    /// Times since which sources have sent nothing while others did.
    silent_since: Vec<Option<f64>>,
    last_second: f64,
    /// Number of the last message.
    last_message: u64,
}

/// Connection of a node, as the service sees it.
#[derive(Debug)]
struct NodeLink {
    /// Number of the connection: a node that connects again has another one.
    connection: u64,
    /// Number that the node's process has drawn.
    session: u64,
    /// Queue to the node.
    messages: mpsc::UnboundedSender<ToNode>,
}

/// Reason why the service cannot begin.
#[derive(Debug, thiserror::Error)]
pub enum ServiceError {
    /// A file in its directory cannot be read or written.
    #[error("{}: {error}", path.display())]
    File {
        /// Path of the file.
        path: PathBuf,
        /// The error.
        error: io::Error,
    },
    /// The tokens cannot be used.
    #[error(transparent)]
    Tokens(#[from] crate::access::TokenError),
    /// The topology is not right.
    #[error("{0}")]
    Topology(String),
}

impl ServiceError {
    fn in_directory(directory: &Path, error: io::Error) -> Self {
        Self::File { path: directory.to_owned(), error }
    }
}

impl Service {
    /// Creates the service of a topology. Its files are in `directory`.
    ///
    /// # Errors
    /// The topology is not right, or a file cannot be read or written.
    pub fn new(topology_path: &Path, directory: &Path, listen: Option<SocketAddr>) -> Result<Arc<Self>, ServiceError> {
        let left_out = read_left_out(directory);
        let (topology, mut config) = load_topology(topology_path, &left_out)
            // The topology may have changed since.
            .or_else(|_| load_topology(topology_path, &[]))
            .map_err(ServiceError::Topology)?;
        config.listen = listen.unwrap_or(config.listen);
        config.check_node_url().map_err(ServiceError::Topology)?;
        if config.experiment.is_empty() {
            config.experiment = topology_path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        }
        std::fs::create_dir_all(directory).map_err(|error| ServiceError::in_directory(directory, error))?;
        let tokens = Tokens::open(directory)?;
        let (storage, worker, runs) =
            Storage::open(directory).map_err(|error| ServiceError::in_directory(directory, error))?;
        let audit = AuditLog::open_log(directory).map_err(|error| ServiceError::in_directory(directory, error))?;
        let notices = Notices::open_destinations(&config, &runs).map_err(ServiceError::Topology)?;
        let begun = Instant::now();
        let now = Now { monotonic: Duration::ZERO, unix: unix_seconds() };
        // Numbers of statuses and messages go on where an earlier service stopped: they begin with the time in µs.
        let first_id = unix_micros();
        let inner = Inner {
            experiment: Experiment::new(topology, runs, now),
            rates: Rates::default(),
            history: History::default(),
            alarms: Alarms::open(directory),
            processes: Processes::new(directory, tokens.token_of(Role::Node).map(|token| token.secret.clone())),
            restarts: node_processes::Restarts::new(),
            storage,
            stored: StorageView::default(),
            notices,
            messages: VecDeque::new(),
            status: Arc::new(Status { id: first_id, ..Status::default() }),
            service: own_view(now.unix),
            links: BTreeMap::new(),
            last_connection: 0,
            addresses: Addresses::new(),
            answers: BTreeMap::new(),
            latest: BTreeMap::new(),
            last_ticket: 0,
            draining_of: None,
            silent_since: Vec::new(),
            last_second: 0.0,
            last_message: first_id,
            config,
        };
        let service = Arc::new(Self {
            inner: Mutex::new(inner),
            changed: watch::Sender::new(first_id),
            message_count: watch::Sender::new(first_id),
            tokens,
            audit,
            topology_path: topology_path.to_owned(),
            directory: directory.to_owned(),
            latest: latest::LatestFragments::default(),
            begun,
        });
        let receiver = Arc::downgrade(&service);
        let started = worker.start(move |report| {
            if let Some(service) = receiver.upgrade() {
                service.handle_storage(report);
            }
        });
        started.map_err(|error| ServiceError::in_directory(directory, error))?;
        service.inner.lock().place_storage();
        service.refresh_status();
        Ok(service)
    }

    /// Waits until the orders to write records are carried out. Returns whether they are, within `time`, and etcd has all.
    pub fn finish_records(&self, time: Duration) -> bool {
        let report = self.inner.lock().storage.request_report();
        report.recv_timeout(time) == Ok(true)
    }

    /// Takes a report of the storage.
    fn handle_storage(&self, report: StorageReport) {
        let now = self.current_time();
        let mut inner = self.inner.lock();
        inner.experiment.advance_time(now);
        match report {
            StorageReport::Reserved(ticket, reserved) => {
                inner.experiment.number_reserved(ticket, reserved.map(|record| *record));
            }
            StorageReport::Changed(record) => {
                let experiment = inner.config.experiment.clone();
                inner.notices.send_changed_record(&experiment, now.unix, &record);
                inner.experiment.record_changed(*record);
            }
            StorageReport::Looked(view) => {
                inner.notices.set_silent(view.another_sends_notices);
                inner.stored = view;
            }
            StorageReport::Problem(problem) => inner.add_message(now.unix, Severity::Error, None, problem),
        }
        inner.carry_out_actions(now.unix);
        drop(inner);
        self.refresh_status();
    }

    /// Returns the address on which to listen.
    pub fn listen_address(&self) -> SocketAddr {
        self.inner.lock().config.listen
    }

    /// Sets the address on which it listens: the port may be the system's choice.
    pub fn set_listen_address(&self, address: SocketAddr) {
        let mut inner = self.inner.lock();
        inner.config.listen = address;
        inner.place_storage();
    }

    /// Returns the latest status.
    pub fn latest_status(&self) -> Arc<Status> {
        Arc::clone(&self.inner.lock().status)
    }

    /// Returns a receiver of the numbers of statuses.
    pub fn watch_status(&self) -> watch::Receiver<u64> {
        self.changed.subscribe()
    }

    /// Returns a receiver of the numbers of messages.
    pub fn watch_messages(&self) -> watch::Receiver<u64> {
        self.message_count.subscribe()
    }

    /// Returns the number of the last message.
    pub fn last_message(&self) -> u64 {
        self.inner.lock().last_message
    }

    /// Returns the messages after that number, as far as they are kept.
    pub fn messages_after(&self, id: u64) -> Vec<MessageView> {
        self.inner.lock().messages.iter().filter(|message| message.id > id).cloned().collect()
    }

    /// Returns the values of the last `seconds`.
    pub fn latest_history(&self, seconds: usize) -> Columns {
        let inner = self.inner.lock();
        let names: Vec<String> = inner.experiment.topology().sources.iter().map(|source| source.name.clone()).collect();
        inner.history.columns(seconds, &names)
    }

    /// Returns the newest records of runs.
    pub fn list_runs(&self, limit: usize) -> Vec<RunRecord> {
        self.inner.lock().experiment.newest_runs().take(limit).cloned().collect()
    }

    /// Works without end: time passes, and the status is made anew.
    pub async fn pass_time(&self) {
        let mut ticks = tokio::time::interval(STATUS_INTERVAL);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut keep_alive = KeepAlive::new();
        loop {
            ticks.tick().await;
            self.refresh_status();
            keep_alive.iter_mut().for_each(KeepAlive::send_if_due);
            let status = self.latest_status();
            service_manager::report_status(&format!("{}: {}", status.state, status.sentence));
        }
    }

    /// Makes the status anew.
    fn refresh_status(&self) {
        let now = self.current_time();
        let mut inner = self.inner.lock();
        inner.experiment.advance_time(now);
        for (node, session) in inner.experiment.silent_nodes() {
            inner.remove_link(&node);
            inner.experiment.node_disconnected(&node, session);
            inner.add_message(
                now.unix,
                Severity::Warning,
                Some(&node),
                "its connection is silent, and is given up".into(),
            );
        }
        inner.carry_out_actions(now.unix);
        inner.continue_restarts(now);
        let before = inner.status.state;
        inner.make_status(&self.topology_path, now);
        if inner.status.state != before {
            let (state, sentence) = (inner.status.state, inner.status.sentence.clone());
            inner.add_message(now.unix, Severity::Info, None, format!("{state}: {sentence}"));
        }
        let (id, message) = (inner.status.id, inner.last_message);
        drop(inner);
        self.changed.send_replace(id);
        self.message_count.send_if_modified(|last| std::mem::replace(last, message) != message);
    }

    fn current_time(&self) -> Now {
        Now { monotonic: self.begun.elapsed(), unix: unix_seconds() }
    }

    /// Takes the connection of a node. Returns the number of the connection, and the receiver of messages to the node.
    ///
    /// # Errors
    /// The topology has no such node, or a process of that name is connected already.
    pub fn connect_node(
        &self,
        hello: NodeHello,
        address: SocketAddr,
    ) -> Result<(u64, mpsc::UnboundedReceiver<ToNode>), String> {
        let now = self.current_time();
        let mut inner = self.inner.lock();
        let (node, session) = (hello.node.clone(), hello.session);
        let text = format!("connected: process {} on {}", hello.pid, hello.host);
        inner.experiment.advance_time(now);
        inner.experiment.node_connected(hello)?;
        let (messages, receiver) = mpsc::unbounded_channel();
        inner.last_connection += 1;
        let connection = inner.last_connection;
        inner.links.insert(node.clone(), NodeLink { connection, session, messages });
        inner.addresses.insert(node.clone(), address.to_string());
        inner.processes.forget_observation(&node);
        inner.add_message(now.unix, Severity::Info, Some(&node), text);
        Ok((connection, receiver))
    }

    /// Notes that a connection of a node is down; the node may have another one already.
    pub fn disconnect_node(&self, node: &str, connection: u64) {
        let now = self.current_time();
        let mut inner = self.inner.lock();
        let link = inner.links.get(node).filter(|link| link.connection == connection);
        if let Some(session) = link.map(|link| link.session) {
            inner.remove_link(node);
            inner.experiment.advance_time(now);
            inner.experiment.node_disconnected(node, session);
            inner.add_message(now.unix, Severity::Warning, Some(node), "its connection is down".into());
            inner.carry_out_actions(now.unix);
        }
    }

    /// Takes a message of a node.
    pub fn handle_node_message(&self, node: &str, message: FromNode) {
        let now = self.current_time();
        let mut inner = self.inner.lock();
        inner.experiment.advance_time(now);
        let before = inner.experiment.state();
        match message {
            FromNode::Hello(_) => {}
            FromNode::Report { status, replies } => {
                if let Some(status) = status {
                    inner.rates.add_snapshot(node, &status.snapshot);
                    inner.experiment.node_reported(node, *status);
                }
                for reply in replies {
                    inner.experiment.node_answered(node, reply.id, reply.error);
                }
            }
            FromNode::Log(lines) => {
                for line in lines {
                    inner.add_message(line.unix_nanos as f64 / 1e9, line.severity, Some(node), line.text);
                }
            }
        }
        inner.carry_out_actions(now.unix);
        let has_changed = inner.experiment.state() != before;
        drop(inner);
        if has_changed {
            // A change is shown at once.
            self.refresh_status();
        }
    }

    /// Executes a request of a client, and waits for its end.
    ///
    /// # Errors
    /// It is not legal now, or was not carried out.
    pub async fn execute_request(&self, request: Request, by: &str) -> Result<(), Rejection> {
        let (answer, answered) = oneshot::channel();
        {
            let now = self.current_time();
            let mut inner = self.inner.lock();
            inner.last_ticket += 1;
            let ticket = inner.last_ticket;
            inner.answers.insert(ticket, answer);
            inner.experiment.advance_time(now);
            inner.experiment.execute_request(ticket, request, by);
            inner.carry_out_actions(now.unix);
        }
        self.refresh_status();
        let result = answered.await.unwrap_or_else(|_| Err(Rejection::Failed("the service is ending".into())));
        self.refresh_status();
        result
    }

    /// Reads the topology anew, for a configuration without the sources of these names, and takes its table `[control]`.
    ///
    /// # Errors
    /// A configuration is not legal now, or the topology is not right; the sentence says where.
    pub fn read_topology(&self, left_out: Vec<String>) -> Result<Topology, Rejection> {
        let legal = self.inner.lock().experiment.check_command(CommandName::Configure);
        legal.map_err(Rejection::NotLegal)?;
        let loaded = load_topology(&self.topology_path, &left_out)
            .and_then(|loaded| save_left_out(&self.directory, &left_out).map(|()| loaded));
        let (topology, config) = loaded.map_err(|problem| Rejection::Failed(format!("cannot configure: {problem}")))?;
        let mut inner = self.inner.lock();
        let (listen, experiment) = (inner.config.listen, inner.config.experiment.clone());
        let config = ControlConfig { listen, experiment, ..config };
        let checked = config.check_node_url().and_then(|()| inner.notices.change_destinations(&config));
        checked.map_err(|problem| Rejection::Failed(format!("cannot configure: {problem}")))?;
        inner.config = config;
        inner.place_storage();
        Ok(topology)
    }

    /// Adds a note to a run. Returns its record.
    ///
    /// # Errors
    /// There is no such run, the note is empty, or the run has too many.
    pub fn add_note(&self, run: u32, text: String, by: &str) -> Result<RunRecord, NoteError> {
        self.change_run(|experiment| experiment.add_note(run, text, by))
    }

    /// Judges a run. Returns its record; `None` if there is no such run.
    pub fn set_flag(&self, run: u32, flag: Flag) -> Option<RunRecord> {
        self.change_run(|experiment| experiment.set_flag(run, flag))
    }

    fn change_run<T>(&self, change: impl FnOnce(&mut Experiment) -> T) -> T {
        let now = self.current_time();
        let mut inner = self.inner.lock();
        inner.experiment.advance_time(now);
        let changed = change(&mut inner.experiment);
        inner.carry_out_actions(now.unix);
        changed
    }

    /// Acknowledges an alarm. Returns it; `None` if there is none of that name.
    pub fn acknowledge_alarm(&self, id: &str, why: &str, by: &str) -> Option<AlarmView> {
        self.inner.lock().alarms.acknowledge(id, why, by)
    }
}

impl Inner {
    fn send_to_node(&mut self, node: &str, message: ToNode) {
        if let Some(link) = self.links.get(node) {
            // The connection of a node that is gone is about to be taken down.
            let _ = link.messages.send(message);
        }
    }

    /// Forgets the connection of a node and its rates. Its address is kept: it is where the node is to be looked for.
    fn remove_link(&mut self, node: &str) {
        self.links.remove(node);
        self.rates.remove_node(node);
    }

    fn carry_out_actions(&mut self, unix: f64) {
        while let Some(action) = self.experiment.next_action() {
            match action {
                Action::Send { node, message } => self.send_to_node(&node, message),
                Action::StartNodes(nodes) => {
                    for node in nodes {
                        if let Err(problem) = self.start_node(&node) {
                            self.add_message(unix, Severity::Error, Some(&node), problem);
                        }
                    }
                }
                Action::Reserve(ticket, draft) => self.storage.order(StorageOrder::Reserve(ticket, draft)),
                Action::Record(record) => {
                    self.notices.send_record(&self.config.experiment, unix, &record);
                    self.storage.order(StorageOrder::Record(record));
                }
                Action::Answer(ticket, result) => {
                    if let Some(answer) = self.answers.remove(&ticket) {
                        let _ = answer.send(result);
                    }
                }
            }
        }
    }

    fn place_storage(&mut self) {
        let place = StoragePlace {
            runs: self.experiment.topology().run.directory.clone(),
            etcd: self.config.etcd.clone(),
            experiment: self.config.experiment.clone(),
            service: ServiceView { url: self.config.node_url(), ..self.service.clone() },
        };
        self.service.url.clone_from(&place.service.url);
        self.storage.order(StorageOrder::Configure(Box::new(place)));
    }

    fn add_message(&mut self, at: f64, severity: Severity, node: Option<&str>, mut text: String) {
        if self.messages.len() == MAX_MESSAGES {
            self.messages.pop_front();
        }
        cut_text(&mut text, MAX_MESSAGE_BYTES);
        self.last_message += 1;
        let id = self.last_message;
        let run = self.experiment.current_run().map(|run| run.number);
        tracing::info!(node, run, ?severity, "{text}");
        self.messages.push_back(MessageView { id, at, severity, node: node.map(str::to_owned), run, text });
    }

    fn make_status(&mut self, topology_path: &Path, now: Now) {
        let Now { monotonic, unix } = now;
        self.draining_of = match (events_left(&self.experiment), self.draining_of) {
            (Some(left), of) => Some(of.unwrap_or(left).max(left)),
            (None, _) => None,
        };
        let status = experiment_status(&self.experiment, &self.rates, &self.addresses, self.draining_of, unix);
        let mut status = Status {
            id: self.status.id + 1,
            experiment: self.config.experiment.clone(),
            topology: topology_path.display().to_string(),
            service: self.service.clone(),
            next_number: self.next_number(),
            number_problem: self.stored.problem.clone(),
            services: self.stored.services.clone(),
            processes: self.process_views(),
            left_out: left_out_of(self.experiment.topology()),
            destinations: self.notices.views(),
            messages: {
                let skipped = self.messages.len().saturating_sub(MAX_SHOWN_MESSAGES);
                self.messages.iter().skip(skipped).cloned().collect()
            },
            ..status
        };
        self.note_silence(&mut status, unix);
        if monotonic >= CONNECTING_TIME {
            self.update_alarms(&status, now);
        }
        status.alarms = self.alarms.views();
        status.silenced_alarms = status.alarms.iter().filter(|alarm| alarm.is_active && alarm.is_acknowledged).count();
        if unix.floor() != self.last_second {
            self.last_second = unix.floor();
            self.history.add_second(second_of(&status, unix));
        }
        self.status = Arc::new(status);
    }

    fn update_alarms(&mut self, status: &Status, now: Now) {
        let unix = now.unix;
        let silent = status.sources.iter().map(|source| source.silent_since_at.map_or(0.0, |since| unix - since));
        let silent: Vec<f64> = silent.collect();
        let mut conditions = find_conditions(status, &self.config.alarms, &silent);
        conditions.extend(find_undelivered(&status.destinations));
        for alarm in self.alarms.update_conditions(&conditions, now, self.config.alarms.hold) {
            let (severity, change) =
                if alarm.is_active { (Severity::Error, "alarm") } else { (Severity::Info, "the alarm is over") };
            self.add_message(unix, severity, None, format!("{change}: {}", alarm.text));
            self.notices.send_alarm(&self.config.experiment, unix, &alarm);
        }
    }

    fn next_number(&self) -> Option<u32> {
        let last = self.experiment.newest_runs().next().map_or(1, |run| run.number.saturating_add(1));
        let least = last.max(self.experiment.topology().run.number.unwrap_or(0));
        self.stored.next_number.map(|next| next.max(least))
    }

    /// Notes for each source since when it has sent nothing while another one has.
    fn note_silence(&mut self, status: &mut Status, unix: f64) {
        self.silent_since.resize(status.sources.len(), None);
        let some_move = status.sources.iter().any(|source| source.bytes_per_second > 0.0);
        for (source, since) in status.sources.iter_mut().zip(&mut self.silent_since) {
            let is_silent = some_move && source.bytes_per_second == 0.0 && !source.has_ended && status.state.has_run();
            *since = is_silent.then(|| since.unwrap_or(unix));
            source.silent_since_at = *since;
        }
    }
}

/// Returns this service, which has begun at this time, as it is shown.
fn own_view(since_at: f64) -> ServiceView {
    ServiceView {
        host: rustix::system::uname().nodename().to_string_lossy().into_owned(),
        version: thalweg::terminal::version_text(),
        since_at,
        url: String::new(),
    }
}

/// Returns the names of the sources that are left out of a topology.
pub(crate) fn left_out_of(topology: &Topology) -> Vec<String> {
    let names = topology.run.metadata.as_json().get(LEFT_OUT).cloned().unwrap_or_default();
    serde_json::from_value(names).unwrap_or_default()
}

fn second_of(status: &Status, unix: f64) -> Second {
    let has_run = status.state.has_run();
    Second {
        at: unix,
        events_per_second: has_run.then_some(status.totals.events_per_second),
        bytes_per_second: has_run.then_some(status.totals.bytes_per_second),
        incomplete: has_run.then_some(status.totals.incomplete),
        sources: status
            .sources
            .iter()
            .map(|source| SourceSecond {
                bytes_per_second: has_run.then_some(source.bytes_per_second),
                backlog: source.backlog,
                lost: source.ledger.lost + source.ledger.corrupt,
            })
            .collect(),
    }
}

/// Key of `[run.metadata]` with the names of the sources that are left out.
pub(crate) const LEFT_OUT: &str = "left_out";

/// Returns the names of the sources that are left out, as of the last configuration.
fn read_left_out(directory: &Path) -> Vec<String> {
    let text = std::fs::read(directory.join("left-out.json")).unwrap_or_default();
    serde_json::from_slice(&text).unwrap_or_default()
}

fn save_left_out(directory: &Path, names: &[String]) -> Result<(), String> {
    let path = directory.join("left-out.json");
    let text = serde_json::to_vec(names).unwrap_or_default();
    std::fs::write(&path, text).map_err(|error| format!("{}: {error}", path.display()))
}

/// Reads a topology, without the sources of these names, and its table `[control]`.
fn load_topology(path: &Path, left_out: &[String]) -> Result<(Topology, ControlConfig), String> {
    let mut topology = Topology::load_with_settings(path, None, &[]).map_err(|error| error.to_string())?;
    let config = ControlConfig::take_from(&mut topology).map_err(|error| format!("{}: {error}", path.display()))?;
    if let Some(unknown) = left_out.iter().find(|name| !topology.sources.iter().any(|source| source.name == **name)) {
        return Err(format!("the topology has no source '{unknown}' that could be left out"));
    }
    if !left_out.is_empty() {
        topology.sources.retain(|source| !left_out.contains(&source.name));
        topology.run.metadata.set_value(LEFT_OUT, left_out.into());
        let checked = topology.check_values();
        checked.map_err(|(field, problem)| format!("without {}: {field}: {problem}", left_out.join(", ")))?;
    }
    let addresses =
        topology.builders.iter().flat_map(|builder| builder.listen.iter().map(move |listen| (builder, listen)));
    for (builder, listen) in addresses {
        if listen.host_port().is_some_and(|place| place.ends_with(":0")) {
            return Err(format!(
                "builder '{}': listen {listen}: sources cannot know a port that the system chooses: set one",
                builder.name
            ));
        }
    }
    // Nodes may run in other directories.
    topology.run.directory = std::path::absolute(&topology.run.directory).map_err(|error| error.to_string())?;
    Ok((topology, config))
}

/// Returns the Unix time in microseconds.
pub(crate) fn unix_micros() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(now.as_micros()).unwrap_or(u64::MAX)
}

/// Returns the Unix time in seconds.
pub fn unix_seconds() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64()
}

/// Returns the directory of the files of a topology's service.
///
/// # Errors
/// The topology is not right.
pub fn default_directory(topology_path: &Path) -> Result<PathBuf, String> {
    let (topology, _) = load_topology(topology_path, &[])?;
    Ok(topology.run.directory.join(".control"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::processes::ProcessAction;

    const LAB: &str = r#"
[run]
directory = "runs"
[control.nodes]
builder = { manager = "none" }
[[builder]]
name = "builder"
listen = ["tcp:127.0.0.1:7401"]
[[source]]
name = "adc"
id = "1.0"
"#;

    pub(super) fn open_service(folder: &Path) -> Arc<Service> {
        std::fs::write(folder.join("lab.toml"), LAB).unwrap();
        Service::new(&folder.join("lab.toml"), &folder.join("control"), None).unwrap()
    }

    pub(super) fn hello() -> NodeHello {
        NodeHello {
            protocol: thalweg_node::service::SERVICE_PROTOCOL,
            node: "builder".into(),
            host: "a".into(),
            pid: 1,
            version: String::new(),
            session: 7,
        }
    }

    #[test]
    fn a_node_that_connects_again_keeps_its_new_connection_when_the_old_one_is_found_down() {
        let folder = tempfile::tempdir().unwrap();
        let service = open_service(folder.path());
        let address = SocketAddr::from(([127, 0, 0, 1], 1));
        let (old, mut old_messages) = service.connect_node(hello(), address).unwrap();
        let (new, mut new_messages) = service.connect_node(hello(), address).unwrap();
        assert!(old_messages.blocking_recv().is_none(), "the old connection is to be closed");
        service.disconnect_node("builder", old);
        service.control_process("builder", ProcessAction::Stop).unwrap();
        assert!(matches!(new_messages.blocking_recv(), Some(ToNode::Quit)));
        service.disconnect_node("builder", new);
        assert!(service.control_process("builder", ProcessAction::Stop).is_err());
    }

    #[test]
    fn a_configuration_that_is_not_legal_changes_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let service = open_service(folder.path());
        let topology = Box::new(service.read_topology(Vec::new()).unwrap());
        service.inner.lock().experiment.execute_request(1, Request::Configure(topology), "anna");
        std::fs::write(
            folder.path().join("lab.toml"),
            LAB.replace("[control.nodes]", "[control]\nwebhook = \"http://x\"\n[control.nodes]"),
        )
        .unwrap();
        let refusal = service.read_topology(Vec::new()).unwrap_err();
        assert_eq!(refusal.to_string(), "cannot configure: configure is under way: wait until that is done");
        assert!(service.inner.lock().config.webhook.is_none());
    }

    #[test]
    fn numbers_of_messages_and_statuses_rise_from_one_service_to_the_next() {
        let folder = tempfile::tempdir().unwrap();
        let (message, status) = {
            let service = open_service(folder.path());
            service.inner.lock().add_message(0.0, Severity::Info, None, "é".repeat(MAX_MESSAGE_BYTES));
            assert_eq!(service.messages_after(0)[0].text.len(), MAX_MESSAGE_BYTES, "a long text is cut off");
            (service.last_message(), service.latest_status().id)
        };
        let service = open_service(folder.path());
        assert!(service.last_message() > message && service.latest_status().id > status);
    }
}
