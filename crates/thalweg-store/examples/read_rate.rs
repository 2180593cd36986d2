//! How fast a run is read: all events in order, all events as a follower gets them, and `verify`.
//!
//! ```text
//! cargo run --release -p thalweg-store --example read_rate -- DIRECTORY [GIB] [FRAGMENT_BYTES] [SOURCES]
//! ```
//!
//! What limits it: the first pass reads the disk, the others the page cache where the run fits it. With small fragments
//! it is the work per fragment: finding it, and the CRC of its header.

use std::path::PathBuf;
use std::time::{Duration, Instant};
use thalweg_arena::BlockPool;
use thalweg_store::{
    BlockWriter, EventCounts, EventStatus, Followed, Recorder, RecorderConfig, Run, RunEnd, RunState, verify_run,
};
use thalweg_wire::{EventId, FragmentHeader, HEADER_LEN, SourceId, TaiNanos, crc32c, record_bytes};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let number = |at: usize, default: usize| arguments.get(at).map_or(Ok(default), |text| text.parse());
    let directory: PathBuf = arguments.first().ok_or("which directory?")?.into();
    let total = (number(1, 1)? as u64) << 30;
    let payload = vec![7; number(2, 1024)?];
    let sources = u16::try_from(number(3, 4)?)?;

    let mut pool = BlockPool::new("read_rate", 4, 4 << 20)?;
    let mut recorder = Recorder::create_run(RecorderConfig { directory, ..Default::default() }, &mut pool)?;
    let mut block = BlockWriter::new(pool.take_block().ok_or("no block")?);
    let mut event = 0;
    let mut fragment = FragmentHeader {
        run: recorder.run_number(),
        total_length: u32::try_from(payload.len())?,
        piece_length: u32::try_from(payload.len())?,
        payload_crc: crc32c(&payload),
        ..Default::default()
    };
    while recorder.run_info().totals.bytes < total {
        let length = record_bytes(payload.len());
        let Some(mut span) = block.reserve_span(length * usize::from(sources), sources.into()) else {
            recorder.submit_block(block, TaiNanos(0));
            while pool.free_count() == 0 {
                if let Some(finished) = recorder.wait_for_block()? {
                    finished.result?;
                    pool.return_block(finished.block.into_block());
                }
            }
            block = BlockWriter::new(pool.take_block().ok_or("no block")?);
            continue;
        };
        let offset = block.span_offset(&span);
        fragment.event = EventId(event);
        for (source, record) in (0..sources).zip(span.chunks_mut(length)) {
            fragment.source = SourceId::new(0, source);
            record[..HEADER_LEN].copy_from_slice(&fragment.encode());
            record[HEADER_LEN..HEADER_LEN + payload.len()].copy_from_slice(&payload);
        }
        drop(span);
        for source in 0..sources {
            block.enter_record(
                EventId(event),
                SourceId::new(0, source),
                offset + u32::from(source) * u32::try_from(length)?,
            );
        }
        assert!(block.close_event(EventId(event), 1, EventStatus::Complete));
        event += 1;
    }
    recorder.submit_block(block, TaiNanos(0));
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
        ledger: Default::default(),
    };
    let finished = recorder.finish_run(end)?;

    let begin = Instant::now();
    let run = Run::open(&finished.path)?;
    println!("open      {:8.3} ms for {} events", begin.elapsed().as_secs_f64() * 1e3, run.len());
    let tell = |what: &str, begin: Instant, fragments: u64| {
        let seconds = begin.elapsed().as_secs_f64();
        println!(
            "{what:9} {:8.0} MB/s, {:.2} million fragments/s",
            run.data_bytes() as f64 / seconds / 1e6,
            fragments as f64 / seconds / 1e6
        );
    };
    for what in ["events", "again"] {
        let begin = Instant::now();
        let mut fragments = 0;
        for event in run.events() {
            fragments += event?.fragments.len() as u64;
        }
        tell(what, begin, fragments);
    }
    let begin = Instant::now();
    let mut follow = run.follow_events()?;
    let mut fragments = 0;
    while let Followed::Event(event) = follow.next_event(Duration::ZERO)? {
        fragments += event.fragments.len() as u64;
    }
    tell("follow", begin, fragments);
    let begin = Instant::now();
    let report = verify_run(&run);
    tell("verify", begin, report.fragments);
    std::fs::remove_dir_all(finished.path)?;
    Ok(())
}
