//! The Python package `thalweg`: runs on disk or on a server as NumPy arrays, without a copy, and a source that a
//! program feeds.
//!
//! Users of the package read the documentation of items with `#[pyclass]`, `#[pymethods]` and `#[pyfunction]`: Python
//! shows it, so it is plain text. `python/thalweg/_thalweg.pyi` has the types.

mod array;
mod content;
mod damage;
mod event;
mod events;
mod follow;
mod fragment;
mod frame_counter;
mod image;
mod questions;
mod run;
mod source;
mod sources;
mod time;

use pyo3::create_exception;
use pyo3::exceptions::{PyException, PyUserWarning};
use pyo3::prelude::*;

create_exception!(
    thalweg,
    RunOver,
    RunError,
    "A run has ended normally (its duration was over, or an operator stopped it), and accepts no more data."
);
create_exception!(
    thalweg,
    RunError,
    PyException,
    "A run cannot be read (no run there, damaged bytes, an unknown version), or accepts no data (no builder, refused, \
     ended, payload too long).\n\nThe message says why, and names file and place or address."
);
create_exception!(
    thalweg,
    DamageWarning,
    PyUserWarning,
    "A run is damaged: some of its events cannot be read, or fewer are present than run.json states.\n\n\
     Reading continues with the intact events. warnings.simplefilter(\"error\", thalweg.DamageWarning) makes it an \
         exception."
);

/// The extension module.
#[pymodule]
mod _thalweg {
    #[pymodule_export]
    use crate::DamageWarning;
    #[pymodule_export]
    use crate::RunError;
    #[pymodule_export]
    use crate::RunOver;
    #[pymodule_export]
    use crate::event::{_event, Event};
    #[pymodule_export]
    use crate::events::{_events, Events};
    #[pymodule_export]
    use crate::fragment::{_fragment, Fragment};
    #[pymodule_export]
    use crate::frame_counter::_FrameCounter;
    #[pymodule_export]
    use crate::image::{
        _image_fringes, _image_fringes_2d, _image_gaussian, _image_gaussian_2d, _image_moments, _image_source_size,
        FitError,
    };
    #[pymodule_export]
    use crate::questions::_Questions;
    #[pymodule_export]
    use crate::run::{_run, Run, open};
    #[pymodule_export]
    use crate::source::Source;

    #[pymodule_export]
    #[expect(non_upper_case_globals, reason = "the name that Python expects")]
    const __version__: &str = env!("CARGO_PKG_VERSION");
}

/// Converts an error of the reader or of a source to Python's exception.
pub(crate) fn to_run_error(error: impl std::fmt::Display) -> PyErr {
    RunError::new_err(error.to_string())
}
