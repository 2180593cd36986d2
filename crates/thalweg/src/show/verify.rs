//! `thalweg verify`: reads everything in a run, and reports inconsistencies.

use super::info::stored_text;
use super::place::{Named, Together, explained_error, run_directories};
use crate::print;
use crate::terminal::{Failure, Output, progress, progress::Busy};
use serde::Serialize;
use std::fmt::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use thalweg_core::build::Ledger;
use thalweg_store::{
    EventCounts, Run, RunInfo, RunState, RunTimes, StoreError, Verdict, VerifyReport, WriterLife, run_state_text,
};
use thalweg_text::{format_count, format_quantity, replace_controls, wrap_words};

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Checks the CRC of every block and payload, that each closed event has one record for each source, and that run.json \
agrees with the files.

A run of several builders has one directory per builder: run-000042-b0, run-000042-b1, and so on. Name several of them, or run-000042 for all, to verify them together as well.

Exit code: 0 if everything is intact and the run is COMPLETE; 1 if something is damaged or missing, or if the data on disk are intact but the run is INCOMPLETE or OPEN; 2 if the run does not exist.")]
pub(crate) struct Options {
    /// A run's directory, such as runs/run-000042
    #[arg(value_name = "RUN", required = true)]
    runs: Vec<PathBuf>,
}

/// Result for one directory.
#[derive(Debug)]
struct Verified {
    named: Named,
    /// The run and its report; or the state and the error if it cannot be read at all.
    result: Result<(RunInfo, VerifyReport), (&'static str, String)>,
}

/// Sum of several builders' directories of a run.
#[derive(Debug, Serialize)]
struct Sum {
    run: u32,
    builders: u32,
    present: Vec<u32>,
    ok: bool,
    state: RunState,
    consistent: bool,
    events: EventCounts,
    fragments: u64,
    missing: u64,
    blocks: u64,
    segments: u32,
    bytes: u64,
    /// Sources whose event numbers are shifted, as the times of all builders' events show.
    shifts: Vec<String>,
    ledger: Ledger,
}

pub(super) fn run_verify(options: &Options, json: bool, out: &mut Output) -> Result<ExitCode, Failure> {
    let mut all = Vec::new();
    for named in run_directories(&options.runs)? {
        let verified = Verified::verify_directory(named)?;
        if !json {
            out.text(&verified.report_text())?;
            out.flush()?;
        }
        all.push(verified);
    }
    let readable: Vec<(&Named, &(RunInfo, VerifyReport))> =
        all.iter().filter_map(|one| Some((&one.named, one.result.as_ref().ok()?))).collect();
    let together = Together::find_split_runs(readable.iter().map(|(named, (info, _))| (*named, info)));
    let sums: Vec<Sum> = together.iter().map(|run| Sum::new(run, &readable)).collect();
    let ok = all.iter().all(Verified::is_ok) && sums.iter().all(|sum| sum.ok);
    if json {
        let directories: Vec<_> = all.iter().map(Verified::to_json).collect();
        out.json(&serde_json::json!({ "ok": ok, "directories": directories, "runs": sums }))?;
    } else {
        for (run, sum) in together.iter().zip(&sums) {
            out.text(&sum.sum_text(&run.heading_title()))?;
        }
    }
    Ok(if ok { ExitCode::SUCCESS } else { ExitCode::from(1) })
}

impl Verified {
    fn verify_directory(named: Named) -> Result<Self, Failure> {
        let path = &named.path;
        let busy = Busy::new(format!("opening {}", path.display()));
        let opened = Run::open(path);
        drop(busy);
        let result = match opened {
            Ok(run) => Ok((run.run_info().clone(), verify_with_progress(&run))),
            Err(error) => {
                let word = if matches!(error, StoreError::Io { .. }) { "UNREADABLE" } else { "DAMAGED" };
                match explained_error(path, &error) {
                    // The path was a run at the first look.
                    Failure::Broken(error) => Err((word, error)),
                    usage => return Err(usage),
                }
            }
        };
        Ok(Self { named, result })
    }

