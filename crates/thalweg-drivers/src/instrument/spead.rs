//! Packets of SPEAD heaps (*SPEAD: Streaming Protocol for Exchanging Astronomical Data*, J. Manley et al., revision of
//! 2012; version 4, item pointers of 64 bits), in the flavours 64-40 and 64-48.
//!
//! A packet is a header of 8 bytes, item pointers of 8 bytes each, and a part of the heap's payload. All numbers are
//! big-endian. If the highest bit of an item pointer is set, the pointer itself holds the item's value; the item's
//! number and the value, the last 40 or 48 bits, follow that bit.

use crate::instrument::clock::{Clock, Ticks};
use crate::instrument::format::{Format, Message, Part, Refusal, header_values, layout_from_options};
use crate::instrument::{TimeField, UdpConfig};
use thalweg_device::{DeviceError, Layout};
use thalweg_wire::Status;

/// Items that the protocol itself uses.
const HEAP_CNT: u64 = 1;
const HEAP_LEN: u64 = 2;
const PAYLOAD_OFFSET: u64 = 3;
const PAYLOAD_LEN: u64 = 4;
const STREAM_CONTROL: u64 = 6;
const STREAM_STOP: u64 = 2;

/// Heaps of one stream.
#[derive(Debug)]
pub(crate) struct Spead {
    /// Number of the item that holds a heap's time, and the clock of that time.
    time: Option<(u64, Clock)>,
    /// Layout of a heap, if the options state it: all heaps are whole then.
    layout: Option<Layout>,
}

impl Spead {
    pub(crate) fn new(config: &UdpConfig) -> Result<Self, DeviceError> {
        let time = config.time.map(|field| match field {
            TimeField { item: Some(item @ 7..=0x7fff), at: 0, bytes: 0, nanoseconds: None, hertz: 1.., epoch, .. } => {
                Ok((item.into(), Clock::new(field.hertz, epoch)))
            }
            _ => {
                let problem = "format spead needs an item, 7 to 0x7fff, and hertz, 1 or more, such as { item = 0x1600, hertz = 1_712_000_000 }";
                Err(DeviceError::Option { option: "time", problem: problem.into() })
            }
        });
        let layout = layout_from_options(config)?;
        Ok(Self { time: time.transpose()?, layout })
    }
}

impl Format for Spead {
    fn fragment_layout(&self) -> Option<&Layout> {
        self.layout.as_ref()
    }

    fn instrument_clock(&mut self) -> Option<&mut Clock> {
        self.time.as_mut().map(|(_, clock)| clock)
    }

    /// Returns the number of bits that the heap counters of both flavours have.
    fn counter_bits(&self) -> u32 {
        40
    }

    fn is_one_datagram_each(&self) -> bool {
        false
    }

