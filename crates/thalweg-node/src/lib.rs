//! Rooms wired into running nodes.
//!
//! A [`SourceNode`] takes fragments from a device into slots and offers them; a [`BuilderNode`] asks for them, builds
//! events and records them. Each is one thread that owns everything it touches; another thread may send it commands and
//! look at it through its [`Handle`]. The [`Topology`] says which nodes there are.
#![forbid(unsafe_code)]

mod blocks;
mod builder;
mod calibration;
mod clock;
mod error;
mod handle;
mod preflight;
mod push;

mod report;
mod slots;
mod source;
mod topology;
mod wait;

pub use builder::BuilderNode;
pub use clock::{TaiClock, cpu, now};
pub use error::NodeError;
pub use handle::{Handle, Snapshot, SourceRow};
pub use preflight::{OpenDevice, Recordings, needs, open_device, preflight};
pub use push::PushSource;

pub use report::{
    BuilderReport, Calibration, Completion, CreditReport, RunReport, SourceReport, Steady, TriggerRates, TriggerReport,
};
pub use slots::PushedFragment;
pub use source::{Feed, SourceNode, SourceSettings};
pub use thalweg_control::{Command, State};
pub use topology::{
    BuilderNodeConfig, CheckConfig, DEFAULT_SLOT, EventRate, EventRateError, FilterConfig, Level2Config, LinkConfig,
    Policy, RunConfig, SourceNodeConfig, Topology, TopologyError, WINDOW, default_slot_bytes,
};
pub use wait::Wait;
