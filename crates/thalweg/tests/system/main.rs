//! Whole systems: real processes on this machine, what is on disk afterwards, and whether the books agree with it.

#[path = "../common/mod.rs"]
mod common;

mod faults;
mod hostile;
mod whole;
