//! The Python package `thalweg`: runs on disk or on a server as NumPy arrays, without a copy, and a source that a
//! program feeds.
//!
//! What a user of the package reads is in `python/thalweg/_thalweg.pyi`, beside each name.

mod array;
mod content;
mod event;
mod follow;
mod fragment;
mod run;
mod source;

use pyo3::create_exception;
use pyo3::exceptions::PyException;
use pyo3::prelude::*;

create_exception!(thalweg, RunOver, RunError, "A run has ended as it should, and takes no more data.");
create_exception!(
    thalweg,
    RunError,
    PyException,
    "A run cannot be read, or takes no data; the message says why, and names file and place or address."
);

/// The extension module.
#[pymodule]
mod _thalweg {
    #[pymodule_export]
    use crate::RunError;
    #[pymodule_export]
    use crate::RunOver;
    #[pymodule_export]
    use crate::event::{_event, Event};
    #[pymodule_export]
    use crate::fragment::Fragment;
    #[pymodule_export]
    use crate::run::{Run, open};
    #[pymodule_export]
    use crate::source::Source;

    #[pymodule_export]
    #[expect(non_upper_case_globals, reason = "the name that Python expects")]
    const __version__: &str = env!("CARGO_PKG_VERSION");
}

/// An error of the reader or of a source, in Python's terms.
pub(crate) fn run_error(error: impl std::fmt::Display) -> PyErr {
    RunError::new_err(error.to_string())
}
