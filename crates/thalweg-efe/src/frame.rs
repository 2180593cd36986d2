//! Bytes of a frame: a header, up to three status blocks, and a body. `docs/efe.md` has the tables.
//!
//! All numbers are little-endian. A frame is a whole Ethernet payload or UDP payload. Bytes after its announced length,
//! such as the padding of short Ethernet frames, are not part of it.

use thalweg_wire::Crc32c;

/// EtherType of frames that lie directly in Ethernet frames: the first one for local experiments (IEEE 802, clause 9.2.3).
pub const ETHER_TYPE: u16 = 0x88b5;
/// UDP port at which a receiver of frames in UDP datagrams listens, unless configured otherwise: a dynamic port (RFC
/// 6335, section 6).
pub const UDP_PORT: u16 = 61_184;
/// Version of the protocol.
pub const VERSION: u8 = 1;
/// Length of a header, in bytes.
pub const HEADER_BYTES: usize = 56;
/// Length of a status block, in bytes.
pub const STATUS_BYTES: usize = 48;
/// Maximum number of packets of a class that are sent and not acknowledged: the bits of a bitmap.
pub const WINDOW_PACKETS: u32 = 128;
/// Maximum length of private data, in bytes.
pub const MAX_PRIVATE_BYTES: usize = 512;
/// Number of classes of traffic.
pub const CLASS_COUNT: usize = 3;

/// Length of the fields of [`Handshake`] before its private data, in bytes.
pub(crate) const HANDSHAKE_BYTES: usize = 24;
/// Length of the fields of [`Ending`] before its private data, in bytes.
const ENDING_BYTES: usize = 8;
const MAGIC: [u8; 2] = [0xef, 0xe1];
const CHECKSUM_OFFSET: usize = 4;
const FLAG_ANSWER: u8 = 1;
const FLAG_ECHO: u8 = 2;
const FLAG_FINISHED: u8 = 4;
const FLAG_PEER_FINISHED: u8 = 8;

/// Class of traffic. Each class has sequence numbers and credit of its own, so that packets of one class never wait for
/// those of another (PCI Express Base Specification, section 2.4: posted requests must pass the others).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Class {
    /// Posted requests. The class for callers that need only one.
    Posted = 0,
    /// Requests that are answered by completions.
    NonPosted = 1,
    /// Answers to non-posted requests.
    Completion = 2,
}

impl Class {
    /// All classes, in the order of their numbers.
    pub const ALL: [Self; CLASS_COUNT] = [Self::Posted, Self::NonPosted, Self::Completion];

    /// Returns the class with this number.
    pub fn from_number(number: u8) -> Option<Self> {
        Self::ALL.get(usize::from(number)).copied()
    }

    pub(crate) fn index(self) -> usize {
        usize::from(self as u8)
    }
}

/// Purpose of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// Begins a connection. The first one has no token of the receiver's; the second has that of the challenge.
    Open = 1,
    /// Asks for the `Open` again with this token, to show that its sender receives at its address.
    Challenge = 2,
    /// Accepts a connection.
    Accept = 3,
    /// Rejects a connection.
    Reject = 4,
    /// Carries a packet.
    Packet = 5,
    /// Carries status blocks, credit, demand or a question, and no packet.
    Status = 6,
    /// Ends a connection at once.
    Abort = 7,
    /// Reports that the sender has no connection with the number and token of a frame that it received.
    Reset = 8,
}

impl Kind {
    fn from_number(number: u8) -> Option<Self> {
        let kinds = [
            Self::Open,
            Self::Challenge,
            Self::Accept,
            Self::Reject,
            Self::Packet,
            Self::Status,
            Self::Abort,
            Self::Reset,
        ];
        kinds.into_iter().find(|kind| *kind as u8 == number)
    }
}

/// Header of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    /// Purpose of the frame.
    pub kind: Kind,
    /// Number of the connection at the receiver; 0 in the first `Open`.
    pub to: u32,
    /// Token that the receiver has drawn for the connection; 0 in the first `Open`.
    pub token: u64,
    /// Number of the connection at the sender.
    pub from: u32,
    /// True if the sender asks for an answer at once.
    pub answer: bool,
    /// True if the sender has sent all its packets and has received all acknowledgements of them: its half is closed.
    pub finished: bool,
    /// True if the sender knows that the receiver's half is closed.
    pub peer_finished: bool,
    /// Time at which the frame was sent, by the sender's clock, in nanoseconds modulo 2³².
    pub stamp: u32,
    /// Newest stamp received, if any.
    pub echo: Option<Echo>,
    /// Class of the packet, and of `wanted`.
    pub class: Class,
    /// Sequence number of the packet; 0 if there is none.
    pub sequence: u32,
    /// Credit, in bytes since the beginning of the connection, that the sender could use at present in this class.
    pub wanted: u64,
}

