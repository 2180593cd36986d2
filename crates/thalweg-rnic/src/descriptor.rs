//! Descriptors: work requests and completions as they lie in rings of 64-byte cells.
//!
//! ```text
//! send request, first cell                           receive, first cell
//!    0  id u64                                          0  id u64
//!    8  operation u8, flags u8, elements u8, 0          8  elements u32, 0 u32
//!   12  bytes of own data u32                          16  3 elements
//!   16  address at the peer, or of a window u64      further cells: 4 elements each
//!   24  STag at the peer, or region of a window u32
//!   28  STag to invalidate, or new STag of a window  element
//!   32  immediate, summand or comparand u64             0  address u64
//!   40  new value, or bytes of a window u64             8  bytes u32
//!   48  first element                                  12  STag u32
//! further cells: 4 elements each, then own data
//! ```
//!
//! A receive takes as many cells as one with the most elements of its queue. Numbers are in the machine's byte order: both
//! sides run on it. Every byte may be anything: a descriptor is copied out of the ring, then decoded.

use crate::attributes::{CompletedOperation, Fault, FaultKind, Operation, QueueLengths, Side, Status};
use std::ops::Deref;
use thalweg_arena::{CELL_BYTES, RingError, RingReceiver};

/// Scatter-gather elements of a work request.
pub const MAX_SGES: usize = 16;

/// Bytes of a work request's own data.
pub const MAX_INLINE_BYTES: usize = 256;

/// Elements in a cell.
const SGES_PER_CELL: usize = CELL_BYTES / 16;

/// Elements in the first cell of a receive.
const FIRST_RECEIVE_SGES: usize = 3;

/// Content of a cell.
pub type Cell = [u8; CELL_BYTES];

bitflags::bitflags! {
    /// Flags of a send request (`ibv_send_flags`, same numbers).
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
    pub struct SendFlags: u8 {
        /// Begins after all reads and atomics posted before have completed.
        const FENCE = 1;
        /// Has a completion also if it succeeds.
        const SIGNALED = 2;
        /// Asks for an event at the peer.
        const SOLICITED = 4;
        /// Has its data in the descriptor: the program may reuse its memory at once.
        const INLINE = 8;
    }
}

/// A scatter-gather element (`ibv_sge`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Sge {
    /// Address, as registered.
    pub address: u64,
    /// Length in bytes.
    pub bytes: u32,
    /// STag (`lkey`).
    pub stag: u32,
}

/// Elements that a list has without memory of its own.
const FEW_SGES: usize = 2;

/// Up to [`MAX_SGES`] elements.
#[derive(Debug, Clone)]
pub struct SgeList(Elements);

#[derive(Debug, Clone)]
enum Elements {
    Few(usize, [Sge; FEW_SGES]),
    Many(Vec<Sge>),
}

impl SgeList {
    /// Makes a list; `None` if there are too many.
    pub fn new(elements: &[Sge]) -> Option<Self> {
        if elements.len() > MAX_SGES {
            return None;
        }
        let mut list = Self::with_length(elements.len());
        list.elements_mut().copy_from_slice(elements);
        Some(list)
    }

    /// Makes a list of one.
    pub fn from_element(element: Sge) -> Self {
        Self(Elements::Few(1, [element, Sge::default()]))
    }

    /// Makes a list of elements that are to be set.
    fn with_length(count: usize) -> Self {
        Self(if count <= FEW_SGES {
            Elements::Few(count, [Sge::default(); FEW_SGES])
        } else {
            Elements::Many(vec![Sge::default(); count])
        })
    }

    fn elements_mut(&mut self) -> &mut [Sge] {
        match &mut self.0 {
            Elements::Few(count, few) => &mut few[..*count],
            Elements::Many(many) => many,
        }
    }

    /// Returns the length in bytes of all elements.
    pub fn total_bytes(&self) -> u64 {
        self.iter().map(|element| u64::from(element.bytes)).sum()
    }
}

impl Default for SgeList {
    fn default() -> Self {
        Self::with_length(0)
    }
}

impl Deref for SgeList {
    type Target = [Sge];

    #[inline]
    fn deref(&self) -> &[Sge] {
        match &self.0 {
            Elements::Few(count, few) => &few[..*count],
            Elements::Many(many) => many,
        }
    }
}

impl PartialEq for SgeList {
    fn eq(&self, other: &Self) -> bool {
        **self == **other
    }
}

impl Eq for SgeList {}

