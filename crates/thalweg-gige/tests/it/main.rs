//! Cameras that are not ours.

mod aravis;
mod emulated;
mod rig;
