//! A payload after a header that the topology declares: the header's length, and the places of its counters.

use crate::instrument::clock::{Clock, Ticks};
use crate::instrument::format::{Format, Message, Part, Refusal, header_values, layout_from_options};
use crate::instrument::{TimeField, UdpConfig};
use thalweg_device::{Counter, DeviceError, Layout};
use thalweg_wire::Status;

/// Datagrams of one layout.
#[derive(Debug)]
pub(crate) struct Fixed {
    header: usize,
    counter: Counter,
    index: Option<Counter>,
    packets: u64,
    /// Number of bytes in a fragment.
    size: usize,
    /// Layout of a fragment, if the options state it: all fragments are whole then.
    layout: Option<Layout>,
    time: Option<(TimeField, Clock)>,
}

impl Fixed {
    pub(crate) fn new(config: &UdpConfig) -> Result<Self, DeviceError> {
        let (Some(header), Some(counter)) = (config.header, config.counter) else {
            let option = if config.header.is_none() { "header" } else { "counter" };
            return Err(option_error(option, "format fixed needs it"));
        };
        let packets = config.packets.unwrap_or(1);
        if header > 1024 {
            return Err(option_error("header", format!("{header} bytes: the limit is 1024")));
        }
        for (option, counter) in [("counter", counter)].into_iter().chain(config.index.map(|index| ("index", index))) {
            if !counter.is_within(header.into()) {
                return Err(option_error(
                    option,
                    format!("it must be 1 to 8 bytes within the header of {header} bytes"),
                ));
            }
        }
        let each = config.size.0.div_ceil(u64::from(packets).max(1));
        // All parts have the same length, and the last has the remaining bytes, at least one.
        if packets == 0 || each.saturating_mul(u64::from(packets - 1)) >= config.size.0 {
            let problem = format!(
                "{packets}: {} bytes cannot be divided into that many equal parts and a last one",
                config.size.0
            );
            return Err(option_error("packets", problem));
        }
        let (counts, bytes) = config.index.map_or(("counter", counter.bytes), |index| ("index", index.bytes));
        if bytes < 4 && u64::from(packets) > 1 << (8 * bytes) {
            let problem = format!("{packets}: {counts} with bytes = {bytes} does not count that far");
            return Err(option_error("packets", problem));
        }
        if config.index.is_none() && counter.bytes < 8 && !packets.is_power_of_two() {
            let problem = format!(
                "when the counter wraps around, {packets} datagrams would not start with a fragment: this needs a \
                 counter of 8 bytes, or an index"
            );
            return Err(option_error("packets", problem));
        }
        if config.step.is_some() && config.index.is_none() && packets > 1 {
            let problem = "it counts fragments, but the counter counts datagrams: set the position of their `index`";
            return Err(option_error("step", problem));
        }
        let layout = layout_from_options(config)?;
        if let Some(time) = config.time {
            if time.item.is_some() {
                return Err(option_error("time", "item belongs to format spead; this format needs at and bytes"));
            }
            let fields = [Some(time.ticks_counter()), time.nanoseconds].into_iter().flatten();
            if !fields.into_iter().all(|field| field.is_within(header.into())) {
                return Err(option_error(
                    "time",
                    format!("it must be 1 to 8 bytes within the header of {header} bytes"),
                ));
            }
            if time.hertz == 0 || time.nanoseconds.is_some() && time.hertz != 1 {
                return Err(option_error(
                    "time",
                    "hertz must be at least 1, and exactly 1 if there are nanoseconds too",
                ));
            }
        }
        let size = usize::try_from(config.size.0).unwrap_or(usize::MAX);
        let time = config.time.map(|field| (field, Clock::new(field.hertz, field.epoch)));
        Ok(Self { header: header as usize, counter, index: config.index, packets: packets.into(), size, layout, time })
    }
}

fn option_error(option: &'static str, problem: impl Into<String>) -> DeviceError {
    DeviceError::Option { option, problem: problem.into() }
}

impl Format for Fixed {
    fn front_bytes(&self) -> usize {
        self.header
    }

    fn counter_bits(&self) -> u32 {
        let split = if self.index.is_none() { self.packets.ilog2() } else { 0 };
        // A counter of 8 bytes does not wrap around.
        if self.counter.bytes == 8 { 64 } else { (8 * self.counter.bytes).saturating_sub(split).max(1) }
    }

    fn datagrams_per_fragment(&self) -> u64 {
        self.packets
    }

    fn is_one_datagram_each(&self) -> bool {
        self.packets == 1
    }

    fn fragment_layout(&self) -> Option<&Layout> {
        self.layout.as_ref()
    }

    fn instrument_clock(&mut self) -> Option<&mut Clock> {
        self.time.as_mut().map(|(_, clock)| clock)
    }

