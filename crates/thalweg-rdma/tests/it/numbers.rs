//! Queue pairs of two RNICs whose programs exchange numbers by themselves.

use crate::setup::*;
use std::net::{IpAddr, Ipv4Addr};
use std::time::{Duration, Instant};
use thalweg_rdma::*;

const HERE: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

/// A side with its number.
struct Numbered {
    party: Party,
    number: u32,
}

fn numbered(device: &Device) -> Numbered {
    let party = party(device, &Options::default());
    party.queue.modify_state(QueueState::Reset, None).unwrap();
    let number = party.queue.assign_number(HERE).unwrap();
    party.queue.modify_state(QueueState::Init, None).unwrap();
    Numbered { party, number }
}

fn open_thread() -> Device {
    Device::open_thread(Limits::default()).unwrap()
}

impl Numbered {
    /// Names the peer, as far as the state RTR.
    fn expect(&self, peer: u32) {
        let attributes = QueueAttributes {
            peer_queue: Some(peer),
            peer_address: Some(HERE),
            peer_timeout: PATIENCE,
            ..QueueAttributes::default()
        };
        self.party.queue.modify_state(QueueState::ReadyToReceive, Some(attributes)).unwrap();
    }

    fn meet(&self, peer: u32) {
        self.expect(peer);
        self.party.queue.modify_state(QueueState::ReadyToSend, None).unwrap();
    }

    fn write(&self, id: u64, bytes: &[u8], to: RemoteAddress) {
        self.party.send(id, Work::Write { data: Data::Inline(bytes), to, immediate: None });
    }
}

#[test]
fn numbers_and_an_address_are_enough_to_meet_whoever_is_first() {
    let devices = [open_thread(), open_thread()];
    for late in [0, 1] {
        let sides = [numbered(&devices[0]), numbered(&devices[1])];
        let (early, late) = (&sides[1 - late], &sides[late]);
        early.meet(late.number);
        // The peer's program has not named this side: what is posted waits.
        early.party.queue.post_receive(1, &[early.party.buffer.sge(0, 8)]).unwrap();
        early.write(2, b"early", late.party.at(100));
        early.party.quiet();
        late.meet(early.number);
        assert_eq!(early.party.succeed(2).operation(), CompletedOperation::Write);
        // A completion says that the peer's RNIC has the data.
        assert_eq!(late.party.bytes(100, 5), b"early");
        late.party.send(3, Work::Send { data: Data::Inline(b"late"), immediate: Some(7) });
        late.party.succeed(3);
        assert_eq!(early.party.succeed(1).immediate_data(), Some(7));
        early.party.send(4, Work::Read { into: &[early.party.buffer.sge(0, 5)], from: late.party.at(100) });
        early.party.succeed(4);
        assert_eq!(early.party.bytes(0, 5), b"early");
    }
}

#[test]
fn a_message_is_received_before_the_receiver_may_send() {
    let (sender, receiver) = (numbered(&open_thread()), numbered(&open_thread()));
    receiver.expect(sender.number);
    receiver.party.queue.post_receive(1, &[receiver.party.buffer.sge(0, 8)]).unwrap();
    sender.meet(receiver.number);
    sender.party.send(2, Work::Send { data: Data::Inline(b"now"), immediate: None });
    sender.party.succeed(2);
    receiver.party.succeed(1);
    assert_eq!(receiver.party.state(), QueueState::ReadyToReceive);
}

#[test]
fn a_peer_that_leaves_shows_in_the_next_request_and_not_before() {
    let (near, far) = (numbered(&open_thread()), numbered(&open_thread()));
    near.meet(far.number);
    far.meet(near.number);
    near.write(1, b"x", far.party.at(0));
    near.party.succeed(1);
    near.party.queue.post_receive(2, &[near.party.buffer.sge(0, 8)]).unwrap();
    let place = far.party.at(0);
    drop(far);
    near.party.quiet();
    assert_eq!(near.party.state(), QueueState::ReadyToSend);
    // One that is on its way when the peer leaves may complete; the stream ends soon.
    let end = Instant::now() + PATIENCE;
    let mut id = 3;
    let (failed, posted) = loop {
        let posted = Instant::now();
        assert!(posted < end, "the peer's end is not noticed");
        near.write(id, b"x", place);
        let completion = near.party.next();
        if !completion.is_success() {
            break (completion, posted);
        }
        id += 1;
    };
    // As long as an adapter would send it again: others may complete meanwhile, and the program may have no use for it.
    assert!(posted.elapsed() >= Duration::from_millis(500));
    assert_eq!((failed.request_id(), failed.status()), (id, Status::RetryExceeded), "{failed}");
    assert_eq!(failed.fault().unwrap().side, Side::Remote);
    near.party.fail(2, Status::Flushed);
}

