//! Headers of DDP segments (RFC 5041 §4) and of RDMA messages (RFC 5040 §4, RFC 7306 §4).

use crate::memory::Stag;
use crate::work::AtomicOperation;

/// Length in bytes of the header of a tagged segment (RFC 5041 §4.2).
pub const TAGGED_HEADER_BYTES: usize = 14;
/// Length in bytes of the header of an untagged segment (RFC 5041 §4.3).
pub const UNTAGGED_HEADER_BYTES: usize = 18;
/// Length in bytes of a Read Request's own header (RFC 5040 §4.4).
pub const READ_REQUEST_BYTES: usize = 28;
/// Length in bytes of an Atomic Request's own header (RFC 7306 §5.2.1).
pub const ATOMIC_REQUEST_BYTES: usize = 52;
/// Length in bytes of an Atomic Response's own header: its two fields (RFC 7306 §5.2.2, figure 6). The 32 bytes that
/// §4 mentions are no sum of anything.
pub const ATOMIC_RESPONSE_BYTES: usize = 12;
/// Length in bytes of Immediate Data (RFC 7306 §6.2).
pub const IMMEDIATE_BYTES: usize = 8;

/// Version of DDP (RFC 5041 §4.1).
const DDP_VERSION: u8 = 1;
/// Version of RDMAP that is sent (RFC 5040 §4.1).
const RDMAP_VERSION: u8 = 1;
const TAGGED_FLAG: u8 = 0x80;
const LAST_FLAG: u8 = 0x40;
/// Solicited event, in the reserved bits of the one message that no RFC defines.
const SOLICITED_FLAG: u8 = 0x10;

/// Queue of an untagged message (RFC 7306 §10.2).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum Queue {
    /// Sends and Immediate Data.
    Send = 0,
    /// Read Requests and Atomic Requests.
    Request = 1,
    /// Terminate messages.
    Terminate = 2,
    /// Atomic Responses.
    AtomicResponse = 3,
}

/// Operation of an RDMA message (RFC 5040 §4.1 figure 4, RFC 7306 §4.1 figure 2).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Opcode {
    /// RDMA Write.
    Write,
    /// RDMA Read Request.
    ReadRequest,
    /// RDMA Read Response.
    ReadResponse,
    /// Send without more.
    Send,
    /// Send with Invalidate.
    SendInvalidate,
    /// Send with Solicited Event.
    SendSolicited,
    /// Send with Solicited Event and Invalidate.
    SendSolicitedInvalidate,
    /// Terminate messages.
    Terminate,
    /// Immediate Data.
    Immediate,
    /// Immediate Data with Solicited Event.
    ImmediateSolicited,
    /// Atomic Request.
    AtomicRequest,
    /// Atomic Response.
    AtomicResponse,
    /// Send that carries 4 bytes in the place of the Invalidate STag: the experimental code of RFC 6580 §3.4.
    SendImmediate,
}

impl Opcode {
    /// Returns the operation of a code, or none where no RFC defines it.
    pub fn from_code(code: u8) -> Option<Self> {
        Some(match code {
            0b0000 => Self::Write,
            0b0001 => Self::ReadRequest,
            0b0010 => Self::ReadResponse,
            0b0011 => Self::Send,
            0b0100 => Self::SendInvalidate,
            0b0101 => Self::SendSolicited,
            0b0110 => Self::SendSolicitedInvalidate,
            0b0111 => Self::Terminate,
            0b1000 => Self::Immediate,
            0b1001 => Self::ImmediateSolicited,
            0b1010 => Self::AtomicRequest,
            0b1011 => Self::AtomicResponse,
            0b1111 => Self::SendImmediate,
            _ => return None,
        })
    }

    /// Code on the wire.
    pub fn wire_code(self) -> u8 {
        match self {
            Self::Write => 0b0000,
            Self::ReadRequest => 0b0001,
            Self::ReadResponse => 0b0010,
            Self::Send => 0b0011,
            Self::SendInvalidate => 0b0100,
            Self::SendSolicited => 0b0101,
            Self::SendSolicitedInvalidate => 0b0110,
            Self::Terminate => 0b0111,
            Self::Immediate => 0b1000,
            Self::ImmediateSolicited => 0b1001,
            Self::AtomicRequest => 0b1010,
            Self::AtomicResponse => 0b1011,
            Self::SendImmediate => 0b1111,
        }
    }

    /// Queue of its messages. None for messages into tagged buffers.
    pub fn target_queue(self) -> Option<Queue> {
        match self {
            Self::Write | Self::ReadResponse => None,
            Self::ReadRequest | Self::AtomicRequest => Some(Queue::Request),
            Self::Terminate => Some(Queue::Terminate),
            Self::AtomicResponse => Some(Queue::AtomicResponse),
            Self::Send
            | Self::SendInvalidate
            | Self::SendSolicited
            | Self::SendSolicitedInvalidate
            | Self::Immediate
            | Self::ImmediateSolicited
            | Self::SendImmediate => Some(Queue::Send),
        }
    }
}

