//! Instruments that send datagrams of their own: from the socket to the run on disk.

use crate::common::hosts::Hosts;
use crate::common::*;
use std::net::{SocketAddrV4, UdpSocket};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// A VDIF frame by the specification (VDIF 1.1.1, section 5): number `at` of a thread with 100 frames a second.
fn frame(at: u64) -> Vec<u8> {
    let (second, number) = ((at / 100) as u32, (at % 100) as u32);
    let words = [second, 50 << 24 | number, 1 << 29 | 129, 1 << 26 | 0x4566, 0, 0, 0, 0];
    let payload = (0..1000u64).map(|byte| (at * 7 + byte) as u8);
    words.iter().flat_map(|word| word.to_le_bytes()).chain(payload).collect()
}

fn lost(at: u64) -> bool {
    at % 50 == 7 || (400..403).contains(&at)
}

fn topology(folder: &Path, run: &str, source: &str) -> PathBuf {
    let path = folder.join("instrument.toml");
    let socket = folder.join("b.sock");
    let text = format!(
        "[run]\ndirectory = \"runs\"\n{run}\n\n[[builder]]\nname = \"builder0\"\nlisten = [\"shm:{}\"]\n{PATIENT}\n\n\
         [[source]]\nname = \"telescope\"\nid = \"1.0\"\nlink = \"shm\"\nslots = 256\n{source}\n",
        socket.display()
    );
    std::fs::write(&path, text).unwrap();
    path
}

/// The builder and the source of a topology, which takes what comes from now on.
fn nodes(folder: &Path, topology: &std::path::Path) -> (Node, Node) {
    let node = |name: &str| {
        let mut command = thalweg();
        command.args(["--json", "-v", "node", name]).arg(topology).current_dir(folder);
        Node::start(name, command)
    };
    let mut builder = node("builder0");
    builder.wait_for("listening on");
    let mut source = node("telescope");
    source.wait_for("data are recorded from now on");
    (builder, source)
}

#[test]
fn frames_of_an_instrument_are_on_disk_and_the_ledger_has_those_that_were_lost() {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let (_ours, address) = reserve_udp_port();
    let device = format!(
        "device = {{ kind = \"udp\", listen = \"udp:{address}\", format = \"vdif\", size = 1032, rate = 100 }}"
    );
    let topology = topology(folder.path(), "events = 1000", &device);
    let (builder, source) = nodes(folder.path(), &topology);
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let runs = folder.path().join("runs");
    for at in (0..1000).filter(|at| !lost(*at)) {
        socket.send_to(&frame(at), address).unwrap();
        if at % 10 == 0 {
            socket.send_to(b"not VDIF", address).unwrap();
        }
    }
    let ended = builder.finish();
    let report = ended.report(ended.code().unwrap());
    check_books(&report);
    let source = source.finish();
    let said = source.report(0);
    let gone = (0..1000).filter(|at| lost(*at)).count() as u64;
    let entry = &report["ledger"]["sources"][0];
    assert_eq!(entry["lost_in_device"], gone, "{report:#} {said:#}");
    assert_eq!(entry["recorded"], 1000 - gone, "{report:#}");
    assert_eq!((&said["lost_in_device"], &said["device"]["malformed"]), (&gone.into(), &99.into()), "{said:#}");

    let run = thalweg_store::Run::open(runs.join("run-000001")).unwrap();
    let mut expected = (0..1000).filter(|at| !lost(*at));
    for event in run.events() {
        let event = event.unwrap();
        assert_eq!(Some(event.id.0), expected.next());
        assert!(event.fragments[0].payload() == frame(event.id.0), "event {}", event.id.0);
    }
    assert_eq!(expected.next(), None);
    let verified = thalweg().arg("verify").arg(runs.join("run-000001")).output().unwrap();
    let verified = String::from_utf8_lossy(&verified.stdout);
    for said in ["intact, but the run is INCOMPLETE", &format!("{gone} fragments lost in the device")] {
        assert!(verified.contains(said), "{verified}");
    }
}

