use super::*;
use crate::report::{Completion, CreditOverTime, Events, LinkKind, LinkUse, Receiver, Sender, Timeline, Troubles};
use crate::{Laboratory, run_scenario};
use std::sync::atomic::AtomicBool;

/// A scenario whose bottleneck is known by its construction.
struct Case {
    name: &'static str,
    text: &'static str,
    kind: LimitKind,
    limit: &'static str,
}

const SECONDS: &str = "[measure]\nseconds = 0.1\n";

/// Scenarios that the model runs in less than a second each.
const CASES: [Case; 18] = [
    Case {
        name: "the port of the receiver of an incast",
        text: "[network]\nsenders = 8\n",
        kind: LimitKind::Link,
        limit: "receiver-0 down",
    },
    Case {
        name: "the port of the receiver, with more offered than it carries",
        text: "[network]\nsenders = 8\n[traffic]\ninterval = \"3ms\"\n",
        kind: LimitKind::Link,
        limit: "receiver-0 down",
    },
    Case {
        name: "one sender before a faster port",
        text: "[network]\nsenders = 1\n[[network.receiver]]\nnumber = 0\nrate = \"10 Gbit/s\"\n",
        kind: LimitKind::Link,
        limit: "sender-0 up",
    },
    Case {
        name: "one slow sender among many",
        text: "[network]\nsenders = 8\nreceivers = 4\n[[network.sender]]\nnumber = 3\nrate = \"100 Mbit/s\"\n",
        kind: LimitKind::Link,
        limit: "sender-3 up",
    },
    Case {
        name: "one slow sender among many, at an interval that the others carry",
        text: "[network]\nsenders = 6\nreceivers = 6\n[[network.sender]]\nnumber = 5\nrate = \"200 Mbit/s\"\n\
               [traffic]\ninterval = \"1ms\"\n",
        kind: LimitKind::Link,
        limit: "sender-5 up",
    },
    Case {
        name: "one sender with longer fragments",
        text: "[network]\nsenders = 4\nreceivers = 4\n[[network.sender]]\nnumber = 1\nsize = \"512 KiB\"\n\
               [traffic]\nsize = \"32 KiB\"\n",
        kind: LimitKind::Link,
        limit: "sender-1 up",
    },
    Case {
        name: "one slow receiver among several",
        text: "[network]\nsenders = 8\nreceivers = 4\n[[network.receiver]]\nnumber = 2\nrate = \"100 Mbit/s\"\n\
               [measure]\nseconds = 0.1\nwarm_up = \"700ms\"\n",
        kind: LimitKind::Link,
        limit: "receiver-2 down",
    },
    Case {
        name: "fewer receivers than senders",
        text: "[network]\nsenders = 12\nreceivers = 3\n",
        kind: LimitKind::Link,
        limit: "receiver-0 down",
    },
    Case {
        name: "an uplink that four senders share",
        text: "[network]\nsenders = 8\nreceivers = 8\n[network.shared]\nsenders = 4\nrate = \"1 Gbit/s\"\n",
        kind: LimitKind::Link,
        limit: "rack-0 up",
    },
    Case {
        name: "an uplink that all share, with more offered than it carries",
        text: "[network]\nsenders = 6\nreceivers = 6\n[network.shared]\nsenders = 6\nrate = \"2 Gbit/s\"\n\
               [traffic]\ninterval = \"1ms\"\n",
        kind: LimitKind::Link,
        limit: "rack-0 up",
    },
    Case {
        name: "trunks up, narrower than the senders of their leaves",
        text: "[network]\nsenders = 16\nreceivers = 16\n[[network.receiver]]\nnumber = 0\nrate = \"100 Gbit/s\"\n\
               [[network.receiver]]\nnumber = 1\nrate = \"100 Gbit/s\"\n[network.tree]\nleaves = 2\n\
               oversubscription = 4\n",
        kind: LimitKind::Link,
        limit: "leaf-0 up",
    },
    Case {
        name: "a trunk down, as all receivers are on one leaf",
        text: "[network]\nsenders = 4\nreceivers = 1\nrate = \"1 Gbit/s\"\n[[network.receiver]]\nnumber = 0\n\
               rate = \"2 Gbit/s\"\n[network.tree]\nleaves = 4\noversubscription = 4\n",
        kind: LimitKind::Link,
        limit: "leaf-0 down",
    },
    Case {
        name: "one event at a time over a long way",
        text: "[network]\nsenders = 4\ndelay = \"5ms\"\n[traffic]\nbarrier = true\nsize = \"4 KiB\"\n",
        kind: LimitKind::RoundTrips,
        limit: "",
    },
    Case {
        name: "one event at a time, more offered than round trips allow",
        text: "[network]\nsenders = 2\ndelay = \"2ms\"\n[traffic]\nbarrier = true\nsize = \"1 KiB\"\ninterval = \"1ms\"\n",
        kind: LimitKind::RoundTrips,
        limit: "",
    },
    Case {
        name: "a builder that stalls for half of the time",
        text: "[network]\nsenders = 4\nreceivers = 2\n[[network.receiver]]\nnumber = 1\n\
               stall = { at = \"30ms\", length = \"50ms\" }\n",
        kind: LimitKind::Builder,
        limit: "receiver-1",
    },
    Case {
        name: "a builder that stalls and cannot make up for it",
        text: "[network]\nsenders = 4\nreceivers = 2\n[[network.receiver]]\nnumber = 0\n\
               stall = { at = \"20ms\", length = \"70ms\" }\n[traffic]\ninterval = \"2ms\"\n",
        kind: LimitKind::Builder,
        limit: "receiver-0",
    },
    Case {
        name: "bursts of more than the port carries in the mean",
        text: "[network]\nsenders = 8\n[traffic]\ninterval = \"4ms\"\nburst = 4\n",
        kind: LimitKind::Link,
        limit: "receiver-0 down",
    },
    Case {
        name: "ten times as much as 10 Gbit/s carry",
        text: "[network]\nsenders = 10\nrate = \"10 Gbit/s\"\nbuffer = \"1 MB\"\n[traffic]\nsize = \"256 KiB\"\n\
               interval = \"200us\"\n",
        kind: LimitKind::Link,
        limit: "receiver-0 down",
    },
];