/// Control fields that all segments begin with: those of DDP and of RDMAP.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Control {
    /// Whether the segment is the last of its message.
    pub last: bool,
    /// Version of DDP.
    pub ddp_version: u8,
    /// Version of RDMAP.
    pub rdmap_version: u8,
    /// Code of the operation; see [`Opcode::from_code`].
    pub code: u8,
    /// Second of the reserved bits of RDMAP. Zero, and not looked at, in all messages of the RFCs.
    pub solicited_flag: bool,
}

impl Control {
    /// Control fields of a segment that is sent.
    pub fn new(opcode: Opcode, last: bool) -> Self {
        let (ddp_version, rdmap_version) = (DDP_VERSION, RDMAP_VERSION);
        Self { last, ddp_version, rdmap_version, code: opcode.wire_code(), solicited_flag: false }
    }

    fn parse_fields([ddp, rdmap]: [u8; 2]) -> Self {
        Self {
            last: ddp & LAST_FLAG != 0,
            // The four bits between are reserved and not checked (RFC 5041 §4.1).
            ddp_version: ddp & 0x03,
            rdmap_version: rdmap >> 6,
            // The two bits between are reserved and ignored (RFC 5040 §4.1).
            code: rdmap & 0x0f,
            solicited_flag: rdmap & SOLICITED_FLAG != 0,
        }
    }

    fn encode_fields(self, tagged: bool) -> [u8; 2] {
        let flags = if tagged { TAGGED_FLAG } else { 0 } | if self.last { LAST_FLAG } else { 0 };
        let solicited = if self.solicited_flag { SOLICITED_FLAG } else { 0 };
        [flags | self.ddp_version, (self.rdmap_version << 6) | solicited | self.code]
    }

    /// Whether the version of DDP is the one there is (RFC 5041 §4.1).
    pub fn is_ddp_version_valid(self) -> bool {
        self.ddp_version == DDP_VERSION
    }

    /// Whether the version of RDMAP is valid: 1, or 0 of the RDMA Consortium (RFC 5040 §4.1).
    pub fn is_rdmap_version_valid(self) -> bool {
        self.rdmap_version <= RDMAP_VERSION
    }

    /// Whether the version of RDMAP has an operation: those of RFC 7306 (§4.1) are of version 1 only.
    pub fn is_rdmap_version_valid_for(self, opcode: Opcode) -> bool {
        self.rdmap_version == RDMAP_VERSION || (self.is_rdmap_version_valid() && opcode.wire_code() < 0b1000)
    }
}

/// Header of a DDP segment (RFC 5041 §4.2, §4.3).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SegmentHeader {
    /// Of a segment into a tagged buffer.
    Tagged {
        /// Control fields.
        control: Control,
        /// Tag of the buffer.
        stag: Stag,
        /// Tagged offset of the first byte.
        offset: u64,
    },
    /// Of a segment into a queued buffer.
    Untagged {
        /// Control fields.
        control: Control,
        /// Invalidate STag, or whatever else RDMAP has in its four bytes (RFC 5040 §4.1).
        reserved: u32,
        /// Queue number.
        queue: u32,
        /// Message sequence number: 1 for the first, modulo 2³².
        message: u32,
        /// Offset in the message of the first byte.
        offset: u32,
    },
}

impl SegmentHeader {
    /// Parses the header that a segment begins with, and returns the segment's payload with it. None for a segment
    /// that is too short to hold the header.
    pub fn parse_segment(segment: &[u8]) -> Option<(Self, &[u8])> {
        let control = Control::parse_fields(*segment.first_chunk()?);
        if segment[0] & TAGGED_FLAG != 0 {
            let (header, payload) = segment.split_first_chunk::<TAGGED_HEADER_BYTES>()?;
            let (stag, offset) = (Stag(read_u32(header, 2)?), read_u64(header, 6)?);
            return Some((Self::Tagged { control, stag, offset }, payload));
        }
        let (header, payload) = segment.split_first_chunk::<UNTAGGED_HEADER_BYTES>()?;
        let (reserved, queue) = (read_u32(header, 2)?, read_u32(header, 6)?);
        let (message, offset) = (read_u32(header, 10)?, read_u32(header, 14)?);
        Some((Self::Untagged { control, reserved, queue, message, offset }, payload))
    }

    /// Appends the header.
    pub fn encode_header(&self, to: &mut Vec<u8>) {
        match *self {
            Self::Tagged { control, stag, offset } => {
                to.extend(control.encode_fields(true));
                to.extend(stag.0.to_be_bytes());
                to.extend(offset.to_be_bytes());
            }
            Self::Untagged { control, reserved, queue, message, offset } => {
                to.extend(control.encode_fields(false));
                for field in [reserved, queue, message, offset] {
                    to.extend(field.to_be_bytes());
                }
            }
        }
    }

