//! Read-ahead for sequential reads.
//!
//! As many bytes are fetched ahead as were read in order so far, so that a program that jumps about costs little more
//! than what it reads, and a sequential one keeps several connections busy.
//!
//! The kernel asks for 128 KiB at a time (its own read-ahead), from several threads, so not quite in order.

use fuser::Errno;
use parking_lot::{Condvar, Mutex};
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// State of reading one open file.
#[derive(Debug)]
pub(super) struct ReadAhead {
    /// Consecutive pieces that are being read or will be.
    pieces: VecDeque<Arc<Piece>>,
    /// Offset at which sequential reading began, and offset of the next piece.
    began: u64,
    next: u64,
    /// End of the last read that was not sequential.
    last: Option<u64>,
}

/// Pieces that serve a read.
#[derive(Debug)]
pub(super) enum Plan {
    /// Only the requested range: the read may be the only one.
    Alone,
    /// Pieces that the read has to wait for, and new pieces that have to be fetched.
    InOrder(Vec<Arc<Piece>>, Vec<Arc<Piece>>),
}

/// A range of a file that is being fetched.
#[derive(Debug)]
pub(super) struct Piece {
    range: Range<u64>,
    bytes: Mutex<Option<Result<Arc<Vec<u8>>, Errno>>>,
    arrived: Condvar,
    _memory: Reservation,
}

/// Memory taken by all pieces of all files, in bytes.
#[derive(Debug, Default)]
pub(super) struct Memory(Arc<AtomicU64>);

/// Reservation of memory, released when dropped.
#[derive(Debug)]
struct Reservation(Arc<AtomicU64>, u64);

impl ReadAhead {
    pub(super) fn new() -> Self {
        Self { pieces: VecDeque::new(), began: 0, next: 0, last: None }
    }

    /// Plans the read of `range`, which is not empty, of a file of `length` bytes, with `streams` pieces in flight at
    /// once.
    pub(super) fn plan_read(&mut self, range: &Range<u64>, length: u64, streams: u64, memory: &Memory) -> Plan {
        if !self.continues_at(range.start) {
            if self.last.replace(range.end) != Some(range.start) {
                return Plan::Alone;
            }
            // Two consecutive reads begin a new sequence; earlier pieces are not needed.
            self.drop_pieces();
            (self.began, self.next) = (range.start, range.start);
        }
        while self.pieces.front().is_some_and(|piece| piece.range.end + REORDER_BYTES <= range.start) {
            self.pieces.pop_front();
        }
        let wanted = (range.end - self.began.min(range.end)).clamp(MIN_PIECE_BYTES, streams * MAX_PIECE_BYTES);
        let mut new = Vec::new();
        while self.next < length.min(range.end + wanted) {
            let end = length.min(self.next + (wanted / streams).clamp(MIN_PIECE_BYTES, MAX_PIECE_BYTES));
            let Some(reservation) = memory.reserve_bytes(end - self.next) else { break };
            let piece = Arc::new(Piece::new(self.next..end, reservation));
            self.pieces.push_back(Arc::clone(&piece));
            new.push(piece);
            self.next = end;
        }
        if self.next < range.end {
            // Other files have all the memory. Pieces in flight stay valid for reads that wait for them.
            self.drop_pieces();
            self.last = Some(range.end);
            return Plan::Alone;
        }
        let mut pieces: Vec<_> = self.pieces.iter().cloned().collect();
        pieces.retain(|piece| piece.range.start < range.end && range.start < piece.range.end);
        Plan::InOrder(pieces, new)
    }

    /// Drops the pieces fetched ahead, and their memory.
    pub(super) fn drop_pieces(&mut self) {
        self.pieces.clear();
        (self.began, self.next) = (0, 0);
    }

    /// Returns whether a read that begins here continues the sequence.
    fn continues_at(&self, start: u64) -> bool {
        let first = self.pieces.front().map(|piece| piece.range.start);
        first.is_some_and(|first| (first..=self.next + REORDER_BYTES).contains(&start))
    }
}

impl Piece {
    fn new(range: Range<u64>, memory: Reservation) -> Self {
        Self { range, bytes: Mutex::default(), arrived: Condvar::new(), _memory: memory }
    }

    /// Fills the piece with the result of `fetch`, unless no reader is left.
    pub(super) fn fill_with(self: Arc<Self>, fetch: impl FnOnce(Range<u64>) -> Result<Vec<u8>, Errno>) {
        if Arc::strong_count(&self) > 1 {
            let bytes = fetch(self.range.clone()).map(Arc::new);
            *self.bytes.lock() = Some(bytes);
            self.arrived.notify_all();
        }
    }

    /// Returns the positions in the piece's bytes of those that belong to `range`.
    pub(super) fn part_in_range(&self, range: &Range<u64>) -> Range<usize> {
        self.position_of_offset(range.start)..self.position_of_offset(range.end)
    }

    fn position_of_offset(&self, offset: u64) -> usize {
        usize::try_from(offset.clamp(self.range.start, self.range.end) - self.range.start).unwrap_or(0)
    }

    /// Waits for the piece's bytes.
    pub(super) fn wait_for_bytes(&self) -> Result<Arc<Vec<u8>>, Errno> {
        let mut bytes = self.bytes.lock();
        self.arrived.wait_while(&mut bytes, |bytes| bytes.is_none());
        bytes.clone().unwrap_or(Err(Errno::EIO))
    }
}

impl Memory {
    fn reserve_bytes(&self, bytes: u64) -> Option<Reservation> {
        let taken = self.0.fetch_update(Relaxed, Relaxed, |taken| {
            taken.checked_add(bytes).filter(|taken| *taken <= MAX_MEMORY_BYTES)
        });
        taken.ok()?;
        Some(Reservation(Arc::clone(&self.0), bytes))
    }

