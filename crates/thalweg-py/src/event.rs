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

/// A built event: the data of all sources for the same trigger or time frame, a mapping from source to Fragment.
///
/// >>> event = thalweg.open("demo/run-000001").event(7)
/// >>> for source, fragment in event.items():
/// ...     print(source, fragment.array.shape)
/// 1.0 (5120, 1)
/// 1.1 (5120, 1)
/// >>> event["model-adc-0"]  # a source is named by its id, "1.0", or by its name
/// <thalweg.Fragment of event 7, source 1.0: 10240 bytes samples-i16, simulated>
///
/// The mapping has the fragments that are there. A source of which nothing came is in `missing`, with the reason:
///
/// >>> event.complete, event.missing
/// (True, {})
///
/// Keys are ids. A pickled event has its payloads with it.
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
                Err(PyKeyError::new_err(format!("event {id} has nothing of source {source}: {why}")))
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
    /// The event's number. Numbers may have gaps: one for which no source sent anything is not recorded.
    #[getter]
    fn id(&self) -> u64 {
        self.event.id.0
    }

    /// The run's number.
    #[getter]
    fn run(&self) -> u32 {
        self.sources.run
    }

    /// Whether every source's fragment came, also those that were not asked for.
    #[getter]
    fn complete(&self) -> bool {
        self.event.status == EventStatus::Complete
    }

    /// "complete", or "incomplete".
    #[getter]
    fn status(&self) -> &'static str {
        match self.event.status {
            EventStatus::Complete => "complete",
            EventStatus::Incomplete => "incomplete",
        }
    }

    /// The sources of which nothing came, a dict from id to reason: "dropped" (by the source's policy), "timed-out"
    /// (the deadline passed first), "lost-in-device", "corrupt" (it arrived damaged and was thrown away), or "missing"
    /// where no more is known, as of a source that left the number out or was gone.
    #[getter]
    fn missing<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let missing = PyDict::new(py);
        for fragment in self.event.fragments.iter().filter(|fragment| is_missing_fragment(fragment)) {
            missing.set_item(fragment.header.source.to_string(), missing_reason(fragment))?;
        }
        Ok(missing)
    }

    /// When it happened, in TAI nanoseconds since 1970: the earliest timestamp of its fragments, or None where none
    /// came.
    #[getter]
    fn timestamp(&self) -> Option<u64> {
        self.present_fragments().map(|fragment| fragment.header.timestamp.0).min()
    }

    /// `timestamp` as numpy.datetime64[ns] on the clock of TAI: see Fragment.time_tai.
    #[getter]
    fn time_tai<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        self.timestamp().map(|nanos| time::to_datetime_tai(py, nanos)).transpose()
    }

    /// `timestamp` as numpy.datetime64[ns] in UTC: see Fragment.time_utc.
    #[getter]
    fn time_utc<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        self.timestamp().map(|nanos| time::to_datetime_utc(py, nanos)).transpose()
    }

    /// The numbers that fits found, a dict from "source.feature" to number, such as "beam.sigma_major_mm"; empty
    /// without fits. "beam.failure" is the reason why there is no fit, or "".
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

    /// Number of fragments; missing ones do not count.
    fn __len__(&self) -> usize {
        self.present_fragments().count()
    }

    /// Goes through the ids of the sources whose fragments are there.
    fn __iter__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        Ok(PyList::new(py, self.keys())?.try_iter()?.into_any())
    }

    /// Whether this source's fragment is there.
    fn __contains__(&self, source: &Bound<'_, PyAny>) -> bool {
        self.find_fragment(source).is_ok()
    }

    /// The fragment of a source, by its id or name. Raises KeyError where it is missing, with the reason, and where the
    /// run has no such source.
    fn __getitem__(&self, source: &Bound<'_, PyAny>) -> PyResult<Fragment> {
        self.find_fragment(source)
    }

    /// The fragment of a source, by its id or name, or `default` where it is not there.
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

    /// The ids of the sources whose fragments are there, in ascending order.
    fn keys(&self) -> Vec<String> {
        self.present_fragments().map(|fragment| fragment.header.source.to_string()).collect()
    }

    /// The fragments that are there, in ascending order of sources.
    fn values(&self) -> Vec<Fragment> {
        self.present_fragments().map(|fragment| self.wrap_fragment(fragment)).collect()
    }

    /// Pairs of a source's id and its fragment, for those that are there.
    fn items(&self) -> Vec<(String, Fragment)> {
        self.keys().into_iter().zip(self.values()).collect()
    }

    /// By value: whoever loads it needs neither the run nor a way to it.
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

/// The event that [`Event::__reduce__`] took apart.
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
