//! Connections from their beginning to their end.

use crate::pair::{Pair, events, next_frame, port};
use std::time::Duration;
use thalweg_efe::{
    Class, ConnectError, ConnectionError, Event, Frame, Header, Kind, MAX_PRIVATE_BYTES, Options, SendRefusal,
    WINDOW_PACKETS, write_frame,
};

const CLASS: Class = Class::Posted;

#[test]
fn packets_go_both_ways_and_come_back_when_they_are_acknowledged() {
    let (mut pair, near, far) = Pair::connected(&Options::default());
    assert_eq!(pair.ports[0].send(near, CLASS, b"question".to_vec()), Ok(0));
    assert_eq!(pair.ports[0].send(near, CLASS, Vec::new()), Ok(1));
    assert_eq!(pair.ports[1].send(far, Class::Completion, b"answer".to_vec()), Ok(0));
    pair.exchange();
    assert_eq!(pair.packets[1], [(CLASS, 0, b"question".to_vec()), (CLASS, 1, Vec::new())]);
    assert_eq!(pair.packets[0], [(Class::Completion, 0, b"answer".to_vec())]);
    let acknowledged = |sequence, packet: &[u8]| Event::Acknowledged {
        connection: near,
        class: CLASS,
        sequence,
        packet: packet.to_vec(),
    };
    assert_eq!(pair.events[0], [acknowledged(0, b"question"), acknowledged(1, b"")]);
}

#[test]
fn a_full_window_a_long_packet_and_a_closed_half_are_refused() {
    let (mut pair, near, _) = Pair::connected(&Options::default());
    pair.cut = [true; 2];
    for sequence in 0..WINDOW_PACKETS {
        assert_eq!(pair.ports[0].send(near, CLASS, vec![7]), Ok(sequence));
    }
    let refused = pair.ports[0].send(near, CLASS, vec![8]).unwrap_err();
    assert_eq!((refused.packet, refused.reason), (vec![8], SendRefusal::WindowFull));
    assert_eq!(pair.ports[0].send_room(near, CLASS).packets, 0);
    let refused = pair.ports[0].send(near, Class::NonPosted, vec![0; 1417]).unwrap_err();
    assert_eq!(refused.reason, SendRefusal::TooLong { bytes: 1417, max: 1416 });
    pair.ports[0].finish_sending(near);
    assert_eq!(pair.ports[0].send(near, CLASS, vec![]).unwrap_err().reason, SendRefusal::NotOpen);
    assert!(SendRefusal::NotOpen.to_string().contains("not open"));
}

/// A caller that joins small messages builds a packet when it would leave at once.
#[test]
fn the_room_shows_which_packet_would_leave_at_once() {
    let (mut pair, near, _) = Pair::connected(&Options::default());
    let max = pair.ports[0].send_room(near, CLASS).bytes_at_once;
    assert_eq!(max, 1416);
    assert_eq!(pair.ports[0].send_room(near, Class::Completion).bytes_at_once, 0, "no credit before it was asked for");
    pair.cut = [true; 2];
    while pair.ports[0].send_room(near, CLASS).bytes_at_once > 0 {
        pair.ports[0].send(near, CLASS, vec![0; 1000]).unwrap();
    }
    let mut sent = 0;
    while let Some((_, frame)) = next_frame(&mut pair.ports[0], pair.now) {
        sent += usize::from(Frame::parse_bytes(&frame).unwrap().header.kind == Kind::Packet);
    }
    // All but the last, for which some of the room was left.
    let queued = (WINDOW_PACKETS - pair.ports[0].send_room(near, CLASS).packets) as usize;
    assert!(sent + 1 >= queued && sent > 5, "{sent} of {queued}");
}

#[test]
fn each_half_closes_after_its_packets() {
    let (mut pair, near, far) = Pair::connected(&Options::default());
    pair.ports[0].send(near, CLASS, vec![1]).unwrap();
    pair.ports[0].finish_sending(near);
    pair.exchange();
    assert_eq!(pair.packets[1].len(), 1);
    assert_eq!(pair.events[1], [Event::PeerFinished { connection: far }]);
    // The other half is still open.
    pair.ports[1].send(far, CLASS, vec![2]).unwrap();
    pair.exchange();
    assert_eq!(pair.packets[0].len(), 1);
    pair.ports[1].finish_sending(far);
    pair.exchange();
    assert_eq!(pair.events[0][1..], [Event::PeerFinished { connection: near }, Event::Closed { connection: near }]);
    assert_eq!(pair.events[1].last(), Some(&Event::Closed { connection: far }));
    assert_eq!(pair.ports[0].connection_state(near), None);
    assert_eq!(pair.ports[0].next_deadline(), None, "nothing is left to be done");
}

