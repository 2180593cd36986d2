//! Single situations, in the order in which a run could meet them.

use crate::build::rig::*;
use std::time::Duration;
use thalweg_core::build::{BuilderConfig, Check, Hold, Path, Violation, Window};
use thalweg_wire::{Announcement, Disposition, EventId, FragmentHeader, RunNumber, Status};

const SILENT: Status = Status::empty();

#[test]
fn an_event_is_closed_when_each_source_has_delivered() {
    let mut rig = Rig::new(config(3));
    for source in 0..3 {
        rig.offer(source, 0, 2);
    }
    let (source, ticket, ..) = rig.ask().unwrap();
    rig.arrive(source, ticket, &slot(source, 0..2));
    assert_eq!(rig.closed(), []);
    rig.fetch_all();
    assert_eq!(rig.closed(), [(0, 2, vec![])]);
    assert_eq!(rig.builder.event_counts(), (2, 0));
    assert_eq!(rig.builder.progress_counts(), (600, 6));
    for source in 0..3 {
        assert_eq!(rig.builder.next_release(source), Some(1));
        assert_eq!(rig.builder.next_release(source), None);
        assert!(!rig.builder.is_settled(source));
        rig.end(source, 2);
        assert!(rig.builder.is_settled(source));
    }
    rig.assert_finished();
    assert_eq!(rig.recorded.len(), 6);
    assert_eq!(rig.ledger().incomplete_reasons(false), Vec::<String>::new());
    assert_eq!(rig.builder.final_ledger(false, &[], 0).sources[0].discarded, 2);
}

#[test]
fn a_repeated_message_does_no_harm() {
    let mut rig = Rig::new(config(1));
    let offer = rig.announcement(0, 0, 1, Disposition::Held);
    for _ in 0..3 {
        rig.announce(0, offer).unwrap();
    }
    rig.ask().unwrap();
    assert_eq!(rig.ask(), None);
    rig.arrive(0, 0, &slot(0, 0..1));
    rig.arrive(0, 0, &slot(0, 0..1));
    assert_eq!(rig.builder.next_release(0), Some(1));
    // Offered again after its release: the release was lost, and is repeated.
    rig.announce(0, offer).unwrap();
    assert_eq!(rig.builder.next_release(0), Some(1));
    assert_eq!(rig.ask(), None);
    rig.end(0, 1);
    rig.assert_finished();
}

#[test]
fn a_whole_fragment_in_a_second_ticket_is_an_offence() {
    // The fragment is known to be here when it is offered again.
    let mut rig = Rig::new(config(2));
    rig.offer(0, 0, 1);
    rig.fetch_all();
    let again = rig.announcement(0, 0, 2, Disposition::Held);
    assert_eq!(rig.announce(0, again), Err(Violation::Twice(0)));
    // The fragment is not here yet: there may be pieces in both tickets. The second to arrive shows that there are
    // none.
    for sources in [1, 2] {
        let mut rig = Rig::new(config(sources));
        rig.offer(0, 0, 1);
        rig.offer(0, 1, 1);
        rig.offer(0, 1, 1);
        (0..3).for_each(|_| {
            rig.ask().unwrap();
        });
        rig.arrive(0, 0, &slot(0, 0..1));
        rig.arrive(0, 1, &slot(0, 1..2));
        assert_eq!(rig.try_arrive(0, 2, &slot(0, 1..2)), Err(Violation::Twice(1)));
        rig.builder.give_up_source(0, rig.now);
        if sources == 2 {
            rig.end(1, 0);
        }
        rig.fetch_all();
        assert_eq!(rig.closed().len(), if sources == 2 { 2 } else { 1 });
        rig.assert_finished();
        let books = &rig.ledger().sources[0];
        assert_eq!((books.accepted, books.recorded, books.lost, books.duplicates), (2, 2, 0, 0));
    }
}

#[test]
fn a_fragment_in_pieces_has_offers_of_its_own() {
    for (before, again) in [(2, 1), (1, 2), (2, 2)] {
        let mut rig = Rig::new(config(1));
        rig.offer(0, 0, before);
        let last = u64::from(before) - 1;
        let overlapping = rig.announcement(0, last, again, Disposition::Held);
        assert_eq!(rig.announce(0, overlapping), Err(Violation::Piece(last)));
    }
}

/// If the cost of an offer grew with the number of offers, this would take hours.
#[test]
fn an_offer_costs_the_same_however_many_fragments_in_pieces_are_under_way() {
    let mut rig = Rig::new(BuilderConfig { open_events: 1 << 20, ..config(2) });
    assert_eq!(rig.builder.source_connected(0, 1 << 20, false), 0);
    for event in 0..200_000 {
        rig.offer(0, event, 1);
        rig.offer(0, event, 1);
    }
    rig.builder.give_up_source(0, rig.now);
    rig.end(1, 0);
    rig.fetch_all();
    rig.closed();
    assert_eq!(rig.ledger().sources[0].lost, 200_000);
}

#[test]
fn what_only_a_builder_knows_no_source_may_say() {
    for bit in Status::SET_BY_BUILDERS.iter() {
        let mut rig = Rig::new(config(1));
        rig.offer(0, 0, 3);
        rig.ask().unwrap();
        let [good, bad, unseen] = [0, 1, 2].map(|event| fragment(0, event, &payload(0, event)));
        let bad = (FragmentHeader { status: bit | Status::REPLAYED, ..bad.0 }, bad.1);
        let status = (bit | Status::REPLAYED).bits();
        let result = rig.try_arrive(0, 0, &lay(&[good, bad, unseen]));
        assert_eq!(result, Err(Violation::Status { event: 1, status }));
        assert_eq!(rig.recorded.len(), 1);
        assert_eq!(rig.builder.next_release(0), None);
        rig.builder.give_up_source(0, rig.now);
        let lost = vec![(0, SILENT)];
        assert_eq!(rig.closed(), [(0, 1, vec![]), (1, 1, lost.clone()), (2, 1, lost)]);
        rig.assert_finished();
        assert_eq!((rig.ledger().sources[0].recorded, rig.ledger().sources[0].lost), (1, 2));
    }
}

#[test]
fn what_comes_after_the_deadline_is_late() {
    let mut rig = Rig::new(config(2));
    rig.offer(0, 0, 2);
    rig.fetch_all();
    assert_eq!(rig.builder.next_deadline(rig.now), Some(rig.now + DEADLINE));
    rig.wait(DEADLINE - ms(1));
    assert_eq!(rig.closed(), []);
    rig.wait(ms(1));
    let missing = vec![(1, Status::TIMED_OUT)];
    assert_eq!(rig.closed(), [(0, 1, missing.clone()), (1, 1, missing)]);
    assert_eq!(rig.builder.next_deadline(rig.now), None);
    // Too late, all of it: not fetched.
    rig.offer(1, 0, 1);
    assert_eq!(rig.ask(), None);
    // Too late in part: fetched, and what is late is counted.
    rig.offer(1, 1, 3);
    rig.fetch_all();
    rig.offer(0, 2, 2);
    rig.fetch_all();
    assert_eq!(rig.closed(), [(2, 2, vec![])]);
    rig.end(0, 4);
    rig.end(1, 4);
    rig.assert_finished();
    assert_eq!((rig.ledger().sources[1].late, rig.ledger().sources[1].recorded), (2, 2));
}

