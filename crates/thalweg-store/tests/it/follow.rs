//! A run is read while it is being written.

use crate::common::{Builder, SOURCES, config, directory, payload};
use std::time::Duration;
use thalweg_store::{End, Follow, Followed, RecorderConfig, RunState};
use thalweg_wire::EventId;

/// Timeout that only a follower that is never woken reaches.
const TIMEOUT: Duration = Duration::from_secs(60);

#[test]
fn a_follower_gets_every_event_of_a_run_and_its_end() {
    for direct in [true, false] {
        let directory = directory();
        let config = RecorderConfig { segment_bytes: 1 << 20, direct, ..config(directory.path()) };
        let mut builder = Builder::new(config, 4, 64 << 10);
        let mut follow = Follow::open(builder.recorder.run_path()).unwrap();
        std::thread::scope(|scope| {
            scope.spawn(move || {
                for event in 0..3000 {
                    builder.event(event, 700);
                    if event % 41 == 0 {
                        // Small blocks, so that the follower meets many of them half written.
                        builder.flush();
                    }
                }
                builder.finish();
            });
            for expected in 0..3000 {
                match follow.next_event(TIMEOUT).unwrap() {
                    Followed::Event(event) => {
                        assert_eq!(event.id, EventId(expected));
                        assert_eq!(event.fragments.len(), usize::from(SOURCES));
                        for fragment in &event.fragments {
                            assert_eq!(fragment.payload(), payload(expected, fragment.header.source, 700));
                        }
                    }
                    other => panic!("{other:?} instead of event {expected}"),
                }
            }
            assert!(matches!(follow.next_event(TIMEOUT), Ok(Followed::End(End::Finished))));
            assert!(matches!(follow.next_event(TIMEOUT), Ok(Followed::End(End::Finished))));
            assert_eq!(follow.run_info().state, RunState::Complete);
        });
    }
}

#[test]
fn a_follower_sees_what_is_on_disk_and_no_more() {
    let directory = directory();
    let mut builder = Builder::new(config(directory.path()), 4, 64 << 10);
    let mut follow = Follow::open(builder.recorder.run_path()).unwrap();
    assert!(matches!(follow.next_event(Duration::ZERO), Ok(Followed::Quiet)));
    builder.event(1, 100);
    assert!(matches!(follow.next_event(Duration::ZERO), Ok(Followed::Quiet)));
    builder.settle();
    assert!(matches!(follow.next_event(Duration::ZERO), Ok(Followed::Event(event)) if event.id == EventId(1)));
    assert!(matches!(follow.next_event(Duration::from_millis(1)), Ok(Followed::Quiet)));

    builder.event(2, 100);
    builder.settle();
    let mut late = Follow::open(builder.recorder.run_path()).unwrap();
    late.skip_to_now().unwrap();
    assert!(matches!(late.next_event(Duration::ZERO), Ok(Followed::Quiet)));
    builder.event(3, 100);
    builder.die();
    assert!(matches!(late.next_event(TIMEOUT), Ok(Followed::Event(event)) if event.id == EventId(3)));
    assert!(matches!(late.next_event(TIMEOUT), Ok(Followed::End(End::WriterGone))));
    for id in [2, 3] {
        assert!(matches!(follow.next_event(TIMEOUT), Ok(Followed::Event(event)) if event.id == EventId(id)));
    }
    assert!(matches!(follow.next_event(TIMEOUT), Ok(Followed::End(End::WriterGone))));
}

#[test]
fn what_is_skipped_may_lie_in_a_block_that_was_taken_in_already() {
    let directory = directory();
    let mut builder = Builder::new(config(directory.path()), 4, 64 << 10);
    (1..4).for_each(|event| builder.event(event, 100));
    builder.settle();
    let mut follow = Follow::open(builder.recorder.run_path()).unwrap();
    assert!(matches!(follow.next_event(Duration::ZERO), Ok(Followed::Event(event)) if event.id == EventId(1)));
    follow.skip_to_now().unwrap();
    assert!(matches!(follow.next_event(Duration::ZERO), Ok(Followed::Quiet)));
}
