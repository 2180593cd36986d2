//! The class `thalweg.Event`.

use crate::array::Dimensions;
use crate::fragment::{Fragment, Record, copy_record, fragment_from_record};
use crate::sources::{Known, Row, Sources};
use crate::time;
use pyo3::exceptions::PyKeyError;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};
use std::sync::Arc;
use thalweg_store::EventStatus;
use thalweg_wire::{EventId, SourceId, Status};

/// Built event: the fragments of all sources for the same trigger or time frame, as a read-only mapping from source id
/// to Fragment.
///
/// >>> event = thalweg.open("demo/run-000001").event(7)
/// >>> for source, fragment in event.items():
/// ...     print(source, fragment.array.shape)
/// 1.0 (5120, 1)
/// 1.1 (5120, 1)
/// >>> event["model-adc-0"]  # a key is a source's id, here "1.0", or its name
/// <thalweg.Fragment of event 7, source 1.0: 10240 bytes samples-i16, simulated>
///
/// The mapping contains the fragments that were recorded. The other sources are in `missing`, with the reason:
///
/// >>> event.complete, event.missing
/// (True, {})
///
/// Iteration and keys() give ids. A pickled event contains its payloads, so it can be loaded without the run.
#[pyclass(frozen, mapping, module = "thalweg")]
pub(crate) struct Event {
    event: thalweg_store::Event,
    sources: Arc<Sources>,
}

impl Event {
    pub(crate) fn new(event: thalweg_store::Event, sources: &Arc<Sources>) -> Self {
        Self { event, sources: Arc::clone(sources) }
    }

    fn wrap_fragment(&self, fragment: &thalweg_store::Fragment) -> Fragment {
        let shape = self.sources.source_by_id(fragment.header.source).map(|source| source.shape);
        Fragment::new(fragment.clone(), shape.unwrap_or_default())
    }

    /// Returns the fragments that are present, in ascending order of sources.
    fn present_fragments(&self) -> impl Iterator<Item = &thalweg_store::Fragment> {
        self.event.fragments.iter().filter(|fragment| !is_missing_fragment(fragment))
    }

    fn find_fragment(&self, key: &Bound<'_, PyAny>) -> PyResult<Fragment> {
        let source = self.sources.find_source(key)?;
        match self.event.fragment_of_source(source.id) {
            Some(fragment) if is_missing_fragment(fragment) => {
                let (id, why) = (self.id(), missing_reason(fragment));
                Err(PyKeyError::new_err(format!("event {id} has no fragment of source {source}: {why}")))
            }
            Some(fragment) => Ok(self.wrap_fragment(fragment)),
            None => Err(PyKeyError::new_err(format!(
                "source {source} was not selected when event {} was read: see 'sources' of run.events()",
                self.id()
            ))),
        }
    }
}

fn is_missing_fragment(fragment: &thalweg_store::Fragment) -> bool {
    fragment.header.status.contains(Status::MISSING)
}

/// Returns the reason why a fragment is missing, from the status of its record (docs/wire.md, status bits).
fn missing_reason(fragment: &thalweg_store::Fragment) -> String {
    let known = fragment.header.status - Status::MISSING - Status::NO_PAYLOAD_CRC;
    match known.flag_names().join(", ") {
        none if none.is_empty() => "missing".to_owned(),
        why => why,
    }
}

#[pymethods]
impl Event {
    /// Number of the event in the run. Numbers may have gaps: an event for which no source sent a fragment, or which a
    /// trigger level rejected, is not recorded.
    #[getter]
    fn id(&self) -> u64 {
        self.event.id.0
    }

    /// Number of the run.
    #[getter]
    fn run(&self) -> u32 {
        self.sources.run
    }

    /// True if the fragments of all sources of the run were recorded, including sources that were not selected with
    /// run.events(sources=...).
    #[getter]
    fn complete(&self) -> bool {
        self.event.status == EventStatus::Complete
    }