#[test]
fn a_source_that_is_behind_but_goes_on_is_not_late() {
    let mut rig = Rig::new(config(2));
    rig.offer(0, 0, 3);
    rig.fetch_all();
    // Source 1 takes most of a deadline for each event: twice as long as the youngest of them may wait for a silent
    // source.
    for event in 0..3 {
        rig.wait(DEADLINE - ms(1));
        assert_eq!(rig.closed(), []);
        rig.offer(1, event, 1);
        rig.fetch_all();
        assert_eq!(rig.closed(), [(event, 1, vec![])]);
    }
    // Then it falls silent: an event waits for it one deadline from then on.
    rig.offer(0, 3, 1);
    rig.fetch_all();
    assert_eq!(rig.builder.next_deadline(rig.now), Some(rig.now + DEADLINE));
    rig.wait(DEADLINE);
    assert_eq!(rig.closed(), [(3, 1, vec![(1, Status::TIMED_OUT)])]);
}

#[test]
fn a_late_fragment_of_an_event_that_others_keep_open_is_late_too() {
    let mut rig = Rig::new(config(2));
    rig.offer(0, 0, 1);
    rig.wait(DEADLINE);
    // Source 0 has mentioned the event: it is waited for. Source 1 has not.
    rig.offer(1, 0, 1);
    assert_eq!(rig.ask(), Some((0, 0, 0, 1)));
    assert_eq!(rig.ask(), None);
    rig.arrive(0, 0, &slot(0, 0..1));
    assert_eq!(rig.closed(), [(0, 1, vec![(1, Status::TIMED_OUT)])]);
    (0..2).for_each(|source| rig.end(source, 1));
    rig.assert_finished();
}

#[test]
fn behind_a_corrupt_header_nothing_can_be_found() {
    let mut rig = Rig::new(config(1));
    rig.offer(0, 0, 3);
    rig.ask().unwrap();
    let mut bytes = slot(0, 0..3);
    bytes[192 + 20] ^= 1;
    rig.arrive(0, 0, &bytes);
    let corrupt = vec![(0, Status::CORRUPT)];
    assert_eq!(rig.closed(), [(0, 1, vec![]), (1, 1, corrupt.clone()), (2, 1, corrupt)]);
    rig.end(0, 3);
    rig.assert_finished();
    assert_eq!(rig.ledger().sources[0].corrupt, 2);
}

#[test]
fn a_corrupt_payload_costs_only_its_fragment() {
    for (check, corrupt) in [(Check::Payloads, 1), (Check::Headers, 0)] {
        let mut rig = Rig::new(BuilderConfig { check, ..config(1) });
        rig.offer(0, 0, 3);
        rig.ask().unwrap();
        let mut bytes = slot(0, 0..3);
        bytes[192 + 64 + 5] ^= 1;
        rig.arrive(0, 0, &bytes);
        rig.end(0, 3);
        rig.assert_finished();
        assert_eq!(rig.ledger().sources[0].corrupt, corrupt);
        assert_eq!(rig.recorded.len() as u64, 3 - corrupt);
    }
}

#[test]
fn a_record_that_is_not_what_was_offered_is_corrupt() {
    let (good, bytes) = fragment(0, 1, &payload(0, 1));
    let wrong = [
        FragmentHeader { run: RunNumber(41), ..good },
        FragmentHeader { source: id(1), ..good },
        FragmentHeader { event: EventId(2), ..good },
    ];
    for header in wrong {
        let mut rig = Rig::new(config(1));
        rig.offer(0, 0, 3);
        rig.ask().unwrap();
        let (first, last) = (fragment(0, 0, &payload(0, 0)), fragment(0, 2, &payload(0, 2)));
        rig.arrive(0, 0, &lay(&[first, (header, bytes.clone()), last]));
        assert_eq!(rig.closed(), [(0, 1, vec![]), (1, 1, vec![(0, Status::CORRUPT)]), (2, 1, vec![])]);
        rig.end(0, 3);
        rig.assert_finished();
    }
}

#[test]
fn a_fragment_longer_than_agreed_is_corrupt() {
    let mut rig = Rig::new(BuilderConfig { max_payload: 100, ..config(1) });
    rig.offer(0, 0, 2);
    rig.ask().unwrap();
    rig.arrive(0, 0, &lay(&[fragment(0, 0, &[1; 101]), fragment(0, 1, &[1; 100])]));
    rig.end(0, 2);
    rig.assert_finished();
    assert_eq!(rig.ledger().sources[0].corrupt, 1);
}

#[test]
fn too_few_bytes_are_corrupt_and_too_many_are_ignored() {
    let mut rig = Rig::new(config(1));
    rig.offer(0, 0, 2);
    rig.offer(0, 2, 2);
    rig.ask().unwrap();
    rig.ask().unwrap();
    rig.arrive(0, 1, &slot(0, 2..9));
    rig.arrive(0, 0, &slot(0, 0..2)[..300]);
    rig.end(0, 4);
    rig.assert_finished();
    assert_eq!((rig.ledger().sources[0].corrupt, rig.ledger().sources[0].recorded), (1, 3));
}

#[test]
fn bytes_that_nobody_asked_for_are_ignored() {
    let mut rig = Rig::new(config(1));
    rig.arrive(0, 0, &slot(0, 0..1));
    rig.offer(0, 0, 1);
    rig.arrive(0, 0, &slot(0, 0..1));
    rig.arrive(0, u64::MAX, &slot(0, 0..1));
    assert!(rig.recorded.is_empty());
    rig.builder.cancel_fetch(0, 0);
    rig.builder.cancel_fetch(0, 7);
    assert_eq!(rig.builder.bytes_in_flight(), 0);
    rig.fetch_all();
    rig.end(0, 1);
    rig.assert_finished();
}

#[test]
fn an_explicit_empty_fragment_is_not_missing() {
    let mut rig = Rig::new(config(1));
    rig.offer(0, 0, 1);
    rig.ask().unwrap();
    let (header, payload) = fragment(0, 0, &[]);
    rig.arrive(0, 0, &lay(&[(FragmentHeader { status: Status::EMPTY, ..header }, payload)]));
    assert_eq!(rig.closed(), [(0, 1, vec![])]);
    rig.end(0, 1);
    rig.assert_finished();
    assert_eq!((rig.ledger().sources[0].empty, rig.ledger().sources[0].recorded), (1, 1));
}

#[test]
fn what_had_no_slot_is_announced_and_missing() {
    let mut rig = Rig::new(config(2));
    rig.offer(0, 0, 5);
    rig.offer(1, 0, 1);
    rig.drop_newest(1, 1, 3);
    rig.offer(1, 4, 1);
    rig.fetch_all();
    let dropped = vec![(1, Status::DROPPED)];
    let closed = [(0, 1, vec![]), (1, 1, dropped.clone()), (2, 1, dropped.clone()), (3, 1, dropped), (4, 1, vec![])];
    assert_eq!(rig.closed(), closed);
    (0..2).for_each(|source| rig.end(source, 5));
    rig.assert_finished();
    assert_eq!(rig.ledger().sources[1].dropped_newest, 3);
    assert_eq!(rig.ledger().incomplete_reasons(false), ["source 1.1 (s1): 3 fragments dropped at the source"]);
}

#[test]
fn what_made_room_is_announced_again_before_it_is_asked_for() {
    let mut rig = Rig::new(config(2));
    rig.offer(1, 0, 2);
    rig.offer(1, 2, 2);
    assert!(!rig.drop_oldest(1, 0, 0, 2));
    // A repetition has no effect, and a ticket that was dropped cannot be held once more.
    assert!(!rig.drop_oldest(1, 0, 0, 2));
    let held = Announcement { ticket: 0, ..rig.announcement(1, 0, 2, Disposition::Held) };
    rig.announce(1, held).unwrap();
    rig.offer(0, 0, 4);
    rig.fetch_all();
    assert_eq!(rig.recorded.len(), 6);
    (0..2).for_each(|source| rig.end(source, 4));
    rig.assert_finished();
    assert_eq!(rig.ledger().sources[1].dropped_oldest, 2);
}

