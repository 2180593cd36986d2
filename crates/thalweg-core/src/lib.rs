//! Decisions of the nodes, without IO: a caller reports what arrived and the time, and carries out what they return.
//!
//! - [`build`]: the event builder: which fragments are fetched, and which events are complete.
//! - [`control`]: run control: how a run begins, pauses and ends on all builders.
//! - [`filter`]: trigger levels: which events are kept.
#![forbid(unsafe_code)]

pub mod build;
pub mod control;
pub mod filter;
