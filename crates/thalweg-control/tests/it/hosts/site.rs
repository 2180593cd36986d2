//! Hosts of a test: each has a network, a name and a table of names of its own.

use crate::{PATIENCE, read_json};
use serde_json::Value;
use std::fs;
use std::io::{BufRead, BufReader};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};
use tempfile::TempDir;
use thalweg_control::access::{Role, Tokens};
use thalweg_control::client::Client;
use thalweg_control::state::{CommandName, ExperimentState};
use thalweg_control::status::{ProcessView, Status};
use thalweg_sys::netns::Network;
use thalweg_testing::skip::skipped;
use thalweg_testing::wait::wait_until;

/// Port of the service, and of builders: all ports of these hosts are free.
const SERVICE_PORT: u16 = 8400;

/// Hosts, of which the first is that of the service. What was started on them ends with this.
pub(crate) struct Site {
    network: Network,
    names: Vec<String>,
    pub(crate) folder: TempDir,
    service: Option<Child>,
    daemons: Vec<Child>,
}

impl Site {
    /// Creates hosts of these names; `None` where this process may not, and the test is skipped.
    pub(crate) fn new(names: &[&str]) -> Option<Self> {
        let network = match Network::new(u16::try_from(names.len()).unwrap(), 1500) {
            Ok(network) => network,
            Err(error) => {
                skipped(format!("no hosts can be made: {error}"));
                return None;
            }
        };
        let names: Vec<String> = names.iter().map(|&name| name.to_owned()).collect();
        let folder = tempfile::tempdir().unwrap();
        let table = names.iter().zip(0..).map(|(name, host)| format!("{} {name}\n", Network::host_address(host)));
        fs::write(folder.path().join("hosts"), format!("127.0.0.1 localhost\n{}", table.collect::<String>())).unwrap();
        Some(Self { network, names, folder, service: None, daemons: Vec::new() })
    }