#[test]
fn what_comes_by_af_xdp_is_on_disk_too() {
    past_the_kernel("af-xdp", "");
}

#[test]
fn what_comes_by_dpdk_is_on_disk_too() {
    match thalweg_dpdk::available_version() {
        Ok(_) => {
            past_the_kernel(
                "dpdk",
                "adapter = { device = \"net_af_packet0,iface=eth0\", address = \"198.18.0.1/16\" }\n",
            );
        }
        Err(reason) => thalweg_testing::skip::skipped(reason),
    }
}

fn past_the_kernel(way: &str, adapter: &str) {
    let Some(hosts) = Hosts::new(2) else { return };
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let device = format!(
        "{adapter}[source.device]\nkind = \"udp\"\nlisten = \"{way}:198.18.0.1:50000\"\nformat = \"fixed\"\n\
         size = 1000\nheader = 8\ncounter = {{ at = 0, bytes = 8 }}\nfirst = 0\n"
    );
    let topology = topology(folder.path(), "events = 1000", &device);
    let mut builder = hosts.node(0, "builder0", &topology);
    builder.wait_for("listening on");
    let mut source = hosts.node(0, "telescope", &topology);
    source.wait_for("data are recorded from now on");
    let directory = folder.path().join("runs/run-000001");
    hosts.on(1, || {
        let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
        for number in 0..1000_u64 {
            // No more on their way than there are slots, or frames in a ring of the device.
            if number > 0 && number % 200 == 0 {
                await_events(&directory, number);
            }
            let datagram = [&number.to_be_bytes()[..], &[(number % 251) as u8; 1000]].concat();
            socket.send_to(&datagram, "198.18.0.1:50000").unwrap();
        }
    });
    let report = builder.finish().report(0);
    check_books(&report);
    source.finish().succeeded();
    let mut count = 0;
    for event in thalweg_store::Run::open(&directory).unwrap().events() {
        let event = event.unwrap();
        assert!(event.fragments[0].payload() == [(event.id.0 % 251) as u8; 1000]);
        count += 1;
    }
    assert_eq!(count, 1000, "{report:#}");
}

/// The datagrams of an image of 16 × 1024 pixels, as a module of slsDetector's sends them: behind 48 bytes of header 8
/// KiB each.
fn module_datagrams(image: u64) -> [Vec<u8>; 4] {
    [0u32, 1, 2, 3].map(|packet| {
        let mut header = [0; 48];
        header[..8].copy_from_slice(&image.to_le_bytes());
        header[12..16].copy_from_slice(&packet.to_le_bytes());
        // In units of 100 ns since it was switched on: an image each millisecond.
        header[24..32].copy_from_slice(&(77_000_000 + image * 10_000).to_le_bytes());
        let pixels = (0..4096).flat_map(|pixel| (image as u16 * 16 + packet as u16 + pixel).to_le_bytes());
        header.into_iter().chain(pixels).collect()
    })
}

