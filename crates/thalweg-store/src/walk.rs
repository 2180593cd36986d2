//! Walks a segment's blocks without its footer.

use crate::event::ReadBlock;
use crate::files::SegmentFile;
use crate::format::{BLOCK_ALIGN, BLOCK_HEADER_LEN, BlockHeader, BlockKind, Footer, FormatError};
use crate::{Mapping, RunInfo, StoreError};
use std::io;
use std::sync::Arc;

/// Run, builder and number that the header of the next block must have.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Expected {
    pub(crate) run: u32,
    pub(crate) builder: u32,
    pub(crate) block: u64,
}

impl Expected {
    pub(crate) fn check_header(&self, header: &BlockHeader) -> Result<(), FormatError> {
        let fields = [
            ("run", u64::from(header.run.0), u64::from(self.run)),
            ("builder", header.builder.into(), self.builder.into()),
            ("block", header.block, self.block),
        ];
        match fields.into_iter().find(|(_, found, expected)| found != expected) {
            Some((field, found, expected)) => Err(FormatError::Foreign { field, found, expected }),
            None => Ok(()),
        }
    }
}

/// Walks a segment's blocks without its footer, from the front, while the segment may still grow.
///
/// Blocks are read with `pread` and only then accessed through the mapping: space that a writer allocated, and gives
/// back when it closes the segment, is never accessed through the mapping. For a file that is elsewhere, each block is
/// fetched.
#[derive(Debug)]
pub(crate) struct Walk {
    file: Arc<SegmentFile>,
    /// Mapping of a local file.
    mapping: Option<Arc<Mapping>>,
    at: u64,
    reserve: u64,
    buffer: Vec<u8>,
    depth: Depth,
}

/// Extent to which a block is checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Depth {
    /// The whole block, against its checksum.
    Whole,
    /// Header and tables only, for a file that is elsewhere: they are trusted until the block is used.
    Tables,
}

/// Result of one step of a walk.
#[derive(Debug)]
pub(crate) enum Step {
    /// A data block, whole as far as it was checked.
    Block(ReadBlock),
    /// The footer: the segment is closed. It ends at the position of the walk.
    Footer(Footer),
    /// No whole block at this position, or none yet.
    Stop(FormatError),
}

impl Walk {
    pub(crate) fn open_segment(file: Arc<SegmentFile>, info: &RunInfo, depth: Depth) -> Result<Self, StoreError> {
        // A malicious `run.json` must not make us map the address space.
        let reserve = info.recorder.segment_size.min(MAX_RESERVE);
        let mapping =
            file.local_file().map(|here| Mapping::new(here, Arc::clone(file.file_path()), 0, reserve)).transpose();
        let mapping = mapping.map_err(StoreError::io_error("mapping", file.file_path()))?;
        let depth = if mapping.is_some() { Depth::Whole } else { depth };
        Ok(Self { file, mapping, at: 0, reserve, buffer: Vec::new(), depth })
    }

    /// Returns the offset at which the next block begins.
    pub(crate) fn next_offset(&self) -> u64 {
        self.at
    }

    pub(crate) fn next_block(&mut self, expected: Expected) -> Result<Step, StoreError> {
        self.try_next_block(expected).map_err(StoreError::io_error("reading", self.file.file_path()))
    }

    /// Searches for the next whole block of the run after a position without a block, and returns its number, which is
    /// `due` or later. The walk continues there. Returns `None` if there is none in the file.
    pub(crate) fn skip_to_next_block(&mut self, due: Expected) -> Result<Option<u64>, StoreError> {
        let begin = self.at;
        let found = self.try_skip_to_block(due);
        if !matches!(found, Ok(Some(_))) {
            self.at = begin;
        }
        found.map_err(StoreError::io_error("reading", self.file.file_path()))
    }

