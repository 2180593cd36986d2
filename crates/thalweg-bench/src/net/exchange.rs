//! Messages of one size, one at a time, between two ends.

use crate::BenchError;
use std::ops::Sub;

/// What the first byte of a message says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Phase {
    /// An ordinary message.
    Ordinary = 0,
    /// What comes now is measured: read your counters, then answer.
    Mark = 1,
    /// This was the last.
    End = 2,
}

impl Phase {
    pub(crate) const ALL: [Self; 3] = [Self::Ordinary, Self::Mark, Self::End];

    /// A byte of the peer's: anything that is neither is ordinary.
    #[inline]
    pub(crate) fn of(byte: u8) -> Self {
        match byte {
            1 => Self::Mark,
            2 => Self::End,
            _ => Self::Ordinary,
        }
    }
}

/// What one end has counted since it began.
#[derive(Debug, Clone, Copy, Default, PartialEq, serde::Serialize, serde::Deserialize)]
pub(crate) struct Tally {
    /// Messages (over udp: datagrams) sent.
    pub(crate) sent: u64,
    /// Messages (over udp: datagrams) received.
    pub(crate) received: u64,
    /// Payload bytes received.
    pub(crate) received_bytes: u64,
    /// Payload bytes that this end, or the kernel for it, copied.
    pub(crate) copied: u64,
    /// System calls made.
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
    /// Sends one message; it may be kept back until something is received or [flushed](Self::flush).
    fn send(&mut self, phase: Phase) -> Result<(), BenchError>;

    /// Sends what was kept back.
    fn flush(&mut self) -> Result<(), BenchError> {
        Ok(())
    }

    /// Waits for the next message.
    fn receive(&mut self) -> Result<Phase, BenchError>;

    /// Whether [`receive`](Self::receive) would find something now.
    fn waiting(&mut self) -> Result<bool, BenchError>;

    /// Numbers the next message, where the link may lose messages.
    fn stamp(&mut self, _number: u64) {}

    /// The number of the last message received, where it has one.
    fn stamped(&self) -> Option<u64> {
        None
    }

    /// Stays until the other end has what was sent last.
    fn finish(&mut self) -> Result<(), BenchError> {
        Ok(())
    }

    /// Counted so far.
    fn tally(&self) -> Tally;
}

/// The bytes of messages, one for each phase, and of what they are compared with: after the first byte, a pattern
/// that has a period of 251 and so falls differently on every page.
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
            bytes.extend((1..size).map(pattern));
        }
        Self { size, bytes }
    }

    /// The message that says this.
    #[inline]
    pub(crate) fn get(&self, phase: Phase) -> &[u8] {
        &self.bytes[self.offset(phase)..][..self.size]
    }

    /// Where it begins in [`all`](Self::all).
    #[inline]
    pub(crate) fn offset(&self, phase: Phase) -> usize {
        phase as usize * self.size
    }

    /// Numbers the ordinary message, where it is long enough.
    pub(crate) fn stamp(&mut self, number: u64) {
        if let Some(place) = self.bytes[..self.size].get_mut(STAMP) {
            place.copy_from_slice(&number.to_le_bytes());
        }
    }

    /// Compares bytes that begin at `at` of message `number` with what was sent. Phase and stamp are not compared.
    pub(crate) fn check(&self, received: &[u8], at: usize, number: u64) -> Result<(), BenchError> {
        let begin = STAMP.end.saturating_sub(at).min(received.len());
        let (received, expected) = (&received[begin..], &self.bytes[..self.size][at + begin..]);
        // One comparison of all, which is fast, before one of each.
        if received == &expected[..received.len()] {
            return Ok(());
        }
        let wrong = received.iter().zip(expected).position(|(one, other)| one != other).unwrap_or(0);
        Err(BenchError::Corrupt { message: number, at: at + begin + wrong })
    }

    /// All of them, one behind the other.
    pub(crate) fn all(&self) -> &[u8] {
        &self.bytes
    }
}

/// Where a message has its number.
const STAMP: std::ops::Range<usize> = 1..9;

/// The shortest message that can have one.
pub(crate) const SHORTEST_STAMPED: u64 = STAMP.end as u64;

/// The number of a message that was received.
pub(crate) fn stamped(received: &[u8]) -> Option<u64> {
    received.get(STAMP)?.try_into().ok().map(u64::from_le_bytes)
}

fn pattern(at: usize) -> u8 {
    (at % 251) as u8
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_phase_has_its_message_and_the_rest_is_the_same() {
        let messages = Messages::new(1000);
        for phase in Phase::ALL {
            let bytes = messages.get(phase);
            assert_eq!((bytes.len(), Phase::of(bytes[0])), (1000, phase));
            messages.check(bytes, 0, 0).unwrap();
            messages.check(&bytes[300..], 300, 0).unwrap();
            assert_eq!(&messages.all()[messages.offset(phase)..][..1000], bytes);
        }
        let mut bytes = messages.get(Phase::Ordinary).to_vec();
        bytes[999] ^= 1;
        assert!(matches!(messages.check(&bytes[500..], 500, 7), Err(BenchError::Corrupt { message: 7, at: 999 })));
    }
}
