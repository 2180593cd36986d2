//! Boards that sample, in the machine: comedi_test, whose waveforms are known.

use super::{Step, read};
use serde_json::Value;
use std::path::Path;
use thalweg_store::Run;

/// The highest value of 16 bits, and what 1 V is of a range of 10 V: the waveforms' amplitude.
const MIDDLE: i32 = 0x7fff;
const VOLT: i32 = MIDDLE / 10;

/// Runs a board's topology, and beside it what the script does when the run has begun.
fn board(
    name: &'static str,
    run: &str,
    device: &str,
    script: &str,
    check: impl Fn(&Path, &Value, &str) + 'static,
) -> Step {
    let device = format!("kind = \"comedi\", file = \"/dev/comedi0\", channels = [0, 1, 2], {device}");
    let prepare = "modprobe comedi_test\nuntil [ -e /dev/comedi0 ]; do sleep 0.1; done";
    Step::of_device(name, run, &device, [prepare, script], check)
}

pub(super) fn steps() -> Vec<Step> {
    vec![samples_are_the_waveforms(), what_is_sampled_while_nobody_reads()]
}

/// Of each event its number, its time, and its samples: those of three channels, in turn.
fn samples(own: &Path) -> Vec<(u64, u64, Vec<i32>)> {
    let run = Run::open(own.join("runs/run-000001")).unwrap();
    run.events()
        .map(|event| {
            let event = event.unwrap();
            let fragment = &event.fragments[0];
            let samples = fragment.payload().chunks_exact(2).map(|two| i32::from(u16::from_le_bytes([two[0], two[1]])));
            (event.id.0, fragment.header.timestamp.0, samples.collect())
        })
        .collect()
}

/// A board's samples are its waveforms, without a gap.
fn samples_are_the_waveforms() -> Step {
    // The same board afterwards, read by another program: a library's that is not ours.
    let script = "wait $run || true; python3 -c \"
import ctypes
comedi = ctypes.CDLL('libcomedi.so.0')
comedi.comedi_open.restype = ctypes.c_void_p
board, value = comedi.comedi_open(b'/dev/comedi0'), ctypes.c_uint()
part = lambda function, *more: getattr(comedi, function)(ctypes.c_void_p(board), 0, *more)
assert part('comedi_data_read', 2, 0, 0, ctypes.byref(value)) == 1
print(part('comedi_get_maxdata', 0), value.value, part('comedi_get_n_channels'))
\" >seen";
    board("board", "events = 20", "rate = 1000, samples = 250", script, |own, report, log| {
        assert!(log.contains("/dev/comedi0: comedi_test (comedi_test), 1000.000 samples per second"), "{log}");
        let entry = &report["ledger"]["sources"][0];
        assert_eq!((&entry["recorded"], &entry["unaccounted"]), (&20.into(), &0.into()), "{report:#}\n{log}");
        assert_eq!(report["copies_per_byte"]["source"], 0.0, "the kernel writes into the slot");

        let events = samples(own);
        assert_eq!(events.iter().map(|event| event.0).collect::<Vec<_>>(), (0..20).collect::<Vec<_>>());
        assert!(events.windows(2).all(|two| two[1].1 - two[0].1 == 250_000_000), "a sample each millisecond");
        let channel = |channel| -> Vec<i32> {
            events.iter().flat_map(|event| event.2.iter().skip(channel).step_by(3)).copied().collect()
        };
        // A sawtooth and a square wave of 10 Hz, 1 V up and down, and nothing (waveform_ai_timer,
        // drivers/comedi/drivers/comedi_test.c).
        let [saw, square, flat] = [0, 1, 2].map(channel);
        assert_eq!(saw.len(), 5000);
        let falls: Vec<usize> = (1..saw.len()).filter(|at| saw[*at] < saw[at - 1]).collect();
        assert!(falls.windows(2).all(|two| two[1] - two[0] == 100), "{falls:?}");
        assert!(saw.windows(2).filter(|two| two[1] > two[0]).all(|two| (two[1] - two[0] - 2 * VOLT / 100).abs() <= 1));
        assert!(square.iter().all(|sample| ((sample - MIDDLE).abs() - VOLT).abs() <= 1), "{:?}", &square[..10]);
        let seen = read(&own.join("seen"));
        let seen: Vec<i32> = seen.split_whitespace().map(|number| number.parse().unwrap()).collect();
        assert_eq!((seen[0], seen[2]), (0xffff, 8));
        assert!(flat.iter().all(|sample| *sample == seen[1]), "{seen:?} {:?}", &flat[..10]);

        let info: Value = serde_json::from_str(&read(&own.join("runs/run-000001/run.json"))).unwrap();
        let about = &info["sources"][0]["description"];
        assert_eq!(
            (&about["shape"], &about["sample_rate"]),
            (&[250, 3].as_slice().into(), &1000.0.into()),
            "{about:#}"
        );
        assert_eq!(about["metadata"]["range"], serde_json::json!([-10.0, 10.0]));
        let found = read(&own.join("devices.json"));
        assert!(found.contains("comedi:/dev/comedi0"), "{found}");
    })
}

/// What is sampled while nobody reads is lost in the device.
fn what_is_sampled_while_nobody_reads() -> Step {
    // Its ring holds a second. The program stands still for three.
    let script = "more 10; pkill -STOP thalweg; sleep 3; pkill -CONT thalweg\n\
                  until grep -q 'samples are lost' log; do kill -0 $run; sleep 0.1; done; more 1; finish";
    board("board-stopped", "", "rate = 20000, samples = 1000", script, |own, report, log| {
        let entry = &report["ledger"]["sources"][0];
        assert!(entry["lost_in_device"].as_u64().unwrap() >= 30, "{report:#}\n{log}");
        assert_eq!(entry["unaccounted"], 0, "{report:#}");
        assert!(log.contains("samples are lost"), "{log}");
        let events = samples(own);
        let gap = events.windows(2).map(|two| (two[1].0 - two[0].0, two[1].1 - two[0].1)).max().unwrap();
        // Numbers go on as time does: a fragment covers 50 ms.
        assert!(gap.0 > 30 && (gap.1 as i64 - 50_000_000 * gap.0 as i64).abs() < 100_000_000, "{gap:?}");
    })
}
