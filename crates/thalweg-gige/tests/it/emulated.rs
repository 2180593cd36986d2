//! Tests with the emulated camera, which shows the faults of real cameras on request.

use crate::rig::{Rig, config};
use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use thalweg_device::TaiClock;
use thalweg_testing::emulated_camera::{CHUNK_IDS, EmulatedCamera, Settings, frame_pixels};
use thalweg_wire::{Status, split_image_and_chunks};

const IMAGE_BYTES: usize = 64 * 48;

/// Returns an address of this machine that no other test uses: each test is a process, and each process has its own.
fn address() -> Ipv4Addr {
    let id = std::process::id();
    // Up to 127.131: there are no more than 2^22 processes.
    let [b, c, d] = [64 + id / 62_500, id / 250 % 250, 1 + id % 250].map(|part| u8::try_from(part).unwrap());
    Ipv4Addr::new(127, b, c, d)
}

fn switched_on(settings: impl FnOnce(&mut Settings)) -> EmulatedCamera {
    let mut own = Settings::for_address(address());
    settings(&mut own);
    EmulatedCamera::switch_on(own).unwrap()
}

/// Starts a camera and its receiver, with these lines in the topology. Unless they state the heartbeat, it is so long
/// that neither takes the other to be away when its threads are paused.
fn taken(settings: impl FnOnce(&mut Settings), lines: &str) -> (EmulatedCamera, Rig) {
    let camera = switched_on(settings);
    let heartbeat = if lines.contains("heartbeat") { "" } else { "heartbeat = \"20s\"\n" };
    let rig = Rig::start(&config(&format!("address = \"{}\"\n{heartbeat}{lines}", address())));
    (camera, rig)
}

impl Rig {
    /// Exposes one trigger after the other. Returns, for each frame that came, the number of frames lost before it, its
    /// status and its payload.
    fn see(
        &mut self,
        camera: &EmulatedCamera,
        triggers: impl IntoIterator<Item = u64>,
        lost: impl Fn(u64, usize) -> bool,
    ) -> Vec<(u64, Status, Vec<u8>)> {
        let mut found = Vec::new();
        for trigger in triggers {
            self.poll_until(|| camera.expose_frame(trigger, TaiClock.now().0, |packet| lost(trigger, packet)));
            if lost(trigger, 0) && lost(trigger, 1) {
                continue;
            }
            self.take(|frame, before| {
                let payload = frame.buffer.payload_mut()[..frame.len].to_vec();
                found.push((before, frame.filled.status, payload));
                true
            });
        }
        found
    }
}

#[test]
fn numbers_of_16_and_of_64_bits_go_on_over_their_ends() {
    for (mode, from) in [("Off", 65_530), ("On", u64::from(u32::MAX) - 5)] {
        let features = format!("features = {{ GevGVSPExtendedIDMode = \"{mode}\", Width = 128 }}");
        let (camera, mut rig) = taken(|settings| settings.resends = false, &features);
        rig.poll_until(|| camera.is_acquiring());
        camera.set_last_block(from);
        let came = rig.see(&camera, 0..20, |trigger, _| trigger == 9);
        let whole: Vec<_> =
            (0..20).filter(|trigger| *trigger != 9).map(|trigger| frame_pixels(trigger, 128 * 48)).collect();
        assert!(came.iter().map(|(.., payload)| payload).eq(&whole), "{mode}");
        let lost: Vec<u64> = came.iter().map(|(lost, ..)| *lost).collect();
        assert_eq!((lost[9], lost.iter().sum::<u64>()), (1, 1), "{mode}");
        assert!(came.iter().all(|(_, status, _)| !status.contains(Status::UNCERTAIN)), "{mode}");
    }
}

/// The first frames were lost on the way, or the camera does not begin to count at 1: the log and the ledger show it.
#[test]
fn a_camera_that_does_not_begin_with_its_first_frame_has_lost_those_before() {
    for (from, lost) in [(2, 2), (5, 5), (8, 0), (1000, 0)] {
        let (camera, mut rig) = taken(|settings| settings.resends = false, "patience = \"50ms\"");
        rig.poll_until(|| camera.is_acquiring());
        camera.set_last_block(from);
        let came = rig.see(&camera, 0..5, |_, _| false);
        assert_eq!((came.len(), came[0].0), (5, lost), "from {from}");
        assert!(
            came.iter().zip(0..).all(|((.., payload), trigger)| *payload == frame_pixels(trigger, IMAGE_BYTES)),
            "from {from}"
        );
    }
}

