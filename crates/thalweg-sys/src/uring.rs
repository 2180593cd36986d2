//! io_uring whose operations own their memory until the kernel is done with it.
//!
//! An [`Operation`] is moved into a [`Ring`] together with the memory it reads from or writes to, and comes back
//! exactly once, from [`Ring::next_finished`], with its memory and its result. An operation that the kernel did not take
//! comes back the same way. A caller never has to prove how long memory lives, since the caller does not have it.
//!
//! # Why this is sound
//!
//! - Memory stays at its address while its owner is moved ([`Memory`], the one promise that is `unsafe` to make), and
//!   the owner is inside the ring from [`Ring::push_operation`] until the kernel has reported the operation's end. [`Memory`] is
//!   `'static`, so a ring that is leaked leaks its memory with it.
//! - The kernel sees an entry only during a system call of this thread (there is no `SQPOLL`), and takes entries in
//!   order. After each call, the head of the submission queue therefore shows which operations the kernel has.
//! - An entry cannot be withdrawn from the submission queue. When the kernel refuses it for good, the ring never
//!   submits again: the entries left in the queue stay there, and their operations come back. The operations that the
//!   kernel has are waited for.
//! - A ring that is dropped waits for the operations that the kernel has. If that takes too long, the memory is leaked
//!   rather than freed.
//! - The name of a file to be created or removed is part of its operation, and stays at its address while the operation
//!   is moved.
//! - An operation keeps its file open until there is a result: the kernel looks up the descriptor of an `fsync` or a
//!   `fallocate` only when a worker gets to it (`REQ_F_FORCE_ASYNC`, `io_assign_file` in Linux `io_uring/io_uring.c`).

mod memory;
mod operation;

pub use memory::{Memory, Slot, divide_into_slots};
pub use operation::{Effect, File, Operation};

use io_uring::types::{CancelBuilder, SubmitArgs, Timespec};
use io_uring::{IoUring, cqueue};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::time::Duration;

/// A submission and a completion queue, and the operations in progress.
///
/// The file descriptor ([`AsFd`]) is readable when the kernel has finished an operation.
pub struct Ring<M: Memory> {
    ring: IoUring,
    /// Operations inside the ring, by key. A key is free again once its operation has come back.
    held: Vec<Option<Pending<M>>>,
    free: Vec<u32>,
    /// Operations that the kernel has not taken, in order; the first of them are already in the submission queue, as
    /// many as it holds.
    queued: VecDeque<u32>,
    /// Operations that will never reach the kernel.
    refused: VecDeque<u32>,
    /// Error for which the ring no longer submits; `None` while it does.
    refusal: Option<Errno>,
    /// Number of operations that the kernel has and has reported no result for.
    under_way: usize,
    /// True once memory or a file is registered.
    registered: bool,
    #[cfg(test)]
    injected: VecDeque<Errno>,
}

/// Key of an operation inside the ring, as returned by [`Ring::push_operation`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Key(u32);

/// A finished operation.
#[derive(Debug)]
pub struct Done<M> {
    /// Memory that was moved in with the operation.
    pub memory: M,
    /// Number of bytes read, written or sent, or the error.
    pub result: Result<u32, Errno>,
    /// True if the network stack copied the bytes instead of sending them in place.
    pub copied: bool,
}

#[derive(Debug)]
struct Pending<M> {
    operation: Operation<M>,
    stage: Stage,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// The kernel does not have the operation.
    Queued,
    /// The kernel has the operation.
    Taken,
    /// The result is known; the network still reads from the memory.
    Sent(i32),
}

impl<M: Memory> Ring<M> {
    /// Creates a ring with room for `entries` submissions between two system calls; further operations wait in the
    /// ring.
    ///
    /// # Errors
    /// The kernel has no io_uring, or does not allow it (`kernel.io_uring_disabled`, seccomp).
    pub fn new(entries: u32) -> io::Result<Self> {
        // COOP_TASKRUN (Linux 5.19) spares this thread the interrupts for completions that it will look at anyway.
        // SINGLE_ISSUER is not requested: a ring may be made on one thread and used on another.
        let cooperative = IoUring::builder().setup_clamp().setup_coop_taskrun().setup_taskrun_flag().build(entries);
        let ring = cooperative.or_else(|_| IoUring::builder().setup_clamp().build(entries))?;
        Ok(Self {
            ring,
            held: Vec::new(),
            free: Vec::new(),
            queued: VecDeque::new(),
            refused: VecDeque::new(),
            refusal: None,
            under_way: 0,
            registered: false,
            #[cfg(test)]
            injected: VecDeque::new(),
        })
    }

