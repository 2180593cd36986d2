//! Conversion of times to NumPy's types.

use pyo3::prelude::*;
use thalweg_wire::tai_minus_utc;

const NANOS_PER_SECOND: u64 = 1_000_000_000;

/// Value that `datetime64` interprets as NaT (not a time).
const NOT_A_TIME: i64 = i64::MIN;

/// Converts TAI nanoseconds since 1970 to `datetime64[ns]` in TAI, whose clock is now 37 s ahead of UTC. NaT for
/// `None`, and beyond 2262, which the type does not reach.
pub(crate) fn to_datetime_tai(py: Python<'_>, nanos: impl Into<Option<u64>>) -> PyResult<Bound<'_, PyAny>> {
    numpy_datetime64(py, nanos.into().and_then(|nanos| i64::try_from(nanos).ok()).unwrap_or(NOT_A_TIME))
}

/// Converts TAI nanoseconds to `datetime64[ns]` in UTC. NaT also before 1972, when the two did not differ by a whole
/// number of seconds.
pub(crate) fn to_datetime_utc(py: Python<'_>, nanos: u64) -> PyResult<Bound<'_, PyAny>> {
    let nanos = utc_nanos_of_tai(nanos).and_then(|nanos| i64::try_from(nanos).ok());
    numpy_datetime64(py, nanos.unwrap_or(NOT_A_TIME))
}

/// Converts to UTC nanoseconds since 1970, counted without leap seconds. A leap second has the number of the second
/// after it.
fn utc_nanos_of_tai(tai: u64) -> Option<u64> {
    let seconds = tai / NANOS_PER_SECOND;
    // Too large by one at most, if a leap second lies between the two.
    let about = u64::from(tai_minus_utc(seconds)?);
    let offset = u64::from(tai_minus_utc(seconds.checked_sub(about)?)?);
    tai.checked_sub(offset * NANOS_PER_SECOND)
}

/// Converts TAI nanoseconds since 1970 to UTC nanoseconds since 1970; None before 1972.
#[pyfunction]
pub(crate) fn _utc_of_tai(nanos: u64) -> Option<u64> {
    utc_nanos_of_tai(nanos)
}

fn numpy_datetime64(py: Python<'_>, nanos: i64) -> PyResult<Bound<'_, PyAny>> {
    py.import("numpy")?.call_method1("datetime64", (nanos, "ns"))
}
