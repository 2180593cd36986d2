//! Sleeping until there is a completion: no event is lost, and none comes that was not asked for.

use crate::setup::*;
use std::time::Duration;
use thalweg_rdma::*;

struct Waiting {
    near: Party,
    far: Party,
    channel: CompletionChannel,
    completions: CompletionQueue,
    queue: QueuePair,
}

/// A far side whose completions have a channel.
fn waiting(arrangement: Arrangement) -> Waiting {
    let options = Options::default();
    let (one, other) = devices(arrangement);
    let (near, far) = (party(&one, &options), party(&other, &options));
    let channel = other.create_channel().unwrap();
    let completions = other.create_completion_queue(64, Some(&channel)).unwrap();
    let queue = far.domain.create_queue_pair(&QueuePairOptions::new(&completions)).unwrap();
    queue.modify_state(QueueState::Init, None).unwrap();
    for (own, peer) in [(&near.queue, &queue), (&queue, &near.queue)] {
        let attributes = QueueAttributes { peer_queue: Some(peer.queue_number()), ..options.attributes.clone() };
        own.modify_state(QueueState::ReadyToReceive, Some(attributes)).unwrap();
        own.modify_state(QueueState::ReadyToSend, None).unwrap();
    }
    Waiting { near, far, channel, completions, queue }
}

#[test]
fn a_program_that_arms_looks_and_sleeps_misses_nothing() {
    const MESSAGES: u64 = 2000;
    for arrangement in ARRANGEMENTS {
        let Waiting { near, channel, completions, queue, far } = waiting(arrangement);
        (0..32).for_each(|id| queue.post_receive(id, &[]).unwrap());
        let sending = std::thread::spawn(move || {
            for id in 0..MESSAGES {
                if id % 16 == 15 {
                    near.queue.post_receive(id, &[near.buffer.sge(0, 8)]).unwrap();
                }
                near.send(id, Work::Send { data: Data::Inline(&[]), immediate: Some(id as u32) });
                near.succeed(id);
                if id % 16 == 15 {
                    near.succeed(id);
                }
            }
            near
        });
        for message in 0..MESSAGES {
            let completion = loop {
                if let Some(completion) = completions.poll_one().unwrap() {
                    break completion;
                }
                if completions.request_notification(Notify::Any).unwrap() == Armed::Armed {
                    assert_eq!(channel.wait_for_event(PATIENCE).unwrap(), Some(completions.queue_handle()));
                }
            };
            assert!(completion.is_success(), "{completion}");
            assert_eq!(completion.immediate_data(), Some(message as u32));
            queue.post_receive(message, &[]).unwrap();
            if message % 16 == 15 {
                // Unsignaled: the answer that the sender waits for.
                let request = SendRequest {
                    id: 0,
                    flags: SendFlags::empty(),
                    work: Work::Send { data: Data::Inline(&[1]), immediate: None },
                };
                let flags = if message % 32 == 31 { SendFlags::SIGNALED } else { SendFlags::empty() };
                queue.post_send(&SendRequest { flags, ..request }).unwrap();
                if message % 32 == 31 {
                    while completions.poll_one().unwrap().is_none() {}
                }
            }
        }
        let _near = sending.join().unwrap();
        drop(far);
    }
}

#[test]
fn solicited_completions_wake_those_that_wait_for_them() {
    for arrangement in ARRANGEMENTS {
        let Waiting { near, channel, completions, queue, far: _far } = waiting(arrangement);
        (0..4).for_each(|id| queue.post_receive(id, &[]).unwrap());
        let send = |id, flags| {
            let work = Work::Send { data: Data::Inline(&[]), immediate: None };
            near.queue.post_send(&SendRequest { id, flags: SendFlags::SIGNALED | flags, work }).unwrap();
            near.succeed(id);
        };
        assert_eq!(completions.request_notification(Notify::Solicited).unwrap(), Armed::Armed);
        send(0, SendFlags::empty());
        assert_eq!(channel.wait_for_event(Duration::ZERO).unwrap(), None);
        send(1, SendFlags::SOLICITED);
        assert_eq!(channel.wait_for_event(PATIENCE).unwrap(), Some(completions.queue_handle()));
        // There are completions: arming says so, and sends no event.
        assert_eq!(completions.request_notification(Notify::Any).unwrap(), Armed::MissedCompletions);
        assert_eq!(completions.poll_into(&mut Vec::new(), 10).unwrap(), 2);
        // A failure is always worth waking for.
        assert_eq!(completions.request_notification(Notify::Solicited).unwrap(), Armed::Armed);
        near.queue.modify_state(QueueState::Error, None).unwrap();
        assert_eq!(channel.wait_for_event(PATIENCE).unwrap(), Some(completions.queue_handle()));
        assert_eq!(channel.wait_for_event(Duration::ZERO).unwrap(), None, "one event for each arming");
    }
}

#[test]
fn an_rnic_that_sleeps_is_woken_by_the_doorbell() {
    for arrangement in [Arrangement::Thread, Arrangement::ServiceTwoPrograms] {
        let (near, far) = pair(arrangement);
        for id in 0..50 {
            // Longer than it polls for.
            std::thread::sleep(Duration::from_millis(1));
            near.send(id, Work::Write { data: Data::Inline(b"x"), to: far.at(id), immediate: None });
            near.succeed(id);
        }
    }
}
