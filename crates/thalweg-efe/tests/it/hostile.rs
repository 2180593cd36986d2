//! Frames that a peer, or a stranger, makes up.

use crate::pair::{Pair, next_frame};
use proptest::prelude::*;
use std::time::Duration;
use thalweg_efe::{
    Class, Echo, Frame, FrameError, HEADER_BYTES, Header, Kind, Options, STATUS_BYTES, Status, WINDOW_PACKETS,
    write_frame,
};

fn any_class() -> impl Strategy<Value = Class> {
    prop::sample::select(Class::ALL.to_vec())
}

fn any_kind() -> impl Strategy<Value = Kind> {
    use Kind::{Abort, Accept, Challenge, Open, Packet, Reject, Reset, Status};
    prop::sample::select(vec![Open, Challenge, Accept, Reject, Packet, Packet, Packet, Status, Status, Abort, Reset])
}

/// Small numbers, large ones, and any.
fn any_number() -> impl Strategy<Value = u32> {
    prop_oneof![0u32..300, u32::MAX - 300..=u32::MAX, any::<u32>()]
}

fn any_header() -> impl Strategy<Value = Header> {
    let echo =
        prop::option::of((any::<u32>(), any::<u32>()).prop_map(|(stamp, held_nanos)| Echo { stamp, held_nanos }));
    let numbers = (any::<u32>(), any::<u64>(), any::<u32>(), any::<u32>(), any_number(), any::<u64>());
    (any_kind(), any::<[bool; 3]>(), echo, any_class(), numbers).prop_map(
        |(kind, [answer, finished, peer_finished], echo, class, (to, token, from, stamp, sequence, wanted))| Header {
            kind,
            to,
            token,
            from,
            answer,
            finished,
            peer_finished,
            stamp,
            echo,
            class,
            sequence,
            wanted,
        },
    )
}

fn any_status() -> impl Strategy<Value = Status> {
    (any_class(), any::<u16>(), any_number(), any::<u64>(), any::<u128>(), any::<u128>()).prop_map(
        |(class, not_ready_10us, below, granted, acknowledged, received)| Status {
            class,
            not_ready_10us,
            below,
            granted,
            acknowledged,
            received,
        },
    )
}

fn encode(header: &Header, statuses: &[Status], body: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0; HEADER_BYTES + statuses.len() * STATUS_BYTES + body.len()];
    let length = write_frame(&mut bytes, header, statuses, |into| {
        into[..body.len()].copy_from_slice(body);
        body.len()
    });
    assert_eq!(length, bytes.len());
    bytes
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn a_frame_is_parsed_as_it_was_written_whatever_follows_it(
        header in any_header(),
        statuses in prop::collection::vec(any_status(), 0..=3),
        body in prop::collection::vec(any::<u8>(), 0..200),
        padding in 0usize..50,
    ) {
        let mut bytes = encode(&header, &statuses, &body);
        bytes.extend(vec![0xaa; padding]);
        let frame = Frame::parse_bytes(&bytes).unwrap();
        prop_assert_eq!(frame.header, header);
        prop_assert!(frame.statuses().eq(&statuses));
        prop_assert_eq!(frame.body, &body[..]);
    }

    #[test]
    fn a_frame_with_a_changed_bit_or_without_its_end_is_damaged(
        header in any_header(),
        body in prop::collection::vec(any::<u8>(), 0..100),
        place in any::<prop::sample::Index>(),
        bit in 0u8..8,
    ) {
        let bytes = encode(&header, &[], &body);
        let mut changed = bytes.clone();
        changed[place.index(bytes.len())] ^= 1 << bit;
        prop_assert!(Frame::parse_bytes(&changed).is_err());
        prop_assert!(Frame::parse_bytes(&bytes[..place.index(bytes.len())]).is_err());
    }

    #[test]
    fn any_bytes_are_parsed_or_rejected(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        let _ = Frame::parse_bytes(&bytes);
    }

    /// A peer that has the token and sends anything else than the protocol allows: nothing panics, what is sent and kept is
    /// bounded, and a packet that it sends after that arrives or is dropped for want of credit.
    #[test]
    fn a_connection_survives_a_peer_that_makes_up_its_frames(
        frames in prop::collection::vec(
            (any_header(), prop::collection::vec(any_status(), 0..=3), prop::collection::vec(any::<u8>(), 0..60), 0u64..3_000_000),
            1..60,
        ),
    ) {
        let (mut pair, near, _) = Pair::connected(&Options::default());
        for packet in 0..10 {
            pair.ports[0].send(near, Class::NonPosted, vec![packet]).unwrap();
        }
        pair.cut[0] = true;
        pair.exchange();
        let genuine = pair.headers[1].expect("the other end has sent frames");
        for (header, statuses, body, nanos) in frames {
            pair.now += Duration::from_nanos(nanos);
            let header = Header { to: genuine.to, token: genuine.token, from: genuine.from, ..header };
            let bytes = encode(&header, &statuses, &body);
            if let Some(arrival) = pair.ports[0].receive(1, &bytes, pair.now) {
                prop_assert_eq!(arrival.packet, &body[..]);
                let (id, class, sequence) = (arrival.connection, arrival.class, arrival.sequence);
                let below = pair.ports[0].accept(id, class, sequence);
                prop_assert!(below.is_none_or(|below| below <= WINDOW_PACKETS * 60));
            }
            let mut sent = 0;
            while next_frame(&mut pair.ports[0], pair.now).is_some() {
                sent += 1;
                prop_assert!(sent < 100, "a frame is answered by {sent} frames");
            }
            let (granted, bound) = pair.ports[0].granted_credit();
            prop_assert!(granted <= bound);
            let deadline = pair.ports[0].next_deadline();
            prop_assert!(deadline.is_none_or(|deadline| deadline > pair.now), "{deadline:?} at {:?}", pair.now);
        }
    }
}

#[test]
fn defects_are_named() {
    let header = Header {
        kind: Kind::Status,
        to: 1,
        token: 2,
        from: 3,
        answer: false,
        finished: false,
        peer_finished: false,
        stamp: 4,
        echo: None,
        class: Class::Posted,
        sequence: 0,
        wanted: 0,
    };
    let bytes = encode(&header, &[], b"");
    let with = |offset: usize, value: u8| {
        let mut changed = bytes.clone();
        changed[offset] = value;
        Frame::parse_bytes(&changed).unwrap_err()
    };
    assert_eq!(Frame::parse_bytes(b"short"), Err(FrameError::Foreign(5)));
    assert_eq!(with(0, 0), FrameError::Foreign(56));
    assert_eq!(with(2, 9), FrameError::Version(9));
    assert_eq!(with(24, 9), FrameError::Length { announced: 65, present: 56 });
    assert_eq!(with(27, 4), FrameError::Field { field: "statuses", value: 4 });
    assert!(matches!(with(50, 1), FrameError::Checksum { .. }));
    assert!(FrameError::Version(9).to_string().contains("version 9"));
}
