//! `thalweg info`: describes a run.

use super::place::{Named, Together, explained_error, run_directories};
use crate::print;
use crate::terminal::{Failure, Output, progress::Busy};
use serde::Serialize;
use serde_json::Value;
use std::fmt::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use thalweg_core::build::{Ledger, Verdict};
use thalweg_store::{
    EventCounts, EventStatus, Milestones, Part, Problem, RecorderInfo, Recovery, Run, RunInfo, RunKind, RunState,
    SourceInfo, WriterLife, run_state_text,
};
use thalweg_text::{
    format_count, format_quantity, format_seconds, format_size, format_utc, format_volume, replace_controls, wrap_words,
};

#[derive(Debug, clap::Args)]
#[command(after_help = "\
A run of several builders has one directory per builder: run-000042-b0, run-000042-b1, and so on. Name several of \
them, or run-000042 for all, to see the sums of their events and ledgers as well.

Exit code: 0; 1 if a run cannot be read; 2 if a run does not exist.")]
pub(crate) struct Options {
    /// A run's directory, such as runs/run-000042
    #[arg(value_name = "RUN", required = true)]
    runs: Vec<PathBuf>,
    /// Write a page with each source's times against another's: offset, drift, steps. Of one run
    #[arg(long, value_name = "FILE")]
    times: Option<PathBuf>,
}

/// Description of one directory.
#[derive(Debug, Serialize)]
struct DirectoryReport {
    #[serde(flatten)]
    named: Named,
    /// State of the process that writes the run, if the run is OPEN.
    writer: Option<WriterLife>,
    /// Number of events counted in the files, which `run.json` does not contain while a run is OPEN.
    events: EventCounts,
    blocks: u64,
    segments: u32,
    bytes: u64,
    /// Place at which reading must stop, in a run that was not ended.
    recovery: Option<Recovery>,
    /// Rates that were offered and carried, and the stage that limited the run; null if that is not known.
    verdict: Option<Verdict>,
    /// Problems found on opening the directory.
    problems: Vec<Problem>,
    /// Content of `run.json`.
    info: RunInfo,
}

/// Sum of several builders' directories of a run.
#[derive(Debug, Serialize)]
struct Sum {
    run: u32,
    builders: u32,
    present: Vec<u32>,
    state: RunState,
    events: EventCounts,
    blocks: u64,
    segments: u32,
    bytes: u64,
    fragments: u64,
    missing: u64,
    /// Rates that were offered and carried, and the stage that limited the run; null if that is not known.
    verdict: Option<Verdict>,
    ledger: Ledger,
}

pub(super) fn run_info(options: &Options, json: bool, out: &mut Output) -> Result<ExitCode, Failure> {
    if let Some(file) = &options.times {
        let [run] = &options.runs[..] else { return Err(Failure::usage("--times: of one run at a time")) };
        let busy = Busy::new(format!("reading {}", run.display()));
        let run = Run::open(run).map_err(|error| explained_error(run, &error))?;
        drop(busy);
        super::times::write_times_page(&run, file)?;
    }
    let mut reports = Vec::new();
    for named in run_directories(&options.runs)? {
        let busy = Busy::new(format!("reading {}", named.path.display()));
        let run = Part::open(&named.path).map_err(|error| explained_error(&named.path, &error))?;
        drop(busy);
        reports.push(DirectoryReport::new(named, &run));
    }
    let together = Together::find_split_runs(reports.iter().map(|report| (&report.named, &report.info)));
    let sums: Vec<(String, Sum)> = together.iter().map(|run| (run.heading_title(), Sum::new(run, &reports))).collect();
    if json {
        let runs: Vec<&Sum> = sums.iter().map(|(_, sum)| sum).collect();
        out.json(&serde_json::json!({ "directories": reports, "runs": runs }))?;
        return Ok(ExitCode::SUCCESS);
    }
    let texts =
        reports.iter().map(DirectoryReport::directory_text).chain(sums.iter().map(|(title, sum)| sum.sum_text(title)));
    for (at, text) in texts.enumerate() {
        out.text(if at > 0 { "\n" } else { "" })?;
        out.text(&text)?;
    }
    Ok(ExitCode::SUCCESS)
}

impl DirectoryReport {
    fn new(named: Named, run: &Part) -> Self {
        let incomplete = run.event_closings().iter().filter(|closing| closing.status == EventStatus::Incomplete);
        let incomplete = incomplete.fold(0, |sum: u64, closing| sum.saturating_add(closing.count.into()));
        Self {
            named,
            writer: run.writer_life(),
            events: EventCounts { built: run.len(), incomplete },
            blocks: run.data_blocks().len() as u64,
            segments: run.segment_count(),
            bytes: run.data_bytes(),
            recovery: run.recovery_point().cloned(),
            verdict: run.run_info().find_verdict(),
            problems: run.found_problems().to_vec(),
            info: run.run_info().clone(),
        }
    }

