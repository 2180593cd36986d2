//! A run whose segment file a stranger wrote is opened, read, followed and verified without a panic, and without
//! reading outside the file.

use std::path::Path;
use std::sync::LazyLock;
use std::time::Duration;
use thalweg_store::format::{
    BLOCK_ALIGN, BLOCK_HEADER_LEN, BLOCK_MAGIC, FRAGMENT_ENTRY_LEN, TRAILER_LEN, TRAILER_MAGIC,
};
use thalweg_store::{Followed, Run, verify_run};
use thalweg_wire::{HEADER_LEN, HEADER_MAGIC, crc32c};

const RUN: u32 = 7;

/// Directory of the run, in memory: a fuzzer writes the file thousands of times a second.
static DIRECTORY: LazyLock<tempfile::TempDir> = LazyLock::new(|| {
    let directory = tempfile::tempdir_in("/dev/shm").unwrap();
    let info = serde_json::json!({
        "format": "thalweg-run", "version": 1, "run": RUN, "builder": 0, "builders": 1, "state": "INCOMPLETE",
        "reasons": [], "began": 0, "ended": 1, "writer": {}, "recorder": {},
        "sources": [{"id": "1.0"}, {"id": "1.1"}],
    });
    std::fs::write(directory.path().join("run.json"), info.to_string()).unwrap();
    directory
});

/// Tries one input.
pub fn run(bytes: &[u8]) {
    let mut segment = pages_from_input(bytes);
    make_blocks_valid(&mut segment);
    std::fs::write(DIRECTORY.path().join("00000.seg"), &segment).unwrap();
    // To end a watch on a directory takes the kernel ten milliseconds: one length in sixteen is followed too.
    read_everything(DIRECTORY.path(), bytes.len().is_multiple_of(16));
}

fn read_everything(directory: &Path, follow: bool) {
    let Ok(run) = Run::open(directory) else { return };
    let mut length = 0;
    // A closing may claim four thousand million events; the first of them show what there is to show.
    for event in run.events().take(1000).flatten() {
        length += event.fragments.iter().filter(|f| f.is_payload_intact()).map(|f| f.payload().len()).sum::<usize>();
        let _ = run.find_event(event.id);
    }
    let _ = (length, run.len(), run.recovery_point());
    let _ = verify_run(&run);
    if !follow {
        return;
    }
    let Ok(mut follow) = run.follow_events() else { return };
    for _ in 0..1000 {
        match follow.next_event(Duration::ZERO) {
            Ok(Followed::Event(_)) => {}
            Ok(_) => break,
            // Later events follow one that cannot be read; the end comes all the same.
            Err(_) => {}
        }
    }
}

/// A page of the file for every few bytes of input, since a fuzzer does not find long inputs by itself.
fn pages_from_input(bytes: &[u8]) -> Vec<u8> {
    let mut pages = Vec::new();
    for piece in bytes.chunks(320) {
        pages.extend_from_slice(piece);
        pages.resize(pages.len().next_multiple_of(BLOCK_ALIGN), 0);
    }
    pages
}

/// A fuzzer does not guess checksums: every page that begins with an odd byte becomes the beginning of a block that
/// passes them, and leads to what follows.
fn make_blocks_valid(segment: &mut [u8]) {
    let (mut at, mut number) = (0, 0u64);
    while at + BLOCK_ALIGN <= segment.len() {
        let rest = &mut segment[at..];
        let pages = 1 + usize::from(rest[1] & 3);
        let length = (pages * BLOCK_ALIGN).min(rest.len() / BLOCK_ALIGN * BLOCK_ALIGN);
        let block = &mut rest[..length];
        if block[0] & 1 == 1 {
            write_valid_block(block, at as u64, number);
            number += 1;
        }
        at += length;
    }
}

fn write_valid_block(block: &mut [u8], offset: u64, number: u64) {
    let length = block.len();
    let is_footer = block[6] & 7 == 0;
    block[0..4].copy_from_slice(&BLOCK_MAGIC.to_le_bytes());
    block[4..6].copy_from_slice(&1u16.to_le_bytes());
    block[6..8].copy_from_slice(&(1 + u16::from(is_footer)).to_le_bytes());
    block[8..12].copy_from_slice(&RUN.to_le_bytes());
    block[12..16].fill(0);
    block[16..24].copy_from_slice(&number.to_le_bytes());
    block[24..28].copy_from_slice(&(length as u32).to_le_bytes());
    if block[44] & 1 == 0 {
        // Tables that lie inside the block; else whatever is there.
        let index = length.min(usize::from(block[32]) * 64 % 320 + 64);
        block[28..32].copy_from_slice(&(index as u32).to_le_bytes());
        block[32..36].copy_from_slice(&(index as u32).to_le_bytes());
        let (fragments, closings) = (block[36] & 15, block[40] & 7);
        block[36..40].copy_from_slice(&[fragments, 0, 0, 0]);
        block[40..44].copy_from_slice(&[closings, 0, 0, 0]);
    }
    if is_footer {
        let trailer = length - TRAILER_LEN;
        block[trailer..trailer + 8].copy_from_slice(&offset.to_le_bytes());
        block[trailer + 8..trailer + 12].copy_from_slice(&(length as u32).to_le_bytes());
        block[trailer + 12..].copy_from_slice(&TRAILER_MAGIC.to_le_bytes());
    } else {
        write_named_headers(block);
    }
    let body = crc32c(&block[BLOCK_HEADER_LEN..]);
    block[56..60].copy_from_slice(&body.to_le_bytes());
    let header = crc32c(&block[..60]);
    block[60..64].copy_from_slice(&header.to_le_bytes());
}

/// Puts a header to each place in the block that an entry of the fragment table names.
fn write_named_headers(block: &mut [u8]) {
    let (index, fragments) = (u32_at(block, 32), u32_at(block, 36).min(64));
    for entry in (0..fragments).map(|entry| index.saturating_add(entry * FRAGMENT_ENTRY_LEN)) {
        let Some(named) = block.get(entry..).and_then(|table| table.first_chunk::<FRAGMENT_ENTRY_LEN>()).copied()
        else {
            return;
        };
        let at = u32_at(&named, 12);
        let Some(header) = at.checked_add(HEADER_LEN).and_then(|end| block.get_mut(at..end)) else { continue };
        header[0..4].copy_from_slice(&HEADER_MAGIC.to_le_bytes());
        header[4..6].copy_from_slice(&[1, 8]);
        header[12..16].copy_from_slice(&RUN.to_le_bytes());
        header[16..24].copy_from_slice(&named[..8]);
        header[32..36].copy_from_slice(&named[8..12]);
        let crc = crc32c(&header[..60]);
        header[60..].copy_from_slice(&crc.to_le_bytes());
    }
}

fn u32_at(block: &[u8], at: usize) -> usize {
    u32::from_le_bytes(block[at..at + 4].try_into().unwrap()) as usize
}
