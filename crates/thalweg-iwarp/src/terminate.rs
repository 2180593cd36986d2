//! Terminate messages (RFC 5040 §4.8) and the error codes of RDMAP, DDP and MPA, in words.

use crate::header::{READ_REQUEST_BYTES, ReadRequest, SegmentHeader, UNTAGGED_HEADER_BYTES};
use std::fmt;

/// Layer that found an error, type and code of the error: the three numbers of a Terminate message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ErrorCode {
    /// Layer: 0 RDMAP, 1 DDP, 2 the lower layer (MPA).
    pub layer: u8,
    /// Type of error.
    pub error_type: u8,
    /// Code of the error.
    pub code: u8,
}

macro_rules! error_codes {
    ($($(#[$doc:meta])* $name:ident = ($layer:literal, $kind:literal, $code:literal) $words:literal $section:literal;)*) => {
        impl ErrorCode {
            $($(#[$doc])* pub const $name: Self = Self { layer: $layer, error_type: $kind, code: $code };)*

            /// All codes that the RFCs define.
            pub const ALL: &'static [Self] = &[$(Self::$name),*];

            /// Words for the code, and the section that defines it. None for a code that no RFC defines.
            pub fn in_words(self) -> Option<(&'static str, &'static str)> {
                match (self.layer, self.error_type, self.code) {
                    $(($layer, $kind, $code) => Some(($words, $section)),)*
                    // RFC 5040 figure 9: any code is acceptable there.
                    (0, 0, _) => Some(("local catastrophic error", "RFC 5040 §4.8")),
                    _ => None,
                }
            }
        }
    };
}

error_codes! {
    /// The side that sent it failed for a reason of its own.
    RDMAP_LOCAL_CATASTROPHIC = (0, 0, 0x00) "local catastrophic error" "RFC 5040 §4.8";
    /// The STag of a Read Request, of an atomic or to be invalidated is not valid.
    RDMAP_INVALID_STAG = (0, 1, 0x00) "remote protection error, invalid STag" "RFC 5040 §4.8";
    /// A Read Request or an atomic exceeds the memory of its STag.
    RDMAP_BOUNDS = (0, 1, 0x01) "remote protection error, base or bounds violation" "RFC 5040 §4.8";
    /// The memory was not registered for the operation.
    RDMAP_ACCESS_RIGHTS = (0, 1, 0x02) "remote protection error, access rights violation" "RFC 5040 §4.8";
    /// The STag belongs to another protection domain or stream.
    RDMAP_NOT_ASSOCIATED = (0, 1, 0x03) "remote protection error, STag not associated with the RDMAP stream" "RFC 5040 §4.8";
    /// Offset and length exceed 64 bits.
    RDMAP_WRAP = (0, 1, 0x04) "remote protection error, tagged offset wraps" "RFC 5040 §4.8";
    /// The STag of a Send with Invalidate must not be invalidated.
    RDMAP_CANNOT_INVALIDATE = (0, 1, 0x09) "remote protection error, STag cannot be invalidated" "RFC 5040 §4.8";
    /// A protection error for which there is no other code.
    RDMAP_PROTECTION_UNSPECIFIED = (0, 1, 0xff) "remote protection error, unspecified" "RFC 5040 §4.8";
    /// The version of RDMAP is not valid.
    RDMAP_VERSION = (0, 2, 0x05) "remote operation error, invalid RDMAP version" "RFC 5040 §4.8";
    /// The operation is unknown, or not to be expected.
    RDMAP_OPCODE = (0, 2, 0x06) "remote operation error, unexpected opcode" "RFC 5040 §4.8";
    /// An error of one stream; an atomic at an address that 8 does not divide (RFC 7306 §8.2).
    RDMAP_STREAM_CATASTROPHIC = (0, 2, 0x07) "remote operation error, catastrophic, localized to the RDMAP stream" "RFC 5040 §4.8";
    /// An error of the whole adapter.
    RDMAP_GLOBAL_CATASTROPHIC = (0, 2, 0x08) "remote operation error, catastrophic, global" "RFC 5040 §4.8";
    /// The STag of a Send with Invalidate could not be invalidated.
    RDMAP_INVALIDATION_FAILED = (0, 2, 0x09) "remote operation error, STag cannot be invalidated" "RFC 5040 §4.8";
    /// An error of an operation for which there is no other code.
    RDMAP_OPERATION_UNSPECIFIED = (0, 2, 0xff) "remote operation error, unspecified" "RFC 5040 §4.8";
    /// DDP failed for a reason of its own.
    DDP_LOCAL_CATASTROPHIC = (1, 0, 0x00) "DDP local catastrophic error" "RFC 5041 §7.2";
    /// The STag of a tagged segment is not valid.
    DDP_INVALID_STAG = (1, 1, 0x00) "DDP tagged buffer error, invalid STag" "RFC 5041 §7.2";
    /// A tagged segment exceeds the memory of its STag.
    DDP_BOUNDS = (1, 1, 0x01) "DDP tagged buffer error, base or bounds violation" "RFC 5041 §7.2";
    /// The STag of a tagged segment belongs to another protection domain or stream.
    DDP_NOT_ASSOCIATED = (1, 1, 0x02) "DDP tagged buffer error, STag not associated with the DDP stream" "RFC 5041 §7.2";
    /// Offset and length of a tagged segment exceed 64 bits.
    DDP_WRAP = (1, 1, 0x03) "DDP tagged buffer error, tagged offset wraps" "RFC 5041 §7.2";
    /// The version of DDP of a tagged segment is not valid.
    DDP_TAGGED_VERSION = (1, 1, 0x04) "DDP tagged buffer error, invalid DDP version" "RFC 5041 §7.2";
    /// There is no such queue.
    DDP_QUEUE = (1, 2, 0x01) "DDP untagged buffer error, invalid queue number" "RFC 5041 §7.2";
    /// No buffer is posted for a message.
    DDP_NO_BUFFER = (1, 2, 0x02) "DDP untagged buffer error, invalid MSN: no buffer available" "RFC 5041 §7.2";
    /// The number of a message is not one that may come.
    DDP_MESSAGE_NUMBER = (1, 2, 0x03) "DDP untagged buffer error, invalid MSN: not in the valid range" "RFC 5041 §7.2";
    /// The offset of an untagged segment is not one that may come.
    DDP_MESSAGE_OFFSET = (1, 2, 0x04) "DDP untagged buffer error, invalid message offset" "RFC 5041 §7.2";
    /// A message is longer than its buffer.
    DDP_TOO_LONG = (1, 2, 0x05) "DDP untagged buffer error, message too long for the available buffer" "RFC 5041 §7.2";
    /// The version of DDP of an untagged segment is not valid.
    DDP_UNTAGGED_VERSION = (1, 2, 0x06) "DDP untagged buffer error, invalid DDP version" "RFC 5041 §7.2";
    /// The TCP connection was closed or lost.
    MPA_CLOSED = (2, 0, 0x01) "MPA error, TCP connection closed, terminated or lost" "RFC 5044 §8";
    /// The CRC of an FPDU is wrong.
    MPA_CRC = (2, 0, 0x02) "MPA error, CRC does not match" "RFC 5044 §8";
    /// A marker and the lengths of FPDUs disagree.
    MPA_MARKER = (2, 0, 0x03) "MPA error, marker and ULPDU length disagree" "RFC 5044 §8";
    /// A start-up frame is not valid.
    MPA_FRAME = (2, 0, 0x04) "MPA error, invalid request or reply frame" "RFC 5044 §8";
    /// The start-up failed for a reason of its own.
    MPA_LOCAL_CATASTROPHIC = (2, 0, 0x05) "MPA error, local catastrophic" "RFC 6581 §8";
    /// The responder wants more Reads than the initiator can serve.
    MPA_INSUFFICIENT_IRD = (2, 0, 0x06) "MPA error, insufficient IRD resources" "RFC 6581 §8";
    /// Initiator and responder share no ready-to-receive message.
    MPA_NO_MATCHING_RTR = (2, 0, 0x07) "MPA error, no matching RTR option" "RFC 6581 §8";
}

impl fmt::Display for ErrorCode {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { layer, error_type, code } = self;
        match self.in_words() {
            Some((words, section)) => {
                write!(to, "{words} (layer {layer}, type {error_type}, code {code:#04x}; {section})")
            }
            None => write!(to, "an error that no RFC defines (layer {layer}, type {error_type}, code {code:#04x})"),
        }
    }
}

/// Header control bits: length of the segment valid, DDP header included, RDMA header included (RFC 5040 §4.8).
const LENGTH_VALID: u8 = 0x80;
const DDP_INCLUDED: u8 = 0x40;
const RDMA_INCLUDED: u8 = 0x20;
/// Length in bytes of the control field and of what is reserved after it.
const CONTROL_BYTES: usize = 4;
/// Length in bytes of the longest Terminate header.
pub const MAX_TERMINATE_BYTES: usize = CONTROL_BYTES + 2 + UNTAGGED_HEADER_BYTES + READ_REQUEST_BYTES;

/// Segment that a Terminate message is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TerminatedSegment {
    /// Length in bytes: header and payload.
    pub length: u16,
    /// Header of the segment.
    pub header: SegmentHeader,
    /// Header of its Read Request, moved to the first byte that was not sent.
    pub read_request: Option<ReadRequest>,
}

/// A Terminate message (RFC 5040 §4.8).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Terminate {
    /// Error that was found.
    pub error: ErrorCode,
    /// Segment that the error was found in.
    pub segment: Option<TerminatedSegment>,
}

impl Terminate {
    /// Parses the payload of a Terminate message. Fields that the header control bits announce and that are cut short
    /// are left out: siw, for one, sets the last bit without the header. None where even the error is missing.
    pub fn parse_payload(bytes: &[u8]) -> Option<Self> {
        let (control, rest) = bytes.split_first_chunk::<CONTROL_BYTES>()?;
        let error = ErrorCode { layer: control[0] >> 4, error_type: control[0] & 0x0f, code: control[1] };
        let included = control[2];
        let segment = if included & DDP_INCLUDED == 0 { None } else { parse_segment(included, rest) };
        Some(Self { error, segment })
    }

    /// Appends the payload of the message.
    pub fn encode_payload(&self, to: &mut Vec<u8>) {
        let included = match self.segment {
            None => 0,
            Some(TerminatedSegment { read_request: None, .. }) => LENGTH_VALID | DDP_INCLUDED,
            Some(_) => LENGTH_VALID | DDP_INCLUDED | RDMA_INCLUDED,
        };
        to.extend([(self.error.layer << 4) | (self.error.error_type & 0x0f), self.error.code, included, 0]);
        let Some(segment) = self.segment else { return };
        to.extend(segment.length.to_be_bytes());
        segment.header.encode_header(to);
        if let Some(request) = segment.read_request {
            request.encode_header(to);
        }
    }
}

fn parse_segment(included: u8, bytes: &[u8]) -> Option<TerminatedSegment> {
    let (length, rest) = bytes.split_first_chunk::<2>()?;
    let (header, rest) = SegmentHeader::parse_segment(rest)?;
    let read_request = if included & RDMA_INCLUDED == 0 {
        None
    } else {
        rest.get(..READ_REQUEST_BYTES).and_then(ReadRequest::parse_header)
    };
    Some(TerminatedSegment { length: u16::from_be_bytes(*length), header, read_request })
}

impl fmt::Display for Terminate {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(to, "{}", self.error)?;
        match self.segment.map(|segment| segment.header) {
            None => Ok(()),
            Some(SegmentHeader::Tagged { stag, offset, .. }) => {
                write!(to, ", in the segment for STag {stag} offset {offset:#x}")
            }
            Some(SegmentHeader::Untagged { queue, message, offset, .. }) => {
                write!(to, ", in message {message} of queue {queue}, at its byte {offset}")
            }
        }
    }
}
