//! A packet to be sent: its length, and a way to write its bytes.

/// Packet of an upper layer that is kept until the peer has acknowledged it. It may be a buffer, or a description from
/// which the bytes are fetched each time they are sent, such as a DDP header and a range of registered memory.
pub trait Packet {
    /// Returns the length of the packet, in bytes. It never changes.
    fn packet_bytes(&self) -> usize;

    /// Writes the packet into a place of exactly its length. Called once for each transmission.
    fn write_packet(&self, into: &mut [u8]);
}

impl Packet for Vec<u8> {
    fn packet_bytes(&self) -> usize {
        self.len()
    }

    fn write_packet(&self, into: &mut [u8]) {
        into.copy_from_slice(self);
    }
}

impl Packet for Box<[u8]> {
    fn packet_bytes(&self) -> usize {
        self.len()
    }

    fn write_packet(&self, into: &mut [u8]) {
        into.copy_from_slice(self);
    }
}
