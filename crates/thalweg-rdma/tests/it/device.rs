//! Verbs on RDMA devices, by libibverbs and librdmacm: here that of `thalweg rdma run`, in the machine those of the kernel.

use crate::setup::{BUFFER_BYTES, PATIENCE, Party, pattern};
use rustix::event::{PollFd, PollFlags, Timespec};
use std::net::{IpAddr, SocketAddr};
use std::process::Command;
use std::time::Instant;
use thalweg_rdma::*;
use thalweg_testing::skip::skipped;

/// Variables by which the tests find the device when they are started again: its name and its address.
const DEVICE_VARIABLE: &str = "THALWEG_TEST_RDMA_DEVICE";
const ADDRESS_VARIABLE: &str = "THALWEG_TEST_RDMA_ADDRESS";

/// Device of `thalweg rdma run`.
const OWN_DEVICE: &str = "thalweg0";

/// Returns the device to test with its address; `None` in the process that only starts the test again for it.
fn tested_device() -> Option<(String, IpAddr)> {
    let address = std::env::var(ADDRESS_VARIABLE).ok()?;
    Some((std::env::var(DEVICE_VARIABLE).ok()?, address.parse().unwrap()))
}

/// Starts a test of this program again under `thalweg rdma run`, over both transports.
fn run_on_own_device(test: &str) {
    let tests = std::env::current_exe().unwrap();
    // Where cargo puts programs and libraries: one folder above its test programs.
    let beside = tests.ancestors().nth(2).unwrap();
    let (program, library) = (beside.join("thalweg"), beside.join("libthalweg_verbs_provider.so"));
    if !program.exists() || !library.exists() || !verbs_are_installed() {
        return skipped(
            "libibverbs, librdmacm, `thalweg` or its provider is not here; `cargo build --workspace` builds these",
        );
    }
    for transport in ["efe", "iwarp"] {
        let mut command = Command::new(&program);
        command.args(["-q", "rdma", "run", "--address", "127.0.0.1", "--transport", transport, "--"]);
        command.arg(&tests).args(["--exact", &format!("device::{test}"), "--nocapture"]);
        let output = command.env(DEVICE_VARIABLE, OWN_DEVICE).env(ADDRESS_VARIABLE, "127.0.0.1").output().unwrap();
        let printed = [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned()).concat();
        assert!(output.status.success() && printed.contains("1 passed"), "{transport}: {printed}");
    }
}

/// Returns whether the linker finds the libraries.
fn verbs_are_installed() -> bool {
    let output = Command::new("/sbin/ldconfig").arg("-p").output();
    let found = output.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default();
    found.contains("libibverbs.so.1") && found.contains("librdmacm.so.1")
}

const ACCESS: Access =
    Access::LOCAL_WRITE.union(Access::REMOTE_WRITE).union(Access::REMOTE_READ).union(Access::REMOTE_ATOMIC);

fn party(device: &Device, channel: Option<&CompletionChannel>, shared: Option<&SharedReceiveQueue>) -> Party {
    let domain = device.allocate_domain().unwrap();
    party_in(device, &domain, channel, shared)
}

fn party_in(
    device: &Device,
    domain: &ProtectionDomain,
    channel: Option<&CompletionChannel>,
    shared: Option<&SharedReceiveQueue>,
) -> Party {
    let completions = device.create_completion_queue(256, channel).unwrap();
    let mut options = QueuePairOptions::new(&completions);
    (options.shared_queue, options.lengths.inline_bytes) = (shared, 64);
    let queue = domain.create_queue_pair(&options).unwrap();
    queue.modify_state(QueueState::Init, None).unwrap();
    // siw knows no atomics.
    let access = if has_atomics(device) { ACCESS } else { ACCESS - Access::REMOTE_ATOMIC };
    let buffer = domain.create_buffer(BUFFER_BYTES, access).unwrap();
    Party { queue, completions, buffer, domain: domain.clone(), device: device.clone() }
}

