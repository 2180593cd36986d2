//! Cameras of the kernel's, in the machine: vivid, which makes images as a webcam does.

use super::Step;
use serde_json::Value;
use std::fs;
use std::path::Path;
use thalweg_store::Run;
use thalweg_wire::PayloadType;

/// Runs a camera's topology, and beside it what the script does when the run has begun. `modules`: what is loaded
/// first.
fn camera(
    name: &'static str,
    run: &str,
    modules: &str,
    device: &str,
    script: &str,
    check: impl Fn(&Path, &Value, &str) + 'static,
) -> Step {
    let device =
        format!("kind = \"v4l2\", file = \"/dev/video0\", width = 640, height = 360, format = \"GREY\"{device}");
    // With other options than the last time.
    let prepare = format!(
        "rmmod vivid udmabuf 2>/dev/null || true\n{modules}\nuntil [ -e /dev/video0 ]; do sleep 0.1; done\n\
         v4l2-ctl -d /dev/video0 -c osd_text_mode=2"
    );
    Step::of_device(name, run, &device, [&prepare, script], check)
}

pub(super) fn steps() -> Vec<Step> {
    vec![what_a_camera_drops(), a_camera_that_is_pulled(), images_that_are_copied()]
}

const VIVID: &str = "modprobe vivid n_devs=1 node_types=0x1";
const UDMABUF: &str = "insmod /usr/lib/thalweg-machine/udmabuf.ko";

/// A camera writes into slots, and what it drops is lost in the device.
fn what_a_camera_drops() -> Step {
    let device = ", controls = { percentage_of_dropped_buffers = 20 }";
    // The same camera afterwards, read by another program.
    let script = "wait $run || true; v4l2-ctl -d /dev/video0 -c percentage_of_dropped_buffers=0 --stream-mmap \
                  --stream-count=1 --stream-to=seen.raw";
    camera("camera", "events = 50", &format!("{VIVID}\n{UDMABUF}"), device, script, |own, report, log| {
        assert!(log.contains("640 × 360 GREY, images are written into slots by its driver, as DMA buffers"), "{log}");
        let entry = &report["ledger"]["sources"][0];
        let lost = entry["lost_in_device"].as_u64().unwrap();
        assert!((1..40).contains(&lost), "{report:#}");
        assert_eq!(entry["recorded"].as_u64().unwrap() + lost, 50, "{report:#}");
        assert_eq!(
            (&entry["unaccounted"], &report["copies_per_byte"]["source"]),
            (&0.into(), &0.0.into()),
            "{report:#}"
        );
        assert_images(own);
    })
}

/// All images of the run are what another program saw.
fn assert_images(own: &Path) {
    let seen = fs::read(own.join("seen.raw")).unwrap();
    assert_eq!(seen.len(), 640 * 360);
    let run = Run::open(own.join("runs/run-000001")).unwrap();
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

/// A camera that is pulled and plugged in again goes on where it would be by its rate.
fn a_camera_that_is_pulled() -> Step {
    // vivid is plugged in again when its last user has let it go (vivid_fop_release).
    let script = "more 1\nexec 3</dev/video0\nv4l2-ctl -d /dev/video0 -c disconnect=1\n\
                  until grep -q 'was unplugged' log; do sleep 0.1; done\nsleep 1\nexec 3<&-\n\
                  until grep -q 'is back' log; do kill -0 $run; sleep 0.1; done; more 1; finish";
    camera("camera-pulled", "", VIVID, ", rate = 15", script, |_, report, log| {
        assert!(log.contains("images are written into slots by its driver, as pages"), "{log}");
        assert!(log.contains("was unplugged") && log.contains("/dev/video0 is back"), "{log}");
        let (entry, counted) = (&report["ledger"]["sources"][0], &report["devices"]["source0"]);
        let lost = entry["lost_in_device"].as_u64().unwrap();
        // A second's, or more.
        assert!(lost >= 10, "{report:#}\n{log}");
        assert!(counted["lost_while_away"].as_u64().unwrap() >= 10 && counted["unplugged"] == 1, "{report:#}");
        assert_eq!(entry["unaccounted"], 0, "{report:#}");
    })
}

/// Where slots cannot be buffers of a driver, images are copied.
fn images_that_are_copied() -> Step {
    // 9p cannot write from such memory, where /out is.
    let script = "wait $run || true; v4l2-ctl -d /dev/video0 --stream-mmap --stream-count=1 --stream-to=/tmp/seen.raw; \
                  cp /tmp/seen.raw .";
    // A driver for devices that reach memory in one piece only takes no pages; and the kernel makes no DMA buffers so
    // long.
    let modules = format!("{VIVID} allocators=1\n{UDMABUF} size_limit_mb=0");
    camera("camera-copied", "events = 30", &modules, "", script, |own, report, log| {
        assert!(log.contains("slots cannot be DMA buffers: creating a DMA buffer of 233472 bytes"), "{log}");
        assert!(log.contains("slots are refused"), "{log}");
        assert!(log.contains("images are copied once, into slots (V4L2_MEMORY_MMAP)"), "{log}");
        // What vivid has no time to make on a busy machine it counts as if it had dropped it.
        let entry = &report["ledger"]["sources"][0];
        let [recorded, lost] = ["recorded", "lost_in_device"].map(|bucket| entry[bucket].as_u64().unwrap());
        assert!(recorded > 0 && recorded + lost == 30 && entry["unaccounted"] == 0, "{report:#}");
        assert_eq!(report["copies_per_byte"]["source"], 1.0, "{report:#}");
        assert_images(own);
    })
}
