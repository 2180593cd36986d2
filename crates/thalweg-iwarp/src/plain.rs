//! Registered memory that is plain vectors: for tests and examples, and a model of what a [`Memory`] has to check.

use crate::memory::{Access, AccessError, Memory, MemoryRange, Stag};
use crate::stream::OutgoingSegment;
use crate::work::{AtomicOperation, ReceiveBuffer};
use std::collections::{BTreeMap, VecDeque};

/// Rights of the peer.
const REMOTE_RIGHTS: [Access; 3] = [Access::RemoteRead, Access::RemoteWrite, Access::RemoteAtomic];

/// A piece of registered memory.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PlainRegion {
    /// Its bytes.
    pub bytes: Vec<u8>,
    /// Tagged offset of the first byte.
    pub base: u64,
    /// Protection domain.
    pub domain: u32,
    /// What it may be used for, beside being read by its owner.
    pub rights: Vec<Access>,
}

/// Memory and receive queue of one stream.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PlainMemory {
    /// Protection domain of the stream.
    pub domain: u32,
    /// Registered memory.
    pub regions: BTreeMap<Stag, PlainRegion>,
    /// Posted receives.
    pub receives: VecDeque<ReceiveBuffer>,
    /// Ids of the local operations that were done.
    pub local_operations: Vec<u64>,
}

impl PlainMemory {
    /// Registers memory in the stream's protection domain.
    pub fn register(&mut self, stag: Stag, base: u64, bytes: Vec<u8>, rights: &[Access]) {
        let region = PlainRegion { bytes, base, domain: self.domain, rights: rights.to_vec() };
        self.regions.insert(stag, region);
    }

    /// Returns the bytes of a range, where they are registered.
    pub fn bytes(&self, range: MemoryRange) -> Option<&[u8]> {
        let region = self.regions.get(&range.stag)?;
        let from = usize::try_from(range.offset.checked_sub(region.base)?).ok()?;
        region.bytes.get(from..)?.get(..range.length as usize)
    }

    /// Returns a segment that this memory has the payload of as its bytes.
    pub fn segment_bytes(&self, segment: &OutgoingSegment<MemoryRange>) -> Vec<u8> {
        let payload = segment.places.iter().flat_map(|place| self.bytes(*place).unwrap_or_default());
        segment.head.iter().chain(payload).copied().collect()
    }

    fn find_bytes(&mut self, range: MemoryRange, access: Access) -> Result<&mut [u8], AccessError> {
        let region = self.regions.get_mut(&range.stag).ok_or(AccessError::UnknownStag)?;
        if region.domain != self.domain {
            return Err(AccessError::NotAssociated);
        }
        if access != Access::LocalRead && !region.rights.contains(&access) {
            return Err(AccessError::MissingRight);
        }
        let from = range.offset.checked_sub(region.base).and_then(|from| usize::try_from(from).ok());
        from.and_then(|from| region.bytes.get_mut(from..)?.get_mut(..range.length as usize))
            .ok_or(AccessError::OutOfBounds)
    }
}

impl Memory for PlainMemory {
    type Place = MemoryRange;

    fn locate(&mut self, range: MemoryRange, access: Access) -> Result<MemoryRange, AccessError> {
        self.find_bytes(range, access).map(|_| range)
    }

    fn check(&mut self, range: MemoryRange, access: Access) -> Result<(), AccessError> {
        self.find_bytes(range, access).map(|_| ())
    }

    fn place(&mut self, stag: Stag, offset: u64, bytes: &[u8], access: Access) -> Result<(), AccessError> {
        let length = u32::try_from(bytes.len()).map_err(|_| AccessError::OutOfBounds)?;
        self.find_bytes(MemoryRange { stag, offset, length }, access)?.copy_from_slice(bytes);
        Ok(())
    }

    fn update(&mut self, stag: Stag, offset: u64, operation: AtomicOperation) -> Result<u64, AccessError> {
        let bytes = self.find_bytes(MemoryRange { stag, offset, length: 8 }, Access::RemoteAtomic)?;
        let original = u64::from_ne_bytes(bytes.try_into().map_err(|_| AccessError::OutOfBounds)?);
        bytes.copy_from_slice(&operation.apply(original).to_ne_bytes());
        Ok(original)
    }

    fn invalidate(&mut self, stag: Stag) -> Result<(), AccessError> {
        let region = self.regions.get(&stag).ok_or(AccessError::UnknownStag)?;
        if region.domain != self.domain {
            return Err(AccessError::NotAssociated);
        }
        // A peer can give back what it was given, nothing else.
        if !region.rights.iter().any(|right| REMOTE_RIGHTS.contains(right)) {
            return Err(AccessError::MissingRight);
        }
        self.regions.remove(&stag);
        Ok(())
    }

    fn take_receive(&mut self) -> Option<ReceiveBuffer> {
        self.receives.pop_front()
    }

    fn run_local(&mut self, request: u64) -> Result<(), AccessError> {
        self.local_operations.push(request);
        Ok(())
    }
}