#[test]
fn packets_that_are_lost_are_sent_again_and_frames_are_whole() {
    // The camera may have no time for a while: what it sends again is waited for.
    let (camera, mut rig) = taken(|_| {}, "packet = 576\npatience = \"60s\"");
    // Payload and trailers: first and last packets, and several in a row.
    let is_lost = |trigger: u64, packet: usize| packet > 0 && (trigger as usize + packet).is_multiple_of(3);
    let came = rig.see(&camera, 0..40, is_lost);
    assert!(
        came.iter()
            .zip(0..)
            .all(|((lost, _, payload), trigger)| *lost == 0 && *payload == frame_pixels(trigger, IMAGE_BYTES))
    );
    let payload = (0..40).flat_map(|trigger| (1..=6).map(move |packet| (trigger, packet)));
    let lost = payload.filter(|(trigger, packet)| is_lost(*trigger, *packet)).count() as u64;
    assert!(camera.resent_packet_count() >= lost, "{} of {lost}", camera.resent_packet_count());
    assert_eq!((rig.count("incomplete"), rig.count("stray")), (0, 0));
}

#[test]
fn what_a_camera_says_of_an_image_is_behind_it() {
    let (camera, mut rig) = taken(|_| {}, "features = { ChunkModeActive = true }");
    for (trigger, (.., payload)) in rig.see(&camera, 0..5, |_, _| false).iter().enumerate() {
        let trigger = trigger as u64;
        let (image, chunks) = split_image_and_chunks(payload, IMAGE_BYTES).unwrap();
        assert_eq!(image, frame_pixels(trigger, IMAGE_BYTES));
        assert_eq!((chunks[0].0, chunks[1]), (CHUNK_IDS[1], (CHUNK_IDS[2], &trigger.to_be_bytes()[..])));
    }
}

#[test]
fn the_state_of_ptp_is_the_cameras_own_word() {
    // The state is read with the heartbeat: often. A camera that ended control would be a new one, without holdover.
    let (camera, mut rig) = taken(
        |settings| {
            (settings.clock, settings.ptp) = ((300_000_000, 0), "Listening");
            settings.enforces_heartbeat = false;
        },
        "heartbeat = \"3s\"\nfeatures = { PtpEnable = true }",
    );
    let clock = Status::CLOCK_FREE_RUNNING;
    let status = |rig: &mut Rig| {
        let (_, status, _) = rig.see(&camera, [0], |_, _| false).remove(0);
        Status::from_bits_retain(status.bits() & clock.bits())
    };
    assert_eq!(status(&mut rig), Status::CLOCK_FREE_RUNNING);
    for (state, expected) in [
        ("Uncalibrated", Status::CLOCK_FREE_RUNNING),
        ("Slave", Status::CLOCK_LOCKED),
        ("Faulty", Status::CLOCK_HOLDOVER),
        ("Master", Status::CLOCK_LOCKED),
    ] {
        camera.set_ptp_state(state);
        let begun = Instant::now();
        let mut seen = status(&mut rig);
        while seen != expected && begun.elapsed() < Duration::from_secs(20) {
            seen = status(&mut rig);
        }
        assert_eq!(seen, expected, "{state}");
    }
}

#[test]
fn a_camera_that_takes_a_shorter_heartbeat_is_asked_as_often() {
    let (camera, mut rig) = taken(
        |settings| (settings.longest_heartbeat, settings.enforces_heartbeat) = (1000, false),
        "heartbeat = \"10s\"\nfeatures = { Width = 32 }",
    );
    assert_eq!(camera.heartbeat_time(), Duration::from_millis(1000));
    assert_eq!(rig.see(&camera, [1], |_, _| false).len(), 1);
    // With a heartbeat of 10 s no interval is shorter than a third of it, however long anything takes.
    let is_short = |interval: &Duration| *interval < Duration::from_secs(3);
    rig.poll_until(|| camera.heartbeat_intervals().into_iter().filter(is_short).count() >= 5);
}

