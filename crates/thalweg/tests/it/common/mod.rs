//! Whole systems to try things on: real processes of the program as it was built, started and watched by a test.
//!
//! Nothing here sleeps. A test waits for what a node says, for events in a run that is being written, or for a process
//! to end; each of these waits has a deadline, and a test that misses one shows what every process said.

pub(crate) mod dialogue;
pub(crate) mod disk;
pub(crate) mod hostile;
pub(crate) mod hosts;
pub(crate) mod node;
pub(crate) mod proxy;
pub(crate) mod served;

pub(crate) use node::{Node, Printed, all_succeed};

use rustix::net::{AddressFamily, SocketType, sockopt};
use serde_json::Value;
use std::fmt::Write as _;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use tempfile::TempDir;
use thalweg_device::model_adc;
use thalweg_store::{EventStatus, Follow, Followed, Run, StoreError, VerifyReport, verify_run};
use thalweg_testing::wait::wait_for;
use thalweg_wire::{EventId, SourceId, Status};

/// How long anything may take before a test gives it up: far longer than it ever does.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(300);

/// The program, without colours and without what the environment says about logs.
pub(crate) fn thalweg() -> std::process::Command {
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_thalweg"));
    command.env("NO_COLOR", "1").env_remove("THALWEG_LOG");
    command
}

/// The program where everybody may run it: the directories above the one that it was built into may be closed to
/// others.
pub(crate) fn thalweg_for_everybody() -> (TempDir, PathBuf) {
    let directory = tempfile::tempdir().unwrap();
    std::fs::set_permissions(&directory, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let copy = directory.path().join("thalweg");
    // Not by this process: a child that another test starts meanwhile would hold the copy open for writing, and what is
    // being written cannot be run.
    let copied = std::process::Command::new("cp").arg(env!("CARGO_BIN_EXE_thalweg")).arg(&copy).status().unwrap();
    assert!(copied.success());
    (directory, copy)
}

/// The topology of the run that `thalweg demo` with these words would take, but of so many events, however long they
/// take, and however long a source has no processor.
pub(crate) fn demo_topology(out: &Path, words: &[&str], events: i64) -> toml::Table {
    let printed = thalweg().args(["demo", "--print-topology", "--out"]).arg(out).args(words).output().unwrap();
    let mut topology: toml::Table = std::str::from_utf8(&printed.stdout).unwrap().parse().unwrap();
    let run = topology["run"].as_table_mut().unwrap();
    run.remove("duration");
    run.insert("events".into(), events.into());
    topology["builder"][0].as_table_mut().unwrap().insert("deadline".into(), "60s".into());
    topology
}

/// Records so many events: the run of [`demo_topology`]. Its report.
pub(crate) fn record_events(out: &Path, words: &[&str], events: i64) -> Value {
    let mut file = tempfile::NamedTempFile::with_suffix(".toml").unwrap();
    std::io::Write::write_all(&mut file, demo_topology(out, words, events).to_string().as_bytes()).unwrap();
    let ran = thalweg().args(["run", "--json"]).arg(file.path()).output().unwrap();
    assert!(ran.status.success(), "{ran:?}");
    serde_json::from_slice(&ran.stdout).unwrap()
}

/// What carries the data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Link {
    Tcp,
    Udp,
    Shm,
    /// RDMA by iWARP over TCP.
    Rdma,
    /// RDMA by EFE over UDP.
    RdmaEfe,
    /// RDMA by the device of `thalweg rdma run`.
    RdmaDevice,
}

/// Those that need nothing to be installed.
pub(crate) const LINKS: [Link; 5] = [Link::Tcp, Link::Udp, Link::Shm, Link::Rdma, Link::RdmaEfe];

impl Link {
    /// As a topology names it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            Self::Udp => "udp",
            Self::Shm => "shm",
            Self::Rdma => "rdma",
            Self::RdmaEfe => "rdma-efe",
            Self::RdmaDevice => "rdma-device",
        }
    }
}

/// What a system is made of. The strings are further lines of TOML.
#[derive(Debug, Clone)]
pub(crate) struct Plan<'a> {
    pub(crate) link: Link,
    pub(crate) builders: u16,
    pub(crate) sources: u16,
    /// Bytes in a fragment.
    pub(crate) size: &'a str,
    /// Of `[run]`.
    pub(crate) run: &'a str,
    /// Of each `[[builder]]`.
    pub(crate) builder: &'a str,
    /// Of each `[[source]]`.
    pub(crate) source: &'a str,
}

/// Model sources whose every sample can be computed again, one builder.
pub(crate) const PLAN: Plan<'static> =
    Plan { link: Link::Tcp, builders: 1, sources: 3, size: "16KiB", run: "", builder: PATIENT, source: "" };

