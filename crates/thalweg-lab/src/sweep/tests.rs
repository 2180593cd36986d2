use super::*;
use crate::report::{Completion, Events, Queue, Report};
use crate::{LabError, Laboratory};
use std::cell::RefCell;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use thalweg_testing::skip::skipped;
use thalweg_text::plot::Provenance;

const SWEEP: &str = r#"
title = "Made up"

[network]
senders = 1

[measure]
seconds = 0.1

[sweep]
rounds = 10
"traffic.control" = ["credit", "bic"]
network.delay = ["0.1ms", "10 ms"]

[[sweep.together]]
"network.rate" = ["1 Gbit/s", "10 Gbit/s"]
"network.buffer" = ["340 kB", "3.4 MB"]

[check]
share_of_ceiling = ">= 0.98"
retransmissions = "== 0"

[quick]
"network.delay" = ["10ms"]
measure.seconds = 0.05
"#;

fn sweep() -> Sweep {
    Sweep::parse_text("made-up", SWEEP, false).unwrap()
}

/// Returns the report of a cell with this share of the ceiling, as a laboratory would.
pub(crate) fn report(scenario: &Scenario, share: f64) -> Report {
    let ceiling = scenario.ceiling_bits_per_second();
    Report {
        laboratory: "ns3".into(),
        scenario: scenario.clone(),
        goodput_bits_per_second: share * ceiling,
        ceiling_bits_per_second: ceiling,
        share_of_ceiling: share,
        queue: Queue { limit_bytes: scenario.network.buffer.0, over_time: vec![(0.0, 1)], ..Queue::default() },
        events: Events { complete: 100, incomplete: 0 },
        completion: Some(Completion { p50_us: 1000.0, p99_us: 2000.0, max_us: 3000.0, ..Completion::default() }),
        measured_seconds: scenario.measure.seconds,
        virtual_seconds: 0.2,
        wall_seconds: 1.0,
        ..Report::default()
    }
}

/// Returns results that are a function of the scenario.
pub(crate) fn results(sweep: Sweep, of: impl Fn(&Scenario) -> Outcome) -> Results {
    let outcomes = sweep.cells.iter().map(|cell| Some(of(&cell.scenario))).collect();
    Results { sweep, laboratory: "ns3".into(), outcomes, provenance: Provenance::default() }
}

#[test]
fn every_combination_is_a_cell() {
    let sweep = sweep();
    let keys: Vec<&str> = sweep.axes.iter().map(|axis| axis.key.as_str()).collect();
    assert_eq!(keys, ["traffic.control", "network.delay", "network.rate"]);
    let cells: Vec<String> = sweep.cells.iter().map(|cell| sweep.describe_cell(cell)).collect();
    assert_eq!(cells.len(), 8);
    assert_eq!(cells[0], "control credit, delay 0.1ms, rate 1 Gbit/s");
    assert_eq!(cells[7], "control bic, delay 10 ms, rate 10 Gbit/s");
    let last = &sweep.cells[7].scenario;
    assert_eq!((last.network.buffer.0, last.network.rate.0), (3_400_000, 10_000_000_000));
    // Ten round trips of 20 ms are longer than what the file asks for, of 0.2 ms they are not.
    assert_eq!((last.measure.seconds, sweep.cells[0].scenario.measure.seconds), (0.2, 0.1));
}

#[test]
fn a_part_of_it_is_taken_by_its_values() {
    let mut sweep = sweep();
    sweep.select_cells("delay=10ms").unwrap();
    sweep.select_cells("network.rate = 10gbit/s,1 Gbit/s").unwrap();
    sweep.select_cells("control=bic").unwrap();
    assert_eq!(sweep.cells.len(), 2);
    let results = results(sweep.clone(), |scenario| Ok(Box::new(report(scenario, 1.0))));
    for cell in &sweep.cells {
        assert_eq!(results.report_of_cell(&cell.at).unwrap().scenario, cell.scenario);
    }
    insta::assert_snapshot!(sweep.select_cells("delay=1ms").unwrap_err(), @"'delay=1ms' takes nothing out of made-up: write KEY=VALUE or KEY=VALUE,VALUE with traffic.control = bic; network.delay = 10 ms; network.rate = 1 Gbit/s, 10 Gbit/s");
}