    /// Control fields.
    pub fn control_fields(&self) -> Control {
        match self {
            Self::Tagged { control, .. } | Self::Untagged { control, .. } => *control,
        }
    }

    /// Length in bytes.
    pub fn encoded_bytes(&self) -> usize {
        match self {
            Self::Tagged { .. } => TAGGED_HEADER_BYTES,
            Self::Untagged { .. } => UNTAGGED_HEADER_BYTES,
        }
    }
}

/// Header of a Read Request (RFC 5040 §4.4).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ReadRequest {
    /// Tag that the response is to carry.
    pub sink_stag: Stag,
    /// Offset that the response is to carry.
    pub sink_offset: u64,
    /// Length in bytes.
    pub length: u32,
    /// Tag of the memory to read.
    pub source_stag: Stag,
    /// Offset of the first byte to read.
    pub source_offset: u64,
}

impl ReadRequest {
    /// Parses the header; none where the length is another.
    pub fn parse_header(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; READ_REQUEST_BYTES] = bytes.try_into().ok()?;
        Some(Self {
            sink_stag: Stag(read_u32(bytes, 0)?),
            sink_offset: read_u64(bytes, 4)?,
            length: read_u32(bytes, 12)?,
            source_stag: Stag(read_u32(bytes, 16)?),
            source_offset: read_u64(bytes, 20)?,
        })
    }

    /// Appends the header.
    pub fn encode_header(&self, to: &mut Vec<u8>) {
        to.extend(self.sink_stag.0.to_be_bytes());
        to.extend(self.sink_offset.to_be_bytes());
        to.extend(self.length.to_be_bytes());
        to.extend(self.source_stag.0.to_be_bytes());
        to.extend(self.source_offset.to_be_bytes());
    }
}

/// Header of an Atomic Request (RFC 7306 §5.2.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AtomicRequest {
    /// Number that the response is to carry.
    pub identifier: u32,
    /// Tag of the memory.
    pub stag: Stag,
    /// Offset of the 64 bits.
    pub offset: u64,
    /// Operation; none where its code is one that RFC 7306 §10.1 leaves unassigned.
    pub operation: Option<AtomicOperation>,
}

impl AtomicRequest {
    /// Parses the header; none where the length is another.
    pub fn parse_header(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; ATOMIC_REQUEST_BYTES] = bytes.try_into().ok()?;
        let [data, mask, compare, compare_mask] =
            [read_u64(bytes, 20)?, read_u64(bytes, 28)?, read_u64(bytes, 36)?, read_u64(bytes, 44)?];
        Some(Self {
            identifier: read_u32(bytes, 4)?,
            stag: Stag(read_u32(bytes, 8)?),
            offset: read_u64(bytes, 12)?,
            // The other 28 bits are reserved and ignored.
            operation: match bytes[3] & 0x0f {
                0b0000 => Some(AtomicOperation::FetchAdd { add: data, mask }),
                0b0010 => Some(AtomicOperation::CompareSwap { compare, compare_mask, swap: data, swap_mask: mask }),
                _ => None,
            },
        })
    }

    /// Appends the header. One without an operation is not sent: it is encoded as the reserved code 1.
    pub fn encode_header(&self, to: &mut Vec<u8>) {
        let (code, fields) = match self.operation {
            // §5.2.1: the fields that FetchAdd does not use are zero and all ones.
            Some(AtomicOperation::FetchAdd { add, mask }) => (0b0000_u32, [add, mask, 0, u64::MAX]),
            Some(AtomicOperation::CompareSwap { compare, compare_mask, swap, swap_mask }) => {
                (0b0010, [swap, swap_mask, compare, compare_mask])
            }
            None => (0b0001, [0; 4]),
        };
        to.extend(code.to_be_bytes());
        to.extend(self.identifier.to_be_bytes());
        to.extend(self.stag.0.to_be_bytes());
        to.extend(self.offset.to_be_bytes());
        for field in fields {
            to.extend(field.to_be_bytes());
        }
    }
}

/// Header of an Atomic Response (RFC 7306 §5.2.2).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct AtomicResponse {
    /// Number of the request.
    pub identifier: u32,
    /// Value before the operation.
    pub original: u64,
}

impl AtomicResponse {
    /// Parses the header; none where the length is another.
    pub fn parse_header(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; ATOMIC_RESPONSE_BYTES] = bytes.try_into().ok()?;
        Some(Self { identifier: read_u32(bytes, 0)?, original: read_u64(bytes, 4)? })
    }

    /// Appends the header.
    pub fn encode_header(&self, to: &mut Vec<u8>) {
        to.extend(self.identifier.to_be_bytes());
        to.extend(self.original.to_be_bytes());
    }
}

fn read_u32(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_be_bytes(*bytes.get(at..)?.first_chunk()?))
}

fn read_u64(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_be_bytes(*bytes.get(at..)?.first_chunk()?))
}
