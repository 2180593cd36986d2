//! The answer of a run, before all its figures: the rate that was offered, the rate that was carried, and the limit.
//!
//! The limit follows from what was measured: how busy each link was, TCP's timeouts and retransmissions, the credit
//! that was out, the builders that stalled or were killed. The scenario's own arithmetic (its
//! [ceiling](Scenario::ceiling_bits_per_second)) is only compared with it; where they disagree, the sentence says so.

mod evidence;
#[cfg(test)]
mod tests;

use crate::report::Report;
use crate::scenario::Scenario;
use evidence::Evidence;
use serde::{Deserialize, Serialize};
use thalweg_text::format_bit_rate;

/// Offered and carried rate of payload, and the limit.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Verdict {
    /// Rate at which the sources have payload, in bits per second; `None` if they always have more.
    pub offered_bits_per_second: Option<f64>,
    /// Rate of payload in built events, in bits per second.
    pub carried_bits_per_second: f64,
    /// True if the offered rate was carried and no event was incomplete; `None` if sources always have more.
    pub carries_offered: Option<bool>,
    /// Reason why not more was carried.
    pub limit: Limit,
    /// All of this in one sentence.
    pub sentence: String,
}

/// Reason why a system does not carry more.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limit {
    /// Kind of the limit.
    pub kind: LimitKind,
    /// Name of the link, the node or the congestion control; empty if there is none.
    pub name: String,
    /// All links that are equally busy, if links are the limit.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub links: Vec<String>,
}

/// Kind of a limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LimitKind {
    /// The sources offer no more.
    Sources,
    /// A link that is busy.
    Link,
    /// A builder that stalls or was killed.
    Builder,
    /// Other flows on a link.
    OtherFlows,
    /// Packets that are lost on the way.
    Loss,
    /// TCP's timeouts.
    Timeouts,
    /// Window of TCP's congestion control.
    CongestionControl,
    /// Credit of a builder.
    Credit,
    /// Round trips between one event and the next.
    RoundTrips,
    /// Processors of the host, which in real time do the work of all nodes and of other processes.
    Processors,
    /// The measurements do not show it.
    Unknown,
    /// Nothing was measured: a calibration.
    NotMeasured,
}

impl Limit {
    /// Returns the limit in a few words: its link, or the kind of several equal links, or its kind.
    pub fn title(&self) -> String {
        let Self { kind, name, links } = self;
        match kind {
            LimitKind::Sources => "the sources offer no more".into(),
            LimitKind::Link if links.len() > 1 => links_title(links),
            LimitKind::Link => name.clone(),
            LimitKind::Builder => format!("the builder of {name}"),
            LimitKind::OtherFlows => format!("other flows on {name}"),
            LimitKind::Loss => "lost packets".into(),
            LimitKind::Timeouts => format!("timeouts of TCP ({name})"),
            LimitKind::CongestionControl => format!("TCP's congestion control ({name})"),
            LimitKind::Credit => format!("the credit of {name}"),
            LimitKind::RoundTrips => "round trips between events".into(),
            LimitKind::Processors => "the host's processors".into(),
            LimitKind::Unknown => "unknown".into(),
            LimitKind::NotMeasured => "not measured (calibration)".into(),
        }
    }
}

/// Returns the kinds of several links: `the senders' links`.
fn links_title(links: &[String]) -> String {
    const KINDS: [(&str, &str); 4] = [
        ("sender-", "the senders' links"),
        ("rack-", "the shared uplinks"),
        ("leaf-", "the trunks"),
        ("receiver-", "the receivers' links"),
    ];
    let kinds = KINDS.into_iter().filter(|(prefix, _)| links.iter().any(|link| link.starts_with(prefix)));
    kinds.map(|(_, title)| title).collect::<Vec<_>>().join(" and ")
}

/// Part of the offered rate that may be missing before it counts as not carried.
pub const CARRIED_TOLERANCE: f64 = 0.01;

impl Scenario {
    /// Returns the rate at which sources have payload, in bits per second; `None` if they always have more.
    pub fn offered_bits_per_second(&self) -> Option<f64> {
        Some(self.event_payload_bytes() * 8.0 / self.traffic.interval?.as_secs_f64())
    }
}

impl Verdict {
    /// Judges a report.
    pub fn for_report(report: &Report) -> Self {
        let offered_bits_per_second = report.scenario.offered_bits_per_second();
        let carried_bits_per_second = report.goodput_bits_per_second;
        let evidence = Evidence::of_report(report);
        let carries_offered = offered_bits_per_second.map(|offered| carries_rate(report, offered, &evidence));
        let (limit, reason) = evidence.find_limit(carries_offered);
        let rates = rates_text(offered_bits_per_second, carried_bits_per_second, carries_offered);
        let sentence = match limit.kind {
            LimitKind::NotMeasured => reason,
            _ => format!("{rates}: {reason}{}.", evidence.disagreement_text(&limit)),
        };
        Self { offered_bits_per_second, carried_bits_per_second, carries_offered, limit, sentence }
    }
}

/// Returns whether an offered rate was carried: all but [`CARRIED_TOLERANCE`] of it or, if no link is full, all but one
/// burst of events, which may be complete only after the end of a short measurement.
fn carries_rate(report: &Report, offered: f64, evidence: &Evidence<'_>) -> bool {
    let period = report.scenario.burst_period().map_or(0.0, |period| period.as_secs_f64());
    let burst = if evidence.has_full_link() { 0.0 } else { period / report.measured_seconds.max(1e-9) };
    // If a burst is most of what was offered, its lack is no rounding at the end.
    let tolerance = CARRIED_TOLERANCE.max(if burst < MAX_BURST_PART { burst } else { 0.0 });
    report.events.incomplete == 0 && report.goodput_bits_per_second >= (1.0 - tolerance) * offered
}

/// Largest part of the measured time that one burst may take and still be left out.
const MAX_BURST_PART: f64 = 0.2;

fn rates_text(offered: Option<f64>, carried: f64, carries_offered: Option<bool>) -> String {
    let carried_text = format_bit_rate(carried);
    match (offered, carries_offered) {
        (None, _) => format!("The sources always have more, carried {carried_text}"),
        (Some(offered), Some(true)) => format!("Offered {}, all of it carried", format_bit_rate(offered)),
        (Some(offered), _) => {
            let share = percent_text(carried / offered);
            format!("Offered {}, carried {carried_text} ({share})", format_bit_rate(offered))
        }
    }
}

/// Formats a share as percent with three digits; 99.97 % is not rounded to 100 %.
pub(crate) fn percent_text(share: f64) -> String {
    let percent = 100.0 * if share.is_finite() { share } else { 0.0 };
    let shown = if percent < 100.0 { percent.min(99.9) } else { percent };
    format!("{} %", thalweg_text::format_number(shown))
}
