//! Tests with emulated cameras: this workspace's, and that of Aravis.

mod aravis;
mod emulated;
mod rig;
