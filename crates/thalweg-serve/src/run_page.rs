//! Page of a run: its outcome, its words, and its ledger, as HTML.

use serde_json::{Map, Value};
use thalweg_core::build::{Ledger, LedgerEntry};
use thalweg_store::{RunInfo, RunState, WriterLife, run_state_text};
use thalweg_text::html::{escape_html, list_html, paragraph_html, table_html};
use thalweg_text::tone::Tone;
use thalweg_text::{format_count, format_seconds, format_utc};

/// Maximum number of reasons, of sources and of keys of metadata that a page shows; `run.json` has all.
const MAX_ROWS: usize = 1000;
/// Maximum number of characters of comment and metadata in a list of runs.
const MAX_SUMMARY_CHARACTERS: usize = 160;

/// Returns the facts about a run as HTML, all above its files. `died`: sentences of [`died_text`].
pub(crate) fn run_html(info: &RunInfo, writer: Option<WriterLife>, died: &[String]) -> String {
    let mut out = outcome_html(info, writer);
    out.push_str(&list_html("warnings", died));
    let reasons = info.reasons.iter().take(MAX_ROWS).map(|reason| format!("because: {reason}"));
    let more = info.reasons.len().saturating_sub(MAX_ROWS);
    let more = (more > 0).then(|| format!("and {} more reasons, in run.json", format_count(more)));
    out.push_str(&list_html("warnings", reasons.chain(more)));
    out.push_str(&table_html::<&str>("facts", &[], fact_rows(info)));
    if !info.metadata.is_empty() {
        let rows = info.metadata.iter().take(MAX_ROWS).map(|(key, value)| vec![key.clone(), value_text(value)]);
        out.push_str("<h2>Metadata</h2>\n");
        out.push_str(&table_html::<&str>("facts", &[], rows));
    }
    out.push_str(&sources_html(info));
    out
}

/// Returns comment and metadata of a run in one short line; empty if it has none.
pub(crate) fn words_summary(info: &RunInfo) -> String {
    let facts = info.metadata.iter().map(|(key, value)| format!("{key} = {}", value_text(value)));
    let words = Some(info.comment.clone()).filter(|comment| !comment.is_empty()).into_iter().chain(facts);
    let whole = words.take(MAX_ROWS).collect::<Vec<_>>().join("; ");
    match whole.char_indices().nth(MAX_SUMMARY_CHARACTERS) {
        Some((at, _)) => format!("{}…", &whole[..at]),
        None => whole,
    }
}

/// Returns the state of the run, in colour, and the sentence on its rates.
fn outcome_html(info: &RunInfo, writer: Option<WriterLife>) -> String {
    let state = run_state_text(info.state, writer);
    let class = Tone::from_verdict(state).map_or("", Tone::css_class);
    let mut out = format!("<p><span class=\"{class}\">{}</span></p>\n", escape_html(state));
    if let Some(verdict) = info.find_verdict() {
        out.push_str(&paragraph_html("", &verdict.sentence));
    }
    out
}

/// Returns a sentence that names the builder of an open run that died, with what to do; `None` if it did not.
pub(crate) fn died_text(info: &RunInfo, writer: Option<WriterLife>) -> Option<String> {
    if info.state != RunState::Open || writer != Some(WriterLife::Gone) {
        return None;
    }
    let name = info.configuration["builder"][info.builder as usize]["name"].as_str();
    let node = name.map_or_else(|| format!("builder {}", info.builder), |name| format!("builder '{name}'"));
    let writer = &info.writer;
    Some(format!(
        "{node} (process {} on {}) died before it closed the run: what it had not written by then is lost. \
         thalweg salvage RUN makes a closed run of what is whole.",
        writer.pid, writer.host
    ))
}

fn fact_rows(info: &RunInfo) -> Vec<Vec<String>> {
    let offset = info.tai_utc_offset;
    let mut rows = Vec::new();
    if !info.comment.is_empty() {
        rows.push(vec!["comment".into(), info.comment.clone()]);
    }
    rows.push(vec!["began".into(), format!("{} UTC", format_utc(info.began, offset))]);
    if let Some(ended) = info.ended {
        let took = format_seconds(info.totals.seconds);
        rows.push(vec!["ended".into(), format!("{} UTC, after {took}", format_utc(ended, offset))]);
        let incomplete = format_count(info.totals.incomplete_events);
        let events = format_count(info.totals.events);
        rows.push(vec!["events".into(), format!("{events} ({incomplete} incomplete)")]);
    }
    for origin in ["simulated", "replayed"] {
        let of_origin = info.sources.iter().filter(|source| source.description[origin] == Value::Bool(true));
        let names: Vec<&str> = of_origin.map(|source| source.name.as_str()).take(MAX_ROWS).collect();
        if !names.is_empty() {
            rows.push(vec![origin.into(), format!("the data of {}", names.join(", "))]);
        }
    }
    let writer = &info.writer;
    let program = format!("{} {}, process {} on {}", writer.program, writer.version, writer.pid, writer.host);
    rows.push(vec!["written by".into(), program]);
    rows
}

