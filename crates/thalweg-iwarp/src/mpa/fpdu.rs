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

/// Sending half of MPA: makes FPDUs of DDP segments.
#[derive(Debug)]
pub struct FpduEncoder {
    crc: bool,
    markers: bool,
    /// Bytes sent since the first FPDU began.
    position: u64,
}

impl FpduEncoder {
    /// Returns the half of a connection that begins with the next byte.
    pub fn new(crc: bool, markers: bool) -> Self {
        Self { crc, markers, position: 0 }
    }

    /// Returns the length in bytes of the next FPDU if it has a ULPDU of this length.
    pub fn fpdu_bytes(&self, ulpdu_bytes: usize) -> usize {
        self.layout().whole_bytes(fpdu_content_bytes(ulpdu_bytes))
    }

    /// Writes the next FPDU to the beginning of `to`, and returns its length in bytes. Its ULPDU is `head` and then
    /// `payload_bytes` bytes, which `fill` writes in parts, one after the other, each once. The CRC is that of the bytes in
    /// `to`: memory that changes meanwhile does not matter. It is computed part by part, while the processor has them in
    /// its cache.
    ///
    /// # Panics
    ///
    /// The ULPDU is longer than 65535 bytes, or `to` is shorter than [`fpdu_bytes`](Self::fpdu_bytes).
    pub fn write_fpdu(
        &mut self,
        head: &[u8],
        payload_bytes: usize,
        fill: impl FnMut(&mut [u8]),
        to: &mut [u8],
    ) -> usize {
        let ulpdu_bytes = head.len() + payload_bytes;
        let length = u16::try_from(ulpdu_bytes).expect("a ULPDU has at most 65535 bytes (RFC 5044 §4.1)");
        let mut writer = FpduWriter { to, layout: self.layout(), written: 0, checksum: Crc32c::new(), checked: 0 };
        // A marker between two FPDUs belongs to the second: its pointer is 0, and the CRC covers it (§4.3, §4.4).
        writer.insert_marker();
        writer.write_bytes(&length.to_be_bytes());
        writer.write_bytes(head);
        writer.write_parts(payload_bytes, fill, self.crc);
        let pad = (LENGTH_BYTES + ulpdu_bytes).wrapping_neg() % 4;
        writer.write_bytes(&[0; 3][..pad]);
        // A marker right after the pad belongs to this FPDU (§4.4 rule 1). None falls into the CRC: FPDUs and markers
        // are multiples of four.
        writer.insert_marker();
        // §4.1: where CRCs are off the field may have any value.
        let crc = if self.crc { writer.finish_checksum() } else { 0 };
        writer.write_bytes(&encode_crc(crc));
        self.position += writer.written as u64;
        writer.written
    }

    /// Appends the next FPDU to a buffer: `head` and then the pieces of `payload` are its ULPDU.
    ///
    /// # Panics
    ///
    /// The ULPDU is longer than 65535 bytes.
    pub fn append(&mut self, head: &[u8], payload: &[&[u8]], to: &mut Vec<u8>) {
        let payload_bytes = payload.iter().map(|piece| piece.len()).sum::<usize>();
        let from = to.len();
        to.resize(from + self.fpdu_bytes(head.len() + payload_bytes), 0);
        let mut bytes = payload.iter().flat_map(|piece| piece.iter());
        self.write_fpdu(
            head,
            payload_bytes,
            |part| part.iter_mut().zip(&mut bytes).for_each(|(to, from)| *to = *from),
            &mut to[from..],
        );
    }

    fn layout(&self) -> FpduLayout {
        FpduLayout { position: self.position, markers: self.markers }
    }
}

/// Length in bytes of a part of an FPDU: fits the processor's first cache, between being written and being checksummed.
const PART_BYTES: usize = 16 << 10;

/// An FPDU that is being made.
struct FpduWriter<'a> {
    to: &'a mut [u8],
    layout: FpduLayout,
    written: usize,
    /// CRC of the first `checked` bytes.
    checksum: Crc32c,
    checked: usize,
}

impl FpduWriter<'_> {
    fn insert_marker(&mut self) {
        if self.layout.is_marker_at(self.written) {
            let distance = self.written.saturating_sub(self.layout.length_start());
            self.to[self.written..][..MARKER_BYTES].copy_from_slice(&marker_to(distance));
            self.written += MARKER_BYTES;
        }
    }

    fn write_bytes(&mut self, bytes: &[u8]) {
        let mut rest = bytes.iter();
        self.write_parts(bytes.len(), |part| part.iter_mut().zip(&mut rest).for_each(|(to, from)| *to = *from), false);
    }

    /// Writes bytes in parts, with markers between them, and checksums long ones on the way.
    fn write_parts(&mut self, mut left: usize, mut fill: impl FnMut(&mut [u8]), crc: bool) {
        while left > 0 {
            self.insert_marker();
            let part_bytes = left.min(PART_BYTES).min(self.layout.bytes_before_marker(self.written));
            fill(&mut self.to[self.written..][..part_bytes]);
            self.written += part_bytes;
            left -= part_bytes;
            if crc && self.written - self.checked >= PART_BYTES {
                self.checksum.update(&self.to[self.checked..self.written]);
                self.checked = self.written;
            }
        }
    }

    fn finish_checksum(&mut self) -> u32 {
        if self.checked == 0 {
            return thalweg_wire::crc32c(&self.to[..self.written]);
        }
        self.checksum.update(&self.to[self.checked..self.written]);
        self.checksum.checksum()
    }
}

/// Returns the CRC's field: the order of iSCSI's digests (RFC 5044 §4.4), least significant byte first.
fn encode_crc(crc: u32) -> [u8; CRC_BYTES] {
    crc.to_le_bytes()
}

fn marker_to(distance: usize) -> [u8; MARKER_BYTES] {
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
        Some(self.whole_bytes(fpdu_content_bytes(self.ulpdu_bytes(fpdu)?)))
    }

    /// Length of an FPDU with its markers, of which this many bytes are none.
    fn whole_bytes(self, content: usize) -> usize {
        self.content_pieces(content).last().map_or(0, |piece| piece.end)
    }

    /// Number of bytes from an offset to the next marker.
    fn bytes_before_marker(self, offset: usize) -> usize {
        if !self.markers {
            return usize::MAX;
        }
        (MARKER_INTERVAL_BYTES - (self.position + offset as u64) % MARKER_INTERVAL_BYTES) as usize
    }

    /// Pieces of content between markers; the first piece follows the marker at the front.
    fn content_pieces(self, content: usize) -> impl Iterator<Item = Range<usize>> {
        let (mut offset, mut left) = (0, content);
        std::iter::from_fn(move || {
            if left == 0 {
                return None;
            }
            let from = if self.is_marker_at(offset) { offset + MARKER_BYTES } else { offset };
            let length = left.min(self.bytes_before_marker(from));
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
