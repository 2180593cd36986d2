//! Progress of a scenario: a small file in its directory. The machine that runs the scenario writes it, and the process
//! that waits reads it.

use serde::{Deserialize, Serialize};
use std::path::Path;

/// Progress of a scenario.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct RunProgress {
    /// Fraction of its time that has passed, from 0 to 1.
    pub done: f64,
    /// Number of bytes that the receivers' ports have sent.
    pub bytes: u64,
    /// Rate of these bytes, in bits per second of the network's time.
    pub bits_per_second: f64,
}

const NAME: &str = "progress.json";

impl RunProgress {
    /// Returns the progress last written to this directory; `None` before data flows, and in ns-3, which writes none.
    pub fn read_latest(directory: &Path) -> Option<Self> {
        // A text that is just being written is not JSON: the next call reads it.
        serde_json::from_str(&std::fs::read_to_string(directory.join(NAME)).ok()?).ok()
    }

    /// Writes the progress for its readers. An error is ignored, as it must not end the measurement.
    pub(crate) fn write_to(&self, directory: &Path) {
        if let Ok(text) = serde_json::to_string(self) {
            let _ = std::fs::write(directory.join(NAME), text);
        }
    }
}
