//! The measured facts from which a verdict follows.

use super::{Limit, LimitKind, percent_text};
use crate::report::{LinkKind, LinkUse, Report, Timeline};
use crate::scenario::{Link, Scenario, Stall};
use std::collections::BTreeSet;
use thalweg_text::{format_bit_rate, format_count, format_quantity, format_seconds, format_volume};

/// Fraction of the time from which on a link counts as always busy.
const SATURATED: f64 = 0.95;
/// Fraction of the time from which on a link is named as the limit if nothing else explains the rate.
const NEARLY_SATURATED: f64 = 0.85;
/// Links whose use differs by less than this from the busiest are as busy.
const EQUALLY_BUSY: f64 = 0.01;
/// Links whose possible event rates differ by less than this part are equal in the scenario's arithmetic.
const EQUAL_RATES: f64 = 0.02;
/// Least part of a link's rate with which other flows count as the limit.
const MIN_CROSS_PART: f64 = 0.05;
/// Least part of the idle time that is the limit's: within a stall, of timeouts.
const MIN_IDLE_PART: f64 = 0.4;
/// Least part of the credit that is out, in the mean, if credit is the limit. A window is full where the next piece does
/// not fit, and a piece takes up to half of what the buffer adds to the window.
const MIN_CREDIT_OUT: f64 = 0.7;
/// Least part of the time between events in which no data of the event is sent, if round trips are the limit.
const MIN_ROUND_TRIP_PART: f64 = 0.1;
/// Part of the processors' time from which on they are the limit of a laboratory in real time.
const MIN_PROCESSORS_BUSY: f64 = 0.9;
/// Part of the measured time in which the busiest link is idle if a timeout from before stops everything.
const MIN_STANDSTILL_IDLE: f64 = 0.9;
/// Shortest retransmission timeout of Linux and of the ns-3 models, in seconds (`TCP_RTO_MIN`).
const MIN_TIMEOUT_SECONDS: f64 = 0.2;

/// Limit, and the reason as the end of a sentence.
type Finding = (Limit, String);

/// Measured use of links beside the scenario's arithmetic.
pub(super) struct Evidence<'a> {
    report: &'a Report,
    scenario: &'a Scenario,
    /// Use of links: measured or, in a laboratory that does not measure it, computed from the goodput.
    links: Vec<LinkUse>,
    is_computed: bool,
    planned: Vec<Link>,
}

impl<'a> Evidence<'a> {
    pub(super) fn of_report(report: &'a Report) -> Self {
        let planned = report.scenario.all_links();
        let is_computed = report.links.is_empty();
        let links = if is_computed { links_from_goodput(report, &planned) } else { report.links.clone() };
        Self { report, scenario: &report.scenario, links, is_computed, planned }
    }

    /// Returns whether a link is always busy.
    pub(super) fn has_full_link(&self) -> bool {
        self.busiest().is_some_and(|link| link.busy >= SATURATED)
    }

    /// Returns the limit, and the reason as the end of a sentence.
    pub(super) fn find_limit(&self, carries_offered: Option<bool>) -> Finding {
        self.calibration()
            .or_else(|| self.killed_builder())
            .or_else(|| (carries_offered == Some(true)).then(|| self.sources_limit()))
            .or_else(|| self.stalled_builder())
            .or_else(|| self.other_flows())
            .or_else(|| self.busiest_links(SATURATED))
            .or_else(|| self.processors())
            .or_else(|| self.timeouts())
            .or_else(|| self.lost_packets())
            .or_else(|| self.round_trips())
            .or_else(|| self.credit())
            .or_else(|| self.congestion_drops())
            .or_else(|| self.busiest_links(NEARLY_SATURATED))
            .or_else(|| self.congestion_window())
            .unwrap_or_else(|| self.unknown_limit())
    }

