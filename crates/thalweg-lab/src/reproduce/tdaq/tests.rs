use super::paper::{DELAYS, INTERVALS, VEGAS_MINUS_BIC};
use crate::Laboratory;
use crate::reproduce;
use crate::scenario::Scenario;
use crate::sweep::tests::{report, results};
use crate::sweep::{Results, Sweep};
use std::time::Duration;
use thalweg_bench::reproduce::{Experiment, Reproduction, Verdict};
use thalweg_text::plot::Provenance;

/// Returns the goodput that a control would need for the paper's table, in Mbit/s.
fn as_the_paper(scenario: &Scenario) -> f64 {
    let interval = position_of(INTERVALS, scenario.traffic.interval.unwrap_or_default());
    let difference = VEGAS_MINUS_BIC[interval][position_of(DELAYS, scenario.network.delay)];
    let bic = if interval < 3 { 800.0 } else { 200.0 };
    bic + if scenario.traffic.control.congestion == "vegas" { difference } else { 0.0 }
}

fn position_of(names: [&str; 6], time: Duration) -> usize {
    names.iter().position(|name| thalweg_text::parse_duration(name) == Ok(time)).unwrap_or(0)
}

fn experiment() -> Experiment<Results> {
    Experiment::find_by_name("tdaq").unwrap()
}

fn sweeps(quick: bool) -> impl Iterator<Item = Sweep> {
    reproduce::sweeps(&experiment(), Laboratory::Ns3, quick).unwrap().into_iter().map(|(sweep, _)| sweep)
}

fn reproduction(quick: bool) -> Reproduction<Results> {
    let measured = sweeps(quick).map(|sweep| {
        let simulated = sweep.name == "tdaq-simulated";
        let incast = sweep.name.contains("incast");
        results(sweep, move |scenario| {
            let control = scenario.traffic.control;
            let mut one = report(scenario, 1.0);
            if simulated && !control.credit {
                one.goodput_bits_per_second = as_the_paper(scenario) * 1e6;
            } else if incast && !control.credit && scenario.network.senders > 4 {
                one.goodput_bits_per_second *= 0.1;
                one.timeouts = 40;
            } else if !control.credit && control.congestion == "vegas" {
                one.goodput_bits_per_second *= 0.9;
            }
            one.share_of_ceiling = one.goodput_bits_per_second / one.ceiling_bits_per_second;
            Ok(Box::new(one))
        })
    });
    experiment().build_reproduction(quick, measured.map(reproduce::measured).collect())
}

#[test]
fn a_laboratory_like_the_paper_s_confirms_it() {
    let reproduction = reproduction(false);
    let verdicts: Vec<String> = reproduction.findings.iter().map(|finding| finding.verdict.to_string()).collect();
    // There is no slow server. What is made up is sometimes more than what is offered, which counts as all of it.
    let others: Vec<usize> = (0..9).filter(|at| verdicts[*at] != "holds here").collect();
    assert_eq!(others, [2], "{verdicts:?}");
    assert!(reproduction.findings[6].measured.starts_with("in all of "));
    let differences = &reproduction.tables[1];
    let [paper, here] = [&differences.paper, &differences.here]
        .map(|rows| rows.iter().map(|row| row.cells.clone()).collect::<Vec<_>>());
    assert_eq!(paper, here, "the same arithmetic, and the same order");
    assert_eq!(differences.here[0].cells[2], "+0.16");
    // The paper's own table: BIC ahead in 28 of 36 conditions by its sign, Vegas in 6 of the 9 that are long.
    let ahead = VEGAS_MINUS_BIC.as_flattened().iter().filter(|difference| **difference < 0.0).count();
    let long = VEGAS_MINUS_BIC[3..].iter().flat_map(|row| &row[3..]).filter(|difference| **difference > 0.0).count();
    assert_eq!((ahead, long), (29, 6));
}

#[test]
fn the_first_look_fits_a_terminal_and_leaves_out_what_it_did_not_measure() {
    let reproduction = reproduction(true);
    let text = reproduction.format_text();
    assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
    assert_eq!(reproduction.tables[1].here[1].cells, ["-"; 6]);
    assert!(text.contains("holds here: ") && text.contains("cannot be tested here: "));
    let page = reproduction.format_html().unwrap();
    assert!(page.contains("3 to 1") && !page.contains("5 to 1<") && page.contains("holds here"));
    let json = serde_json::to_value(&reproduction).unwrap();
    assert_eq!((&json["format"], &json["quick"]), (&"thalweg-reproduction/1".into(), &true.into()));
    assert_eq!(json["measured"][1]["line"], "thalweg lab sweep tdaq-simulated --on ns3 --quick");
}

#[test]
fn without_cells_nothing_is_claimed() {
    let measured = sweeps(true).map(|sweep| Results {
        outcomes: vec![None; sweep.cells.len()],
        sweep,
        laboratory: "ns3".into(),
        provenance: Provenance::default(),
    });
    let reproduction = experiment().build_reproduction(true, measured.map(reproduce::measured).collect());
    assert!(reproduction.findings.iter().all(|finding| finding.verdict == Verdict::CannotBeTested));
    assert!(reproduction.format_text().contains("this run has no cells to compare"));
}
