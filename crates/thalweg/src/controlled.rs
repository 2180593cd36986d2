//! `thalweg node --control`: a node that a control service commands.
//!
//! The node makes the connection, and makes it again whenever it is lost: the service may end and begin as it likes, and
//! a run goes on without it. An experiment can have several services: each has a connection of its own.

mod latest;

use self::latest::{LatestPace, LatestRequest, LatestRequests};
use crate::stay::{Stay, take_part_in_runs};
use crate::terminal::{Failure, recent_log, service_manager, start_thread};
use crate::watchdog::state_text;
use parking_lot::Mutex;
use std::collections::{BTreeSet, VecDeque};
use std::io::ErrorKind;
use std::net::{TcpStream, ToSocketAddrs};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, TryRecvError};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use thalweg_node::log_context::set_process_node;
use thalweg_node::service::latest::LatestAnswer;
use thalweg_node::service::{
    FromNode, MAX_SERVICE_MESSAGE, NodeHello, NodeReply, NodeStatus, SERVICE_PROTOCOL, ToNode,
};
use thalweg_node::{CommandRefusal, Topology};
use tungstenite::client::IntoClientRequest;
use tungstenite::protocol::WebSocketConfig;
use tungstenite::protocol::frame::Frame;
use tungstenite::protocol::frame::coding::{Data, OpCode};
use tungstenite::{Message, WebSocket};

/// Time from one attempt to reach the service to the next.
const RETRY_INTERVAL: Duration = Duration::from_millis(500);
/// Time after which an attempt to reach the service is given up.
const CONNECT_TIME: Duration = Duration::from_secs(3);
/// Time from one status to the next: where something has changed, and where nothing has.
const STATUS_INTERVAL: Duration = Duration::from_millis(100);
const UNCHANGED_STATUS_INTERVAL: Duration = Duration::from_secs(1);
/// Longest wait for a message of the service before replies of the node are collected.
const POLL_INTERVAL: Duration = Duration::from_millis(10);
/// Time after which a service that receives nothing is given up.
const SEND_TIME: Duration = Duration::from_secs(5);
/// Longest wait for the end of the run before a preparation for the next is refused. A source may be in a run longer than
/// the builder is, until it notices that its connection has failed.
const RUN_END_TIME: Duration = Duration::from_secs(20);
/// Bytes read at a time. They are cleared before each read, a hundred times a second.
const READ_BUFFER_BYTES: usize = 4096;
/// Environment variable of the token with which a node identifies itself.
pub(crate) const TOKEN_VARIABLE: &str = "THALWEG_CONTROL_TOKEN";

/// Takes part in the runs that the services at `urls` command, until one of them ends the node.
pub(crate) fn follow_services(name: &str, urls: &[String], json: bool) -> Result<ExitCode, Failure> {
    let addresses: Vec<ServiceAddress> =
        urls.iter().map(|url| ServiceAddress::parse(url, name)).collect::<Result<_, _>>()?;
    set_process_node(name);
    let stay = Stay::new()?;
    stay.leave_on_signals()?;
    recent_log::keep_lines();
    let hello = NodeHello {
        protocol: SERVICE_PROTOCOL,
        node: name.to_owned(),
        host: rustix::system::uname().nodename().to_string_lossy().into_owned(),
        pid: std::process::id(),
        version: crate::terminal::version_text(),
        session: fastrand::u64(..),
    };
    let (accepted, pace) = (Accepted::default(), LatestPace::default());
    for address in addresses {
        let link = Link {
            stay: stay.clone(),
            hello: hello.clone(),
            commands: Vec::new(),
            requests: VecDeque::new(),
            preparations: Vec::new(),
            shown: NodeStatus::default(),
            shown_at: Instant::now(),
            seen_lines: 0,
            last_problem: String::new(),
            accepted: accepted.clone(),
            latest: LatestRequests::new(pace.clone()),
        };
        start_thread(move || link.serve(&address))?;
    }
    take_part_in_runs(&stay, name, json, false)
}