/// A send request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SendDescriptor {
    /// Number of the program's own choice (`wr_id`).
    pub id: u64,
    /// Operation of the request.
    pub operation: Operation,
    /// Flags of the request.
    pub flags: SendFlags,
    /// Address at the peer; of a window that is bound, its first byte.
    pub remote_address: u64,
    /// STag at the peer; of a window that is bound, that of its region.
    pub remote_stag: u32,
    /// STag to invalidate; of a window that is bound, its new one.
    pub stag: u32,
    /// Immediate; summand or comparand of an atomic; rights of a window.
    pub immediate: u64,
    /// New value of an atomic; bytes of a window.
    pub swap: u64,
    /// Memory of this side.
    pub sges: SgeList,
    /// Own data, if inline.
    pub inline: Vec<u8>,
}

impl SendDescriptor {
    /// Returns the length of the message in bytes.
    pub fn total_bytes(&self) -> u64 {
        if self.flags.contains(SendFlags::INLINE) { self.inline.len() as u64 } else { self.sges.total_bytes() }
    }

    /// Gives the cells of the descriptor to `push`, in order, until it fails.
    ///
    /// # Errors
    /// That of `push`.
    pub fn encode_cells<E>(&self, mut push: impl FnMut(&Cell) -> Result<(), E>) -> Result<(), E> {
        let mut cell = [0; CELL_BYTES];
        cell[..8].copy_from_slice(&self.id.to_ne_bytes());
        cell[8..11].copy_from_slice(&[self.operation as u8, self.flags.bits(), self.sges.len() as u8]);
        cell[12..16].copy_from_slice(&(self.inline.len() as u32).to_ne_bytes());
        cell[16..24].copy_from_slice(&self.remote_address.to_ne_bytes());
        cell[24..28].copy_from_slice(&self.remote_stag.to_ne_bytes());
        cell[28..32].copy_from_slice(&self.stag.to_ne_bytes());
        cell[32..40].copy_from_slice(&self.immediate.to_ne_bytes());
        cell[40..48].copy_from_slice(&self.swap.to_ne_bytes());
        let (first, rest) = self.sges.split_at(self.sges.len().min(1));
        encode_sges(first, &mut cell[48..]);
        push(&cell)?;
        for elements in rest.chunks(SGES_PER_CELL) {
            let mut cell = [0; CELL_BYTES];
            encode_sges(elements, &mut cell);
            push(&cell)?;
        }
        for bytes in self.inline.chunks(CELL_BYTES) {
            let mut cell = [0; CELL_BYTES];
            cell[..bytes.len()].copy_from_slice(bytes);
            push(&cell)?;
        }
        Ok(())
    }

    /// Returns the number of cells.
    pub fn cell_count(&self) -> u32 {
        send_cells(self.sges.len(), self.inline.len())
    }
}

/// Reason why a descriptor could not be taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TakeError {
    /// The ring's index is impossible.
    Ring(RingError),
    /// The descriptor of this id is malformed.
    Malformed(u64, Fault),
}

impl TakeError {
    /// Returns the fault.
    pub fn into_fault(self) -> Fault {
        match self {
            Self::Ring(RingError::Corrupt { theirs, .. }) => Fault::new(FaultKind::Ring, 0, u64::from(theirs), 0),
            Self::Malformed(_, fault) => fault,
        }
    }
}

impl From<RingError> for TakeError {
    fn from(error: RingError) -> Self {
        Self::Ring(error)
    }
}

