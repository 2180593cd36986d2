use super::*;
use crate::scenario::Scenario;
use crate::sweep::check::Check;
use crate::sweep::tests::{report, results};
use thalweg_bench::reproduce::{Reproduction, Verdict};

fn fabric() -> Experiment<Results> {
    Experiment::find_by_name("fabric").unwrap()
}

/// A laboratory whose results are a function of the scenario.
fn reproduction(quick: bool, share: impl Fn(&Scenario) -> f64) -> Reproduction<Results> {
    let sweeps = sweeps(&fabric(), Laboratory::Virtual, quick).unwrap();
    let measured = sweeps.into_iter().map(|(sweep, _)| {
        results(sweep, |scenario| {
            let mut one = report(scenario, share(scenario));
            one.retransmissions = if scenario.traffic.control.credit { 0 } else { 700 };
            Ok(Box::new(one))
        })
    });
    fabric().build_reproduction(quick, measured.map(super::measured).collect())
}

fn assert_in_sweep(sweeps: &[(Sweep, Laboratory)], name: &str, key: &str, value: Option<&String>) {
    let (sweep, _) = sweeps.iter().find(|(sweep, _)| sweep.name == name).unwrap();
    let axis = &sweep.axes[sweep.axis_index(key).unwrap_or_else(|| panic!("{name} has no {key}"))];
    assert!(value.is_none_or(|value| axis.values.contains(value)), "{name}: {key} = {value:?}");
}

#[test]
fn every_key_and_value_that_a_file_names_is_in_its_sweep() {
    for experiment in Experiment::<Results>::all_experiments() {
        let sweeps = sweeps(&experiment, Laboratory::Virtual, false).unwrap();
        for table in &experiment.tables {
            let keys = [Some(&table.rows), table.columns.as_ref()];
            keys.into_iter().flatten().for_each(|key| assert_in_sweep(&sweeps, &table.sweep, key, None));
        }
        for finding in &experiment.findings {
            finding.at.iter().for_each(|(key, value)| assert_in_sweep(&sweeps, &finding.sweep, key, Some(value)));
            for (key, others) in &finding.against {
                others.iter().for_each(|other| assert_in_sweep(&sweeps, &finding.sweep, key, Some(other)));
            }
        }
    }
}

#[test]
fn what_is_only_for_the_model_runs_there_and_all_else_where_it_is_asked_for() {
    let sweeps = sweeps(&fabric(), Laboratory::Host, true).unwrap();
    let on: Vec<_> = sweeps.iter().map(|(sweep, on)| (sweep.name.as_str(), *on)).collect();
    let (host, model) = (Laboratory::Host, Laboratory::Model);
    assert_eq!(on, [("fabric-controls", host), ("judge-fabric-uneven", host), ("fabric-scale", model)]);
}

#[test]
fn figures_become_tables_and_sentences() {
    let reproduction = reproduction(true, |scenario| match scenario.traffic.control.congestion {
        "dctcp" if !scenario.traffic.control.credit => 0.995,
        _ => 0.975 + f64::from(scenario.network.senders) * 0.0001,
    });
    let sentences: Vec<String> =
        reproduction.findings.iter().map(|finding| format!("{}: {}", finding.verdict, finding.measured)).collect();
    insta::assert_snapshot!(sentences.join("\n"), @r"
    holds here: in all of 2 cells; the closest is control credit, senders 4 (share of ceiling 97.5 %)
    holds here: in all of 2 cells; the closest is control cubic, senders 8 (retransmissions 700)
    holds here: in all of 2 cells; the closest is control credit, senders 8 (retransmissions 0)
    does not hold here: the furthest off is control credit, senders 4: 97.5 %, and 99.5 % with dctcp
    holds here: in all of 2 cells; the closest is senders 4 (share of ceiling 97.5 %)
    holds here: in all of 2 cells; the closest is senders 50 (share of ceiling 98.0 %)
    cannot be tested here: this run has no cells to compare
    ");
    insta::assert_snapshot!(reproduction.format_text().split("\nFindings").next().unwrap(), @r"
    Event building over a whole fabric: every source sends to every builder
    Event builders of CMS (Bauer and others, IEEE TNS) and LHCb (Pisani and others,
    EPJ Web of Conferences 245, 2020), and what switches do with uniform traffic
    (McKeown, IEEE/ACM ToN 7, 1999)
    laboratory: ns3
    A first look: a sample of the cells, with short measurements.

    Fragments of 64 KiB: credits, and TCP alone
      senders  credit: share of ceiling  credit: retransmissions
      4                          97.5 %                        0
      8                          97.6 %                        0
      senders  cubic: share of ceiling  cubic: retransmissions
      4                         97.5 %                     700
      8                         97.6 %                     700
      senders  dctcp: share of ceiling  dctcp: retransmissions
      4                         99.5 %                     700
      8                         99.5 %                     700
      * As many builders as senders. A retransmission is a segment that some sender
        sent again in the measured time.

    Fragments of 1 to 128 KiB, with credits
      senders  share of ceiling  retransmissions  drops
      4                  97.5 %                0      0
      8                  97.6 %                0      0

    Hundreds of nodes at 100 Gbit/s, with credits (simulated)
      senders  share of ceiling  messages of bytes  builder bytes  source bytes
      50                 98.0 %                  -              -             -
      100                98.5 %                  -              -             -
      * Messages are offers, fetches, what is in front of data, and releases. Bytes:
        the most that one builder, and one source, had to hold.
    ");
    assert!(reproduction.format_html().unwrap().contains("Fragments of 64 KiB: credits, and TCP alone</h2>"));
}

#[test]
fn where_nothing_was_measured_nothing_is_claimed() {
    let sweeps = sweeps(&fabric(), Laboratory::Virtual, true).unwrap();
    let measured = sweeps.into_iter().map(|(sweep, _)| Results {
        provenance: thalweg_text::plot::Provenance::default(),
        outcomes: vec![None; sweep.cells.len()],
        sweep,
        laboratory: "virtual".into(),
    });
    let reproduction = fabric().build_reproduction(true, measured.map(super::measured).collect());
    assert!(reproduction.findings.iter().all(|finding| finding.verdict == Verdict::CannotBeTested));
    assert!(reproduction.format_text().contains(NOTHING));
}

fn parse_check(name: &str, text: &str) -> Check {
    Check::parse(name, text).unwrap()
}

#[test]
fn parts_are_shown_in_percent_and_what_is_worst_depends_on_the_comparison() {
    let share = parse_check("share_of_ceiling", ">= 0.97");
    assert_eq!(
        (share.figure().format_value(0.98765), share.figure().spaced_name()),
        ("98.8 %".into(), "share of ceiling".into())
    );
    assert!(share.failure_margin(0.9) > share.failure_margin(0.99));
    let messages = parse_check("messages_of_bytes", "<= 0.01");
    assert_eq!(messages.figure().format_value(0.0039), "0.39 %");
    assert!(messages.failure_margin(0.02) > messages.failure_margin(0.001));
    assert_eq!(parse_check("builder_bytes", "<= 1").figure().format_value(4.1e6), "4.10 MB");
    assert!(parse_check("drops", "== 0").failure_margin(3.0) > 0.0);
}