/// Address of the service, as its URL names it, and the request for the connection of a node.
#[derive(Debug)]
struct ServiceAddress {
    host_port: String,
    request: tungstenite::handshake::client::Request,
}

impl ServiceAddress {
    fn parse(url: &str, name: &str) -> Result<Self, Failure> {
        let host_port = url.strip_prefix("http://").map(|rest| rest.trim_end_matches('/'));
        let host_port = host_port.filter(|host_port| !host_port.is_empty() && !host_port.contains('/'));
        let host_port = host_port.ok_or_else(|| wrong_url(url, "no address of a service"))?;
        let host_port = if host_port.rsplit(']').next().is_some_and(|end| end.contains(':')) {
            host_port.to_owned()
        } else {
            format!("{host_port}:80")
        };
        let path = percent_encoding::utf8_percent_encode(name, percent_encoding::NON_ALPHANUMERIC);
        let mut request = format!("ws://{host_port}/api/v1/nodes/{path}/link")
            .into_client_request()
            .map_err(|error| wrong_url(url, &error.to_string()))?;
        if let Ok(token) = std::env::var(TOKEN_VARIABLE) {
            let value = format!("Bearer {token}");
            let value = value.parse().map_err(|_| Failure::Usage(format!("{TOKEN_VARIABLE}: no token")))?;
            request.headers_mut().insert("authorization", value);
        }
        Ok(Self { host_port, request })
    }

    fn connect(&self) -> Result<WebSocket<TcpStream>, String> {
        let addresses = self.host_port.to_socket_addrs().map_err(|error| error.to_string())?;
        let mut last = "the name has no address".to_owned();
        for address in addresses {
            match TcpStream::connect_timeout(&address, CONNECT_TIME) {
                Ok(stream) => return self.open_socket(stream),
                Err(error) => last = error.to_string(),
            }
        }
        Err(last)
    }

    fn open_socket(&self, stream: TcpStream) -> Result<WebSocket<TcpStream>, String> {
        let set = stream
            .set_nodelay(true)
            .and_then(|()| stream.set_read_timeout(Some(CONNECT_TIME)))
            .and_then(|()| stream.set_write_timeout(Some(SEND_TIME)));
        set.map_err(|error| error.to_string())?;
        // A host that is gone without a word is found out before the send buffer is full.
        let timeout_ms = u32::try_from(SEND_TIME.as_millis()).unwrap_or(u32::MAX);
        rustix::net::sockopt::set_tcp_user_timeout(&stream, timeout_ms).map_err(|error| error.to_string())?;
        let config = WebSocketConfig::default()
            .read_buffer_size(READ_BUFFER_BYTES)
            .max_message_size(Some(MAX_SERVICE_MESSAGE))
            .max_frame_size(Some(MAX_SERVICE_MESSAGE));
        let opened = tungstenite::client::client_with_config(self.request.clone(), stream, Some(config));
        let (socket, _) = opened.map_err(|error| match error {
            tungstenite::HandshakeError::Failure(tungstenite::Error::Http(response)) => refusal_text(&response),
            error => error.to_string(),
        })?;
        socket.get_ref().set_read_timeout(Some(POLL_INTERVAL)).map_err(|error| error.to_string())?;
        Ok(socket)
    }
}

fn wrong_url(url: &str, problem: &str) -> Failure {
    Failure::Usage(format!("--control {url}: {problem}: write http://HOST:PORT"))
}

/// Returns the reason why the service refused a connection.
fn refusal_text(response: &tungstenite::http::Response<Option<Vec<u8>>>) -> String {
    let body = response.body().as_deref().unwrap_or_default();
    let reason = serde_json::from_slice::<serde_json::Value>(body).ok();
    let reason = reason.as_ref().and_then(|body| body["error"]["reason"].as_str()).unwrap_or("no reason given");
    format!("the service answers {}: {}", response.status(), thalweg_text::replace_controls(reason))
}

