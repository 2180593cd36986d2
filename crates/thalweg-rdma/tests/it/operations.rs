//! Every operation, with no bytes, with many elements, and longer than the RNIC copies at a time.

use crate::setup::*;
use proptest::prelude::*;
use thalweg_rdma::*;

#[test]
fn bytes_are_written_read_and_sent() {
    for arrangement in ARRANGEMENTS {
        let (near, far) = pair(arrangement);
        near.fill(0, &pattern(1000, 1));
        near.send(1, Work::Write { data: Data::Memory(&[near.buffer.sge(0, 1000)]), to: far.at(5), immediate: None });
        assert_eq!(near.succeed(1).operation(), CompletedOperation::Write);
        assert_eq!(far.bytes(5, 1000), pattern(1000, 1));

        near.send(2, Work::Read { into: &[near.buffer.sge(2000, 500)], from: far.at(5) });
        let read = near.succeed(2);
        assert_eq!((read.operation(), read.transferred_bytes()), (CompletedOperation::Read, 500));
        assert_eq!(near.bytes(2000, 500), pattern(1000, 1)[..500]);

        far.queue.post_receive(3, &[far.buffer.sge(4000, 100)]).unwrap();
        near.send(4, Work::Send { data: Data::Inline(b"hello"), immediate: Some(77) });
        assert_eq!(near.succeed(4).operation(), CompletedOperation::Send);
        let received = far.succeed(3);
        assert_eq!((received.transferred_bytes(), received.immediate_data()), (5, Some(77)));
        assert_eq!(
            (received.operation(), received.queue_number()),
            (CompletedOperation::Receive, far.queue.queue_number())
        );
        assert_eq!(far.bytes(4000, 6), *b"hello\0");

        far.queue.post_receive(5, &[]).unwrap();
        let data = [near.buffer.sge(0, 10)];
        near.send(6, Work::Write { data: Data::Memory(&data), to: far.at(9000), immediate: Some(1) });
        near.succeed(6);
        let received = far.succeed(5);
        assert_eq!(received.operation(), CompletedOperation::ReceiveWriteWithImmediate);
        assert_eq!((received.transferred_bytes(), received.immediate_data()), (10, Some(1)));
        assert_eq!(far.bytes(9000, 10), pattern(10, 1));
        near.quiet();
        far.quiet();
    }
}

#[test]
fn atomics_return_what_there_was() {
    for arrangement in ARRANGEMENTS {
        let (near, far) = pair(arrangement);
        far.fill(8, &40u64.to_ne_bytes());
        let into = near.buffer.sge(16, 8);
        near.send(1, Work::FetchAdd { into, at: far.at(8), add: 2 });
        assert_eq!(near.succeed(1).operation(), CompletedOperation::FetchAdd);
        assert_eq!((near.bytes(16, 8), far.bytes(8, 8)), (40u64.to_ne_bytes().into(), 42u64.to_ne_bytes().into()));
        for (compare, now) in [(41, 42), (42, 7u64)] {
            near.send(2, Work::CompareSwap { into, at: far.at(8), compare, swap: 7 });
            assert_eq!(near.succeed(2).operation(), CompletedOperation::CompareSwap);
            assert_eq!((near.bytes(16, 8), far.bytes(8, 8)), (42u64.to_ne_bytes().into(), now.to_ne_bytes().into()));
        }
    }
}

/// RFC 5041 section 5.2, RFC 5040 sections 5.2.1 and 5.3.
#[test]
fn no_bytes_need_no_memory_and_a_send_of_none_a_receive() {
    for arrangement in ARRANGEMENTS {
        let (near, far) = pair(arrangement);
        let nowhere = RemoteAddress { address: u64::MAX, stag: 0x1234_5678 };
        let nothing = [Sge { address: 5, bytes: 0, stag: 99 }; 3];
        near.send(1, Work::Write { data: Data::Memory(&[]), to: nowhere, immediate: None });
        near.send(2, Work::Write { data: Data::Memory(&nothing), to: nowhere, immediate: None });
        near.send(3, Work::Read { into: &nothing, from: nowhere });
        near.send(4, Work::Write { data: Data::Inline(&[]), to: nowhere, immediate: None });
        (1..=4).for_each(|id| _ = near.succeed(id));
        far.queue.post_receive(10, &[far.buffer.sge(0, 1)]).unwrap();
        near.send(5, Work::Send { data: Data::Memory(&[]), immediate: None });
        near.succeed(5);
        assert_eq!(far.succeed(10).transferred_bytes(), 0);
    }
}

