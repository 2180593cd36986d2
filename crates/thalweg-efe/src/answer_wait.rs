//! The time for which a status waits for the upper layer's answer, which it could go with.

/// Longest wait, in least ones.
const MAX_WAITS: u64 = 10;

/// Times in which the upper layer answers what arrives. All are nanoseconds.
#[derive(Debug)]
pub(crate) struct AnswerWait {
    /// Wait where no answer is expected.
    least: u64,
    /// Time that answers took lately: the longest, which decays.
    expected: u64,
    /// Arrival of the packets whose status went alone, until an answer comes.
    reported_alone: Option<u64>,
}

impl AnswerWait {
    pub(crate) fn new(least: u64) -> Self {
        Self { least, expected: 0, reported_alone: None }
    }

    /// Returns the time from the arrival of a packet until which its status waits.
    pub(crate) fn wait_nanos(&self) -> u64 {
        (self.expected + self.expected / 2).clamp(self.least, self.least * MAX_WAITS)
    }

    /// Takes note that the status of packets that arrived at `arrived_at`, if there are any, goes with a packet.
    pub(crate) fn on_packet_sent(&mut self, arrived_at: Option<u64>, now: u64) {
        let Some(arrived_at) = arrived_at.or(self.reported_alone.take()) else { return };
        let took = now.saturating_sub(arrived_at);
        // Later, it is no answer, or none that is waited for.
        if took <= self.least * MAX_WAITS {
            self.expected = took.max(self.expected - self.expected / 8);
        }
        self.reported_alone = None;
    }

    /// Takes note that the status of packets that arrived at `arrived_at` goes alone.
    pub(crate) fn on_status_sent(&mut self, arrived_at: u64) {
        self.expected /= 2;
        self.reported_alone = Some(arrived_at);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEAST: u64 = 20_000;

    #[test]
    fn it_grows_to_the_time_that_answers_take_and_shrinks_where_none_come() {
        let mut wait = AnswerWait::new(LEAST);
        assert_eq!(wait.wait_nanos(), LEAST);
        // The first answer comes after the status has gone.
        wait.on_status_sent(0);
        wait.on_packet_sent(None, 80_000);
        assert_eq!(wait.wait_nanos(), 120_000);
        for turn in 1..100 {
            let arrived_at = turn * 1_000_000;
            wait.on_packet_sent(Some(arrived_at), arrived_at + 60_000);
        }
        assert_eq!(wait.wait_nanos(), 90_000);
        for arrived_at in 0..3 {
            wait.on_status_sent(arrived_at);
        }
        assert_eq!(wait.wait_nanos(), LEAST);
    }

    #[test]
    fn what_comes_much_later_is_no_answer() {
        let mut wait = AnswerWait::new(LEAST);
        wait.on_status_sent(0);
        wait.on_packet_sent(None, LEAST * MAX_WAITS + 1);
        assert_eq!(wait.wait_nanos(), LEAST);
        // A second packet answers nothing.
        wait.on_packet_sent(None, LEAST);
        assert_eq!(wait.wait_nanos(), LEAST);
        wait.on_packet_sent(Some(0), LEAST * MAX_WAITS);
        assert_eq!(wait.wait_nanos(), LEAST * MAX_WAITS, "no longer than that");
    }

    #[test]
    fn without_a_least_wait_there_is_none() {
        let mut wait = AnswerWait::new(0);
        wait.on_packet_sent(Some(0), 50_000);
        assert_eq!(wait.wait_nanos(), 0);
    }
}
