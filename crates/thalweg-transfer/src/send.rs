//! Transfers from a file to a socket.

use crate::cached::cached_bytes;
use crate::memory::map_aligned_buffer;
use crate::method::SendMethod;
use crate::pipe::Pipe;
use crate::progress::retry_while_moving;
use crate::ring::ReadRing;
use crate::stored::{DIRECT_ALIGNMENT_BYTES, Stored};
use memmap2::MmapMut;
use rustix::fs::{Advice, fadvise};
use rustix::io::{Errno, ReadWriteFlags, preadv2};
use rustix::net::{SendFlags, send};
use std::io::{self, IoSliceMut};
use std::num::NonZeroU64;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

/// Sends ranges of files into one socket.
#[derive(Debug, Default)]
pub struct Sender {
    pipe: Option<Pipe>,
    buffer: Option<MmapMut>,
    ring: Option<ReadRing>,
    behind: Behind,
}

impl Sender {
    /// Returns a sender without resources; those of a method are created when it is first used.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sends a range of the file. With `more`, something follows at once, and the last packet may wait for it.
    ///
    /// # Errors
    /// `UnexpectedEof` if the file ends within the range, `TimedOut` if the socket's `SO_SNDTIMEO` has passed, and the
    /// errors of file and socket. After an error the number of bytes sent is unknown: the connection is to be closed.
    pub fn send_range(
        &mut self,
        method: SendMethod,
        from: &Arc<Stored>,
        range: Range<u64>,
        to: BorrowedFd<'_>,
        more: bool,
    ) -> io::Result<()> {
        self.behind.forget_sent();
        if range.is_empty() {
            return Ok(());
        }
        let sent = match method {
            SendMethod::Read => self.send_buffered(from, range, to, more, ReadWriteFlags::empty()),
            SendMethod::DontCache => self.send_buffered(from, range, to, more, DONTCACHE),
            SendMethod::Sendfile => sendfile_range(from, range, to),
            SendMethod::Splice => self.send_spliced(from, range, to, more),
            SendMethod::Ahead => self.send_read_ahead(from, range, to),
            SendMethod::Direct => self.send_direct(from, range, to, more),
            SendMethod::Uring => {
                let ring = match &mut self.ring {
                    Some(ring) => ring,
                    ring => ring.insert(ReadRing::new()?),
                };
                let sent = ring.send_range(from.direct_file()?, range, to, more);
                if sent.is_err() {
                    // Operations still under way end with the ring.
                    self.ring = None;
                }
                sent
            }
        };
        sent.map_err(|error| match error.kind() {
            // A blocking socket whose time-out has passed reports that it would block.
            io::ErrorKind::WouldBlock => io::ErrorKind::TimedOut.into(),
            _ => error,
        })
    }

    /// Returns whether this file can be sent with this method: not every file system has `O_DIRECT`.
    pub fn can_send(method: SendMethod, from: &Stored) -> bool {
        !matches!(method, SendMethod::Direct | SendMethod::Uring) || from.direct_file().is_ok()
    }

    /// Returns whether [`send_some`](Self::send_some) supports a method.
    pub fn supports_send_some(method: SendMethod) -> bool {
        matches!(method, SendMethod::Sendfile | SendMethod::Splice)
    }

    /// Sends bytes from the front of a range, and removes them from it: as many as a non-blocking socket takes now, at
    /// most `most`. One sender can serve many sockets this way. Meant for bytes that are in the page cache: otherwise
    /// the call waits for the disk.
    ///
    /// # Errors
    /// `WouldBlock` if the socket takes nothing now, `UnexpectedEof` if the file ends within the range, `Unsupported`
    /// for other methods than `sendfile` and `splice`, and the errors of file and socket. Nothing was sent then.
    pub fn send_some(
        &mut self,
        method: SendMethod,
        from: &Stored,
        range: &mut Range<u64>,
        most: u64,
        to: BorrowedFd<'_>,
    ) -> io::Result<()> {
        match method {
            SendMethod::Sendfile => sendfile_some(from, range, most, to),
            SendMethod::Splice => self.splice_some(from, range, most, to),
            _ => Err(io::ErrorKind::Unsupported.into()),
        }
    }

    fn splice_some(&mut self, from: &Stored, range: &mut Range<u64>, most: u64, to: BorrowedFd<'_>) -> io::Result<()> {
        let pipe = self.pipe_or_new()?;
        let wanted = usize::try_from(most.min(range.end - range.start)).unwrap_or(usize::MAX);
        let filled = match pipe.fill_from(from.buffered_file().as_fd(), Some(&mut range.start.clone()), wanted) {
            Ok(0) if wanted > 0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(filled) => filled,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => return Ok(()),
            Err(error) => return Err(error),
        };
        let sent = pipe.empty_some(to, filled);
        if !sent.as_ref().is_ok_and(|sent| *sent == filled) {
            // The bytes that the socket does not take now are in the page cache next time, too.
            self.pipe = None;
        }
        range.start += sent? as u64;
        Ok(())
    }

