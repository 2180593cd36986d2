//! Recorded data can be read back: by event, in order, from several segments, while it is written, by any reader.

use crate::common::{Builder, SOURCES, config, directory, payload};
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::path::Path;
use thalweg_arena::BlockPool;
use thalweg_store::format::{BlockHeader, BlockKind};
use thalweg_store::{
    BlockWriter, EngineChoice, EngineKind, Event, EventCounts, EventStatus, Recorder, RecorderConfig, Run, RunBegin,
    RunEnd, RunState, StoreError, Verdict, WriterLife, list_runs, verify_run,
};
use thalweg_testing::skip::skipped;
use thalweg_wire::{EventId, RunNumber, SourceId, Status, TaiNanos};

/// Checks an event that the model builder built, down to the last byte.
fn check(event: &Event, length: usize) {
    let sources: Vec<SourceId> = event.fragments.iter().map(|fragment| fragment.header.source).collect();
    assert_eq!(sources, (0..SOURCES).map(|element| SourceId::new(1, element)).collect::<Vec<_>>());
    for fragment in &event.fragments {
        assert_eq!(fragment.header.event, event.id);
        assert!(fragment.is_payload_intact());
        if fragment.header.status.contains(Status::MISSING) {
            assert_eq!((event.status, fragment.payload().len()), (EventStatus::Incomplete, 0));
        } else {
            assert_eq!(fragment.payload(), payload(event.id.0, fragment.header.source, length));
        }
    }
}

/// Records a run of 2000 events of 3 x 1000 bytes, in segments of 1 MiB.
fn record(config: RecorderConfig) -> std::path::PathBuf {
    let mut builder = Builder::new(RecorderConfig { segment_bytes: 1 << 20, ..config }, 4, 256 << 10);
    for event in 0..2000 {
        match event % 500 {
            17 => builder.incomplete_event(event, 1000),
            _ => builder.event(event, 1000),
        }
    }
    builder.finish().path
}

#[test]
fn every_method_of_the_recorder_writes_the_same_run() {
    let directory = directory();
    for (direct, engine) in [(true, EngineChoice::Best), (false, EngineChoice::Best), (true, EngineChoice::Threads)] {
        let path = record(RecorderConfig { direct, engine, ..config(directory.path()) });
        let run = Run::open(&path).unwrap();
        assert_eq!(run.run_info().recorder.direct, direct, "{:?}", run.run_info().recorder.notes);
        assert!(run.segment_count() > 5, "{} segments", run.segment_count());
        assert!(run.recovery_point().is_none() && run.writer_life().is_none());
        assert_eq!(run.len(), 2000);
        for (event, expected) in run.events().zip(0..) {
            let event = event.unwrap();
            assert_eq!(event.id, EventId(expected));
            check(&event, 1000);
        }
        assert_eq!(run.find_event(EventId(1017)).unwrap().unwrap().status, EventStatus::Incomplete);
        assert!(run.find_event(EventId(2000)).unwrap().is_none());
        let report = verify_run(&run);
        assert!(report.consistent, "{report}");
        assert_eq!((report.events, report.incomplete_events, report.unfinished_events), (2000, 4, 0));
        assert_eq!(report.verdict, Verdict::Incomplete { reasons: vec!["a source was missing".into()] });
        assert_eq!(
            (report.sources[0].recorded, report.sources[2].recorded, report.sources[2].missing),
            (2000, 1996, 4)
        );
    }
    let names = list_runs(&directory.path().join("runs")).unwrap();
    assert_eq!(names.iter().map(|listed| listed.run).collect::<Vec<_>>(), [1, 2, 3]);
    assert!(names.iter().all(|listed| listed.writer.is_none() && listed.bytes > 6_000_000));
}

#[test]
fn a_directory_with_a_run_is_listed_whatever_its_name() {
    let directory = directory();
    for _ in 0..2 {
        record(config(directory.path()));
    }
    let runs = directory.path().join("runs");
    std::fs::rename(runs.join("run-000002"), runs.join("d3")).unwrap();
    // A new run in progress, a run of another program, and a directory without a run.
    for (name, text) in [(".new", None), ("other", Some("{}")), ("empty", None)] {
        std::fs::create_dir(runs.join(name)).unwrap();
        text.into_iter().for_each(|text| std::fs::write(runs.join(name).join("run.json"), text).unwrap());
    }
    std::fs::copy(runs.join("d3/run.json"), runs.join(".new/run.json")).unwrap();
    let listed = list_runs(&runs).unwrap();
    let found: Vec<_> = listed.iter().map(|run| (run.run, run.path.clone(), run.state_text())).collect();
    assert_eq!(found, [(1, runs.join("run-000001"), "INCOMPLETE"), (2, runs.join("d3"), "INCOMPLETE")]);
    assert!(listed[0].has_numbered_name() && !listed[1].has_numbered_name());
}

