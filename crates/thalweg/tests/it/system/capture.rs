//! `thalweg capture`, on a virtual cable, read back by libpcap.

use crate::common::hosts::Hosts;
use crate::common::*;
use std::path::Path;
use std::process::Command;

/// Prints each packet of a file as libpcap has it: its time in nanoseconds, both lengths, its bytes.
const READER: &str = r#"
import ctypes, ctypes.util, sys
pcap = ctypes.CDLL(ctypes.util.find_library("pcap"))
class Header(ctypes.Structure):
    _fields_ = [("s", ctypes.c_long), ("ns", ctypes.c_long), ("kept", ctypes.c_uint32), ("length", ctypes.c_uint32)]
pcap.pcap_open_offline_with_tstamp_precision.restype = ctypes.c_void_p
pcap.pcap_geterr.restype = ctypes.c_char_p
error = ctypes.create_string_buffer(256)
file = pcap.pcap_open_offline_with_tstamp_precision(sys.argv[1].encode(), 1, error)
if not file:
    sys.exit(error.value.decode())
file = ctypes.c_void_p(file)
header, data = ctypes.POINTER(Header)(), ctypes.POINTER(ctypes.c_ubyte)()
while (result := pcap.pcap_next_ex(file, ctypes.byref(header), ctypes.byref(data))) == 1:
    it = header.contents
    print(it.s * 10**9 + it.ns, it.kept, it.length, bytes(data[:it.kept]).hex())
if result != -2:
    sys.exit(pcap.pcap_geterr(file).decode())
"#;

struct Seen {
    nanos: u64,
    length: usize,
    bytes: Vec<u8>,
}

/// Nothing where there is no libpcap: then the test is skipped, with the reason.
fn read(file: &Path) -> Option<Vec<Seen>> {
    let find = "import ctypes.util, sys; sys.exit(ctypes.util.find_library('pcap') is None)";
    if !Command::new("python3").args(["-c", find]).status().is_ok_and(|status| status.success()) {
        thalweg_testing::skip::skipped("there is no libpcap to read captures with");
        return None;
    }
    let output = Command::new("python3").args(["-c", READER]).arg(file).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    let seen = text.lines().map(|line| {
        let words: Vec<&str> = line.split(' ').collect();
        let byte = |at: usize| u8::from_str_radix(&words[3][at..at + 2], 16).unwrap();
        let bytes: Vec<u8> = (0..words[3].len()).step_by(2).map(byte).collect();
        assert_eq!(bytes.len(), words[1].parse::<usize>().unwrap());
        Seen { nanos: words[0].parse().unwrap(), length: words[2].parse().unwrap(), bytes }
    });
    Some(seen.collect())
}

fn capture(hosts: &Hosts, words: &[&str], file: &Path) -> Node {
    capture_from("eth0", hosts, words, file)
}

fn capture_from(interface: &str, hosts: &Hosts, words: &[&str], file: &Path) -> Node {
    let mut command = Command::new(env!("CARGO_BIN_EXE_thalweg"));
    command.args(["--json", "capture", interface]).arg(file).args(words);
    let mut node = hosts.start(0, "capture", command);
    node.wait_for("capturing on");
    node
}

/// Sends so many datagrams to port 9 of the other end, that of number `i` with these bytes behind the number.
fn send(hosts: &Hosts, count: u32, bytes: usize) {
    let script = format!(
        "fill=$(printf '%{bytes}s'); exec 3>/dev/udp/198.18.0.1/9; for i in $(seq {count}); do printf 'packet %d%s' $i \
         \"$fill\" >&3 2>/dev/null; done; true"
    );
    assert!(hosts.run(1, Command::new("bash").args(["-c", &script])).status.success());
}

/// What is behind Ethernet's, IP's and UDP's headers, of datagrams to port 9.
fn datagrams(seen: &[Seen]) -> Vec<&Seen> {
    let is_it = |one: &&Seen| one.bytes.len() >= 42 && one.bytes[23] == 17 && one.bytes[36..38] == [0, 9];
    seen.iter().filter(is_it).collect()
}

