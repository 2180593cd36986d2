//! Programs and RNIC in processes of their own, some of which are killed.

use crate::setup::*;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use thalweg_rdma::*;

/// Role of this test program, when it is started by itself.
const ROLE: &str = "THALWEG_RDMA_TEST_ROLE";
const SOCKET: &str = "THALWEG_RDMA_TEST_SOCKET";
const ADDRESS: &str = "THALWEG_RDMA_TEST_ADDRESS";

/// The other processes of these tests: does nothing unless they start it.
#[test]
fn another_process() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let path = std::env::var(SOCKET).unwrap();
    match role.as_str() {
        "rnic" => {
            let mut service = thalweg_rnic::Service::listen(Path::new(&path), Limits::default()).unwrap();
            println!("ready");
            service.serve_programs().unwrap();
        }
        // Connects, writes where it is told, and hangs.
        _ => {
            let device = Device::open_service(Path::new(&path)).unwrap();
            let near = party(&device, &Options::default());
            near.queue.post_receive(1, &[near.buffer.sge(0, 64)]).unwrap();
            let address = std::env::var(ADDRESS).unwrap().parse().unwrap();
            let connection = near.queue.connect(address, ConnectionParameters::default(), PATIENCE).unwrap();
            let data = &connection.peer_parameters().private_data;
            let to = RemoteAddress {
                address: u64::from_ne_bytes(data[..8].try_into().unwrap()),
                stag: u32::from_ne_bytes(data[8..12].try_into().unwrap()),
            };
            near.send(2, Work::Write { data: Data::Inline(b"from afar"), to, immediate: None });
            let mut ids = [near.next().request_id(), near.next().request_id()];
            ids.sort_unstable();
            assert_eq!(ids, [1, 2]);
            near.send(3, Work::Send { data: Data::Inline(b"ready"), immediate: None });
            near.succeed(3);
            loop {
                std::thread::park();
            }
        }
    }
}

struct Process(Child);

impl Process {
    fn start(role: &str, socket: &Path, address: &str) -> Self {
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["processes::another_process", "--exact", "--nocapture"])
            .env(ROLE, role)
            .env(SOCKET, socket)
            .env(ADDRESS, address)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        Self(child)
    }

    fn start_rnic(socket: &Path) -> Self {
        let mut rnic = Self::start("rnic", socket, "");
        let mut lines = BufReader::new(rnic.0.stdout.take().unwrap()).lines();
        assert!(lines.any(|line| line.unwrap().contains("ready")));
        // It keeps the pipe: the process prints nothing more.
        std::mem::forget(lines);
        rnic
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_program_that_is_killed_leaves_nothing_behind_and_its_peer_is_told() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("rnic");
    let rnic = Process::start_rnic(&path);
    let device = Device::open_service(&path).unwrap();
    let mappings =
        || std::fs::read_to_string(format!("/proc/{}/maps", rnic.0.id())).unwrap().matches("memfd:rdma").count();
    for _ in 0..3 {
        let far = party(&device, &Options::default());
        let listener = device.listen("127.0.0.1:0".parse().unwrap(), 1).unwrap();
        let own = mappings();
        let mut client = Process::start("client", &path, &listener.local_address().to_string());
        let request = listener.wait_for_request(PATIENCE).unwrap().unwrap();
        for id in 10..14 {
            far.queue.post_receive(id, &[far.buffer.sge(100, 64)]).unwrap();
        }
        let mut private_data = far.at(0).address.to_ne_bytes().to_vec();
        private_data.extend(far.at(0).stag.to_ne_bytes());
        let parameters = ConnectionParameters { private_data, ..ConnectionParameters::default() };
        let connection = request.accept(&far.queue, parameters, PATIENCE).unwrap();
        far.send(1, Work::Send { data: Data::Inline(b"go"), immediate: None });
        far.succeed(1);
        assert_eq!(far.succeed(10).transferred_bytes(), 5);
        assert_eq!(far.bytes(0, 9), *b"from afar");
        assert!(mappings() > own);
        client.0.kill().unwrap();
        // Its peer gets errors, not silence.
        (11..14).for_each(|id| _ = far.fail(id, Status::Flushed));
        let reason = connection.wait_for_end(PATIENCE).unwrap().unwrap();
        assert!(reason.contains("the peer's program has ended"), "{reason}");
        far.send(2, Work::Send { data: Data::Inline(b"?"), immediate: None });
        far.fail(2, Status::Flushed);
        assert_eq!(mappings(), own, "its memory is still mapped");
    }
}

