//! Ways of writing that the file system supports: past the page cache, or through it.

use super::place;
use crate::{Finding, Needs, read};
use rustix::fs::{Mode, OFlags, open};
use rustix::io::{Errno, ReadWriteFlags, preadv2};
use std::io::IoSliceMut;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

/// `RWF_DONTCACHE` (Linux 6.14): through the page cache, and out of it again.
const DONTCACHE: ReadWriteFlags = ReadWriteFlags::from_bits_retain(0x80);
/// File systems that support `O_DIRECT` on any storage.
const DIRECT: [&str; 6] = ["ext4", "xfs", "btrfs", "f2fs", "nfs", "nfs4"];
/// Number of directory entries inspected to find a file.
const MAX_DIRECTORY_ENTRIES: usize = 256;

/// Tries the ways by reading: there may be no file that may be written to, and none is made for the purpose.
pub(super) fn probe_write_methods(needs: &Needs) -> [Finding; 2] {
    let place = place::nearest_existing(&needs.directory);
    let kind = read::text_or_unknown(place::file_system_type(&place));
    match find_readable_file(&place, 2) {
        Some(file) => {
            let method = format!("tried by reading {}, on {kind}", file.display());
            [
                direct_write_finding(try_direct_open(&file), &method),
                uncached_write_finding(try_uncached_read(&file), &method),
            ]
        }
        None => {
            let reason = format!("no file at {} to try it on; {kind}", place.display());
            let known = DIRECT.contains(&kind.as_str());
            let does = if known { "supports them" } else { "may not support them: --measure-disk tries it" };
            [
                Finding::new("direct writes", format!("{reason} {does}")),
                Finding::new("uncached writes", format!("unknown: {reason}; --measure-disk tries it")),
            ]
        }
    }
}

/// Returns the finding for O_DIRECT.
pub(super) fn direct_write_finding(result: Result<(), Errno>, method: &str) -> Finding {
    match result {
        Ok(()) => Finding::new("direct writes", format!("O_DIRECT works; {method}")),
        Err(error) => Finding::new("direct writes", format!("O_DIRECT does not work: {error}; {method}"))
            .with_degraded_level("blocks are copied into the page cache, and the kernel decides when to write them"),
    }
}

/// Returns the finding for RWF_DONTCACHE, which is only a second choice if O_DIRECT is not available.
pub(super) fn uncached_write_finding(result: Result<(), Errno>, method: &str) -> Finding {
    match result {
        Ok(()) => Finding::new("uncached writes", format!("RWF_DONTCACHE works; {method}")),
        Err(error) => Finding::new("uncached writes", format!("RWF_DONTCACHE does not work: {error}; {method}")),
    }
}

fn try_direct_open(file: &Path) -> Result<(), Errno> {
    open(file, OFlags::RDONLY | OFlags::DIRECT | OFlags::CLOEXEC | OFlags::NOATIME, Mode::empty())
        .or_else(|error| match error {
            // Another user's file: only its owner may suppress the update of its access time.
            Errno::PERM => open(file, OFlags::RDONLY | OFlags::DIRECT | OFlags::CLOEXEC, Mode::empty()),
            error => Err(error),
        })
        .map(drop)
}

fn try_uncached_read(file: &Path) -> Result<(), Errno> {
    let file = open(file, OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOATIME, Mode::empty())?;
    read_byte_uncached(&file)
}

fn read_byte_uncached(file: impl AsFd) -> Result<(), Errno> {
    let mut byte = [0];
    preadv2(file, &mut [IoSliceMut::new(&mut byte)], 0, DONTCACHE).map(drop)
}

/// Returns a regular file in a directory or below it, down to `depth` levels, on the same file system.
fn find_readable_file(directory: &Path, depth: u32) -> Option<PathBuf> {
    use std::os::unix::fs::MetadataExt;
    let device = std::fs::metadata(directory).ok()?.dev();
    let entries: Vec<_> = std::fs::read_dir(directory).ok()?.flatten().take(MAX_DIRECTORY_ENTRIES).collect();
    let mut directories = Vec::new();
    for entry in entries.iter().filter(|entry| entry.metadata().is_ok_and(|data| data.dev() == device)) {
        let Ok(kind) = entry.file_type() else { continue };
        let path = entry.path();
        if kind.is_file() && rustix::fs::access(&path, rustix::fs::Access::READ_OK).is_ok() {
            return Some(path);
        }
        if kind.is_dir() && depth > 0 {
            directories.push(path);
        }
    }
    directories.iter().find_map(|directory| find_readable_file(directory, depth - 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_tried_on_a_file_that_is_there_and_none_is_made() {
        let base = tempfile::tempdir().unwrap();
        let needs = Needs { directory: base.path().join("runs"), ..Needs::default() };
        let [direct, uncached] = probe_write_methods(&needs);
        assert!(direct.evidence.contains("no file at") && uncached.evidence.contains("no file at"));
        std::fs::create_dir(base.path().join("run-000001")).unwrap();
        std::fs::write(base.path().join("run-000001/segment"), "x").unwrap();
        for finding in probe_write_methods(&needs) {
            assert!(finding.evidence.contains("run-000001/segment"), "{}", finding.evidence);
        }
        assert_eq!(read::read_names(base.path()), ["run-000001"]);
    }
}