#[test]
fn images_of_many_datagrams_are_arrays_with_times_and_those_with_gaps_are_taken_as_damaged() {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let (_ours, address) = reserve_udp_port();
    let device = format!(
        "[source.device]\nkind = \"udp\"\nlisten = \"udp:{address}\"\nformat = \"fixed\"\nsize = \"32KiB\"\nheader = 48\n\
         counter = {{ at = 0, bytes = 8, little_endian = true }}\nindex = {{ at = 12, bytes = 4, little_endian = true }}\n\
         packets = 4\ntype = \"u16\"\nshape = [16, 1024]\npartial = \"damaged\"\nfirst = 1\n\
         time = {{ at = 24, bytes = 8, little_endian = true, hertz = 10_000_000 }}"
    );
    let topology = topology(folder.path(), "events = 60", &device);
    let (builder, source) = nodes(folder.path(), &topology);
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let begun = thalweg_device::TaiClock.now().0;
    for image in 1..=60 {
        for (packet, datagram) in module_datagrams(image).iter().enumerate() {
            let is_lost = image == 20 || image % 25 == 0 && packet == 2;
            if !is_lost {
                socket.send_to(datagram, address).unwrap();
            }
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    let report = builder.finish().report(1);
    check_books(&report);
    source.finish().succeeded();
    let entry = &report["ledger"]["sources"][0];
    let counts = ["recorded", "damaged", "lost_in_device"].map(|count| entry[count].as_u64().unwrap());
    assert_eq!(counts, [59, 2, 1], "{report:#}");
    let run = thalweg_store::Run::open(folder.path().join("runs/run-000001")).unwrap();
    let mut times = Vec::new();
    for event in run.events() {
        let event = event.unwrap();
        let [fragment] = &event.fragments[..] else { panic!("{event:?}") };
        if event.id.0 == 19 {
            assert!(fragment.header.status.contains(thalweg_wire::Status::LOST_IN_DEVICE));
            continue;
        }
        let image = event.id.0 + 1;
        let mut pixels: Vec<u8> = module_datagrams(image).iter().flat_map(|datagram| datagram[48..].to_vec()).collect();
        let is_damaged = image % 25 == 0;
        if is_damaged {
            pixels[2 * 8192..3 * 8192].fill(0);
        }
        assert_eq!(fragment.header.status.contains(thalweg_wire::Status::CORRUPT), is_damaged);
        assert_eq!(fragment.header.payload_type, thalweg_wire::PayloadType::IMAGE_U16);
        assert!(fragment.payload() == pixels, "image {image}");
        times.push(fragment.header.timestamp.0 - image * 1_000_000);
    }
    assert!(times.iter().all(|time| *time == times[0]), "they are by the instrument's clock: {times:?}");
    let late = (times[0] + 1_000_000).abs_diff(begun);
    assert!(late < 60_000_000_000, "which is set by when the first came: {late} ns");
}

#[test]
fn a_run_that_threw_away_what_fits_no_event_says_so_and_by_how_much_the_counter_goes_up() {
    for step in ["", ", step = 4096"] {
        let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let (_ours, address) = reserve_udp_port();
        let device = format!(
            "device = {{ kind = \"udp\", listen = \"udp:{address}\", format = \"fixed\", size = 1000, header = 8, \
             counter = {{ at = 0, bytes = 8 }}{step} }}"
        );
        let topology = topology(folder.path(), "", &device);
        let (builder, mut source) = nodes(folder.path(), &topology);
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        for at in 0..100_u64 {
            let datagram = [&(at * 4096).to_be_bytes()[..], &[at as u8; 1000]].concat();
            socket.send_to(&datagram, address).unwrap();
        }
        if step.is_empty() {
            source.wait_for("the device's counter increases by 4096 instead of 1: set `step`");
        } else {
            await_events(&folder.path().join("runs/run-000001"), 100);
        }
        builder.interrupt();
        let ended = builder.finish();
        let report = ended.report(i32::from(step.is_empty()));
        check_books(&report);
        source.finish().succeeded();
        let entry = &report["ledger"]["sources"][0];
        if step.is_empty() {
            assert_eq!((&report["state"], &entry["recorded"]), (&"INCOMPLETE".into(), &1.into()), "{report:#}");
            assert!(entry["of_no_event"].as_u64().unwrap() >= 30, "{report:#}");
            assert!(reasons(&report).contains("frames or packets of frames could not be assigned"), "{report:#}");
        } else {
            let counts = (&entry["recorded"], &entry["of_no_event"]);
            assert_eq!((&report["state"], counts), (&"COMPLETE".into(), (&100.into(), &0.into())), "{report:#}");
        }
    }
}

#[test]
fn what_follows_a_counter_that_began_anew_may_belong_to_other_events_and_the_run_says_so() {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let (_ours, address) = reserve_udp_port();
    let device = format!(
        "device = {{ kind = \"udp\", listen = \"udp:{address}\", format = \"fixed\", size = 1000, header = 8, \
         counter = {{ at = 0, bytes = 8 }} }}"
    );
    let topology = topology(folder.path(), "", &device);
    let (builder, mut source) = nodes(folder.path(), &topology);
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let send = |count: u64| {
        let datagram = [&count.to_be_bytes()[..], &[count as u8; 1000]].concat();
        socket.send_to(&datagram, address).unwrap();
    };
    let directory = folder.path().join("runs/run-000001");
    for from in [0, 100, 200] {
        (from..from + 100).for_each(send);
        await_events(&directory, from + 100);
    }
    // It is followed a second after the last count that was believed.
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for count in (0..300).take_while(|_| !is_over.load(Ordering::Relaxed)) {
                send(count);
                std::thread::sleep(Duration::from_millis(10));
            }
        });
        source.wait_for("the instrument restarted its counter");
        await_events(&directory, 320);
        is_over.store(true, Ordering::Relaxed);
    });
    builder.interrupt();
    let report = builder.finish().report(1);
    check_books(&report);
    source.finish().succeeded();
    let uncertain = report["ledger"]["sources"][0]["uncertain"].as_u64().unwrap();
    assert!(reasons(&report).contains(&format!("{uncertain} fragments that may belong to other events")), "{report:#}");
    let run = thalweg_store::Run::open(&directory).unwrap();
    let is_uncertain = |event: Result<thalweg_store::Event, _>| {
        let event = event.unwrap();
        (event.id.0, event.fragments[0].header.status.contains(thalweg_wire::Status::UNCERTAIN))
    };
    let events: Vec<_> = run.events().map(is_uncertain).collect();
    assert!(events.iter().all(|(event, uncertain)| (*event >= 300) == *uncertain), "{events:?}");
    assert_eq!(events.iter().filter(|(_, uncertain)| *uncertain).count() as u64, uncertain);
}