#[test]
fn a_footer_has_the_time_of_the_last_block_before_it() {
    let directory = directory();
    let path = record(config(directory.path()));
    for number in 0..Run::open(&path).unwrap().segment_count() {
        let bytes = std::fs::read(path.join(format!("{number:05}.seg"))).unwrap();
        let (mut headers, mut at) = (Vec::new(), 0);
        while at < bytes.len() {
            headers.push(BlockHeader::decode(&bytes[at..]).unwrap());
            at += headers.last().unwrap().length as usize;
        }
        let [.., last, footer] = &headers[..] else { panic!("{} blocks", headers.len()) };
        assert_eq!((footer.kind, footer.written), (BlockKind::Footer, last.written));
    }
}

#[test]
fn fragments_outlive_the_run_they_were_read_from() {
    let directory = directory();
    let path = record(config(directory.path()));
    let run = Run::open(path.join("00000.seg")).unwrap();
    let event = run.find_event(EventId(3)).unwrap().unwrap();
    drop(run);
    std::fs::remove_dir_all(path).unwrap();
    check(&event, 1000);
}

#[test]
fn events_come_in_order_however_they_were_closed() {
    let directory = directory();
    let mut builder = Builder::new(config(directory.path()), 4, 64 << 10);
    // Fragments of an event are in different blocks, and events are closed from the highest to the lowest, in steps.
    for element in 0..SOURCES {
        for event in 0..300 {
            builder.fragment(event, SourceId::new(1, element), 500);
        }
    }
    for event in (0..300).rev() {
        builder.close(event * 7 % 300, EventStatus::Complete);
    }
    let run = Run::open(builder.finish().path).unwrap();
    let ids: Vec<u64> =
        run.events().map(|event| event.unwrap()).inspect(|event| check(event, 500)).map(|e| e.id.0).collect();
    assert_eq!(ids, (0..300).collect::<Vec<_>>());
    for first in [0, 1, 150, 299, 300, u64::MAX] {
        assert!(run.event_ids_from(EventId(first)).map(|(id, _)| id.0).eq(first..300));
    }
    assert!(verify_run(&run).consistent, "{}", verify_run(&run));
}

#[test]
fn a_run_without_events_is_a_run() {
    let directory = directory();
    let run = Run::open(Builder::new(config(directory.path()), 2, 64 << 10).finish().path).unwrap();
    assert!(run.is_empty() && run.events().next().is_none());
    let report = verify_run(&run);
    assert!(report.consistent, "{report}");
    assert_eq!((report.verdict, report.segments), (Verdict::Complete, 1));
}

#[test]
fn numbers_are_taken_once() {
    let directory = directory();
    let mut pool = BlockPool::new("test", 1, 64 << 10).unwrap();
    let mut create = |run, builder, builders| {
        let run = RecorderConfig { run, builder, builders, ..config(directory.path()) };
        Recorder::create_run(run, &mut pool).map(|recorder| recorder.run_path().file_name().unwrap().to_owned())
    };
    assert_eq!(create(None, 0, 1).unwrap(), "run-000001");
    assert_eq!(create(Some(RunNumber(42)), 0, 1).unwrap(), "run-000042");
    assert!(matches!(create(Some(RunNumber(42)), 0, 1), Err(StoreError::Exists(_))));
    assert_eq!(create(None, 0, 1).unwrap(), "run-000043");
    assert_eq!(create(Some(RunNumber(7)), 2, 3).unwrap(), "run-000007-b2");
    assert!(matches!(create(None, 3, 3), Err(StoreError::Builder { builder: 3, builders: 3 })));
    assert_eq!(create(Some(RunNumber(u32::MAX)), 0, 1).unwrap(), "run-4294967295");
    assert!(matches!(create(None, 0, 1), Err(StoreError::NoNumber(_))));
}

#[test]
fn blocks_that_cannot_be_recorded_are_refused() {
    let directory = directory();
    let mut small = BlockPool::new("test", 1, 4096).unwrap();
    let refused = Recorder::create_run(config(directory.path()), &mut small).unwrap_err();
    assert!(matches!(refused, StoreError::BlockSize(4096)));
    assert!(!directory.path().join("runs").exists(), "a refusal leaves nothing behind");
}

