//! The instruments, from outside.

#[cfg(feature = "congestion-controls")]
mod congestion;