/// A datagram with a trigger's number and the time of that trigger: none are spaced evenly.
fn timed(trigger: u64, began: u64) -> Vec<u8> {
    let time = (0..trigger).fold(began, |time, trigger| time + 1_000_000 + thalweg_wire::mix_bits(trigger) % 1_000_000);
    [&trigger.to_be_bytes()[..], &time.to_be_bytes(), &[trigger as u8; 100]].concat()
}

/// Three instruments that count from the first trigger that they see, and one of them is late by three triggers: the
/// run says so, and `verify` does.
#[test]
fn a_source_that_is_three_triggers_behind_is_named() {
    const SHIFT: &str = "source 1.1 (adc1) is 3 triggers behind source 1.0 (adc0): by their times, its event 0 is \
                         event 3 of the other";
    for builders in [1, 2] {
        let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let (run, places) = run_three(folder.path(), builders, "events = 300\n");
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let began = thalweg_device::TaiClock.now().0;
        for event in 0..300 {
            for (index, (_, address)) in places.iter().enumerate() {
                socket.send_to(&timed(event + if index == 1 { 3 } else { 0 }, began), address).unwrap();
            }
        }
        let report = run.finish().report(1);
        check_books(&report);
        assert!(reasons(&report).contains(SHIFT), "{report:#}");
        let mut verify = thalweg();
        verify.args(["verify", "--json", "runs/run-000001"]).current_dir(folder.path());
        let verified = Node::start("verify", verify).finish().report(1);
        let mut info = thalweg();
        info.args(["info", "runs/run-000001", "--times", "times.html"]).current_dir(folder.path());
        Node::start("info", info).finish().succeeded();
        let page = std::fs::read_to_string(folder.path().join("times.html")).unwrap();
        assert!(
            page.contains("less that of source 1.0 adc0, for 300 of 300 events") && page.contains("<svg"),
            "{page}"
        );
        let shifts = if builders == 1 { &verified["directories"][0]["shifts"] } else { &verified["runs"][0]["shifts"] };
        assert_eq!(*shifts, serde_json::json!([SHIFT]), "{verified:#}");
    }
}

