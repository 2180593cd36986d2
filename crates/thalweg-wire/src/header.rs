//! The 64-byte fragment header that directly precedes each payload, on the wire and on disk alike.

use crate::fields::{u16_at, u32_at, u64_at};
use crate::{PayloadType, crc32c};
use thiserror::Error;

/// Length of a fragment header in bytes: one cache line.
pub const HEADER_LEN: usize = 64;
/// First field of every header: `TWLG` in a little-endian dump.
pub const HEADER_MAGIC: u32 = u32::from_le_bytes(*b"TWLG");
/// Version of the header format that this crate writes.
pub const HEADER_VERSION: u8 = 1;

/// Number of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct RunNumber(pub u32);

/// Number of an event: the trigger number, or the time-frame number of a streaming readout.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct EventId(pub u64);

/// Nanoseconds of International Atomic Time since 1970-01-01 00:00:00 TAI; never UTC, so the count never jumps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct TaiNanos(pub u64);

/// Id of a source: a subsystem (upper 16 bits) and an element of it (lower 16 bits), written `3.17`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct SourceId(pub u32);

impl SourceId {
    /// Returns the id of element `element` of subsystem `subsystem`.
    pub const fn new(subsystem: u16, element: u16) -> Self {
        Self((subsystem as u32) << 16 | element as u32)
    }

    /// Returns the number of the subsystem.
    pub const fn subsystem(self) -> u16 {
        (self.0 >> 16) as u16
    }

    /// Returns the number of the element within the subsystem.
    pub const fn element(self) -> u16 {
        (self.0 & 0xffff) as u16
    }
}

impl std::fmt::Display for SourceId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{}", self.subsystem(), self.element())
    }
}

impl std::str::FromStr for SourceId {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let numbers = text.split_once('.');
        let id =
            numbers.and_then(|(subsystem, element)| Some(Self::new(subsystem.parse().ok()?, element.parse().ok()?)));
        id.ok_or_else(|| {
            format!("'{text}' is not a source id: write SUBSYSTEM.ELEMENT, each 0 to 65535, for example 1.0")
        })
    }
}

bitflags::bitflags! {
    /// Conditions that a reader must know before it trusts a fragment's payload.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
    pub struct Status: u32 {
        /// The device had more data than fitted.
        const TRUNCATED = 1 << 0;
        /// The payload is known to be damaged.
        const CORRUPT = 1 << 1;
        /// No data came from this source; the header stands for the gap.
        const MISSING = 1 << 2;
        /// The deadline passed before this source answered.
        const TIMED_OUT = 1 << 3;
        /// The fragment came after its event was closed.
        const LATE = 1 << 4;
        /// The payload did not match its CRC.
        const CRC_FAILED = 1 << 5;
        /// The data was made by a model, not measured.
        const SIMULATED = 1 << 6;
        /// The data was played from a recording.
        const REPLAYED = 1 << 7;
        /// The source has no data for this event, which is not the same as lost.
        const EMPTY = 1 << 8;
        /// The payload CRC field is not filled in.
        const NO_PAYLOAD_CRC = 1 << 9;
        /// The source dropped the fragment by its back-pressure policy.
        const DROPPED = 1 << 10;
        /// The device lost the fragment before the source had it.
        const LOST_IN_DEVICE = 1 << 11;
        /// The fragment may belong to another event: its device's counter restarted, or the device was away for longer
        /// than the counter counts.
        const UNCERTAIN = 1 << 12;
        /// The timestamp is the time at which the source had the fragment: the device gave none.
        const ARRIVAL_TIME = 1 << 13;
        /// Clock state, two bits, zero when unknown: 1 locked, 2 holdover, 3 free-running.
        const CLOCK_LOCKED = 1 << 16;
        /// Second value of the clock state; see [`Status::CLOCK_LOCKED`].
        const CLOCK_HOLDOVER = 2 << 16;
        /// An unknown bit is kept.
        const _ = !0;
    }
}

