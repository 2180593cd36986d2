//! VDIF data frames (*VLBI Data Interchange Format Specification*, release 1.1.1, 2014,
//! <https://vlbi.org/vlbi-standards/vdif/>), with or without the 8 bytes that VTP puts before each (*VDIF Transport
//! Protocol Specification*, release 1.0.0, 2017: a packet sequence number, little-endian).

use crate::instrument::UdpConfig;
use crate::instrument::format::{Format, Message, Part, Refusal};
use thalweg_device::{DeviceError, Filled, VdifFrame, checked_vdif_rate};
use thalweg_wire::{PayloadType, Status, TaiNanos};

/// Frames of one thread.
#[derive(Debug)]
pub(crate) struct Vdif {
    sequence: bool,
    thread: Option<u16>,
    rate: Option<u32>,
}

impl Vdif {
    pub(crate) fn new(config: &UdpConfig) -> Result<Self, DeviceError> {
        let hertz = config.rate.map(|rate| rate.hertz());
        let rate = hertz.and_then(checked_vdif_rate);
        if let (Some(hertz), None) = (hertz, rate) {
            let problem = format!("{hertz}: it must be the number of frames per second of one thread, a whole number");
            return Err(DeviceError::Option { option: "rate", problem });
        }
        Ok(Self { sequence: config.sequence, thread: config.thread, rate })
    }
}

impl Format for Vdif {
    fn front_bytes(&self) -> usize {
        if self.sequence { size_of::<u64>() } else { 0 }
    }

    fn is_absolute(&self) -> bool {
        self.rate.is_some() || !self.sequence
    }

    fn is_one_datagram_each(&self) -> bool {
        true
    }

    fn payload_type(&self) -> PayloadType {
        PayloadType::VDIF
    }

    fn read_message(&self, front: &[u8], body: &[u8]) -> Result<Message, Refusal> {
        let frame = VdifFrame::from_bytes(body).ok_or(Refusal::Malformed)?;
        if frame.length != body.len() {
            return Err(if frame.length > body.len() { Refusal::Truncated } else { Refusal::Malformed });
        }
        if self.thread.is_some_and(|thread| thread != frame.thread) {
            return Err(Refusal::Other);
        }
        let rate = self.numbering_rate(&frame);
        if rate.is_some_and(|rate| frame.number >= rate) {
            return Err(Refusal::Malformed);
        }
        let number = match (rate, front.first_chunk()) {
            (Some(rate), _) => frame.second * u64::from(rate) + u64::from(frame.number),
            (None, Some(sequence)) => u64::from_le_bytes(*sequence),
            (None, None) => return Err(Refusal::Unnumbered),
        };
        // The rate in a frame's own header is used for the time of that frame only.
        let rate = rate.or(frame.rate).filter(|rate| frame.number < *rate);
        let nanos = rate.map_or(0, |rate| u64::from(frame.number) * 1_000_000_000 / u64::from(rate));
        let filled = Filled {
            payload_type: PayloadType::VDIF,
            status: if frame.invalid { Status::CORRUPT } else { Status::empty() },
            window: rate.map_or(0, |rate| 1_000_000_000 / rate),
            timestamp: Some(TaiNanos(frame.second * 1_000_000_000 + nanos)),
        };
        Ok(Part::whole_fragment(number, body, filled, None))
    }

    fn learn_from_accepted(&mut self, body: &[u8]) {
        if (self.thread.is_none() || self.rate.is_none() && !self.sequence)
            && let Some(frame) = VdifFrame::from_bytes(body)
        {
            (self.thread, self.rate) = (Some(frame.thread), self.numbering_rate(&frame));
        }
    }
}

impl Vdif {
    /// Returns the rate from which numbers follow: a rate that a header states is used only if there is no sequence
    /// number.
    fn numbering_rate(&self, frame: &VdifFrame) -> Option<u32> {
        self.rate.or(frame.rate.filter(|_| !self.sequence))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a frame of 16 samples; with a rate of `khz` if that is not 0 (EDV 3).
    fn frame(thread: u32, number: u32, khz: u32) -> Vec<u8> {
        let extension = if khz == 0 { 0 } else { 3 << 24 | khz };
        let words = [9, 50 << 24 | number, 1 << 29 | 5, 7 << 26 | thread << 16 | 0x4566, extension, 0xacab_feed, 0, 0];
        words.into_iter().chain([0; 2]).flat_map(u32::to_le_bytes).collect()
    }

    fn device(more: &str) -> Vdif {
        let text = format!("listen = \"udp:0.0.0.0:1\"\nformat = \"vdif\"\nsize = 100\n{more}");
        Vdif::new(&toml::from_str::<UdpConfig>(&text).unwrap()).unwrap()
    }

    #[test]
    fn the_thread_is_that_of_the_first_frame_that_is_taken() {
        let mut device = device("rate = 10");
        assert_eq!(device.read_message(&[], &frame(4, 10, 0)), Err(Refusal::Malformed));
        assert!(device.read_message(&[], &frame(5, 1, 0)).is_ok(), "it was not taken");
        assert!(device.read_message(&[], &frame(3, 1, 0)).is_ok());
        device.learn_from_accepted(&frame(3, 1, 0));
        assert_eq!(device.read_message(&[], &frame(5, 2, 0)), Err(Refusal::Other));
    }

    #[test]
    fn a_rate_in_a_header_numbers_frames_only_where_there_is_no_sequence_number() {
        let rate = VdifFrame::from_bytes(&frame(0, 1, 80)).unwrap().rate.unwrap();
        let mut plain = device("");
        assert_eq!(plain.read_message(&[], &frame(0, 1, 0)), Err(Refusal::Unnumbered));
        let Ok(Message::Part(part)) = plain.read_message(&[], &frame(0, 1, 80)) else { panic!() };
        assert_eq!(part.number % u64::from(rate), 1);
        plain.learn_from_accepted(&frame(0, 1, 80));
        assert!(plain.read_message(&[], &frame(0, 2, 0)).is_ok(), "it is known now");
        let mut counted = device("sequence = true");
        for khz in [0, 80, 8] {
            let Ok(Message::Part(part)) = counted.read_message(&77u64.to_le_bytes(), &frame(0, 3, khz)) else {
                panic!()
            };
            assert_eq!(part.number, 77);
            counted.learn_from_accepted(&frame(0, 3, khz));
        }
    }
}