/// Three instruments, one of which misses the last triggers before a pause: it may have begun to count anew meanwhile,
/// so its numbers are a guess, until their times show that they are those of the others.
#[test]
fn a_guess_that_the_times_confirm_is_none_any_more() {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let (mut run, places) = run_three(folder.path(), 2, "");
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let began = thalweg_device::TaiClock.now().0;
    let send = |trigger: u64, missed_by: Option<usize>| {
        for (_, (_, address)) in places.iter().enumerate().filter(|(index, _)| Some(*index) != missed_by) {
            socket.send_to(&timed(trigger, began), address).unwrap();
        }
    };
    let directory = folder.path().join("runs/run-000001-b0");
    let begun = Instant::now();
    (0..295).for_each(|trigger| send(trigger, None));
    (295..300).for_each(|trigger| send(trigger, Some(1)));
    // The pause begins when the second has read the last that it gets, 294: this builder has every other event. In a
    // pause that is shorter than what came before, it could not have begun anew and counted as far again.
    await_events(&directory, 148);
    std::thread::sleep(Duration::from_millis(300).max(2 * begun.elapsed()));
    let uncertain = |event: &thalweg_store::Event| -> Vec<bool> {
        let statuses = event.fragments.iter().map(|fragment| fragment.header.status);
        statuses.map(|status| status.contains(thalweg_wire::Status::UNCERTAIN)).collect()
    };
    let is_over = AtomicBool::new(false);
    let sent = std::thread::scope(|scope| {
        let sending = scope.spawn(|| {
            // Half a minute, whatever becomes of the run.
            let triggers = (300..30_000).take_while(|_| !is_over.load(Ordering::Relaxed));
            let last = triggers.inspect(|trigger| {
                send(*trigger, None);
                std::thread::sleep(Duration::from_millis(1));
            });
            last.last()
        });
        run.wait_for("source 1.1 (adc1): according to their times, its events from");
        // The source receives that some time later.
        follow_until(&directory, |_, event| event.id.0 >= 300 && uncertain(event) == [false; 3]);
        is_over.store(true, Ordering::Relaxed);
        sending.join().unwrap().unwrap() + 1
    });
    await_events(&directory, sent / 2);
    run.interrupt();
    let report = run.finish().report(1);
    check_books(&report);
    assert!(reasons(&report).contains("fragments that may belong to other events"), "{report:#}");
    let run = thalweg_store::Run::open(&directory).unwrap();
    let events = run.events().map(|event| event.unwrap()).filter(|event| event.id.0 >= 300);
    let events: Vec<_> = events.map(|event| (event.id.0, uncertain(&event))).collect();
    let (first, last) = (events.first().unwrap(), events.last().unwrap());
    assert_eq!((&first.1, &last.1), (&vec![false, true, false], &vec![false; 3]), "{first:?}, {last:?}");
}

