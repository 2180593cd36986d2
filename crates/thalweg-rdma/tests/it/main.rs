//! Stories of programs and their RNIC.

mod connections;
mod device;
mod errors;
mod frames;
mod hostile;
mod numbers;
mod operations;
mod processes;
mod remote;
mod setup;
mod system_calls;
mod waiting;
