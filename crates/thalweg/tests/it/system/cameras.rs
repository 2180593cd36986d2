//! GigE Vision cameras: from their packets to the run on disk, by the program as it was built. The cameras are Aravis's
//! (a process of Debian's `aravis-tools`) and `telegenic`'s.

use crate::common::hosts::Hosts;
use crate::common::*;
use serde_json::Value;
use std::fmt::Write as _;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use thalweg_device::TaiClock;
use thalweg_lab::image_camera::{Camera, Model, image};
use thalweg_testing::emulated_camera::{EmulatedCamera, Settings, frame_pixels};
use thalweg_wire::Status;

const VGA: Model = Model {
    address: Ipv4Addr::new(198, 18, 1, 1),
    serial: String::new(),
    width: 640,
    height: 480,
    rate: 60.0,
    lost: 0,
    resends: true,
    skips: |_| false,
    images: Vec::new(),
};

/// Kills a process of another program with the test.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A run with these sources, each a camera.
fn topology(folder: &Path, run: &str, devices: &[String]) -> PathBuf {
    let path = folder.join("cameras.toml");
    let socket = folder.join("b.sock");
    let mut text = format!(
        "[run]\ndirectory = \"runs\"\n{run}\n\n[[builder]]\nname = \"builder0\"\nlisten = [\"shm:{}\"]\nblock = \"4MiB\"\n\
         flush = \"50ms\"\ndeadline = \"60s\"\n\n",
        socket.display()
    );
    for (index, device) in devices.iter().enumerate() {
        let _ = writeln!(
            text,
            "[[source]]\nname = \"camera{index}\"\nid = \"1.{index}\"\nlink = \"shm\"\nslots = 256\n\
             device = {{ kind = \"gige\", {device} }}\n"
        );
    }
    std::fs::write(&path, text).unwrap();
    path
}

fn folder() -> tempfile::TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

/// `thalweg run`, on a host of a test's network.
fn run(hosts: &Hosts, host: u16, topology: &Path) -> Node {
    let mut command = thalweg();
    command.args(["--json", "-v", "run"]).arg(topology).current_dir(topology.parent().unwrap());
    hosts.start(host, "run", command)
}

/// The nodes of a run by themselves: each says what it counted.
fn nodes(hosts: &Hosts, host: u16, topology: &Path, sources: usize) -> (Node, Vec<Node>) {
    let mut builder = hosts.node(host, "builder0", topology);
    builder.wait_for("listening on");
    let sources = (0..sources).map(|index| hosts.node(host, &format!("camera{index}"), topology)).collect();
    (builder, sources)
}

/// Gives a host addresses for so many cameras.
fn addresses(hosts: &Hosts, host: u16, count: u8) -> Vec<Ipv4Addr> {
    let all: Vec<_> = (1..=count).map(|camera| Ipv4Addr::new(198, 18, 9, camera)).collect();
    for address in &all {
        let added =
            hosts.run(host, Command::new("ip").args(["address", "add", &format!("{address}/16"), "dev", "eth0"]));
        assert!(added.status.success(), "{}", String::from_utf8_lossy(&added.stderr));
    }
    all
}

