//! Asynchronous disk operations: io_uring where the kernel allows it, otherwise a few threads.
//!
//! The hot thread does not wait for the disk: the kernel works on its own, or the threads block in its place.

use crate::block::BlockWriter;
use crate::disk::SimulatedEngine;
use parking_lot::{Condvar, Mutex};
use rustix::event::{EventfdFlags, PollFd, PollFlags};
use rustix::io::Errno;
use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::thread::JoinHandle;
use thalweg_arena::Block;
use thalweg_sys::uring::{Memory, Operation, Ring};

/// Purpose of an operation, and the memory that it writes from.
#[derive(Debug)]
pub(crate) enum Job {
    /// Writes a block, from registered memory if `registered` is set.
    Block { number: u64, block: BlockWriter, registered: bool },
    /// Creates a segment's file.
    Create { segment: u32, file: Option<OwnedFd> },
    /// Allocates space for a segment.
    Allocate { segment: u32 },
    /// Truncates a segment, to give back allocated space that it does not need.
    Truncate { segment: u32 },
    /// Removes the file of a segment that no reader can reach.
    Remove { segment: u32 },
    /// Writes a segment's footer.
    Footer { segment: u32, memory: Block },
    /// Syncs a closed segment to disk.
    Sync { segment: u32 },
    /// Syncs to disk what is written of the segment being filled.
    Keep { segment: u32 },
    /// Syncs the names in the run's directory to disk.
    Names,
    /// Makes the engine's file descriptor readable.
    Wake,
}

// SAFETY: a block's bytes lie in its arena's mapping, and the block does not move them; as long as it is not used, they
// are accessed through it alone.
unsafe impl Memory for Job {
    fn as_mut_bytes(&mut self) -> &mut [u8] {
        match self {
            Self::Block { block, .. } => block.memory_mut(),
            Self::Footer { memory, .. } => memory.bytes_mut(),
            _ => &mut [],
        }
    }

    fn registered_index(&self) -> Option<u16> {
        match self {
            Self::Block { block, registered: true, .. } => u16::try_from(block.index_in_pool()).ok(),
            _ => None,
        }
    }

    fn accept_opened_file(&mut self, made: OwnedFd) {
        if let Self::Create { file, .. } = self {
            *file = Some(made);
        }
    }
}

/// A completed operation: its job, and the number of bytes written or the error.
#[derive(Debug)]
pub(crate) struct Done {
    pub(crate) job: Job,
    pub(crate) result: Result<u32, Errno>,
}

/// Carries out operations, several at a time. Its file descriptor is readable when an operation is complete.
#[derive(Debug)]
pub(crate) enum Engine {
    Ring(Box<Ring<Job>>),
    Threads(Threads),
    Simulated(SimulatedEngine),
}

impl Engine {
    /// Returns an engine on io_uring.
    pub(crate) fn with_io_uring() -> io::Result<Self> {
        // Further operations wait their turn.
        Ring::new(256).map(|ring| Self::Ring(Box::new(ring)))
    }

    /// Returns an engine on threads.
    pub(crate) fn with_threads() -> io::Result<Self> {
        Threads::new().map(Self::Threads)
    }

    /// Registers memory with the kernel that will be written from again and again, so that the kernel need not look up
    /// its pages for each write. Buffers are numbered by their positions in `buffers`.
    pub(crate) fn register_buffers(&mut self, buffers: &mut [&mut [u8]]) -> io::Result<()> {
        match self {
            Self::Ring(ring) => ring.register_memory(buffers),
            Self::Threads(_) | Self::Simulated(_) => Err(io::ErrorKind::Unsupported.into()),
        }
    }

    /// Begins an operation. It comes back from [`take_finished`](Self::take_finished), also if it cannot be begun. If io_uring
    /// refuses it, the file descriptor does not become readable.
    pub(crate) fn start_operation(&mut self, operation: Operation<Job>) {
        match self {
            Self::Ring(ring) => {
                ring.push_operation(operation);
                ring.submit_queued();
            }
            Self::Threads(threads) => threads.start_operation(operation),
            Self::Simulated(disk) => disk.start_operation(operation),
        }
    }

    /// Returns a completed operation, in no particular order. Does not wait.
    pub(crate) fn take_finished(&mut self) -> Option<Done> {
        match self {
            Self::Ring(ring) => {
                let done = ring.next_finished().or_else(|| {
                    // The kernel posts pending completions, and takes further operations, when it is entered.
                    ring.submit_queued();
                    ring.next_finished()
                })?;
                Some(Done { job: done.memory, result: done.result })
            }
            Self::Threads(threads) => threads.take_finished(),
            Self::Simulated(disk) => disk.take_finished(),
        }
    }

    /// Waits until an operation is complete.
    pub(crate) fn wait_for_completion(&mut self) -> io::Result<()> {
        match self {
            Self::Ring(ring) => ring.wait_for_completion(None),
            Self::Threads(threads) => threads.wait_for_completion(),
            Self::Simulated(disk) => disk.wait_for_completion(),
        }
    }
}

impl AsFd for Engine {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Ring(ring) => ring.as_fd(),
            Self::Threads(threads) => threads.shared.doorbell.as_fd(),
            Self::Simulated(disk) => disk.as_fd(),
        }
    }
}

