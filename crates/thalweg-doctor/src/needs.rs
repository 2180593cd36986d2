//! What is asked of the machine.

use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use std::time::Duration;
use thalweg_link::Address;

/// What is asked of the machine. By default nothing in particular: then nothing can be missing.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Needs {
    /// The directory that run directories are made in. It need not exist.
    pub directory: PathBuf,
    /// Whether it will be written to.
    pub record: bool,
    /// What will be written, as far as it is known.
    pub data: Data,
    /// Write to the directory for a moment, to a file without a name, to see how fast that goes.
    pub measure_disk: bool,
    /// The nodes that will run on this machine.
    pub nodes: Vec<NodeNeeds>,
}

impl Default for Needs {
    fn default() -> Self {
        Self { directory: "runs".into(), record: false, data: Data::default(), measure_disk: false, nodes: Vec::new() }
    }
}

/// What a run writes to this machine's disk.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Data {
    /// Bytes per second, where a rate is stated.
    pub bytes_per_second: Option<f64>,
    /// How long the run lasts, where that is stated.
    pub duration: Option<Duration>,
    /// Bytes in all, where the number of events is stated.
    pub bytes: Option<u64>,
    /// Fragments may be smaller or fewer than that, as those of a recording that ends.
    pub at_most: bool,
}

impl Data {
    /// Bytes in all, where that follows from what is stated.
    pub fn volume(&self) -> Option<u64> {
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a cast from a float saturates: what is too much stays too much"
        )]
        let timed = self.bytes_per_second.zip(self.duration).map(|(rate, time)| (rate * time.as_secs_f64()) as u64);
        timed.into_iter().chain(self.bytes).min()
    }
}

/// What one node asks of the machine.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct NodeNeeds {
    /// Its name.
    pub name: String,
    /// The processor its hot thread is bound to.
    pub cpu: Option<u32>,
    /// Bytes of its slots, which another process maps or a socket sends from.
    pub slots: u64,
    /// Bytes of its blocks, which are registered with the kernel for writing.
    pub blocks: u64,
    /// Where it listens.
    pub listen: Vec<Address>,
    /// Where it connects to.
    pub connect: Vec<Address>,
    /// Whether it drives a network adapter by itself.
    pub adapter: bool,
    /// The TCP congestion control it asks for by name; `system` for the system's.
    pub congestion: Option<String>,
    /// Bytes that may be on their way to it.
    pub window: u64,
    /// Bytes per second that enter or leave it, where a rate is stated.
    pub bytes_per_second: Option<f64>,
    /// Files and sockets it has open.
    pub files: u64,
}
