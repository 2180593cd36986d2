//! The class `thalweg.Source`: a source that a Python program feeds.

use crate::content::{Content, Payload};
use crate::{RunError, RunOver, to_run_error};
use pyo3::exceptions::{PyOverflowError, PyRuntimeError, PyTimeoutError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyDict;
use serde_json::{Value, json};
use std::fmt::Display;
use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use thalweg_link::{Adapter, Address};
use thalweg_node::{Feed, NodeError, Policy, PushSource, PushedFragment, SourceSettings, Wait, default_slot_bytes};
use thalweg_wire::{EventId, SourceId, Status, TaiNanos};

/// Largest slot, and so the largest fragment, in bytes.
const MAX_SLOT_BYTES: usize = 1 << 30;
/// Longest time that Ctrl-C may have to wait. The awaited event ends the wait at once.
const SIGNAL_CHECK_INTERVAL: Duration = Duration::from_millis(100);

/// Source of a run whose data this program pushes.
///
///     camera = thalweg.Source("tcp:127.0.0.1:7700", id="2.0", dtype="uint8", shape=(800, 800))
///     with camera, contextlib.suppress(thalweg.RunOver):
///         while True:
///             camera.push(take_picture())
///
/// The topology of the run must list the source: a [[source]] with this `id` and without a `device`. The constructor
/// starts a thread that connects to the builders and sends the data. As a context manager, a Source waits for the run
/// to begin, and calls `finish` at the end of the block, also after an exception. The run begins when all of its
/// sources are connected: a thread that has several sources must create all of them before it enters the first `with`
/// block.
///
/// `builders` is the address of the builder, or a list of the addresses of all builders in the order of the topology:
/// "tcp:HOST:PORT", "udp:HOST:PORT", "rdma:HOST:PORT", "rdma-efe:HOST:PORT", "rdma-device:HOST:PORT", "shm:PATH" (on the builder's own host), or "dpdk:HOST:PORT". For "dpdk", `adapter`
/// is a dict with the keys of `adapter` in a topology: {"device": "0000:00:12.0", "address": "10.0.0.2/24"}.
///
/// `name` is the name of the source in the run; the default is `id`.
///
/// The form of the data is declared once, since it is written to run.json. For arrays, give `dtype` and the `shape` of
/// the largest array:
///
/// - int16 or complex numbers of shape (samples,) or (samples, channels): samples of one or several channels.
/// - uint8 or uint16 of shape (height, width): images of that size.
/// - uint8 of shape (bytes,): bytes, as with `max_bytes`.
/// - int8 to int64, uint8 to uint64, float32, float64, complex64 or complex128 of up to 8 axes: arrays.
///
/// Samples and arrays may be shorter than declared along the first axis. Complex integers, for which NumPy has no name,
/// are "ci16" (and ci8, ci32, cu8, …), with the dtype [("r", "<i2"), ("i", "<i2")].
///
/// For bytes, give `max_bytes`, the size of the largest payload, and optionally `payload_type`, "raw" (the default) or
/// "vdif".
///
/// `description` is a dict that is written to run.json as JSON, next to the entries for `dtype` and `shape`, which take
/// precedence.
///
/// Data wait in `slots` buffers (16) of `slot` bytes until the builders have fetched them. By default a slot holds one
/// fragment, or as many as fit into 512 KiB. When all slots are full, `policy` applies: "block" makes `push` wait,
/// "drop-newest" drops the pushed fragment, "drop-oldest" drops the oldest fragments that no builder has requested.
/// Drops are counted in the run's ledger.
///
/// `timeout` is the time in seconds for which a builder that cannot be reached is tried again, at the beginning and
/// after a connection broke (10). After that, all methods raise RunError.
///
/// The constructor raises ValueError or TypeError for arguments that are not valid, and RunError if resources such as
/// memory are missing.
///
/// Several threads may use one source. A child process made by fork must create its own source, and a source cannot be
/// pickled. A source that is deleted without `finish` finishes then, and waits for at most `timeout` seconds.
#[pyclass(frozen, module = "thalweg")]
pub(crate) struct Source {
    /// Source that takes the fragments; `None` only while this object is dropped.
    source: Option<PushSource>,
    content: Content,
    id: SourceId,
    builders: Vec<Address>,
    timeout: Duration,
    finished: AtomicBool,
    /// Process that made the source. A child made by `fork` has this object, but not its thread.
    process: u32,
}

#[pymethods]
impl Source {
    #[new]
    #[pyo3(signature = (
        builders, *, id, name = None, dtype = None, shape = None, max_bytes = None, payload_type = None,
        description = None, slots = 16, slot = None, policy = "block", timeout = 10.0,
        adapter = None,
    ))]
    #[expect(clippy::too_many_arguments, reason = "they are named where they are given")]
    fn new(
        py: Python<'_>,
        builders: &Bound<'_, PyAny>,
        id: &str,
        name: Option<String>,
        dtype: Option<&Bound<'_, PyAny>>,
        shape: Option<&Bound<'_, PyAny>>,
        max_bytes: Option<i128>,
        payload_type: Option<&str>,
        description: Option<&Bound<'_, PyDict>>,
        slots: i128,
        slot: Option<i128>,
        policy: &str,
        timeout: f64,
        adapter: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<Self> {
        thalweg_dpdk::register_link();
        thalweg_rdma_link::register_links();
        let builders = parse_addresses(builders)?;
        let id: SourceId = id.parse().map_err(PyValueError::new_err)?;
        let max_bytes = max_bytes.map(|most| number_in_range("max_bytes", most, 0..=usize::MAX)).transpose()?;
        let content = Content::from_arguments(dtype, shape, max_bytes, payload_type)?;
        let timeout = parse_seconds("timeout", timeout)?;
        let slots = number_in_range("slots", slots, 1..=65_536)?;
        let slot = slot.map(|bytes| number_in_range("slot", bytes, 1..=MAX_SLOT_BYTES)).transpose()?;
        let slot_bytes = slot.unwrap_or_else(|| default_slot_bytes(content.max_bytes()));
        let settings = SourceSettings {
            name: name.unwrap_or_else(|| id.to_string()),
            id,
            feed: Feed::Pushed {
                max_payload: content.max_bytes(),
                description: source_description(&content, description)?,
            },
            builders: builders.clone(),
            adapter: adapter.map(parse_adapter).transpose()?,
            congestion: None,
            rate: None,
            burst: 1,
            policy: parse_policy(policy)?,
            slots,
            slot_bytes,
            timeout,
            wait: Wait::default(),
            cpu: None,
        };
        let source = py.detach(|| PushSource::start(settings)).map_err(|error| match error {
            NodeError::Config(_) => PyValueError::new_err(error.to_string()),
            error => to_run_error(error),
        })?;
        let (finished, process) = (AtomicBool::new(false), std::process::id());
        Ok(Self { source: Some(source), content, id, builders, timeout, finished, process })
    }

    /// Waits for the run to begin and returns the source. Raises RunError if no builder was found within the source's
    /// `timeout`, or a builder refused the source.
    fn __enter__<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, Self>> {
        let this = slf.get();
        if this.finished.load(Ordering::Relaxed) {
            return Err(RunError::new_err("this source was finished: create another one"));
        }
        while !slf.py().detach(|| this.push_source()?.wait_for_start(SIGNAL_CHECK_INTERVAL).map_err(to_run_error))? {
            this.check_signals(slf.py())?;
        }
        Ok(slf.clone())
    }

    /// Calls `finish`.
    fn __exit__(
        &self,
        py: Python<'_>,
        kind: &Bound<'_, PyAny>,
        _error: &Bound<'_, PyAny>,
        _traceback: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        match self.close_source(py) {
            // An error in the body takes precedence: this one may be its consequence.
            Err(error) if !kind.is_none() && error.is_instance_of::<RunError>(py) => Ok(()),
            ended => ended.map(|_| ()),
        }
    }

    /// Pushes one fragment and returns the number of its event.
    ///
    /// - `data` is an array, or bytes or another object with the buffer protocol, of the declared form. The data are
    ///   copied into a slot; the caller may change them when `push` returns. They are not converted. b"" is an explicit
    ///   empty fragment: the source has no data for this event, which is still complete.
    /// - `event` is the event number; the default is the number after that of the last push. Numbers must increase and
    ///   may have gaps: an event that this source leaves out and another source has is incomplete, and is counted as
    ///   skipped in the ledger.
    /// - `timestamp` is the time of the data in TAI, an integer in nanoseconds since 1970 or a numpy.datetime64; the
    ///   default is the present time.
    /// - `window` is the time that the payload covers, in nanoseconds.
    /// - `status` is one or several of "truncated", "corrupt", "simulated", "replayed", "uncertain" (the data may
    ///   belong to another event), "clock-locked", "clock-holdover", "clock-free-running".
    /// - `timeout` is the longest time in seconds to wait for the run to begin, to go on after a pause and, with policy
    ///   "block", for a free slot; the default is no limit. Other threads run during the wait, and Ctrl-C interrupts
    ///   it.
    ///
    /// Raises TypeError or ValueError if `data` does not have the declared dtype and shape, or is not little-endian and
    /// contiguous in C order; TimeoutError after `timeout`; RunOver if the run has ended; and RunError if the payload
    /// is too long, `event` is not after the last one, or the connection to a builder was lost.
    #[pyo3(signature = (data, event = None, *, timestamp = None, window = 0, status = None, timeout = None))]
    #[expect(clippy::too_many_arguments, reason = "they are named where they are given")]
    fn push(
        &self,
        py: Python<'_>,
        data: &Bound<'_, PyAny>,
        event: Option<i128>,
        timestamp: Option<&Bound<'_, PyAny>>,
        window: i128,
        status: Option<&Bound<'_, PyAny>>,
        timeout: Option<f64>,
    ) -> PyResult<u64> {
        let source = self.push_source()?;
        let payload = Payload::from_object(data)?;
        let event = event.map(|number| number_in_range("event", number, 0..=u64::MAX - 1)).transpose()?;
        let fragment = PushedFragment {
            payload_type: self.content.check_payload(&payload)?,
            payload: payload.payload_bytes(),
            status: status.map_or(Ok(Status::empty()), parse_status)?,
            timestamp: timestamp.map(parse_timestamp).transpose()?,
            window: number_in_range("window", window, 0..=u32::MAX)?,
        };
        self.repeat_with_signals(py, timeout, "pushed", |left| source.push(event.map(EventId), &fragment, left))
            .map(|event| event.0)
    }

    /// Reports that the next `count` fragments were lost before this program received them, for example by a gap in the
    /// device's counter.
    ///
    /// The ledger counts these fragments as `lost_in_device`, and the next push is for the event after theirs. Waits
    /// for the run to begin, for at most `timeout` seconds (the default is no limit), and raises the same errors as
    /// `push`.
    #[pyo3(signature = (count = 1, *, timeout = None))]
    fn lost(&self, py: Python<'_>, count: i128, timeout: Option<f64>) -> PyResult<()> {
        let source = self.push_source()?;
        let count = number_in_range("count", count, 0..=u64::from(u32::MAX))?;
        self.repeat_with_signals(py, timeout, "reported", |left| {
            source.report_lost(count, left).map(|is_noted| is_noted.then_some(()))
        })
    }

    /// Ends this source's part of the run, waits until the pushed data are delivered, and returns a report.
    ///
    /// The report is a dict with the keys `accepted` (fragments, including those reported with `lost`), `bytes` (of
    /// payload), `dropped_newest`, `dropped_oldest` and `lost_in_device` (fragments), `blocked` (number of waits for a
    /// free slot), `copied_bytes`, `seconds`, `cpu_seconds` and others. A second call returns the same report.
    ///
    /// Raises RunError if the connection to a builder was lost. Ctrl-C interrupts the wait: data that were not
    /// delivered are lost, and the run is INCOMPLETE.
    fn finish<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let report = self.close_source(py)?;
        py.import("json")?.call_method1("loads", (report,))
    }

    /// True from the beginning of the run until it ends or this source is finished. The run may end at any time, also
    /// between a look at `running` and the next `push`, which then raises RunOver.
    #[getter]
    fn running(&self, py: Python<'_>) -> PyResult<bool> {
        let source = self.push_source()?;
        Ok(py.detach(|| source.is_running()))
    }

    fn __repr__(&self) -> String {
        let builders: Vec<String> = self.builders.iter().map(ToString::to_string).collect();
        format!("<thalweg.Source {} of {} to {}>", self.id, self.content, builders.join(", "))
    }
}

