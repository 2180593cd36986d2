//! Transfers from a socket to a file.

use crate::memory::{Slot, map_aligned_buffer, ring_with_slots};
use crate::method::ReceiveMethod;
use crate::pipe::Pipe;
use crate::send::DONTCACHE;
use crate::stored::{DIRECT_ALIGNMENT_BYTES, reopen_file};
use crc_fast::Digest;
use memmap2::MmapMut;
use rustix::fs::{Mode, OFlags};
use rustix::io::{Errno, ReadWriteFlags, pwritev2};
use std::fmt;
use std::fs::File;
use std::io::{self, IoSlice, Read};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use thalweg_sys::uring::{Operation, Ring};

/// Writes the bytes that come from one socket into files.
#[derive(Debug, Default)]
pub struct Receiver {
    pipe: Option<Pipe>,
    buffer: Option<MmapMut>,
    ring: Option<WriteRing>,
}

/// Input of a transfer: bytes received in advance, and the connection that the others come from.
pub struct Incoming<'a> {
    /// Bytes that were read from the socket already.
    pub first: &'a [u8],
    /// Reader of the bytes after `first`. The transfer ends if it waits for longer than the socket's `SO_RCVTIMEO`.
    pub rest: &'a mut dyn Read,
    /// Descriptor of the socket, for `splice`; `None` if the socket carries anything but the data (TLS).
    pub socket: Option<BorrowedFd<'a>>,
}

/// Result of a transfer.
#[derive(Debug)]
pub struct Written {
    /// Number of bytes written from the start of the transfer on, without a gap.
    pub bytes: u64,
    /// `Ok` if all bytes were written, or the reason why the transfer ended early.
    pub end: Result<(), TransferError>,
}

/// Reason why a transfer ended early.
#[derive(Debug, thiserror::Error)]
pub enum TransferError {
    /// The sender disconnected, or sent nothing for too long.
    #[error("the sender stopped: {0}")]
    Network(io::Error),
    /// The file could not be written.
    #[error("cannot write: {0}")]
    File(io::Error),
}

impl Receiver {
    /// Returns a receiver without resources; those of a method are created when it is first used.
    pub fn new() -> Self {
        Self::default()
    }

    /// Checks that [`ReceiveMethod::Uring`] is available for files of this directory.
    ///
    /// # Errors
    /// The kernel or a container's rules do not permit io_uring, or the file system has no `O_DIRECT` (or no
    /// `O_TMPFILE` to try it with).
    pub fn try_uring(directory: &Path) -> io::Result<()> {
        let flags = OFlags::TMPFILE | OFlags::WRONLY | OFlags::DIRECT | OFlags::CLOEXEC;
        rustix::fs::open(directory, flags, Mode::RUSR | Mode::WUSR)?;
        WriteRing::new().map(drop)
    }

    /// Receives `length` bytes, writes them to the file `to` from offset `at` on, and adds them to `crc`. If the file
    /// could not be written, `crc` may include bytes that are not in it. [`ReceiveMethod::Splice`] reads them back: it needs a
    /// file open for reading too, and without [`Incoming::socket`] the method is [`ReceiveMethod::Recv`].
    pub fn receive_file(
        &mut self,
        method: ReceiveMethod,
        from: &mut Incoming<'_>,
        to: &File,
        at: u64,
        length: u64,
        crc: &mut Digest,
    ) -> Written {
        let mut written = 0;
        let end = match (method, from.socket) {
            (ReceiveMethod::Splice, Some(socket)) => {
                self.receive_spliced(from, socket, to, at, length, crc, &mut written)
            }
            (ReceiveMethod::Recv | ReceiveMethod::Splice, _) => {
                self.receive_buffered(from, to, at, length, crc, &mut written, ReadWriteFlags::empty())
            }
            (ReceiveMethod::DontCache, _) => self.receive_buffered(from, to, at, length, crc, &mut written, DONTCACHE),
            (ReceiveMethod::Uring, _) => self.receive_by_uring(from, to, at, length, crc, &mut written),
        };
        Written { bytes: written, end }
    }

    #[expect(clippy::too_many_arguments, reason = "one transfer's particulars, private")]
    fn receive_buffered(
        &mut self,
        from: &mut Incoming<'_>,
        to: &File,
        at: u64,
        length: u64,
        crc: &mut Digest,
        written: &mut u64,
        how: ReadWriteFlags,
    ) -> Result<(), TransferError> {
        let buffer = buffer_or_new(&mut self.buffer).map_err(TransferError::File)?;
        while *written < length {
            let most = usize::try_from(length - *written).unwrap_or(usize::MAX).min(buffer.len());
            let read = from.read_some(&mut buffer[..most]).map_err(TransferError::Network)?;
            crc.update(&buffer[..read]);
            write_all_at(to, &buffer[..read], at + *written, how).map_err(TransferError::File)?;
            *written += read as u64;
        }
        Ok(())
    }

