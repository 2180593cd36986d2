//! `thalweg.Event`.

use crate::fragment::{Fragment, Shapes};
use pyo3::exceptions::PyKeyError;
use pyo3::prelude::*;
use pyo3::types::PyList;
use std::sync::Arc;
use thalweg_store::EventStatus;
use thalweg_wire::{SourceId, Status};

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

    fn __repr__(&self) -> String {
        format!("<thalweg.Event {} of run {}: {}, {}>", self.id(), self.run, self.status(), self.keys().join(", "))
    }
}
