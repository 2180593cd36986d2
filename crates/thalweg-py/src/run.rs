//! The function `thalweg.open` and the class `thalweg.Run`.

use crate::damage::{Errors, emit_warning};
use crate::event::Event;
use crate::events::{EventIterator, Events, parse_event_number, refuse_containment};
use crate::follow::Follow;
use crate::sources::Sources;
use crate::{RunError, time, to_run_error};
use numpy::PyArray1;
use pyo3::exceptions::{PyKeyError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyDict;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use thalweg_remote::{Options, RemoteError, is_run_url, open_remote_run};
use thalweg_store::{RunState, StoreError, WriterLife};

/// Opens a run for reading and returns a Run.
///
/// `path` is the run's directory, or its URL on a server (`thalweg serve`), such as "http://daq-0:8042/runs/42". The
/// run may still be written, and its writer may have died. If several builders wrote the run, each has a directory of
/// its own, "runs/run-000042-b0", "runs/run-000042-b1", …; the path "runs/run-000042" opens all of them as one run.
///
/// >>> run = thalweg.open("demo/run-000001")
/// >>> run.state, run.sources
/// ('COMPLETE', ['1.0', '1.1'])
///
/// Three arguments are for runs on a server:
///
/// - `token` is sent to the server; the default is the value of the environment variable THALWEG_TOKEN.
/// - `ca_file` is a PEM file with the certificates to trust, in place of those of the system.
/// - `timeout` is the time in seconds for which each request is repeated while the server does not answer. After that,
///   RunError is raised.
///
/// Raises RunError if there is no run at `path` or run.json cannot be read, and ValueError if `token` or `ca_file` is
/// given for a directory. If data are missing or damaged, for example because a file was truncated, the run opens with
/// a DamageWarning.
#[pyfunction]
#[pyo3(signature = (path, *, token = None, ca_file = None, timeout = 10.0))]
pub(crate) fn open(
    py: Python<'_>,
    path: PathBuf,
    token: Option<String>,
    ca_file: Option<PathBuf>,
    timeout: f64,
) -> PyResult<Run> {
    let url = path.to_str().filter(|path| is_run_url(path));
    if url.is_none() && (token.is_some() || ca_file.is_some()) {
        return Err(PyValueError::new_err("'token' and 'ca_file' need a run on a server: http://… or https://…"));
    }
    let waited = Duration::try_from_secs_f64(timeout)
        .map_err(|_| PyValueError::new_err("'timeout' must be a number of seconds, 0 or more"))?;
    let run = py.detach(|| match url {
        Some(url) => {
            let token = token.or_else(|| std::env::var("THALWEG_TOKEN").ok());
            let options = Options { token, ca_file: ca_file.clone(), timeout: waited };
            open_remote_run(url, &options).map_err(|error| no_served_run_error(url, error))
        }
        // A run that was not closed is read from end to end.
        None => thalweg_store::Run::open(&path).map_err(|error| no_run_error(&path, error)),
    })?;
    if let Some(text) = describe_damage(&run) {
        emit_warning(py, &text)?;
    }
    let sources = Arc::new(Sources::from_run_info(run.run_info()));
    let path = run.run_path().display().to_string();
    let place = match is_run_url(&path) {
        true => path.clone(),
        false => std::path::absolute(&path)?.display().to_string(),
    };
    Ok(Run { store: Mutex::new(Some(Arc::new(run))), path, place, sources, ca_file, timeout })
}

/// Returns the error for a URL that names no run.
fn no_served_run_error(url: &str, error: RemoteError) -> PyErr {
    match error {
        RemoteError::Store(error @ StoreError::NotARun(_)) => {
            let server: Vec<&str> = url.splitn(4, '/').take(3).collect();
            let server = server.join("/");
            to_run_error(format_args!(
                "{error}; {server}/ lists the runs of this server, which are at {server}/runs/42"
            ))
        }
        other => to_run_error(other),
    }
}

/// Returns the error for a path that is no run, with what may have been meant.
fn no_run_error(path: &Path, error: StoreError) -> PyErr {
    let (StoreError::NotARun(_), text) = (&error, path.to_string_lossy()) else { return to_run_error(error) };
    let host = text.split_once('/').map(|(host, _)| host).filter(|host| host.contains(':') && !text.contains("://"));
    let instead = match (host, thalweg_store::list_runs(path)) {
        _ if path.is_file() => "this is a file; open the directory that contains it".to_owned(),
        (Some("http:" | "https:"), _) => {
            "pass a URL as a string, not as a Path, which drops one of its slashes".to_owned()
        }
        (Some(_), _) if !path.exists() => format!("a run on a server is opened by its URL: http://{text}"),
        _ if text.contains("://") => "a URL of a run begins with http:// or https://".to_owned(),
        _ if text.starts_with('~') => "'~' is not expanded: see os.path.expanduser".to_owned(),
        _ if !path.exists() => "no such directory".to_owned(),
        (_, Ok(runs)) if !runs.is_empty() => {
            let last = runs.last().map(|run| run.path.display().to_string()).unwrap_or_default();
            format!("it contains runs; open one of them, such as {last}")
        }
        _ => "it has no run.json".to_owned(),
    };
    RunError::new_err(format!("{text} is not a run: {instead}"))
}

/// Returns a description of the damage that opening a run detects.
fn describe_damage(run: &thalweg_store::Run) -> Option<String> {
    let path = run.run_path().display();
    let less = (!run.has_declared_data()).then(|| {
        let (events, of) = (run.len(), run.run_info().totals.events);
        format!("{path} has {events} of the {of} events that its run.json states")
    });
    let damaged = run.found_problems().first().map(|problem| format!("{path} is damaged: {problem}"));
    let text = [less, damaged].into_iter().flatten().collect::<Vec<_>>().join("; ");
    (!text.is_empty()).then(|| format!("{text}: `thalweg verify` shows more"))
}

/// Recorded run, on disk or on a server: a read-only sequence of its events, in ascending order of event numbers.
///
/// `thalweg.open` returns a Run. `run[i]` and slices count positions from 0; `event` and `events` use event numbers,
/// which may have gaps.
///
/// >>> run = thalweg.open("demo/run-000001")
/// >>> for event in run:
/// ...     peaks = [fragment.array.max() for fragment in event.values()]
/// >>> first, last = run[0], run[-1]  # by position
/// >>> first
/// <thalweg.Event 0 of run 1: complete, 1.0, 1.1>
/// >>> run.event(7)  # by event number
/// <thalweg.Event 7 of run 1: complete, 1.0, 1.1>
/// >>> run[10:20]  # by position; run.events("10..20") selects by event number
/// <thalweg.Events of demo/run-000001: 10 events, 10 to 19; sources 1.0, 1.1>
///
/// All properties, and the list of events, are those at the time of opening, even if the run is still being written.
/// `follow` iterates over events as they are written; open the run again after its end for the final state and ledger.
/// Iteration skips events that cannot be read because a block is damaged, and emits a DamageWarning;
/// `events(errors="raise")` raises RunError instead.
///
/// Opening a local run maps its files into memory. From a server, whole blocks (4 MiB by default) are fetched when an
/// event in them is read, once for all threads, and each is checked against its checksum. When events are read in
/// order, the next block is fetched ahead. The last 128 MiB of blocks are kept in memory, and all blocks that an array
/// refers to.
///
/// A pickled run contains its absolute path or URL, `ca_file` and `timeout`, and is opened again when it is loaded. The
/// token is not pickled: set THALWEG_TOKEN in the process that loads the run.
#[pyclass(frozen, module = "thalweg", sequence)]
pub(crate) struct Run {
    /// The open run; `None` after it was closed.
    store: Mutex<Option<Arc<thalweg_store::Run>>>,
    path: String,
    /// Absolute path or URL, since `path` may begin in another directory where the run is loaded.
    place: String,
    sources: Arc<Sources>,
    ca_file: Option<PathBuf>,
    timeout: f64,
}

#[pymethods]
impl Run {
    /// Directory or URL of the run, as it was opened.
    #[getter]
    fn path(&self) -> &str {
        &self.path
    }

    /// Contents of run.json when the run was opened, as a dict. The keys are described in docs/run-format.md;
    /// info["ledger"] is the ledger, one dict for each source, or None before the run has ended.
    #[getter]
    fn info<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let text = serde_json::to_string(self.open_store()?.run_info()).map_err(to_run_error)?;
        py.import("json")?.call_method1("loads", (text,))
    }

    /// Number of the run.
    #[getter]
    fn number(&self) -> u32 {
        self.sources.run
    }

    /// State of the run: "COMPLETE" if every event is whole and every fragment accounted for, "INCOMPLETE" if not (see
    /// `reasons`), "OPEN" if the run has not been closed (see `writing`).
    #[getter]
    fn state(&self) -> PyResult<&'static str> {
        Ok(match self.open_store()?.run_info().state {
            RunState::Open => "OPEN",
            RunState::Complete => "COMPLETE",
            RunState::Incomplete => "INCOMPLETE",
        })
    }

    /// Reasons why the run is INCOMPLETE, a list of sentences. Empty if it is not.
    #[getter]
    fn reasons(&self) -> PyResult<Vec<String>> {
        Ok(self.open_store()?.run_info().reasons.clone())
    }

    /// Comment on the run (run.comment in the topology, `thalweg run --comment`), or "".
    #[getter]
    fn comment(&self) -> PyResult<String> {
        Ok(self.open_store()?.run_info().comment.clone())
    }

    /// Purpose of the run: "physics", or "test".
    #[getter]
    fn kind(&self) -> PyResult<&'static str> {
        Ok(self.open_store()?.run_info().kind.name())
    }

    /// Steps of a scan, a list of dicts in ascending order: "event" (first event of the step), "at" (time at which it was
    /// asked for, TAI nanoseconds), "label" and, if there is any, "data". Empty if there are none.
    #[getter]
    fn steps<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let text = serde_json::to_string(&self.open_store()?.run_info().steps).map_err(to_run_error)?;
        py.import("json")?.call_method1("loads", (text,))
    }

    /// Times of the run's course, a dict of TAI nanoseconds: "asked" (the run was asked for), "first_event" (the first
    /// event of all sources was closed), "stop_asked", "last_event" and "on_disk". What did not happen is left out.
    #[getter]
    fn times<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let text = serde_json::to_string(&self.open_store()?.run_info().times).map_err(to_run_error)?;
        py.import("json")?.call_method1("loads", (text,))
    }

    /// Metadata of the run ([run.metadata] in the topology): a dict of strings, numbers, lists and dicts. Dates and times
    /// are strings (ISO 8601).
    #[getter]
    fn metadata<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let text = serde_json::to_string(&self.open_store()?.run_info().metadata).map_err(to_run_error)?;
        py.import("json")?.call_method1("loads", (text,))
    }

    /// True if the run was being written when it was opened, False if it had been closed or its writer had died, None
    /// if that is unknown (for example on a file system without locks).
    #[getter]
    fn writing(&self) -> PyResult<Option<bool>> {
        Ok(match self.open_store()?.writer_life() {
            Some(WriterLife::Writing) => Some(true),
            Some(WriterLife::Gone) | None => Some(false),
            Some(WriterLife::Unknown) => None,
        })
    }

    /// Ids of the sources, a list of strings "subsystem.element" such as "1.0", in ascending order.
    #[getter]
    fn sources(&self) -> Vec<String> {
        self.sources.iter().map(|source| source.id.to_string()).collect()
    }

    /// Names of the sources, a dict from id to name.
    #[getter]
    fn names<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let names = PyDict::new(py);
        for source in self.sources.iter() {
            names.set_item(source.id.to_string(), &source.name)?;
        }
        Ok(names)
    }

    /// Start time as numpy.datetime64[ns] in TAI. info["began"] is the same time as an integer in nanoseconds.
    #[getter]
    fn began_tai<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        time::to_datetime_tai(py, self.open_store()?.run_info().began)
    }

    /// Start time as numpy.datetime64[ns] in UTC.
    #[getter]
    fn began_utc<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        time::to_datetime_utc(py, self.open_store()?.run_info().began)
    }

    /// End time as numpy.datetime64[ns] in TAI, or None if the run has not been closed.
    #[getter]
    fn ended_tai<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        self.open_store()?.run_info().ended.map(|ended| time::to_datetime_tai(py, ended)).transpose()
    }

    /// End time as numpy.datetime64[ns] in UTC, or None if the run has not been closed.
    #[getter]
    fn ended_utc<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        self.open_store()?.run_info().ended.map(|ended| time::to_datetime_utc(py, ended)).transpose()
    }

    /// Size of the run's data blocks in bytes: payloads, fragment headers, padding and block headers.
    #[getter]
    fn nbytes(&self) -> PyResult<u64> {
        Ok(self.open_store()?.data_bytes())
    }

    /// Returns the numbers of all events, an array of uint64 in ascending order: `run[i]` is event `run.ids()[i]`.
    fn ids<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyArray1<u64>>> {
        Events::all_events(slf)?.ids(slf.py())
    }

    /// Returns the event with this number.
    ///
    /// The number need not equal the event's position in the run: see `ids`. Raises KeyError if the run has no event of
    /// this number, or if the event was not closed before the writer died, and RunError if the event cannot be read.
    fn event(&self, py: Python<'_>, number: &Bound<'_, PyAny>) -> PyResult<Event> {
        let (number, store) = (parse_event_number(number)?, self.open_store()?);
        match py.detach(|| store.find_event(number)).map_err(to_run_error)? {
            Some(found) => Ok(Event::new(found, &self.sources)),
            None => Err(PyKeyError::new_err(self.no_event_reason(&store, number.0))),
        }
    }

    /// Returns a selection of events by their numbers, as Events.
    ///
    /// `which` is one number, range(10, 20), or a string "10..20", "10..", "..20"; the end is excluded. The default is
    /// all events. Numbers that the run does not have are left out without an error. `sources` is an id or name, or a
    /// list of them: events then contain fragments of these sources only. Nothing is read before an event is accessed.
    ///
    /// With errors="warn", iteration skips events that cannot be read and emits a DamageWarning; with errors="raise" it
    /// raises RunError. Raises KeyError for a source that the run does not have, and ValueError or TypeError if `which`
    /// is not valid, such as a negative number.
    #[pyo3(signature = (which = None, *, sources = None, errors = "warn"))]
    fn events(
        slf: &Bound<'_, Self>,
        which: Option<&Bound<'_, PyAny>>,
        sources: Option<&Bound<'_, PyAny>>,
        errors: &str,
    ) -> PyResult<Events> {
        Events::select_by_number(slf, which, sources, Errors::parse_argument(errors)?)
    }

    /// Iterates over all events from the first on, in the order in which they were closed, and waits for more until the
    /// run ends.
    ///
    /// Iteration stops when the writer has closed the run, or with a DamageWarning when the writer has died. Other
    /// threads run during the wait, and Ctrl-C interrupts it. A server is polled every 0.5 s. `errors` is that of
    /// `events`.
    #[pyo3(signature = (*, errors = "warn"))]
    fn follow(&self, py: Python<'_>, errors: &str) -> PyResult<Follow> {
        let (errors, store) = (Errors::parse_argument(errors)?, self.open_store()?);
        let follow = py.detach(|| store.follow_events()).map_err(to_run_error)?;
        Ok(Follow::new(follow, self.path.clone(), &self.sources, errors))
    }

    /// Returns a pandas.DataFrame with one row per fragment.
    ///
    /// Each keyword argument adds a column: to_dataframe(mean=numpy.mean) has the mean of each fragment's array. See
    /// Events.to_dataframe. For a part of the run, use run.events(...).to_dataframe() or run[...].to_dataframe().
    #[pyo3(signature = (**columns))]
    fn to_dataframe<'py>(slf: &Bound<'py, Self>, columns: Option<&Bound<'py, PyDict>>) -> PyResult<Bound<'py, PyAny>> {
        Events::to_dataframe(&Bound::new(slf.py(), Events::all_events(slf)?)?, columns)
    }

    /// Returns a pandas.DataFrame of the fits that were made while the run was taken.
    ///
    /// Such a fit is a source with device = { kind = "fit", … } in the topology. The table has one row for each event
    /// with a fit, indexed by event number, and one column for each feature, named "SOURCE.FEATURE", such as
    /// "beam.sigma_major_mm". Where a fit failed its numbers are NaN and "SOURCE.failure" is the reason; otherwise
    /// "SOURCE.failure" is "". Empty if the run has no fits. Needs pandas: pip install thalweg[pandas].
    fn features<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        slf.py().import("thalweg._tables")?.call_method1("features", (slf,))
    }

    /// Writes the run, or a part of it, as a file of another format: `to` is "nexus", "hdf5", "sigmf", "parquet", "zarr",
    /// "root" or "csv". See help(thalweg.export.export), which has the other arguments. Needs pip install thalweg[export].
    #[pyo3(signature = (to, path = None, **options))]
    fn export<'py>(
        slf: &Bound<'py, Self>,
        to: &str,
        path: Option<&Bound<'py, PyAny>>,
        options: Option<&Bound<'py, PyDict>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        slf.py().import("thalweg.export")?.getattr("export")?.call((slf, to, path), options)
    }

    /// Returns an xarray.Dataset with the samples of each source, copied into memory.
    ///
    /// See Events.to_xarray. For a part of the run, use run.events(...).to_xarray() or run[...].to_xarray().
    #[pyo3(signature = (*, missing = "raise"))]
    fn to_xarray<'py>(slf: &Bound<'py, Self>, missing: &str) -> PyResult<Bound<'py, PyAny>> {
        Events::to_xarray(&Bound::new(slf.py(), Events::all_events(slf)?)?, missing)
    }

    /// Closes the run's files, as the end of a `with` block does.
    ///
    /// Events, fragments and arrays that were read before remain valid. Reading from the closed run raises ValueError.
    fn close(&self) {
        self.store.lock().unwrap_or_else(PoisonError::into_inner).take();
    }

    /// Returns the run, which is closed at the end of the `with` block.
    fn __enter__<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, Self>> {
        slf.get().open_store().map(|_| slf.clone())
    }

    /// Closes the run.
    fn __exit__(&self, _kind: &Bound<'_, PyAny>, _error: &Bound<'_, PyAny>, _traceback: &Bound<'_, PyAny>) {
        self.close();
    }

    /// Number of events.
    fn __len__(&self) -> PyResult<usize> {
        Ok(usize::try_from(self.open_store()?.len()).unwrap_or(usize::MAX))
    }

    /// Returns the event at a position, counted from 0, or from the end if negative. A slice returns Events. Raises
    /// IndexError if there is no such position, and RunError if the event cannot be read.
    fn __getitem__<'py>(slf: &Bound<'py, Self>, index: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        Events::all_events(slf)?.item_or_slice(index)
    }

    /// Raises TypeError, since every event would have to be read. Use `7 in run.ids()` to look for an event number.
    fn __contains__(&self, item: &Bound<'_, PyAny>) -> PyResult<bool> {
        refuse_containment(item)
    }

    /// Iterates over the events in ascending order of their numbers. Skips events that cannot be read, with a
    /// DamageWarning.
    fn __iter__(slf: &Bound<'_, Self>) -> PyResult<EventIterator> {
        Ok(Events::iterate_events(Bound::new(slf.py(), Events::all_events(slf)?)?))
    }

    /// Pickles the path or URL, from which the run is opened again when it is loaded.
    fn __reduce__<'py>(&self, py: Python<'py>) -> PyResult<(Bound<'py, PyAny>, Pickled)> {
        let restore = py.import("thalweg._thalweg")?.getattr("_run")?;
        Ok((restore, (self.place.clone(), self.ca_file.clone(), self.timeout)))
    }

    fn __repr__(&self) -> String {
        let Ok(store) = self.open_store() else { return format!("<thalweg.Run {}: closed>", self.path) };
        let state = match (self.state().unwrap_or_default(), store.writer_life()) {
            (state, Some(WriterLife::Writing)) => format!("{state}, being written"),
            (state, Some(WriterLife::Gone)) => format!("{state}, its writer died"),
            (state, _) => state.to_owned(),
        };
        format!("<thalweg.Run {}: {state}, {} events>", self.path, store.len())
    }

    /// Returns HTML for notebooks, with state, reasons and ledger; None if the run was closed, so that its repr is
    /// shown.
    fn _repr_html_<'py>(slf: &Bound<'py, Self>) -> PyResult<Option<Bound<'py, PyAny>>> {
        match slf.get().open_store() {
            Ok(_) => slf.py().import("thalweg._html")?.call_method1("run", (slf,)).map(Some),
            Err(_) => Ok(None),
        }
    }
}

