//! Examination of this machine, for requirements that it fulfils and for some that no machine fulfils.

use proptest::prelude::*;
use std::path::PathBuf;
use std::time::Duration;
use thalweg_doctor::{
    Data, Finding, Level, Needs, NodeNeeds, Section, examine_machine, examine_preflight, worst_level,
};

fn level(findings: &[Finding], section: Section, name: &str) -> Level {
    let found = findings.iter().find(|finding| (finding.section, finding.name.as_str()) == (section, name));
    found.unwrap_or_else(|| panic!("no {name} in {findings:#?}")).level
}

#[test]
fn who_asks_for_nothing_misses_nothing() {
    let findings = examine_machine(&Needs::default());
    assert!(worst_level(&findings) < Level::Missing, "{findings:#?}");
    assert!(findings.len() > 40);
    assert!(
        examine_preflight(&Needs::default()).iter().all(|finding| finding.level == Level::Ok || finding.cost.is_some())
    );
}

#[test]
fn each_thing_that_nobody_has_is_missing_by_its_name() {
    let node = NodeNeeds {
        name: "greedy".into(),
        cpu: Some(u32::MAX),
        slots: u64::MAX,
        blocks: u64::MAX,
        listen: vec!["tcp:192.0.2.1:1".parse().unwrap(), "shm:/no/such/directory/socket".parse().unwrap()],
        connect: vec!["tcp:host name with spaces:1".parse().unwrap()],
        adapter: false,
        congestion: Some("no-such-control".into()),
        window: u64::MAX,
        bytes_per_second: Some(f64::INFINITY),
        files: u64::MAX,
    };
    let needs = Needs {
        directory: "/proc/runs".into(),
        record: true,
        data: Data { bytes_per_second: Some(1e30), duration: Some(Duration::MAX), bytes: None, at_most: false },
        nodes: vec![node.clone(), node],
        ..Needs::default()
    };
    let findings = examine_machine(&needs);
    for (section, name) in [
        (Section::Memory, "memory"),
        (Section::Cpu, "bound processors"),
        (Section::Network, "listening on tcp:192.0.2.1:1"),
        (Section::Network, "listening on shm:/no/such/directory/socket"),
        (Section::Network, "connecting to tcp:host name with spaces:1"),
        (Section::Network, "congestion control no-such-control"),
        (Section::Disk, "disk space"),
    ] {
        assert_eq!(level(&findings, section, name), Level::Missing, "{name}");
    }
    assert!(findings.iter().filter(|finding| finding.level != Level::Ok).all(|finding| finding.cost.is_some()));
    assert_eq!(level(&examine_preflight(&needs), Section::Memory, "memory"), Level::Missing);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn whatever_is_asked_for_there_is_an_answer(
        directory in "\\PC*|[/.a-z]*",
        sizes in any::<(u64, u64, u64)>(),
        rate in any::<Option<f64>>(),
        seconds in any::<Option<u64>>(),
        bytes in any::<Option<u64>>(),
    ) {
        let node = NodeNeeds { slots: sizes.0, blocks: sizes.1, files: sizes.2, ..NodeNeeds::default() };
        let data = Data { bytes_per_second: rate, duration: seconds.map(Duration::from_secs), bytes, at_most: false };
        let needs =
            Needs { directory: PathBuf::from(directory), record: true, data, nodes: vec![node], ..Needs::default() };
        prop_assert_eq!(examine_preflight(&needs).len(), 7);
    }
}
