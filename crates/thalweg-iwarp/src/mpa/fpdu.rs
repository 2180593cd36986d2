//! FPDUs: the frames that carry DDP segments in a TCP stream (RFC 5044 §4).

use crate::terminate::ErrorCode;
use std::ops::Range;
use thalweg_wire::Crc32c;
use thiserror::Error;

/// Distance in bytes between the beginnings of two markers in the stream (RFC 5044 §4.3).
const MARKER_INTERVAL_BYTES: u64 = 512;
const MARKER_BYTES: usize = 4;
const LENGTH_BYTES: usize = 2;
const CRC_BYTES: usize = 4;

/// Returns the longest ULPDU in bytes for a TCP connection with an effective maximum segment size (RFC 5044 §4.5): an
/// FPDU with it fills one TCP segment. Never below 128, nor above what the length field can state.
pub fn longest_ulpdu_bytes(segment_bytes: usize, markers: bool) -> usize {
    let marker_bytes = if markers { MARKER_BYTES * segment_bytes.div_ceil(512) } else { 0 };
    segment_bytes.saturating_sub(LENGTH_BYTES + CRC_BYTES + marker_bytes + segment_bytes % 4).clamp(128, 65535)
}

/// Part of an FPDU, in the order in which the parts are sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FpduPart {
    /// Bytes of [`FpduFrame::own_bytes`].
    Own(Range<usize>),
    /// Bytes of the payload's piece with this index.
    Payload(usize, Range<usize>),
}

/// An FPDU as its parts: the payload stays where it lies. To be used again for the next.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FpduFrame {
    own_bytes: Vec<u8>,
    parts: Vec<FpduPart>,
}

impl FpduFrame {
    /// Parts, in the order in which they are sent.
    pub fn parts(&self) -> &[FpduPart] {
        &self.parts
    }

    /// Length, head, markers, pad, CRC.
    pub fn own_bytes(&self) -> &[u8] {
        &self.own_bytes
    }

    /// Parts as bytes, for `writev`. The payload's pieces must be those that were encoded.
    pub fn slices<'a>(&'a self, payload: &'a [&'a [u8]]) -> impl Iterator<Item = &'a [u8]> {
        self.parts.iter().map(|part| match part {
            FpduPart::Own(range) => &self.own_bytes[range.clone()],
            FpduPart::Payload(piece, range) => &payload[*piece][range.clone()],
        })
    }

    fn push_own(&mut self, bytes: &[u8]) {
        let from = self.own_bytes.len();
        self.own_bytes.extend(bytes);
        let to = self.own_bytes.len();
        match self.parts.last_mut() {
            Some(FpduPart::Own(last)) if last.end == from => last.end = to,
            _ => self.parts.push(FpduPart::Own(from..to)),
        }
    }
}

/// Sending half of MPA: makes FPDUs of DDP segments.
#[derive(Debug)]
pub struct FpduEncoder {
    crc: bool,
    markers: bool,
    /// Bytes sent since the first FPDU began.
    position: u64,
    /// Buffers for FPDUs that are copied.
    scratch: FpduFrame,
}

impl FpduEncoder {
    /// Returns the half of a connection that begins with the next byte.
    pub fn new(crc: bool, markers: bool) -> Self {
        Self { crc, markers, position: 0, scratch: FpduFrame::default() }
    }

    /// Makes the next FPDU: `head` and then the pieces of `payload` are its ULPDU.
    ///
    /// # Panics
    ///
    /// The ULPDU is longer than 65535 bytes.
    pub fn encode(&mut self, head: &[u8], payload: &[&[u8]], frame: &mut FpduFrame) {
        self.lay_out(head, payload, frame);
        // §4.1: where CRCs are off the field may have any value.
        let crc = if self.crc { checksum_of(frame.slices(payload)) } else { 0 };
        frame.push_own(&encode_crc(crc));
    }

