//! Level 2 and the event filter, in single situations. Source 0 is fetched from first.

use crate::build::rig::*;
use thalweg_core::build::{BuilderConfig, Hold, Missing, TriggerCounts};
use thalweg_wire::{EventId, Status};

/// Returns a builder with a level 2 that decides on the fragments of source 0.
fn rig(sources: u16) -> Rig {
    Rig::new(BuilderConfig { level2: vec![0], ..config(sources) })
}

/// Makes level 2 accept these events, and reject all others that it can decide on now.
fn decide(rig: &mut Rig, accepted: &[u64]) -> Vec<u64> {
    let decided: Vec<u64> = std::iter::from_fn(|| {
        let event = rig.builder.next_decision()?;
        rig.builder.decide_event(event, accepted.contains(&event.0));
        Some(event.0)
    })
    .collect();
    rig.fetch_all();
    decided
}

fn triggered(level1: u64, level2: u64, filter: u64, unasked_bytes: u64) -> TriggerCounts {
    TriggerCounts { level1, level2, filter, unasked_bytes }
}

#[test]
fn the_others_are_asked_where_level_2_accepts() {
    let mut rig = rig(3);
    // The others come first, and are not fetched from.
    for event in 0..2 {
        rig.offer(1, event, 1);
        rig.offer(2, event, 1);
    }
    assert_eq!(rig.ask(), None);
    rig.offer(0, 0, 1);
    rig.offer(0, 1, 1);
    rig.fetch_all();
    assert_eq!(rig.recorded.len(), 2, "only what level 2 looks at");
    assert_eq!(decide(&mut rig, &[1]), [0, 1]);
    assert_eq!(rig.closed(), [(1, 1, vec![])], "what is rejected is not closed");
    assert_eq!(rig.recorded.len(), 4);
    for source in 0..3 {
        assert_eq!(rig.builder.next_release(source), Some(2), "what was not asked for is released, too");
        rig.end(source, 2);
    }
    rig.assert_finished();
    for line in rig.ledger().sources {
        assert_eq!((line.recorded, line.rejected), (1, 1));
    }
    assert_eq!(rig.ledger().incomplete_reasons(false), Vec::<String>::new());
    assert_eq!(rig.builder.trigger_counts(), triggered(2, 1, 1, 2 * slot(1, [0]).len() as u64));
    assert_eq!(rig.builder.event_counts(), (1, 0));
}

#[test]
fn what_level_2_rejected_before_the_others_mention_it_is_released_as_it_is_offered() {
    let mut rig = rig(2);
    rig.offer(0, 0, 3);
    rig.fetch_all();
    assert_eq!(decide(&mut rig, &[2]), [0, 1, 2]);
    rig.offer(1, 0, 1);
    assert_eq!((rig.ask(), rig.builder.next_release(1)), (None, Some(1)));
    // Shared with one that is wanted, it is fetched and let go.
    rig.offer(1, 1, 2);
    assert_eq!(rig.ask(), Some((1, 1, 1, 2)));
    rig.arrive(1, 1, &slot(1, 1..3));
    assert_eq!(rig.closed(), [(2, 1, vec![])]);
    assert!(!rig.recorded.contains_key(&(1, 1)));
    (0..2).for_each(|source| rig.end(source, 3));
    rig.assert_finished();
    let line = &rig.ledger().sources[1];
    assert_eq!((line.recorded, line.rejected, line.late), (1, 2, 0));
}

#[test]
fn an_event_that_is_rejected_does_not_wait_for_others_in_its_slot() {
    let mut rig = rig(2);
    rig.offer(1, 0, 3);
    rig.offer(0, 0, 1);
    rig.fetch_all();
    assert_eq!(decide(&mut rig, &[]), [0]);
    // Event 0 is over: there is room for an eighth open event.
    assert_eq!(rig.builder.oldest_event(), EventId(1));
    assert_eq!(rig.builder.next_release(1), None);
    rig.offer(0, 1, 2);
    rig.fetch_all();
    // Its fragment comes along with another that is wanted, and stays counted as it was.
    assert_eq!(decide(&mut rig, &[2]), [1, 2]);
    assert_eq!(rig.closed(), [(2, 1, vec![])]);
    (0..2).for_each(|source| rig.end(source, 3));
    rig.assert_finished();
    let line = &rig.ledger().sources[1];
    assert_eq!((line.recorded, line.rejected), (1, 2));
    assert_eq!(rig.builder.trigger_counts(), triggered(3, 1, 1, 0));
}