/// A builder whose readers see events soon. A source that has no processor for a while is not missed.
pub(crate) const PATIENT: &str = "block = \"1MiB\"\nflush = \"20ms\"\ndeadline = \"60s\"";

/// The same, and a source that is missing is missed soon: for tests in which one dies or hangs.
pub(crate) const QUICK: &str = "block = \"1MiB\"\nflush = \"20ms\"\ndeadline = \"3s\"";

/// A test with each of these, all at once: most of it is waiting. Each has a thread of the test's name.
pub(crate) fn at_once<T: Send>(each: impl IntoIterator<Item = T>, test: impl Fn(T) + Sync) {
    let name = std::thread::current().name().unwrap_or_default().to_owned();
    std::thread::scope(|scope| {
        for one in each {
            let test = &test;
            std::thread::Builder::new().name(name.clone()).spawn_scoped(scope, move || test(one)).unwrap();
        }
    });
}

/// A system that a plan stands for: its topology file, and the addresses its builders listen on. Builders are called
/// `builder0` and so on, sources `source0` with the id 1.0 and so on.
#[derive(Debug)]
pub(crate) struct System {
    directory: TempDir,
    /// Socket paths have to be short.
    _sockets: TempDir,
    /// Keeps the ports ours until the builders listen on them.
    _ports: Vec<OwnedFd>,
    pub(crate) addresses: Vec<String>,
    link: Link,
    plan: String,
}

impl System {
    pub(crate) fn new(plan: &Plan) -> Self {
        thalweg_rdma_link::register_links();
        let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let sockets = tempfile::tempdir().unwrap();
        let mut ports = Vec::new();
        let addresses: Vec<String> = (0..plan.builders)
            .map(|index| match plan.link {
                Link::Shm => format!("shm:{}", sockets.path().join(format!("{index}.sock")).display()),
                Link::Tcp | Link::Rdma | Link::Udp | Link::RdmaEfe | Link::RdmaDevice => {
                    let is_tcp = matches!(plan.link, Link::Tcp | Link::Rdma);
                    let (port, address) = if is_tcp { reserve_port() } else { reserve_udp_port() };
                    ports.push(port);
                    format!("{}:{address}", plan.link.name())
                }
            })
            .collect();
        let system = Self { directory, _sockets: sockets, _ports: ports, link: plan.link, plan: text(plan), addresses };
        system.write("topology.toml", &system.addresses);
        system
    }

    fn write(&self, name: &str, addresses: &[String]) -> PathBuf {
        let mut text = self.plan.clone();
        for (index, address) in addresses.iter().enumerate() {
            text = text.replace(&format!("@{index}@"), address);
        }
        self.file(name, text)
    }

