//! Buffers of a peer's messages over RDMA: whatever they hold, the receiver keeps no more than it was sent, and never sends
//! more buffers than the peer can have receives for.

use thalweg_rdma_link::{BUFFER_BYTES, Channel, RECEIVES};
use thalweg_wire::Message;

/// Takes the input for buffers of the peer, each with a length of two bytes in front, and sends in between.
pub fn run(mut input: &[u8]) {
    let mut channel = Channel::default();
    let (mut sent, mut allowed) = (0u64, u64::from(RECEIVES));
    let mut buffer = [0; BUFFER_BYTES];
    while let Some((length, rest)) = input.split_first_chunk::<2>() {
        let length = usize::from(u16::from_le_bytes(*length)) % (BUFFER_BYTES + 1);
        let (received, rest) = rest.split_at(length.min(rest.len()));
        input = rest;
        if channel.take_buffer(received).is_err() {
            return;
        }
        allowed = allowed.max(sent + u64::from(RECEIVES));
        while let Ok(Some((message, text))) = channel.next_message() {
            assert!(text.len() <= message.body_bytes());
            channel.queue_message(&Message::Pause);
        }
        while let Some(bytes) = channel.fill_next_buffer(&mut buffer) {
            assert!(bytes <= BUFFER_BYTES);
            sent += 1;
            assert!(sent <= allowed, "more buffers than the peer can have receives for");
        }
    }
}
