//! Standard output: text for people, JSON for programs.

use crate::terminal::Failure;
use serde::Serialize;
use std::io::{self, BufWriter, StdoutLock, Write};

/// Returns a value as one JSON object, on a line of its own.
///
/// # Errors
/// The value cannot be written as JSON.
pub fn json_line(value: &impl Serialize) -> serde_json::Result<String> {
    let mut line = serde_json::to_string(value)?;
    // JSON leaves these as they are (RFC 8259, section 7), and a terminal takes them for commands.
    if line.contains(is_c1) {
        line = line.chars().map(|c| if is_c1(c) { format!("\\u{:04x}", u32::from(c)) } else { c.into() }).collect();
    }
    line.push('\n');
    Ok(line)
}

/// Standard output. A reader that has gone (`| head`) is no error: the following output is dropped.
#[derive(Debug)]
pub struct Output(Option<BufWriter<StdoutLock<'static>>>);

impl Default for Output {
    fn default() -> Self {
        Self::new()
    }
}

impl Output {
    /// Locks standard output for this thread.
    pub fn new() -> Self {
        Self(Some(BufWriter::with_capacity(64 << 10, io::stdout().lock())))
    }

    /// Returns true while there is still a reader.
    pub fn is_read(&self) -> bool {
        self.0.is_some()
    }

    /// Prints a text.
    ///
    /// # Errors
    /// Standard output cannot be written to.
    pub fn text(&mut self, text: &str) -> Result<(), Failure> {
        self.bytes(text.as_bytes())
    }

    /// Prints a value as one JSON object, on a line of its own.
    ///
    /// # Errors
    /// Standard output cannot be written to.
    pub fn json(&mut self, value: &impl Serialize) -> Result<(), Failure> {
        self.text(&json_line(value).map_err(Failure::broken)?)
    }

    /// Writes bytes as they are.
    ///
    /// # Errors
    /// Standard output cannot be written to.
    pub fn bytes(&mut self, bytes: &[u8]) -> Result<(), Failure> {
        self.with(|to| to.write_all(bytes))
    }

    /// Flushes the output, before something that takes long, and at the end.
    ///
    /// # Errors
    /// Standard output cannot be written to.
    pub fn flush(&mut self) -> Result<(), Failure> {
        self.with(Write::flush)
    }

    fn with(&mut self, act: impl FnOnce(&mut BufWriter<StdoutLock<'static>>) -> io::Result<()>) -> Result<(), Failure> {
        match self.0.as_mut().map(act) {
            Some(Err(error)) if error.kind() == io::ErrorKind::BrokenPipe => {
                self.0 = None;
                Ok(())
            }
            Some(Err(error)) => Err(Failure::Broken(format!("writing to standard output: {error}"))),
            Some(Ok(())) | None => Ok(()),
        }
    }
}

/// Returns true for DEL and the control characters after it, such as CSI.
fn is_c1(c: char) -> bool {
    ('\u{7f}'..='\u{9f}').contains(&c)
}
