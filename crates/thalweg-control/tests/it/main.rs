//! Run control with real nodes: the built programs, as an operator uses them.

mod access;
mod etcd;
mod hosts;
mod shift;
mod takeover;
mod top;

use serde_json::Value;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};
use tempfile::TempDir;
use thalweg_control::access::{Role, Tokens};
use thalweg_control::client::Client;
use thalweg_control::state::ExperimentState;
use thalweg_control::status::Status;

/// Time after which something that was waited for counts as not happening, on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// An experiment in a folder of its own: a service, and the nodes that it starts.
struct Experiment {
    folder: TempDir,
    service: Option<Child>,
    url: String,
    /// Directory of the service's files, if it is another one than usual.
    directory: Option<String>,
}

impl Experiment {
    /// Starts the service of an experiment with these sources, over shared memory. Events wait for all of them, however
    /// busy the machine is.
    fn start(sources: &[&str]) -> Self {
        Self::start_with(sources, "", "60s")
    }

    /// Does the same with a table `[control]` and a time for which events wait for a source.
    fn start_with(sources: &[&str], control: &str, deadline: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mut text = format!(
            "[run]\ndirectory = \"runs\"\n[control]\n{control}\n[[builder]]\nname = \"builder\"\nlisten = [\"shm:{}\"]\ndeadline = \"{deadline}\"\n",
            folder.path().join("socket").display()
        );
        for (index, source) in sources.iter().enumerate() {
            text += &format!(
                "[[source]]\nname = \"{source}\"\nid = \"1.{index}\"\nlink = \"shm\"\nrate = 200\n\
                 device = {{ kind = \"model-adc\", size = \"4KiB\" }}\n"
            );
        }
        std::fs::write(folder.path().join("lab.toml"), text).unwrap();
        let mut experiment = Self { folder, service: None, url: String::new(), directory: None };
        experiment.start_service("127.0.0.1:0");
        experiment
    }

    fn start_service(&mut self, listen: &str) {
        let mut command = self.program(env!("CARGO_BIN_EXE_thalweg-control"));
        command.args(["--json", "control", "lab.toml", "--listen", listen]).stdout(Stdio::piped());
        command.args(self.directory.iter().flat_map(|directory| ["--directory", directory]));
        let mut service = command.spawn().unwrap();
        let mut line = String::new();
        BufReader::new(service.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let announced: Value = serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line}"));
        self.url = announced["listening"].as_str().unwrap().to_owned();
        self.service = Some(service);
    }

    /// Kills the service, and starts another one at the same address.
    fn replace_service(&mut self) {
        self.kill_service();
        let address = self.url.trim_start_matches("http://").to_owned();
        self.start_service(&address);
    }

    fn kill_service(&mut self) {
        if let Some(mut service) = self.service.take() {
            service.kill().unwrap();
            service.wait().unwrap();
        }
    }

    fn program(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        command.current_dir(self.folder.path()).env("XDG_STATE_HOME", self.folder.path());
        command.env_remove("THALWEG_CONTROL_URL").env_remove("THALWEG_CONTROL_TOKEN");
        command
    }

    /// Runs `thalweg ctl` with these words.
    fn ctl(&self, words: &[&str]) -> Output {
        self.program(env!("CARGO_BIN_EXE_thalweg-control")).arg("ctl").args(words).output().unwrap()
    }

    /// Runs `thalweg ctl` with these words, which must succeed. Returns standard output.
    fn command(&self, words: &[&str]) -> String {
        let output = self.ctl(words);
        assert!(output.status.success(), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }

    /// Returns the secret of a role.
    fn secret(&self, role: Role) -> String {
        let directory = self.directory.as_deref().unwrap_or("runs/.control");
        let tokens = Tokens::open(&self.folder.path().join(directory)).unwrap();
        tokens.token_of(role).unwrap().secret.clone()
    }

    fn client(&self, role: Role) -> Client {
        Client::with_token(&self.url, &self.secret(role))
    }

    fn status(&self) -> Status {
        self.client(Role::Watch).get("/api/v1/status").unwrap_or_else(|failure| panic!("{failure}"))
    }

    /// Waits for a status, and returns it.
    fn wait_for(&self, what: &str, is_right: impl Fn(&Status) -> bool) -> Status {
        let begun = Instant::now();
        loop {
            let status = self.status();
            if is_right(&status) {
                return status;
            }
            assert!(begun.elapsed() < PATIENCE, "{what} does not come: {status:#?}");
            thread::sleep(Duration::from_millis(20));
        }
    }

    fn wait_for_state(&self, state: ExperimentState) -> Status {
        self.wait_for(state.name(), |status| status.state == state)
    }

    /// Brings the experiment to `armed`.
    fn arm(&self) {
        self.command(&["configure"]);
        self.command(&["arm"]);
        assert_eq!(self.status().state, ExperimentState::Armed);
    }

    fn pid(&self, node: &str) -> u32 {
        let status = self.status();
        status.processes.iter().find(|process| process.node == node).unwrap().pid.unwrap()
    }

    fn run_info(&self, run: u32) -> Value {
        read_json(&self.folder.path().join(format!("runs/run-{run:06}/run.json")))
    }
}

impl Drop for Experiment {
    fn drop(&mut self) {
        // Nodes outlive the service: they are found by what they were started with.
        self.kill_service();
        let address = self.url.trim_start_matches("http://").to_owned();
        for entry in std::fs::read_dir("/proc").into_iter().flatten().flatten() {
            let words = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
            let words = String::from_utf8_lossy(&words).into_owned();
            let is_node = words.contains("--control") && words.contains(&format!("http://{address}\0"));
            if let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()).filter(|_| is_node) {
                kill(pid);
            }
        }
    }
}

/// Ends a process at once.
fn kill(pid: u32) {
    let pid = rustix::process::Pid::from_raw(i32::try_from(pid).unwrap()).unwrap();
    let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
}

fn read_json(path: &Path) -> Value {
    let text = std::fs::read(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    serde_json::from_slice(&text).unwrap()
}