    fn read_message(&self, front: &[u8], body: &[u8]) -> Result<Message, Refusal> {
        let counter = self.counter.read_count(front).ok_or(Refusal::Truncated)?;
        let (number, index) = match self.index {
            Some(index) => (counter, index.read_count(front).ok_or(Refusal::Truncated)?),
            None => (counter / self.packets, counter % self.packets),
        };
        let mut filled = header_values(self.payload_type(), None);
        let time = self.time.as_ref().and_then(|(field, clock)| {
            filled.status.set(Status::CLOCK_FREE_RUNNING, clock.is_free_running());
            let nanos = field.nanoseconds.map_or(Some(0), |field| field.read_count(front))?;
            Some(Ticks { ticks: field.ticks_counter().read_count(front)?, bits: 8 * field.bytes, nanos })
        });
        if self.packets == 1 && self.index.is_none() {
            return match (&self.layout, body.len()) {
                (Some(layout), length) if length < layout.bytes => Err(Refusal::Truncated),
                _ => Ok(Part::whole_fragment(number, body, filled, time)),
            };
        }
        if index >= self.packets {
            return Err(Refusal::Malformed);
        }
        #[expect(clippy::cast_possible_truncation, reason = "as many as `packets`, of 32 bits")]
        let (index, packets) = (index as usize, self.packets as usize);
        // All parts have the same length, and the last has the remaining bytes.
        let each = self.size.div_ceil(packets);
        let at = (index * each).min(self.size);
        let wanted = each.min(self.size - at);
        if body.len() != wanted {
            return Err(if body.len() < wanted { Refusal::Truncated } else { Refusal::Malformed });
        }
        Ok(Message::Part(Part { number, at, total: self.size, payload: 0..wanted, filled, time, taken: None }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::instrument::clock::NANOS_PER_SECOND;
    use thalweg_wire::{PayloadType, TaiNanos};

    fn device(more: &str) -> Result<Fixed, String> {
        let size = if more.ends_with('#') { 102_400 } else { 10 };
        let text = format!("listen = \"udp:0.0.0.0:1\"\nformat = \"fixed\"\nsize = {size}\n{more}");
        Fixed::new(&toml::from_str::<UdpConfig>(&text).unwrap()).map_err(|error| error.to_string())
    }

    fn date(device: &mut Fixed, front: &[u8], now: TaiNanos) -> Option<TaiNanos> {
        let Ok(Message::Part(part)) = device.read_message(front, b"a") else { panic!() };
        device.instrument_clock()?.date_of_ticks(part.time?, now)
    }

    #[test]
    fn a_counter_is_read_where_it_is_in_its_order() {
        let big = device("header = 6\ncounter = { at = 1, bytes = 4 }").unwrap();
        let little = device("header = 6\ncounter = { at = 1, bytes = 4, little_endian = true }").unwrap();
        for (device, number) in [(&big, 0x0102_0304), (&little, 0x0403_0201)] {
            let Ok(Message::Part(part)) = device.read_message(&[9, 1, 2, 3, 4, 9], b"ab") else { panic!() };
            assert_eq!((part.number, part.total), (number, 2));
        }
    }

    #[test]
    fn several_datagrams_make_a_fragment_and_the_last_has_what_is_left() {
        let device = device("header = 1\ncounter = { at = 0, bytes = 1 }\npackets = 4").unwrap();
        let part = |counter: u8, body: &[u8]| match device.read_message(&[counter], body)? {
            Message::Part(part) => Ok((part.number, part.at, part.payload.len())),
            Message::End => panic!(),
        };
        assert_eq!(part(9, b"abc"), Ok((2, 3, 3)));
        assert_eq!(part(11, b"a"), Ok((2, 9, 1)));
        assert_eq!(part(11, b"abc"), Err(Refusal::Malformed));
        assert_eq!(part(10, b"ab"), Err(Refusal::Truncated));
        assert_eq!(device.counter_bits(), 6);
    }

    #[test]
    fn an_index_of_its_own_says_which_of_several_it_is() {
        let text = "header = 3\ncounter = { at = 0, bytes = 2 }\nindex = { at = 2, bytes = 1 }\npackets = 3";
        let device = device(text).unwrap();
        let Ok(Message::Part(part)) = device.read_message(&[1, 2, 2], b"ab") else { panic!() };
        assert_eq!((part.number, part.at, part.total), (0x102, 8, 10));
        assert_eq!(device.read_message(&[1, 2, 3], b"ab"), Err(Refusal::Malformed));
    }

    #[test]
    fn what_fragments_are_made_of_is_stated_and_all_have_as_much() {
        let device = device("header = 4\ncounter = { at = 0, bytes = 4 }\ntype = \"u16_be\"\nshape = [1, 5]").unwrap();
        assert_eq!((device.payload_type(), device.fragment_shape()), (PayloadType::IMAGE_U16, Some(&[1, 5][..])));
        let Ok(Message::Part(part)) = device.read_message(&[0; 4], &[0; 10]) else { panic!() };
        assert_eq!(part.filled.payload_type, PayloadType::IMAGE_U16);
        assert_eq!(device.read_message(&[0; 4], &[0; 8]), Err(Refusal::Truncated));
        let mut payload = [0, 1, 0, 2, 0, 3, 0, 4, 0, 5];
        device.to_little_endian(&mut payload);
        assert_eq!(payload, [1, 0, 2, 0, 3, 0, 4, 0, 5, 0]);
    }

    #[test]
    fn times_since_an_epoch_are_those_of_the_header() {
        let dates = |time: &str, front: &[u8; 12]| {
            let text = format!("header = 12\ncounter = {{ at = 0, bytes = 1 }}\ntime = {{ {time} }}");
            date(&mut device(&text).unwrap(), front, TaiNanos(7)).map(|date| date.0)
        };
        let front = [0, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 5];
        assert_eq!(dates("at = 4, bytes = 4, hertz = 1, epoch = \"tai\"", &front), Some(3_000_000_000));
        let both = "at = 4, bytes = 4, hertz = 1, nanoseconds = { at = 8, bytes = 4 }, epoch = \"gps\"";
        assert_eq!(dates(both, &front), Some((315_964_819 + 3) * NANOS_PER_SECOND + 5));
        assert_eq!(dates("at = 7, bytes = 1, hertz = 2, epoch = \"tai\"", &front), Some(1_500_000_000));
        // Leap seconds of before 1972 are not supported.
        assert_eq!(dates("at = 4, bytes = 4, hertz = 1, epoch = \"utc\"", &front), None);
        let much = [0, 0, 0, 0, 0, 0, 0, 3, 0xff, 0, 0, 0];
        assert_eq!(dates(both, &much), None, "more nanoseconds than a second has");
        assert_eq!(dates("at = 4, bytes = 8, hertz = 1, epoch = \"tai\"", &[0xff; 12]), None, "beyond all time");
    }

    #[test]
    fn a_clock_that_counts_since_anything_is_set_by_the_first_datagram_and_begins_anew() {
        let text = "header = 2\ncounter = { at = 0, bytes = 1 }\ntime = { at = 1, bytes = 1, hertz = 1000 }";
        let mut device = device(text).unwrap();
        assert!(device.instrument_clock().is_some_and(|clock| clock.is_free_running()));
        let Ok(Message::Part(part)) = device.read_message(&[0; 2], b"a") else { panic!() };
        assert_eq!(part.filled.status, Status::CLOCK_FREE_RUNNING);
        let ms = |ms: u64| TaiNanos(1_000_000_000_000 + ms * 1_000_000);
        let mut date_of = |ticks: u8, now| date(&mut device, &[0, ticks], now).unwrap();
        assert_eq!(date_of(250, ms(0)), ms(0));
        // The counter wraps around, and one datagram comes late.
        for (ticks, since) in [(255, 5), (4, 10), (254, 4), (120, 126), (240, 246), (10, 272)] {
            assert_eq!(date_of(ticks, ms(9999)), ms(since));
        }
        device.instrument_clock().unwrap().forget_setting();
        assert_eq!(date(&mut device, &[0, 3], ms(500)), Some(ms(500)));
    }

    #[test]
    fn options_that_make_no_layout_are_refused() {
        for (more, why) in [
            ("header = 8\ncounter = { at = 0, bytes = 8 }\nshape = [5]", "add it"),
            ("header = 8\ncounter = { at = 0, bytes = 8 }\ntype = \"u16\"\nshape = [4]", "takes 8 bytes"),
            ("header = 8\ncounter = { at = 0, bytes = 8 }\ntime = { at = 1, bytes = 8, hertz = 1 }", "time"),
            ("header = 8\ncounter = { at = 0, bytes = 8 }\ntime = { at = 0, bytes = 8, hertz = 0 }", "hertz"),
            ("", "header: format fixed needs it"),
            ("header = 4", "counter"),
            ("header = 4\ncounter = { at = 2, bytes = 4 }", "1 to 8 bytes"),
            ("header = 4\ncounter = { at = 0, bytes = 0 }", "1 to 8 bytes"),
            ("header = 4\ncounter = { at = 4294967295, bytes = 4 }", "1 to 8 bytes"),
            ("header = 4\ncounter = { at = 0, bytes = 4 }\npackets = 3", "wraps around"),
            ("header = 4\ncounter = { at = 0, bytes = 4 }\npackets = 0", "packets"),
            ("header = 8\ncounter = { at = 0, bytes = 8 }\npackets = 11", "11: 10 bytes cannot be divided"),
            // With two bytes in each, five parts would be enough.
            ("header = 8\ncounter = { at = 0, bytes = 8 }\npackets = 6", "6: 10 bytes cannot be divided"),
            ("header = 4\ncounter = { at = 0, bytes = 1 }\npackets = 512 #", "counter with bytes = 1 does not"),
            (
                "header = 4\ncounter = { at = 0, bytes = 2 }\nindex = { at = 2, bytes = 1 }\npackets = 300 #",
                "index with bytes = 1 does not",
            ),
        ] {
            let error = device(more).unwrap_err();
            assert!(error.contains(why), "{error}");
        }
    }
}
