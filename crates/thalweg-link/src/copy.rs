//! Copies, counted where they are made.

/// Copies `from` into `to`, which has the same length, and returns the number of bytes, for the counter.
pub(crate) fn copy_counted(to: &mut [u8], from: &[u8]) -> u64 {
    to.copy_from_slice(from);
    from.len() as u64
}
