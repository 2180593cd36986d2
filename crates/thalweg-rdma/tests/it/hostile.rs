//! A program that scribbles over its rings, or sends nonsense, harms itself only.

use crate::setup::*;
use proptest::prelude::*;
use rustix::fs::{MemfdFlags, SealFlags};
use std::os::fd::{AsFd, OwnedFd};
use std::time::Instant;
use thalweg_arena::{CELL_BYTES, PAGE_BYTES, Ring, SharedMemory};
use thalweg_rnic::{Command, Engine, Reply, receive_ring_cells, send_ring_cells};

/// Lengths of the rings that are scribbled over.
const LENGTHS: QueueLengths =
    QueueLengths { send_requests: 4, receives: 4, send_sges: 3, receive_sges: 3, inline_bytes: 64 };

use thalweg_rdma::*;

/// A ring, and a second mapping of its memory through which anything can be written.
fn scribbled_ring(cells: u32) -> (OwnedFd, SharedMemory) {
    let ring = Ring::create("scribbled", cells).unwrap();
    let fd = ring.fd().try_clone_to_owned().unwrap();
    let memory = SharedMemory::import(&fd, true).unwrap();
    (fd, memory)
}

fn handle(reply: Reply) -> u32 {
    let Reply::Handle(handle) = reply else { panic!("{reply:?}") };
    handle
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]
    #[test]
    fn any_bytes_in_rings_harm_their_own_program_only(
        scribbles in proptest::collection::vec((0..3usize, 0..(PAGE_BYTES + 512), proptest::collection::vec(any::<u8>(), 1..80), any::<bool>()), 1..60),
    ) {
        let mut engine = Engine::new(Limits::default());
        let attacker = engine.add_client().unwrap();
        let (_events, theirs) = rustix::net::socketpair(rustix::net::AddressFamily::UNIX, rustix::net::SocketType::SEQPACKET, rustix::net::SocketFlags::CLOEXEC, None).unwrap();
        engine.execute_command(attacker, Command::Open, vec![theirs]).unwrap();
        let domain = handle(engine.execute_command(attacker, Command::AllocateDomain, vec![]).unwrap());
        let (completions, completion_memory) = scribbled_ring(8);
        let queue = Command::CreateCompletionQueue { entries: 8, channel: None, event_number: None };
        let completions = handle(engine.execute_command(attacker, queue, vec![completions]).unwrap());
        let ((send, send_memory), (receive, receive_memory)) = (scribbled_ring(send_ring_cells(&LENGTHS)), scribbled_ring(receive_ring_cells(LENGTHS.receives, LENGTHS.receive_sges)));
        let create = Command::CreateQueuePair {
            domain,
            send_completions: completions,
            receive_completions: completions,
            shared_queue: None,
            lengths: LENGTHS,
            signal_all: true,
        };
        let own = handle(engine.execute_command(attacker, create.clone(), vec![send, receive]).unwrap());
        let (send, receive) = (scribbled_ring(send_ring_cells(&LENGTHS)).0, scribbled_ring(receive_ring_cells(LENGTHS.receives, LENGTHS.receive_sges)).0);
        let peer = handle(engine.execute_command(attacker, create, vec![send, receive]).unwrap());
        for (queue, peer) in [(own, peer), (peer, own)] {
            for state in [QueueState::Init, QueueState::ReadyToReceive, QueueState::ReadyToSend] {
                let attributes = Some(QueueAttributes { peer_queue: Some(peer), ..QueueAttributes::default() });
                engine.execute_command(attacker, Command::ModifyQueuePair { queue, state, attributes }, vec![]).unwrap();
            }
        }
        let memories = [&send_memory, &receive_memory, &completion_memory];
        for (ring, at, bytes, likely) in scribbles {
            let memory = memories[ring];
            let at = at.min(memory.size_bytes() - bytes.len());
            memory.store_bytes(at, &bytes);
            if likely {
                // A sender's index, as the ring's layout has it (128), that is possible: descriptors are looked at.
                memory.store_bytes(128, &u32::from(bytes[0] & 7).to_ne_bytes());
                let cell = PAGE_BYTES + usize::from(bytes[0] & 3) * CELL_BYTES;
                memory.store_bytes(cell + 8, &[bytes[0] % 10, 2, bytes[0] % 4, 0, 0, 0, 0, 0]);
            }
            for _ in 0..20 {
                engine.make_progress(Instant::now(), &Instant::now);
            }
            engine.prepare_sleep(Instant::now());
            engine.cancel_sleep();
        }
        engine.remove_client(attacker);
        prop_assert!(!engine.make_progress(Instant::now(), &Instant::now));
    }

    #[test]
    fn any_message_is_a_command_or_is_refused(message in "\\PC{0,80}", number in any::<u32>()) {
        let _ = serde_json::from_str::<Command>(&message);
        let mut engine = Engine::new(Limits::default());
        let client = engine.add_client().unwrap();
        for command in [
            Command::DeallocateDomain(number), Command::Deregister(number), Command::PageList(number),
            Command::DestroyChannel(number), Command::DestroyCompletionQueue(number), Command::DestroySharedQueue(number),
            Command::DestroyQueuePair(number), Command::DestroyListener(number), Command::Disconnect(number),
            Command::QueryQueuePair(number), Command::Open, Command::CreateChannel,
            Command::CreateCompletionQueue { entries: number, channel: Some(number), event_number: None },
            Command::Reject { request: number, private_data: vec![] },
            Command::RegisterRegion { domain: number, offset: 0, length: u64::from(number), base: u64::MAX, access: Access::all() },
        ] {
            prop_assert!(engine.execute_command(client, command, vec![]).is_err());
        }
    }
}

