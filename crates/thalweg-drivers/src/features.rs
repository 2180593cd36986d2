//! Features of images during acquisition: fits, as fragments of a source of their own.
//!
//! A camera's source passes a [copy](thalweg_device::Copies) of each image to a fit, which is a source beside it in the
//! same process: its fragments are rows of numbers (`f64`), a few hundred bytes, with the event numbers of the images.
//! A feature is therefore treated as all data: it is accounted for, it is recorded in the run, and level 2 can fetch it
//! before the image is moved at all. If a fit takes longer than the time between two images, images are skipped: their
//! events have no fit (`lost_in_device`), and the camera does not wait.
//!
//! # Files, in the order of the data path
//!
//! | file | contents |
//! | --- | --- |
//! | `options` | Options of a fit: its `device = { kind = "fit", … }` table |
//! | `fit` | A device that fits copies of another's images |
//! | `row` | The result of a fit as a row of numbers with names |
#![forbid(unsafe_code)]

mod fit;
mod options;
mod row;

pub use fit::Fit;
pub use options::{EnvelopeConfig, FitConfig, FitKind, InterferometerConfig};
pub use row::{FAILURES, Row};

/// Registers the kind `fit` in this process.
pub fn register_kind() {
    thalweg_device::register_kind::<FitConfig>();
}