    fn directory_text(&self) -> String {
        let Self { info, events, .. } = self;
        let builder = match info.builders {
            0 | 1 => String::new(),
            builders => {
                let assigned = if info.assignment == "modulo" { "" } else { ", events assigned" };
                format!(", builder {} of {builders}{assigned}", info.builder)
            }
        };
        let mut out = format!("run {}{builder}: {}\n", info.run, self.state_text());
        out.extend(self.verdict.iter().map(|verdict| wrap_words("  ", &replace_controls(&verdict.sentence))));
        out.push_str(&print::reasons_text(&info.reasons));
        if info.kind != RunKind::Physics {
            out.push_str(&fact_row("kind", info.kind.name()));
        }
        if !info.comment.is_empty() {
            out.push_str(&fact_row("comment", &info.comment.replace('\n', " ")));
        }
        out.push_str(&metadata_text(&info.metadata));
        let path = self.named.path.display();
        out.push_str(&fact_row("on disk", &path.to_string()));
        let offset = info.tai_utc_offset;
        out.push_str(&fact_row("began", &format!("{} UTC (TAI - UTC = {offset} s)", format_utc(info.began, offset))));
        if let Some(ended) = info.ended {
            let took = format_seconds(info.totals.seconds);
            // The clock may have been set in between.
            let later = if ended < info.began {
                format!(", after {took}: the clock was set back")
            } else {
                format!("; the run took {took}")
            };
            out.push_str(&fact_row("ended", &format!("{} UTC{later}", format_utc(ended, offset))));
        }
        out.push_str(&times_text(info));
        let fragments = match info.state {
            RunState::Open => String::new(),
            _ => format!(", {}", print::fragments_text(info.totals.fragments, info.totals.missing)),
        };
        let incomplete = format_count(events.incomplete);
        out.push_str(&fact_row(
            "events",
            &format!("{} ({incomplete} incomplete){fragments}", format_count(events.built)),
        ));
        out.push_str(&steps_text(info));
        out.push_str(&fact_row("stored", &stored_text(self.bytes, self.blocks, self.segments)));
        if let Some(end) = &self.recovery {
            let text = format!("{} up to byte {}; after it: {}", end.segment, end.offset, end.found);
            out.push_str(&fact_row("readable", &text));
        }
        for problem in self.problems.iter().take(SHOWN) {
            out.push_str(&fact_row("damaged", &problem.to_string()));
        }
        if !self.problems.is_empty() {
            let missing = info.totals.events.saturating_sub(events.built);
            let events =
                if missing > 0 { format!("{} missing; ", format_quantity(missing, "event")) } else { String::new() };
            out.push_str(&fact_row("", &format!("{events}run `thalweg verify {path}` to see all that is wrong")));
        }
        out.push_str(&writer_text(info));
        out.push_str(if info.sources.is_empty() { "" } else { "\nsources\n" });
        out.push_str(&sources_text(&info.sources));
        out.push_str(&ledger_text(info));
        out
    }

    fn state_text(&self) -> String {
        let life = match (self.info.state, self.writer) {
            (RunState::Open, Some(WriterLife::Writing)) => ", being written",
            (RunState::Open, Some(WriterLife::Gone)) => ", its writer died",
            (RunState::Open, _) => ", being written, or its writer died",
            _ => "",
        };
        let state = run_state_text(self.info.state, None);
        match self.problems.is_empty() {
            true => format!("{}{life}", print::paint_verdict(state)),
            false => format!("{}; run.json says {state}{life}", print::paint_verdict("DAMAGED")),
        }
    }
}

/// Returns a line for each key of a run's metadata; tables and lists in it are shown as JSON.
fn metadata_text(metadata: &serde_json::Map<String, Value>) -> String {
    let rows = metadata.iter().enumerate().map(|(at, (key, value))| {
        fact_row(if at == 0 { "metadata" } else { "" }, &format!("{key} = {}", value_text(value)))
    });
    rows.collect()
}

/// Returns a line for each time of a run's course that is known.
fn times_text(info: &RunInfo) -> String {
    let Milestones { asked, first_event, stop_asked, last_event, on_disk } = info.times;
    let times = [
        ("asked", asked, "the run was asked for"),
        ("first event", first_event, "the first event of all sources was closed"),
        ("stop asked", stop_asked, "the end was asked for"),
        ("last event", last_event, "the last event was closed"),
        ("all on disk", on_disk, "all events were on disk"),
    ];
    let rows = times.into_iter().filter_map(|(name, time, meaning)| {
        Some(fact_row(name, &format!("{} UTC: {meaning}", format_utc(time?, info.tai_utc_offset))))
    });
    rows.collect()
}