    /// Returns the sentence's end on a contradiction between measurement and arithmetic; empty without one.
    pub(super) fn disagreement_text(&self, limit: &Limit) -> String {
        let (names, rate) = self.arithmetic_limit();
        let Some(name) = names.first() else { return String::new() };
        let rate_text = format_bit_rate(rate);
        let is_more = self.report.goodput_bits_per_second > (1.0 + EQUAL_RATES) * rate;
        match limit.kind {
            LimitKind::Link | LimitKind::Sources if is_more => format!(
                "; by the scenario's rates and sizes {name} carries no more than {rate_text} in the long run: set a \
                 longer warm_up"
            ),
            LimitKind::Link if !limit.links.iter().any(|link| names.contains(link)) => {
                format!("; by the scenario's rates and sizes it would be {name}, at {rate_text}")
            }
            LimitKind::Link | LimitKind::Sources | LimitKind::NotMeasured => String::new(),
            _ => format!("; {name} alone would carry {rate_text}"),
        }
    }

    /// Returns the links that limit by the scenario's arithmetic, and the payload rate that they allow.
    fn arithmetic_limit(&self) -> (Vec<String>, f64) {
        let carrying = self.planned.iter().filter(|link| link.event_bytes > 0.0);
        let least = carrying.clone().map(Link::events_per_second).fold(f64::INFINITY, f64::min);
        let names = carrying.filter(|link| link.events_per_second() <= (1.0 + EQUAL_RATES) * least);
        let names = names.map(|link| link_title(link.kind, &link.name)).collect();
        (names, least * self.scenario.event_payload_bytes() * 8.0)
    }

    fn calibration(&self) -> Option<Finding> {
        let found = self.report.found.as_ref()?;
        let text = format!(
            "The builder found a link of {}, a round trip of {} and a buffer of {}; a calibration measures no goodput.",
            format_bit_rate(found.rate.0 as f64),
            format_seconds(found.round_trip.as_secs_f64()),
            format_volume(found.buffer.0)
        );
        Some((Limit::new(LimitKind::NotMeasured, ""), text))
    }

    fn killed_builder(&self) -> Option<Finding> {
        let killed: Vec<&str> =
            self.report.receivers.iter().filter(|one| one.killed).map(|one| one.name.as_str()).collect();
        let first = killed.first()?;
        let text = match killed.len() {
            1 => format!("the builder of {first} was killed, and what it built does not count"),
            many => format!("{many} builders, {first} first, were killed, and what they built does not count"),
        };
        Some((Limit::new(LimitKind::Builder, first), text))
    }

    fn sources_limit(&self) -> Finding {
        let busiest = self.busiest().map(|link| {
            let busy = self.busy_text(link.busy);
            format!("; the busiest link, {}, is {busy}", link_title(link.kind, &link.name))
        });
        let text = format!("the sources offer no more{}", busiest.unwrap_or_default());
        (Limit::new(LimitKind::Sources, ""), text)
    }

    /// Returns a stalled builder if the link that was busiest outside of its stall was idle mostly within.
    fn stalled_builder(&self) -> Option<Finding> {
        let timeline = self.report.timeline.as_ref()?;
        let stalls = self.scenario.network.unlike_receivers.iter().filter_map(|one| Some((one.number, one.stall?)));
        let round_trip = self.scenario.round_trip_time().as_secs_f64();
        let (number, stall) =
            stalls.into_iter().find(|(_, stall)| explains_idle_links(timeline, *stall, round_trip))?;
        let name = format!("receiver-{number}");
        let length = format_seconds(stall.length.as_secs_f64());
        let text = format!("the builder of {name} did nothing for {length}, in which the links were idle");
        Some((Limit::new(LimitKind::Builder, &name), text))
    }

    fn other_flows(&self) -> Option<Finding> {
        let cross = self.report.cross.as_ref()?;
        let link = self.links.iter().find(|link| link.kind == LinkKind::Down)?;
        let part = cross.goodput_bits_per_second / link.rate_bits_per_second as f64;
        let is_busiest = link.busy >= self.busiest()?.busy - EQUALLY_BUSY;
        if part < MIN_CROSS_PART || link.busy < NEARLY_SATURATED || !is_busiest {
            return None;
        }
        let name = link_title(link.kind, &link.name);
        let text = format!(
            "other flows take {} on {name}, which is {}",
            format_bit_rate(cross.goodput_bits_per_second),
            self.busy_text(link.busy)
        );
        Some((Limit::new(LimitKind::OtherFlows, &name), text))
    }

    fn busiest(&self) -> Option<&LinkUse> {
        self.links.iter().max_by(|one, other| one.busy.total_cmp(&other.busy))
    }

