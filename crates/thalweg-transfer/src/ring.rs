//! Reads past the page cache with io_uring, several under way, and sends from the same memory.

use crate::memory::Slots;
use crate::progress::while_it_moves;
use crate::stored::ALIGNMENT;
use io_uring::{IoUring, cqueue, opcode, squeue, types};
use rustix::net::sockopt::{Timeout, socket_timeout};
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
    /// Bytes that the disk brought into each slot, and that were not sent yet.
    filled: [Option<usize>; COUNT],
    /// Whether the network still has to do with a slot: so many notifications are to come.
    held: [u32; COUNT],
    zero_copy: ZeroCopy,
    /// Operations under way.
    pending: usize,
}

/// Whether the network takes bytes from where they are (`SEND_ZC`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ZeroCopy {
    /// A few are to be sent, to hear whether they were copied all the same.
    Untried,
    /// They are on their way, and until they have arrived others are copied: an acknowledgement may be late.
    Tried,
    Yes,
    No,
}

impl ReadRing {
    pub(crate) fn new() -> io::Result<Self> {
        let ring = IoUring::builder().setup_clamp().build(4 * COUNT as u32)?;
        let mut slots = Slots::new(COUNT, SLOT)?;
        // SAFETY: the memory stays mapped as long as the ring is there.
        unsafe { ring.submitter().register_buffers(&slots.vectors()) }?;
        let (filled, held) = ([None; COUNT], [0; COUNT]);
        Ok(Self { ring, slots, filled, held, zero_copy: ZeroCopy::Untried, pending: 0 })
    }

    /// Sends a range of a file that was opened with `O_DIRECT`. After an error, what is under way is not known: the ring is of no more use.
    pub(crate) fn send(&mut self, file: &File, range: Range<u64>, to: BorrowedFd<'_>, more: bool) -> io::Result<()> {
        let start = range.start - range.start % ALIGNMENT;
        let pieces = (range.end - start).div_ceil(SLOT as u64);
        // Pieces that the disk was asked for.
        let mut asked = 0;
        for piece in 0..pieces {
            let slot = piece as usize % COUNT;
            let read = loop {
                while asked < pieces.min(piece + COUNT as u64) && self.held[asked as usize % COUNT] == 0 {
                    self.read(file, start, asked)?;
                    asked += 1;
                }
                if let Some(read) = self.filled[slot].take_if(|_| asked > piece) {
                    break read;
                }
                let completion = if asked > piece { self.wait(DISK_PATIENCE)? } else { self.wait_for(to)? };
                self.complete(completion)?;
            };
            let offset = start + piece * SLOT as u64;
            let from = usize::try_from(range.start.saturating_sub(offset)).unwrap_or(0);
            let until = usize::try_from(range.end - offset).unwrap_or(usize::MAX).min(SLOT);
            if read < until {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            self.send_slot(slot, from..until, to, more || piece + 1 < pieces)?;
        }
        Ok(())
    }

    /// Has the disk fill a slot that nobody holds.
    fn read(&mut self, file: &File, start: u64, piece: u64) -> io::Result<()> {
        let slot = piece as usize % COUNT;
        let memory = self.slots.slot(slot);
        let entry = opcode::ReadFixed::new(types::Fd(file.as_raw_fd()), memory.as_mut_ptr(), SLOT as u32, slot as u16);
        let entry = entry.offset(start + piece * SLOT as u64).build().user_data(slot as u64);
        // SAFETY: file and memory stay until it is done: `send` waits for what it began, and after an error the ring goes first.
        unsafe { self.push(&entry) }
    }

    /// Gives what is in a slot to the network, which may hold it for some time.
    fn send_slot(&mut self, slot: usize, mut range: Range<usize>, to: BorrowedFd<'_>, more: bool) -> io::Result<()> {
        while !range.is_empty() {
            let length = match self.zero_copy {
                ZeroCopy::No | ZeroCopy::Tried => {
                    return crate::outward::send_all(to, &self.slots.slot(slot)[range], more);
                }
                ZeroCopy::Yes => range.len(),
                ZeroCopy::Untried => range.len().min(TRIED),
            };
            let bytes = &self.slots.slot(slot)[range.start..range.start + length];
            // What waits for more is not heard of.
            let more = more && self.zero_copy == ZeroCopy::Yes;
            let flags = libc::MSG_NOSIGNAL | libc::MSG_WAITALL | if more { libc::MSG_MORE } else { 0 };
            let entry = opcode::SendZc::new(types::Fd(fd(to)), bytes.as_ptr(), length as u32)
                .buf_index(Some(slot as u16))
                .flags(flags)
                .zc_flags(REPORT_USAGE)
                .build()
                .user_data(SEND | slot as u64);
            // SAFETY: the slot is not written to, and the disk not asked to, before the notification has come: it counts as held.
            unsafe { self.push(&entry) }?;
            self.held[slot] += 1;
            let sent = loop {
                let completion = self.wait_for(to)?;
                if let Some(sent) = self.complete(completion)? {
                    break sent;
                }
            };
            match moved(sent) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(moved) => range.start += moved,
                // A socket that encrypts.
                Err(error) if error.raw_os_error() == Some(libc::EOPNOTSUPP) => self.zero_copy = ZeroCopy::No,
                Err(error) => return Err(error),
            }
            if self.zero_copy == ZeroCopy::Untried {
                self.zero_copy = ZeroCopy::Tried;
            }
        }
        Ok(())
    }

