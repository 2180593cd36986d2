//! Any bytes that a program writes into its rings harm that program only: its RNIC goes on, and serves others.

use std::os::fd::OwnedFd;
use std::time::Instant;
use thalweg_arena::{CELL_BYTES, PAGE_BYTES, Ring, SharedMemory};
use thalweg_rnic::{
    Access, ClientId, Command, Engine, Limits, QueueAttributes, QueueLengths, QueueState, Reply, receive_ring_cells,
    send_ring_cells,
};

const LENGTHS: QueueLengths =
    QueueLengths { send_requests: 4, receives: 4, send_sges: 3, receive_sges: 3, inline_bytes: 64 };

/// Entries of the completion queue: it overruns soon.
const ENTRIES: u32 = 8;

/// Length of the registered memory in bytes.
const REGION_BYTES: usize = 4096;

/// Offset of the sender's index in a ring.
const TAIL_OFFSET: usize = 128;

/// Tries one input: writes to rings, each a ring, a place, a length and bytes; turns of the RNIC in between.
pub fn run(bytes: &[u8]) {
    let mut engine = Engine::new(Limits::default());
    let client = engine.add_client().expect("one program");
    let (region, memory) = SharedMemory::create("fuzz-region", REGION_BYTES).expect("memory");
    let (rings, stag) = set_up(&mut engine, client, region);
    let mut rest = bytes;
    while let Some((&[choice, place, count], after)) = rest.split_first_chunk::<3>() {
        let (written, after) = after.split_at(after.len().min(usize::from(count)));
        rest = after;
        let ring = &rings[usize::from(choice) % rings.len()];
        // Cells, mostly; the indices and flags in the first page otherwise.
        let at =
            if choice & 0x80 == 0 { PAGE_BYTES + usize::from(place) % 8 * CELL_BYTES } else { usize::from(place) * 4 };
        let at = at.min(ring.size_bytes() - CELL_BYTES);
        let room = ring.size_bytes() - at;
        ring.store_bytes(at, &written[..written.len().min(room)]);
        if choice & 0x40 != 0 {
            // A fuzzer guesses no STag: what is behind a valid one is reached.
            let element = at + usize::from(place & 0x30);
            ring.store_bytes((element + 12).min(ring.size_bytes() - 4), &stag.to_ne_bytes());
            ring.store_bytes(TAIL_OFFSET, &u32::from(place & 7).to_ne_bytes());
        }
        engine.make_progress(Instant::now(), &Instant::now);
        engine.prepare_sleep(Instant::now());
        engine.cancel_sleep();
    }
    let mut content = [0; REGION_BYTES];
    memory.load_bytes(0, &mut content);
    engine.remove_client(client);
    assert!(!engine.make_progress(Instant::now(), &Instant::now), "work is left of a program that has gone");
}

/// Returns the memory of the rings of a connected queue pair and of its completion queue, and a STag of the program's.
fn set_up(engine: &mut Engine, client: ClientId, region: OwnedFd) -> ([SharedMemory; 3], u32) {
    let domain = handle(engine.execute_command(client, Command::AllocateDomain, vec![]));
    let register =
        Command::RegisterRegion { domain, offset: 0, length: REGION_BYTES as u64, base: 0, access: Access::all() };
    let stag = handle(engine.execute_command(client, register, vec![region]));
    let (completions, completion_memory) = ring(ENTRIES);
    let create = Command::CreateCompletionQueue { entries: ENTRIES, channel: None, event_number: None };
    let completions = handle(engine.execute_command(client, create, vec![completions]));
    let create = Command::CreateQueuePair {
        domain,
        send_completions: completions,
        receive_completions: completions,
        shared_queue: None,
        lengths: LENGTHS,
        signal_all: true,
    };
    let cells = (send_ring_cells(&LENGTHS), receive_ring_cells(LENGTHS.receives, LENGTHS.receive_sges));
    let [(own, own_memories), (peer, _)] = [(), ()].map(|()| {
        let ((send, send_memory), (receive, receive_memory)) = (ring(cells.0), ring(cells.1));
        let queue = handle(engine.execute_command(client, create.clone(), vec![send, receive]));
        (queue, (send_memory, receive_memory))
    });
    for (queue, peer) in [(own, peer), (peer, own)] {
        for state in [QueueState::Init, QueueState::ReadyToReceive, QueueState::ReadyToSend] {
            let attributes = Some(QueueAttributes { peer_queue: Some(peer), ..QueueAttributes::default() });
            let _ = engine.execute_command(client, Command::ModifyQueuePair { queue, state, attributes }, vec![]);
        }
    }
    ([own_memories.0, own_memories.1, completion_memory], stag)
}

/// Returns the descriptor of a ring for the RNIC, and a mapping through which anything can be written.
fn ring(cells: u32) -> (OwnedFd, SharedMemory) {
    let ring = Ring::create("fuzz-ring", cells).expect("memory");
    let fd = ring.fd().try_clone_to_owned().expect("a descriptor");
    let memory = SharedMemory::import(&fd, true).expect("the ring's memory");
    (fd, memory)
}

fn handle<E: std::fmt::Debug>(reply: Result<Reply, E>) -> u32 {
    match reply {
        Ok(Reply::Handle(handle)) => handle,
        other => panic!("a handle was expected: {other:?}"),
    }
}