    /// Status of the event: "complete" or "incomplete", as the property `complete`.
    #[getter]
    fn status(&self) -> &'static str {
        match self.event.status {
            EventStatus::Complete => "complete",
            EventStatus::Incomplete => "incomplete",
        }
    }

    /// Sources without a fragment in this event, a dict from id to reason:
    ///
    /// - "dropped": the source's policy dropped the fragment.
    /// - "timed-out": the builder's deadline passed before the fragment arrived.
    /// - "lost-in-device": the device or its driver lost the data.
    /// - "corrupt": the fragment arrived damaged and was discarded.
    /// - "missing": no other reason is known; the source skipped this event, or was not connected.
    ///
    /// Several reasons are separated by ", ".
    #[getter]
    fn missing<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let missing = PyDict::new(py);
        for fragment in self.event.fragments.iter().filter(|fragment| is_missing_fragment(fragment)) {
            missing.set_item(fragment.header.source.to_string(), missing_reason(fragment))?;
        }
        Ok(missing)
    }

    /// Time of the event, an integer in nanoseconds of TAI since 1970: the earliest time of its fragments. None if it
    /// has no fragments, or none of them has a time.
    #[getter]
    fn timestamp(&self) -> Option<u64> {
        self.present_fragments().filter_map(|fragment| fragment.header.event_time()).map(|time| time.0).min()
    }

    /// `timestamp` as numpy.datetime64[ns] in TAI, or None: see Fragment.time_tai.
    #[getter]
    fn time_tai<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        self.timestamp().map(|nanos| time::to_datetime_tai(py, nanos)).transpose()
    }

    /// `timestamp` as numpy.datetime64[ns] in UTC, or None: see Fragment.time_utc.
    #[getter]
    fn time_utc<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        self.timestamp().map(|nanos| time::to_datetime_utc(py, nanos)).transpose()
    }

    /// Results of the fits in this event, a dict from "SOURCE.FEATURE" to float, such as "beam.sigma_major_mm". Empty
    /// if the run has no fits. "beam.failure" is a string: the reason why the fit failed, or "". Numbers of a failed
    /// fit are NaN.
    #[getter]
    fn features<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let features = PyDict::new(py);
        for fragment in self.present_fragments() {
            let Some(source) = self.sources.source_by_id(fragment.header.source) else { continue };
            let numbers = fragment.payload().chunks_exact(size_of::<f64>());
            for (feature, number) in source.row.features.iter().zip(numbers) {
                let number = number.first_chunk().copied().map_or(f64::NAN, f64::from_le_bytes);
                let key = format!("{}.{feature}", source.name);
                match feature.as_str() {
                    #[expect(
                        clippy::cast_possible_truncation,
                        clippy::cast_sign_loss,
                        reason = "an index; others saturate"
                    )]
                    "failure" => features.set_item(key, source.row.failures.get(number as usize))?,
                    _ => features.set_item(key, number)?,
                }
            }
        }
        Ok(features)
    }

    /// Number of fragments, without the missing ones.
    fn __len__(&self) -> usize {
        self.present_fragments().count()
    }

    /// Iterates over the ids of the sources that have a fragment.
    fn __iter__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        Ok(PyList::new(py, self.keys())?.try_iter()?.into_any())
    }

    /// Returns whether this source, given by id or name, has a fragment.
    fn __contains__(&self, source: &Bound<'_, PyAny>) -> bool {
        self.find_fragment(source).is_ok()
    }

    /// Returns the fragment of a source, given by id or name. Raises KeyError if the fragment is missing, with the
    /// reason, or if the run has no such source.
    fn __getitem__(&self, source: &Bound<'_, PyAny>) -> PyResult<Fragment> {
        self.find_fragment(source)
    }

    /// Returns the fragment of a source, given by id or name, or `default` if there is none.
    #[pyo3(signature = (source, default = None))]
    fn get<'py>(
        &self,
        py: Python<'py>,
        source: &Bound<'py, PyAny>,
        default: Option<Bound<'py, PyAny>>,
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        match self.find_fragment(source) {
            Ok(fragment) => Ok(Some(Bound::new(py, fragment)?.into_any())),
            Err(error) if error.is_instance_of::<PyKeyError>(py) => Ok(default),
            Err(error) => Err(error),
        }
    }

    /// Returns the ids of the sources that have a fragment, a list in ascending order.
    fn keys(&self) -> Vec<String> {
        self.present_fragments().map(|fragment| fragment.header.source.to_string()).collect()
    }

    /// Returns the fragments, a list in ascending order of source ids.
    fn values(&self) -> Vec<Fragment> {
        self.present_fragments().map(|fragment| self.wrap_fragment(fragment)).collect()
    }

    /// Returns pairs of source id and fragment, a list in ascending order of ids.
    fn items(&self) -> Vec<(String, Fragment)> {
        self.keys().into_iter().zip(self.values()).collect()
    }

    /// Pickles the event with its payloads, so that it can be loaded without the run.
    fn __reduce__<'py>(&self, py: Python<'py>) -> PyResult<(Bound<'py, PyAny>, Pickled<'py>)> {
        let restore = py.import("thalweg._thalweg")?.getattr("_event")?;
        let mut fragments = Vec::new();
        for fragment in &self.event.fragments {
            let source = self.sources.source_by_id(fragment.header.source);
            let known = source.map(|source| (source.name.clone(), source.shape, source.row.clone()));
            let (name, shape, row) = known.unwrap_or_default();
            fragments.push((copy_record(py, fragment)?, name, shape.into(), row));
        }
        Ok((restore, (self.run(), self.id(), self.complete(), fragments)))
    }

    fn __repr__(&self) -> String {
        let missing: Vec<SourceId> = self
            .event
            .fragments
            .iter()
            .filter(|fragment| is_missing_fragment(fragment))
            .map(|it| it.header.source)
            .collect();
        let missing = match &missing[..] {
            [] => String::new(),
            some => format!("; missing {}", some.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")),
        };
        let (id, run, status) = (self.id(), self.run(), self.status());
        format!("<thalweg.Event {id} of run {run}: {status}, {}{missing}>", self.keys().join(", "))
    }
}

/// Content of a pickled event: the run, the event's number, whether it is complete, and for each fragment its record,
/// its source's name, its payload's dimensions, and the names of its numbers.
type Pickled<'py> = (u32, u64, bool, Vec<(Record<'py>, String, Dimensions, Row)>);

/// Restores an event that [`Event::__reduce__`] pickled.
#[pyfunction]
pub(crate) fn _event(
    run: u32,
    id: u64,
    complete: bool,
    fragments: Vec<(Vec<u8>, String, Dimensions, Row)>,
) -> PyResult<Event> {
    let status = if complete { EventStatus::Complete } else { EventStatus::Incomplete };
    let mut known = Vec::new();
    let mut event = thalweg_store::Event { id: EventId(id), status, fragments: Vec::new() };
    for (record, name, dimensions, row) in fragments {
        let fragment = fragment_from_record(record)?;
        known.push(Known { id: fragment.header.source, name, shape: dimensions.into(), row });
        event.fragments.push(fragment);
    }
    Ok(Event { event, sources: Arc::new(Sources::new(run, known)) })
}
