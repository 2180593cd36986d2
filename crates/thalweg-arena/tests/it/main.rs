//! Tests of shared memory between two mappings, as two processes have it.

#[cfg(not(loom))]
mod ring;
