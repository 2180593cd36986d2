//! Links past the kernel's network: each node on a host of its own.

use crate::common::hosts::Hosts;
use crate::common::*;
use std::path::{Path, PathBuf};
use std::process::Command;

fn topology(directory: &Path, builder: &str, source: &str) -> PathBuf {
    let path = directory.join("two.toml");
    let text = format!(
        "[run]\ndirectory = \"runs\"\nevents = 400\n\n[[builder]]\nname = \"builder0\"\n\
         listen = [\"{builder}:198.18.0.1:7400\"]\n{PATIENT}\n\n[[source]]\nname = \"source0\"\nid = \"1.0\"\n\
         link = \"{source}\"\ndevice = {{ kind = \"model-adc\", size = \"100KiB\" }}\n"
    );
    std::fs::write(&path, text).unwrap();
    path
}

#[test]
fn a_run_over_af_xdp_is_complete_and_leaves_the_interface_as_it_was() {
    let Some(hosts) = Hosts::new(2) else { return };
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let topology = topology(directory.path(), "af-xdp", "af-xdp");
    let mut builder = hosts.node(0, "builder0", &topology);
    builder.wait_for("listening on");
    assert!(hosts.interface(0).contains("xdp"), "{}", hosts.interface(0));
    let source = hosts.node(1, "source0", &topology);
    let report = builder.finish().report(0);
    source.finish().succeeded();
    assert_eq!(report["state"], "COMPLETE", "{report:#}");
    check_books(&report);
    let contents = check_samples(&directory.path().join("runs/run-000001"));
    assert_eq!((contents.events, contents.incomplete), (400, 0));
    hosts.are_bare(2);
}

#[test]
fn a_builder_that_is_killed_leaves_no_program_behind() {
    let Some(hosts) = Hosts::new(2) else { return };
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let topology = topology(directory.path(), "af-xdp", "af-xdp");
    let mut builder = hosts.node(0, "builder0", &topology);
    builder.wait_for("listening on");
    builder.kill();
    hosts.are_bare(2);
}

#[test]
fn a_demo_over_af_xdp_makes_hosts_for_itself() {
    demo_on_hosts_of_its_own("af-xdp");
}

#[test]
fn a_demo_over_dpdk_makes_hosts_for_itself() {
    match thalweg_dpdk::available_version() {
        Ok(_) => demo_on_hosts_of_its_own("dpdk"),
        Err(reason) => thalweg_testing::skip::skipped(reason),
    }
}

fn demo_on_hosts_of_its_own(link: &str) {
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let thalweg = |words: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_thalweg"));
        command.args(words).current_dir(directory.path()).output().unwrap()
    };
    let demo = thalweg(&["-v", "--json", "demo", "--link", link, "--sources", "2", "--duration", "300ms"]);
    let said = String::from_utf8_lossy(&demo.stderr).into_owned();
    if said.contains("cannot create the network of the demo") {
        return thalweg_testing::skip::skipped(said.trim());
    }
    let report: serde_json::Value = serde_json::from_slice(&demo.stdout).unwrap();
    check_books(&report);
    for source in ["1.0", "1.1"] {
        let entry = entry(&report, source);
        // Its builder waits 2 s for a source, which may have no processor for longer: its events are late then.
        let count = |bucket: &str| number(entry, bucket);
        assert_eq!(count("/accepted"), count("/recorded") + count("/late") + count("/beyond_end"), "{entry:#}");
        assert_eq!(entry["final_counters"], true, "{entry:#}");
    }
    assert_eq!(said.matches("connected source").count(), 2, "each connects once: {said}");
    check_intact(&directory.path().join("runs/run-000001"));
}

#[test]
fn three_sources_reach_a_builder_over_dpdk() {
    if let Err(reason) = thalweg_dpdk::available_version() {
        return thalweg_testing::skip::skipped(reason);
    }
    let Some(hosts) = Hosts::without_addresses(4) else { return };
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let topology = directory.path().join("four.toml");
    let mut text = format!(
        "[run]\ndirectory = \"runs\"\nevents = 200\ntimeout = \"30s\"\n\n[[builder]]\nname = \"builder0\"\n\
         listen = [\"dpdk:198.18.0.1:7400\"]\nadapter = {{ device = \"net_af_packet0,iface=eth0\" }}\n{PATIENT}\n"
    );
    for source in 0..3 {
        let address = format!("198.18.0.{}/16", 2 + source);
        text.push_str(&format!(
            "\n[[source]]\nname = \"source{source}\"\nid = \"1.{source}\"\nlink = \"dpdk\"\n\
             adapter = {{ device = \"net_af_packet0,iface=eth0\", address = \"{address}\" }}\n\
             device = {{ kind = \"model-adc\", size = \"20KiB\" }}\n"
        ));
    }
    std::fs::write(&topology, text).unwrap();
    let mut builder = hosts.node(0, "builder0", &topology);
    builder.wait_for("listening on dpdk:198.18.0.1:7400");
    let sources: Vec<Node> =
        (0..3).map(|source| hosts.node(1 + source, &format!("source{source}"), &topology)).collect();
    let report = builder.finish().report(0);
    all_succeed(sources);
    assert_eq!(report["state"], "COMPLETE", "{report:#}");
    check_books(&report);
    let contents = check_samples(&directory.path().join("runs/run-000001"));
    assert_eq!((contents.events, contents.incomplete), (200, 0));
}