#[test]
fn what_made_room_while_its_fetch_was_on_the_way_is_called_off() {
    let mut rig = Rig::new(config(1));
    rig.offer(0, 0, 2);
    rig.ask().unwrap();
    assert!(rig.builder.bytes_in_flight() > 0);
    assert!(rig.drop_oldest(0, 0, 0, 2));
    assert_eq!(rig.builder.bytes_in_flight(), 0);
    rig.arrive(0, 0, &slot(0, 0..2));
    assert!(rig.recorded.is_empty());
    assert_eq!(rig.builder.next_release(0), Some(1));
    // The other way round the bytes were faster.
    rig.offer(0, 2, 2);
    rig.fetch_all();
    assert!(!rig.drop_oldest(0, 1, 2, 2));
    rig.end(0, 4);
    rig.assert_finished();
    assert_eq!((rig.ledger().sources[0].dropped_oldest, rig.ledger().sources[0].recorded), (2, 2));
}

#[test]
fn a_source_may_drop_and_reuse_its_slots_for_as_long_as_one_fetch_takes() {
    let mut rig = Rig::new(config(1));
    rig.offer(0, 0, 1);
    rig.ask().unwrap();
    for event in 1..1000 {
        let ticket = rig.offer(0, event, 1);
        rig.drop_oldest(0, ticket, event, 1);
    }
    assert_eq!(rig.builder.next_release(0), None);
    rig.arrive(0, 0, &slot(0, 0..1));
    assert_eq!(rig.builder.next_release(0), Some(1000));
    rig.end(0, 1000);
    assert_eq!(rig.closed(), [(0, 1, vec![])]);
    rig.assert_finished();
    assert_eq!(rig.ledger().sources[0].dropped_oldest, 999);
}

#[test]
fn an_event_that_every_source_dropped_or_is_silent_about_is_not_recorded() {
    let mut rig = Rig::new(config(3));
    rig.drop_newest(0, 0, 1000);
    assert_eq!((rig.builder.next_release(0), rig.builder.open_event_count()), (Some(1), 0));
    rig.drop_newest(1, 0, 1000);
    rig.offer(2, 998, 1);
    (0..2).for_each(|source| _ = rig.offer(source, 1000, 1));
    rig.offer(2, 1000, 1);
    rig.fetch_all();
    // For event 998 one source had a fragment; for 999 and all before 998 none did.
    let dropped = vec![(0, Status::DROPPED), (1, Status::DROPPED)];
    assert_eq!(rig.closed(), [(998, 1, dropped), (1000, 1, vec![])]);
    assert_eq!(rig.builder.event_counts(), (2, 1));
    (0..2).for_each(|source| rig.end(source, 1001));
    rig.end(2, 2);
    rig.assert_finished();
    let books = rig.ledger();
    assert_eq!(books.sources[0].dropped_newest, 1000);
    assert_eq!(books.sources[2].skipped, 0, "nobody delivered what it was silent about");
}

#[test]
fn a_fragment_that_came_damaged_or_was_lost_with_its_source_is_recorded_as_missing() {
    let mut rig = Rig::new(config(2));
    rig.offer(0, 0, 2);
    rig.drop_newest(1, 0, 3);
    rig.ask().unwrap();
    rig.arrive(0, 0, &[0; 64]);
    rig.offer(0, 2, 1);
    rig.builder.give_up_source(0, rig.now);
    let missing = |status| vec![(0, status), (1, Status::DROPPED)];
    let corrupt = missing(Status::CORRUPT);
    assert_eq!(rig.closed(), [(0, 1, corrupt.clone()), (1, 1, corrupt), (2, 1, missing(SILENT))]);
    rig.end(1, 3);
    rig.assert_finished();
}

#[test]
fn a_source_that_goes_on_has_skipped() {
    let mut rig = Rig::new(config(2));
    rig.offer(0, 0, 3);
    rig.offer(1, 0, 1);
    rig.offer(1, 2, 1);
    rig.fetch_all();
    assert_eq!(rig.closed(), [(0, 1, vec![]), (1, 1, vec![(1, SILENT)]), (2, 1, vec![])]);
    rig.end(0, 3);
    rig.end(1, 2);
    rig.assert_finished();
    assert_eq!(rig.ledger().sources[1].skipped, 1);
}

#[test]
fn a_source_that_skips_far_ahead_does_not_hold_up_the_others() {
    let mut rig = Rig::new(config(2));
    rig.offer(1, 500, 1);
    for event in 0..501 {
        rig.offer(0, event, 1);
        rig.fetch_all();
        assert!(rig.builder.open_event_count() <= 8);
        while let Some(release) = rig.builder.next_release(0) {
            assert_eq!(release, event + 1);
        }
    }
    assert_eq!(rig.closed().len(), 501);
    rig.end(0, 501);
    rig.end(1, 1);
    rig.assert_finished();
    assert_eq!(rig.ledger().sources[1].skipped, 500);
}

#[test]
fn numbers_that_no_source_mentions_are_no_events() {
    let far = u64::MAX / 2;
    let mut rig = Rig::new(config(2));
    (0..2).for_each(|source| _ = rig.offer(source, 0, 1));
    (0..2).for_each(|source| _ = rig.offer(source, 3, 1));
    (0..2).for_each(|source| _ = rig.offer(source, far, 2));
    rig.fetch_all();
    assert_eq!(rig.closed(), [(0, 1, vec![]), (3, 1, vec![]), (far, 2, vec![])]);
    (0..2).for_each(|source| rig.end(source, 4));
    rig.assert_finished();
    assert_eq!(rig.ledger().incomplete_reasons(false), Vec::<String>::new(), "the run is complete");
}

#[test]
fn a_number_that_one_source_lacks_and_another_has_is_skipped() {
    let mut rig = Rig::new(config(2));
    for event in [0, 5, 9, 1 << 40] {
        rig.offer(0, event, 1);
        if event != 5 {
            rig.offer(1, event, 1);
        }
    }
    rig.fetch_all();
    assert_eq!(rig.closed(), [(0, 1, vec![]), (5, 1, vec![(1, SILENT)]), (9, 1, vec![]), (1 << 40, 1, vec![])]);
    rig.end(0, 4);
    rig.end(1, 3);
    rig.assert_finished();
    assert_eq!(rig.ledger().incomplete_reasons(false), ["source 1.1 (s1): 1 fragment never mentioned by the source"]);
}

#[test]
fn drops_far_ahead_of_what_anyone_mentions_are_no_events() {
    let far = 1 << 60;
    let mut rig = Rig::new(config(2));
    rig.offer(0, 0, 1);
    rig.drop_newest(0, far, 3);
    rig.offer(1, 0, 1);
    rig.end(1, 1);
    rig.fetch_all();
    assert_eq!(rig.closed(), [(0, 1, vec![])]);
    rig.end(0, 4);
    rig.assert_finished();
}