/// Connection of this node to a service.
struct Link {
    stay: Stay,
    hello: NodeHello,
    /// Commands that the node has not answered, by the numbers of their requests.
    commands: Vec<(u64, Receiver<Result<(), CommandRefusal>>)>,
    /// Preparations that wait for the end of the run.
    requests: VecDeque<PreparationRequest>,
    /// Preparations under way: the number of the service's request, that of the preparation, and whether it arms.
    preparations: Vec<(u64, u64, bool)>,
    /// Status that was sent last, and when.
    shown: NodeStatus,
    shown_at: Instant,
    /// Number of the lines of the log that were sent.
    seen_lines: u64,
    /// Reason why there was no connection last; empty once there is one again.
    last_problem: String,
    /// Services that have accepted the node.
    accepted: Accepted,
    /// Requests for latest fragments.
    latest: LatestRequests,
}

/// Request of the service to prepare for the next run.
#[derive(Debug)]
struct PreparationRequest {
    /// Number of the request.
    id: u64,
    /// Topology of the run; `None` for the one that the node has: it is to arm.
    topology: Option<Topology>,
    /// Time until which it waits for the end of the run under way.
    until: Instant,
}

/// Addresses of the services that have accepted the node, as systemd shows them.
#[derive(Debug, Clone, Default)]
struct Accepted(Arc<Mutex<BTreeSet<String>>>);

impl Accepted {
    /// Adds a service, and reports the state of the run.
    fn add_place(&self, place: &str, state: &str) {
        let mut places = self.0.lock();
        let is_first = places.insert(place.to_owned()) && places.len() == 1;
        let list: Vec<&str> = places.iter().map(String::as_str).collect();
        // Before the unit is ready, so that a ready unit has a state.
        service_manager::report_status(&format!("connected to {}: {state}", list.join(", ")));
        if is_first {
            service_manager::report_ready();
        }
    }

    /// Removes a service, and reports the problem if there is no other one.
    fn remove_place(&self, place: &str, problem: &str) {
        let mut places = self.0.lock();
        places.remove(place);
        if places.is_empty() {
            let status = format!("no connection to the service at {place}: {problem}; trying again");
            service_manager::report_status(&status);
        }
    }
}

/// Reason why a connection ended.
type Lost = String;

impl Link {
    /// Keeps the connection as long as the process lives.
    fn serve(mut self, address: &ServiceAddress) {
        loop {
            let problem = match address.connect() {
                Ok(mut socket) => self.serve_connection(&mut socket, &address.host_port),
                Err(problem) => problem,
            };
            let place = &address.host_port;
            self.accepted.remove_place(place, &problem);
            // Once for each reason, and not twice a second while the service is away.
            if problem != self.last_problem {
                let node = &self.hello.node;
                tracing::warn!("{node}: no connection to the service at {place}: {problem}; trying again");
                self.last_problem = problem;
            }
            thread::sleep(RETRY_INTERVAL);
        }
    }

