//! The Python package `thalweg`: runs on disk as NumPy arrays, without a copy.
//!
//! What a user of the package reads is in `python/thalweg/_thalweg.pyi`, beside each name.

mod array;
mod event;
mod follow;
mod fragment;
mod run;

use pyo3::create_exception;
use pyo3::exceptions::PyException;
use pyo3::prelude::*;

create_exception!(thalweg, RunError, PyException, "A run cannot be read; the message names file and place.");

/// The extension module.
#[pymodule]
mod _thalweg {
    #[pymodule_export]
    use crate::RunError;
    #[pymodule_export]
    use crate::event::Event;
    #[pymodule_export]
    use crate::fragment::Fragment;
    #[pymodule_export]
    use crate::run::{Run, open};

    #[pymodule_export]
    #[expect(non_upper_case_globals, reason = "the name that Python expects")]
    const __version__: &str = env!("CARGO_PKG_VERSION");
}

/// An error of the reader, in Python's terms.
pub(crate) fn run_error(error: impl std::fmt::Display) -> PyErr {
    RunError::new_err(error.to_string())
}