/// Echo of a stamp.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Echo {
    /// Stamp of the frame that was sent last among those received.
    pub stamp: u32,
    /// Time between that frame's arrival and the sending of this one, in nanoseconds.
    pub held_nanos: u32,
}

/// Status of one class at a receiver: acknowledgement and credit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Status {
    /// Class of traffic.
    pub class: Class,
    /// Time for which no packet of the class is to be sent, in units of 10 µs: the receiver's upper layer has refused
    /// one. 0: packets may be sent at once.
    pub not_ready_10us: u16,
    /// Sequence number below which all packets were accepted by the receiver's upper layer.
    pub below: u32,
    /// Credit granted since the beginning of the connection, in bytes.
    pub granted: u64,
    /// Packets accepted by the upper layer: bit *i* stands for sequence number `below` + *i*.
    pub acknowledged: u128,
    /// Packets that arrived and were not refused, accepted ones included; bits as in `acknowledged`.
    pub received: u128,
}

/// Body of `Open`, `Challenge` and `Accept`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Handshake<'a> {
    /// Number that the sender's port drew when it was created: another one from the same address is a restarted peer.
    pub instance: u64,
    /// Token for frames to the sender of this connection.
    pub token: u64,
    /// Maximum length of frames to the sender, in bytes.
    pub max_frame_bytes: u32,
    /// Data of the upper layer.
    pub private: &'a [u8],
}

/// Body of `Reject` and `Abort`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ending<'a> {
    /// Code of the upper layer.
    pub code: u32,
    /// Data of the upper layer.
    pub private: &'a [u8],
}

/// A parsed frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Frame<'a> {
    /// Header of the frame.
    pub header: Header,
    statuses: [Option<Status>; CLASS_COUNT],
    /// The packet, the handshake or the reason of an abort, by the kind of the frame.
    pub body: &'a [u8],
}

/// Defect of received bytes. They are dropped and counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// The bytes are no frame of EFE.
    #[error("{0} bytes that do not begin with the magic EF E1: not a frame of EFE")]
    Foreign(usize),
    /// The frame has another version.
    #[error("a frame of version {0}; this end has version {VERSION}: use the same version of Thalweg at both ends")]
    Version(u8),
    /// The frame is shorter than it announces.
    #[error("a frame announces {announced} bytes and has {present}: it was cut short on its way")]
    Length {
        /// Length by the frame's header, in bytes.
        announced: usize,
        /// Number of bytes that are present.
        present: usize,
    },
    /// The checksum does not match the bytes.
    #[error("a frame's CRC32C is {computed:08x}, and it announces {found:08x}: it was damaged on its way")]
    Checksum {
        /// Checksum in the frame.
        found: u32,
        /// Checksum of the bytes.
        computed: u32,
    },
    /// A field has a value that version 1 does not define.
    #[error("field `{field}` of a frame is {value}, which version 1 does not define")]
    Field {
        /// Name of the field.
        field: &'static str,
        /// Value of the field.
        value: u64,
    },
}

impl Header {
    fn write_to(&self, into: &mut [u8; HEADER_BYTES], statuses: u8, body_bytes: u16) {
        let set_flags = [
            (self.answer, FLAG_ANSWER),
            (self.echo.is_some(), FLAG_ECHO),
            (self.finished, FLAG_FINISHED),
            (self.peer_finished, FLAG_PEER_FINISHED),
        ];
        let flags = set_flags.into_iter().filter(|(set, _)| *set).fold(0, |flags, (_, bit)| flags | bit);
        let echo = self.echo.unwrap_or(Echo { stamp: 0, held_nanos: 0 });
        *into = [0; HEADER_BYTES];
        let fields: [(usize, &[u8]); _] = [
            (0, &MAGIC),
            (2, &[VERSION, self.kind as u8]),
            (8, &self.token.to_le_bytes()),
            (16, &self.to.to_le_bytes()),
            (20, &self.from.to_le_bytes()),
            (24, &body_bytes.to_le_bytes()),
            (26, &[flags, statuses]),
            (28, &self.stamp.to_le_bytes()),
            (32, &echo.stamp.to_le_bytes()),
            (36, &echo.held_nanos.to_le_bytes()),
            (40, &self.sequence.to_le_bytes()),
            (44, &[self.class as u8]),
            (48, &self.wanted.to_le_bytes()),
        ];
        for (offset, field) in fields {
            into[offset..offset + field.len()].copy_from_slice(field);
        }
    }

