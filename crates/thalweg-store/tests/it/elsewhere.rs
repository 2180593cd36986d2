//! A run whose files are elsewhere is the same run: only the data fetched, and its amount, differ.

use crate::common::{Builder, SOURCES, config, memory_directory, payload};
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use thalweg_store::{
    End, Event, Follow, Followed, Fragment, RecorderConfig, Run, RunFiles, RunState, StoreError, verify_run,
};
use thalweg_wire::EventId;

/// Files of a run in memory, as a server would serve them, and a record of the reads.
#[derive(Debug)]
struct Memory {
    path: PathBuf,
    files: Mutex<BTreeMap<String, Vec<u8>>>,
    /// File, offset and length of each read.
    asked: Mutex<Vec<(String, u64, usize)>>,
    /// Length of the first segment in the list of files, if it is longer by the time it is read.
    listed: Mutex<Option<u64>>,
}

impl Memory {
    fn copy_of(directory: &Path) -> Arc<Self> {
        let memory = Self {
            path: "http://daq-0/runs/1".into(),
            files: Mutex::default(),
            asked: Mutex::default(),
            listed: Mutex::default(),
        };
        memory.copy_again(directory);
        Arc::new(memory)
    }

    fn copy_again(&self, directory: &Path) {
        let files = std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
        let named =
            files.map(|file| (file.file_name().unwrap().to_str().unwrap().to_owned(), std::fs::read(&file).unwrap()));
        *self.files.lock().unwrap() = named.collect();
    }

    fn change(&self, file: &str, how: impl FnOnce(&mut Vec<u8>)) {
        how(self.files.lock().unwrap().get_mut(file).unwrap());
    }

    /// Returns the reads since the last call.
    fn asked(&self) -> Vec<(String, u64, usize)> {
        std::mem::take(&mut self.asked.lock().unwrap())
    }
}

impl RunFiles for Memory {
    fn display_path(&self) -> &Path {
        &self.path
    }

    fn read_run_json(&self) -> io::Result<Vec<u8>> {
        self.files.lock().unwrap().get("run.json").cloned().ok_or(io::ErrorKind::NotFound.into())
    }

    fn list_files(&self) -> io::Result<Vec<(String, u64)>> {
        let files = self.files.lock().unwrap();
        let listed = self.listed.lock().unwrap();
        let length = |name: &str, bytes: &[u8]| listed.filter(|_| name == "00000.seg").unwrap_or(bytes.len() as u64);
        Ok(files.iter().map(|(name, bytes)| (name.clone(), length(name, bytes))).collect())
    }

    fn read_file_at(&self, file: &str, offset: u64, into: &mut [u8]) -> io::Result<usize> {
        self.asked.lock().unwrap().push((file.to_owned(), offset, into.len()));
        let files = self.files.lock().unwrap();
        let bytes = files.get(file).ok_or(io::ErrorKind::NotFound)?;
        let from = bytes.len().min(offset as usize);
        let there = into.len().min(bytes.len() - from);
        into[..there].copy_from_slice(&bytes[from..from + there]);
        Ok(there)
    }
}

/// Records events with payloads of these lengths; every seventh event lacks a source.
fn record(directory: &Path, lengths: &[usize], block: usize, segment: u64) -> Builder {
    let mut builder = Builder::new(RecorderConfig { segment_bytes: segment, ..config(directory) }, 4, block);
    for (event, length) in (0..).zip(lengths) {
        match event % 7 {
            3 => builder.incomplete_event(event, *length),
            _ => builder.event(event, *length),
        }
    }
    builder
}

/// Returns the records of an event.
fn records(event: &Event) -> Vec<Vec<u8>> {
    let fragments = event.fragments.iter();
    fragments.map(|fragment| [&fragment.header.encode()[..], fragment.payload()].concat()).collect()
}