/// Takes the next send request out of its ring; `None` if there is none.
///
/// # Errors
/// The program has damaged the ring, or the descriptor exceeds `lengths`.
pub fn take_send(ring: &mut RingReceiver, lengths: &QueueLengths) -> Result<Option<SendDescriptor>, TakeError> {
    let Some(cell) = ring.pop()? else { return Ok(None) };
    let id = word_at(&cell, 0);
    let malformed =
        |value: u64, limit: u64| TakeError::Malformed(id, Fault::new(FaultKind::Descriptor, 0, value, limit));
    let last = Operation::ALL.len() as u64 - 1;
    let operation = Operation::from_number(cell[8]).ok_or_else(|| malformed(u64::from(cell[8]), last))?;
    let flags = SendFlags::from_bits(cell[9])
        .ok_or_else(|| malformed(u64::from(cell[9]), u64::from(SendFlags::all().bits())))?;
    let (elements, inline_bytes) = (u32::from(cell[10]), half_word_at(&cell, 12));
    if elements > lengths.send_sges {
        return Err(malformed(u64::from(elements), u64::from(lengths.send_sges)));
    }
    if inline_bytes > lengths.inline_bytes {
        return Err(malformed(u64::from(inline_bytes), u64::from(lengths.inline_bytes)));
    }
    let mut sges = SgeList::with_length(elements as usize);
    let (first, rest) = sges.elements_mut().split_at_mut(elements.min(1) as usize);
    decode_sges(&cell[48..], first);
    for elements in rest.chunks_mut(SGES_PER_CELL) {
        let cell = ring.pop()?.ok_or_else(|| malformed(0, 1))?;
        decode_sges(&cell, elements);
    }
    let mut inline = Vec::new();
    while inline.len() < inline_bytes as usize {
        let cell = ring.pop()?.ok_or_else(|| malformed(0, 1))?;
        inline.extend_from_slice(&cell[..CELL_BYTES.min(inline_bytes as usize - inline.len())]);
    }
    Ok(Some(SendDescriptor {
        id,
        operation,
        flags,
        remote_address: word_at(&cell, 16),
        remote_stag: half_word_at(&cell, 24),
        stag: half_word_at(&cell, 28),
        immediate: word_at(&cell, 32),
        swap: word_at(&cell, 40),
        sges,
        inline,
    }))
}

/// A receive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReceiveDescriptor {
    /// Number of the program's own choice (`wr_id`).
    pub id: u64,
    /// Memory for the message.
    pub sges: SgeList,
}

impl ReceiveDescriptor {
    /// Gives the cells of the descriptor to `push`, as many as its queue's elements, at most `max_sges`, take.
    ///
    /// # Errors
    /// That of `push`.
    pub fn encode_cells<E>(&self, max_sges: u32, mut push: impl FnMut(&Cell) -> Result<(), E>) -> Result<(), E> {
        let mut cell = [0; CELL_BYTES];
        cell[..8].copy_from_slice(&self.id.to_ne_bytes());
        cell[8..12].copy_from_slice(&(self.sges.len() as u32).to_ne_bytes());
        let (first, rest) = self.sges.split_at(self.sges.len().min(FIRST_RECEIVE_SGES));
        encode_sges(first, &mut cell[16..]);
        push(&cell)?;
        let mut rest = rest.chunks(SGES_PER_CELL);
        for _ in 1..receive_cells(max_sges) {
            let mut cell = [0; CELL_BYTES];
            encode_sges(rest.next().unwrap_or_default(), &mut cell);
            push(&cell)?;
        }
        Ok(())
    }
}

/// Takes the next receive out of its ring; `None` if there is none.
///
/// # Errors
/// The program has damaged the ring, or the descriptor has more than `max_sges` elements.
pub fn take_receive(ring: &mut RingReceiver, max_sges: u32) -> Result<Option<ReceiveDescriptor>, TakeError> {
    let Some(cell) = ring.pop()? else { return Ok(None) };
    let (id, elements) = (word_at(&cell, 0), half_word_at(&cell, 8));
    let malformed = |value: u32, limit: u32| {
        TakeError::Malformed(id, Fault::new(FaultKind::Descriptor, 0, u64::from(value), u64::from(limit)))
    };
    if elements > max_sges {
        return Err(malformed(elements, max_sges));
    }
    let mut sges = SgeList::with_length(elements as usize);
    let (first, mut rest) = sges.elements_mut().split_at_mut((elements as usize).min(FIRST_RECEIVE_SGES));
    decode_sges(&cell[16..], first);
    for _ in 1..receive_cells(max_sges) {
        let cell = ring.pop()?.ok_or_else(|| malformed(0, 1))?;
        let elements = rest.len().min(SGES_PER_CELL);
        let (elements, after) = std::mem::take(&mut rest).split_at_mut(elements);
        decode_sges(&cell, elements);
        rest = after;
    }
    Ok(Some(ReceiveDescriptor { id, sges }))
}

/// Returns the number of cells of a send request with as many elements and bytes of own data.
fn send_cells(elements: usize, inline_bytes: usize) -> u32 {
    (1 + elements.saturating_sub(1).div_ceil(SGES_PER_CELL) + inline_bytes.div_ceil(CELL_BYTES)) as u32
}

/// Returns the number of cells of each receive of a queue whose receives have up to `max_sges` elements.
pub fn receive_cells(max_sges: u32) -> u32 {
    1 + max_sges.saturating_sub(FIRST_RECEIVE_SGES as u32).div_ceil(SGES_PER_CELL as u32)
}

