//! Cameras of the kernel's, in the machine: vivid, which makes images as a webcam does.

use super::{assert_success, directory, is_set_up, thalweg};
use serde_json::Value;
use std::fs;
use std::path::Path;
use thalweg_store::Run;
use thalweg_wire::PayloadType;

/// Runs a camera's topology in the machine, and beside it what the script does when the run has begun.
fn record(out: &Path, run: &str, device: &str, script: &str) -> (Value, String) {
    let topology = format!(
        "[run]\n{run}\ntimeout = \"60s\"\n\n[[builder]]\nname = \"builder0\"\nlisten = [\"shm:/tmp/builder0\"]\n\
         block = \"4MiB\"\ndeadline = \"20s\"\nflush = \"100ms\"\n\n[[source]]\nname = \"camera\"\nid = \"1.0\"\nlink = \"shm\"\n\
         device = {{ kind = \"v4l2\", file = \"/dev/video0\", {device} }}\n"
    );
    fs::write(out.join("video.toml"), topology).unwrap();
    let program = env!("CARGO_BIN_EXE_thalweg");
    let script = format!(
        "set -e\ncd /out\nmodprobe vivid n_devs=1 node_types=0x1\nuntil [ -e /dev/video0 ]; do sleep 0.1; done\n\
         v4l2-ctl -d /dev/video0 -c osd_text_mode=2\n\
         {program} --json -v run video.toml >report.json 2>log & run=$!\n\
         until grep -q 'recording' log; do kill -0 $run || {{ cat log; exit 1; }}; sleep 0.1; done\n\
         {script}\nwait $run || true"
    );
    let output = thalweg(&["--out", out.to_str().unwrap(), "--", "sh", "-c", &script]).output().unwrap();
    let log = fs::read_to_string(out.join("log")).unwrap_or_default();
    if !output.status.success() {
        eprintln!("{log}");
    }
    assert_success(&output);
    let report = fs::read_to_string(out.join("report.json")).unwrap();
    (serde_json::from_str(report.lines().last().unwrap_or(&log)).unwrap(), log)
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
