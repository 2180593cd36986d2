//! Run control: which state a run is in, what its sources are told, and where and when it ends.
//!
//! Sans-IO: no sockets, no clock of its own. The builder node that drives it tells it what happened
//! ([`RunControl::command`], [`RunControl::greeted`], [`RunControl::paused`], …) and at what time, and does what it is
//! told to ([`RunControl::next_order`]). What it must know of the events it asks for ([`Facts`]).
//!
//! Every phase is bounded in time and in what a source can make of it. The reasoning is in `docs/architecture.md`,
//! "Beginning and end of a run".
#![forbid(unsafe_code)]

mod config;
mod control;
mod end;
mod order;
mod state;
mod time;

pub use config::Config;
pub use control::{Facts, RunControl};
pub use order::{Cause, Command, Order, Refused, Tell};
pub use state::State;
