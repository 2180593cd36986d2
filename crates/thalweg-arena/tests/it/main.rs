//! The shared memory, as two processes have it.

#[cfg(not(loom))]
mod ring;
