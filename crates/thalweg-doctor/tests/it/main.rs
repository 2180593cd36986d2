//! Tests of the probes, on this machine.

mod examine;
