//! Nodes in the machine: each drives a NIC by itself, and a source a device that writes into its slots.

use super::{Step, directory, kernel_log, last_line, read};
use serde_json::Value;
use std::fs;
use std::ops::Range;
use std::path::Path;
use thalweg_store::{Run, verify_run};

/// A builder and a source, which are started one after the other, and their reports and logs.
const NODES: &str = r"
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

/// A run between two nodes that have a NIC each; `check` is given the builder's report, too.
fn between_nodes(
    name: &'static str,
    [listen, link]: [&str; 2],
    bound: &str,
    events: u64,
    source: &str,
    check: impl Fn(&Path, &Value) + 'static,
) -> Step {
    let script = format!(
        "cat >two.toml <<'END'\n[run]\nevents = {events}\ntimeout = \"60s\"\n\n[[builder]]\nname = \"builder0\"\n{listen}\n\
         block = \"1MiB\"\ndeadline = \"20s\"\n\n[[source]]\nname = \"source0\"\nid = \"1.0\"\n{link}\n{source}\nEND\n\
         THALWEG={}\nbindto vfio-pci 0000:00:11.0 0000:00:12.0 {bound}\n{NODES}",
        env!("CARGO_BIN_EXE_thalweg")
    );
    Step::new(name, script, move |own| check(own, &last_line(&own.join("builder0.json"))))
}