fn same(here: &Run, elsewhere: &Run) {
    assert_eq!(elsewhere.run_info(), here.run_info());
    assert_eq!(elsewhere.builder_parts()[0].event_closings(), here.builder_parts()[0].event_closings());
    assert_eq!(
        (elsewhere.len(), elsewhere.segment_count(), elsewhere.data_bytes()),
        (here.len(), here.segment_count(), here.data_bytes())
    );
    let end = |run: &Run| run.recovery_point().map(|at| (at.blocks, at.segment.clone(), at.offset, at.is_end));
    assert_eq!(end(elsewhere), end(here));
    let place =
        |run: &Run| run.data_blocks().iter().map(|block| (block.number(), block.file_offset())).collect::<Vec<_>>();
    assert_eq!(place(elsewhere), place(here));
    let mut events = elsewhere.events();
    for event in here.events() {
        let (event, fetched) = (event.unwrap(), events.next().unwrap().unwrap());
        assert_eq!((fetched.id, fetched.status, records(&fetched)), (event.id, event.status, records(&event)));
    }
    assert!(events.next().is_none());
    let (found, expected) = (verify_run(elsewhere), verify_run(here));
    assert_eq!(
        (found.consistent, found.fragments, found.problem_count),
        (expected.consistent, expected.fragments, expected.problem_count)
    );
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    /// Holds for any recorded data, closed or not, in any number of segments, cut off anywhere by a dying writer.
    #[test]
    fn a_run_elsewhere_is_the_run_here(
        lengths in prop::collection::vec(0..3000usize, 0..120),
        block in prop::sample::select(vec![16usize << 10, 64 << 10]),
        segment in prop::sample::select(vec![64u64 << 10, 256 << 10]),
        cut in prop::option::of(any::<prop::sample::Index>()),
    ) {
        let directory = memory_directory();
        let builder = record(directory.path(), &lengths, block, segment);
        let path = match cut {
            None => builder.finish().path,
            Some(cut) => {
                let path = builder.die();
                let segments = Run::open(&path).unwrap().segment_count();
                let last = path.join(format!("{:05}.seg", segments.saturating_sub(1)));
                let length = std::fs::metadata(&last).unwrap().len();
                let file = std::fs::File::options().write(true).open(&last).unwrap();
                file.set_len(cut.index(usize::try_from(length).unwrap().min(300 << 10) + 1) as u64).unwrap();
                path
            }
        };
        same(&Run::open(&path).unwrap(), &Run::open_remote(Memory::copy_of(&path)).unwrap());
    }

    /// No response of a server crashes a reader.
    #[test]
    fn a_server_that_lies_gets_errors(
        noise in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8),
        length in prop::option::of(any::<prop::sample::Index>()),
    ) {
        let directory = memory_directory();
        let path = record(directory.path(), &[500; 40], 16 << 10, 64 << 10).finish().path;
        let memory = Memory::copy_of(&path);
        memory.change("00000.seg", |bytes| {
            noise.iter().for_each(|(at, byte)| *at.get_mut(bytes) ^= byte);
            bytes.truncate(length.map_or(bytes.len(), |length| length.index(bytes.len())));
        });
        if let Ok(run) = Run::open_remote(memory) {
            // An event is as it was recorded, or an error.
            for event in run.events().take(100).flatten() {
                for fragment in event.fragments {
                    let length = fragment.payload().len();
                    prop_assert_eq!(fragment.payload(), payload(event.id.0, fragment.header.source, length));
                }
            }
            verify_run(&run);
        }
    }
}

#[test]
fn a_run_is_opened_by_its_footers_and_each_block_is_fetched_once() {
    let directory = memory_directory();
    let path = record(directory.path(), &[1000; 500], 64 << 10, 512 << 10).finish().path;
    let memory = Memory::copy_of(&path);
    let run = Run::open_remote(Arc::clone(&memory) as _).unwrap();
    let opened = memory.asked();
    assert_eq!(opened.len(), run.segment_count() as usize, "{opened:?}");
    assert_eq!(opened.iter().filter(|(_, _, length)| *length > 64 << 10).count(), 0);

    let pinned: Vec<Event> = run.events().map(Result::unwrap).collect();
    let mut fetched: Vec<_> = memory.asked().into_iter().map(|(file, offset, _)| (file, offset)).collect();
    fetched.sort();
    let blocks = run.data_blocks().into_iter();
    let expected: Vec<_> = blocks
        .map(|block| (block.file_path().file_name().unwrap().to_str().unwrap().to_owned(), block.file_offset()))
        .collect();
    assert!(expected.len() > 20);
    assert_eq!(fetched, expected);

    // Data still in use is not fetched again, and it outlives the run.
    assert_eq!(run.find_event(EventId(7)).unwrap().unwrap().fragments.len(), usize::from(SOURCES));
    assert_eq!(memory.asked(), []);
    drop(run);
    let first = &pinned[0].fragments[0];
    assert_eq!(first.payload(), payload(0, first.header.source, 1000));
}

#[test]
fn a_fragment_can_be_taken_away_as_a_copy_of_its_record() {
    let directory = memory_directory();
    let run = Run::open(record(directory.path(), &[1000], 64 << 10, 1 << 20).finish().path).unwrap();
    let fragment = &run.find_event(EventId(0)).unwrap().unwrap().fragments[1];
    let record = [&fragment.header.encode()[..], fragment.payload()].concat();
    let copy = Fragment::from_record(record.clone()).unwrap();
    assert_eq!((copy.header, copy.payload()), (fragment.header, fragment.payload()));
    for wrong in [&record[..record.len() - 1], &record[..64], &record[..10], &[], &record[64..]] {
        assert!(Fragment::from_record(wrong.to_vec()).is_none());
    }
}