    /// Returns the busiest links if they are busy for at least this fraction of the time.
    fn busiest_links(&self, least: f64) -> Option<Finding> {
        let busiest = self.busiest().filter(|link| link.busy >= least)?.busy;
        let links: Vec<&LinkUse> = self.links.iter().filter(|link| link.busy >= busiest - EQUALLY_BUSY).collect();
        let least_busy = links.iter().map(|link| link.busy).fold(f64::INFINITY, f64::min);
        let names: Vec<String> = links.iter().map(|link| link_title(link.kind, &link.name)).collect();
        let busy = self.busy_text(least_busy);
        let text = match &names[..] {
            [only] => format!("{only} is the limit, {busy}"),
            [one, other] => format!("{one} and {other} are the limit, each {busy}"),
            _ => format!("{} are the limit, the least of them {busy}", describe_groups(&links)),
        };
        let name = names.first().cloned().unwrap_or_default();
        Some((Limit { kind: LimitKind::Link, name, links: names }, text))
    }

    /// Returns the host's processors, which were busy while no link was.
    fn processors(&self) -> Option<Finding> {
        let busy = self.report.processors_busy.filter(|busy| *busy >= MIN_PROCESSORS_BUSY)?;
        let warnings = self.report.warnings.iter().map(|warning| format!(", {}", warning.text));
        let text = format!(
            "the processors of this host were busy {} of the time{}",
            percent_text(busy.min(1.0)),
            warnings.collect::<String>()
        );
        Some((Limit::new(LimitKind::Processors, ""), text))
    }

    fn timeouts(&self) -> Option<Finding> {
        let Report { timeouts, before, senders, .. } = self.report;
        let idle = 1.0 - self.busiest().map_or(0.0, |link| link.busy);
        // A timeout that began before the measured time may last until its end.
        let timeouts_before = before.map_or(0, |before| before.timeouts);
        let probes: u64 = senders.iter().map(|sender| sender.tail_loss_probes).sum();
        let wait = format_seconds(MIN_TIMEOUT_SECONDS);
        let waits = if self.waits_explain(*timeouts, idle) {
            format!("{} of at least {wait}", format_quantity(*timeouts, "retransmission timeout"))
        } else if self.waits_explain(timeouts + probes, idle) && self.slow_events_explain(idle) {
            // tcp_schedule_loss_probe() in net/ipv4/tcp_output.c adds TCP_RTO_MIN if one packet is in flight; the
            // counter of timeouts does not have these.
            let probes = format_quantity(probes, "tail loss probe");
            let count = match timeouts {
                0 => probes,
                _ => format!("{} and {probes}", format_quantity(*timeouts, "retransmission timeout")),
            };
            format!("{count}, which take up to {wait} more if one packet is in flight")
        } else if *timeouts == 0 && idle > MIN_STANDSTILL_IDLE && self.waits_explain(timeouts_before, idle) {
            let count = format_quantity(timeouts_before, "retransmission timeout");
            format!("{count} of at least {wait} that began before the measured time")
        } else {
            return None;
        };
        let control = self.scenario.traffic.control;
        let text = format!("TCP ({control}) waited for {waits}{}", self.drops_text());
        Some((Limit::new(LimitKind::Timeouts, &control.to_string()), text))
    }

    /// Returns whether this number of timeouts explains the time in which the links were idle.
    fn waits_explain(&self, count: u64, idle: f64) -> bool {
        let waited = count as f64 * MIN_TIMEOUT_SECONDS;
        count > 0 && waited >= MIN_IDLE_PART * idle * self.report.measured_seconds
    }

    /// Returns whether events that took as long as a timeout, unlike the median, explain the time in which the links
    /// were idle.
    fn slow_events_explain(&self, idle: f64) -> bool {
        let Report { events, completion, measured_seconds, .. } = self.report;
        let Some(times) = completion.filter(|times| times.max_us * 1e-6 >= MIN_TIMEOUT_SECONDS) else { return false };
        let typical = times.p50_us * 1e-6;
        let lost = match self.scenario.traffic.barrier {
            true => measured_seconds - typical * events.complete as f64,
            false => times.max_us * 1e-6 - typical,
        };
        lost >= MIN_IDLE_PART * idle * measured_seconds
    }

