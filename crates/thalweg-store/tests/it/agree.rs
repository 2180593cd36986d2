//! All readers of a damaged run return the same events, however its events are distributed over blocks and segments.

use crate::common::{Builder, SOURCES, config, memory_directory};
use proptest::prelude::*;
use proptest::sample::Index;
use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::Duration;
use thalweg_store::format::Trailer;
use thalweg_store::{EventStatus, Follow, Followed, RecorderConfig, Run, salvage_run, verify_run};
use thalweg_wire::{EventId, SourceId};

const EVENTS: u64 = 24;

/// A step of a builder that works on several events at once.
#[derive(Debug, Clone)]
enum Work {
    /// Adds a record to one of the incomplete events.
    Record(Index),
    /// Closes one of the events that have all their records.
    Close(Index),
    /// Submits the block, as if it were full.
    Flush,
}

fn work() -> impl Strategy<Value = Vec<Work>> {
    let one = prop_oneof![
        6 => any::<Index>().prop_map(Work::Record),
        2 => any::<Index>().prop_map(Work::Close),
        2 => Just(Work::Flush),
    ];
    proptest::collection::vec(one, 20..200)
}

/// Records a run by the given steps, and afterwards everything that the steps left open.
fn recorded(directory: &Path, work: &[Work]) -> Builder {
    let config = RecorderConfig { segment_bytes: 48 << 10, ..config(directory) };
    let mut builder = Builder::new(config, 4, 16 << 10);
    let mut lacking: Vec<(u64, u16)> = (0..EVENTS).map(|event| (event, 0)).collect();
    let mut full: Vec<u64> = Vec::new();
    let record = |builder: &mut Builder, lacking: &mut Vec<(u64, u16)>, full: &mut Vec<u64>, at: usize| {
        let (event, next) = lacking[at];
        // Every fifth event lacks its last source.
        let source = SourceId::new(1, next);
        match next + 1 == SOURCES && is_incomplete(event) {
            true => builder.missing(event, source),
            false => builder.fragment(event, source, 1000),
        }
        lacking[at].1 += 1;
        if lacking[at].1 == SOURCES {
            full.push(lacking.remove(at).0);
        }
    };
    for step in work {
        match step {
            // A builder works on a limited number of events at a time.
            Work::Record(which) if !lacking.is_empty() => {
                let at = which.index(lacking.len().min(5));
                record(&mut builder, &mut lacking, &mut full, at);
            }
            Work::Close(which) if !full.is_empty() => close(&mut builder, full.remove(which.index(full.len()))),
            Work::Flush => builder.flush(),
            _ => {}
        }
    }
    while !lacking.is_empty() {
        record(&mut builder, &mut lacking, &mut full, 0);
    }
    full.into_iter().for_each(|event| close(&mut builder, event));
    builder
}

fn is_incomplete(event: u64) -> bool {
    event.is_multiple_of(5)
}

fn close(builder: &mut Builder, event: u64) {
    let status = if is_incomplete(event) { EventStatus::Incomplete } else { EventStatus::Complete };
    builder.close(event, status);
}

/// Position in a run: the number of a block, and of its segment.
type Spot = (u64, u32);

/// Positions of the records of an event, and of its closing.
#[derive(Debug, Default)]
struct Lies {
    records: BTreeSet<Spot>,
    closing: Option<Spot>,
}

/// A block: its position, its offset in the segment, and its length.
#[derive(Debug, Clone, Copy)]
struct Block {
    spot: Spot,
    offset: u64,
    length: u32,
}

/// Returns the blocks of a run, and the distribution of its events over them.
fn layout(path: &Path) -> (Vec<Block>, BTreeMap<u64, Lies>) {
    let run = Run::open(path).unwrap();
    let (mut blocks, mut events) = (Vec::new(), BTreeMap::<u64, Lies>::new());
    for block in run.data_blocks() {
        let name = block.file_path().file_stem().unwrap().to_str().unwrap();
        let spot = (block.number(), name.parse().unwrap());
        let read = block.read_checked(run.run_info()).unwrap();
        blocks.push(Block { spot, offset: block.file_offset(), length: read.header().length });
        for entry in read.header().fragment_entries(read.block_bytes()) {
            events.entry(entry.event.0).or_default().records.insert(spot);
        }
        for event in
            read.header().closing_entries(read.block_bytes()).flat_map(|closing| closing.unwrap().event_numbers())
        {
            events.entry(event.0).or_default().closing = Some(spot);
        }
    }
    (blocks, events)
}

#[derive(Debug, Clone)]
enum Damage {
    /// Damages a block's body.
    Body(Index),
    /// Damages a block's header.
    Header(Index),
    /// Damages a segment's footer.
    Footer(Index),
    /// Adds bytes after a segment's footer.
    Junk(Index),
    /// Removes a segment.
    Gone(Index),
}

fn damage() -> impl Strategy<Value = Damage> {
    let any = any::<Index>;
    prop_oneof![
        4 => any().prop_map(Damage::Body),
        2 => any().prop_map(Damage::Header),
        2 => any().prop_map(Damage::Footer),
        1 => any().prop_map(Damage::Junk),
        2 => any().prop_map(Damage::Gone),
    ]
}

/// Blocks and footers of a run that are lost.
#[derive(Debug, Default)]
struct Lost {
    blocks: BTreeSet<Spot>,
    footers: BTreeSet<u32>,
}

