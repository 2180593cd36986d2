//! Messages of the control channel (GigE Vision 2.x, part 2: GVCP): commands out, acknowledges in.
//!
//! A command has a header of eight bytes: key, flags, command, length, number. An acknowledge has one too: status,
//! acknowledge code, length, number. All numbers are big-endian. The specification is available to its members only;
//! its sections are cited by number where its table of contents is public (version 2.0.03), else by the name of the
//! message.

use std::fmt;
use thiserror::Error;

/// UDP port on which a camera listens (section 8.1).
pub const GVCP_PORT: u16 = 3956;

/// Longest payload of a command or an acknowledge, in bytes: a datagram of 576 bytes with its headers (section 8.1.2).
pub const MAX_PAYLOAD_BYTES: usize = 540;

/// Maximum number of bytes read or written by one command: a multiple of four (READMEM).
pub const MAX_TRANSFER_BYTES: usize = 512;

const HEADER_BYTES: usize = 8;
const GVCP_KEY: u8 = 0x42;
const ACKNOWLEDGE_FLAG: u8 = 0x01;
const EXTENDED_IDS: u8 = 0x10;
const GVCP_DISCOVERY: u16 = 0x0002;
const PACKET_RESEND: u16 = 0x0040;
const GVCP_READREG: u16 = 0x0080;
const GVCP_WRITEREG: u16 = 0x0082;
const GVCP_READMEM: u16 = 0x0084;
const GVCP_WRITEMEM: u16 = 0x0086;
const GVCP_PENDING: u16 = 0x0089;

/// A command to a camera.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Command<'a> {
    /// Request for the camera's identity (DISCOVERY, section 5.1).
    Discover,
    /// Read of a register at this address (READREG).
    ReadRegister(u32),
    /// Write of a value to a register: address and value (WRITEREG).
    WriteRegister(u32, u32),
    /// Read of memory: address and number of bytes, both multiples of four (READMEM).
    ReadMemory(u32, u16),
    /// Write of bytes to memory from an address on; address and length are multiples of four (WRITEMEM).
    WriteMemory(u32, &'a [u8]),
}

impl Command<'_> {
    /// Returns the command as a datagram with this number, which is not 0.
    pub fn to_datagram(&self, number: u16) -> Vec<u8> {
        let (command, payload) = match self {
            Self::Discover => (GVCP_DISCOVERY, Vec::new()),
            Self::ReadRegister(address) => (GVCP_READREG, address.to_be_bytes().to_vec()),
            Self::WriteRegister(address, value) => (GVCP_WRITEREG, words_to_bytes(&[*address, *value])),
            Self::ReadMemory(address, count) => (GVCP_READMEM, words_to_bytes(&[*address, u32::from(*count)])),
            Self::WriteMemory(address, bytes) => (GVCP_WRITEMEM, [&address.to_be_bytes()[..], bytes].concat()),
        };
        frame_datagram(ACKNOWLEDGE_FLAG, command, number, &payload)
    }

    /// Returns the code of the acknowledge that answers this command.
    pub fn acknowledge_code(&self) -> u16 {
        1 + match self {
            Self::Discover => GVCP_DISCOVERY,
            Self::ReadRegister(_) => GVCP_READREG,
            Self::WriteRegister(..) => GVCP_WRITEREG,
            Self::ReadMemory(..) => GVCP_READMEM,
            Self::WriteMemory(..) => GVCP_WRITEMEM,
        }
    }
}

/// Returns a request to send packets of a block again, `first` to `last` inclusive (PACKETRESEND). It is not
/// acknowledged.
pub fn resend_request(number: u16, block: u64, wide: bool, first: u32, last: u32) -> Vec<u8> {
    let (first, last) = if wide { (first, last) } else { (first & 0x00ff_ffff, last & 0x00ff_ffff) };
    let mut payload = vec![0, 0];
    #[expect(clippy::cast_possible_truncation, reason = "a block of a narrow stream has a number of 16 bits")]
    let narrow = if wide { 0 } else { block as u16 };
    payload.extend_from_slice(&narrow.to_be_bytes());
    payload.extend_from_slice(&words_to_bytes(&[first, last]));
    if wide {
        payload.extend_from_slice(&block.to_be_bytes());
    }
    frame_datagram(if wide { EXTENDED_IDS } else { 0 }, PACKET_RESEND, number, &payload)
}

fn words_to_bytes(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_be_bytes()).collect()
}

fn frame_datagram(flags: u8, command: u16, number: u16, payload: &[u8]) -> Vec<u8> {
    #[expect(clippy::cast_possible_truncation, reason = "no payload is longer than MAX_PAYLOAD_BYTES")]
    let length = payload.len() as u16;
    let mut datagram = vec![GVCP_KEY, flags];
    for field in [command, length, number] {
        datagram.extend_from_slice(&field.to_be_bytes());
    }
    datagram.extend_from_slice(payload);
    datagram
}

/// An acknowledge: a camera's answer to a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Acknowledge<'a> {
    /// Status: success, or the reason for a failure.
    pub status: Status,
    /// Acknowledge code: the kind of command that is answered.
    pub answer: u16,
    /// Number of the command that is answered.
    pub number: u16,
    /// Data that was requested.
    pub payload: &'a [u8],
}