    /// Returns whether memory is so short that files that are no longer read should drop their pieces.
    pub(super) fn is_nearly_full(&self) -> bool {
        self.0.load(Relaxed) > MAX_MEMORY_BYTES - MAX_MEMORY_BYTES / 4
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.0.fetch_sub(self.1, Relaxed);
    }
}

/// Smallest and largest size of a piece in bytes: two of the kernel's reads, and as much as a fast link transfers in
/// some milliseconds.
const MIN_PIECE_BYTES: u64 = 256 << 10;
const MAX_PIECE_BYTES: u64 = 4 << 20;
/// Distance in bytes by which sequential reads may be out of order.
const REORDER_BYTES: u64 = 512 << 10;
/// Maximum number of bytes in all pieces.
const MAX_MEMORY_BYTES: u64 = 256 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    const READ: u64 = 128 << 10;
    const STREAMS: u64 = 4;

    /// Plans reads of this length at these offsets, and returns how many bytes each fetches ahead.
    fn fetched(ahead: &mut ReadAhead, memory: &Memory, length: u64, places: impl IntoIterator<Item = u64>) -> Vec<u64> {
        let read = |start: u64| match ahead.plan_read(&(start..length.min(start + READ)), length, STREAMS, memory) {
            Plan::Alone => 0,
            Plan::InOrder(waited, new) => {
                assert!(waited.first().unwrap().range.start <= start, "{waited:?}");
                assert!(waited.last().unwrap().range.end >= length.min(start + READ), "{waited:?}");
                assert!(waited.windows(2).all(|pair| pair[0].range.end == pair[1].range.start), "{waited:?}");
                new.iter().map(|piece| piece.range.end - piece.range.start).sum()
            }
        };
        places.into_iter().map(read).collect()
    }

    #[test]
    fn reading_in_order_fetches_each_byte_once_and_never_far_more_than_was_read() {
        let (memory, length) = (Memory::default(), 256 << 20);
        let mut ahead = ReadAhead::new();
        let fetched = fetched(&mut ahead, &memory, length, (0..length).step_by(READ as usize));
        assert_eq!(fetched[0], 0, "one read is no order yet");
        assert_eq!(fetched.iter().sum::<u64>(), length - READ);
        let mut so_far = 0;
        for (index, fetched) in fetched.iter().enumerate() {
            so_far += fetched;
            let read = (index as u64 + 1) * READ;
            assert!(so_far <= 2 * read + 2 * MIN_PIECE_BYTES + MAX_PIECE_BYTES.min(read), "{so_far} after {read}");
        }
        let most = (STREAMS + 2) * MAX_PIECE_BYTES + 2 * REORDER_BYTES;
        assert!(ahead.pieces.iter().map(|piece| piece.range.end - piece.range.start).sum::<u64>() <= most);
    }

    #[test]
    fn a_little_out_of_order_is_in_order() {
        let (memory, length) = (Memory::default(), 64 << 20);
        let (mut ahead, pairs) = (ReadAhead::new(), (0..length).step_by(2 * READ as usize));
        let places = [0, READ].into_iter().chain(pairs.skip(1).flat_map(|pair| [pair + READ, pair]));
        let fetched = fetched(&mut ahead, &memory, length, places);
        assert_eq!(fetched.iter().sum::<u64>(), length - READ);
    }

    #[test]
    fn jumps_fetch_nothing_and_do_not_disturb_who_reads_in_order() {
        let (memory, length) = (Memory::default(), 1 << 30);
        let mut ahead = ReadAhead::new();
        let jumps = (0..100).map(|index| (index * 7_919 * READ * 3) % (length - READ));
        assert_eq!(fetched(&mut ahead, &memory, length, jumps).iter().sum::<u64>(), 0);

        let order = (2..64).map(|index| index * READ);
        let places = order.flat_map(|place| [place, (1 << 29) + 5 * place]);
        let fetched = fetched(&mut ahead, &memory, length, [0, READ].into_iter().chain(places));
        assert!(fetched.iter().skip(3).step_by(2).all(|fetched| *fetched == 0), "{fetched:?}");
        assert!(fetched.iter().sum::<u64>() >= 62 * READ, "{fetched:?}");
    }

    #[test]
    fn without_memory_it_goes_on_without() {
        let (memory, length) = (Memory::default(), 64 << 20);
        let rooms = memory.reserve_bytes(MAX_MEMORY_BYTES).unwrap();
        let mut ahead = ReadAhead::new();
        let places = || (0..length).step_by(READ as usize);
        assert_eq!(fetched(&mut ahead, &memory, length, places()).iter().sum::<u64>(), 0);
        drop(rooms);
        assert_eq!(fetched(&mut ahead, &memory, length, places()).iter().sum::<u64>(), length - READ);
        drop(ahead);
        assert_eq!(memory.0.load(Relaxed), 0, "all of it is given back");
    }

    #[test]
    fn a_piece_that_nobody_wants_is_not_fetched_and_one_that_fails_says_so() {
        let memory = Memory::default();
        let piece = |range: Range<u64>| Arc::new(Piece::new(range, memory.reserve_bytes(4).unwrap()));
        piece(0..4).fill_with(|_| panic!("no reader is left"));
        for result in [Ok(vec![1; 4]), Err(Errno::EIO)] {
            let wanted = piece(4..8);
            Arc::clone(&wanted).fill_with(|range| {
                assert_eq!(range, 4..8);
                result.clone()
            });
            assert_eq!(wanted.wait_for_bytes().map(|bytes| bytes.to_vec()), result);
        }
    }
}
