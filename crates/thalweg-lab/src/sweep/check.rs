//! Conditions on every cell of a sweep.

use crate::report::Report;
use serde::Serialize;
use thalweg_text::format_volume;

/// A number of a report, by name.
#[derive(Debug, Clone, Copy)]
pub struct Figure {
    /// Name in a sweep file.
    pub name: &'static str,
    of: fn(&Report) -> Option<f64>,
}

/// Figures that `[check]` may use.
pub const FIGURES: [Figure; 17] = [
    // Goodput over Scenario::ceiling.
    Figure { name: "share_of_ceiling", of: |report| Some(report.share_of_ceiling) },
    Figure { name: "goodput_bits_per_second", of: |report| Some(report.goodput_bits_per_second) },
    // The numbers of the measured time.
    Figure { name: "retransmissions", of: |report| Some(report.retransmissions as f64) },
    Figure { name: "timeouts", of: |report| Some(report.timeouts as f64) },
    Figure { name: "drops", of: |report| Some(report.drops as f64) },
    // The numbers of the whole run, with its start.
    Figure { name: "whole_run_retransmissions", of: |report| Some(report.whole_run.retransmissions as f64) },
    Figure { name: "whole_run_timeouts", of: |report| Some(report.whole_run.timeouts as f64) },
    Figure { name: "incomplete_events", of: |report| Some(report.events.incomplete as f64) },
    Figure { name: "complete_events", of: |report| Some(report.events.complete as f64) },
    Figure { name: "p99_us", of: |report| Some(report.completion?.p99_us) },
    Figure { name: "worst_us", of: |report| Some(report.completion?.max_us) },
    // The longest queue over the size of the port's buffer.
    Figure {
        name: "queue_of_buffer",
        of: |report| Some(report.queue.max_bytes as f64 / report.queue.limit_bytes as f64),
    },
    // The p99 completion over the least possible: a round trip, and the event's payload at the receiver's rate.
    Figure {
        name: "p99_of_least",
        of: |report| Some(report.completion?.p99_us * 1e-6 / least_completion_seconds(report)),
    },
    // The goodput of the other flows, over the ceiling.
    Figure {
        name: "cross_share",
        of: |report| Some(report.cross.as_ref()?.goodput_bits_per_second / report.ceiling_bits_per_second),
    },
    // Figures of the model: messages' bytes over those of all payloads, and the most that a node had to hold.
    Figure { name: "messages_of_bytes", of: |report| Some(report.bookkeeping.as_ref()?.share_of_bytes) },
    Figure { name: "builder_bytes", of: |report| Some(report.bookkeeping.as_ref()?.builder_bytes as f64) },
    Figure { name: "source_bytes", of: |report| Some(report.bookkeeping.as_ref()?.source_bytes as f64) },
];

impl Figure {
    /// Returns the figure of this name.
    pub(crate) fn find_by_name(name: &str) -> Option<Self> {
        FIGURES.into_iter().find(|figure| figure.name == name)
    }

    /// Returns the value in a report, or `None` if it has none.
    pub(crate) fn value_in_report(&self, report: &Report) -> Option<f64> {
        (self.of)(report).filter(|value| value.is_finite())
    }

    /// Returns the name in words.
    pub(crate) fn spaced_name(&self) -> String {
        self.name.replace('_', " ")
    }

    /// Formats a value for a table or a sentence. Shares are shown in percent.
    pub(crate) fn format_value(&self, value: f64) -> String {
        match self.name {
            "share_of_ceiling" | "queue_of_buffer" | "cross_share" => format!("{:.1} %", 100.0 * value),
            "messages_of_bytes" => format!("{:.2} %", 100.0 * value),
            #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "it was counted")]
            name if name.ends_with("_bytes") => format_volume(value as u64),
            _ if value.fract() == 0.0 => format!("{value:.0}"),
            _ => format!("{value:.1}"),
        }
    }
}

fn least_completion_seconds(report: &Report) -> f64 {
    let scenario = &report.scenario;
    scenario.round_trip_time().as_secs_f64()
        + scenario.event_payload_bytes() / scenario.fastest_port().bytes_per_second()
}

/// A figure, a comparison, and a limit.
#[derive(Debug, Clone, Copy)]
pub struct Check {
    figure: Figure,
    compare: &'static str,
    with: f64,
}

/// Result of a check.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Checked {
    /// The check, as in the file.
    pub check: String,
    /// Value of the figure; `None` if the report has none, which fails the check.
    pub value: Option<f64>,
    /// True if the check passes.
    pub holds: bool,
}

impl Check {
    /// Parses a check, such as `share_of_ceiling` and `>= 0.98`.
    pub(crate) fn parse(name: &str, text: &str) -> Option<Self> {
        let figure = Figure::find_by_name(name)?;
        let compare = [">=", "<=", "=="].into_iter().find(|compare| text.trim().starts_with(compare))?;
        let with: f64 = text.trim().strip_prefix(compare)?.trim().parse().ok()?;
        with.is_finite().then_some(Self { figure, compare, with })
    }

    /// Returns the figure that is checked.
    pub(crate) fn figure(&self) -> Figure {
        self.figure
    }

    /// Returns a measure that is larger the nearer a value is to failing, or the further beyond it.
    pub(crate) fn failure_margin(&self, value: f64) -> f64 {
        match self.compare {
            ">=" => self.with - value,
            "<=" => value - self.with,
            _ => (value - self.with).abs(),
        }
    }

    /// Checks a report.
    pub fn check_report(&self, report: &Report) -> Checked {
        let value = self.figure.value_in_report(report);
        let holds = value.is_some_and(|value| match self.compare {
            ">=" => value >= self.with,
            "<=" => value <= self.with,
            _ => value == self.with,
        });
        Checked { check: self.to_string(), value, holds }
    }
}

impl std::fmt::Display for Check {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {} {}", self.figure.name, self.compare, self.with)
    }
}

impl std::fmt::Display for Checked {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.value {
            Some(value) if value.fract() == 0.0 => write!(f, "{value:.0}, not {}", self.check),
            Some(value) => write!(f, "{value:.4}, not {}", self.check),
            None => write!(f, "nothing, not {}", self.check),
        }
    }
}