impl Source {
    fn push_source(&self) -> PyResult<&PushSource> {
        self.source.as_ref().filter(|_| self.process == std::process::id()).ok_or_else(|| {
            PyRuntimeError::new_err("a thalweg.Source cannot be used in another process: create one in this process")
        })
    }

    /// Repeats an operation that has to wait, in steps of at most [`SIGNAL_CHECK_INTERVAL`]. `done` is its verb in
    /// messages, such as "pushed".
    fn repeat_with_signals<T: Send>(
        &self,
        py: Python<'_>,
        timeout: Option<f64>,
        done: &str,
        mut act: impl FnMut(Duration) -> Result<Option<T>, NodeError> + Send,
    ) -> PyResult<T> {
        let source = self.push_source()?;
        let until = match timeout {
            Some(timeout) => Instant::now().checked_add(parse_seconds("timeout", timeout)?),
            None => None,
        };
        loop {
            let left = until.map_or(SIGNAL_CHECK_INTERVAL, |until| {
                until.saturating_duration_since(Instant::now()).min(SIGNAL_CHECK_INTERVAL)
            });
            match py.detach(|| act(left)) {
                Ok(Some(result)) => return Ok(result),
                Ok(None) => py.check_signals()?,
                Err(NodeError::Over) if self.finished.load(Ordering::Relaxed) => {
                    return Err(RunError::new_err(format!(
                        "no more fragments can be {done}: this source was finished"
                    )));
                }
                Err(error @ NodeError::Over) => return Err(RunOver::new_err(error.to_string())),
                Err(error) => return Err(to_run_error(error)),
            }
            if until.is_some_and(|until| Instant::now() >= until) {
                let why = if source.is_running() {
                    "no slot became free, or the run was paused,"
                } else {
                    "the run did not begin"
                };
                return Err(PyTimeoutError::new_err(format!(
                    "no fragment was {done}: {why} within {} s",
                    timeout.unwrap_or_default()
                )));
            }
        }
    }