#[test]
fn the_sample_is_what_the_file_says() {
    let quick = Sweep::parse_text("made-up", SWEEP, true).unwrap();
    assert_eq!(quick.cells.len(), 4);
    assert!(quick.cells.iter().all(|cell| cell.scenario.network.delay == Duration::from_millis(10)));
    // Ten round trips it remains.
    assert_eq!(quick.cells[0].scenario.measure.seconds, 0.2);
}

/// Returns the error of the sweep with a text replaced.
fn error_after(from: &str, to: &str) -> String {
    assert!(SWEEP.contains(from));
    let text = SWEEP.replacen(from, to, 1);
    let both = [false, true].map(|quick| Sweep::parse_text("made-up", &text, quick));
    both.into_iter().find_map(Result::err).unwrap().to_string()
}

#[test]
fn an_error_names_its_line() {
    let errors = [
        error_after("\"bic\"]", "\"bick\"]"),
        error_after("network.delay = [\"0.1ms\", ", "network.delay = [\"2s\", "),
        error_after("\"10 ms\"]", "\"0.1ms\"]"),
        error_after("network.delay = [\"0.1ms\", \"10 ms\"]", "network.delay = \"0.1ms\""),
        error_after("network.delay = [\"0.1ms\"", "network.delays = [\"0.1ms\""),
        error_after("\"3.4 MB\"]", "\"3.4 MB\", \"34 MB\"]"),
        error_after("senders = 1\n", "senders = 0\n"),
        error_after("rounds = 10", "rounds = \"ten\""),
        error_after(">= 0.98", "0.98"),
        error_after("retransmissions = ", "retransmission = "),
        error_after("[\"10ms\"]", "[\"1ms\"]"),
        error_after("[quick]", "[quack]"),
        error_after("[sweep]", "[sweep"),
        Sweep::parse_text("plain", "[network]\nsenders = 1\n", false).unwrap_err().to_string(),
    ];
    insta::assert_snapshot!(errors.join("\n"));
}

#[test]
fn the_sweeps_that_come_with_thalweg_can_be_run() {
    for name in embedded_names() {
        for quick in [false, true] {
            let sweep = Sweep::load_by_name(name, quick).unwrap_or_else(|error| panic!("{error}"));
            assert!(sweep.cells.len() > 1 && sweep.title != name, "{name}");
            assert!(name.starts_with("tdaq") || name.ends_with("controls") || !sweep.checks.is_empty(), "{name}");
        }
    }
    let error = Sweep::load_by_name("judge-1", false).unwrap_err().to_string();
    assert!(error.contains("judge-1g"), "{error}");
    // Four fifths of what the port carries, whatever the number of senders.
    for cell in &Sweep::load_by_name("judge-paced", false).unwrap().cells {
        let mut full = cell.scenario.clone();
        full.traffic.interval = None;
        let share = cell.scenario.ceiling_bits_per_second() / full.ceiling_bits_per_second();
        assert!((share - 0.8).abs() < 0.001, "{share}");
    }
}

/// Runs the sweep with a function in a laboratory's place; returns which cells were run.
fn run_with(
    directory: &Path,
    stop: &AtomicBool,
    of: impl Fn(&Scenario) -> Result<Report, LabError> + Sync,
) -> (Result<Results, LabError>, Vec<Scenario>) {
    let ran = Mutex::new(Vec::new());
    let measure = |scenario: &Scenario, own: &Path, _: &AtomicBool| {
        assert!(own.starts_with(directory));
        ran.lock().unwrap().push(scenario.clone());
        of(scenario)
    };
    let results = run::run_sweep_with(measure, sweep(), Laboratory::Ns3, 2, directory, stop, |_| {});
    (results, ran.into_inner().unwrap())
}

