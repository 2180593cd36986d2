//! Any 64 bytes are a fragment header or are refused, and a header that was read can be written again in the same bytes.

use thalweg_wire::{FragmentHeader, HEADER_LEN, HEADER_MAGIC, HEADER_VERSION, crc32c};

/// Tries one input.
pub fn run(bytes: &[u8]) {
    let _ = FragmentHeader::decode(bytes);
    // A fuzzer does not guess checksums: behind a valid one the fields themselves are reached.
    let Some(mut bytes) = bytes.first_chunk::<HEADER_LEN>().copied() else { return };
    bytes[0..4].copy_from_slice(&HEADER_MAGIC.to_le_bytes());
    bytes[4] = HEADER_VERSION;
    bytes[5] = 8;
    let crc = crc32c(&bytes[..60]);
    bytes[60..].copy_from_slice(&crc.to_le_bytes());
    if let Ok(header) = FragmentHeader::decode(&bytes) {
        assert!(u64::from(header.offset) + u64::from(header.piece_length) <= u64::from(header.total_length));
        assert_eq!(header.encode(), bytes);
        let _ = (header.status.flag_names(), header.payload_type.type_name(), header.source.to_string());
    }
}