/// Returns the number of cells in the ring of a send queue.
pub fn send_ring_cells(lengths: &QueueLengths) -> u32 {
    // A request has elements or own data; one that a program encodes with both may take more cells, and waits for room.
    let longest = send_cells(lengths.send_sges as usize, 0).max(send_cells(0, lengths.inline_bytes as usize));
    (lengths.send_requests.max(1) * longest).next_power_of_two()
}

/// Returns the number of cells in the ring of a receive queue of this length.
pub fn receive_ring_cells(receives: u32, max_sges: u32) -> u32 {
    (receives.max(1) * receive_cells(max_sges)).next_power_of_two()
}

fn encode_sges(elements: &[Sge], to: &mut [u8]) {
    for (element, to) in elements.iter().zip(to.as_chunks_mut::<16>().0) {
        to[..8].copy_from_slice(&element.address.to_ne_bytes());
        to[8..12].copy_from_slice(&element.bytes.to_ne_bytes());
        to[12..].copy_from_slice(&element.stag.to_ne_bytes());
    }
}

fn decode_sges(from: &[u8], elements: &mut [Sge]) {
    for (element, from) in elements.iter_mut().zip(from.as_chunks::<16>().0) {
        *element = Sge { address: word_at(from, 0), bytes: half_word_at(from, 8), stag: half_word_at(from, 12) };
    }
}

fn word_at(bytes: &[u8], at: usize) -> u64 {
    bytes[at..].first_chunk().map_or(0, |word| u64::from_ne_bytes(*word))
}

fn half_word_at(bytes: &[u8], at: usize) -> u32 {
    bytes[at..].first_chunk().map_or(0, |word| u32::from_ne_bytes(*word))
}

/// A completion (`ibv_wc`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CompletionEntry {
    /// Number of the request (`wr_id`).
    pub id: u64,
    /// Result of the request.
    pub status: Status,
    /// Operation of the request.
    pub operation: CompletedOperation,
    /// Number of the queue pair.
    pub queue: u32,
    /// Length of the received message, of the data read, or of an atomic, in bytes.
    pub bytes: u32,
    /// Index of the request in its queue, counted from 0 modulo 2³².
    pub index: u32,
    /// Immediate of a received message.
    pub immediate: Option<u64>,
    /// STag that a received message has invalidated.
    pub invalidated: Option<u32>,
    /// Cause, if it failed.
    pub fault: Fault,
}

/// Content of a cell of a completion queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CompletionCell {
    /// A completion.
    Entry(CompletionEntry),
    /// The queue has overrun: completions after those before this cell are lost. The number of entries.
    Overrun(u32),
}

/// Flags of a completion's cell.
const WITH_IMMEDIATE: u8 = 1;
const WITH_INVALIDATE: u8 = 2;
const OVERRUN_NOTICE: u8 = 4;

impl CompletionCell {
    /// Returns the cell.
    pub fn encode_cell(&self) -> Cell {
        let mut cell = [0; CELL_BYTES];
        let entry = match self {
            Self::Overrun(entries) => {
                cell[10] = OVERRUN_NOTICE;
                cell[16..20].copy_from_slice(&entries.to_ne_bytes());
                return cell;
            }
            Self::Entry(entry) => entry,
        };
        let immediate = if entry.immediate.is_some() { WITH_IMMEDIATE } else { 0 };
        let invalidate = if entry.invalidated.is_some() { WITH_INVALIDATE } else { 0 };
        cell[..8].copy_from_slice(&entry.id.to_ne_bytes());
        cell[8..12].copy_from_slice(&[
            entry.status as u8,
            entry.operation as u8,
            immediate | invalidate,
            entry.fault.kind as u8,
        ]);
        cell[12..16].copy_from_slice(&entry.queue.to_ne_bytes());
        cell[16..20].copy_from_slice(&entry.bytes.to_ne_bytes());
        cell[20..24].copy_from_slice(&entry.index.to_ne_bytes());
        cell[24..32].copy_from_slice(&entry.immediate.unwrap_or(0).to_ne_bytes());
        cell[32..36].copy_from_slice(&entry.invalidated.unwrap_or(0).to_ne_bytes());
        cell[36] = entry.fault.side as u8;
        cell[40..48].copy_from_slice(&entry.fault.limit.to_ne_bytes());
        cell[48..56].copy_from_slice(&entry.fault.value.to_ne_bytes());
        cell[56..60].copy_from_slice(&entry.fault.stag.to_ne_bytes());
        cell
    }

