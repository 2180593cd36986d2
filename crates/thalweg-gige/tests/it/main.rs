//! Cameras that are not ours.

mod aravis;