    fn serve_connection(&mut self, socket: &mut WebSocket<TcpStream>, place: &str) -> Lost {
        self.commands.clear();
        self.requests.clear();
        self.preparations.clear();
        self.latest.clear();
        let (begun, mut next_status) = (Instant::now(), Instant::now());
        if let Err(lost) = send_message(socket, &FromNode::Hello(self.hello.clone())) {
            return lost;
        }
        self.shown_at = Instant::now().checked_sub(UNCHANGED_STATUS_INTERVAL).unwrap_or_else(Instant::now);
        loop {
            let mut messages = Vec::new();
            let mut replies = self.begin_preparations();
            replies.extend(self.finished_preparations());
            let mut status = None;
            if Instant::now() >= next_status {
                next_status = Instant::now() + STATUS_INTERVAL;
                let lines = recent_log::new_lines(&mut self.seen_lines);
                messages.extend((!lines.is_empty()).then_some(FromNode::Log(lines)));
                status = self.next_status();
                // A service that refuses the node closes the connection at once.
                if begun.elapsed() > UNCHANGED_STATUS_INTERVAL {
                    self.note_accepted(place);
                }
            }
            // Commands are answered before the state is shown that they have led to.
            replies.extend(self.finished_commands());
            if !replies.is_empty() {
                status = status.or_else(|| self.next_status());
            }
            if status.is_some() || !replies.is_empty() {
                messages.push(FromNode::Report { status, replies });
            }
            match socket.read() {
                Ok(Message::Text(text)) => match serde_json::from_str(&text) {
                    Ok(message) => self.handle_message(message),
                    Err(error) => return format!("a message of the service is not understood: {error}"),
                },
                Ok(Message::Close(reason)) => {
                    let reason = reason.map(|frame| thalweg_text::replace_controls(&frame.reason).into_owned());
                    let reason = reason.filter(|reason| !reason.is_empty());
                    return reason.unwrap_or_else(|| "the service closed the connection".into());
                }
                Ok(_) => {}
                Err(tungstenite::Error::Io(error)) if is_timeout(error.kind()) => {}
                Err(error) => return error.to_string(),
            }
            let sent = messages.iter().try_for_each(|message| send_message(socket, message));
            if let Err(lost) = sent.and_then(|()| self.send_latest(socket)) {
                return lost;
            }
        }
    }

    /// Notes that the service has accepted the node, and reports the state of its run.
    fn note_accepted(&mut self, place: &str) {
        if !self.last_problem.is_empty() {
            tracing::warn!("{}: connected to the service again", self.hello.node);
            self.last_problem.clear();
        }
        self.accepted.add_place(place, &state_text(&self.shown.snapshot));
    }

    /// Returns the replies to preparations that have ended since the last call.
    fn finished_preparations(&mut self) -> Vec<NodeReply> {
        let mut finished = Vec::new();
        let stay = &self.stay;
        self.preparations.retain(|(id, preparation, arms)| {
            let Some(result) = stay.preparation_result(*preparation) else { return true };
            if *arms {
                stay.set_armed(result.is_ok());
            }
            finished.push(NodeReply { id: *id, error: result.err() });
            false
        });
        finished
    }

    /// Returns the replies to commands that have come since the last call.
    fn finished_commands(&mut self) -> Vec<NodeReply> {
        let mut finished = Vec::new();
        self.commands.retain(|(id, reply)| {
            let error = match reply.try_recv() {
                Err(TryRecvError::Empty) => return true,
                Err(TryRecvError::Disconnected) => Some("the node ended before it carried this out".to_owned()),
                Ok(result) => result.err().map(|refusal| refusal.to_string()),
            };
            finished.push(NodeReply { id: *id, error });
            false
        });
        finished
    }

    /// Returns the status if it has changed, or is due.
    fn next_status(&mut self) -> Option<Box<NodeStatus>> {
        let (plan, snapshot) = self.stay.plan_and_snapshot();
        let directory = plan.topology.as_ref().map(|topology| topology.run.directory.clone());
        let status = NodeStatus {
            topology: plan.digest,
            runs: self.stay.run_count(),
            is_prepared: plan.is_prepared,
            is_armed: plan.is_armed,
            failure: plan.failure,
            snapshot: (*snapshot).clone(),
            last_reports: plan.last_reports,
            unix_nanos: unix_nanos(),
            is_clock_synchronised: thalweg_doctor::is_clock_synchronised(),
            disk_free_bytes: directory.and_then(|directory| free_bytes(&directory)),
        };
        let is_same = without_time(&status) == without_time(&self.shown);
        if is_same && self.shown_at.elapsed() < UNCHANGED_STATUS_INTERVAL {
            return None;
        }
        self.shown_at = Instant::now();
        self.shown = status.clone();
        Some(Box::new(status))
    }

