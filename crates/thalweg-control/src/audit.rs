//! Log of all requests that change something, with the time, the name of the token and the result.

use parking_lot::Mutex;
use serde::Serialize;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::Path;

/// The log: one JSON object per line, in `audit.jsonl`.
#[derive(Debug)]
pub struct AuditLog(Mutex<File>);

/// A request that changes something.
#[derive(Debug, Clone, Serialize)]
pub struct AuditEntry<'a> {
    /// Unix time in seconds.
    pub at: f64,
    /// Name of the token.
    pub by: &'a str,
    /// Address of the client.
    pub from: String,
    /// Method and path of the request.
    pub request: &'a str,
    /// Arguments of the request.
    pub arguments: serde_json::Value,
    /// Reason of the refusal; empty if it was carried out.
    pub refusal: &'a str,
}

impl AuditLog {
    /// Opens the log in a directory.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn open_log(directory: &Path) -> io::Result<Self> {
        Ok(Self(Mutex::new(OpenOptions::new().create(true).append(true).open(directory.join("audit.jsonl"))?)))
    }

    /// Adds an entry.
    pub fn add_entry(&self, entry: &AuditEntry<'_>) {
        let mut line = serde_json::to_string(entry).unwrap_or_default();
        line.push('\n');
        if let Err(error) = self.0.lock().write_all(line.as_bytes()) {
            tracing::warn!("audit.jsonl: {error}: a request is not logged");
        }
    }
}