impl Status {
    /// Bits that only a builder can know and a source must not set.
    pub const SET_BY_BUILDERS: Self = Self::from_bits_retain(
        Self::MISSING.bits()
            | Self::TIMED_OUT.bits()
            | Self::LATE.bits()
            | Self::CRC_FAILED.bits()
            | Self::DROPPED.bits()
            | Self::LOST_IN_DEVICE.bits(),
    );

    /// The clock is free-running: both clock bits set.
    pub const CLOCK_FREE_RUNNING: Self = Self::from_bits_retain(3 << 16);

    /// Returns the names of the bits that are set, as printed by `thalweg cat` and stored in `run.json`.
    pub fn flag_names(self) -> Vec<&'static str> {
        const NAMES: [(Status, &str); 14] = [
            (Status::TRUNCATED, "truncated"),
            (Status::CORRUPT, "corrupt"),
            (Status::MISSING, "missing"),
            (Status::TIMED_OUT, "timed-out"),
            (Status::LATE, "late"),
            (Status::CRC_FAILED, "crc-failed"),
            (Status::SIMULATED, "simulated"),
            (Status::REPLAYED, "replayed"),
            (Status::EMPTY, "empty"),
            (Status::NO_PAYLOAD_CRC, "no-payload-crc"),
            (Status::DROPPED, "dropped"),
            (Status::LOST_IN_DEVICE, "lost-in-device"),
            (Status::UNCERTAIN, "uncertain"),
            (Status::ARRIVAL_TIME, "arrival-time"),
        ];
        let clock = match self.bits() >> 16 & 3 {
            1 => Some("clock-locked"),
            2 => Some("clock-holdover"),
            3 => Some("clock-free-running"),
            _ => None,
        };
        NAMES.iter().filter(|(bit, _)| self.contains(*bit)).map(|(_, name)| *name).chain(clock).collect()
    }
}

/// A fragment header in native form. [`encode`](Self::encode) and [`decode`](Self::decode) convert to and from the 64
/// bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct FragmentHeader {
    /// Type of the payload.
    pub payload_type: PayloadType,
    /// Conditions that a reader must know before it trusts the payload.
    pub status: Status,
    /// Number of the run.
    pub run: RunNumber,
    /// Number of the event within the run.
    pub event: EventId,
    /// Time of the event; see [`event_time`](Self::event_time) for fragments without one.
    pub timestamp: TaiNanos,
    /// Id of the source that produced the fragment.
    pub source: SourceId,
    /// Sequence number among this source's fragments; shows gaps and duplicates. Wraps.
    pub sequence: u32,
    /// Length of the whole fragment's payload in bytes.
    pub total_length: u32,
    /// Offset of this piece within that payload, in bytes.
    pub offset: u32,
    /// Length of this piece in bytes.
    pub piece_length: u32,
    /// Time that the payload covers, in nanoseconds; 0 where that has no meaning.
    pub window: u32,
    /// CRC32C of this piece; 0 with [`Status::NO_PAYLOAD_CRC`] where it was not computed.
    pub payload_crc: u32,
}

/// Reason why 64 bytes are not a fragment header.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum HeaderError {
    /// The bytes are fewer than a header has.
    #[error("{0} bytes left where a 64-byte fragment header should be")]
    Short(usize),
    /// The first field is not [`HEADER_MAGIC`].
    #[error("fragment header magic is {0:#010x}, expected 0x474c5754 (\"TWLG\")")]
    Magic(u32),
    /// The header was written by another version of the format.
    #[error("fragment header version {0} is not known to this program, which reads version 1")]
    Version(u8),
    /// The header length field, in 8-byte units, is wrong.
    #[error("fragment header length is {0} x 8 bytes, expected 8 x 8")]
    Length(u8),
    /// The header's own checksum does not match.
    #[error("fragment header CRC32C is {found:#010x}, computed {computed:#010x}")]
    Crc {
        /// Checksum stored in the header.
        found: u32,
        /// Checksum computed from its bytes.
        computed: u32,
    },
    /// The piece does not lie within the fragment.
    #[error("piece {offset}+{length} lies outside a fragment of {total} bytes")]
    Piece {
        /// Offset of the piece in bytes.
        offset: u32,
        /// Length of the piece in bytes.
        length: u32,
        /// Length of the fragment in bytes.
        total: u32,
    },
}

