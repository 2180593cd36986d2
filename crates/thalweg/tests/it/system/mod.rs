//! Whole systems: real processes on this machine, what is on disk afterwards, and whether the final counters agree with
//! it.

mod bad_input;
mod by_room;
mod cameras;
mod capture;
mod devices;
mod disk;
mod doctor;
mod door;
mod ends;
mod faults;
mod fits;
mod hang;
mod hostile;
mod hot_thread;
mod instruments;
mod memory;
mod past_the_kernel;
mod rates;
mod rounds;
mod stay;
mod streams;
mod trigger;
mod whole;
mod words;