impl<'a> Acknowledge<'a> {
    /// Reads a datagram. Returns `None` if it is no acknowledge, or shorter than its stated length.
    pub fn parse_datagram(datagram: &'a [u8]) -> Option<Self> {
        let (header, payload) = datagram.split_at_checked(HEADER_BYTES)?;
        let [status, answer, length, number] = [0, 2, 4, 6].map(|at| u16::from_be_bytes([header[at], header[at + 1]]));
        let length = usize::from(length);
        // Some cameras pad their acknowledges: bytes after the stated length are ignored.
        let payload = payload.get(..length).filter(|_| length <= MAX_PAYLOAD_BYTES)?;
        Some(Self { status: Status(status), answer, number, payload })
    }

    /// Returns the number of additional milliseconds that the camera asks for; `None` if this is no PENDING_ACK
    /// (section 10.7).
    pub fn pending_time_ms(&self) -> Option<u16> {
        let time = self.payload.get(2..4)?;
        (self.answer == GVCP_PENDING).then(|| u16::from_be_bytes([time[0], time[1]]))
    }
}

/// Status code of an acknowledge or of a stream packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Status(pub u16);

impl Status {
    /// The command was executed.
    pub const SUCCESS: Self = Self(0x0000);
    /// The packet is one that was requested again.
    pub const RESENT: Self = Self(0x0100);
    /// Another application controls the camera.
    pub const ACCESS_DENIED: Self = Self(0x8006);
    /// The camera had more data than it could send.
    pub const OVERRUN: Self = Self(0x800d);

    /// Returns true if the code is an error.
    pub fn is_error(self) -> bool {
        self.0 & 0x8000 != 0
    }

    /// Returns true if a packet is no longer available and never will be.
    pub fn is_gone(self) -> bool {
        matches!(self.0, 0x800c | 0x8011 | 0x8012)
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match self.0 {
            0x0000 => "success",
            0x0100 => "packet resent",
            0x8001 => "not implemented",
            0x8002 => "invalid parameter",
            0x8003 => "invalid address",
            0x8004 => "write protected",
            0x8005 => "bad alignment",
            0x8006 => "access denied",
            0x8007 => "busy",
            0x800b => "no message",
            0x800c => "packet unavailable",
            0x800d => "data overrun",
            0x800e => "invalid header",
            0x8010 => "packet not yet available",
            0x8011 => "packet and those before it removed from memory",
            0x8012 => "packet removed from memory",
            0x8013 => "no reference time",
            0x8014 => "packet temporarily unavailable",
            0x8015 => "overflow",
            0x8016 => "action late",
            0x8fff => "error",
            other => return write!(f, "status {other:#06x}"),
        };
        f.write_str(name)
    }
}

/// Reason why a command to a camera failed.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum Refusal {
    /// The camera answered with an error status.
    #[error("it replied: {0}")]
    Status(Status),
    /// The answer does not fit the command.
    #[error("its reply is invalid")]
    Malformed,
    /// No answer came.
    #[error("it does not answer")]
    Silent,
    /// The network refused to send or receive.
    #[error("{0}")]
    Network(String),
    /// No application controls the camera any more, though this one did.
    #[error("it restarted, or closed the connection")]
    Lost,
    /// The camera's answers would take more than the limits allow.
    #[error("{0}")]
    TooMuch(&'static str),
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Returns an acknowledge as a camera sends it.
    pub(crate) fn acknowledge(status: u16, answer: u16, number: u16, payload: &[u8]) -> Vec<u8> {
        let fields = [status, answer, payload.len() as u16, number];
        fields.iter().flat_map(|field| field.to_be_bytes()).chain(payload.iter().copied()).collect()
    }

    #[test]
    fn commands_are_as_the_specification_has_them() {
        assert_eq!(Command::Discover.to_datagram(0xffff), [0x42, 1, 0, 2, 0, 0, 0xff, 0xff]);
        assert_eq!(Command::ReadRegister(0x0a00).to_datagram(3), [0x42, 1, 0, 0x80, 0, 4, 0, 3, 0, 0, 0x0a, 0]);
        let write = Command::WriteRegister(0x0a00, 2);
        assert_eq!(write.to_datagram(4), [0x42, 1, 0, 0x82, 0, 8, 0, 4, 0, 0, 0x0a, 0, 0, 0, 0, 2]);
        assert_eq!(write.acknowledge_code(), 0x83);
        let narrow = resend_request(5, 0x0102, false, 7, 9);
        assert_eq!(narrow, [0x42, 0, 0, 0x40, 0, 12, 0, 5, 0, 0, 1, 2, 0, 0, 0, 7, 0, 0, 0, 9]);
        let wide = resend_request(5, 0x0102, true, 7, 9);
        assert_eq!((wide[1], wide.len(), &wide[20..]), (0x10, 28, &[0, 0, 0, 0, 0, 0, 1, 2][..]));
    }

    #[test]
    fn a_camera_may_ask_for_time() {
        let bytes = acknowledge(0, 0x89, 7, &[0, 0, 0x01, 0x2c]);
        let pending = Acknowledge::parse_datagram(&bytes).unwrap();
        assert_eq!((pending.number, pending.pending_time_ms()), (7, Some(300)));
        let other = acknowledge(0, 0x81, 7, &[0, 0, 0x01, 0x2c]);
        assert_eq!(Acknowledge::parse_datagram(&other).unwrap().pending_time_ms(), None);
    }

    proptest! {
        #[test]
        fn any_bytes_are_an_acknowledge_of_their_length_or_nothing(bytes: Vec<u8>) {
            if let Some(read) = Acknowledge::parse_datagram(&bytes) {
                prop_assert!(read.payload.len() <= MAX_PAYLOAD_BYTES && read.payload.len() + HEADER_BYTES <= bytes.len());
                let _ = (read.pending_time_ms(), read.status.to_string());
            }
        }
    }
}
