//! Runs and files on their way between machines: `thalweg pull` and `thalweg push` against `thalweg serve`, with each
//! of them killed in the midst.

use crate::common::node::Ended;
use crate::common::served::{Machines, Served, assert_same, big, record, run, start};
use crate::common::*;
use std::fs::File;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use thalweg_remote::{Options, Resource, Server, is_run_url, open_remote_run};
use thalweg_store::{End, Followed, Run};
use thalweg_testing::skip::skipped;
use thalweg_testing::wait::wait_until;

/// A stretch of network that stands still when so many bytes have passed in one direction.
struct Gate {
    address: SocketAddr,
    /// Says when nothing more passes.
    closed: Receiver<()>,
    inner: Arc<Inner>,
}

struct Inner {
    to: Mutex<SocketAddr>,
    /// Bytes that may still pass.
    left: Mutex<u64>,
    opened: Condvar,
    ends: Mutex<Vec<TcpStream>>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Direction {
    ToServer,
    ToClient,
}

impl Gate {
    fn new(to: SocketAddr, counted: Direction, bytes: u64) -> Self {
        let door = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = door.local_addr().unwrap();
        let inner = Inner { to: to.into(), left: bytes.into(), opened: Condvar::new(), ends: Mutex::default() };
        let inner = Arc::new(inner);
        let (stands_still, closed) = channel();
        let gate = Self { address, closed, inner: Arc::clone(&inner) };
        thread::spawn(move || {
            for client in door.incoming().map_while(Result::ok) {
                let to = *inner.to.lock().unwrap();
                // A server that is gone: the client sees its connection end.
                let Ok(server) = TcpStream::connect(to) else { continue };
                for (from, to, direction) in
                    [(&client, &server, Direction::ToServer), (&server, &client, Direction::ToClient)]
                {
                    let (from, to, inner) = (from.try_clone().unwrap(), to.try_clone().unwrap(), Arc::clone(&inner));
                    let stands_still = (direction == counted).then(|| stands_still.clone());
                    thread::spawn(move || inner.pump(from, to, stands_still));
                }
                inner.ends.lock().unwrap().extend([client, server]);
            }
        });
        gate
    }

    fn url(&self, path: &str) -> String {
        format!("http://{}/{path}", self.address)
    }

    /// Waits until nothing passes any more.
    fn await_closed(&self) {
        self.closed.recv_timeout(TIMEOUT).expect("enough bytes to close the gate");
    }

