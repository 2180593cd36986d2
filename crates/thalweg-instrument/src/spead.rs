//! Packets of SPEAD heaps (*SPEAD: Streaming Protocol for Exchanging Astronomical Data*, J. Manley et al., revision of
//! 2012; version 4, item pointers of 64 bits), in the flavours 64-40 and 64-48.
//!
//! A packet is a header of 8 bytes, item pointers of 8 bytes each, and a part of the heap's payload. All numbers are
//! big-endian. An item pointer's highest bit says that its value is in the pointer itself; then come the item's number
//! and the value, the last 40 or 48 bits.

use crate::format::{Format, Part, Refusal, Said, filled};
use thalweg_wire::PayloadType;

/// Items that the protocol itself uses.
const HEAP_CNT: u64 = 1;
const HEAP_LEN: u64 = 2;
const PAYLOAD_OFFSET: u64 = 3;
const PAYLOAD_LEN: u64 = 4;
const STREAM_CONTROL: u64 = 6;
const STREAM_STOP: u64 = 2;

#[derive(Debug)]
pub(crate) struct Spead;

impl Format for Spead {
    /// Those that both flavours have.
    fn bits(&self) -> u32 {
        40
    }

    fn whole(&self) -> bool {
        false
    }

    fn read(&self, _front: &[u8], body: &[u8]) -> Result<Said, Refusal> {
        let (header, rest) = body.split_first_chunk::<8>().ok_or(Refusal::Truncated)?;
        let [0x53, 4, number_bytes, value_bytes, _, _, items @ ..] = *header else { return Err(Refusal::Malformed) };
        if !matches!((number_bytes, value_bytes), (3, 5) | (2, 6)) {
            return Err(Refusal::Malformed);
        }
        let value_bits = 8 * u32::from(value_bytes);
        let length = 8 * usize::from(u16::from_be_bytes(items));
        let pointers = rest.get(..length).ok_or(Refusal::Truncated)?;
        let (mut number, mut total, mut at, mut bytes) = (None, None, None, None);
        for pointer in pointers.as_chunks::<8>().0 {
            let pointer = u64::from_be_bytes(*pointer);
            if pointer >> 63 == 0 {
                continue;
            }
            let value = pointer & ((1 << value_bits) - 1);
            let field = match (pointer & !(1 << 63)) >> value_bits {
                HEAP_CNT => &mut number,
                HEAP_LEN => &mut total,
                PAYLOAD_OFFSET => &mut at,
                PAYLOAD_LEN => &mut bytes,
                STREAM_CONTROL if value == STREAM_STOP => return Ok(Said::End),
                _ => continue,
            };
            *field = Some(value);
        }
        let place = |value: Option<u64>| value.and_then(|value| usize::try_from(value).ok()).ok_or(Refusal::Malformed);
        let (number, at, bytes, total) = (number.ok_or(Refusal::Malformed)?, place(at)?, place(bytes)?, place(total)?);
        let begin = header.len() + length;
        // What is behind the payload is not the heap's.
        let end = begin.checked_add(bytes).ok_or(Refusal::Malformed)?;
        if end > body.len() {
            return Err(Refusal::Truncated);
        }
        Ok(Said::Part(Part { number, at, total, payload: begin..end, filled: filled(PayloadType::RAW, None) }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn packet(value_bytes: u8, items: &[(u64, u64)], payload: &[u8]) -> Vec<u8> {
        let mut packet = vec![0x53, 4, 8u8.wrapping_sub(value_bytes), value_bytes, 0, 0, 0, items.len() as u8];
        for (item, value) in items {
            packet.extend((1 << 63 | item.wrapping_shl(8 * u32::from(value_bytes)) | value).to_be_bytes());
        }
        packet.extend(payload);
        packet
    }

    #[test]
    fn both_flavours_are_read() {
        for value_bytes in [5, 6] {
            let items = [(HEAP_CNT, 7), (HEAP_LEN, 100), (PAYLOAD_OFFSET, 40), (PAYLOAD_LEN, 3), (0x1600, 12)];
            let packet = packet(value_bytes, &items, b"abc");
            let Said::Part(part) = Spead.read(&[], &packet).unwrap() else { panic!() };
            assert_eq!((part.number, part.total, part.at, &packet[part.payload]), (7, 100, 40, &b"abc"[..]));
        }
    }

    #[test]
    fn the_end_is_heard_and_what_is_short_or_other_is_refused() {
        assert_eq!(Spead.read(&[], &packet(6, &[(HEAP_CNT, 7), (STREAM_CONTROL, STREAM_STOP)], &[])), Ok(Said::End));
        let items = [(HEAP_CNT, 7), (HEAP_LEN, 100), (PAYLOAD_OFFSET, 40), (PAYLOAD_LEN, 3)];
        let whole = packet(6, &items, b"abc");
        for length in 0..whole.len() {
            assert_eq!(Spead.read(&[], &whole[..length]), Err(Refusal::Truncated), "{length}");
        }
        for left_out in 0..4 {
            let mut items = items.to_vec();
            items.remove(left_out);
            assert_eq!(Spead.read(&[], &packet(6, &items, b"abc")), Err(Refusal::Malformed));
        }
        for (other, value_bytes) in [("64-32", 4), ("a sum of 8 modulo 256", 6 + 128), ("nothing like it", 255)] {
            assert_eq!(Spead.read(&[], &packet(value_bytes, &items, b"abc")), Err(Refusal::Malformed), "{other}");
        }
        let mut overflows = whole.clone();
        overflows[2..4].copy_from_slice(&[250, 6]);
        assert_eq!(Spead.read(&[], &overflows), Err(Refusal::Malformed));
    }
}