fn is_fast(scenario: &Scenario) -> bool {
    scenario.network.rate.0 > 1_000_000_000
}

fn limit_error() -> LabError {
    LabError::Limit { what: "ns-3".into(), limit: Duration::from_secs(1) }
}

#[test]
fn an_interrupted_sweep_goes_on_where_it_was() {
    let directory = tempfile::tempdir().unwrap();
    let stop = AtomicBool::new(false);
    // The slower cells come first; an interrupted cell has no result, and no cell is begun after it.
    let (results, ran) = run_with(directory.path(), &stop, |scenario| match is_fast(scenario) {
        true => Err(LabError::Interrupted),
        false => Ok(report(scenario, 1.0)),
    });
    let results = results.unwrap();
    assert_eq!(results.finished_count(), 4);
    assert!((5..=6).contains(&ran.len()), "{} cells, by two workers", ran.len());
    assert!(!results.has_passed() && results.failed_cells().is_empty());

    // A write that was interrupted leaves half a line.
    let path = directory.path().join("results.jsonl");
    let text = std::fs::read_to_string(&path).unwrap();
    assert!(text.lines().all(|line| line.contains("\"over_time\":[]")));
    std::fs::write(&path, &text[..text.len() - 100]).unwrap();
    let (results, ran) = run_with(directory.path(), &stop, |scenario| match is_fast(scenario) {
        true => Err(limit_error()),
        false => Ok(report(scenario, 1.0)),
    });
    let results = results.unwrap();
    assert_eq!((results.finished_count(), ran.len()), (8, 5));
    assert_eq!(results.failed_cells().len(), 4);
    assert!(results.failed_cells()[0].1.contains("did not end within 1s"));

    // What failed is tried again, what is done is not.
    let (results, ran) = run_with(directory.path(), &stop, |scenario| Ok(report(scenario, 1.0)));
    assert!(results.unwrap().has_passed() && ran.len() == 4 && ran.iter().all(is_fast));
    let (results, ran) = run_with(directory.path(), &stop, |_| Err(limit_error()));
    assert!(results.unwrap().has_passed() && ran.is_empty());
}

#[test]
fn a_laboratory_that_is_not_there_is_reported_once() {
    let directory = tempfile::tempdir().unwrap();
    let (results, ran) = run_with(directory.path(), &AtomicBool::new(false), |_| {
        Err(LabError::Unavailable { what: "ns-3".into(), why: "it is not installed".into() })
    });
    assert!(matches!(results, Err(LabError::Unavailable { .. })));
    assert!(ran.len() < 8);
    assert_eq!(std::fs::read_to_string(directory.path().join("results.jsonl")).unwrap(), "");
}

#[test]
fn the_rest_is_estimated_from_what_is_done() {
    let directory = tempfile::tempdir().unwrap();
    let seen = RefCell::new(Vec::new());
    let measure = |scenario: &Scenario, _: &Path, _: &AtomicBool| Ok(report(scenario, 1.0));
    let stop = AtomicBool::new(false);
    let note = |progress: Progress<'_>| seen.borrow_mut().push((progress.done, progress.of, progress.left));
    run::run_sweep_with(measure, sweep(), Laboratory::Virtual, 1, directory.path(), &stop, note).unwrap();
    let seen = seen.into_inner();
    assert_eq!(seen.iter().map(|(done, ..)| *done).collect::<Vec<_>>(), (0..=8).collect::<Vec<_>>());
    // By the rule of thumb minutes; from the first cell on, which took no time, none.
    assert!(seen[0].2 > Duration::from_secs(60) && seen[1].2 < Duration::from_secs(10), "{seen:?}");
    assert_eq!(seen[8].2, Duration::ZERO);
}