/// The engine on threads, for where io_uring is forbidden (seccomp profiles of containers, `kernel.io_uring_disabled`).
#[derive(Debug)]
pub(crate) struct Threads {
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    work: Condvar,
    /// Readable while `State::done` holds an entry.
    doorbell: OwnedFd,
}

#[derive(Debug, Default)]
struct State {
    operations: VecDeque<Operation<Job>>,
    done: VecDeque<Done>,
    closed: bool,
}

impl Threads {
    fn new() -> io::Result<Self> {
        let doorbell = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let shared = Arc::new(Shared { state: Mutex::default(), work: Condvar::new(), doorbell });
        let mut threads = Self { shared, workers: Vec::new() };
        for _ in 0..WORKER_COUNT {
            let shared = Arc::clone(&threads.shared);
            let worker = std::thread::Builder::new().name("recorder".into()).spawn(move || shared.run_worker());
            threads.workers.push(worker?);
        }
        Ok(threads)
    }

    fn start_operation(&mut self, operation: Operation<Job>) {
        self.shared.state.lock().operations.push_back(operation);
        self.shared.work.notify_one();
    }

    fn take_finished(&mut self) -> Option<Done> {
        let mut state = self.shared.state.lock();
        let done = state.done.pop_front();
        if state.done.is_empty() {
            // Under the lock, so that an operation that ends from now on rings again.
            let _ = rustix::io::read(&self.shared.doorbell, &mut [0; 8]);
        }
        done
    }

    fn wait_for_completion(&mut self) -> io::Result<()> {
        let mut fds = [PollFd::new(&self.shared.doorbell, PollFlags::IN)];
        match rustix::event::poll(&mut fds, None) {
            Err(rustix::io::Errno::INTR) | Ok(_) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        self.shared.state.lock().closed = true;
        self.shared.work.notify_all();
        for worker in self.workers.drain(..) {
            let _ = worker.join();
        }
    }
}

impl Shared {
    fn run_worker(&self) {
        let mut state = self.state.lock();
        loop {
            let Some(operation) = state.operations.pop_front() else {
                if state.closed {
                    return;
                }
                self.work.wait(&mut state);
                continue;
            };
            drop(state);
            let (job, result) = operation.carry_out_blocking();
            state = self.state.lock();
            state.done.push_back(Done { job, result });
            let _ = rustix::io::write(&self.doorbell, &1u64.to_ne_bytes());
        }
    }
}

/// Number of threads in place of io_uring: enough to keep a disk's queue from running empty.
const WORKER_COUNT: usize = 4;

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::FileExt;
    use thalweg_arena::BlockPool;
    use thalweg_sys::uring::File;

    fn write(file: &std::fs::File, block: Block, number: u64) -> Operation<Job> {
        let file = File::Open(Arc::new(file.try_clone().unwrap().into()));
        let mut block = BlockWriter::new(block);
        block.memory_mut().fill(number as u8);
        Operation::write_range(file, Job::Block { number, block, registered: false }, 0..100, number * 100)
    }
    use thalweg_testing::skip::skipped;

    #[test]
    fn both_engines_write_what_they_were_given() {
        let mut engines = vec![Engine::with_threads().unwrap()];
        match Engine::with_io_uring() {
            Ok(ring) => engines.push(ring),
            Err(error) => skipped(format_args!("io_uring: {error}")),
        }
        for mut engine in engines {
            let file = tempfile::tempfile().unwrap();
            // More than the submission queue holds.
            let mut pool = BlockPool::new("test", 1000, 4096).unwrap();
            for number in 0..1000 {
                engine.start_operation(write(&file, pool.take_block().unwrap(), number));
            }
            let mut numbers = std::collections::BTreeSet::new();
            while numbers.len() < 1000 {
                match engine.take_finished() {
                    Some(Done { job: Job::Block { number, .. }, result }) => {
                        assert_eq!(result, Ok(100));
                        assert!(numbers.insert(number));
                    }
                    other => {
                        assert!(other.is_none());
                        engine.wait_for_completion().unwrap();
                    }
                }
            }
            let descriptor = File::Open(Arc::new(file.try_clone().unwrap().into()));
            engine.start_operation(Operation::sync_file(descriptor, Job::Sync { segment: 7 }));
            engine.wait_for_completion().unwrap();
            let mut fds = [PollFd::new(&engine, PollFlags::IN)];
            assert_eq!(rustix::event::poll(&mut fds, None), Ok(1));
            let synced = engine.take_finished();
            assert!(
                matches!(synced, Some(Done { job: Job::Sync { segment: 7 }, result: Ok(0) })),
                "{engine:?}: {synced:?}"
            );
            assert!(engine.take_finished().is_none());
            let mut read = vec![0; 100_000];
            file.read_exact_at(&mut read, 0).unwrap();
            assert!(read.iter().enumerate().all(|(at, byte)| *byte == (at / 100) as u8));
        }
    }

    #[test]
    fn refusals_come_back_as_error_numbers() {
        let mut pool = BlockPool::new("test", 2, 4096).unwrap();
        let read_only = std::fs::File::open("/dev/null").unwrap();
        for mut engine in [Engine::with_threads(), Engine::with_io_uring()].into_iter().flatten() {
            engine.start_operation(write(&read_only, pool.take_block().unwrap(), 1));
            engine.wait_for_completion().unwrap();
            assert_eq!(engine.take_finished().unwrap().result, Err(Errno::BADF));
        }
    }
}
