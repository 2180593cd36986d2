//! Reading of damaged runs: continues after the damage with a warning, or stops.

use crate::{DamageWarning, to_run_error};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use std::ffi::CString;
use thalweg_store::StoreError;
use thalweg_wire::EventId;

/// Reaction to events that cannot be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Errors {
    Warn,
    Raise,
}

impl Errors {
    /// Parses the argument `errors`.
    pub(crate) fn parse_argument(name: &str) -> PyResult<Self> {
        match name {
            "warn" => Ok(Self::Warn),
            "raise" => Ok(Self::Raise),
            _ => Err(PyValueError::new_err(format!(
                "errors={name:?}: use 'warn' to continue after unreadable events, or 'raise' to stop at them"
            ))),
        }
    }

    pub(crate) fn argument_name(self) -> &'static str {
        match self {
            Self::Warn => "warn",
            Self::Raise => "raise",
        }
    }
}

/// Errors since the last event that could be read, collected into one warning.
#[derive(Debug, Default)]
pub(crate) struct Unreadable(Option<Stretch>);

#[derive(Debug)]
struct Stretch {
    /// The first and last event, if known.
    events: Option<(EventId, EventId)>,
    count: u64,
    /// Error of the first of them.
    error: StoreError,
}

impl Unreadable {
    /// Records the error of an event or a block. Returns it as an exception if reading cannot continue after it.
    pub(crate) fn note_error(&mut self, event: Option<EventId>, error: StoreError, errors: Errors) -> PyResult<()> {
        if errors == Errors::Raise || !error.is_data_damage() {
            return Err(to_run_error(error));
        }
        match &mut self.0 {
            None => self.0 = Some(Stretch { events: event.map(|event| (event, event)), count: 1, error }),
            Some(stretch) => {
                stretch.count += 1;
                stretch.events = stretch.events.zip(event).map(|((first, _), last)| (first, last));
            }
        }
        Ok(())
    }

    /// Emits a warning if errors were recorded since the last one.
    pub(crate) fn warn_if_noted(&mut self, py: Python<'_>, run: &str) -> PyResult<()> {
        let Some(Stretch { events, count, error }) = self.0.take() else { return Ok(()) };
        let what = match (events, count) {
            (Some((first, last)), 2..) => format!("{count} events, {} to {}, cannot be read", first.0, last.0),
            (Some((event, _)), _) => format!("event {} cannot be read", event.0),
            (None, 1) => "a part cannot be read".to_owned(),
            (None, _) => format!("{count} parts cannot be read"),
        };
        let error = error.to_string();
        let more = if error.contains("thalweg verify") { "" } else { "; `thalweg verify` shows what is lost" };
        emit_warning(py, &format!("{run}: {what}: {error}{more}"))
    }
}

/// Emits a `DamageWarning`.
pub(crate) fn emit_warning(py: Python<'_>, text: &str) -> PyResult<()> {
    // Text quoted from a file must not contain control characters for a terminal.
    let text = CString::new(text.replace(char::is_control, "\u{fffd}"))?;
    PyErr::warn(py, &py.get_type::<DamageWarning>(), &text, 1)
}