/// Returns whether a device has atomics and immediates: siw, the kernel's iWARP device, has not.
fn has_atomics(device: &Device) -> bool {
    !device.device_name().is_some_and(|name| name.starts_with("siw"))
}

/// Connects two sides. The device is driven by the calls that wait.
fn join(device: &Device, address: IpAddr, near: &Party, far: &Party) -> (Connection, Connection) {
    let listener = device.listen(SocketAddr::new(address, 0), 4).unwrap();
    let parameters = ConnectionParameters { private_data: b"near".to_vec(), ..ConnectionParameters::default() };
    let connecting = near.queue.begin_connect(Transport::Tcp, listener.local_address(), parameters).unwrap();
    let request = listener.wait_for_request(PATIENCE).unwrap().expect("a request");
    assert!(request.peer_parameters().private_data.starts_with(b"near"));
    assert_eq!(request.peer_address().map(|peer| peer.ip()), Some(address));
    let parameters = ConnectionParameters { private_data: b"far".to_vec(), ..ConnectionParameters::default() };
    let accepting = request.begin_accept(&far.queue, parameters).unwrap();
    let near = connecting.wait_until_established(&near.queue, PATIENCE).unwrap();
    assert!(near.peer_parameters().private_data.starts_with(b"far"));
    let far = accepting.wait_until_established(&far.queue, PATIENCE).unwrap();
    assert!(far.peer_parameters().private_data.starts_with(b"near"));
    (near, far)
}

#[test]
fn bytes_are_written_read_and_sent() {
    let Some((name, address)) = tested_device() else {
        return run_on_own_device("bytes_are_written_read_and_sent");
    };
    let device = Device::open_device(&name).unwrap();
    assert_eq!(Device::open_device_at(address).unwrap().device_name(), Some(name.as_str()));
    let (near, far) = (party(&device, None, None), party(&device, None, None));
    far.queue.post_receive(3, &[far.buffer.sge(4000, 50), far.buffer.sge(5000, 50)]).unwrap();
    let (_near, ended) = join(&device, address, &near, &far);

    // A request that is not signaled completes with the next one.
    near.fill(0, &pattern(40_000, 1));
    let work = Work::Write { data: Data::Memory(&[near.buffer.sge(0, 40_000)]), to: far.at(5), immediate: None };
    near.queue.post_send(&SendRequest { id: 9, flags: SendFlags::empty(), work }).unwrap();
    near.send(1, Work::Send { data: Data::Inline(&pattern(60, 2)), immediate: None });
    assert_eq!(near.succeed(1).operation(), CompletedOperation::Send);
    let received = far.succeed(3);
    assert_eq!((received.operation(), received.transferred_bytes()), (CompletedOperation::Receive, 60));
    assert_eq!(received.queue_number(), far.queue.queue_number());
    assert_eq!(far.bytes(4000, 50), pattern(60, 2)[..50]);
    assert_eq!(far.bytes(5000, 10), pattern(60, 2)[50..]);
    assert_eq!(far.bytes(10_000, 30_000), pattern(40_000, 1)[9995..39_995]);

    near.send(2, Work::Read { into: &[near.buffer.sge(50_000, 500)], from: far.at(20_000) });
    let read = near.succeed(2);
    assert_eq!((read.operation(), read.transferred_bytes()), (CompletedOperation::Read, 500));
    assert_eq!(near.bytes(50_000, 500), far.bytes(20_000, 500));
    if has_atomics(&device) {
        use_atomics_and_immediates(&near, &far);
    }

    near.queue.disconnect().unwrap();
    assert!(ended.wait_for_end(PATIENCE).unwrap().is_some());
    // What is posted to a queue pair that has ended is flushed.
    far.queue.post_receive(7, &[]).unwrap();
    assert_eq!((far.next().status(), far.queue.query_state().unwrap().0), (Status::Flushed, QueueState::Error));
}

