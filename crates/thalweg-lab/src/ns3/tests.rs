use super::*;
use crate::report::{Completion, Report};
use thalweg_testing::skip::skipped;

fn scenario(text: &str) -> Scenario {
    Scenario::parse(text).unwrap()
}

fn argument(scenario: &Scenario, name: &str) -> String {
    let front = format!("--{name}=");
    program_arguments(scenario).iter().find_map(|argument| argument.strip_prefix(&front).map(str::to_owned)).unwrap()
}

#[test]
fn a_scenario_becomes_arguments() {
    let scenario = scenario(
        r#"
        [network]
        senders = 10
        receivers = 2
        rate = "2.5 Gbit/s"
        delay = "0.25ms"
        loss = 0.001
        buffer = "1 MB"
        mtu = 9000
        [[network.sender]]
        number = 9
        rate = "100mbit"
        [[network.sender]]
        number = 3
        rate = "1 Gbit/s"
        [traffic]
        control = "credit+westwood"
        sizes = ["1 B", "128 KiB"]
        interval = "100us"
        cross = 2
        [measure]
        seconds = 2
        warm_up = "1s"
        "#,
    );
    let arguments = program_arguments(&scenario);
    assert_eq!(
        arguments.join(" "),
        "--senders=10 --builders=2 --rate=2493361363 --slow=9:99734454,3:997344545 --delay=250000 --loss=0.001 \
         --buffer=1000000 --mtu=9000 --mark=0 --control=TcpWestwoodPlus --credit=1 --from=1 --to=131072 --together=1 \
         --interval=100000 --open=12 --cross=2 --socket=3145728 --warm=1000000000 --measured=2000000000 --look=3000000"
    );
}

#[test]
fn every_control_of_the_laboratory_has_its_model() {
    let models: std::collections::HashSet<&str> =
        crate::scenario::CONGESTION_CONTROLS.into_iter().map(ns3_control_name).collect();
    assert_eq!(models.len(), crate::scenario::CONGESTION_CONTROLS.len());
    let dctcp = scenario("[network]\nsenders = 3\n[traffic]\ncontrol = \"dctcp\"\n");
    assert_eq!(argument(&dctcp, "mark"), "30280");
    assert_eq!(argument(&dctcp, "credit"), "0");
}

/// Returns the arguments for the number of events in a slot, and of open slots.
fn slot_arguments(traffic: &str) -> (String, String) {
    let scenario = scenario(&format!("[network]\nsenders = 3\n[traffic]\n{traffic}"));
    (argument(&scenario, "together"), argument(&scenario, "open"))
}

#[test]
fn small_fragments_share_a_slot_and_a_barrier_opens_one() {
    assert_eq!(slot_arguments("size = \"1 kB\""), ("60".into(), "13".into()));
    assert_eq!(slot_arguments("size = \"1 MiB\""), ("1".into(), "5".into()));
    assert_eq!(slot_arguments("size = \"1 kB\"\nbarrier = true"), ("1".into(), "1".into()));
}

fn read_error(text: &str) -> String {
    Output::parse_output(text, &scenario("[network]\nsenders = 2\n")).unwrap_err().to_string()
}

