//! Source and builder nodes: the event loops that connect devices, links, the event builder and the recorder.
//!
//! A [`SourceNode`] takes fragments from a device into slots and offers them; a [`BuilderNode`] fetches them, builds
//! events and records them. Each is one thread that owns everything it touches; another thread may send it commands and
//! read its state through its [`Handle`]. The [`Topology`] lists the nodes.
//!
//! # Files, in the order of the data's way
//!
//! | file | what is in it |
//! | --- | --- |
//! | `topology` | Topology: one TOML file that lists the nodes and describes how they are connected |
//! | `source` | Source node: moves fragments from a device into slots, and from there to the builders that fetch them |
//! | `slots` | Filling of slots: fragments one after the other, each with its header; content already there is reused |
//! | `push` | Source whose fragments a program pushes, from any thread, while another thread serves the builders |
//! | `thread` | Thread of a node: woken in time, and bound to a processor if one is named |
//! | `wait` | Ways in which the hot thread of a node waits for work |
//! | `builder` | Builder node: accepts sources, fetches what they offer, builds events and hands them to the recorder |
//! | `blocks` | Blocks that a builder fills: the newest, and older ones that wait for their last bytes |
//! | `calibration` | Measured capacity of links, kept for later runs |
//! | `report` | Reports that nodes return at their end |
//! | `handle` | Handle on a running node: sends commands to it from another thread, and reads its snapshots |
//! | `command` | Commands to a node, and orders for its next run |
//! | `service` | Messages between a node and the control service of its experiment |
//! | `sample` | Copies of the latest fragments of a builder's sources, for those who watch a run |
//! | `log_context` | Facts that each line of the log has: the node and the run |
//! | `clock` | Clocks of a node: monotonic time, date, and processor time |
//! | `drive` | Driver of a node: its own thread in production, or a test |
//! | `environment` | Environment of a node, which a test can replace entirely |
//! | `error` | Errors that end a node |
#![forbid(unsafe_code)]

mod blocks;
mod builder;
mod calibration;
mod clock;
mod command;
mod drive;
mod environment;
mod error;
mod handle;
pub mod log_context;
mod push;
mod report;
mod sample;
pub mod service;
mod slots;
mod source;
mod thread;
mod topology;
mod wait;

pub use builder::{BuilderNode, try_programs};
pub use calibration::{KeptLink, Measured, forget_links, kept_links};
pub use clock::{Clock, SystemClock};
pub use command::{NodeCommand, RunOrder, StepOrder};
pub use environment::Environment;
pub use error::NodeError;
pub use handle::{CommandRefusal, Handle, IncompleteEvent, Snapshot, SourceRow};
pub use push::PushSource;
pub use thalweg_device::TaiClock;

pub use drive::Node;
pub use report::{
    BuilderReport, Calibration, Completion, CreditReport, LeftOutReport, Levels, RunReport, SourceReport, Steady,
    TriggerRates, TriggerReport,
};
pub use sample::Sample;
pub use slots::PushedFragment;
pub use source::{Feed, SourceNode, SourceSettings};
pub use thalweg_core::control::{Command, State};
pub use thalweg_core::filter::Undecided;
pub use thalweg_store::RunKind;
pub use topology::{
    Accept, Assignment, BuilderNodeConfig, CheckConfig, DEFAULT_SLOT, EventRate, EventRateError, LevelConfig,
    LinkConfig, Metadata, Otherwise, Policy, RunConfig, Setting, SourceNodeConfig, Topology, TopologyError, WINDOW,
    default_slot_bytes,
};
pub use wait::{Idle, Wait};
