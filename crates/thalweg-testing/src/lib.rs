//! Help for tests: [`skip`] reports tests that cannot run on this machine, [`wait`] waits for other processes, and
//! [`emulated_camera`] is a GigE Vision camera under control of a test.
#![forbid(unsafe_code)]

pub mod emulated_camera;
pub mod skip;
pub mod wait;
