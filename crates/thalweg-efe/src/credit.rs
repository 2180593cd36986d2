//! Credit of a receiver: bytes that peers may send, bounded over all of them so that the last port's queue stays below
//! its buffer.
//!
//! This is the receiver's credit of UEC (RCCC, Ultra Ethernet 1.0), by the rule of a Thalweg builder
//! (`docs/n-to-one.md`): the sum of what was granted and has not arrived is at most C·τ + B/2, grants are paced at
//! (1 + h)·C with bursts of B/8, and connections are served in turn, each for a packet. Of the bound, a packet for each
//! class is set apart, so that one class that is not read cannot use up what the others need.

use crate::{CLASS_COUNT, Class, LastLink, Options};
use std::collections::VecDeque;

/// Part by which grants may be faster than the last link (*h* of `docs/n-to-one.md`).
const PACE_MARGIN: f64 = 0.05;
/// Part of the bound that idle connections may hold.
const STANDING_PART: u64 = 4;
/// Part of the port's buffer that may be granted at once.
const BURST_PART: u64 = 8;

/// Bound on the credit of all connections of a port, and the connections that wait for some.
#[derive(Debug)]
pub(crate) struct CreditPool {
    bound_bytes: u64,
    /// Bytes set apart for each class.
    reserve_bytes: u64,
    standing_bytes: u64,
    /// Bytes granted and not received, by class.
    granted: [u64; CLASS_COUNT],
    pace: Option<Pace>,
    /// Connections that wait, by class, and the class that is served first.
    waiting: [VecDeque<u32>; CLASS_COUNT],
    turn: usize,
}

/// Limit on the rate of grants.
#[derive(Debug)]
struct Pace {
    bytes_per_nano: f64,
    burst_bytes: f64,
    allowed_bytes: f64,
    updated_at: u64,
}

impl CreditPool {
    /// Creates the pool of a port whose packets cost at most `packet_bytes` of credit.
    pub(crate) fn new(options: &Options, packet_bytes: u64) -> Self {
        let bound = options.last_link.map_or(u64::MAX, |link| link.credit_bytes()).min(options.max_credit_bytes);
        Self {
            // Less could not serve three classes.
            bound_bytes: bound.max(packet_bytes * (CLASS_COUNT as u64 + 1)),
            reserve_bytes: packet_bytes,
            standing_bytes: options.standing_credit_bytes,
            granted: [0; CLASS_COUNT],
            pace: options.last_link.map(|link| Pace::for_link(link, packet_bytes)),
            waiting: std::array::from_fn(|_| VecDeque::new()),
            turn: 0,
        }
    }

    /// Returns the bound on the sum of all grants, in bytes.
    pub(crate) fn bound_bytes(&self) -> u64 {
        self.bound_bytes
    }

    /// Returns the sum of all grants, in bytes.
    pub(crate) fn granted_bytes(&self) -> u64 {
        self.granted.iter().sum()
    }

    /// Returns the credit that a class of an idle connection may have, in bytes, if there are `connections`.
    pub(crate) fn standing_share(&self, connections: usize) -> u64 {
        self.standing_bytes.min(self.bound_bytes / STANDING_PART / (connections as u64).max(1))
    }

    /// Adds a class of a connection to those that are served in turn.
    pub(crate) fn enqueue_waiting(&mut self, connection: u32, class: Class) {
        self.waiting[class.index()].push_back(connection);
    }

    /// Returns the next class of a connection to be served, if bound and pace allow it.
    pub(crate) fn next_waiting(&mut self, now: u64) -> Option<(u32, Class)> {
        if !self.has_waiting() || self.pace.as_mut().is_some_and(|pace| !pace.has_room(now)) {
            return None;
        }
        for offset in 0..CLASS_COUNT {
            let class = Class::ALL[(self.turn + offset) % CLASS_COUNT];
            if self.room_bytes(class) > 0
                && let Some(connection) = self.waiting[class.index()].pop_front()
            {
                self.turn = (class.index() + 1) % CLASS_COUNT;
                return Some((connection, class));
            }
        }
        None
    }

    /// True if classes of connections wait.
    pub(crate) fn has_waiting(&self) -> bool {
        self.waiting.iter().any(|queue| !queue.is_empty())
    }

