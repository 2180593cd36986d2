//! Location of a directory that may not exist yet.

use crate::read;
use std::path::{Path, PathBuf};

/// Returns the directory itself if it exists, or else the nearest existing one above it.
pub(super) fn nearest_existing(directory: &Path) -> PathBuf {
    let existing = directory.ancestors().find(|path| path.exists()).unwrap_or(Path::new("."));
    // The empty path above a relative one stands for the current directory.
    if existing.as_os_str().is_empty() { PathBuf::from(".") } else { existing.to_owned() }
}

/// Returns the type of the file system that a path lies on: `ext4`.
pub(super) fn file_system_type(path: &Path) -> Option<String> {
    let path = path.canonicalize().ok()?;
    type_in_mount_table(&read::read_text("/proc/self/mountinfo")?, &path).map(str::to_owned)
}

/// Returns the file system type for a path. Columns of `/proc/self/mountinfo`: id parent major:minor root mount-point
/// options … - type source … (proc_pid_mountinfo(5)). The longest mount point counts, and of equal ones the last, which
/// covers the others.
fn type_in_mount_table<'a>(table: &'a str, path: &Path) -> Option<&'a str> {
    let mounts = table.lines().filter_map(|line| {
        let (before, after) = line.split_once(" - ")?;
        let at = before.split(' ').nth(4)?.replace("\\040", " ");
        Some((at, after.split(' ').next()?))
    });
    mounts.filter(|(at, _)| path.starts_with(at)).max_by_key(|(at, _)| at.len()).map(|(_, kind)| kind)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const TABLE: &str = "27 1 254:0 / / rw,relatime - ext4 /dev/vda rw,discard\n\
        25 24 0:23 / /dev/shm rw,relatime shared:3 - tmpfs tmpfs rw,size=24684084k\n\
        40 27 8:1 / /mnt/big\\040disk rw - xfs /dev/sda1 rw\n\
        41 40 8:2 / /mnt/big\\040disk rw - btrfs /dev/sdb1 rw\n";

    #[test]
    fn the_innermost_mount_counts() {
        assert_eq!(type_in_mount_table(TABLE, Path::new("/dev/shm/runs")), Some("tmpfs"));
        assert_eq!(type_in_mount_table(TABLE, Path::new("/dev/shmoo")), Some("ext4"));
        assert_eq!(type_in_mount_table(TABLE, Path::new("/mnt/big disk/runs")), Some("btrfs"));
        assert_eq!(type_in_mount_table("", Path::new("/")), None);
    }

    #[test]
    fn what_is_not_there_yet_lies_where_it_will_be_made() {
        assert_eq!(nearest_existing(Path::new("/no/such/place")), Path::new("/"));
        assert_eq!(nearest_existing(Path::new("no/such/place")), Path::new("."));
        assert_eq!(nearest_existing(Path::new("")), Path::new("."));
        assert_eq!(nearest_existing(Path::new("/tmp")), Path::new("/tmp"));
    }

    proptest! {
        #[test]
        fn any_table_is_read_without_harm(text in "\\PC*|([0-9:/ -]*\\n)*") {
            type_in_mount_table(&text, Path::new("/a/b"));
        }
    }
}
