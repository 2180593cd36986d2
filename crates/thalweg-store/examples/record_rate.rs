//! How fast this disk takes a run: blocks full of small fragments, each sealed with its index and CRC32C, against which
//! `fio` writing the same sizes is the yardstick.
//!
//! ```text
//! cargo run --release -p thalweg-store --example record_rate -- DIRECTORY [GIB] [BLOCK_MIB] [BLOCKS] [FRAGMENT_BYTES]
//! fio --name=yardstick --directory=DIRECTORY --rw=write --direct=1 --bs=4M --ioengine=io_uring --iodepth=4 --size=8G
//! ```
//!
//! What limits it: the disk. Sealing costs one pass over the block for its CRC, which shows in `cpu` and, on a disk
//! that is faster than memory can be read, in the rate.

use std::path::PathBuf;
use std::time::{Duration, Instant};
use thalweg_arena::BlockPool;
use thalweg_store::{BlockWriter, EventCounts, EventStatus, Recorder, RecorderConfig, RunEnd, RunState};
use thalweg_wire::{EventId, SourceId, TaiNanos, record_bytes};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let number = |at: usize, default: usize| arguments.get(at).map_or(Ok(default), |text| text.parse());
    let directory: PathBuf = arguments.first().ok_or("which directory?")?.into();
    let total = (number(1, 8)? as u64) << 30;
    let block_bytes = number(2, 4)? << 20;
    let blocks = u32::try_from(number(3, 4)?)?;
    let record = record_bytes(number(4, 1024)?);

    let mut pool = BlockPool::new("record_rate", blocks, block_bytes)?;
    let mut recorder = Recorder::create_run(RecorderConfig { directory, ..Default::default() }, &mut pool)?;
    println!("{}: {}", recorder.run_path().display(), recorder.recorder_method());

    let (begin, cpu) = (Instant::now(), cpu_time());
    let (mut written, mut event, mut waits) = (0u64, 0u64, Duration::ZERO);
    while written < total {
        while let Some(finished) = recorder.reap_block() {
            finished.result?;
            pool.return_block(finished.block.into_block());
        }
        let Some(block) = pool.take_block() else {
            let wait = Instant::now();
            if let Some(finished) = recorder.wait_for_block()? {
                finished.result?;
                pool.return_block(finished.block.into_block());
            }
            waits += wait.elapsed();
            continue;
        };
        let mut block = BlockWriter::new(block);
        while let Some(span) = block.reserve_span(record, 1) {
            let offset = block.span_offset(&span);
            drop(span);
            block.enter_record(EventId(event), SourceId(0), offset);
            assert!(block.close_event(EventId(event), 1, EventStatus::Complete));
            event += 1;
        }
        written += block_bytes as u64;
        recorder.submit_block(block, TaiNanos(0));
    }
    while let Some(finished) = recorder.wait_for_block()? {
        finished.result?;
    }
    let (elapsed, cpu) = (begin.elapsed(), cpu_time() - cpu);
    let ledger = serde_json::Value::Null;
    let events = EventCounts { built: event, incomplete: 0 };
    let end = RunEnd {
        ended: TaiNanos(0),
        seconds: 0.0,
        state: RunState::Complete,
        reasons: vec![],
        events,
        times: Default::default(),
        steps: Vec::new(),
        trigger: Default::default(),
        left_out: Default::default(),
        time_use: Default::default(),
        ledger,
    };
    let finish = Instant::now();
    let run = recorder.finish_run(end)?;
    let bytes = run.info.totals.bytes as f64;
    println!(
        "{:.3} GB in {:.3} s: {:.0} MB/s; {:.0} fragments/s; cpu {:.0} %, waiting {:.0} %; finish {:.0} ms",
        bytes / 1e9,
        elapsed.as_secs_f64(),
        bytes / elapsed.as_secs_f64() / 1e6,
        event as f64 / elapsed.as_secs_f64(),
        100.0 * cpu.as_secs_f64() / elapsed.as_secs_f64(),
        100.0 * waits.as_secs_f64() / elapsed.as_secs_f64(),
        finish.elapsed().as_secs_f64() * 1e3
    );
    std::fs::remove_dir_all(run.path)?;
    Ok(())
}

/// Processor time of this process, kernel included.
fn cpu_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::try_from(time).unwrap_or_default()
}
