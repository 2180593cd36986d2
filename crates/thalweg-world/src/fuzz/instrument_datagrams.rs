//! Any datagrams are parts of fragments or are counted and dropped; fragments come out once each, in order.

use std::time::Duration;
use thalweg_arena::SlotPool;
use thalweg_device::{Acquired, Buffer};
use thalweg_drivers::instrument::Assembler;

/// Formats, of which the first byte of the input chooses one.
const FORMATS: [&str; 6] = [
    "format = \"vdif\"\nrate = 100",
    "format = \"vdif\"\nsequence = true",
    "format = \"spead\"",
    "format = \"vita49\"",
    "format = \"vita49\"\nrate = 3",
    "format = \"fixed\"\nheader = 4\ncounter = { at = 0, bytes = 2 }\npackets = 4",
];
const SLOTS: u32 = 8;

/// Tries one input.
pub fn run(bytes: &[u8]) {
    let Some((choice, mut rest)) = bytes.split_first() else { return };
    let format = FORMATS[usize::from(*choice) % FORMATS.len()];
    let text = format!("listen = \"udp:0.0.0.0:1\"\nsize = 256\nreorders = 4\n{format}");
    let config = toml::from_str(&text).expect("options of a device");
    let mut assembler = Assembler::new(&config).expect("options that go together");
    let mut pool = SlotPool::new("fuzz", SLOTS, 512).expect("memory");
    while let Some(slot) = pool.take_slot() {
        assembler.post_buffer(Buffer::new(slot));
    }
    assembler.start_delivery();
    let (mut next, mut now) = (0, Duration::from_secs(1));
    // Each datagram follows its length.
    while let Some((length, after)) = rest.split_first() {
        let (datagram, after) = after.split_at(after.len().min(usize::from(*length)));
        rest = after;
        now += Duration::from_millis(u64::from(*length));
        deliver_datagram(&mut assembler, datagram, now);
        while let Some(acquired) = assembler.next_acquired(now) {
            match acquired {
                Acquired::Frame(frame) => {
                    assert!(frame.number == next && frame.len <= 256);
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
    }
}

/// Passes a datagram on as a port does: in its place, with an odd length of a format where each datagram is a fragment, or from elsewhere.
fn deliver_datagram(assembler: &mut Assembler, datagram: &[u8], now: Duration) {
    let mut buffers = Vec::new();
    let in_place = assembler.in_place_front_bytes().filter(|_| datagram.len() % 2 == 1);
    let Some(front) = in_place else {
        assembler.accept_datagram(datagram, now);
        return;
    };
    assembler.take_buffers(1, &mut buffers);
    let Some(mut buffer) = buffers.pop() else { return };
    let (first, rest) = datagram.split_at(front.min(datagram.len()));
    let room = rest.len().min(assembler.longest_fragment_bytes());
    buffer.payload_mut()[..room].copy_from_slice(&rest[..room]);
    let mut whole = vec![0; front];
    whole[..first.len()].copy_from_slice(first);
    assembler.accept_in_place(&whole, buffer, datagram.len(), now);
}