    fn parse_fields(bytes: &[u8; HEADER_BYTES]) -> Result<Self, FrameError> {
        let flags = bytes[26];
        Ok(Self {
            kind: Kind::from_number(bytes[3])
                .ok_or_else(|| FrameError::Field { field: "kind", value: bytes[3].into() })?,
            to: u32_at(bytes, 16),
            token: u64_at(bytes, 8),
            from: u32_at(bytes, 20),
            answer: flags & FLAG_ANSWER != 0,
            finished: flags & FLAG_FINISHED != 0,
            peer_finished: flags & FLAG_PEER_FINISHED != 0,
            stamp: u32_at(bytes, 28),
            echo: (flags & FLAG_ECHO != 0).then(|| Echo { stamp: u32_at(bytes, 32), held_nanos: u32_at(bytes, 36) }),
            class: Class::from_number(bytes[44])
                .ok_or_else(|| FrameError::Field { field: "class", value: bytes[44].into() })?,
            sequence: u32_at(bytes, 40),
            wanted: u64_at(bytes, 48),
        })
    }
}

impl Status {
    pub(crate) const EMPTY: Self =
        Self { class: Class::Posted, not_ready_10us: 0, below: 0, granted: 0, acknowledged: 0, received: 0 };

    fn to_bytes(self) -> [u8; STATUS_BYTES] {
        let mut bytes = [0; STATUS_BYTES];
        let fields: [(usize, &[u8]); _] = [
            (0, &[self.class as u8]),
            (2, &self.not_ready_10us.to_le_bytes()),
            (4, &self.below.to_le_bytes()),
            (8, &self.granted.to_le_bytes()),
            (16, &self.acknowledged.to_le_bytes()),
            (32, &self.received.to_le_bytes()),
        ];
        for (offset, field) in fields {
            bytes[offset..offset + field.len()].copy_from_slice(field);
        }
        bytes
    }

    fn parse_fields(bytes: &[u8; STATUS_BYTES]) -> Result<Self, FrameError> {
        let number = |offset: usize| bytes[offset..].first_chunk().map_or(0, |field| u128::from_le_bytes(*field));
        Ok(Self {
            class: Class::from_number(bytes[0])
                .ok_or(FrameError::Field { field: "status.class", value: bytes[0].into() })?,
            not_ready_10us: u16_at(bytes, 2),
            below: u32_at(bytes, 4),
            granted: u64_at(bytes, 8),
            acknowledged: number(16),
            received: number(32),
        })
    }
}

impl<'a> Handshake<'a> {
    /// Writes the handshake into `into`, which has room for it, and returns its length in bytes.
    pub fn write_to(&self, into: &mut [u8]) -> usize {
        #[expect(clippy::cast_possible_truncation, reason = "private data is limited to MAX_PRIVATE_BYTES")]
        let private_bytes = self.private.len() as u16;
        into[..HANDSHAKE_BYTES].fill(0);
        into[..8].copy_from_slice(&self.instance.to_le_bytes());
        into[8..16].copy_from_slice(&self.token.to_le_bytes());
        into[16..20].copy_from_slice(&self.max_frame_bytes.to_le_bytes());
        into[20..22].copy_from_slice(&private_bytes.to_le_bytes());
        into[HANDSHAKE_BYTES..][..self.private.len()].copy_from_slice(self.private);
        HANDSHAKE_BYTES + self.private.len()
    }

    /// Parses the body of a frame. Bytes after the private data are padding.
    ///
    /// # Errors
    /// The body is too short, or announces too much private data.
    pub fn parse_body(body: &'a [u8]) -> Result<Self, FrameError> {
        let too_short = FrameError::Length { announced: HANDSHAKE_BYTES, present: body.len() };
        let (fields, rest) = body.split_first_chunk::<HANDSHAKE_BYTES>().ok_or(too_short)?;
        let private = private_data(usize::from(u16_at(fields, 20)), rest)?;
        Ok(Self { instance: u64_at(fields, 0), token: u64_at(fields, 8), max_frame_bytes: u32_at(fields, 16), private })
    }
}

impl<'a> Ending<'a> {
    /// Writes the ending into `into`, which has room for it, and returns its length in bytes.
    pub fn write_to(&self, into: &mut [u8]) -> usize {
        #[expect(clippy::cast_possible_truncation, reason = "private data is limited to MAX_PRIVATE_BYTES")]
        let private_bytes = self.private.len() as u16;
        into[..ENDING_BYTES].fill(0);
        into[..4].copy_from_slice(&self.code.to_le_bytes());
        into[4..6].copy_from_slice(&private_bytes.to_le_bytes());
        into[ENDING_BYTES..][..self.private.len()].copy_from_slice(self.private);
        ENDING_BYTES + self.private.len()
    }

    /// Parses the body of a frame.
    ///
    /// # Errors
    /// The body is too short, or announces too much private data.
    pub fn parse_body(body: &'a [u8]) -> Result<Self, FrameError> {
        let too_short = FrameError::Length { announced: ENDING_BYTES, present: body.len() };
        let (fields, rest) = body.split_first_chunk::<ENDING_BYTES>().ok_or(too_short)?;
        Ok(Self { code: u32_at(fields, 0), private: private_data(usize::from(u16_at(fields, 4)), rest)? })
    }
}

