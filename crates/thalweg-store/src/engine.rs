//! How bytes get to the disk without the hot thread waiting for them: io_uring where the kernel allows it, or else a few
//! threads that wait in its place.

use io_uring::{IoUring, opcode, squeue, types};
use rustix::event::{EventfdFlags, PollFd, PollFlags};
use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

/// Something to be done to a file.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Job {
    /// Write `length` bytes at `offset`, from memory that is registered under number `buffer`, where it is.
    Write { fd: RawFd, memory: *const u8, length: u32, offset: u64, buffer: Option<u16> },
    /// Set space aside, and let the file grow over it.
    Allocate { fd: RawFd, offset: u64, length: u64 },
    /// Have everything written so far on the disk itself.
    Sync { fd: RawFd },
    /// Only make the engine's file descriptor readable.
    Nothing,
}

// SAFETY: the pointer is only read through by whoever carries the job out; `Engine::start` demands that the bytes stay in
// place and unwritten until the job is done, whichever thread that is on.
unsafe impl Send for Job {}

/// A job that was carried out: bytes written, or minus the error number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Done {
    pub(crate) tag: u64,
    pub(crate) result: i32,
}

/// Carries out jobs; several are under way at once. Its file descriptor is readable when one is done.
#[derive(Debug)]
pub(crate) enum Engine {
    Ring(Box<Ring>),
    Threads(Threads),
}

impl Engine {
    /// An engine on io_uring.
    pub(crate) fn ring() -> io::Result<Self> {
        Ring::new().map(|ring| Self::Ring(Box::new(ring)))
    }

    /// An engine on threads.
    pub(crate) fn threads() -> io::Result<Self> {
        Threads::new().map(Self::Threads)
    }

    /// Tells the kernel about memory that will be written from again and again, so that it need not look its pages up for
    /// each write. Numbers are positions in `buffers`.
    pub(crate) fn register(&mut self, buffers: &mut [&mut [u8]]) -> io::Result<()> {
        match self {
            Self::Ring(ring) => ring.register(buffers),
            Self::Threads(_) => Err(io::ErrorKind::Unsupported.into()),
        }
    }

    /// Begins a job.
    ///
    /// # Safety
    /// Until the job is [done](Self::finished), its file stays open, and the bytes it writes from stay in place and are not written to.
    pub(crate) unsafe fn start(&mut self, tag: u64, job: Job) -> io::Result<()> {
        match self {
            Self::Ring(ring) => ring.start(tag, job),
            Self::Threads(threads) => {
                threads.start(tag, job);
                Ok(())
            }
        }
    }

    /// A job that is done, in no particular order. Does not wait.
    pub(crate) fn finished(&mut self) -> Option<Done> {
        match self {
            Self::Ring(ring) => ring.finished(),
            Self::Threads(threads) => threads.finished(),
        }
    }

    /// Waits until a job is done.
    pub(crate) fn wait(&mut self) -> io::Result<()> {
        match self {
            Self::Ring(ring) => ring.wait(),
            Self::Threads(threads) => threads.wait(),
        }
    }
}

impl AsFd for Engine {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            // SAFETY: the descriptor is the ring's own, open as long as the ring, which `self` borrows.
            Self::Ring(ring) => unsafe { BorrowedFd::borrow_raw(ring.ring.as_raw_fd()) },
            Self::Threads(threads) => threads.shared.doorbell.as_fd(),
        }
    }
}

/// The engine on io_uring.
pub(crate) struct Ring {
    ring: IoUring,
    /// What the submission queue had no room for.
    backlog: VecDeque<squeue::Entry>,
}

impl Ring {
    fn new() -> io::Result<Self> {
        // COOP_TASKRUN (Linux 5.19) spares this thread the interrupts for completions that it will look at anyway.
        // SINGLE_ISSUER is not asked for: a recorder may be made on one thread and used on another.
        let cooperative = IoUring::builder().setup_clamp().setup_coop_taskrun().setup_taskrun_flag().build(ENTRIES);
        let ring = cooperative.or_else(|_| IoUring::builder().setup_clamp().build(ENTRIES))?;
        Ok(Self { ring, backlog: VecDeque::new() })
    }

