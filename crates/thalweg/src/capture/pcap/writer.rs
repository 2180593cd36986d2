//! A file that is written in large pieces, several at a time, past the page cache.

use memmap2::MmapMut;
use rustix::fs::{Mode, OFlags, fsync, ftruncate, open};
use rustix::io::Errno;
use std::fmt;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use thalweg_sys::uring::{Done, File, Operation, Ring};
use thiserror::Error;

/// Number of bytes of one write, the same as in the recorder's blocks.
const PIECE_BYTES: usize = 4 << 20;
/// Number of pieces: one is filled while the others are being written.
const PIECE_COUNT: usize = 8;
/// Alignment in bytes of the length and the offset of a direct write, on any disk.
const ALIGNMENT_BYTES: usize = 4096;

/// Reason why a file could not be written further.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub(crate) enum WriteError {
    /// No space is left.
    #[error("the disk is full")]
    Full,
    /// Any other error.
    #[error("writing: {0}")]
    Failed(Errno),
}

/// Readable part of a file.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Kept {
    pub(crate) bytes: u64,
    pub(crate) packets: u64,
}

/// A piece that is being written.
#[derive(Debug, Clone, Copy)]
struct Sent {
    /// Offset of the piece in the file, in bytes.
    offset: u64,
    length: usize,
    /// Number of bytes of it that are written.
    done: usize,
    /// Valid content before it.
    before: Kept,
}

pub(crate) struct Writer {
    file: Arc<OwnedFd>,
    /// Ring for the writes; `None` if the kernel has no io_uring.
    ring: Option<Ring<MmapMut>>,
    free: Vec<MmapMut>,
    /// Pieces being written, by the address of their memory.
    sent: Vec<(usize, Sent)>,
    current: Option<MmapMut>,
    used: usize,
    /// Offset of the current piece in the file; in `before`, the valid content before it.
    offset: u64,
    before: Kept,
    /// Valid content so far.
    whole: Kept,
    scratch: Vec<u8>,
    /// Valid content before the first failure, and its error.
    failed: Option<(Kept, WriteError)>,
}

impl Writer {
    /// Creates a file that must not exist yet.
    pub(crate) fn create(path: &Path) -> io::Result<Self> {
        let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::CLOEXEC;
        let mode = Mode::from_raw_mode(0o644);
        let file = match open(path, flags | OFlags::DIRECT, mode) {
            // The file system has no direct writes, but may have created the file.
            Err(Errno::INVAL) => {
                tracing::info!("{}: the file system does not support O_DIRECT: using ordinary writes", path.display());
                open(path, flags.difference(OFlags::EXCL), mode)
            }
            other => other,
        }?;
        let mut free = (0..PIECE_COUNT).map(|_| MmapMut::map_anon(PIECE_BYTES)).collect::<io::Result<Vec<_>>>()?;
        let ring = Ring::new(PIECE_COUNT as u32);
        if let Err(error) = &ring {
            tracing::info!("writing without io_uring: {error}");
        }
        Ok(Self {
            file: Arc::new(file),
            ring: ring.ok(),
            current: free.pop(),
            free,
            sent: Vec::with_capacity(PIECE_COUNT),
            used: 0,
            offset: 0,
            before: Kept::default(),
            whole: Kept::default(),
            scratch: Vec::new(),
            failed: None,
        })
    }

    /// Appends the output of `write`, which is complete in itself and contains `packets` packets.
    pub(crate) fn append_blocks(&mut self, packets: u64, write: impl FnOnce(&mut Vec<u8>)) -> Result<(), WriteError> {
        let mut scratch = std::mem::take(&mut self.scratch);
        scratch.clear();
        write(&mut scratch);
        let appended = self.append_bytes(&scratch);
        self.whole.bytes += scratch.len() as u64;
        self.whole.packets += packets;
        self.scratch = scratch;
        appended
    }

