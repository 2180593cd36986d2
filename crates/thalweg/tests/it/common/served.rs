//! A data server under test, and what it serves.

use super::{Node, node::Ended, record_events, thalweg};
use serde_json::Value;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

/// A data server on a directory.
pub(crate) struct Served {
    pub(crate) node: Node,
    pub(crate) address: SocketAddr,
}

impl Served {
    pub(crate) fn start(directory: &Path, more: &[&str]) -> Self {
        Self::start_at("127.0.0.1:0", directory, more)
    }

    pub(crate) fn start_at(address: &str, directory: &Path, more: &[&str]) -> Self {
        let mut command = thalweg();
        command.args(["--json", "serve", "--listen", address, "--path", "sendfile"]).args(more).arg(directory);
        let mut node = Node::start("serve", command);
        let ready: Value = serde_json::from_str(&node.wait_for("\"url\"")).unwrap();
        let url = ready["url"].as_str().unwrap();
        let address = url.strip_prefix("http://").unwrap().trim_end_matches('/').parse().unwrap();
        Self { node, address }
    }

    pub(crate) fn url(&self, path: &str) -> String {
        format!("http://{}/{path}", self.address)
    }
}

/// Two directories, of two machines.
pub(crate) struct Machines {
    _both: TempDir,
    pub(crate) here: PathBuf,
    pub(crate) there: PathBuf,
}

impl Machines {
    pub(crate) fn new() -> Self {
        // In the build folder: the disk there knows extended attributes, which /tmp may not.
        let both = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let [here, there] = ["here", "there"].map(|name| both.path().join(name));
        for path in [&here, &there] {
            std::fs::create_dir(path).unwrap();
        }
        Self { _both: both, here, there }
    }
}

pub(crate) fn start(words: &[&str], more: &[&Path]) -> Node {
    let mut command = thalweg();
    command.arg("--json").args(words).args(more);
    for name in ["THALWEG_TOKEN", "http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"] {
        command.env_remove(name);
    }
    Node::start(words[0], command)
}

pub(crate) fn run(words: &[&str], more: &[&Path]) -> Ended {
    start(words, more).finish()
}

/// Records run 1 into a directory: some 20 MB, in two segments or more.
pub(crate) fn record(directory: &Path) -> PathBuf {
    record_events(directory, &["--size", "64KiB", "--rate", "500"], 150);
    directory.join("run-000001")
}

/// A file of so many MiB, no part of which is like another.
pub(crate) fn big(path: &Path, mebibytes: u64) -> Vec<u8> {
    let mut state = 1_u64;
    let next = |_| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 32).to_le_bytes()
    };
    let bytes: Vec<u8> = (0..mebibytes << 17).flat_map(next).collect();
    std::fs::write(path, &bytes).unwrap();
    bytes
}

/// Every file of one directory is in the other, and no more.
#[track_caller]
pub(crate) fn assert_same(one: &Path, other: &Path) {
    let names = |path: &Path| {
        let entries = std::fs::read_dir(path).unwrap();
        let mut names: Vec<String> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    };
    assert_eq!(names(one), names(other));
    for name in names(one) {
        let same = std::fs::read(one.join(&name)).unwrap() == std::fs::read(other.join(&name)).unwrap();
        assert!(same, "{name} is another");
    }
}
