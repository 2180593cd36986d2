//! Several services, and etcd: a real one, which is stopped and killed.

use crate::{Experiment, kill};
use std::collections::BTreeSet;
use std::net::{Shutdown, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::{fs, thread};
use tempfile::TempDir;
use thalweg_control::access::{Role, Tokens};
use thalweg_control::etcd::{EtcdConfig, EtcdStore};
use thalweg_control::records::{RunRecord, RunState};
use thalweg_control::state::ExperimentState;
use thalweg_control::status::{ServiceView, Status};
use thalweg_testing::skip::skipped;
use thalweg_testing::wait::wait_until;

/// An etcd of one member.
struct Etcd {
    folder: TempDir,
    server: Option<Child>,
    url: String,
    peer_url: String,
}

impl Etcd {
    /// Starts it; `None` where there is no such program. Its files are in memory, where writing takes no time whatever
    /// other tests do to the disk.
    fn start() -> Option<Self> {
        let free = || format!("http://{}", TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap());
        let mut etcd =
            Self { folder: tempfile::tempdir_in("/dev/shm").unwrap(), server: None, url: free(), peer_url: free() };
        if let Err(error) = etcd.start_server() {
            skipped(format_args!("etcd: {error}"));
            return None;
        }
        Some(etcd)
    }

    fn start_server(&mut self) -> std::io::Result<()> {
        let mut command = Command::new("etcd");
        command.arg("--data-dir").arg(self.folder.path().join("data"));
        command.args(["--listen-client-urls", &self.url, "--advertise-client-urls", &self.url]);
        command.args(["--listen-peer-urls", &self.peer_url, "--initial-advertise-peer-urls", &self.peer_url]);
        command.args(["--initial-cluster", &format!("default={}", self.peer_url)]);
        let spawned = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        self.server = Some(spawned?);
        let mut store = self.open("probe");
        wait_until("etcd", || store.last_number().is_ok());
        Ok(())
    }

    fn open(&self, experiment: &str) -> EtcdStore {
        EtcdStore::new(&EtcdConfig { endpoints: vec![self.url.clone()], prefix: String::new() }, experiment)
    }

    fn signal(&self, signal: rustix::process::Signal) {
        let pid = self.server.as_ref().unwrap().id();
        let pid = rustix::process::Pid::from_raw(i32::try_from(pid).unwrap()).unwrap();
        rustix::process::kill_process(pid, signal).unwrap();
    }

    /// Stops it, and returns when all of its threads stand still: until then it may answer.
    fn stop(&self) {
        self.signal(rustix::process::Signal::STOP);
        let tasks = format!("/proc/{}/task", self.server.as_ref().unwrap().id());
        wait_until("a stopped etcd", || {
            let mut tasks = std::fs::read_dir(&tasks).unwrap().flatten();
            tasks.all(|task| std::fs::read_to_string(task.path().join("stat")).is_ok_and(|stat| stat.contains(") T ")))
        });
    }

    fn kill(&mut self) {
        if let Some(mut server) = self.server.take() {
            kill(server.id());
            server.wait().unwrap();
        }
    }
}

impl Drop for Etcd {
    fn drop(&mut self) {
        self.kill();
    }
}

fn draft(note: &str) -> RunRecord {
    RunRecord { note: note.into(), asked_by: "anna".into(), asked_at: Some(1.0), ..RunRecord::default() }
}

#[test]
fn each_number_is_given_out_once_whatever_becomes_of_etcd() {
    let Some(mut etcd) = Etcd::start() else { return };
    let taken: Vec<u32> = thread::scope(|scope| {
        let services: Vec<_> = (0..4)
            .map(|_| {
                let mut store = etcd.open("lab");
                scope.spawn(move || {
                    (0..25).map(|_| store.reserve_number(&draft("")).unwrap().number).collect::<Vec<_>>()
                })
            })
            .collect();
        services.into_iter().flat_map(|service| service.join().unwrap()).collect()
    });
    let distinct: BTreeSet<u32> = taken.iter().copied().collect();
    assert_eq!(distinct, (0..100).collect(), "none twice, and none left out");

    // An answer that is lost: the number is either free again, or has a record that is closed.
    let mut store = etcd.open("lab");
    etcd.stop();
    let refusal = store.reserve_number(&draft("lost")).unwrap_err().to_string();
    assert!(refusal.contains("etcd does not answer") && refusal.contains("no run can start"), "{refusal}");
    etcd.signal(rustix::process::Signal::CONT);
    let record = store.reserve_number(&draft("next")).unwrap();
    let mut numbers = (100..record.number).collect::<BTreeSet<_>>();
    for failed in etcd.open("lab").changed_records().unwrap() {
        if failed.note == "lost" {
            assert_eq!(failed.state, RunState::Failed);
            numbers.remove(&failed.number);
        }
    }
    assert!(numbers.is_empty(), "lost: {numbers:?}");

    etcd.kill();
    assert!(store.reserve_number(&draft("dead")).is_err());
    etcd.start_server().unwrap();
    let after = store.reserve_number(&draft("again")).unwrap().number;
    assert_eq!(after, record.number + 1, "one that was not there has reserved nothing");
}

/// Starts a proxy of an etcd that takes the second request, and does not answer it. Returns its address.
fn start_silent_proxy(etcd: &Etcd) -> String {
    let proxy = TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint = format!("http://{}", proxy.local_addr().unwrap());
    let target = etcd.url.trim_start_matches("http://").to_owned();
    thread::spawn(move || {
        for (count, client) in proxy.incoming().enumerate() {
            let (mut client, mut server) = (client.unwrap(), TcpStream::connect(&target).unwrap());
            let (mut requests, mut to_etcd) = (client.try_clone().unwrap(), server.try_clone().unwrap());
            // Each request has a connection of its own, which the client closes.
            thread::spawn(move || {
                std::io::copy(&mut requests, &mut to_etcd)?;
                to_etcd.shutdown(Shutdown::Write)
            });
            thread::spawn(move || match count {
                1 => std::io::copy(&mut server, &mut std::io::sink()),
                _ => std::io::copy(&mut server, &mut client),
            });
        }
    });
    endpoint
}

#[test]
fn a_number_that_was_reserved_without_an_answer_is_used_or_its_record_is_closed() {
    let Some(etcd) = Etcd::start() else { return };
    let mut direct = etcd.open("lab");
    assert_eq!(direct.reserve_number(&draft("first")).unwrap().number, 0);

    // Another endpoint knows of it.
    let config = EtcdConfig { endpoints: vec![start_silent_proxy(&etcd), etcd.url.clone()], prefix: String::new() };
    let record = EtcdStore::new(&config, "lab").reserve_number(&draft("answered by another")).unwrap();
    assert_eq!((record.number, record.note.as_str()), (1, "answered by another"));

    let config = EtcdConfig { endpoints: vec![start_silent_proxy(&etcd)], prefix: String::new() };
    let mut store = EtcdStore::new(&config, "lab");
    assert!(store.reserve_number(&draft("unanswered")).is_err());
    wait_until("the number", || direct.last_number().is_ok_and(|last| last == Some(2)));
    assert_eq!(store.reserve_number(&draft("last")).unwrap().number, 3);
    let records = direct.changed_records().unwrap();
    let states: Vec<_> = records.iter().map(|record| (record.number, record.note.as_str(), record.state)).collect();
    let expected = [
        (3, "last", RunState::Reserved),
        (2, "unanswered", RunState::Failed),
        (1, "answered by another", RunState::Reserved),
        (0, "first", RunState::Reserved),
    ];
    assert_eq!(states, expected);
}

/// Starts another service of the same experiment, with files of its own.
fn start_second_service(first: &Experiment) -> Experiment {
    let folder = tempfile::tempdir().unwrap();
    fs::create_dir_all(folder.path().join("control")).unwrap();
    let tokens = first.folder.path().join("runs/.control/tokens.toml");
    fs::copy(&tokens, folder.path().join("control/tokens.toml")).unwrap();
    assert!(Tokens::open(&folder.path().join("control")).is_ok());
    let lab = fs::read_to_string(first.folder.path().join("lab.toml")).unwrap();
    let runs = format!("directory = \"{}\"", first.folder.path().join("runs").display());
    fs::write(folder.path().join("lab.toml"), lab.replace("directory = \"runs\"", &runs)).unwrap();
    let mut second = Experiment { folder, service: None, url: String::new(), directory: Some("control".into()) };
    second.start_service("127.0.0.1:0");
    second
}

#[test]
fn two_services_command_one_experiment_and_etcd_may_be_lost_while_a_run_goes_on() {
    let Some(etcd) = Etcd::start() else { return };
    let control = format!(
        "experiment = \"lab\"\nlogbook = \"http://127.0.0.1:9\"\netcd = {{ endpoints = [\"{}\"] }}\nnodes = {{ builder = {{ manager = \"none\" }}, adc-0 = \
         {{ manager = \"none\" }} }}\n",
        etcd.url
    );
    let mut first = Experiment::start_with(&["adc-0"], &control, "60s");
    let second = start_second_service(&first);
    let node = |name: &str| {
        let mut command =
            first.program(Path::new(env!("CARGO_BIN_EXE_thalweg-control")).with_file_name("thalweg").to_str().unwrap());
        command.args(["node", name, "--control", &format!("{},{}", first.url, second.url)]);
        command.env("THALWEG_CONTROL_TOKEN", first.secret(Role::Node));
        command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
    };
    let mut nodes = [node("builder"), node("adc-0")];
    let is_up = |status: &Status| status.processes.iter().all(|process| process.state == "up");
    first.wait_for("the nodes", is_up);
    second.wait_for("the nodes", is_up);
    first.wait_for("both services", |status| status.services.len() == 2);

    // One configures, the other starts, the first one stops.
    first.arm();
    second.wait_for_state(ExperimentState::Armed);
    second.command(&["start", "--note", "by the second"]);
    let status = first.wait_for_state(ExperimentState::Running);
    assert_eq!(status.run.as_ref().map(|run| run.number), Some(1));
    first.wait_for("the note of the run", |status| status.run.as_ref().is_some_and(|run| run.note == "by the second"));
    first.command(&["stop"]);
    for service in [&first, &second] {
        let status = service.wait_for("the end of the run", |status| {
            status.last_run.as_ref().is_some_and(|run| run.number == 1 && run.state == RunState::Complete)
        });
        assert_eq!(status.last_run.unwrap().note, "by the second");
    }
    // Notices come from one of them: of the start and of the end.
    first.wait_for("the notices", |status| status.destinations[0].waiting == 2);
    assert_eq!(second.status().destinations[0].waiting, 0);
    second.wait_for("the next number", |status| status.next_number == Some(2));
    first.wait_for_state(ExperimentState::Armed);
    first.command(&["start"]);
    first.command(&["flag", "1", "good"]);
    let flag_of = |status: &Status| {
        let client = second.client(Role::Watch);
        let runs: serde_json::Value = client.get("/api/v1/runs").unwrap();
        let _ = status;
        runs["runs"].as_array().unwrap().iter().any(|run| run["number"] == 1 && run["flag"]["flag"] == "good")
    };
    second.wait_for("the flag", flag_of);

    // Loss of etcd stops no run, and lets none begin.
    etcd.stop();
    let status = second.wait_for("the alarm", |status| status.alarms.iter().any(|alarm| alarm.id == "no-numbers"));
    assert_eq!((status.state, status.next_number), (ExperimentState::Running, None));
    second.command(&["stop"]);
    first.wait_for_state(ExperimentState::Armed);
    let refused = first.ctl(&["start"]);
    let reason = String::from_utf8(refused.stderr).unwrap();
    assert!(!refused.status.success() && reason.contains("etcd does not answer"), "{reason}");
    // A service that begins meanwhile shows what the nodes report.
    first.replace_service();
    first.wait_for_state(ExperimentState::Armed);
    etcd.signal(rustix::process::Signal::CONT);
    for service in [&first, &second] {
        service.wait_for("etcd", |status| status.number_problem.is_empty() && status.next_number.is_some());
    }
    first.command(&["start"]);
    let run = first.wait_for_state(ExperimentState::Running).run.unwrap();
    first.command(&["stop"]);
    let status = second.wait_for("the last run", |status| {
        status.last_run.as_ref().is_some_and(|last| last.number == run.number && last.state.is_over())
    });
    assert!(status.last_run.unwrap().number >= 3, "numbers go on");
    let services = second.wait_for("services", |status| status.services.len() == 2).services;
    assert!(services.iter().any(|service: &ServiceView| service.url == first.url));
    for node in &mut nodes {
        kill(node.id());
        node.wait().unwrap();
    }
}