#[test]
fn an_event_in_the_middle_takes_its_block_and_no_other() {
    let directory = memory_directory();
    let path = record(directory.path(), &[1000; 500], 64 << 10, 4 << 20).finish().path;
    let memory = Memory::copy_of(&path);
    let run = Run::open_remote(Arc::clone(&memory) as _).unwrap();
    memory.asked();
    run.find_event(EventId(250)).unwrap().unwrap();
    let asked = memory.asked();
    // An event may lie across two blocks.
    assert!(asked.len() <= 2 && asked.iter().all(|(_, _, length)| *length <= 64 << 10), "{asked:?}");
}

#[test]
fn a_run_that_is_being_recorded_is_opened_by_headers_and_tables() {
    let directory = memory_directory();
    let path = record(directory.path(), &[3000; 100], 64 << 10, 16 << 20).die();
    let memory = Memory::copy_of(&path);
    let run = Run::open_remote(Arc::clone(&memory) as _).unwrap();
    let bytes: usize = memory.asked().iter().map(|(_, _, length)| length).sum();
    assert!(run.data_blocks().len() > 10 && run.recovery_point().is_some_and(|at| at.is_end));
    assert!((bytes as u64) < 100_000 && run.data_bytes() > 800_000, "{bytes} of {} bytes", run.data_bytes());
    same(&Run::open(&path).unwrap(), &run);
}

#[test]
fn what_arrives_damaged_is_told_and_asked_for_again() {
    let directory = memory_directory();
    let path = record(directory.path(), &[1000; 10], 64 << 10, 4 << 20).finish().path;
    let memory = Memory::copy_of(&path);
    let run = Run::open_remote(Arc::clone(&memory) as _).unwrap();
    memory.change("00000.seg", |bytes| bytes[5000] ^= 1);
    let error = run.find_event(EventId(0)).unwrap_err();
    assert!(matches!(error, StoreError::Format { offset: 0, .. }), "{error}");
    assert!(error.to_string().starts_with("http://daq-0/runs/1/00000.seg at byte 0: block body CRC32C"), "{error}");
    memory.change("00000.seg", |bytes| bytes[5000] ^= 1);
    assert!(run.find_event(EventId(0)).unwrap().is_some());

    memory.files.lock().unwrap().clear();
    let error = Run::open_remote(memory).unwrap_err();
    assert_eq!(error.to_string(), "http://daq-0/runs/1 is not a run: it has no run.json");
}

#[test]
fn threads_share_what_one_of_them_fetches() {
    let directory = memory_directory();
    let path = record(directory.path(), &[1000; 500], 64 << 10, 512 << 10).finish().path;
    let memory = Memory::copy_of(&path);
    let run = Run::open_remote(Arc::clone(&memory) as _).unwrap();
    memory.asked();
    let seen = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..4).map(|_| scope.spawn(|| run.events().map(Result::unwrap).count())).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect::<Vec<_>>()
    });
    assert_eq!(seen, [500; 4]);
    assert_eq!(memory.asked().len(), run.data_blocks().len());
}

#[test]
fn a_run_elsewhere_is_followed_to_its_end() {
    let directory = memory_directory();
    let mut builder = record(directory.path(), &[700; 50], 64 << 10, 128 << 10);
    builder.settle();
    let memory = Memory::copy_of(builder.recorder.run_path());
    let mut follow = Follow::open_remote(Arc::clone(&memory) as _).unwrap();
    let mut next = |timeout| follow.next_event(timeout).unwrap();
    for expected in 0..50 {
        assert!(matches!(next(Duration::ZERO), Followed::Event(event) if event.id == EventId(expected)));
    }
    assert!(matches!(next(Duration::ZERO), Followed::Quiet));
    // No new data: a server is not asked again before it is due, which it may be once or twice meanwhile.
    memory.asked();
    (0..100).for_each(|_| assert!(matches!(next(Duration::ZERO), Followed::Quiet)));
    assert!(memory.asked().len() < 50);

    for event in 50..200 {
        builder.event(event, 700);
    }
    let finished = builder.finish();
    memory.copy_again(&finished.path);
    let timeout = Duration::from_secs(60);
    for expected in 50..200 {
        assert!(matches!(next(timeout), Followed::Event(event) if event.id == EventId(expected)));
    }
    assert!(matches!(next(timeout), Followed::End(End::Finished)));
    assert_eq!(follow.run_info().state, RunState::Incomplete);
}

/// Opening a run that is written faster than it is read comes to an end.
#[test]
fn what_is_written_while_a_run_is_opened_is_not_waited_for() {
    let directory = memory_directory();
    let path = record(directory.path(), &[700; 200], 64 << 10, 1 << 20).die();
    let whole = Run::open(&path).unwrap();
    assert!(whole.data_blocks().len() > 3);
    let memory = Memory::copy_of(&path);
    for blocks in 0..3 {
        *memory.listed.lock().unwrap() = Some(whole.data_blocks()[blocks].file_offset());
        let run = Run::open_remote(memory.clone()).unwrap();
        assert_eq!(run.data_blocks().len(), blocks);
        assert!(run.recovery_point().unwrap().is_end);
    }
}
