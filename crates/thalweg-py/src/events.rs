//! The class `thalweg.Events`: all events of a run, or a selection.

use crate::damage::{Errors, Unreadable};
use crate::event::Event;
use crate::run::Run;
use crate::sources::Sources;
use crate::to_run_error;
use numpy::PyArray1;
use pyo3::exceptions::{PyIndexError, PyMemoryError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyRange, PyRangeMethods, PySlice};
use std::sync::Arc;
use thalweg_wire::{EventId, EventRange, SourceId};

/// Some events of a run, in the order of their numbers: what slicing a run, and run.events(), give.
///
/// It is a sequence, which reads an event when that is asked for:
///
/// >>> run = thalweg.open("demo/run-000001")
/// >>> run.events("10..20", sources=["model-adc-0"])
/// <thalweg.Events of demo/run-000001: 10 events, 10 to 19; sources 1.0>
/// >>> [event.id for event in run[10:20:4]]
/// [10, 14, 18]
///
/// Going through it passes over events that cannot be read and warns (DamageWarning), or raises RunError with
/// errors="raise". Asking for one by its place raises RunError. They count in len() and ids().
#[pyclass(frozen, module = "thalweg", sequence)]
pub(crate) struct Events {
    run: Py<Run>,
    store: Arc<thalweg_store::Run>,
    sources: Arc<Sources>,
    places: Places,
    /// Sources whose fragments are returned; all if `None`.
    chosen: Option<Vec<SourceId>>,
    errors: Errors,
}

/// Positions among all events of a run: `first`, `first + step`, …
#[derive(Debug, Clone, Copy)]
struct Places {
    first: isize,
    step: isize,
    count: isize,
}

impl Places {
    /// Returns the position at `index`, which must be in `0..count`.
    fn position_at(self, index: isize) -> u64 {
        (self.first + index * self.step).unsigned_abs() as u64
    }

    /// Returns the positions that a slice selects, given its own first, step and count.
    fn select_slice(self, first: isize, step: isize, count: isize) -> Self {
        // With one element the step is not used, and may be too large to multiply.
        match count {
            ..=0 => Self { first: 0, step: 1, count: 0 },
            1 => Self { first: self.first + first * self.step, step: 1, count },
            _ => Self { first: self.first + first * self.step, step: step * self.step, count },
        }
    }
}

impl Events {
    /// Returns all events of a run.
    pub(crate) fn all_events(run: &Bound<'_, Run>) -> PyResult<Self> {
        let (store, sources) = (run.get().open_store()?, run.get().shared_sources());
        let count = isize::try_from(store.len()).unwrap_or(isize::MAX);
        let places = Places { first: 0, step: 1, count };
        Ok(Self { run: run.clone().unbind(), store, sources, places, chosen: None, errors: Errors::Warn })
    }