    /// A file in the system's own directory.
    pub(crate) fn file(&self, name: &str, content: impl AsRef<[u8]>) -> PathBuf {
        let path = self.path(name);
        std::fs::write(&path, content).unwrap();
        path
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Where the only builder's TCP port is.
    pub(crate) fn tcp(&self) -> std::net::SocketAddr {
        self.addresses[0].strip_prefix("tcp:").unwrap().parse().unwrap()
    }

    /// Run 1, of the only builder.
    pub(crate) fn run_directory(&self) -> PathBuf {
        self.path("runs/run-000001")
    }

    /// `thalweg run`: every node at once.
    pub(crate) fn run(&self) -> Node {
        let mut command = thalweg();
        command.args(["--json", "-v", "run"]).arg(self.path("topology.toml"));
        Node::start("run", command)
    }

    /// `thalweg node`: one of them.
    pub(crate) fn node(&self, name: &str) -> Node {
        self.node_of(name, &self.path("topology.toml"))
    }

    /// One node, that finds the builders at other addresses.
    pub(crate) fn node_via(&self, name: &str, addresses: &[String]) -> Node {
        let path = self.write("detour.toml", addresses);
        self.node_of(name, &path)
    }

    fn node_of(&self, name: &str, topology: &Path) -> Node {
        let mut command = thalweg();
        if self.link == Link::RdmaDevice {
            command.args(["rdma", "run", "--address", "127.0.0.1", "--", env!("CARGO_BIN_EXE_thalweg")]);
        }
        command.args(["--json", "-v", "node", name]).arg(topology);
        Node::start(name, command)
    }

    /// A node that tells how far it is, as the nodes of `thalweg run` do.
    pub(crate) fn supervised(&self, name: &str) -> Node {
        let topology = thalweg_node::Topology::load(&self.path("topology.toml"), None).unwrap();
        let mut command = thalweg();
        command.args(["-v", "node", name, "-", "--supervised"]);
        let mut node = Node::start(name, command);
        node.tell(&serde_json::to_string(&topology).unwrap());
        node
    }

    /// A node that stays for one run after another.
    pub(crate) fn staying(&self, name: &str) -> Node {
        let mut command = thalweg();
        command.args(["--json", "-v", "node", name, "--stay"]).arg(self.path("topology.toml"));
        Node::start(name, command)
    }

    /// A builder that listens.
    pub(crate) fn builder(&self) -> Node {
        let mut builder = self.node("builder0");
        builder.wait_for("listening on");
        builder
    }

    /// Sources, by their numbers.
    pub(crate) fn sources(&self, numbers: impl IntoIterator<Item = u16>) -> Vec<Node> {
        numbers.into_iter().map(|number| self.node(&format!("source{number}"))).collect()
    }
}

fn text(plan: &Plan) -> String {
    let Plan { builders, sources, size, run, builder, source, .. } = plan;
    let link = plan.link.name();
    let mut text = format!("[run]\ndirectory = \"runs\"\n{run}\n");
    for index in 0..*builders {
        let _ = write!(text, "\n[[builder]]\nname = \"builder{index}\"\nlisten = [\"@{index}@\"]\n{builder}\n");
    }
    for index in 0..*sources {
        let _ = write!(
            text,
            "\n[[source]]\nname = \"source{index}\"\nid = \"1.{index}\"\nlink = \"{link}\"\n\
             device = {{ kind = \"model-adc\", size = \"{size}\" }}\n{source}\n"
        );
    }
    text
}

/// A port that nobody else gets: a socket is bound to it and does not listen, which leaves it to a listener that says
/// `SO_REUSEADDR` as this one does (socket(7)).
pub(crate) fn reserve_port() -> (OwnedFd, SocketAddrV4) {
    let socket = rustix::net::socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
    sockopt::set_socket_reuseaddr(&socket, true).unwrap();
    rustix::net::bind(&socket, &SocketAddrV4::new(Ipv4Addr::LOCALHOST, 0)).unwrap();
    let bound = rustix::net::getsockname(&socket).unwrap();
    let address = SocketAddrV4::try_from(bound).unwrap();
    (socket, address)
}

/// A port of UDP, and the same one of TCP, that nobody else gets as long as the socket lives: the kernel gives none below
/// those of `ip_local_port_range` (ip(7)) to who asks for any, and who asks here holds the port of another address.
pub(crate) fn reserve_udp_port() -> (OwnedFd, SocketAddrV4) {
    let range = std::fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range").unwrap();
    let given: u32 = range.split_whitespace().next().unwrap().parse().unwrap();
    let least = if given > 20_000 { 12_000 } else { 1024 };
    let begin = std::process::id().wrapping_mul(97);
    let mut ports = (0..given - least).map(|step| (least + begin.wrapping_add(step) % (given - least)) as u16);
    let reserved = ports.find_map(|port| {
        let address = SocketAddrV4::new(Ipv4Addr::LOCALHOST, port);
        let lock = rustix::net::socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
        rustix::net::bind(&lock, &SocketAddrV4::new(Ipv4Addr::new(127, 0, 0, 2), port)).ok()?;
        std::net::UdpSocket::bind(address).ok()?;
        std::net::TcpListener::bind(address).ok()?;
        Some((lock, address))
    });
    reserved.expect("a port below those that the kernel gives")
}

/// Follows a run until `enough` says so of an event. Returns how many there were.
pub(crate) fn follow_until(directory: &Path, mut enough: impl FnMut(u64, &thalweg_store::Event) -> bool) -> u64 {
    let deadline = Instant::now() + TIMEOUT;
    // Builders begin one after the other.
    let mut follow = wait_for("the run", || match Follow::open(directory) {
        Err(StoreError::NotARun(_)) => None,
        opened => Some(opened.unwrap()),
    });
    let mut count = 0;
    while Instant::now() < deadline {
        match follow.next_event(Duration::from_secs(1)).unwrap() {
            Followed::Event(event) => {
                count += 1;
                if enough(count, &event) {
                    return count;
                }
            }
            Followed::Quiet => {}
            Followed::End(end) => panic!("{} ended ({end:?}) after {count} events", directory.display()),
        }
    }
    panic!("{} has only {count} events", directory.display());
}

/// Follows a run until so many events of it are on disk.
pub(crate) fn await_events(directory: &Path, events: u64) {
    follow_until(directory, |count, _| count >= events);
}

/// What is in a run.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Contents {
    pub(crate) events: u64,
    pub(crate) incomplete: u64,
    /// Fragments with payload, in all.
    pub(crate) fragments: u64,
    /// The first and the last event.
    pub(crate) first: u64,
    pub(crate) last: u64,
}