#[test]
fn both_halves_close_although_the_last_frames_are_lost() {
    let (mut pair, near, far) = Pair::connected(&Options::default());
    pair.ports[0].finish_sending(near);
    pair.exchange();
    pair.cut = [true, false];
    pair.ports[1].finish_sending(far);
    pair.exchange();
    assert_eq!(pair.events[0].last(), Some(&Event::Closed { connection: near }));
    assert_eq!(pair.events[1], [Event::PeerFinished { connection: far }]);
    // Its answer was lost, and the port that has sent it knows nothing any more.
    pair.cut = [false, false];
    pair.advance(Duration::from_secs(1));
    assert_eq!(pair.events[1].last(), Some(&Event::Closed { connection: far }));
}

#[test]
fn a_peer_is_rejected_with_its_reason() {
    let mut pair = Pair::new(&Options::default());
    let near = pair.ports[0].connect(1, b"", pair.now).unwrap();
    pair.exchange();
    let Event::Incoming { connection: far, .. } = pair.events[1][0] else { panic!() };
    pair.ports[1].reject_connection(far, b"full").unwrap();
    pair.exchange();
    let error = ConnectionError::Rejected { private: (*b"full").into() };
    assert_eq!(pair.events[0], [Event::Failed { connection: near, error }]);
    assert_eq!(pair.ports[1].accept_connection(far, b"", pair.now), Err(ConnectError::NotWaiting));
    let too_long = vec![0; MAX_PRIVATE_BYTES + 1];
    assert_eq!(pair.ports[0].connect(1, &too_long, pair.now), Err(ConnectError::PrivateTooLong(513)));
}

#[test]
fn an_aborted_connection_ends_with_its_code() {
    let (mut pair, near, far) = Pair::connected(&Options::default());
    pair.ports[0].abort(near, 0x0202, b"no buffer");
    pair.exchange();
    let error = ConnectionError::Aborted { code: 0x0202, private: (*b"no buffer").into() };
    assert_eq!(pair.events[1], [Event::Failed { connection: far, error }]);
    assert!(pair.events[0].is_empty());
    assert_eq!(pair.ports[0].connection_state(near), None);
}

#[test]
fn a_handshake_survives_the_loss_of_each_of_its_frames() {
    for lost in 0..6 {
        let mut pair = Pair::new(&Options::default());
        let near = pair.ports[0].connect(1, b"", pair.now).unwrap();
        let mut carried = 0;
        while !pair.events[0].iter().any(|event| matches!(event, Event::Connected { .. })) || pair.events[1].len() < 2 {
            for from in 0..2 {
                while let Some((_, frame)) = next_frame(&mut pair.ports[from], pair.now) {
                    if carried != lost {
                        pair.ports[1 - from].receive(u8::try_from(from).unwrap(), &frame, pair.now);
                    }
                    carried += 1;
                }
                let events = events(&mut pair.ports[from]);
                pair.events[from].extend(events);
            }
            if let [Event::Incoming { connection, .. }] = pair.events[1][..] {
                let _ = pair.ports[1].accept_connection(connection, b"", pair.now);
            }
            pair.now += Duration::from_millis(1);
            assert!(pair.now < Duration::from_secs(1), "lost frame {lost}: {:?}", pair.events);
        }
        assert!(pair.ports[0].connection_state(near).is_some());
    }
}

#[test]
fn a_peer_that_answers_nothing_is_dead_after_the_timeout() {
    let options = Options { peer_timeout: Duration::from_secs(3), ..Options::default() };
    let (mut pair, near, far) = Pair::connected(&options);
    pair.advance(Duration::from_secs(60));
    assert_eq!(pair.events, [vec![], vec![]], "an idle connection stays open");
    pair.cut = [true; 2];
    pair.advance(Duration::from_secs(4));
    for (at, connection) in [near, far].into_iter().enumerate() {
        let [Event::Failed { connection: failed, error: ConnectionError::Silent { waited, .. } }] = pair.events[at][..]
        else {
            panic!("{:?}", pair.events[at]);
        };
        assert_eq!(failed, connection);
        assert!(waited >= options.peer_timeout && waited < options.peer_timeout + Duration::from_secs(1), "{waited:?}");
    }
    let error = pair.ports[0].connect(1, b"", pair.now).map(|_| pair.advance(Duration::from_secs(4)));
    assert_eq!(error, Ok(()));
    let failed = pair.events[0].last().unwrap();
    assert!(matches!(failed, Event::Failed { error: ConnectionError::NotOpened { .. }, .. }), "{failed:?}");
}

