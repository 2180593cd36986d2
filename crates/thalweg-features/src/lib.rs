//! Features of images as they come: fits, as fragments of a source of their own.
//!
//! A camera's source gives a [copy](thalweg_device::Copies) of each image to a fit, which is a source beside it, in the
//! same process: its fragments are rows of numbers (`f64`), a few hundred bytes, with the event numbers of the images.
//! So a feature goes the way of all data: it is accounted for, it is in the run, and level 2 can ask for it before the
//! image is moved at all. Where a fit takes longer than a camera from image to image, images are left out: their events
//! have none (`lost_in_device`), and the camera does not wait.
//!
//! # Files, in the order of the data's way
//!
//! | file | what is in it |
//! | --- | --- |
//! | `fit` | A device that fits copies of another's images |
//! | `row` | What a fit says, in a row of numbers: their names, and the numbers |
#![forbid(unsafe_code)]

mod fit;
mod row;

pub use fit::Fit;
pub use row::{FAILURES, Row};