impl FragmentHeader {
    /// Returns the time of the event, or `None` if the device gives no time: the timestamp is 0, and so is the window.
    /// The first fragment of a recording whose times are counted from 0 has a window.
    pub fn event_time(&self) -> Option<TaiNanos> {
        (self.timestamp.0 > 0 || self.window > 0).then_some(self.timestamp)
    }

    /// Returns the 64 bytes of this header, its CRC filled in.
    pub fn encode(&self) -> [u8; HEADER_LEN] {
        let mut b = [0; HEADER_LEN];
        b[0..4].copy_from_slice(&HEADER_MAGIC.to_le_bytes());
        b[4] = HEADER_VERSION;
        b[5] = (HEADER_LEN / 8) as u8;
        b[6..8].copy_from_slice(&self.payload_type.0.to_le_bytes());
        b[8..12].copy_from_slice(&self.status.bits().to_le_bytes());
        b[12..16].copy_from_slice(&self.run.0.to_le_bytes());
        b[16..24].copy_from_slice(&self.event.0.to_le_bytes());
        b[24..32].copy_from_slice(&self.timestamp.0.to_le_bytes());
        b[32..36].copy_from_slice(&self.source.0.to_le_bytes());
        b[36..40].copy_from_slice(&self.sequence.to_le_bytes());
        b[40..44].copy_from_slice(&self.total_length.to_le_bytes());
        b[44..48].copy_from_slice(&self.offset.to_le_bytes());
        b[48..52].copy_from_slice(&self.piece_length.to_le_bytes());
        b[52..56].copy_from_slice(&self.window.to_le_bytes());
        b[56..60].copy_from_slice(&self.payload_crc.to_le_bytes());
        let crc = crc32c(&b[..60]);
        b[60..64].copy_from_slice(&crc.to_le_bytes());
        b
    }

    /// Decodes the header at the front of `bytes`. The piece it describes is inside its fragment; that the payload is
    /// there, and that its CRC matches, is for the caller to check ([`crate::Records`] checks the former).
    ///
    /// # Errors
    /// `bytes` is too short or not a header of this version, its own CRC is wrong, or it describes an impossible piece.
    pub fn decode(bytes: &[u8]) -> Result<Self, HeaderError> {
        let Some(b) = bytes.first_chunk::<HEADER_LEN>() else {
            return Err(HeaderError::Short(bytes.len()));
        };
        if u32_at(b, 0) != HEADER_MAGIC {
            return Err(HeaderError::Magic(u32_at(b, 0)));
        }
        if b[4] != HEADER_VERSION {
            return Err(HeaderError::Version(b[4]));
        }
        if usize::from(b[5]) * 8 != HEADER_LEN {
            return Err(HeaderError::Length(b[5]));
        }
        let (found, computed) = (u32_at(b, 60), crc32c(&b[..60]));
        if found != computed {
            return Err(HeaderError::Crc { found, computed });
        }
        let header = Self {
            payload_type: PayloadType(u16_at(b, 6)),
            status: Status::from_bits_retain(u32_at(b, 8)),
            run: RunNumber(u32_at(b, 12)),
            event: EventId(u64_at(b, 16)),
            timestamp: TaiNanos(u64_at(b, 24)),
            source: SourceId(u32_at(b, 32)),
            sequence: u32_at(b, 36),
            total_length: u32_at(b, 40),
            offset: u32_at(b, 44),
            piece_length: u32_at(b, 48),
            window: u32_at(b, 52),
            payload_crc: u32_at(b, 56),
        };
        let (offset, length, total) = (header.offset, header.piece_length, header.total_length);
        if offset.checked_add(length).is_none_or(|end| end > total) {
            return Err(HeaderError::Piece { offset, length, total });
        }
        Ok(header)
    }

