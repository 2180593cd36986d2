//! Reads past the page cache with io_uring, several under way, and sends from the same memory.

use crate::memory::{Slot, ring_with_slots};
use crate::progress::retry_while_moving;
use crate::send::send_all;
use crate::stored::DIRECT_ALIGNMENT_BYTES;
use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, socket_timeout};
use std::io;
use std::ops::Range;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;
use thalweg_sys::uring::{Done, File, Key, Operation, Ring};

/// Slots that the disk fills and the network empties, in turn. Slots that are in none of the lists are in the ring.
#[derive(Debug)]
pub(crate) struct ReadRing {
    ring: Ring<Slot>,
    free: [Option<Slot>; SLOT_COUNT],
    /// Slots filled by the disk and not sent yet, with the number of bytes read.
    filled: [Option<(Slot, usize)>; SLOT_COUNT],
    /// True for slots that are being sent from, or that the network still holds.
    sending: [bool; SLOT_COUNT],
    zero_copy: ZeroCopy,
}

/// Knowledge of whether the network takes bytes from where they are (`SEND_ZC`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ZeroCopy {
    /// A few bytes are to be sent, to see whether they are copied all the same.
    Untested,
    /// These bytes are on their way, and until they have arrived others are copied: an acknowledgement may be late.
    BeingTested,
    /// Bytes are not copied.
    Works,
    /// The kernel copies all the same, or refuses.
    Copies,
}

impl ReadRing {
    pub(crate) fn new() -> io::Result<Self> {
        let (ring, free) = ring_with_slots(SLOT_BYTES)?;
        Ok(Self {
            ring,
            free,
            filled: [const { None }; SLOT_COUNT],
            sending: [false; SLOT_COUNT],
            zero_copy: ZeroCopy::Untested,
        })
    }