#[test]
fn a_number_of_no_queue_pair_is_a_request_that_fails() {
    let (near, other) = (numbered(&open_thread()), numbered(&open_thread()));
    // The port is there, the queue pair is not.
    let missing = other.number ^ 0x80;
    near.meet(missing);
    near.write(1, b"x", other.party.at(0));
    if near.number < missing {
        assert_eq!(near.party.fail(1, Status::RetryExceeded).kind, FaultKind::PeerGone);
    } else {
        // It waits for the peer's call.
        near.party.quiet();
        near.party.queue.modify_state(QueueState::Error, None).unwrap();
        near.party.fail(1, Status::Flushed);
    }
}

#[test]
fn a_call_of_one_that_was_not_named_is_refused() {
    let (near, far, stranger) = (numbered(&open_thread()), numbered(&open_thread()), numbered(&open_thread()));
    near.meet(far.number);
    stranger.meet(near.number);
    stranger.write(1, b"intruder", near.party.at(0));
    if stranger.number < near.number {
        assert_eq!(stranger.party.fail(1, Status::RetryExceeded).kind, FaultKind::PeerGone);
    } else {
        // It waits for a call.
        stranger.party.quiet();
    }
    far.meet(near.number);
    far.write(2, b"friend", near.party.at(0));
    far.party.succeed(2);
    assert_eq!(near.party.bytes(0, 8), b"friend\0\0");
}

#[test]
fn queue_pairs_of_one_rnic_meet_by_numbers_too_and_again_after_a_reset() {
    let device = Device::open_embedded(Limits::default()).unwrap();
    let (one, other) = (numbered(&device), numbered(&device));
    for round in 0..3u8 {
        for side in [&one, &other] {
            side.party.queue.modify_state(QueueState::Reset, None).unwrap();
            side.party.queue.modify_state(QueueState::Init, None).unwrap();
        }
        one.meet(other.number);
        other.meet(one.number);
        one.write(1, &[round; 4], other.party.at(0));
        one.party.succeed(1);
        assert_eq!(other.party.bytes(0, 4), [round; 4]);
    }
    // Of two RNICs as well.
    let (near, far) = (numbered(&open_thread()), numbered(&open_thread()));
    for round in 0..3u8 {
        near.meet(far.number);
        far.meet(near.number);
        near.write(2, &[round; 4], far.party.at(0));
        near.party.succeed(2);
        for side in [&near, &far] {
            side.party.queue.modify_state(QueueState::Reset, None).unwrap();
            side.party.queue.modify_state(QueueState::Init, None).unwrap();
        }
    }
}

#[test]
fn completions_of_before_a_reset_are_not_polled_after_it() {
    let device = Device::open_embedded(Limits::default()).unwrap();
    let (one, other) = (numbered(&device), numbered(&device));
    one.meet(other.number);
    other.meet(one.number);
    one.write(1, b"x", other.party.at(0));
    one.party.queue.modify_state(QueueState::Reset, None).unwrap();
    one.party.quiet();
}

#[test]
fn more_queue_pairs_than_a_port_has_numbers_for_get_another_port() {
    let device = Device::open_embedded(Limits::default()).unwrap();
    let sides: Vec<Numbered> = (0..300).map(|_| numbered(&device)).collect();
    let mut numbers: Vec<u32> = sides.iter().map(|side| side.number).collect();
    numbers.sort_unstable();
    numbers.dedup();
    assert_eq!(numbers.len(), 300);
    assert!(numbers.iter().all(|number| *number < 1 << 24));
    sides[0].meet(sides[299].number);
    sides[299].meet(sides[0].number);
    sides[0].write(1, b"x", sides[299].party.at(0));
    sides[0].party.succeed(1);
}

#[test]
fn a_thread_drives_an_embedded_rnic_while_its_program_waits_in_memory() {
    let device = Device::open_embedded(Limits::default()).unwrap();
    let (near, far) = (numbered(&device), numbered(&open_thread()));
    let (stop, stopped) = std::os::unix::net::UnixStream::pair().unwrap();
    let driven = device.clone();
    let driver = std::thread::spawn(move || {
        driven.drive_until_readable(&[std::os::fd::AsFd::as_fd(&stopped)]).unwrap();
    });
    near.meet(far.number);
    far.meet(near.number);
    far.write(1, b"written", near.party.at(0));
    let end = Instant::now() + PATIENCE;
    while near.party.bytes(0, 7) != b"written" {
        assert!(Instant::now() < end, "not written");
        std::thread::sleep(Duration::from_millis(1));
    }
    far.party.succeed(1);
    drop(stop);
    driver.join().unwrap();
}
