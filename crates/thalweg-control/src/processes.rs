//! Processes of nodes: children of the service, or started by ssh, systemd or Slurm. They outlive the service.

mod command;
mod slurm;
mod systemd;

use crate::config::NodeProcess;
use command::{new_command, quote_word, shell_command};
use serde::{Deserialize, Serialize};
pub use slurm::{Job, list_jobs};
use std::collections::BTreeMap;
use std::fmt;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::str::FromStr;
use std::sync::Arc;
use std::time::{Duration, Instant};
pub use systemd::Unit;
use tokio::sync::{Mutex, mpsc};
use utoipa::ToSchema;

/// Time after its start for which a process that is not connected counts as starting.
const START_TIME: Duration = Duration::from_secs(20);
/// Bytes at the end of a log that are read for its last lines.
const TAIL_BYTES: u64 = 64 << 10;
/// Largest number of lines of a log that are read.
const MAX_LOG_LINES: usize = 10_000;
/// Environment variable in which a node finds its token.
const TOKEN_VARIABLE: &str = "THALWEG_CONTROL_TOKEN";

/// Action on the process of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum ProcessAction {
    /// Starts it.
    Start,
    /// Ends it.
    Stop,
    /// Ends it, and starts it again. If it has ended already, starts it.
    Restart,
}

impl ProcessAction {
    /// All actions.
    pub const ALL: [Self; 3] = [Self::Start, Self::Stop, Self::Restart];

    /// Returns the name, as in the API.
    pub fn name(self) -> &'static str {
        match self {
            Self::Start => "start",
            Self::Stop => "stop",
            Self::Restart => "restart",
        }
    }
}

impl fmt::Display for ProcessAction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for ProcessAction {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|action| action.name() == text);
        found.ok_or_else(|| {
            format!(
                "there is no action '{text}' on a process; the actions are {}",
                Self::ALL.map(Self::name).join(", ")
            )
        })
    }
}

/// Returns the reason why the service does not start the process of a node that is started by others.
pub fn not_started_text(node: &str) -> String {
    format!("node '{node}' is not started by this service (manager = \"none\"), which waits for it")
}

/// Processes that this service has started, and what is known of those that others start.
#[derive(Debug)]
pub struct Processes {
    directory: PathBuf,
    token: String,
    started: BTreeMap<String, Started>,
    observed: BTreeMap<String, Observation>,
    orders: mpsc::UnboundedSender<Order>,
    /// Receiver of the orders, until their task takes it.
    receiver: Option<mpsc::UnboundedReceiver<Order>>,
    /// Lock of jobs of Slurm.
    submission: Arc<Mutex<()>>,
}

#[derive(Debug)]
struct Started {
    child: Child,
    at: Instant,
}

/// State of a process whose node is not connected.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Observation {
    /// `starting`, `failed` or `down`.
    pub state: &'static str,
    /// Sentence about it.
    pub text: String,
}

/// Order to systemd or Slurm, which take their time.
#[derive(Debug)]
pub struct Order {
    /// Name of the node.
    pub node: String,
    /// The process.
    pub process: ManagedProcess,
    /// The action.
    pub action: OrderedAction,
}

/// Action of an order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OrderedAction {
    /// Starts the process.
    Start,
    /// Ends the process, whose node is connected or is not.
    Stop {
        /// True if it is.
        is_connected: bool,
    },
}

impl Order {
    /// Carries it out.
    ///
    /// # Errors
    /// systemd or Slurm refuses it, or does not answer.
    pub async fn carry_out(&self) -> Result<(), String> {
        match (&self.process, self.action) {
            (ManagedProcess::Unit(unit), OrderedAction::Start) => unit.start_unit().await,
            (ManagedProcess::Unit(unit), OrderedAction::Stop { .. }) => unit.stop_unit().await,
            (ManagedProcess::Job(job), OrderedAction::Start) => job.submit().await,
            (ManagedProcess::Job(job), OrderedAction::Stop { is_connected }) => job.cancel(is_connected).await,
        }
    }
}

/// Process that another system starts and watches.
#[derive(Debug, Clone)]
pub enum ManagedProcess {
    /// Unit of systemd.
    Unit(Unit),
    /// Job of Slurm.
    Job(Job),
}

/// Log of a process: a file of the service's, or the journal of systemd.
#[derive(Debug)]
pub enum ProcessLog {
    /// File of the service's.
    File(PathBuf),
    /// Journal of a unit.
    Journal(Unit),
}

impl ProcessLog {
    /// Returns the last lines.
    ///
    /// # Errors
    /// There is no log, or the host does not answer.
    pub async fn read_tail(&self, lines: usize) -> Result<Vec<String>, String> {
        let lines = lines.min(MAX_LOG_LINES);
        let text = match self {
            Self::File(path) => {
                let text = read_end(path).map_err(|error| format!("{}: {error}", path.display()))?;
                String::from_utf8_lossy(&text).into_owned()
            }
            Self::Journal(unit) => unit.read_journal(lines).await?,
        };
        let all: Vec<&str> = text.lines().collect();
        let skipped = all.len().saturating_sub(lines);
        Ok(all.iter().skip(skipped).map(|line| thalweg_text::replace_controls(line).to_string()).collect())
    }
}

