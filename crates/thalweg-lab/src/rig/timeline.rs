//! Use of links and place of the credit over equal steps of the measured time.

use crate::LabError;
use crate::counters::Counts;
use crate::queue::QueueState;
use crate::report::{CreditOverTime, LinkKind, LinkOverTime, LinkUse, SentAgain};
use crate::scenario::{Link, Scenario};
use rustix::time::{ClockId, clock_gettime};
use serde::Deserialize;
use std::path::Path;
use std::time::{Duration, Instant};
use thalweg_text::BitRate;

/// Largest number of links: more cannot be distinguished on a page.
const MOST_LINKS: usize = 64;
/// Largest number of builders whose credit is kept; it is further limited to `MOST_ROWS` over the number of senders.
const MOST_BUILDERS: u32 = 16;
const MOST_ROWS: u32 = 1024;
/// Number of samples of a sender's card in each step: enough to see a queue come and go.
const SAMPLES_PER_STEP: u32 = 8;

/// Equal steps of the measured time.
#[derive(Debug, Clone, Copy)]
pub(super) struct Steps {
    count: u32,
    pub(super) step: Duration,
}

/// Selects the links that are drawn: if there are too many, some of each kind.
pub(crate) fn select_drawn_links(kinds: &[LinkKind]) -> Vec<bool> {
    let cards = kinds.iter().filter(|kind| **kind == LinkKind::Up).count();
    let others = kinds.len() - cards;
    let of_others = others.min(MOST_LINKS - cards.min(MOST_LINKS / 2));
    let of_cards = cards.min(MOST_LINKS - of_others);
    let (mut card, mut other) = (0, 0);
    let drawn = kinds.iter().map(|kind| {
        let is_card = *kind == LinkKind::Up;
        let (number, of, among) = if is_card { (&mut card, of_cards, cards) } else { (&mut other, of_others, others) };
        *number += 1;
        // Evenly spread: a port is drawn where the count of those drawn increases.
        *number * of / among > (*number - 1) * of / among
    });
    drawn.collect()
}

impl Steps {
    pub(super) fn for_scenario(scenario: &Scenario) -> Self {
        let count = scenario.timeline_step_count();
        Self { count, step: scenario.measured_time() / count }
    }

    /// Returns the number of samples of switch ports for each sample of senders' cards.
    pub(super) fn ports_samples_per_card_sample(self, sample: Duration) -> u64 {
        ((self.step.as_nanos() / u128::from(SAMPLES_PER_STEP) / sample.as_nanos().max(1)) as u64).max(1)
    }

    fn step_ends(self) -> impl Iterator<Item = Duration> {
        (1..=self.count).map(move |number| number * self.step)
    }

    /// Returns the use of a link over time; `counted` is the part of its rate that its queue counts.
    pub(super) fn link_over_time(
        self,
        link: &Link,
        counted: BitRate,
        seen: &[(Instant, QueueState)],
        from: Instant,
    ) -> LinkOverTime {
        let full = counted.bytes_per_second() * self.step.as_secs_f64();
        let mut before = sent_bytes_until(seen, from);
        let mut over_time = LinkOverTime {
            name: link.name.clone(),
            kind: link.kind,
            rate_bits_per_second: link.rate.0,
            busy: Vec::new(),
            waiting: Vec::new(),
        };
        for end in self.step_ends() {
            let (begin, end) = (from + end - self.step, from + end);
            let now = sent_bytes_until(seen, end);
            // A token bucket may send a frame or two more than its rate allows, after a pause.
            over_time.busy.push(((now - before) / full).clamp(0.0, 1.0) as f32);
            before = now;
            let first = seen.partition_point(|(at, _)| *at < begin);
            let next = seen.partition_point(|(at, _)| *at < end);
            // A step without a sample takes the last one before it.
            let looks = seen.get(first.min(next.saturating_sub(1))..next).unwrap_or_default();
            over_time.waiting.push(looks.iter().map(|(_, look)| u64::from(look.backlog)).max().unwrap_or(0));
        }
        over_time
    }

    /// Returns a builder's credit over time, from its trace; `None` if it wrote no trace.
    pub(super) fn credit_over_time(
        self,
        receiver: &str,
        file: &Path,
        from: Instant,
    ) -> Result<Option<CreditOverTime>, LabError> {
        let Ok(text) = std::fs::read_to_string(file) else { return Ok(None) };
        // A builder that was killed may have left half a line.
        let looks: Vec<TraceLine> = text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
        let Some(senders) = looks.first().map(|look| look.asked.len()) else { return Ok(None) };
        let from = monotonic_time(from);
        let mut credit =
            CreditOverTime { receiver: receiver.to_owned(), window: Vec::new(), at: vec![Vec::new(); senders] };
        for end in self.step_ends() {
            let end = u64::try_from((from + end).as_nanos()).unwrap_or(u64::MAX);
            let look = looks.partition_point(|look| look.at <= end).checked_sub(1).map(|at| &looks[at]);
            credit.window.push(look.and_then(|look| look.window).unwrap_or(0));
            for (sender, over_time) in credit.at.iter_mut().enumerate() {
                over_time.push(look.and_then(|look| look.asked.get(sender)).copied().unwrap_or(0));
            }
        }
        Ok(Some(credit))
    }
}