    /// Appends the next FPDU to a buffer, copying the payload.
    ///
    /// # Panics
    ///
    /// The ULPDU is longer than 65535 bytes.
    pub fn append(&mut self, head: &[u8], payload: &[&[u8]], to: &mut Vec<u8>) {
        let mut frame = std::mem::take(&mut self.scratch);
        self.lay_out(head, payload, &mut frame);
        let from = to.len();
        for slice in frame.slices(payload) {
            to.extend(slice);
        }
        let crc = if self.crc { thalweg_wire::crc32c(&to[from..]) } else { 0 };
        to.extend(encode_crc(crc));
        self.scratch = frame;
    }

    /// Fills in all of the next FPDU but its CRC.
    fn lay_out(&mut self, head: &[u8], payload: &[&[u8]], frame: &mut FpduFrame) {
        let ulpdu_bytes = head.len() + payload.iter().map(|piece| piece.len()).sum::<usize>();
        let length = u16::try_from(ulpdu_bytes).expect("a ULPDU has at most 65535 bytes (RFC 5044 §4.1)");
        frame.own_bytes.clear();
        frame.parts.clear();
        let mut writer = FpduWriter { frame, markers: self.markers, position: self.position, started: self.position };
        // A marker between two FPDUs belongs to the second: its pointer is 0, and the CRC covers it (§4.3, §4.4).
        writer.insert_marker();
        writer.started = writer.position;
        writer.write_own(&length.to_be_bytes());
        writer.write_own(head);
        for (index, piece) in payload.iter().enumerate() {
            writer.write_piece(index, piece);
        }
        let pad = (LENGTH_BYTES + ulpdu_bytes).wrapping_neg() % 4;
        writer.write_own(&[0; 3][..pad]);
        // A marker right after the pad belongs to this FPDU (§4.4 rule 1). None falls into the CRC: FPDUs and markers
        // are multiples of four.
        writer.insert_marker();
        self.position = writer.position + CRC_BYTES as u64;
    }
}

/// CRC of slices one after another.
fn checksum_of<'a>(mut slices: impl Iterator<Item = &'a [u8]>) -> u32 {
    let first = slices.next().unwrap_or_default();
    let Some(second) = slices.next() else { return thalweg_wire::crc32c(first) };
    let mut crc = Crc32c::new();
    [first, second].into_iter().chain(slices).for_each(|slice| crc.update(slice));
    crc.checksum()
}

/// An FPDU that is being made.
struct FpduWriter<'a> {
    frame: &'a mut FpduFrame,
    markers: bool,
    position: u64,
    /// Position of the length field.
    started: u64,
}

impl FpduWriter<'_> {
    fn insert_marker(&mut self) {
        if self.markers && self.position.is_multiple_of(MARKER_INTERVAL_BYTES) {
            let marker = marker_to(self.position - self.started);
            self.frame.push_own(&marker);
            self.position += MARKER_BYTES as u64;
        }
    }

    /// Returns the number of these bytes that come before the next marker.
    fn bytes_before_marker(&self, length: usize) -> usize {
        if !self.markers {
            return length;
        }
        length.min((MARKER_INTERVAL_BYTES - self.position % MARKER_INTERVAL_BYTES) as usize)
    }

    fn write_own(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            self.insert_marker();
            let (now, later) = bytes.split_at(self.bytes_before_marker(bytes.len()));
            self.frame.push_own(now);
            self.position += now.len() as u64;
            bytes = later;
        }
    }

    fn write_piece(&mut self, index: usize, piece: &[u8]) {
        let mut from = 0;
        while from < piece.len() {
            self.insert_marker();
            let to = from + self.bytes_before_marker(piece.len() - from);
            self.frame.parts.push(FpduPart::Payload(index, from..to));
            self.position += (to - from) as u64;
            from = to;
        }
    }
}

/// Returns the CRC's field: the order of iSCSI's digests (RFC 5044 §4.4), least significant byte first.
fn encode_crc(crc: u32) -> [u8; CRC_BYTES] {
    crc.to_le_bytes()
}

fn marker_to(distance: u64) -> [u8; MARKER_BYTES] {
    // An FPDU with its markers can be longer than 65535 bytes. Then the pointer has its lowest 16 bits.
    let [high, low] = (distance as u16).to_be_bytes();
    [0, 0, high, low]
}

