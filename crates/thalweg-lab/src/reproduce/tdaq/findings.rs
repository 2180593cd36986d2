//! Conclusions from the results about the paper's findings, and about ours.

use super::super::{NOTHING, axis_values, find_report};
use super::paper::{DELAYS, INTERVALS, SENDERS, SIGN, VEGAS_MINUS_BIC};
use crate::report::Report;
use crate::sweep::Results;
use crate::sweep::summary::has_equal_goodput;
use thalweg_bench::reproduce::{Finding, Row, Table};

const CONTROL: &str = "traffic.control";
const SIZE: &str = "traffic.size";
const INTERVAL: &str = "traffic.interval";
const DELAY: &str = "network.delay";
const COUNT: &str = "network.senders";

/// Largest difference that is "almost the same": the width of a line in the paper's figures.
const RATIO_TOLERANCE: f64 = 0.02;
/// Delays and intervals that are long: those from which on the paper's conclusions are true of its table.
const LONG: [&str; 3] = ["5ms", "10ms", "50ms"];
const NO_SLOW_SERVER: &str = "in the virtual laboratory and in ns-3 processors take no time, and on this host there is only one kind of processor: there is no slow receiver";
/// Least value of the retransmission timer, in µs.
const TIMER_US: f64 = 200e3;

pub(super) fn evaluate_findings(measured: [&Results; 4]) -> Vec<Finding> {
    let [sizes, grid, each, whole] = measured;
    vec![
        controls_alike(sizes),
        vegas_differs(sizes),
        Finding::new(
            "On the slow server Vegas alone is higher.",
            "The same with a receiver whose processor is the limit.",
            Err(NO_SLOW_SERVER),
        ),
        bic_mostly_ahead(grid),
        vegas_ahead_if_long(grid),
        differ_with_three_senders(grid),
        credit_is_best(sizes, grid),
        throughput_collapses(each, whole),
        credit_never_collapses(each, whole),
    ]
}

pub(super) fn build_tables(measured: [&Results; 4]) -> Vec<Table> {
    let [sizes, grid, each, whole] = measured;
    vec![
        goodput_by_size(sizes),
        difference_table(grid),
        standings_table(sizes, grid),
        incast_table(each),
        incast_table(whole),
    ]
}

fn goodput_megabits(report: &Report) -> f64 {
    report.goodput_bits_per_second * 1e-6
}

/// Returns each control's goodput over BIC's at each size: control, size, ratio.
fn goodput_over_bic(sizes: &Results) -> Vec<(&str, &str, f64)> {
    let mut all = Vec::new();
    for control in axis_values(sizes, CONTROL).iter().filter(|control| !["bic", "credit"].contains(&control.as_str())) {
        for size in axis_values(sizes, SIZE) {
            let [own, bic] = [control.as_str(), "bic"]
                .map(|control| find_report(sizes, &[(CONTROL, control), (SIZE, size)]).map(goodput_megabits));
            if let (Some(own), Some(bic)) = (own, bic.filter(|bic| *bic > 0.0)) {
                all.push((control.as_str(), size.as_str(), own / bic));
            }
        }
    }
    all
}

fn controls_alike(sizes: &Results) -> Finding {
    let mut others: Vec<_> = goodput_over_bic(sizes).into_iter().filter(|(control, ..)| *control != "vegas").collect();
    others.sort_by(|a, b| (b.2 - 1.0).abs().total_cmp(&(a.2 - 1.0).abs()));
    let unlike: Vec<_> = others.iter().filter(|(.., ratio)| (ratio - 1.0).abs() > RATIO_TOLERANCE).collect();
    let outcome = others.first().ok_or(NOTHING).map(|first| match unlike.len() {
        0 => (true, format!("the farthest from BIC: {}", deviation_text(first))),
        many => {
            let named: Vec<String> = unlike.into_iter().map(deviation_text).collect();
            (false, format!("{many} of {} are farther from BIC: {}", others.len(), named.join(", ")))
        }
    });
    Finding::new(
        "All controls but Vegas have almost the throughput of BIC, on both servers.",
        "At every message size each of the eight others has the goodput of BIC within 2 %.",
        outcome,
    )
}

fn deviation_text((control, size, ratio): &(&str, &str, f64)) -> String {
    format!("{control} at {size} {:+.1} %", 100.0 * (ratio - 1.0))
}

