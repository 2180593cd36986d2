//! Devices, from outside.

mod instrument;