#[test]
fn a_message_longer_than_a_turn_arrives_whole_while_others_go_on() {
    for arrangement in ARRANGEMENTS {
        let (near, far) = pair(arrangement);
        const LONG: usize = 5 << 20;
        let (from, to) =
            (near.domain.create_buffer(LONG, ALL_ACCESS).unwrap(), far.domain.create_buffer(LONG, ALL_ACCESS).unwrap());
        from.shared_memory().store_bytes(0, &pattern(LONG, 9));
        let elements: Vec<Sge> = (0..16).map(|at| from.sge(at * LONG as u64 / 16, LONG as u32 / 16)).collect();
        let place = RemoteAddress { address: to.address_at(0), stag: to.stag() };
        near.send(1, Work::Write { data: Data::Memory(&elements), to: place, immediate: None });
        near.succeed(1);
        let mut bytes = vec![0; LONG];
        to.shared_memory().load_bytes(0, &mut bytes);
        assert!(bytes == pattern(LONG, 9));
        // Read back, and sent into many elements.
        from.shared_memory().store_bytes(0, &vec![0; LONG]);
        near.send(2, Work::Read { into: &elements, from: place });
        near.succeed(2);
        from.shared_memory().load_bytes(0, &mut bytes);
        assert!(bytes == pattern(LONG, 9));
        let sinks: Vec<Sge> = (0..5).map(|at| to.sge(at * (1 << 20), 1 << 20)).collect();
        far.queue.post_receive(3, &sinks).unwrap();
        near.send(4, Work::Send { data: Data::Memory(&elements), immediate: None });
        near.succeed(4);
        assert_eq!(far.succeed(3).transferred_bytes(), LONG as u32);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]
    #[test]
    fn messages_of_any_elements_arrive(
        from in proptest::collection::vec((0u64..1000, 0u32..300), 0..=16),
        to in proptest::collection::vec((0u64..1000, 1u32..600), 1..=16),
    ) {
        let (near, far) = pair(Arrangement::EmbeddedTwoPrograms);
        near.fill(0, &pattern(2000, 3));
        let elements = |side: &Party, parts: &[(u64, u32)], apart: u64| {
            parts.iter().enumerate().map(|(index, (at, bytes))| side.buffer.sge(index as u64 * apart + at, *bytes)).collect::<Vec<_>>()
        };
        let (sources, sinks) = (elements(&near, &from, 0), elements(&far, &to, 2000));
        let sent: Vec<u8> = from.iter().flat_map(|(at, bytes)| near.bytes(*at as usize, *bytes as usize)).collect();
        let room: usize = to.iter().map(|(_, bytes)| *bytes as usize).sum();
        far.queue.post_receive(1, &sinks).unwrap();
        near.send(2, Work::Send { data: Data::Memory(&sources), immediate: None });
        let sink_bytes = |side: &Party| to.iter().enumerate().flat_map(|(index, (at, bytes))| side.bytes(index * 2000 + *at as usize, *bytes as usize)).collect::<Vec<u8>>();
        if sent.len() <= room {
            near.succeed(2);
            prop_assert_eq!(far.succeed(1).transferred_bytes() as usize, sent.len());
            prop_assert_eq!(&sink_bytes(&far)[..sent.len()], &sent[..]);
        } else {
            near.fail(2, Status::RemoteInvalidRequest);
            let fault = far.fail(1, Status::LocalLengthError);
            prop_assert_eq!((fault.value as usize, fault.limit as usize), (sent.len(), room));
            prop_assert!(sink_bytes(&far).iter().all(|byte| *byte == 0));
        }
    }
}

#[test]
fn windows_are_bound_used_and_invalidated_by_either_side() {
    for arrangement in ARRANGEMENTS {
        let (near, far) = pair(arrangement);
        let window = far.domain.allocate_window(WindowKind::Queue).unwrap();
        let bind = |id: u64, stag: u32| {
            far.send(
                id,
                Work::BindWindow {
                    new_stag: stag,
                    region_stag: far.buffer.stag(),
                    address: far.buffer.address_at(100),
                    bytes: 50,
                    access: Access::REMOTE_WRITE,
                },
            );
            assert_eq!(far.succeed(id).operation(), CompletedOperation::BindWindow);
        };
        let write = |id: u64, stag: u32| {
            let to = RemoteAddress { address: far.buffer.address_at(120), stag };
            near.send(id, Work::Write { data: Data::Inline(b"through"), to, immediate: None });
        };
        let stag = next_window_stag(window.first_stag());
        bind(1, stag);
        write(2, stag);
        near.succeed(2);
        assert_eq!(far.bytes(120, 7), *b"through");
        // The peer invalidates it with a message.
        far.queue.post_receive(3, &[far.buffer.sge(0, 8)]).unwrap();
        near.send(4, Work::SendWithInvalidate { data: Data::Inline(b"done"), stag });
        near.succeed(4);
        assert_eq!(far.succeed(3).invalidated_stag(), Some(stag));
        // Bound again with another key, and invalidated by its own side.
        let next = next_window_stag(stag);
        bind(5, next);
        write(6, next);
        near.succeed(6);
        far.send(7, Work::LocalInvalidate { stag: next });
        assert_eq!(far.succeed(7).operation(), CompletedOperation::LocalInvalidate);
        // What was bound once is refused now.
        write(8, next);
        let fault = near.fail(8, Status::RemoteAccessError);
        assert_eq!((fault.side, fault.kind, fault.stag), (Side::Remote, FaultKind::MissingRight, next));
    }
}