    fn register(&mut self, buffers: &mut [&mut [u8]]) -> io::Result<()> {
        let vectors: Vec<libc::iovec> = buffers
            .iter_mut()
            .map(|buffer| libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() })
            .collect();
        // SAFETY: the kernel pins the pages and only reads them, and only for a `Job::Write` that names them.
        unsafe { self.ring.submitter().register_buffers(&vectors) }
    }

    fn start(&mut self, tag: u64, job: Job) -> io::Result<()> {
        let entry = match job {
            Job::Write { fd, memory, length, offset, buffer: Some(buffer) } => {
                opcode::WriteFixed::new(types::Fd(fd), memory, length, buffer).offset(offset).build()
            }
            Job::Write { fd, memory, length, offset, buffer: None } => {
                opcode::Write::new(types::Fd(fd), memory, length).offset(offset).build()
            }
            Job::Allocate { fd, offset, length } => {
                opcode::Fallocate::new(types::Fd(fd), length).offset(offset).build()
            }
            Job::Sync { fd } => opcode::Fsync::new(types::Fd(fd)).build(),
            Job::Nothing => opcode::Nop::new().build(),
        };
        self.backlog.push_back(entry.user_data(tag));
        self.flush()
    }

    fn flush(&mut self) -> io::Result<()> {
        loop {
            let mut queue = self.ring.submission();
            while let Some(entry) = self.backlog.front() {
                // SAFETY: `Engine::start` demanded that file and memory outlive the job.
                if unsafe { queue.push(entry) }.is_err() {
                    break;
                }
                self.backlog.pop_front();
            }
            if queue.is_empty() {
                return Ok(());
            }
            drop(queue);
            match self.ring.submit() {
                Ok(_) => {}
                // Completions have to be taken first; what is queued goes with the next call.
                Err(error) if is_transient(&error) => return Ok(()),
                Err(error) => return Err(error),
            }
        }
    }

    fn finished(&mut self) -> Option<Done> {
        if let Some(entry) = self.ring.completion().next() {
            return Some(Done { tag: entry.user_data(), result: entry.result() });
        }
        let mut queue = self.ring.submission();
        let waiting = queue.taskrun() || queue.cq_overflow() || !queue.is_empty();
        queue.sync();
        drop(queue);
        if waiting || !self.backlog.is_empty() {
            // The kernel has completions to post, or entries to take, which it does on the way in.
            let _ = self.flush();
            // SAFETY: no argument is passed; GETEVENTS with nothing to wait for returns at once.
            let _ = unsafe { self.ring.submitter().enter::<libc::sigset_t>(0, 0, GETEVENTS, None) };
        }
        let entry = self.ring.completion().next()?;
        Some(Done { tag: entry.user_data(), result: entry.result() })
    }

    fn wait(&mut self) -> io::Result<()> {
        self.flush()?;
        match self.ring.submit_and_wait(1) {
            Err(error) if !is_transient(&error) => Err(error),
            _ => Ok(()),
        }
    }
}

impl fmt::Debug for Ring {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Ring(fd {})", self.ring.as_raw_fd())
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
    /// Readable while `State::done` holds something.
    doorbell: OwnedFd,
}

#[derive(Debug, Default)]
struct State {
    jobs: VecDeque<(u64, Job)>,
    done: VecDeque<Done>,
    closed: bool,
}

impl Threads {
    fn new() -> io::Result<Self> {
        let doorbell = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let shared = Arc::new(Shared { state: Mutex::default(), work: Condvar::new(), doorbell });
        let mut threads = Self { shared, workers: Vec::new() };
        for _ in 0..WORKERS {
            let shared = Arc::clone(&threads.shared);
            let worker = std::thread::Builder::new().name("recorder".into()).spawn(move || shared.work());
            threads.workers.push(worker?);
        }
        Ok(threads)
    }

    fn start(&mut self, tag: u64, job: Job) {
        self.shared.lock().jobs.push_back((tag, job));
        self.shared.work.notify_one();
    }

    fn finished(&mut self) -> Option<Done> {
        let mut state = self.shared.lock();
        let done = state.done.pop_front();
        if state.done.is_empty() {
            // Under the lock, so that a job done from now on rings again.
            let _ = rustix::io::read(&self.shared.doorbell, &mut [0; 8]);
        }
        done
    }

