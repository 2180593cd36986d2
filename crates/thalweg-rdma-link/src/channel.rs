//! Messages of a connection in buffers, with flow control; sans-IO.
//!
//! Each side posts [`RECEIVES`] receives of [`BUFFER_BYTES`] bytes before the connection is made, and each again as soon
//! as it was used. A buffer begins with the number of receives that its sender has posted on this connection so far, modulo
//! 2³². So the peer knows how many more buffers it may send. Messages follow, with their texts, as on a stream: one may be
//! cut by the end of a buffer.
//!
//! The last receive of the peer is kept for a buffer that only brings such a number. A side sends one when it has posted
//! half of its receives since it last reported them, and has nothing else to send. So the two cannot wait for each other.

use thalweg_link::LinkError;
use thalweg_wire::{MESSAGE_LEN, Message};

/// Length of a buffer in bytes.
pub const BUFFER_BYTES: usize = 4096;

/// Number of receives that each side has posted.
pub const RECEIVES: u32 = 16;

/// Length in bytes of the number that a buffer begins with.
const HEAD_BYTES: usize = size_of::<u32>();

/// Number of receives posted and not reported with which a buffer is sent that only reports them.
const REPORTED_ALONE: u32 = RECEIVES / 2;

/// Messages of a connection, both ways.
#[derive(Debug)]
pub struct Channel {
    /// Bytes to be sent, from `sent_bytes` on.
    outbox: Vec<u8>,
    sent_bytes: usize,
    /// Buffers sent so far, and receives that the peer has posted, as far as it has reported them.
    sent: u32,
    allowed: u32,
    /// Receives posted here so far, and those of them that the peer knows of.
    posted: u32,
    reported: u32,
    /// Bytes received, from `taken_bytes` on.
    inbox: Vec<u8>,
    taken_bytes: usize,
}

impl Default for Channel {
    fn default() -> Self {
        Self {
            outbox: Vec::new(),
            sent_bytes: 0,
            sent: 0,
            allowed: RECEIVES,
            posted: RECEIVES,
            reported: RECEIVES,
            inbox: Vec::new(),
            taken_bytes: 0,
        }
    }
}

impl Channel {
    /// Queues a message.
    pub fn queue_message(&mut self, message: &Message) {
        self.queue_bytes(&message.encode());
    }

    /// Queues the text that follows a message.
    pub fn queue_bytes(&mut self, bytes: &[u8]) {
        self.outbox.extend_from_slice(bytes);
    }

    /// Returns the number of bytes that wait to be sent.
    pub fn unsent_bytes(&self) -> usize {
        self.outbox.len() - self.sent_bytes
    }

    /// Fills the next buffer to send, and returns its length in bytes; `None` if there is nothing to send, or the peer has
    /// no receive for it.
    pub fn fill_next_buffer(&mut self, buffer: &mut [u8; BUFFER_BYTES]) -> Option<usize> {
        let receives_left = self.allowed.wrapping_sub(self.sent);
        let sends_messages = self.unsent_bytes() > 0 && receives_left > 1;
        let reports_alone = self.posted.wrapping_sub(self.reported) >= REPORTED_ALONE && receives_left > 0;
        if !sends_messages && !reports_alone {
            return None;
        }
        let bytes = if sends_messages { self.unsent_bytes().min(BUFFER_BYTES - HEAD_BYTES) } else { 0 };
        buffer[..HEAD_BYTES].copy_from_slice(&self.posted.to_le_bytes());
        buffer[HEAD_BYTES..HEAD_BYTES + bytes].copy_from_slice(&self.outbox[self.sent_bytes..self.sent_bytes + bytes]);
        drop_front(&mut self.outbox, &mut self.sent_bytes, bytes);
        self.sent = self.sent.wrapping_add(1);
        self.reported = self.posted;
        Some(HEAD_BYTES + bytes)
    }

    /// Takes in a buffer of the peer. Its receive is to be posted again before the next buffer is sent.
    ///
    /// # Errors
    /// The peer breaks the rules of flow control.
    pub fn take_buffer(&mut self, buffer: &[u8]) -> Result<(), LinkError> {
        let Some((head, bytes)) = buffer.split_first_chunk::<HEAD_BYTES>() else {
            let text = format!("received a buffer of {} bytes: it begins with a number of {HEAD_BYTES}", buffer.len());
            return Err(LinkError::Protocol(text));
        };
        let allowed = u32::from_le_bytes(*head);
        // No more than what was there in the beginning, and one for each buffer that it has received; and no fewer than
        // before.
        let is_possible = allowed.wrapping_sub(self.sent) <= RECEIVES && allowed.wrapping_sub(self.allowed) <= RECEIVES;
        if !is_possible {
            return Err(LinkError::Protocol(format!(
                "the peer reports {allowed} receives posted, after {} and for {} buffers sent to it; it has {RECEIVES} at a time",
                self.allowed, self.sent
            )));
        }
        self.allowed = allowed;
        self.posted = self.posted.wrapping_add(1);
        self.inbox.extend_from_slice(bytes);
        Ok(())
    }

