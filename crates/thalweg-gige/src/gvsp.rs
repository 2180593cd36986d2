//! Packets of a stream (GigE Vision 2.x, part 3: GVSP): a leader, payload, a trailer make a block, which is a frame.
//!
//! A packet has a header of eight bytes, or of twenty if block numbers have 64 bits (*extended ID*): status, block,
//! format, packet. Packets are counted from 0, the leader, without gaps up to the trailer. All numbers are big-endian.

use crate::gvcp::Status;
use crate::pixels;

/// Length in bytes of the packet header in a stream whose block numbers have 16 bits.
pub const NARROW_HEADER_BYTES: usize = 8;
/// Length in bytes of the packet header in a stream whose block numbers have 64 bits.
pub const WIDE_HEADER_BYTES: usize = 20;
/// Bytes of the IP and UDP headers, which are included in a packet's stated length (section 11.6).
pub const IP_UDP_HEADER_BYTES: usize = 28;

const EXTENDED_ID: u8 = 0x80;
const KIND_LEADER: u8 = 1;
const KIND_TRAILER: u8 = 2;
const KIND_PAYLOAD: u8 = 3;
/// Flag of a payload type: chunks follow the image.
const CHUNKS_FLAG: u16 = 0x4000;
const PAYLOAD_IMAGE: u16 = 0x0001;
const PAYLOAD_RAW: u16 = 0x0002;
const PAYLOAD_CHUNK: u16 = 0x0004;
const EXTENDED_CHUNK: u16 = 0x0005;

/// Header of a stream packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    /// Status: whether the packet could be sent, and whether it was sent again.
    pub status: Status,
    /// Number of the packet's block.
    pub block: u64,
    /// Number of the packet in its block.
    pub packet: u32,
    /// Kind of content after the header.
    pub kind: Kind,
    /// True if block numbers have 64 bits.
    pub wide: bool,
}

/// Kind of content after a packet's header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Leader: describes the block that begins.
    Leader,
    /// Trailer: describes the block that ends.
    Trailer,
    /// Bytes of the frame.
    Payload,
    /// Another kind: all of a frame in one packet, H.264, zones, parts.
    Other(u8),
}

impl Header {
    /// Reads a header from the first bytes of a packet of `length` bytes. Returns `None` if the packet is too short.
    pub fn parse_packet_header(front: &[u8], length: usize) -> Option<Self> {
        let front = &front[..front.len().min(length)];
        let wide = front.get(4)? & EXTENDED_ID != 0;
        let (block, packet) = if wide {
            (u64_at(front, 8)?, u32_at(front, 16)?)
        } else {
            (u64::from(u16_at(front, 2)?), u32_at(front, 4)? & 0x00ff_ffff)
        };
        let kind = match front[4] & 0x7f {
            KIND_LEADER => Kind::Leader,
            KIND_TRAILER => Kind::Trailer,
            KIND_PAYLOAD => Kind::Payload,
            other => Kind::Other(other),
        };
        Some(Self { status: Status(u16_at(front, 0)?), block, packet, kind, wide })
    }

    /// Returns the length of a header in bytes.
    pub fn header_bytes(wide: bool) -> usize {
        if wide { WIDE_HEADER_BYTES } else { NARROW_HEADER_BYTES }
    }
}

/// Content of a leader: the description of its block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Leader {
    /// Time at which the frame began, in ticks of the camera's clock.
    pub ticks: u64,
    /// Length of the frame in bytes, if the leader determines it.
    pub bytes: Option<u64>,
    /// Length of a row of pixels in bytes, with its padding; 0 if the block is not a plain image.
    pub row: u64,
    /// Kind of frame (*payload type*), without the flag for chunks after it.
    pub kind: u16,
    /// True if this crate can receive frames of this kind.
    pub known: bool,
}

impl Leader {
    /// Reads the bytes after a leader's header. Returns `None` if they are too few.
    pub fn parse_leader_body(body: &[u8]) -> Option<Self> {
        let (kind, ticks) = (u16_at(body, 2)?, u64_at(body, 4)?);
        if kind != PAYLOAD_IMAGE && kind != PAYLOAD_IMAGE | CHUNKS_FLAG {
            let known = matches!(kind & !CHUNKS_FLAG, PAYLOAD_RAW | PAYLOAD_CHUNK | EXTENDED_CHUNK);
            return Some(Self { ticks, bytes: None, row: 0, kind: kind & !CHUNKS_FLAG, known });
        }
        let (format, width, height) = (u32_at(body, 12)?, u32_at(body, 16)?, u32_at(body, 20)?);
        let (beside, below) = (u16_at(body, 32)?, u16_at(body, 34)?);
        let bits = u64::from(width) * u64::from(pixels::bits_per_pixel(format));
        // Rows of packed pixels need not end at a byte boundary if no padding follows them.
        let whole = bits.checked_mul(height.into()).map(|bits| bits.div_ceil(8));
        let row = bits.div_ceil(8) + u64::from(beside);
        let bytes = if beside == 0 { whole } else { row.checked_mul(height.into()) };
        let bytes = bytes.and_then(|bytes| bytes.checked_add(below.into()));
        Some(Self {
            ticks,
            bytes: bytes.filter(|_| kind == PAYLOAD_IMAGE),
            row: if kind == PAYLOAD_IMAGE { row } else { 0 },
            kind: PAYLOAD_IMAGE,
            known: true,
        })
    }
}