    fn append_bytes(&mut self, mut bytes: &[u8]) -> Result<(), WriteError> {
        while !bytes.is_empty() {
            if self.current.is_none() {
                self.reap_pieces(false)?;
                while self.free.is_empty() {
                    self.reap_pieces(true)?;
                }
                self.current = self.free.pop();
            }
            let Some(piece) = &mut self.current else { continue };
            let (now, later) = bytes.split_at(bytes.len().min(PIECE_BYTES - self.used));
            piece[self.used..self.used + now.len()].copy_from_slice(now);
            self.used += now.len();
            bytes = later;
            if self.used == PIECE_BYTES {
                self.send_piece();
            }
        }
        Ok(())
    }

    /// Starts writing the current piece.
    fn send_piece(&mut self) {
        let Some(mut piece) = self.current.take() else { return };
        let length = self.used.next_multiple_of(ALIGNMENT_BYTES);
        piece[self.used..length].fill(0);
        let sent = Sent { offset: self.offset, length, done: 0, before: self.before };
        self.offset += self.used as u64;
        self.used = 0;
        self.before = self.whole;
        self.write_piece(piece, sent);
    }

    /// Starts writing the rest of a piece.
    fn write_piece(&mut self, mut piece: MmapMut, mut sent: Sent) {
        loop {
            let Sent { offset, length, done, .. } = sent;
            let address = piece.as_ptr().addr();
            let operation =
                Operation::write_range(File::Open(Arc::clone(&self.file)), piece, done..length, offset + done as u64);
            if let Some(ring) = &mut self.ring {
                self.sent.push((address, sent));
                ring.push_operation(operation);
                ring.submit_queued();
                return;
            }
            let (memory, result) = operation.carry_out_blocking();
            let Some(left) = self.note_result(sent, result) else { return self.free.push(memory) };
            (piece, sent) = (memory, left);
        }
    }

    /// Takes back written pieces; waits for one if `wait` is set.
    fn reap_pieces(&mut self, wait: bool) -> Result<(), WriteError> {
        if wait && let Err(errno) = self.wait_for_write() {
            return Err(self.record_failure(self.before, WriteError::Failed(errno)));
        }
        self.collect_written();
        self.failed.map_or(Ok(()), |(_, error)| Err(error))
    }

    /// Waits until a write completes, or a signal arrives.
    fn wait_for_write(&mut self) -> Result<(), Errno> {
        let waited = self.ring.as_mut().map_or(Ok(()), |ring| ring.wait_for_completion(None));
        match waited.map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO)) {
            Err(Errno::INTR) => Ok(()),
            other => other,
        }
    }

    fn collect_written(&mut self) {
        while let Some(Done { memory, result, .. }) = self.ring.as_mut().and_then(Ring::next_finished) {
            let at = self.sent.iter().position(|(address, _)| *address == memory.as_ptr().addr());
            let sent = at.map(|at| self.sent.swap_remove(at).1);
            match sent.and_then(|sent| self.note_result(sent, result)) {
                Some(left) => self.write_piece(memory, left),
                None => self.free.push(memory),
            }
        }
    }

    /// Notes the result of a write. Returns the rest of its piece if that is to be written again.
    fn note_result(&mut self, sent: Sent, result: Result<u32, Errno>) -> Option<Sent> {
        match sent.rest_after(result) {
            Ok(left) => left,
            Err(error) => {
                self.record_failure(sent.before, error);
                None
            }
        }
    }

    fn record_failure(&mut self, before: Kept, error: WriteError) -> WriteError {
        if self.failed.is_none_or(|(earlier, _)| before.bytes < earlier.bytes) {
            self.failed = Some((before, error));
        }
        error
    }

    /// Ends the file after its valid content; returns that content, and any error.
    pub(crate) fn finish_file(mut self) -> (Kept, Result<(), WriteError>) {
        if self.failed.is_none() && self.used > 0 {
            self.send_piece();
        }
        // The file is truncated after its valid content, and nothing may be written there afterwards.
        while !self.sent.is_empty() {
            if let Err(errno) = self.wait_for_write() {
                self.record_failure(self.before, WriteError::Failed(errno));
                break;
            }
            self.collect_written();
        }
        let (kept, result) = match self.failed {
            None => (self.whole, Ok(())),
            Some((kept, error)) => (kept, Err(error)),
        };
        let ended = ftruncate(&self.file, kept.bytes).and_then(|()| fsync(&self.file)).map_err(WriteError::Failed);
        (kept, result.and(ended))
    }
}

