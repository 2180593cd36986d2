//! A UDP port, over loopback.

use rustix::event::{PollFd, PollFlags, poll};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::sync::Arc;
use thalweg_arena::{Arena, Span};
use thalweg_frames::{Arrival, DatagramIo, UdpPort};

fn here() -> UdpPort {
    UdpPort::bind((Ipv4Addr::LOCALHOST, 0).into()).unwrap()
}

/// Returns memory whose bytes identify their positions.
fn memory(bytes: usize) -> Span {
    let mut memory = Arena::create("slots", bytes).unwrap();
    memory.iter_mut().enumerate().for_each(|(at, byte)| *byte = ((at * 31) >> 3) as u8);
    memory
}

/// Receives until `enough` returns true; fails if nothing comes for a second.
fn receive(port: &mut UdpPort, mut enough: impl FnMut(SocketAddr, Arrival<'_>) -> bool) {
    let mut done = false;
    while !done {
        let second = rustix::time::Timespec { tv_sec: 1, tv_nsec: 0 };
        let fd = port.descriptor().unwrap();
        assert_ne!(
            poll(&mut [PollFd::from_borrowed_fd(fd, PollFlags::IN)], Some(&second)).unwrap(),
            0,
            "nothing comes"
        );
        port.receive_datagrams(&mut |from, arrival| done |= enough(from, arrival)).unwrap();
    }
}

#[test]
fn datagrams_of_all_lengths_arrive_as_they_were_sent() {
    let (mut source, mut sink) = (here(), here());
    sink.reserve_receive_bytes(64 << 20);
    let memory = memory(2 << 20);
    let arena = Arc::clone(memory.arena());
    // Equal lengths, so that they are sent as one message; changing lengths; without a piece; the longest possible.
    let lengths: Vec<usize> = std::iter::repeat_n(1400, 300).chain(0..300).chain([0, 0, 65_491, 1]).collect();
    let (mut sent, mut offset) = (Vec::new(), 0);
    for (number, length) in lengths.iter().enumerate() {
        let head = [(number as u64).to_le_bytes(), (offset as u64).to_le_bytes()].concat();
        let piece = arena.piece_of_range(offset as u64, *length).filter(|piece| !piece.is_empty());
        while !source.has_send_room() {
            source.flush_burst().unwrap();
        }
        source.queue_datagram(sink.local_address(), &head, piece);
        sent.push((offset, *length));
        offset += length;
    }
    while !source.flush_burst().unwrap() {}
    let mut count = 0;
    receive(&mut sink, |from, arrival| {
        let Arrival::Datagram(datagram) = arrival else { panic!("{arrival:?}") };
        assert_eq!(from.port(), source.local_address().port());
        let number = u64::from_le_bytes(datagram[..8].try_into().unwrap()) as usize;
        let (offset, length) = sent[number];
        assert_eq!(number, count, "on one host they do not overtake each other");
        assert!(datagram[16..] == memory[offset..offset + length], "datagram {number}");
        count += 1;
        count == sent.len()
    });
    let (out, back) = (source.port_counters(), sink.port_counters());
    assert_eq!((out.sent, back.received, back.dropped), (604, 604, 0));
    assert_eq!(out.copied, offset as u64);
}

#[test]
fn who_sends_to_a_port_that_nobody_has_is_told() {
    let gone = UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let mut port = here();
    port.queue_datagram(gone, &[1; 100], None);
    port.flush_burst().unwrap();
    receive(&mut port, |from, arrival| {
        assert_eq!(from, gone);
        assert!(matches!(arrival, Arrival::Unreachable), "{arrival:?}");
        true
    });
    // And goes on.
    let other = UdpSocket::bind("127.0.0.1:0").unwrap();
    port.queue_datagram(other.local_addr().unwrap(), b"hello", None);
    assert!(port.flush_burst().unwrap());
    assert_eq!(other.recv(&mut [0; 10]).unwrap(), 5);
}

#[test]
fn what_is_sent_after_a_refusal_is_not_lost() {
    let gone = UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let (mut port, other) = (here(), UdpSocket::bind("127.0.0.1:0").unwrap());
    port.queue_datagram(gone, b"nobody hears this", None);
    port.flush_burst().unwrap();
    // The kernel reports it with the next call, whatever that is about.
    let fd = port.descriptor().unwrap();
    assert_eq!(poll(&mut [PollFd::from_borrowed_fd(fd, PollFlags::ERR)], None).unwrap(), 1);
    port.queue_datagram(other.local_addr().unwrap(), b"hello", None);
    assert!(port.flush_burst().unwrap());
    other.set_read_timeout(Some(std::time::Duration::from_secs(60))).unwrap();
    assert_eq!(other.recv(&mut [0; 10]).unwrap(), 5);
}

#[test]
fn what_is_too_long_is_lost_and_told_and_the_rest_is_not() {
    let (mut port, sink) = (here(), UdpSocket::bind("127.0.0.1:0").unwrap());
    let to = sink.local_addr().unwrap();
    assert_eq!(port.max_datagram_bytes(to).unwrap(), 65_507);
    let memory = memory(70_000);
    port.queue_datagram(to, b"before", None);
    port.queue_datagram(to, &[0; 8], memory.arena().piece_of_range(0, 65_500));
    port.queue_datagram(to, b"after", None);
    while !port.flush_burst().unwrap() {}
    let mut room = [0; 10];
    for expected in ["before", "after"] {
        let length = sink.recv(&mut room).unwrap();
        assert_eq!(&room[..length], expected.as_bytes());
    }
}

#[test]
fn one_port_speaks_to_both_kinds_of_addresses() {
    let mut port = UdpPort::bind_anywhere().unwrap();
    let four = UdpSocket::bind("127.0.0.1:0").unwrap();
    let six = UdpSocket::bind((Ipv6Addr::LOCALHOST, 0));
    let peers = [Some(four), six.ok()];
    for peer in peers.iter().flatten() {
        let address = peer.local_addr().unwrap();
        port.queue_datagram(address, b"ask", None);
        port.flush_burst().unwrap();
        let (length, from) = peer.recv_from(&mut [0; 10]).unwrap();
        assert_eq!((length, from.is_ipv4()), (3, address.is_ipv4()));
        peer.send_to(b"answer", from).unwrap();
        receive(&mut port, |from, arrival| {
            assert_eq!(from, address);
            matches!(arrival, Arrival::Datagram(b"answer"))
        });
    }
}

#[test]
fn what_the_socket_cannot_hold_is_counted() {
    let (mut source, mut sink) = (here(), here());
    assert!(sink.reserve_receive_bytes(10_000) >= 1000);
    for _ in 0..100 {
        source.queue_datagram(sink.local_address(), &[0; 1000], None);
        source.flush_burst().unwrap();
    }
    let mut received = 0;
    while sink.receive_datagrams(&mut |_, _| received += 1).unwrap() {}
    assert!((1..100).contains(&received));
    // Drops are reported with the next datagram.
    source.queue_datagram(sink.local_address(), &[0; 1000], None);
    source.flush_burst().unwrap();
    receive(&mut sink, |_, _| true);
    let counters = sink.port_counters();
    assert_eq!(counters.received + counters.dropped, 101);
}
