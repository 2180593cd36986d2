//! Preparation of a node: the requirements of a topology on this machine, and its devices, opened.
//!
//! A [node](thalweg_node) is given a checked topology and an open device. It knows no kind of device by name, and no
//! probe of the machine. This crate does: [`run_preflight`] refuses a machine on which the run
//! could not take place, and [`open_device`] opens the device in a source's `device` table.
//!
//! # Files
//!
//! | file | what is in it |
//! | --- | --- |
//! | `needs` | Requirements of a topology on this machine |
//! | `machine` | Comparison of this machine with the requirements of a topology |
//! | `open` | Devices, opened: each kind by the crate that drives it |
//! | `error` | Reasons why a node does not begin |
//! | `fixture` | A laboratory for the tests: two builders and two sources on one machine |

mod error;
#[cfg(test)]
mod fixture;
mod machine;
mod needs;
mod open;

pub use error::PreflightError;
pub use machine::run_preflight;
pub use needs::{Recordings, topology_needs};
pub use open::{OpenSource, open_device};
