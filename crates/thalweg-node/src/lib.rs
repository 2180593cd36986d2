//! Rooms wired into running nodes.
//!
//! A [`SourceNode`] takes fragments from a device into slots and offers them; a [`BuilderNode`] asks for them, builds
//! events and records them. Each is one thread that owns everything it touches; another thread may look at its
//! [`Progress`] and press its [`Stop`]. The [`Topology`] says which nodes there are.
#![forbid(unsafe_code)]

mod blocks;
mod builder;
mod calibration;
mod clock;
mod error;
mod preflight;
mod progress;
mod push;

mod report;
mod slots;
mod source;
mod stop;
mod topology;

pub use builder::BuilderNode;
pub use clock::{TaiClock, cpu, now};
pub use error::NodeError;
pub use preflight::{Recordings, needs, preflight};
pub use progress::{Progress, Snapshot};
pub use push::PushSource;

pub use report::{
    BuilderReport, Calibration, Completion, CreditReport, RunReport, SourceReport, Steady, TriggerRates, TriggerReport,
};
pub use slots::PushedFragment;
pub use source::{Feed, SourceNode, SourceSettings};
pub use stop::{Stop, Urgency};
pub use topology::{
    BuilderNodeConfig, CheckConfig, DEFAULT_SLOT, FilterConfig, Level2Config, LinkConfig, LinkKind, Policy, RunConfig,
    SourceNodeConfig, Topology, TopologyError, WINDOW, default_slot_bytes,
};