fn use_atomics_and_immediates(near: &Party, far: &Party) {
    far.fill(8, &40u64.to_ne_bytes());
    let into = near.buffer.sge(16, 8);
    near.send(1, Work::FetchAdd { into, at: far.at(8), add: 2 });
    assert_eq!(near.succeed(1).operation(), CompletedOperation::FetchAdd);
    near.send(2, Work::CompareSwap { into, at: far.at(8), compare: 42, swap: 7 });
    assert_eq!(near.succeed(2).operation(), CompletedOperation::CompareSwap);
    assert_eq!((near.bytes(16, 8), far.bytes(8, 8)), (42u64.to_ne_bytes().into(), 7u64.to_ne_bytes().into()));

    far.queue.post_receive(5, &[]).unwrap();
    let data = [near.buffer.sge(0, 10)];
    near.send(6, Work::Write { data: Data::Memory(&data), to: far.at(9000), immediate: Some(0x0102_0304) });
    near.succeed(6);
    let received = far.succeed(5);
    assert_eq!(received.operation(), CompletedOperation::ReceiveWriteWithImmediate);
    assert_eq!(received.immediate_data(), Some(0x0102_0304));
}

#[test]
fn a_request_that_is_refused_ends_the_connection_and_flushes_those_after_it() {
    let Some((name, address)) = tested_device() else {
        let test = "a_request_that_is_refused_ends_the_connection_and_flushes_those_after_it";
        return run_on_own_device(test);
    };
    let device = Device::open_device(&name).unwrap();
    let (near, far) = (party(&device, None, None), party(&device, None, None));
    let _connections = join(&device, address, &near, &far);
    near.queue.post_receive(50, &[near.buffer.sge(0, 8)]).unwrap();
    // 60 bytes fit into the queue pair's own room, and not beyond the end of the peer's memory.
    let to = far.at(BUFFER_BYTES as u64 - 10);
    near.send(1, Work::Write { data: Data::Memory(&[near.buffer.sge(0, 60)]), to, immediate: None });
    near.send(2, Work::Read { into: &[near.buffer.sge(0, 8)], from: far.at(0) });
    near.send(3, Work::Read { into: &[near.buffer.sge(0, 8)], from: far.at(0) });
    // Over iWARP, a write has completed when it was sent; the peer's refusal fails what follows it.
    let mut sent = Vec::new();
    let mut received = Vec::new();
    while sent.len() + received.len() < 4 {
        let done = near.next();
        let is_receive = done.operation() == CompletedOperation::Receive;
        if is_receive { &mut received } else { &mut sent }.push((done.request_id(), done.status()));
    }
    assert_eq!(sent.iter().map(|(id, _)| *id).collect::<Vec<_>>(), [1, 2, 3]);
    assert!(sent.iter().any(|(_, status)| *status != Status::Success), "{sent:?}");
    assert_eq!((sent[2].1, received.as_slice()), (Status::Flushed, &[(50, Status::Flushed)][..]));
    assert_eq!(near.queue.query_state().unwrap().0, QueueState::Error);
}

#[test]
fn a_program_sleeps_until_there_is_a_completion() {
    let Some((name, address)) = tested_device() else {
        return run_on_own_device("a_program_sleeps_until_there_is_a_completion");
    };
    let device = Device::open_device(&name).unwrap();
    let channel = device.create_channel().unwrap();
    let (near, far) = (party(&device, None, None), party(&device, Some(&channel), None));
    for id in 0..20 {
        far.queue.post_receive(id, &[far.buffer.sge(0, 8)]).unwrap();
    }
    let _connections = join(&device, address, &near, &far);
    for id in 0..20 {
        near.send(id, Work::Send { data: Data::Inline(b"wake up"), immediate: None });
        let done = loop {
            if let Some(done) = far.completions.take_ready().unwrap() {
                break done;
            }
            if far.completions.request_notification(Notify::Any).unwrap() == Armed::Armed {
                let event = channel.wait_for_event(PATIENCE).unwrap();
                assert_eq!(event, Some(far.completions.queue_handle()));
            }
        };
        assert!(done.is_success() && done.request_id() == id, "{done}");
        near.succeed(id);
    }
}

