//! Source and builder nodes: the event loops that connect devices, links, the event builder and the recorder.
//!
//! A [`SourceNode`] takes fragments from a device into slots and offers them; a [`BuilderNode`] asks for them, builds
//! events and records them. Each is one thread that owns everything it touches; another thread may send it commands and
//! look at it through its [`Handle`]. The [`Topology`] says which nodes there are.
//!
//! # Files, in the order of the data's way
//!
//! | file | what is in it |
//! | --- | --- |
//! | `topology` | The topology: one TOML file that says which nodes there are and how they are connected |
//! | `source` | A source node: from a device into slots, and from there to the builders that ask |
//! | `slots` | Filling slots: fragments laid one behind the other, each header in place, and what is already there used again |
//! | `push` | A source whose fragments a program pushes, from any thread, while another thread serves the builders |
//! | `thread` | The thread of a node: woken in time, and bound to a processor where one is named |
//! | `wait` | How the hot thread of a node waits for something to do |
//! | `builder` | A builder node: it listens for sources, asks for what they offer, builds events, and hands them to the recorder |
//! | `blocks` | The blocks a builder fills: the one that places are carved from, and those in front of it that wait for their last bytes |
//! | `calibration` | What links were found to carry, kept for the runs that follow |
//! | `report` | What a node says when it is done |
//! | `handle` | A handle on a running node: what is asked of it, from another thread, and what it shows |
//! | `clock` | The clocks of a node: one that orders, one that dates, one that charges |
//! | `drive` | What drives a node: the thread that it has in production, or a test |
//! | `environment` | What a node gets from outside, so that a test can make all of it up |
//! | `error` | Why a node could not do its work |
#![forbid(unsafe_code)]

mod blocks;
mod builder;
mod calibration;
mod clock;
mod drive;
mod environment;
mod error;
mod handle;
mod push;

mod report;
mod slots;
mod source;
mod thread;
mod topology;
mod wait;

pub use builder::{BuilderNode, try_programs};
pub use clock::{Clock, SystemClock};
pub use environment::Environment;
pub use error::NodeError;
pub use handle::{Handle, Snapshot, SourceRow};
pub use push::PushSource;
pub use thalweg_device::TaiClock;

pub use drive::Node;
pub use report::{
    BuilderReport, Calibration, Completion, CreditReport, LeftOutReport, Levels, RunReport, SourceReport, Steady,
    TriggerRates, TriggerReport,
};
pub use slots::PushedFragment;
pub use source::{Feed, SourceNode, SourceSettings};
pub use thalweg_control::{Command, State};
pub use thalweg_filter::Undecided;
pub use topology::{
    Accept, Assignment, BuilderNodeConfig, CheckConfig, DEFAULT_SLOT, EventRate, EventRateError, LevelConfig,
    LinkConfig, Otherwise, Policy, RunConfig, SourceNodeConfig, Topology, TopologyError, WINDOW, default_slot_bytes,
};
pub use wait::{Idle, Wait};