/// Returns the name of a kind of frame.
pub(crate) fn frame_kind_name(kind: u16) -> String {
    match kind {
        0x0003 => "files".into(),
        0x0006 => "JPEG images".into(),
        0x0007 => "JPEG 2000 images".into(),
        0x0008 => "H.264 video".into(),
        0x0009 => "images of several zones".into(),
        0x000a => "frames of several parts".into(),
        0x000b => "GenDC containers".into(),
        other => format!("frames of an unknown kind ({other:#06x})"),
    }
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    bytes.get(at..)?.first_chunk().copied().map(u16::from_be_bytes)
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..)?.first_chunk().copied().map(u32::from_be_bytes)
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    bytes.get(at..)?.first_chunk().copied().map(u64::from_be_bytes)
}

/// Returns the height of an image that a trailer states; fewer rows than the leader announced may have come. `None` if
/// the block is no image.
pub fn trailer_height(trailer: &[u8]) -> Option<u32> {
    u32_at(trailer, 4).filter(|_| u16_at(trailer, 2) == Some(PAYLOAD_IMAGE))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn headers_are_narrow_or_wide() {
        let narrow = [0, 0, 1, 2, 3, 0, 0, 9];
        let read = Header::parse_packet_header(&narrow, 100).unwrap();
        assert_eq!((read.block, read.packet, read.kind, read.wide), (0x0102, 9, Kind::Payload, false));
        assert_eq!(Header::parse_packet_header(&narrow, 7), None);
        let mut wide = [0; 20];
        (wide[0], wide[1], wide[4], wide[8], wide[15], wide[19]) = (0x01, 0x00, 0x82, 1, 7, 5);
        let read = Header::parse_packet_header(&wide, 20).unwrap();
        assert_eq!((read.block, read.packet, read.kind, read.wide), (1 << 56 | 7, 5, Kind::Trailer, true));
        assert_eq!(read.status, Status::RESENT);
        assert_eq!(Header::parse_packet_header(&wide[..19], 20), None);
    }

    fn leader(kind: u16, format: u32, width: u32, height: u32, beside: u16) -> Vec<u8> {
        let mut body = vec![0, 0];
        body.extend_from_slice(&kind.to_be_bytes());
        body.extend_from_slice(&0x0000_0001_0000_0002u64.to_be_bytes());
        for long in [format, width, height, 0, 0] {
            body.extend_from_slice(&long.to_be_bytes());
        }
        body.extend_from_slice(&beside.to_be_bytes());
        body.extend_from_slice(&0u16.to_be_bytes());
        body
    }

    #[test]
    fn a_leader_says_how_long_its_frame_is() {
        let read = |body: &[u8]| Leader::parse_leader_body(body).unwrap().bytes;
        assert_eq!(read(&leader(1, 0x0108_0001, 640, 480, 0)), Some(640 * 480));
        assert_eq!(read(&leader(1, 0x0110_0005, 640, 480, 0)), Some(640 * 480 * 2));
        assert_eq!(read(&leader(1, 0x0108_0001, 640, 480, 4)), Some(644 * 480));
        assert_eq!(read(&leader(1, 0x010c_0047, 3, 3, 0)), Some(14), "nine pixels of 12 bits");
        assert_eq!(read(&leader(0x4001, 0x0108_0001, 640, 480, 0)), None, "chunks are behind it");
        assert_eq!(Leader::parse_leader_body(&leader(2, 0, 0, 0, 0)).unwrap().ticks, 1 << 32 | 2);
        assert!(!Leader::parse_leader_body(&leader(6, 0, 0, 0, 0)).unwrap().known);
        assert_eq!(Leader::parse_leader_body(&[0; 11]), None);
        assert_eq!(Leader::parse_leader_body(&leader(1, 0x0108_0001, 640, 480, 0)[..20]), None);
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_or_refused(bytes: Vec<u8>, length: usize) {
            let _ = (Header::parse_packet_header(&bytes, length), Leader::parse_leader_body(&bytes), trailer_height(&bytes));
        }
    }
}
