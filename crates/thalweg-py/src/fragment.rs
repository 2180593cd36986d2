//! `thalweg.Fragment`.

use crate::array::{self, Shape};
use pyo3::prelude::*;
use std::collections::HashMap;
use thalweg_store::RunInfo;
use thalweg_wire::{SourceId, Status};

/// The dimensions of all sources' payloads.
pub(crate) struct Shapes(HashMap<SourceId, Shape>);

impl Shapes {
    pub(crate) fn of(info: &RunInfo) -> Self {
        Self(info.sources.iter().map(|source| (source.id, Shape::of(&source.description))).collect())
    }

    pub(crate) fn of_source(&self, source: SourceId) -> Shape {
        self.0.get(&source).copied().unwrap_or_default()
    }
}

impl FromIterator<(SourceId, Shape)> for Shapes {
    fn from_iter<T: IntoIterator<Item = (SourceId, Shape)>>(shapes: T) -> Self {
        Self(shapes.into_iter().collect())
    }
}

/// What one source says of one event: the fields of its header, and its payload.
#[pyclass(frozen, module = "thalweg")]
pub(crate) struct Fragment {
    fragment: thalweg_store::Fragment,
    shape: Shape,
}

impl Fragment {
    pub(crate) fn new(fragment: thalweg_store::Fragment, shape: Shape) -> Self {
        Self { fragment, shape }
    }
}

#[pymethods]
impl Fragment {
    #[getter]
    fn run(&self) -> u32 {
        self.fragment.header.run.0
    }

    #[getter]
    fn event(&self) -> u64 {
        self.fragment.header.event.0
    }

    #[getter]
    fn source(&self) -> String {
        self.fragment.header.source.to_string()
    }

    #[getter]
    fn timestamp(&self) -> u64 {
        self.fragment.header.timestamp.0
    }

    #[getter]
    fn sequence(&self) -> u32 {
        self.fragment.header.sequence
    }

    #[getter]
    fn window(&self) -> u32 {
        self.fragment.header.window
    }

    #[getter]
    fn status(&self) -> Vec<&'static str> {
        self.fragment.header.status.names()
    }

    #[getter]
    fn status_bits(&self) -> u32 {
        self.fragment.header.status.bits()
    }

    #[getter]
    fn payload_type(&self) -> &'static str {
        self.fragment.header.payload_type.name()
    }

    #[getter]
    fn payload_crc(&self) -> Option<u32> {
        let header = &self.fragment.header;
        (!header.status.contains(Status::NO_PAYLOAD_CRC)).then_some(header.payload_crc)
    }

    #[getter]
    fn payload<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        // SAFETY: the payload lies in a mapping that the fragment shares, in a block that is never written again, or in
        // memory that was filled before it was shared; the object is frozen, so it keeps this fragment for as long as
        // it lives.
        unsafe { array::bytes(slf.get().fragment.payload(), slf.as_any()) }
    }

    #[getter]
    fn array<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        let Self { fragment, shape } = slf.get();
        // SAFETY: as in `payload`.
        unsafe { array::typed(fragment.payload(), fragment.header.payload_type, *shape, slf.as_any()) }
    }

    fn verify(&self, py: Python<'_>) -> bool {
        py.detach(|| self.fragment.is_intact())
    }

    fn __len__(&self) -> usize {
        self.fragment.payload().len()
    }

    fn __repr__(&self) -> String {
        let header = &self.fragment.header;
        let (event, source, kind) = (header.event.0, header.source, header.payload_type.name());
        let status = header.status.names().join(" ");
        format!("<thalweg.Fragment of event {event}, source {source}: {} bytes {kind}, {status}>", header.piece_length)
    }
}
