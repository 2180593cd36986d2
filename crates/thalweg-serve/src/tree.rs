//! The directory that is served, and nothing outside it.

use percent_encoding::percent_decode_str;
use rustix::fs::{Mode, OFlags, ResolveFlags, openat2};
use rustix::io::Errno;
use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use thalweg_store::run_directory_name;
use thalweg_wire::{EventRange, RunNumber};

/// A directory, with everything beneath it.
#[derive(Debug)]
pub(crate) struct Tree {
    root: OwnedFd,
    path: PathBuf,
}

/// The name in a request's path. Paths are relative to the tree; the tree itself is the empty path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Name {
    /// A file or a directory; true if the path ends with a slash.
    Entry(PathBuf, bool),
    /// The runs in a directory.
    Runs(PathBuf),
    /// Events of the run in this directory.
    Events(PathBuf, EventRange),
}

/// Reason why a path names nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NameError {
    /// The path is malformed.
    Bad,
    /// The path is hidden, or of a form that no entry has.
    None,
    /// The path contains `events` without a valid range after it.
    Events,
}

impl Name {
    /// Parses the path of a request.
    pub(crate) fn from_path(path: &str) -> Result<Self, NameError> {
        let mut parts = Vec::new();
        let slash = path.ends_with('/');
        if path.len() > MAX_PATH_BYTES {
            return Err(NameError::None);
        }
        let inner = path.strip_prefix('/').ok_or(NameError::Bad)?;
        let inner = inner.strip_suffix('/').unwrap_or(inner);
        for part in inner.split('/').filter(|_| path != "/") {
            let part = percent_decode_str(part).decode_utf8().map_err(|_| NameError::Bad)?;
            if part == ".." || part.contains(['/', '\0']) {
                return Err(NameError::Bad);
            }
            if part.is_empty() || part.len() > 255 {
                return Err(NameError::None);
            }
            parts.push(part.into_owned());
        }
        let mut entry = PathBuf::new();
        let mut parts = parts.into_iter().peekable();
        while let Some(part) = parts.next() {
            if part.starts_with('.') {
                return Err(NameError::None);
            }
            if part != RUNS {
                entry.push(part);
                continue;
            }
            let Some(run) = parts.next() else { return Ok(Self::Runs(entry)) };
            entry.push(run_directory_of(&run).ok_or(NameError::None)?);
            if parts.peek().is_some_and(|part| part == "events") {
                parts.next();
                let range = parts.next().and_then(|range| range.parse().ok()).ok_or(NameError::Events)?;
                return if parts.next().is_none() { Ok(Self::Events(entry, range)) } else { Err(NameError::None) };
            }
        }
        Ok(Self::Entry(entry, slash))
    }
}

/// Returns the directory name of a run: `run-000042` for `42`, `run-000042-b1` for `42-b1`.
fn run_directory_of(name: &str) -> Option<String> {
    match name.split_once("-b") {
        None => Some(run_directory_name(RunNumber(parse_unsigned(name)?), 0, 1)),
        Some((run, builder)) => {
            Some(run_directory_name(RunNumber(parse_unsigned(run)?), parse_unsigned(builder)?, u32::MAX))
        }
    }
}

/// Parses a number of digits alone, without a sign.
pub(crate) fn parse_unsigned<N: FromStr>(text: &str) -> Option<N> {
    if text.bytes().all(|byte| byte.is_ascii_digit()) { text.parse().ok() } else { None }
}

impl Tree {
    pub(crate) fn open_directory(path: &Path) -> std::io::Result<Self> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = rustix::fs::open(path, flags, Mode::empty())?;
        Ok(Self { root, path: path.to_owned() })
    }

    /// Returns the path of the directory itself.
    pub(crate) fn root_path(&self) -> &Path {
        &self.path
    }

    /// Opens the file at this path for reading. Follows symbolic links as long as they stay beneath the root.
    pub(crate) fn open_file(&self, path: &Path) -> Result<File, Errno> {
        // Opening a FIFO without a writer would block.
        self.open_within(path, OFlags::RDONLY | OFlags::NONBLOCK, Mode::empty()).map(File::from)
    }

    pub(crate) fn open_within(&self, path: &Path, flags: OFlags, mode: Mode) -> Result<OwnedFd, Errno> {
        open_beneath(self.root.as_fd(), path, flags, mode)
    }
}