    /// Pins memory that operations will use repeatedly, so that the kernel need not look up its pages for each.
    /// Operations use it if their memory names a registration ([`Memory::registered_index`]), by its index in `memory`. The
    /// memory has to outlive the ring: memory that is mapped in its place later is not the registered memory.
    ///
    /// # Errors
    /// The error returned by the kernel; `OutOfMemory` if more is locked than `RLIMIT_MEMLOCK` allows.
    pub fn register_memory(&mut self, memory: &mut [&mut [u8]]) -> io::Result<()> {
        let vectors: Vec<libc::iovec> = memory
            .iter_mut()
            .map(|bytes| libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() })
            .collect();
        // SAFETY: the addresses are those of live slices during the call, in which the kernel pins their pages. It uses
        // them only for operations that name them, at addresses within those operations' own memory.
        unsafe { self.ring.submitter().register_buffers(&vectors) }?;
        self.registered = true;
        Ok(())
    }

    /// Registers a file with the kernel, as [`File::Registered`].
    ///
    /// # Errors
    /// The error returned by the kernel.
    pub fn register_file(&mut self, file: BorrowedFd<'_>) -> io::Result<()> {
        self.ring.submitter().register_files(&[file.as_raw_fd()])?;
        self.registered = true;
        Ok(())
    }

    /// Queues an operation and returns its key. Makes no system call: [`submit_queued`](Self::submit_queued) or [`wait_for_completion`](Self::wait_for_completion)
    /// passes the operation to the kernel.
    pub fn push_operation(&mut self, operation: Operation<M>) -> Key {
        let key = self.free.pop().unwrap_or_else(|| {
            self.held.push(None);
            u32::try_from(self.held.len() - 1)
                .unwrap_or_else(|_| unreachable!("no memory has room for 2^32 operations"))
        });
        self.held[key as usize] = Some(Pending { operation, stage: Stage::Queued });
        match self.refusal {
            None => self.queued.push_back(key),
            Some(_) => self.refused.push_back(key),
        }
        Key(key)
    }

    /// Passes the queued operations to the kernel, and has it post completions. Does not wait, and makes no system call
    /// if there is nothing to pass or to post. Operations that the kernel cannot take now go with the next call; those
    /// that it refuses come back.
    pub fn submit_queued(&mut self) {
        let mut queue = self.ring.submission();
        queue.sync();
        let posts = queue.taskrun() || queue.cq_overflow();
        drop(queue);
        if posts || !self.queued.is_empty() {
            // Only waiting can fail.
            let _ = self.enter_kernel(0, None);
        }
    }

    /// Passes the queued operations to the kernel, and waits in the same system call until an operation has finished or
    /// a signal arrives. Returns at once if [`next_finished`](Self::next_finished) has a refused operation to return, or if there
    /// is nothing to wait for.
    ///
    /// # Errors
    /// `TimedOut` when `timeout` has elapsed, and the error returned by the kernel if waiting is impossible.
    pub fn wait_for_completion(&mut self, timeout: Option<Duration>) -> io::Result<()> {
        if !self.refused.is_empty() || self.free.len() == self.held.len() {
            return Ok(());
        }
        self.enter_kernel(1, timeout)
    }

    /// Returns a finished operation, in no particular order; `None` if there is none. Makes no system call.
    pub fn next_finished(&mut self) -> Option<Done<M>> {
        loop {
            let Some(entry) = self.ring.completion().next() else { break };
            if let Some(done) = self.record_completion(entry.user_data() as usize, entry.result(), entry.flags()) {
                return Some(done);
            }
        }
        let (key, errno) = (self.refused.pop_front()?, self.refusal?);
        self.hand_back(key as usize, Err(errno), false)
    }

    /// Returns the result of a send whose memory the network still holds, and the memory, which the kernel only reads.
    /// `None` for any other operation.
    pub fn send_result(&self, key: Key) -> Option<(Result<u32, Errno>, &M)> {
        let held = self.held.get(key.0 as usize)?.as_ref()?;
        let Stage::Sent(result) = held.stage else { return None };
        Some((result_from_raw(result), &held.operation.memory))
    }

    /// Makes one system call, or as many as it takes to pass all queued operations through the submission queue.
    fn enter_kernel(&mut self, want: usize, timeout: Option<Duration>) -> io::Result<()> {
        if self.refusal.is_some() {
            return self.enter_without_submitting(want, timeout);
        }
        loop {
            let filled = self.fill_submission_queue();
            let last = filled == self.queued.len();
            let entered = self.system_call(if last { want } else { 0 }, timeout);
            let taken = self.record_taken(filled);
            match entered.map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO)) {
                Ok(_) if self.queued.is_empty() || taken == 0 => return Ok(()),
                Ok(_) => {}
                // Completions have to be taken first, or memory is short: the queued operations go with the next call.
                Err(Errno::INTR | Errno::AGAIN | Errno::BUSY) => return Ok(()),
                Err(Errno::TIME) => return Err(io::ErrorKind::TimedOut.into()),
                Err(errno) => {
                    self.stop_submitting(errno);
                    // The operations that the kernel has can perhaps still be waited for.
                    let waits = want > 0 && self.refused.is_empty();
                    return if waits { self.enter_without_submitting(want, timeout) } else { Ok(()) };
                }
            }
        }
    }

    /// Moves queued operations into the submission queue, and returns the number of operations in it.
    fn fill_submission_queue(&mut self) -> usize {
        let mut queue = self.ring.submission();
        let mut filled = queue.len();
        while let Some(key) = self.queued.get(filled)
            && let Some(held) = &mut self.held[*key as usize]
        {
            let entry = held.operation.submission_entry().user_data(u64::from(*key));
            // SAFETY: file and memory belong to the operation, which stays in `held` until the kernel is done with it,
            // or until the entry can never reach the kernel (see the crate's documentation).
            if unsafe { queue.push(&entry) }.is_err() {
                break;
            }
            filled += 1;
        }
        filled
    }

    fn system_call(&mut self, want: usize, timeout: Option<Duration>) -> io::Result<usize> {
        #[cfg(test)]
        if let Some(errno) = self.injected.pop_front() {
            return Err(errno.into());
        }
        let Some(timeout) = timeout else { return self.ring.submit_and_wait(want) };
        let timeout = Timespec::from(timeout.min(MAX_KERNEL_TIMEOUT));
        self.ring.submitter().submit_with_args(want, &SubmitArgs::new().timespec(&timeout))
    }

    /// Records the operations that the kernel has taken, and returns their number: it takes those in the submission
    /// queue in order.
    fn record_taken(&mut self, filled: usize) -> usize {
        let mut queue = self.ring.submission();
        queue.sync();
        let taken = filled - queue.len();
        drop(queue);
        for key in self.queued.drain(..taken) {
            if let Some(held) = &mut self.held[key as usize] {
                held.stage = Stage::Taken;
            }
        }
        self.under_way += taken;
        taken
    }

    /// Stops all further submission; the operations that the kernel does not have come back.
    fn stop_submitting(&mut self, errno: Errno) {
        self.refusal.get_or_insert(errno);
        self.refused.extend(self.queued.drain(..));
    }

    /// Like [`enter_kernel`](Self::enter_kernel), but the entries in the submission queue stay there.
    fn enter_without_submitting(&mut self, want: usize, timeout: Option<Duration>) -> io::Result<()> {
        if want > 0 {
            let timeout = timeout.map(|timeout| rustix::event::Timespec {
                tv_sec: timeout.min(MAX_KERNEL_TIMEOUT).as_secs().cast_signed(),
                tv_nsec: timeout.subsec_nanos().into(),
            });
            match poll(&mut [PollFd::new(&self.ring_fd(), PollFlags::IN)], timeout.as_ref()) {
                Ok(0) => return Err(io::ErrorKind::TimedOut.into()),
                Ok(_) => {}
                Err(Errno::INTR) => return Ok(()),
                Err(error) => return Err(error.into()),
            }
        }
        // SAFETY: no argument is passed, and there is nothing to submit.
        unsafe { self.ring.submitter().enter::<libc::sigset_t>(0, 0, ENTER_GETEVENTS, None) }.map(drop)
    }

    /// Records a completion of an operation, and returns the operation if it is the last one.
    fn record_completion(&mut self, key: usize, result: i32, flags: u32) -> Option<Done<M>> {
        let held = self.held.get_mut(key)?.as_mut()?;
        if cqueue::notif(flags) {
            let Stage::Sent(sent) = held.stage else { return None };
            return self.hand_back(key, result_from_raw(sent), result.cast_unsigned() & NOTIF_COPIED != 0);
        }
        self.under_way -= 1;
        if cqueue::more(flags) {
            held.stage = Stage::Sent(result);
            // The socket would stay open without its owner's knowledge.
            held.operation.file = File::None;
            return None;
        }
        self.hand_back(key, result_from_raw(result), false)
    }

    fn hand_back(&mut self, key: usize, result: Result<u32, Errno>, copied: bool) -> Option<Done<M>> {
        let mut held = self.held.get_mut(key)?.take()?;
        self.free.push(u32::try_from(key).ok()?);
        let result = match result {
            Ok(number) if held.operation.creates_file() => {
                // SAFETY: the kernel has just opened the descriptor of that number for this operation.
                held.operation.memory.accept_opened_file(unsafe { OwnedFd::from_raw_fd(number.cast_signed()) });
                Ok(0)
            }
            other => other,
        };
        Some(Done { memory: held.operation.memory, result, copied })
    }

    fn ring_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the descriptor is the ring's own, open as long as the ring, which `self` borrows.
        unsafe { BorrowedFd::borrow_raw(self.ring.as_raw_fd()) }
    }

    /// Cancels the operations that may never end otherwise. Those that cannot be cancelled (before Linux 6.0) are
    /// waited for like the rest.
    fn cancel_reads_and_sends(&self) {
        for (key, held) in self.held.iter().enumerate() {
            if held.as_ref().is_some_and(|held| held.stage == Stage::Taken && held.operation.can_be_cancelled()) {
                let cancel = CancelBuilder::user_data(key as u64);
                let _ = self.ring.submitter().register_sync_cancel(Some(Timespec::new()), cancel);
            }
        }
    }
}

