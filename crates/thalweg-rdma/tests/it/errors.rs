//! Every error: which side has what, what is flushed behind it, and what the message says.

use crate::setup::*;
use std::time::Duration;
use thalweg_rdma::*;

/// Requests that a peer refuses: with the fault, and the Terminate code that RFC 5040 and 5041 have for it.
#[test]
fn memory_that_a_peer_may_not_reach_is_refused() {
    type Case = (&'static str, fn(&Party, &Party) -> RemoteAddress, FaultKind, [Option<(u8, u8, u8)>; 2]);
    let cases: [Case; 6] = [
        (
            "unknown STag",
            |_, far| RemoteAddress { stag: 0x7f00_0000 ^ far.at(0).stag, ..far.at(0) },
            FaultKind::StagUnknown,
            [Some((1, 1, 0)), Some((0, 1, 0))],
        ),
        (
            "stale key",
            |_, far| RemoteAddress { stag: next_window_stag(far.at(0).stag), ..far.at(0) },
            FaultKind::StagStale,
            [Some((1, 1, 0)), Some((0, 1, 0))],
        ),
        (
            "before its begin",
            |_, far| RemoteAddress { address: far.at(0).address - 1, ..far.at(0) },
            FaultKind::OutOfBounds,
            [Some((1, 1, 1)), Some((0, 1, 1))],
        ),
        (
            "beyond its end",
            |_, far| far.at(BUFFER_BYTES as u64 - 7),
            FaultKind::OutOfBounds,
            [Some((1, 1, 1)), Some((0, 1, 1))],
        ),
        (
            "wrap",
            |_, far| RemoteAddress { address: u64::MAX - 6, ..far.at(0) },
            FaultKind::Wrapped,
            [Some((1, 1, 3)), Some((0, 1, 4))],
        ),
        ("another domain's", |near, _| near.at(0), FaultKind::OtherDomain, [Some((1, 1, 2)), Some((0, 1, 3))]),
    ];
    for arrangement in ARRANGEMENTS {
        for (name, place, kind, codes) in cases {
            for (read, code) in [(false, codes[0]), (true, codes[1])] {
                let (near, far) = pair(arrangement);
                far.fill(0, &[7; 100]);
                far.queue.post_receive(50, &[]).unwrap();
                let (own, place) = ([near.buffer.sge(0, 8)], place(&near, &far));
                near.send(
                    1,
                    match read {
                        false => Work::Write { data: Data::Memory(&own), to: place, immediate: None },
                        true => Work::Read { into: &own, from: place },
                    },
                );
                near.queue.post_receive(2, &[]).unwrap();
                let fault = near.fail(1, Status::RemoteAccessError);
                assert_eq!((fault.side, fault.kind, fault.stag), (Side::Remote, kind, place.stag), "{name}");
                assert_eq!(fault.terminate_code(!read), code, "{name}");
                // Both sides are flushed: the stream is over.
                assert_eq!(near.fail(2, Status::Flushed).kind, FaultKind::Flushed);
                assert_eq!(far.fail(50, Status::Flushed).kind, FaultKind::Flushed);
                assert!(
                    matches!(far.event(), AsyncEvent::QueueAccessError { queue, .. } if queue == far.queue.queue_number())
                );
                assert_eq!((near.state(), far.state()), (QueueState::Error, QueueState::Error));
                assert_eq!((far.bytes(0, 100), near.bytes(0, 8)), (vec![7; 100], vec![0; 8]), "{name}");
            }
        }
    }
}

#[test]
fn a_right_that_is_missing_is_named() {
    for missing in [Access::REMOTE_WRITE, Access::REMOTE_READ, Access::REMOTE_ATOMIC] {
        for of_queue in [false, true] {
            let mut options = Options::default();
            if of_queue {
                options.attributes.access = Access::REMOTE.difference(missing);
            } else {
                options.access = ALL_ACCESS.difference(missing);
            }
            let (near, far) = pair_with(Arrangement::EmbeddedTwoPrograms, &options);
            let own = [near.buffer.sge(0, 8)];
            near.send(
                1,
                match missing {
                    Access::REMOTE_WRITE => Work::Write { data: Data::Memory(&own), to: far.at(0), immediate: None },
                    Access::REMOTE_READ => Work::Read { into: &own, from: far.at(0) },
                    _ => Work::FetchAdd { into: own[0], at: far.at(0), add: 1 },
                },
            );
            let completion = near.next();
            let fault = completion.fault().unwrap();
            let kind = if of_queue { FaultKind::QueueMissingRight } else { FaultKind::MissingRight };
            assert_eq!((completion.status(), fault.kind), (Status::RemoteAccessError, kind));
            assert_eq!(fault.terminate_code(true), Some((0, 1, 2)));
            let name = missing.to_string();
            assert!(completion.to_string().contains(&format!("it needs {name}, it has")), "{completion}");
            assert!(completion.to_string().contains("remote side"), "{completion}");
        }
    }
}

#[test]
fn own_memory_is_checked_too() {
    let no_write = Options { access: Access::REMOTE, ..Options::default() };
    type Case = (fn(&Party) -> Sge, FaultKind);
    let cases: [Case; 3] = [
        (|near| Sge { stag: 0xffff_ff00, ..near.buffer.sge(0, 8) }, FaultKind::StagUnknown),
        (|near| near.buffer.sge(BUFFER_BYTES as u64 - 4, 8), FaultKind::OutOfBounds),
        (|near| near.buffer.sge(0, 8), FaultKind::MissingRight),
    ];
    for (element, kind) in cases {
        for read in [false, true] {
            let options = if kind == FaultKind::MissingRight { no_write.clone() } else { Options::default() };
            let (near, far) = pair_with(Arrangement::Embedded, &options);
            let elements = [near.buffer.sge(0, 0), element(&near)];
            near.send(
                1,
                match read {
                    false => Work::Write { data: Data::Memory(&elements), to: far.at(0), immediate: None },
                    true => Work::Read { into: &elements, from: far.at(0) },
                },
            );
            if kind == FaultKind::MissingRight && !read {
                near.succeed(1);
                continue;
            }
            let fault = near.fail(1, Status::LocalProtectionError);
            assert_eq!((fault.side, fault.kind), (Side::Local, kind));
        }
    }
    // Memory of a receive that may not be written.
    let (near, far) = pair_with(Arrangement::EmbeddedTwoPrograms, &no_write);
    far.queue.post_receive(2, &[far.buffer.sge(0, 8)]).unwrap();
    near.send(1, Work::Send { data: Data::Inline(b"x"), immediate: None });
    assert_eq!(near.fail(1, Status::RemoteOperationError).side, Side::Remote);
    assert_eq!(far.fail(2, Status::LocalProtectionError).kind, FaultKind::MissingRight);
}

#[test]
fn a_message_that_finds_no_receive_waits_as_often_as_it_may() {
    // Without retries: over at once.
    let (near, far) = pair(Arrangement::EmbeddedTwoPrograms);
    near.send(1, Work::Send { data: Data::Inline(b"x"), immediate: None });
    let fault = near.fail(1, Status::ReceiverNotReady);
    assert_eq!(
        (fault.kind, fault.side, fault.terminate_code(false)),
        (FaultKind::NoReceive, Side::Remote, Some((1, 2, 2)))
    );
    assert_eq!(far.state(), QueueState::Error);
    // Without end: until there is one.
    for arrangement in ARRANGEMENTS {
        let mut options = Options::default();
        options.attributes.receiver_retries = ENDLESS_RETRIES;
        let (near, far) = pair_with(arrangement, &options);
        near.send(1, Work::Send { data: Data::Inline(b"x"), immediate: None });
        near.send(2, Work::Write { data: Data::Inline(b"y"), to: far.at(0), immediate: Some(3) });
        near.quiet();
        far.queue.post_receive(4, &[far.buffer.sge(8, 8)]).unwrap();
        assert_eq!(far.succeed(4).transferred_bytes(), 1);
        near.succeed(1);
        far.queue.post_receive(5, &[]).unwrap();
        assert_eq!(far.succeed(5).immediate_data(), Some(3));
        near.succeed(2);
    }
    // A few times.
    let mut options = Options::default();
    (options.attributes.receiver_retries, options.attributes.receiver_retry_interval) = (3, Duration::from_micros(100));
    let (near, _far) = pair_with(Arrangement::Thread, &options);
    near.send(1, Work::Send { data: Data::Inline(b"x"), immediate: None });
    let fault = near.fail(1, Status::ReceiverNotReady);
    assert_eq!((fault.value, fault.limit), (3, 3));
}

#[test]
fn a_message_that_is_too_long_says_how_long() {
    for arrangement in ARRANGEMENTS {
        let (near, far) = pair(arrangement);
        far.queue.post_receive(1, &[far.buffer.sge(0, 10)]).unwrap();
        near.send(2, Work::Send { data: Data::Memory(&[near.buffer.sge(0, 11)]), immediate: None });
        let fault = near.fail(2, Status::RemoteInvalidRequest);
        assert_eq!((fault.value, fault.limit, fault.terminate_code(false)), (11, 10, Some((1, 2, 5))));
        assert_eq!(far.fail(1, Status::LocalLengthError).kind, FaultKind::TooLong);
    }
    let (near, far) = pair(Arrangement::Embedded);
    let elements = [near.buffer.sge(0, u32::MAX); 2];
    near.send(1, Work::Write { data: Data::Memory(&elements), to: far.at(0), immediate: None });
    let fault = near.fail(1, Status::LocalLengthError);
    assert_eq!((fault.value, fault.limit), (2 * u64::from(u32::MAX), 1 << 30));
}

#[test]
fn everything_behind_a_failed_request_is_flushed_in_order() {
    for arrangement in ARRANGEMENTS {
        let (near, far) = pair(arrangement);
        for id in 0..20 {
            far.queue.post_receive(id, &[]).unwrap();
            near.queue.post_receive(200 + id, &[]).unwrap();
        }
        let works: Vec<SendRequest<'_>> = (100..120)
            .map(|id| {
                let to = if id == 105 { RemoteAddress { address: 0, ..far.at(0) } } else { far.at(0) };
                let flags = if id % 2 == 0 { SendFlags::SIGNALED } else { SendFlags::empty() };
                SendRequest { id, flags, work: Work::Write { data: Data::Inline(b"z"), to, immediate: None } }
            })
            .collect();
        near.queue.post_sends(&works).unwrap();
        for id in [100, 102, 104] {
            near.succeed(id);
        }
        near.fail(105, Status::RemoteAccessError);
        let mut flushed: Vec<u64> = (0..34)
            .map(|_| near.next())
            .map(|completion| {
                assert_eq!(completion.status(), Status::Flushed, "signaled or not");
                completion.request_id()
            })
            .collect();
        let receives: Vec<u64> = flushed.iter().copied().filter(|id| *id >= 200).collect();
        flushed.retain(|id| *id < 200);
        assert_eq!(flushed, (106..120).collect::<Vec<_>>());
        assert_eq!(receives, (200..220).collect::<Vec<_>>());
        (0..20).for_each(|id| _ = far.fail(id, Status::Flushed));
        // What is posted later is flushed, too: a program that posts a last request to wait for finds it.
        far.queue.post_receive(300, &[]).unwrap();
        near.send(301, Work::Send { data: Data::Inline(&[]), immediate: None });
        far.fail(300, Status::Flushed);
        near.fail(301, Status::Flushed);
        near.quiet();
        far.quiet();
        // And goes on after a reset.
        for side in [&near, &far] {
            side.queue.modify_state(QueueState::Reset, None).unwrap();
            side.queue.modify_state(QueueState::Init, None).unwrap();
        }
        join(&near, &far, &QueueAttributes::default());
        near.send(1, Work::Write { data: Data::Inline(b"again"), to: far.at(0), immediate: None });
        near.succeed(1);
        assert_eq!(far.bytes(0, 5), *b"again");
    }
}

#[test]
fn a_completion_queue_that_overruns_says_so_and_hurts_its_own_queue_pairs_only() {
    for arrangement in ARRANGEMENTS {
        let (one, other) = devices(arrangement);
        let options = Options::default();
        let near = party(&one, &Options { entries: 4, ..options.clone() });
        let far = party(&other, &options);
        let (third, fourth) = (party(&one, &options), party(&other, &options));
        join(&near, &far, &options.attributes);
        join(&third, &fourth, &options.attributes);
        assert_eq!(near.completions.entry_count(), 4);
        far.queue.post_receive(7, &[]).unwrap();
        for id in 0..5 {
            near.send(id, Work::Write { data: Data::Inline(b"w"), to: far.at(id), immediate: None });
        }
        // The peer is flushed: the overrun has happened.
        far.fail(7, Status::Flushed);
        assert!(
            matches!(near.event(), AsyncEvent::CompletionOverrun { queue, entries: 4 } if queue == near.completions.queue_handle())
        );
        (0..4).for_each(|id| _ = near.succeed(id));
        assert_eq!(near.try_next(), Err(PollError::Overrun { entries: 4 }));
        assert_eq!(near.try_next(), Err(PollError::Overrun { entries: 4 }), "for ever");
        assert_eq!(near.state(), QueueState::Error);
        third.send(9, Work::Write { data: Data::Inline(b"w"), to: fourth.at(0), immediate: None });
        third.succeed(9);
    }
}

#[test]
fn atomics_that_are_not_aligned_change_nothing() {
    let (near, far) = pair(Arrangement::EmbeddedTwoPrograms);
    far.fill(0, &[3; 16]);
    near.send(1, Work::FetchAdd { into: near.buffer.sge(0, 8), at: far.at(4), add: 1 });
    let fault = near.fail(1, Status::RemoteInvalidRequest);
    // RFC 7306 section 8.2.
    assert_eq!((fault.kind, fault.terminate_code(false)), (FaultKind::Misaligned, Some((0, 2, 7))));
    assert_eq!(far.bytes(0, 16), [3; 16]);
    // Registered so that addresses are aligned and places are not.
    let (near, far) = pair(Arrangement::EmbeddedTwoPrograms);
    let range = MemoryRange { offset: 4, length: 100, base: 0 };
    let region = far.domain.register_memory(far.buffer.fd(), range, ALL_ACCESS).unwrap();
    let at = RemoteAddress { address: 8, stag: region.stag() };
    near.send(1, Work::CompareSwap { into: near.buffer.sge(0, 8), at, compare: 0, swap: 1 });
    assert_eq!(near.fail(1, Status::RemoteInvalidRequest).kind, FaultKind::Misaligned);
    // A result that cannot be kept, or is not of 8 bytes.
    for (bytes, stag, status) in [(8, 0x100, Status::LocalProtectionError), (4, 0, Status::LocalLengthError)] {
        let (near, far) = pair(Arrangement::Embedded);
        let mut into = near.buffer.sge(0, bytes);
        into.stag ^= stag;
        near.send(1, Work::FetchAdd { into, at: far.at(0), add: 1 });
        near.fail(1, status);
        assert_eq!(far.bytes(0, 8), [0; 8], "not carried out");
    }
}

#[test]
fn reads_and_atomics_keep_to_the_limits_of_both_sides() {
    let limited = |outbound_reads, inbound_reads| Options {
        attributes: QueueAttributes { outbound_reads, inbound_reads, ..QueueAttributes::default() },
        ..Options::default()
    };
    for atomic in [false, true] {
        let ask = |near: &Party, far: &Party, id| {
            let into = [near.buffer.sge(0, 8)];
            near.send(
                id,
                match atomic {
                    false => Work::Read { into: &into, from: far.at(0) },
                    true => Work::FetchAdd { into: into[0], at: far.at(0), add: 1 },
                },
            );
        };
        let (near, far) = pair_with(Arrangement::Embedded, &limited(0, 1));
        ask(&near, &far, 1);
        assert_eq!(near.fail(1, Status::LocalOperationError).kind, FaultKind::ReadLimit);
        let (near, far) = pair_with(Arrangement::Embedded, &limited(1, 0));
        ask(&near, &far, 1);
        assert_eq!(near.fail(1, Status::RemoteInvalidRequest).kind, FaultKind::ReadLimit);
        // More than may be outstanding wait for those before them.
        let (near, far) = pair_with(Arrangement::ServiceTwoPrograms, &limited(1, 1));
        (0..100).for_each(|id| ask(&near, &far, id));
        (0..100).for_each(|id| _ = near.succeed(id));
    }
    let (near, _far) = pair(Arrangement::Embedded);
    let attributes = QueueAttributes { inbound_reads: 1000, ..QueueAttributes::default() };
    let refused = near.queue.modify_state(QueueState::ReadyToSend, Some(attributes)).unwrap_err();
    assert_eq!(refused.to_string(), "reads outstanding: 1000 requested, the RNIC's limit is 128");
}

#[test]
fn memory_that_is_given_back_is_not_reached_any_more() {
    for arrangement in ARRANGEMENTS {
        let (near, mut far) = pair(arrangement);
        let (at, spare) = (far.at(0), far.domain.create_buffer(8, ALL_ACCESS).unwrap());
        far.buffer = spare;
        near.send(1, Work::Write { data: Data::Inline(b"late"), to: at, immediate: None });
        assert_eq!(near.fail(1, Status::RemoteAccessError).kind, FaultKind::StagUnknown);
    }
}

#[test]
fn only_windows_of_the_second_kind_are_invalidated_by_peers() {
    let (near, far) = pair(Arrangement::EmbeddedTwoPrograms);
    far.queue.post_receive(1, &[far.buffer.sge(0, 8)]).unwrap();
    near.send(2, Work::SendWithInvalidate { data: Data::Inline(b"x"), stag: far.buffer.stag() });
    let fault = near.fail(2, Status::RemoteAccessError);
    assert_eq!((fault.kind, fault.terminate_code(false)), (FaultKind::NotInvalidatable, Some((0, 1, 9))));
    assert_eq!(far.fail(1, Status::LocalAccessError).kind, FaultKind::NotInvalidatable);
    // A window that another queue pair has bound.
    let (device, _) = devices(Arrangement::Embedded);
    let domain = device.allocate_domain().unwrap();
    let options = Options::default();
    let sides: Vec<Party> = (0..4).map(|_| party_in(&device, &domain, &options, None)).collect();
    join(&sides[0], &sides[1], &options.attributes);
    join(&sides[2], &sides[3], &options.attributes);
    let window = domain.allocate_window(WindowKind::Queue).unwrap();
    let stag = next_window_stag(window.first_stag());
    let (address, bytes) = (sides[0].buffer.address_at(0), 16);
    let bind = |new_stag, region_stag, access| Work::BindWindow { new_stag, region_stag, address, bytes, access };
    sides[0].send(1, bind(stag, sides[0].buffer.stag(), Access::REMOTE_WRITE));
    sides[0].succeed(1);
    sides[3].send(2, Work::Write { data: Data::Inline(b"x"), to: RemoteAddress { address, stag }, immediate: None });
    assert_eq!(sides[3].fail(2, Status::RemoteAccessError).kind, FaultKind::OtherQueue);
    // Its region stays as long as the window is bound; a bound window is not bound again.
    let mut sides = sides.into_iter();
    let (mut buffer, _others) = (sides.next().unwrap(), sides.collect::<Vec<_>>());
    let (near, fd) = (&buffer, buffer.buffer.fd().try_clone_to_owned().unwrap());
    near.send(3, bind(next_window_stag(stag), near.buffer.stag(), Access::REMOTE_WRITE));
    assert_eq!(near.fail(3, Status::WindowBindError).kind, FaultKind::WindowKind);
    let range = MemoryRange { offset: 0, length: 8, base: 0 };
    let mut region = domain.register_memory(std::os::fd::AsFd::as_fd(&fd), range, Access::LOCAL_WRITE).unwrap();
    region.deregister().unwrap();
    drop(window);
    buffer.buffer = domain.create_buffer(8, ALL_ACCESS).unwrap();
}

#[test]
fn windows_are_bound_within_what_their_region_allows() {
    for (of_region, of_window, bytes, kind) in [
        (Access::LOCAL_WRITE, Access::REMOTE_READ, 8, FaultKind::MissingRight),
        (Access::WINDOW_BIND, Access::REMOTE_WRITE, 8, FaultKind::MissingRight),
        (Access::WINDOW_BIND, Access::REMOTE_READ, BUFFER_BYTES as u64 + 1, FaultKind::OutOfBounds),
        (Access::WINDOW_BIND, Access::REMOTE_READ, 0, FaultKind::WindowKind),
    ] {
        let (near, _far) = pair_with(Arrangement::Embedded, &Options { access: of_region, ..Options::default() });
        let window = near.domain.allocate_window(WindowKind::Queue).unwrap();
        near.send(
            1,
            Work::BindWindow {
                new_stag: next_window_stag(window.first_stag()),
                region_stag: near.buffer.stag(),
                address: near.buffer.address_at(0),
                bytes,
                access: of_window,
            },
        );
        assert_eq!(near.fail(1, Status::WindowBindError).kind, kind);
    }
}

#[test]
fn states_change_as_rdma_core_has_it() {
    use QueueState::*;
    let all = [Reset, Init, ReadyToReceive, ReadyToSend, SendDrained, SendError, Error];
    for from in all {
        for to in all {
            let (near, far) = pair(Arrangement::Embedded);
            near.queue.modify_state(Reset, None).unwrap();
            let attributes =
                || QueueAttributes { peer_queue: Some(far.queue.queue_number()), ..QueueAttributes::default() };
            let way: &[QueueState] = match from {
                Reset => &[],
                Init => &[Init],
                ReadyToReceive => &[Init, ReadyToReceive],
                ReadyToSend => &[Init, ReadyToReceive, ReadyToSend],
                SendDrained => &[Init, ReadyToReceive, ReadyToSend, SendDrained],
                Error => &[Error],
                SendError => continue,
            };
            for state in way {
                near.queue.modify_state(*state, (*state == ReadyToReceive).then(attributes)).unwrap();
            }
            let allowed = near.queue.modify_state(to, (to == ReadyToReceive).then(attributes));
            assert_eq!(allowed.is_ok(), from.may_become(to), "{from} to {to}");
            assert_eq!(near.state(), if allowed.is_ok() { to } else { from }, "{from} to {to}");
        }
    }
    let (near, _far) = pair(Arrangement::Embedded);
    near.queue.modify_state(Reset, None).unwrap();
    assert_eq!(near.queue.post_receive(1, &[]), Err(PostError::State(Reset)));
    near.queue.modify_state(Init, None).unwrap();
    near.queue.post_receive(1, &[]).unwrap();
    let refused = near.queue.post_send(&SendRequest::signaled(1, Work::LocalInvalidate { stag: 0 }));
    assert_eq!(refused, Err(PostError::State(Init)));
    let refused = near.queue.modify_state(ReadyToReceive, None).unwrap_err();
    assert!(refused.to_string().contains("peer_queue"), "{refused}");
}

#[test]
fn a_drained_send_queue_holds_requests_until_it_goes_on() {
    for arrangement in ARRANGEMENTS {
        let (near, far) = pair(arrangement);
        near.queue.modify_state(QueueState::SendDrained, None).unwrap();
        near.send(1, Work::Write { data: Data::Inline(b"held"), to: far.at(0), immediate: None });
        assert_eq!(near.event(), AsyncEvent::SendQueueDrained { queue: near.queue.queue_number() });
        near.quiet();
        far.send(2, Work::Write { data: Data::Inline(b"in"), to: near.at(0), immediate: None });
        far.succeed(2);
        near.queue.modify_state(QueueState::ReadyToSend, None).unwrap();
        near.succeed(1);
        assert_eq!(far.bytes(0, 4), *b"held");
    }
}

#[test]
fn a_peer_that_is_not_ready_is_waited_for_and_one_that_is_gone_is_not() {
    let options = Options::default();
    let (one, other) = devices(Arrangement::EmbeddedTwoPrograms);
    let (near, far) = (party(&one, &options), party(&other, &options));
    let to = |peer: &Party, peer_timeout| QueueAttributes {
        peer_queue: Some(peer.queue.queue_number()),
        peer_timeout,
        ..QueueAttributes::default()
    };
    near.queue.modify_state(QueueState::ReadyToReceive, Some(to(&far, PATIENCE))).unwrap();
    near.queue.modify_state(QueueState::ReadyToSend, None).unwrap();
    near.send(1, Work::Write { data: Data::Inline(b"early"), to: far.at(0), immediate: None });
    near.quiet();
    far.queue.modify_state(QueueState::ReadyToReceive, Some(to(&near, PATIENCE))).unwrap();
    near.succeed(1);
    drop(far);
    assert_eq!(near.state(), QueueState::Error);
    // It never comes.
    let (near, far) = (party(&one, &options), party(&other, &options));
    near.queue.modify_state(QueueState::ReadyToReceive, Some(to(&far, Duration::from_millis(2)))).unwrap();
    near.queue.modify_state(QueueState::ReadyToSend, None).unwrap();
    near.send(1, Work::Write { data: Data::Inline(b"x"), to: far.at(0), immediate: None });
    let fault = near.fail(1, Status::RetryExceeded);
    assert_eq!((fault.kind, fault.limit), (FaultKind::PeerNotReady, 2));
    // It is connected to another: a stranger cannot reach it.
    let (near, far, third) = (party(&one, &options), party(&other, &options), party(&other, &options));
    join(&far, &third, &options.attributes);
    near.queue.modify_state(QueueState::ReadyToReceive, Some(to(&far, PATIENCE))).unwrap();
    near.queue.modify_state(QueueState::ReadyToSend, None).unwrap();
    near.send(1, Work::Write { data: Data::Inline(b"x"), to: far.at(0), immediate: None });
    assert_eq!(near.fail(1, Status::RetryExceeded).kind, FaultKind::PeerGone);
    assert_eq!((far.state(), far.bytes(0, 1)), (QueueState::ReadyToSend, vec![0]));
}

#[test]
fn a_full_queue_and_requests_that_exceed_it_are_refused() {
    let mut options = Options::default();
    options.attributes.receiver_retries = ENDLESS_RETRIES;
    options.lengths = QueueLengths { send_requests: 4, receives: 3, send_sges: 2, receive_sges: 1, inline_bytes: 8 };
    let (near, far) = pair_with(Arrangement::Embedded, &options);
    let send =
        |id| near.queue.post_send(&SendRequest::signaled(id, Work::Send { data: Data::Inline(b"x"), immediate: None }));
    (0..4).for_each(|id| send(id).unwrap());
    assert_eq!(send(4), Err(PostError::QueueFull { limit: 4 }));
    far.queue.post_receive(1, &[far.buffer.sge(0, 1)]).unwrap();
    assert_eq!(send(4), Err(PostError::QueueFull { limit: 4 }), "done, but its completion was not polled");
    near.succeed(0);
    send(4).unwrap();
    let elements = [near.buffer.sge(0, 1); 3];
    let too_many = Work::Send { data: Data::Memory(&elements), immediate: None };
    let refused = near.queue.post_send(&SendRequest::signaled(5, too_many));
    assert_eq!(refused, Err(PostError::QueueFull { limit: 4 }));
    far.queue.post_receive(2, &[far.buffer.sge(0, 1)]).unwrap();
    near.succeed(1);
    let requests = [SendRequest::signaled(5, too_many)];
    assert_eq!(near.queue.post_sends(&requests), Err((0, PostError::TooManyElements { elements: 3, limit: 2 })));
    let too_long = SendRequest::signaled(5, Work::Send { data: Data::Inline(&[0; 9]), immediate: None });
    assert_eq!(near.queue.post_send(&too_long), Err(PostError::InlineTooLong { bytes: 9, limit: 8 }));
    assert_eq!(near.queue.post_receive(5, &elements), Err(PostError::TooManyElements { elements: 3, limit: 1 }));
    (0..3).for_each(|id| near.queue.post_receive(id, &[]).unwrap());
    assert_eq!(near.queue.post_receive(3, &[]), Err(PostError::QueueFull { limit: 3 }));
}

#[test]
fn programs_do_not_reach_each_others_objects_and_limits_are_named() {
    for arrangement in [Arrangement::EmbeddedTwoPrograms, Arrangement::ServiceTwoPrograms] {
        let (near, far) = pair(arrangement);
        // Domain and queues of another program.
        let options = QueuePairOptions::new(&far.completions);
        let refused = near.domain.create_queue_pair(&options).unwrap_err();
        assert!(refused.to_string().contains("completion queue"), "{refused}");
        let range = |offset, length| MemoryRange { offset, length, base: 0 };
        let size = BUFFER_BYTES as u64;
        for (offset, length) in [(0, size + 1), (size, 1), (u64::MAX, 2), (0, 0)] {
            let refused = near.domain.register_memory(near.buffer.fd(), range(offset, length), ALL_ACCESS).unwrap_err();
            assert!(refused.to_string().contains("the file has 65536 bytes"), "{refused}");
        }
        let loose = tempfile::tempfile().unwrap();
        let refused =
            near.domain.register_memory(std::os::fd::AsFd::as_fd(&loose), range(0, 1), ALL_ACCESS).unwrap_err();
        assert!(refused.to_string().contains("F_SEAL_SHRINK"), "{refused}");
        let refused = near.device.create_completion_queue(u32::MAX, None).unwrap_err();
        assert_eq!(
            refused.to_string(),
            "entries of a completion queue: 4294967295 requested, the RNIC's limit is 262144"
        );
    }
    let device = Device::open_embedded(Limits { max_regions: 1, max_queue_pairs: 0, ..Limits::default() }).unwrap();
    let domain = device.allocate_domain().unwrap();
    let buffer = domain.create_buffer(1, ALL_ACCESS).unwrap();
    assert_eq!(
        domain.create_buffer(1, ALL_ACCESS).unwrap_err().to_string(),
        "memory regions: 2 requested, the RNIC's limit is 1"
    );
    drop(buffer);
    domain.create_buffer(1, ALL_ACCESS).unwrap();
    let completions = device.create_completion_queue(1, None).unwrap();
    let refused = domain.create_queue_pair(&QueuePairOptions::new(&completions)).unwrap_err();
    assert_eq!(refused.to_string(), "queue pairs: 1 requested, the RNIC's limit is 0");
}

#[test]
fn times_of_any_length_are_taken() {
    let mut options = Options::default();
    (options.attributes.peer_timeout, options.attributes.receiver_retry_interval) = (Duration::MAX, Duration::MAX);
    options.attributes.receiver_retries = 1;
    let (near, far) = pair_with(Arrangement::Thread, &options);
    near.send(1, Work::Send { data: Data::Inline(b"x"), immediate: None });
    far.queue.post_receive(2, &[far.buffer.sge(0, 8)]).unwrap();
    near.succeed(1);
    near.queue.modify_state(QueueState::SendDrained, None).unwrap();
    assert!(near.device.wait_for_async_event(Duration::MAX).unwrap().is_some());
}