    /// Returns where packets were dropped, as the end of a sentence; empty if none were.
    fn drops_text(&self) -> String {
        let Report { receivers, ports, before, .. } = self.report;
        let drops_before = before.map_or(0, |before| before.drops);
        let down = receivers.iter().map(|one| (link_title(LinkKind::Down, &one.name), one.drops));
        let inner = ports.iter().map(|port| (link_title(port.link_kind(), &port.name), port.drops));
        match down.chain(inner).max_by_key(|(_, drops)| *drops) {
            Some((name, drops)) if drops > 0 => {
                format!(", after {} at {name}", format_quantity(drops, "dropped packet"))
            }
            _ if self.scenario.network.loss > 0.0 => {
                format!(", as {} of all packets are lost on the way", percent_text(self.scenario.network.loss))
            }
            _ if drops_before > 0 => {
                format!(", after {} before the measured time", format_quantity(drops_before, "dropped packet"))
            }
            _ => String::new(),
        }
    }

    fn lost_packets(&self) -> Option<Finding> {
        let loss = self.scenario.network.loss;
        let Report { events, retransmissions, .. } = self.report;
        if loss <= 0.0 || retransmissions + events.incomplete == 0 {
            return None;
        }
        let outcome = match events.incomplete {
            0 => format!("TCP retransmitted {} and slowed down", format_quantity(*retransmissions, "segment")),
            count => format!("{} incomplete", format_quantity(count, "event")),
        };
        let text = format!("{} of all packets are lost on the way, {outcome}", percent_text(loss));
        Some((Limit::new(LimitKind::Loss, ""), text))
    }

    fn round_trips(&self) -> Option<Finding> {
        let Report { events, completion, measured_seconds, goodput_bits_per_second, .. } = self.report;
        if !self.scenario.traffic.barrier || events.complete == 0 {
            return None;
        }
        let mean = measured_seconds / events.complete as f64;
        // A few events that took much longer, after losses, do not wait for round trips.
        let median = completion.map(|times| times.p50_us * 1e-6).filter(|median| *median > 0.0);
        let period = median.map_or(mean, |median| median.min(mean));
        let sending = goodput_bits_per_second / self.arithmetic_limit().1 * mean;
        if period - sending < MIN_ROUND_TRIP_PART * period {
            return None;
        }
        let text = format!(
            "one event is fetched at a time, every {}, of which its data take {} on the narrowest link; the rest is \
             waiting, with a round trip of {}",
            format_seconds(period),
            format_seconds(sending),
            format_seconds(self.scenario.round_trip_time().as_secs_f64())
        );
        Some((Limit::new(LimitKind::RoundTrips, ""), text))
    }

    fn credit(&self) -> Option<Finding> {
        let timeline = self.report.timeline.as_ref()?;
        let used = timeline.credit.iter().filter_map(|credit| {
            let out: u64 = credit.at.iter().flatten().sum();
            let window: u64 = credit.window.iter().sum();
            (window > 0).then(|| (credit, out as f64 / window as f64, window / credit.window.len() as u64))
        });
        let (credit, out, window) = used.max_by(|one, other| one.1.total_cmp(&other.1))?;
        if out < MIN_CREDIT_OUT {
            return None;
        }
        let text = format!(
            "the credit of the builder of {} is the limit, {} of its window of {} is requested and not received",
            credit.receiver,
            percent_text(out.min(1.0)),
            format_volume(window)
        );
        Some((Limit::new(LimitKind::Credit, &credit.receiver), text))
    }

    fn congestion_drops(&self) -> Option<Finding> {
        let Report { retransmissions, drops, laboratory, .. } = self.report;
        if laboratory == "model" || retransmissions + drops == 0 {
            return None;
        }
        let control = self.scenario.traffic.control;
        let text = format!(
            "TCP ({control}) slowed down, {} retransmitted{}",
            format_quantity(*retransmissions, "segment"),
            self.drops_text()
        );
        Some((Limit::new(LimitKind::CongestionControl, &control.to_string()), text))
    }

    fn congestion_window(&self) -> Option<Finding> {
        let control = self.scenario.traffic.control;
        if control.credit {
            return None;
        }
        let text = format!(
            "no link is full and no packet was lost, so TCP's window ({control}) is the limit{}",
            self.busiest_text()
        );
        Some((Limit::new(LimitKind::CongestionControl, &control.to_string()), text))
    }