    /// Returns true if the run is intact and complete.
    fn is_ok(&self) -> bool {
        self.result.as_ref().is_ok_and(|(_, report)| report.consistent && report.verdict == Verdict::Complete)
    }

    fn to_json(&self) -> serde_json::Value {
        match &self.result {
            Ok((_, report)) => {
                let mut value = serde_json::json!(report);
                value["path"] = serde_json::json!(self.named.path);
                value["ok"] = self.is_ok().into();
                value
            }
            Err((_, error)) => serde_json::json!({ "path": self.named.path, "ok": false, "error": error }),
        }
    }

    fn report_text(&self) -> String {
        let path = replace_controls(&self.named.path.display().to_string()).into_owned();
        match &self.result {
            Ok((_, report)) => verification_text(&path, report),
            Err((word, error)) => wrap_words(&format!("{path}: {}: ", print::paint_verdict(word)), error),
        }
    }
}

/// Verifies a run, and shows the progress.
pub(crate) fn verify_with_progress(run: &Run) -> VerifyReport {
    let bar = progress::bar(progress::BYTES).with_message(format!("verifying {}:", run.run_path().display()));
    bar.set_length(run.data_bytes());
    let report = thalweg_store::verify_run_watched(run, |bytes| bar.inc(bytes));
    bar.finish_and_clear();
    report
}

fn verification_text(path: &str, report: &VerifyReport) -> String {
    let mut out = if report.consistent { intact_text(path, report) } else { damaged_text(path, report) };
    let incomplete = format_count(report.incomplete_events);
    let fragments = print::fragments_text(report.fragments, report.missing);
    let _ = writeln!(out, "  {} ({incomplete} incomplete), {fragments}", format_quantity(report.events, "event"));
    if matches!(report.verdict, Verdict::Open { .. } | Verdict::Recovered) {
        report.shifts.iter().for_each(|shift| out.push_str(&wrap_words("  ", &replace_controls(shift))));
    }
    if report.unfinished_events > 0 {
        let unfinished = format_quantity(report.unfinished_events, "event");
        let _ = writeln!(out, "  among these are fragments of {unfinished} that were never closed");
    }
    let _ = writeln!(out, "  {}", stored_text(report.bytes, report.blocks, report.segments));
    if report.lost_blocks > 0 {
        out.push_str(&wrap_words("  lost: ", &lost_data_text(report)));
    }
    if !report.consistent {
        let _ = writeln!(out, "  `thalweg salvage {path}` keeps what is intact");
    }
    out
}

/// Returns the text on the data that is lost with blocks that cannot be read.
fn lost_data_text(report: &VerifyReport) -> String {
    let (blocks, events) = (format_quantity(report.lost_blocks, "block"), format_quantity(report.lost_events, "event"));
    let which = match &report.lost_ranges[..] {
        [] => String::new(),
        few if few.len() <= SHOWN => format!(" ({})", few.join(", ")),
        more => format!(" ({} and {} more ranges)", more[..SHOWN].join(", "), format_count(more.len() - SHOWN)),
    };
    let fragments =
        report.lost_fragments.map_or(String::new(), |lost| format!(" and {}", format_quantity(lost, "fragment")));
    format!("{blocks}, and with them {events}{which}{fragments}, in whole or in part")
}

/// Returns the text on a run that is consistent.
fn intact_text(path: &str, report: &VerifyReport) -> String {
    match &report.verdict {
        Verdict::Complete => format!("{path}: {}, intact\n", print::paint_verdict("COMPLETE")),
        Verdict::Incomplete { reasons } => {
            let incomplete = print::paint_verdict("INCOMPLETE");
            format!("{path}: intact, but the run is {incomplete}:\n{}", print::reasons_text(reasons))
        }
        Verdict::Open { writer: WriterLife::Writing } => {
            let open = print::paint_verdict("OPEN, being written");
            format!("{path}: {open}; intact so far, {}\n", format_quantity(report.blocks, "block"))
        }
        Verdict::Open { .. } => {
            format!("{path}: {}; intact so far\n", print::paint_verdict("OPEN, being written, or its writer died"))
        }
        Verdict::Recovered => {
            let mut out = format!(
                "{path}: {}; recovered to block {}\n",
                print::paint_verdict("OPEN, its writer died"),
                format_count(report.blocks)
            );
            if let Some(end) = &report.recovery {
                let place = format!("{} can be read up to byte {}", end.segment, end.offset);
                out.push_str(&wrap_words("  ", &replace_controls(&format!("{place}; after it: {}", end.found))));
            }
            out
        }
    }
}

fn damaged_text(path: &str, report: &VerifyReport) -> String {
    let (state, reasons) = match &report.verdict {
        Verdict::Complete => ("COMPLETE", &[][..]),
        Verdict::Incomplete { reasons } => ("INCOMPLETE", &reasons[..]),
        Verdict::Open { .. } | Verdict::Recovered => ("OPEN", &[][..]),
    };
    let problems = format_quantity(report.problem_count, "problem");
    let mut out = format!("{path}: {}, {problems}; run.json says {state}\n", print::paint_verdict("DAMAGED"));
    out.push_str(&print::reasons_text(reasons));
    for problem in report.problems.iter().take(SHOWN) {
        out.push_str(&wrap_words("  ", &replace_controls(&problem.to_string())));
    }
    let more = report.problem_count.saturating_sub(report.problems.len().min(SHOWN) as u64);
    if more > 0 {
        let _ = writeln!(
            out,
            "  and {} more; --json lists the first {}",
            format_count(more),
            format_count(report.problems.len())
        );
    }
    out
}

impl Sum {
    fn new(run: &Together, readable: &[(&Named, &(RunInfo, VerifyReport))]) -> Self {
        let members: Vec<_> = run.members.iter().map(|at| readable[*at].1).collect();
        let whole = RunInfo::combine_parts(&members.iter().map(|(info, _)| info).collect::<Vec<_>>());
        // A ledger that cannot be read does not agree with the records, which was reported for its directory.
        let ledger = whole.as_ref().and_then(|whole| whole.read_ledger().ok()).unwrap_or_default();
        let mut sum = Self {
            run: run.run,
            builders: run.builders,
            present: run.present.clone(),
            ok: false,
            state: whole.map_or(RunState::Open, |whole| whole.state),
            consistent: members.iter().all(|(_, report)| report.consistent),
            events: EventCounts::default(),
            fragments: 0,
            missing: 0,
            blocks: 0,
            segments: 0,
            bytes: 0,
            shifts: Vec::new(),
            ledger,
        };
        let mut times = RunTimes::default();
        for (_, report) in &members {
            sum.events.built = sum.events.built.saturating_add(report.events);
            sum.events.incomplete = sum.events.incomplete.saturating_add(report.incomplete_events);
            sum.fragments = sum.fragments.saturating_add(report.fragments);
            sum.missing = sum.missing.saturating_add(report.missing);
            sum.blocks = sum.blocks.saturating_add(report.blocks);
            sum.segments = sum.segments.saturating_add(report.segments);
            sum.bytes = sum.bytes.saturating_add(report.bytes);
            times.merge_times(report.times.clone());
        }
        sum.shifts = members.first().map_or(Vec::new(), |(_, report)| times.find_shifts(&report.sources));
        if !sum.shifts.is_empty() && sum.state == RunState::Complete {
            sum.state = RunState::Incomplete;
        }
        sum.ok = sum.consistent && sum.state == RunState::Complete;
        sum
    }