/// Reads and messages of the test below, bytes of a read, and reads outstanding.
const READS: u64 = 300;
const READ_BYTES: u32 = 256 << 10;
const READS_AHEAD: u64 = 24;

/// Waits in a poller of its own for a device that it then drives, as nodes do.
fn wait_for_device(device: &Device) {
    let deadline = device.next_deadline(Instant::now());
    let wait = deadline.map_or(PATIENCE, |deadline| deadline.saturating_duration_since(Instant::now())).min(PATIENCE);
    let descriptor = device.poll_descriptor().unwrap();
    let mut fds = [PollFd::new(&*descriptor, PollFlags::IN)];
    let timeout = Timespec { tv_sec: wait.as_secs() as i64, tv_nsec: wait.subsec_nanos().into() };
    let ready = rustix::event::poll(&mut fds, Some(&timeout)).unwrap();
    assert!(ready > 0 || deadline.is_some(), "nothing has completed");
    while device.make_progress() {}
}

#[test]
fn reads_and_messages_of_both_sides_go_on_while_the_program_sleeps() {
    let Some((name, address)) = tested_device() else {
        return run_on_own_device("reads_and_messages_of_both_sides_go_on_while_the_program_sleeps");
    };
    let device = Device::open_device(&name).unwrap();
    let (near, far) = (party(&device, None, None), party(&device, None, None));
    let sink = near.domain.create_buffer(READS_AHEAD as usize * READ_BYTES as usize, Access::LOCAL_WRITE).unwrap();
    let source = far.domain.create_buffer(READ_BYTES as usize, Access::LOCAL_WRITE | Access::REMOTE_READ).unwrap();
    source.shared_memory().store_bytes(0, &pattern(READ_BYTES as usize, 7));
    for side in [&near, &far] {
        (0..64).for_each(|id| side.queue.post_receive(1 << 32 | id, &[side.buffer.sge(0, 8)]).unwrap());
    }
    let _connections = join(&device, address, &near, &far);
    let (mut posted, mut done, mut messages, mut received) = (0, 0, 0, 0);
    while done < READS || received < messages {
        while posted < READS && posted < done + READS_AHEAD {
            let at = posted % READS_AHEAD * u64::from(READ_BYTES);
            let from = RemoteAddress { address: source.address_at(0), stag: source.stag() };
            near.send(posted, Work::Read { into: &[sink.sge(at, READ_BYTES)], from });
            posted += 1;
            // No more messages than the other side has receives for.
            if posted.is_multiple_of(3) && messages < received + 64 {
                near.send(1 << 33, Work::Send { data: Data::Inline(b"near"), immediate: None });
                far.send(1 << 33, Work::Send { data: Data::Inline(b"far"), immediate: None });
                messages += 2;
            }
        }
        let before = (done, received);
        for side in [&near, &far] {
            while let Some(completion) = side.completions.take_ready().unwrap() {
                assert!(completion.is_success(), "{completion}");
                match completion.operation() {
                    CompletedOperation::Read => {
                        assert_eq!(completion.request_id(), done, "in their order");
                        done += 1;
                    }
                    CompletedOperation::Receive => {
                        received += 1;
                        side.queue.post_receive(completion.request_id(), &[side.buffer.sge(0, 8)]).unwrap();
                    }
                    _ => {}
                }
            }
        }
        if (done, received) == before {
            wait_for_device(&device);
        }
    }
    let mut bytes = vec![0; READ_BYTES as usize];
    sink.shared_memory().load_bytes(0, &mut bytes);
    assert!(bytes == pattern(READ_BYTES as usize, 7));
}

