//! From a socket to a file.

use crate::memory::Slots;
use crate::outward::DONTCACHE;
use crate::pipe::Pipe;
use crate::stored::{ALIGNMENT, reopen};
use crate::way::Inward;
use crc_fast::Digest;
use io_uring::{IoUring, opcode, types};
use rustix::fs::{Mode, OFlags};
use rustix::io::{Errno, ReadWriteFlags, pwritev2};
use std::fmt;
use std::fs::File;
use std::io::{self, IoSlice, Read};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::fs::FileExt;
use std::path::Path;

/// Writes what comes from one socket into files.
#[derive(Debug, Default)]
pub struct Receiver {
    pipe: Option<Pipe>,
    buffer: Option<Slots>,
    ring: Option<WriteRing>,
}

/// Where bytes come from.
pub struct Incoming<'a> {
    /// What was read from the socket already.
    pub first: &'a [u8],
    /// What comes behind it. A socket whose `SO_RCVTIMEO` is over ends the transfer.
    pub rest: &'a mut dyn Read,
    /// The socket itself, where nothing is between it and the bytes: `splice` needs it.
    pub socket: Option<BorrowedFd<'a>>,
}

/// What became of a transfer.
#[derive(Debug)]
pub struct Written {
    /// Bytes that are in the file, without a gap.
    pub bytes: u64,
    /// Why it is not all of them.
    pub end: Result<(), Interrupted>,
}

/// Why a transfer ended before its time.
#[derive(Debug, thiserror::Error)]
pub enum Interrupted {
    /// The sender went away, or said nothing for too long.
    #[error("the sender stopped: {0}")]
    Network(io::Error),
    /// The file could not be written.
    #[error("cannot write: {0}")]
    File(io::Error),
}

impl Receiver {
    /// One that has nothing yet; what a way needs is made when it is first used.
    pub fn new() -> Self {
        Self::default()
    }

    /// Whether [`Inward::Uring`] can be had for files of this directory.
    ///
    /// # Errors
    /// Where the kernel or a container's rules have no io_uring for us, or the file system no `O_DIRECT` (or no `O_TMPFILE` to try it with).
    pub fn try_uring(directory: &Path) -> io::Result<()> {
        let flags = OFlags::TMPFILE | OFlags::WRONLY | OFlags::DIRECT | OFlags::CLOEXEC;
        rustix::fs::open(directory, flags, Mode::RUSR | Mode::WUSR)?;
        WriteRing::new().map(drop)
    }

    /// Writes `length` bytes into the file, from offset `at` on, and adds them to `crc`.
    pub fn receive(
        &mut self,
        way: Inward,
        from: &mut Incoming<'_>,
        to: &File,
        at: u64,
        length: u64,
        crc: &mut Digest,
    ) -> Written {
        let mut written = 0;
        let end = match (way, from.socket) {
            (Inward::Splice, Some(socket)) => self.splice(from, socket, to, at, length, crc, &mut written),
            (Inward::Recv | Inward::Splice, _) => {
                self.recv(from, to, at, length, crc, &mut written, ReadWriteFlags::empty())
            }
            (Inward::DontCache, _) => self.recv(from, to, at, length, crc, &mut written, DONTCACHE),
            (Inward::Uring, _) => self.uring(from, to, at, length, crc, &mut written),
        };
        Written { bytes: written, end }
    }

    #[expect(clippy::too_many_arguments, reason = "one transfer's particulars, private")]
    fn recv(
        &mut self,
        from: &mut Incoming<'_>,
        to: &File,
        at: u64,
        length: u64,
        crc: &mut Digest,
        written: &mut u64,
        how: ReadWriteFlags,
    ) -> Result<(), Interrupted> {
        let buffer = slots(&mut self.buffer).map_err(Interrupted::File)?.slot(0);
        while *written < length {
            let most = usize::try_from(length - *written).unwrap_or(usize::MAX).min(buffer.len());
            let read = from.read(&mut buffer[..most]).map_err(Interrupted::Network)?;
            crc.update(&buffer[..read]);
            write_all(to, &buffer[..read], at + *written, how).map_err(Interrupted::File)?;
            *written += read as u64;
        }
        Ok(())
    }

