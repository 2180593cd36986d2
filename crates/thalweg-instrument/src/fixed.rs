//! A payload behind a header that the topology declares: how long it is, and where its counters are.

use crate::format::{Format, Part, Refusal, Said, filled};
use thalweg_device::{Counter, DeviceError, UdpConfig};
use thalweg_wire::PayloadType;

/// Datagrams of one layout.
#[derive(Debug)]
pub(crate) struct Fixed {
    header: usize,
    counter: Counter,
    index: Option<Counter>,
    packets: u64,
    /// Bytes in a fragment.
    size: usize,
}

impl Fixed {
    pub(crate) fn new(config: &UdpConfig) -> Result<Self, DeviceError> {
        let wrong = |option, problem: String| DeviceError::Option { option, problem };
        let needed = |option| wrong(option, "format fixed needs it".into());
        let header = config.header.ok_or_else(|| needed("header"))?;
        let counter = config.counter.ok_or_else(|| needed("counter"))?;
        let packets = config.packets.unwrap_or(1);
        if header > 1024 {
            return Err(wrong("header", format!("{header} bytes; 1024 are possible")));
        }
        for (option, counter) in [("counter", counter)].into_iter().chain(config.index.map(|index| ("index", index))) {
            if !counter.is_within(header.into()) {
                return Err(wrong(option, format!("1 to 8 bytes of the header's {header} are possible")));
            }
        }
        let each = config.size.0.div_ceil(u64::from(packets).max(1));
        // Each has the same, and the last what is left: something.
        if packets == 0 || each.saturating_mul(u64::from(packets - 1)) >= config.size.0 {
            let problem = format!("{packets}; {} bytes are not that many equal parts and a last one", config.size.0);
            return Err(wrong("packets", problem));
        }
        let (counts, bytes) = config.index.map_or(("counter", counter.bytes), |index| ("index", index.bytes));
        if bytes < 4 && u64::from(packets) > 1 << (8 * bytes) {
            let problem = format!("{packets}; {counts} with bytes = {bytes} does not count that far");
            return Err(wrong("packets", problem));
        }
        if config.index.is_none() && counter.bytes < 8 && !packets.is_power_of_two() {
            let problem = format!(
                "where the counter begins anew, {packets} datagrams would not begin with a fragment: it takes a counter \
                 of 8 bytes, or an index"
            );
            return Err(wrong("packets", problem));
        }
        if config.step.is_some() && config.index.is_none() && packets > 1 {
            return Err(wrong(
                "step",
                "it is of fragments, and the counter counts datagrams: say where their `index` is".into(),
            ));
        }
        let size = usize::try_from(config.size.0).unwrap_or(usize::MAX);
        Ok(Self { header: header as usize, counter, index: config.index, packets: packets.into(), size })
    }
}

impl Format for Fixed {
    fn front(&self) -> usize {
        self.header
    }

    fn bits(&self) -> u32 {
        let split = if self.index.is_none() { self.packets.ilog2() } else { 0 };
        // A counter of 8 bytes does not begin anew.
        if self.counter.bytes == 8 { 64 } else { (8 * self.counter.bytes).saturating_sub(split).max(1) }
    }

    fn whole(&self) -> bool {
        self.packets == 1
    }

    fn read(&self, front: &[u8], body: &[u8]) -> Result<Said, Refusal> {
        let read = |counter: Counter| counter.read(front).ok_or(Refusal::Truncated);
        let counter = read(self.counter)?;
        let (number, index) = match self.index {
            Some(index) => (counter, read(index)?),
            None => (counter / self.packets, counter % self.packets),
        };
        if self.packets == 1 && self.index.is_none() {
            return Ok(Part::whole(number, body, filled(PayloadType::RAW, None)));
        }
        if index >= self.packets {
            return Err(Refusal::Malformed);
        }
        #[expect(clippy::cast_possible_truncation, reason = "as many as `packets`, of 32 bits")]
        let (index, packets) = (index as usize, self.packets as usize);
        // All are alike, and the last has what is left.
        let each = self.size.div_ceil(packets);
        let at = (index * each).min(self.size);
        let wanted = each.min(self.size - at);
        if body.len() != wanted {
            return Err(if body.len() < wanted { Refusal::Truncated } else { Refusal::Malformed });
        }
        let filled = filled(PayloadType::RAW, None);
        Ok(Said::Part(Part { number, at, total: self.size, payload: 0..wanted, filled }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn device(more: &str) -> Result<Fixed, String> {
        let size = if more.ends_with('#') { 102_400 } else { 10 };
        let text = format!("listen = \"udp:0.0.0.0:1\"\nformat = \"fixed\"\nsize = {size}\n{more}");
        Fixed::new(&toml::from_str::<UdpConfig>(&text).unwrap()).map_err(|error| error.to_string())
    }

    #[test]
    fn a_counter_is_read_where_it_is_in_its_order() {
        let big = device("header = 6\ncounter = { at = 1, bytes = 4 }").unwrap();
        let little = device("header = 6\ncounter = { at = 1, bytes = 4, little_endian = true }").unwrap();
        for (device, number) in [(&big, 0x0102_0304), (&little, 0x0403_0201)] {
            let Ok(Said::Part(part)) = device.read(&[9, 1, 2, 3, 4, 9], b"ab") else { panic!() };
            assert_eq!((part.number, part.total), (number, 2));
        }
    }

    #[test]
    fn several_datagrams_make_a_fragment_and_the_last_has_what_is_left() {
        let device = device("header = 1\ncounter = { at = 0, bytes = 1 }\npackets = 4").unwrap();
        let part = |counter: u8, body: &[u8]| match device.read(&[counter], body)? {
            Said::Part(part) => Ok((part.number, part.at, part.payload.len())),
            Said::End => panic!(),
        };
        assert_eq!(part(9, b"abc"), Ok((2, 3, 3)));
        assert_eq!(part(11, b"a"), Ok((2, 9, 1)));
        assert_eq!(part(11, b"abc"), Err(Refusal::Malformed));
        assert_eq!(part(10, b"ab"), Err(Refusal::Truncated));
        assert_eq!(device.bits(), 6);
    }

    #[test]
    fn an_index_of_its_own_says_which_of_several_it_is() {
        let text = "header = 3\ncounter = { at = 0, bytes = 2 }\nindex = { at = 2, bytes = 1 }\npackets = 3";
        let device = device(text).unwrap();
        let Ok(Said::Part(part)) = device.read(&[1, 2, 2], b"ab") else { panic!() };
        assert_eq!((part.number, part.at, part.total), (0x102, 8, 10));
        assert_eq!(device.read(&[1, 2, 3], b"ab"), Err(Refusal::Malformed));
    }

    #[test]
    fn options_that_make_no_layout_are_refused() {
        for (more, why) in [
            ("", "header: format fixed needs it"),
            ("header = 4", "counter"),
            ("header = 4\ncounter = { at = 2, bytes = 4 }", "1 to 8 bytes"),
            ("header = 4\ncounter = { at = 0, bytes = 0 }", "1 to 8 bytes"),
            ("header = 4\ncounter = { at = 4294967295, bytes = 4 }", "1 to 8 bytes"),
            ("header = 4\ncounter = { at = 0, bytes = 4 }\npackets = 3", "begins anew"),
            ("header = 4\ncounter = { at = 0, bytes = 4 }\npackets = 0", "packets"),
            ("header = 8\ncounter = { at = 0, bytes = 8 }\npackets = 11", "11; 10 bytes are not"),
            // Of two bytes each five would do.
            ("header = 8\ncounter = { at = 0, bytes = 8 }\npackets = 6", "6; 10 bytes are not"),
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
