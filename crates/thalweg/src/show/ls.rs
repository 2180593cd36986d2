//! `thalweg ls`: lists runs.

use super::place::{explained_error, is_url};
use crate::print;
use crate::terminal::{Failure, Output};
use serde::Serialize;
use serde_json::{Map, Value};
use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{SystemTime, UNIX_EPOCH};
use thalweg_store::{Listed, RunKind, RunState, StoreError, WriterLife};
use thalweg_text::{
    Align, Table, format_count, format_seconds, format_utc, format_volume, replace_controls, wrap_words,
};

#[derive(Debug, clap::Args)]
#[command(after_help = "\
An OPEN run is being written (live), or its writer died: the state shows which, if the file system can tell. Values \
that are not known before its end are shown as '-', and its bytes include reserved space. The number in brackets \
after the events is that of the incomplete ones. The data of several builders are one run. A run that cannot be read \
is listed as BROKEN, and one whose files do not agree with its run.json as DAMAGED, with the reason below; `thalweg \
verify` examines them.

Exit code: 0; 2 if the directory does not exist.")]
pub(crate) struct Options {
    /// Directory that contains the runs
    #[arg(value_name = "DIR", default_value = "runs")]
    directory: PathBuf,
    /// Show the comment and the metadata of each run, too
    #[arg(short, long)]
    long: bool,
}

/// A run in the list; values that are not known are null.
#[derive(Debug, Serialize)]
struct Entry<'a> {
    run: u32,
    builders: Option<u32>,
    path: &'a Path,
    state: Option<RunState>,
    writer: Option<WriterLife>,
    /// Time in TAI nanoseconds.
    began: Option<u64>,
    ended: Option<u64>,
    began_utc: Option<String>,
    seconds: Option<f64>,
    kind: Option<RunKind>,
    #[serde(skip_serializing_if = "str::is_empty")]
    comment: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    metadata: Option<&'a Map<String, Value>>,
    events: Option<u64>,
    incomplete: Option<u64>,
    bytes: u64,
    sources: Option<usize>,
    reasons: &'a [String],
    error: Option<&'a str>,
    /// Damage of its files, as far as it shows without reading them.
    damage: Option<&'a str>,
}