#[test]
fn what_was_rejected_is_not_lost_or_dropped_as_well() {
    for dies in [true, false] {
        let mut rig = rig(2);
        rig.offer(1, 0, 2);
        rig.offer(0, 0, 1);
        rig.fetch_all();
        assert_eq!(decide(&mut rig, &[]), [0]);
        if dies {
            rig.builder.give_up_source(1, rig.now);
        } else {
            assert!(!rig.drop_oldest(1, 0, 0, 2));
        }
        let line = &rig.ledger().sources[1];
        assert_eq!((line.rejected, line.lost + line.dropped_oldest), (1, 1));
        rig.offer(0, 1, 1);
        rig.fetch_all();
        // Rejected as well: a missing fragment does not matter then.
        assert_eq!(decide(&mut rig, &[]), [1]);
        assert_eq!(rig.closed(), []);
        assert_eq!(rig.builder.event_counts(), (0, 0), "an event that is rejected is not incomplete");
        (0..2).for_each(|source| rig.end(source, 2));
        rig.assert_finished();
    }
}

#[test]
fn level_2_decides_on_what_there_is_when_its_source_is_silent_or_has_nothing() {
    let mut rig = rig(2);
    rig.offer(1, 0, 2);
    rig.drop_newest(0, 0, 1);
    assert_eq!(decide(&mut rig, &[]), [0]);
    rig.wait(DEADLINE);
    assert_eq!(decide(&mut rig, &[1]), [1]);
    assert_eq!(rig.closed(), [(1, 1, vec![(0, Status::TIMED_OUT)])]);
    (0..2).for_each(|source| rig.end(source, 1 + source as u64));
    rig.assert_finished();
}

#[test]
fn an_event_is_decided_on_once() {
    let mut rig = rig(2);
    rig.builder.decide_event(EventId(0), true);
    rig.offer(0, 0, 2);
    rig.builder.decide_event(EventId(7), false);
    rig.fetch_all();
    assert_eq!(decide(&mut rig, &[0]), [0, 1]);
    for (event, accept) in [(0, false), (1, true), (u64::MAX, true)] {
        rig.builder.decide_event(EventId(event), accept);
    }
    rig.offer(1, 0, 2);
    rig.fetch_all();
    assert_eq!(rig.closed(), [(0, 1, vec![])]);
    (0..2).for_each(|source| rig.end(source, 2));
    rig.assert_finished();
}

#[test]
fn where_every_source_is_asked_first_level_2_decides_on_the_whole_event() {
    let mut rig = Rig::new(BuilderConfig { level2: vec![0, 1], hold: Hold::UntilClosed, ..config(2) });
    for source in 0..2 {
        rig.offer(source, 0, 2);
    }
    rig.fetch_all();
    assert_eq!(rig.closed(), []);
    assert_eq!(decide(&mut rig, &[1]), [0, 1]);
    assert_eq!(rig.closed(), [(1, 1, vec![])]);
    (0..2).for_each(|source| {
        assert_eq!(rig.builder.next_release(source), Some(1));
        rig.end(source, 2);
    });
    rig.assert_finished();
}

#[test]
fn what_the_event_filter_rejects_was_built_and_is_not_recorded() {
    let mut rig = Rig::new(config(2));
    rig.offer(0, 0, 3);
    rig.offer(1, 0, 2);
    rig.drop_newest(1, 2, 1);
    rig.fetch_all();
    let dropped = Missing { source: 1, status: Status::DROPPED | Status::MISSING };
    assert_eq!(rig.closed(), [(0, 2, vec![]), (2, 1, vec![(1, Status::DROPPED)])]);
    assert_eq!(rig.builder.event_counts(), (3, 1));
    rig.builder.reject_closed(&[]);
    rig.builder.reject_closed(&[dropped]);
    assert_eq!(rig.builder.event_counts(), (1, 0));
    (0..2).for_each(|source| rig.end(source, 3));
    rig.assert_finished();
    let books = rig.ledger();
    assert_eq!((books.sources[0].recorded, books.sources[0].rejected), (1, 2));
    assert_eq!((books.sources[1].recorded, books.sources[1].rejected), (1, 1));
    assert_eq!(rig.builder.trigger_counts(), triggered(3, 3, 1, 0));
}