/// Returns the use of a link between two times; `counted` is the part of its rate that its queue counts.
pub(super) fn link_use(
    link: &Link,
    counted: BitRate,
    seen: &[(Instant, QueueState)],
    (from, to): (Instant, Instant),
) -> LinkUse {
    let full = counted.bytes_per_second() * (to - from).as_secs_f64();
    let sent = sent_bytes_until(seen, to) - sent_bytes_until(seen, from);
    let waiting = seen.iter().filter(|(at, _)| (from..=to).contains(at)).map(|(_, look)| look.backlog);
    LinkUse {
        name: link.name.clone(),
        kind: link.kind,
        rate_bits_per_second: link.rate.0,
        busy: if full > 0.0 { (sent / full).clamp(0.0, 1.0) } else { 0.0 },
        max_waiting_bytes: waiting.max().unwrap_or(0).into(),
    }
}

/// Returns the number of builders that write a trace of their credit.
pub(crate) fn traced_builder_count(scenario: &Scenario) -> usize {
    let network = &scenario.network;
    (MOST_ROWS / network.senders).clamp(1, MOST_BUILDERS).min(network.receivers) as usize
}

/// Returns the numbers of segments that senders retransmitted, by reason.
pub(super) fn sum_retransmissions(counts: impl Iterator<Item = Counts>) -> SentAgain {
    counts.fold(SentAgain::default(), |sum, one| SentAgain {
        fast: sum.fast + one.fast,
        tail_loss_probes: sum.tail_loss_probes + one.tail_loss_probes,
        after_timeout: sum.after_timeout + one.timeouts + one.after_timeout,
        needless: sum.needless + one.needless,
    })
}

/// A line of a builder's trace.
#[derive(Debug, Deserialize)]
struct TraceLine {
    /// Time in nanoseconds of `CLOCK_MONOTONIC`.
    at: u64,
    window: Option<u64>,
    asked: Vec<u64>,
}

/// Returns the number of bytes sent up to a time, interpolated between samples.
fn sent_bytes_until(seen: &[(Instant, QueueState)], at: Instant) -> f64 {
    let next = seen.partition_point(|(then, _)| *then <= at);
    match (next.checked_sub(1).and_then(|last| seen.get(last)), seen.get(next)) {
        (Some((from, before)), Some((to, after))) => {
            let part = (at - *from).as_secs_f64() / (*to - *from).as_secs_f64().max(1e-12);
            let (before, after) = (before.sent as f64, after.sent as f64);
            before + (after - before) * part
        }
        (Some((_, only)), None) | (None, Some((_, only))) => only.sent as f64,
        (None, None) => 0.0,
    }
}

/// Converts to the time of nodes: `Instant` is of the same clock, but does not give its value.
fn monotonic_time(at: Instant) -> Duration {
    let now = Duration::try_from(clock_gettime(ClockId::Monotonic)).unwrap_or_default();
    now.saturating_sub(at.elapsed())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn link(kind: LinkKind) -> Link {
        Link { name: "a".into(), kind, rate: BitRate(8_000_000), buffer: None, event_bytes: 1.0 }
    }

    #[test]
    fn a_link_that_sends_half_of_the_time_is_half_busy() {
        let from = Instant::now();
        let steps = Steps { count: 4, step: Duration::from_millis(10) };
        let look =
            |millis, backlog, sent| (from + Duration::from_millis(millis), QueueState { backlog, drops: 0, sent });
        // A megabyte a second: ten thousand bytes a step. The last step has no sample before its end.
        let seen = [look(0, 7, 500), look(5, 90, 5_500), look(10, 0, 5_500), look(20, 40, 5_500), look(40, 3, 25_500)];
        let over_time = steps.link_over_time(&link(LinkKind::Up), BitRate(8_000_000), &seen, from);
        assert_eq!(over_time.busy, [0.5, 0.0, 1.0, 1.0]);
        assert_eq!(over_time.waiting, [90, 0, 40, 40]);
    }

    #[test]
    fn where_there_are_too_many_links_some_of_each_kind_are_drawn() {
        let drawn = |cards: usize, others: usize| {
            let kinds = [[LinkKind::Up].repeat(cards), [LinkKind::Down].repeat(others)].concat();
            let drawn = select_drawn_links(&kinds);
            let count = |part: &[bool]| part.iter().filter(|drawn| **drawn).count();
            (count(&drawn[..cards]), count(&drawn[cards..]))
        };
        assert_eq!(drawn(8, 8), (8, 8));
        assert_eq!(drawn(512, 1), (63, 1));
        assert_eq!(drawn(512, 64), (32, 32));
        assert_eq!(drawn(3, 192), (3, 61));
    }

    #[test]
    fn credit_is_what_a_builder_last_wrote_down() {
        let from = Instant::now();
        let at = |millis| (monotonic_time(from) + Duration::from_millis(millis)).as_nanos();
        let file = tempfile::NamedTempFile::new().unwrap();
        let line = |millis, asked| format!("{{\"at\":{},\"window\":900,\"asked\":{asked}}}\n", at(millis));
        // It was killed while it wrote the last line.
        let text = [line(1, "[1,2]"), line(9, "[3,4]"), line(25, "[5,6]"), "{\"at\":12".to_owned()].concat();
        std::fs::write(file.path(), text).unwrap();
        let steps = Steps { count: 4, step: Duration::from_millis(10) };
        let credit = steps.credit_over_time("b", file.path(), from).unwrap().unwrap();
        assert_eq!(credit.at, [[3, 3, 5, 5], [4, 4, 6, 6]]);
        assert_eq!(credit.window, [900; 4]);
        assert_eq!(steps.credit_over_time("b", Path::new("/nowhere"), from).unwrap(), None);
    }
}
