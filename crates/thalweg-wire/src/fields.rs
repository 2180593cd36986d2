//! Little-endian numbers at fixed places in 64 bytes: the fields of a header and of a frame's head.

/// Returns the number at `offset`, which must leave room for it.
pub(crate) fn u16_at(bytes: &[u8; 64], offset: usize) -> u16 {
    bytes[offset..].first_chunk().map_or(0, |field| u16::from_le_bytes(*field))
}

/// Returns the number at `offset`, which must leave room for it.
pub(crate) fn u32_at(bytes: &[u8; 64], offset: usize) -> u32 {
    bytes[offset..].first_chunk().map_or(0, |field| u32::from_le_bytes(*field))
}

/// Returns the number at `offset`, which must leave room for it.
pub(crate) fn u64_at(bytes: &[u8; 64], offset: usize) -> u64 {
    bytes[offset..].first_chunk().map_or(0, |field| u64::from_le_bytes(*field))
}