    /// Returns the next message that was received as a whole, with the text that follows it.
    ///
    /// # Errors
    /// The peer has sent bytes that are not a message.
    pub fn next_message(&mut self) -> Result<Option<(Message, Vec<u8>)>, LinkError> {
        let Some((cell, rest)) = self.inbox[self.taken_bytes..].split_first_chunk::<MESSAGE_LEN>() else {
            return Ok(None);
        };
        let message = Message::decode(cell)?;
        let text_bytes = match message {
            Message::Hello(_) | Message::Refuse { .. } => message.body_bytes(),
            // The bytes of a grant are read by RDMA.
            _ => 0,
        };
        let Some(text) = rest.get(..text_bytes) else { return Ok(None) };
        let text = text.to_vec();
        drop_front(&mut self.inbox, &mut self.taken_bytes, MESSAGE_LEN + text_bytes);
        Ok(Some((message, text)))
    }
}

/// Drops bytes from the front of a buffer, which is emptied when all of it is dropped, or moved when half of it is.
fn drop_front(buffer: &mut Vec<u8>, front: &mut usize, bytes: usize) {
    *front += bytes;
    if *front * 2 >= buffer.len() {
        buffer.drain(..*front);
        *front = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::VecDeque;
    use thalweg_wire::{EventId, Refusal};

    /// Two sides and the buffers on their way, in order.
    #[derive(Default)]
    struct Pair {
        sides: [Channel; 2],
        ways: [VecDeque<Vec<u8>>; 2],
    }

    impl Pair {
        fn send_from(&mut self, side: usize) -> bool {
            let mut buffer = [0; BUFFER_BYTES];
            let Some(bytes) = self.sides[side].fill_next_buffer(&mut buffer) else { return false };
            self.ways[side].push_back(buffer[..bytes].to_vec());
            assert!(self.ways[side].len() <= RECEIVES as usize, "more buffers than the peer has receives");
            true
        }

        fn receive_at(&mut self, side: usize) -> bool {
            let Some(buffer) = self.ways[1 - side].pop_front() else { return false };
            self.sides[side].take_buffer(&buffer).unwrap();
            true
        }
    }

    fn numbered(number: u64) -> Message {
        Message::Paused { next: EventId(number), asked_by: 0 }
    }

    proptest! {
        #[test]
        fn all_messages_arrive_in_order_whichever_side_is_slow(
            steps in proptest::collection::vec((0..3u8, 0..2usize, 1..200u64), 0..200),
        ) {
            let mut pair = Pair::default();
            let mut queued = [0u64; 2];
            let mut received: [Vec<Message>; 2] = Default::default();
            for (step, side, count) in steps {
                match step {
                    0 => {
                        for _ in 0..count {
                            pair.sides[side].queue_message(&numbered(queued[side]));
                            queued[side] += 1;
                        }
                    }
                    1 => _ = pair.send_from(side),
                    _ => _ = pair.receive_at(side),
                }
            }
            // Then both do all that they can.
            while (0..2).any(|side| pair.send_from(side) | pair.receive_at(side)) {}
            for side in 0..2 {
                while let Some((message, text)) = pair.sides[side].next_message().unwrap() {
                    prop_assert!(text.is_empty());
                    received[side].push(message);
                }
                prop_assert_eq!(&received[side], &(0..queued[1 - side]).map(numbered).collect::<Vec<_>>());
                prop_assert_eq!(pair.sides[side].unsent_bytes(), 0);
            }
        }
    }

    #[test]
    fn a_text_comes_with_its_message_however_it_is_cut() {
        let mut pair = Pair::default();
        let text = "größer ".repeat(100);
        for number in 0..62 {
            pair.sides[0].queue_message(&numbered(number));
        }
        pair.sides[0].queue_message(&Message::Refuse { reason: Refusal::Busy, text: text.len() as u32 });
        pair.sides[0].queue_bytes(text.as_bytes());
        pair.sides[0].queue_message(&Message::Bye);
        while pair.send_from(0) {}
        assert_eq!(pair.ways[0].len(), 2);
        assert!(pair.receive_at(1));
        let messages = std::iter::from_fn(|| pair.sides[1].next_message().unwrap()).count();
        assert_eq!(messages, 62, "the text of the refusal is not complete");
        assert!(pair.receive_at(1));
        let (refusal, received) = pair.sides[1].next_message().unwrap().unwrap();
        assert!(matches!(refusal, Message::Refuse { reason: Refusal::Busy, .. }) && received == text.as_bytes());
        assert_eq!(pair.sides[1].next_message().unwrap(), Some((Message::Bye, Vec::new())));
    }

    #[test]
    fn a_peer_that_reports_impossible_receives_is_named() {
        for allowed in [RECEIVES + 1, RECEIVES - 1, 0, u32::MAX] {
            let error = Channel::default().take_buffer(&allowed.to_le_bytes()).unwrap_err();
            assert!(error.is_violation() && error.to_string().contains("receives posted"), "{error}");
        }
        for short in 0..HEAD_BYTES {
            let error = Channel::default().take_buffer(&[0; HEAD_BYTES][..short]).unwrap_err();
            assert!(error.to_string().contains(&format!("a buffer of {short} bytes")), "{error}");
        }
    }
}
