//! Whole systems: real processes on this machine, what is on disk afterwards, and whether the books agree with it.

#[path = "../common/mod.rs"]
mod common;

mod bad_input;
mod disk;
mod doctor;
mod ends;
mod faults;
mod hang;
mod hostile;
mod memory;
mod trigger;
mod whole;
