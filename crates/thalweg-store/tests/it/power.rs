//! Data on the disk after a power failure during a run.

use crate::common::{Builder, config, memory_directory, payload};
use std::collections::BTreeSet;
use std::time::Duration;
use thalweg_store::{Access, Disk, RecorderConfig, Run, SimulatedDisk};

/// A recorder with a simulated disk, and the time of that disk.
struct World {
    disk: SimulatedDisk,
    builder: Builder,
    now: Duration,
}

impl World {
    /// Completes all operations that are under way.
    fn pass(&mut self) {
        while self.step() {}
    }

    /// Completes the next operation; returns false if none is under way.
    fn step(&mut self) -> bool {
        let Some(at) = self.disk.next_completion_time() else { return false };
        self.now = self.now.max(at);
        self.disk.advance_time_to(self.now);
        while let Some(finished) = self.builder.recorder.reap_block() {
            self.builder.pool.return_block(finished.block.into_block());
        }
        true
    }
}

#[test]
fn what_was_synced_in_a_run_is_there_after_a_power_failure_in_later_segments_too() {
    let access = Access {
        latency: Duration::from_micros(100),
        jitter: Duration::from_micros(300),
        per_mebibyte: Duration::from_millis(1),
    };
    for seed in 0..40 {
        let folder = memory_directory();
        let disk = SimulatedDisk::new(access, seed);
        let config = RecorderConfig {
            disk: Disk::Simulated(disk.clone()),
            segment_bytes: 64 << 10,
            direct: false,
            ..config(folder.path())
        };
        let mut world = World { disk, builder: Builder::new(config, 64, 32 << 10), now: Duration::ZERO };
        let mut synced = 0;
        for events in [0..10, 10..45, 45..46] {
            events.clone().for_each(|event| world.builder.event(event, 1000));
            world.builder.flush();
            world.pass();
            assert!(world.builder.recorder.unsynced_bytes() > 0);
            if events.end == 45 {
                world.builder.recorder.begin_sync();
                assert_eq!(world.builder.recorder.unsynced_bytes(), 0, "it is under way");
                world.pass();
                synced = events.end;
            }
        }
        let left = folder.path().join("left");
        world.disk.write_after_power_failure(&folder.path().join("runs"), &left, seed).unwrap();
        let run = Run::open(left.join("run-000001")).unwrap();
        assert!(run.segment_count() > 1);
        let there: BTreeSet<u64> = run
            .events()
            .flatten()
            .map(|event| {
                for fragment in &event.fragments {
                    assert_eq!(fragment.payload(), payload(event.id.0, fragment.header.source, 1000));
                }
                event.id.0
            })
            .collect();
        let lost = (0..synced).find(|event| !there.contains(event));
        assert_eq!(lost, None, "seed {seed}");
    }
}

#[test]
fn a_disk_that_closes_files_more_slowly_than_they_fill_holds_few_of_them_open() {
    let access =
        Access { latency: Duration::from_millis(1), jitter: Duration::ZERO, per_mebibyte: Duration::from_millis(1) };
    let folder = memory_directory();
    let disk = SimulatedDisk::new(access, 1);
    // Two blocks fill a segment.
    let config = RecorderConfig {
        disk: Disk::Simulated(disk.clone()),
        segment_bytes: 32 << 10,
        direct: false,
        ..config(folder.path())
    };
    let mut world = World { disk, builder: Builder::new(config, 64, 32 << 10), now: Duration::ZERO };
    for event in 0..40 {
        world.builder.event(event, 4000);
        world.builder.flush();
    }
    assert_eq!(world.builder.recorder.blocks_in_flight(), 40);
    let segments = || {
        let names = std::fs::read_dir(folder.path().join("runs/run-000001")).unwrap().flatten();
        names.filter(|entry| entry.path().extension().is_some_and(|ending| ending == "seg")).count()
    };
    while segments() == 1 {
        world.step();
    }
    assert_eq!(segments(), 8, "blocks of others wait");
    world.pass();
    assert_eq!((world.builder.recorder.blocks_in_flight(), segments()), (0, 20));
}