fn vegas_differs(sizes: &Results) -> Finding {
    let vegas: Vec<_> = goodput_over_bic(sizes).into_iter().filter(|(control, ..)| *control == "vegas").collect();
    let ratios: Vec<String> =
        vegas.iter().map(|(_, size, ratio)| format!("{size} {:+.1} %", 100.0 * (ratio - 1.0))).collect();
    let lower = vegas.iter().any(|(.., ratio)| *ratio < 1.0 - RATIO_TOLERANCE);
    let outcome =
        if vegas.is_empty() { Err(NOTHING) } else { Ok((lower, format!("Vegas against BIC: {}", ratios.join(", ")))) };
    Finding::new(
        "On the fast server Vegas alone is lower.",
        "A receiver whose processor is no limit: at some message size Vegas is more than 2 % below BIC.",
        outcome,
    )
}

/// Returns Vegas's report, and BIC's.
fn vegas_and_bic_reports<'a>(grid: &'a Results, senders: &str, interval: &str, delay: &str) -> Option<[&'a Report; 2]> {
    let [vegas, bic] = ["vegas", "bic"].map(|control| {
        find_report(grid, &[(CONTROL, control), (COUNT, senders), (INTERVAL, interval), (DELAY, delay)])
    });
    Some([vegas?, bic?])
}

/// Returns Vegas minus BIC in Mbit/s.
fn vegas_minus_bic(grid: &Results, senders: &str, interval: &str, delay: &str) -> Option<f64> {
    vegas_and_bic_reports(grid, senders, interval, delay)
        .map(|[vegas, bic]| goodput_megabits(vegas) - goodput_megabits(bic))
}

/// Returns the numbers of cells in which BIC, Vegas and neither is ahead.
fn count_ahead<'a>(
    grid: &Results,
    senders: &[&str],
    intervals: impl Iterator<Item = &'a &'a str> + Clone,
    delays: &[&str],
) -> [usize; 3] {
    let mut ahead = [0; 3];
    for senders in senders {
        for interval in intervals.clone() {
            for delay in delays {
                let Some([vegas, bic]) = vegas_and_bic_reports(grid, senders, interval, delay) else { continue };
                ahead[match goodput_megabits(vegas) > goodput_megabits(bic) {
                    _ if has_equal_goodput(vegas, bic) => 2,
                    true => 1,
                    false => 0,
                }] += 1;
            }
        }
    }
    ahead
}

fn counts_text([bic, vegas, draws]: [usize; 3]) -> String {
    format!("BIC is ahead in {bic} cells, Vegas in {vegas}, and in {draws} they are equal")
}

fn bic_mostly_ahead(grid: &Results) -> Finding {
    let counts = count_ahead(grid, &SENDERS, INTERVALS.iter(), &DELAYS);
    let all: usize = counts.iter().sum();
    Finding::new(
        "BIC has the higher throughput in most conditions.",
        "Over all senders, intervals and delays BIC is ahead of Vegas in more than half of the cells.",
        if all > 0 { Ok((2 * counts[0] > all, counts_text(counts))) } else { Err(NOTHING) },
    )
}

fn vegas_ahead_if_long(grid: &Results) -> Finding {
    let per_senders: Vec<(&str, [usize; 3])> = SENDERS
        .iter()
        .map(|senders| (*senders, count_ahead(grid, &[senders], LONG.iter(), &LONG)))
        .filter(|(_, counts)| counts.iter().sum::<usize>() > 0)
        .collect();
    let counts: Vec<String> = per_senders
        .iter()
        .map(|(senders, counts)| format!("with {senders} senders {}", counts_text(*counts)))
        .collect();
    let outcome = match per_senders.is_empty() {
        true => Err(NOTHING),
        false => Ok((per_senders.iter().all(|(_, counts)| counts[1] > counts[0]), counts.join("; "))),
    };
    Finding::new(
        "Where delay and interval are both long, Vegas is higher, whatever the number of senders.",
        "Delay and interval of 5 ms and more: with each number of senders Vegas is ahead more often than BIC, as it is 6 times of 9 in the paper's table.",
        outcome,
    )
}