#[test]
fn rings_of_another_length_or_that_could_shrink_are_refused() {
    let device = Device::open_embedded(Limits::default()).unwrap();
    let (near, _far) = (party(&device, &Options::default()), ());
    let mut engine = Engine::new(Limits::default());
    let client = engine.add_client().unwrap();
    let create = Command::CreateCompletionQueue { entries: 8, channel: None, event_number: None };
    let short = Ring::create("short", 4).unwrap().fd().try_clone_to_owned().unwrap();
    let refused = engine.execute_command(client, create.clone(), vec![short]).unwrap_err();
    assert_eq!(refused.to_string(), "the ring has 4 cells, the queue needs 8");
    let loose = rustix::fs::memfd_create("loose", MemfdFlags::ALLOW_SEALING).unwrap();
    rustix::fs::ftruncate(&loose, (PAGE_BYTES + 8 * CELL_BYTES) as u64).unwrap();
    assert!(engine.execute_command(client, create.clone(), vec![loose.as_fd().try_clone_to_owned().unwrap()]).is_err());
    rustix::fs::fcntl_add_seals(&loose, SealFlags::SHRINK).unwrap();
    let refused = engine.execute_command(client, create, vec![loose]).unwrap_err();
    assert!(refused.to_string().contains("not a ring"), "{refused}");
    drop(near);
}

#[test]
fn a_service_drops_a_program_that_sends_nonsense_and_serves_others() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("rnic");
    let mut service = thalweg_rnic::Service::listen(&path, Limits::default()).unwrap();
    std::thread::spawn(move || service.serve_programs());
    let device = Device::open_service(&path).unwrap();
    let socket =
        rustix::net::socket(rustix::net::AddressFamily::UNIX, rustix::net::SocketType::SEQPACKET, None).unwrap();
    rustix::net::connect(&socket, &rustix::net::SocketAddrUnix::new(&path).unwrap()).unwrap();
    let mut answer = [0; 1000];
    for nonsense in [&b"nonsense"[..], b"{\"Open\":7}", &[0xff; 5000]] {
        rustix::net::send(&socket, nonsense, rustix::net::SendFlags::empty()).unwrap();
        let (bytes, _) = rustix::net::recv(&socket, &mut answer[..], rustix::net::RecvFlags::empty()).unwrap();
        assert!(String::from_utf8_lossy(&answer[..bytes]).contains("Unknown"));
    }
    // Floods without reading the replies.
    while rustix::net::send(
        &socket,
        b"\"AllocateDomain\"",
        rustix::net::SendFlags::DONTWAIT | rustix::net::SendFlags::NOSIGNAL,
    ) != Err(rustix::io::Errno::PIPE)
    {}
    device.allocate_domain().unwrap();
}