    /// Removes the classes of a connection that is over.
    pub(crate) fn forget_waiting(&mut self, connection: u32) {
        for queue in &mut self.waiting {
            queue.retain(|waiting| *waiting != connection);
        }
    }

    /// Returns the bytes that may be granted to a class.
    fn room_bytes(&self, class: Class) -> u64 {
        let shared: u64 = self.granted.iter().map(|granted| granted.saturating_sub(self.reserve_bytes)).sum();
        let shared_bound = self.bound_bytes - self.reserve_bytes * CLASS_COUNT as u64;
        shared_bound.saturating_sub(shared) + self.reserve_bytes.saturating_sub(self.granted[class.index()])
    }

    /// Takes up to `bytes` from the pool, and returns the bytes taken.
    pub(crate) fn take_bytes(&mut self, class: Class, bytes: u64) -> u64 {
        let taken = bytes.min(self.room_bytes(class));
        self.granted[class.index()] += taken;
        if let Some(pace) = &mut self.pace {
            pace.allowed_bytes -= taken as f64;
        }
        taken
    }

    /// Returns bytes to the pool: they have arrived, or cannot arrive any more.
    pub(crate) fn return_bytes(&mut self, class: Class, bytes: u64) {
        let granted = &mut self.granted[class.index()];
        *granted = granted.saturating_sub(bytes);
    }

    /// Returns the time at which the pace allows more, if it is the pace that classes wait for.
    pub(crate) fn next_grant_time(&self) -> Option<u64> {
        let pace = self.pace.as_ref().filter(|pace| self.has_waiting() && pace.allowed_bytes < 0.0)?;
        Some(pace.updated_at + (-pace.allowed_bytes / pace.bytes_per_nano) as u64 + 1)
    }
}

impl Pace {
    fn for_link(link: LastLink, packet_bytes: u64) -> Self {
        let burst_bytes = (link.buffer_bytes / BURST_PART).max(packet_bytes) as f64;
        Self {
            bytes_per_nano: (link.bytes_per_second as f64 * (1.0 + PACE_MARGIN) / 1e9).max(1e-9),
            burst_bytes,
            allowed_bytes: burst_bytes,
            updated_at: 0,
        }
    }

    /// True if something may be granted. One grant may go below zero, and the next then waits.
    fn has_room(&mut self, now: u64) -> bool {
        let since = now.saturating_sub(self.updated_at) as f64;
        self.allowed_bytes = (self.allowed_bytes + since * self.bytes_per_nano).min(self.burst_bytes);
        self.updated_at = self.updated_at.max(now);
        self.allowed_bytes >= 0.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn pool(bound: u64) -> CreditPool {
        CreditPool::new(&Options { max_credit_bytes: bound, ..Options::default() }, 1_000)
    }

    #[test]
    fn a_class_leaves_a_packet_for_each_of_the_others() {
        let mut pool = pool(10_000);
        assert_eq!(pool.take_bytes(Class::NonPosted, 100_000), 8_000);
        assert_eq!(pool.take_bytes(Class::NonPosted, 1), 0);
        assert_eq!(pool.take_bytes(Class::Posted, 100_000), 1_000);
        assert_eq!(pool.take_bytes(Class::Completion, 100_000), 1_000);
        assert_eq!(pool.granted_bytes(), 10_000);
        pool.return_bytes(Class::NonPosted, 3_000);
        assert_eq!(pool.take_bytes(Class::Posted, 100_000), 3_000);
    }

    #[test]
    fn the_pace_is_that_of_the_last_link() {
        let link =
            LastLink { bytes_per_second: 1_000_000_000, round_trip: Duration::from_micros(10), buffer_bytes: 80_000 };
        let options = Options { last_link: Some(link), ..Options::default() };
        let mut pool = CreditPool::new(&options, 1_000);
        assert_eq!(pool.bound_bytes(), 50_000);
        let mut granted = 0;
        for now in 0..1_000_000 {
            pool.enqueue_waiting(0, Class::Posted);
            if pool.next_waiting(now).is_some() {
                let taken = pool.take_bytes(Class::Posted, 1_000);
                pool.return_bytes(Class::Posted, taken);
                granted += taken;
            } else {
                pool.forget_waiting(0);
            }
        }
        // A burst of B/8, the pace, and a packet.
        assert!((1_050_000..=1_050_000 + 10_000 + 1_000).contains(&granted), "{granted}");
    }
}
