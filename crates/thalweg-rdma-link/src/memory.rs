//! Arenas that are registered with the RNIC.

use crate::connection::rnic_error;
use std::sync::Arc;
use thalweg_arena::{Arena, Registration, SharedMemory};
use thalweg_link::LinkError;
use thalweg_rdma::{Access, MemoryRange, MemoryRegion, ProtectionDomain};

/// Use of an endpoint's arenas.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum MemoryUse {
    /// Peers read them: the slots of a source.
    ReadByPeers,
    /// Reads of this endpoint write to them: the blocks of a builder.
    SinkOfReads,
}

/// Registered arenas of an endpoint. The address of a byte is its offset in the arena.
#[derive(Debug)]
pub(crate) struct RegisteredArenas {
    domain: ProtectionDomain,
    purpose: MemoryUse,
    arenas: Vec<RegisteredArena>,
}

#[derive(Debug)]
struct RegisteredArena {
    region: MemoryRegion,
    arena: Arc<Arena>,
    _noted: Registration,
}

impl RegisteredArenas {
    pub(crate) fn new(domain: ProtectionDomain, purpose: MemoryUse) -> Self {
        Self { domain, purpose, arenas: Vec::new() }
    }

    pub(crate) fn protection_domain(&self) -> &ProtectionDomain {
        &self.domain
    }

    /// Returns the STag of an arena, which is registered by the first call.
    ///
    /// # Errors
    /// The RNIC does not accept the memory.
    pub(crate) fn stag_of_arena(&mut self, arena: &Arc<Arena>) -> Result<u32, LinkError> {
        Ok(self.region_of_arena(arena)?.stag())
    }

    /// Returns the region of an arena, which is registered by the first call.
    ///
    /// # Errors
    /// As [`stag_of_arena`](Self::stag_of_arena).
    pub(crate) fn region_of_arena(&mut self, arena: &Arc<Arena>) -> Result<&MemoryRegion, LinkError> {
        let known = self.arenas.iter().position(|known| Arc::ptr_eq(&known.arena, arena));
        let place = known.map_or_else(|| self.register_arena(arena), Ok)?;
        Ok(&self.arenas[place].region)
    }

    fn register_arena(&mut self, arena: &Arc<Arena>) -> Result<usize, LinkError> {
        let access = match self.purpose {
            MemoryUse::ReadByPeers => Access::REMOTE_READ,
            MemoryUse::SinkOfReads => Access::LOCAL_WRITE,
        };
        // SAFETY: a region that peers read is not written. One that is a sink of reads has no right of a peer, and its STag is
        // used by `RdmaBuilder` only, for reads into a `Span` that the fetch owns until all its reads have completed or the
        // queue pair is destroyed.
        let memory = unsafe { SharedMemory::of_arena(arena) };
        let range = MemoryRange { offset: 0, length: memory.size_bytes() as u64, base: 0 };
        let region = self.domain.register_mapped(Arc::new(memory), range, access);
        let region = region.map_err(rnic_error("registering memory with the RNIC"))?;
        let noted = arena.record_registration("an RNIC");
        self.arenas.push(RegisteredArena { region, arena: Arc::clone(arena), _noted: noted });
        Ok(self.arenas.len() - 1)
    }
}