#[test]
fn a_run_that_follows_another_at_once_may_begin_or_leave_nothing_behind() {
    let directory = directory();
    let mut pool = BlockPool::new("test", 2, 64 << 10).unwrap();
    let _taken = pool.take_block();
    let recorder = Recorder::create_run(config(directory.path()), &mut pool).unwrap();
    let method = recorder.recorder_method();
    assert!(!method.registered, "blocks of the run before cannot be registered");
    let is_noted = method.notes.iter().any(|note| note.contains("1 of its 2 blocks were in use by the run before"));
    assert!(is_noted || method.engine == thalweg_store::EngineKind::Threads, "{:?}", method.notes);
    let path = recorder.run_path().to_owned();
    recorder.discard_run();
    assert!(!path.exists(), "a run that does not begin after all leaves its number to another");
    let again = Recorder::create_run(config(directory.path()), &mut pool).unwrap();
    assert_eq!(again.run_path(), path);
}

#[test]
fn an_empty_block_comes_back_unwritten() {
    let directory = directory();
    let mut pool = BlockPool::new("test", 1, 64 << 10).unwrap();
    let mut recorder = Recorder::create_run(config(directory.path()), &mut pool).unwrap();
    recorder.submit_block(BlockWriter::new(pool.take_block().unwrap()), TaiNanos(0));
    let mut fds = [rustix::event::PollFd::new(&recorder, rustix::event::PollFlags::IN)];
    assert_eq!(rustix::event::poll(&mut fds, None), Ok(1), "the caller is woken for it");
    let finished = recorder.reap_block().unwrap();
    assert!(finished.result.is_ok() && recorder.reap_block().is_none());
    assert_eq!(recorder.run_info().totals.blocks, 0);
}

#[test]
fn a_block_that_io_uring_refused_is_lost_with_a_reason_and_never_written_later() {
    let directory = directory();
    let mut pool = BlockPool::new("test", 2, 64 << 10).unwrap();
    let nobody = RecorderConfig { begin: RunBegin::default(), ..config(directory.path()) };
    let mut recorder = Recorder::create_run(nobody, &mut pool).unwrap();
    if recorder.recorder_method().engine != EngineKind::IoUring {
        return skipped(format_args!("no io_uring: {}", recorder.recorder_method()));
    }
    let mut submit = |recorder: &mut Recorder, event: u64| {
        let mut block = BlockWriter::new(pool.take_block().unwrap());
        assert!(block.close_event(EventId(event), 1, EventStatus::Complete));
        recorder.submit_block(block, TaiNanos(event));
    };
    submit(&mut recorder, 0);
    let first = recorder.wait_for_block().unwrap().unwrap();
    assert!(first.result.is_ok());

    // Operations under way are cancelled when the last descriptor is closed.
    let _ring = recorder.as_fd().try_clone_to_owned().unwrap();
    let refusal = Refusal::of(&recorder);
    submit(&mut recorder, 1);
    let refused = recorder.reap_block().expect("it comes back at once");
    assert!(recorder.reap_block().is_none());
    let error = refused.result.unwrap_err().to_string();
    assert!(error.contains("00000.seg"), "{error}");
    // The block's memory is reused for something else.
    let mut block = refused.block.into_block();
    block.bytes_mut().fill(0xee);
    // The number of its file, which was closed, now belongs to one of these files.
    let others: Vec<_> = (0..8).map(|_| tempfile::tempfile_in(directory.path()).unwrap()).collect();
    drop(refusal);

    // From here on the kernel would accept operations again.
    let mut third = BlockWriter::new(first.block.into_block());
    assert!(third.close_event(EventId(2), 1, EventStatus::Complete));
    recorder.submit_block(third, TaiNanos(2));
    assert!(recorder.wait_for_block().unwrap().unwrap().result.is_err(), "nothing is written behind a gap");
    let end = RunEnd {
        ended: TaiNanos(2_000_000_000),
        seconds: 2.0,
        state: RunState::Complete,
        reasons: Vec::new(),
        events: EventCounts { built: 1, incomplete: 0 },
        times: Default::default(),
        steps: Vec::new(),
        trigger: serde_json::Value::Null,
        left_out: serde_json::Value::Null,
        time_use: serde_json::Value::Null,
        ledger: serde_json::Value::Array(Vec::new()),
    };
    let finished = recorder.finish_run(end).unwrap();
    assert_eq!(finished.info.state, RunState::Incomplete);
    assert!(finished.info.reasons.contains(&error), "{:?}", finished.info.reasons);
    assert_eq!((finished.info.totals.blocks, finished.info.totals.events), (1, 1));
    // A write that was submitted all the same would be done by the time another run is written.
    record(config(directory.path()));
    let bytes = std::fs::read(finished.path.join("00000.seg")).unwrap();
    assert!(!bytes.windows(64).any(|bytes| bytes == [0xee; 64]), "memory that was freed is in the file");
    let lengths: Vec<_> = others.iter().map(|other| other.metadata().unwrap().len()).collect();
    assert_eq!(lengths, [0; 8], "memory that was freed is in somebody else's file");
    let run = Run::open(&finished.path).unwrap();
    assert_eq!(run.events().map(|event| event.unwrap().id).collect::<Vec<_>>(), [EventId(0)]);
    assert!(verify_run(&run).consistent, "{}", verify_run(&run));
    drop(block);
}