impl Processes {
    /// Creates an empty table. Logs are in `directory`; `token` is that of nodes.
    pub fn new(directory: &Path, token: Option<String>) -> Self {
        let (orders, receiver) = mpsc::unbounded_channel();
        Self {
            directory: directory.join("log"),
            token: token.unwrap_or_default(),
            started: BTreeMap::new(),
            observed: BTreeMap::new(),
            orders,
            receiver: Some(receiver),
            submission: Arc::default(),
        }
    }

    /// Removes and returns the receiver of orders, for the task that carries them out.
    pub fn take_orders(&mut self) -> Option<mpsc::UnboundedReceiver<Order>> {
        self.receiver.take()
    }

    /// Returns the process of a node that systemd or Slurm starts, if one of them does. `url` as for
    /// [`start_process`](Self::start_process).
    pub fn managed_process(&self, node: &str, process: &NodeProcess, url: &str) -> Option<ManagedProcess> {
        match process {
            NodeProcess::Systemd { host, unit } => {
                let name = unit.clone().unwrap_or_else(|| format!("thalweg-node@{node}"));
                Some(ManagedProcess::Unit(Unit { host: host.clone(), name }))
            }
            NodeProcess::Slurm { options, program } => Some(ManagedProcess::Job(Job {
                node: node.to_owned(),
                program: program.clone(),
                options: options.clone(),
                url: url.to_owned(),
                token: self.token.clone(),
                log: self.log_path(node),
                submission: Arc::clone(&self.submission),
            })),
            NodeProcess::Child | NodeProcess::Ssh { .. } | NodeProcess::None => None,
        }
    }

    /// Gives systemd or Slurm an order, if one of them starts the process. Returns whether that is so. Refusals are
    /// messages of the service.
    pub fn give_order(&self, node: &str, process: &NodeProcess, url: &str, action: OrderedAction) -> bool {
        let Some(process) = self.managed_process(node, process, url) else { return false };
        // The task that receives it ends with the service.
        let _ = self.orders.send(Order { node: node.to_owned(), process, action });
        true
    }

    /// Keeps what is known of a process whose node is not connected. Returns whether it is news.
    pub fn keep_observation(&mut self, node: &str, observation: Observation) -> bool {
        let last = self.observed.insert(node.to_owned(), observation);
        last.as_ref() != self.observed.get(node)
    }

    /// Forgets what was known of a process: its node is connected.
    pub fn forget_observation(&mut self, node: &str) {
        self.observed.remove(node);
    }

    /// Returns the log of a node's process.
    pub fn log_of(&self, node: &str, process: &NodeProcess) -> ProcessLog {
        match self.managed_process(node, process, "") {
            Some(ManagedProcess::Unit(unit)) => ProcessLog::Journal(unit),
            _ => ProcessLog::File(self.log_path(node)),
        }
    }

    /// Starts the process of a node, which connects to the service at `url`.
    ///
    /// # Errors
    /// It is running without a connection, is not to be started by this service, or cannot be started.
    pub fn start_process(&mut self, node: &str, process: &NodeProcess, url: &str) -> Result<(), String> {
        if let Some(started) = self.started.get_mut(node)
            && matches!(started.child.try_wait(), Ok(None))
        {
            if started.at.elapsed() < START_TIME {
                return Ok(());
            }
            return Err(format!(
                "process {} of node '{node}' is running, and not connected to this service: read its log, and end it \
                 before another one is started",
                started.child.id()
            ));
        }
        if process.is_managed() {
            std::fs::create_dir_all(&self.directory)
                .map_err(|error| format!("{}: {error}", self.directory.display()))?;
            self.give_order(node, process, url, OrderedAction::Start);
            return Ok(());
        }
        let mut command = self.node_command(node, process, url)?;
        let log = self.open_log(node).map_err(|error| format!("{}: {error}", self.directory.display()))?;
        let error_log = log.try_clone().map_err(|error| error.to_string())?;
        // In a group of its own: an interrupt of the service's terminal is not for it.
        let spawned = command.stdout(log).stderr(error_log).process_group(0).spawn();
        let mut child = spawned.map_err(|error| format!("{}: {error}", command.get_program().display()))?;
        if let Some(mut stdin) = child.stdin.take() {
            let _ = stdin.write_all(format!("{}\n", self.token).as_bytes());
        }
        self.started.insert(node.to_owned(), Started { child, at: Instant::now() });
        Ok(())
    }