    /// Returns the events of a run that are selected by their numbers.
    pub(crate) fn select_by_number(
        run: &Bound<'_, Run>,
        which: Option<&Bound<'_, PyAny>>,
        sources: Option<&Bound<'_, PyAny>>,
        errors: Errors,
    ) -> PyResult<Self> {
        let mut all = Self { errors, ..Self::all_events(run)? };
        if let Some(which) = which {
            let (first, end) = match parse_event_range(which)? {
                Some(EventRange { first, last: u64::MAX }) => (all.position_of_event(first), all.places.count),
                Some(EventRange { first, last }) => (all.position_of_event(first), all.position_of_event(last + 1)),
                None => (0, 0),
            };
            all.places = all.places.select_slice(first, 1, end - first);
        }
        if let Some(sources) = sources {
            // A single name is a list of one: taken as a sequence, it would be its letters.
            let names: Vec<Bound<'_, PyAny>> = match sources.extract::<String>() {
                Ok(_) => vec![sources.clone()],
                Err(_) => sources.try_iter()?.collect::<PyResult<_>>()?,
            };
            let chosen = names.iter().map(|name| all.sources.find_source(name).map(|source| source.id));
            all.chosen = Some(chosen.collect::<PyResult<_>>()?);
        }
        Ok(all)
    }

    /// Returns the position of an event of this number among all events of the run.
    fn position_of_event(&self, id: u64) -> isize {
        isize::try_from(self.store.events_before(EventId(id))).unwrap_or(isize::MAX)
    }

    fn event_id_at(&self, index: isize) -> PyResult<EventId> {
        let found = self.store.nth_event(self.places.position_at(index));
        found.ok_or_else(|| to_run_error(format_args!("{} announces more events than it has", self.run_path())))
    }

    fn read_event(&self, id: EventId) -> Result<Event, thalweg_store::StoreError> {
        let status = self.store.event_status(id).unwrap_or(thalweg_store::EventStatus::Incomplete);
        let mut event = self.store.read_event(id, status)?;
        if let Some(chosen) = &self.chosen {
            event.fragments.retain(|fragment| chosen.contains(&fragment.header.source));
        }
        Ok(Event::new(event, &self.sources))
    }

    fn run_path(&self) -> String {
        self.store.run_path().display().to_string()
    }

    /// Returns an event by its position, or a selection by a slice.
    pub(crate) fn item_or_slice<'py>(&self, index: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        let (py, count) = (index.py(), self.places.count);
        if let Ok(slice) = index.cast::<PySlice>() {
            let slice = slice.indices(count)?;
            let places = self.places.select_slice(slice.start, slice.step, slice.slicelength.cast_signed());
            return Ok(Bound::new(py, self.with_places(py, places))?.into_any());
        }
        let Some(place) = whole_number(index) else {
            let kind = index.get_type().name().map(|name| name.to_string()).unwrap_or_default();
            return Err(PyTypeError::new_err(format!(
                "events are indexed by position, a whole number or a slice, not by {kind}; run.event(7) is event \
                 number 7, run.events('7..10') are events 7, 8 and 9"
            )));
        };
        let from_start = if place < 0 { place + count as i128 } else { place };
        let from_start = isize::try_from(from_start).ok().filter(|at| (0..count).contains(at)).ok_or_else(|| {
            PyIndexError::new_err(format!(
                "position {place} is outside of the {count} events of {}: run[0] is the first, run[-1] the last; \
                 run.event(7) finds event number 7",
                self.run_path()
            ))
        })?;
        let id = self.event_id_at(from_start)?;
        let event = py.detach(|| self.read_event(id)).map_err(to_run_error)?;
        Ok(Bound::new(py, event)?.into_any())
    }

    fn with_places(&self, py: Python<'_>, places: Places) -> Self {
        let Self { run, store, sources, chosen, errors, .. } = self;
        let (store, sources) = (Arc::clone(store), Arc::clone(sources));
        Self { run: run.clone_ref(py), store, sources, places, chosen: chosen.clone(), errors: *errors }
    }

    pub(crate) fn iterate_events(slf: Bound<'_, Self>) -> EventIterator {
        EventIterator { events: slf.unbind(), next: 0, unreadable: Unreadable::default() }
    }
}

#[pymethods]
impl Events {
    /// The ids of the sources whose fragments are given out.
    #[getter]
    fn sources(&self) -> Vec<String> {
        let mut ids: Vec<SourceId> = self.sources.iter().map(|source| source.id).collect();
        ids.retain(|id| self.chosen.as_ref().is_none_or(|chosen| chosen.contains(id)));
        ids.iter().map(ToString::to_string).collect()
    }

    /// Their numbers, an array of uint64.
    pub(crate) fn ids<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyArray1<u64>>> {
        // A damaged run may claim more events than there is memory for.
        let mut ids = Vec::new();
        ids.try_reserve_exact(self.__len__()).map_err(|error| PyMemoryError::new_err(error.to_string()))?;
        py.detach(|| (0..self.places.count).try_for_each(|at| self.event_id_at(at).map(|id| ids.push(id.0))))?;
        Ok(PyArray1::from_vec(py, ids))
    }

    fn __len__(&self) -> usize {
        self.places.count.unsigned_abs()
    }