    /// Returns whether this piece is the whole fragment.
    pub fn is_whole_fragment(&self) -> bool {
        self.piece_length == self.total_length
    }

    /// Returns whether `payload` matches the header's CRC; true where there is no CRC to compare.
    pub fn payload_matches(&self, payload: &[u8]) -> bool {
        self.crc_matches(|| crc32c(payload))
    }

    /// Like [`payload_matches`](Self::payload_matches), for a caller that computes the payload's CRC, and only if it is
    /// needed.
    pub fn crc_matches(&self, crc: impl FnOnce() -> u32) -> bool {
        self.status.contains(Status::NO_PAYLOAD_CRC) || crc() == self.payload_crc
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn example() -> FragmentHeader {
        FragmentHeader {
            payload_type: PayloadType::SAMPLES_I16,
            status: Status::SIMULATED | Status::CLOCK_FREE_RUNNING,
            run: RunNumber(42),
            event: EventId(0x0102_0304_0506_0708),
            timestamp: TaiNanos(1_795_289_737_000_000_000),
            source: SourceId::new(3, 17),
            sequence: 0xdead_beef,
            total_length: 4096,
            offset: 1024,
            piece_length: 2048,
            window: 1_000_000,
            payload_crc: 0x1234_5678,
        }
    }

    /// The bytes are the contract with readers in other languages: they may never change for version 1.
    #[test]
    fn golden_bytes() {
        let expected = "54574c4701080100400003002a0000000807060504030201001aca028126ea1811000300\
                        efbeadde00100000000400000008000040420f0078563412";
        let bytes = example().encode();
        let hex: String = bytes[..60].iter().map(|b| format!("{b:02x}")).collect();
        assert_eq!(hex, expected.replace(' ', ""));
        assert_eq!(bytes[60..], crc32c(&bytes[..60]).to_le_bytes());
        assert_eq!(FragmentHeader::decode(&bytes), Ok(example()));
    }

    #[test]
    fn each_field_is_checked_and_named() {
        let good = example().encode();
        let broken = |at: usize, value: u8| {
            let mut bytes = good;
            bytes[at] = value;
            FragmentHeader::decode(&bytes).unwrap_err()
        };
        assert_eq!(FragmentHeader::decode(&good[..63]), Err(HeaderError::Short(63)));
        assert!(matches!(broken(0, 0), HeaderError::Magic(_)));
        assert_eq!(broken(4, 9), HeaderError::Version(9));
        assert_eq!(broken(5, 9), HeaderError::Length(9));
        assert!(matches!(broken(20, 0xff), HeaderError::Crc { .. }));
        let outside = FragmentHeader { offset: u32::MAX, ..example() }.encode();
        assert!(matches!(FragmentHeader::decode(&outside), Err(HeaderError::Piece { .. })));
    }

    proptest! {
        #[test]
        fn any_bytes_are_decoded_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..100)) {
            let _ = FragmentHeader::decode(&bytes);
        }

        #[test]
        fn every_single_bit_flip_is_noticed(bit in 0usize..512) {
            let mut bytes = example().encode();
            bytes[bit / 8] ^= 1 << (bit % 8);
            prop_assert!(FragmentHeader::decode(&bytes).is_err());
        }

        #[test]
        fn decode_undoes_encode(event: u64, ts: u64, status: u32, total: u32, source: u32, sequence: u32) {
            let header = FragmentHeader {
                event: EventId(event), timestamp: TaiNanos(ts), status: Status::from_bits_retain(status),
                total_length: total, piece_length: total, source: SourceId(source), sequence,
                ..FragmentHeader::default()
            };
            prop_assert_eq!(FragmentHeader::decode(&header.encode()), Ok(header));
        }
    }
}