    /// Returns the address of a host.
    pub(crate) fn address(host: u16) -> Ipv4Addr {
        Network::host_address(host)
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Returns the command that runs a program as on a host: with its name, and the site's own files in place of those of
    /// the machine (`etc`: pairs of a file of the site, and where it belongs). It is to be started by
    /// [`spawn`](Self::spawn).
    pub(crate) fn command(&self, host: u16, etc: &[(&str, &str)], program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut script = format!("hostname {}", self.names[usize::from(host)]);
        for (file, place) in [("hosts", "/etc/hosts")].iter().chain(etc) {
            script += &format!(" && mount --bind '{}' {place}", self.path(file).display());
        }
        let mut command = Command::new("unshare");
        command.args([
            "--uts",
            "--mount",
            "--propagation",
            "private",
            "sh",
            "-c",
            &format!("{script} && exec \"$@\""),
            "sh",
        ]);
        command.arg(program).current_dir(self.folder.path()).env("XDG_STATE_HOME", self.folder.path());
        command.env_remove("THALWEG_CONTROL_URL").env_remove("THALWEG_CONTROL_TOKEN");
        command
    }

    /// Starts a command on a host.
    fn spawn(&self, host: u16, mut command: Command) -> Child {
        self.on_host(host, || command.spawn()).unwrap()
    }

    /// Starts a program on a host that works until the end of the test. Its output is in a file of that name.
    pub(crate) fn start_daemon(&mut self, host: u16, mut command: Command, log: &str) {
        let output = fs::File::create(self.path(log)).unwrap();
        command.stdin(Stdio::null()).stdout(output.try_clone().unwrap()).stderr(output);
        let daemon = self.spawn(host, command);
        self.daemons.push(daemon);
    }

    /// Runs a command on a host to its end.
    pub(crate) fn run(&self, host: u16, mut command: Command) -> Output {
        self.on_host(host, || command.output()).unwrap()
    }

    fn on_host<T: Send>(&self, host: u16, act: impl FnOnce() -> T + Send) -> T {
        self.network.run_on_host(host, act).unwrap()
    }

    /// Waits until a program of a host listens on this port.
    pub(crate) fn wait_for_port(&self, host: u16, port: u16) {
        let address = SocketAddr::from((Self::address(host), port));
        wait_until("the port", || self.on_host(host, || TcpStream::connect(address)).is_ok());
    }

    /// Pulls the cable of a host out, or puts it in again.
    pub(crate) fn set_cable(&self, host: u16, state: &str) {
        let mut command = Command::new("ip");
        command.args(["link", "set", Network::INTERFACE, state]);
        assert!(self.run(host, command).status.success());
    }

    /// Starts the service of a topology in `lab.toml`, with these variables. `etc` as for [`command`](Self::command).
    pub(crate) fn start_service(&mut self, etc: &[(&str, &str)], variables: &[(&str, PathBuf)]) {
        let mut command = self.command(0, etc, env!("CARGO_BIN_EXE_thalweg-control"));
        command.envs(variables.iter().map(|(name, value)| (name, value)));
        command.args(["--json", "control", "lab.toml"]).stdout(Stdio::piped());
        let mut service = self.spawn(0, command);
        let mut line = String::new();
        BufReader::new(service.stdout.take().unwrap()).read_line(&mut line).unwrap();
        serde_json::from_str::<Value>(&line).unwrap_or_else(|error| panic!("{error}: {line}"));
        self.service = Some(service);
    }

    /// Kills the service.
    pub(crate) fn kill_service(&mut self) {
        if let Some(mut service) = self.service.take() {
            service.kill().unwrap();
            service.wait().unwrap();
        }
    }

    /// Runs `thalweg ctl` with these words on the host of the service.
    pub(crate) fn ctl(&self, words: &[&str]) -> Output {
        let mut command = self.command(0, &[], env!("CARGO_BIN_EXE_thalweg-control"));
        command.arg("ctl").args(words);
        self.run(0, command)
    }

    /// Does the same, which must succeed. Returns standard output.
    pub(crate) fn control(&self, words: &[&str]) -> String {
        let output = self.ctl(words);
        let status = || format!("{:#?}", self.status());
        assert!(output.status.success(), "{words:?}: {}\n{}", String::from_utf8_lossy(&output.stderr), status());
        String::from_utf8(output.stdout).unwrap()
    }

    pub(crate) fn status(&self) -> Status {
        let tokens = Tokens::open(&self.path("runs/.control")).unwrap();
        let secret = tokens.token_of(Role::Watch).unwrap().secret.clone();
        let url = format!("http://127.0.0.1:{SERVICE_PORT}");
        self.on_host(0, || {
            Client::with_token(&url, &secret).get("/api/v1/status").map_err(|failure| failure.to_string())
        })
        .unwrap_or_else(|failure| panic!("{failure}"))
    }

    /// Waits for a status, and returns it.
    pub(crate) fn wait_for(&self, what: &str, is_right: impl Fn(&Status) -> bool) -> Status {
        let begun = Instant::now();
        loop {
            let status = self.status();
            if is_right(&status) {
                return status;
            }
            assert!(begun.elapsed() < PATIENCE, "{what} does not come: {status:#?}");
            thread::sleep(Duration::from_millis(50));
        }
    }

    pub(crate) fn wait_for_state(&self, state: ExperimentState) -> Status {
        self.wait_for(state.name(), |status| status.state == state)
    }

    /// Waits for a state of the process of a node.
    pub(crate) fn wait_for_process(&self, node: &str, state: &str) -> ProcessView {
        let status = self.wait_for(&format!("{node} {state}"), |status| process_of(status, node).state == state);
        process_of(&status, node).clone()
    }

    /// Takes a run with some events. Returns what its file says of its end.
    pub(crate) fn take_run(&self, run: u32) -> Value {
        // A source may connect once more after it was examined.
        self.wait_for("a start", |status| status.commands[&CommandName::Start].legal);
        self.control(&["start"]);
        self.wait_for("events", |status| status.totals.events > 20);
        self.control(&["stop"]);
        self.wait_for_state(ExperimentState::Armed);
        self.run_info(run)["state"].clone()
    }

    pub(crate) fn run_info(&self, run: u32) -> Value {
        read_json(&self.path(&format!("runs/run-{run:06}/run.json")))
    }
}

/// Returns the process of a node.
pub(crate) fn process_of<'a>(status: &'a Status, node: &str) -> &'a ProcessView {
    status.processes.iter().find(|process| process.node == node).unwrap()
}

/// Returns the path of the program of nodes, which is built beside that of the service.
pub(crate) fn node_program() -> PathBuf {
    Path::new(env!("CARGO_BIN_EXE_thalweg-control")).with_file_name("thalweg")
}

/// Returns the tables of the builder, on the second host, and of sources of these names. Events wait for a source for
/// `deadline`.
pub(crate) fn nodes_text(sources: &[&str], deadline: &str) -> String {
    let mut text = format!(
        "[[builder]]\nname = \"builder\"\nlisten = [\"tcp:{}:7411\"]\ndeadline = \"{deadline}\"\n",
        Network::host_address(1)
    );
    for (index, source) in sources.iter().enumerate() {
        text += &format!(
            "[[source]]\nname = \"{source}\"\nid = \"1.{index}\"\nrate = 100\n\
             device = {{ kind = \"model-adc\", size = \"4KiB\" }}\n"
        );
    }
    text
}

impl Drop for Site {
    fn drop(&mut self) {
        self.kill_service();
        for daemon in &mut self.daemons {
            let _ = daemon.kill().and_then(|()| daemon.wait());
        }
        // Nodes and daemons outlive what has started them: they are those in these networks.
        let hosts = 0..u16::try_from(self.names.len()).unwrap();
        let networks: Vec<_> =
            hosts.map(|host| self.on_host(host, || fs::read_link("/proc/thread-self/ns/net"))).collect();
        let networks: Vec<PathBuf> = networks.into_iter().flatten().collect();
        for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
            let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else { continue };
            let network = fs::read_link(entry.path().join("ns/net"));
            if pid != std::process::id() && network.is_ok_and(|network| networks.contains(&network)) {
                crate::kill(pid);
            }
        }
    }
}