#[test]
fn a_source_far_ahead_waits_for_a_silent_one_no_longer_than_the_deadline() {
    let mut rig = Rig::new(config(2));
    rig.offer(0, 1 << 40, 1);
    assert_eq!((rig.ask(), rig.builder.open_event_count()), (None, 0));
    assert_eq!(rig.builder.next_deadline(rig.now), Some(rig.now + DEADLINE));
    rig.wait(DEADLINE);
    rig.fetch_all();
    assert_eq!(rig.recorded.len(), 1);
    // The event is open now, and its own deadline begins.
    assert_eq!(rig.builder.next_deadline(rig.now), Some(rig.now + DEADLINE));
    rig.wait(DEADLINE);
    assert_eq!(rig.closed(), [(1 << 40, 1, vec![(1, Status::TIMED_OUT)])]);
    assert_eq!(rig.builder.next_deadline(rig.now), None);
    rig.offer(1, 0, 1);
    rig.end(0, 1);
    rig.end(1, 1);
    rig.assert_finished();
    assert_eq!(rig.ledger().sources[1].late, 1);
}

#[test]
fn missing_sources_are_named() {
    let mut rig = Rig::new(config(70));
    rig.offer(3, 0, 1);
    rig.offer(68, 0, 1);
    rig.drop_newest(65, 0, 1);
    rig.fetch_all();
    rig.wait(DEADLINE);
    let closed = rig.closed();
    assert_eq!(closed.len(), 1);
    let expected: Vec<(usize, Status)> = (0..70)
        .filter(|source| ![3, 68].contains(source))
        .map(|source| (source, if source == 65 { Status::DROPPED } else { Status::TIMED_OUT }))
        .collect();
    assert_eq!(closed[0], (0, 1, expected));
}

#[test]
fn every_open_event_has_its_own_deadline() {
    let mut rig = Rig::new(config(2));
    for event in 0..3 {
        rig.offer(0, event, 1);
        rig.now += ms(10);
    }
    // The oldest cannot be closed by time: its fragment has been mentioned and only waits to be fetched.
    rig.wait(DEADLINE - ms(30));
    assert_eq!(rig.builder.next_deadline(rig.now), Some(rig.now + ms(10)));
    rig.wait(ms(10));
    assert_eq!(rig.builder.next_deadline(rig.now), Some(rig.now + ms(10)));
    rig.wait(ms(10));
    assert_eq!(rig.builder.next_deadline(rig.now), None);
    rig.fetch_all();
    assert_eq!(rig.closed().len(), 3);
}

#[test]
fn no_deadline_passes_while_the_disk_is_behind() {
    let mut rig = Rig::new(config(2));
    rig.offer(0, 0, 1);
    rig.fetch_all();
    rig.now += ms(60);
    rig.builder.set_stalled(true, rig.now);
    rig.builder.set_stalled(true, rig.now + ms(1));
    assert_eq!(rig.builder.next_deadline(rig.now), None);
    rig.builder.source_disconnected(1, rig.now + ms(10));
    assert!(rig.wait(DEADLINE * 10).is_empty());
    assert_eq!(rig.closed(), []);
    rig.builder.set_stalled(false, rig.now);
    assert_eq!(rig.builder.next_deadline(rig.now), Some(rig.now + ms(40)));
    assert!(rig.wait(ms(40)).is_empty());
    assert_eq!(rig.closed(), [(0, 1, vec![(1, Status::TIMED_OUT)])]);
    assert_eq!(rig.wait(ms(60)), [1]);
}

#[test]
fn no_deadline_passes_while_the_builder_stands_still() {
    let mut rig = Rig::new(config(2));
    rig.offer(0, 0, 1);
    rig.fetch_all();
    rig.wait(ms(60));
    rig.builder.excuse_standstill(rig.now..rig.now + DEADLINE * 10);
    assert!(rig.wait(DEADLINE * 10).is_empty());
    assert_eq!((rig.closed(), rig.builder.next_deadline(rig.now)), (vec![], Some(rig.now + ms(40))));
    rig.wait(ms(40));
    assert_eq!(rig.closed(), [(0, 1, vec![(1, Status::TIMED_OUT)])]);
}

#[test]
fn a_source_is_not_silent_while_its_messages_wait_to_be_read() {
    let mut rig = Rig::new(config(2));
    rig.offer(0, 0, 1);
    let looked_at = rig.now + DEADLINE - ms(1);
    // The builder has no processor behind its look at the connections, and reads the messages of one source.
    rig.now += DEADLINE * 2;
    rig.offer(0, 1, 1);
    rig.builder.advance_time(looked_at);
    rig.offer(1, 0, 2);
    rig.wait(ms(1));
    rig.fetch_all();
    assert_eq!(rig.closed(), [(0, 1, vec![]), (1, 1, vec![])]);
}

#[test]
fn no_more_is_asked_for_than_the_window_holds() {
    let mut rig = Rig::new(BuilderConfig { window: Window::Constant(1000), ..config(4) });
    (0..4).for_each(|source| _ = rig.offer(source, 0, 2));
    // 384 bytes each: two fit.
    let (first, second) = (rig.ask().unwrap(), rig.ask().unwrap());
    assert_eq!((rig.ask(), rig.builder.bytes_in_flight()), (None, 768));
    rig.arrive(first.0, first.1, &slot(first.0, 0..2));
    rig.ask().unwrap();
    assert_eq!(rig.ask(), None);
    rig.builder.cancel_fetch(second.0, second.1);
    assert_eq!(rig.ask(), Some(second));
    // A slot that does not fit at all is requested alone.
    let mut rig = Rig::new(BuilderConfig { window: Window::Constant(10), ..config(2) });
    (0..2).for_each(|source| _ = rig.offer(source, 0, 2));
    rig.ask().unwrap();
    assert_eq!((rig.ask(), rig.builder.bytes_in_flight()), (None, 384));
}

#[test]
fn a_release_can_wait_for_a_fetch_that_is_to_come_but_not_with_many_slots() {
    // Four slots, one of which is requested at a time.
    let mut rig = Rig::new(BuilderConfig { window: Window::Constant(1), ..config(1) });
    (0..4).for_each(|event| _ = rig.offer(0, event, 1));
    let next = |rig: &mut Rig| {
        let (source, ticket, event, _) = rig.ask().unwrap();
        rig.arrive(source, ticket, &slot(source, event..event + 1));
        rig.builder.may_release_later(0)
    };
    assert!(next(&mut rig), "a quarter of them");
    assert!(!next(&mut rig), "half of them");
    assert_eq!(rig.builder.next_release(0), Some(2));
    assert!(next(&mut rig));
    assert!(!next(&mut rig), "nothing is to be asked for any more");
    assert_eq!(rig.builder.next_release(0), Some(4));
    // A release that has to be repeated is repeated at once.
    rig.offer(0, 4, 1);
    assert!(rig.builder.may_release_later(0));
    rig.announce(0, Announcement { ticket: 0, ..rig.announcement(0, 0, 1, Disposition::Held) }).unwrap();
    assert!(!rig.builder.may_release_later(0));
}

#[test]
fn sources_have_turns_around_and_each_builder_begins_at_another() {
    for (builder, first) in [(0, 0), (1, 2), (2, 4)] {
        let mut rig = Rig::new(BuilderConfig { rank: (builder, 3), ..config(6) });
        for source in [2, 0, 1, 5, 4, 3] {
            (0..3).for_each(|event| _ = rig.offer(source, event, 1));
        }
        let order: Vec<(usize, u64)> =
            std::iter::from_fn(|| rig.ask()).map(|(source, _, event, _)| (source, event)).collect();
        let around = |event| (0..6).map(move |turn| ((first + turn) % 6, event));
        assert_eq!(order, (0..3).flat_map(around).collect::<Vec<_>>());
    }
}

