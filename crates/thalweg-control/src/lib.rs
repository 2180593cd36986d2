//! Run control: which state a run is in, what its sources are told, and where and when it ends.
//!
//! Sans-IO: no sockets, no clock of its own. The builder node that drives it tells it what happened
//! ([`RunControl::command`], [`RunControl::greeted`], [`RunControl::paused`], …) and at what time, and does what it is
//! told to ([`RunControl::next_order`]). What it must know of the events it asks for ([`Facts`]).
//!
//! Every phase is bounded in time and in what a source can make of it. The reasoning is in `docs/architecture.md`,
//! "Beginning and end of a run".
//!
//! # Files, in the order of the data's way
//!
//! | file | what is in it |
//! | --- | --- |
//! | `config` | What run control must know before the run |
//! | `control` | The state machine |
//! | `end` | Where a run ends, and who keeps it from ending |
//! | `state` | The states of a run, as people and programs see them |
//! | `order` | What run control is told to do, and what it has the node do |
//! | `assign` | Which builder gets which events, where they are assigned by room |
//! | `time` | Time as run control counts it |
#![forbid(unsafe_code)]

mod assign;
mod config;
mod control;
mod end;
mod order;
mod state;
mod time;

pub use assign::{AssignConfig, Assigner, HEARTBEAT, LeftOut, NoSuchBuilder, Share};
pub use config::Config;
pub use control::{Facts, RunControl};
pub use order::{Cause, Command, Order, Refused, Tell};
pub use state::State;