    /// Lets everything pass from now on, to this server; the connections there were break.
    fn open(&self, to: SocketAddr) {
        *self.inner.to.lock().unwrap() = to;
        *self.inner.left.lock().unwrap() = u64::MAX;
        for end in self.inner.ends.lock().unwrap().drain(..) {
            let _ = end.shutdown(Shutdown::Both);
        }
        self.inner.opened.notify_all();
    }
}

impl Inner {
    fn pump(&self, mut from: TcpStream, mut to: TcpStream, stands_still: Option<Sender<()>>) {
        let mut bytes = vec![0; 64 << 10];
        while let Ok(read @ 1..) = from.read(&mut bytes) {
            if let Some(stands_still) = &stands_still {
                let mut left = self.left.lock().unwrap();
                if *left < read as u64 {
                    *left = 0;
                    let _ = stands_still.send(());
                    while *left == 0 {
                        left = self.opened.wait(left).unwrap();
                    }
                } else if *left < u64::MAX {
                    *left -= read as u64;
                }
            }
            if to.write_all(&bytes[..read]).is_err() {
                break;
            }
        }
        for end in [from, to] {
            let _ = end.shutdown(Shutdown::Both);
        }
    }
}

fn pull(url: &str, into: &Path) -> Ended {
    run(&["pull", url], &[into])
}

fn push(path: &Path, url: &str) -> Ended {
    run(&["push", path.to_str().unwrap(), url], &[])
}

/// Only hidden files: nothing was published.
fn nothing_named_in(directory: &Path) -> bool {
    let entries = std::fs::read_dir(directory).unwrap();
    entries.map(|entry| entry.unwrap().file_name()).all(|name| name.to_string_lossy().starts_with('.'))
}

#[test]
fn a_run_is_fetched_whole_and_the_second_time_nothing_is() {
    let Machines { here, there, .. } = &Machines::new();
    let recorded = record(there);
    let served = Served::start(there, &[]);
    let url = served.url("runs/1");
    let report = run(&["pull", "--verify", &url], &[here]).report(0);
    assert_same(&recorded, &here.join("run-000001"));
    check_intact(&here.join("run-000001"));
    assert_eq!(report["verified"][0]["consistent"], true, "{report:#}");
    assert_eq!((number(&report, "/files"), number(&report, "/resumed_bytes")), (2, 0), "{report:#}");

    let report = pull(&url, here).report(0);
    assert_eq!((number(&report, "/files"), number(&report, "/same_files")), (0, 2), "{report:#}");
    assert_eq!(number(&report, "/bytes"), 0, "{report:#}");

    // A run that became another one here is not overwritten.
    std::fs::write(here.join("run-000001/00000.seg"), "mine").unwrap();
    pull(&url, here).failed_saying("move it away");
    assert_eq!(std::fs::read(here.join("run-000001/00000.seg")).unwrap(), b"mine");
}

#[test]
fn a_run_is_read_where_it_is() {
    let Machines { there, .. } = &Machines::new();
    let recorded = Run::open(record(there)).unwrap();
    let served = Served::start(there, &[]);
    let url = served.url("runs/1/");
    assert!(is_run_url(&url) && !is_run_url("runs/1"));
    let run = open_remote_run(&url, &Options::default()).unwrap();
    assert_eq!(run.run_path(), Path::new(url.trim_end_matches('/')));
    assert_eq!(
        (run.run_info(), run.len(), run.data_bytes()),
        (recorded.run_info(), recorded.len(), recorded.data_bytes())
    );
    for (one, other) in recorded.events().zip(run.events()) {
        let (one, other) = (one.unwrap(), other.unwrap());
        assert_eq!((one.id, one.fragments.len()), (other.id, other.fragments.len()));
        for (one, other) in one.fragments.iter().zip(&other.fragments) {
            assert_eq!(one.header, other.header);
            assert!(one.payload() == other.payload());
        }
    }
    let error = open_remote_run(&served.url("runs/7"), &Options::default()).unwrap_err();
    assert!(error.to_string().contains("is not a run"), "{error}");
}

#[test]
fn a_run_in_the_place_of_another_is_not_read_as_if_it_were_the_other() {
    let Machines { here, there, .. } = &Machines::new();
    let (recorded, other) = (record(there), record(here));
    let served = Served::start(there, &[]);
    let run = open_remote_run(&served.url("runs/1"), &Options::default()).unwrap();
    std::fs::remove_dir_all(&recorded).unwrap();
    std::fs::rename(other, recorded).unwrap();
    let error = run.events().find_map(Result::err).expect("an error").to_string();
    assert!(error.contains("changed on the server"), "{error}");
}

#[test]
fn a_run_of_which_some_is_missing_is_told_on_either_way() {
    let Machines { here, there, .. } = &Machines::new();
    let recorded = record(there);
    let segment = File::options().write(true).open(recorded.join("00000.seg")).unwrap();
    segment.set_len(segment.metadata().unwrap().len() / 2).unwrap();
    let served = Served::start(there, &["--write"]);
    for _ in 0..2 {
        pull(&served.url("runs/1"), here).failed_saying("its run.json states");
    }
    assert!(!Run::open(here.join("run-000001")).unwrap().is_empty(), "what there is was fetched");
    push(&recorded, &served.url("archive")).failed_saying("its run.json states");
    assert!(!there.join("archive").exists());
}

#[test]
fn a_directory_is_fetched_with_all_that_is_in_it() {
    let Machines { here, there, .. } = &Machines::new();
    std::fs::create_dir_all(there.join("2026/a b")).unwrap();
    std::fs::write(there.join("2026/empty"), "").unwrap();
    std::fs::write(there.join("2026/a b/50% é?.txt"), "text").unwrap();
    std::fs::write(there.join("2026/.hidden"), "secret").unwrap();
    let recorded = record(&there.join("2026"));
    let served = Served::start(there, &[]);
    let report = pull(&served.url("2026"), here).report(0);
    assert_eq!(number(&report, "/files"), 4, "{report:#}");
    assert_same(&recorded, &here.join("2026/run-000001"));
    assert_eq!(std::fs::read(here.join("2026/a b/50% é?.txt")).unwrap(), b"text");
    assert_eq!(std::fs::read(here.join("2026/empty")).unwrap(), b"");
    assert!(!here.join("2026/.hidden").exists());

    let report = pull(&served.url("2026/runs/"), &here.join("runs")).report(0);
    assert_same(&recorded, Path::new(report["runs"][0].as_str().unwrap()));
}

#[test]
fn a_fetch_that_was_killed_goes_on_where_it_was() {
    let Machines { here, there, .. } = &Machines::new();
    let whole = big(&there.join("export.h5"), 64);
    let served = Served::start(there, &[]);
    let gate = Gate::new(served.address, Direction::ToClient, 48 << 20);
    let client = start(&["pull", "--streams", "2", &gate.url("export.h5")], &[here]);
    gate.await_closed();
    client.kill();
    assert!(nothing_named_in(here));

    // The same URL, or it would be another file.
    gate.open(served.address);
    let report = pull(&gate.url("export.h5"), here).report(0);
    assert!(std::fs::read(here.join("export.h5")).unwrap() == whole);
    let (resumed, fetched) = (number(&report, "/resumed_bytes"), number(&report, "/bytes"));
    assert!(resumed >= 16 << 20, "{report:#}");
    assert_eq!(resumed + fetched, 64 << 20, "{report:#}");
    assert!(std::fs::read_dir(here).unwrap().count() == 1, "nothing is left beside it");
}

#[test]
fn a_connection_that_breaks_is_made_again() {
    let Machines { here, there, .. } = &Machines::new();
    let whole = big(&there.join("export.h5"), 16);
    let served = Served::start(there, &[]);
    let gate = Gate::new(served.address, Direction::ToClient, 4 << 20);
    let client = start(&["pull", &gate.url("export.h5")], &[here]);
    gate.await_closed();
    gate.open(served.address);
    client.finish().succeeded();
    assert!(std::fs::read(here.join("export.h5")).unwrap() == whole);
}

#[test]
fn a_run_is_sent_and_becomes_one_when_all_of_it_is_there() {
    let Machines { here, there, .. } = &Machines::new();
    let recorded = record(here);
    let served = Served::start(there, &["--write"]);
    let report = push(&recorded, &served.url("2026")).report(0);
    assert_eq!((number(&report, "/files"), number(&report, "/same_files")), (2, 0), "{report:#}");
    assert_same(&recorded, &there.join("2026/run-000001"));
    check_intact(&there.join("2026/run-000001"));

    let report = push(&recorded, &served.url("2026")).report(0);
    assert_eq!((number(&report, "/files"), number(&report, "/same_files")), (0, 2), "{report:#}");
    let refused = push(&recorded, &served.url("2026/runs")).report(2);
    assert!(refused["error"].as_str().unwrap().contains("remove it from the URL"), "{refused}");

    std::fs::write(here.join("notes.txt"), "one").unwrap();
    push(&here.join("notes.txt"), &served.url("")).report(0);
    std::fs::write(here.join("notes.txt"), "two").unwrap();
    push(&here.join("notes.txt"), &served.url("")).failed_saying("already has a different");
    assert_eq!(std::fs::read(there.join("notes.txt")).unwrap(), b"one");
}

#[test]
fn runs_keep_the_names_of_their_directories_and_come_without_the_one_for_runs() {
    let Machines { here, there, .. } = &Machines::new();
    let recorded = record(there);
    // Another run of the same number.
    record(here);
    std::fs::rename(here.join("run-000001"), there.join("run-000007")).unwrap();
    let served = Served::start(there, &[]);
    let report = run(&["pull", &served.url("")], &[&here.join("all")]).report(0);
    assert_eq!(number(&report, "/files"), 4, "{report:#}");
    for name in ["run-000001", "run-000007"] {
        assert_same(&there.join(name), &here.join("all").join(name));
    }
    // By its number, a run has the name that it began with.
    std::fs::remove_dir_all(there.join("run-000007")).unwrap();
    run(&["pull", &served.url("runs/")], &[&here.join("runs")]).report(0);
    assert_same(&recorded, &here.join("runs/run-000001"));
    assert!(!here.join("runs/runs").exists());
}

#[test]
fn what_the_server_may_not_read_costs_nobody_the_rest() {
    use std::os::unix::fs::PermissionsExt;
    use std::os::unix::process::CommandExt;
    let Machines { here, .. } = &Machines::new();
    if !rustix::process::geteuid().is_root() {
        return skipped("only root can start a server that is somebody else");
    }
    // Where everybody gets to.
    let (public, program) = thalweg_for_everybody();
    let there = &public.path().join("there");
    std::fs::create_dir(there).unwrap();
    record(there);
    for (name, mode) in [("a", 0o600), ("b", 0o644)] {
        std::fs::write(there.join(name), name).unwrap();
        std::fs::set_permissions(there.join(name), PermissionsExt::from_mode(mode)).unwrap();
    }
    let mut command = std::process::Command::new(program);
    command.args(["--json", "serve", "--listen", "127.0.0.1:0", "--path", "sendfile"]).arg(there).uid(65534);
    let mut nobody = Node::start("serve", command);
    let ready: serde_json::Value = serde_json::from_str(&nobody.wait_for("\"url\"")).unwrap();
    let url = ready["url"].as_str().unwrap();
    run(&["pull", url], &[here]).failed_saying("everything else was fetched");
    assert!(!here.join("a").exists() && std::fs::read(here.join("b")).unwrap() == b"b");
    assert_same(&there.join("run-000001"), &here.join("run-000001"));
}

#[test]
fn an_upload_whose_client_was_killed_goes_on_where_it_was() {
    let Machines { here, there, .. } = &Machines::new();
    let file = here.join("export.h5");
    let whole = big(&file, 64);
    let served = Served::start(there, &["--write"]);
    let gate = Gate::new(served.address, Direction::ToServer, 32 << 20);
    let client = start(&["push", file.to_str().unwrap(), &gate.url("")], &[]);
    gate.await_closed();
    client.kill();
    assert!(nothing_named_in(there));
    gate.open(served.address);
    let report = push(&file, &served.url("")).report(0);
    assert!(std::fs::read(there.join("export.h5")).unwrap() == whole);
    assert!(number(&report, "/resumed_bytes") > 0, "{report:#}");
    assert!(std::fs::read_dir(there).unwrap().count() == 1, "nothing is left beside it");
}

#[test]
fn an_upload_survives_that_the_server_is_killed() {
    let Machines { here, there, .. } = &Machines::new();
    let file = here.join("export.h5");
    let whole = big(&file, 64);
    let served = Served::start(there, &["--write"]);
    let gate = Gate::new(served.address, Direction::ToServer, 32 << 20);
    let client = start(&["push", file.to_str().unwrap(), &gate.url("")], &[]);
    gate.await_closed();
    served.node.kill();
    assert!(nothing_named_in(there));
    let served = Served::start(there, &["--write"]);
    gate.open(served.address);
    client.finish().report(0);
    assert!(std::fs::read(there.join("export.h5")).unwrap() == whole);
}

#[test]
fn a_segment_that_lost_a_bit_since_it_was_recorded_is_not_published() {
    let Machines { here, there, .. } = &Machines::new();
    let recorded = record(here);
    let segment = recorded.join("00000.seg");
    let mut bytes = std::fs::read(&segment).unwrap();
    bytes[100_000] ^= 1;
    std::fs::write(&segment, bytes).unwrap();
    let served = Served::start(there, &["--write"]);
    push(&recorded, &served.url("")).failed_saying("thalweg verify");
    assert!(nothing_named_in(&there.join("run-000001")));
}

#[test]
fn who_may_not_is_told_so_and_nothing_is_written() {
    let Machines { here, there, .. } = &Machines::new();
    std::fs::write(there.join("a.txt"), "text").unwrap();
    // Of `letmein`.
    let sha256 = "1c8bfe8f801d79745c4631d09fff36c82aa37fc4cce4fc946683d7b336b63032";
    let tokens = here.join("tokens.toml");
    std::fs::write(&tokens, format!("[[token]]\nsha256 = \"{sha256}\"\npath = \"/\"\n")).unwrap();
    let served = Served::start(there, &["--write", "--tokens", tokens.to_str().unwrap()]);
    let [right, wrong] = [("right", "letmein\n"), ("wrong", "letmeout")].map(|(name, token)| {
        let path = here.join(name);
        std::fs::write(&path, token).unwrap();
        path
    });
    let into = here.join("into");
    pull(&served.url("a.txt"), &into).failed_saying("--token-file");
    run(&["pull", &served.url("a.txt"), "--token-file"], &[&wrong, &into]).failed_saying("--token-file");
    run(&["pull", &served.url("a.txt"), "--token-file"], &[&right, &into]).report(0);
    assert_eq!(std::fs::read(into.join("a.txt")).unwrap(), b"text");
    // It may read, not write.
    run(&["push", right.to_str().unwrap(), &served.url(""), "--token-file"], &[&right]).failed_saying("403");
    assert!(!there.join("right").exists());
}

#[test]
fn what_cannot_be_is_a_wrong_use() {
    let Machines { here, there, .. } = &Machines::new();
    let served = Served::start(there, &[]);
    let absent = here.join("absent");
    for ended in [
        pull("ftp://host/a", here),
        pull(&served.url("runs/7"), here),
        push(&absent, &served.url("")),
        push(here, &served.url("")),
        run(&["pull", &served.url(""), "--ca-file"], &[&absent, here]),
    ] {
        assert!([Some(2), Some(1)].contains(&ended.code()), "{ended:?}");
        assert!(ended.stdout.contains("\"error\""), "{ended:?}");
    }
    let report = pull(&served.url("runs/7"), here).report(2);
    assert!(report["error"].as_str().unwrap().contains("not found on"), "{report:#}");
}

#[test]
fn a_run_is_fetched_and_sent_on_while_it_is_being_recorded() {
    let system = System::new(&Plan { source: "rate = 500.0", ..PLAN });
    let mut recording = system.run();
    recording.wait_for("recording");
    let machines = Machines::new();
    let (copy, second) = (machines.here.join("run-000001"), machines.there.join("run-000001"));
    let runs = system.path("runs");
    let first = Served::start(&runs, &[]);
    let other = Served::start(&machines.there, &["--write"]);
    let fetching = start(&["pull", "--follow", &first.url("runs/1")], &[&machines.here]);
    let sending = start(&["push", "--follow", system.run_directory().to_str().unwrap(), &other.url("")], &[]);

    // A reader of the copy sees events as they come, and a follower that was killed goes on.
    wait_until("the copy", || copy.join("run.json").exists());
    await_events(&copy, 100);
    fetching.kill();
    let fetching = start(&["pull", "--follow", &first.url("runs/1")], &[&machines.here]);
    await_events(&system.run_directory(), 500);
    assert!(!second.join("run.json").exists(), "it is no run before all of it is there");

    recording.interrupt();
    recording.finish().report(0);
    fetching.finish().report(0);
    sending.finish().report(0);
    assert_same(&system.run_directory(), &copy);
    assert_same(&system.run_directory(), &second);
    check_intact(&copy);
    check_intact(&second);
}

#[test]
fn a_run_of_two_builders_is_one_here_and_there() {
    let system = System::new(&Plan { builders: 2, run: "number = 1", source: "rate = 500.0", ..PLAN });
    let mut recording = system.run();
    recording.wait_for("recording");
    let machines = Machines::new();
    let (run_path, copy) = (system.path("runs/run-000001"), machines.here.join("run-000001"));
    wait_until("both builders", || thalweg_store::builder_directories(&run_path).len() == 2);
    let served = Served::start(&system.path("runs"), &[]);
    let url = served.url("runs/1");
    let fetching = start(&["pull", "--follow", &url], &[&machines.here]);
    await_events(&run_path, 300);
    recording.interrupt();
    let report = recording.finish().report(0);
    let built = number(&report, "/events/built");
    let fetched = fetching.finish().report(0);
    assert_eq!(fetched["runs"].as_array().map(Vec::len), Some(2), "{fetched:#}");
    assert_eq!(fetched["to"], copy.display().to_string());
    for part in ["run-000001-b0", "run-000001-b1"] {
        assert_same(&system.path("runs").join(part), &machines.here.join(part));
    }

    let (here, there) = (Run::open(&copy).unwrap(), open_remote_run(&url, &Options::default()).unwrap());
    assert_eq!((here.len(), there.len(), here.run_info()), (built, built, there.run_info()));
    assert_eq!(there.run_path(), Path::new(&url));
    for (number, (one, other)) in (0..).zip(here.events().zip(there.events())) {
        let (one, other) = (one.unwrap(), other.unwrap());
        assert_eq!((one.id.0, other.id.0), (number, number));
        assert!(one.fragments.iter().zip(&other.fragments).all(|(one, other)| one.payload() == other.payload()));
    }
    let again = run(&["pull", "--verify", &url], &[&machines.here]).report(0);
    assert_eq!((number(&again, "/files"), number(&again, "/same_files")), (0, 4), "{again:#}");
    assert_eq!(again["to"], machines.here.join("run-000001").display().to_string());

    // Sent on, it is there as a whole, too.
    let other = Served::start(&machines.there, &["--write"]);
    let sent = run(&["push", copy.to_str().unwrap(), &other.url("")], &[]).report(0);
    assert_eq!((number(&sent, "/files"), sent["runs"].as_array().map(Vec::len)), (4, Some(2)), "{sent:#}");
    assert_eq!(Run::open(machines.there.join("run-000001")).unwrap().run_info(), here.run_info());

    // Events of both parts in one answer, and a page that leads to each of them.
    let server = |path: &str| Server::new(&served.url(path), &Options::default()).unwrap();
    let get = |path: &str, query: (&str, &str)| {
        let bytes = server("").read_range(Resource { path, query: &[query] }, .., None).unwrap();
        String::from_utf8(bytes).unwrap()
    };
    let json = ("format", "json");
    let events: serde_json::Value = serde_json::from_str(&get("runs/1/events/10..14", json)).unwrap();
    let ids: Vec<u64> = events["events"].as_array().unwrap().iter().map(|event| number(event, "/event")).collect();
    assert_eq!(ids, [10, 11, 12, 13]);
    let html = ("format", "html");
    let page = get("runs/1/", html);
    assert!(page.contains("COMPLETE") && page.contains("href=\"../1-b1/\""), "{page}");
    assert!(get("runs/1-b1/", html).contains("00000.seg"));
    assert_eq!(server("run-000001").list_directory("").unwrap().parts, ["run-000001-b0", "run-000001-b1"]);
}

#[test]
fn who_follows_a_run_whose_recorder_dies_comes_to_an_end() {
    let system = System::new(&Plan { source: "rate = 500.0", builder: QUICK, ..PLAN });
    let builder = system.builder();
    let sources = system.sources(0..3);
    let directory = system.run_directory();
    wait_until("the run", || directory.join("run.json").exists());
    let machines = Machines::new();
    let served = Served::start(&system.path("runs"), &[]);
    let fetching = start(&["pull", "--follow", &served.url("runs/1")], &[&machines.here]);
    let reading = start(&["cat", "--follow", directory.to_str().unwrap()], &[]);
    let mut elsewhere = open_remote_run(&served.url("runs/1"), &Options::default()).unwrap().follow_events().unwrap();
    await_events(&directory, 100);
    builder.kill();
    let fetched = fetching.finish().report(0);
    let copy = machines.here.join("run-000001");
    assert_eq!(fetched["abandoned"], serde_json::json!([copy]));
    let read = reading.finish();
    assert!(read.succeeded().stderr.contains("its writer died"), "{read:?}");
    let end = loop {
        if let Followed::End(end) = elsewhere.next_event(TIMEOUT).unwrap() {
            break end;
        }
    };
    assert_eq!(end, End::WriterGone);
    assert_eq!(Run::open(&copy).unwrap().len(), Run::open(&directory).unwrap().len());
    for source in sources {
        source.kill();
    }
}
