//! `thalweg.open` and `thalweg.Run`.

use crate::event::Event;
use crate::follow::Follow;
use crate::fragment::Shapes;
use crate::run_error;
use pyo3::exceptions::PyKeyError;
use pyo3::prelude::*;
use std::path::PathBuf;
use std::sync::Arc;
use thalweg_store::{EventIds, RunState};
use thalweg_wire::EventId;

/// Opens a run directory, also one that is still being written or whose writer died.
#[pyfunction]
pub(crate) fn open(py: Python<'_>, path: PathBuf) -> PyResult<Run> {
    // A run that was not closed is read from end to end.
    let run = py.detach(|| thalweg_store::Run::open(&path)).map_err(run_error)?;
    let shapes = Arc::new(Shapes::of(run.info()));
    Ok(Run { run: Arc::new(run), shapes })
}

/// A run on disk. Iterating gives the closed events in the order of their numbers.
#[pyclass(frozen, module = "thalweg")]
pub(crate) struct Run {
    run: Arc<thalweg_store::Run>,
    shapes: Arc<Shapes>,
}

#[pymethods]
impl Run {
    #[getter]
    fn path(&self) -> String {
        self.run.path().display().to_string()
    }

    #[getter]
    fn info<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let text = serde_json::to_string(self.run.info()).map_err(run_error)?;
        py.import("json")?.call_method1("loads", (text,))
    }

    #[getter]
    fn number(&self) -> u32 {
        self.run.info().run
    }

    #[getter]
    fn state(&self) -> &'static str {
        match self.run.info().state {
            RunState::Open => "OPEN",
            RunState::Complete => "COMPLETE",
            RunState::Incomplete => "INCOMPLETE",
        }
    }

    #[getter]
    fn sources(&self) -> Vec<String> {
        self.run.info().sources.iter().map(|source| source.id.to_string()).collect()
    }

    fn event(&self, py: Python<'_>, event: u64) -> PyResult<Event> {
        match py.detach(|| self.run.event(EventId(event))).map_err(run_error)? {
            Some(found) => Ok(Event::new(found, self.run.info().run, &self.shapes)),
            None => Err(PyKeyError::new_err(event)),
        }
    }

    fn follow(&self, py: Python<'_>) -> PyResult<Follow> {
        let follow = py.detach(|| self.run.follow()).map_err(run_error)?;
        Ok(Follow::new(follow, &self.shapes))
    }

    fn __len__(&self) -> usize {
        usize::try_from(self.run.len()).unwrap_or(usize::MAX)
    }

    fn __iter__(&self) -> Events {
        Events { run: Arc::clone(&self.run), shapes: Arc::clone(&self.shapes), ids: self.run.event_ids() }
    }

    fn __repr__(&self) -> String {
        format!("<thalweg.Run {}: {}, {} events>", self.path(), self.state(), self.run.len())
    }
}

/// What iterating over a run goes through.
#[pyclass(module = "thalweg")]
struct Events {
    run: Arc<thalweg_store::Run>,
    shapes: Arc<Shapes>,
    ids: EventIds,
}

#[pymethods]
impl Events {
    fn __iter__(slf: PyRef<'_, Self>) -> PyRef<'_, Self> {
        slf
    }

    fn __next__(&mut self, py: Python<'_>) -> PyResult<Option<Event>> {
        let Some((id, status)) = self.ids.next() else { return Ok(None) };
        let event = py.detach(|| self.run.read_event(id, status)).map_err(run_error)?;
        Ok(Some(Event::new(event, self.run.info().run, &self.shapes)))
    }
}
