//! Times as NumPy has them.

use pyo3::prelude::*;
use thalweg_wire::tai_minus_utc;

const SECOND: u64 = 1_000_000_000;

/// What `datetime64` takes for NaT, not a time.
const NOT_A_TIME: i64 = i64::MIN;

/// TAI nanoseconds since 1970 as `datetime64[ns]` in TAI: the clock of TAI, which is now 37 s ahead of UTC's. NaT
/// beyond 2262, which the type does not reach.
pub(crate) fn tai(py: Python<'_>, nanos: u64) -> PyResult<Bound<'_, PyAny>> {
    datetime64(py, i64::try_from(nanos).unwrap_or(NOT_A_TIME))
}

/// The same as `datetime64[ns]` in UTC. NaT also before 1972, when the two were no whole number of seconds apart.
pub(crate) fn utc(py: Python<'_>, nanos: u64) -> PyResult<Bound<'_, PyAny>> {
    let nanos = utc_nanos(nanos).and_then(|nanos| i64::try_from(nanos).ok());
    datetime64(py, nanos.unwrap_or(NOT_A_TIME))
}

/// UTC nanoseconds since 1970, counted without leap seconds. A leap second has the number of the second behind it.
fn utc_nanos(tai: u64) -> Option<u64> {
    let seconds = tai / SECOND;
    // Too large by one at most, where a leap second lies between the two.
    let about = u64::from(tai_minus_utc(seconds)?);
    let offset = u64::from(tai_minus_utc(seconds.checked_sub(about)?)?);
    tai.checked_sub(offset * SECOND)
}

fn datetime64(py: Python<'_>, nanos: i64) -> PyResult<Bound<'_, PyAny>> {
    py.import("numpy")?.call_method1("datetime64", (nanos, "ns"))
}
