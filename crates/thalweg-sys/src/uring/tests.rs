//! Tests that every operation comes back exactly once, whatever the kernel returns.

use super::*;
use proptest::prelude::*;
use std::fs;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use thalweg_testing::skip::skipped;

/// Memory of eight bytes, with a name and a count of dropped values.
struct Word {
    name: usize,
    bytes: Vec<u8>,
    dropped: Arc<AtomicUsize>,
}

// SAFETY: a vector that is neither grown nor given away keeps its bytes where they are.
unsafe impl Memory for Word {
    fn as_mut_bytes(&mut self) -> &mut [u8] {
        &mut self.bytes
    }
}

impl Drop for Word {
    fn drop(&mut self) {
        self.bytes.fill(0xee);
        self.dropped.fetch_add(1, Ordering::Relaxed);
    }
}

/// A ring, a pipe on which reads wait, and a file for writes.
struct Rig {
    ring: Ring<Word>,
    out: File,
    into: OwnedFd,
    file: fs::File,
    pushed: usize,
    dropped: Arc<AtomicUsize>,
}

impl Rig {
    fn new() -> Option<Self> {
        // Few entries, so that operations wait their turn.
        let ring = match Ring::new(4) {
            Ok(ring) => ring,
            Err(error) => {
                skipped(format_args!("io_uring: {error}"));
                return None;
            }
        };
        let (out, into) = rustix::pipe::pipe().unwrap();
        let file = tempfile::tempfile().unwrap();
        Some(Self { ring, out: File::Open(Arc::new(out)), into, file, pushed: 0, dropped: Arc::default() })
    }

    fn word(&mut self) -> Word {
        let word =
            Word { name: self.pushed, bytes: vec![self.pushed as u8 + 1; 8], dropped: Arc::clone(&self.dropped) };
        self.pushed += 1;
        word
    }

    fn push_read(&mut self) {
        let word = self.word();
        self.ring.push_operation(Operation::read_range(self.out.clone(), word, 0..8, 0));
    }

    fn push_write(&mut self) {
        let word = self.word();
        let (offset, file) = (word.name as u64 * 8, Arc::new(self.file.try_clone().unwrap().into()));
        self.ring.push_operation(Operation::write_range(File::Open(file), word, 0..8, offset));
    }

    fn feed(&self) {
        assert_eq!(rustix::io::write(&self.into, &[0x77; 8]), Ok(8));
    }

    fn written(&self, name: usize) -> Option<[u8; 8]> {
        let mut bytes = [0; 8];
        self.file.read_exact_at(&mut bytes, name as u64 * 8).is_ok().then_some(bytes).filter(|bytes| *bytes != [0; 8])
    }
}

#[derive(Debug, Clone, Copy)]
enum Step {
    Nothing,
    Read,
    Write,
    Submit,
    Take,
    /// The next system call fails; the operations not taken may be taken later.
    Fail(Errno),
    /// The next system call is refused for good.
    Refuse,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        2 => Just(Step::Nothing),
        3 => Just(Step::Read),
        3 => Just(Step::Write),
        3 => Just(Step::Submit),
        3 => Just(Step::Take),
        2 => prop_oneof![Just(Errno::AGAIN), Just(Errno::BUSY), Just(Errno::INTR)].prop_map(Step::Fail),
        1 => Just(Step::Refuse),
    ]
}