#[test]
fn a_camera_that_lost_its_power_goes_on_and_what_follows_is_uncertain() {
    // It is the silence of the camera that ends its stream, and not that of the control thread.
    let (camera, mut rig) = taken(|settings| settings.enforces_heartbeat = false, "heartbeat = \"3s\"");
    rig.see(&camera, 0..10, |_, _| false);
    camera.unplug();
    rig.poll_until_count("away", 1);
    camera.plug_in();
    let came = rig.see(&camera, 100..110, |_, _| false);
    assert!(
        came.iter()
            .map(|(.., payload)| payload.clone())
            .eq((100..110).map(|trigger| frame_pixels(trigger, IMAGE_BYTES)))
    );
    assert!(came.iter().all(|(_, status, _)| status.contains(Status::UNCERTAIN)));
}

#[test]
fn frames_of_several_parts_are_refused_and_counted() {
    let (camera, mut rig) = taken(|settings| settings.payload_kind = Some(0x000a), "patience = \"50ms\"");
    rig.poll_until(|| camera.is_acquiring());
    assert!((0..5).all(|trigger| camera.expose_frame(trigger, TaiClock.now().0, |_| false)));
    rig.poll_until_count("lost", 5);
    assert_eq!((rig.count("unknown"), rig.count("frames")), (5, 0));
}

#[test]
fn strangers_keep_no_frame_from_being_given_up() {
    let (camera, mut rig) = taken(|settings| settings.resends = false, "patience = \"50ms\"\npacket = 576");
    rig.see(&camera, [0], |_, _| false);
    let to = std::net::SocketAddr::from((Ipv4Addr::LOCALHOST, camera.stream_port()));
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let stranger = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
            while !is_over.load(Ordering::Relaxed) {
                let _ = stranger.send_to(&[7; 100], to);
            }
        });
        scope.spawn(|| {
            // Trailers and last packets do not come. Some frames are lost altogether among the others.
            for trigger in (1..).take_while(|_| !is_over.load(Ordering::Relaxed)) {
                let _ = camera.expose_frame(trigger, TaiClock.now().0, |packet| packet > 2);
                std::thread::sleep(Duration::from_millis(20));
            }
        });
        rig.take(|frame, _| frame.filled.status.contains(Status::CORRUPT));
        is_over.store(true, Ordering::Relaxed);
    });
}

/// Descriptions that no camera should have: each is refused, or the camera is opened; nothing hangs or ends the
/// process.
#[test]
fn descriptions_from_hell_are_refused() {
    let usual = String::from_utf8(thalweg_testing::emulated_camera::default_description()).unwrap();
    let cycle = usual.replace(
        "<Integer Name=\"Width\"><pValue>WidthRegister</pValue></Integer>",
        "<Integer Name=\"Width\"><pValue>Width2</pValue></Integer>\n\
         <Integer Name=\"Width2\"><pValue>Width</pValue></Integer>",
    );
    assert_ne!(cycle, usual);
    let entities = usual.replace("<RegisterDescription", "<!DOCTYPE x [<!ENTITY a \"b\">]><RegisterDescription");
    let deep = format!("{}{}", "<a>".repeat(100_000), "</a>".repeat(100_000));
    let formula = usual.replace(
        "</RegisterDescription>",
        &format!(
            "<SwissKnife Name=\"Deep\"><Formula>{}1{}</Formula></SwissKnife></RegisterDescription>",
            "(".repeat(100_000),
            ")".repeat(100_000)
        ),
    );
    for (name, xml) in [
        ("cycle", cycle.as_bytes()),
        ("entities", entities.as_bytes()),
        ("depth", deep.as_bytes()),
        ("formula", formula.as_bytes()),
        ("nothing", b""),
        ("zeros", &[0; 100]),
        ("half", &usual.as_bytes()[..usual.len() / 2]),
        ("zip", b"PK\x03\x04 and nothing behind it"),
    ] {
        let camera = switched_on(|settings| settings.description = Some(xml.to_vec()));
        let result = thalweg_gige::Camera::open(&config(&format!("address = \"{}\"", address())));
        match (name, result) {
            ("cycle", Ok(_)) => panic!("its width is its width is its width"),
            (_, Ok(_)) => panic!("{name} was taken"),
            (_, Err(error)) => eprintln!("{name}: {error}"),
        }
        drop(camera);
    }
}