/// Makes io_uring refuse all operations while it exists: the recorder's descriptor refers to another file.
struct Refusal {
    number: RawFd,
    ring: OwnedFd,
}

impl Refusal {
    fn of(recorder: &Recorder) -> Self {
        let ring = recorder.as_fd().try_clone_to_owned().unwrap();
        let number = recorder.as_fd().as_raw_fd();
        Self::lead(number, &std::fs::File::open("/dev/null").unwrap());
        Self { number, ring }
    }

    fn lead(number: RawFd, to: &impl AsRawFd) {
        // SAFETY: the number stays open, and its owner only notices that it is another file.
        assert_eq!(unsafe { libc::dup2(to.as_raw_fd(), number) }, number);
    }
}

impl Drop for Refusal {
    fn drop(&mut self) {
        Self::lead(self.number, &self.ring);
    }
}

#[test]
fn a_run_being_written_says_so() {
    let directory = directory();
    let mut builder = Builder::new(config(directory.path()), 4, 64 << 10);
    (0..100).for_each(|event| builder.event(event, 1000));
    builder.settle();
    let run = Run::open(builder.recorder.run_path()).unwrap();
    assert_eq!((run.run_info().state, run.writer_life()), (RunState::Open, Some(WriterLife::Writing)));
    let report = verify_run(&run);
    assert!(report.consistent && report.verdict == Verdict::Open { writer: WriterLife::Writing }, "{report}");
    assert_eq!(report.events, 100);
    let listed = list_runs(&directory.path().join("runs")).unwrap();
    assert_eq!(listed[0].writer, Some(WriterLife::Writing));
    drop(builder);
    assert_eq!(list_runs(&directory.path().join("runs")).unwrap()[0].writer, Some(WriterLife::Gone));
}

#[test]
fn refusing_io_direct_shows() {
    // The file system ramfs does not support O_DIRECT.
    let directory = directory();
    let mounted = match Mount::new("ramfs", directory.path(), "") {
        Ok(mounted) => mounted,
        Err(reason) => return skipped(format_args!("mounting a ramfs: {reason}")),
    };
    let path = record(config(mounted.0));
    let run = Run::open(&path).unwrap();
    assert!(!run.run_info().recorder.direct);
    assert!(run.run_info().recorder.notes[0].contains("O_DIRECT"), "{:?}", run.run_info().recorder.notes);
    assert!(verify_run(&run).consistent, "{}", verify_run(&run));
}

#[test]
fn a_limit_on_locked_memory_shows() {
    let directory = directory();
    let path = directory.path();
    let thread = std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            // Capabilities belong to a thread: the other threads keep theirs.
            let none = rustix::thread::CapabilitySet::empty();
            let sets = rustix::thread::CapabilitySets { effective: none, permitted: none, inheritable: none };
            rustix::thread::set_capabilities(None, sets).map_err(|error| error.to_string())?;
            let limit = rustix::process::getrlimit(rustix::process::Resource::Memlock).current;
            if limit.is_none_or(|bytes| bytes > 32 << 20) {
                return Err(format!("RLIMIT_MEMLOCK is {limit:?}"));
            }
            let mut pool = BlockPool::new("test", 12, 4 << 20).unwrap();
            Ok(Recorder::create_run(config(path), &mut pool).unwrap().recorder_method().clone())
        });
        thread.join().unwrap()
    });
    match thread {
        Err(reason) => skipped(reason),
        Ok(method) if method.engine == EngineKind::Threads => skipped(format_args!("no io_uring: {method}")),
        Ok(method) => {
            assert!(!method.registered);
            assert!(method.notes[0].contains("RLIMIT_MEMLOCK"), "{:?}", method.notes);
        }
    }
}

/// A file system mounted for the duration of a test.
struct Mount<'a>(&'a Path);

impl<'a> Mount<'a> {
    fn new(kind: &str, at: &'a Path, options: &str) -> Result<Self, String> {
        let options = std::ffi::CString::new(options).unwrap();
        rustix::mount::mount(kind, at, kind, rustix::mount::MountFlags::empty(), Some(options.as_c_str()))
            .map(|()| Self(at))
            .map_err(|error| error.to_string())
    }
}

impl Drop for Mount<'_> {
    fn drop(&mut self) {
        let _ = rustix::mount::unmount(self.0, rustix::mount::UnmountFlags::DETACH);
    }
}