proptest! {
    #[test]
    fn every_operation_comes_back_once(steps in prop::collection::vec(step(), 0..60), leave in any::<bool>()) {
        let Some(mut rig) = Rig::new() else { return Ok(()) };
        let mut kinds = Vec::new();
        let mut back: Vec<Option<Result<u32, Errno>>> = Vec::new();
        let mut take = |rig: &mut Rig, kinds: &[Step]| {
            while let Some(done) = rig.ring.next_finished() {
                back.resize(kinds.len(), None);
                let before = back[done.memory.name].replace(done.result);
                assert_eq!(before, None, "it came back twice");
                if done.result.is_ok() && matches!(kinds[done.memory.name], Step::Read) {
                    assert_eq!(done.memory.bytes, [0x77; 8]);
                }
            }
            back.iter().flatten().count()
        };
        for step in steps {
            match step {
                Step::Nothing => {
                    let word = rig.word();
                    rig.ring.push_operation(Operation::no_operation(word));
                }
                Step::Read => rig.push_read(),
                Step::Write => rig.push_write(),
                Step::Submit => rig.ring.submit_queued(),
                Step::Take => drop(take(&mut rig, &kinds)),
                Step::Fail(errno) => rig.ring.injected.push_back(errno),
                Step::Refuse => rig.ring.injected.push_back(Errno::BADF),
            }
            if matches!(step, Step::Nothing | Step::Read | Step::Write) {
                kinds.push(step);
            }
        }
        if leave {
            let (pushed, dropped) = (rig.pushed, Arc::clone(&rig.dropped));
            drop(rig);
            prop_assert_eq!(dropped.load(Ordering::Relaxed), pushed);
            return Ok(());
        }
        kinds.iter().filter(|kind| matches!(kind, Step::Read)).for_each(|_| rig.feed());
        while take(&mut rig, &kinds) < kinds.len() {
            rig.ring.wait_for_completion(None).unwrap();
        }
        prop_assert_eq!(rig.dropped.load(Ordering::Relaxed), rig.pushed);
        // No operation is left that a later call could submit.
        rig.ring.submit_queued();
        prop_assert!(rig.ring.next_finished().is_none());
        for (name, (kind, result)) in kinds.iter().zip(&back).enumerate() {
            let expected = match (kind, result) {
                (Step::Nothing, Some(Ok(0))) => continue,
                (Step::Read, Some(Ok(8))) => continue,
                (Step::Write, Some(Ok(8))) => Some([name as u8 + 1; 8]),
                (Step::Write, Some(Err(Errno::BADF))) => None,
                (_, result) => {
                    prop_assert_eq!(*result, Some(Err(Errno::BADF)));
                    continue;
                }
            };
            prop_assert_eq!(rig.written(name), expected);
        }
    }
}

#[test]
fn what_was_refused_is_never_submitted() {
    let Some(mut rig) = Rig::new() else { return };
    rig.push_write();
    rig.ring.injected.push_back(Errno::BADF);
    rig.ring.submit_queued();
    let refused = rig.ring.next_finished().unwrap();
    assert_eq!((refused.memory.name, refused.result), (0, Err(Errno::BADF)));
    drop(refused);
    // The kernel would take it now.
    rig.push_write();
    rig.ring.submit_queued();
    assert_eq!(rig.ring.next_finished().unwrap().result, Err(Errno::BADF));
    rig.ring.wait_for_completion(None).unwrap();
    assert_eq!((rig.written(0), rig.written(1)), (None, None));
}

#[test]
fn what_the_kernel_has_is_still_waited_for_when_the_ring_has_failed() {
    let Some(mut rig) = Rig::new() else { return };
    rig.push_read();
    rig.ring.submit_queued();
    rig.ring.injected.push_back(Errno::BADF);
    rig.push_write();
    rig.ring.wait_for_completion(None).unwrap();
    assert_eq!(rig.ring.next_finished().unwrap().memory.name, 1);
    let soon = Some(Duration::from_millis(1));
    assert_eq!(rig.ring.wait_for_completion(soon).unwrap_err().kind(), io::ErrorKind::TimedOut);
    rig.feed();
    let read = loop {
        rig.ring.wait_for_completion(None).unwrap();
        if let Some(done) = rig.ring.next_finished() {
            break done;
        }
    };
    assert_eq!((read.memory.name, read.result), (0, Ok(8)));
}