    fn sum_text(&self, title: &str) -> String {
        let intact = print::paint_verdict(if self.consistent { "intact" } else { "DAMAGED" });
        let mut out = format!("{title}: {}, {intact}\n", print::paint_verdict(run_state_text(self.state, None)));
        out.push_str(&print::reasons_text(&self.shifts));
        let EventCounts { built, incomplete } = self.events;
        let fragments = print::fragments_text(self.fragments, self.missing);
        let _ = writeln!(
            out,
            "  {} ({} incomplete), {fragments}",
            format_quantity(built, "event"),
            format_count(incomplete)
        );
        let _ = writeln!(out, "  {}", stored_text(self.bytes, self.blocks, self.segments));
        if !self.ledger.sources.is_empty() {
            out.push_str(&print::ledger_text(&self.ledger));
        }
        out
    }
}

/// Maximum number of problems that a person is shown one by one.
const SHOWN: usize = 20;

#[cfg(test)]
mod tests {
    use super::*;
    use thalweg_store::{Problem, ProblemKind, Recovery};

    fn report(verdict: Verdict, problems: Vec<ProblemKind>) -> VerifyReport {
        let problem = |kind: ProblemKind| {
            let text = kind.to_string();
            Problem { file: "00000.seg".into(), offset: Some(4_194_304), kind, text }
        };
        let problems: Vec<Problem> = problems.into_iter().map(problem).collect();
        VerifyReport {
            run: 42,
            builder: 0,
            verdict,
            consistent: problems.is_empty(),
            segments: 1,
            blocks: 69,
            bytes: 286_670_848,
            fragments: 68_607,
            missing: 0,
            events: 22_869,
            incomplete_events: 0,
            unfinished_events: 0,
            lost_blocks: 0,
            lost_events: 0,
            lost_ranges: Vec::new(),
            lost_fragments: None,
            sources: Vec::new(),
            shifts: Vec::new(),
            times: RunTimes::default(),
            recovery: None,
            problem_count: problems.len() as u64,
            problems,
        }
    }