/// Applies the damages, each at most once per position.
fn harm(path: &Path, blocks: &[Block], damages: &[Damage]) -> Lost {
    let segments: BTreeSet<u32> = blocks.iter().map(|block| block.spot.1).collect();
    let file = |segment: u32| path.join(format!("{segment:05}.seg"));
    // The last segment of a writer that died has no footer.
    let footer = |segment: &u32| Trailer::decode(&std::fs::read(file(*segment)).unwrap()).ok();
    let footers: BTreeMap<u32, u64> =
        segments.iter().filter_map(|segment| footer(segment).map(|trailer| (*segment, trailer.offset))).collect();
    let segments: Vec<u32> = segments.into_iter().collect();
    let mut lost = Lost::default();
    let (mut junk, mut gone) = (BTreeSet::new(), BTreeSet::new());
    for damage in damages {
        match damage {
            Damage::Body(which) | Damage::Header(which) => {
                let block = which.get(blocks);
                if lost.blocks.insert(block.spot) {
                    let at = if matches!(damage, Damage::Body(_)) { u64::from(block.length) / 2 } else { 20 };
                    flip(&file(block.spot.1), block.offset + at);
                }
            }
            Damage::Footer(which) => {
                let segment = *which.get(&segments);
                if let (true, Some(begins)) = (lost.footers.insert(segment), footers.get(&segment)) {
                    flip(&file(segment), begins + 70);
                }
            }
            Damage::Junk(which) => drop(junk.insert(*which.get(&segments))),
            Damage::Gone(which) => drop(gone.insert(*which.get(&segments))),
        }
    }
    for segment in junk {
        let bytes = std::fs::read(file(segment)).unwrap();
        std::fs::write(file(segment), [&bytes[..], b"junk"].concat()).unwrap();
    }
    for segment in gone {
        std::fs::remove_file(file(segment)).unwrap();
        lost.footers.insert(segment);
        lost.blocks.extend(blocks.iter().map(|block| block.spot).filter(|spot| spot.1 == segment));
    }
    lost
}

fn flip(file: &Path, at: u64) {
    let file = std::fs::File::options().read(true).write(true).open(file).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, at).unwrap();
    file.write_all_at(&[byte[0] ^ 0x10], at).unwrap();
}

/// Returns the events found by following the run to its end.
fn followed(path: &Path) -> BTreeSet<u64> {
    let mut follow = Follow::open(path).unwrap();
    let mut events = BTreeSet::new();
    loop {
        match follow.next_event(Duration::ZERO) {
            Ok(Followed::Event(event)) => assert!(events.insert(event.id.0), "event {} came twice", event.id.0),
            Ok(Followed::End(_)) => return events,
            Ok(Followed::Quiet) => panic!("it has ended"),
            Err(_) => {}
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn all_give_the_events_of_which_every_record_and_a_closing_are_left(
        work in work(),
        damages in proptest::collection::vec(damage(), 1..4),
    ) {
        let directory = memory_directory();
        let path = recorded(directory.path(), &work).finish().path;
        let (blocks, events) = layout(&path);
        prop_assert_eq!(events.len() as u64, EVENTS);
        let lost = harm(&path, &blocks, &damages);

        let is_left = |spot: &Spot| !lost.blocks.contains(spot);
        let is_closed = |lies: &Lies| lies.closing.iter().all(|spot| is_left(spot) || !lost.footers.contains(&spot.1));
        let has_all = |lies: &Lies| lies.records.iter().all(is_left);
        let whole: BTreeSet<u64> =
            events.iter().filter(|(_, lies)| has_all(lies) && is_closed(lies)).map(|(event, _)| *event).collect();
        let unclosed = events.values().filter(|lies| has_all(lies) && !is_closed(lies)).count() as u64;

        let run = Run::open(&path).unwrap();
        let read: BTreeSet<u64> = run.events().flatten().map(|event| event.id.0).collect();
        prop_assert_eq!(&read, &whole, "read in order");
        let one_by_one = (0..EVENTS).filter(|event| matches!(run.find_event(EventId(*event)), Ok(Some(_)))).collect();
        prop_assert_eq!(&whole, &one_by_one, "read one by one");
        prop_assert_eq!(&followed(&path), &whole, "followed");
        let report = verify_run(&run);
        prop_assert_eq!((report.events, report.lost_events), (whole.len() as u64, EVENTS - whole.len() as u64), "{}", report);
        let salvaged = salvage_run(&path, &directory.path().join("salvaged")).unwrap().unwrap();
        prop_assert_eq!(salvaged.unclosed_events, unclosed, "{:?}", salvaged);
        prop_assert_eq!(salvaged.events - salvaged.torn_events - unclosed, report.events, "{:?}", salvaged);
    }

    #[test]
    fn all_read_equally_far_where_the_writer_died(
        work in work(),
        damages in proptest::collection::vec(damage(), 0..3),
    ) {
        let directory = memory_directory();
        let path = recorded(directory.path(), &work).die();
        let (blocks, _) = layout(&path);
        harm(&path, &blocks, &damages);
        let run = Run::open(&path).unwrap();
        let read: BTreeSet<u64> = run.events().flatten().map(|event| event.id.0).collect();
        let report = verify_run(&run);
        prop_assert_eq!(read.len() as u64, report.events, "{}", report);
        prop_assert_eq!(&followed(&path), &read, "followed; {}", report);
    }
}
