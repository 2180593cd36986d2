//! The class `thalweg.Fragment`.

use crate::RunError;
use crate::array::{self, Dimensions, Shape};
use crate::time;
use numpy::{PyArrayDescr, PyArrayDescrMethods, PyUntypedArray, PyUntypedArrayMethods};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};
use thalweg_wire::Status;

/// One source's data for one event: the fields of its header, and its payload.
///
/// `fragment.array` is the payload as what it is, and `numpy.asarray(fragment)` is the same:
///
/// >>> fragment = thalweg.open("demo/run-000001").event(7)["1.0"]
/// >>> fragment.array.shape, fragment.array.dtype
/// ((5120, 1), dtype('int16'))
/// >>> numpy.shares_memory(numpy.asarray(fragment), fragment.array)
/// True
///
/// The arrays are read-only. They look into the run's file, or into the block that was fetched, and keep it for as long
/// as they live; nothing is copied. A pickled fragment has its payload with it.
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
    /// The run's number.
    #[getter]
    fn run(&self) -> u32 {
        self.fragment.header.run.0
    }

    /// The event's number.
    #[getter]
    fn event(&self) -> u64 {
        self.fragment.header.event.0
    }

    /// The source's id, such as "1.0".
    #[getter]
    fn source(&self) -> String {
        self.fragment.header.source.to_string()
    }

    /// When it was taken, in TAI nanoseconds since 1970: an integer, exact.
    #[getter]
    fn timestamp(&self) -> u64 {
        self.fragment.header.timestamp.0
    }

    /// When it was taken, as numpy.datetime64[ns] on the clock of TAI, which is 37 s ahead of UTC since 2017. NaT
    /// beyond the year 2262, which datetime64[ns] does not reach.
    #[getter]
    fn time_tai<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        time::to_datetime_tai(py, self.timestamp())
    }

    /// When it was taken, as numpy.datetime64[ns] in UTC, by the table of leap seconds. NaT before 1972, when TAI and
    /// UTC were no whole number of seconds apart, and beyond 2262.
    #[getter]
    fn time_utc<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        time::to_datetime_utc(py, self.timestamp())
    }

    /// Counts the source's fragments, modulo 2**32.
    #[getter]
    fn sequence(&self) -> u32 {
        self.fragment.header.sequence
    }

    /// Nanoseconds that the payload covers; 0 where that has no meaning.
    #[getter]
    fn window(&self) -> u32 {
        self.fragment.header.window
    }

    /// Names of the status bits that are set, such as "simulated", "replayed" or "truncated".
    #[getter]
    fn status(&self) -> Vec<&'static str> {
        self.fragment.header.status.flag_names()
    }

    /// The status bits as a number, as docs/wire.md lists them.
    #[getter]
    fn status_bits(&self) -> u32 {
        self.fragment.header.status.bits()
    }

    /// Type of the payload, such as "samples-i16", "samples-cf32", "image-u8", "array-f64", "vdif", "raw";
    /// "unknown" where this version does not know it.
    #[getter]
    fn payload_type(&self) -> &'static str {
        self.fragment.header.payload_type.type_name()
    }

    /// CRC32C of the payload as the source computed it, or None where it did not.
    #[getter]
    fn payload_crc(&self) -> Option<u32> {
        let header = &self.fragment.header;
        (!header.status.contains(Status::NO_PAYLOAD_CRC)).then_some(header.payload_crc)
    }

    /// Bytes in the payload.
    #[getter]
    fn nbytes(&self) -> usize {
        self.fragment.payload().len()
    }

    /// The payload's bytes: an array of uint8, read-only, not copied.
    #[getter]
    fn payload<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        // SAFETY: the payload lies in a mapping that the fragment shares, in a block that is never written again, or in
        // memory that was filled before it was shared; the object is frozen, so it keeps this fragment for as long as
        // it lives.
        unsafe { array::byte_array(slf.get().fragment.payload(), slf.as_any()) }
    }

    /// The payload as what it is, read-only, not copied: samples as (samples, channels), an image as (height, width)
    /// or (height, width, colours), an array in its source's shape, anything else as bytes. Complex whole numbers are
    /// pairs with the names r and i. Raises RunError where its length does not fit the dimensions that the run states
    /// for this source; `payload` has the bytes then.
    #[getter]
    fn array<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        let Self { fragment, shape } = slf.get();
        // SAFETY: as in `payload`.
        unsafe { array::typed_array(fragment.payload(), fragment.header.payload_type, *shape, slf.as_any()) }
    }

    /// Data that a camera in chunk mode (GenICam) adds to its image, by the chunk's number: bytes, as the camera sends
    /// them, most cameras big-endian. The camera's description gives the meaning of each number. `array` is the image
    /// alone; `payload` has all. Empty where there are no chunks.
    #[getter]
    fn chunks<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let chunks = PyDict::new(py);
        let payload_type = self.fragment.header.payload_type;
        if let Some((_, found)) = array::image_with_chunks(self.fragment.payload(), payload_type, self.shape) {
            found.into_iter().try_for_each(|(number, bytes)| chunks.set_item(number, PyBytes::new(py, bytes)))?;
        }
        Ok(chunks)
    }

    /// Called by numpy.asarray(fragment): returns `array`, copied only where another dtype or a copy is asked for.
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

    /// Whether the payload is what its CRC was computed from; true where the source computed none.
    fn verify(&self, py: Python<'_>) -> bool {
        py.detach(|| self.fragment.is_payload_intact())
    }

    /// By value: whoever loads it needs neither the run nor a way to it.
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

/// The fragment that [`Fragment::__reduce__`] took apart.
#[pyfunction]
pub(crate) fn _fragment(record: Vec<u8>, dimensions: Dimensions) -> PyResult<Fragment> {
    Ok(Fragment::new(fragment_from_record(record)?, dimensions.into()))
}
