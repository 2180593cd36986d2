//! The event builder, driven from outside as a node drives it.

mod ending;
mod port;
mod property;
mod rig;
mod stories;
mod trigger;