#[test]
fn a_ring_that_is_dropped_leaves_nothing_under_way() {
    let Some(mut rig) = Rig::new() else { return };
    rig.push_read();
    rig.ring.submit_queued();
    rig.push_write();
    let (into, out, file, dropped) = (rig.into, rig.out, rig.file, rig.dropped);
    drop(rig.ring);
    assert_eq!(dropped.load(Ordering::Relaxed), 2);
    assert_eq!(file.metadata().unwrap().len(), 0, "the write was never submitted");
    // No operation waits at the pipe any more.
    rustix::io::write(&into, &[1; 8]).unwrap();
    let File::Open(out) = out else { unreachable!() };
    assert_eq!(rustix::io::read(&*out, &mut [0; 9]), Ok(8));
}

#[test]
fn an_operation_keeps_its_file_open_until_it_is_over() {
    let Some(mut rig) = Rig::new() else { return };
    // Many operations, so that the kernel's workers reach some of them late.
    for _ in 0..100 {
        let (file, word) = (Arc::new(rig.file.try_clone().unwrap().into()), rig.word());
        rig.ring.push_operation(Operation::sync_file(File::Open(file), word));
    }
    let mut over = 0;
    while over < rig.pushed {
        rig.ring.wait_for_completion(None).unwrap();
        while let Some(done) = rig.ring.next_finished() {
            assert_eq!(done.result, Ok(0));
            over += 1;
        }
    }
}

#[test]
fn waiting_for_nothing_returns_and_a_wait_ends_in_time() {
    let Some(mut rig) = Rig::new() else { return };
    rig.ring.wait_for_completion(None).unwrap();
    rig.push_read();
    assert_eq!(
        rig.ring.wait_for_completion(Some(Duration::from_millis(1))).map_err(|error| error.kind()),
        Ok(()),
        "it was submitted"
    );
    assert_eq!(
        rig.ring.wait_for_completion(Some(Duration::from_millis(1))).unwrap_err().kind(),
        io::ErrorKind::TimedOut
    );
    assert!(rig.ring.next_finished().is_none());
}

#[test]
fn slots_are_parts_of_one_memory() {
    let memory = memmap2::MmapMut::map_anon(3 * 4096 + 100).unwrap();
    let mut parts = divide_into_slots(memory, 4096);
    assert_eq!(parts.iter().map(Slot::slot_number).collect::<Vec<_>>(), [0, 1, 2]);
    for slot in &mut parts {
        let number = slot.slot_number() as u8;
        slot.fill(number);
    }
    let last = parts.pop().unwrap();
    drop(parts);
    assert!(last.iter().all(|byte| *byte == 2) && last.len() == 4096);
}

#[test]
fn registered_memory_and_files_are_used() {
    let Ok(mut ring) = Ring::new(4) else { return skipped("io_uring") };
    let mut parts = divide_into_slots(memmap2::MmapMut::map_anon(2 * 4096).unwrap(), 4096);
    let mut bytes: Vec<&mut [u8]> = parts.iter_mut().map(Memory::as_mut_bytes).collect();
    if let Err(error) = ring.register_memory(&mut bytes) {
        return skipped(format_args!("registering memory: {error}"));
    }
    let file = tempfile::tempfile().unwrap();
    ring.register_file(file.as_fd()).unwrap();
    let (mut second, mut first) = (parts.pop().unwrap(), parts.pop().unwrap());
    first.fill(5);
    second.fill(6);
    ring.push_operation(Operation::write_range(File::Registered, first, 0..4096, 0));
    ring.wait_for_completion(None).unwrap();
    assert_eq!(ring.next_finished().unwrap().result, Ok(4096));
    ring.push_operation(Operation::read_range(File::Registered, second, 10..20, 4000));
    ring.wait_for_completion(None).unwrap();
    let read = ring.next_finished().unwrap();
    assert_eq!(read.result, Ok(10));
    assert!(read.memory[10..20] == [5; 10] && read.memory[..10] == [6; 10] && read.memory[20] == 6);
}

#[test]
#[should_panic(expected = "bytes 0..9 of a memory of 8")]
fn an_operation_stays_within_its_memory() {
    let word = Word { name: 0, bytes: vec![0; 8], dropped: Arc::default() };
    let _ = Operation::read_range(File::None, word, 0..9, 0);
}
