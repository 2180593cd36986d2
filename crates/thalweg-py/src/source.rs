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

/// A source of a run, which this program feeds.
///
///     camera = thalweg.Source("tcp:127.0.0.1:7700", id="2.0", dtype="uint8", shape=(800, 800))
///     with camera, contextlib.suppress(thalweg.RunOver):
///         while True:
///             camera.push(take_picture())
///
/// In the topology it is a [[source]] with this `id` and without a `device`. Making one begins to look for the
/// builders; a thread of its own then serves them, so that other threads of this program, and `push`, only ever wait
/// for a free slot. As a context manager it waits for the run to begin, and finishes at the end of the block, also when
/// that is left by an exception. Where one thread has several sources, it makes all of them before it enters the first:
/// the run begins when every source is there.
///
/// `builders` is the address of the builder, or the addresses of all of them in the order of the topology:
/// "tcp:HOST:PORT", "udp:HOST:PORT", "shm:PATH" on the builder's own host, or "dpdk:HOST:PORT". For the last, `adapter`
/// is a dict of what a topology has there: {"device": "0000:00:12.0", "address": "10.0.0.2/24"}.
///
/// What will be pushed is declared once, since run.json describes it. Either with `dtype` and `shape` of the
/// largest array:
///
/// - int16 or complex numbers with (samples,) or (samples, channels): samples of one or several channels.
/// - uint8 or uint16 with (height, width): images of that size.
/// - uint8 with (bytes,): the same as `max_bytes`.
/// - int8 to int64, uint8 to uint64, float32, float64, complex64 or complex128 with up to 8 axes: arrays.
///
/// A push of samples or of an array may have fewer along the first axis. Complex whole numbers, which NumPy has no name
/// for, are "ci16" (and ci8, ci32, cu8, …): pairs with the dtype [("r", "<i2"), ("i", "<i2")].
///
/// Or with `max_bytes`: at most that number of bytes, of `payload_type` "raw" or "vdif".
///
/// `description` goes into run.json too, as JSON; where it contradicts `dtype` and `shape`, these win.
///
/// `slots` buffers of `slot` bytes are filled while builders ask for others; without `slot` one holds a fragment, or as
/// many as fit 512 KiB. When all are full `policy` decides: with "block" `push` waits, with "drop-newest" what is
/// pushed is dropped, with "drop-oldest" what has waited longest and was not asked for. Drops are counted, and the run
/// says so.
///
/// For `timeout` seconds a builder that is not there is looked for, at the beginning or when the connection broke; then
/// everything raises RunError.
///
/// Several threads may use one source. A child process made by fork must make its own, and a source is not pickled. A
/// source that goes without `finish` finishes, but for no longer than `timeout`.
#[pyclass(frozen, module = "thalweg")]
pub(crate) struct Source {
    /// Source that takes the fragments; `None` only while this object is dropped.
    source: Option<PushSource>,
    content: Content,
    id: SourceId,
    builders: Vec<Address>,
    timeout: Duration,
    finished: AtomicBool,
    /// Process that made the source. A child made by `fork` has this object, but not the thread behind it.
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

    /// Waits for the run to begin.
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

    /// Finishes.
    fn __exit__(
        &self,
        py: Python<'_>,
        kind: &Bound<'_, PyAny>,
        _error: &Bound<'_, PyAny>,
        _traceback: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        match self.close_source(py) {
            // An error in the body comes first: this one may only be its consequence.
            Err(error) if !kind.is_none() && error.is_instance_of::<RunError>(py) => Ok(()),
            ended => ended.map(|_| ()),
        }
    }

    /// Pushes one fragment, an array or bytes, and returns the number of its event.
    ///
    /// The bytes are copied once, into the slot from which they are sent: `data` may be changed when this returns.
    /// Nothing is converted: an array of another type than was declared, or not in this machine's byte order and C
    /// order, raises TypeError or ValueError. b"" is an explicit empty fragment: this source has nothing to say of the
    /// event.
    ///
    /// `event` is the next one, or any later one. Of those left out, the ones that other sources have are incomplete
    /// events, and count as skipped in the ledger; what no source has is no event. `timestamp` is TAI: nanoseconds
    /// since 1970 or a numpy.datetime64, now if left out; `window` the nanoseconds that the payload covers. `status` is
    /// one or several of "truncated", "corrupt", "simulated", "replayed", "uncertain" (it may belong to another event),
    /// "clock-locked", "clock-holdover", "clock-free-running".
    ///
    /// Waits for the run to begin and, with policy "block", for a free slot; after `timeout` seconds raises
    /// TimeoutError. Other threads run while it waits or copies, and Ctrl-C ends the wait. Raises RunOver where the run
    /// has ended, and any other RunError where it cannot go on.
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

    /// Says that the next `count` fragments were lost before this program could have them, as the counter of a device
    /// or of another program tells: they are `lost_in_device` in the ledger, and what is pushed next is of an event
    /// behind them.
    ///
    /// Waits and raises as `push` does.
    #[pyo3(signature = (count = 1, *, timeout = None))]
    fn lost(&self, py: Python<'_>, count: i128, timeout: Option<f64>) -> PyResult<()> {
        let source = self.push_source()?;
        let count = number_in_range("count", count, 0..=u64::from(u32::MAX))?;
        self.repeat_with_signals(py, timeout, "reported", |left| {
            source.report_lost(count, left).map(|is_noted| is_noted.then_some(()))
        })
    }

    /// Ends this source's part of the run, waits until what was pushed is delivered, and reports: a dict with accepted,
    /// bytes, dropped_newest, dropped_oldest, blocked, copied_bytes, seconds and more. May be called again. Ctrl-C
    /// gives up: what was not delivered is lost, and the run says so.
    fn finish<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let report = self.close_source(py)?;
        py.import("json")?.call_method1("loads", (report,))
    }

    /// Whether the run takes fragments: it has begun, and neither it nor this source's part of it is over. It may end
    /// at any time: a `push` that comes too late raises RunOver.
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

    /// Repeats an operation that has to wait, in steps of at most [`SIGNAL_CHECK_INTERVAL`]. `done` says in messages
    /// what was not done in time.
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
                    return Err(RunError::new_err(format!("nothing more can be {done}: this source was finished")));
                }
                Err(error @ NodeError::Over) => return Err(RunOver::new_err(error.to_string())),
                Err(error) => return Err(to_run_error(error)),
            }
            if until.is_some_and(|until| Instant::now() >= until) {
                let why = if source.is_running() { "no slot became free" } else { "the run did not begin" };
                return Err(PyTimeoutError::new_err(format!("nothing was {done}: {why} in time")));
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
        // Other threads may run meanwhile, unless the interpreter is shutting down.
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
        Err(_) => {
            builders.extract().map_err(|_| PyTypeError::new_err("builders: an address, or a list of addresses"))?
        }
    };
    if texts.is_empty() {
        return Err(PyValueError::new_err("builders: at least one address, tcp:HOST:PORT, udp:HOST:PORT or shm:PATH"));
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
                return Err(PyTypeError::new_err("timestamp: a whole number of nanoseconds, or a numpy.datetime64"));
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
        Err(_) => status.extract().map_err(|_| PyTypeError::new_err("status: a name, or a list of names"))?,
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
        .map_err(|_| PyValueError::new_err(format!("{name}={value}: a number of seconds, 0 or more")))
}