    fn unknown_limit(&self) -> Finding {
        let text = format!("the measurements do not show the limit{}", self.busiest_text());
        (Limit::new(LimitKind::Unknown, ""), text)
    }

    fn busiest_text(&self) -> String {
        self.busiest().map_or_else(String::new, |link| {
            format!(" (the busiest link, {}, is {})", link_title(link.kind, &link.name), self.busy_text(link.busy))
        })
    }

    fn busy_text(&self, busy: f64) -> String {
        let computed = if self.is_computed { " (computed from the goodput)" } else { "" };
        format!("busy {} of the time{computed}", percent_text(busy.min(1.0)))
    }
}

impl Limit {
    fn new(kind: LimitKind, name: &str) -> Self {
        Self { kind, name: name.to_owned(), links: Vec::new() }
    }
}

/// Returns whether the link that is busiest outside of a stall loses most of its idle time within it.
fn explains_idle_links(timeline: &Timeline, stall: Stall, round_trip: f64) -> bool {
    let step = timeline.step_seconds;
    let (from, to) = (stall.at.as_secs_f64(), (stall.at + stall.length).as_secs_f64() + round_trip);
    let idle_times = timeline.links.iter().filter(|link| !link.busy.is_empty()).map(|link| {
        let (mut within, mut outside) = (0.0, 0.0);
        for (at, busy) in link.busy.iter().enumerate() {
            let is_within = (at + 1) as f64 * step > from && (at as f64) * step < to;
            *(if is_within { &mut within } else { &mut outside }) += 1.0 - f64::from(*busy);
        }
        (within, outside, link.busy.len())
    });
    let busiest = idle_times.min_by(|one, other| one.1.total_cmp(&other.1));
    busiest.is_some_and(|(within, outside, steps)| {
        let all = within + outside;
        all > 0.5 * (1.0 - SATURATED) * steps as f64 && within >= MIN_IDLE_PART * all
    })
}

/// Returns the name of a link with its direction: `sender-3 up`, `rack-0 up`, `leaf-0 down`, `receiver-1 down`.
pub(crate) fn link_title(kind: LinkKind, name: &str) -> String {
    match kind {
        LinkKind::Up | LinkKind::Shared => format!("{name} up"),
        LinkKind::Trunk => name.to_owned(),
        LinkKind::Down => format!("{name} down"),
    }
}

/// Returns links by their kinds: `sender-0 up and 7 more senders' links`.
fn describe_groups(links: &[&LinkUse]) -> String {
    let kinds: BTreeSet<LinkKind> = links.iter().map(|link| link.kind).collect();
    let groups = kinds.into_iter().map(|kind| {
        let mut of_kind = links.iter().filter(|link| link.kind == kind);
        let first = of_kind.next().map_or_else(String::new, |link| link_title(link.kind, &link.name));
        let what = match kind {
            LinkKind::Up => "senders' links",
            LinkKind::Shared => "shared uplinks",
            LinkKind::Trunk => "trunks",
            LinkKind::Down => "receivers' links",
        };
        match of_kind.count() {
            0 => first,
            more => format!("{first} and {} more {what}", format_count(more)),
        }
    });
    groups.collect::<Vec<_>>().join(", ")
}

/// Returns the use of links that the goodput requires, for a laboratory that does not measure it.
fn links_from_goodput(report: &Report, planned: &[Link]) -> Vec<LinkUse> {
    let scenario = &report.scenario;
    let events = report.goodput_bits_per_second / 8.0 / scenario.event_payload_bytes();
    let wire = f64::from(scenario.network.mtu + 38) / f64::from(scenario.network.mtu - crate::scenario::TCP_IP);
    let mut cross = report.cross.as_ref().map_or(0.0, |cross| cross.goodput_bits_per_second / 8.0 * wire);
    let links = planned.iter().map(|link| {
        // Other flows pass the first receiver's link.
        let others = if link.kind == LinkKind::Down { std::mem::take(&mut cross) } else { 0.0 };
        LinkUse {
            name: link.name.clone(),
            kind: link.kind,
            rate_bits_per_second: link.rate.0,
            busy: (events * link.event_bytes + others) / link.rate.bytes_per_second(),
            max_waiting_bytes: 0,
        }
    });
    links.collect()
}