#[test]
fn checks_are_about_figures_of_the_report() {
    let scenario = sweep().cells[0].scenario.clone();
    let mut one = report(&scenario, 0.97);
    let mut check = |name: &str, text: &str, change: fn(&mut Report)| {
        change(&mut one);
        check::Check::parse(name, text).unwrap().check_report(&one)
    };
    let short = check("share_of_ceiling", ">= 0.98", |_| {});
    assert!(!short.holds);
    assert_eq!(short.to_string(), "0.9700, not share_of_ceiling >= 0.98");
    assert!(check("retransmissions", "== 0", |_| {}).holds);
    assert!(!check("retransmissions", "==0", |one| one.retransmissions = 1).holds);
    assert!(check("queue_of_buffer", "<= 1", |one| one.queue.max_bytes = 340_000).holds);
    assert!(!check("queue_of_buffer", "<= 1", |one| one.queue.max_bytes = 340_001).holds);
    // 0.2 ms there and back, and 64 KiB at 1 Gbit/s: 0.724 ms.
    let slow = check("p99_of_least", "<= 1.5", |_| {}).value.unwrap();
    assert!((slow - 2.0 / 0.724_288).abs() < 1e-6, "{slow}");
    let nothing = check("p99_of_least", "<= 1.5", |one| one.completion = None);
    assert_eq!((nothing.holds, nothing.to_string().as_str()), (false, "nothing, not p99_of_least <= 1.5"));
    assert!(!check("share_of_ceiling", "<= 1", |one| one.share_of_ceiling = f64::NAN).holds);
}

/// Bic is ahead where the delay is long, and one cell has failed.
fn contested() -> Results {
    results(sweep(), |scenario| {
        let long = scenario.network.delay > Duration::from_millis(1);
        match (scenario.traffic.control.credit, long, scenario.network.rate.0 > 1_000_000_000) {
            (false, true, true) => Err("the machine did not end within 10m and was killed".into()),
            (false, long, _) => Ok(Box::new(report(scenario, if long { 0.99 } else { 0.5 }))),
            (true, long, _) => Ok(Box::new(report(scenario, if long { 0.9 } else { 0.985 }))),
        }
    })
}

#[test]
fn a_person_sees_the_best_control_and_every_cell_that_fails() {
    let results = contested();
    let text = results.summary_text();
    assert!(text.lines().all(|line| line.chars().count() <= thalweg_text::TEXT_COLUMNS), "{text}");
    insta::assert_snapshot!(text);
    let contest = results.compare_controls().unwrap();
    assert_eq!((contest.cells, contest.lost.len()), (3, 1));
}

#[test]
fn one_event_decides_nothing_where_events_come_at_intervals() {
    let text = "[network]\nsenders = 3\n[sweep]\nrounds = 20\n\"traffic.interval\" = [\"0.1ms\", \"50ms\"]";
    let sweep = Sweep::parse_text("paced", text, false).unwrap();
    let differ = |cell: usize, by: f64| {
        let scenario = &sweep.cells[cell].scenario;
        !summary::has_equal_goodput(&report(scenario, 1.0), &report(scenario, 1.0 - by))
    };
    // Of twenty events one may be on either side of the end; where there are always more, the end is nothing special.
    assert_eq!([differ(1, 0.05), differ(1, 0.06)], [false, true]);
    assert_eq!([differ(0, 0.004), differ(0, 0.006)], [false, true]);
    assert_eq!(sweep.cells[1].scenario.measure.seconds, 1.0);
}

/// A share above 1 is what waited in the switch when the measured time began.
#[test]
fn no_control_is_better_than_the_ceiling() {
    let results = results(sweep(), |scenario| {
        let share = if scenario.traffic.control.credit { 0.997 } else { 1.012 };
        Ok(Box::new(report(scenario, share)))
    });
    let contest = results.compare_controls().unwrap();
    assert_eq!((contest.cells, contest.lost.len()), (4, 0), "{:?}", contest.lost);
}