    #[expect(clippy::too_many_arguments, reason = "one transfer's particulars, private")]
    fn splice(
        &mut self,
        from: &mut Incoming<'_>,
        socket: BorrowedFd<'_>,
        to: &File,
        at: u64,
        length: u64,
        crc: &mut Digest,
        written: &mut u64,
    ) -> Result<(), Interrupted> {
        let first = from.take_first(length);
        crc.update(first);
        write_all(to, first, at, ReadWriteFlags::empty()).map_err(Interrupted::File)?;
        *written += first.len() as u64;
        // What was spliced was never in this process's memory: it is read once more for its checksum.
        let buffer = slots(&mut self.buffer).map_err(Interrupted::File)?.slot(0);
        while *written < length {
            let pipe = match &self.pipe {
                Some(pipe) => pipe,
                None => self.pipe.insert(Pipe::new().map_err(Interrupted::File)?),
            };
            let most = usize::try_from(length - *written).unwrap_or(usize::MAX).min(buffer.len());
            let filled = match pipe.fill(socket, None, most) {
                Ok(0) => return Err(Interrupted::Network(io::ErrorKind::UnexpectedEof.into())),
                Ok(filled) => filled,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(Interrupted::Network(timed_out(error))),
            };
            let mut offset = at + *written;
            if let Err(error) = pipe.empty(to.as_fd(), Some(&mut offset), filled, false) {
                self.pipe = None;
                return Err(Interrupted::File(error));
            }
            to.read_exact_at(&mut buffer[..filled], at + *written).map_err(Interrupted::File)?;
            crc.update(&buffer[..filled]);
            *written += filled as u64;
        }
        Ok(())
    }

