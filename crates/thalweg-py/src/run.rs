//! `thalweg.open` and `thalweg.Run`.

use crate::event::Event;
use crate::follow::Follow;
use crate::fragment::Shapes;
use crate::run_error;
use numpy::PyArray1;
use pyo3::exceptions::{PyKeyError, PyUserWarning, PyValueError};
use pyo3::prelude::*;
use std::ffi::CString;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use thalweg_remote::{Options, is_url, open_run};
use thalweg_store::{EventIds, RunState};
use thalweg_wire::{EventId, SourceId};

/// Opens a run: a directory, or a URL of a data server. It may still be being written, or its writer may have died.
#[pyfunction]
#[pyo3(signature = (path, *, token = None, ca_file = None, timeout = 10.0))]
pub(crate) fn open(
    py: Python<'_>,
    path: PathBuf,
    token: Option<String>,
    ca_file: Option<PathBuf>,
    timeout: f64,
) -> PyResult<Run> {
    let url = path.to_str().filter(|path| is_url(path));
    if url.is_none() && (token.is_some() || ca_file.is_some()) {
        return Err(PyValueError::new_err("'token' and 'ca_file' are for a run on a server: http://… or https://…"));
    }
    let timeout = Duration::try_from_secs_f64(timeout)
        .map_err(|_| PyValueError::new_err("'timeout' is a number of seconds, not negative"))?;
    let run = py.detach(|| match url {
        Some(url) => {
            let token = token.or_else(|| std::env::var("THALWEG_TOKEN").ok());
            open_run(url, &Options { token, ca_file, timeout }).map_err(run_error)
        }
        // A run that was not closed is read from end to end.
        None => thalweg_store::Run::open(&path).map_err(run_error),
    })?;
    if let Some(text) = damage(&run) {
        PyErr::warn(py, &py.get_type::<PyUserWarning>(), &CString::new(text)?, 1)?;
    }
    let shapes = Arc::new(Shapes::of(run.info()));
    Ok(Run { run: Arc::new(run), shapes })
}

/// What is wrong with a run, as far as opening it tells.
fn damage(run: &thalweg_store::Run) -> Option<String> {
    let path = run.path().display();
    let less = (!run.is_whole()).then(|| {
        let (events, of) = (run.len(), run.info().totals.events);
        format!("{path} has {events} of the {of} events that its run.json tells of")
    });
    let damaged = run.problems().first().map(|problem| format!("{path} is damaged: {problem}"));
    let text = [less, damaged].into_iter().flatten().collect::<Vec<_>>().join("; ");
    // What it quotes from a file is nothing for a terminal.
    (!text.is_empty()).then(|| format!("{text}: `thalweg verify` says more").replace(char::is_control, "\u{fffd}"))
}

/// A run on disk, or on a server. Iterating gives the closed events in the order of their numbers.
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

    #[getter]
    fn nbytes(&self) -> u64 {
        self.run.bytes()
    }

    fn ids<'py>(&self, py: Python<'py>) -> Bound<'py, PyArray1<u64>> {
        let ids: Vec<u64> = py.detach(|| self.run.event_ids().map(|(id, _)| id.0).collect());
        PyArray1::from_vec(py, ids)
    }

    #[pyo3(signature = (first = None, last = None, sources = None))]
    fn events(&self, first: Option<u64>, last: Option<u64>, sources: Option<Vec<String>>) -> PyResult<Events> {
        let sources = sources.map(|names| names.iter().map(|name| self.find_source(name)).collect()).transpose()?;
        Ok(Events {
            run: Arc::clone(&self.run),
            shapes: Arc::clone(&self.shapes),
            ids: self.run.event_ids_from(EventId(first.unwrap_or(0))),
            last: EventId(last.unwrap_or(u64::MAX)),
            sources,
        })
    }

    fn __len__(&self) -> usize {
        usize::try_from(self.run.len()).unwrap_or(usize::MAX)
    }

    fn __iter__(&self) -> PyResult<Events> {
        self.events(None, None, None)
    }

    fn __repr__(&self) -> String {
        format!("<thalweg.Run {}: {}, {} events>", self.path(), self.state(), self.run.len())
    }
}

impl Run {
    /// The source of this id or name.
    fn find_source(&self, name: &str) -> PyResult<SourceId> {
        let mut sources = self.run.info().sources.iter();
        let found = sources.find(|source| source.name == name || source.id.to_string() == name);
        found.map(|source| source.id).ok_or_else(|| PyKeyError::new_err(name.to_owned()))
    }
}

/// What iterating over a run, or a part of it, goes through.
#[pyclass(module = "thalweg")]
struct Events {
    run: Arc<thalweg_store::Run>,
    shapes: Arc<Shapes>,
    ids: EventIds,
    last: EventId,
    /// The only ones whose fragments are given out.
    sources: Option<Vec<SourceId>>,
}

#[pymethods]
impl Events {
    fn __iter__(slf: PyRef<'_, Self>) -> PyRef<'_, Self> {
        slf
    }

    fn __next__(&mut self, py: Python<'_>) -> PyResult<Option<Event>> {
        let Some((id, status)) = self.ids.next().filter(|(id, _)| *id <= self.last) else { return Ok(None) };
        let mut event = py.detach(|| self.run.read_event(id, status)).map_err(run_error)?;
        if let Some(sources) = &self.sources {
            event.fragments.retain(|fragment| sources.contains(&fragment.header.source));
        }
        Ok(Some(Event::new(event, self.run.info().run, &self.shapes)))
    }
}
