//! A run of records from a stranger is walked to its end or to the first error, always forwards and inside the bytes.

use thalweg_wire::{HEADER_LEN, HEADER_MAGIC, HEADER_VERSION, RECORD_ALIGN, Records, crc32c};

/// Tries one input.
pub fn run(bytes: &[u8]) {
    let mut bytes = bytes.to_vec();
    // Every aligned place whose first byte is odd gets a valid frame around its fields: the walk goes on behind it.
    for at in (0..bytes.len()).step_by(RECORD_ALIGN) {
        let Some(header) = bytes.get_mut(at..at + HEADER_LEN) else { break };
        if header[0] & 1 == 1 {
            header[0..4].copy_from_slice(&HEADER_MAGIC.to_le_bytes());
            header[4] = HEADER_VERSION;
            header[5] = 8;
            let crc = crc32c(&header[..60]);
            header[60..64].copy_from_slice(&crc.to_le_bytes());
        }
    }
    let mut behind = 0;
    for record in Records::new(&bytes[..]) {
        let Ok((at, header, payload)) = record else { break };
        assert!(at >= behind && at % RECORD_ALIGN == 0);
        assert_eq!(payload.len(), header.piece_length as usize);
        behind = at + HEADER_LEN + payload.len();
        assert!(behind <= bytes.len());
    }
}
