//! Reads past the page cache with io_uring, several under way, and sends from the same memory.

use crate::memory::Slots;
use crate::stored::ALIGNMENT;
use io_uring::{IoUring, cqueue, opcode, squeue, types};
use std::fmt;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::time::Duration;

/// Slots that the disk fills and the network empties, in turn.
pub(crate) struct ReadRing {
    // In front of the memory it refers to: dropped first.
    ring: IoUring,
    slots: Slots,
    /// Sending without a copy: until the kernel says that it copied all the same.
    zero_copy: bool,
    /// Operations under way.
    pending: usize,
}

impl ReadRing {
    pub(crate) fn new() -> io::Result<Self> {
        let ring = IoUring::builder().setup_clamp().build(2 * COUNT as u32)?;
        let mut slots = Slots::new(COUNT, SLOT)?;
        // SAFETY: the memory stays mapped as long as the ring is there.
        unsafe { ring.submitter().register_buffers(&slots.vectors()) }?;
        Ok(Self { ring, slots, zero_copy: true, pending: 0 })
    }

    /// Sends a range of a file that was opened with `O_DIRECT`.
    pub(crate) fn send(&mut self, file: &File, range: Range<u64>, to: BorrowedFd<'_>, more: bool) -> io::Result<()> {
        let start = range.start - range.start % ALIGNMENT;
        let pieces = (range.end - start).div_ceil(SLOT as u64);
        let mut lengths = [None; COUNT];
        for piece in 0..pieces.min(COUNT as u64) {
            self.read(file, start, piece)?;
        }
        for piece in 0..pieces {
            let slot = piece as usize % COUNT;
            while lengths[slot].is_none() {
                let (tag, result, _) = self.wait(DISK_PATIENCE)?;
                lengths[tag as usize % COUNT] = Some(moved(result)?);
            }
            let read = lengths[slot].take().unwrap_or(0);
            let offset = start + piece * SLOT as u64;
            let from = usize::try_from(range.start.saturating_sub(offset)).unwrap_or(0);
            let until = usize::try_from(range.end - offset).unwrap_or(usize::MAX).min(SLOT);
            if read < until {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            self.send_slot(slot, from..until, to, more || piece + 1 < pieces, &mut lengths)?;
            if piece + (COUNT as u64) < pieces {
                self.read(file, start, piece + COUNT as u64)?;
            }
        }
        Ok(())
    }

    fn read(&mut self, file: &File, start: u64, piece: u64) -> io::Result<()> {
        let slot = piece as usize % COUNT;
        let memory = self.slots.slot(slot);
        let entry = opcode::ReadFixed::new(types::Fd(file.as_raw_fd()), memory.as_mut_ptr(), SLOT as u32, slot as u16);
        let entry = entry.offset(start + piece * SLOT as u64).build().user_data(slot as u64);
        // SAFETY: file and memory stay until it is done: `send` waits for what it began, and after an error the ring goes first.
        unsafe { self.push(&entry) }
    }

    fn send_slot(
        &mut self,
        slot: usize,
        range: Range<usize>,
        to: BorrowedFd<'_>,
        more: bool,
        lengths: &mut [Option<usize>; COUNT],
    ) -> io::Result<()> {
        let bytes = &self.slots.slot(slot)[range.clone()];
        if !self.zero_copy {
            return crate::outward::send_all(to, bytes, more);
        }
        let (pointer, mut length) = (bytes.as_ptr(), bytes.len());
        // io_uring does not look at it.
        let patience =
            rustix::net::sockopt::socket_timeout(to, rustix::net::sockopt::Timeout::Send)?.unwrap_or(Duration::MAX);
        let mut sent = 0;
        while length > 0 {
            // SAFETY: `sent` stays below the length of the slice that `pointer` begins.
            let rest = unsafe { pointer.add(sent) };
            let flags = libc::MSG_NOSIGNAL | libc::MSG_WAITALL | if more { libc::MSG_MORE } else { 0 };
            let entry = opcode::SendZc::new(types::Fd(fd(to)), rest, length as u32)
                .buf_index(Some(slot as u16))
                .flags(flags)
                .zc_flags(REPORT_USAGE)
                .build()
                .user_data(SEND | slot as u64);
            // SAFETY: the slot is not written to before the notification has come, for which the loop below waits.
            unsafe { self.push(&entry) }?;
            let mut notified = false;
            let mut done = None;
            while done.is_none() || !notified {
                let (tag, result, flags) = self.wait(patience)?;
                if tag & SEND == 0 {
                    lengths[tag as usize % COUNT] = Some(moved(result)?);
                } else if cqueue::notif(flags) {
                    notified = true;
                    // Over loopback and veth it always copies, and waiting to be told so costs more than it saves.
                    self.zero_copy &= (result as u32) & NOTIF_COPIED == 0;
                } else {
                    notified |= !cqueue::more(flags);
                    done = Some(result);
                }
            }
            match moved(done.unwrap_or(0)) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(moved) => {
                    sent += moved;
                    length -= moved;
                }
                // A socket that encrypts.
                Err(error) if error.raw_os_error() == Some(libc::EOPNOTSUPP) => {
                    self.zero_copy = false;
                    return crate::outward::send_all(to, &self.slots.slot(slot)[range][sent..], more);
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// # Safety
    /// What the entry refers to stays until it is done.
    unsafe fn push(&mut self, entry: &squeue::Entry) -> io::Result<()> {
        // SAFETY: the caller's.
        unsafe { self.ring.submission().push(entry) }.map_err(|_| io::ErrorKind::OutOfMemory)?;
        self.pending += 1;
        self.ring.submit().map(|_| ())
    }

    /// The next completion: its tag, result and flags.
    fn wait(&mut self, patience: Duration) -> io::Result<(u64, i32, u32)> {
        let patience = types::Timespec::from(patience.min(Duration::from_secs(1 << 30)));
        loop {
            if let Some(entry) = self.ring.completion().next() {
                // A notification is not an operation: what it tells of is done.
                let notification = cqueue::notif(entry.flags());
                self.pending -= usize::from(!notification);
                return Ok((entry.user_data(), entry.result(), entry.flags()));
            }
            let arguments = types::SubmitArgs::new().timespec(&patience);
            match self.ring.submitter().submit_with_args(1, &arguments) {
                Err(error) if error.raw_os_error() == Some(libc::ETIME) => return Err(io::ErrorKind::TimedOut.into()),
                Err(error) if error.kind() != io::ErrorKind::Interrupted => return Err(error),
                _ => {}
            }
        }
    }
}

impl Drop for ReadRing {
    /// Closing a ring does not wait for what is under way, and the disk would go on writing into memory that is somebody else's by
    /// then. What a socket still holds of it is not waited for: a client may never take it, it is only read, and its pages are pinned until
    /// the kernel has let go of them.
    fn drop(&mut self) {
        let everything = types::CancelBuilder::any();
        // What cannot be stopped ends by itself.
        let _ = self.ring.submitter().register_sync_cancel(None, everything);
        while self.pending > 0 {
            if self.wait(DISK_PATIENCE).is_err_and(|error| error.kind() == io::ErrorKind::TimedOut) {
                // Rather lose the memory than let it be written to.
                if let Ok(empty) = Slots::new(1, SLOT) {
                    std::mem::forget(std::mem::replace(&mut self.slots, empty));
                }
                return;
            }
        }
    }
}

impl fmt::Debug for ReadRing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ReadRing({} slots of {} bytes)", self.slots.count(), self.slots.slot_bytes())
    }
}

/// What an operation's result says.
fn moved(result: i32) -> io::Result<usize> {
    usize::try_from(result).map_err(|_| io::Error::from_raw_os_error(-result))
}

fn fd(of: BorrowedFd<'_>) -> RawFd {
    of.as_raw_fd()
}

/// Slots under way at once.
const COUNT: usize = 4;
/// Bytes of each.
const SLOT: usize = 1 << 20;
/// How long a disk may take to read.
const DISK_PATIENCE: Duration = Duration::from_secs(30);
/// In the tag of an operation that sends.
const SEND: u64 = 1 << 32;
/// `IORING_SEND_ZC_REPORT_USAGE` (Linux 6.2).
const REPORT_USAGE: u16 = 1 << 3;
/// `IORING_NOTIF_USAGE_ZC_COPIED`.
const NOTIF_COPIED: u32 = 1 << 31;
