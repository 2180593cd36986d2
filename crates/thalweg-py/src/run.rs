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

/// Opens a run, also one that is still being written or whose writer died: its directory, or its URL on a server
/// (`thalweg serve`), such as "http://daq-0:8042/runs/42". Where several builders wrote it, "runs/run-000042" is what all
/// of them wrote, in "runs/run-000042-b0", "runs/run-000042-b1", …
///
/// >>> run = thalweg.open("demo/run-000001")
/// >>> run.state, run.sources
/// ('COMPLETE', ['1.0', '1.1'])
///
/// A server gets `token`, or what the environment variable THALWEG_TOKEN says; `ca_file` (PEM) has the certificates
/// that vouch for it, instead of the system's. While it cannot be reached it is asked again, for `timeout` seconds, in
/// all that is done with the run; then RunError is raised.
///
/// Raises RunError where there is no run. Where less is there than run.json tells of, as of a file that was cut off, a
/// DamageWarning says so.
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
        .map_err(|_| PyValueError::new_err("'timeout' is a number of seconds, not negative"))?;
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

/// A run: what was recorded from its beginning to its end, on disk or on a server. A sequence of its events, in the
/// order of their numbers.
///
/// >>> run = thalweg.open("demo/run-000001")
/// >>> for event in run:
/// ...     peaks = [fragment.array.max() for fragment in event.values()]
/// >>> first, last = run[0], run[-1]  # by place
/// >>> first
/// <thalweg.Event 0 of run 1: complete, 1.0, 1.1>
/// >>> run.event(7)  # by number; numbers may have gaps
/// <thalweg.Event 7 of run 1: complete, 1.0, 1.1>
/// >>> run[10:20]  # the same two ways for some of them; run.events("10..20") goes by number
/// <thalweg.Events of demo/run-000001: 10 events, 10 to 19; sources 1.0, 1.1>
///
/// What it says of itself is as it was when it was opened, also while the run is written: `follow` gives the events
/// that come later, and a run that is opened again when that has ended says how. Events that cannot be read, because a
/// block is damaged, are passed over with a DamageWarning; `events(errors="raise")` stops there.
///
/// Of a run on a server whole blocks are fetched, when their events are read and once for all threads; in order, the
/// next one meanwhile. Each is checked against its checksum. The last 128 MiB are kept, and what arrays look into.
///
/// A pickled run is its path, and is opened again where it is loaded. A token is not pickled: there, THALWEG_TOKEN has
/// it.
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
    /// The run's directory, or URL.
    #[getter]
    fn path(&self) -> &str {
        &self.path
    }

    /// Contents of run.json when the run was opened: a dict, as docs/run-format.md describes it.
    #[getter]
    fn info<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let text = serde_json::to_string(self.open_store()?.run_info()).map_err(to_run_error)?;
        py.import("json")?.call_method1("loads", (text,))
    }

    /// The run's number.
    #[getter]
    fn number(&self) -> u32 {
        self.sources.run
    }

    /// Whether all that was accepted is here ("COMPLETE"), something is missing ("INCOMPLETE", see `reasons`), or the
    /// run was not ended ("OPEN", see `writing`).
    #[getter]
    fn state(&self) -> PyResult<&'static str> {
        Ok(match self.open_store()?.run_info().state {
            RunState::Open => "OPEN",
            RunState::Complete => "COMPLETE",
            RunState::Incomplete => "INCOMPLETE",
        })
    }

    /// Why the run is INCOMPLETE, in sentences.
    #[getter]
    fn reasons(&self) -> PyResult<Vec<String>> {
        Ok(self.open_store()?.run_info().reasons.clone())
    }

    /// Whether the run was being written when it was opened: False where it was ended or its writer died, None where
    /// that is unknown.
    #[getter]
    fn writing(&self) -> PyResult<Option<bool>> {
        Ok(match self.open_store()?.writer_life() {
            Some(WriterLife::Writing) => Some(true),
            Some(WriterLife::Gone) | None => Some(false),
            Some(WriterLife::Unknown) => None,
        })
    }

    /// The ids of its sources, as "subsystem.element", in ascending order.
    #[getter]
    fn sources(&self) -> Vec<String> {
        self.sources.iter().map(|source| source.id.to_string()).collect()
    }

    /// The names of its sources: a dict from id to name.
    #[getter]
    fn names<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let names = PyDict::new(py);
        for source in self.sources.iter() {
            names.set_item(source.id.to_string(), &source.name)?;
        }
        Ok(names)
    }

    /// When it began, as numpy.datetime64[ns] on the clock of TAI; info["began"] is the same in nanoseconds.
    #[getter]
    fn began_tai<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        time::to_datetime_tai(py, self.open_store()?.run_info().began)
    }

    /// When it began, as numpy.datetime64[ns] in UTC.
    #[getter]
    fn began_utc<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        time::to_datetime_utc(py, self.open_store()?.run_info().began)
    }

    /// When it ended, as numpy.datetime64[ns] on the clock of TAI, or None where it was not ended.
    #[getter]
    fn ended_tai<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        self.open_store()?.run_info().ended.map(|ended| time::to_datetime_tai(py, ended)).transpose()
    }

    /// When it ended, as numpy.datetime64[ns] in UTC, or None where it was not ended.
    #[getter]
    fn ended_utc<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        self.open_store()?.run_info().ended.map(|ended| time::to_datetime_utc(py, ended)).transpose()
    }

    /// Bytes in its blocks.
    #[getter]
    fn nbytes(&self) -> PyResult<u64> {
        Ok(self.open_store()?.data_bytes())
    }

    /// The numbers of its events, an array of uint64, in ascending order: `run[i]` is event `run.ids()[i]`.
    fn ids<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyArray1<u64>>> {
        Events::all_events(slf)?.ids(slf.py())
    }

    /// The event of this number, which is not always its place: see `ids`. Raises KeyError where it is not in this run,
    /// or was never closed, and RunError where it cannot be read.
    fn event(&self, py: Python<'_>, number: &Bound<'_, PyAny>) -> PyResult<Event> {
        let (number, store) = (parse_event_number(number)?, self.open_store()?);
        match py.detach(|| store.find_event(number)).map_err(to_run_error)? {
            Some(found) => Ok(Event::new(found, &self.sources)),
            None => Err(PyKeyError::new_err(self.no_event_reason(&store, number.0))),
        }
    }

    /// The events that `which` names by their numbers: 7, range(10, 20), or "10..20", "10..", "..20", all without the
    /// end. All events without it. With `sources`, ids or names, only their fragments.
    ///
    /// Going through them passes over events that cannot be read and warns, with errors="warn"; with errors="raise" it
    /// raises RunError there. Raises KeyError for a source that the run does not have.
    #[pyo3(signature = (which = None, *, sources = None, errors = "warn"))]
    fn events(
        slf: &Bound<'_, Self>,
        which: Option<&Bound<'_, PyAny>>,
        sources: Option<&Bound<'_, PyAny>>,
        errors: &str,
    ) -> PyResult<Events> {
        Events::select_by_number(slf, which, sources, Errors::parse_argument(errors)?)
    }

    /// All events in the order in which they were closed, waiting for more until the writer has closed the run or died,
    /// of which a DamageWarning tells. Other threads run while this one waits, and Ctrl-C ends the wait. A server is
    /// asked twice a second. `errors` is as for `events`.
    #[pyo3(signature = (*, errors = "warn"))]
    fn follow(&self, py: Python<'_>, errors: &str) -> PyResult<Follow> {
        let (errors, store) = (Errors::parse_argument(errors)?, self.open_store()?);
        let follow = py.detach(|| store.follow_events()).map_err(to_run_error)?;
        Ok(Follow::new(follow, self.path.clone(), &self.sources, errors))
    }

    /// A pandas.DataFrame with a row for each fragment, and columns of what functions make of its array:
    /// to_dataframe(mean=numpy.mean). See Events.to_dataframe; run.events(...) and run[...] have part of the run.
    #[pyo3(signature = (**columns))]
    fn to_dataframe<'py>(slf: &Bound<'py, Self>, columns: Option<&Bound<'py, PyDict>>) -> PyResult<Bound<'py, PyAny>> {
        Events::to_dataframe(&Bound::new(slf.py(), Events::all_events(slf)?)?, columns)
    }

    /// A pandas.DataFrame of what was fitted while the run was taken (device = { kind = "fit", … }): a row for each
    /// event that has a fit, indexed by its number, and a column for each feature, "SOURCE.FEATURE". Where there is no
    /// fit it is NaN, and "SOURCE.failure" says why, or is empty. Needs pandas: pip install thalweg[pandas].
    fn features<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        slf.py().import("thalweg._tables")?.call_method1("features", (slf,))
    }

    /// An xarray.Dataset with the samples of each source: see Events.to_xarray; run.events(...) and run[...] have part
    /// of the run.
    #[pyo3(signature = (*, missing = "raise"))]
    fn to_xarray<'py>(slf: &Bound<'py, Self>, missing: &str) -> PyResult<Bound<'py, PyAny>> {
        Events::to_xarray(&Bound::new(slf.py(), Events::all_events(slf)?)?, missing)
    }

    /// Lets go of the run's files, as the end of a `with` block does. What was read of it stays; reading more raises
    /// ValueError.
    fn close(&self) {
        self.store.lock().unwrap_or_else(PoisonError::into_inner).take();
    }

    /// The run itself; the end of the block closes it.
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

    /// The event at a place, counted from 0, or from the end where it is negative; a slice gives Events. Raises
    /// IndexError where there are fewer events.
    fn __getitem__<'py>(slf: &Bound<'py, Self>, index: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        Events::all_events(slf)?.item_or_slice(index)
    }

    /// Raises TypeError: to find an event every one would be read. `7 in run.ids()` asks for a number.
    fn __contains__(&self, item: &Bound<'_, PyAny>) -> PyResult<bool> {
        refuse_containment(item)
    }

    /// Goes through its events in the order of their numbers.
    fn __iter__(slf: &Bound<'_, Self>) -> PyResult<EventIterator> {
        Ok(Events::iterate_events(Bound::new(slf.py(), Events::all_events(slf)?)?))
    }

    /// By path or URL: whoever loads it opens the run again.
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

    /// The run as a notebook shows it: state, reasons and ledger; its repr if it was closed.
    fn _repr_html_<'py>(slf: &Bound<'py, Self>) -> PyResult<Option<Bound<'py, PyAny>>> {
        match slf.get().open_store() {
            Ok(_) => slf.py().import("thalweg._html")?.call_method1("run", (slf,)).map(Some),
            Err(_) => Ok(None),
        }
    }
}

/// Content of a pickled run: the path or URL, `ca_file`, and `timeout`.
type Pickled = (String, Option<PathBuf>, f64);

/// The run that [`Run::__reduce__`] named.
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
            (Some(_), _) => " so far; follow() waits for more, and opening it again shows them",
            (None, false) => "; some are lost, and `thalweg verify` shows which",
            (None, true) => "; ids() has their numbers",
        };
        format!("event {number} is not in run {}: {has}{more}", self.sources.run)
    }
}
