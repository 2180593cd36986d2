//! Delivery of notices to one destination that may be slow or down: a bounded queue, batches, retries with growing
//! pauses, and an end of them. Sans-IO: the thread of a destination asks what to do, and reports what came of it.

use std::collections::VecDeque;
use std::time::Duration;

/// Limits of a delivery.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeliveryLimits {
    /// Number of notices that wait; the oldest gives way to a further one.
    pub max_waiting: usize,
    /// Number of notices that are delivered together.
    pub max_batch: usize,
    /// Time for which a first notice waits for others of its batch.
    pub gather_time: Duration,
    /// Pause after a first failure; it doubles with each further one.
    pub first_pause: Duration,
    /// Longest pause between two attempts.
    pub longest_pause: Duration,
    /// Age at which a notice is given up while attempts fail.
    pub max_age: Duration,
}

/// Result of an attempt.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// The destination has taken the notices.
    Delivered,
    /// The destination cannot be reached, or not now: a later attempt may succeed. The text says why.
    Failed(String),
    /// The destination refuses these notices, and would again. The text says why.
    Refused(String),
}

/// Next step of the thread.
#[derive(Debug, PartialEq, Eq)]
pub enum Step<T> {
    /// Attempts to deliver these notices, and reports the outcome.
    Deliver(Vec<T>),
    /// Waits until this time, or until there is another notice.
    WaitUntil(Duration),
    /// Waits until there is a notice.
    Wait,
}

/// Notices that wait for one destination. Times are monotonic.
#[derive(Debug)]
pub struct Delivery<T> {
    limits: DeliveryLimits,
    /// Notices, the oldest first, with the times at which they came.
    waiting: VecDeque<(Duration, T)>,
    /// Number of notices of the attempt under way: the first of those that wait.
    under_way: usize,
    /// Number of attempts that failed since the last that succeeded.
    failures: u32,
    /// Time before which there is no attempt.
    not_before: Duration,
    problem: Option<String>,
    sent: u64,
    left_out: u64,
}

impl<T: Clone> Delivery<T> {
    /// Creates an empty queue.
    pub fn new(limits: DeliveryLimits) -> Self {
        Self {
            limits,
            waiting: VecDeque::new(),
            under_way: 0,
            failures: 0,
            not_before: Duration::ZERO,
            problem: None,
            sent: 0,
            left_out: 0,
        }
    }

    /// Adds a notice. If the queue is full, the oldest that is not under way is left out.
    pub fn add_notice(&mut self, now: Duration, notice: T) {
        if self.waiting.len() >= self.limits.max_waiting {
            self.left_out += 1;
            if self.waiting.remove(self.under_way).is_none() {
                return;
            }
        }
        self.waiting.push_back((now, notice));
    }

    /// Returns what to do now.
    pub fn next_step(&mut self, now: Duration) -> Step<T> {
        if self.failures > 0 {
            let max_age = self.limits.max_age;
            while self.waiting.front().is_some_and(|(came, _)| now.saturating_sub(*came) > max_age) {
                self.waiting.pop_front();
                self.left_out += 1;
            }
        }
        let Some((came, _)) = self.waiting.front() else { return Step::Wait };
        let due = self.not_before.max(came.saturating_add(self.limits.gather_time));
        let is_full = self.waiting.len() >= self.limits.max_batch && now >= self.not_before;
        if now < due && !is_full {
            return Step::WaitUntil(due);
        }
        self.under_way = self.waiting.len().min(self.limits.max_batch);
        Step::Deliver(self.waiting.iter().take(self.under_way).map(|(_, notice)| notice.clone()).collect())
    }

    /// Takes the outcome of the attempt. Returns true if the destination's problem is a new one, or is over.
    pub fn take_outcome(&mut self, now: Duration, outcome: Outcome) -> bool {
        let had_problem = self.problem.is_some();
        let count = std::mem::take(&mut self.under_way);
        match outcome {
            Outcome::Delivered => {
                self.waiting.drain(..count);
                self.sent += count as u64;
                (self.failures, self.problem, self.not_before) = (0, None, now);
            }
            Outcome::Refused(reason) => {
                self.waiting.drain(..count);
                self.left_out += count as u64;
                (self.problem, self.not_before) = (Some(reason), now);
            }
            Outcome::Failed(reason) => {
                let doubled = 2_u32.saturating_pow(self.failures.min(16));
                let pause = self.limits.first_pause.saturating_mul(doubled).min(self.limits.longest_pause);
                self.failures = self.failures.saturating_add(1);
                (self.problem, self.not_before) = (Some(reason), now.saturating_add(pause));
            }
        }
        had_problem != self.problem.is_some()
    }