#[test]
fn who_is_there_first_is_not_asked_for_everything_by_all_builders() {
    let path = Path { rate: 1e5, round_trip: ms(1), buffer: 4000, segment: 20, unasked: 0 };
    let mut rig = Rig::new(BuilderConfig { rank: (0, 4), open_events: 64, window: Window::Credit(path), ..config(4) });
    let asked = |rig: &mut Rig| {
        let asked = std::iter::from_fn(|| rig.builder.next_fetch(rig.now));
        asked.map(|fetch| u64::from(fetch.range.end - fetch.range.start)).sum::<u64>()
    };
    (0..4).for_each(|slot| _ = rig.offer(0, 16 * slot, 16));
    let piece = rig.builder.credit_state().unwrap().piece;
    assert_eq!(asked(&mut rig), piece);
    // No other source has anything, and the port is known to carry it: now this one gets more, but not the whole
    // window.
    let window = |rig: &Rig| rig.builder.credit_state().unwrap().window;
    let narrow = window(&rig);
    let mut outstanding = piece;
    for _ in 0..30 {
        rig.now += ms(1);
        rig.builder.count_received(0, outstanding.min(piece), rig.now);
        outstanding = outstanding.saturating_sub(piece) + asked(&mut rig);
    }
    assert!(window(&rig) > 4 * narrow);
    assert!(outstanding > piece && outstanding <= window(&rig) / 2 + piece, "{outstanding} of {}", window(&rig));
}

#[test]
fn who_is_far_ahead_waits_for_those_behind() {
    let mut rig = Rig::new(config(2));
    (0..8).for_each(|event| _ = rig.offer(0, event, 1));
    rig.offer(1, 0, 1);
    let mut asked = std::iter::from_fn(|| rig.ask()).map(|(source, _, event, _)| (source, event)).collect::<Vec<_>>();
    // Nothing more is known of the other source: it holds up no other.
    assert_eq!(asked.split_off(2), (1..8).map(|event| (0, event)).collect::<Vec<_>>());
    let mut rig = Rig::new(BuilderConfig { window: Window::Constant(1), ..config(2) });
    (0..8).for_each(|event| _ = rig.offer(0, event, 1));
    (0..8).for_each(|event| _ = rig.offer(1, event, 1));
    // No place is free except for what is furthest behind.
    let (source, ticket, ..) = rig.ask().unwrap();
    assert!(rig.builder.cancel_fetch(source, ticket), "there is something else to try");
    let (source, ticket, event, _) = rig.ask().unwrap();
    assert_eq!((source, event), (0, 0));
    assert!(!rig.builder.cancel_fetch(source, ticket), "there is not");
}

#[test]
fn no_source_gets_further_ahead_than_the_open_events() {
    let mut rig = Rig::new(config(2));
    for first in [0, 4, 8, 12] {
        rig.offer(0, first, 4);
    }
    rig.fetch_all();
    assert_eq!((rig.recorded.len(), rig.builder.open_event_count()), (8, 8));
    for first in 0..4 {
        rig.offer(1, first, 1);
    }
    rig.fetch_all();
    assert_eq!((rig.recorded.len(), rig.builder.open_event_count()), (16, 8));
}

#[test]
fn a_source_that_comes_back_loses_nothing_and_repeats_nothing() {
    let mut rig = Rig::new(config(2));
    rig.offer(0, 0, 1);
    rig.offer(0, 1, 1);
    rig.offer(0, 2, 1);
    rig.offer(1, 0, 3);
    while rig.ask().is_some() {}
    rig.arrive(0, 0, &slot(0, 0..1));
    rig.arrive(0, 2, &slot(0, 2..3));
    rig.builder.source_disconnected(0, rig.now);
    assert_eq!(rig.builder.bytes_in_flight(), 576);
    rig.arrive(0, 1, &slot(0, 1..2));
    rig.arrive(1, 0, &slot(1, 0..3));
    assert_eq!((rig.ask(), rig.recorded.len()), (None, 5));
    assert!(rig.wait(DEADLINE - ms(1)).is_empty());

    assert_eq!(rig.builder.source_connected(0, 4, false), 1);
    for event in 1..3 {
        let offer = rig.announcement(0, event, 1, Disposition::Held);
        rig.announce(0, Announcement { ticket: event, ..offer }).unwrap();
    }
    assert_eq!(rig.ask(), Some((0, 1, 1, 1)));
    rig.arrive(0, 1, &slot(0, 1..2));
    assert_eq!(rig.builder.next_release(0), Some(3));
    (0..2).for_each(|source| rig.end(source, 3));
    rig.assert_finished();
    assert_eq!(rig.recorded.len(), 6);
}

#[test]
fn a_source_that_stays_away_is_given_up_and_its_books_are_what_it_offered() {
    let mut rig = Rig::new(config(2));
    rig.offer(0, 0, 1);
    rig.fetch_all();
    rig.offer(0, 1, 2);
    rig.offer(0, 3, 7);
    rig.drop_newest(0, 10, 2);
    rig.ask().unwrap();
    rig.offer(1, 0, 4);
    rig.builder.source_disconnected(0, rig.now);
    rig.builder.source_disconnected(0, rig.now + ms(50));
    rig.fetch_all();
    assert_eq!(rig.builder.next_deadline(rig.now), Some(rig.now + DEADLINE));
    assert_eq!(rig.wait(DEADLINE), [0]);
    rig.offer(1, 4, 8);
    rig.fetch_all();
    rig.end(1, 12);
    assert!(rig.builder.is_given_up(0) && rig.wait(DEADLINE).is_empty());
    assert_eq!(rig.closed().len(), 12);
    rig.assert_finished();
    let ledger = rig.ledger();
    assert_eq!((ledger.sources[0].accepted, ledger.sources[0].recorded, ledger.sources[0].lost), (12, 1, 9));
    assert_eq!((ledger.sources[0].dropped_newest, ledger.sources[1].recorded), (2, 12));
    assert!(
        ledger.incomplete_reasons(false)[0].contains("sent no final counters"),
        "{:?}",
        ledger.incomplete_reasons(false)
    );
}

#[test]
fn a_source_that_was_given_up_may_come_back() {
    let mut rig = Rig::new(config(2));
    rig.offer(0, 0, 1);
    rig.offer(1, 0, 1);
    rig.builder.give_up_source(0, rig.now);
    rig.offer(1, 1, 3);
    rig.fetch_all();
    assert_eq!(rig.closed().len(), 4);
    // Events 1 and 2 are closed, 4 is not.
    assert_eq!(rig.builder.source_connected(0, 4, false), 1);
    rig.offer(0, 1, 2);
    rig.offer(0, 4, 1);
    rig.offer(1, 4, 1);
    rig.fetch_all();
    assert_eq!(rig.closed(), [(4, 1, vec![])]);
    rig.end(0, 4);
    rig.end(1, 5);
    rig.assert_finished();
    let books = &rig.ledger().sources[0];
    assert_eq!((books.lost, books.late, books.recorded, books.skipped), (1, 2, 1, 0));
}

#[test]
fn an_event_that_was_offered_waits_for_its_bytes_and_not_for_time() {
    let mut rig = Rig::new(config(2));
    (0..2).for_each(|source| _ = rig.offer(source, 0, 1));
    rig.ask().unwrap();
    rig.ask().unwrap();
    rig.arrive(0, 0, &slot(0, 0..1));
    rig.wait(DEADLINE * 10);
    assert_eq!((rig.closed(), rig.builder.next_deadline(rig.now)), (vec![], None));
    // It is the node, which sees a source's bytes, that finds out that the source hangs.
    rig.builder.give_up_source(1, rig.now);
    assert_eq!(rig.closed(), [(0, 1, vec![(1, SILENT)])]);
    assert_eq!(rig.builder.bytes_in_flight(), 0);
}