fn differ_with_three_senders(grid: &Results) -> Finding {
    let mut all = Vec::new();
    for interval in INTERVALS {
        for delay in DELAYS {
            let apart = vegas_minus_bic(grid, "3", interval, delay);
            all.extend(apart.map(|apart| (apart, interval, delay)));
        }
    }
    let farthest = all.into_iter().max_by(|a, b| a.0.abs().total_cmp(&b.0.abs()));
    let outcome = farthest.ok_or(NOTHING).map(|(difference, interval, delay)| {
        let text = format!(
            "at most {difference:+.1} Mbit/s (Vegas minus BIC), at an interval of {interval} and a delay of {delay}"
        );
        (difference.abs() > 100.0, text)
    });
    Finding::new(
        "With three senders the two differ by up to 690 Mbit/s of 1000.",
        "Somewhere they differ by more than 100 Mbit/s.",
        outcome,
    )
}

fn credit_is_best(sizes: &Results, grid: &Results) -> Finding {
    let contests: Vec<_> = [sizes, grid].into_iter().filter_map(Results::compare_controls).collect();
    let cells: usize = contests.iter().map(|contest| contest.cells).sum();
    let lost: Vec<String> = contests.iter().flat_map(|contest| &contest.lost).map(ToString::to_string).collect();
    let outcome = match (cells, lost.len()) {
        (0, _) => Err(NOTHING),
        (cells, 0) => Ok((true, format!("in all of {cells} cells"))),
        (cells, many) => Ok((false, format!("not in {many} of {cells} cells: {}", lost.join("; ")))),
    };
    Finding::new(
        "A mechanism made for data acquisition is still to be found (the paper's outlook).",
        "Credits: in every cell of both grids the best of all controls, or equal to it.",
        outcome,
    )
}

/// Returns every cell of classic incast with this control: its name, and its report.
fn incast_reports<'a>(results: [&'a Results; 2], control: &'a str) -> impl Iterator<Item = (String, &'a Report)> + 'a {
    results.into_iter().flat_map(move |results| {
        axis_values(results, COUNT).iter().filter_map(move |senders| {
            let report = find_report(results, &[(CONTROL, control), (COUNT, senders)])?;
            let (size, _) = report.scenario.payload_range();
            Some((format!("{control}, {senders} senders of {} KiB", size >> 10), report))
        })
    })
}

fn throughput_collapses(each: &Results, whole: &Results) -> Finding {
    let [reno, cubic] = ["reno", "cubic"].map(|control| {
        let all = incast_reports([each, whole], control);
        all.min_by(|a, b| a.1.share_of_ceiling.total_cmp(&b.1.share_of_ceiling))
    });
    let outcome = reno.zip(cubic).ok_or(NOTHING).map(|(reno, cubic)| {
        let both = [reno, cubic];
        let collapsed = both.iter().all(|(_, report)| report.share_of_ceiling < 0.5 && report.timeouts > 0);
        let texts = both.map(|(name, report)| {
            format!("{name}: {:.1} % of the ceiling, {} timeouts", 100.0 * report.share_of_ceiling, report.timeouts)
        });
        (collapsed, format!("at worst {}", texts.join("; ")))
    });
    Finding::new(
        "(Phanishayee and others:) Many senders of one block each overrun the switch, wait for their timers, and throughput collapses.",
        "With some number of senders Reno and Cubic, with the loss recovery of that time, fall below half of the ceiling, with timeouts.",
        outcome,
    )
}

fn credit_never_collapses(each: &Results, whole: &Results) -> Finding {
    let all: Vec<_> = incast_reports([each, whole], "credit").collect();
    let bad: Vec<String> = all
        .iter()
        .filter(|(_, report)| report.timeouts > 0 || report.completion.is_none_or(|times| times.max_us >= TIMER_US))
        .map(|(name, report)| format!("{name}: {} timeouts", report.timeouts))
        .collect();
    let slowest = all.iter().filter_map(|(_, report)| Some(report.completion?.max_us)).fold(0.0, f64::max);
    let outcome = match (all.is_empty(), bad.is_empty()) {
        (true, _) => Err(NOTHING),
        (_, true) => {
            Ok((true, format!("no timeout in {} cells; the slowest event took {:.1} ms", all.len(), slowest * 1e-3)))
        }
        _ => Ok((false, bad.join("; "))),
    };
    Finding::new(
        "(Beyond the paper:) what is asked for by credit does not overrun the switch.",
        "In the same cells credit has no timeout, and its slowest event takes less than the least timer, 200 ms.",
        outcome,
    )
}