    /// Ends this source's part of the run. Returns the report as JSON.
    fn close_source(&self, py: Python<'_>) -> PyResult<String> {
        let source = self.push_source()?;
        self.finished.store(true, Ordering::Relaxed);
        loop {
            match py.detach(|| source.close(SIGNAL_CHECK_INTERVAL)).map_err(to_run_error)? {
                Some(report) => return serde_json::to_string(&report).map_err(to_run_error),
                None => self.check_signals(py)?,
            }
        }
    }

    /// Raises pending signals. After an interrupted wait for the builders, dropping this object must not wait again.
    fn check_signals(&self, py: Python<'_>) -> PyResult<()> {
        py.check_signals().inspect_err(|_| {
            if let Ok(source) = self.push_source() {
                source.abandon();
            }
        })
    }
}

impl Drop for Source {
    fn drop(&mut self) {
        let Some(source) = self.source.take() else { return };
        if self.process != std::process::id() {
            // The connections and the thread belong to the parent.
            std::mem::forget(source);
            return;
        }
        let timeout = self.timeout;
        // Other threads may run during the wait, unless the interpreter is shutting down.
        let mut source = Some(source);
        Python::try_attach(|py| source.take().map(|source| py.detach(|| finish_or_abandon(source, timeout))));
        if let Some(source) = source {
            finish_or_abandon(source, timeout);
        }
    }
}