    fn read_message(&self, _front: &[u8], body: &[u8]) -> Result<Message, Refusal> {
        let (header, rest) = body.split_first_chunk::<8>().ok_or(Refusal::Truncated)?;
        let [0x53, 4, number_bytes, value_bytes, _, _, items @ ..] = *header else { return Err(Refusal::Malformed) };
        if !matches!((number_bytes, value_bytes), (3, 5) | (2, 6)) {
            return Err(Refusal::Malformed);
        }
        let value_bits = 8 * u32::from(value_bytes);
        let length = 8 * usize::from(u16::from_be_bytes(items));
        let pointers = rest.get(..length).ok_or(Refusal::Truncated)?;
        let (mut number, mut total, mut at, mut bytes, mut ticks) = (None, None, None, None, None);
        let time_item = self.time.as_ref().map(|(item, _)| *item);
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
                STREAM_CONTROL if value == STREAM_STOP => return Ok(Message::End),
                item if Some(item) == time_item => &mut ticks,
                _ => continue,
            };
            *field = Some(value);
        }
        let (Some(number), Some(at), Some(bytes), Some(total)) = (number, at, bytes, total) else {
            return Err(Refusal::Malformed);
        };
        let [Ok(at), Ok(bytes), Ok(total)] = [at, bytes, total].map(usize::try_from) else {
            return Err(Refusal::Malformed);
        };
        let begin = header.len() + length;
        // Bytes after the payload do not belong to the heap.
        let end = begin.checked_add(bytes).ok_or(Refusal::Malformed)?;
        if end > body.len() {
            return Err(Refusal::Truncated);
        }
        if self.layout.as_ref().is_some_and(|layout| layout.bytes != total) {
            return Err(Refusal::Malformed);
        }
        let mut filled = header_values(self.payload_type(), None);
        filled
            .status
            .set(Status::CLOCK_FREE_RUNNING, self.time.as_ref().is_some_and(|(_, clock)| clock.is_free_running()));
        let time = ticks.map(|ticks| Ticks { ticks, bits: value_bits, nanos: 0 });
        Ok(Message::Part(Part { number, at, total, payload: begin..end, filled, time, taken: None }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use thalweg_wire::{PayloadType, TaiNanos};

    fn device(more: &str) -> Spead {
        let text = format!("listen = \"udp:0.0.0.0:1\"\nformat = \"spead\"\nsize = 100\n{more}");
        Spead::new(&toml::from_str(&text).unwrap()).unwrap()
    }

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
            let Message::Part(part) = device("").read_message(&[], &packet).unwrap() else { panic!() };
            assert_eq!((part.number, part.total, part.at, &packet[part.payload]), (7, 100, 40, &b"abc"[..]));
        }
    }

    #[test]
    fn the_end_is_recognised_and_what_is_short_or_other_is_refused() {
        assert_eq!(
            device("").read_message(&[], &packet(6, &[(HEAP_CNT, 7), (STREAM_CONTROL, STREAM_STOP)], &[])),
            Ok(Message::End)
        );
        let items = [(HEAP_CNT, 7), (HEAP_LEN, 100), (PAYLOAD_OFFSET, 40), (PAYLOAD_LEN, 3)];
        let whole = packet(6, &items, b"abc");
        for length in 0..whole.len() {
            assert_eq!(device("").read_message(&[], &whole[..length]), Err(Refusal::Truncated), "{length}");
        }
        for left_out in 0..4 {
            let mut items = items.to_vec();
            items.remove(left_out);
            assert_eq!(device("").read_message(&[], &packet(6, &items, b"abc")), Err(Refusal::Malformed));
        }
        for (other, value_bytes) in [("64-32", 4), ("a sum of 8 modulo 256", 6 + 128), ("nothing like it", 255)] {
            assert_eq!(
                device("").read_message(&[], &packet(value_bytes, &items, b"abc")),
                Err(Refusal::Malformed),
                "{other}"
            );
        }
        let mut overflows = whole.clone();
        overflows[2..4].copy_from_slice(&[250, 6]);
        assert_eq!(device("").read_message(&[], &overflows), Err(Refusal::Malformed));
    }

    #[test]
    fn an_item_is_the_heaps_time_and_a_heap_is_an_array() {
        let more = "time = { item = 0x1600, hertz = 1000, epoch = \"tai\" }\ntype = \"u16_be\"\nshape = [5, 10]";
        let mut spead = device(more);
        assert_eq!((spead.payload_type(), spead.fragment_shape()), (PayloadType::IMAGE_U16, Some(&[5, 10][..])));
        let heap = [(HEAP_CNT, 7), (HEAP_LEN, 100), (PAYLOAD_OFFSET, 40), (PAYLOAD_LEN, 3), (0x1600, 12_345)];
        let Message::Part(part) = spead.read_message(&[], &packet(6, &heap, b"abc")).unwrap() else { panic!() };
        assert_eq!(part.time, Some(Ticks { ticks: 12_345, bits: 48, nanos: 0 }));
        let date = spead.instrument_clock().unwrap().date_of_ticks(part.time.unwrap(), TaiNanos(0));
        assert_eq!((date, part.filled.status), (Some(TaiNanos(12_345_000_000)), Status::empty()));
        let Message::Part(part) = spead.read_message(&[], &packet(6, &heap[..4], b"abc")).unwrap() else { panic!() };
        assert_eq!(part.time, None, "another packet of the heap has it");
        let mut other = heap;
        other[1].1 = 102;
        assert_eq!(
            spead.read_message(&[], &packet(6, &other, b"abc")),
            Err(Refusal::Malformed),
            "not as long as stated"
        );
        let Message::Part(part) =
            device("time = { item = 0x1600, hertz = 1000 }").read_message(&[], &packet(6, &heap, b"abc")).unwrap()
        else {
            panic!()
        };
        assert_eq!(part.filled.status, Status::CLOCK_FREE_RUNNING);
    }

    #[test]
    fn a_time_that_is_no_item_is_refused() {
        for time in [
            "at = 0, bytes = 8, hertz = 1",
            "item = 1, hertz = 1",
            "item = 5, hertz = 0",
            "item = 5, at = 1, hertz = 1",
        ] {
            let text = format!("listen = \"udp:0.0.0.0:1\"\nformat = \"spead\"\nsize = 100\ntime = {{ {time} }}");
            let error = Spead::new(&toml::from_str(&text).unwrap()).unwrap_err().to_string();
            assert!(error.contains("needs an item"), "{error}");
        }
    }
}
