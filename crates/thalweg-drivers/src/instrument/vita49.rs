//! VITA-49 signal data packets (ANSI/VITA 49.0-2009, *VITA Radio Transport Standard*, section 6.1; 49.2-2017, section
//! 5.1). All numbers are big-endian.
//!
//! A packet's own count has 4 bits: it does not show the length of a gap of more than ten packets, and a packet that is
//! overtaken by more than four is taken for a later one. Where the packets arrive at a known rate and have time stamps,
//! the time stamps resolve both.

use crate::instrument::format::{Format, Message, Part, Refusal, header_values};
use crate::instrument::{Epoch, UdpConfig};
use thalweg_wire::{PayloadType, Status, TaiNanos};

/// Picoseconds in a second.
const PICOS_PER_SECOND: u64 = 1_000_000_000_000;

/// Number of consecutive packets whose counts differ by the same amount after which the counter is taken to have
/// restarted.
const RESTART_COUNTS: u32 = 8;

/// Packets of one stream.
#[derive(Debug)]
pub(crate) struct Vita49 {
    stream: Option<Stream>,
    /// Rate in millionths of packets per second.
    rate: Option<i128>,
    /// The last packet whose count and time agree.
    anchor: Option<Anchor>,
    /// Difference of counts from the times, and number of consecutive packets with that difference.
    off: (i8, u32),
    /// True if the counts differed by the same amount for so long that the instrument may have restarted its count.
    is_doubted: bool,
}

/// A packet whose number is known: its time in picoseconds, and its count.
#[derive(Debug, Clone, Copy)]
struct Anchor {
    time: i128,
    count: u8,
    number: u64,
}

impl Anchor {
    /// Returns the number of another packet, and the difference of its count from its time.
    fn number_by_time(&self, time: i128, rate: i128, count: u8) -> (u64, i8) {
        let (since, off) = nearest_number(time - self.time, rate, count.wrapping_sub(self.count));
        (self.number.wrapping_add(since), off)
    }
}

/// Stream that a packet belongs to: the standard allows a stream without a number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stream {
    Unnamed,
    Named(u32),
}

impl Vita49 {
    pub(crate) fn new(config: &UdpConfig) -> Self {
        let rate = config.rate.map(|rate| (rate.hertz() * 1e6).round() as i128);
        Self { stream: config.stream.map(Stream::Named), rate, anchor: None, off: (0, 0), is_doubted: false }
    }
}

impl Format for Vita49 {
    fn counter_bits(&self) -> u32 {
        if self.rate.is_some() { 64 } else { 4 }
    }

    fn is_absolute(&self) -> bool {
        self.rate.is_some()
    }

    fn is_one_datagram_each(&self) -> bool {
        true
    }

    fn read_message(&self, _front: &[u8], body: &[u8]) -> Result<Message, Refusal> {
        let Packet { stream, count, time, timestamp } = Packet::parse_header(body)?;
        if self.stream.is_some_and(|known| known != stream) {
            return Err(Refusal::Other);
        }
        let mut filled = header_values(PayloadType::RAW, timestamp);
        let number = match (self.rate, time) {
            (None, _) => count.into(),
            (Some(_), None) => return Err(Refusal::Unnumbered),
            (Some(rate), Some(time)) => {
                let (number, off) =
                    self.anchor.unwrap_or(Anchor { time, count, number: 0 }).number_by_time(time, rate, count);
                if off != 0 || self.is_doubted {
                    // The packet's time is off, or the instrument has restarted its count.
                    filled.status |= Status::UNCERTAIN;
                }
                number
            }
        };
        let taken = timestamp.filter(|_| time.is_some());
        Ok(Message::Part(Part { number, at: 0, total: body.len(), payload: 0..body.len(), filled, time: None, taken }))
    }

    fn learn_from_accepted(&mut self, body: &[u8]) {
        if self.rate.is_none() && self.stream.is_some() {
            return;
        }
        let Ok(Packet { stream, count, time, .. }) = Packet::parse_header(body) else { return };
        self.stream = Some(stream);
        let (Some(rate), Some(time)) = (self.rate, time) else { return };
        let (number, off) =
            self.anchor.get_or_insert(Anchor { time, count, number: 0 }).number_by_time(time, rate, count);
        let row = if off == self.off.0 { self.off.1.saturating_add(1) } else { 1 };
        self.off = (off, row);
        if off == 0 {
            // The instrument's clock and its packets may drift apart slowly.
            self.anchor = Some(Anchor { time, count, number });
        } else if row >= RESTART_COUNTS {
            tracing::warn!(
                off,
                "counts and timestamps differ from now on: event numbers follow the timestamps and are uncertain"
            );
            self.anchor = Some(Anchor { time, count, number: number.wrapping_sub_signed(off.into()) });
            (self.off, self.is_doubted) = ((0, 0), true);
        }
    }
}