    #[test]
    fn a_complete_run_that_agrees_with_itself() {
        insta::assert_snapshot!(verification_text("runs/run-000042", &report(Verdict::Complete, Vec::new())), @r"
        runs/run-000042: COMPLETE, intact
          22,869 events (0 incomplete), 68,607 fragments
          287 MB in 69 blocks, 1 segment
        ");
    }

    #[test]
    fn an_incomplete_run_can_be_intact() {
        let reasons = vec!["source 1.0 (adc-0): 5 fragments dropped at the source".into()];
        let mut report = report(Verdict::Incomplete { reasons }, Vec::new());
        report.incomplete_events = 5;
        insta::assert_snapshot!(verification_text("runs/run-000042", &report), @r"
        runs/run-000042: intact, but the run is INCOMPLETE:
          because: source 1.0 (adc-0): 5 fragments dropped at the source
          22,869 events (5 incomplete), 68,607 fragments
          287 MB in 69 blocks, 1 segment
        ");
    }

    #[test]
    fn a_recovered_run_says_where_it_ends() {
        let mut report = report(Verdict::Recovered, Vec::new());
        let found = "the block is cut off: 4096 of 65536 bytes are there".into();
        let segment = "00000.seg".into();
        report.recovery = Some(Recovery { blocks: 69, segment, offset: 286_670_848, found, is_end: false });
        report.unfinished_events = 1;
        insta::assert_snapshot!(verification_text("runs/run-000042", &report), @r"
        runs/run-000042: OPEN, its writer died; recovered to block 69
          00000.seg can be read up to byte 286670848; after it: the block is cut off:
          4096 of 65536 bytes are there
          22,869 events (0 incomplete), 68,607 fragments
          among these are fragments of 1 event that were never closed
          287 MB in 69 blocks, 1 segment
        ");
    }

    #[test]
    fn damage_is_named_with_its_place_and_much_of_it_only_counted() {
        let payload = |event| ProblemKind::Payload { event, source_id: "1.0".into() };
        let few = report(Verdict::Complete, vec![payload(7)]);
        insta::assert_snapshot!(verification_text("runs/run-000042", &few), @r"
        runs/run-000042: DAMAGED, 1 problem; run.json says COMPLETE
          00000.seg at byte 4194304: event 7, source 1.0: the payload does not match its
          CRC32C
          22,869 events (0 incomplete), 68,607 fragments
          287 MB in 69 blocks, 1 segment
          `thalweg salvage runs/run-000042` keeps what is intact
        ");
        let mut many = report(Verdict::Complete, (0..1000).map(payload).collect());
        many.problem_count = 4000;
        let text = verification_text("runs/run-000042", &many);
        assert!(text.contains("  and 3,980 more; --json lists the first 1,000\n"), "{text}");
    }
}
