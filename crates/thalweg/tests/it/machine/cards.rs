//! Cards whose driver reads by DMA, in the machine: card.c, which has XDMA's interface, and counts what nobody reads.

use super::{Step, assert_success, directory, read};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::rc::Rc;
use thalweg_store::Run;
use thalweg_testing::skip::skipped;

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

pub(super) fn steps() -> Vec<Step> {
    let built = Rc::new(directory());
    let Some(card) = card(built.path()) else { return Vec::new() };
    let begin = |period: u32| {
        let until = "until [ -e /dev/xdma0_c2h_0 ]; do sleep 0.1; done";
        format!("{} 1000000 {period} & card=$!; {until}", card.display())
    };
    let gone = "while [ -e /dev/xdma0_c2h_0 ]; do sleep 0.1; done";
    let device = "kind = \"dma\", file = \"/dev/xdma0_c2h_0\", size = 4096, \
                  counter = { at = 0, bytes = 8, little_endian = true }";
    let prepare = format!("modprobe cuse\n{}", begin(2000));
    // So much slower that its count is behind the first one's, however long it takes until somebody reads it.
    let again = begin(20_000);
    // What `cat` shows by then may still be the first one's.
    let counted = "until grep -q 'stopped or restarted' log; do kill -0 $run; sleep 0.1; done";
    let step = |name, meanwhile: &str, check: fn(&Path, &Value, &str)| {
        let meanwhile = format!("more 100; {meanwhile}; more 100; finish\nkill -9 $card; {gone}");
        let built = Rc::clone(&built);
        Step::of_device(name, "", device, [&prepare, &meanwhile], move |own, report, log| {
            let _until_now = &built;
            check(own, report, log);
        })
    };
    vec![
        step("card-stopped", "pkill -STOP thalweg; sleep 0.3; pkill -CONT thalweg", what_nobody_reads_is_lost),
        step("card-gone", &format!("kill -9 $card; {gone}; {again}; {counted}"), a_card_that_is_gone_is_waited_for),
    ]
}

/// The run's events: their numbers and the card's. Each fragment has the bytes of the frame that it says it is.
fn frames(own: &Path) -> Vec<(u64, u64)> {
    let run = Run::open(own.join("runs/run-000001")).unwrap();
    let frame = |payload: &[u8]| {
        let number = u64::from_le_bytes(*payload.first_chunk().unwrap());
        assert_eq!(payload.len() as u64, 12 + number * 64 % 2049, "frame {number}");
        let bytes = payload.iter().enumerate().skip(8);
        bytes.for_each(|(at, byte)| assert_eq!(*byte, (number as usize + 3 * at) as u8, "frame {number} at {at}"));
        number
    };
    let events = run.events().map(Result::unwrap);
    events.map(|event| (event.id.0, frame(event.fragments[0].payload()))).collect()
}

/// Every event is recorded or lost, and lost is what lies between those that are recorded. Returns how many are lost.
fn check(report: &Value, frames: &[(u64, u64)]) -> u64 {
    let entry = &report["ledger"]["sources"][0];
    let (recorded, lost) = (entry["recorded"].as_u64().unwrap(), entry["lost_in_device"].as_u64().unwrap());
    assert_eq!((recorded, &entry["unaccounted"]), (frames.len() as u64, &0.into()), "{report:#}");
    let behind_the_last = recorded + lost - (frames[frames.len() - 1].0 + 1);
    let between: u64 = frames.windows(2).map(|two| two[1].0 - two[0].0 - 1).sum();
    assert_eq!(lost, frames[0].0 + between + behind_the_last, "{report:#}");
    assert_eq!(report["copies_per_byte"]["source"], 0.0, "the driver writes into the slot");
    between
}

/// A card writes into slots, and what it could not while the program stood still is lost in the device.
fn what_nobody_reads_is_lost(own: &Path, report: &Value, _: &str) {
    let frames = frames(own);
    assert!(check(report, &frames) > 50, "{report:#}");
    assert!(frames.iter().all(|(event, number)| event == number), "{frames:?}");
    let found = read(&own.join("devices.json"));
    assert!(found.contains(r#""address":"dma:/dev/xdma0_c2h_0""#), "{found}");
}

/// A card that is gone is waited for, and its count goes on.
fn a_card_that_is_gone_is_waited_for(own: &Path, report: &Value, log: &str) {
    let frames = frames(own);
    check(report, &frames);
    assert!(log.contains("reopening the card") && log.contains("/dev/xdma0_c2h_0 is back"));
    assert!(frames.is_sorted_by_key(|frame| frame.0), "{frames:?}");
    assert_eq!(frames.windows(2).filter(|two| two[1].1 < two[0].1).count(), 1, "it began to count anew: {frames:?}");
    // Since then its numbers are a guess; on a busy machine they may have been one before, after a first frame that
    // waited.
    let guesses = frames.iter().filter(|(event, number)| event != number).count() as u64;
    let uncertain = report["ledger"]["sources"][0]["uncertain"].as_u64().unwrap();
    assert!(guesses > 0 && uncertain >= guesses, "{uncertain} of {guesses}");
}
