//! Cameras of the kernel's, in the machine: vivid, which makes images as a webcam does.

use super::{directory, is_set_up};
use serde_json::Value;
use std::fs;
use std::path::Path;
use thalweg_store::Run;
use thalweg_wire::PayloadType;

/// Runs a camera's topology in the machine, and beside it what the script does when the run has begun.
fn record(out: &Path, run: &str, device: &str, script: &str) -> (Value, String) {
    let device = format!("kind = \"v4l2\", file = \"/dev/video0\", {device}");
    let prepare = "modprobe vivid n_devs=1 node_types=0x1\nuntil [ -e /dev/video0 ]; do sleep 0.1; done\n\
                   v4l2-ctl -d /dev/video0 -c osd_text_mode=2";
    super::record(out, run, &device, prepare, script)
}

#[test]
fn a_camera_writes_into_slots_and_what_it_drops_is_lost_in_the_device() {
    if !is_set_up() {
        return;
    }
    let out = directory();
    let device = "width = 640, height = 360, format = \"GREY\", controls = { percentage_of_dropped_buffers = 20 }";
    // The same camera afterwards, read by another program.
    let script = "wait $run || true; v4l2-ctl -d /dev/video0 -c percentage_of_dropped_buffers=0 --stream-mmap \
                  --stream-count=1 --stream-to=seen.raw";
    let (report, log) = record(out.path(), "events = 100", device, script);
    assert!(log.contains("640 × 360 GREY, images are written into slots by its driver"), "{log}");
    let entry = &report["ledger"]["sources"][0];
    let lost = entry["lost_in_device"].as_u64().unwrap();
    assert!((1..60).contains(&lost), "{report:#}");
    assert_eq!(entry["recorded"].as_u64().unwrap() + lost, 100, "{report:#}");
    assert_eq!((&entry["unaccounted"], &report["copies_per_byte"]["source"]), (&0.into(), &0.0.into()), "{report:#}");

    let seen = fs::read(out.path().join("seen.raw")).unwrap();
    assert_eq!(seen.len(), 640 * 360);
    let run = Run::open(out.path().join("runs/run-000001")).unwrap();
    let mut last = 0;
    for event in run.events() {
        let event = event.unwrap();
        let fragment = &event.fragments[0];
        assert_eq!(fragment.header.payload_type, PayloadType::IMAGE_U8);
        assert!(fragment.payload() == seen, "event {:?}", event.id);
        assert!(fragment.header.timestamp.0 > last, "each is later than the one before");
        last = fragment.header.timestamp.0;
    }
}

#[test]
fn a_camera_that_is_pulled_and_plugged_in_again_goes_on() {
    if !is_set_up() {
        return;
    }
    let out = directory();
    // vivid is plugged in again when its last user has let it go (vivid_fop_release).
    let script = "v4l2-ctl -d /dev/video0 -c disconnect=1";
    let (report, log) = record(out.path(), "events = 60", "width = 640, height = 360, format = \"GREY\"", script);
    assert!(log.contains("was unplugged") && log.contains("/dev/video0 is there again"), "{log}");
    assert_eq!(report["events"]["built"], 60, "{report:#}\n{log}");
    assert_eq!(report["ledger"]["sources"][0]["unaccounted"], 0, "{report:#}");
}