/// A sweep whose second interval is carried, in a laboratory whose links are the limit.
fn offered() -> Results {
    let text = "[network]\nsenders = 8\n[sweep]\n\"traffic.interval\" = [\"1ms\", \"10ms\"]";
    results(Sweep::parse_text("offered", text, false).unwrap(), |scenario| {
        let mut report = Report { laboratory: "model".into(), ..report(scenario, 1.0) };
        let offered = scenario.offered_bits_per_second().unwrap();
        report.goodput_bits_per_second = offered.min(scenario.link_ceiling_bits_per_second());
        report.verdict = Some(crate::Verdict::for_report(&report));
        Ok(Box::new(report))
    })
}

#[test]
fn a_sweep_with_offered_rates_shows_what_was_carried_and_each_limit() {
    let results = Results { laboratory: "model".into(), ..offered() };
    let text = results.summary_text();
    for expected in [
        "Carried part of the offered rate, %",
        "22.4",
        "100.0",
        "Limit",
        "the sources offer no more",
        "model (simulated)",
    ] {
        assert!(text.contains(expected), "{expected}: {text}");
    }
    let page = results.results_page().unwrap();
    assert!(page.contains("Carried part of the offered rate") && page.contains(">Limit</h2>"), "{page}");
    assert!(page.contains("model (simulated)"));
    let markdown = results.results_markdown();
    assert!(markdown.contains("| Limit |") && markdown.contains("receiver-0 down |"), "{markdown}");
    let csv = results.results_csv();
    assert!(csv.contains("the sources offer no more,"), "{csv}");
    let picture = results.charts_svg().unwrap();
    assert!(picture.contains("Carried part of the offered rate, %") && picture.contains("The offered rate is carried"));
}

#[test]
fn many_columns_go_on_below() {
    let columns: Vec<String> = (0..20).map(|number| format!("column {number}")).collect();
    let text = text::grid_text("", &["a".into()], &columns, vec![vec!["1".into(); 20]]);
    assert!(text.lines().all(|line| line.chars().count() <= thalweg_text::TEXT_COLUMNS), "{text}");
    assert!(columns.iter().all(|column| text.contains(column.as_str())));
}

#[test]
fn the_page_needs_nothing_else_and_shows_every_cell() {
    let results = contested();
    let page = results.results_page().unwrap();
    // The best control of each cell; and for each of four figures a heat map of each control, their scale, and lines for
    // each rate.
    assert_eq!(page.matches("<svg").count(), 1 + 4 * (2 + 1 + 2));
    assert_eq!(page.matches("class=\"marked\"").count(), 4 * 5, "what fails its checks is framed");
    assert!(
        !page.contains("NaN")
            && !page.replace("http://www.w3.org/2000/svg", "").contains("http://")
            && page.contains("credit 98.5")
    );
    let json = serde_json::to_value(&results).unwrap();
    assert_eq!((json["cells"].as_array().unwrap().len(), &json["passed"]), (8, &false.into()));
    assert_eq!(json["cells"][0]["at"]["network.delay"], "0.1ms");
    assert_eq!(json["contest"]["lost"][0]["best"], "bic");
}

/// Test of the whole way, if an ns-3 is installed.
#[test]
fn a_small_sweep_in_ns3() {
    let text = r#"
        [network]
        senders = 2
        rate = "100 Mbit/s"
        buffer = "100 kB"
        [measure]
        seconds = 0.1
        [sweep]
        "network.delay" = ["0.1ms", "1ms"]
        "traffic.control" = ["credit", "cubic"]
        [check]
        share_of_ceiling = ">= 0.5"
    "#;
    let directory = tempfile::tempdir().unwrap();
    let stop = AtomicBool::new(false);
    let run = || {
        run_sweep(Sweep::parse_text("small", text, false).unwrap(), Laboratory::Ns3, 2, directory.path(), &stop, |_| {})
    };
    let first = match run() {
        Err(error @ LabError::Unavailable { .. }) => return skipped(error),
        other => other.unwrap(),
    };
    assert!(first.has_passed(), "{}", first.summary_text());
    assert_eq!(first.compare_controls().unwrap().cells, 2);
    stop.store(true, Ordering::Relaxed);
    let again = run().unwrap();
    assert!(again.outcomes == first.outcomes, "nothing is run again, and all is as it was");
}