/// Content of a packet's header.
struct Packet {
    stream: Stream,
    count: u8,
    /// Time in picoseconds, if it is known to one picosecond.
    time: Option<i128>,
    timestamp: Option<TaiNanos>,
}

impl Packet {
    fn parse_header(body: &[u8]) -> Result<Self, Refusal> {
        let (words, _) = body.as_chunks::<4>();
        let mut words = words.iter().map(|word| u32::from_be_bytes(*word));
        let head = next_word(&mut words)?;
        let length = 4 * (head & 0xffff) as usize;
        if length != body.len() {
            return Err(if length > body.len() { Refusal::Truncated } else { Refusal::Malformed });
        }
        let stream = match head >> 28 {
            0 => Stream::Unnamed,
            1 => Stream::Named(next_word(&mut words)?),
            _ => return Err(Refusal::Other),
        };
        if head >> 27 & 1 == 1 {
            // The class: the maker of the packet, and the kind of its payload.
            next_word(&mut words)?;
            next_word(&mut words)?;
        }
        let (kind, fraction_kind) = (head >> 22 & 3, head >> 20 & 3);
        let seconds = if kind == 0 { 0 } else { u64::from(next_word(&mut words)?) };
        let fraction = if fraction_kind == 0 {
            0
        } else {
            u64::from(next_word(&mut words)?) << 32 | u64::from(next_word(&mut words)?)
        };
        if fraction_kind == 2 && fraction >= PICOS_PER_SECOND || head >> 26 & 1 == 1 && words.next().is_none() {
            return Err(Refusal::Malformed);
        }
        let second = match kind {
            1 => Epoch::Utc.tai_second(seconds),
            2 => Epoch::Gps.tai_second(seconds),
            _ => None,
        };
        let pico = if fraction_kind == 2 { fraction } else { 0 };
        let count = (head >> 16 & 0xf) as u8;
        let exact = second.filter(|_| fraction_kind == 2);
        let time = exact.map(|second| i128::from(second) * i128::from(PICOS_PER_SECOND) + i128::from(pico));
        let timestamp = second.map(|second| TaiNanos(second * 1_000_000_000 + pico / 1000));
        Ok(Packet { stream, count, time, timestamp })
    }
}

fn next_word(words: &mut impl Iterator<Item = u32>) -> Result<u32, Refusal> {
    words.next().ok_or(Refusal::Truncated)
}