#[test]
fn what_passes_an_interface_is_in_the_file_in_order_with_its_times() {
    let Some(hosts) = Hosts::new(2) else { return };
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let file = directory.path().join("all.pcapng");
    let clock = || std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_nanos() as u64;
    let begun = clock();
    let node = capture(&hosts, &[], &file);
    send(&hosts, 3000, 1000);
    node.interrupt();
    let report = node.finish().report(0);
    let ended = clock();
    let Some(seen) = read(&file) else { return };
    assert_eq!(number(&report, "/packets"), seen.len() as u64);
    assert_eq!(number(&report, "/dropped"), 0);
    assert_eq!(number(&report, "/file_bytes"), std::fs::metadata(&file).unwrap().len());
    let ours = datagrams(&seen);
    // The kernel refuses some of them (ICMP: nobody is there), as it does without anybody watching.
    let numbers: Vec<u32> =
        ours.iter().map(|one| std::str::from_utf8(&one.bytes[49..]).unwrap().trim_end().parse().unwrap()).collect();
    assert!(numbers.len() > 1000 && numbers.is_sorted_by(|one, next| one < next), "{numbers:?}");
    assert_eq!(numbers.last(), Some(&3000));
    assert!(ours.iter().all(|one| one.length == one.bytes.len()));
    assert!(seen.iter().all(|one| (begun..=ended).contains(&one.nanos)));
    assert!(ours.is_sorted_by_key(|one| one.nanos) && ours.iter().any(|one| one.nanos % 1000 != 0));
}

#[test]
fn a_capture_ends_by_count_and_by_time_and_keeps_the_beginning_of_each() {
    let Some(hosts) = Hosts::new(2) else { return };
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let (file, second) = (directory.path().join("count.pcapng"), directory.path().join("time.pcapng"));
    let node = capture(&hosts, &["--count", "50", "--snap", "60"], &file);
    send(&hosts, 500, 1000);
    assert_eq!(number(&node.finish().report(0), "/packets"), 50);
    let node = capture(&hosts, &["--for", "300ms"], &second);
    assert!(node.finish().report(0)["seconds"].as_f64().unwrap() >= 0.3);
    let Some(seen) = read(&file) else { return };
    assert_eq!(seen.len(), 50);
    let ours = datagrams(&seen);
    assert!(!ours.is_empty() && ours.iter().all(|one| one.bytes.len() == 60 && one.length > 1000));
    read(&second);
    let mut again = thalweg();
    let again = again.args(["capture", "lo"]).arg(&file).output().unwrap();
    assert_eq!(again.status.code(), Some(2), "{again:?}");
}

#[test]
fn a_disk_that_is_full_is_an_error_and_what_is_there_can_be_read() {
    let Some(hosts) = Hosts::new(2) else { return };
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let disk = directory.path().join("disk");
    std::fs::create_dir(&disk).unwrap();
    let mounted = Command::new("mount").args(["-t", "tmpfs", "-o", "size=6m", "tmpfs"]).arg(&disk).status();
    if !mounted.is_ok_and(|status| status.success()) {
        return thalweg_testing::skip::skipped("no small disk can be mounted");
    }
    let file = disk.join("full.pcapng");
    let node = capture(&hosts, &[], &file);
    send(&hosts, 9000, 1400);
    node.interrupt();
    let ended = node.finish();
    let seen = read(&file);
    let unmounted = Command::new("umount").arg(&disk).status().unwrap();
    assert!(unmounted.success());
    ended.failed_saying("the disk is full");
    let Some(seen) = seen else { return };
    assert!(seen.len() > 2000, "{}", seen.len());
    assert!(ended.stderr.contains(&format!("contains the {} packets before that", seen.len())), "{ended:?}");
}

#[test]
fn an_interface_may_go_down_and_one_that_is_gone_leaves_a_file_that_is_whole() {
    let Some(hosts) = Hosts::new(2) else { return };
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let file = directory.path().join("down.pcapng");
    let node = capture(&hosts, &[], &file);
    send(&hosts, 100, 1000);
    for words in ["link set eth0 down", "link set eth0 up"] {
        assert!(hosts.run(0, Command::new("ip").args(words.split(' '))).status.success(), "{words}");
    }
    send(&hosts, 100, 1000);
    assert!(hosts.run(0, Command::new("ip").args(["link", "del", "eth0"])).status.success());
    node.finish().failed_saying("waiting for packets: No such device");
    let Some(seen) = read(&file) else { return };
    assert!(datagrams(&seen).len() > 110, "{}", seen.len());
}

#[test]
fn what_goes_past_the_kernel_is_in_the_file_too() {
    let Some(hosts) = Hosts::new(2) else { return };
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    for interface in ["af-xdp:198.18.0.1:9", "dpdk:net_af_packet0,iface=eth0"] {
        if let (true, Err(reason)) = (interface.starts_with("dpdk"), thalweg_dpdk::available_version()) {
            thalweg_testing::skip::skipped(reason);
            continue;
        }
        let file = directory.path().join(format!("{}.pcapng", &interface[..4]));
        let node = capture_from(interface, &hosts, &[], &file);
        send(&hosts, 500, 1000);
        node.interrupt();
        let report = node.finish().report(0);
        let Some(seen) = read(&file) else { return };
        assert_eq!((number(&report, "/packets"), number(&report, "/dropped")), (seen.len() as u64, 0), "{interface}");
        let ours = datagrams(&seen);
        assert!(ours.len() > 400 && ours.iter().all(|one| one.length >= 1042), "{interface}: {}", ours.len());
    }
}