    /// Decodes a cell; `None` if it is not one that an RNIC writes.
    pub fn decode_cell(cell: &Cell) -> Option<Self> {
        if cell[10] & OVERRUN_NOTICE != 0 {
            return Some(Self::Overrun(half_word_at(cell, 16)));
        }
        let fault = Fault {
            side: Side::from_number(cell[36])?,
            kind: FaultKind::from_number(cell[11])?,
            stag: half_word_at(cell, 56),
            limit: word_at(cell, 40),
            value: word_at(cell, 48),
        };
        Some(Self::Entry(CompletionEntry {
            id: word_at(cell, 0),
            status: Status::from_number(cell[8])?,
            operation: CompletedOperation::from_number(cell[9])?,
            queue: half_word_at(cell, 12),
            bytes: half_word_at(cell, 16),
            index: half_word_at(cell, 20),
            immediate: (cell[10] & WITH_IMMEDIATE != 0).then(|| word_at(cell, 24)),
            invalidated: (cell[10] & WITH_INVALIDATE != 0).then(|| half_word_at(cell, 32)),
            fault,
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use thalweg_arena::Ring;

    fn sge() -> impl Strategy<Value = Sge> {
        any::<(u64, u32, u32)>().prop_map(|(address, bytes, stag)| Sge { address, bytes, stag })
    }

    fn lengths() -> QueueLengths {
        QueueLengths { send_requests: 4, receives: 4, send_sges: 16, receive_sges: 16, inline_bytes: 256 }
    }

    proptest! {
        #[test]
        fn requests_come_out_of_the_ring_as_they_went_in(
            (numbers, operation) in (any::<[u64; 4]>(), 0..10u8),
            sges in proptest::collection::vec(sge(), 0..=16),
            inline in proptest::collection::vec(any::<u8>(), 0..=256),
        ) {
            let descriptor = SendDescriptor {
                id: numbers[0],
                operation: Operation::from_number(operation).unwrap(),
                flags: SendFlags::SIGNALED,
                remote_address: numbers[1],
                remote_stag: numbers[2] as u32,
                stag: (numbers[2] >> 32) as u32,
                immediate: numbers[3],
                swap: !numbers[3],
                sges: SgeList::new(&sges).unwrap(),
                inline,
            };
            let (mut sender, mut receiver) = Ring::create("test", 64).unwrap().split();
            descriptor.encode_cells(|cell| sender.push(cell)).unwrap();
            let _ = sender.publish();
            prop_assert_eq!(receiver.ready_cells().unwrap(), descriptor.cell_count());
            prop_assert_eq!(take_send(&mut receiver, &lengths()).unwrap().unwrap(), descriptor);
            for max_sges in sges.len() as u32..=16 {
                let receive = ReceiveDescriptor { id: numbers[0], sges: SgeList::new(&sges).unwrap() };
                receive.encode_cells(max_sges, |cell| sender.push(cell)).unwrap();
                let _ = sender.publish();
                prop_assert_eq!(receiver.ready_cells().unwrap(), receive_cells(max_sges));
                prop_assert_eq!(take_receive(&mut receiver, max_sges).unwrap().unwrap(), receive);
            }
        }

        #[test]
        fn any_cells_are_requests_or_are_refused(
            cells in proptest::collection::vec(any::<[[u8; 32]; 2]>(), 0..16),
            operation in 0..12u8,
        ) {
            let (mut sender, mut receiver) = Ring::create("test", 16).unwrap().split();
            let (mut other, mut receives) = Ring::create("test", 16).unwrap().split();
            for halves in cells {
                let mut cell: Cell = halves.as_flattened().try_into().unwrap();
                if cell[0] & 1 == 0 {
                    let likely = [operation, cell[9] & 15, cell[10] & 31, 0, cell[12], 0, 0, 0];
                    cell[8..16].copy_from_slice(&likely);
                }
                sender.push(&cell).unwrap();
                other.push(&cell).unwrap();
                if let Some(CompletionCell::Entry(entry)) = CompletionCell::decode_cell(&cell) {
                    prop_assert_eq!(CompletionCell::decode_cell(&CompletionCell::Entry(entry).encode_cell()), Some(CompletionCell::Entry(entry)));
                }
            }
            let _ = (sender.publish(), other.publish());
            while let Ok(Some(descriptor)) = take_send(&mut receiver, &lengths()) {
                prop_assert!(descriptor.sges.len() <= 16 && descriptor.inline.len() <= 256);
            }
            while let Ok(Some(receive)) = take_receive(&mut receives, 5) {
                prop_assert!(receive.sges.len() <= 5);
            }
        }
    }
}
