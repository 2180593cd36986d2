//! The longest datagram that a path takes, found by probes (RFC 8899). No socket and no clock.
//!
//! A probe is a pair of datagrams that the other end answers: one of the length in question, and a short one. A length
//! counts as failed only if the short one was answered and the long one was not, several times: silence proves nothing
//! about lengths. The length in use is probed again while pieces are sent, so that a path that shrinks is noticed; and
//! if the length in use is shorter than the port allows, longer ones are tried again from time to time.

use std::time::Duration;
use thalweg_wire::HEAD_LEN;

/// Bytes in a datagram that every path takes, until its first link or a router reports otherwise: the remainder of the
/// 1280 bytes that IPv6 requires of every link (RFC 8200, section 5).
pub(super) const BASE_BYTES: usize = 1232;
/// Number of pairs of which only the short datagram was answered before a length has failed (`MAX_PROBES`; RFC 8899 has
/// 3, for paths that lose less).
const MAX_PROBES: u32 = 6;
/// Time between two probes of the length in use, while pieces are sent.
const CHECK_INTERVAL: Duration = Duration::from_millis(500);
/// Time between two searches, if the length in use is shorter than the port allows (`PMTU_RAISE_TIMER`; RFC 8899 has 10
/// minutes, for paths through other people's networks).
const RAISE_INTERVAL: Duration = Duration::from_secs(10);
/// Maximum time to wait for an answer to a pair.
const LONGEST_WAIT: Duration = Duration::from_millis(640);
/// Step of the lengths that are searched, in bytes: pieces have no others.
const LENGTH_STEP_BYTES: usize = HEAD_LEN;

#[derive(Debug)]
pub(super) struct Path {
    /// Maximum length that the port sends on this path, in bytes.
    limit: usize,
    /// Length in use, in bytes.
    longest: usize,
    /// Shortest length that has failed, or one more than the limit.
    failed: usize,
    probe: Option<Probe>,
    /// Number of the next datagram of a probe.
    number: u32,
    check_at: Duration,
    raise_at: Duration,
}

#[derive(Debug)]
struct Probe {
    bytes: usize,
    /// Number of its first datagram; those of a pair are consecutive.
    first: u32,
    pairs: u32,
    /// Number of datagrams of the last pair that are still to be sent.
    unsent: u32,
    misses: u32,
    /// True if the short datagram of the last pair was answered.
    is_alive: bool,
    /// Time at which the next pair is sent, and the time between it and the previous pair.
    at: Duration,
    wait: Duration,
}

impl Path {
    pub(super) fn new(limit: usize) -> Self {
        Self {
            limit,
            longest: limit.min(BASE_BYTES),
            failed: limit + 1,
            probe: None,
            number: 0,
            check_at: Duration::ZERO,
            raise_at: Duration::ZERO,
        }
    }

    /// Returns the maximum length of a datagram, in bytes.
    pub(super) fn max_datagram_bytes(&self) -> usize {
        self.longest
    }

    /// Begins a search, once the other end has answered. `wait` is the maximum time that an answer takes.
    pub(super) fn start_search(&mut self, now: Duration, wait: Duration) {
        self.raise_at = now + RAISE_INTERVAL;
        self.probe_next_length(now, wait);
    }

    /// Limits datagrams to `limit` bytes, because the port or a router takes no longer ones. The length in use is
    /// probed with the next piece.
    pub(super) fn limit_datagrams_to(&mut self, limit: usize) {
        self.limit = self.limit.min(limit);
        self.longest = self.longest.min(self.limit);
        self.failed = self.failed.min(self.limit + 1);
        self.probe = self.probe.take().filter(|probe| probe.bytes <= self.limit);
        self.check_at = Duration::ZERO;
    }

    /// True if longer datagrams are to be tried again, with [`search_longer`](Self::search_longer).
    pub(super) fn is_raise_due(&self, now: Duration) -> bool {
        self.probe.is_none() && now >= self.raise_at
    }