/// Returns the number of the packet that came `pico` picoseconds after number 0: the number with these four low bits
/// that is nearest by time; and the difference of the count from the time.
fn nearest_number(pico: i128, rate: i128, count: u8) -> (u64, i8) {
    const UNIT: i128 = PICOS_PER_SECOND as i128 * 1_000_000;
    // Times have 32 bits of seconds. A product that no rate could reach is not a number either.
    let by_time = pico.checked_mul(rate).map_or(0, |product| (product + UNIT / 2).div_euclid(UNIT));
    #[expect(clippy::cast_possible_truncation, reason = "modulo 2⁶⁴, as numbers are compared")]
    let by_time = by_time as u64;
    let off = (count.wrapping_sub(by_time as u8) << 4).cast_signed() >> 4;
    (by_time.wrapping_add_signed(off.into()), off)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::instrument::UdpConfig;

    fn device(more: &str) -> Vita49 {
        let text = format!("listen = \"udp:0.0.0.0:1\"\nformat = \"vita49\"\nsize = 9000\n{more}");
        Vita49::new(&toml::from_str::<UdpConfig>(&text).unwrap())
    }

    fn words(words: &[u32]) -> Vec<u8> {
        words.iter().flat_map(|word| word.to_be_bytes()).collect()
    }

    /// Returns a packet of stream 7, at a UTC second and picosecond.
    fn packet(count: u32, second: u32, pico: u64) -> Vec<u8> {
        words(&[0x1060_0006 | count << 16, 7, second, (pico >> 32) as u32, pico as u32, 0xdead_beef])
    }

    #[test]
    fn the_fields_are_where_the_standard_has_them() {
        let bytes = packet(5, 1_700_000_000, 250_000_000_000);
        let Message::Part(part) = device("").read_message(&[], &bytes).unwrap() else { panic!() };
        assert_eq!((part.number, part.total, part.payload), (5, 24, 0..24));
        assert_eq!(part.filled.timestamp, Some(TaiNanos(1_700_000_037_250_000_000)));
        // No stream, but a class; no time; a trailer.
        let bytes = words(&[0x0c01_0005, 1, 2, 0xdead_beef, 0]);
        let Message::Part(part) = device("").read_message(&[], &bytes).unwrap() else { panic!() };
        assert_eq!((part.number, part.filled.timestamp), (1, None));
        // GPS time, no fraction: 2023-11-14 22:13:20 UTC.
        let bytes = words(&[0x1080_0003, 7, 1_384_035_218]);
        let Message::Part(part) = device("").read_message(&[], &bytes).unwrap() else { panic!() };
        assert_eq!(part.filled.timestamp, Some(TaiNanos(1_700_000_037_000_000_000)));
    }

    #[test]
    fn what_is_no_signal_data_or_of_another_stream_or_cut_is_refused() {
        let whole = packet(0, 1, 0);
        for length in 0..whole.len() {
            assert_eq!(device("").read_message(&[], &whole[..length]), Err(Refusal::Truncated), "{length}");
        }
        assert_eq!(device("").read_message(&[], &[&whole[..], &[0; 4]].concat()), Err(Refusal::Malformed));
        assert_eq!(device("stream = 8").read_message(&[], &whole), Err(Refusal::Other));
        assert_eq!(device("").read_message(&[], &words(&[0x4000_0002, 7])), Err(Refusal::Other), "context");
        assert_eq!(device("").read_message(&[], &packet(0, 1, PICOS_PER_SECOND)), Err(Refusal::Malformed));
    }

    #[test]
    fn the_stream_and_the_beginning_are_those_of_the_first_packet_that_is_taken() {
        let mut device = device("rate = 1000");
        let other = words(&[0x1060_0006, 8, 1_700_000_100, 0, 0, 0]);
        assert!(device.read_message(&[], &other).is_ok(), "it was not taken");
        device.learn_from_accepted(&packet(3, 1_700_000_100, 0));
        let Ok(Message::Part(part)) = device.read_message(&[], &packet(4, 1_700_000_100, PICOS_PER_SECOND / 1000))
        else {
            panic!()
        };
        assert_eq!(part.number, 1);
        assert_eq!(device.read_message(&[], &other), Err(Refusal::Other));
    }

    #[test]
    fn with_a_rate_a_long_gap_is_as_long_as_it_was() {
        let mut device = device("rate = 1000");
        let mut read = |count, second, pico| {
            let packet = packet(count, second, pico);
            let Message::Part(part) = device.read_message(&[], &packet).unwrap() else { panic!() };
            device.learn_from_accepted(&packet);
            part.number.cast_signed()
        };
        assert_eq!(read(3, 1_700_000_100, 0), 0);
        // Time stamps that are off by some packets do not matter: the count is right.
        assert_eq!(read(4, 1_700_000_100, 4 * PICOS_PER_SECOND / 1000), 1);
        assert_eq!(read((1_000_000 + 3) % 16, 1_700_001_100, 0), 1_000_000);
        assert_eq!(read(1, 1_700_000_100, 0), -2);
    }
    #[test]
    fn an_instrument_that_counts_anew_goes_by_its_times_and_is_doubted() {
        let mut device = device("rate = 1000");
        let mut read = |count: u32, number: u64| {
            let packet = packet(count % 16, 1_700_000_100, number * PICOS_PER_SECOND / 1000);
            let Message::Part(part) = device.read_message(&[], &packet).unwrap() else { panic!() };
            device.learn_from_accepted(&packet);
            (part.number, part.filled.status.contains(Status::UNCERTAIN))
        };
        (0..40).for_each(|number| assert_eq!(read(number as u32, number), (number, false)));
        // The count restarts at 0, after 60 packets that did not arrive: 100 is 4 modulo 16.
        (0..u64::from(RESTART_COUNTS)).for_each(|at| assert_eq!(read(at as u32, 100 + at), (96 + at, true)));
        (8..40).for_each(|at| assert_eq!(read(at as u32, 100 + at), (100 + at, true)));
    }

    #[test]
    fn a_clock_that_comes_apart_from_its_packets_is_followed() {
        let mut device = device("rate = 1000");
        for number in 0..100_000_u64 {
            // Packets come faster than stated by one in a thousand.
            let packet =
                packet((number % 16) as u32, 1_700_000_100, number * PICOS_PER_SECOND / 1001 % PICOS_PER_SECOND);
            let second = 1_700_000_100 + (number / 1001) as u32;
            let packet = [&packet[..8], &second.to_be_bytes(), &packet[12..]].concat();
            let Message::Part(part) = device.read_message(&[], &packet).unwrap() else { panic!() };
            device.learn_from_accepted(&packet);
            assert_eq!((part.number, part.filled.status), (number, Status::empty()));
        }
    }
}
