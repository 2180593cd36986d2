//! Processes of nodes: started as children or by ssh, with a log of each. They outlive the service.

use crate::config::NodeProcess;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::str::FromStr;
use std::time::{Duration, Instant};
use utoipa::ToSchema;

/// Time after its start for which a process that is not connected counts as starting.
const START_TIME: Duration = Duration::from_secs(20);
/// Bytes at the end of a log that are read for its last lines.
const TAIL_BYTES: u64 = 64 << 10;
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

/// Processes that this service has started.
#[derive(Debug)]
pub struct Processes {
    directory: PathBuf,
    token: String,
    started: BTreeMap<String, Started>,
}

#[derive(Debug)]
struct Started {
    child: Child,
    at: Instant,
}

impl Processes {
    /// Creates an empty table. Logs are in `directory`; `token` is that of nodes.
    pub fn new(directory: &Path, token: Option<String>) -> Self {
        Self { directory: directory.join("log"), token: token.unwrap_or_default(), started: BTreeMap::new() }
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
        let log = self.open_log(node).map_err(|error| format!("{}: {error}", self.directory.display()))?;
        let mut command = match process {
            NodeProcess::Child => {
                let program = std::env::current_exe().map_err(|error| error.to_string())?;
                let mut command = Command::new(program.with_file_name("thalweg"));
                command
                    .args(["node", "--control", url, "--", node])
                    .env(TOKEN_VARIABLE, &self.token)
                    .stdin(Stdio::null());
                command
            }
            NodeProcess::Ssh { host, program } => {
                let mut command = Command::new("ssh");
                // The token comes over standard input: the arguments of a process are seen by all users of a host.
                let script = format!(
                    "read -r {TOKEN_VARIABLE}; export {TOKEN_VARIABLE}; exec setsid -w {} node --control {} -- {}",
                    quote_word(program),
                    quote_word(url),
                    quote_word(node)
                );
                command.args(["-o", "BatchMode=yes", "-T", "--", host]).arg(script).stdin(Stdio::piped());
                command
            }
            NodeProcess::None => {
                return Err(not_started_text(node));
            }
        };
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

    /// Returns the state of a process that is not connected: `starting`, `failed` or `down`.
    pub fn state_of(&mut self, node: &str) -> &'static str {
        let Some(started) = self.started.get_mut(node) else { return "down" };
        match started.child.try_wait() {
            Ok(None) if started.at.elapsed() < START_TIME => "starting",
            Ok(None) => "failed",
            Ok(Some(status)) if status.success() => "down",
            Ok(Some(_)) | Err(_) => "failed",
        }
    }

    /// Returns whether a process that this service has started has ended; true for any other.
    pub fn has_ended(&mut self, node: &str) -> bool {
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

    /// Returns the last lines of the log of a node's process.
    ///
    /// # Errors
    /// There is no log.
    pub fn log_tail(&self, node: &str, lines: usize) -> Result<Vec<String>, String> {
        let path = self.log_path(node);
        let text = read_end(&path).map_err(|error| format!("{}: {error}", path.display()))?;
        let text = String::from_utf8_lossy(&text);
        let all: Vec<&str> = text.lines().collect();
        let skipped = all.len().saturating_sub(lines);
        Ok(all.iter().skip(skipped).map(|line| thalweg_text::replace_controls(line).to_string()).collect())
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

/// Returns a word for a shell.
fn quote_word(word: &str) -> String {
    format!("'{}'", word.replace('\'', "'\\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_has_a_name_that_leads_nowhere_else() {
        let folder = tempfile::tempdir().unwrap();
        let processes = Processes::new(folder.path(), None);
        assert_eq!(processes.log_path("../../etc/x"), folder.path().join("log/_.._etc_x.log"));
        std::fs::create_dir(folder.path().join("log")).unwrap();
        std::fs::write(processes.log_path("adc"), "one\ntwo\n\u{1b}[2Jthree\n").unwrap();
        assert_eq!(processes.log_tail("adc", 2).unwrap().len(), 2);
        assert!(!processes.log_tail("adc", 1).unwrap()[0].contains('\u{1b}'));
        assert!(processes.log_tail("camera", 1).unwrap_err().contains("camera.log"));
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

    #[test]
    fn a_word_for_a_shell_is_one_word() {
        let output = Command::new("sh")
            .args(["-c", &format!("printf %s {}", quote_word("a'b; $(touch x) c"))])
            .output()
            .unwrap();
        assert_eq!(String::from_utf8_lossy(&output.stdout), "a'b; $(touch x) c");
    }
}
