//! Cards whose driver reads by DMA, in the machine: card.c, which has XDMA's interface, and counts what nobody reads.

use super::{assert_success, directory, is_set_up, record};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Command;
use thalweg_skip::skipped;
use thalweg_store::Run;

/// The program of card.c.
fn card(out: &Path) -> Option<PathBuf> {
    let flags = Command::new("pkg-config").args(["--cflags", "--libs", "fuse3"]).output();
    let Some(flags) = flags.ok().filter(|flags| flags.status.success()) else {
        skipped("libfuse3-dev, which makes a card out of a program");
        return None;
    };
    let program = out.join("card");
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/machine/card.c");
    let mut command = Command::new("cc");
    command.args(["-O1", "-Wall", "-Werror", source, "-o"]).arg(&program);
    let built = command.args(String::from_utf8_lossy(&flags.stdout).split_whitespace()).output().unwrap();
    assert_success(&built);
    Some(program)
}

const COUNTER: &str = "counter = { at = 0, bytes = 8, little_endian = true }";

/// Waits until a hundred events are on disk, or the run has ended.
const UNDER_WAY: &str = concat!(
    "until [ $(",
    env!("CARGO_BIN_EXE_thalweg"),
    " cat runs/run-000001 --json 2>/dev/null | wc -l) -gt 100 ] || ! kill -0 $run; do sleep 0.1; done"
);

/// Runs until there are so many events, or until the card ends it.
fn run(out: &Path, events: u64, frames: u64, device: &str, meanwhile: &str) -> Option<(Value, String)> {
    let program = card(out)?;
    let begin =
        format!("{} {frames} 2000 & card=$!; until [ -e /dev/xdma0_c2h_0 ]; do sleep 0.1; done", program.display());
    let prepare = format!("modprobe cuse\n{begin}");
    let device = format!("kind = \"dma\", file = \"/dev/xdma0_c2h_0\", size = 4096, {device}");
    Some(record(out, &format!("events = {events}"), &device, &prepare, &meanwhile.replace("BEGIN", &begin)))
}

/// Each fragment has the bytes of the frame that it says it is. Those frames, in order.
fn frames(out: &Path) -> Vec<u64> {
    let run = Run::open(out.join("runs/run-000001")).unwrap();
    let frame = |payload: &[u8]| {
        let number = u64::from_le_bytes(*payload.first_chunk().unwrap());
        assert_eq!(payload.len() as u64, 12 + number * 64 % 2049, "frame {number}");
        let bytes = payload.iter().enumerate().skip(8);
        bytes.for_each(|(at, byte)| assert_eq!(*byte, (number as usize + 3 * at) as u8, "frame {number} at {at}"));
        number
    };
    run.events().map(|event| frame(event.unwrap().fragments[0].payload())).collect()
}

#[test]
fn a_card_writes_into_slots_and_what_it_could_not_is_lost_in_the_device() {
    if !is_set_up() {
        return;
    }
    let out = directory();
    // For a while nobody reads. The card goes on behind the last event: what it loses at its own end nobody can know.
    let meanwhile = format!("{UNDER_WAY}; pkill -STOP thalweg; sleep 0.3; pkill -CONT thalweg");
    let Some((report, log)) = run(out.path(), 3000, 20_000, COUNTER, &meanwhile) else { return };
    let entry = &report["ledger"]["sources"][0];
    let lost = entry["lost_in_device"].as_u64().unwrap();
    assert!(lost > 50, "{report:#}\n{log}");
    let recorded = entry["recorded"].as_u64().unwrap();
    assert_eq!((recorded + lost, &entry["unaccounted"]), (3000, &0.into()), "{report:#}\n{log}");
    assert_eq!(report["copies_per_byte"]["source"], 0.0, "the driver writes into the slot");
    let found = std::fs::read_to_string(out.path().join("devices.json")).unwrap();
    assert!(found.contains(r#""address":"dma:/dev/xdma0_c2h_0""#), "{found}");
    let frames = frames(out.path());
    assert!(frames.len() as u64 == recorded && frames.is_sorted() && frames[0] == 0, "{frames:?}");
}

#[test]
fn a_card_that_is_gone_is_waited_for_and_its_count_goes_on() {
    if !is_set_up() {
        return;
    }
    let out = directory();
    let meanwhile = format!("{UNDER_WAY}; kill -9 $card; while [ -e /dev/xdma0_c2h_0 ]; do sleep 0.1; done; BEGIN");
    let Some((report, log)) = run(out.path(), 3000, 100_000, COUNTER, &meanwhile) else { return };
    let entry = &report["ledger"]["sources"][0];
    assert_eq!(entry["unaccounted"], 0, "{report:#}\n{log}");
    let (recorded, lost) = (entry["recorded"].as_u64().unwrap(), entry["lost_in_device"].as_u64().unwrap());
    assert!(recorded > 100 && recorded + lost == 3000, "{report:#}\n{log}");
    assert!(log.contains("the card is opened again") && log.contains("/dev/xdma0_c2h_0 is there again"), "{log}");
    let frames = frames(out.path());
    assert_eq!(frames.windows(2).filter(|two| two[1] < two[0]).count(), 1, "it began to count anew: {frames:?}");
}
