//! Output for a person at the end of a run: the report, and the final counters.

use crate::terminal::outlet;
use serde::Serialize;
use std::fmt::Write as _;
use std::process::ExitCode;
use std::time::Duration;
use thalweg_core::build::{Ledger, LedgerColumn, LedgerEntry};
use thalweg_link::Arrivals;
use thalweg_node::{Calibration, RunReport, Snapshot, SourceReport, State, TriggerReport, Undecided};
pub(crate) use thalweg_text::tone::paint_verdict;
use thalweg_text::{
    Align, Table, format_bit_rate, format_count, format_quantity, format_times, format_volume, replace_controls,
    wrap_words,
};

/// Returns the sum of several builders' snapshots.
pub(crate) fn total_snapshot(snapshots: &[Snapshot]) -> Snapshot {
    snapshots.iter().fold(Snapshot::default(), |sum, one| Snapshot {
        // The builder that leads comes first.
        state: if sum.state == State::Idle { one.state } else { sum.state },
        bytes: sum.bytes + one.bytes,
        fragments: sum.fragments + one.fragments,
        events: sum.events + one.events,
        incomplete: sum.incomplete + one.incomplete,
        stalls: sum.stalls + one.stalls,
        stalled_nanos: sum.stalled_nanos + one.stalled_nanos,
        connected: sum.connected.max(one.connected),
        ..Snapshot::default()
    })
}