    /// The event at a place, counted from 0, or from the end where it is negative; a slice gives Events.
    fn __getitem__<'py>(&self, index: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        self.item_or_slice(index)
    }

    /// Raises TypeError: to find an event every one would be read. `7 in events.ids()` asks for a number.
    fn __contains__(&self, item: &Bound<'_, PyAny>) -> PyResult<bool> {
        refuse_containment(item)
    }

    /// Goes through them in order.
    fn __iter__(slf: Bound<'_, Self>) -> EventIterator {
        Self::iterate_events(slf)
    }

    /// A pandas.DataFrame with a row for each fragment that is there: event, source, name, time_tai (datetime64[ns]),
    /// sequence, window (ns), nbytes, payload_type and status. What else is given by name is a column too: a function
    /// of the fragment's array.
    ///
    /// >>> run = thalweg.open("demo/run-000001")
    /// >>> table = run.events("..100").to_dataframe(mean=numpy.mean, peak=numpy.max)
    /// >>> table.groupby("name")["peak"].max().shape
    /// (2,)
    ///
    /// The samples themselves are in to_xarray(). Needs pandas: pip install thalweg[pandas].
    #[pyo3(signature = (**columns))]
    pub(crate) fn to_dataframe<'py>(
        slf: &Bound<'py, Self>,
        columns: Option<&Bound<'py, PyDict>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        slf.py().import("thalweg._tables")?.call_method("dataframe", (slf, &slf.get().run), columns)
    }

    /// An xarray.Dataset with a variable for each source, named by it: samples as (event, sample, channel), images as
    /// (event, row, column), bytes as (event, byte). The coordinates are event, the numbers, and time_tai, an event's
    /// earliest time. All of it is copied into memory; thalweg.dask.array() reads one source in parts.
    ///
    /// >>> run = thalweg.open("demo/run-000001")
    /// >>> samples = run[:100].to_xarray()
    /// >>> samples["model-adc-0"].sizes["event"]
    /// 100
    ///
    /// That needs fragments of one shape and type from each source: raises ValueError with what is not so, and which
    /// events or sources to choose. A source whose length along a dimension is not that of sources before it has a
    /// dimension of its own, as sample_camera. With missing="raise", it raises ValueError where a fragment is missing,
    /// and RunError where an event cannot be read; missing="drop" leaves such events out. Needs xarray: pip install
    /// thalweg[xarray].
    #[pyo3(signature = (*, missing = "raise"))]
    pub(crate) fn to_xarray<'py>(slf: &Bound<'py, Self>, missing: &str) -> PyResult<Bound<'py, PyAny>> {
        slf.py().import("thalweg._tables")?.call_method1("dataset", (slf, &slf.get().run, missing))
    }

    /// By the run's path or URL: whoever loads it opens the run again.
    fn __reduce__<'py>(&self, py: Python<'py>) -> PyResult<(Bound<'py, PyAny>, Pickled)> {
        let Places { first, step, count } = self.places;
        let sources = self.chosen.as_ref().map(|_| self.sources());
        let restore = py.import("thalweg._thalweg")?.getattr("_events")?;
        Ok((restore, (self.run.clone_ref(py), first, step, count, sources, self.errors.argument_name().to_owned())))
    }

    fn __repr__(&self) -> String {
        let Places { count, .. } = self.places;
        let ids = match count {
            0 => String::new(),
            1 => self.event_id_at(0).map(|id| format!(", {}", id.0)).unwrap_or_default(),
            _ => match (self.event_id_at(0), self.event_id_at(count - 1)) {
                (Ok(first), Ok(last)) => format!(", {} to {}", first.0, last.0),
                _ => String::new(),
            },
        };
        let of = if count == 1 { "event" } else { "events" };
        format!("<thalweg.Events of {}: {count} {of}{ids}; sources {}>", self.run_path(), self.sources().join(", "))
    }
}

/// Content of pickled events: run, first position, step, count, sources, and the reaction to errors.
type Pickled = (Py<Run>, isize, isize, isize, Option<Vec<String>>, String);