impl Sent {
    /// Returns the rest to be written after this result: the recorder's rule (`Recorder::note_block` in thalweg-store).
    /// A direct write continues at a multiple of its alignment; no progress means that nothing fits.
    fn rest_after(self, result: Result<u32, Errno>) -> Result<Option<Self>, WriteError> {
        match result {
            Ok(written) if written as usize >= self.length - self.done => Ok(None),
            Ok(written) => match written as usize / ALIGNMENT_BYTES * ALIGNMENT_BYTES {
                0 => Err(WriteError::Full),
                gained => Ok(Some(Self { done: self.done + gained, ..self })),
            },
            Err(Errno::AGAIN | Errno::INTR) => Ok(Some(self)),
            Err(Errno::NOSPC | Errno::DQUOT) => Err(WriteError::Full),
            Err(error) => Err(WriteError::Failed(error)),
        }
    }
}

impl fmt::Debug for Writer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Writer({:?}, {} under way)", self.whole, self.sent.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_put_is_there_whatever_its_length() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("file");
        let mut writer = Writer::create(&path).unwrap();
        let mut expected = Vec::new();
        for number in 0..2000u32 {
            let bytes = vec![number as u8; 4 * (number as usize % 9000)];
            writer.append_blocks(1, |out| out.extend_from_slice(&bytes)).unwrap();
            expected.extend(bytes);
        }
        let (kept, result) = writer.finish_file();
        result.unwrap();
        assert_eq!(kept, Kept { bytes: expected.len() as u64, packets: 2000 });
        assert!(std::fs::read(&path).unwrap() == expected);
        assert_eq!(Writer::create(&path).unwrap_err().kind(), io::ErrorKind::AlreadyExists);
    }

    #[test]
    fn a_write_that_was_cut_short_or_put_off_goes_on() {
        let sent = Sent { offset: 0, length: 4 * ALIGNMENT_BYTES, done: ALIGNMENT_BYTES, before: Kept::default() };
        let after = |result| sent.rest_after(result).map(|left| left.map(|left| left.done));
        let aligned = ALIGNMENT_BYTES as u32;
        assert_eq!(after(Ok(3 * aligned)), Ok(None));
        assert_eq!(after(Ok(aligned + 5)), Ok(Some(2 * ALIGNMENT_BYTES)));
        assert_eq!(after(Ok(5)), Err(WriteError::Full));
        for errno in [Errno::AGAIN, Errno::INTR] {
            assert_eq!(after(Err(errno)), Ok(Some(ALIGNMENT_BYTES)));
        }
        assert_eq!(after(Err(Errno::DQUOT)), Err(WriteError::Full));
        assert_eq!(after(Err(Errno::IO)), Err(WriteError::Failed(Errno::IO)));
    }

    #[test]
    fn a_file_that_failed_is_cut_only_when_nothing_is_written_any_more() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("file");
        let mut writer = Writer::create(&path).unwrap();
        for _ in 0..PIECE_COUNT - 1 {
            writer.append_blocks(1, |out| out.resize(PIECE_BYTES, 7)).unwrap();
        }
        writer.record_failure(Kept { bytes: 12, packets: 0 }, WriteError::Full);
        let (kept, result) = writer.finish_file();
        assert_eq!((kept.bytes, result), (12, Err(WriteError::Full)));
        assert_eq!(std::fs::metadata(&path).unwrap().len(), 12);
    }
}