/// Prints a run's report. The exit code shows whether the run is complete.
pub(crate) fn print_run_report(report: &RunReport, json: bool) -> ExitCode {
    print_report(report, json, run_text);
    if report.state == "COMPLETE" { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Prints a source's report.
pub(crate) fn print_source_report(report: &SourceReport, json: bool) {
    print_report(report, json, source_text);
}

fn print_report<R: Serialize>(report: &R, json: bool, text: fn(&R) -> String) {
    outlet::stdout().put_text(match serde_json::to_string(report) {
        Ok(line) if json => line + "\n",
        _ => text(report),
    });
}

/// Returns the text on what the links were found to carry.
fn calibration_text(report: &RunReport) -> String {
    let mut out = String::new();
    for Calibration { builder, link, lost, window_bytes, file, warnings, .. } in &report.calibration {
        let least = if *lost { "" } else { "at least " };
        let round_trip = humantime::format_duration(Duration::from_micros(
            u64::try_from(link.round_trip.as_micros().max(1)).unwrap_or(u64::MAX),
        ));
        let _ = writeln!(
            out,
            "{builder}: {}, {round_trip} from a fetch to its data, buffer {least}{}",
            link.rate, link.buffer
        );
        let window = format_volume(*window_bytes);
        let _ = match file {
            Some(file) => writeln!(out, "  window: {window} (kept in {file})"),
            None => writeln!(out, "  window: {window} (not kept: the calibration is incomplete)"),
        };
        warnings.iter().for_each(|warning| out.push_str(&wrap_words("  warning: ", &replace_controls(warning))));
        let _ = writeln!(
            out,
            "  in a topology: link = {{ rate = \"{}\", round_trip = \"{round_trip}\", buffer = {} }}",
            link.rate, link.buffer.0
        );
    }
    out + &reasons_text(&report.reasons)
}

fn run_text(report: &RunReport) -> String {
    if !report.calibration.is_empty() {
        return calibration_text(report);
    }
    let run = if report.run == 0 { "run".to_owned() } else { format!("run {}", report.run) };
    let part = report.builder.map_or(String::new(), |builder| format!(", builder {builder} of {}", report.builders));
    let mut out = format!("{run}{part}: {}\n", paint_verdict(&report.state));
    out.extend(report.verdict.iter().map(|verdict| wrap_words("  ", &replace_controls(&verdict.sentence))));
    out.push_str(&reasons_text(&report.reasons));
    out.push_str(&dead_time_text(&report.ledger));
    out.push_str(&events_text(report));
    let _ = writeln!(
        out,
        "  {}, {} fragments/s",
        format_bit_rate(report.goodput_bits_per_second),
        format_count(format_args!("{:.0}", report.fragments_per_second))
    );
    let _ = writeln!(
        out,
        "  copies per byte: {} at the sources, {:.2} at the builder",
        figure_or_unknown(report.copies_per_byte.source, 2),
        report.copies_per_byte.builder
    );
    let cpu = report.cpu_seconds_per_gigabyte;
    let of_sources = figure_or_unknown(cpu.source, 3);
    let _ = writeln!(out, "  CPU seconds per GB: {of_sources} at the sources, {:.3} at the builder", cpu.builder);
    out.push_str(&datagrams_text(&report.datagrams));
    if let Some(trigger) = &report.trigger {
        #[expect(clippy::cast_precision_loss, reason = "figures for people")]
        let gigabytes = report.bytes as f64 * 1e-9;
        let cpu_seconds = cpu.source.map(|source| (source + cpu.builder) * gigabytes);
        out.push_str(&trigger_text(trigger, report.bytes, cpu_seconds));
    }
    out.push_str(&recording_text(report));
    out.push('\n');
    out.push_str(&ledger_text(&report.ledger));
    for (name, counters) in &report.devices {
        let counters_text = device_counters_text(counters.iter().filter(|(_, number)| **number > 0));
        let counters_text = if counters_text.is_empty() { "nothing".into() } else { counters_text };
        out.push_str(&wrap_words("  ", &format!("the device of {} counted: {counters_text}", replace_controls(name))));
    }
    out
}

/// Returns the text on the events and their data.
fn events_text(report: &RunReport) -> String {
    let mut out = format!(
        "  {} ({} incomplete), {}{} in {:.2} s\n",
        format_quantity(report.events.built, "event"),
        format_count(report.events.incomplete),
        format_quantity(report.fragments, "fragment"),
        // With trigger levels most of the fetched data is not in these events: see `trigger_text`.
        if report.trigger.is_none() { format!(", {}", format_volume(report.bytes)) } else { String::new() },
        report.seconds
    );
    let recorded: u64 = report.ledger.sources.iter().map(|entry| entry.recorded).sum();
    if report.directory.is_some() && recorded < report.fragments {
        let _ = writeln!(out, "  on disk are {} of these fragments: see below", format_count(recorded));
    }
    out
}

/// Returns the text on datagrams that were not accepted.
fn datagrams_text(datagrams: &Arrivals) -> String {
    let Arrivals { received, dropped, damaged, foreign } = *datagrams;
    if dropped + damaged + foreign == 0 {
        return String::new();
    }
    let reasons = format!(
        "{} dropped by this host because buffers were full, {} damaged in transit, {} from other senders",
        format_count(dropped),
        format_count(damaged),
        format_count(foreign)
    );
    wrap_words("  ", &format!("{} datagrams received; not used: {reasons}", format_count(received)))
}

/// Returns the text on the disk: its back-pressure, the window, the recorder and the run's directories.
fn recording_text(report: &RunReport) -> String {
    let mut out = match report.back_pressure.stalls {
        0 => "  back-pressure from the disk: none\n".to_owned(),
        stalls => {
            format!(
                "  back-pressure from the disk: {}, {:.2} s in all\n",
                format_times(stalls),
                report.back_pressure.seconds
            )
        }
    };
    for (file, credit) in report.calibrated.iter().zip(&report.credit) {
        let window = format_volume(credit.window_bytes);
        out.push_str(&wrap_words(
            "  ",
            &format!("window {window}, from the link as calibrated: {}", replace_controls(file)),
        ));
    }
    match &report.recorder {
        Some(recorder) => out.push_str(&wrap_words("  written by ", recorder)),
        None => out.push_str("  not recorded\n"),
    }
    for directory in &report.directories {
        let _ = writeln!(out, "  on disk: {directory}");
    }
    out
}

/// Returns the counters of a device, in words.
fn device_counters_text<'a>(counters: impl Iterator<Item = (&'a String, &'a u64)>) -> String {
    let counters_text = counters.map(|(name, number)| format!("{} {}", name.replace('_', " "), format_count(number)));
    counters_text.collect::<Vec<_>>().join(", ")
}

/// Returns the text on what the trigger levels did; for simulated levels, compared with those of ATLAS (100 kHz, 3 kHz,
/// 200 Hz: Nagasaka and Oki 2012, section 2.2).
fn trigger_text(trigger: &TriggerReport, fetched_bytes: u64, cpu_seconds: Option<f64>) -> String {
    let TriggerReport { level1, level2_accepted, filter_accepted, rates, unasked_bytes, simulated, undecided, levels } =
        trigger;
    let mut out =
        format!("  trigger{}: {}", if *simulated { ", simulated" } else { "" }, format_quantity(*level1, "event"));
    let mut rates_text = format!("{} at level 1", whole_rate_text(rates.level1));
    if levels.level2 {
        let _ = write!(
            out,
            ", level 2 accepted {} ({})",
            format_count(level2_accepted),
            acceptance_ratio_text(*level1, *level2_accepted)
        );
        let _ = write!(rates_text, ", {} after level 2", whole_rate_text(rates.level2_accepted));
    }
    if levels.filter {
        let _ = write!(
            out,
            ", the event filter {} ({})",
            format_count(filter_accepted),
            acceptance_ratio_text(*level2_accepted, *filter_accepted)
        );
        let _ = write!(rates_text, ", {:.1} after the event filter", rates.filter_accepted);
    }
    let at_atlas = if *simulated { "; at ATLAS 100,000, 3,000 (1 in 33.3), 200 (1 in 15.0)" } else { "" };
    let _ = writeln!(out, "\n  events/s: {rates_text}{at_atlas}");
    #[expect(clippy::cast_precision_loss, reason = "figures for people")]
    let cpu_ms = cpu_seconds.map(|seconds| seconds * 1e3 / (*level1).max(1) as f64);
    let unit = if cpu_ms.is_some() { " ms" } else { "" };
    let _ = writeln!(out, "  CPU per event: {}{unit}", figure_or_unknown(cpu_ms, 3));
    if *undecided != Undecided::default() {
        let Undecided { unsure, late, gone, ends } = *undecided;
        let ended = if ends > 0 { format!(", which ended {}", format_quantity(ends, "time")) } else { String::new() };
        let _ = writeln!(
            out,
            "  undecided: {}: {} could not be decided, {} too late, {} without the program{ended}",
            format_quantity(undecided.event_count(), "event"),
            format_count(unsure),
            format_count(late),
            format_count(gone)
        );
    }
    let _ = writeln!(
        out,
        "  fetched: {}; never asked for: {}",
        format_volume(fetched_bytes),
        format_volume(*unasked_bytes)
    );
    out
}

#[expect(clippy::cast_precision_loss, reason = "figures for people")]
fn acceptance_ratio_text(of: u64, accepted: u64) -> String {
    match accepted {
        0 => "none".to_owned(),
        accepted => format!("1 in {:.1}", of as f64 / accepted as f64),
    }
}

fn whole_rate_text(rate: f64) -> String {
    format_count(format_args!("{rate:.0}"))
}

/// Maximum number of reasons that a person is shown one by one.
const SHOWN: usize = 20;

/// Returns the reasons why a run is incomplete, one line or more for each.
pub(crate) fn reasons_text(reasons: &[String]) -> String {
    let mut out: String =
        reasons.iter().take(SHOWN).map(|reason| wrap_words("  because: ", &replace_controls(reason))).collect();
    if let more @ 1.. = reasons.len().saturating_sub(SHOWN) {
        let _ = writeln!(out, "  and {} more reasons; --json has them all", format_count(more));
    }
    out
}

/// Returns the number of fragments as text, with the number of missing ones.
pub(crate) fn fragments_text(came: u64, missing: u64) -> String {
    match missing {
        0 => format_quantity(came, "fragment"),
        missing => format!("{} ({} missing)", format_quantity(came, "fragment"), format_count(missing)),
    }
}

/// Returns the final counters, in fragments: a row for each source, and with many sources one row for all those that
/// have nothing to show but what they accepted and its outcome; a bucket that is empty everywhere has no column.
pub(crate) fn ledger_text(ledger: &Ledger) -> String {
    let shown: Vec<&LedgerColumn> = LedgerEntry::COLUMNS.iter().filter(|column| column.is_shown(ledger)).collect();
    let figures = shown.iter().map(|column| (column.name, Align::Right));
    let mut table = Table::new([("source", Align::Left)].into_iter().chain(figures));
    let all: Vec<&LedgerEntry> = ledger.sources.iter().collect();
    let (single, summed): (Vec<_>, Vec<_>) = match all.len() {
        ..=SHOWN => (all.clone(), Vec::new()),
        _ => all.iter().partition(|entry| is_remarkable(entry)),
    };
    let (single, similar) = single.split_at(single.len().min(SHOWN));
    for entry in single {
        let name = replace_controls(&format!("{} {}", entry.source, entry.name)).into_owned();
        table.add_row(ledger_row(name, &shown, &[*entry]));
    }
    if !similar.is_empty() {
        table.add_row(ledger_row(format!("{} more such", format_count(similar.len())), &shown, similar));
    }
    if !summed.is_empty() {
        let name = format!("{} with nothing lost", format_quantity(summed.len() as u64, "source"));
        table.add_row(ledger_row(name, &shown, &summed));
    }
    if all.len() > SHOWN && !single.is_empty() {
        table.add_row(ledger_row("all".to_owned(), &shown, &all));
    }
    table.render_folded(2)
}

/// Returns the sums of some sources' counters.
fn ledger_row(name: String, columns: &[&LedgerColumn], entries: &[&LedgerEntry]) -> Vec<String> {
    // The last counters of a source that is gone are the least that it accepted.
    let least = if entries.iter().all(|entry| entry.final_counters) { "" } else { "≥ " };
    let mut row = vec![name];
    for column in columns {
        let sum: i128 = entries.iter().map(|entry| (column.figure)(entry)).sum();
        row.push(format!("{}{}", if column.name == "accepted" { least } else { "" }, format_count(sum)));
    }
    row
}

/// Returns a figure of the sources; "unknown" where one of them sent no final counters.
fn figure_or_unknown(figure: Option<f64>, decimals: usize) -> String {
    figure.map_or_else(|| "unknown".to_owned(), |figure| format!("{figure:.decimals$}"))
}

/// Returns the text on fragments that sources did not take from devices with a rate, if they are many.
pub(crate) fn dead_time_text(ledger: &Ledger) -> String {
    let much = ledger.sources.iter().filter(|entry| is_considerable_loss(entry.not_taken, entry.accepted));
    let sources: Vec<String> = much
        .map(|entry| {
            let LedgerEntry { source, not_taken, dead_time_ms, .. } = entry;
            #[expect(clippy::cast_precision_loss, reason = "figures for people")]
            let seconds = *dead_time_ms as f64 / 1e3;
            format!("{source} {} (all slots full for {seconds:.1} s)", format_count(*not_taken))
        })
        .collect();
    match &sources[..] {
        [] => String::new(),
        shown => {
            let sources = shown[..shown.len().min(SHOWN)].join(", ");
            wrap_words("  dead time: ", &format!("fragments not taken: {sources}"))
        }
    }
}

/// Returns true if one in a hundred or more was not taken.
fn is_considerable_loss(not_taken: u64, accepted: u64) -> bool {
    not_taken > 0 && not_taken >= accepted.saturating_add(not_taken) / 100
}

/// Returns true if fragments of the source had an outcome that was not intended, or is not known.
fn is_remarkable(entry: &LedgerEntry) -> bool {
    let LedgerEntry { accepted, recorded, discarded, rejected, beyond_end, .. } = entry;
    let meant = [*recorded, *discarded, *rejected, *beyond_end].into_iter().fold(0, u64::saturating_add);
    meant != *accepted
        || entry.unaccounted != 0
        || entry.skipped + entry.damaged + entry.uncertain + entry.duplicates + entry.of_no_event > 0
        || !entry.final_counters
}

fn source_text(report: &SourceReport) -> String {
    let SourceReport { source, name, seconds, dropped_newest, dropped_oldest, blocked, .. } = report;
    let mut text = format!(
        "source {source} ({name})\n  {}, {} in {seconds:.2} s\n  \
         dropped {} as they came and {} to make room; waited for a free slot: {}\n",
        format_quantity(report.accepted, "fragment"),
        format_volume(report.bytes),
        format_count(dropped_newest),
        format_count(dropped_oldest),
        format_times(*blocked)
    );
    if is_considerable_loss(report.not_taken, report.accepted) {
        let fragments = format_quantity(report.not_taken, "fragment");
        let _ = writeln!(text, "  dead time: {fragments} not taken; all slots full for {:.2} s", report.dead_seconds);
    }
    if !report.device.is_empty() {
        let counters_text = device_counters_text(report.device.iter());
        let _ = writeln!(text, "  the device: lost {}; {counters_text}", format_count(report.lost_in_device));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use thalweg_core::build::TriggerCounts;
    use thalweg_node::{BuilderReport, Levels};

    fn entry(source: &str, name: &str, accepted: u64, recorded: u64) -> LedgerEntry {
        LedgerEntry {
            source: source.into(),
            name: name.into(),
            accepted,
            recorded,
            final_counters: true,
            ..LedgerEntry::default()
        }
    }

    fn books(sources: Vec<LedgerEntry>) -> Ledger {
        Ledger { sources, ..Ledger::default() }.into_balanced()
    }

    #[test]
    fn a_complete_run_says_how_fast_it_was_and_that_all_is_there() {
        let builder = BuilderReport {
            run: 42,
            state: "COMPLETE".into(),
            directory: Some("runs/run-000042".into()),
            seconds: 5.0,
            bytes: 12_500_000_000,
            fragments: 12_500,
            events: 6_250,
            stalls: 1,
            stalled_seconds: 0.25,
            copied_bytes: 12_500_000_000,
            cpu_seconds: 4.0,
            source_cpu_seconds: 3.0,
            recorder: Some("io_uring, O_DIRECT, registered buffers, space reserved ahead".into()),
            ledger: books(vec![entry("1.0", "adc-0", 6_250, 6_250), entry("1.1", "adc-1", 6_250, 6_250)]),
            ..BuilderReport::default()
        };
        insta::assert_snapshot!(run_text(&RunReport::new(&[builder])), @r"
        run 42: COMPLETE
          6,250 events (0 incomplete), 12,500 fragments, 12.5 GB in 5.00 s
          20.0 Gbit/s, 2,500 fragments/s
          copies per byte: 0.00 at the sources, 1.00 at the builder
          CPU seconds per GB: 0.240 at the sources, 0.320 at the builder
          back-pressure from the disk: once, 0.25 s in all
          written by io_uring, O_DIRECT, registered buffers, space reserved ahead
          on disk: runs/run-000042

          source     accepted  recorded  unaccounted
          1.0 adc-0     6,250     6,250            0
          1.1 adc-1     6,250     6,250            0
        ");
    }

    #[test]
    fn an_incomplete_run_says_why_and_its_books_show_where() {
        let mut lossy = entry("1.1", "adc-1", 1_000_000, 999_000);
        (lossy.dropped_newest, lossy.dropped_oldest, lossy.lost) = (600, 300, 50);
        let ledger = books(vec![entry("1.0", "adc-0", 1_000_000, 1_000_000), lossy]);
        let builder = BuilderReport {
            state: "INCOMPLETE".into(),
            reasons: ledger.incomplete_reasons(false),
            seconds: 10.0,
            bytes: 2_000_000_000,
            fragments: 1_999_000,
            events: 1_000_000,
            incomplete: 1_000,
            datagrams: Arrivals { received: 4_000_000, dropped: 1_500, damaged: 2, foreign: 0 },
            ledger,
            ..BuilderReport::default()
        };
        insta::assert_snapshot!(run_text(&RunReport::new(&[builder])), @r"
        run: INCOMPLETE
          because: source 1.1 (adc-1): 50 fragments lost
          because: source 1.1 (adc-1): 900 fragments dropped at the source
          because: source 1.1 (adc-1): 50 fragments UNACCOUNTED for
          1,000,000 events (1,000 incomplete), 1,999,000 fragments, 2.00 GB in 10.00 s
          1.60 Gbit/s, 199,900 fragments/s
          copies per byte: 0.00 at the sources, 0.00 at the builder
          CPU seconds per GB: 0.000 at the sources, 0.000 at the builder
          4,000,000 datagrams received; not used: 1,500 dropped by this host because
          buffers were full, 2 damaged in transit, 0 from other senders
          back-pressure from the disk: none
          not recorded

          source      accepted   recorded  dropped  lost  unaccounted
          1.0 adc-0  1,000,000  1,000,000        0     0            0
          1.1 adc-1  1,000,000    999,000      900    50           50
        ");
    }

    #[test]
    fn a_thousand_sources_are_summed_and_those_that_lost_something_named() {
        let mut sources: Vec<LedgerEntry> =
            (0..1000).map(|at| entry(&format!("1.{at}"), &format!("adc-{at}"), 500, 500)).collect();
        (sources[7].recorded, sources[7].lost) = (480, 20);
        // The source was cut off: its last counters are all that is known.
        (sources[9].accepted, sources[9].recorded, sources[9].final_counters) = (391, 391, false);
        insta::assert_snapshot!(ledger_text(&books(sources)), @"
        source                          accepted  recorded  lost  unaccounted
        1.7 adc-7                            500       480    20            0
        1.9 adc-9                          ≥ 391       391     0            0
        998 sources with nothing lost    499,000   499,000     0            0
        all                            ≥ 499,891   499,871    20            0
        ");
    }

    #[test]
    fn a_triggered_run_says_how_few_events_it_kept() {
        let counts = TriggerCounts { level1: 50_000, level2: 1_502, filter: 98, unasked_bytes: 4_267_728_000 };
        let levels = Levels { level2: true, filter: true };
        insta::assert_snapshot!(trigger_text(&TriggerReport::new(counts, 5.0, levels), 117_000_000, Some(6.0)), @r"
          trigger, simulated: 50,000 events, level 2 accepted 1,502 (1 in 33.3), the event filter 98 (1 in 15.3)
          events/s: 10,000 at level 1, 300 after level 2, 19.6 after the event filter; at ATLAS 100,000, 3,000 (1 in 33.3), 200 (1 in 15.0)
          CPU per event: 0.120 ms
          fetched: 117 MB; never asked for: 4.27 GB
        ");
        let none = TriggerReport::new(TriggerCounts::default(), 0.0, Levels { filter: false, ..levels });
        let text = trigger_text(&none, 0, None);
        assert!(text.contains("  CPU per event: unknown\n"), "{text}");
        assert!(text.contains("level 2 accepted 0 (none)") && !text.contains("event filter"), "{text}");
    }

    #[test]
    fn a_source_says_what_it_took_and_dropped() {
        let report = SourceReport {
            name: "adc-0".into(),
            source: "1.0".into(),
            seconds: 5.0,
            bytes: 1_048_576_000,
            accepted: 1000,
            dropped_newest: 12,
            blocked: 2,
            ..SourceReport::default()
        };
        insta::assert_snapshot!(source_text(&report), @r"
        source 1.0 (adc-0)
          1,000 fragments, 1.05 GB in 5.00 s
          dropped 12 as they came and 0 to make room; waited for a free slot: twice
        ");
    }
}