/// Runs three instruments that date their datagrams, and returns where they are listened to, as soon as they are.
fn run_three(folder: &Path, builders: usize, run: &str) -> (Node, [(OwnedFd, SocketAddrV4); 3]) {
    let places = [0; 3].map(|_| reserve_udp_port());
    let mut text = format!("[run]\ndirectory = \"runs\"\n{run}");
    for builder in 0..builders {
        let socket = folder.join(format!("b{builder}.sock"));
        text += &format!("\n[[builder]]\nname = \"b{builder}\"\nlisten = [\"shm:{}\"]\n{PATIENT}\n", socket.display());
    }
    for (index, (_, address)) in places.iter().enumerate() {
        text += &format!(
            "\n[[source]]\nname = \"adc{index}\"\nid = \"1.{index}\"\nlink = \"shm\"\nslots = 512\n\
             device = {{ kind = \"udp\", listen = \"udp:{address}\", format = \"fixed\", size = 100, header = 16, \
             counter = {{ at = 0, bytes = 8 }}, time = {{ at = 8, bytes = 8, hertz = 1_000_000_000, epoch = \"tai\" }} }}\n"
        );
    }
    std::fs::write(folder.join("three.toml"), text).unwrap();
    let mut command = thalweg();
    command.args(["--json", "-v", "run", "three.toml"]).current_dir(folder);
    let mut run = Node::start("run", command);
    for (_, address) in &places {
        run.wait_for(&format!("{address}: data are recorded from now on"));
    }
    (run, places)
}

/// A VITA-49 packet with the number of its trigger, and its time in nanoseconds of UTC (ANSI/VITA 49.0, section 6.1).
fn packet(trigger: u64, nanos: u64) -> Vec<u8> {
    let (second, pico) = ((nanos / 1_000_000_000) as u32, nanos % 1_000_000_000 * 1000);
    let words = [0x1060_0007 | (trigger as u32 & 0xf) << 16, 7, second, (pico >> 32) as u32, pico as u32];
    let payload = [(trigger >> 32) as u32, trigger as u32];
    words.iter().chain(&payload).flat_map(|word| word.to_be_bytes()).collect()
}

/// Two digitizers of one trigger of 50 Hz. The second begins later, has a cable of 4 ms, and loses a frame now and
/// then.
#[test]
fn events_by_time_are_of_one_trigger_whatever_the_phase_and_whoever_begins_first() {
    const PERIOD: u64 = 20_000_000;
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let places = [reserve_udp_port(), reserve_udp_port()];
    let mut text = format!(
        "[run]\ndirectory = \"runs\"\nevents = 60\n\n[[builder]]\nname = \"builder0\"\nlisten = \
         [\"shm:{}\"]\n{PATIENT}\n",
        folder.path().join("b.sock").display()
    );
    for (index, (_, address)) in places.iter().enumerate() {
        text += &format!(
            "\n[[source]]\nname = \"digitizer{index}\"\nid = \"1.{index}\"\nlink = \"shm\"\nslots = 64\n\
             beat = {{ period = \"20ms\", tolerance = \"6ms\" }}\n\
             device = {{ kind = \"udp\", listen = \"udp:{address}\", format = \"vita49\", size = 28 }}\n"
        );
    }
    let topology = folder.path().join("beat.toml");
    std::fs::write(&topology, text).unwrap();
    let mut command = thalweg();
    command.args(["--json", "-v", "run"]).arg(&topology).current_dir(folder.path());
    let mut run = Node::start("run", command);
    for (_, address) in &places {
        run.wait_for(&format!("{address}: data are recorded from now on"));
    }
    let is_over = AtomicBool::new(false);
    let ended = std::thread::scope(|scope| {
        scope.spawn(|| {
            let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
            let begun = Instant::now();
            let first = std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap().as_nanos() as u64;
            // A minute, whatever becomes of the run.
            for trigger in (0..3000_u64).take_while(|_| !is_over.load(Ordering::Relaxed)) {
                let since = trigger * PERIOD;
                std::thread::sleep(Duration::from_nanos(since).saturating_sub(begun.elapsed()));
                socket.send_to(&packet(trigger, first + since), places[0].1).unwrap();
                if trigger >= 17 && trigger % 29 != 0 {
                    socket.send_to(&packet(trigger, first + since + 4_000_000), places[1].1).unwrap();
                }
            }
        });
        let ended = run.finish();
        is_over.store(true, Ordering::Relaxed);
        ended
    });
    let report = ended.report(1);
    check_books(&report);
    let mut mixed = Vec::new();
    let (mut whole, mut first) = (0, None);
    for event in thalweg_store::Run::open(folder.path().join("runs/run-000001")).unwrap().events() {
        let event = event.unwrap();
        let there = event.fragments.iter().filter(|fragment| !fragment.payload().is_empty());
        let triggers: Vec<u64> =
            there.map(|fragment| u64::from_be_bytes(*fragment.payload().last_chunk().unwrap())).collect();
        let first = *first.get_or_insert(triggers[0] - event.id.0);
        if triggers.iter().any(|trigger| *trigger != first + event.id.0) {
            mixed.push((event.id.0, triggers.clone()));
        }
        whole += usize::from(triggers.len() == 2);
    }
    assert_eq!(mixed, []);
    assert!((56..60).contains(&whole), "{whole}: {report:#}");
    let second = &report["ledger"]["sources"][1];
    assert_eq!((&second["of_no_event"], &second["uncertain"]), (&0.into(), &0.into()), "{report:#}");
    assert_eq!(second["lost_in_device"], 60 - whole, "{report:#}");
}

