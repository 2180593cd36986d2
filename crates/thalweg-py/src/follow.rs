//! Iteration over a run while it is written.

use crate::damage::{Errors, Unreadable, emit_warning};
use crate::event::Event;
use crate::sources::Sources;
use pyo3::prelude::*;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use thalweg_store::{End, Followed};

/// Longest time that Ctrl-C may have to wait. New events end the wait at once.
const SIGNAL_CHECK_INTERVAL: Duration = Duration::from_millis(100);

/// All events of a run in the order in which they were closed, waiting for more until its writer has ended.
#[pyclass(frozen, module = "thalweg")]
pub(crate) struct Follow {
    follow: Mutex<(thalweg_store::Follow, Unreadable)>,
    path: String,
    sources: Arc<Sources>,
    errors: Errors,
}

impl Follow {
    pub(crate) fn new(follow: thalweg_store::Follow, path: String, sources: &Arc<Sources>, errors: Errors) -> Self {
        Self { follow: Mutex::new((follow, Unreadable::default())), path, sources: Arc::clone(sources), errors }
    }
}

#[pymethods]
impl Follow {
    fn __iter__(slf: PyRef<'_, Self>) -> PyRef<'_, Self> {
        slf
    }

    fn __next__(&self, py: Python<'_>) -> PyResult<Option<Event>> {
        loop {
            // The lock is taken with the interpreter released: another thread may hold it while it waits for events.
            let (next, mut unreadable) = py.detach(|| {
                let mut follow = self.follow.lock().unwrap_or_else(PoisonError::into_inner);
                (follow.0.next_event(SIGNAL_CHECK_INTERVAL), std::mem::take(&mut follow.1))
            });
            match next {
                Ok(next) => {
                    unreadable.warn_if_noted(py, &self.path)?;
                    match next {
                        Followed::Event(event) => return Ok(Some(Event::new(event, &self.sources))),
                        Followed::Quiet => py.check_signals()?,
                        Followed::End(end) => {
                            if end == End::WriterGone {
                                emit_warning(
                                    py,
                                    &format!("{}: the writer of the run died: the run was not closed", self.path),
                                )?;
                            }
                            return Ok(None);
                        }
                    }
                }
                Err(error) => {
                    unreadable.note_error(None, error, self.errors)?;
                    py.detach(|| self.follow.lock().unwrap_or_else(PoisonError::into_inner).1 = unreadable);
                }
            }
        }
    }

    fn __repr__(&self) -> String {
        format!("<thalweg.Follow of {}>", self.path)
    }
}