fn goodput_by_size(sizes: &Results) -> Table {
    let rows = axis_values(sizes, CONTROL).iter().map(|control| {
        let reports =
            axis_values(sizes, SIZE).iter().map(|size| find_report(sizes, &[(CONTROL, control), (SIZE, size)]));
        Row::new(control, reports.map(|report| Some(format!("{:.1}", goodput_megabits(report?)))))
    });
    Table {
        title: "Measured, 3 to 1: goodput in Mbit/s by message size".into(),
        headings: ["control"].into_iter().map(str::to_owned).chain(axis_values(sizes, SIZE).iter().cloned()).collect(),
        paper: Vec::new(),
        here: rows.collect(),
        remarks: vec![
            "The paper shows curves (figures 3 and 4) and no numbers. A fragment of 1 B takes 128 B on the way.".into(),
        ],
    }
}

/// Returns the paper's table 1 beside ours.
fn difference_table(grid: &Results) -> Table {
    let paper = INTERVALS.iter().zip(VEGAS_MINUS_BIC);
    let paper = paper.map(|(interval, row)| Row::new(interval, row.map(|value| Some(format!("{value:+.2}")))));
    let here = INTERVALS.iter().map(|interval| {
        let differences = DELAYS.iter().map(|delay| vegas_minus_bic(grid, "3", interval, delay));
        Row::new(interval, differences.map(|difference| Some(format!("{:+.2}", difference?))))
    });
    Table {
        title: "Simulated, 3 to 1: Vegas minus BIC in Mbit/s; rows are send intervals, columns delays".into(),
        headings: ["interval"].into_iter().chain(DELAYS).map(str::to_owned).collect(),
        paper: paper.collect(),
        here: here.collect(),
        remarks: vec![
            SIGN.to_owned(),
            "The paper does not say how much is sent at an interval; here 64 KiB of each sender.".into(),
        ],
    }
}

fn standings_table(sizes: &Results, grid: &Results) -> Table {
    let mut here = Vec::new();
    for (name, results) in [("measured", sizes), ("simulated", grid)] {
        let Some(contest) = results.compare_controls() else { continue };
        here.extend(contest.standings.iter().map(|one| Row {
            name: format!("{name}: {}", one.control),
            cells: vec![
                format!("{} of {}", one.best, contest.cells),
                format!("{:.1}", 100.0 * one.mean_share),
                format!("{:.1}", 100.0 * one.least_share),
                one.retransmissions.to_string(),
                one.timeouts.to_string(),
            ],
        }));
    }
    Table {
        title: "Beyond the paper: which control is the best, or equal to it, in how many cells".into(),
        headings: ["control", "best in", "mean %", "least %", "sent again", "timeouts"].map(str::to_owned).into(),
        paper: Vec::new(),
        here,
        remarks: vec!["Shares are goodput over the ceiling. Equal: within 0.5 %, or within one event where events come at intervals.".into()],
    }
}

fn incast_table(results: &Results) -> Table {
    let controls = axis_values(results, CONTROL);
    let rows = axis_values(results, COUNT).iter().map(|senders| {
        let cells = controls.iter().flat_map(|control| {
            let report = find_report(results, &[(CONTROL, control), (COUNT, senders)]);
            let share = report.map(|report| format!("{:.1}", 100.0 * report.share_of_ceiling));
            [share, report.map(|report| report.timeouts.to_string())]
        });
        Row::new(senders, cells)
    });
    let headings = controls.iter().flat_map(|control| [format!("{control} %"), "timeouts".to_owned()]);
    Table {
        title: format!("{}: share of the ceiling in %", results.sweep.title),
        headings: ["senders".to_owned()].into_iter().chain(headings).collect(),
        paper: Vec::new(),
        here: rows.collect(),
        remarks: Vec::new(),
    }
}

/// Returns intervals and delays of this run: rows and columns of [`difference_surface`].
pub(super) fn surface_axes(grid: &Results) -> [&[String]; 2] {
    [axis_values(grid, INTERVAL), axis_values(grid, DELAY)]
}

/// Returns Vegas minus BIC for one number of senders.
pub(super) fn difference_surface(grid: &Results, senders: &str) -> Vec<Vec<Option<f64>>> {
    let [intervals, delays] = surface_axes(grid);
    let rows = intervals
        .iter()
        .map(|interval| delays.iter().map(|delay| vegas_minus_bic(grid, senders, interval, delay)).collect());
    rows.collect()
}