    fn try_skip_to_block(&mut self, due: Expected) -> io::Result<Option<u64>> {
        let mut window = vec![0; SEARCH_WINDOW_BYTES];
        let (mut at, mut start, mut filled) = (self.at, self.at, 0);
        loop {
            if at + BLOCK_HEADER_LEN as u64 > start + filled as u64 {
                start = at;
                filled = self.file.read_up_to(&mut window, at)?;
                if filled < BLOCK_HEADER_LEN {
                    return Ok(None);
                }
            }
            let from = usize::try_from(at - start).unwrap_or(usize::MAX);
            let mut length = BLOCK_ALIGN as u64;
            let header = BlockHeader::decode(&window[from..filled]).ok().filter(|header| header.block >= due.block);
            if let Some(header) =
                header.filter(|header| Expected { block: header.block, ..due }.check_header(header).is_ok())
            {
                self.at = at;
                if !matches!(self.try_next_block(Expected { block: header.block, ..due })?, Step::Stop(_)) {
                    self.at = at;
                    return Ok(Some(header.block));
                }
                // The header of a damaged block still gives its length: nothing inside it is taken for a block.
                length = header.length.into();
            }
            at += length;
        }
    }

    fn try_next_block(&mut self, expected: Expected) -> io::Result<Step> {
        let mut head = [0; BLOCK_HEADER_LEN];
        let filled = self.file.read_up_to(&mut head, self.at)?;
        let header = match BlockHeader::decode(&head[..filled]) {
            Ok(header) => header,
            Err(error) => return Ok(Step::Stop(error)),
        };
        if let Err(error) = expected.check_header(&header) {
            return Ok(Step::Stop(error));
        }
        let length = header.length;
        // The length of a file that is elsewhere is only found by reading it.
        if self.file.local_file().is_some() {
            let available = self.file.length_bytes()?.saturating_sub(self.at);
            if u64::from(length) > available {
                return Ok(Step::Stop(FormatError::CutOff { length, available }));
            }
        }
        let only_tables = self.depth == Depth::Tables && header.kind == BlockKind::Data;
        let from = if only_tables { header.index_offset as usize } else { 0 };
        match self.buffer.is_empty() {
            // Allocated by the system, which provides zeros without writing them.
            true => self.buffer = vec![0; length as usize],
            false => self.buffer.resize(length as usize, 0),
        }
        let filled = from + self.file.read_up_to(&mut self.buffer[from..], self.at + from as u64)?;
        let block = &mut self.buffer[..filled];
        if only_tables {
            block[..BLOCK_HEADER_LEN].copy_from_slice(&head);
        }
        // The header is compared again, from the same read as the body.
        if filled < length as usize || block[..BLOCK_HEADER_LEN] != head {
            return Ok(Step::Stop(FormatError::CutOff { length, available: filled as u64 }));
        }
        if let (false, Err(error)) = (only_tables, header.check_body_crc(block)) {
            return Ok(Step::Stop(error));
        }
        if header.kind == BlockKind::Footer {
            return Ok(match Footer::decode(self.at, block) {
                Ok(footer) => {
                    self.at += u64::from(length);
                    Step::Footer(footer)
                }
                Err(error) => Step::Stop(error),
            });
        }
        let (offset, end) = (self.at, self.at + u64::from(length));
        let mapping = match (&mut self.mapping, self.file.local_file()) {
            (Some(mapping), Some(file)) => {
                if !mapping.confirm_length(end) {
                    *mapping = Mapping::new(file, Arc::clone(self.file.file_path()), end, end + self.reserve)?;
                }
                Arc::clone(mapping)
            }
            _ => {
                Mapping::from_fetched_bytes(Arc::clone(self.file.file_path()), offset, std::mem::take(&mut self.buffer))
            }
        };
        self.at = end;
        Ok(Step::Block(ReadBlock { mapping, offset, header }))
    }
}

/// Maximum number of bytes of address space reserved for a segment to grow into.
const MAX_RESERVE: u64 = 64 << 30;
/// Number of bytes read at a time in search of a block.
const SEARCH_WINDOW_BYTES: usize = 1 << 20;