/// Returns a line for each of the first steps of a scan.
fn steps_text(info: &RunInfo) -> String {
    let rows = info.steps.iter().take(SHOWN).enumerate().map(|(at, step)| {
        let data = if step.data.is_null() { String::new() } else { format!(" {}", step.data) };
        fact_row(if at == 0 { "steps" } else { "" }, &format!("from event {}: {}{data}", step.event, step.label))
    });
    let mut text: String = rows.collect();
    if info.steps.len() > SHOWN {
        text += &fact_row("", &format!("and {} more; --json has all", info.steps.len() - SHOWN));
    }
    text
}

/// Returns one fact of a run, after its name.
fn fact_row(name: &str, text: &str) -> String {
    wrap_words(&format!("  {name:<11} "), &replace_controls(text))
}

fn writer_text(info: &RunInfo) -> String {
    let writer = &info.writer;
    let process = format!("process {} on {}", writer.pid, writer.host);
    let program = format!("{} {}, {process}, Linux {}", writer.program, writer.version, writer.kernel);
    let mut out = fact_row("written by", &program) + &fact_row("recorder", &recorder_text(&info.recorder));
    out.extend(info.recorder.notes.iter().map(|note| fact_row("", note)));
    out
}

fn ledger_text(info: &RunInfo) -> String {
    match info.read_ledger() {
        Ok(ledger) if ledger.sources.is_empty() => String::new(),
        Ok(ledger) => {
            format!("\nledger, in fragments\n{}{}", print::ledger_text(&ledger), print::dead_time_text(&ledger))
        }
        Err(error) => format!("\nledger: cannot be read: {}\n", replace_controls(&error.to_string())),
    }
}

impl Sum {
    fn new(run: &Together, reports: &[DirectoryReport]) -> Self {
        let infos: Vec<&RunInfo> = run.members.iter().map(|at| &reports[*at].info).collect();
        let whole = RunInfo::combine_parts(&infos);
        // A ledger that cannot be read was reported for its directory.
        let verdict = whole.as_ref().and_then(RunInfo::find_verdict);
        let ledger = whole.as_ref().and_then(|whole| whole.read_ledger().ok()).unwrap_or_default();
        let mut sum = Self {
            run: run.run,
            builders: run.builders,
            present: run.present.clone(),
            state: whole.map_or(RunState::Open, |whole| whole.state),
            events: EventCounts::default(),
            blocks: 0,
            segments: 0,
            bytes: 0,
            fragments: 0,
            missing: 0,
            verdict,
            ledger,
        };
        for report in run.members.iter().map(|at| &reports[*at]) {
            sum.events.built = sum.events.built.saturating_add(report.events.built);
            sum.events.incomplete = sum.events.incomplete.saturating_add(report.events.incomplete);
            sum.blocks += report.blocks;
            sum.segments = sum.segments.saturating_add(report.segments);
            sum.bytes = sum.bytes.saturating_add(report.bytes);
            sum.fragments = sum.fragments.saturating_add(report.info.totals.fragments);
            sum.missing = sum.missing.saturating_add(report.info.totals.missing);
        }
        sum
    }

    fn sum_text(&self, title: &str) -> String {
        let EventCounts { built, incomplete } = self.events;
        let fragments = print::fragments_text(self.fragments, self.missing);
        let mut out = format!("{title}: {}\n", print::paint_verdict(run_state_text(self.state, None)));
        out.extend(self.verdict.iter().map(|verdict| wrap_words("  ", &replace_controls(&verdict.sentence))));
        let _ = writeln!(
            out,
            "  events      {} ({} incomplete), {fragments}",
            format_count(built),
            format_count(incomplete)
        );
        let _ = writeln!(out, "  stored      {}", stored_text(self.bytes, self.blocks, self.segments));
        if !self.ledger.sources.is_empty() {
            let _ = write!(out, "\nledger, in fragments\n{}", print::ledger_text(&self.ledger));
            out.push_str(&print::dead_time_text(&self.ledger));
        }
        out
    }
}

/// Maximum number of problems that a person is shown one by one.
const SHOWN: usize = 5;

/// Returns the amount of data on disk as text.
pub(super) fn stored_text(bytes: u64, blocks: u64, segments: u32) -> String {
    format!(
        "{} in {}, {}",
        format_volume(bytes),
        format_quantity(blocks, "block"),
        format_quantity(segments.into(), "segment")
    )
}

