//! What is said over the control channel (GigE Vision 2.x, part 2: GVCP): commands out, acknowledges in.
//!
//! A command has a header of eight bytes: key, flags, command, length, number. An acknowledge has one too: status, what
//! it answers, length, number. All numbers are big-endian. The specification is its members' own; its sections are cited
//! by number where its table of contents is public (version 2.0.03), else by the name of the message.

use std::fmt;
use thiserror::Error;

/// Where a camera listens (section 8.1).
pub const PORT: u16 = 3956;

/// The longest payload of a command or an acknowledge: a datagram of 576 bytes with its headers (section 8.1.2).
pub const LONGEST: usize = 540;

/// Bytes that are read or written at a time: a multiple of four (READMEM).
pub const MOST_BYTES: usize = 512;

const HEADER: usize = 8;
const KEY: u8 = 0x42;
const ACKNOWLEDGE: u8 = 0x01;
const EXTENDED_IDS: u8 = 0x10;
const DISCOVERY: u16 = 0x0002;
const PACKET_RESEND: u16 = 0x0040;
const READREG: u16 = 0x0080;
const WRITEREG: u16 = 0x0082;
const READMEM: u16 = 0x0084;
const WRITEMEM: u16 = 0x0086;
const PENDING: u16 = 0x0089;

/// What a camera is asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Command<'a> {
    /// Who are you? (DISCOVERY, section 5.1)
    Discover,
    /// A register's content (READREG).
    ReadRegister(u32),
    /// A register is to have this content (WRITEREG).
    WriteRegister(u32, u32),
    /// So many bytes from an address on, both multiples of four (READMEM).
    ReadMemory(u32, u16),
    /// Bytes to an address on, both multiples of four (WRITEMEM).
    WriteMemory(u32, &'a [u8]),
}

impl Command<'_> {
    /// The command as a datagram with this number, which is not 0.
    pub fn datagram(&self, number: u16) -> Vec<u8> {
        let (command, payload) = match self {
            Self::Discover => (DISCOVERY, Vec::new()),
            Self::ReadRegister(address) => (READREG, address.to_be_bytes().to_vec()),
            Self::WriteRegister(address, value) => (WRITEREG, words(&[*address, *value])),
            Self::ReadMemory(address, count) => (READMEM, words(&[*address, u32::from(*count)])),
            Self::WriteMemory(address, bytes) => (WRITEMEM, [&address.to_be_bytes()[..], bytes].concat()),
        };
        framed(ACKNOWLEDGE, command, number, &payload)
    }

    /// The number of what answers it.
    pub fn answer(&self) -> u16 {
        1 + match self {
            Self::Discover => DISCOVERY,
            Self::ReadRegister(_) => READREG,
            Self::WriteRegister(..) => WRITEREG,
            Self::ReadMemory(..) => READMEM,
            Self::WriteMemory(..) => WRITEMEM,
        }
    }
}

/// Asks for packets of a block again, the first and the last of them inclusive (PACKETRESEND). Nobody acknowledges it.
pub fn resend(number: u16, block: u64, wide: bool, first: u32, last: u32) -> Vec<u8> {
    let (first, last) = if wide { (first, last) } else { (first & 0x00ff_ffff, last & 0x00ff_ffff) };
    let mut payload = vec![0, 0];
    #[expect(clippy::cast_possible_truncation, reason = "a block of a narrow stream has a number of 16 bits")]
    let narrow = if wide { 0 } else { block as u16 };
    payload.extend_from_slice(&narrow.to_be_bytes());
    payload.extend_from_slice(&words(&[first, last]));
    if wide {
        payload.extend_from_slice(&block.to_be_bytes());
    }
    framed(if wide { EXTENDED_IDS } else { 0 }, PACKET_RESEND, number, &payload)
}

fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_be_bytes()).collect()
}

fn framed(flags: u8, command: u16, number: u16, payload: &[u8]) -> Vec<u8> {
    #[expect(clippy::cast_possible_truncation, reason = "no payload is longer than LONGEST")]
    let length = payload.len() as u16;
    let mut datagram = vec![KEY, flags];
    for field in [command, length, number] {
        datagram.extend_from_slice(&field.to_be_bytes());
    }
    datagram.extend_from_slice(payload);
    datagram
}

/// An acknowledge.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Acknowledge<'a> {
    /// How it went.
    pub status: Status,
    /// What it answers.
    pub answer: u16,
    /// The number of the command.
    pub number: u16,
    /// What was asked for.
    pub payload: &'a [u8],
}

