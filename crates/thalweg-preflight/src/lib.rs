//! What a topology asks of this machine, and its devices, opened: before a node runs.
//!
//! A [node](thalweg_node) is given a checked topology and an open device. It knows no kind of device by name, and no
//! probe of the machine. This crate does: [`load`] reads a topology, [`preflight`] refuses a machine on which the run
//! could not take place, and [`open_device`] opens what a source's `device` table says.
//!
//! # Files
//!
//! | file | what is in it |
//! | --- | --- |
//! | `check` | What is wrong with a topology, the tables of its devices included |
//! | `needs` | What a topology asks of this machine |
//! | `machine` | Whether this machine has what a topology asks of it |
//! | `open` | Devices, opened: each kind by the crate that drives it |
//! | `error` | Why a node does not begin |
//! | `fixture` | A laboratory for the tests: two builders and two sources on one machine |
#![forbid(unsafe_code)]

mod check;
mod error;
#[cfg(test)]
mod fixture;
mod machine;
mod needs;
mod open;

pub use check::{check, load};
pub use error::PreflightError;
pub use machine::preflight;
pub use needs::{Recordings, needs};
pub use open::{OpenDevice, open_device, open_feed};
