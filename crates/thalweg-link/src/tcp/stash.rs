//! Bytes that came after a payload, in the same `readv`.

use thalweg_wire::MESSAGE_LEN;

/// Room for messages after a payload, in bytes.
const STASH_BYTES: usize = 512;

/// Bytes that were received and not processed: `bytes[from..to]`.
#[derive(Debug)]
pub(super) struct Stash {
    bytes: Vec<u8>,
    from: usize,
    to: usize,
}

impl Default for Stash {
    fn default() -> Self {
        Self { bytes: vec![0; STASH_BYTES], from: 0, to: 0 }
    }
}

impl Stash {
    /// Returns the room in which more can be received. The remaining bytes, part of a message, move to the front.
    pub(super) fn free_space(&mut self) -> &mut [u8] {
        self.bytes.copy_within(self.from..self.to, 0);
        self.to -= self.from;
        self.from = 0;
        &mut self.bytes[self.to..]
    }

    /// Records that `bytes` were received into the room.
    pub(super) fn record_received(&mut self, bytes: usize) {
        self.to += bytes;
    }

    pub(super) fn next_message_cell(&mut self) -> Option<[u8; MESSAGE_LEN]> {
        let cell = *self.bytes[self.from..self.to].first_chunk()?;
        self.from += MESSAGE_LEN;
        Some(cell)
    }

    /// Takes at most `most` bytes.
    pub(super) fn take_bytes(&mut self, most: usize) -> &[u8] {
        let from = self.from;
        self.from = self.to.min(from + most);
        &self.bytes[from..self.from]
    }

    pub(super) fn is_empty(&self) -> bool {
        self.from == self.to
    }
}