#[test]
fn an_instrument_that_makes_no_sense_is_refused_before_the_run() {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    for (source, why) in [
        ("device = { kind = \"udp\", listen = \"udp:127.0.0.1:1\", format = \"spead\" }", "size"),
        (
            "device = { kind = \"udp\", listen = \"udp:1\", format = \"spead\", size = 10 }",
            "not an address to listen \
            on",
        ),
        (
            "device = { kind = \"udp\", listen = \"udp:127.0.0.1:1\", format = \"spead\", size = 10, header = 8 }",
            "it belongs to format fixed, not spead",
        ),
        (
            "rate = 10\ndevice = { kind = \"udp\", listen = \"udp:127.0.0.1:1\", format = \"spead\", size = 10 }",
            "this device sets its own pace",
        ),
        (
            "device = { kind = \"udp\", listen = \"dpdk:10.0.0.1:4000\", format = \"spead\", size = 10 }",
            "set it, such as adapter = {",
        ),
        (
            "adapter = { device = \"net_null0\", address = \"10.0.0.2/24\" }\n\
             device = { kind = \"udp\", listen = \"dpdk:10.0.0.1:4000\", format = \"spead\", size = 10 }",
            "the adapter's address is 10.0.0.2: listen there",
        ),
        (
            "adapter = { device = \"net_null0\", address = \"10.0.0.2/24\" }\n\
             device = { kind = \"udp\", listen = \"dpdk:0.0.0.0:4000\", format = \"spead\", size = 10 }",
            "the adapter's address is 10.0.0.2: listen there",
        ),
        (
            "device = { kind = \"udp\", listen = \"udp:127.0.0.1:1\", format = \"vita49\", size = 10, first = 0 }",
            "it belongs to format vdif or spead or fixed, not vita49",
        ),
        (
            "device = { kind = \"udp\", listen = \"udp:203.0.113.1:4000\", format = \"spead\", size = 10 }",
            "listening on udp:203.0.113.1:4000",
        ),
    ] {
        let topology = topology(folder.path(), "", source);
        let output: std::process::Output = Command::output(thalweg().arg("check").arg(&topology)).unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(2) && said.contains(why), "{source}: {said}");
    }
}

#[test]
fn two_sources_that_listen_at_one_place_are_refused_before_the_run() {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let (_ours, address) = reserve_udp_port();
    let device = format!("device = {{ kind = \"udp\", listen = \"udp:{address}\", format = \"spead\", size = 10 }}");
    let two = format!("{device}\n\n[[source]]\nname = \"other\"\nid = \"1.1\"\nlink = \"shm\"\n{device}");
    let output: std::process::Output =
        Command::output(thalweg().arg("check").arg(topology(folder.path(), "", &two))).unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(2) && said.contains("source 'other': ") && said.contains("in use"), "{said}");
}
