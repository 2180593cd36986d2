//! Each half closes, and the connection is lost, at every point of a session.

use crate::ends::{End, send_all};
use crate::hostile::{busy, check_end};
use thalweg_iwarp::{Completion, ErrorCode, Event, StreamSettings};

fn settings() -> StreamSettings {
    StreamSettings { segment_limit_bytes: 128, inbound_requests: 2, outbound_requests: 2, ..StreamSettings::default() }
}

/// Two sides after so many segments, taken in turn, and whether there were so many.
fn sides_after(segments: usize) -> ([End; 2], bool) {
    let mut sides = [busy(&settings()), busy(&settings())];
    let mut idle = 0;
    let mut moved = 0;
    for turn in 0.. {
        if moved == segments || idle == 2 {
            break;
        }
        match sides[turn % 2].next_segment() {
            Some((_, segment)) => {
                sides[1 - turn % 2].receive(&segment);
                (moved, idle) = (moved + 1, 0);
            }
            None => idle += 1,
        }
    }
    (sides, moved == segments)
}

/// Calls the test with two sides after each number of segments, until their session is over.
fn at_every_point(test: impl Fn(&mut End, &mut End)) {
    for segments in 0.. {
        let ([mut a, mut b], more) = sides_after(segments);
        test(&mut a, &mut b);
        check_end(&mut a);
        check_end(&mut b);
        if !more {
            assert!(segments > 20, "a session of {segments} segments");
            return;
        }
    }
}

/// Whether all requests of a side have succeeded.
fn has_succeeded(events: &[Event]) -> bool {
    let completions = events.iter().filter_map(|event| match event {
        Event::Completed(Completion { result, .. }) => Some(result.is_ok()),
        _ => None,
    });
    completions.clone().count() > 0 && completions.into_iter().all(|ok| ok)
}

/// RFC 5041 §6.2.1: what was posted before the closing is done, in both directions.
#[test]
fn both_sides_close_when_they_are_done() {
    for segments in 0.. {
        let ([mut a, mut b], more) = sides_after(segments);
        // Each is asked to close now. A side answers the peer's Reads as long as its own requests are not over.
        b.stream.close();
        while send_all(&mut a, &mut b) | send_all(&mut b, &mut a) {}
        a.stream.close();
        while send_all(&mut a, &mut b) | send_all(&mut b, &mut a) {}
        if b.stream.is_send_closed() {
            a.stream.close_by_peer();
        }
        if a.stream.is_send_closed() {
            b.stream.close_by_peer();
        }
        let (a_events, b_events) = (a.events(), b.events());
        // The side that closed first is done, if the peer was; the other one's Reads may have come too late.
        assert!(has_succeeded(&b_events), "{b_events:?}");
        assert!(b.stream.is_send_closed());
        let closed = |events: &[Event]| events.contains(&Event::SendClosed);
        assert!(closed(&b_events));
        if has_succeeded(&a_events) {
            assert!(closed(&a_events) && a.stream.is_over() && b.stream.is_over());
            assert_eq!((a.stream.fault(), b.stream.fault()), (None, None));
        } else {
            assert_eq!(a.stream.fault().map(|fault| fault.error_code()), Some(ErrorCode::MPA_CLOSED));
        }
        if !more {
            return;
        }
    }
}

/// The peer's half closes at once, within whatever it was sending: this side is not left waiting.
#[test]
fn a_half_that_closes_at_once_leaves_nothing_waiting() {
    at_every_point(|a, b| {
        b.stream.close_by_peer();
        while b.next_segment().is_some() {}
        let waits = |end: &End| !end.stream.is_over() && end.stream.fault().is_none();
        if waits(b) {
            b.stream.close();
            assert!(b.stream.is_over());
        }
        a.stream.lose_connection();
        assert!(a.stream.is_over());
    });
}

#[test]
fn a_connection_that_is_lost_ends_both_sides() {
    at_every_point(|a, b| {
        for end in [a, b] {
            end.stream.lose_connection();
            assert!(end.stream.is_over() && end.stream.is_send_closed());
            assert_eq!(end.segments(), Vec::<Vec<u8>>::new());
        }
    });
}

/// A Terminate message in place of any segment: both sides end, and nothing follows it.
#[test]
fn a_stream_that_is_terminated_ends_both_sides() {
    at_every_point(|a, b| {
        a.stream.terminate(ErrorCode::RDMAP_GLOBAL_CATASTROPHIC);
        let segments = a.segments();
        assert_eq!(segments.len(), 1);
        b.receive(&segments[0]);
        assert!(b.stream.is_over() && b.stream.is_send_closed());
        assert_eq!(b.segments(), Vec::<Vec<u8>>::new());
    });
}