pub(super) fn run_ls(options: &Options, json: bool, out: &mut Output) -> Result<ExitCode, Failure> {
    let directory = &options.directory;
    let shown = directory.display();
    if is_url(directory) {
        return Err(explained_error(directory, &StoreError::NotARun(directory.clone())));
    }
    if directory.is_file() {
        return Err(Failure::Usage(format!(
            "{shown} is a file: name the directory that contains the runs: thalweg ls DIR"
        )));
    }
    if !directory.is_dir() {
        return Err(Failure::Usage(format!(
            "{shown}: no such directory: name the one that contains the runs: thalweg ls DIR"
        )));
    }
    let listed =
        thalweg_store::combine_builder_directories(thalweg_store::list_runs(directory).map_err(Failure::broken)?);
    if listed.is_empty() && directory.join("run.json").exists() {
        return Err(Failure::Usage(format!("{shown} is itself a run: `thalweg info {shown}` shows it")));
    }
    if listed.is_empty()
        && !json
        && thalweg_store::list_runs(&directory.join("runs")).is_ok_and(|runs| !runs.is_empty())
    {
        let runs = directory.join("runs");
        return Err(Failure::Usage(format!("{shown} has no runs, but {0} does: thalweg ls {0}", runs.display())));
    }
    if json {
        let entries: Vec<Entry> = listed.iter().map(|listed| list_entry(listed, utc_now_nanos())).collect();
        out.json(&serde_json::json!({ "directory": directory, "runs": entries }))?;
    } else if listed.is_empty() {
        out.text(&format!("{shown}: no runs\n"))?;
    } else {
        out.text(&list_text(&listed, utc_now_nanos(), std::io::stdout().is_terminal(), options.long))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn list_entry(listed: &Listed, now: u64) -> Entry<'_> {
    let info = listed.info.as_ref();
    let closed = info.filter(|info| info.state != RunState::Open);
    #[expect(clippy::cast_precision_loss, reason = "a figure for people")]
    let seconds = match (info, listed.writer) {
        (Some(info), _) if info.ended.is_some() => Some(info.totals.seconds),
        (Some(info), Some(WriterLife::Writing)) => {
            let now = i128::from(now) + i128::from(info.tai_utc_offset) * 1_000_000_000;
            Some((now - i128::from(info.began)).max(0) as f64 * 1e-9)
        }
        _ => None,
    };
    Entry {
        run: listed.run,
        builders: info.map(|info| info.builders),
        path: &listed.path,
        state: info.map(|info| info.state),
        writer: listed.writer,
        began: info.map(|info| info.began),
        ended: info.and_then(|info| info.ended),
        began_utc: info.map(|info| format_utc(info.began, info.tai_utc_offset)),
        seconds,
        kind: info.map(|info| info.kind),
        comment: info.map_or("", |info| &info.comment),
        metadata: info.map(|info| &info.metadata).filter(|metadata| !metadata.is_empty()),
        // Number of events on disk, which is less than those built if the disk was full.
        events: closed.map(|info| info.totals.events),
        incomplete: closed.map(|info| info.totals.incomplete_events),
        bytes: listed.bytes,
        sources: info.map(|info| info.sources.len()),
        reasons: info.map_or(&[], |info| &info.reasons),
        error: listed.error.as_deref(),
        damage: listed.damage.as_deref(),
    }
}

fn list_text(listed: &[Listed], now: u64, on_terminal: bool, is_long: bool) -> String {
    let entries: Vec<Entry> = listed.iter().map(|listed| list_entry(listed, now)).collect();
    let incomplete = entries.iter().any(|entry| entry.incomplete.is_some_and(|count| count > 0));
    let columns = [
        ("run", Align::Left),
        ("state", Align::Left),
        ("began (UTC)", Align::Left),
        ("took", Align::Right),
        ("events", Align::Right),
        ("bytes", Align::Right),
    ];
    let mut table = Table::new(columns);
    for (entry, listed) in entries.iter().zip(listed) {
        let events = match (entry.events, entry.incomplete) {
            (None, _) => "-".to_owned(),
            (Some(events), Some(incomplete @ 1..)) => {
                format!("{} ({})", format_count(events), format_count(incomplete))
            }
            (Some(events), _) => format_count(events),
        };
        table.add_row(vec![
            replace_controls(&entry.path.display().to_string()).into_owned(),
            match entry.kind {
                Some(RunKind::Test) => format!("{} test", print::paint_verdict(listed.state_text())),
                _ => print::paint_verdict(listed.state_text()),
            },
            // The time is to the minute; `thalweg info` shows all of it.
            entry.began_utc.as_ref().map_or("-".to_owned(), |began| began.chars().take(16).collect()),
            entry.seconds.map_or("-".to_owned(), format_seconds),
            events,
            format_volume(entry.bytes),
        ]);
    }
    // In a pipe there is one line for each run, however wide.
    let mut out = if on_terminal { table.render_folded(0) } else { table.render_text(0) };
    if incomplete {
        out.push_str("In brackets: how many of the events are incomplete.\n");
    }
    for entry in entries.iter().filter(|entry| is_long && (!entry.comment.is_empty() || entry.metadata.is_some())) {
        out.push_str(&words_text(entry));
    }
    for entry in &entries {
        if let Some(error) = entry.error {
            out.push_str(&wrap_words(&format!("{}: ", print::paint_verdict("BROKEN")), error));
        }
        if let Some(damage) = entry.damage {
            out.push_str(&wrap_words(
                &format!("{}: ", print::paint_verdict("DAMAGED")),
                &format!("{}: {damage}", entry.path.display()),
            ));
        }
    }
    out
}

/// Returns the comment and the metadata of a run, below its path.
fn words_text(entry: &Entry<'_>) -> String {
    let mut out = format!("\n{}\n", replace_controls(&entry.path.display().to_string()));
    if !entry.comment.is_empty() {
        out.push_str(&wrap_words("  ", &replace_controls(&entry.comment.replace('\n', " "))));
    }
    for (key, value) in entry.metadata.into_iter().flatten() {
        let value = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        out.push_str(&wrap_words("  ", &replace_controls(&format!("{key} = {value}"))));
    }
    out
}

/// Returns the present time in UTC, in nanoseconds since 1970.
fn utc_now_nanos() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// 20:19:18 UTC on 2026-11-21, in TAI.
    const BEGAN: u64 = 1_795_292_395_000_000_000;

    fn listed(path: &str, run: u32, builder: u32, json: serde_json::Value) -> Listed {
        let mut text = json!({
            "format": "thalweg-run", "version": 1, "run": run, "builder": builder, "builders": 1, "state": "OPEN",
            "began": BEGAN, "ended": null, "tai_utc_offset": 37, "writer": {}, "recorder": {},
            "sources": [{ "id": "1.0" }, { "id": "1.1" }],
        });
        text.as_object_mut().unwrap().extend(json.as_object().unwrap().clone());
        let info = Some(serde_json::from_value(text).unwrap());
        Listed { path: path.into(), run, builder, bytes: 286_670_848, writer: None, info, error: None, damage: None }
    }

    #[test]
    fn complete_runs_fit_a_terminal() {
        let complete = json!({ "state": "COMPLETE", "ended": BEGAN + 5_000_000_000, "totals": { "events": 22_869, "seconds": 5.0 } });
        let runs = [listed("runs/run-000041", 41, 0, complete.clone()), listed("runs/run-000042", 42, 0, complete)];
        let text = list_text(&runs, 0, true, false);
        assert!(text.lines().all(|line| line.len() <= thalweg_text::TEXT_COLUMNS), "{text}");
        insta::assert_snapshot!(text, @"
        run              state     began (UTC)         took  events   bytes
        runs/run-000041  COMPLETE  2026-11-21 20:19  5.00 s  22,869  287 MB
        runs/run-000042  COMPLETE  2026-11-21 20:19  5.00 s  22,869  287 MB
        ");
    }

    #[test]
    fn what_is_open_incomplete_or_broken_says_so() {
        let incomplete = json!({
            "state": "INCOMPLETE", "ended": BEGAN + 83_000_000_000_u64, "totals": { "events": 1_000_000, "incomplete_events": 7, "seconds": 83.0 },
        });
        let mut runs = vec![listed("runs/run-000001", 1, 0, incomplete)];
        runs.extend([0, 1].map(|builder| listed(&format!("runs/run-000002-b{builder}"), 2, builder, json!({}))));
        runs[1].writer = Some(WriterLife::Writing);
        runs[2].writer = Some(WriterLife::Gone);
        runs.push(Listed {
            info: None,
            error: Some("runs/run-000003/run.json: expected value at line 1 column 1".into()),
            ..listed("runs/run-000003", 3, 0, json!({}))
        });
        insta::assert_snapshot!(list_text(&runs, BEGAN - 37_000_000_000 + 2_000_000_000, true, false), @"
        run                 state       began (UTC)         took         events   bytes
        runs/run-000001     INCOMPLETE  2026-11-21 20:19  83.0 s  1,000,000 (7)  287 MB
        runs/run-000002-b0  OPEN, live  2026-11-21 20:19  2.00 s              -  287 MB
        runs/run-000002-b1  OPEN, died  2026-11-21 20:19       -              -  287 MB
        runs/run-000003     BROKEN      -                      -              -  287 MB
        In brackets: how many of the events are incomplete.
        BROKEN: runs/run-000003/run.json: expected value at line 1 column 1
        ");
    }
}