/// Returns a report of real TCP with these figures, on a link that is busy for this part of the time.
fn tcp_report(text: &str, busy: f64, change: impl FnOnce(&mut Report)) -> Verdict {
    let scenario = Scenario::parse(text).unwrap_or_else(|error| panic!("{error}"));
    let link = LinkUse {
        name: "receiver-0".into(),
        kind: LinkKind::Down,
        rate_bits_per_second: scenario.network.rate.0,
        busy,
        max_waiting_bytes: 0,
    };
    let mut report = Report {
        laboratory: "virtual".into(),
        goodput_bits_per_second: busy * scenario.link_ceiling_bits_per_second(),
        measured_seconds: scenario.measure.seconds,
        links: vec![link],
        scenario,
        ..Report::default()
    };
    change(&mut report);
    Verdict::for_report(&report)
}

fn verdict_with_probes(probes: u64, max_us: f64) -> Verdict {
    let text = "[network]\nsenders = 16\n[traffic]\ncontrol = \"cubic\"\nbarrier = true\n[measure]\nseconds = 0.6\n";
    tcp_report(text, 0.64, |report| {
        report.events = Events { complete: 43, incomplete: 0 };
        report.completion = Some(Completion { p50_us: 9180.0, p99_us: max_us, max_us, ..Completion::default() });
        report.senders = vec![Sender { tail_loss_probes: probes, ..Sender::default() }];
        report.receivers = vec![Receiver { name: "receiver-0".into(), drops: 490, ..Receiver::default() }];
        (report.drops, report.retransmissions) = (490, 490);
    })
}

#[test]
fn a_probe_that_waits_for_one_packet_is_no_round_trip() {
    let verdict = verdict_with_probes(4, 216_000.0);
    assert_eq!(verdict.limit.kind, LimitKind::Timeouts, "{verdict:?}");
    assert!(verdict.sentence.contains("waited for 4 tail loss probes"), "{verdict:?}");
    // Probes that take no longer than the events themselves explain nothing; nor does the mean with a median near it.
    let verdict = verdict_with_probes(4, 20_000.0);
    assert!(![LimitKind::Timeouts, LimitKind::RoundTrips].contains(&verdict.limit.kind), "{verdict:?}");
}

fn verdict_with_timeouts_before(before: u64, busy: f64) -> Verdict {
    let text = "[network]\nsenders = 4\nloss = 0.05\n[traffic]\ncontrol = \"cubic\"\n[measure]\nseconds = 0.5\n";
    tcp_report(text, busy, |report| {
        report.retransmissions = 30;
        report.whole_run = Troubles { retransmissions: 90, timeouts: 2, drops: 0 };
        report.before = Some(Troubles { timeouts: before, ..Troubles::default() });
    })
}

#[test]
fn timeouts_after_the_measured_time_are_not_its_limit() {
    assert_eq!(verdict_with_timeouts_before(0, 0.05).limit.kind, LimitKind::Loss);
    // Data came all the time: no timeout stopped it.
    assert_eq!(verdict_with_timeouts_before(2, 0.2).limit.kind, LimitKind::Loss);
    let verdict = verdict_with_timeouts_before(2, 0.05);
    assert_eq!(verdict.limit.kind, LimitKind::Timeouts);
    assert!(verdict.sentence.contains("2 retransmission timeouts of at least 200 ms that began before"), "{verdict:?}");
}