/// Error of a received FPDU. None can be received after it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum FpduError {
    /// CRC of the FPDU (RFC 5044 §8 code 2).
    #[error("the CRC of an FPDU is {found:#010x} instead of {computed:#010x} (RFC 5044 §8 code 2)")]
    Crc {
        /// CRC in the FPDU.
        found: u32,
        /// CRC of its bytes.
        computed: u32,
    },
    /// Pointer of a marker (RFC 5044 §8 code 3).
    #[error("a marker points {found} bytes back instead of {expected} (RFC 5044 §8 code 3)")]
    Marker {
        /// Pointer in the marker.
        found: u16,
        /// Distance to the length field.
        expected: u16,
    },
}

impl FpduError {
    /// Code for the Terminate message.
    pub fn error_code(self) -> ErrorCode {
        match self {
            Self::Crc { .. } => ErrorCode::MPA_CRC,
            Self::Marker { .. } => ErrorCode::MPA_MARKER,
        }
    }
}

/// Receiving half of MPA: finds the DDP segments in a stream of bytes, however it is cut.
#[derive(Debug)]
pub struct FpduDecoder {
    crc: bool,
    markers: bool,
    /// Bytes of all FPDUs before this one.
    position: u64,
    /// Bytes of this FPDU, where it came in several pieces.
    gathered: Vec<u8>,
    /// Whether the gathered FPDU was passed on.
    is_passed: bool,
    /// ULPDU without the markers inside.
    unmarked: Vec<u8>,
    error: Option<FpduError>,
}

impl FpduDecoder {
    /// Returns the half of a connection that begins with the next byte. Markers are expected where this side asked for
    /// them.
    pub fn new(crc: bool, markers: bool) -> Self {
        Self { crc, markers, position: 0, gathered: Vec::new(), is_passed: false, unmarked: Vec::new(), error: None }
    }

    /// Takes bytes from the front of `input` and returns the next ULPDU, or none once all of `input` was taken. A ULPDU
    /// that lies in `input` as a whole is not copied.
    ///
    /// # Errors
    ///
    /// The FPDU is damaged. The same error is returned from then on, since nothing after it may be passed on (RFC 5044
    /// §8).
    pub fn next_ulpdu<'a, 'b: 'a>(&'a mut self, input: &mut &'b [u8]) -> Result<Option<&'a [u8]>, FpduError> {
        if let Some(error) = self.error {
            return Err(error);
        }
        if std::mem::take(&mut self.is_passed) {
            self.gathered.clear();
        }
        let layout = FpduLayout { position: self.position, markers: self.markers };
        let whole = if self.gathered.is_empty() { layout.fpdu_bytes(input) } else { None };
        let fpdu = match whole.and_then(|length| input.split_at_checked(length)) {
            Some((fpdu, rest)) => {
                *input = rest;
                fpdu
            }
            None => {
                if !gather_fpdu(layout, &mut self.gathered, input) {
                    return Ok(None);
                }
                self.is_passed = true;
                &self.gathered
            }
        };
        self.position += fpdu.len() as u64;
        match layout.check_fpdu(fpdu, self.crc, &mut self.unmarked) {
            Ok(Some(ulpdu)) => Ok(Some(&fpdu[ulpdu])),
            Ok(None) => Ok(Some(&self.unmarked)),
            Err(error) => {
                self.error = Some(error);
                Err(error)
            }
        }
    }
}

/// Moves bytes from `input` to the FPDU that begins `gathered`, and returns whether it is complete.
fn gather_fpdu(layout: FpduLayout, gathered: &mut Vec<u8>, input: &mut &[u8]) -> bool {
    loop {
        let wanted = layout.fpdu_bytes(gathered).unwrap_or(layout.length_end());
        if wanted == gathered.len() {
            return true;
        }
        if input.is_empty() {
            return false;
        }
        let (now, later) = input.split_at((wanted - gathered.len()).min(input.len()));
        gathered.extend(now);
        *input = later;
    }
}

/// Layout of an FPDU that begins at a position of the stream.
#[derive(Clone, Copy)]
struct FpduLayout {
    position: u64,
    markers: bool,
}

