//! What a person sees of a run: one line while it goes on, and the books at its end.

use indicatif::{ProgressBar, ProgressStyle};
use std::cell::Cell;
use std::process::ExitCode;
use std::time::{Duration, Instant};
use thalweg_node::{RunReport, Snapshot, SourceReport};

/// The live line on standard error. It is not there where standard error is no terminal.
#[derive(Debug)]
pub(crate) struct Line {
    bar: ProgressBar,
    last: Cell<(Instant, u64)>,
}

impl Line {
    pub(crate) fn new(name: &str) -> Self {
        let bar = ProgressBar::new_spinner().with_prefix(name.to_owned());
        if let Ok(style) = ProgressStyle::with_template("{prefix} {wide_msg}") {
            bar.set_style(style);
        }
        Self { bar, last: Cell::new((Instant::now(), 0)) }
    }

    pub(crate) fn show(&self, now: &Snapshot) {
        let (at, bytes) = self.last.get();
        let seconds = at.elapsed().as_secs_f64();
        if seconds < 0.15 {
            return;
        }
        self.last.set((Instant::now(), now.bytes));
        #[expect(clippy::cast_precision_loss, reason = "a figure for people")]
        let rate = now.bytes.saturating_sub(bytes) as f64 * 8e-9 / seconds;
        let phase = match now.phase {
            0 => format!("waiting, {} sources here", now.sources),
            1 => "running".to_owned(),
            _ => "ending".to_owned(),
        };
        self.bar.set_message(format!(
            "{phase} | {rate:.2} Gbit/s | {} events, {} incomplete | back-pressure {} times, {:.1} s",
            now.events,
            now.incomplete,
            now.stalls,
            Duration::from_nanos(now.stalled_nanos).as_secs_f64()
        ));
        self.bar.tick();
    }

    pub(crate) fn clear(&self) {
        self.bar.finish_and_clear();
    }
}

/// Several builders seen as one.
pub(crate) fn total(snapshots: &[Snapshot]) -> Snapshot {
    snapshots.iter().fold(Snapshot::default(), |sum, one| Snapshot {
        phase: sum.phase.max(one.phase),
        bytes: sum.bytes + one.bytes,
        fragments: sum.fragments + one.fragments,
        events: sum.events + one.events,
        incomplete: sum.incomplete + one.incomplete,
        stalls: sum.stalls + one.stalls,
        stalled_nanos: sum.stalled_nanos + one.stalled_nanos,
        sources: sum.sources.max(one.sources),
    })
}

/// A run's report. The exit code says whether it is complete.
pub(crate) fn run(report: &RunReport, json: bool) -> ExitCode {
    if json {
        println!("{}", serde_json::to_string(report).unwrap_or_default());
    } else {
        print!("{}", text(report));
    }
    if report.state == "COMPLETE" { ExitCode::SUCCESS } else { ExitCode::from(1) }
}

fn text(report: &RunReport) -> String {
    use std::fmt::Write;
    let mut out = String::new();
    let _ = writeln!(out, "run {}: {}", report.run, report.state);
    for reason in &report.reasons {
        let _ = writeln!(out, "  because: {reason}");
    }
    #[expect(clippy::cast_precision_loss, reason = "figures for people")]
    let gigabytes = report.bytes as f64 * 1e-9;
    let _ = writeln!(
        out,
        "  {} events ({} incomplete), {} fragments, {gigabytes:.3} GB in {:.2} s",
        report.events.built, report.events.incomplete, report.fragments, report.seconds
    );
    let _ = writeln!(
        out,
        "  {:.2} Gbit/s, {:.0} fragments/s",
        report.goodput_bits_per_second * 1e-9,
        report.fragments_per_second
    );
    let _ = writeln!(
        out,
        "  copies per byte: {:.2} at the sources, {:.2} at the builder",
        report.copies_per_byte.source, report.copies_per_byte.builder
    );
    let _ = writeln!(
        out,
        "  CPU seconds per GB: {:.3} at the sources, {:.3} at the builder",
        report.cpu_seconds_per_gigabyte.source, report.cpu_seconds_per_gigabyte.builder
    );
    let _ = writeln!(
        out,
        "  back-pressure from the disk: {} times, {:.2} s in all",
        report.back_pressure.stalls, report.back_pressure.seconds
    );
    for directory in &report.directories {
        let _ = writeln!(out, "  on disk: {directory}");
    }
    if let Some(recorder) = &report.recorder {
        let _ = writeln!(out, "  written by {recorder}");
    }
    out.push_str(&ledger(&report.ledger));
    out
}

/// The books, one row for each source; a bucket that is empty everywhere has no column.
fn ledger(ledger: &thalweg_build::Ledger) -> String {
    type Get = fn(&thalweg_build::LedgerEntry) -> i64;
    let n = |value: u64| i64::try_from(value).unwrap_or(i64::MAX);
    let _ = n;
    let columns: [(&str, Get); 10] = [
        ("accepted", |e| e.accepted as i64),
        ("recorded", |e| e.recorded as i64),
        ("discarded", |e| e.discarded as i64),
        ("dropped", |e| (e.dropped_newest + e.dropped_oldest) as i64),
        ("late", |e| e.late as i64),
        ("corrupt", |e| e.corrupt as i64),
        ("lost", |e| e.lost as i64),
        ("skipped", |e| e.skipped as i64),
        ("duplicates", |e| e.duplicates as i64),
        ("unaccounted", |e| e.unaccounted),
    ];
    let shown: Vec<&(&str, Get)> = columns
        .iter()
        .filter(|(name, get)| matches!(*name, "accepted" | "unaccounted") || ledger.sources.iter().any(|e| get(e) != 0))
        .collect();
    let mut rows =
        vec![["source".to_owned()].into_iter().chain(shown.iter().map(|c| c.0.to_owned())).collect::<Vec<_>>()];
    for entry in &ledger.sources {
        let name = format!("{} {}", entry.source, entry.name);
        rows.push([name].into_iter().chain(shown.iter().map(|c| c.1(entry).to_string())).collect());
    }
    let widths: Vec<usize> =
        (0..rows[0].len()).map(|at| rows.iter().map(|row| row[at].chars().count()).max().unwrap_or(0)).collect();
    let mut out = String::new();
    for row in rows {
        let cells = row.iter().zip(&widths).enumerate().map(|(at, (cell, width))| match at {
            0 => format!("  {cell:<width$}"),
            _ => format!("  {cell:>width$}"),
        });
        out.push_str(cells.collect::<String>().trim_end());
        out.push('\n');
    }
    out
}

/// A source's report.
pub(crate) fn source(report: &SourceReport, json: bool) {
    if json {
        println!("{}", serde_json::to_string(report).unwrap_or_default());
        return;
    }
    println!(
        "source {} ({}): {} fragments, {} bytes in {:.2} s; dropped {} as they came and {} to make room; waited {} times for a slot",
        report.source,
        report.name,
        report.accepted,
        report.bytes,
        report.seconds,
        report.dropped_newest,
        report.dropped_oldest,
        report.blocked
    );
}
