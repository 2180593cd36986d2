//! Cameras of the kernel's, in the machine: vivid, which makes images as a webcam does.

use super::{directory, is_set_up};
use serde_json::Value;
use std::fs;
use std::path::Path;
use thalweg_store::Run;
use thalweg_wire::PayloadType;

/// Runs a camera's topology in the machine, and beside it what the script does when the run has begun. `modules`: what is
/// loaded first.
fn record(out: &Path, run: &str, modules: &str, device: &str, script: &str) -> (Value, String) {
    let device = format!("kind = \"v4l2\", file = \"/dev/video0\", {device}");
    let prepare =
        format!("{modules}\nuntil [ -e /dev/video0 ]; do sleep 0.1; done\nv4l2-ctl -d /dev/video0 -c osd_text_mode=2");
    super::record(out, run, &device, &prepare, script)
}

const VIVID: &str = "modprobe vivid n_devs=1 node_types=0x1";
const UDMABUF: &str = "insmod /usr/lib/thalweg-machine/udmabuf.ko";

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
    let (report, log) = record(out.path(), "events = 100", &format!("{VIVID}\n{UDMABUF}"), device, script);
    assert!(log.contains("640 × 360 GREY, images are written into slots by its driver, as DMA buffers"), "{log}");
    let entry = &report["ledger"]["sources"][0];
    let lost = entry["lost_in_device"].as_u64().unwrap();
    assert!((1..60).contains(&lost), "{report:#}");
    assert_eq!(entry["recorded"].as_u64().unwrap() + lost, 100, "{report:#}");
    assert_eq!((&entry["unaccounted"], &report["copies_per_byte"]["source"]), (&0.into(), &0.0.into()), "{report:#}");

    assert_images(out.path());
}

/// All images of the run are what another program saw.
fn assert_images(out: &Path) {
    let seen = fs::read(out.join("seen.raw")).unwrap();
    assert_eq!(seen.len(), 640 * 360);
    let run = Run::open(out.join("runs/run-000001")).unwrap();
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
fn a_camera_that_is_pulled_and_plugged_in_again_goes_on_where_it_would_be_by_its_rate() {
    if !is_set_up() {
        return;
    }
    let out = directory();
    let program = env!("CARGO_BIN_EXE_thalweg");
    // vivid is plugged in again when its last user has let it go (vivid_fop_release).
    let script = format!(
        "until {program} cat runs/run-000001 --event 0 >/dev/null 2>&1; do sleep 0.1; done\n\
         exec 3</dev/video0\nv4l2-ctl -d /dev/video0 -c disconnect=1\n\
         until grep -q 'was unplugged' log; do sleep 0.1; done\nsleep 1\nexec 3<&-"
    );
    let device = "width = 640, height = 360, format = \"GREY\", rate = 15";
    let (report, log) = record(out.path(), "events = 200", VIVID, device, &script);
    assert!(log.contains("images are written into slots by its driver, as pages"), "{log}");
    assert!(log.contains("was unplugged") && log.contains("/dev/video0 is there again"), "{log}");
    let (entry, counted) = (&report["ledger"]["sources"][0], &report["devices"]["source0"]);
    let lost = entry["lost_in_device"].as_u64().unwrap();
    // A second's, or more.
    assert!(lost >= 10, "{report:#}\n{log}");
    assert!(counted["lost_while_away"].as_u64().unwrap() >= 10 && counted["unplugged"] == 1, "{report:#}");
    assert_eq!(entry["recorded"].as_u64().unwrap() + lost, 200, "{report:#}\n{log}");
    assert_eq!(entry["unaccounted"], 0, "{report:#}");
}

#[test]
fn where_slots_cannot_be_buffers_of_a_driver_images_are_copied() {
    if !is_set_up() {
        return;
    }
    let out = directory();
    let device = "width = 640, height = 360, format = \"GREY\"";
    // 9p cannot write from such memory, where /out is.
    let script = "wait $run || true; v4l2-ctl -d /dev/video0 --stream-mmap --stream-count=1 --stream-to=/tmp/seen.raw; \
                  cp /tmp/seen.raw .";
    // A driver for devices that reach memory in one piece only takes no pages; and the kernel makes no DMA buffers so long.
    let modules = format!("{VIVID} allocators=1\n{UDMABUF} size_limit_mb=0");
    let (report, log) = record(out.path(), "events = 30", &modules, device, script);
    assert!(log.contains("slots are no DMA buffers: making a DMA buffer of 233472 bytes"), "{log}");
    assert!(log.contains("slots are refused"), "{log}");
    assert!(log.contains("images are copied once, into slots (V4L2_MEMORY_MMAP)"), "{log}");
    let entry = &report["ledger"]["sources"][0];
    assert_eq!((&entry["recorded"], &entry["unaccounted"]), (&30.into(), &0.into()), "{report:#}");
    assert_eq!(report["copies_per_byte"]["source"], 1.0, "{report:#}");
    assert_images(out.path());
}