    /// Returns the command that starts a node, here or by ssh.
    fn node_command(&self, node: &str, process: &NodeProcess, url: &str) -> Result<Command, String> {
        match process {
            NodeProcess::Child => {
                let program = std::env::current_exe().map_err(|error| error.to_string())?;
                let mut command = new_command(program.with_file_name("thalweg"));
                command.args(["node", "--control", url, "--", node]).env(TOKEN_VARIABLE, &self.token);
                command.stdin(Stdio::null());
                Ok(command)
            }
            NodeProcess::Ssh { host, program } => {
                // The token comes over standard input: the arguments of a process are seen by all users of a host.
                let script = format!(
                    "read -r {TOKEN_VARIABLE}; export {TOKEN_VARIABLE}; exec setsid -w {} node --control {} -- {}",
                    quote_word(program),
                    quote_word(url),
                    quote_word(node)
                );
                let mut command = shell_command(Some(host), &script);
                command.stdin(Stdio::piped());
                Ok(command)
            }
            NodeProcess::Systemd { .. } | NodeProcess::Slurm { .. } | NodeProcess::None => Err(format!(
                "node '{node}' is not started by this service (manager = \"{}\"), which waits for it",
                process.manager_name()
            )),
        }
    }

    /// Returns the state of a process that is not connected: `starting`, `failed` or `down`.
    pub fn state_of(&mut self, node: &str, process: &NodeProcess) -> &'static str {
        if let Some(observation) = self.observed.get(node) {
            return observation.state;
        }
        let Some(started) = self.started.get_mut(node) else {
            // Its manager has not yet shown that it has ended.
            return if process.is_managed() { "starting" } else { "down" };
        };
        match started.child.try_wait() {
            Ok(None) if started.at.elapsed() < START_TIME => "starting",
            Ok(None) => "failed",
            Ok(Some(status)) if status.success() => "down",
            Ok(Some(_)) | Err(_) => "failed",
        }
    }

    /// Returns whether the process of a node that is not connected has ended; true for one that this service did not start.
    pub fn has_ended(&mut self, node: &str, process: &NodeProcess) -> bool {
        if process.is_managed() {
            // Slurm takes no second job of a node while it has the first.
            return self.observed.get(node).is_some_and(|observation| observation.state != "starting");
        }
        self.started.get_mut(node).is_none_or(|started| !matches!(started.child.try_wait(), Ok(None)))
    }

    fn log_path(&self, node: &str) -> PathBuf {
        let name: String =
            node.chars().map(|c| if c.is_alphanumeric() || "-_.".contains(c) { c } else { '_' }).collect();
        self.directory.join(format!("{}.log", name.trim_start_matches('.')))
    }

    fn open_log(&self, node: &str) -> io::Result<File> {
        std::fs::create_dir_all(&self.directory)?;
        OpenOptions::new().create(true).append(true).open(self.log_path(node))
    }
}

/// Reads the last [`TAIL_BYTES`] of a file.
fn read_end(path: &Path) -> io::Result<Vec<u8>> {
    let mut file = File::open(path)?;
    let length = file.metadata()?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(TAIL_BYTES)))?;
    let mut text = Vec::new();
    file.take(TAIL_BYTES).read_to_end(&mut text)?;
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_log_has_a_name_that_leads_nowhere_else() {
        let folder = tempfile::tempdir().unwrap();
        let processes = Processes::new(folder.path(), None);
        assert_eq!(processes.log_path("../../etc/x"), folder.path().join("log/_.._etc_x.log"));
        std::fs::create_dir(folder.path().join("log")).unwrap();
        std::fs::write(processes.log_path("adc"), "one\ntwo\n\u{1b}[2Jthree\n").unwrap();
        let log = processes.log_of("adc", &NodeProcess::Child);
        assert_eq!(log.read_tail(2).await.unwrap().len(), 2);
        assert!(!log.read_tail(1).await.unwrap()[0].contains('\u{1b}'));
        let missing = processes.log_of("camera", &NodeProcess::Child).read_tail(1).await;
        assert!(missing.unwrap_err().contains("camera.log"));
    }

    #[test]
    fn a_job_is_down_once_slurm_shows_it() {
        let folder = tempfile::tempdir().unwrap();
        let mut processes = Processes::new(folder.path(), None);
        let job = NodeProcess::Slurm { options: Vec::new(), program: "thalweg".into() };
        assert_eq!((processes.state_of("adc", &job), processes.has_ended("adc", &job)), ("starting", false));
        processes.keep_observation("adc", Observation { state: "down", text: String::new() });
        assert_eq!((processes.state_of("adc", &job), processes.has_ended("adc", &job)), ("down", true));
        processes.forget_observation("adc");
        assert_eq!(processes.state_of("adc", &NodeProcess::Child), "down");
    }

    #[test]
    fn a_process_that_is_running_without_a_connection_gets_no_second_one() {
        let folder = tempfile::tempdir().unwrap();
        let mut processes = Processes::new(folder.path(), None);
        let child = Command::new("cat").stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
        let at = Instant::now().checked_sub(START_TIME).unwrap();
        processes.started.insert("adc".into(), Started { child, at });
        let refusal = processes.start_process("adc", &NodeProcess::Child, "http://127.0.0.1:1").unwrap_err();
        assert!(refusal.contains("of node 'adc' is running"), "{refusal}");
        let mut started = processes.started.remove("adc").unwrap();
        drop(started.child.stdin.take());
        started.child.wait().unwrap();
    }
}
