//! Length of the written part of a segment, and its checksum, computed from the block headers.

use crate::format::{BLOCK_HEADER_LEN, BlockHeader, FormatError, TRAILER_LEN, Trailer};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use thalweg_wire::{Crc32c, crc32c, crc32c_combine};

/// Valid part of a segment file: its bytes up to the end of the last whole block, and their CRC32C.
///
/// The CRC of a file is combined from those in the headers of its blocks, so that a segment of a GiB costs a few
/// hundred reads of 64 bytes. While a segment is being written, the body of each block is compared with its CRC once,
/// since any part of the last blocks may be present; [`advance_to_last_block`](Self::advance_to_last_block) continues from where it stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Extent {
    /// Number of valid bytes.
    pub bytes: u64,
    /// CRC32C of these bytes.
    pub crc32c: u32,
    /// True if the segment ends with its footer: nothing more will be added.
    pub closed: bool,
}

impl Extent {
    /// Returns an empty extent, before anything of a segment was read.
    pub const fn empty() -> Self {
        Self { bytes: 0, crc32c: 0, closed: false }
    }

    /// Advances to the end of the last whole block in the file.
    ///
    /// # Errors
    /// If the file cannot be read. Data that is not a block is not an error: the extent ends there.
    pub fn advance_to_last_block(&mut self, file: &File) -> io::Result<()> {
        let length = file.metadata()?.len();
        let trusted = ends_with_footer(file, length)?;
        let mut buffer = Vec::new();
        while self.bytes + BLOCK_HEADER_LEN as u64 <= length {
            let mut head = [0; BLOCK_HEADER_LEN];
            if !read_if_present(file, &mut head, self.bytes)? {
                break;
            }
            let Ok(header) = BlockHeader::decode(&head) else { break };
            let end = self.bytes + u64::from(header.length);
            if end > length || (header.length as usize) < BLOCK_HEADER_LEN {
                break;
            }
            if !trusted {
                // Data written past the page cache is not brought into it by looking at it.
                let mut body = Crc32c::new();
                buffer.resize(READ_CHUNK_BYTES, 0);
                let from = self.bytes + BLOCK_HEADER_LEN as u64;
                let read = thalweg_transfer::read_in_parts(file, from..end, &mut buffer, |bytes| {
                    body.update(bytes);
                    Ok(())
                });
                match read {
                    Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => break,
                    read => read?,
                }
                if body.checksum() != header.body_crc {
                    break;
                }
            }
            let length = u64::from(header.length);
            let block = crc32c_combine(crc32c(&head), header.body_crc, length - BLOCK_HEADER_LEN as u64);
            self.crc32c = crc32c_combine(self.crc32c, block, length);
            self.bytes = end;
        }
        self.closed = trusted && self.bytes == length;
        Ok(())
    }
}

/// Returns the CRC32C of a segment that was closed cleanly; `None` if it was not, or is not a segment.
///
/// # Errors
/// If the file cannot be read.
pub fn closed_segment_crc32c(file: &File) -> io::Result<Option<u32>> {
    if !ends_with_footer(file, file.metadata()?.len())? {
        return Ok(None);
    }
    let mut extent = Extent::empty();
    extent.advance_to_last_block(file)?;
    Ok(extent.closed.then_some(extent.crc32c))
}

/// Returns whether the file ends with a trailer that leads to a footer which ends at the end of the file.
fn ends_with_footer(file: &File, length: u64) -> io::Result<bool> {
    let Some(at) = length.checked_sub(TRAILER_LEN as u64) else { return Ok(false) };
    let mut bytes = [0; TRAILER_LEN];
    if !read_if_present(file, &mut bytes, at)? {
        return Ok(false);
    }
    let trailer: Result<Trailer, FormatError> = Trailer::decode(&bytes);
    Ok(trailer.is_ok_and(|trailer| trailer.offset.checked_add(trailer.length.into()) == Some(length)))
}

/// Reads these bytes; returns false if the file ends before them: space allocated for a segment is given back when it
/// is closed.
fn read_if_present(file: &File, bytes: &mut [u8], at: u64) -> io::Result<bool> {
    match file.read_exact_at(bytes, at) {
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(false),
        result => result.map(|()| true),
    }
}

/// Number of bytes read at a time.
const READ_CHUNK_BYTES: usize = 256 << 10;
