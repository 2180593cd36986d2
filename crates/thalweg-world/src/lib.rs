//! Simulation of whole systems of nodes, generated from a seed.
//!
//! One thread drives the nodes' own code ([`thalweg_node`]) under a clock that advances to the next event that is due.
//! The network, the disks and the devices are simulated; a [`Plan`] determines their behaviour and the faults. When all
//! nodes are done, [`judge`] compares their reports and the content of the disks with the fragments of the devices.
//! Equal plans take equal courses.
//!
//! # Files
//!
//! | file | what is in it |
//! | --- | --- |
//! | `plan` | A generated system, with the faults that happen to it |
//! | `clock` | The clocks of a host |
//! | `device` | A simulated device that records its fragments |
//! | `instrument` | A simulated instrument that counts its datagrams, and a lossy cable |
//! | `hostile` | A source that breaks the protocol after following it for a while |
//! | `world` | The nodes, and the time that passes between their turns |
//! | `judge` | Comparison of reports and disks with the truth |
//! | `shrink` | Search for a smaller plan that fails as well |
//! | `random` | Numbers drawn from a seed |
//! | `fuzz` | Properties of the parsers that hold for any input, for the fuzzer and for tests that replay its corpora |
#![forbid(unsafe_code)]

mod clock;
mod device;
pub mod fuzz;
mod hostile;
mod instrument;
mod judge;
mod plan;
mod random;
mod shrink;
mod world;

pub use instrument::{Trial, try_instrument};
pub use judge::{Verdict, judge_course};
pub use plan::{ClockPlan, DatagramKind, Fault, InstrumentPlan, Medium, NodeName, Plan, SourcePlan};
pub use shrink::shrink_faults;
pub use world::{Course, Death, World};

use std::path::Path;

/// Runs the plan in a new directory under `folder`. Returns the violations found, if any.
pub fn try_plan(plan: &Plan, folder: &Path) -> Verdict {
    match tempfile::tempdir_in(folder) {
        Ok(directory) => judge_course(plan, &World::new(plan, directory.path()).run_to_end()),
        Err(error) => Verdict { wrong: vec![format!("no directory: {error}")], ..Verdict::default() },
    }
}

/// Runs the plan twice, as [`try_plan`], and checks that equal plans take equal courses.
pub fn try_twice(plan: &Plan, folder: &Path) -> Verdict {
    let mut first = try_plan(plan, folder);
    // The timing of the kernel's TCP depends on how busy the machine is.
    if plan.medium == Medium::Stream {
        return first;
    }
    let second = try_plan(plan, folder);
    if first.trace != second.trace {
        first.wrong.push("it took another course when it was played again".into());
    }
    first
}