/// Returns the private data of a body.
fn private_data(announced: usize, rest: &[u8]) -> Result<&[u8], FrameError> {
    if announced > MAX_PRIVATE_BYTES {
        return Err(FrameError::Field { field: "private_bytes", value: announced as u64 });
    }
    rest.get(..announced).ok_or(FrameError::Length { announced, present: rest.len() })
}

impl<'a> Frame<'a> {
    /// Parses received bytes, which may be any.
    ///
    /// # Errors
    /// The bytes are not a frame, or a damaged one.
    pub fn parse_bytes(bytes: &'a [u8]) -> Result<Self, FrameError> {
        let foreign = FrameError::Foreign(bytes.len());
        let (fields, rest) = bytes.split_first_chunk::<HEADER_BYTES>().ok_or(foreign)?;
        if fields[..2] != MAGIC {
            return Err(foreign);
        }
        if fields[2] != VERSION {
            return Err(FrameError::Version(fields[2]));
        }
        let (body_bytes, status_count) = (usize::from(u16_at(fields, 24)), usize::from(fields[27]));
        if status_count > CLASS_COUNT {
            return Err(FrameError::Field { field: "statuses", value: status_count as u64 });
        }
        let content_bytes = status_count * STATUS_BYTES + body_bytes;
        let content = rest
            .get(..content_bytes)
            .ok_or(FrameError::Length { announced: HEADER_BYTES + content_bytes, present: bytes.len() })?;
        let found = u32_at(fields, CHECKSUM_OFFSET);
        let computed = frame_checksum(fields, content);
        if found != computed {
            return Err(FrameError::Checksum { found, computed });
        }
        let header = Header::parse_fields(fields)?;
        let (blocks, body) = content.split_at(status_count * STATUS_BYTES);
        let mut statuses = [None; CLASS_COUNT];
        for (status, block) in statuses.iter_mut().zip(blocks.as_chunks::<STATUS_BYTES>().0) {
            *status = Some(Status::parse_fields(block)?);
        }
        Ok(Self { header, statuses, body })
    }

    /// Returns the status blocks.
    pub fn statuses(&self) -> impl Iterator<Item = &Status> {
        self.statuses.iter().flatten()
    }
}

/// Writes a frame of which the body is written by `write_body`, and returns its length in bytes. `write_body` returns
/// the length of the body; `into` must have room for all of it.
pub fn write_frame(
    into: &mut [u8],
    header: &Header,
    statuses: &[Status],
    write_body: impl FnOnce(&mut [u8]) -> usize,
) -> usize {
    let (fields, content) = into.split_at_mut(HEADER_BYTES);
    let blocks_bytes = statuses.len() * STATUS_BYTES;
    for (block, status) in content.chunks_exact_mut(STATUS_BYTES).zip(statuses) {
        block.copy_from_slice(&status.to_bytes());
    }
    let body_bytes = write_body(&mut content[blocks_bytes..]);
    let content = &content[..blocks_bytes + body_bytes];
    let mut bytes = [0; HEADER_BYTES];
    #[expect(clippy::cast_possible_truncation, reason = "there are three classes, and a frame has less than 64 KiB")]
    header.write_to(&mut bytes, statuses.len() as u8, body_bytes as u16);
    let checksum = frame_checksum(&bytes, content);
    bytes[CHECKSUM_OFFSET..CHECKSUM_OFFSET + 4].copy_from_slice(&checksum.to_le_bytes());
    fields.copy_from_slice(&bytes);
    HEADER_BYTES + content.len()
}

/// Returns the CRC32C of a frame, with zeros in place of its checksum.
fn frame_checksum(fields: &[u8; HEADER_BYTES], content: &[u8]) -> u32 {
    let mut fields = *fields;
    fields[CHECKSUM_OFFSET..CHECKSUM_OFFSET + 4].fill(0);
    let mut checksum = Crc32c::new();
    checksum.update(&fields);
    if !content.is_empty() {
        checksum.update(content);
    }
    checksum.checksum()
}

fn u16_at(bytes: &[u8], offset: usize) -> u16 {
    bytes[offset..].first_chunk().map_or(0, |field| u16::from_le_bytes(*field))
}

fn u32_at(bytes: &[u8], offset: usize) -> u32 {
    bytes[offset..].first_chunk().map_or(0, |field| u32::from_le_bytes(*field))
}

fn u64_at(bytes: &[u8], offset: usize) -> u64 {
    bytes[offset..].first_chunk().map_or(0, |field| u64::from_le_bytes(*field))
}