#[test]
fn what_the_program_prints_is_not_believed_blindly() {
    assert!(read_error("").starts_with("ns-3: an unreadable result (EOF"));
    assert!(read_error("terminate called without an active exception").contains("an unreadable result"));
    assert!(read_error(r#"{"virtual_seconds":1,"senders":[],"receivers":[]}"#).contains("missing field `cross`"));
    let empty = r#"{"virtual_seconds":1,"senders":[],"receivers":[],"cross":{"payload_bytes":0,"retransmissions":{"whole":0,"measured":0}}}"#;
    assert_eq!(read_error(empty), "ns-3: a result of 0 senders and 0 receivers, not 2 and 1");
    assert!(read_error(&empty.replace(":1,", ":-1e999,")).contains("an unreadable result"));
}

/// A result of two senders, as the program prints it.
const PRINTED: &str = r#"{"virtual_seconds":1.051,"senders":[{"retransmissions":{"whole":5,"measured":2},"timeouts":{"whole":1,"measured":0}},{"retransmissions":{"whole":1,"measured":1},"timeouts":{"whole":0,"measured":0}}],"receivers":[{"payload_bytes":100000000,"completions_ns":[3000,1000,2000,4000],"drops":{"whole":7,"measured":3},"marked":{"whole":0,"measured":0},"queue":{"max_bytes":3028,"mean_bytes":1514.5,"history":[0,3028]}}],"cross":{"payload_bytes":0,"retransmissions":{"whole":0,"measured":0}}}"#;

fn printed() -> Report {
    let scenario = scenario("[network]\nsenders = 2\n");
    Output::parse_output(PRINTED, &scenario).unwrap().into_report(&scenario, Duration::from_millis(25))
}

#[test]
fn the_report_adds_up() {
    let report = printed();
    assert_eq!(report.goodput_bits_per_second, 800e6);
    assert_eq!((report.retransmissions, report.timeouts, report.drops), (3, 0, 3));
    assert_eq!((report.whole_run.retransmissions, report.whole_run.timeouts, report.whole_run.drops), (6, 1, 7));
    assert_eq!(report.events.complete, 4);
    let times = report.completion.unwrap();
    assert_eq!((times.p50_us, times.p99_us, times.max_us), (2.0, 4.0, 4.0));
    assert_eq!((times.distribution[0], times.distribution[19]), ((0.01, 1.0), (1.0, 4.0)));
    assert_eq!(report.queue.mean_bytes, 1514);
    // The warm-up of 50 ms is two steps.
    assert_eq!(report.queue.over_time, [(-0.025, 0), (0.0, 3028)]);
    assert!(report.cross.is_none());
}

#[test]
fn laboratories_that_agree_say_so_and_others_say_where() {
    let here = printed();
    let mut there = Report { laboratory: "virtual".into(), ..here.clone() };
    let mut sentences = vec![compare_reports(&there, &here).join("\n")];

    let mut late = Report { share_of_ceiling: 0.5, timeouts: 40, retransmissions: 2000, ..here.clone() };
    late.completion = Some(Completion { p50_us: 2000.0, p99_us: 4000.0, max_us: 210_000.0, ..Completion::default() });
    sentences.push(compare_reports(&there, &late).join("\n"));

    there = Report { completion: None, laboratory: "host".into(), ..here.clone() };
    sentences.push(compare_reports(&there, &here).join("\n"));

    there.scenario.network.senders = 3;
    sentences.push(compare_reports(&there, &here).join("\n"));
    insta::assert_snapshot!(sentences.join("\n\n"));
}

/// Test of the whole way, if an ns-3 is installed: sixteen senders, one event at a time, for a tenth of a second.
#[test]
fn credit_loses_nothing_where_a_barrier_overruns_the_port() {
    let run = |control: &str| {
        let text = format!(
            "[network]\nsenders = 16\nbuffer = \"100 kB\"\n[traffic]\nbarrier = true\ncontrol = \
             \"{control}\"\n[measure]\nseconds = 0.1\n"
        );
        super::run_in_ns3(&scenario(&text), &AtomicBool::new(false))
    };
    let overrun = match run("reno") {
        Err(error @ LabError::Unavailable { .. }) => return skipped(error),
        other => other.unwrap(),
    };
    assert!(overrun.whole_run.drops > 0 && overrun.queue.max_bytes <= 100_000, "{overrun:?}");
    let kept = run("credit+reno").unwrap();
    assert_eq!((kept.whole_run.drops, kept.whole_run.timeouts, kept.whole_run.retransmissions), (0, 0, 0));
    assert!(kept.share_of_ceiling > 0.8 && kept.share_of_ceiling < 1.01, "{}", kept.share_of_ceiling);
    assert!(kept.queue.max_bytes < 100_000);
    let sentences = compare_reports(&overrun, &kept);
    assert!(sentences[0].contains("different scenarios"));
}
