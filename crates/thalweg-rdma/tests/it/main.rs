//! Stories of programs and their RNIC.

mod connections;
mod errors;
mod frames;
mod hostile;
mod numbers;
mod operations;
mod processes;
mod remote;
mod setup;
mod waiting;
