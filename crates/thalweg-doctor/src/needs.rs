//! Requirements of a run on the machine.

use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use std::time::Duration;
use thalweg_link::Address;

/// Requirements of a run on the machine. None by default: then nothing can be missing.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Needs {
    /// Directory in which run directories are made. It need not exist.
    pub directory: PathBuf,
    /// True if runs are recorded there.
    pub record: bool,
    /// Amount of data that will be written, as far as it is known.
    pub data: Data,
    /// True if the disk's speed is to be measured, by writing for a moment to a file without a name in the directory.
    pub measure_disk: bool,
    /// Nodes that will run on this machine.
    pub nodes: Vec<NodeNeeds>,
}

impl Default for Needs {
    fn default() -> Self {
        Self { directory: "runs".into(), record: false, data: Data::default(), measure_disk: false, nodes: Vec::new() }
    }
}

/// Amount of data that a run writes to this machine's disk.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Data {
    /// Bytes per second, if a rate is stated.
    pub bytes_per_second: Option<f64>,
    /// Duration of the run, if it is stated.
    pub duration: Option<Duration>,
    /// Total number of bytes, if the number of events is stated.
    pub bytes: Option<u64>,
    /// True if the amounts are upper limits: fragments may be smaller or fewer, such as those of a recording that ends.
    pub at_most: bool,
}

impl Data {
    /// Returns the total number of bytes, if the stated values determine it.
    pub fn total_bytes(&self) -> Option<u64> {
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a cast from a float saturates: what is too much stays too much"
        )]
        let timed = self.bytes_per_second.zip(self.duration).map(|(rate, time)| (rate * time.as_secs_f64()) as u64);
        timed.into_iter().chain(self.bytes).min()
    }
}

/// Requirements of one node on the machine.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct NodeNeeds {
    /// Name of the node.
    pub name: String,
    /// Processor to which its hot thread is bound.
    pub cpu: Option<u32>,
    /// Total size of its slots in bytes, which another process maps or a socket sends from.
    pub slots: u64,
    /// Total size of its blocks in bytes, which are registered with the kernel for writing.
    pub blocks: u64,
    /// Addresses on which it listens.
    pub listen: Vec<Address>,
    /// Addresses to which it connects.
    pub connect: Vec<Address>,
    /// True if it drives a network adapter by itself.
    pub adapter: bool,
    /// Name of the TCP congestion control that it requests; `system` for the system's default.
    pub congestion: Option<String>,
    /// Number of bytes that may be on their way to it.
    pub window: u64,
    /// Bytes per second that enter or leave it, if a rate is stated.
    pub bytes_per_second: Option<f64>,
    /// Number of files and sockets that it has open.
    pub files: u64,
}