    /// Returns the reason why the last attempt did not succeed; `None` if it did, or if there was none.
    pub fn last_problem(&self) -> Option<&str> {
        self.problem.as_deref()
    }

    /// Returns the number of notices that wait, were delivered, and were left out.
    pub fn notice_counts(&self) -> [u64; 3] {
        [self.waiting.len() as u64, self.sent, self.left_out]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const LIMITS: DeliveryLimits = DeliveryLimits {
        max_waiting: 5,
        max_batch: 3,
        gather_time: Duration::from_secs(2),
        first_pause: Duration::from_secs(1),
        longest_pause: Duration::from_secs(60),
        max_age: Duration::from_secs(3600),
    };

    fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn a_server_that_is_down_is_a_problem_once_and_gets_what_waited_when_it_is_up() {
        let mut delivery = Delivery::new(LIMITS);
        delivery.add_notice(seconds(0), 'a');
        assert_eq!(delivery.next_step(seconds(0)), Step::WaitUntil(seconds(2)), "others may come");
        delivery.add_notice(seconds(1), 'b');
        assert_eq!(delivery.next_step(seconds(2)), Step::Deliver(vec!['a', 'b']));
        assert!(delivery.take_outcome(seconds(2), Outcome::Failed("refused".into())), "a new problem");
        assert_eq!(delivery.next_step(seconds(2)), Step::WaitUntil(seconds(3)));
        assert_eq!(delivery.next_step(seconds(3)), Step::Deliver(vec!['a', 'b']));
        assert!(!delivery.take_outcome(seconds(3), Outcome::Failed("refused".into())), "the same problem");
        assert_eq!(delivery.next_step(seconds(4)), Step::WaitUntil(seconds(5)), "pauses grow");
        assert!(matches!(delivery.next_step(seconds(5)), Step::Deliver(_)));
        assert!(delivery.take_outcome(seconds(5), Outcome::Delivered), "it is over");
        assert_eq!((delivery.notice_counts(), delivery.next_step(seconds(9))), ([0, 2, 0], Step::Wait));
    }

    #[test]
    fn what_is_refused_or_too_old_is_left_out_and_counted() {
        let mut delivery = Delivery::new(LIMITS);
        delivery.add_notice(seconds(0), 'a');
        assert!(matches!(delivery.next_step(seconds(2)), Step::Deliver(_)));
        delivery.take_outcome(seconds(2), Outcome::Refused("no such logbook".into()));
        assert_eq!((delivery.notice_counts(), delivery.last_problem()), ([0, 0, 1], Some("no such logbook")));
        delivery.add_notice(seconds(3), 'b');
        assert!(matches!(delivery.next_step(seconds(5)), Step::Deliver(_)));
        delivery.take_outcome(seconds(5), Outcome::Failed("down".into()));
        assert_eq!(delivery.next_step(seconds(3604)), Step::Wait);
        assert_eq!(delivery.notice_counts(), [0, 0, 2]);
    }

    proptest! {
        #[test]
        fn each_notice_is_delivered_in_order_or_counted_and_the_queue_stays_bounded(
            steps in prop::collection::vec((0_u8..4, 0_u64..90), 0..300),
        ) {
            let mut delivery = Delivery::new(LIMITS);
            let (mut now, mut added, mut delivered, mut last_attempt) = (seconds(0), 0_u64, Vec::new(), None);
            for (action, pause) in steps {
                now += seconds(pause);
                if action == 0 {
                    delivery.add_notice(now, added);
                    added += 1;
                } else if let Step::Deliver(batch) = delivery.next_step(now) {
                    prop_assert!(!batch.is_empty() && batch.len() <= LIMITS.max_batch);
                    if let Some(failed_at) = last_attempt {
                        prop_assert!(now >= failed_at + LIMITS.first_pause, "an attempt without a pause");
                    }
                    let outcome = match action {
                        1 => Outcome::Delivered,
                        2 => Outcome::Failed("down".into()),
                        _ => Outcome::Refused("no".into()),
                    };
                    last_attempt = (action == 2).then_some(now);
                    // Notices that come while an attempt is under way do not touch it.
                    delivery.add_notice(now, added);
                    added += 1;
                    delivery.take_outcome(now, outcome);
                    if action == 1 {
                        delivered.extend(batch);
                    }
                    prop_assert_eq!(delivery.last_problem().is_some(), action != 1);
                }
                let [waiting, sent, left_out] = delivery.notice_counts();
                prop_assert!(waiting <= LIMITS.max_waiting as u64);
                prop_assert_eq!(waiting + sent + left_out, added);
                prop_assert_eq!(sent, delivered.len() as u64);
            }
            prop_assert!(delivered.is_sorted());
        }
    }
}