    fn uring(
        &mut self,
        from: &mut Incoming<'_>,
        to: &File,
        at: u64,
        length: u64,
        crc: &mut Digest,
        written: &mut u64,
    ) -> Result<(), Interrupted> {
        // Up to the next page through the page cache, then past it.
        let head = at.next_multiple_of(ALIGNMENT).saturating_sub(at).min(length);
        self.recv(from, to, at, head, crc, written, ReadWriteFlags::empty())?;
        if *written == length {
            return Ok(());
        }
        let direct = reopen(to, OFlags::WRONLY | OFlags::DIRECT).map_err(|error| Interrupted::File(error.into()))?;
        let ring = match &mut self.ring {
            Some(ring) => ring,
            ring => ring.insert(WriteRing::new().map_err(Interrupted::File)?),
        };
        let (bytes, end) = ring.receive(from, to, &direct, at + head, length - head, crc);
        *written += bytes;
        if matches!(end, Err(Interrupted::File(_))) {
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

    /// At least one byte, or an error.
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
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
                Err(error) => return Err(timed_out(error)),
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

/// Slots that the network fills and the disk empties, in turn.
struct WriteRing {
    // In front of the memory it refers to: dropped first.
    ring: IoUring,
    slots: Slots,
    /// For each slot, what is being written from it: offset and length.
    busy: [Option<(u64, usize)>; COUNT],
    /// The lowest offset that could not be written, and why.
    failed: Option<(u64, io::Error)>,
}

impl WriteRing {
    fn new() -> io::Result<Self> {
        let ring = IoUring::builder().setup_clamp().build(COUNT as u32)?;
        let mut slots = Slots::new(COUNT, SLOT)?;
        // SAFETY: the memory stays mapped as long as the ring is there.
        unsafe { ring.submitter().register_buffers(&slots.vectors()) }?;
        Ok(Self { ring, slots, busy: [None; COUNT], failed: None })
    }

    /// Writes from `at` on, which is a multiple of the alignment. Gives the bytes written without a gap.
    fn receive(
        &mut self,
        from: &mut Incoming<'_>,
        buffered: &File,
        direct: &File,
        at: u64,
        length: u64,
        crc: &mut Digest,
    ) -> (u64, Result<(), Interrupted>) {
        let mut taken = 0;
        let mut end = Ok(());
        let mut slot = 0;
        while taken < length && end.is_ok() && self.failed.is_none() {
            if let Err(error) = self.settle(|busy| busy[slot].is_some()) {
                return (0, Err(Interrupted::File(error)));
            }
            let most = usize::try_from(length - taken).unwrap_or(usize::MAX).min(SLOT);
            let bytes = self.slots.slot(slot);
            let mut filled = 0;
            while filled < most && end.is_ok() {
                match from.read(&mut bytes[filled..most]) {
                    Ok(read) => filled += read,
                    Err(error) => end = Err(Interrupted::Network(error)),
                }
            }
            crc.update(&bytes[..filled]);
            let whole_pages = filled - filled % ALIGNMENT as usize;
            let rest = &bytes[whole_pages..filled];
            if let Err(error) = write_all(buffered, rest, at + taken + whole_pages as u64, ReadWriteFlags::empty()) {
                self.failed = Some((at + taken, error));
                break;
            }
            if whole_pages > 0
                && let Err(error) = self.write(direct, slot, at + taken, whole_pages)
            {
                self.failed = Some((at + taken, error));
                break;
            }
            taken += filled as u64;
            slot = (slot + 1) % COUNT;
        }
        if let Err(error) = self.settle(|busy| busy.iter().any(Option::is_some)) {
            return (0, Err(Interrupted::File(error)));
        }
        match self.failed.take() {
            Some((offset, error)) => (offset - at, Err(Interrupted::File(error))),
            None => (taken, end),
        }
    }

    fn write(&mut self, file: &File, slot: usize, offset: u64, length: usize) -> io::Result<()> {
        let memory = self.slots.slot(slot).as_ptr();
        let entry = opcode::WriteFixed::new(types::Fd(file.as_raw_fd()), memory, length as u32, slot as u16);
        let entry = entry.offset(offset).build().user_data(slot as u64);
        // SAFETY: the slot is not written to while `busy` names it, and `receive` keeps the file open until nothing is.
        unsafe { self.ring.submission().push(&entry) }.map_err(|_| io::ErrorKind::OutOfMemory)?;
        self.busy[slot] = Some((offset, length));
        self.ring.submit().map(|_| ())
    }

    /// Waits for writes to be done, as long as it has to be.
    fn settle(&mut self, unsettled: impl Fn(&[Option<(u64, usize)>; COUNT]) -> bool) -> io::Result<()> {
        while unsettled(&self.busy) {
            while let Some(done) = self.ring.completion().next() {
                let Some((offset, length)) = self.busy[done.user_data() as usize % COUNT].take() else { continue };
                let error = match usize::try_from(done.result()) {
                    Ok(written) if written == length => continue,
                    // A disk that is full writes what has room.
                    Ok(_) => io::Error::from_raw_os_error(libc::ENOSPC),
                    Err(_) => io::Error::from_raw_os_error(-done.result()),
                };
                if self.failed.as_ref().is_none_or(|(lowest, _)| offset < *lowest) {
                    self.failed = Some((offset, error));
                }
            }
            if unsettled(&self.busy) {
                match self.ring.submit_and_wait(1) {
                    Err(error) if error.kind() != io::ErrorKind::Interrupted => return Err(error),
                    _ => {}
                }
            }
        }
        Ok(())
    }
}

impl fmt::Debug for WriteRing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "WriteRing({} slots of {} bytes)", self.slots.count(), self.slots.slot_bytes())
    }
}

fn slots(buffer: &mut Option<Slots>) -> io::Result<&mut Slots> {
    match buffer {
        Some(buffer) => Ok(buffer),
        buffer => Ok(buffer.insert(Slots::new(1, BUFFER)?)),
    }
}

fn write_all(to: &File, mut bytes: &[u8], mut at: u64, how: ReadWriteFlags) -> io::Result<()> {
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

/// A blocking socket whose time is over says that it would block.
fn timed_out(error: io::Error) -> io::Error {
    if error.kind() == io::ErrorKind::WouldBlock { io::ErrorKind::TimedOut.into() } else { error }
}

/// Bytes of the buffer that `recv` and `dontcache` copy through.
const BUFFER: usize = 256 << 10;
/// Slots of the ring.
const COUNT: usize = 8;
/// Bytes of each.
const SLOT: usize = 1 << 20;
