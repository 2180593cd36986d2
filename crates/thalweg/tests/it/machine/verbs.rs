//! iWARP between the RNIC in software and the kernel's (siw), by programs of others that are unmodified; and nodes over the
//! kernel's RDMA devices.

use super::{Step, in_one_machine, is_set_up, last_line, read};
use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;
use thalweg_store::{Run, verify_run};
use thalweg_testing::skip::skipped;

/// Programs of perftest that connect by librdmacm.
const PERFTEST: [&str; 6] = [
    "ib_write_lat -n 100",
    "ib_send_lat -n 100",
    "ib_read_lat -n 100",
    "ib_write_bw -n 50 -s 65536",
    "ib_read_bw -n 50 -s 65536",
    "ib_send_bw -n 50 -s 65536",
];

/// Errors of siw's program at ours: name, layer, type and code of the Terminate message (RFC 5040 section 4.8; RFC 5041
/// section 8.2).
const ERRORS: [(&str, [u8; 3]); 8] = [
    // DDP, tagged buffer: invalid STag, bounds.
    ("write-stag", [1, 1, 0]),
    ("write-bounds", [1, 1, 1]),
    // RDMAP, remote protection: access rights, invalid STag, bounds.
    ("write-right", [0, 1, 2]),
    ("read-stag", [0, 1, 0]),
    ("read-bounds", [0, 1, 1]),
    ("read-right", [0, 1, 2]),
    // DDP, untagged buffer: no buffer, message too long.
    ("no-receive", [1, 2, 2]),
    ("too-long", [1, 2, 5]),
];