/// Content of a pickled run: the path or URL, `ca_file`, and `timeout`.
type Pickled = (String, Option<PathBuf>, f64);

/// Opens the run that [`Run::__reduce__`] pickled.
#[pyfunction]
pub(crate) fn _run(py: Python<'_>, path: PathBuf, ca_file: Option<PathBuf>, timeout: f64) -> PyResult<Run> {
    open(py, path, None, ca_file, timeout)
}

impl Run {
    pub(crate) fn open_store(&self) -> PyResult<Arc<thalweg_store::Run>> {
        let store = self.store.lock().unwrap_or_else(PoisonError::into_inner);
        store.clone().ok_or_else(|| {
            PyValueError::new_err(format!("{} is closed: open it again, or read inside the 'with' block", self.path))
        })
    }

    pub(crate) fn shared_sources(&self) -> Arc<Sources> {
        Arc::clone(&self.sources)
    }

    /// Returns the reason why there is no event of this number.
    fn no_event_reason(&self, store: &thalweg_store::Run, number: u64) -> String {
        let has = match (store.nth_event(0), store.len().checked_sub(1).and_then(|last| store.nth_event(last))) {
            (Some(first), Some(last)) => format!("it has {} events, {} to {}", store.len(), first.0, last.0),
            _ => "it has no events".to_owned(),
        };
        let more = match (store.writer_life(), store.has_declared_data()) {
            (Some(WriterLife::Gone), _) => "; its writer died",
            (Some(_), _) => " so far; follow() waits for more, and opening the run again shows them",
            (None, false) => "; some are lost, and `thalweg verify` shows which",
            (None, true) => "; ids() returns their numbers",
        };
        format!("event {number} is not in run {}: {has}{more}", self.sources.run)
    }
}