#[test]
fn each_builder_builds_its_share() {
    let config = |builder| BuilderConfig { builder, builders: 3, first: EventId(4), ..config(2) };
    let mut events = Vec::new();
    for builder in 0..3 {
        let mut rig = Rig::new(config(builder));
        let first = [6, 4, 5][builder as usize];
        let wrong = rig.announcement(0, first + 1, 1, Disposition::Held);
        assert_eq!(rig.announce(0, wrong), Err(Violation::Share { event: first + 1, builder, builders: 3 }));
        for source in 0..2 {
            rig.offer(source, first, 2);
            rig.offer(source, first + 6, 1);
        }
        assert_eq!(rig.builder.offered_until(0), EventId(first + 9));
        rig.fetch_all();
        for (first, count, missing) in rig.closed() {
            assert!(missing.is_empty());
            events.extend((0..u64::from(count)).map(|i| first + 3 * i));
        }
        (0..2).for_each(|source| rig.end(source, 3));
        rig.assert_finished();
    }
    events.sort_unstable();
    assert_eq!(events, (4..13).collect::<Vec<_>>());
}

/// Offers the pieces of event 0 and any that follow, each in a ticket of its own.
fn offer_pieces(rig: &mut Rig, events: &[u64]) {
    for event in events {
        rig.offer(0, *event, 1);
    }
    while rig.ask().is_some() {}
}

#[test]
fn a_fragment_too_long_for_a_slot_comes_in_pieces() {
    let mut rig = Rig::new(config(1));
    offer_pieces(&mut rig, &[0, 0, 0, 1]);
    rig.arrive(0, 2, &lay(&[piece(0, 0, 200..250, 250)]));
    rig.arrive(0, 0, &lay(&[piece(0, 0, 0..100, 250)]));
    rig.arrive(0, 3, &slot(0, 1..2));
    assert_eq!(rig.closed(), [(1, 1, vec![])]);
    rig.arrive(0, 1, &lay(&[piece(0, 0, 100..200, 250)]));
    assert_eq!(rig.closed(), [(0, 1, vec![])]);
    assert_eq!(rig.recorded[&(0, 0)], 3);
    rig.end(0, 2);
    let books = &rig.ledger().sources[0];
    assert_eq!((books.recorded, books.bytes, books.unaccounted), (2, 350, 0));
    assert!(rig.builder.is_finished());
}

#[test]
fn pieces_that_overlap_are_not_recorded_and_make_no_whole() {
    let mut rig = Rig::new(config(1));
    offer_pieces(&mut rig, &[0, 0, 0]);
    rig.arrive(0, 0, &lay(&[piece(0, 0, 0..100, 200)]));
    rig.arrive(0, 1, &lay(&[piece(0, 0, 0..100, 200)]));
    rig.arrive(0, 2, &lay(&[piece(0, 0, 50..200, 200)]));
    assert_eq!(rig.recorded[&(0, 0)], 1);
    // As long as the source has not gone on, the rest may come.
    assert_eq!(rig.closed(), []);
    rig.offer(0, 1, 1);
    rig.fetch_all();
    assert_eq!(rig.closed(), [(0, 1, vec![(0, Status::CORRUPT)]), (1, 1, vec![])]);
    rig.end(0, 2);
    rig.assert_finished();
    assert_eq!((rig.ledger().sources[0].duplicates, rig.ledger().sources[0].corrupt), (2, 1));
}

#[test]
fn no_event_waits_for_pieces_when_the_source_has_gone_on() {
    let mut rig = Rig::new(config(1));
    offer_pieces(&mut rig, &[0, 0, 1]);
    rig.arrive(0, 0, &lay(&[piece(0, 0, 0..100, 300)]));
    rig.arrive(0, 2, &slot(0, 1..2));
    rig.arrive(0, 1, &lay(&[piece(0, 0, 100..200, 300)]));
    assert_eq!(rig.closed(), [(0, 1, vec![(0, Status::CORRUPT)]), (1, 1, vec![])]);
    rig.end(0, 2);
    assert!(rig.builder.is_finished());
    assert_eq!((rig.ledger().sources[0].corrupt, rig.ledger().unaccounted), (1, 0));
}

#[test]
fn a_fragment_in_pieces_is_in_one_bucket_whatever_becomes_of_them() {
    let bucket = |act: &dyn Fn(&mut Rig)| {
        let mut rig = Rig::new(config(1));
        offer_pieces(&mut rig, &[0, 0]);
        act(&mut rig);
        rig.fetch_all();
        if !rig.builder.is_given_up(0) {
            rig.end(0, 1);
        }
        rig.closed();
        assert!(rig.builder.is_finished());
        let books = &rig.ledger().sources[0];
        assert_eq!((books.accepted, books.unaccounted), (1, 0));
        let buckets = [books.recorded, books.dropped_oldest, books.corrupt, books.lost, books.late];
        buckets.into_iter().position(|count| count == 1)
    };
    let (recorded, dropped, corrupt, lost, late) = (Some(0), Some(1), Some(2), Some(3), Some(4));
    let head = lay(&[piece(0, 0, 0..100, 200)]);
    let tail = lay(&[piece(0, 0, 100..200, 200)]);
    let other = lay(&[piece(0, 0, 100..200, 201)]);
    let arrive = |rig: &mut Rig, tickets: &[u64]| {
        for ticket in tickets {
            rig.arrive(0, *ticket, if *ticket == 0 { &head } else { &tail });
        }
    };
    assert_eq!(bucket(&|rig| arrive(rig, &[1, 0])), recorded);
    assert_eq!(
        bucket(&|rig| {
            rig.arrive(0, 0, &[0; 64]);
            arrive(rig, &[1])
        }),
        corrupt
    );
    assert_eq!(
        bucket(&|rig| {
            arrive(rig, &[0]);
            rig.arrive(0, 1, &[0; 64])
        }),
        corrupt
    );
    assert_eq!(
        bucket(&|rig| {
            arrive(rig, &[0]);
            rig.arrive(0, 1, &other)
        }),
        corrupt
    );
    assert_eq!(
        bucket(&|rig| {
            rig.drop_oldest(0, 0, 0, 1);
            arrive(rig, &[1])
        }),
        dropped
    );
    assert_eq!(
        bucket(&|rig| {
            rig.drop_oldest(0, 0, 0, 1);
            rig.drop_oldest(0, 1, 0, 1);
        }),
        dropped
    );
    assert_eq!(
        bucket(&|rig| {
            arrive(rig, &[0]);
            rig.drop_oldest(0, 1, 0, 1);
        }),
        dropped
    );
    assert_eq!(
        bucket(&|rig| {
            rig.drop_oldest(0, 1, 0, 1);
            arrive(rig, &[0])
        }),
        dropped
    );
    assert_eq!(
        bucket(&|rig| {
            arrive(rig, &[0]);
            rig.builder.give_up_source(0, rig.now)
        }),
        lost
    );
    assert_eq!(bucket(&|rig| rig.builder.give_up_source(0, rig.now)), lost);
    // The last piece is never offered: the source goes silent, or ends.
    assert_eq!(
        bucket(&|rig| {
            arrive(rig, &[0]);
            rig.arrive(0, 1, &head);
            rig.wait(DEADLINE);
        }),
        late
    );
    assert_eq!(
        bucket(&|rig| {
            arrive(rig, &[0]);
            rig.arrive(0, 1, &head);
        }),
        corrupt
    );
    // The last piece comes when the deadline has passed.
    assert_eq!(
        bucket(&|rig| {
            arrive(rig, &[0]);
            rig.arrive(0, 1, &head);
            rig.wait(DEADLINE);
            rig.offer(0, 0, 1);
            rig.fetch_all();
        }),
        late
    );
}