#[test]
fn an_rnic_that_is_killed_completes_every_request_by_its_absence() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("rnic");
    let mut rnic = Process::start_rnic(&path);
    let (one, other) = (Device::open_service(&path).unwrap(), Device::open_service(&path).unwrap());
    let mut options = Options::default();
    options.attributes.receiver_retries = ENDLESS_RETRIES;
    let (near, far) = (party(&one, &options), party(&other, &options));
    join(&near, &far, &options.attributes);
    let channel = other.create_channel().unwrap();
    let waiting = other.create_completion_queue(8, Some(&channel)).unwrap();
    assert_eq!(waiting.request_notification(Notify::Any).unwrap(), Armed::Armed);
    far.send(1, Work::Write { data: Data::Inline(b"x"), to: near.at(0), immediate: None });
    far.succeed(1);
    for id in 10..15 {
        near.send(id, Work::Send { data: Data::Inline(b"x"), immediate: None });
        near.queue.post_receive(100 + id, &[]).unwrap();
    }
    rnic.0.kill().unwrap();
    rnic.0.wait().unwrap();
    let mut ids: Vec<u64> = (0..10)
        .map(|_| {
            let completion = near.next();
            assert_eq!(completion.status(), Status::Fatal, "{completion}");
            completion.request_id()
        })
        .collect();
    ids.sort_unstable();
    assert_eq!(ids, [10, 11, 12, 13, 14, 110, 111, 112, 113, 114]);
    assert_eq!(near.try_next(), Err(PollError::RnicGone));
    assert_eq!(far.try_next(), Err(PollError::RnicGone));
    assert!(matches!(channel.wait_for_event(PATIENCE), Err(VerbsError::RnicGone)));
    assert_eq!(waiting.request_notification(Notify::Any).unwrap(), Armed::MissedCompletions);
    assert!(matches!(near.device.allocate_domain(), Err(VerbsError::RnicGone)));
    // A new one takes its place.
    std::fs::remove_file(&path).unwrap();
    let _rnic = Process::start_rnic(&path);
    Device::open_service(&path).unwrap().allocate_domain().unwrap();
}

#[test]
fn two_services_are_connected_by_tcp_and_one_is_killed() {
    let directory = tempfile::tempdir().unwrap();
    let (path, other_path) = (directory.path().join("rnic"), directory.path().join("other"));
    let (mut rnic, _other) = (Process::start_rnic(&path), Process::start_rnic(&other_path));
    let near = party(&Device::open_service(&path).unwrap(), &Options::default());
    let far = party(&Device::open_service(&other_path).unwrap(), &Options::default());
    let listener = far.device.listen("127.0.0.1:0".parse().unwrap(), 1).unwrap();
    let address = listener.local_address();
    let accepting = std::thread::spawn(move || {
        let request = listener.wait_for_request(PATIENCE).unwrap().unwrap();
        (0..10).for_each(|id| far.queue.post_receive(id, &[far.buffer.sge(0, 64)]).unwrap());
        let connection = request.accept(&far.queue, ConnectionParameters::default(), PATIENCE).unwrap();
        (far, connection)
    });
    let connection = near.queue.connect(address, ConnectionParameters::default(), PATIENCE).unwrap();
    let (far, far_connection) = accepting.join().unwrap();
    for id in 0..5 {
        near.send(id, Work::Send { data: Data::Inline(b"message"), immediate: None });
        near.succeed(id);
        assert_eq!(far.succeed(id).transferred_bytes(), 7);
    }
    rnic.0.kill().unwrap();
    (5..10).for_each(|id| _ = far.fail(id, Status::Flushed));
    assert!(far_connection.wait_for_end(PATIENCE).unwrap().is_some());
    assert!(matches!(connection.wait_for_end(PATIENCE), Err(VerbsError::RnicGone)));
}