impl<'a> Acknowledge<'a> {
    /// Reads a datagram. Nothing where it is no acknowledge, or has another length than it says.
    pub fn read(datagram: &'a [u8]) -> Option<Self> {
        let (header, payload) = datagram.split_at_checked(HEADER)?;
        let field = |at: usize| u16::from_be_bytes([header[at], header[at + 1]]);
        let length = usize::from(field(4));
        // Cameras pad.
        let payload = payload.get(..length).filter(|_| length <= LONGEST)?;
        Some(Self { status: Status(field(0)), answer: field(2), number: field(6), payload })
    }

    /// How many milliseconds more the camera asks for, where that is what it says (PENDING_ACK, section 10.7).
    pub fn pending(&self) -> Option<u16> {
        let time = self.payload.get(2..4)?;
        (self.answer == PENDING).then(|| u16::from_be_bytes([time[0], time[1]]))
    }
}

/// What a camera says of a command, or of a packet (status codes).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Status(pub u16);

impl Status {
    /// It was done.
    pub const SUCCESS: Self = Self(0x0000);
    /// A packet that was asked for again.
    pub const RESENT: Self = Self(0x0100);
    /// Somebody else controls the camera.
    pub const ACCESS_DENIED: Self = Self(0x8006);
    /// The camera had more data than it could send.
    pub const OVERRUN: Self = Self(0x800d);

    /// Whether it could not be done.
    pub fn is_error(self) -> bool {
        self.0 & 0x8000 != 0
    }

    /// Whether a packet can never be had any more.
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

/// Why a camera could not be asked.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum Refusal {
    /// It says why.
    #[error("it answers: {0}")]
    Status(Status),
    /// It says something else than was asked for.
    #[error("its answer makes no sense")]
    Malformed,
    /// It says nothing.
    #[error("it does not answer")]
    Silent,
    /// The network refused.
    #[error("{0}")]
    Network(String),
    /// Nobody controls it, though somebody did.
    #[error("it has restarted, or given up on us")]
    Lost,
    /// What it would take is more than it is given.
    #[error("{0}")]
    TooMuch(&'static str),
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// An acknowledge as a camera sends it.
    pub(crate) fn acknowledge(status: u16, answer: u16, number: u16, payload: &[u8]) -> Vec<u8> {
        let fields = [status, answer, payload.len() as u16, number];
        fields.iter().flat_map(|field| field.to_be_bytes()).chain(payload.iter().copied()).collect()
    }

    #[test]
    fn commands_are_as_the_specification_has_them() {
        assert_eq!(Command::Discover.datagram(0xffff), [0x42, 1, 0, 2, 0, 0, 0xff, 0xff]);
        assert_eq!(Command::ReadRegister(0x0a00).datagram(3), [0x42, 1, 0, 0x80, 0, 4, 0, 3, 0, 0, 0x0a, 0]);
        let write = Command::WriteRegister(0x0a00, 2);
        assert_eq!(write.datagram(4), [0x42, 1, 0, 0x82, 0, 8, 0, 4, 0, 0, 0x0a, 0, 0, 0, 0, 2]);
        assert_eq!(write.answer(), 0x83);
        let narrow = resend(5, 0x0102, false, 7, 9);
        assert_eq!(narrow, [0x42, 0, 0, 0x40, 0, 12, 0, 5, 0, 0, 1, 2, 0, 0, 0, 7, 0, 0, 0, 9]);
        let wide = resend(5, 0x0102, true, 7, 9);
        assert_eq!((wide[1], wide.len(), &wide[20..]), (0x10, 28, &[0, 0, 0, 0, 0, 0, 1, 2][..]));
    }

    #[test]
    fn a_camera_may_ask_for_time() {
        let bytes = acknowledge(0, 0x89, 7, &[0, 0, 0x01, 0x2c]);
        let pending = Acknowledge::read(&bytes).unwrap();
        assert_eq!((pending.number, pending.pending()), (7, Some(300)));
        let other = acknowledge(0, 0x81, 7, &[0, 0, 0x01, 0x2c]);
        assert_eq!(Acknowledge::read(&other).unwrap().pending(), None);
    }

    proptest! {
        #[test]
        fn any_bytes_are_an_acknowledge_of_their_length_or_nothing(bytes: Vec<u8>) {
            if let Some(read) = Acknowledge::read(&bytes) {
                prop_assert!(read.payload.len() <= LONGEST && read.payload.len() + HEADER <= bytes.len());
                let _ = (read.pending(), read.status.to_string());
            }
        }
    }
}