#[test]
fn a_piece_for_a_fragment_that_was_lost_with_its_source_changes_nothing() {
    let mut rig = Rig::new(config(1));
    offer_pieces(&mut rig, &[0, 0]);
    rig.arrive(0, 0, &lay(&[piece(0, 0, 0..100, 200)]));
    rig.builder.give_up_source(0, rig.now);
    rig.builder.source_connected(0, 4, false);
    rig.offer(0, 0, 1);
    rig.offer(0, 1, 1);
    rig.fetch_all();
    rig.end(0, 2);
    rig.closed();
    assert!(rig.builder.is_finished());
    let books = &rig.ledger().sources[0];
    assert_eq!((books.lost, books.recorded, books.unaccounted), (1, 1, 0));
}

#[test]
fn events_do_not_wait_for_a_source_that_has_ended() {
    let mut rig = Rig::new(config(2));
    rig.offer(0, 0, 3);
    rig.offer(1, 0, 1);
    rig.end(1, 1);
    rig.fetch_all();
    let missing = vec![(1, SILENT)];
    assert_eq!(rig.closed(), [(0, 1, vec![]), (1, 1, missing.clone()), (2, 1, missing)]);
    assert!(!rig.builder.is_finished());
    // A later disconnection is nothing to wait for.
    rig.builder.source_disconnected(1, rig.now);
    assert_eq!(rig.builder.next_deadline(rig.now), None);
    rig.end(0, 3);
    rig.assert_finished();
}

#[test]
fn books_that_do_not_match_are_said_loudly() {
    let mut rig = Rig::new(config(1));
    rig.offer(0, 0, 3);
    rig.fetch_all();
    rig.end(0, 5);
    let ledger = rig.ledger();
    assert_eq!((ledger.unaccounted, ledger.sources[0].unaccounted), (2, 2));
    assert!(ledger.incomplete_reasons(false)[0].contains("UNACCOUNTED"));
    rig.end(0, 1);
    assert_eq!(rig.ledger().sources[0].unaccounted, -2);
    rig.end(0, u64::MAX);
    assert_eq!(rig.ledger().sources[0].unaccounted, i64::MAX);
    // Fragments that the disk did not take are lost, not unaccounted for.
    rig.end(0, 3);
    let ledger = rig.builder.final_ledger(true, &[1], 0);
    assert_eq!((ledger.unaccounted, ledger.sources[0].recorded, ledger.sources[0].lost), (0, 2, 1));
}

#[test]
fn books_that_count_other_tickets_than_were_offered_are_refused() {
    let mut rig = Rig::new(config(1));
    rig.offer(0, 0, 3);
    for books in [books(3, 0), books(3, 2), books(3, u64::MAX)] {
        assert_eq!(
            rig.builder.source_ended(0, books),
            Err(Violation::FinalCounters { counted: books.tickets, offered: 1 })
        );
    }
    rig.fetch_all();
    rig.end(0, 3);
    let beyond = rig.announcement(0, 9, 1, Disposition::Held);
    assert_eq!(rig.announce(0, beyond), Err(Violation::FinalCounters { counted: 1, offered: 2 }));
    rig.closed();
    rig.assert_finished();
}

#[test]
fn the_books_of_a_source_that_was_given_up_come_too_late() {
    let mut rig = Rig::new(config(1));
    rig.offer(0, 0, 3);
    rig.builder.give_up_source(0, rig.now);
    rig.builder.source_ended(0, books(100, 50)).unwrap();
    rig.closed();
    rig.assert_finished();
    assert_eq!(rig.ledger().sources[0].accepted, 3);
    assert!(!rig.ledger().sources[0].final_counters);
}

#[test]
fn a_surplus_at_one_builder_does_not_hide_a_lack_at_another() {
    let ledger = |accepted| {
        let mut rig = Rig::new(config(1));
        rig.offer(0, 0, 3);
        rig.fetch_all();
        rig.end(0, accepted);
        rig.ledger()
    };
    let mut merged = ledger(5);
    merged.merge_ledger(&ledger(1));
    assert_eq!((merged.unaccounted, merged.sources[0].unaccounted), (4, 4));
    assert_eq!((merged.sources[0].accepted, merged.sources[0].recorded), (6, 6));
    merged.merge_ledger(&ledger(u64::MAX));
    merged.merge_ledger(&ledger(u64::MAX));
    assert_eq!(merged.sources[0].unaccounted, i64::MAX);
}

#[test]
fn slots_that_stay_where_they_are_are_held_until_their_events_are_closed() {
    let mut rig = Rig::new(BuilderConfig { hold: Hold::UntilClosed, ..config(2) });
    rig.offer(0, 0, 1);
    rig.offer(0, 1, 1);
    rig.drop_newest(0, 2, 1);
    rig.offer(1, 0, 1);
    rig.fetch_all();
    rig.closed();
    assert_eq!(rig.builder.next_release(0), Some(1));
    assert_eq!(rig.builder.next_release(1), Some(1));
    // Ticket 1 is in use: a source's statement that it made room with it comes too late.
    assert!(!rig.drop_oldest(0, 1, 1, 1));
    rig.end(0, 3);
    assert!(!rig.builder.is_settled(0));
    rig.builder.source_disconnected(0, rig.now);
    rig.offer(1, 1, 2);
    rig.fetch_all();
    rig.closed();
    assert_eq!(rig.builder.next_release(0), Some(3));
    assert!(rig.wait(DEADLINE).is_empty());
    assert_eq!(rig.builder.next_release(1), Some(2));
    rig.end(1, 3);
    rig.assert_finished();
}

#[test]
fn tickets_begin_at_0_and_leave_no_gap() {
    let mut rig = Rig::new(config(1));
    let offer = |rig: &Rig, ticket| Announcement { ticket, ..rig.announcement(0, ticket, 1, Disposition::Held) };
    let first = offer(&rig, 1);
    assert_eq!(rig.announce(0, first), Err(Violation::Gap { ticket: 1, next: 0 }));
    rig.offer(0, 0, 1);
    for ticket in [2, u64::MAX] {
        let offer = offer(&rig, ticket);
        assert_eq!(rig.announce(0, offer), Err(Violation::Gap { ticket, next: 1 }));
    }
    rig.fetch_all();
    // A source that reconnects cannot skip a ticket that it has not offered, either.
    rig.builder.source_disconnected(0, rig.now);
    assert_eq!(rig.builder.source_connected(0, 4, false), 1);
    let offer = offer(&rig, 2);
    assert_eq!(rig.announce(0, offer), Err(Violation::Gap { ticket: 2, next: 1 }));
}

