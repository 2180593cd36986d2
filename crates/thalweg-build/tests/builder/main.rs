//! The event builder, driven from outside as a node drives it.

mod port;
mod property;
mod rig;
mod stories;
mod trigger;
