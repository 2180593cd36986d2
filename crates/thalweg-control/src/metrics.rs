//! Figures for Prometheus, in its text format. Labels name nodes and sources alone, so that their number is bounded.

use crate::state::ExperimentState;
use crate::status::{LedgerView, SourceView, Status};
use std::fmt::Write as _;

/// Returns the figures of a status.
pub fn metrics_text(status: &Status) -> String {
    let mut text = Metrics(String::new());
    text.add_family("thalweg_state", "gauge", "1 for the state of the experiment, 0 for the others.");
    for state in ExperimentState::ALL {
        text.add_sample("thalweg_state", &[("state", state.name())], f64::from(u8::from(status.state == state)));
    }
    text.add_single(
        "thalweg_run_number",
        "gauge",
        "Number of the run under way; 0 if there is none.",
        status.run.as_ref().map_or(0.0, |run| f64::from(run.number)),
    );
    let totals = &status.totals;
    text.add_single("thalweg_run_events", "gauge", "Events closed in the run.", totals.events as f64);
    text.add_single(
        "thalweg_run_incomplete_events",
        "gauge",
        "Events closed incomplete in the run.",
        totals.incomplete as f64,
    );
    text.add_single("thalweg_run_bytes", "gauge", "Payload bytes built in the run.", totals.bytes as f64);
    text.add_single(
        "thalweg_disk_stalled_ratio",
        "gauge",
        "Share of the time in which a builder was held up by its disk.",
        totals.stalled_percent / 100.0,
    );
    if let Some(free) = status.disk.free_bytes {
        text.add_single("thalweg_disk_free_bytes", "gauge", "Free bytes on the disk of the runs.", free as f64);
    }
    text.add_family("thalweg_source_fragments", "gauge", "Fragments of the run by source and bucket of the ledger.");
    for source in &status.sources {
        for (bucket, count) in buckets(&source.ledger) {
            text.add_sample("thalweg_source_fragments", &[("source", &source.name), ("bucket", bucket)], count as f64);
        }
    }
    let gauges: [(&str, &str, Value); 6] = [
        ("thalweg_source_bytes", "Payload bytes built in the run.", |source| source.bytes as f64),
        ("thalweg_source_linked", "1 if the first builder is connected with the source.", |source| {
            f64::from(u8::from(source.is_linked))
        }),
        ("thalweg_source_backlog", "Open offers of the source.", |source| source.backlog as f64),
        ("thalweg_source_credit_bytes", "Bytes requested of the source and not yet received.", |source| {
            source.credit_bytes as f64
        }),
        ("thalweg_source_owes_seconds", "Time for which the source has owed bytes.", |source| source.owes_seconds),
        (
            "thalweg_source_dead_ratio",
            "Share of the time in which the source took nothing from its device though it should have.",
            |source| source.dead_percent.unwrap_or(f64::NAN) / 100.0,
        ),
    ];
    for (name, help, value) in gauges {
        text.add_family(name, "gauge", help);
        for source in &status.sources {
            text.add_sample(name, &[("source", &source.name)], value(source));
        }
    }
    text.add_family("thalweg_node_up", "gauge", "1 if the node is connected with the service.");
    for process in &status.processes {
        text.add_sample("thalweg_node_up", &[("node", &process.node)], f64::from(u8::from(process.state == "up")));
    }
    text.add_family("thalweg_alarms", "gauge", "Active alarms, by whether they are acknowledged.");
    let active = status.alarms.iter().filter(|alarm| alarm.is_active).count();
    text.add_sample("thalweg_alarms", &[("acknowledged", "false")], (active - status.silenced_alarms) as f64);
    text.add_sample("thalweg_alarms", &[("acknowledged", "true")], status.silenced_alarms as f64);
    text.0
}

/// Value of a source.
type Value = fn(&SourceView) -> f64;

fn buckets(ledger: &LedgerView) -> [(&'static str, u64); 9] {
    [
        ("built", ledger.built),
        ("rejected", ledger.rejected),
        ("dropped", ledger.dropped),
        ("lost_in_device", ledger.lost_in_device),
        ("late", ledger.late),
        ("corrupt", ledger.corrupt),
        ("lost", ledger.lost),
        ("beyond_end", ledger.beyond_end),
        ("on_the_way", ledger.on_the_way),
    ]
}

/// Text in the format of Prometheus.
struct Metrics(String);

impl Metrics {
    fn add_family(&mut self, name: &str, kind: &str, help: &str) {
        let _ = write!(self.0, "# HELP {name} {help}\n# TYPE {name} {kind}\n");
    }

    fn add_sample(&mut self, name: &str, labels: &[(&str, &str)], value: f64) {
        let labels: Vec<String> = labels
            .iter()
            .map(|(label, value)| {
                format!("{label}=\"{}\"", value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n"))
            })
            .collect();
        let labels = if labels.is_empty() { String::new() } else { format!("{{{}}}", labels.join(",")) };
        let _ = writeln!(self.0, "{name}{labels} {value}");
    }

    fn add_single(&mut self, name: &str, kind: &str, help: &str, value: f64) {
        self.add_family(name, kind, help);
        self.add_sample(name, &[], value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_with_quotes_is_one_label() {
        let source = SourceView { name: "a\"b\\c\nd".into(), ..SourceView::default() };
        let text = metrics_text(&Status { sources: vec![source], ..Status::default() });
        assert!(text.contains(r#"thalweg_source_backlog{source="a\"b\\c\nd"} 0"#), "{text}");
        assert!(text.lines().all(|line| line.starts_with("# ") || line.starts_with("thalweg_")));
    }
}