/// The events that [`Events::__reduce__`] named.
#[pyfunction]
pub(crate) fn _events(
    run: &Bound<'_, Run>,
    first: isize,
    step: isize,
    count: isize,
    sources: Option<&Bound<'_, PyAny>>,
    errors: &str,
) -> PyResult<Events> {
    let events = Events::select_by_number(run, None, sources, Errors::parse_argument(errors)?)?;
    let last = count.checked_sub(1).and_then(|steps| steps.checked_mul(step)).and_then(|span| span.checked_add(first));
    let existing = 0..events.places.count;
    if count > 0 && !(existing.contains(&first) && last.is_some_and(|last| existing.contains(&last))) {
        return Err(PyValueError::new_err(format!(
            "{} has fewer events than when these were chosen",
            events.run_path()
        )));
    }
    Ok(Events { places: Places { first: 0, step: 1, count: isize::MAX }.select_slice(first, step, count), ..events })
}

/// Iterator over Events.
#[pyclass(module = "thalweg")]
pub(crate) struct EventIterator {
    events: Py<Events>,
    next: isize,
    unreadable: Unreadable,
}

#[pymethods]
impl EventIterator {
    fn __iter__(slf: PyRef<'_, Self>) -> PyRef<'_, Self> {
        slf
    }

    fn __next__(&mut self, py: Python<'_>) -> PyResult<Option<Event>> {
        let events = self.events.get();
        while self.next < events.places.count {
            let id = events.event_id_at(self.next)?;
            match py.detach(|| events.read_event(id)) {
                Ok(event) => {
                    // If the warning is turned into an exception, this event is returned the next time.
                    self.unreadable.warn_if_noted(py, &events.run_path())?;
                    self.next += 1;
                    return Ok(Some(event));
                }
                Err(error) => {
                    // The next call continues after a damaged event, and tries again where a server did not answer.
                    self.next += isize::from(error.is_data_damage());
                    self.unreadable.note_error(Some(id), error, events.errors)?;
                    py.check_signals()?;
                }
            }
        }
        self.unreadable.warn_if_noted(py, &events.run_path())?;
        Ok(None)
    }
}

/// Returns the range that a number, a range or a text denotes, or `None` for an empty range.
fn parse_event_range(which: &Bound<'_, PyAny>) -> PyResult<Option<EventRange>> {
    if let Ok(range) = which.cast::<PyRange>() {
        let (first, end): (i128, i128) = (range.getattr("start")?.extract()?, range.getattr("stop")?.extract()?);
        let (Ok(first), Ok(end), 1) = (u64::try_from(first), u64::try_from(end), range.step()?) else {
            return Err(PyValueError::new_err(format!("{range}: event numbers are 0 or more, in steps of 1")));
        };
        return Ok((first < end).then(|| EventRange { first, last: end - 1 }));
    }
    if whole_number(which).is_some() {
        let number = parse_event_number(which)?;
        return Ok(Some(EventRange { first: number.0, last: number.0 }));
    }
    let text: String = which.extract().map_err(|_| {
        PyTypeError::new_err("select events by a number such as 7, by range(10, 20), or by '10..20', '10..' or '..20'")
    })?;
    text.parse().map(Some).map_err(|error: thalweg_wire::EventRangeError| PyValueError::new_err(error.to_string()))
}

/// Raises the error for `item in run`.
pub(crate) fn refuse_containment(item: &Bound<'_, PyAny>) -> PyResult<bool> {
    let item = item.repr()?;
    Err(PyTypeError::new_err(format!("cannot test for {item}: use event numbers, such as 7 in run.ids()")))
}

/// Returns the whole number in an object of any type that has one.
fn whole_number(number: &Bound<'_, PyAny>) -> Option<i128> {
    number.call_method0("__index__").ok()?.extract().ok()
}

/// Returns an event's number.
pub(crate) fn parse_event_number(number: &Bound<'_, PyAny>) -> PyResult<EventId> {
    let Some(number) = whole_number(number) else {
        let kind = number.get_type().name().map(|name| name.to_string()).unwrap_or_default();
        return Err(PyTypeError::new_err(format!("an event's number is a whole number, not {kind}")));
    };
    u64::try_from(number).map(EventId).map_err(|_| {
        PyValueError::new_err(format!(
            "event {number}: numbers are 0 or more, up to 2**64 - 1; run[-1] is the last event"
        ))
    })
}