    /// Searches again, up to the limit that the port allows now, if it is known.
    pub(super) fn search_longer(&mut self, limit: Option<usize>, now: Duration, wait: Duration) {
        self.raise_at = now + RAISE_INTERVAL;
        self.limit = limit.unwrap_or(self.limit);
        self.longest = self.longest.min(self.limit);
        self.failed = self.limit + 1;
        self.probe_next_length(now, wait);
    }

    /// Probes the length in use from time to time; called when a piece is sent.
    pub(super) fn on_piece_sent(&mut self, now: Duration, wait: Duration) {
        if self.probe.is_none() && self.longest > BASE_BYTES && now >= self.check_at {
            self.begin_probe(self.longest, now, wait);
        }
    }

    /// Processes the answer of the other end to a datagram of a probe. The answer may come `patience` later than
    /// another.
    pub(super) fn on_probe_answer(&mut self, number: u32, now: Duration, patience: Duration, wait: Duration) {
        let Some(probe) = &mut self.probe else { return };
        let at = number.wrapping_sub(probe.first);
        if at >= 2 * probe.pairs {
            return;
        }
        if at.is_multiple_of(2) {
            self.longest = probe.bytes;
            self.probe = None;
            self.check_at = now + CHECK_INTERVAL;
            self.probe_next_length(now, wait);
        } else if at + 1 == 2 * probe.pairs && !probe.is_alive {
            probe.is_alive = true;
            probe.at = now + patience;
        }
    }

    /// Handles timeouts.
    pub(super) fn handle_timeouts(&mut self, now: Duration, wait: Duration) {
        let Some(probe) = self.probe.as_mut().filter(|probe| probe.at <= now) else { return };
        probe.misses += u32::from(probe.is_alive);
        if probe.misses < MAX_PROBES {
            probe.wait = if probe.is_alive { wait } else { (probe.wait * 2).min(LONGEST_WAIT) };
            probe.at = now + probe.wait;
            probe.is_alive = false;
            probe.pairs += 1;
            probe.unsent = 2;
            return;
        }
        self.failed = probe.bytes;
        self.probe = None;
        if self.failed <= self.longest {
            self.longest = self.limit.min(BASE_BYTES);
        }
        self.probe_next_length(now, wait);
    }

    /// Returns the time at which [`handle_timeouts`](Self::handle_timeouts) has something to do.
    pub(super) fn next_deadline(&self) -> Option<Duration> {
        self.probe.as_ref().map(|probe| probe.at)
    }

    /// Returns the length in use if longer ones that the port allows were searched for in vain.
    pub(super) fn narrow_path_bytes(&self) -> Option<usize> {
        (self.probe.is_none() && self.failed <= self.limit).then_some(self.longest)
    }

    /// Returns the next datagram to send for a probe: its number, and its length.
    pub(super) fn next_probe(&mut self) -> Option<(u32, usize)> {
        let probe = self.probe.as_mut().filter(|probe| probe.unsent > 0)?;
        probe.unsent -= 1;
        let number = self.number;
        self.number = number.wrapping_add(1);
        Some((number, if probe.unsent == 1 { probe.bytes } else { HEAD_LEN }))
    }

    /// Probes the next length between the one in use and the one that has failed: bisection, after the limit itself.
    fn probe_next_length(&mut self, now: Duration, wait: Duration) {
        let (middle, above) = (
            (self.longest + self.failed) / 2 / LENGTH_STEP_BYTES * LENGTH_STEP_BYTES,
            (self.longest / LENGTH_STEP_BYTES + 1) * LENGTH_STEP_BYTES,
        );
        let next = if self.failed > self.limit { self.limit } else { middle.max(above) };
        if next > self.longest && next < self.failed {
            self.begin_probe(next, now, wait);
        }
    }

