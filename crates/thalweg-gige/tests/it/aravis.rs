//! Tests with the camera of Aravis, another project: `arv-fake-gv-camera-0.8` (Debian's `aravis-tools`). It loses
//! packets on request, sends none again, and shows a ramp that can be computed again.

use crate::rig::{Rig, TEST_TIMEOUT, config};
use std::net::Ipv4Addr;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use thalweg_device::Acquisition;
use thalweg_gige::{Camera, discover_cameras, find_camera};
use thalweg_wire::{PayloadType, Status};

const PROGRAM: &str = "arv-fake-gv-camera-0.8";

/// The camera's process, which ends with the test.
struct Fake(Child);

impl Fake {
    fn start(serial: &str, lost: &str) -> Option<Self> {
        let mut command = Command::new(PROGRAM);
        command.args(["-i", "127.0.0.1", "-s", serial, "-r", lost]).stdout(Stdio::null()).stderr(Stdio::null());
        match command.spawn() {
            Ok(child) => Some(Self(child)),
            Err(error) => {
                thalweg_testing::skip::skipped(format!("{PROGRAM}: {error} (aravis-tools)"));
                None
            }
        }
    }
}

impl Drop for Fake {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Runs a test in a network of its own, in which port 3956 is free; skips it if there can be none.
fn alone(test: impl FnOnce() + Send + 'static) {
    let run = || match thalweg_sys::netns::enter_private_network() {
        Ok(()) => test(),
        Err(why) => thalweg_testing::skip::skipped(format!("no network of its own: {why}")),
    };
    if let Err(panic) = std::thread::spawn(run).join() {
        std::panic::resume_unwind(panic);
    }
}

/// Returns the offset of a frame's ramp (arvfakecamera.c), which is the frame's number; `None` if the pixels are no
/// such ramp.
fn ramp(pixels: &[u8], width: usize) -> Option<u64> {
    let first = u64::from(pixels[0]);
    let right = |at: usize, pixel: u8| u64::from(pixel) == ((at % width + at / width) as u64 + first) % 255;
    pixels.iter().enumerate().all(|(at, pixel)| right(at, *pixel)).then_some(first)
}

#[test]
fn cameras_are_found_by_all_their_names() {
    alone(|| {
        let Some(_fake) = Fake::start("GV07", "0") else { return };
        let begun = Instant::now();
        let found = loop {
            match &discover_cameras(Duration::from_millis(400)).unwrap()[..] {
                [found] => break found.clone(),
                other => assert!(other.is_empty() && begun.elapsed() < TEST_TIMEOUT, "{other:?}"),
            }
        };
        assert_eq!((found.manufacturer.as_str(), found.model.as_str()), ("Aravis", "Fake"));
        assert_eq!(
            (found.serial.as_str(), found.address, found.interface.as_str()),
            ("GV07", Ipv4Addr::LOCALHOST, "lo")
        );
        for name in ["GV07", "127.0.0.1"] {
            assert_eq!(find_camera(name, None, Duration::from_secs(5)).unwrap().unwrap().serial, "GV07");
        }
        assert!(find_camera("GV08", None, Duration::from_millis(300)).unwrap().is_none());
    });
}

#[test]
fn every_byte_of_its_frames_is_where_it_belongs() {
    alone(|| {
        // The camera may pause for a while within a frame: that is no loss.
        let Some(_fake) = Fake::start("GV01", "0") else { return };
        let mut rig = Rig::start(&config(
            "address = \"GV01\"\nheartbeat = \"20s\"\npatience = \"20s\"\nbuffer = \"256MiB\"\n\
             features = { Width = 640, Height = 480, AcquisitionFrameRate = 100.0 }",
        ));
        let said = rig.camera.description().clone();
        assert_eq!([&said.own["width"], &said.own["height"]], [640, 480]);
        assert_eq!(["pixel_format", "model", "serial"].map(|key| &said.own[key]), ["Mono8", "Fake", "GV01"]);
        assert_eq!((said.payload_type.as_str(), said.shape), ("image-u8", Some(vec![480, 640])));
        let (mut count, mut first, mut before) = (0, None, None);
        rig.take(|frame, lost| {
            assert_eq!((lost, frame.number, frame.len), (0, count, 640 * 480));
            assert_eq!(
                (frame.filled.payload_type, frame.filled.status),
                (PayloadType::IMAGE_U8, Status::CLOCK_FREE_RUNNING)
            );
            let shown = ramp(&frame.buffer.payload_mut()[..640 * 480], 640).expect("a ramp");
            let first = *first.get_or_insert(shown);
            // The offset is the camera's own count of frames, which has 32 bits; that of blocks has 16.
            assert_eq!(shown, (first + count) % 255, "frame {count}");
            let time = frame.filled.timestamp.expect("a time");
            assert!(before.is_none_or(|before| before < time));
            before = Some(time);
            count += 1;
            count == 700
        });
        // The first block is 65000: the numbers of blocks have wrapped.
        assert_eq!((rig.count("frames"), rig.count("restarts"), rig.count("stray")), (700, 0, 0));
        let (copied, packets) = (rig.count("copied"), rig.count("packets"));
        assert!(copied * 100 <= packets, "{copied} of {packets} packets were copied");
    });
}

#[test]
fn frames_with_gaps_say_so_and_the_gaps_are_zeros() {
    alone(|| {
        let Some(_fake) = Fake::start("GV02", "5") else { return };
        let text = "address = \"127.0.0.1\"\nheartbeat = \"20s\"\npacket = 1500\n\
                    features = { AcquisitionFrameRate = 50.0 }";
        let mut rig = Rig::start(&config(text));
        let (mut whole, mut gaps, mut lost, mut next) = (0, 0, 0, 0);
        rig.take(|frame, before| {
            lost += before;
            assert_eq!(frame.number, next + before);
            next = frame.number + 1;
            let pixels = &frame.buffer.payload_mut()[..frame.len];
            if frame.filled.status.contains(Status::CORRUPT) {
                // Gaps are zeros, without remains of earlier frames.
                let piece = 1500 - 36;
                let right = |at: usize, first: u64| ((at % 512 + at / 512) as u64 + first) % 255;
                let known = pixels.chunks(piece).position(|part| part.iter().any(|pixel| *pixel > 0)).unwrap() * piece;
                let first = (255 + u64::from(pixels[known]) + 255 * 1000 - (known % 512 + known / 512) as u64) % 255;
                for (part, begin) in pixels.chunks(piece).zip((0..).step_by(piece)) {
                    let as_shown = part.iter().zip(begin..).all(|(pixel, at)| u64::from(*pixel) == right(at, first));
                    assert!(as_shown || part.iter().all(|pixel| *pixel == 0), "frame {} at {begin}", frame.number);
                }
                gaps += 1;
            } else {
                assert!(ramp(pixels, 512).is_some(), "frame {}", frame.number);
                whole += 1;
            }
            whole + gaps == 100
        });
        // Of a thousand packets five are lost; most frames of 180 packets lack none or one.
        assert!(gaps >= 20 && whole > 0, "{gaps} of 100");
        assert_eq!(rig.count("incomplete") + rig.count("frames") + rig.count("without_leader"), 100);
        assert!(rig.count("missing_packets") >= gaps && rig.count("requests") == 0 && rig.count("lost") == lost);
    });
}

#[test]
fn a_camera_that_is_killed_and_started_again_goes_on() {
    alone(|| {
        let Some(fake) = Fake::start("GV03", "0") else { return };
        let text = "address = \"GV03\"\nheartbeat = \"1500ms\"\nfeatures = { AcquisitionFrameRate = 50.0 }";
        let mut rig = Rig::start(&config(text));
        rig.take(|frame, _| frame.number == 20);
        drop(fake);
        let _again = Fake::start("GV03", "0").unwrap();
        let (mut gap, mut count) = (0, 0);
        rig.take(|frame, lost| {
            gap += lost;
            assert!(ramp(&frame.buffer.payload_mut()[..frame.len], 512).is_some());
            count += u32::from(gap > 0);
            count == 20
        });
        // The camera was away for some time: frames not sent meanwhile are lost by its rate. On a busy machine it may
        // be missed more than once.
        let (away, streams) = (rig.count("away"), rig.count("streams"));
        assert!(gap >= 5 && rig.count("lost_while_away") > 0, "{gap}");
        assert!(away >= 1 && streams == away + 1, "{away} {streams}");
    });
}

#[test]
fn a_feature_that_it_does_not_have_is_named() {
    alone(|| {
        let Some(_fake) = Fake::start("GV04", "0") else { return };
        drop(Rig::start(&config("address = \"GV04\"")));
        for (features, why) in [
            ("{ ExposureTim = 1.0 }", "ExposureTim = 1: the camera has no such feature; it has "),
            ("{ PixelFormat = \"Mono9\" }", "it can be "),
            ("{ Width = 1000000 }", "Width = 1000000"),
            ("{ AcquisitionStart = 1 }", "is a command"),
        ] {
            let error =
                Camera::open(&config(&format!("address = \"GV04\"\nfeatures = {features}"))).unwrap_err().to_string();
            assert!(error.contains(why), "{error}");
        }
        // A camera that was released can be opened again.
        let first = Camera::open(&config("address = \"GV04\"")).unwrap();
        drop(first);
        drop(Camera::open(&config("address = \"GV04\"")).unwrap());
    });
}