    fn wait(&mut self) -> io::Result<()> {
        let mut fds = [PollFd::new(&self.shared.doorbell, PollFlags::IN)];
        match rustix::event::poll(&mut fds, None) {
            Err(rustix::io::Errno::INTR) | Ok(_) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        self.shared.lock().closed = true;
        self.shared.work.notify_all();
        for worker in self.workers.drain(..) {
            let _ = worker.join();
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing that holds the lock panics, so there is no half-made state to fear.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn work(&self) {
        let mut state = self.lock();
        loop {
            let Some((tag, job)) = state.jobs.pop_front() else {
                if state.closed {
                    return;
                }
                state = self.work.wait(state).unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            drop(state);
            // SAFETY: `Engine::start` demanded that file and memory outlive the job.
            let result = unsafe { carry_out(job) };
            state = self.lock();
            state.done.push_back(Done { tag, result });
            let _ = rustix::io::write(&self.doorbell, &1u64.to_ne_bytes());
        }
    }
}

/// # Safety
/// As for [`Engine::start`].
unsafe fn carry_out(job: Job) -> i32 {
    let result = match job {
        Job::Write { fd, memory, length, offset, buffer: _ } => {
            let offset = libc::off_t::try_from(offset).unwrap_or(libc::off_t::MAX);
            // SAFETY: the caller vouches for file and memory.
            unsafe { libc::pwrite(fd, memory.cast(), length as usize, offset) }
        }
        Job::Allocate { fd, offset, length } => {
            let (offset, length) = (libc::off_t::try_from(offset), libc::off_t::try_from(length));
            // SAFETY: plain numbers and a file that the caller keeps open.
            unsafe { libc::fallocate(fd, 0, offset.unwrap_or(0), length.unwrap_or(0)) as isize }
        }
        // SAFETY: a file that the caller keeps open.
        Job::Sync { fd } => unsafe { libc::fsync(fd) as isize },
        Job::Nothing => 0,
    };
    if result < 0 {
        return -io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO);
    }
    i32::try_from(result).unwrap_or(i32::MAX)
}

fn is_transient(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EINTR | libc::EAGAIN | libc::EBUSY))
}

/// Submission queue entries; more jobs than that wait in the backlog.
const ENTRIES: u32 = 256;
/// Threads in place of io_uring: enough to keep a disk's queue from running empty.
const WORKERS: usize = 4;
/// `IORING_ENTER_GETEVENTS` of `linux/io_uring.h`.
const GETEVENTS: u32 = 1;

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::FileExt;

    #[test]
    fn both_engines_write_what_they_were_given() {
        let mut engines = vec![Engine::threads().unwrap()];
        match Engine::ring() {
            Ok(ring) => engines.push(ring),
            Err(error) => eprintln!("skipped: io_uring: {error}"),
        }
        for mut engine in engines {
            let file = tempfile::tempfile().unwrap();
            let bytes: Vec<u8> = (0..100_000u32).map(|n| n as u8).collect();
            let fd = file.as_raw_fd();
            // More than the submission queue holds.
            let pieces: Vec<&[u8]> = bytes.chunks(100).collect();
            for (n, piece) in pieces.iter().enumerate() {
                let (memory, length, offset) = (piece.as_ptr(), piece.len() as u32, n as u64 * 100);
                let job = Job::Write { fd, memory, length, offset, buffer: None };
                // SAFETY: `file` and `bytes` live to the end of the loop, where every job is done.
                unsafe { engine.start(n as u64, job) }.unwrap();
            }
            let mut tags = std::collections::BTreeSet::new();
            while tags.len() < pieces.len() {
                match engine.finished() {
                    Some(done) => {
                        assert_eq!(done.result, 100);
                        assert!(tags.insert(done.tag));
                    }
                    None => engine.wait().unwrap(),
                }
            }
            // SAFETY: no memory, and `file` is still open when the job is done.
            unsafe { engine.start(7, Job::Sync { fd }) }.unwrap();
            engine.wait().unwrap();
            let mut fds = [PollFd::new(&engine, PollFlags::IN)];
            assert_eq!(rustix::event::poll(&mut fds, None), Ok(1));
            assert_eq!(engine.finished(), Some(Done { tag: 7, result: 0 }));
            assert_eq!(engine.finished(), None);
            let mut read = vec![0; bytes.len()];
            file.read_exact_at(&mut read, 0).unwrap();
            assert_eq!(read, bytes);
        }
    }

    #[test]
    fn refusals_come_back_as_error_numbers() {
        for mut engine in [Engine::threads(), Engine::ring()].into_iter().flatten() {
            let job = Job::Write { fd: -1, memory: [0u8; 1].as_ptr(), length: 1, offset: 0, buffer: None };
            // SAFETY: there is no such file, so nothing is read.
            unsafe { engine.start(1, job) }.unwrap();
            engine.wait().unwrap();
            assert_eq!(engine.finished(), Some(Done { tag: 1, result: -libc::EBADF }));
        }
    }
}