    /// Takes note of a completion. What it says of a send is given back.
    fn complete(&mut self, (tag, result, flags): (u64, i32, u32)) -> io::Result<Option<i32>> {
        let slot = tag as usize % COUNT;
        if tag & SEND == 0 {
            self.filled[slot] = Some(moved(result)?);
            return Ok(None);
        }
        if cqueue::notif(flags) {
            self.held[slot] -= 1;
            // Over loopback it is always copied, and a megabyte of it was seen to stall receivers with little room (`TcpExtPruneCalled`).
            let copied = (result as u32) & NOTIF_COPIED != 0;
            self.zero_copy = if copied || self.zero_copy == ZeroCopy::No { ZeroCopy::No } else { ZeroCopy::Yes };
            return Ok(None);
        }
        if !cqueue::more(flags) {
            self.held[slot] -= 1;
            self.zero_copy = ZeroCopy::No;
        }
        Ok(Some(result))
    }

    /// # Safety
    /// What the entry refers to stays until it is done.
    unsafe fn push(&mut self, entry: &squeue::Entry) -> io::Result<()> {
        // SAFETY: the caller's.
        unsafe { self.ring.submission().push(entry) }.map_err(|_| io::ErrorKind::OutOfMemory)?;
        self.pending += 1;
        self.ring.submit().map(|_| ())
    }

    /// The next completion, as long as the other end of a socket takes something.
    fn wait_for(&mut self, to: BorrowedFd<'_>) -> io::Result<(u64, i32, u32)> {
        // io_uring does not look at it.
        let patience = socket_timeout(to, Timeout::Send)?.unwrap_or(Duration::MAX);
        while_it_moves(to, || match self.wait(patience) {
            Err(error) if error.kind() == io::ErrorKind::TimedOut => Err(io::ErrorKind::WouldBlock.into()),
            completion => completion,
        })
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
/// Bytes that are sent to find out whether they are copied.
const TRIED: usize = 4096;
/// In the tag of an operation that sends.
const SEND: u64 = 1 << 32;
/// `IORING_SEND_ZC_REPORT_USAGE` (Linux 6.2).
const REPORT_USAGE: u16 = 1 << 3;
/// `IORING_NOTIF_USAGE_ZC_COPIED`.
const NOTIF_COPIED: u32 = 1 << 31;