/// Waits until each of these cameras has sent so many frames.
fn await_frames(cameras: &[Camera], frames: u64) {
    let begun = std::time::Instant::now();
    while cameras.iter().any(|camera| camera.frames() < frames) {
        assert!(begun.elapsed() < TIMEOUT);
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
}

/// Has the builder miss soon what a source neither sends nor announces.
fn hurry(topology: &Path) {
    let text = std::fs::read_to_string(topology).unwrap();
    std::fs::write(topology, text.replace("deadline = \"60s\"", "deadline = \"3s\"")).unwrap();
}

/// What a source counted of its camera.
fn count(report: &Value, name: &str) -> u64 {
    report["device"][name].as_u64().unwrap_or(0)
}

/// All events of the run: which, with the payload and the status of each camera's fragment.
fn events(folder: &Path, mut each: impl FnMut(u64, usize, &[u8], Status)) {
    for event in thalweg_store::Run::open(folder.join("runs/run-000001")).unwrap().events() {
        let event = event.unwrap();
        for fragment in &event.fragments {
            let source = usize::try_from(fragment.header.source.0 & 0xffff).unwrap();
            each(event.id.0, source, fragment.payload(), fragment.header.status);
        }
    }
}

/// Six cameras of one trigger of 60 Hz that is not even, each with what cameras do: numbers of 64 bits, chunks, PTP,
/// frames that are counted and not sent, a loss of power, and packets lost by all of them. As long as the environment
/// says, in seconds, or five.
#[test]
fn of_six_cameras_with_every_fault_all_frames_are_accounted_for_and_none_are_mixed() {
    let seconds = std::env::var("THALWEG_CAMERA_SECONDS").ok().and_then(|seconds| seconds.parse().ok()).unwrap_or(5);
    let folder = folder();
    // Addresses that no other process has, from 127.132 on: those before it are those of the tests of `thalweg-gige`.
    let address = |camera: u32| {
        let id = 6 * std::process::id() + camera;
        let [b, c, d] = [132 + id / 62_500 % 120, id / 250 % 250, 1 + id % 250].map(|part| u8::try_from(part).unwrap());
        Ipv4Addr::new(127, b, c, d)
    };
    let cameras: Vec<EmulatedCamera> = (0..6)
        .map(|camera| {
            let mut settings = Settings::for_address(address(camera));
            (settings.width, settings.height) = (320, 240);
            settings.clock = (i64::from(camera) * 7_000_000, i64::from(camera) * 20 - 50);
            settings.ptp = if camera == 3 { "Slave" } else { "Disabled" };
            EmulatedCamera::switch_on(settings).unwrap()
        })
        .collect();
    let devices: Vec<String> = (0..6)
        .map(|camera| {
            // Cameras may have no time for a while: only that without power is to be missed soon, and only the frames
            // that are skipped.
            let options = match camera {
                1 => "patience = \"20s\", features = { GevGVSPExtendedIDMode = \"On\" }",
                2 => "patience = \"20s\", features = { ChunkModeActive = true }",
                3 => "patience = \"20s\", features = { PtpEnable = true }",
                4 | 5 => "patience = \"2s\"",
                _ => "patience = \"20s\"",
            };
            let heartbeat = if camera == 5 { "1s" } else { "20s" };
            format!("address = \"{}\", heartbeat = \"{heartbeat}\", {options}", address(camera))
        })
        .collect();
    let topology = topology(folder.path(), "", &devices);
    hurry(&topology);
    let mut command = thalweg();
    command.args(["--json", "-v", "run"]).arg(&topology).current_dir(folder.path());
    let mut run = Node::start("run", command);
    for camera in 0..6 {
        run.wait_for(&format!("{}: data are recorded from now on", address(camera)));
    }
    let triggers = seconds * 60;
    let mut exposed = [0; 6];
    let mut at = std::time::Instant::now();
    for trigger in 0..triggers {
        at += std::time::Duration::from_micros(13_000 + thalweg_wire::mix_bits(trigger) % 7_400);
        std::thread::sleep(at.saturating_duration_since(std::time::Instant::now()));
        if trigger == triggers / 2 {
            cameras[5].unplug();
        } else if trigger == triggers / 2 + 20 {
            cameras[5].plug_in();
        }
        let now = TaiClock.now().0;
        for (index, camera) in cameras.iter().enumerate() {
            if index == 4 && trigger % 50 == 7 {
                camera.skip_frame();
                continue;
            }
            // Every tenth frame of each camera lacks two packets in a row, but for its leader and its trailer.
            let first = 1 + thalweg_wire::mix_bits(trigger) as usize % 50;
            let loses = trigger % 10 == index as u64;
            exposed[index] +=
                u64::from(camera.expose_frame(trigger, now, |packet| loses && (first..first + 2).contains(&packet)));
        }
    }
    await_events(&folder.path().join("runs/run-000001"), triggers);
    run.interrupt();
    let report = run.finish().report(1);
    check_books(&report);
    let ledger = |source: usize, bucket: &str| report["ledger"]["sources"][source][bucket].as_u64().unwrap();
    let skipped = (0..triggers).filter(|trigger| trigger % 50 == 7).count() as u64;
    for (source, exposed) in exposed.into_iter().enumerate().take(5) {
        let lost = if source == 4 { skipped } else { 0 };
        assert_eq!((ledger(source, "recorded"), ledger(source, "lost_in_device")), (exposed, lost), "{report:#}");
        assert_eq!((ledger(source, "damaged"), ledger(source, "uncertain")), (0, 0), "{report:#}");
    }
    // That without power lost what it had not yet sent again.
    assert!(ledger(5, "recorded") <= exposed[5] && ledger(5, "uncertain") > triggers / 4, "{report:#}");
    let mut clocks = [0; 6];
    events(folder.path(), |event, source, payload, status| {
        if payload.is_empty() || status.intersects(Status::UNCERTAIN | Status::CORRUPT) {
            return;
        }
        clocks[source] |= status.bits() & Status::CLOCK_FREE_RUNNING.bits();
        let image = &payload[..320 * 240];
        assert!(
            image == frame_pixels(event, 320 * 240),
            "source {source}, event {event}: trigger {:?}",
            image.first_chunk::<8>()
        );
        assert_eq!(payload.len() > image.len(), source == 2);
    });
    let locked = Status::CLOCK_LOCKED.bits();
    assert_eq!(clocks.map(|clock| clock == locked), [false, false, false, true, false, false]);
    assert!(cameras.iter().all(|camera| camera.resent_packet_count() > 0), "{cameras:?}");
}

/// Six VGA cameras at 60 Hz on a host, on a network that loses five packets of a thousand, and how they are asked for:
/// half of them by their addresses, half by their serial numbers.
fn six(hosts: &Hosts) -> (Vec<Model>, Vec<Camera>, Vec<String>) {
    let addresses = addresses(hosts, 1, 6);
    let models: Vec<Model> = (0..6)
        .map(|index| Model { address: addresses[index], serial: format!("CAM{index}"), lost: 5, ..VGA })
        .collect();
    let cameras = models.iter().map(|model| hosts.on(1, || Camera::start(model.clone()).unwrap())).collect();
    // Cameras may have no time for a while, within a frame: that is no loss.
    let name = |(index, model): (usize, &Model)| match index % 2 {
        0 => format!("address = \"{}\", rate = 60, patience = \"20s\", heartbeat = \"20s\"", model.address),
        _ => format!("address = \"{}\", rate = 60, patience = \"20s\", heartbeat = \"20s\"", model.serial),
    };
    let devices = models.iter().enumerate().map(name).collect();
    (models, cameras, devices)
}

/// Two seconds of it, or as many as THALWEG_CAMERA_SECONDS says: with 60 and `--nocapture` there is something to read.
/// Nothing is recorded: it would be 7 GB a minute.
#[test]
fn six_cameras_are_accounted_for_to_the_frame_for_as_long_as_is_asked() {
    let Some(hosts) = Hosts::with_mtu(2, 9000) else { return };
    let folder = folder();
    let seconds: u64 = std::env::var("THALWEG_CAMERA_SECONDS").map_or(2, |text| text.parse().unwrap());
    let frames = 60 * seconds;
    let (_, cameras, devices) = six(&hosts);
    let topology = topology(folder.path(), &format!("record = false\nevents = {frames}"), &devices);
    let (builder, sources) = nodes(&hosts, 0, &topology, 6);
    let begun = std::time::Instant::now();
    while cameras.iter().any(|camera| camera.frames() < frames) {
        assert!(begun.elapsed() < TIMEOUT + std::time::Duration::from_secs(2 * seconds), "{builder:?}");
        std::thread::sleep(std::time::Duration::from_millis(100));
    }
    let report = builder.finish().report(0);
    check_books(&report);
    println!(
        "{} copies by sources, {} processor seconds of a source for a GB",
        report["copies_per_byte"]["source"], report["cpu_seconds_per_gigabyte"]["source"]
    );
    for (index, (source, camera)) in sources.into_iter().zip(&cameras).enumerate() {
        let said = source.finish().report(0);
        println!("camera {index}: {} of {} packets lost; {}", camera.lost(), count(&said, "packets"), said["device"]);
        assert_eq!(report["ledger"]["sources"][index]["accepted"], frames, "{report:#}");
        assert_eq!(report["ledger"]["sources"][index]["lost_in_device"], 0, "{report:#}");
        assert_eq!((count(&said, "incomplete"), count(&said, "without_leader")), (0, 0), "{said:#}");
    }
}

#[test]
fn six_cameras_at_60_hz_lose_no_frame_although_packets_are_lost() {
    let Some(hosts) = Hosts::with_mtu(2, 9000) else { return };
    let folder = folder();
    let frames = 120;
    let (models, cameras, devices) = six(&hosts);
    let topology = topology(folder.path(), &format!("events = {frames}"), &devices);
    let report = run(&hosts, 0, &topology).finish().report(0);
    check_books(&report);
    let images: Vec<Vec<u8>> = models.iter().map(|model| image(model, 0)).collect();
    let mut seen = [0; 6];
    events(folder.path(), |event, source, payload, status| {
        let added = (7 * (event + 1)) as u8;
        let right = payload.iter().zip(&images[source]).all(|(own, first)| *own == first.wrapping_add(added));
        assert!(right && payload.len() == 640 * 480, "event {event} of camera {source}");
        assert!(!status.contains(Status::CORRUPT), "event {event} of camera {source}");
        seen[source] += 1;
    });
    assert_eq!(seen, [frames; 6], "{report:#}");
    for (index, camera) in cameras.iter().enumerate() {
        assert_eq!(report["ledger"]["sources"][index]["lost_in_device"], 0);
        assert!(camera.lost() > 0 && camera.resent() > 0 && camera.frames() >= frames);
    }
    let description = std::fs::read_to_string(folder.path().join("runs/run-000001/run.json")).unwrap();
    for said in ["\"gige\"", "\"CAM3\"", "\"Mono8\"", "\"Thalweg (simulated)\""] {
        assert!(description.contains(said), "{said}: {description}");
    }
}

#[test]
fn frames_that_a_camera_skips_or_that_do_not_come_again_are_in_the_ledger() {
    let Some(hosts) = Hosts::new(2) else { return };
    let folder = folder();
    let address = addresses(&hosts, 1, 1)[0];
    let skips = |frame: u64| frame % 20 == 10;
    let model = Model {
        address,
        serial: "S".into(),
        width: 320,
        height: 240,
        rate: 100.0,
        lost: 5,
        resends: false,
        skips,
        ..VGA
    };
    let camera = hosts.on(1, || Camera::start(model.clone()).unwrap());
    let device = format!("address = \"{address}\", heartbeat = \"20s\"");
    let topology = topology(folder.path(), "events = 300", &[device]);
    let (builder, mut sources) = nodes(&hosts, 0, &topology, 1);
    let ended = builder.finish();
    let report = ended.report(ended.code().unwrap());
    check_books(&report);
    let said = sources.remove(0).finish().report(0);
    let (mut whole, mut gaps) = (0u64, 0u64);
    events(folder.path(), |event, _, payload, status| {
        assert!(!skips(event + 1), "event {event}");
        let expected = image(&model, event + 1);
        let incomplete = status.contains(Status::CORRUPT);
        assert!(payload.iter().zip(&expected).all(|(own, right)| own == right || incomplete && *own == 0));
        assert!(incomplete || payload == expected);
        *(if incomplete { &mut gaps } else { &mut whole }) += 1;
    });
    let lost = report["ledger"]["sources"][0]["lost_in_device"].as_u64().unwrap();
    assert_eq!(whole + gaps + lost, 300, "{report:#}");
    assert!(lost >= 15 && gaps > 0 && whole > 0 && camera.lost() > 0, "{report:#}");
    assert_eq!((count(&said, "requests"), count(&said, "resent")), (0, 0));
    // Those behind the end of the run are counted too.
    assert!(count(&said, "incomplete") >= gaps, "{said:#}");
}

/// One that has little to send, fifty times a second.
fn small(addresses: &[Ipv4Addr], index: usize) -> Model {
    Model { address: addresses[index], serial: format!("CAM{index}"), width: 160, height: 120, rate: 50.0, ..VGA }
}

/// What a camera's clock has to do with TAI is found out by having it note its time.
#[test]
fn frames_are_dated_by_the_cameras_clock() {
    let Some(hosts) = Hosts::new(2) else { return };
    let folder = folder();
    let addresses = addresses(&hosts, 1, 1);
    let _camera = hosts.on(1, || Camera::start(small(&addresses, 0)).unwrap());
    let topology = topology(folder.path(), "events = 20", &["address = \"CAM0\", heartbeat = \"20s\"".to_owned()]);
    let before = TaiClock.now();
    let mut running = run(&hosts, 0, &topology);
    running.wait_for("its clock is TAI minus");
    check_books(&running.finish().report(0));
    let after = TaiClock.now();
    let run = thalweg_store::Run::open(folder.path().join("runs/run-000001")).unwrap();
    let dates: Vec<u64> = run.events().map(|event| event.unwrap().fragments[0].header.timestamp.0).collect();
    assert!(before.0 < dates[0] && dates[19] < after.0, "{dates:?}");
    assert!(dates.windows(2).all(|two| two[1] - two[0] == 20_000_000), "{dates:?}");
}

#[test]
fn a_camera_that_does_not_come_back_keeps_no_run_from_its_end() {
    let Some(hosts) = Hosts::new(2) else { return };
    let folder = folder();
    let addresses = addresses(&hosts, 1, 3);
    let model = |index| small(&addresses, index);
    let steady = [hosts.on(1, || Camera::start(model(0)).unwrap())];
    let mortal = [1, 2].map(|index| hosts.on(1, || Camera::start(model(index)).unwrap()));
    // Of the second it is known how many frames it does not send; of the third it is not.
    let devices = [
        "address = \"CAM0\", heartbeat = \"20s\", rate = 50",
        "address = \"CAM1\", heartbeat = \"1s\", rate = 50",
        "address = \"CAM2\", heartbeat = \"1s\", features = { }",
    ]
    .map(str::to_owned);
    let topology = topology(folder.path(), "", &devices);
    hurry(&topology);
    let (builder, mut sources) = nodes(&hosts, 0, &topology, 3);
    await_frames(&mortal, 20);
    let sent = mortal.map(Camera::end);
    sources[1].wait_for("is still missing");
    sources[2].wait_for("is still missing");
    await_frames(&steady, steady[0].frames() + 100);
    builder.interrupt();
    let ended = builder.finish();
    let report = ended.report(ended.code().unwrap());
    check_books(&report);
    assert_eq!(report["state"], "INCOMPLETE", "{report:#}");
    for (index, source) in sources.into_iter().enumerate() {
        let entry = &report["ledger"]["sources"][index];
        let count = |bucket: &str| entry[bucket].as_u64().unwrap();
        assert_eq!(entry["final_counters"], true, "{report:#}");
        assert_eq!(count("lost_in_device") > 0, index > 0, "{report:#}");
        assert!(index == 0 || count("recorded") <= sent[index - 1], "{sent:?} {report:#}");
        source.finish().report(0);
    }
}

#[test]
fn a_camera_that_is_gone_for_a_while_holds_nobody_up() {
    let Some(hosts) = Hosts::new(2) else { return };
    let folder = folder();
    let addresses = addresses(&hosts, 1, 2);
    let model = |index| small(&addresses, index);
    let _steady = hosts.on(1, || Camera::start(model(0)).unwrap());
    let mortal = hosts.on(1, || Camera::start(model(1)).unwrap());
    let devices = [
        "address = \"CAM0\", heartbeat = \"20s\", patience = \"20s\", rate = 50",
        "address = \"CAM1\", heartbeat = \"1500ms\", rate = 50",
    ];
    let topology = topology(folder.path(), "", &devices.map(str::to_owned));
    let (builder, mut sources) = nodes(&hosts, 0, &topology, 2);
    sources[0].wait_for("data are recorded from now on");
    sources[1].wait_for("data are recorded from now on");
    await_frames(std::slice::from_ref(&mortal), 50);
    drop(mortal);
    sources[1].wait_for("is still missing");
    let again = [hosts.on(1, || Camera::start(model(1)).unwrap())];
    sources[1].wait_for("is back");
    await_frames(&again, 20);
    builder.interrupt();
    let ended = builder.finish();
    let report = ended.report(ended.code().unwrap());
    check_books(&report);
    let said = sources.remove(1).finish().report(0);
    let entry = |index: usize, name: &str| report["ledger"]["sources"][index][name].as_u64().unwrap();
    let built = number(&report, "/events/built");
    assert_eq!((entry(0, "recorded"), entry(0, "lost_in_device")), (built, 0), "{report:#}");
    assert_eq!(entry(1, "recorded") + entry(1, "lost_in_device") + entry(1, "late"), built, "{report:#}");
    assert!(entry(1, "lost_in_device") >= 20, "{report:#}");
    let (away, streams) = (count(&said, "away"), count(&said, "streams"));
    assert!(away >= 1 && streams == away + 1, "{said:#}");
}

#[test]
fn whatever_is_sent_to_its_port_the_frames_are_the_camera_s() {
    let Some(hosts) = Hosts::new(2) else { return };
    let folder = folder();
    let address = addresses(&hosts, 1, 1)[0];
    let model = Model { address, serial: "S".into(), width: 320, height: 240, rate: 100.0, ..VGA };
    let _camera = hosts.on(1, || Camera::start(model.clone()).unwrap());
    let device = format!("address = \"{address}\", patience = \"20s\", heartbeat = \"20s\"");
    let topology = topology(folder.path(), "events = 300", &[device]);
    let (builder, mut sources) = nodes(&hosts, 0, &topology, 1);
    let line = sources[0].wait_for("bytes to 198.18.0.1:");
    let port: String =
        line.split("bytes to 198.18.0.1:").nth(1).unwrap().chars().take_while(char::is_ascii_digit).collect();
    let to = SocketAddr::from((Ipv4Addr::new(198, 18, 0, 1), port.parse().unwrap()));
    let over = AtomicBool::new(false);
    let ended = std::thread::scope(|scope| {
        // From another address, and from the camera's own.
        for from in [Ipv4Addr::new(198, 18, 0, 2), address] {
            let (hosts, over) = (&hosts, &over);
            scope.spawn(move || {
                hosts.on(1, || {
                    let socket = UdpSocket::bind((from, 0)).unwrap();
                    let mut seed = u64::from(u32::from(from)) | 1;
                    while !over.load(Ordering::Relaxed) {
                        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                        // No header, or one of a kind or block that is nobody's.
                        let length = (seed >> 40) as usize % 1400;
                        let mut bytes: Vec<u8> = (0..length).map(|at| (seed >> (at % 50)) as u8).collect();
                        if let Some(kind) = bytes.get_mut(4) {
                            *kind = 0x0f;
                        }
                        if from == address && bytes.len() > 3 {
                            (bytes[2], bytes[3]) = (0xf0, (seed >> 8) as u8);
                        }
                        let _ = socket.send_to(&bytes, to);
                        std::thread::sleep(std::time::Duration::from_micros(500));
                    }
                });
            });
        }
        let ended = builder.finish();
        over.store(true, Ordering::Relaxed);
        ended
    });
    let report = ended.report(0);
    check_books(&report);
    let said = sources.remove(0).finish().report(0);
    let mut seen = 0;
    events(folder.path(), |event, _, payload, status| {
        assert!(payload == image(&model, event + 1) && !status.contains(Status::CORRUPT), "event {event}");
        seen += 1;
    });
    assert_eq!(seen, 300, "{report:#}");
    assert!(count(&said, "stranger") > 100 && count(&said, "stray") > 0, "{said:#}");
}

#[test]
fn aravis_s_camera_is_on_disk_with_every_frame_accounted_for() {
    let Some(hosts) = Hosts::new(2) else { return };
    let folder = folder();
    let mut command = Command::new("arv-fake-gv-camera-0.8");
    command.args(["-i", "eth0", "-s", "GV01", "-r", "5"]).stdout(Stdio::null()).stderr(Stdio::null());
    let _process = match hosts.on(1, || command.spawn()) {
        Ok(child) => Process(child),
        Err(error) => return thalweg_testing::skip::skipped(format!("arv-fake-gv-camera-0.8: {error} (aravis-tools)")),
    };
    // Until it answers.
    let begun = std::time::Instant::now();
    let second = std::time::Duration::from_secs(1);
    while hosts.on(0, || thalweg_gige::find_camera("GV01", None, second)).unwrap().is_none() {
        assert!(begun.elapsed() < TIMEOUT);
    }
    let device = "address = \"GV01\", heartbeat = \"20s\", features = { Width = 640, Height = 480, AcquisitionFrameRate = 60.0 }";
    let topology = topology(folder.path(), "events = 200", &[device.into()]);
    let ended = run(&hosts, 0, &topology).finish();
    let report = ended.report(ended.code().unwrap());
    check_books(&report);
    let (mut whole, mut gaps, mut first) = (0u64, 0u64, None);
    events(folder.path(), |event, _, payload, status| {
        if status.contains(Status::CORRUPT) {
            gaps += 1;
            return;
        }
        // Its ramp: each frame is one brighter than the one before.
        let corner = (u64::from(payload[0]) + 255 * 1000 - event) % 255;
        assert_eq!(*first.get_or_insert(corner), corner, "event {event}");
        let right = |at: usize, pixel: u8| u64::from(pixel) == ((at % 640 + at / 640) as u64 + corner + event) % 255;
        assert!(payload.iter().enumerate().all(|(at, pixel)| right(at, *pixel)), "event {event}");
        whole += 1;
    });
    let lost = report["ledger"]["sources"][0]["lost_in_device"].as_u64().unwrap();
    assert_eq!(whole + gaps + lost, 200, "{report:#}");
    assert!(gaps > 0 && whole > 0, "{report:#}");
}

#[test]
fn a_camera_that_makes_no_sense_is_refused_before_the_run() {
    let folder = folder();
    for (device, why) in [
        ("size = 10", "address"),
        ("address = \"\"", "it is empty"),
        ("address = \"x\", size = 0", "from 1 byte to 1 GiB"),
        ("address = \"x\", packet = 100", "from 576 to 16000 bytes"),
        ("address = \"x\", heartbeat = \"1ms\"", "from 500 ms to 10 min"),
        ("address = \"x\", features = 7", "ExposureTime = 5000.0"),
    ] {
        let topology = topology(folder.path(), "", &[device.into()]);
        let output: std::process::Output = Command::output(thalweg().arg("check").arg(&topology)).unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(2) && said.contains(why), "{device}: {said}");
    }
}