/// Like `openat`, but never outside `directory` (`openat2` with `RESOLVE_BENEATH`, Linux 5.6).
pub(crate) fn open_beneath(directory: impl AsFd, path: &Path, flags: OFlags, mode: Mode) -> Result<OwnedFd, Errno> {
    let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
    let within = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
    loop {
        match openat2(&directory, path, flags | OFlags::CLOEXEC, mode, within) {
            // A component was renamed while the path was walked.
            Err(Errno::AGAIN | Errno::INTR) => {}
            result => return result,
        }
    }
}

/// Maximum length of a path in bytes: below `PATH_MAX`, with space for the longer name of a run. A longer path that is
/// only reachable step by step could be written, and not read.
const MAX_PATH_BYTES: usize = 4000;
/// Name beneath which a directory's runs are listed.
pub(crate) const RUNS: &str = "runs";

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::path::Component;

    #[track_caller]
    fn names(path: &str, name: Name) {
        assert_eq!(Name::from_path(path), Ok(name), "{path}");
    }

    fn entry(path: &str, slash: bool) -> Name {
        Name::Entry(path.into(), slash)
    }

    #[test]
    fn paths_name_files_runs_and_events() {
        names("/", entry("", true));
        names("/a/b%20c", entry("a/b c", false));
        names("/a/", entry("a", true));
        names("/runs", Name::Runs("".into()));
        names("/2026/runs/", Name::Runs("2026".into()));
        names("/runs/42", entry("run-000042", false));
        names("/runs/42-b1/00000.seg", entry("run-000042-b1/00000.seg", false));
        names("/runs/42-b0/", entry("run-000042-b0", true));
        let events = |first, last| Name::Events("run-000042".into(), EventRange { first, last });
        names("/runs/42/events/1000..2000", events(1000, 1999));
        names("/runs/42/events/7", events(7, 7));
        names("/runs/42/events/..7", events(0, 6));
    }

    #[test]
    fn nothing_leads_out_or_is_hidden() {
        for path in ["", "a", "/..", "/a/../b", "/%2e%2e/etc", "/a%2fb", "/%00", "/%ff"] {
            assert_eq!(Name::from_path(path), Err(NameError::Bad), "{path}");
        }
        for path in [
            "//",
            "/a//b",
            "/.",
            "/.a",
            "/a/.b",
            "/runs/x",
            "/runs/42/events/4..5/6",
            "/events/..5",
            "/runs/..5",
            "/runs/+1",
        ] {
            assert_eq!(Name::from_path(path), Err(NameError::None), "{path}");
        }
        for events in ["", "/", "/5..4", "/x", "/1-2", "/-1", "/99999999999999999999"] {
            assert_eq!(Name::from_path(&format!("/runs/42/events{events}")), Err(NameError::Events), "{events}");
        }
    }

    #[test]
    fn a_path_that_the_system_could_not_be_told_names_nothing() {
        assert!(Name::from_path(&"/a".repeat(2000)).is_ok());
        assert_eq!(Name::from_path(&"/a".repeat(2001)), Err(NameError::None));
    }

    #[test]
    fn a_symbolic_link_is_followed_only_beneath() {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path().join("root");
        std::fs::create_dir(&root).unwrap();
        std::fs::write(directory.path().join("secret"), "s").unwrap();
        std::fs::write(root.join("file"), "f").unwrap();
        std::os::unix::fs::symlink("file", root.join("inside")).unwrap();
        std::os::unix::fs::symlink("../secret", root.join("outside")).unwrap();
        std::os::unix::fs::symlink(directory.path().join("secret"), root.join("absolute")).unwrap();
        let tree = Tree::open_directory(&root).unwrap();
        assert_eq!(std::io::read_to_string(tree.open_file(Path::new("inside")).unwrap()).unwrap(), "f");
        assert_eq!(tree.open_file(Path::new("outside")).unwrap_err(), Errno::XDEV);
        assert_eq!(tree.open_file(Path::new("absolute")).unwrap_err(), Errno::XDEV);
    }

    proptest! {
        #[test]
        fn whatever_is_asked_for_lies_beneath(path in "(/(\\PC{0,6}|%2e|%2E|\\.|%2f|runs|[0-9]{1,4}|events)*){0,5}") {
            if let Ok(Name::Entry(path, _) | Name::Runs(path) | Name::Events(path, ..)) = Name::from_path(&path) {
                prop_assert!(path.components().all(|part| matches!(part, Component::Normal(_))), "{path:?}");
            }
        }
    }
}