    fn send_buffered(
        &mut self,
        from: &Stored,
        mut range: Range<u64>,
        to: BorrowedFd<'_>,
        more: bool,
        how: ReadWriteFlags,
    ) -> io::Result<()> {
        let buffer = match &mut self.buffer {
            Some(buffer) => buffer,
            none => none.insert(map_aligned_buffer(COPY_BUFFER_BYTES)?),
        };
        while !range.is_empty() {
            let length = usize::try_from(range.end - range.start).unwrap_or(usize::MAX).min(buffer.len());
            let mut slice = [IoSliceMut::new(&mut buffer[..length])];
            let read = match preadv2(from.buffered_file(), &mut slice, range.start, how) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(read) => read,
                Err(Errno::INTR) => continue,
                Err(error) => return Err(error.into()),
            };
            range.start += read as u64;
            send_all(to, &buffer[..read], more || !range.is_empty())?;
        }
        Ok(())
    }

    fn pipe_or_new(&mut self) -> io::Result<&Pipe> {
        if self.pipe.is_none() {
            self.pipe = Some(Pipe::new()?);
        }
        self.pipe.as_ref().ok_or_else(|| io::ErrorKind::Other.into())
    }

    fn send_spliced(&mut self, from: &Stored, range: Range<u64>, to: BorrowedFd<'_>, more: bool) -> io::Result<()> {
        let pipe = self.pipe_or_new()?;
        let through = send_through_pipe(pipe, from.buffered_file().as_fd(), range, 0, to, more);
        self.drop_pipe_on_error(through)
    }

    fn send_direct(&mut self, from: &Stored, range: Range<u64>, to: BorrowedFd<'_>, more: bool) -> io::Result<()> {
        let file = from.direct_file()?;
        let skip = range.start % DIRECT_ALIGNMENT_BYTES;
        let pipe = self.pipe_or_new()?;
        let through = send_through_pipe(pipe, file.as_fd(), range.start - skip..range.end, skip, to, more);
        self.drop_pipe_on_error(through)
    }

    /// Drops the pipe after an interrupted transfer: bytes left in it would come out with the next one.
    fn drop_pipe_on_error(&mut self, result: io::Result<()>) -> io::Result<()> {
        if result.is_err() {
            self.pipe = None;
        }
        result
    }

    fn send_read_ahead(&mut self, from: &Arc<Stored>, range: Range<u64>, to: BorrowedFd<'_>) -> io::Result<()> {
        // The ranges to read ahead are given piece by piece; the kernel's own read-ahead would go on after the range.
        fadvise(from.buffered_file(), 0, None, Advice::Random)?;
        let mut announced = range.start;
        let mut at = range.start;
        while at < range.end {
            while announced < range.end && announced < at + READ_AHEAD_BYTES {
                let piece = announced..range.end.min(announced + PIECE_BYTES);
                // Pages that others have in the cache stay there.
                if cached_bytes(from.buffered_file(), &piece).unwrap_or(0) == 0 {
                    self.behind.remember_piece(from, piece.clone());
                }
                fadvise(from.buffered_file(), piece.start, nonzero_length(&piece), Advice::WillNeed)?;
                announced = piece.end;
            }
            let piece = at..range.end.min(at + PIECE_BYTES);
            at = piece.end;
            sendfile_range(from, piece, to)?;
            self.behind.forget_before(from, at.saturating_sub(MAX_UNSENT_BYTES));
        }
        Ok(())
    }
}

fn sendfile_range(from: &Stored, mut range: Range<u64>, to: BorrowedFd<'_>) -> io::Result<()> {
    while !range.is_empty() {
        retry_while_moving(to, || sendfile_some(from, &mut range, u64::MAX, to))?;
    }
    Ok(())
}

