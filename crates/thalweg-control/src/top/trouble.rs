//! Troubles of an experiment, in the order in which an operator should look at them. Pure: as on the page
//! (`page/src/trouble.ts`).

use crate::alarms::{AlarmView, UNSYNCHRONIZED_CLOCK};
use crate::status::{Status, TroubleLevel};
use std::cmp::Reverse;
use std::collections::BTreeMap;
use thalweg_text::format_seconds;

/// A trouble.
#[derive(Debug, Clone, PartialEq)]
pub struct Trouble {
    /// Severity: `minor` or `major`.
    pub severity: TroubleLevel,
    /// Thing in trouble: the name of a source, a builder, a node.
    pub subject: String,
    /// Host of that thing; empty if it is not known.
    pub host: String,
    /// The trouble in a sentence.
    pub text: String,
    /// Alarms about the same thing.
    pub alarms: Vec<AlarmView>,
}

impl Trouble {
    fn new(severity: TroubleLevel, subject: &str, host: &str, text: impl Into<String>) -> Self {
        Self { severity, subject: subject.to_owned(), host: host.to_owned(), text: text.into(), alarms: Vec::new() }
    }

    /// Returns the time since which there is an alarm: Unix time in seconds.
    pub fn first_alarm_time(&self) -> Option<f64> {
        self.alarms.iter().map(|alarm| alarm.since_at).reduce(f64::min)
    }

    /// Returns whether it has alarms, and all of them are acknowledged.
    pub fn is_acknowledged(&self) -> bool {
        !self.alarms.is_empty() && self.alarms.iter().all(|alarm| alarm.is_acknowledged)
    }

    /// Returns its rank in a list; the lowest comes first.
    fn rank(&self) -> (bool, bool, Reverse<TroubleLevel>) {
        (self.is_acknowledged(), self.alarms.is_empty(), Reverse(self.severity))
    }
}

/// Returns all troubles of an experiment: alarms that are not acknowledged first, acknowledged ones last. Alarms about a
/// thing in trouble share its entry.
pub fn find_troubles(status: &Status) -> Vec<Trouble> {
    let mut troubles = part_troubles(status);
    troubles.extend(reason_troubles(status, &troubles));
    troubles.extend(clock_troubles(status));
    for alarm in status.alarms.iter().filter(|alarm| alarm.is_active) {
        // Ids end with the name of what the alarm is about: `source-silent:adc-1`.
        let (kind, subject) = alarm.id.split_once(':').unwrap_or((&alarm.id, ""));
        let clock = clock_subject(subject);
        let subject = if kind == UNSYNCHRONIZED_CLOCK { &clock } else { subject };
        if let Some(trouble) = troubles.iter_mut().find(|trouble| trouble.subject == subject) {
            trouble.severity = trouble.severity.max(alarm.severity);
            trouble.alarms.push(alarm.clone());
        } else {
            let subject = if subject.is_empty() { kind.replace('-', " ") } else { subject.to_owned() };
            let trouble = Trouble::new(alarm.severity, &subject, "", alarm.text.clone());
            troubles.push(Trouble { alarms: vec![alarm.clone()], ..trouble });
        }
    }
    troubles.sort_by_key(Trouble::rank);
    troubles
}

/// Returns the troubles of sources, builders and processes.
fn part_troubles(status: &Status) -> Vec<Trouble> {
    let sources = status.sources.iter().filter(|source| source.severity != TroubleLevel::Ok);
    let sources = sources.map(|source| Trouble::new(source.severity, &source.name, &source.host, &source.trouble));
    let mut troubles: Vec<Trouble> = sources.collect();
    // Before the configuration nothing is expected of a builder.
    let is_idle = status.state == crate::state::ExperimentState::Idle;
    for builder in status.builders.iter().filter(|builder| !builder.is_node_connected && !is_idle) {
        let text = "its node is not connected to this service";
        troubles.push(Trouble::new(TroubleLevel::Major, &builder.name, &builder.host, text));
    }
    let known: Vec<String> = troubles.iter().map(|trouble| trouble.subject.clone()).collect();
    for process in status.processes.iter().filter(|process| process.state == "failed" && !known.contains(&process.node))
    {
        let text = format!("its process failed: {}", process.last_line);
        troubles.push(Trouble::new(TroubleLevel::Major, &process.node, &process.host, text));
    }
    troubles
}

