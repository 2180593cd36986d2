//! Help for tests and rehearsals: [`skip`] reports tests that cannot run on this machine, [`emulated_camera`] is a GigE Vision
//! camera under control of a test, and [`image_camera`] one that sends given images.
#![forbid(unsafe_code)]

pub mod emulated_camera;
pub mod image_camera;
pub mod skip;