fn finish_or_abandon(source: PushSource, timeout: Duration) {
    if matches!(source.close(timeout), Ok(None)) {
        source.abandon();
    }
}

fn parse_addresses(builders: &Bound<'_, PyAny>) -> PyResult<Vec<Address>> {
    let texts: Vec<String> = match builders.extract::<String>() {
        Ok(one) => vec![one],
        Err(_) => builders
            .extract()
            .map_err(|_| PyTypeError::new_err("builders must be an address or a list of addresses"))?,
    };
    if texts.is_empty() {
        return Err(PyValueError::new_err(
            "builders is empty: give at least one address, tcp:HOST:PORT, udp:HOST:PORT or shm:PATH",
        ));
    }
    texts.iter().map(|text| text.parse().map_err(PyValueError::new_err)).collect()
}

/// Parses an adapter in the form that a topology has.
fn parse_adapter(given: &Bound<'_, PyDict>) -> PyResult<Adapter> {
    let text: String = given.py().import("json")?.call_method1("dumps", (given,))?.extract()?;
    let adapter: Result<Adapter, String> = serde_json::from_str(&text).map_err(|error| error.to_string());
    let checked = adapter.and_then(|adapter| match adapter.check_settings() {
        Ok(()) => Ok(adapter),
        Err((key, problem)) => Err(format!("{key}: {problem}")),
    });
    checked.map_err(|error| PyValueError::new_err(format!("adapter: {error}")))
}