/// Every event is there, complete, and what `expected` says; nothing was copied at the source.
fn check(report: &Value, own: &Path, events: u64, expected: impl Fn(u64, &mut Vec<u8>)) {
    assert_eq!(
        (&report["state"], &report["copies_per_byte"]["source"]),
        (&"COMPLETE".into(), &0.0.into()),
        "{report:#}"
    );
    let run = Run::open(own.join("runs/run-000001")).unwrap();
    let verified = verify_run(&run);
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

/// The device writes into a slot, and the NIC sends from there. `mode`: how devices address memory.
pub(super) fn one_buffer(mode: &'static str, stray: bool) -> Step {
    const EVENTS: u64 = 12;
    let device = format!("slot = 4096\ndevice = {{ kind = \"edu\", address = \"0000:00:10.0\", stray = {stray} }}");
    between_nodes("one-buffer", OVER_DPDK, "0000:00:10.0", EVENTS, &device, move |own, report| {
        check(report, own, EVENTS, |event, payload| {
            for (byte, at) in payload.iter_mut().zip(0_u64..) {
                *byte = (7 * at).wrapping_add(event) as u8;
            }
        });
        for node in ["builder0.log", "source0.log"] {
            let log = read(&own.join(node));
            assert!(log.contains("DPDK, net_virtio") && log.contains(mode) && log.contains("lcore"), "{node}");
        }
        let log = read(&own.join("source0.log"));
        sent_from_there(&log, EVENTS as usize, 4032);
        if stray {
            assert!(log.contains("outside of the arena, and nothing changed there"));
            assert!(log.contains("adding a device to the process's container"));
            let kernel = kernel_log(own);
            // Another than the one that edu.c provokes.
            let refused =
                kernel.lines().filter(|line| line.contains("DMAR: [DMA Write NO_PASID] Request device [00:10.0]"));
            assert!(refused.filter(|line| !line.contains("fault addr 0x300000000")).count() > 0, "{kernel}");
        }
    })
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
    // But for the headers in front, which may lie in pages of their own.
    let slot = |part: &Range<u64>| {
        part.end - part.start == 64
            || written.iter().any(|piece| piece.start - 64 <= part.start && part.end <= piece.end)
    };
    assert!(!sent.is_empty() && sent.iter().all(slot), "{log}");
}

/// Bytes of each part of the disk that is read, and how many there are.
const SIZE: usize = 64 << 10;
const EVENTS: u64 = 32;

/// A disk's blocks, each read straight into the slot that is sent. The builder ends the run with the disk.
fn a_disk(name: &'static str, over: [&str; 2], check_log: impl Fn(&str) + 'static) -> Step {
    let byte = |event: u64, at: u64| ((event * SIZE as u64 + at).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8;
    let disk: Vec<u8> = (0..EVENTS).flat_map(|event| (0..SIZE as u64).map(move |at| byte(event, at))).collect();
    let directory = directory();
    let image = directory.path().join("disk");
    fs::write(&image, disk).unwrap();
    let device = format!("device = {{ kind = \"nvme\", address = \"0000:00:18.0\", size = {SIZE} }}\nslot = 65600");
    let bound = format!(
        "\nbindto nvme 0000:00:18.0\nuntil [ -b /dev/nvme0n1 ]; do sleep 0.1; done\n\
         dd if={} of=/dev/nvme0n1 bs=64k oflag=direct status=none\nbindto vfio-pci 0000:00:18.0",
        image.display()
    );
    // More events than the disk has: it ends the run.
    between_nodes(name, over, &bound, 1000, &device, move |own, report| {
        let _until_now = &directory;
        check(report, own, EVENTS, |event, payload| {
            payload.iter_mut().zip(0..).for_each(|(to, at)| *to = byte(event, at));
        });
        let log = read(&own.join("source0.log"));
        assert!(!log.contains("stays mapped"));
        let source = last_line(&own.join("source0.json"));
        assert!(source["device"]["interrupts"].as_u64().unwrap() > 0, "{source:#}");
        check_log(&log);
    })
}

pub(super) fn a_disk_and_a_nic() -> Step {
    a_disk("disk-and-nic", OVER_DPDK, |log| sent_from_there(log, EVENTS as usize, SIZE as u64))
}

pub(super) fn a_disk_alone() -> Step {
    a_disk("disk", OVER_MEMORY, |_| ())
}

/// The driver of docs/drivers.md, as a lab's own program: random numbers, written into slots by a device that Thalweg
/// does not know.
pub(super) fn a_driver_of_one_page() -> Step {
    let program = Path::new(env!("CARGO_BIN_EXE_thalweg"));
    let driver = program.with_file_name("examples").join("entropy");
    assert!(driver.exists(), "{} is built with the tests", driver.display());
    let topology = "[run]\nevents = 200\ntimeout = \"60s\"\n\n[[builder]]\nname = \"builder\"\nlisten = [\"shm:/tmp/builder\"]\n\n\
                    [[source]]\nname = \"entropy\"\nid = \"1.0\"\n";
    // With pages of 4 KiB.
    let script = format!(
        "echo 0 >/proc/sys/vm/nr_hugepages\ncat >run.toml <<'END'\n{topology}END\nbindto vfio-pci 0000:00:0f.0\n\
         {} --json node builder run.toml >report.json 2>log & builder=$!\n\
         until grep -q 'listening on' log; do kill -0 $builder; sleep 0.1; done\n\
         {} 0000:00:0f.0 shm:/tmp/builder 1.0\nwait $builder",
        program.display(),
        driver.display()
    );
    Step::new("one-page", script, |own| {
        let report = last_line(&own.join("report.json"));
        assert_eq!(
            (&report["ledger"]["unaccounted"], &report["copies_per_byte"]["source"]),
            (&0.into(), &0.0.into()),
            "{report:#}"
        );
        let run = Run::open(own.join("runs/run-000001")).unwrap();
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
    })
}

/// The DMA of a disk is measured each way, and its bytes are as before.
pub(super) fn dma_of_a_disk() -> Step {
    let disk = "bindto nvme 0000:00:18.0\nuntil [ -b /dev/nvme0n1 ]; do sleep 0.1; done";
    let script = format!(
        "{disk}\ndd if=/dev/urandom of=/dev/nvme0n1 bs=1M count=2 oflag=direct status=none\ncp /dev/nvme0n1 before\n\
         bindto vfio-pci 0000:00:18.0\n\
         {} --json bench dma 0000:00:18.0 --write --sizes 4KiB,64KiB,256KiB -t 100ms --repeat 1 >bench.json\n\
         {disk}\ncmp /dev/nvme0n1 before",
        env!("CARGO_BIN_EXE_thalweg")
    );
    Step::new("dma", script, |own| {
        let report = last_line(&own.join("bench.json"));
        let points = report["points"].as_array().unwrap();
        assert_eq!(points.len(), 9, "{report:#}");
        for point in points {
            assert!(point["goodput_bits_per_second"].as_f64().unwrap() > 0.0, "{point:#}");
            assert_eq!(point["notes"][0], "behind an IOMMU", "{point:#}");
        }
    })
}
