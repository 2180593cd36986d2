//! Tests of a ring between two mappings of one memory, as two processes have it.

use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{MemfdFlags, SealFlags};
use std::os::fd::OwnedFd;
use thalweg_arena::{CELL_BYTES, Doorbell, MAX_CELLS, PushError, Ring, RingReceiver, RingSender, RingSetupError};

#[test]
fn cells_cross_from_one_mapping_to_the_other() {
    let ours = Ring::create("two-mappings", 8).unwrap();
    let theirs = Ring::import(ours.fd().try_clone_to_owned().unwrap()).unwrap();
    assert_eq!((ours.cells(), theirs.cells()), (8, 8));
    let (mut sender, mut receiver) = (ours.into_sender(), theirs.into_receiver());

    assert!(receiver.prepare_wait(), "nothing came yet");
    for number in 0..8 {
        sender.push(&[number; CELL_BYTES]).unwrap();
    }
    assert_eq!(sender.push(&[8; CELL_BYTES]), Err(PushError::Full));
    assert_eq!(receiver.pop(), Ok(None), "not published");
    assert!(sender.publish(), "the receiver sleeps");
    assert!(!sender.publish(), "nothing new");

    assert!(!receiver.prepare_wait());
    assert!(sender.prepare_wait(), "no room");
    for number in 0..8 {
        assert_eq!(receiver.pop(), Ok(Some([number; CELL_BYTES])));
    }
    assert!(receiver.sender_waits());
    assert!(!receiver.sender_waits(), "once is enough");
    assert!(!sender.prepare_wait(), "room now");
    sender.push(&[8; CELL_BYTES]).unwrap();
    assert!(!sender.publish(), "the receiver is awake");
    assert_eq!(receiver.pop(), Ok(Some([8; CELL_BYTES])));
}

#[test]
fn a_wait_called_off_costs_no_wake_up() {
    let (mut sender, mut receiver) = Ring::create("called-off", 1).unwrap().split();
    assert!(receiver.prepare_wait());
    receiver.cancel_wait();
    sender.push(&[1; CELL_BYTES]).unwrap();
    assert!(!sender.publish());
    assert!(sender.prepare_wait());
    sender.cancel_wait();
    assert_eq!(receiver.pop(), Ok(Some([1; CELL_BYTES])));
    assert!(!receiver.sender_waits());
}

#[test]
fn two_threads_that_sleep_and_wake_lose_nothing() {
    const CELLS: u64 = 40_000;
    for cells in [1, 2, 64] {
        let ring = Ring::create("stress", cells).unwrap();
        let theirs = Ring::import(ring.fd().try_clone_to_owned().unwrap()).unwrap();
        let something = Doorbell::new().unwrap();
        let room = Doorbell::new().unwrap();
        // Every wake-up of a one-cell ring is two system calls and a switch of threads.
        let count = if cells == 1 { CELLS / 10 } else { CELLS };
        std::thread::scope(|scope| {
            scope.spawn(|| send(ring.into_sender(), count, &something, &room));
            receive(theirs.into_receiver(), count, &something, &room);
        });
    }
}

fn send(mut sender: RingSender, count: u64, something: &Doorbell, room: &Doorbell) {
    for number in 0..count {
        while let Err(full) = sender.push(&cell(number)) {
            assert_eq!(full, PushError::Full);
            if sender.publish() {
                something.wake_waiter().unwrap();
            }
            if sender.prepare_wait() {
                wait(room);
            }
        }
        // Batches of uneven length.
        if number % 7 < 3 && sender.publish() {
            something.wake_waiter().unwrap();
        }
    }
    if sender.publish() {
        something.wake_waiter().unwrap();
    }
}

fn receive(mut receiver: RingReceiver, count: u64, something: &Doorbell, room: &Doorbell) {
    let mut next = 0;
    while next < count {
        while let Some(received) = receiver.pop().unwrap() {
            assert_eq!(received, cell(next));
            next += 1;
            if receiver.sender_waits() {
                room.wake_waiter().unwrap();
            }
        }
        if next < count && receiver.prepare_wait() {
            wait(something);
        }
    }
}

/// Sleeps until the bell rings; ten seconds without a ring is a lost wake-up.
fn wait(bell: &Doorbell) {
    let deadline = rustix::time::Timespec { tv_sec: 10, tv_nsec: 0 };
    let ready = poll(&mut [PollFd::new(bell, PollFlags::IN)], Some(&deadline)).unwrap();
    assert_eq!(ready, 1, "nobody rang");
    bell.clear_wakeups().unwrap();
}

fn cell(number: u64) -> [u8; CELL_BYTES] {
    let mut cell = [number as u8; CELL_BYTES];
    cell[..8].copy_from_slice(&number.to_le_bytes());
    cell
}

#[test]
fn impossible_counts_are_errors() {
    for cells in [0, 3, 12, MAX_CELLS + 1, MAX_CELLS * 2, u32::MAX] {
        assert!(matches!(Ring::create("odd", cells), Err(RingSetupError::Cells(c)) if c == cells));
    }
}

#[test]
fn what_is_not_a_ring_is_refused() {
    let file = tempfile::tempfile().unwrap();
    assert!(matches!(Ring::import(file.into()), Err(RingSetupError::NotSealed)));
    assert!(matches!(Ring::import(memfd(8192, SealFlags::GROW)), Err(RingSetupError::NotSealed)));
    // Sealed, but empty, too short, cut off, too large, or of the right size without the mark.
    for bytes in [0, 4096, 4096 + 63, 4096 + 64 * 3, 4096 + 64 * u64::from(MAX_CELLS) * 2, u64::MAX >> 1, 4096 + 64] {
        let refused = Ring::import(memfd(bytes, SealFlags::SHRINK));
        assert!(matches!(refused, Err(RingSetupError::NotARing { .. })), "{bytes}: {refused:?}");
    }
    // The mark of a ring of 2 cells on memory for 4.
    let ring = Ring::create("two", 2).unwrap();
    let mut header = [0; 16];
    rustix::io::pread(ring.fd(), &mut header, 0).unwrap();
    let larger = memfd(4096 + 64 * 4, SealFlags::SHRINK);
    rustix::io::pwrite(&larger, &header, 0).unwrap();
    assert!(matches!(Ring::import(larger), Err(RingSetupError::NotARing { cells: 2, .. })));
    // A head that is past the tail.
    rustix::io::pwrite(ring.fd(), &1u32.to_le_bytes(), 256).unwrap();
    let used = Ring::import(ring.fd().try_clone_to_owned().unwrap());
    assert!(matches!(used, Err(RingSetupError::Used { head: 1 })));
}

fn memfd(bytes: u64, seals: SealFlags) -> OwnedFd {
    let fd = rustix::fs::memfd_create("not-a-ring", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
    rustix::fs::ftruncate(&fd, bytes).unwrap();
    rustix::fs::fcntl_add_seals(&fd, seals).unwrap();
    fd
}
