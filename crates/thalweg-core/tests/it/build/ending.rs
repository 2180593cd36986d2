//! The end of a run: at a given event, cut short, or abandoned.

use crate::build::rig::*;
use thalweg_core::build::{BuilderConfig, Hold};
use thalweg_wire::{Disposition, EventId, Status};

/// Fragments accepted, recorded, beyond the end.
fn books(rig: &Rig, source: usize) -> (u64, u64, u64) {
    let books = &rig.ledger().sources[source];
    (books.accepted, books.recorded, books.beyond_end)
}

#[test]
fn a_run_of_a_given_number_of_events_ends_there_whatever_is_offered() {
    let mut rig = Rig::new(config(2));
    assert_eq!(rig.builder.end_before(EventId(5), rig.now), EventId(5));
    for source in 0..2 {
        rig.offer(source, 0, 4);
        // Straddles the end: fetched, and not entered from there on.
        rig.offer(source, 4, 3);
        // Beyond it: not fetched, and released at once.
        rig.offer(source, 7, 2);
        rig.drop_newest(source, 9, u32::MAX);
    }
    rig.fetch_all();
    assert_eq!(rig.closed(), [(0, 4, vec![]), (4, 1, vec![])]);
    assert_eq!(rig.recorded.len(), 10);
    for source in 0..2 {
        assert_eq!(rig.builder.next_release(source), Some(4));
        assert!(!rig.builder.is_finished(), "it still owes its books");
        rig.end(source, 9 + u64::from(u32::MAX));
    }
    rig.assert_finished();
    assert_eq!(books(&rig, 0), (9 + u64::from(u32::MAX), 5, 4 + u64::from(u32::MAX)));
    assert_eq!(
        rig.ledger().incomplete_reasons(false),
        Vec::<String>::new(),
        "that is no reason to call a run incomplete"
    );
}

#[test]
fn a_cut_takes_back_what_was_offered_fetched_built_and_dropped() {
    for hold in [Hold::UntilArrived, Hold::UntilClosed] {
        let mut rig = Rig::new(BuilderConfig { hold, ..config(3) });
        rig.offer(0, 0, 2);
        rig.offer(0, 2, 2);
        rig.offer(0, 4, 2);
        rig.drop_newest(0, 6, 1);
        rig.offer(0, 20, 1);
        rig.fetch_all();
        rig.offer(1, 0, 3);
        rig.drop_newest(1, 3, 1);
        rig.offer(1, 4, 1);
        while rig.ask().is_some() {}
        assert_eq!(rig.builder.closed_until(), EventId(0));
        assert_eq!(rig.builder.end_before(EventId(3), rig.now), EventId(3));
        assert_eq!(rig.builder.open_event_count(), 3);
        // Data under way arrive, and only records before the end are entered.
        rig.arrive(1, 0, &slot(1, 0..3));
        rig.arrive(1, 2, &slot(1, 4..5));
        rig.offer(2, 0, 3);
        rig.fetch_all();
        assert_eq!(rig.closed(), [(0, 3, vec![])]);
        assert_eq!((rig.builder.next_release(0), rig.builder.next_release(1)), (Some(5), Some(3)));
        assert_eq!(rig.builder.next_release(2), Some(1));
        rig.end(0, 8);
        rig.end(1, 5);
        rig.end(2, 3);
        rig.assert_finished();
        assert_eq!((books(&rig, 0), books(&rig, 1)), ((8, 3, 5), (5, 3, 2)));
        assert_eq!(rig.ledger().incomplete_reasons(false), Vec::<String>::new());
    }
}

#[test]
fn an_end_may_only_be_lowered_and_not_in_front_of_what_was_closed() {
    let mut rig = Rig::new(config(1));
    assert_eq!(rig.builder.end_before(EventId(100), rig.now), EventId(100));
    assert_eq!(rig.builder.end_before(EventId(200), rig.now), EventId(100));
    rig.offer(0, 0, 8);
    assert_eq!(rig.builder.offered_until(0), EventId(8));
    rig.fetch_all();
    assert_eq!(rig.builder.closed_until(), EventId(8));
    assert_eq!(rig.builder.end_before(EventId(50), rig.now), EventId(50));
    assert_eq!(rig.builder.end_before(EventId(3), rig.now), EventId(8));
    assert_eq!(rig.builder.end_before(EventId(9), rig.now), EventId(8));
    assert_eq!(rig.closed(), [(0, 8, vec![])]);
    rig.end(0, 8);
    rig.assert_finished();
}

#[test]
fn a_number_that_a_glitch_made_up_does_not_keep_the_run_from_its_end() {
    let mut rig = Rig::new(config(2));
    rig.offer(1, 0, 1);
    rig.offer(0, 0, 1);
    rig.drop_newest(0, 1 << 40, 7);
    rig.drop_newest(1, 1 << 41, 7);
    rig.fetch_all();
    rig.closed();
    // All sources have gone past, and still nothing was closed there.
    assert_eq!(rig.builder.closed_until(), EventId(1));
    assert_eq!(rig.builder.end_before(EventId(1000), rig.now), EventId(1000));
    (0..2).for_each(|source| rig.end(source, 8));
    rig.assert_finished();
    assert_eq!((books(&rig, 0), books(&rig, 1)), ((8, 1, 7), (8, 1, 7)));
}

