//! Iterating over a run while it is written.

use crate::event::Event;
use crate::fragment::Shapes;
use crate::run_error;
use pyo3::prelude::*;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use thalweg_store::Followed;

/// How long Ctrl-C may have to wait. New events are not waited for in steps: they wake the wait at once.
const TIMEOUT: Duration = Duration::from_millis(100);

/// All events of a run in the order in which they were closed, waiting for more until its writer has ended.
#[pyclass(frozen, module = "thalweg")]
pub(crate) struct Follow {
    follow: Mutex<thalweg_store::Follow>,
    run: u32,
    shapes: Arc<Shapes>,
}

impl Follow {
    pub(crate) fn new(follow: thalweg_store::Follow, shapes: &Arc<Shapes>) -> Self {
        Self { run: follow.info().run, follow: Mutex::new(follow), shapes: Arc::clone(shapes) }
    }
}

#[pymethods]
impl Follow {
    fn __iter__(slf: PyRef<'_, Self>) -> PyRef<'_, Self> {
        slf
    }

    fn __next__(&self, py: Python<'_>) -> PyResult<Option<Event>> {
        loop {
            // The lock is taken without the interpreter: another thread may wait in here with it.
            let next = py.detach(|| {
                let mut follow = self.follow.lock().unwrap_or_else(PoisonError::into_inner);
                follow.next(TIMEOUT)
            });
            match next.map_err(run_error)? {
                Followed::Event(event) => return Ok(Some(Event::new(event, self.run, &self.shapes))),
                Followed::Quiet => py.check_signals()?,
                Followed::End(_) => return Ok(None),
            }
        }
    }
}
