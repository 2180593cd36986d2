//! A peer's valid segments, damaged: changed, cut, lost, repeated, out of turn.

use crate::ends::{BASE, End, OPEN, OWN, exchange, pattern, range, remote, request};
use proptest::prelude::*;
use thalweg_iwarp::{
    AtomicOperation, Completion, Event, Operation, Payload, ReceiveOutcome, Stag, StreamSettings, WorkRequest,
};

/// Memory that the peer has no right to.
const SECRET: Stag = Stag(0x9009);

/// Damage to one segment.
#[derive(Debug, Clone)]
enum Damage {
    None,
    Change {
        at: prop::sample::Index,
        value: u8,
    },
    /// Change of the first bytes: those that mean something.
    ChangeHeader {
        at: usize,
        value: u8,
    },
    Cut(prop::sample::Index),
    Lose,
    Repeat,
    Delay,
}

fn damage() -> impl Strategy<Value = Damage> {
    prop_oneof![
        20 => Just(Damage::None),
        1 => (any::<prop::sample::Index>(), any::<u8>()).prop_map(|(at, value)| Damage::Change { at, value }),
        3 => (0..46_usize, prop_oneof![0..8_u8, any::<u8>()])
            .prop_map(|(at, value)| Damage::ChangeHeader { at, value }),
        1 => any::<prop::sample::Index>().prop_map(Damage::Cut),
        1 => Just(Damage::Lose),
        1 => Just(Damage::Repeat),
        1 => Just(Damage::Delay),
    ]
}

/// A side with something of each kind to send, to be answered and to be received.
pub(crate) fn busy(settings: &StreamSettings) -> End {
    let mut end = End::new(settings.clone());
    end.memory.register(SECRET, BASE, pattern(5), &[]);
    let add = AtomicOperation::FetchAdd { add: 1, mask: 0 };
    let gathered = |length| Payload::Gathered(vec![range(OWN, 0, length)]);
    let operations = [
        Operation::Write { remote: remote(0), data: gathered(300), immediate: Some([1; 8]) },
        Operation::Read { remote: remote(0), into: vec![range(OWN, 1000, 100), range(OWN, 2000, 300)] },
        Operation::Send { data: gathered(200), invalidate: None },
        Operation::Atomic { remote: remote(8), operation: add, into: range(OWN, 3000, 8) },
        Operation::Read { remote: remote(100), into: Vec::new() },
        Operation::Immediate([2; 8]),
        Operation::Send { data: gathered(0), invalidate: Some(OPEN) },
    ];
    for (id, operation) in (0..).zip(operations) {
        // The last one takes away what the Reads are of: it waits for them (RFC 5040 §5.5 rule 12).
        end.stream.post(WorkRequest { fence: id + 1 == REQUESTS, ..request(id, operation) }).unwrap();
    }
    for id in 0..RECEIVES {
        end.post_receive(id, vec![range(OWN, 5000 + 300 * id, 200)]);
    }
    end
}

const REQUESTS: u64 = 7;
const RECEIVES: u64 = 5;

/// Sends what a side has to the other one, damaged. Returns the segments that are late.
fn send_damaged(
    from: &mut End,
    to: &mut End,
    damages: &mut impl Iterator<Item = Damage>,
    sequence: &mut u64,
) -> Vec<(u64, Vec<u8>)> {
    let mut late = Vec::new();
    for mut segment in from.segments() {
        *sequence += 1;
        let mut copies = 1;
        match damages.next().unwrap_or(Damage::None) {
            Damage::None => {}
            Damage::Change { at, value } => *at.get_mut(&mut segment) = value,
            Damage::ChangeHeader { at, value } => segment.iter_mut().skip(at).take(1).for_each(|byte| *byte = value),
            Damage::Cut(at) => segment.truncate(at.index(segment.len())),
            Damage::Lose => copies = 0,
            Damage::Repeat => copies = 2,
            Damage::Delay => {
                late.push((*sequence, segment));
                continue;
            }
        }
        for _ in 0..copies {
            assert_eq!(to.stream.receive_segment(*sequence, &segment, &mut to.memory), ReceiveOutcome::Taken);
            *sequence += u64::from(copies > 1);
        }
        to.stream.deliver_segments(*sequence + 1, &mut to.memory);
    }
    late
}

/// Ends a side, and checks that requests and receives are over, each once and in order, and that nothing was written
/// that the peer has no right to write.
pub(crate) fn check_end(end: &mut End) {
    end.stream.lose_connection();
    let (mut requests, mut receives) = (0, 0);
    for event in end.events() {
        match event {
            Event::Completed(Completion { id, .. }) => {
                assert_eq!(id, requests);
                requests += 1;
            }
            Event::Received { id, .. } => {
                assert_eq!(id, receives);
                receives += 1;
            }
            _ => {}
        }
    }
    assert_eq!((requests, receives + end.memory.receives.len() as u64), (REQUESTS, RECEIVES));
    assert!(end.memory.regions[&SECRET].bytes == pattern(5));
    let (own, expected) = (&end.memory.regions[&OWN].bytes, pattern(2));
    let writable = |at: usize| matches!(at, 1000..1100 | 2000..2300 | 3000..3008 | 5000..6400);
    assert!((0..own.len()).all(|at| writable(at) || own[at] == expected[at]));
}

proptest! {
    #[test]
    fn damaged_segments_harm_nothing(
        damages in proptest::collection::vec(damage(), 0..60),
        ahead in 0..8_usize,
        immediate: bool,
    ) {
        let settings = StreamSettings {
            segment_limit_bytes: 128,
            segments_ahead: ahead,
            send_with_immediate: immediate,
            ..StreamSettings::default()
        };
        let (mut a, mut b) = (busy(&settings), busy(&settings));
        let mut damages = damages.into_iter();
        let (mut forth, mut back) = (0, 0);
        for _ in 0..8 {
            let late = send_damaged(&mut a, &mut b, &mut damages, &mut forth);
            for (sequence, segment) in late {
                // It comes after the end of its turn.
                let _ = b.stream.receive_segment(sequence, &segment, &mut b.memory);
            }
            let _ = send_damaged(&mut b, &mut a, &mut damages, &mut back);
        }
        check_end(&mut a);
        check_end(&mut b);
    }
}

/// The same without damage: what the other test has from its damage, and not from its own making.
#[test]
fn undamaged_segments_succeed() {
    let settings = StreamSettings { segment_limit_bytes: 128, ..StreamSettings::default() };
    let (mut a, mut b) = (busy(&settings), busy(&settings));
    exchange(&mut a, &mut b);
    for end in [&mut a, &mut b] {
        assert_eq!(end.stream.fault(), None);
        assert!(!end.memory.regions.contains_key(&OPEN));
        check_end(end);
    }
}
