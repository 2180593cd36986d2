//! Figures for Prometheus, in its text format.
//!
//! Names follow its rules (prometheus.io/docs/practices/naming): base units, `_total` for counters. Counts of a run are
//! counters that begin anew with each run. Labels name states, nodes and sources alone, so that their number is bounded.

use crate::state::ExperimentState;
use crate::status::{BuilderView, LedgerView, SourceView, Status, TroubleLevel};
use std::fmt::{Display, Write as _};

/// Returns the figures of a status.
pub fn metrics_text(status: &Status) -> String {
    let mut text = Metrics(String::new());
    add_experiment(&mut text, status);
    add_run(&mut text, status);
    add_sources(&mut text, &status.sources);
    add_builders(&mut text, &status.builders);
    add_nodes(&mut text, status);
    add_notices(&mut text, status);
    text.0
}

fn add_experiment(text: &mut Metrics, status: &Status) {
    text.add_family("thalweg_build_info", "gauge", "1, with the version of the service.");
    text.add_sample("thalweg_build_info", &[("version", &status.service.version)], 1);
    let begun = status.service.since_at;
    text.add_single("thalweg_start_time_seconds", "gauge", "Unix time at which the service began.", begun);
    text.add_family("thalweg_state", "gauge", "1 for the state of the experiment, 0 for the others.");
    for state in ExperimentState::ALL {
        text.add_sample("thalweg_state", &[("state", state.name())], u8::from(status.state == state));
    }
    if let Some(free) = status.disk.free_bytes {
        text.add_single("thalweg_disk_free_bytes", "gauge", "Free bytes on the disk of the runs.", free);
    }
    if let Some(left) = status.disk.seconds_left {
        let help = "Time after which the disk of the runs is full at the present rate.";
        text.add_single("thalweg_disk_left_seconds", "gauge", help, left);
    }
}

fn add_run(text: &mut Metrics, status: &Status) {
    let number = status.run.as_ref().map_or(0, |run| run.number);
    text.add_single("thalweg_run_number", "gauge", "Number of the run under way; 0 if there is none.", number);
    let totals = &status.totals;
    let counters = [
        ("thalweg_events_total", "Events closed in the run.", totals.events),
        ("thalweg_incomplete_events_total", "Events closed incomplete in the run.", totals.incomplete),
        ("thalweg_built_bytes_total", "Payload bytes built in the run.", totals.bytes),
    ];
    for (name, help, value) in counters {
        text.add_single(name, "counter", help, value);
    }
}

/// Name of a figure, its help, and its value for one of several sources or builders.
type Figure<T, Value> = (&'static str, &'static str, fn(&T) -> Value);

fn add_sources(text: &mut Metrics, sources: &[SourceView]) {
    let name = "thalweg_source_fragments_total";
    text.add_family(name, "counter", "Fragments of the run by source and bucket of the ledger.");
    for source in sources {
        for (bucket, count) in buckets(&source.ledger) {
            text.add_sample(name, &[("source", &source.name), ("bucket", bucket)], count);
        }
    }
    let counters: [Figure<SourceView, u64>; 3] = [
        ("thalweg_source_bytes_total", "Payload bytes built in the run.", |source| source.bytes),
        ("thalweg_source_sent_again_bytes_total", "Bytes sent again in the run because they were lost.", |source| {
            source.sent_again_bytes
        }),
        ("thalweg_source_absent_events_total", "Events of the run closed without the source.", |source| {
            source.absent_events
        }),
    ];
    for (name, help, value) in counters {
        text.add_family(name, "counter", help);
        sources.iter().for_each(|source| text.add_sample(name, &[("source", &source.name)], value(source)));
    }
    let gauges: [Figure<SourceView, Option<f64>>; 6] = [
        ("thalweg_source_linked", "1 if the first builder is connected with the source.", |source| {
            Some(f64::from(u8::from(source.is_linked)))
        }),
        ("thalweg_source_pending_fragments", "Fragments accepted that are in no bucket yet.", |source| {
            Some(source.ledger.on_the_way as f64)
        }),
        ("thalweg_source_open_offers", "Open offers of the source.", |source| Some(source.backlog as f64)),
        ("thalweg_source_credit_bytes", "Bytes requested of the source and not yet received.", |source| {
            Some(source.credit_bytes as f64)
        }),
        ("thalweg_source_owed_seconds", "Time for which the source has owed bytes.", |source| {
            Some(source.owes_seconds)
        }),
        (
            "thalweg_source_dead_ratio",
            "Share of the time in which the source took nothing from its device though it should have.",
            |source| source.dead_percent.map(|percent| percent / 100.0),
        ),
    ];
    for (name, help, value) in gauges {
        text.add_family(name, "gauge", help);
        for source in sources {
            if let Some(value) = value(source) {
                text.add_sample(name, &[("source", &source.name)], value);
            }
        }
    }
}

