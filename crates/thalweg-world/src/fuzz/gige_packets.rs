//! Any packets of a camera's stream are parts of frames or are counted and dropped; frames come out once each, in order.
//! Any bytes are an answer of a camera's, or a description of its features, or are refused.

use std::convert::Infallible;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;
use thalweg_arena::SlotPool;
use thalweg_device::{Acquired, Buffer, DeviceClock};
use thalweg_gige::{Assembler, Intake, Stream, description, gvcp::Acknowledge};
use thalweg_wire::{PayloadType, Status, TaiNanos};

const SIZE: usize = 256;
const SLOTS: u32 = 4;
const CAMERA: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 5));

/// Tries one input.
pub fn run(bytes: &[u8]) {
    let Some((choice, mut rest)) = bytes.split_first() else { return };
    if choice & 0x80 != 0 {
        let _ = (
            Acknowledge::parse_datagram(rest),
            description::locate_description(rest),
            description::unpack_and_check(rest.to_vec()),
        );
        return;
    }
    let mut assembler = Assembler::new(SIZE, Duration::from_millis(200));
    let mut pool = SlotPool::new("fuzz", SLOTS, 1024).expect("memory");
    while let Some(slot) = pool.take_slot() {
        assembler.post_buffer(Buffer::new(slot));
    }
    let stream = Stream {
        packet: 68,
        frame: (choice & 1 == 0).then_some(SIZE),
        resends: choice & 2 == 0,
        rate: (choice & 4 == 0).then_some(100.0),
        payload: PayloadType::IMAGE_U8,
        clock: DeviceClock { hertz: 1000, offset: None },
        status: Status::empty(),
    };
    assembler.begin_stream(stream.clone());
    let (mut intake, mut next, mut now) = (Intake::default(), 0, Duration::from_secs(1));
    // Each packet follows its length; several come at a time.
    while !rest.is_empty() {
        let mut burst: Vec<&[u8]> = Vec::new();
        while let Some((length, after)) = rest.split_first() {
            let (packet, after) = after.split_at(after.len().min(usize::from(length & 0x7f)));
            rest = after;
            burst.push(packet);
            now += Duration::from_millis(u64::from(*length & 3));
            if length & 0x80 != 0 || burst.len() == 64 {
                break;
            }
        }
        let taken = intake.receive_packets(&mut assembler, Some(CAMERA), (now, TaiNanos(7)), |places| {
            for (place, packet) in places.iter_mut().zip(&burst) {
                let mut from = 0;
                for part in [&mut *place.front, &mut *place.rest, &mut *place.more] {
                    let count = part.len().min(packet.len() - from);
                    part[..count].copy_from_slice(&packet[from..from + count]);
                    from += count;
                }
                (place.length, place.from) = (packet.len(), Some(SocketAddr::new(CAMERA, 5)));
            }
            Ok::<_, Infallible>(burst.len())
        });
        let Ok(_) = taken;
        assembler.request_missing_packets(now, now);
        while assembler.next_request().is_some() {}
        next = check_acquired(&mut assembler, next);
        if burst.first().is_some_and(|packet| packet.len() == 1) {
            assembler.begin_stream(stream.clone());
        }
    }
}

/// Takes the frames that are whole and the losses, which continue from `next`, and returns the number after them.
fn check_acquired(assembler: &mut Assembler, mut next: u64) -> u64 {
    while let Some(acquired) = assembler.next_acquired() {
        match acquired {
            Acquired::Frame(frame) => {
                assert!(frame.number == next && frame.len <= SIZE);
                next += 1;
                assembler.post_buffer(frame.buffer);
            }
            Acquired::Lost { first, count } | Acquired::Missed { first, count } => {
                assert!(first == next && count > 0);
                next += count;
            }
            Acquired::NotYet | Acquired::Over => break,
        }
    }
    next
}