fn sendfile_some(from: &Stored, range: &mut Range<u64>, most: u64, to: BorrowedFd<'_>) -> io::Result<()> {
    // At most what the kernel takes in one call (MAX_RW_COUNT).
    let length = usize::try_from(most.min(range.end - range.start)).unwrap_or(usize::MAX).min(1 << 30);
    match rustix::fs::sendfile(to, from.buffered_file(), Some(&mut range.start), length) {
        Ok(0) if length > 0 => Err(io::ErrorKind::UnexpectedEof.into()),
        Ok(_) | Err(Errno::INTR) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Sends a range of a file through a pipe, without its first `skip` bytes. With `O_DIRECT` the range begins at a page,
/// and the bytes after the range in the last page are taken back out of the pipe.
fn send_through_pipe(
    pipe: &Pipe,
    file: BorrowedFd<'_>,
    range: Range<u64>,
    skip: u64,
    to: BorrowedFd<'_>,
    more: bool,
) -> io::Result<()> {
    let (mut at, mut skip) = (range.start, usize::try_from(skip).unwrap_or(0));
    while at < range.end {
        let wanted = usize::try_from(range.end - at).unwrap_or(usize::MAX);
        let whole_pages = wanted.min(pipe.capacity_bytes()).next_multiple_of(DIRECT_ALIGNMENT_BYTES as usize);
        let before = at;
        let filled = match pipe.fill_from(file, Some(&mut at), whole_pages) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(filled) => filled,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        };
        at = before + filled as u64;
        let useful = filled.min(wanted);
        let skipped = skip.min(useful);
        pipe.discard_bytes(skipped)?;
        skip -= skipped;
        pipe.empty_into(to, None, useful - skipped, more || at < range.end)?;
        pipe.discard_bytes(filled - useful)?;
    }
    Ok(())
}

/// Sends all of `bytes`, with `more` if something follows at once.
///
/// # Errors
/// `WouldBlock` if the peer took nothing for as long as the socket's `SO_SNDTIMEO`, and the errors of the socket.
pub fn send_all(to: BorrowedFd<'_>, mut bytes: &[u8], more: bool) -> io::Result<()> {
    let flags = SendFlags::NOSIGNAL | if more { SendFlags::MORE } else { SendFlags::empty() };
    while !bytes.is_empty() {
        match retry_while_moving(to, || Ok(send(to, bytes, flags)?)) {
            Ok(sent) => bytes = &bytes[sent..],
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Pages that were read into the cache only to be sent. They cannot be dropped before the network has released them, so
/// the last ones are still present when the next transfer begins, or the connection ends.
#[derive(Debug, Default)]
struct Behind {
    pieces: Vec<(Arc<Stored>, Range<u64>)>,
}

impl Behind {
    fn remember_piece(&mut self, file: &Arc<Stored>, piece: Range<u64>) {
        self.pieces.push((Arc::clone(file), piece));
    }

    fn forget_before(&mut self, file: &Arc<Stored>, until: u64) {
        // The network may still have some, if the peer receives late: those behind them are as late.
        let mut is_late = false;
        self.pieces.retain(|(of, piece)| {
            let is_behind = Arc::ptr_eq(of, file) && piece.end <= until && !is_late;
            if !is_behind {
                return true;
            }
            // Only advice: pages that cannot be dropped are reclaimed by the kernel later.
            let _ = fadvise(of.buffered_file(), piece.start, nonzero_length(piece), Advice::DontNeed);
            let is_held = cached_bytes(of.buffered_file(), piece).is_ok_and(|bytes| bytes > 0);
            is_late = is_held && until - piece.end < MAX_LATE_BYTES;
            is_late
        });
    }

    fn forget_sent(&mut self) {
        for (of, piece) in self.pieces.drain(..) {
            let _ = fadvise(of.buffered_file(), piece.start, nonzero_length(&piece), Advice::DontNeed);
        }
    }
}

impl Drop for Behind {
    fn drop(&mut self) {
        self.forget_sent();
    }
}

fn nonzero_length(range: &Range<u64>) -> Option<NonZeroU64> {
    NonZeroU64::new(range.end.saturating_sub(range.start))
}

/// Length of the buffer that `read` and `dontcache` copy through, in bytes: it stays in the second-level cache.
const COPY_BUFFER_BYTES: usize = 256 << 10;
/// Distance, in bytes, by which the disk reads ahead of the bytes being sent.
const READ_AHEAD_BYTES: u64 = 8 << 20;
/// Bytes that are announced, sent and dropped at a time.
const PIECE_BYTES: u64 = 1 << 20;
/// Bytes that may still be in the sender's and, on this host, the receiver's socket buffer.
const MAX_UNSENT_BYTES: u64 = 8 << 20;
/// Distance, in bytes, at which a page that cannot be dropped is no longer one that the network has: others have it.
const MAX_LATE_BYTES: u64 = 64 << 20;
/// `RWF_DONTCACHE`, `include/uapi/linux/fs.h`.
pub(crate) const DONTCACHE: ReadWriteFlags = ReadWriteFlags::from_bits_retain(0x80);