    #[expect(clippy::too_many_arguments, reason = "one transfer's particulars, private")]
    fn receive_spliced(
        &mut self,
        from: &mut Incoming<'_>,
        socket: BorrowedFd<'_>,
        to: &File,
        at: u64,
        length: u64,
        crc: &mut Digest,
        written: &mut u64,
    ) -> Result<(), TransferError> {
        let first = from.take_first(length);
        crc.update(first);
        write_all_at(to, first, at, ReadWriteFlags::empty()).map_err(TransferError::File)?;
        *written += first.len() as u64;
        // Spliced bytes were never in this process's memory: they are read back from the file for their checksum.
        let buffer = buffer_or_new(&mut self.buffer).map_err(TransferError::File)?;
        while *written < length {
            let pipe = match &self.pipe {
                Some(pipe) => pipe,
                None => self.pipe.insert(Pipe::new().map_err(TransferError::File)?),
            };
            let most = usize::try_from(length - *written).unwrap_or(usize::MAX).min(buffer.len());
            let filled = match pipe.fill_from(socket, None, most) {
                Ok(0) => return Err(TransferError::Network(io::ErrorKind::UnexpectedEof.into())),
                Ok(filled) => filled,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(TransferError::Network(would_block_as_timed_out(error))),
            };
            let mut offset = at + *written;
            if let Err(error) = pipe.empty_into(to.as_fd(), Some(&mut offset), filled, false) {
                self.pipe = None;
                return Err(TransferError::File(error));
            }
            to.read_exact_at(&mut buffer[..filled], at + *written).map_err(TransferError::File)?;
            crc.update(&buffer[..filled]);
            *written += filled as u64;
        }
        Ok(())
    }

    fn receive_by_uring(
        &mut self,
        from: &mut Incoming<'_>,
        to: &File,
        at: u64,
        length: u64,
        crc: &mut Digest,
        written: &mut u64,
    ) -> Result<(), TransferError> {
        // Buffered writes up to the next aligned offset, direct writes from there on.
        let head = at.next_multiple_of(DIRECT_ALIGNMENT_BYTES).saturating_sub(at).min(length);
        self.receive_buffered(from, to, at, head, crc, written, ReadWriteFlags::empty())?;
        if *written == length {
            return Ok(());
        }
        let direct =
            reopen_file(to, OFlags::WRONLY | OFlags::DIRECT).map_err(|error| TransferError::File(error.into()))?;
        let ring = match &mut self.ring {
            Some(ring) => ring,
            ring => ring.insert(WriteRing::new().map_err(TransferError::File)?),
        };
        let (bytes, end) = ring.receive_direct(from, to, &direct, at + head, length - head, crc);
        *written += bytes;
        if matches!(end, Err(TransferError::File(_))) {
            self.ring = None;
        }
        end
    }
}

impl<'a> Incoming<'a> {
    fn take_first(&mut self, most: u64) -> &'a [u8] {
        let length = usize::try_from(most).unwrap_or(usize::MAX).min(self.first.len());
        let (first, rest) = self.first.split_at(length);
        self.first = rest;
        first
    }

    /// Reads at least one byte, or returns an error.
    fn read_some(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let first = self.take_first(into.len() as u64);
        if !first.is_empty() {
            into[..first.len()].copy_from_slice(first);
            return Ok(first.len());
        }
        loop {
            match self.rest.read(into) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(read) => return Ok(read),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(would_block_as_timed_out(error)),
            }
        }
    }
}

impl fmt::Debug for Incoming<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Incoming")
            .field("first", &self.first.len())
            .field("socket", &self.socket)
            .finish_non_exhaustive()
    }
}

/// An io_uring, and slots that are filled from the socket and written to the file in turn.
#[derive(Debug)]
struct WriteRing {
    ring: Ring<Slot>,
    /// Slots without a write in progress, by their number; `None` during a write.
    free: [Option<Slot>; SLOT_COUNT],
    /// Offset in the file and length, in bytes, of the latest write from each slot.
    busy: [(u64, usize); SLOT_COUNT],
    /// Lowest offset of the writes that failed, and the error of that write.
    failed: Option<(u64, io::Error)>,
}

impl WriteRing {
    fn new() -> io::Result<Self> {
        let (ring, free) = ring_with_slots(SLOT_BYTES)?;
        Ok(Self { ring, free, busy: [(0, 0); SLOT_COUNT], failed: None })
    }