impl<M: Memory> Drop for Ring<M> {
    /// Waits for the operations in progress: closing a ring does not, and a disk would continue to read from or write
    /// to memory that has another owner by then. Reads and sends are cancelled, since their results are no longer
    /// wanted; writes are waited for. Memory that the network holds after a send is not waited for: it is only read,
    /// and see [`Operation::send_zero_copy`].
    fn drop(&mut self) {
        self.stop_submitting(Errno::CANCELED);
        self.cancel_reads_and_sends();
        // Kept until no operation is in progress: dropping a caller's memory may panic.
        let mut over = Vec::new();
        loop {
            while let Some(done) = self.next_finished() {
                over.push(done);
            }
            if self.under_way == 0 {
                break;
            }
            if self.enter_without_submitting(1, Some(DROP_TIMEOUT)).is_err() {
                // Leak the memory rather than let the kernel use it when it has another owner.
                std::mem::forget(std::mem::take(&mut self.held));
                return;
            }
        }
        if self.registered && self.free.len() == self.held.len() {
            // The kernel destroys a ring some time after it was closed, and keeps pinned pages and files until then.
            let _ = self.ring.submitter().unregister_files();
            let _ = self.ring.submitter().unregister_buffers();
        }
    }
}

impl<M: Memory> AsFd for Ring<M> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.ring_fd()
    }
}

impl<M: Memory> fmt::Debug for Ring<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Ring(fd {}, {} under way)", self.ring.as_raw_fd(), self.under_way)
    }
}

fn result_from_raw(result: i32) -> Result<u32, Errno> {
    u32::try_from(result).map_err(|_| Errno::from_raw_os_error(-result))
}

/// Time that a disk may take before a ring that is dropped leaks the memory.
const DROP_TIMEOUT: Duration = Duration::from_secs(30);
/// Longest timeout passed to the kernel, which it accepts as a time of its clock.
const MAX_KERNEL_TIMEOUT: Duration = Duration::from_secs(1 << 30);
/// `IORING_ENTER_GETEVENTS` of `linux/io_uring.h`.
const ENTER_GETEVENTS: u32 = 1;
/// `IORING_NOTIF_USAGE_ZC_COPIED` of `linux/io_uring.h`.
const NOTIF_COPIED: u32 = 1 << 31;

#[cfg(test)]
mod tests;
