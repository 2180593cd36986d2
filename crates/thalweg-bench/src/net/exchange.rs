//! Messages of one size, one at a time, between two ends.

use crate::BenchError;
use std::ops::Sub;

/// Meaning of the first byte of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Phase {
    /// An ordinary message.
    Ordinary = 0,
    /// Start of the measurement: read the counters, then answer.
    Mark = 1,
    /// Last message.
    End = 2,
}

impl Phase {
    pub(crate) const ALL: [Self; 3] = [Self::Ordinary, Self::Mark, Self::End];

    /// Decodes a byte of the peer's: any other value is ordinary.
    #[inline]
    pub(crate) fn from_byte(byte: u8) -> Self {
        match byte {
            1 => Self::Mark,
            2 => Self::End,
            _ => Self::Ordinary,
        }
    }
}

/// Counters of one end since its beginning.
#[derive(Debug, Clone, Copy, Default, PartialEq, serde::Serialize, serde::Deserialize)]
pub(crate) struct Tally {
    /// Number of messages (over udp: datagrams) sent.
    pub(crate) sent: u64,
    /// Number of messages (over udp: datagrams) received.
    pub(crate) received: u64,
    /// Number of payload bytes received.
    pub(crate) received_bytes: u64,
    /// Number of payload bytes that this end, or the kernel for it, copied.
    pub(crate) copied: u64,
    /// Number of system calls made.
    pub(crate) calls: u64,
}

impl Sub for Tally {
    type Output = Self;

    fn sub(self, before: Self) -> Self {
        Self {
            sent: self.sent.saturating_sub(before.sent),
            received: self.received.saturating_sub(before.received),
            received_bytes: self.received_bytes.saturating_sub(before.received_bytes),
            copied: self.copied.saturating_sub(before.copied),
            calls: self.calls.saturating_sub(before.calls),
        }
    }
}

/// One end of a conversation.
pub(crate) trait Exchange {
    /// Sends one message; it may be held back until the next receive or [flush](Self::flush_pending).
    fn send_message(&mut self, phase: Phase) -> Result<(), BenchError>;

    /// Sends the messages that were held back.
    fn flush_pending(&mut self) -> Result<(), BenchError> {
        Ok(())
    }

    /// Waits for the next message.
    fn receive_message(&mut self) -> Result<Phase, BenchError>;

    /// Returns whether [`receive_message`](Self::receive_message) would return a message now.
    fn has_pending_message(&mut self) -> Result<bool, BenchError>;

    /// Sets the number of the next message, if the link may lose messages.
    fn set_next_number(&mut self, _number: u64) {}

    /// Returns the number of the last message received, if it has one.
    fn last_number_received(&self) -> Option<u64> {
        None
    }

    /// Blocks until the other end has received the last messages.
    fn wait_for_delivery(&mut self) -> Result<(), BenchError> {
        Ok(())
    }

    /// Returns the counters.
    fn counters(&self) -> Tally;
}

/// Bytes of the messages, one for each phase, to send and to compare with. After the first byte comes a pattern with a
/// period of 251, so that it differs on every page.
#[derive(Debug, Clone)]
pub(crate) struct Messages {
    size: usize,
    bytes: Vec<u8>,
}

impl Messages {
    pub(crate) fn new(size: usize) -> Self {
        let mut bytes = Vec::with_capacity(3 * size);
        for phase in Phase::ALL {
            bytes.push(phase as u8);
            bytes.extend((1..size).map(pattern_byte));
        }
        Self { size, bytes }
    }

    /// Returns the message of a phase.
    #[inline]
    pub(crate) fn message_bytes(&self, phase: Phase) -> &[u8] {
        &self.bytes[self.message_offset(phase)..][..self.size]
    }

    /// Returns the offset of a phase's message in [`all_bytes`](Self::all_bytes).
    #[inline]
    pub(crate) fn message_offset(&self, phase: Phase) -> usize {
        phase as usize * self.size
    }

    /// Writes a number into the ordinary message, if it is long enough.
    pub(crate) fn write_number(&mut self, number: u64) {
        if let Some(place) = self.bytes[..self.size].get_mut(STAMP) {
            place.copy_from_slice(&number.to_le_bytes());
        }
    }

    /// Compares bytes that begin at offset `at` of message `number` with those sent. Phase and stamp are not compared.
    pub(crate) fn check_received(&self, received: &[u8], at: usize, number: u64) -> Result<(), BenchError> {
        let begin = STAMP.end.saturating_sub(at).min(received.len());
        let expected = self.bytes[..self.size].get(at + begin..).unwrap_or_default();
        let received = &received[begin..];
        // One comparison of the whole, which is fast, before one of each byte. Another program's message may be longer.
        if expected.get(..received.len()) == Some(received) {
            return Ok(());
        }
        let wrong = received.iter().zip(expected).position(|(one, other)| one != other).unwrap_or(expected.len());
        Err(BenchError::Corrupt { message: number, at: at + begin + wrong })
    }

    /// Returns all messages, back to back.
    pub(crate) fn all_bytes(&self) -> &[u8] {
        &self.bytes
    }
}

/// Position of a message's number.
const STAMP: std::ops::Range<usize> = 1..9;

/// Length of the shortest message that can have a number, in bytes.
pub(crate) const MIN_STAMPED_BYTES: u64 = STAMP.end as u64;

/// Returns the number of a received message; `None` if it is too short.
pub(crate) fn message_number(received: &[u8]) -> Option<u64> {
    received.get(STAMP)?.try_into().ok().map(u64::from_le_bytes)
}

fn pattern_byte(at: usize) -> u8 {
    (at % 251) as u8
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_phase_has_its_message_and_the_rest_is_the_same() {
        let messages = Messages::new(1000);
        for phase in Phase::ALL {
            let bytes = messages.message_bytes(phase);
            assert_eq!((bytes.len(), Phase::from_byte(bytes[0])), (1000, phase));
            messages.check_received(bytes, 0, 0).unwrap();
            messages.check_received(&bytes[300..], 300, 0).unwrap();
            assert_eq!(&messages.all_bytes()[messages.message_offset(phase)..][..1000], bytes);
        }
        let mut bytes = messages.message_bytes(Phase::Ordinary).to_vec();
        bytes[999] ^= 1;
        assert!(matches!(
            messages.check_received(&bytes[500..], 500, 7),
            Err(BenchError::Corrupt { message: 7, at: 999 })
        ));
        bytes[999] ^= 1;
        bytes.push(0);
        assert!(
            matches!(messages.check_received(&bytes, 0, 7), Err(BenchError::Corrupt { message: 7, at: 1000 })),
            "too long"
        );
        assert!(matches!(messages.check_received(&bytes, 2000, 7), Err(BenchError::Corrupt { .. })), "behind the end");
    }
}