/// The time-out of one connection, which is shorter than the port's; the peer's own stays as it is.
#[test]
fn a_connection_has_a_time_out_of_its_own_and_names_it() {
    let (mut pair, near, far) = Pair::connected(&Options::default());
    let timeout = Duration::from_millis(300);
    pair.ports[0].set_peer_timeout(near, timeout);
    pair.advance(Duration::from_secs(3));
    assert!(pair.events[0].is_empty(), "an idle peer is asked for a sign of life: {:?}", pair.events[0]);
    pair.cut[1] = true;
    pair.advance(Duration::from_secs(2));
    let [Event::Failed { error, .. }] = &pair.events[0][..] else { panic!("{:?}", pair.events[0]) };
    assert!(matches!(error, ConnectionError::Silent { timeout: found, .. } if *found == timeout), "{error}");
    assert!(error.to_string().contains("time-out 300ms"), "{error}");
    assert!(pair.ports[1].connection_state(far).is_some());
}

/// The path to a peer carries less than the port does: both ends cut packets to it, and what goes through is padded to it.
#[test]
fn frames_are_as_long_as_the_path_that_either_end_knows() {
    let options = Options { max_frame_bytes: 9000, ..Options::default() };
    for (near_limit, far_limit, agreed) in
        [(1472, 9000, 1472), (9000, 1472, 1472), (8000, 4000, 4000), (9999, 9999, 9000)]
    {
        let mut pair = Pair::new(&options);
        pair.recording = Some(Vec::new());
        let near = pair.ports[0].connect(1, b"", pair.now).unwrap();
        pair.ports[0].limit_frame_bytes(near, near_limit);
        pair.exchange();
        let Event::Incoming { connection: far, .. } = pair.events[1][0] else { panic!("{:?}", pair.events[1]) };
        assert_eq!(pair.ports[1].peer_address(far), Some(0));
        pair.ports[1].limit_frame_bytes(far, far_limit);
        pair.ports[1].accept_connection(far, b"", pair.now).unwrap();
        pair.exchange();
        for (end, id) in [(0, near), (1, far)] {
            let connected = pair.events[end].iter().find_map(|event| match event {
                Event::Connected { connection, max_packet_bytes, .. } if *connection == id => Some(*max_packet_bytes),
                _ => None,
            });
            assert_eq!(connected, Some(agreed - thalweg_efe::HEADER_BYTES));
        }
        let frames = pair.recording.take().unwrap();
        let longest = frames.iter().map(Vec::len).max();
        assert_eq!(longest, Some(agreed), "the acceptance is padded");
        // Too late.
        pair.ports[0].limit_frame_bytes(near, 800);
        let packet = vec![7; agreed - thalweg_efe::HEADER_BYTES];
        pair.ports[0].send(near, CLASS, packet.clone()).unwrap();
        pair.exchange();
        assert_eq!(pair.packets[1], [(CLASS, 0, packet)]);
    }
}

/// The first `Open` comes once more, late: it is part of an attempt that has gone on.
#[test]
fn a_delayed_copy_of_an_opening_opens_nothing() {
    let mut pair = Pair::new(&Options::default());
    let near = pair.ports[0].connect(1, b"", pair.now).unwrap();
    let (_, opening) = next_frame(&mut pair.ports[0], pair.now).unwrap();
    assert!(pair.ports[1].receive(0, &opening, pair.now).is_none());
    pair.exchange();
    let Event::Incoming { connection: far, .. } = pair.events[1][0] else { panic!("{:?}", pair.events[1]) };
    for stage in 0..3 {
        match stage {
            1 => pair.ports[1].accept_connection(far, b"", pair.now).unwrap(),
            2 => pair.ports[0].send(near, CLASS, vec![1]).map(drop).unwrap(),
            _ => {}
        }
        assert!(pair.ports[1].receive(0, &opening, pair.now).is_none());
        pair.exchange();
    }
    let incoming = pair.events[1].iter().filter(|event| matches!(event, Event::Incoming { .. })).count();
    assert_eq!((incoming, pair.packets[1].len()), (1, 1), "{:?}", pair.events[1]);
}

