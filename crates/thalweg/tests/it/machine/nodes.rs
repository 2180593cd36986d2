//! Nodes in the machine: each drives a NIC by itself, and a source a device that writes into its slots.

use super::{assert_success, directory, is_set_up, thalweg};
use serde_json::Value;
use std::fs;
use std::ops::Range;
use std::path::Path;
use tempfile::TempDir;
use thalweg_device::model_adc;
use thalweg_store::{Run, verify};
use thalweg_wire::SourceId;

/// A builder and a source, which are started one after the other. What they say is in /out.
const NODES: &str = r"
    cd /out
    node() { THALWEG_LOG=thalweg_dpdk=trace,debug $THALWEG --json node $1 two.toml >$1.json 2>$1.log; }
    node builder0 & builder=$!
    until grep -q 'listening on' builder0.log; do kill -0 $builder; sleep 0.1; done
    node source0
    wait $builder";

/// Where a builder listens, and what leads there.
const OVER_DPDK: [&str; 2] = [
    r#"listen = ["dpdk:10.0.0.1:7400"]
    adapter = { device = "0000:00:11.0" }"#,
    r#"link = "dpdk"
    adapter = { device = "0000:00:12.0", address = "10.0.0.2/24" }"#,
];
const OVER_MEMORY: [&str; 2] = [r#"listen = ["shm:/tmp/builder0"]"#, r#"link = "shm""#];

/// Two NICs, and whatever else; a run between two nodes.
fn run(options: &[&str], [listen, link]: [&str; 2], bound: &str, events: u32, source: &str) -> (Value, TempDir) {
    let out = directory();
    let topology = format!(
        "[run]\nevents = {events}\ntimeout = \"60s\"\n\n[[builder]]\nname = \"builder0\"\n{listen}\nblock = \"1MiB\"\n\
         deadline = \"20s\"\n\n[[source]]\nname = \"source0\"\nid = \"1.0\"\n{link}\n{source}\n"
    );
    fs::write(out.path().join("two.toml"), topology).unwrap();
    let program = env!("CARGO_BIN_EXE_thalweg");
    let script = format!("set -e\nTHALWEG={program}\nbindto vfio-pci 0000:00:11.0 0000:00:12.0 {bound}\n{NODES}");
    let nics = ["--nic", "virtio", "--nic", "virtio", "--huge-pages", "256"];
    let at = ["--out", out.path().to_str().unwrap(), "--", "sh", "-c", &script];
    let output = thalweg(&[options, &nics, &at].concat()).output().unwrap();
    if !output.status.success() {
        eprintln!("{}\n{}", said(&out, "builder0.log"), said(&out, "source0.log"));
    }
    assert_success(&output);
    let report = said(&out, "builder0.json");
    (serde_json::from_str(report.lines().last().unwrap()).unwrap(), out)
}

fn said(out: &TempDir, name: &str) -> String {
    fs::read_to_string(out.path().join(name)).unwrap_or_default()
}

/// Every event is there, complete, and what `expected` says.
fn check(report: &Value, out: &Path, events: u64, expected: impl Fn(u64, &mut Vec<u8>)) {
    assert_eq!(report["state"], "COMPLETE", "{report:#}");
    let run = Run::open(out.join("runs/run-000001")).unwrap();
    let verified = verify(&run);
    assert!(verified.consistent, "{:#?}", verified.problems);
    let mut payload = Vec::new();
    let mut seen = 0;
    for event in run.events() {
        let event = event.unwrap();
        let [fragment] = &event.fragments[..] else { panic!("event {:?}", event.id) };
        payload.resize(fragment.payload().len(), 0);
        expected(event.id.0, &mut payload);
        assert!(!payload.is_empty() && fragment.payload() == payload, "event {:?}", event.id);
        seen += 1;
    }
    assert_eq!(seen, events);
}

/// A run of a model's data over two NICs.
fn two_nics(options: &[&str], mode: &str) {
    if !is_set_up() {
        return;
    }
    let (report, out) = run(options, OVER_DPDK, "", 40, r#"device = { kind = "model-adc", size = "20KiB" }"#);
    check(&report, out.path(), 40, |event, payload| model_adc(1, SourceId::new(1, 0), event, payload));
    for node in ["builder0.log", "source0.log"] {
        let log = said(&out, node);
        assert!(log.contains("DPDK, net_virtio") && log.contains(mode) && log.contains("lcore"), "{log}");
    }
    assert_eq!(report["copies_per_byte"]["source"], 0.0, "{report:#}");
}

#[test]
fn two_nodes_drive_a_nic_each() {
    two_nics(&[], "IOVA mode VA");
}

#[test]
fn two_nodes_drive_a_nic_each_without_an_iommu() {
    two_nics(&["--no-iommu"], "IOVA mode PA");
}

/// Ranges of addresses in lines of a log: `LENGTH bytes` beside a hexadecimal number behind `mark`.
fn ranges(log: &str, mark: &str) -> Vec<Range<u64>> {
    let range = |line: &str| {
        let (_, rest) = line.split_once(mark)?;
        let digits = rest.split(|c: char| !c.is_ascii_hexdigit()).next()?;
        let (before, _) = line.split_once(" bytes")?;
        let length: u64 = before.rsplit(' ').next()?.parse().ok()?;
        let start = u64::from_str_radix(digits, 16).ok()?;
        Some(start..start + length)
    };
    log.lines().filter_map(range).collect()
}

/// The device writes into a slot, and the NIC sends from there.
fn one_buffer(options: &[&str], stray: bool) {
    if !is_set_up() {
        return;
    }
    const EVENTS: u64 = 12;
    let device = format!("slot = 4096\ndevice = {{ kind = \"edu\", address = \"0000:00:10.0\", stray = {stray} }}");
    let (report, out) = run(&[options, &["--edu"]].concat(), OVER_DPDK, "0000:00:10.0", EVENTS as u32, &device);
    check(&report, out.path(), EVENTS, |event, payload| {
        for (byte, at) in payload.iter_mut().zip(0_u64..) {
            *byte = (7 * at).wrapping_add(event) as u8;
        }
    });
    assert_eq!(report["copies_per_byte"]["source"], 0.0, "{report:#}");

    let log = said(&out, "source0.log");
    sent_from_there(&log, EVENTS as usize, 4032);
    if stray {
        assert!(log.contains("outside of the arena, and nothing changed there"), "{log}");
        let kernel = said(&out, "dmesg.txt");
        assert!(kernel.contains("DMAR: [DMA Write NO_PASID] Request device [00:10.0] fault addr"), "{kernel}");
        assert!(log.contains("a device joins the process's container"), "{log}");
    }
}

/// Every byte that the device wrote is sent from where it wrote it, and nothing else is. A frame lies in one piece, or,
/// without an IOMMU, in several.
fn sent_from_there(log: &str, events: usize, bytes: u64) {
    let (written, sent) = (ranges(log, "is written to 0x"), ranges(log, "are sent from 0x"));
    for event in 0..events {
        let lines: String = log.split_inclusive('\n').filter(|l| l.contains(&format!("frame {event} is"))).collect();
        let pieces = ranges(&lines, "is written to 0x");
        assert_eq!(pieces.iter().map(|piece| piece.end - piece.start).sum::<u64>(), bytes, "frame {event}: {log}");
        for piece in pieces {
            let mut at = piece.start;
            while at < piece.end {
                let part = sent.iter().find(|part| part.contains(&at));
                at = part.unwrap_or_else(|| panic!("{at:#x} is not sent: {log}")).end;
            }
        }
    }
    // But for the headers in front.
    let slot = |part: &Range<u64>| written.iter().any(|piece| piece.start - 64 <= part.start && part.end <= piece.end);
    assert!(!sent.is_empty() && sent.iter().all(slot), "{log}");
}

#[test]
fn what_a_device_writes_a_nic_sends_from_there() {
    one_buffer(&[], true);
}

#[test]
fn what_a_device_writes_a_nic_sends_from_there_without_an_iommu() {
    one_buffer(&["--no-iommu"], false);
}

/// Bytes of each part of the disk that is read, and how many there are.
const SIZE: usize = 64 << 10;
const EVENTS: u64 = 32;

/// A disk's blocks, each read straight into the slot that the NIC sends. The builder ends the run with the disk.
fn a_disk(options: &[&str], over: [&str; 2]) -> Option<String> {
    if !is_set_up() {
        return None;
    }
    let byte = |event: u64, at: u64| ((event * SIZE as u64 + at).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8;
    let disk: Vec<u8> = (0..EVENTS).flat_map(|event| (0..SIZE as u64).map(move |at| byte(event, at))).collect();
    let directory = directory();
    fs::write(directory.path().join("disk"), disk).unwrap();
    let device = format!("device = {{ kind = \"nvme\", address = \"0000:00:18.0\", size = {SIZE} }}\nslot = 65600");
    let bound = format!(
        "\nbindto nvme 0000:00:18.0\nuntil [ -b /dev/nvme0n1 ]; do sleep 0.1; done\n\
         dd if={} of=/dev/nvme0n1 bs=64k oflag=direct status=none\nbindto vfio-pci 0000:00:18.0",
        directory.path().join("disk").display()
    );
    // More events than the disk has: it ends the run.
    let (report, out) = run(&[options, &["--nvme", "2MiB"]].concat(), over, &bound, 1000, &device);
    check(&report, out.path(), EVENTS, |event, payload| {
        payload.iter_mut().zip(0..).for_each(|(to, at)| *to = byte(event, at));
    });
    assert_eq!(report["copies_per_byte"]["source"], 0.0, "{report:#}");
    let log = said(&out, "source0.log");
    assert!(!log.contains("stays mapped"), "{log}");
    let source: Value = serde_json::from_str(said(&out, "source0.json").lines().last().unwrap()).unwrap();
    assert!(source["device"]["interrupts"].as_u64().unwrap() > 0, "{source:#}\n{log}");
    Some(log)
}

#[test]
fn a_disk_writes_what_a_nic_sends_from_there() {
    if let Some(log) = a_disk(&[], OVER_DPDK) {
        sent_from_there(&log, EVENTS as usize, SIZE as u64);
    }
}

#[test]
fn a_disk_writes_what_a_nic_sends_from_there_without_an_iommu() {
    if let Some(log) = a_disk(&["--no-iommu"], OVER_DPDK) {
        sent_from_there(&log, EVENTS as usize, SIZE as u64);
    }
}

#[test]
fn a_disk_is_read_without_a_nic() {
    a_disk(&[], OVER_MEMORY);
}

/// The driver of docs/drivers.md, as a lab's own program: random numbers, written into slots by a device that Thalweg does
/// not know.
fn a_driver_of_one_page(options: &[&str]) {
    if !is_set_up() {
        return;
    }
    let program = Path::new(env!("CARGO_BIN_EXE_thalweg"));
    let driver = program.with_file_name("examples").join("entropy");
    assert!(driver.exists(), "{} is built with the tests", driver.display());
    let out = directory();
    let topology = "[run]\nevents = 200\ntimeout = \"60s\"\n\n[[builder]]\nname = \"builder\"\nlisten = [\"shm:/tmp/builder\"]\n\n\
                    [[source]]\nname = \"entropy\"\nid = \"1.0\"\n";
    fs::write(out.path().join("run.toml"), topology).unwrap();
    let script = format!(
        "set -e\nbindto vfio-pci 0000:00:0f.0\ncd /out\n{} --json node builder run.toml >report.json 2>log & builder=$!\n\
         until grep -q 'listening on' log; do kill -0 $builder; sleep 0.1; done\n\
         {} 0000:00:0f.0 shm:/tmp/builder 1.0\nwait $builder",
        program.display(),
        driver.display()
    );
    let at = ["--rng", "--out", out.path().to_str().unwrap(), "--", "sh", "-c", &script];
    let output = thalweg(&[options, &at].concat()).output().unwrap();
    if !output.status.success() {
        eprintln!("{}", said(&out, "log"));
    }
    assert_success(&output);
    let report: Value = serde_json::from_str(said(&out, "report.json").lines().last().unwrap()).unwrap();
    assert_eq!(
        (&report["ledger"]["unaccounted"], &report["copies_per_byte"]["source"]),
        (&0.into(), &0.0.into()),
        "{report:#}"
    );
    let run = Run::open(out.path().join("runs/run-000001")).unwrap();
    let (mut bytes, mut ones, mut first) = (0, 0, std::collections::HashSet::new());
    for event in run.events() {
        let event = event.unwrap();
        let payload = event.fragments[0].payload();
        bytes += payload.len();
        ones += payload.iter().map(|byte| u64::from(byte.count_ones())).sum::<u64>();
        assert!(first.insert(payload[..8].to_vec()), "no two are alike");
    }
    assert!(first.len() == 200 && bytes > 200 * 64, "{} fragments of {bytes} bytes", first.len());
    // Half of the bits, within five standard deviations: the square root of their number is two of them.
    let bits = 8.0 * bytes as f64;
    assert!((ones as f64 - bits / 2.0).abs() < 2.5 * bits.sqrt(), "{ones} of {bits} bits");
}

#[test]
fn a_driver_of_one_page_is_a_source() {
    a_driver_of_one_page(&[]);
}

#[test]
fn a_driver_of_one_page_is_a_source_without_an_iommu() {
    a_driver_of_one_page(&["--no-iommu"]);
}

#[test]
fn the_dma_of_a_disk_is_measured_each_way_and_its_bytes_are_as_before() {
    if !is_set_up() {
        return;
    }
    let out = directory();
    let script = format!(
        "set -e\ncd /out\nbindto nvme 0000:00:18.0\nuntil [ -e /dev/nvme0n1 ]; do sleep 0.1; done\n\
         dd if=/dev/urandom of=/dev/nvme0n1 bs=1M count=16 oflag=direct 2>/dev/null\ncp /dev/nvme0n1 before\n\
         bindto vfio-pci 0000:00:18.0\n\
         {} --json bench dma 0000:00:18.0 --write --sizes 4KiB,64KiB,256KiB -t 100ms --repeat 1 >bench.json\n\
         bindto nvme 0000:00:18.0\nuntil [ -e /dev/nvme0n1 ]; do sleep 0.1; done\ncmp /dev/nvme0n1 before",
        env!("CARGO_BIN_EXE_thalweg")
    );
    let at = ["--nvme", "16MiB", "--out", out.path().to_str().unwrap(), "--", "sh", "-c", &script];
    assert_success(&thalweg(&at).output().unwrap());
    let report: Value = serde_json::from_str(said(&out, "bench.json").lines().last().unwrap()).unwrap();
    let points = report["points"].as_array().unwrap();
    assert_eq!(points.len(), 9, "{report:#}");
    for point in points {
        assert!(point["goodput_bits_per_second"].as_f64().unwrap() > 0.0, "{point:#}");
        assert_eq!(point["notes"][0], "behind an IOMMU", "{point:#}");
    }
}
