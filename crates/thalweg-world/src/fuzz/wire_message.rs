//! Any 64 bytes are a control message or are refused, and a message that was read can be written again in the same bytes.

use thalweg_wire::{MESSAGE_LEN, MESSAGE_MAGIC, Message, PROTOCOL_VERSION, crc32c};

/// Tries one input.
pub fn run(bytes: &[u8]) {
    let Some(mut cell) = bytes.first_chunk::<MESSAGE_LEN>().copied() else { return };
    let _ = Message::decode(&cell);
    // A fuzzer does not guess checksums: behind a valid one the fields themselves are reached.
    cell[0..4].copy_from_slice(&MESSAGE_MAGIC.to_le_bytes());
    cell[4] = PROTOCOL_VERSION;
    let crc = crc32c(&cell[..60]);
    cell[60..].copy_from_slice(&crc.to_le_bytes());
    if let Ok(message) = Message::decode(&cell) {
        let _ = message.body_bytes();
        assert_eq!(Message::decode(&message.encode()), Ok(message));
    }
}
