//! Decisions of the nodes. A caller reports what arrived and the time, and carries out what they return: no IO, but for
//! the programs of a laboratory that decide for a trigger level.
//!
//! - [`build`]: the event builder: which fragments are fetched, and which events are complete.
//! - [`control`]: run control: how a run begins, pauses and ends on all builders.
//! - [`filter`]: trigger levels: which events are kept, by a condition or by a program that is started and asked.
#![forbid(unsafe_code)]

pub mod build;
pub mod control;
pub mod filter;