/// A script that has the kernel's RNIC at 10.9.0.1, and 10.9.0.2 at the other end of a cable for `ours`.
fn with_both(script: &str) -> String {
    let program = env!("CARGO_BIN_EXE_thalweg");
    format!(
        "own() {{ ip netns exec far {program} -q rdma run --transport iwarp --address 10.9.0.2 \"$@\"; }}
        ours() {{ own -- \"$@\"; }}
        if ! rdma link | grep -q siw0; then
            modprobe ib_uverbs; modprobe rdma_ucm; modprobe libcrc32c; insmod /usr/lib/thalweg-machine/siw.ko
            mount -t debugfs none /sys/kernel/debug 2>/dev/null || true
            echo 'module siw +p' >/sys/kernel/debug/dynamic_debug/control
            ip netns add far
            ip link add near type veth peer name far netns far
            ip address add 10.9.0.1/24 dev near; ip link set near up
            ip -n far address add 10.9.0.2/24 dev far; ip -n far link set far up; ip -n far link set lo up
            rdma link add siw0 type siw netdev near
        fi
        {script}"
    )
}

/// Both ways round, with CRCs and without, which siw leaves to its peer. A capture of all of it is dissected by tshark.
fn pings() -> Step {
    let capture = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/machine/capture.py");
    let script = format!(
        "/usr/bin/python3 {capture} near capture.pcap & capture=$!
        until [ -s capture.pcap ]; do kill -0 $capture; sleep 0.1; done
        for crc in '' --no-crc; do
            rping -s -a 10.9.0.1 -C 200 -v >theirs$crc 2>&1 & server=$!
            until ss -ltn | grep -q 10.9.0.1:7174; do kill -0 $server; sleep 0.1; done
            own $crc -- timeout 200 rping -c -a 10.9.0.1 -C 200 -V
            wait $server
            own $crc -- rping -s -a 10.9.0.2 -C 200 -V >served$crc 2>&1 & server=$!
            until ip netns exec far ss -ltn | grep -q :7174; do kill -0 $server; sleep 0.1; done
            timeout 200 rping -c -a 10.9.0.2 -C 200 -v >asked$crc 2>&1
            wait $server
        done
        kill $capture"
    );
    Step::new("rping", with_both(&script), |own| {
        for file in ["theirs", "asked", "theirs--no-crc", "asked--no-crc"] {
            let lines = read(&own.join(file)).lines().filter(|line| line.contains("rdma-ping")).count();
            // The one that asks may see the end of the other before it prints its last answer.
            assert!(lines >= 199, "{file}: {lines}");
        }
        check_capture(&own.join("capture.pcap"));
    })
}

/// Has tshark dissect four connections: two with CRCs, and two without.
fn check_capture(capture: &Path) {
    let tshark = |arguments: &[&str]| {
        let output = Command::new("tshark").arg("-r").arg(capture).args(arguments).output();
        output.map(|output| String::from_utf8_lossy(&output.stdout).into_owned())
    };
    let Ok(flags) = tshark(&["-Y", "iwarp_mpa.rep", "-T", "fields", "-e", "iwarp_mpa.crc_flag"]) else {
        return skipped("tshark is not installed");
    };
    assert_eq!(flags.split_whitespace().collect::<Vec<_>>(), ["1", "1", "0", "0"], "CRCs of the replies");
    let complaints = tshark(&["-Y", "iwarp_mpa && _ws.expert", "-T", "fields", "-e", "_ws.expert.message"]).unwrap();
    // Packets that the capture has missed are not a matter of iWARP.
    let complaints: BTreeSet<&str> = complaints.lines().filter(|line| !line.contains("captured")).collect();
    assert_eq!(complaints, BTreeSet::new());
    let text = tshark(&["-O", "iwarp_mpa"]).unwrap();
    let [good, bad] = ["(Good CRC32)", "Bad CRC32"].map(|words| text.matches(words).count());
    assert!(good > 1000 && bad == 0, "{good} good CRCs, {bad} bad ones");
}

/// The server listens before its client asks: perftest 4.5 uses freed memory when it connects a second time.
fn measurements() -> Step {
    let turns = PERFTEST.map(|words| {
        let program = words.split(' ').next().unwrap_or_default();
        format!(
            "{words} -R -F -d siw0 >{program}.server 2>&1 & server=$!
            until ss -ltn | grep -q :18515; do kill -0 $server; sleep 0.1; done
            ours timeout 100 {words} -R -F -d thalweg0 10.9.0.1 >{program}.client 2>&1
            wait $server"
        )
    });
    Step::new("perftest", with_both(&turns.join("\n")), |own| {
        for words in PERFTEST {
            let program = words.split(' ').next().unwrap_or_default();
            let text = read(&own.join(format!("{program}.client")));
            assert!(text.contains("#bytes"), "{program}: {text}");
        }
    })
}

fn errors() -> Step {
    let python = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/machine/verbs_errors.py");
    let cases = ERRORS.map(|(case, _)| case).join(" ");
    let script = format!(
        "ours /usr/bin/python3 {python} serve 10.9.0.2 {cases} & server=$!
        timeout 100 /usr/bin/python3 {python} ask 10.9.0.2 {cases}
        wait $server
        dmesg >log"
    );
    Step::new("errors", with_both(&script), |own: &Path| {
        let log = read(&own.join("log"));
        for (case, [layer, kind, code]) in ERRORS {
            let (_, since) = log.split_once(&format!("verbs_errors {case}\n")).expect("each case is asked");
            let own_lines = since.split("verbs_errors").next().unwrap_or_default();
            // siw reads the two halves of the first byte in the wrong order: its layer is the type, and its type the layer.
            let expected = format!("got TERMINATE. layer {kind}, type {layer}, code {code}");
            assert!(own_lines.contains(&expected), "{case}: {expected}; {own_lines}");
        }
    })
}

/// Events of a run over a device.
const EVENTS: u64 = 100;

/// A run between two nodes over each of the kernel's RDMA devices: iWARP (siw) and RoCE (rxe). Reads over siw are short, since a
/// queue pair of its that answers long ones and sends meanwhile may stop for good (Linux 6.1).
fn runs_over_devices() -> Step {
    let program = env!("CARGO_BIN_EXE_thalweg");
    let script = format!(
        "ip link set lo up; ulimit -l unlimited
        ip link add around type veth peer name beyond; ip address add 10.9.2.1/24 dev around
        ip link set around up; ip link set beyond up
        modprobe rdma_rxe; rdma link add rxe0 type rxe netdev around
        for device in siw:10.9.0.1:16KiB rxe:10.9.2.1:700KiB; do
            name=${{device%%:*}}; address=${{device#*:}}
            cat >$name.toml <<END
[run]
directory = \"$name\"
events = {EVENTS}
timeout = \"60s\"

[[builder]]
name = \"builder0\"
listen = [\"rdma-device:${{address%:*}}:7400\"]
block = \"4MiB\"
deadline = \"60s\"

[[source]]
name = \"source0\"
id = \"1.0\"
link = \"rdma-device\"
device = {{ kind = \"model-adc\", size = \"${{address#*:}}\" }}
END
            {program} doctor --all --for $name.toml >$name.examined || true
            {program} --json run $name.toml >$name.json 2>$name.log
        done"
    );
    Step::new("devices", with_both(&script), |own| {
        for name in ["siw", "rxe"] {
            let (report, examined) =
                (last_line(&own.join(format!("{name}.json"))), read(&own.join(format!("{name}.examined"))));
            assert_eq!(report["state"], "COMPLETE", "{report:#}");
            assert!(examined.contains(&format!("by the RDMA device {name}0")), "{examined}");
            let run = Run::open(own.join(format!("{name}/run-000001"))).unwrap();
            assert!(verify_run(&run).consistent);
            assert_eq!(run.events().count() as u64, EVENTS);
        }
    })
}

#[test]
fn the_kernels_rnic_and_this_one_speak_iwarp_with_each_other() {
    if !is_set_up() {
        return;
    }
    let libraries = Path::new(env!("CARGO_BIN_EXE_thalweg")).with_file_name("libthalweg_verbs_provider.so");
    if !libraries.exists() {
        return skipped("the provider for libibverbs is not built; `cargo build --workspace` builds it");
    }
    in_one_machine(&[], &[pings(), measurements(), errors(), runs_over_devices()]);
}
