//! Whole systems: real processes on this machine, what is on disk afterwards, and whether the final counters agree with
//! it.

#[path = "../common/mod.rs"]
mod common;

mod bad_input;
mod by_room;
mod disk;
mod doctor;
mod door;
mod ends;
mod faults;
mod hang;
mod hostile;
mod memory;
mod rates;
mod rounds;
mod stay;
mod trigger;
mod whole;