/// Returns the sources with the ledger, or their names alone while there is none.
fn sources_html(info: &RunInfo) -> String {
    if info.sources.is_empty() {
        return String::new();
    }
    let ledger = match info.read_ledger() {
        Ok(ledger) => ledger,
        Err(error) => return paragraph_html("quiet", &format!("The ledger cannot be read: {error}")),
    };
    let mut out = "<h2>Sources</h2>\n".to_owned();
    if ledger.sources.is_empty() {
        let rows = info.sources.iter().take(MAX_ROWS).map(|source| vec![source.id.to_string(), source.name.clone()]);
        out.push_str(&table_html("words", &["source", "name"], rows));
        return out;
    }
    out.push_str(&paragraph_html("quiet", "Ledger: where each fragment that a source accepted has gone."));
    out.push_str(&ledger_html(&ledger));
    out
}

fn ledger_html(ledger: &Ledger) -> String {
    let shown: Vec<_> = LedgerEntry::COLUMNS.iter().filter(|column| column.is_shown(ledger)).collect();
    let headings: Vec<&str> = ["source", "name"].into_iter().chain(shown.iter().map(|column| column.name)).collect();
    let rows = ledger.sources.iter().take(MAX_ROWS).map(|entry| {
        let figures = shown.iter().map(|column| {
            // The last counter of a source that is gone is the least that it accepted.
            let least = if column.name == "accepted" && !entry.final_counters { "≥ " } else { "" };
            format!("{least}{}", format_count((column.figure)(entry)))
        });
        [entry.source.clone(), entry.name.clone()].into_iter().chain(figures).collect::<Vec<String>>()
    });
    let mut out = table_html("beside", &headings, rows);
    if let more @ 1.. = ledger.sources.len().saturating_sub(MAX_ROWS) {
        out.push_str(&paragraph_html("quiet", &format!("and {} more sources, in run.json", format_count(more))));
    }
    out
}

/// Returns a value of metadata as text: text as it is, anything else as JSON.
fn value_text(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

/// Returns the metadata of a run if it has any.
pub(crate) fn some_metadata(info: &RunInfo) -> Option<Map<String, Value>> {
    Some(info.metadata.clone()).filter(|metadata| !metadata.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn run(changes: Value) -> RunInfo {
        let mut text = json!({
            "format": "thalweg-run", "version": 1, "run": 7, "builder": 0, "builders": 1, "state": "OPEN",
            "began": 1_795_292_395_000_000_000_u64, "ended": null, "tai_utc_offset": 37,
            "writer": { "program": "thalweg", "version": "0.1.0", "host": "daq1", "pid": 4711 }, "recorder": {},
            "sources": [{ "id": "1.0", "name": "adc-0" }],
            "configuration": { "builder": [{ "name": "eb" }] },
        });
        text.as_object_mut().unwrap().extend(changes.as_object().unwrap().clone());
        serde_json::from_value(text).unwrap()
    }

    #[test]
    fn a_run_that_died_names_the_node_that_died() {
        let (info, writer) = (run(json!({})), Some(WriterLife::Gone));
        let html = run_html(&info, writer, &died_text(&info, writer).into_iter().collect::<Vec<_>>());
        assert!(html.contains("OPEN, died"), "{html}");
        assert!(html.contains("builder &#39;eb&#39; (process 4711 on daq1) died"), "{html}");
        assert!(html.contains("<td>adc-0</td>"), "{html}");
    }

    #[test]
    fn a_run_that_ended_has_its_words_reasons_times_and_ledger() {
        let info = run(json!({
            "state": "INCOMPLETE", "ended": 1_795_292_400_000_000_000_u64, "reasons": ["<lost>"],
            "comment": "beam <on>", "metadata": { "sample": "LaB6", "counts": i64::MAX },
            "totals": { "seconds": 5.0, "events": 100, "incomplete_events": 2 },
            "ledger": [{
                "source": "1.0", "name": "adc-0", "accepted": 100, "recorded": 98, "discarded": 0, "dropped_newest": 0,
                "dropped_oldest": 0, "late": 0, "corrupt": 0, "lost": 2, "unaccounted": 0, "empty": 0, "duplicates": 0,
                "skipped": 0, "bytes": 62_500_000, "final_counters": true,
            }],
            "time_use": [{ "builder": "eb", "working": 1.0, "offers": 4.0 }],
        }));
        let html = run_html(&info, None, &[]);
        for part in [
            "because: &lt;lost&gt;",
            "beam &lt;on&gt;",
            "9223372036854775807",
            "2026-11-21 20:19:18 UTC",
            "after 5.00 s",
            "100 (2 incomplete)",
            "<th>lost</th>",
            "<td>98</td>",
            "carried 100 Mbit/s: 2.0 % of the fragments were lost",
        ] {
            assert!(html.contains(part), "{part}: {html}");
        }
        assert_eq!(words_summary(&info), "beam <on>; counts = 9223372036854775807; sample = LaB6");
    }
}