/// Returns the description of this source for `run.json`.
fn source_description(content: &Content, description: Option<&Bound<'_, PyDict>>) -> PyResult<Value> {
    let mut described = match description {
        Some(given) => {
            let text: String = given.py().import("json")?.call_method1("dumps", (given,))?.extract()?;
            serde_json::from_str(&text).map_err(|error| PyValueError::new_err(format!("description: {error}")))?
        }
        None => json!({}),
    };
    // Readers interpret payloads by these entries, so they are those that are checked.
    if let (Value::Object(all), Value::Object(known)) = (&mut described, content.describe_payloads()) {
        all.insert("kind".into(), "pushed".into());
        all.extend(known);
    }
    Ok(described)
}

/// Converts a time stamp from the types that `push` accepts.
fn parse_timestamp(timestamp: &Bound<'_, PyAny>) -> PyResult<TaiNanos> {
    let nanoseconds: Option<u64> = if timestamp.hasattr("astype")? {
        let converted = timestamp.call_method1("astype", ("datetime64[ns]",))?.call_method1("astype", ("int64",))?;
        converted.extract::<i64>()?.try_into().ok()
    } else {
        match timestamp.extract() {
            Ok(nanoseconds) => Some(nanoseconds),
            Err(error) if error.is_instance_of::<PyOverflowError>(timestamp.py()) => None,
            Err(_) => {
                return Err(PyTypeError::new_err("timestamp must be an integer in nanoseconds, or a numpy.datetime64"));
            }
        }
    };
    nanoseconds.map(TaiNanos).ok_or_else(|| {
        PyValueError::new_err(format!("timestamp={timestamp}: not a TAI time since 1970 in nanoseconds"))
    })
}

fn parse_policy(name: &str) -> PyResult<Policy> {
    match name {
        "block" => Ok(Policy::Block),
        "drop-newest" => Ok(Policy::DropNewest),
        "drop-oldest" => Ok(Policy::DropOldest),
        _ => Err(PyValueError::new_err(format!("policy='{name}': use 'block', 'drop-newest' or 'drop-oldest'"))),
    }
}

/// Returns the status bits that a source may set, by their names.
fn parse_status(status: &Bound<'_, PyAny>) -> PyResult<Status> {
    const OURS: [Status; 8] = [
        Status::TRUNCATED,
        Status::CORRUPT,
        Status::SIMULATED,
        Status::REPLAYED,
        Status::UNCERTAIN,
        Status::CLOCK_LOCKED,
        Status::CLOCK_HOLDOVER,
        Status::CLOCK_FREE_RUNNING,
    ];
    let names: Vec<String> = match status.extract::<String>() {
        Ok(one) => vec![one],
        Err(_) => status.extract().map_err(|_| PyTypeError::new_err("status must be a name or a list of names"))?,
    };
    names.iter().try_fold(Status::empty(), |all, name| {
        match OURS.iter().find(|bit| bit.flag_names() == [name.as_str()]) {
            Some(bit) => Ok(all | *bit),
            None => {
                let known: Vec<&str> = OURS.iter().flat_map(|bit| bit.flag_names()).collect();
                Err(PyValueError::new_err(format!("status '{name}': a source can set {}", known.join(", "))))
            }
        }
    })
}

/// Returns a whole number within a range.
fn number_in_range<T: TryFrom<i128> + PartialOrd + Display>(
    name: &str,
    value: i128,
    can_be: RangeInclusive<T>,
) -> PyResult<T> {
    T::try_from(value).ok().filter(|value| can_be.contains(value)).ok_or_else(|| {
        PyValueError::new_err(format!("{name}={value}: it must be {} to {}", can_be.start(), can_be.end()))
    })
}

fn parse_seconds(name: &str, value: f64) -> PyResult<Duration> {
    Duration::try_from_secs_f64(value)
        .map_err(|_| PyValueError::new_err(format!("{name}={value}: it must be a number of seconds, 0 or more")))
}