fn verdict_with_busy_processors(busy: f64) -> Verdict {
    let text = "[network]\nsenders = 4\n[traffic]\ncontrol = \"cubic\"\ninterval = \"3ms\"\n";
    tcp_report(text, 0.44, |report| {
        report.laboratory = "host".into();
        (report.drops, report.retransmissions) = (7, 7);
        report.processors_busy = Some(busy);
        let conditions = thalweg_bench::Conditions { seconds: 1.0, others: 1.32, ..Default::default() };
        report.warnings = conditions.warnings();
    })
}

#[test]
fn a_busy_host_is_named_before_tcp() {
    let verdict = verdict_with_busy_processors(0.99);
    assert_eq!(verdict.limit.kind, LimitKind::Processors, "{verdict:?}");
    assert!(verdict.sentence.contains("busy 99.0 % of the time, other processes used 132 %"), "{verdict:?}");
    assert_eq!(verdict_with_busy_processors(0.5).limit.kind, LimitKind::CongestionControl);
}

#[test]
fn equal_links_have_one_title() {
    let verdict = verdict_of("[network]\nsenders = 8\nreceivers = 8\n");
    let title = verdict.limit.title();
    assert!(
        ["the senders' links", "the receivers' links", "the senders' links and the receivers' links"]
            .contains(&title.as_str()),
        "{verdict:?}"
    );
    let sources = Limit { kind: LimitKind::Sources, name: String::new(), links: Vec::new() };
    assert_eq!(sources.title(), "the sources offer no more");
}

fn verdict_of(text: &str) -> Verdict {
    let seconds = if text.contains("[measure]") { "" } else { SECONDS };
    let scenario = Scenario::parse(&format!("{text}{seconds}")).unwrap_or_else(|error| panic!("{error}"));
    let directory = std::env::temp_dir();
    let report = run_scenario(&scenario, Laboratory::Model, &directory, &AtomicBool::new(false), |_| {});
    report.unwrap_or_else(|error| panic!("{error}")).verdict.unwrap()
}

#[test]
fn the_bottleneck_by_construction_is_the_one_that_is_named() {
    let mut wrong = Vec::new();
    for Case { name, text, kind, limit } in CASES {
        let verdict = verdict_of(text);
        println!("{name}: {}", verdict.sentence);
        let named = verdict.limit.name == limit || verdict.limit.links.iter().any(|link| link == limit);
        // Several links may be equally busy, but not a slow one and all others.
        let few = verdict.limit.links.len() <= 4;
        if verdict.limit.kind != kind || !named || !few || verdict.carries_offered == Some(true) {
            wrong.push(format!("{name}: {verdict:?}"));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[test]
fn a_contradiction_with_the_scenario_is_in_the_sentence() {
    // The other builders run ahead of the slow one, until the sources' memory is full.
    let slow = "[[network.receiver]]\nnumber = 1\nrate = \"100 Mbit/s\"\n";
    let verdict = verdict_of(&format!("[network]\nsenders = 4\nreceivers = 2\n{slow}"));
    assert!(
        verdict.sentence.contains("receiver-1 down carries no more than 188 Mbit/s in the long run"),
        "{verdict:?}"
    );
}

#[test]
fn what_is_offered_and_carried_is_the_sources_limit() {
    for text in [
        "[network]\nsenders = 8\n[traffic]\ninterval = \"8ms\"\n",
        "[network]\nsenders = 4\nreceivers = 4\n[traffic]\ninterval = \"1ms\"\n",
        "[network]\nsenders = 4\nreceivers = 4\n[traffic]\ninterval = \"1ms\"\nburst = 8\n",
        "[network]\nsenders = 4\nreceivers = 2\n[[network.receiver]]\nnumber = 0\n\
         stall = { at = \"20ms\", length = \"5ms\" }\n[traffic]\ninterval = \"4ms\"\n",
    ] {
        let verdict = verdict_of(text);
        println!("{}", verdict.sentence);
        assert_eq!((verdict.limit.kind, verdict.carries_offered), (LimitKind::Sources, Some(true)), "{verdict:?}");
    }
}

/// A window is full where the next piece does not fit: three quarters of it are out in the mean.
#[test]
fn credit_that_is_out_while_every_link_is_idle_is_the_limit() {
    let scenario = Scenario::parse("[network]\nsenders = 2\n").unwrap();
    let links = scenario.all_links().into_iter().map(|link| LinkUse {
        name: link.name,
        kind: link.kind,
        rate_bits_per_second: link.rate.0,
        busy: 0.4,
        max_waiting_bytes: 0,
    });
    let credit = CreditOverTime {
        receiver: "receiver-0".to_owned(),
        window: vec![151_000; 2],
        at: vec![vec![57_500, 57_000], vec![57_000, 57_500]],
    };
    let report = Report {
        laboratory: "model".to_owned(),
        links: links.collect(),
        timeline: Some(Timeline { credit: vec![credit], ..Timeline::default() }),
        measured_seconds: 1.0,
        scenario,
        ..Report::default()
    };
    let verdict = Verdict::for_report(&report);
    assert_eq!((verdict.limit.kind, &*verdict.limit.name), (LimitKind::Credit, "receiver-0"), "{verdict:?}");
}
