//! The bytes of version 1, which never change (`docs/efe.md`).

use crate::pair::{next_frame, port};
use std::time::Duration;
use thalweg_efe::{Class, Echo, Ending, Frame, Handshake, Header, Kind, Options, Status, write_frame};

fn hex(bytes: &[u8]) -> String {
    let lines =
        bytes.chunks(16).map(|line| line.iter().map(|byte| format!("{byte:02x}")).collect::<Vec<_>>().join(" "));
    lines.collect::<Vec<_>>().join("\n")
}

/// The frame of the example in `docs/efe.md`: a packet with an acknowledgement.
pub(crate) fn example_frame() -> Vec<u8> {
    let header = Header {
        kind: Kind::Packet,
        to: 7,
        token: 0x0123_4567_89ab_cdef,
        from: 3,
        answer: false,
        finished: false,
        peer_finished: false,
        stamp: 0x1122_3344,
        echo: Some(Echo { stamp: 0x5566_7788, held_nanos: 1500 }),
        class: Class::NonPosted,
        sequence: 41,
        wanted: 65_536,
    };
    let status = Status {
        class: Class::Completion,
        not_ready_10us: 0,
        below: 17,
        granted: 32_768,
        acknowledged: 0b100,
        received: 0b1100,
    };
    let mut bytes = [0; 200];
    let length = write_frame(&mut bytes, &header, &[status], |body| {
        body[..6].copy_from_slice(b"packet");
        6
    });
    bytes[..length].to_vec()
}

#[test]
fn golden_bytes_of_a_packet_with_an_acknowledgement() {
    let expected = "\
ef e1 01 05 85 0b e8 92 ef cd ab 89 67 45 23 01
07 00 00 00 03 00 00 00 06 00 02 01 44 33 22 11
88 77 66 55 dc 05 00 00 29 00 00 00 01 00 00 00
00 00 01 00 00 00 00 00 02 00 00 00 11 00 00 00
00 80 00 00 00 00 00 00 04 00 00 00 00 00 00 00
00 00 00 00 00 00 00 00 0c 00 00 00 00 00 00 00
00 00 00 00 00 00 00 00 70 61 63 6b 65 74";
    assert_eq!(hex(&example_frame()), expected);
}

#[test]
fn golden_bytes_of_an_opening() {
    let mut port = port(Options::default(), 1);
    port.connect(1, b"private", Duration::ZERO).unwrap();
    let (_, frame) = next_frame(&mut port, Duration::from_micros(1)).unwrap();
    let expected = "\
ef e1 01 01 59 ca c7 02 00 00 00 00 00 00 00 00
00 00 00 00 00 00 00 00 1f 00 00 00 e8 03 00 00
00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00
00 00 00 00 00 00 00 00 c1 5c 02 89 ec 2d 0a 91
67 ec 8e 65 a1 8d eb be c0 05 00 00 07 00 00 00
70 72 69 76 61 74 65";
    assert_eq!(hex(&frame), expected);
    let parsed = Frame::parse_bytes(&frame).unwrap();
    let handshake = Handshake::parse_body(parsed.body).unwrap();
    assert_eq!((parsed.header.kind, handshake.private, handshake.max_frame_bytes), (Kind::Open, &b"private"[..], 1472));
}

#[test]
fn golden_bytes_of_the_body_of_an_abort() {
    let body = [0x02, 0x02, 0, 0, 3, 0, 0, 0, b'w', b'h', b'y'];
    assert_eq!(Ending::parse_body(&body), Ok(Ending { code: 0x0202, private: b"why" }));
}