#[test]
fn each_builder_ends_its_share() {
    let config = |builder| BuilderConfig { builder, builders: 3, first: EventId(4), ..config(1) };
    for (builder, first, built) in [(0, 6, 2), (1, 4, 3), (2, 5, 2)] {
        let mut rig = Rig::new(config(builder));
        assert_eq!(rig.builder.closed_until(), EventId(4));
        rig.offer(0, first, 4);
        assert_eq!(rig.builder.offered_until(0), EventId(first + 12));
        assert_eq!(rig.builder.end_before(EventId(11), rig.now), EventId(11));
        rig.fetch_all();
        assert_eq!(rig.builder.closed_until(), EventId(first + 3 * (built - 1) + 1));
        rig.end(0, 4);
        rig.assert_finished();
        assert_eq!(books(&rig, 0), (4, built, 4 - built));
    }
}

#[test]
fn a_source_that_is_away_owes_no_more_than_what_lies_in_front_of_the_end() {
    let mut rig = Rig::new(config(2));
    for source in 0..2 {
        rig.offer(source, 0, 1);
        rig.offer(source, 1, 3);
        rig.offer(source, 4, 1);
    }
    while rig.ask().is_some() {}
    rig.builder.end_before(EventId(2), rig.now);
    rig.builder.source_disconnected(1, rig.now);
    assert_eq!(rig.builder.source_connected(1, 4, false), 0);
    for (ticket, first, count) in [(0, 0, 1), (1, 1, 3), (2, 4, 1)] {
        let offer = rig.announcement(1, first, count, Disposition::Held);
        rig.announce(1, thalweg_wire::Announcement { ticket, ..offer }).unwrap();
    }
    // The one beyond the end is not asked for again.
    assert_eq!([rig.ask(), rig.ask(), rig.ask()], [Some((1, 0, 0, 1)), Some((1, 1, 1, 3)), None]);
    rig.arrive(1, 1, &slot(1, 1..4));
    rig.arrive(1, 0, &slot(1, 0..1));
    rig.arrive(0, 0, &slot(0, 0..1));
    rig.arrive(0, 2, &slot(0, 4..5));
    rig.builder.give_up_source(0, rig.now);
    rig.end(1, 5);
    assert_eq!(rig.closed(), [(0, 1, vec![]), (1, 1, vec![(0, Status::empty())])]);
    rig.assert_finished();
    assert_eq!((books(&rig, 0), books(&rig, 1)), ((5, 1, 3), (5, 2, 3)));
    assert_eq!(rig.ledger().sources[0].lost, 1);
}

#[test]
fn what_level_2_has_decided_on_stays_and_what_it_waits_for_goes() {
    let mut rig = Rig::new(BuilderConfig { level2: vec![0], ..config(2) });
    rig.offer(1, 0, 3);
    rig.offer(1, 3, 1);
    rig.offer(0, 0, 1);
    rig.offer(0, 1, 1);
    rig.offer(0, 2, 1);
    rig.fetch_all();
    assert_eq!(rig.builder.next_decision(), Some(EventId(0)));
    rig.builder.decide_event(EventId(0), false);
    assert_eq!(rig.builder.next_decision(), Some(EventId(1)));
    assert_eq!(rig.builder.closed_until(), EventId(1));
    assert_eq!(rig.builder.end_before(EventId(0), rig.now), EventId(1));
    // Handed out and not decided on: it is too late for that.
    rig.builder.decide_event(EventId(1), true);
    assert_eq!(rig.builder.next_decision(), None);
    assert_eq!((rig.ask(), rig.builder.next_release(1)), (None, Some(2)));
    rig.end(0, 3);
    rig.end(1, 4);
    rig.assert_finished();
    assert_eq!((books(&rig, 0), books(&rig, 1)), ((3, 0, 2), (4, 0, 3)));
    assert_eq!((rig.ledger().sources[0].rejected, rig.ledger().sources[1].rejected), (1, 1));
}

#[test]
fn a_run_that_is_abandoned_is_closed_as_far_as_it_was() {
    let mut rig = Rig::new(config(3));
    for source in 0..2 {
        rig.offer(source, 0, 1);
        rig.offer(source, 1, 2);
    }
    rig.offer(2, 0, 1);
    rig.offer(0, 30, 1);
    rig.offer(1, 3, 1);
    while let Some((source, ticket, first, count)) = rig.ask() {
        rig.arrive(source, ticket, &slot(source, first..first + u64::from(count)));
    }
    rig.end(1, 4);
    rig.builder.abandon_run(rig.now);
    assert!(!rig.builder.is_finished(), "what was closed is to be taken");
    assert_eq!(rig.closed(), [(0, 1, vec![])]);
    // A source that has not been informed goes on, without effect.
    rig.offer(2, 1, 1);
    assert_eq!(rig.builder.source_connected(2, 4, false), 1);
    rig.builder.source_ended(2, thalweg_wire::FinalCounters { accepted: 7, tickets: 3, ..Default::default() }).unwrap();
    assert_eq!((rig.ask(), rig.wait(DEADLINE).len()), (None, 0));
    rig.assert_finished();
    let ledger = rig.ledger();
    let lines: Vec<_> = ledger.sources.iter().map(|line| (line.accepted, line.recorded, line.lost)).collect();
    assert_eq!(lines, [(4, 1, 3), (4, 1, 3), (1, 1, 0)]);
    assert_eq!(rig.builder.event_counts(), (1, 0));
}