/// The status of a packet goes with the answer, where there is one in time.
#[test]
fn a_status_waits_for_an_answer_and_no_longer_than_it_may() {
    let options = Options { status_delay: Duration::from_micros(20), ..Options::default() };
    let (mut pair, near, far) = Pair::connected(&options);
    pair.advance(Duration::from_millis(1));
    let sent = |pair: &Pair| pair.ports[1].connection_state(far).unwrap().counters.frames_sent;
    let before = sent(&pair);
    pair.ports[0].send(near, CLASS, b"question".to_vec()).unwrap();
    pair.exchange();
    assert_eq!((sent(&pair) - before, pair.events[0].len()), (0, 0), "it waits");
    pair.ports[1].send(far, CLASS, b"answer".to_vec()).unwrap();
    pair.exchange();
    assert_eq!((sent(&pair) - before, pair.events[0].len()), (1, 1), "it went with the answer");
    pair.ports[0].send(near, CLASS, b"no question".to_vec()).unwrap();
    pair.exchange();
    pair.advance(Duration::from_micros(19));
    assert_eq!(sent(&pair) - before, 1);
    pair.advance(Duration::from_micros(2));
    assert_eq!((sent(&pair) - before, pair.events[0].len()), (2, 2), "it went alone");
    for _ in 0..8 {
        pair.ports[0].send(near, CLASS, vec![1]).unwrap();
    }
    pair.exchange();
    assert_eq!(pair.events[0].len(), 10, "many packets do not wait");
    // Nor does what follows a packet that is missing.
    for cut in [true, false] {
        pair.cut[0] = cut;
        pair.ports[0].send(near, CLASS, vec![2]).unwrap();
        pair.exchange();
    }
    assert_eq!(sent(&pair) - before, 4);
}

#[test]
fn a_path_that_shrinks_below_the_frames_ends_the_connection_with_both_lengths() {
    let (mut pair, near, far) = Pair::connected(&Options::default());
    pair.ports[0].note_path(1, 1472);
    pair.ports[0].note_path(2, 800);
    assert!(pair.ports[0].connection_state(near).is_some());
    pair.ports[0].note_path(1, 1400);
    let [Event::Failed { error, .. }] = &events(&mut pair.ports[0])[..] else { panic!("one event") };
    assert_eq!(*error, ConnectionError::PathTooNarrow { path_bytes: 1400, frame_bytes: 1472 });
    // The peer finds out by its next frame.
    pair.ports[1].send(far, CLASS, vec![1]).unwrap();
    pair.exchange();
    assert_eq!(pair.events[1], [Event::Failed { connection: far, error: ConnectionError::Forgotten }]);
}

#[test]
fn a_timeout_that_is_found_while_frames_are_made_is_an_event_and_no_deadline() {
    let (mut pair, near, _) = Pair::connected(&Options::default());
    pair.now += Options::default().peer_timeout;
    while next_frame(&mut pair.ports[0], pair.now).is_some() {}
    assert_eq!((pair.ports[0].has_events(), pair.ports[0].next_deadline()), (true, None));
    let failed = pair.ports[0].next_event();
    let is_silent = |error: &ConnectionError| matches!(error, ConnectionError::Silent { .. });
    assert!(matches!(failed, Some(Event::Failed { connection, error }) if connection == near && is_silent(&error)));
}

#[test]
fn a_restarted_peer_is_recognised_by_what_it_does_not_know() {
    let (mut pair, near, _) = Pair::connected(&Options::default());
    pair.ports[1] = port(Options::default(), 3);
    pair.ports[0].send(near, CLASS, vec![1]).unwrap();
    pair.exchange();
    assert_eq!(pair.events[0], [Event::Failed { connection: near, error: ConnectionError::Forgotten }]);
}

#[test]
fn a_restarted_peer_is_recognised_by_its_new_instance() {
    let (mut pair, _, far) = Pair::connected(&Options::default());
    pair.ports[0] = port(Options::default(), 3);
    pair.ports[0].connect(1, b"again", pair.now).unwrap();
    pair.exchange();
    assert_eq!(pair.events[1].len(), 2, "{:?}", pair.events[1]);
    assert!(pair.events[1].contains(&Event::Failed { connection: far, error: ConnectionError::Restarted }));
    assert!(matches!(pair.events[1][0], Event::Incoming { .. }));
}