/// Reads a run of model sources back: every event has a record for every source, and every sample is what the model
/// gives for it.
pub(crate) fn check_samples(directory: &Path) -> Contents {
    let run = Run::open(directory).unwrap();
    let sources: Vec<SourceId> = run.run_info().sources.iter().map(|source| source.id).collect();
    check_samples_of(directory, &sources)
}

/// The same, where only these sources are models. What is said of fragments is said of theirs.
pub(crate) fn check_samples_of(directory: &Path, models: &[SourceId]) -> Contents {
    let run = Run::open(directory).unwrap();
    let sources: Vec<SourceId> = run.run_info().sources.iter().map(|source| source.id).collect();
    let mut contents = Contents { first: u64::MAX, ..Contents::default() };
    let mut expected = Vec::new();
    for event in run.events() {
        let event = event.unwrap();
        let EventId(number) = event.id;
        let found: Vec<SourceId> = event.fragments.iter().map(|fragment| fragment.header.source).collect();
        assert_eq!(found, sources, "event {number} has one record for each source");
        let mut missing = 0;
        for fragment in &event.fragments {
            let header = fragment.header;
            assert_eq!(header.event, event.id);
            if header.status.contains(Status::MISSING) {
                assert!(fragment.payload().is_empty());
                missing += 1;
                continue;
            }
            if !models.contains(&header.source) {
                continue;
            }
            assert!(header.status.contains(Status::SIMULATED), "what a model makes is labelled");
            expected.resize(fragment.payload().len(), 0);
            model_adc(1, header.source, number, &mut expected);
            assert!(!expected.is_empty() && fragment.payload() == expected, "event {number}, source {}", header.source);
            contents.fragments += 1;
        }
        assert_eq!(event.status == EventStatus::Complete, missing == 0, "event {number} says whether it is complete");
        contents.events += 1;
        contents.incomplete += u64::from(missing > 0);
        contents.first = contents.first.min(number);
        contents.last = contents.last.max(number);
    }
    contents
}

/// Nothing in the run disagrees with anything else in it.
pub(crate) fn check_intact(directory: &Path) -> VerifyReport {
    let report = verify_run(&Run::open(directory).unwrap());
    assert!(report.consistent, "{:#?}", report.problems);
    report
}

/// One source's line of the ledger.
pub(crate) fn entry<'a>(report: &'a Value, source: &str) -> &'a Value {
    let entries = report.pointer("/ledger/sources").and_then(Value::as_array).expect("a ledger");
    entries.iter().find(|entry| entry["source"] == source).unwrap_or_else(|| panic!("no {source} in {report:#}"))
}

/// A number in a report, by its path.
pub(crate) fn number(report: &Value, path: &str) -> u64 {
    report.pointer(path).and_then(Value::as_u64).unwrap_or_else(|| panic!("no number {path} in {report:#}"))
}

/// The final counters balance: what every source accepted is in the buckets, to the fragment.
pub(crate) fn check_books(report: &Value) {
    const BUCKETS: [&str; 10] = [
        "recorded",
        "discarded",
        "rejected",
        "dropped_newest",
        "dropped_oldest",
        "lost_in_device",
        "late",
        "corrupt",
        "lost",
        "beyond_end",
    ];
    assert_eq!(number(report, "/ledger/unaccounted"), 0, "{report:#}");
    for entry in report["ledger"]["sources"].as_array().unwrap() {
        let explained: u64 = BUCKETS.iter().map(|bucket| entry[bucket].as_u64().unwrap()).sum();
        assert_eq!(entry["accepted"].as_u64().unwrap(), explained, "{entry:#}");
        assert_eq!(entry["unaccounted"], 0);
    }
}

/// Everything this source accepted is on disk, once.
pub(crate) fn check_untouched(report: &Value, source: &str) {
    check_recorded(report, source);
    assert_eq!(entry(report, source)["beyond_end"], 0, "{report:#}");
}

/// Everything this source accepted of events before the end of the run is on disk, once. Another source that is slow
/// when a run is stopped may have it end where that source is.
pub(crate) fn check_recorded(report: &Value, source: &str) {
    let entry = entry(report, source);
    let count = |bucket: &str| entry[bucket].as_u64().unwrap();
    assert_eq!(count("accepted"), count("recorded") + count("beyond_end"), "{entry:#}");
    assert!(entry["accepted"].as_u64().unwrap() > 0, "{entry:#}");
    assert_eq!(entry["unaccounted"], 0, "{entry:#}");
    assert_eq!(entry["duplicates"], 0, "{entry:#}");
    assert_eq!(entry["final_counters"], true, "{entry:#}");
}

/// The report's reasons, in one text.
pub(crate) fn reasons(report: &Value) -> String {
    let reasons = report["reasons"].as_array().unwrap();
    reasons.iter().map(|reason| reason.as_str().unwrap()).collect::<Vec<_>>().join("\n")
}