/// Buckets in which a fragment stays.
fn buckets(ledger: &LedgerView) -> [(&'static str, u64); 8] {
    [
        ("built", ledger.built),
        ("rejected", ledger.rejected),
        ("dropped", ledger.dropped),
        ("lost_in_device", ledger.lost_in_device),
        ("late", ledger.late),
        ("corrupt", ledger.corrupt),
        ("lost", ledger.lost),
        ("beyond_end", ledger.beyond_end),
    ]
}

fn add_builders(text: &mut Metrics, builders: &[BuilderView]) {
    let counters: [Figure<BuilderView, u64>; 2] = [
        ("thalweg_builder_events_total", "Events of the run that the builder has closed.", |builder| builder.events),
        (
            "thalweg_builder_incomplete_events_total",
            "Events of the run that the builder has closed incomplete.",
            |builder| builder.incomplete,
        ),
    ];
    for (name, help, value) in counters {
        text.add_family(name, "counter", help);
        builders.iter().for_each(|builder| text.add_sample(name, &[("builder", &builder.name)], value(builder)));
    }
    let name = "thalweg_builder_stalled_ratio";
    text.add_family(name, "gauge", "Share of the time in which the builder was held up by its disk.");
    for builder in builders {
        text.add_sample(name, &[("builder", &builder.name)], builder.stalled_percent / 100.0);
    }
}

fn add_nodes(text: &mut Metrics, status: &Status) {
    text.add_family("thalweg_node_up", "gauge", "1 if the node is connected with the service.");
    for process in &status.processes {
        text.add_sample("thalweg_node_up", &[("node", &process.node)], u8::from(process.state == "up"));
    }
    let name = "thalweg_clock_offset_seconds";
    text.add_family(name, "gauge", "Difference of the clock of the node's host to that of the service.");
    for clock in &status.clocks {
        if let Some(offset) = clock.offset_seconds {
            text.add_sample(name, &[("node", &clock.node)], offset);
        }
    }
    let name = "thalweg_clock_synchronized";
    text.add_family(name, "gauge", "1 if the kernel of the node's host says that its clock is synchronised.");
    for clock in &status.clocks {
        if let Some(is_synchronized) = clock.is_synchronized {
            text.add_sample(name, &[("node", &clock.node)], u8::from(is_synchronized));
        }
    }
}

fn add_notices(text: &mut Metrics, status: &Status) {
    text.add_family("thalweg_alarms", "gauge", "Active alarms by severity, and by whether they are acknowledged.");
    for (severity, level) in [("minor", TroubleLevel::Minor), ("major", TroubleLevel::Major)] {
        for (label, is_acknowledged) in [("false", false), ("true", true)] {
            let active = status.alarms.iter().filter(|alarm| alarm.is_active && alarm.severity == level);
            let count = active.filter(|alarm| alarm.is_acknowledged == is_acknowledged).count();
            text.add_sample("thalweg_alarms", &[("severity", severity), ("acknowledged", label)], count);
        }
    }
    let name = "thalweg_notices_total";
    text.add_family(name, "counter", "Notices that a destination has taken, and those that were left out.");
    for destination in &status.destinations {
        for (result, count) in [("sent", destination.sent), ("left_out", destination.left_out)] {
            text.add_sample(name, &[("destination", &destination.name), ("result", result)], count);
        }
    }
    let name = "thalweg_notices_waiting";
    text.add_family(name, "gauge", "Notices that wait for a destination.");
    for destination in &status.destinations {
        text.add_sample(name, &[("destination", &destination.name)], destination.waiting);
    }
}

/// Text in the format of Prometheus.
struct Metrics(String);

impl Metrics {
    fn add_family(&mut self, name: &str, kind: &str, help: &str) {
        let _ = write!(self.0, "# HELP {name} {help}\n# TYPE {name} {kind}\n");
    }

    fn add_sample(&mut self, name: &str, labels: &[(&str, &str)], value: impl Display) {
        let labels: Vec<String> = labels
            .iter()
            .map(|(label, value)| {
                format!("{label}=\"{}\"", value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n"))
            })
            .collect();
        let labels = if labels.is_empty() { String::new() } else { format!("{{{}}}", labels.join(",")) };
        let _ = writeln!(self.0, "{name}{labels} {value}");
    }

    fn add_single(&mut self, name: &str, kind: &str, help: &str, value: impl Display) {
        self.add_family(name, kind, help);
        self.add_sample(name, &[], value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::alarms::AlarmView;

    #[test]
    fn a_name_with_quotes_is_one_label() {
        let source = SourceView { name: "a\"b\\c\nd".into(), ..SourceView::default() };
        let text = metrics_text(&Status { sources: vec![source], ..Status::default() });
        assert!(text.contains(r#"thalweg_source_open_offers{source="a\"b\\c\nd"} 0"#), "{text}");
        assert!(!text.contains("thalweg_source_dead_ratio{"), "what is not known has no value");
        assert!(text.lines().all(|line| line.starts_with("# ") || line.starts_with("thalweg_")));
    }

    #[test]
    fn silenced_alarms_are_counted_apart() {
        let alarm = |is_active, is_acknowledged| AlarmView {
            severity: TroubleLevel::Major,
            is_active,
            is_acknowledged,
            ..AlarmView::default()
        };
        let alarms = vec![alarm(true, true), alarm(true, false), alarm(true, false), alarm(false, false)];
        let text = metrics_text(&Status { alarms, ..Status::default() });
        assert!(text.contains(r#"thalweg_alarms{severity="major",acknowledged="true"} 1"#), "{text}");
        assert!(text.contains(r#"thalweg_alarms{severity="major",acknowledged="false"} 2"#), "{text}");
        assert!(text.contains(r#"thalweg_alarms{severity="minor",acknowledged="true"} 0"#), "{text}");
    }
}