#[test]
fn packets_accepted_late_and_out_of_order_are_acknowledged_then() {
    let (mut pair, near, _) = Pair::connected(&Options::default());
    pair.accepts[1] = false;
    for content in 0..3 {
        pair.ports[0].send(near, CLASS, vec![content]).unwrap();
    }
    pair.exchange();
    pair.advance(Duration::from_secs(1));
    assert_eq!(pair.packets[1].len(), 3, "received ones are not sent again");
    assert!(pair.events[0].is_empty());
    let belows: Vec<_> = [2, 0, 1]
        .into_iter()
        .map(|sequence| {
            let (id, class, _) = pair.pending[1][0];
            pair.ports[1].accept(id, class, sequence).unwrap()
        })
        .collect();
    assert_eq!(belows, [0, 1, 3]);
    pair.exchange();
    assert_eq!(pair.events[0].len(), 3);
    assert_eq!(pair.ports[0].connection_state(near).unwrap().counters.sent_again, 0);
}

#[test]
fn a_refused_packet_comes_again_after_the_wait_and_holds_up_no_other_class() {
    let (mut pair, near, far) = Pair::connected(&Options::default());
    pair.accepts[1] = false;
    pair.ports[0].send(near, Class::NonPosted, vec![1]).unwrap();
    pair.exchange();
    pair.ports[1].refuse(far, Class::NonPosted, 0, Duration::from_millis(5));
    pair.exchange();
    pair.accepts[1] = true;
    pair.ports[0].send(near, Class::NonPosted, vec![2]).unwrap();
    pair.ports[0].send(near, Class::Posted, vec![3]).unwrap();
    pair.exchange();
    assert_eq!(pair.packets[1].last(), Some(&(Class::Posted, 0, vec![3])));
    pair.advance(Duration::from_millis(4));
    assert_eq!(pair.packets[1].len(), 2);
    pair.advance(Duration::from_millis(2));
    assert_eq!(pair.packets[1][2..], [(Class::NonPosted, 0, vec![1]), (Class::NonPosted, 1, vec![2])]);
    let counters = pair.ports[0].connection_state(near).unwrap().counters;
    assert_eq!((counters.refused_by_peer, counters.sent_again, counters.sent_by_timer), (1, 1, 0));
}

#[test]
fn a_lost_packet_is_sent_again_about_a_round_trip_later_without_a_timer() {
    let (mut pair, near, _) = Pair::connected(&Options::default());
    for sequence in 0..20 {
        pair.ports[0].send(near, CLASS, vec![sequence]).unwrap();
        pair.cut[0] = sequence == 10;
        pair.exchange();
    }
    pair.advance(Duration::from_micros(500));
    let counters = pair.ports[0].connection_state(near).unwrap().counters;
    assert_eq!(pair.packets[1].len(), 20);
    assert_eq!((counters.sent_again, counters.sent_in_vain, counters.sent_by_timer), (1, 0, 0));
}

#[test]
fn a_stranger_can_neither_inject_nor_reset_nor_open_without_receiving() {
    let (mut pair, near, far) = Pair::connected(&Options::default());
    pair.ports[0].send(near, CLASS, vec![1]).unwrap();
    let (_, frame) = next_frame(&mut pair.ports[0], pair.now).unwrap();
    let header = Frame::parse_bytes(&frame).unwrap().header;
    let forge = |header: &Header| {
        let mut bytes = [0; 2000];
        let length = write_frame(&mut bytes, header, &[], |body| {
            body[0] = 66;
            1
        });
        bytes[..length].to_vec()
    };
    // The right frame from another address, and wrong tokens from the right one.
    assert!(pair.ports[1].receive(7, &frame, pair.now).is_none());
    for kind in [Kind::Packet, Kind::Status, Kind::Abort, Kind::Reset, Kind::Accept, Kind::Reject, Kind::Open] {
        let forged = forge(&Header { kind, token: header.token ^ 1, ..header });
        assert!(pair.ports[1].receive(0, &forged, pair.now).is_none());
    }
    assert_eq!(pair.ports[1].port_counters().unknown, 8);
    assert!(events(&mut pair.ports[1]).is_empty());
    assert!(pair.ports[1].connection_state(far).is_some());
    // The stranger gets resets, which name no token that it does not know; and no connection for a flood of openings.
    for from in 0..1000 {
        let opening = Header { kind: Kind::Open, to: 0, token: 0, from, ..header };
        let mut bytes = [0; 2000];
        let length = write_frame(&mut bytes, &opening, &[], |body| {
            body[..24].fill(0);
            body[8] = 1;
            24
        });
        assert!(pair.ports[1].receive(9, &bytes[..length], pair.now).is_none());
    }
    assert!(events(&mut pair.ports[1]).is_empty());
    assert_eq!(pair.ports[1].port_counters().evicted_attempts, 1000 - 256);
    assert!(pair.ports[1].receive(0, &frame, pair.now).is_some(), "the connection works as before");
}