fn recorder_text(recorder: &RecorderInfo) -> String {
    let direct = if recorder.direct { "O_DIRECT" } else { "buffered" };
    let registered = if recorder.registered { "registered buffers" } else { "ordinary buffers" };
    let ahead = if recorder.allocated_ahead { "space reserved ahead" } else { "growing files" };
    format!(
        "{}, {direct}, {registered}, {ahead}; blocks of up to {}, segments of up to {}",
        recorder.engine,
        format_size(recorder.block_size),
        format_size(recorder.segment_size)
    )
}

/// Returns the description of the sources, in one line for consecutive sources with equal descriptions.
fn sources_text(all: &[SourceInfo]) -> String {
    let mut out = String::new();
    for alike in all.chunk_by(|one, next| (kind_text(one), details_text(one)) == (kind_text(next), details_text(next)))
    {
        let [first, .., last] = alike else {
            let [one] = alike else { continue };
            out.push_str(&source_text(&format!("{} {}", one.id, one.name), one));
            continue;
        };
        let names =
            format!("{} {} to {} {}, {} alike", first.id, first.name, last.id, last.name, format_count(alike.len()));
        out.push_str(&source_text(&names, first));
    }
    out
}

fn source_text(names: &str, source: &SourceInfo) -> String {
    let mut out = wrap_words("  ", &replace_controls(&format!("{names}: {}", kind_text(source))));
    let details = details_text(source);
    if !details.is_empty() {
        out.push_str(&wrap_words("      ", &replace_controls(&details)));
    }
    out
}

/// Returns the kind and payload type that a source states, and whether its data were measured.
fn kind_text(source: &SourceInfo) -> String {
    let description = &source.description;
    let kinds = ["kind", "payload_type"].into_iter().filter_map(|key| description.get(key).map(value_text));
    let mut words: Vec<String> = kinds.collect();
    if is_true(description, "simulated") {
        words.push("simulated".to_owned());
    }
    if is_true(description, "replayed") {
        let again = if is_true(description, "loop") { " over and over" } else { "" };
        words.push(format!("replayed{again}"));
    }
    words.join(", ")
}

fn is_true(description: &Value, key: &str) -> bool {
    description.get(key).and_then(Value::as_bool) == Some(true)
}

/// Returns the other facts that a source states, as `key value`; nested ones are left to `--json`.
fn details_text(source: &SourceInfo) -> String {
    const SHOWN_ELSEWHERE: [&str; 7] = ["kind", "payload_type", "simulated", "replayed", "loop", "name", "source"];
    let known = source.description.as_object().into_iter().flatten();
    let facts = known.filter(|(key, value)| {
        !SHOWN_ELSEWHERE.contains(&key.as_str()) && !value.is_null() && !value.is_object() && !value.is_array()
    });
    let mut facts: Vec<String> = facts.map(|(key, content)| format!("{key} {}", value_text(content))).collect();
    // For samples and images the channels, or width and height, show the shape.
    let has_extent =
        ["channels", "width"].into_iter().any(|key| source.description.get(key).is_some_and(|value| !value.is_null()));
    let shape = source.description.get("shape").and_then(Value::as_array);
    if let Some(shape) = shape.filter(|_| !has_extent) {
        facts.insert(0, format!("shape {}", shape.iter().map(value_text).collect::<Vec<_>>().join(" x ")));
    }
    facts.join(", ")
}