#[test]
fn offers_that_cannot_be_are_refused() {
    let refusal = |change: &dyn Fn(&mut Announcement)| {
        let mut rig = Rig::new(BuilderConfig { first: EventId(5), ..config(1) });
        rig.offer(0, 5, 4);
        rig.offer(0, 9, 1);
        let mut offer = rig.announcement(0, 10, 1, Disposition::Held);
        change(&mut offer);
        rig.announce(0, offer).unwrap_err()
    };
    assert_eq!(refusal(&|offer| offer.first = EventId(8)), Violation::Order(8));
    assert_eq!(refusal(&|offer| offer.first = EventId(u64::MAX)), Violation::Range { first: u64::MAX, count: 1 });
    assert_eq!(
        refusal(&|offer| (offer.first, offer.count, offer.disposition) =
            (EventId(u64::MAX - 9), u32::MAX, Disposition::DroppedNewest)),
        Violation::Range { first: u64::MAX - 9, count: u32::MAX }
    );
    assert!(matches!(refusal(&|offer| offer.count = 0), Violation::Size { .. }));
    assert!(matches!(refusal(&|offer| offer.count = u32::MAX), Violation::Size { count: u32::MAX, .. }));
    assert!(matches!(refusal(&|offer| offer.bytes = 63), Violation::Size { bytes: 63, .. }));
    assert_eq!(refusal(&|offer| (offer.ticket, offer.first) = (1, EventId(7))), Violation::Changed(1));
    assert_eq!(refusal(&|offer| (offer.ticket, offer.first, offer.bytes) = (1, EventId(9), 64)), Violation::Changed(1));

    let mut rig = Rig::new(BuilderConfig { first: EventId(5), ..config(1) });
    let before = rig.announcement(0, 4, 1, Disposition::Held);
    assert_eq!(rig.announce(0, before), Err(Violation::Order(4)));
}

#[test]
fn more_offers_than_the_slots_are_refused() {
    let mut rig = Rig::new(config(1));
    for event in 0..10 {
        rig.offer(0, event, 1);
    }
    let offer = rig.announcement(0, 10, 1, Disposition::Held);
    assert_eq!(rig.announce(0, offer), Err(Violation::TooMany(10)));
}

#[test]
fn closed_events_that_nobody_takes_do_not_pile_up() {
    let mut rig = Rig::new(config(1));
    for event in 0..8 {
        rig.offer(0, 2 * event, 1);
    }
    let mut corrupt = 0;
    while let Some((source, ticket, ..)) = rig.ask() {
        rig.arrive(source, ticket, &[0; 64]);
        rig.offer(0, 16 + 2 * corrupt, 1);
        corrupt += 1;
    }
    // Those that were open are closed; no others are opened.
    assert!(corrupt <= 16 && rig.builder.event_counts() == (corrupt, corrupt), "{corrupt}");
    rig.fetch_all();
    assert_eq!(rig.closed().len() as u64, 8 + corrupt);
}

/// A source reports drops of four thousand million fragments at a time, again and again, alone or with others, and then
/// offers events that are far apart.
#[test]
fn announcements_without_measure_cost_no_time_and_no_memory() {
    let mut rig = Rig::new(config(2));
    let mut first = 0;
    for _ in 0..20_000 {
        rig.drop_newest(0, first, u32::MAX);
        first += u64::from(u32::MAX) + 2;
    }
    assert_eq!(rig.builder.open_event_count(), 0);
    assert_eq!(rig.builder.next_release(0), Some(20_000));
    rig.offer(1, 0, 8);
    rig.fetch_all();
    assert_eq!(rig.closed().len(), 8);
    // The other source goes on far ahead, and then ends: no source can have anything for those between.
    rig.offer(1, 1 << 40, 1);
    rig.end(1, 9);
    rig.offer(0, 1 << 50, 1);
    rig.drop_newest(0, (1 << 50) + 1, u32::MAX);
    rig.offer(0, 1 << 62, 1);
    rig.fetch_all();
    let events: Vec<u64> = rig.closed().iter().map(|(event, ..)| *event).collect();
    assert_eq!(events, [1 << 40, 1 << 50, 1 << 62]);
    assert_eq!(rig.builder.open_event_count(), 0);
    rig.end(0, 20_001 * u64::from(u32::MAX) + 2);
    rig.assert_finished();
}

#[test]
fn a_run_at_the_end_of_all_numbers() {
    let first = u64::MAX - 21;
    let mut rig = Rig::new(BuilderConfig { first: EventId(first), deadline: Duration::MAX, ..config(1) });
    rig.offer(0, first, 8);
    rig.offer(0, first + 8, 8);
    rig.offer(0, first + 16, 4);
    assert_eq!(rig.builder.offered_until(0), EventId(u64::MAX - 1));
    let beyond = rig.announcement(0, u64::MAX - 1, 1, Disposition::Held);
    assert!(matches!(rig.announce(0, beyond), Err(Violation::Range { .. })));
    rig.fetch_all();
    rig.wait(Duration::from_secs(1));
    rig.end(0, 20);
    rig.assert_finished();
}

#[test]
fn a_source_is_believed_to_have_lost_no_more_than_it_can_have_sent() {
    let path = Path { rate: 1e8, round_trip: ms(1), buffer: 1 << 20, segment: 1448, unasked: 0 };
    let mut rig = Rig::new(BuilderConfig { window: Window::Credit(path), ..config(2) });
    let window = rig.builder.credit_state().unwrap().window;
    rig.offer(0, 0, 2);
    let (source, ticket, ..) = rig.ask().unwrap();
    // Nothing was requested from the other source.
    for _ in 0..3 {
        rig.builder.report_losses(1, u64::MAX, u64::MAX);
    }
    rig.now += ms(5);
    rig.arrive(source, ticket, &slot(0, 0..2));
    assert!(rig.builder.credit_state().unwrap().window >= window);
}

#[test]
fn a_source_that_has_nothing_for_a_range_says_so_and_is_not_waited_for() {
    let mut rig = Rig::new(config(2));
    rig.offer(0, 3, 2);
    rig.fetch_all();
    // Source 1 has nothing for 3 and 4, and no further event for this builder in a long time.
    rig.builder.source_passed(1, EventId(5), 0, rig.now);
    assert_eq!(rig.closed(), [(3, 1, vec![(1, SILENT)]), (4, 1, vec![(1, SILENT)])]);
    assert_eq!(rig.builder.oldest_event(), EventId(5));
    // Neither source has anything for its next events.
    rig.builder.source_passed(0, EventId(1_000_000), 1, rig.now);
    rig.builder.source_passed(1, EventId(1_000_000), 0, rig.now);
    assert_eq!(rig.builder.oldest_event(), EventId(1_000_000));
    assert_eq!((rig.ledger().sources[0].skipped, rig.ledger().sources[1].skipped), (0, 2));
    let late = rig.announcement(1, 999_999, 1, Disposition::Held);
    assert_eq!(rig.announce(1, late), Err(Violation::Order(999_999)));
    rig.end(0, 2);
    rig.end(1, 0);
    rig.assert_finished();
}

#[test]
fn what_a_source_has_passed_counts_once_what_it_offered_before_is_here() {
    let mut rig = Rig::new(config(2));
    rig.offer(0, 0, 2);
    rig.fetch_all();
    // The message overtook the offer of event 1.
    rig.builder.source_passed(1, EventId(8), 1, rig.now);
    assert_eq!(rig.closed(), []);
    rig.offer(1, 1, 1);
    rig.fetch_all();
    assert_eq!(rig.closed(), [(0, 1, vec![(1, SILENT)]), (1, 1, vec![])]);
    assert_eq!(rig.ledger().sources[1].skipped, 1);
}

#[test]
fn numbers_that_go_to_other_builders_are_no_events_however_many_they_are() {
    let mut rig = Rig::new(config(2));
    for source in 0..2 {
        for range in 0..4 {
            rig.offer(source, range * 1000, 2);
        }
    }
    rig.fetch_all();
    let closed: Vec<_> = (0..4).map(|range| (range * 1000, 2, vec![])).collect();
    assert_eq!(rig.closed(), closed, "at most 8 numbers are open at a time");
    assert_eq!(rig.builder.event_counts(), (8, 0));
    assert!(rig.ledger().sources.iter().all(|entry| entry.skipped == 0));
    rig.end(0, 8);
    rig.end(1, 8);
    rig.assert_finished();
}