#[test]
fn a_window_of_the_first_kind_is_open_to_its_domain_and_moved_by_binding() {
    let (near, far) = pair(Arrangement::EmbeddedTwoPrograms);
    let window = far.domain.allocate_window(WindowKind::Domain).unwrap();
    let mut stag = window.first_stag();
    for bytes in [10, 20, 0] {
        let before = stag;
        stag = next_window_stag(stag);
        far.send(
            1,
            Work::BindWindow {
                new_stag: stag,
                region_stag: far.buffer.stag(),
                address: far.buffer.address_at(0),
                bytes,
                access: Access::REMOTE_READ,
            },
        );
        far.succeed(1);
        if bytes > 0 {
            let from = RemoteAddress { address: far.buffer.address_at(0), stag };
            near.send(2, Work::Read { into: &[near.buffer.sge(0, bytes as u32)], from });
            near.succeed(2);
        } else {
            let from = RemoteAddress { address: far.buffer.address_at(0), stag: before };
            near.send(3, Work::Read { into: &[near.buffer.sge(0, 1)], from });
            assert_eq!(near.fail(3, Status::RemoteAccessError).kind, FaultKind::StagStale);
        }
    }
    // Unbound: its region can be given back.
    let mut far = far;
    drop(window);
    far.buffer = far.domain.create_buffer(8, ALL_ACCESS).unwrap();
}

#[test]
fn a_shared_receive_queue_serves_several_and_reports_its_limit() {
    for arrangement in [Arrangement::EmbeddedTwoPrograms, Arrangement::ServiceTwoPrograms] {
        let (one, other) = devices(arrangement);
        let (near, far_domain) = (party(&one, &Options::default()), other.allocate_domain().unwrap());
        let second = party(&one, &Options::default());
        let shared = far_domain.create_shared_queue(8, 2).unwrap();
        let options = Options::default();
        let sinks = [
            party_in(&other, &far_domain, &options, Some(&shared)),
            party_in(&other, &far_domain, &options, Some(&shared)),
        ];
        join(&near, &sinks[0], &options.attributes);
        join(&second, &sinks[1], &options.attributes);
        for id in 0..8 {
            shared
                .post_receive(id, &[sinks[0].buffer.sge(id * 64, 32), sinks[0].buffer.sge(id * 64 + 32, 32)])
                .unwrap();
        }
        assert_eq!(shared.post_receive(8, &[]), Err(PostError::QueueFull { limit: 8 }));
        assert_eq!(sinks[0].queue.post_receive(9, &[]), Err(PostError::SharedQueue));
        shared.set_limit(5).unwrap();
        for id in 0..8 {
            let (from, to) = if id % 2 == 0 { (&near, &sinks[0]) } else { (&second, &sinks[1]) };
            from.send(100 + id, Work::Send { data: Data::Inline(&[id as u8; 40]), immediate: None });
            from.succeed(100 + id);
            assert_eq!(to.succeed(id).transferred_bytes(), 40);
            assert_eq!(sinks[0].bytes(id as usize * 64, 40), [id as u8; 40]);
        }
        assert_eq!(sinks[0].event(), AsyncEvent::SharedQueueLimit { queue: shared.queue_handle(), limit: 5 });
        assert_eq!(sinks[0].device.wait_for_async_event(std::time::Duration::ZERO).unwrap(), None, "once");
        shared.post_receive(8, &[]).unwrap();
    }
}

#[test]
fn an_arena_is_read_by_peers_but_not_written() {
    for arrangement in ARRANGEMENTS {
        let (near, far) = pair(arrangement);
        let mut span = thalweg_arena::Arena::create("slots", 1).unwrap();
        span[100..103].copy_from_slice(b"abc");
        let range = MemoryRange { offset: 0, length: span.len() as u64, base: 0 };
        let region = far.domain.register_memory(span.arena().fd(), range, Access::REMOTE_READ).unwrap();
        near.send(
            1,
            Work::Read { into: &[near.buffer.sge(0, 3)], from: RemoteAddress { address: 100, stag: region.stag() } },
        );
        near.succeed(1);
        assert_eq!(near.bytes(0, 3), *b"abc");
        assert_eq!(region.page_list().unwrap(), [(0, span.len() as u64)]);
        let refused = far.domain.register_memory(span.arena().fd(), range, Access::REMOTE_WRITE).unwrap_err();
        assert!(refused.to_string().contains("F_SEAL_FUTURE_WRITE"), "{refused}");
    }
}
