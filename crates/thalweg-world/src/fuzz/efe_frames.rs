//! Any bytes are a frame of EFE or not, and no sequence of frames makes a port panic, send without end, or grant more
//! credit than its bound.

use std::time::Duration;
use thalweg_efe::{Class, Event, Frame, Handshake, Header, Kind, Options, Port, Status, WINDOW_PACKETS, write_frame};

/// Number that stands for the token of every connection: the fuzzer knows it.
const TOKEN: u64 = 0x1234;
/// Bytes of input that make up a frame's fields.
const FIELDS_BYTES: usize = 40;

/// Tries one input.
pub fn run(bytes: &[u8]) {
    if let Ok(frame) = Frame::parse_bytes(bytes) {
        assert!(frame.body.len() < bytes.len());
    }
    let mut port: Port<u8, Vec<u8>> = Port::new(Options::default(), || TOKEN);
    let mut now = Duration::ZERO;
    open_connection(&mut port, now);
    let (inputs, _) = bytes.as_chunks::<FIELDS_BYTES>();
    for input in inputs {
        now += Duration::from_micros(u64::from(input[0]) * u64::from(input[1]));
        let frame = made_up_frame(input);
        if let Some(arrival) = port.receive(0, &frame, now) {
            let (id, class, sequence) = (arrival.connection, arrival.class, arrival.sequence);
            if input[2] & 1 == 0 {
                port.accept(id, class, sequence);
            } else {
                port.refuse(id, class, sequence, Duration::from_micros(input[2].into()));
            }
        }
        let _ = port.receive(0, input, now);
        handle_events(&mut port, now);
        let mut frames = 0;
        let mut room = vec![0; port.max_frame_bytes()];
        while port.next_frame(now, &mut room).is_some() {
            frames += 1;
            assert!(frames < 4 * WINDOW_PACKETS, "a frame is answered without end");
        }
        let (granted, bound) = port.granted_credit();
        assert!(granted <= bound);
        assert!(port.next_deadline().is_none_or(|deadline| deadline > now));
    }
}

/// Opens a connection from a peer that the fuzzer plays: number 0 at both ends.
fn open_connection(port: &mut Port<u8, Vec<u8>>, now: Duration) {
    for token in [0, TOKEN] {
        let header = Header { kind: Kind::Open, token, ..header_of(&[0; FIELDS_BYTES]) };
        let handshake = Handshake { instance: 1, token: TOKEN, max_frame_bytes: 1472, private: b"" };
        let mut frame = [0; 200];
        let length = write_frame(&mut frame, &header, &[], |body| handshake.write_to(body));
        port.receive(0, &frame[..length], now);
    }
    handle_events(port, now);
}

fn handle_events(port: &mut Port<u8, Vec<u8>>, now: Duration) {
    while let Some(event) = port.next_event() {
        match event {
            Event::Incoming { connection, .. } => {
                let _ = port.accept_connection(connection, b"", now);
            }
            Event::Connected { connection, .. } => {
                for class in Class::ALL {
                    let _ = port.send(connection, class, vec![1; 100]);
                }
            }
            _ => {}
        }
    }
}

/// Returns a frame with the right checksum and token, and fields out of the input.
fn made_up_frame(input: &[u8; FIELDS_BYTES]) -> Vec<u8> {
    let header = header_of(input);
    let number = |offset: usize| u64::from(u16::from_le_bytes([input[offset], input[offset + 1]]));
    let status = |offset: usize| Status {
        class: Class::from_number(input[offset] % 3).unwrap_or(Class::Posted),
        not_ready_10us: input[offset + 1].into(),
        below: u32::from(input[offset + 2]).wrapping_sub(8),
        granted: number(offset + 3) * 100,
        acknowledged: u128::from(number(offset + 5)) << (input[offset + 7] % 128),
        received: u128::from(number(offset + 6)) << (input[offset + 7] % 128),
    };
    let statuses = [status(16), status(24)];
    let mut frame = vec![0; 300];
    let body_bytes = usize::from(input[32] % 100);
    let length = write_frame(&mut frame, &header, &statuses[..usize::from(input[33] % 3)], |body| {
        body[..body_bytes].fill(input[34]);
        body_bytes
    });
    frame.truncate(length);
    frame
}

fn header_of(input: &[u8; FIELDS_BYTES]) -> Header {
    const KINDS: [Kind; 8] =
        [Kind::Packet, Kind::Status, Kind::Open, Kind::Challenge, Kind::Accept, Kind::Reject, Kind::Abort, Kind::Reset];
    // Most frames are of the two kinds that an open connection takes.
    let kind = KINDS[usize::from(input[3].saturating_sub(200) % 8).max(usize::from(input[3] & 1))];
    Header {
        kind,
        to: 0,
        token: TOKEN,
        from: 0,
        answer: input[4] & 1 != 0,
        finished: input[4] & 2 != 0,
        peer_finished: input[4] & 4 != 0,
        stamp: u32::from_le_bytes([input[5], input[6], input[7], input[8]]),
        echo: (input[4] & 8 != 0).then(|| thalweg_efe::Echo {
            stamp: u32::from_le_bytes([input[9], input[10], input[11], 0]),
            held_nanos: input[12].into(),
        }),
        class: Class::from_number(input[13] % 3).unwrap_or(Class::Posted),
        sequence: u32::from(input[14]).wrapping_sub(4),
        wanted: u64::from(input[15]) * 1_000,
    }
}
