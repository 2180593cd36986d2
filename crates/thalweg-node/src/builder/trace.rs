//! Trace of a builder's credit over time: a line of JSON for each look, to study how it distributes its requests.

use crate::NodeError;
use serde::Serialize;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;
use thalweg_core::build::Builder;

/// One line of the trace, as [`BuilderNode::trace`](super::BuilderNode::trace) describes it.
#[derive(Debug, Serialize)]
struct Line {
    at: u64,
    window: Option<u64>,
    asked: Vec<u64>,
}

/// Writer of a trace.
#[derive(Debug)]
pub(super) struct Trace {
    path: PathBuf,
    file: BufWriter<File>,
    every: Duration,
    next: Duration,
}

impl Trace {
    pub(super) fn open(path: &Path, every: Duration) -> Result<Self, NodeError> {
        let file = File::create(path).map_err(|error| write_error(path, &error))?;
        Ok(Self { path: path.to_owned(), file: BufWriter::new(file), every, next: Duration::ZERO })
    }

    /// Returns when the next line is due.
    pub(super) fn next_line_time(&self) -> Duration {
        self.next
    }

    /// Writes a line, if it is due.
    pub(super) fn write_due_line(&mut self, builder: &Builder, now: Duration) -> Result<(), NodeError> {
        if now < self.next {
            return Ok(());
        }
        self.next = now + self.every;
        let line = Line {
            at: u64::try_from(now.as_nanos()).unwrap_or(u64::MAX),
            window: builder.credit_state().map(|credit| credit.window),
            asked: (0..builder.config().sources.len()).map(|source| builder.bytes_in_flight_of(source)).collect(),
        };
        let written = serde_json::to_writer(&mut self.file, &line).map_err(std::io::Error::from);
        written.and_then(|()| self.file.write_all(b"\n")).map_err(|error| write_error(&self.path, &error))
    }

    pub(super) fn close(mut self) -> Result<(), NodeError> {
        self.file.flush().map_err(|error| write_error(&self.path, &error))
    }
}

fn write_error(path: &Path, error: &std::io::Error) -> NodeError {
    NodeError::Config(format!("the trace cannot be written to {}: {error}", path.display()))
}
