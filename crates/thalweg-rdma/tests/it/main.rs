//! Stories of programs and their RNIC.

mod connections;
mod errors;
mod hostile;
mod operations;
mod processes;
mod setup;
mod tcp;
mod waiting;
