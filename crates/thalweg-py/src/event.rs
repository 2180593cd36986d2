//! `thalweg.Event`.

use crate::RunError;
use crate::array::Dimensions;
use crate::fragment::{Fragment, Shapes};
use pyo3::exceptions::PyKeyError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList};
use std::sync::Arc;
use thalweg_store::EventStatus;
use thalweg_wire::{EventId, SourceId, Status};

/// A built event: one fragment of each source, a mapping from source to fragment.
#[pyclass(frozen, module = "thalweg")]
pub(crate) struct Event {
    event: thalweg_store::Event,
    run: u32,
    shapes: Arc<Shapes>,
}

impl Event {
    pub(crate) fn new(event: thalweg_store::Event, run: u32, shapes: &Arc<Shapes>) -> Self {
        Self { event, run, shapes: Arc::clone(shapes) }
    }

    fn fragment(&self, fragment: &thalweg_store::Fragment) -> Fragment {
        Fragment::new(fragment.clone(), self.shapes.of_source(fragment.header.source))
    }

    fn find(&self, source: &Bound<'_, PyAny>) -> Option<Fragment> {
        let source: SourceId = source.extract::<&str>().ok()?.parse().ok()?;
        self.event.fragment(source).map(|fragment| self.fragment(fragment))
    }

    fn present(&self) -> impl Iterator<Item = &thalweg_store::Fragment> {
        self.event.fragments.iter().filter(|fragment| !is_missing(fragment))
    }
}

fn is_missing(fragment: &thalweg_store::Fragment) -> bool {
    fragment.header.status.contains(Status::MISSING)
}

#[pymethods]
impl Event {
    #[getter]
    fn id(&self) -> u64 {
        self.event.id.0
    }

    #[getter]
    fn run(&self) -> u32 {
        self.run
    }

    #[getter]
    fn complete(&self) -> bool {
        self.event.status == EventStatus::Complete
    }

    #[getter]
    fn status(&self) -> &'static str {
        match self.event.status {
            EventStatus::Complete => "complete",
            EventStatus::Incomplete => "incomplete",
        }
    }

    #[getter]
    fn missing(&self) -> Vec<String> {
        let missing = self.event.fragments.iter().filter(|fragment| is_missing(fragment));
        missing.map(|fragment| fragment.header.source.to_string()).collect()
    }

    #[getter]
    fn timestamp(&self) -> Option<u64> {
        self.present().map(|fragment| fragment.header.timestamp.0).min()
    }

    fn __len__(&self) -> usize {
        self.event.fragments.len()
    }

    fn __iter__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        Ok(PyList::new(py, self.keys())?.try_iter()?.into_any())
    }

    fn __contains__(&self, source: &Bound<'_, PyAny>) -> bool {
        self.find(source).is_some()
    }

    fn __getitem__(&self, source: &Bound<'_, PyAny>) -> PyResult<Fragment> {
        self.find(source).ok_or_else(|| PyKeyError::new_err(source.clone().unbind()))
    }

    #[pyo3(signature = (source, default = None))]
    fn get<'py>(
        &self,
        py: Python<'py>,
        source: &Bound<'py, PyAny>,
        default: Option<Bound<'py, PyAny>>,
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        match self.find(source) {
            Some(fragment) => Ok(Some(Bound::new(py, fragment)?.into_any())),
            None => Ok(default),
        }
    }

    fn keys(&self) -> Vec<String> {
        self.event.fragments.iter().map(|fragment| fragment.header.source.to_string()).collect()
    }

    fn values(&self) -> Vec<Fragment> {
        self.event.fragments.iter().map(|fragment| self.fragment(fragment)).collect()
    }

    fn items(&self) -> Vec<(String, Fragment)> {
        self.keys().into_iter().zip(self.values()).collect()
    }

    /// By value: whoever loads it needs neither the run nor a way to it.
    fn __reduce__<'py>(&self, py: Python<'py>) -> PyResult<(Bound<'py, PyAny>, Pickled<'py>)> {
        let restore = py.import("thalweg._thalweg")?.getattr("_event")?;
        let copied = |fragment: &thalweg_store::Fragment| {
            let (header, payload) = (fragment.header.encode(), fragment.payload());
            let record = PyBytes::new_with(py, header.len() + payload.len(), |into| {
                let (head, body) = into.split_at_mut(header.len());
                head.copy_from_slice(&header);
                body.copy_from_slice(payload);
                Ok(())
            })?;
            Ok((record, self.shapes.of_source(fragment.header.source).into()))
        };
        let fragments: PyResult<_> = self.event.fragments.iter().map(copied).collect();
        Ok((restore, (self.run, self.event.id.0, self.event.status == EventStatus::Complete, fragments?)))
    }

    fn __repr__(&self) -> String {
        format!("<thalweg.Event {} of run {}: {}, {}>", self.id(), self.run, self.status(), self.keys().join(", "))
    }
}

/// The run, the event's number, whether it is complete, and of each fragment its record and its payload's dimensions.
type Pickled<'py> = (u32, u64, bool, Vec<(Bound<'py, PyBytes>, Dimensions)>);

/// The event that [`Event::__reduce__`] took apart.
#[pyfunction]
pub(crate) fn _event(run: u32, id: u64, complete: bool, fragments: Vec<(Vec<u8>, Dimensions)>) -> PyResult<Event> {
    let status = if complete { EventStatus::Complete } else { EventStatus::Incomplete };
    let mut shapes = Vec::new();
    let mut event = thalweg_store::Event { id: EventId(id), status, fragments: Vec::new() };
    for (record, dimensions) in fragments {
        let fragment = thalweg_store::Fragment::from_record(record);
        let fragment = fragment.ok_or_else(|| RunError::new_err("this is no pickled event"))?;
        shapes.push((fragment.header.source, dimensions.into()));
        event.fragments.push(fragment);
    }
    Ok(Event { event, run, shapes: Arc::new(shapes.into_iter().collect()) })
}