fn value_text(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        // A whole number of Hz is written without '.0'.
        Value::Number(number) => {
            number.as_f64().filter(|_| number.is_f64()).map_or(number.to_string(), |n| n.to_string())
        }
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn report(json: Value) -> DirectoryReport {
        let mut text = json!({
            "format": "thalweg-run", "version": 1, "run": 42, "builder": 0, "builders": 1, "state": "COMPLETE",
            "began": 1_795_292_395_285_473_552_u64, "ended": 1_795_292_400_285_473_552_u64, "tai_utc_offset": 37,
            "writer": { "program": "thalweg", "version": "0.1.0", "host": "daq7", "kernel": "6.18.44", "pid": 20503 },
            "recorder": {
                "engine": "io_uring", "direct": true, "registered": true, "allocated_ahead": true,
                "block_size": 4 << 20, "segment_size": 4_u64 << 30,
            },
            "sources": [
                { "id": "1.0", "name": "adc-0", "description": {
                    "kind": "model-adc", "payload_type": "samples-i16", "simulated": true, "replayed": false,
                    "bits": 12, "channels": 1, "rate": 500.0, "thread": null,
                } },
                { "id": "2.0", "name": "camera", "description": {
                    "kind": "pgm", "payload_type": "image-u8", "replayed": true, "loop": true, "width": 512,
                    "file": "a\u{1b}[2J.pgm", "metadata": { "long": "story" },
                } },
            ],
            "totals": { "fragments": 45_738, "seconds": 5.0 },
            "ledger": [
                { "source": "1.0", "name": "adc-0", "accepted": 22_869, "recorded": 22_869, "final_counters": true },
                { "source": "2.0", "name": "camera", "accepted": 22_869, "recorded": 22_869, "final_counters": true },
            ],
        });
        text.as_object_mut().unwrap().extend(json.as_object().unwrap().clone());
        for entry in text["ledger"].as_array_mut().into_iter().flatten() {
            let mut whole = json!(thalweg_core::build::LedgerEntry::default());
            whole.as_object_mut().unwrap().extend(entry.as_object().unwrap().clone());
            *entry = whole;
        }
        DirectoryReport {
            named: Named { path: "runs/run-000042".into(), as_whole: false },
            writer: None,
            events: EventCounts { built: 22_869, incomplete: 0 },
            blocks: 69,
            segments: 1,
            bytes: 286_670_848,
            recovery: None,
            verdict: None,
            problems: Vec::new(),
            info: serde_json::from_value(text).unwrap(),
        }
    }

    #[test]
    fn a_complete_run_is_described_on_one_page() {
        let text = report(json!({})).directory_text();
        assert!(text.lines().all(|line| line.chars().count() <= thalweg_text::TEXT_COLUMNS), "{text}");
        insta::assert_snapshot!(text, @"
        run 42: COMPLETE
          on disk     runs/run-000042
          began       2026-11-21 20:19:18 UTC (TAI - UTC = 37 s)
          ended       2026-11-21 20:19:23 UTC; the run took 5.00 s
          events      22,869 (0 incomplete), 45,738 fragments
          stored      287 MB in 69 blocks, 1 segment
          written by  thalweg 0.1.0, process 20503 on daq7, Linux 6.18.44
          recorder    io_uring, O_DIRECT, registered buffers, space reserved ahead;
                      blocks of up to 4 MiB, segments of up to 4 GiB

        sources
          1.0 adc-0: model-adc, samples-i16, simulated
              bits 12, channels 1, rate 500
          2.0 camera: pgm, image-u8, replayed over and over
              file a�[2J.pgm, width 512

        ledger, in fragments
          source      accepted  recorded  unaccounted
          1.0 adc-0     22,869    22,869            0
          2.0 camera    22,869    22,869            0
        ");
    }

    #[test]
    fn a_run_whose_writer_died_says_how_far_it_can_be_read() {
        let mut report = report(json!({ "state": "OPEN", "ended": null, "ledger": null, "sources": [] }));
        report.writer = Some(WriterLife::Gone);
        report.recovery = Some(Recovery {
            blocks: 69,
            segment: "00000.seg".into(),
            offset: 286_670_848,
            found: "the block is cut off: 4096 of 65536 bytes are there".into(),
            is_end: false,
        });
        insta::assert_snapshot!(report.directory_text(), @"
        run 42: OPEN, its writer died
          on disk     runs/run-000042
          began       2026-11-21 20:19:18 UTC (TAI - UTC = 37 s)
          events      22,869 (0 incomplete)
          stored      287 MB in 69 blocks, 1 segment
          readable    00000.seg up to byte 286670848; after it: the block is cut off:
                      4096 of 65536 bytes are there
          written by  thalweg 0.1.0, process 20503 on daq7, Linux 6.18.44
          recorder    io_uring, O_DIRECT, registered buffers, space reserved ahead;
                      blocks of up to 4 MiB, segments of up to 4 GiB
        ");
    }

    #[test]
    fn builders_of_one_run_are_added_up() {
        let builder = |builder: u32| {
            let mut report = report(json!({ "builders": 2, "builder": builder }));
            report.named.path = format!("runs/run-000042-b{builder}").into();
            report
        };
        let reports = [builder(0), builder(1)];
        let together = Together::find_split_runs(reports.iter().map(|report| (&report.named, &report.info)));
        let sum = Sum::new(&together[0], &reports);
        insta::assert_snapshot!(sum.sum_text(&together[0].heading_title()), @"
        run 42, all 2 builders together: COMPLETE
          events      45,738 (0 incomplete), 91,476 fragments
          stored      573 MB in 138 blocks, 2 segments

        ledger, in fragments
          source      accepted  recorded  unaccounted
          1.0 adc-0     45,738    45,738            0
          2.0 camera    45,738    45,738            0
        ");
    }
}