    fn begin_probe(&mut self, bytes: usize, now: Duration, wait: Duration) {
        let first = self.number;
        self.probe =
            Some(Probe { bytes, first, pairs: 1, unsent: 2, misses: 0, is_alive: false, at: now + wait, wait });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;
    use thalweg_wire::{GOLDEN_GAMMA, mix_bits};

    const WAIT: Duration = Duration::from_millis(5);
    const PATIENCE: Duration = Duration::from_millis(1);

    /// The far end of a path, and the datagrams on their way.
    struct World {
        path: Path,
        now: Duration,
        /// Number of bytes that pass; `None` if the other end does not answer at all.
        takes: Option<usize>,
        lost_percent: u64,
        random: u64,
        answers: BTreeMap<(Duration, u32), u32>,
        sent: u32,
    }

    impl World {
        fn new(limit: usize, takes: Option<usize>, lost_percent: u64, seed: u64) -> Self {
            let (now, answers) = (Duration::ZERO, BTreeMap::new());
            let mut path = Path::new(limit);
            path.start_search(now, WAIT);
            Self { path, now, takes, lost_percent, random: seed, answers, sent: 0 }
        }

        fn draw(&mut self) -> u64 {
            self.random = self.random.wrapping_add(GOLDEN_GAMMA);
            mix_bits(self.random)
        }

        /// Runs for this time, with pieces being sent every millisecond.
        fn run(&mut self, how_long: Duration) {
            let end = self.now + how_long;
            while self.now < end {
                self.path.on_piece_sent(self.now, WAIT);
                if self.path.is_raise_due(self.now) {
                    self.path.search_longer(None, self.now, WAIT);
                }
                while let Some((number, bytes)) = self.path.next_probe() {
                    self.sent += 1;
                    let is_lost = self.draw() % 100 < self.lost_percent;
                    if !is_lost && self.takes.is_some_and(|takes| bytes <= takes) {
                        let late = Duration::from_micros(200 + self.draw() % 800);
                        self.answers.insert((self.now + late, self.sent), number);
                    }
                }
                self.now += Duration::from_millis(1);
                while let Some(first) = self.answers.first_entry().filter(|first| first.key().0 <= self.now) {
                    let number = first.remove();
                    self.path.on_probe_answer(number, self.now, PATIENCE, WAIT);
                }
                self.path.handle_timeouts(self.now, WAIT);
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        /// The length found passes, and is the longest in steps of 64 bytes; also after the path has changed.
        #[test]
        fn the_longest_that_passes_is_found_and_found_again(
            limit in 1232usize..65_507,
            takes in 1232usize..65_507,
            then in 1232usize..65_507,
        ) {
            let mut world = World::new(limit, Some(takes), 0, 0);
            for takes in [takes, then, takes] {
                world.takes = Some(takes);
                world.run(Duration::from_secs(12));
                let (found, most) = (world.path.max_datagram_bytes(), takes.min(limit));
                prop_assert!(found <= most && found + LENGTH_STEP_BYTES > most, "{found} of {most}");
            }
        }

        /// Loss of all lengths alike shortens nothing for long.
        #[test]
        fn loss_is_no_narrow_path(seed: u64, lost_percent in 0u64..20) {
            let mut world = World::new(8972, Some(9000), lost_percent, seed);
            world.run(Duration::from_secs(1));
            let mut whole = 0;
            for _ in 0..300 {
                world.run(Duration::from_millis(100));
                whole += u32::from(world.path.max_datagram_bytes() == 8972);
            }
            prop_assert!(whole > 150, "{whole} of 300");
        }
    }

    #[test]
    fn silence_is_no_narrow_path() {
        let mut world = World::new(8972, Some(9000), 0, 0);
        world.run(Duration::from_secs(1));
        world.takes = None;
        world.run(Duration::from_secs(60));
        assert_eq!(world.path.max_datagram_bytes(), 8972);
        assert!(world.sent < 500, "{} probes", world.sent);
    }

    #[test]
    fn a_complaint_is_believed_as_far_as_the_port_does_and_asks_for_a_probe() {
        let mut world = World::new(8972, Some(9000), 0, 0);
        world.run(Duration::from_secs(1));
        world.takes = Some(1400);
        world.path.limit_datagrams_to(8972);
        world.run(Duration::from_millis(300));
        assert_eq!(world.path.max_datagram_bytes(), 1344, "asked at once");
        world.path.limit_datagrams_to(1000);
        assert_eq!(world.path.max_datagram_bytes(), 1000);
    }
}