/// Returns the reasons of the state, of the last refusal, and of numbers that cannot be given, that are not known already
/// from alarms and from troubles.
fn reason_troubles(status: &Status, known: &[Trouble]) -> Vec<Trouble> {
    let missing = known.iter().map(|trouble| format!("node {} is not connected to this service", trouble.subject));
    let alarms = status.alarms.iter().filter(|alarm| alarm.is_active).map(|alarm| alarm.text.clone());
    let known: Vec<String> = missing.chain(alarms).collect();
    let reasons = status.reasons.iter().filter(|reason| !known.contains(reason));
    let numbers = Some(&status.number_problem).filter(|problem| !problem.is_empty());
    let numbers = numbers.map(|problem| Trouble::new(TroubleLevel::Major, "numbers of runs", "", problem));
    reasons.map(|reason| Trouble::new(TroubleLevel::Major, "run control", "", reason)).chain(numbers).collect()
}

/// Returns the hosts whose clock is not synchronised.
fn clock_troubles(status: &Status) -> Vec<Trouble> {
    let mut offsets: BTreeMap<&str, f64> = BTreeMap::new();
    for clock in status.clocks.iter().filter(|clock| clock.is_synchronized == Some(false)) {
        let offset = offsets.entry(&clock.host).or_default();
        *offset = offset.max(clock.offset_seconds.unwrap_or(0.0).abs());
    }
    let troubles = offsets.into_iter().map(|(host, offset)| {
        let text = format!("it is not synchronised, {} off", format_seconds(offset));
        Trouble::new(TroubleLevel::Minor, &clock_subject(host), "", text)
    });
    troubles.collect()
}

fn clock_subject(host: &str) -> String {
    format!("clock of {host}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::status::SourceView;

    fn alarm(id: &str, severity: TroubleLevel, is_acknowledged: bool) -> AlarmView {
        AlarmView { id: id.into(), severity, text: id.into(), is_active: true, is_acknowledged, ..AlarmView::default() }
    }

    #[test]
    fn alarms_come_first_and_acknowledged_ones_last() {
        let source = |name: &str, severity| SourceView {
            name: name.into(),
            severity,
            trouble: "it has lost something".into(),
            ..SourceView::default()
        };
        let status = Status {
            sources: vec![
                source("adc-0", TroubleLevel::Ok),
                source("adc-1", TroubleLevel::Minor),
                source("adc-2", TroubleLevel::Major),
            ],
            alarms: vec![
                alarm("disk-full", TroubleLevel::Minor, false),
                alarm("source-silent:adc-1", TroubleLevel::Major, false),
                alarm("process-missing:adc-9", TroubleLevel::Major, true),
                AlarmView { is_active: false, ..alarm("over", TroubleLevel::Major, false) },
            ],
            reasons: vec!["arm: host a is not fit".into()],
            number_problem: "the file is locked".into(),
            ..Status::default()
        };
        let troubles = find_troubles(&status);
        let order: Vec<(&str, TroubleLevel)> = troubles.iter().map(|t| (t.subject.as_str(), t.severity)).collect();
        use TroubleLevel::{Major, Minor};
        let expected = [
            ("adc-1", Major),
            ("disk full", Minor),
            ("adc-2", Major),
            ("run control", Major),
            ("numbers of runs", Major),
            ("adc-9", Major),
        ];
        assert_eq!(order, expected);
        assert_eq!(troubles[0].text, "it has lost something", "what is known of the source, and not the alarm's text");
    }
}
