//! How far a scenario is: a small file in its directory, which the machine that runs it writes and whoever waits reads.

use serde::{Deserialize, Serialize};
use std::path::Path;

/// How far a scenario is.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct HowFar {
    /// The part of its time that is over, from 0 to 1.
    pub done: f64,
    /// Bytes that the receivers' ports have sent.
    pub bytes: u64,
    /// Bits per second of the network's time.
    pub bits_per_second: f64,
}

const NAME: &str = "progress.json";

impl HowFar {
    /// What was told last in this directory; nothing before the data flows, and in ns-3, which tells nothing.
    pub fn read(directory: &Path) -> Option<Self> {
        // A text that is just being written is no JSON: the next look has it.
        serde_json::from_str(&std::fs::read_to_string(directory.join(NAME)).ok()?).ok()
    }

    /// Tells whoever looks. That it cannot be told keeps nobody from measuring.
    pub(crate) fn tell(&self, directory: &Path) {
        if let Ok(text) = serde_json::to_string(self) {
            let _ = std::fs::write(directory.join(NAME), text);
        }
    }
}
