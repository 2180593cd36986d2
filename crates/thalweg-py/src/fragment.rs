//! The class `thalweg.Fragment`.

use crate::RunError;
use crate::array::{self, Dimensions, Shape};
use crate::time;
use numpy::{PyArrayDescr, PyArrayDescrMethods, PyUntypedArray, PyUntypedArrayMethods};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};
use thalweg_wire::Status;

/// Data of one source for one event: a header and a payload.
///
/// `fragment.array` is the payload as a NumPy array of its type and shape, and so is `numpy.asarray(fragment)`:
///
/// >>> fragment = thalweg.open("demo/run-000001").event(7)["1.0"]
/// >>> fragment.array.shape, fragment.array.dtype
/// ((5120, 1), dtype('int16'))
/// >>> numpy.shares_memory(numpy.asarray(fragment), fragment.array)
/// True
///
/// The arrays are read-only views of the mapped file, or of the block fetched from a server, and keep it in memory for
/// as long as they exist; nothing is copied. Use `fragment.array.copy()` for an array to write to. A pickled fragment
/// contains its payload.
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
    /// Number of the run.
    #[getter]
    fn run(&self) -> u32 {
        self.fragment.header.run.0
    }

    /// Number of the event.
    #[getter]
    fn event(&self) -> u64 {
        self.fragment.header.event.0
    }

    /// Id of the source, such as "1.0".
    #[getter]
    fn source(&self) -> String {
        self.fragment.header.source.to_string()
    }

    /// Time at which the data were taken, an integer in nanoseconds of TAI since 1970. If `status` contains
    /// "arrival-time", the device gave no time, and this is the time at which the source received the data. 0 with a
    /// `window` of 0 means that there is no time, as with recordings that have none.
    #[getter]
    fn timestamp(&self) -> u64 {
        self.fragment.header.timestamp.0
    }

    /// `timestamp` as numpy.datetime64[ns] in TAI, which is 37 s ahead of UTC since 2017. NaT if there is no time, and
    /// after the year 2262, the end of the range of datetime64[ns].
    #[getter]
    fn time_tai<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        time::to_datetime_tai(py, self.fragment.header.event_time().map(|time| time.0))
    }

    /// `timestamp` as numpy.datetime64[ns] in UTC, by the table of leap seconds. NaT if there is no time, before 1972,
    /// when the difference of TAI and UTC was not a whole number of seconds, and after 2262.
    #[getter]
    fn time_utc<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        time::to_datetime_utc(py, self.timestamp())
    }

    /// Counter of the source's fragments, modulo 2**32.
    #[getter]
    fn sequence(&self) -> u32 {
        self.fragment.header.sequence
    }

    /// Time that the payload covers, in nanoseconds; 0 if not applicable.
    #[getter]
    fn window(&self) -> u32 {
        self.fragment.header.window
    }

    /// Names of the status bits that are set, a list such as ["simulated"] or ["replayed", "truncated"]. Empty if none.
    #[getter]
    fn status(&self) -> Vec<&'static str> {
        self.fragment.header.status.flag_names()
    }

    /// Status bits as an integer; docs/wire.md lists them.
    #[getter]
    fn status_bits(&self) -> u32 {
        self.fragment.header.status.bits()
    }

    /// Type of the payload, such as "samples-i16", "samples-cf32", "image-u8", "array-f64", "vdif", "raw"; "unknown"
    /// for a type that this version of Thalweg does not support.
    #[getter]
    fn payload_type(&self) -> &'static str {
        self.fragment.header.payload_type.type_name()
    }

    /// CRC32C of the payload as computed by the source, or None if the source computed none.
    #[getter]
    fn payload_crc(&self) -> Option<u32> {
        let header = &self.fragment.header;
        (!header.status.contains(Status::NO_PAYLOAD_CRC)).then_some(header.payload_crc)
    }

    /// Size of the payload in bytes.
    #[getter]
    fn nbytes(&self) -> usize {
        self.fragment.payload().len()
    }

    /// Payload as a read-only array of uint8, not copied.
    #[getter]
    fn payload<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        // SAFETY: the payload lies in a mapping that the fragment shares, in a block that is never written again, or in
        // memory that was filled before it was shared; the object is frozen, so it keeps this fragment for as long as
        // it lives.
        unsafe { array::byte_array(slf.get().fragment.payload(), slf.as_any()) }
    }

    /// Payload as a read-only NumPy array, not copied.
    ///
    /// The shape is (samples, channels) for samples, (height, width) or (height, width, colours) for images, and the
    /// shape that the source declared for other arrays; anything else is a one-dimensional array of uint8. Complex
    /// integers, for which NumPy has no type, have a structured dtype with the fields r and i.
    ///
    /// Raises RunError if the length of the payload does not fit the dimensions that run.json states for the source;
    /// `payload` gives access to the bytes.
    #[getter]
    fn array<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        let Self { fragment, shape } = slf.get();
        // SAFETY: as in `payload`.
        unsafe { array::typed_array(fragment.payload(), fragment.header.payload_type, *shape, slf.as_any()) }
    }

    /// Chunks that a GenICam camera in chunk mode appends to an image, a dict from chunk number to bytes.
    ///
    /// The bytes are as the camera sent them, big-endian for most cameras. The camera's GenICam description states the
    /// meaning of each chunk number. `array` is the image without the chunks, `payload` contains both. Empty if there
    /// are no chunks.
    #[getter]
    fn chunks<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let chunks = PyDict::new(py);
        let payload_type = self.fragment.header.payload_type;
        if let Some((_, found)) = array::image_with_chunks(self.fragment.payload(), payload_type, self.shape) {
            found.into_iter().try_for_each(|(number, bytes)| chunks.set_item(number, PyBytes::new(py, bytes)))?;
        }
        Ok(chunks)
    }

    /// Returns `array`, for numpy.asarray(fragment); a copy only if another dtype or copy=True is requested. Raises
    /// ValueError if another dtype is requested with copy=False.
    #[pyo3(signature = (dtype = None, copy = None))]
    fn __array__<'py>(
        slf: &Bound<'py, Self>,
        dtype: Option<Bound<'py, PyAny>>,
        copy: Option<bool>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let (py, array) = (slf.py(), Self::array(slf)?);
        let wanted = dtype.map(|dtype| PyArrayDescr::new(py, dtype)).transpose()?;
        let has = array.cast::<PyUntypedArray>()?.dtype();
        match wanted.filter(|wanted| !wanted.is_equiv_to(&has)) {
            Some(wanted) if copy == Some(false) => Err(PyValueError::new_err(format!(
                "the fragment's array has dtype {has}: dtype {wanted} needs a copy, which copy=False forbids"
            ))),
            Some(wanted) => array.call_method1("astype", (wanted,)),
            None if copy == Some(true) => array.call_method0("copy"),
            None => Ok(array),
        }
    }

    /// Returns whether the payload matches its CRC. True if the source computed no CRC (`payload_crc` is None).
    fn verify(&self, py: Python<'_>) -> bool {
        py.detach(|| self.fragment.is_payload_intact())
    }

    /// Pickles the fragment with its payload, so that it can be loaded without the run.
    fn __reduce__<'py>(&self, py: Python<'py>) -> PyResult<(Bound<'py, PyAny>, (Record<'py>, Dimensions))> {
        let restore = py.import("thalweg._thalweg")?.getattr("_fragment")?;
        Ok((restore, (copy_record(py, &self.fragment)?, self.shape.into())))
    }

    fn __repr__(&self) -> String {
        let header = &self.fragment.header;
        let (event, source, kind) = (header.event.0, header.source, header.payload_type.type_name());
        let status = match header.status.flag_names().join(" ") {
            none if none.is_empty() => none,
            status => format!(", {status}"),
        };
        format!("<thalweg.Fragment of event {event}, source {source}: {} bytes {kind}{status}>", header.piece_length)
    }
}

/// A fragment's header, directly followed by its payload.
pub(crate) type Record<'py> = Bound<'py, PyBytes>;

/// Copies a fragment for pickling.
pub(crate) fn copy_record<'py>(py: Python<'py>, fragment: &thalweg_store::Fragment) -> PyResult<Record<'py>> {
    let (header, payload) = (fragment.header.encode(), fragment.payload());
    PyBytes::new_with(py, header.len() + payload.len(), |into| {
        let (head, body) = into.split_at_mut(header.len());
        head.copy_from_slice(&header);
        body.copy_from_slice(payload);
        Ok(())
    })
}

/// Returns the fragment that [`copy_record`] copied.
pub(crate) fn fragment_from_record(record: Vec<u8>) -> PyResult<thalweg_store::Fragment> {
    thalweg_store::Fragment::from_record(record).ok_or_else(|| RunError::new_err("this is not a pickled fragment"))
}

/// Restores a fragment that [`Fragment::__reduce__`] pickled.
#[pyfunction]
pub(crate) fn _fragment(record: Vec<u8>, dimensions: Dimensions) -> PyResult<Fragment> {
    Ok(Fragment::new(fragment_from_record(record)?, dimensions.into()))
}