    /// Receives `length` bytes and writes them from offset `at` on, a multiple of the alignment: whole pages to
    /// `direct`, the remainder to `buffered`. Returns the number of bytes written without a gap; 0 if the ring failed.
    fn receive_direct(
        &mut self,
        from: &mut Incoming<'_>,
        buffered: &File,
        direct: &Arc<OwnedFd>,
        at: u64,
        length: u64,
        crc: &mut Digest,
    ) -> (u64, Result<(), TransferError>) {
        let mut taken = 0;
        let mut end = Ok(());
        let mut slot = 0;
        while taken < length && end.is_ok() && self.failed.is_none() {
            let mut bytes = match self.wait_for_writes(|free| free[slot].is_some()) {
                Ok(()) => self.free[slot].take().expect("`wait_for_writes` waited for this slot"),
                Err(error) => return (0, Err(TransferError::File(error))),
            };
            let most = usize::try_from(length - taken).unwrap_or(usize::MAX).min(SLOT_BYTES);
            let mut filled = 0;
            while filled < most && end.is_ok() {
                match from.read_some(&mut bytes[filled..most]) {
                    Ok(read) => filled += read,
                    Err(error) => end = Err(TransferError::Network(error)),
                }
            }
            crc.update(&bytes[..filled]);
            let whole_pages = filled - filled % DIRECT_ALIGNMENT_BYTES as usize;
            let remainder = &bytes[whole_pages..filled];
            let remainder_offset = at + taken + whole_pages as u64;
            let remainder_written = write_all_at(buffered, remainder, remainder_offset, ReadWriteFlags::empty());
            if whole_pages > 0 && remainder_written.is_ok() {
                self.busy[slot] = (at + taken, whole_pages);
                let file = thalweg_sys::uring::File::Open(Arc::clone(direct));
                self.ring.push_operation(Operation::write_range(file, bytes, 0..whole_pages, at + taken));
                self.ring.submit_queued();
            } else {
                self.free[slot] = Some(bytes);
            }
            if let Err(error) = remainder_written {
                keep_lowest_failure(&mut self.failed, at + taken, error);
                break;
            }
            taken += filled as u64;
            slot = (slot + 1) % SLOT_COUNT;
        }
        if let Err(error) = self.wait_for_writes(|free| free.iter().all(Option::is_some)) {
            return (0, Err(TransferError::File(error)));
        }
        match self.failed.take() {
            Some((offset, error)) => (offset - at, Err(TransferError::File(error))),
            None => (taken, end),
        }
    }

    /// Waits, without a timeout, until `settled` returns true for the free slots. Failed writes are kept in `failed`.
    fn wait_for_writes(&mut self, settled: impl Fn(&[Option<Slot>; SLOT_COUNT]) -> bool) -> io::Result<()> {
        while !settled(&self.free) {
            let Some(done) = self.ring.next_finished() else {
                self.ring.wait_for_completion(None)?;
                continue;
            };
            let slot = done.memory.slot_number() as usize;
            self.free[slot] = Some(done.memory);
            let (offset, length) = self.busy[slot];
            let error = match done.result {
                Ok(written) if written as usize == length => continue,
                // A short write: the disk is full.
                Ok(_) => Errno::NOSPC,
                Err(error) => error,
            };
            keep_lowest_failure(&mut self.failed, offset, error.into());
        }
        Ok(())
    }
}

/// Keeps the failed write if none failed at a lower offset: bytes below the lowest offset are in the file.
fn keep_lowest_failure(failed: &mut Option<(u64, io::Error)>, offset: u64, error: io::Error) {
    if failed.as_ref().is_none_or(|(lowest, _)| offset < *lowest) {
        *failed = Some((offset, error));
    }
}

fn buffer_or_new(memory: &mut Option<MmapMut>) -> io::Result<&mut MmapMut> {
    match memory {
        Some(memory) => Ok(memory),
        none => Ok(none.insert(map_aligned_buffer(COPY_BUFFER_BYTES)?)),
    }
}

fn write_all_at(to: &File, mut bytes: &[u8], mut at: u64, how: ReadWriteFlags) -> io::Result<()> {
    while !bytes.is_empty() {
        match pwritev2(to, &[IoSlice::new(bytes)], at, how) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(written) => {
                bytes = &bytes[written..];
                at += written as u64;
            }
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

/// Returns `TimedOut` for `WouldBlock`, which a blocking socket reports after its timeout; any other error unchanged.
fn would_block_as_timed_out(error: io::Error) -> io::Error {
    if error.kind() == io::ErrorKind::WouldBlock { io::ErrorKind::TimedOut.into() } else { error }
}

/// Length of the buffer for `recv` and `dontcache`, and for reading spliced bytes back, in bytes.
const COPY_BUFFER_BYTES: usize = 256 << 10;
/// Number of slots of the ring.
const SLOT_COUNT: usize = 8;
/// Length of a slot, in bytes.
const SLOT_BYTES: usize = 1 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_failed_write_with_the_lowest_offset_is_kept() {
        let mut failed = None;
        for offset in [8192, 4096, 12288] {
            keep_lowest_failure(&mut failed, offset, io::Error::other("full"));
        }
        assert_eq!(failed.unwrap().0, 4096);
    }
}