#[test]
fn queue_pairs_take_their_receives_from_a_shared_queue() {
    let Some((name, address)) = tested_device() else {
        return run_on_own_device("queue_pairs_take_their_receives_from_a_shared_queue");
    };
    let device = Device::open_device(&name).unwrap();
    let domain = device.allocate_domain().unwrap();
    let shared = domain.create_shared_queue(16, 1).unwrap();
    let (near, far) = (party(&device, None, None), party_in(&device, &domain, None, Some(&shared)));
    for id in 10..14 {
        shared.post_receive(id, &[far.buffer.sge(id * 64, 64)]).unwrap();
    }
    let _connections = join(&device, address, &near, &far);
    for id in 10..14 {
        near.send(id, Work::Send { data: Data::Inline(&[id as u8; 20]), immediate: None });
        near.succeed(id);
        far.succeed(id);
        assert_eq!(far.bytes(id as usize * 64, 20), [id as u8; 20]);
    }
}

#[test]
fn what_a_device_lacks_is_named() {
    let Some((name, address)) = tested_device() else {
        return run_on_own_device("what_a_device_lacks_is_named");
    };
    let absent = Device::open_device("mlx5_99").unwrap_err().to_string();
    assert!(absent.contains("\"mlx5_99\"") && absent.contains(&name), "{absent}");
    let elsewhere = Device::open_device_at("192.0.2.77".parse().unwrap()).unwrap_err().to_string();
    assert!(elsewhere.contains("192.0.2.77"), "{elsewhere}");

    let device = Device::open_device(&name).unwrap();
    let (near, far) = (party(&device, None, None), party(&device, None, None));
    let windows = near.domain.allocate_window(WindowKind::Queue).unwrap_err().to_string();
    assert!(windows.contains("memory windows") && windows.contains(&name), "{windows}");
    let numbers = near.queue.modify_state(QueueState::ReadyToReceive, None).unwrap_err().to_string();
    assert!(numbers.contains("`connect`"), "{numbers}");
    let nowhere = SocketAddr::new(address, 1);
    let efe = near.queue.begin_connect(Transport::Efe, nowhere, ConnectionParameters::default()).unwrap_err();
    assert!(efe.to_string().contains("EFE"), "{efe}");

    // A peer that rejects, and an address at which none listens.
    let listener = device.listen(SocketAddr::new(address, 0), 4).unwrap();
    let connecting =
        near.queue.begin_connect(Transport::Tcp, listener.local_address(), ConnectionParameters::default()).unwrap();
    let request = listener.wait_for_request(PATIENCE).unwrap().expect("a request");
    request.reject(b"no".to_vec()).unwrap();
    let rejected = connecting.wait_until_established(&near.queue, PATIENCE).unwrap_err();
    assert!(
        matches!(&rejected, ConnectError::Rejected { private_data } if private_data.starts_with(b"no")),
        "{rejected}"
    );
    let refused = far.queue.connect(nowhere, ConnectionParameters::default(), PATIENCE).unwrap_err();
    assert!(matches!(refused, ConnectError::Failed(_) | ConnectError::Rejected { .. }), "{refused}");
    assert_eq!(far.queue.query_state().unwrap().0, QueueState::Error);

    // A file has a mapping of its own: peers name its bytes by that, and this program as it likes.
    let (fd, memory) = thalweg_arena::SharedMemory::create("registered twice", 8192).unwrap();
    let range = MemoryRange { offset: 4096, length: 4096, base: 0 };
    let region = near.domain.register_memory(std::os::fd::AsFd::as_fd(&fd), range, Access::REMOTE_READ).unwrap();
    assert_ne!(region.peer_address(0), memory.base_address() + 4096);
    assert_eq!(region.page_list().unwrap(), [(4096, 4096)]);
}

#[test]
fn an_error_names_the_library_or_the_device_that_is_missing() {
    if tested_device().is_some() {
        return;
    }
    let Err(error) = Device::open_device("no such device") else { panic!("there is no such device") };
    let text = error.to_string();
    let expected: &[&str] = if verbs_are_installed() {
        &["\"no such device\"", "modprobe ib_uverbs"]
    } else {
        &["libibverbs1", "librdmacm1"]
    };
    assert!(expected.iter().any(|part| text.contains(part)), "{text}");
}