    /// Carries out a message of the service.
    fn handle_message(&mut self, message: ToNode) {
        match message {
            ToNode::Configure { id, topology } => self.request_preparation(id, Some(*topology)),
            ToNode::Arm { id } => self.request_preparation(id, None),
            ToNode::Command { id, command } => self.commands.push((id, self.stay.handle().request(command))),
            ToNode::Latest { id, source, width } => {
                let name = self.stay.source_name(source);
                self.latest.add_request(LatestRequest { id, source, name, width });
            }
            ToNode::Quit => _ = self.stay.leave_after_run(),
        }
    }

    fn request_preparation(&mut self, id: u64, topology: Option<Topology>) {
        self.requests.push_back(PreparationRequest { id, topology, until: Instant::now() + RUN_END_TIME });
    }

    /// Sends the latest fragments that are due.
    fn send_latest(&mut self, socket: &mut WebSocket<TcpStream>) -> Result<(), Lost> {
        let answers = self.latest.take_answers(self.stay.handle(), Instant::now());
        answers.iter().try_for_each(|answer| send_answer(socket, answer))
    }

    /// Begins the preparations that wait for no run any more. Returns the replies to those that are refused.
    fn begin_preparations(&mut self) -> Vec<NodeReply> {
        let mut refused = Vec::new();
        while let Some(request) = self.requests.pop_front() {
            let (plan, snapshot) = self.stay.plan_and_snapshot();
            let is_in_run = plan.is_prepared && snapshot.state.has_begun();
            if is_in_run && Instant::now() < request.until {
                self.requests.push_front(request);
                break;
            }
            let PreparationRequest { id, topology, .. } = request;
            let reason = if is_in_run {
                Some(format!("the run is {}: end it first", snapshot.state))
            } else {
                match &topology {
                    Some(topology) => {
                        crate::node::check_node_name(topology, &self.hello.node).err().map(|e| e.to_string())
                    }
                    None => plan.topology.is_none().then(|| "it has no topology: configure it first".into()),
                }
            };
            if reason.is_some() {
                refused.push(NodeReply { id, error: reason });
                continue;
            }
            let arms = topology.is_none();
            let preparation = match topology {
                Some(topology) => self.stay.set_topology(topology),
                None => self.stay.prepare_anew(),
            };
            self.preparations.push((id, preparation, arms));
        }
        refused
    }
}

fn send_message(socket: &mut WebSocket<TcpStream>, message: &FromNode) -> Result<(), Lost> {
    let text = serde_json::to_string(message).map_err(|error| error.to_string())?;
    socket.send(Message::text(text)).map_err(|error| error.to_string())
}

/// Sends an answer as a message of two frames (RFC 6455, section 5.4): its head, and its numbers as they are.
fn send_answer(socket: &mut WebSocket<TcpStream>, answer: &LatestAnswer) -> Result<(), Lost> {
    let [head, numbers] = answer.encode_message();
    let frames = [
        Frame::message(head, OpCode::Data(Data::Binary), false),
        Frame::message(numbers, OpCode::Data(Data::Continue), true),
    ];
    let written = frames.into_iter().try_for_each(|frame| socket.write(Message::Frame(frame)));
    written.and_then(|()| socket.flush()).map_err(|error| error.to_string())
}

fn is_timeout(kind: ErrorKind) -> bool {
    matches!(kind, ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted)
}

fn unix_nanos() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(now.as_nanos()).unwrap_or(u64::MAX)
}

/// Returns the free bytes on the disk of a directory that may be still to be made.
fn free_bytes(directory: &std::path::Path) -> Option<u64> {
    let existing = directory.ancestors().find(|path| path.exists())?;
    let disk = rustix::fs::statvfs(existing).ok()?;
    Some(disk.f_bavail.saturating_mul(disk.f_frsize))
}

/// Returns a status without what changes by itself: the time, and the free bytes of a disk.
fn without_time(status: &NodeStatus) -> NodeStatus {
    let mut status = status.clone();
    (status.unix_nanos, status.snapshot.at_nanos, status.disk_free_bytes) = (0, 0, None);
    status
}