    /// Sends a range of a file that was opened with `O_DIRECT`. After an error, the operations under way are unknown:
    /// the ring cannot be used any more.
    pub(crate) fn send_range(
        &mut self,
        file: &Arc<OwnedFd>,
        range: Range<u64>,
        to: BorrowedFd<'_>,
        more: bool,
    ) -> io::Result<()> {
        let start = range.start - range.start % DIRECT_ALIGNMENT_BYTES;
        let pieces = (range.end - start).div_ceil(SLOT_BYTES as u64);
        let socket = match self.zero_copy {
            ZeroCopy::Copies => File::None,
            // An operation keeps its file open; this one is only borrowed.
            _ => File::Open(Arc::new(to.try_clone_to_owned()?)),
        };
        // Number of pieces requested from the disk.
        let mut asked = 0;
        for piece in 0..pieces {
            let (slot, read) = loop {
                while asked < pieces.min(piece + SLOT_COUNT as u64)
                    && let Some(slot) = self.free[asked as usize % SLOT_COUNT].take()
                {
                    let file = File::Open(Arc::clone(file));
                    self.ring.push_operation(Operation::read_range(
                        file,
                        slot,
                        0..SLOT_BYTES,
                        start + asked * SLOT_BYTES as u64,
                    ));
                    asked += 1;
                }
                self.ring.submit_queued();
                if let Some(done) = self.ring.next_finished() {
                    self.record_completion(done)?;
                } else if let Some(filled) = self.filled[piece as usize % SLOT_COUNT].take() {
                    break filled;
                } else if asked > piece {
                    self.ring.wait_for_completion(Some(DISK_TIMEOUT))?;
                } else {
                    self.wait_for_completion(to)?;
                }
            };
            let offset = start + piece * SLOT_BYTES as u64;
            let from = usize::try_from(range.start.saturating_sub(offset)).unwrap_or(0);
            let until = usize::try_from(range.end - offset).unwrap_or(usize::MAX).min(SLOT_BYTES);
            if read < until {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            self.send_slot(slot, from..until, (to, &socket), more || piece + 1 < pieces)?;
        }
        Ok(())
    }

    /// Passes the bytes in a slot to the network, which may hold the slot for some time.
    fn send_slot(
        &mut self,
        slot: Slot,
        range: Range<usize>,
        (to, socket): (BorrowedFd<'_>, &File),
        more: bool,
    ) -> io::Result<()> {
        let number = slot.slot_number() as usize;
        let zero_copy = match self.zero_copy {
            ZeroCopy::Copies | ZeroCopy::BeingTested => 0,
            ZeroCopy::Works => range.len(),
            ZeroCopy::Untested => range.len().min(ZERO_COPY_TEST_BYTES),
        };
        if zero_copy == 0 {
            let sent = send_all(to, &slot[range], more);
            self.free[number] = Some(slot);
            return sent;
        }
        // A send that waits for more bytes gives no result of the test.
        let more_at_once = more && self.zero_copy == ZeroCopy::Works;
        let first = range.start..range.start + zero_copy;
        let key = self.ring.push_operation(Operation::send_zero_copy(socket.clone(), slot, first, more_at_once));
        self.sending[number] = true;
        self.ring.submit_queued();
        if self.zero_copy == ZeroCopy::Untested {
            self.zero_copy = ZeroCopy::BeingTested;
        }
        let sent = match self.wait_for_send(key, number, to)? {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(sent) => sent as usize,
            // A socket that encrypts.
            Err(Errno::OPNOTSUPP) => 0,
            Err(error) => return Err(error.into()),
        };
        let rest = range.start + sent..range.end;
        match (self.ring.send_result(key), &self.free[number]) {
            (Some((_, slot)), _) | (None, Some(slot)) => send_all(to, &slot[rest], more),
            (None, None) => Err(io::ErrorKind::Other.into()),
        }
    }

    /// Waits for the result of a send. The network may hold the slot afterwards.
    fn wait_for_send(&mut self, key: Key, number: usize, to: BorrowedFd<'_>) -> io::Result<Result<u32, Errno>> {
        loop {
            match self.ring.next_finished() {
                Some(done) => {
                    let result = done.result;
                    if self.record_completion(done)? == Some(number) {
                        return Ok(result);
                    }
                }
                None => match self.ring.send_result(key) {
                    Some((result, _)) => return Ok(result),
                    None => self.wait_for_completion(to)?,
                },
            }
        }
    }

    /// Takes the result of a completed operation. Returns the number of the slot if the network held it.
    fn record_completion(&mut self, Done { memory: slot, result, copied }: Done<Slot>) -> io::Result<Option<usize>> {
        let number = slot.slot_number() as usize;
        if !std::mem::take(&mut self.sending[number]) {
            self.filled[number] = Some((slot, result? as usize));
            return Ok(None);
        }
        self.free[number] = Some(slot);
        // Over loopback bytes are always copied, and a megabyte of them was seen to stall receivers with little room
        // (`TcpExtPruneCalled`).
        let copied = copied || result.is_err() || self.zero_copy == ZeroCopy::Copies;
        self.zero_copy = if copied { ZeroCopy::Copies } else { ZeroCopy::Works };
        Ok(Some(number))
    }

    /// Waits for an operation to complete, as long as the peer of a socket takes something.
    fn wait_for_completion(&mut self, to: BorrowedFd<'_>) -> io::Result<()> {
        // io_uring ignores the socket's time-out.
        let timeout = socket_timeout(to, Timeout::Send)?;
        retry_while_moving(to, || match self.ring.wait_for_completion(timeout) {
            Err(error) if error.kind() == io::ErrorKind::TimedOut => Err(io::ErrorKind::WouldBlock.into()),
            waited => waited,
        })
    }
}

/// Number of slots under way at once.
const SLOT_COUNT: usize = 4;
/// Length of a slot, in bytes.
const SLOT_BYTES: usize = 1 << 20;
/// Longest time that a disk may take to read.
const DISK_TIMEOUT: Duration = Duration::from_secs(30);
/// Bytes that are sent to find out whether they are copied.
const ZERO_COPY_TEST_BYTES: usize = 4096;
