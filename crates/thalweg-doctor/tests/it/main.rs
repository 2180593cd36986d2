//! The probes, on this machine.

mod examine;