impl FpduLayout {
    fn is_marker_at(self, offset: usize) -> bool {
        self.markers && (self.position + offset as u64).is_multiple_of(MARKER_INTERVAL_BYTES)
    }

    /// Offset of the length field: after the marker that lies between this FPDU and the last.
    fn length_start(self) -> usize {
        if self.is_marker_at(0) { MARKER_BYTES } else { 0 }
    }

    fn length_end(self) -> usize {
        self.length_start() + LENGTH_BYTES
    }

    fn ulpdu_bytes(self, fpdu: &[u8]) -> Option<usize> {
        let length = fpdu.get(self.length_start()..)?.first_chunk::<LENGTH_BYTES>()?;
        Some(usize::from(u16::from_be_bytes(*length)))
    }

    /// Length of the whole FPDU, markers included. None where its length field is not there.
    fn fpdu_bytes(self, fpdu: &[u8]) -> Option<usize> {
        let content = fpdu_content_bytes(self.ulpdu_bytes(fpdu)?);
        Some(self.content_pieces(content).last().map_or(0, |piece| piece.end))
    }

    /// Pieces of content between markers; the first piece follows the marker at the front.
    fn content_pieces(self, content: usize) -> impl Iterator<Item = Range<usize>> {
        let (mut offset, mut left) = (0, content);
        std::iter::from_fn(move || {
            if left == 0 {
                return None;
            }
            let from = if self.is_marker_at(offset) { offset + MARKER_BYTES } else { offset };
            let until_marker = MARKER_INTERVAL_BYTES - (self.position + from as u64) % MARKER_INTERVAL_BYTES;
            let length = if self.markers { left.min(until_marker as usize) } else { left };
            offset = from + length;
            left -= length;
            Some(from..offset)
        })
    }

    /// Checks CRC, then markers (RFC 5044 §8). Returns where the ULPDU lies; none where it was copied to `unmarked`,
    /// because there are markers in it.
    fn check_fpdu(self, fpdu: &[u8], crc: bool, unmarked: &mut Vec<u8>) -> Result<Option<Range<usize>>, FpduError> {
        let (covered, found) = fpdu.split_last_chunk::<CRC_BYTES>().unwrap_or((fpdu, &[0; CRC_BYTES]));
        if crc {
            let (found, computed) = (u32::from_le_bytes(*found), thalweg_wire::crc32c(covered));
            if found != computed {
                return Err(FpduError::Crc { found, computed });
            }
        }
        let ulpdu_bytes = self.ulpdu_bytes(fpdu).unwrap_or(0);
        let (from, to) = (self.length_end(), self.length_end() + ulpdu_bytes);
        if self.markers {
            unmarked.clear();
            let mut checked = 0;
            for piece in self.content_pieces(fpdu_content_bytes(ulpdu_bytes)) {
                self.check_marker(&fpdu[checked..piece.start], checked)?;
                checked = piece.end;
                unmarked.extend(&fpdu[piece]);
            }
            if fpdu.len() > fpdu_content_bytes(ulpdu_bytes) + self.length_start() {
                unmarked.drain(..LENGTH_BYTES);
                unmarked.truncate(ulpdu_bytes);
                return Ok(None);
            }
        }
        Ok(Some(from..to))
    }

    /// Checks the bytes between two pieces: a marker, or none.
    fn check_marker(self, marker: &[u8], offset: usize) -> Result<(), FpduError> {
        let Some(&[_, _, high, low]) = marker.first_chunk() else { return Ok(()) };
        // §4.2: the two lowest bits are zero for the receiver, whatever they are.
        let found = u16::from_be_bytes([high, low]) & !3;
        // §4.3: 0 in the marker between two FPDUs. Distances have 16 bits, as in the encoder.
        let expected = offset.saturating_sub(self.length_start()) as u16;
        if found == expected { Ok(()) } else { Err(FpduError::Marker { found, expected }) }
    }
}

/// Length in bytes of an FPDU without markers.
fn fpdu_content_bytes(ulpdu_bytes: usize) -> usize {
    (LENGTH_BYTES + ulpdu_bytes).next_multiple_of(4) + CRC_BYTES
}
