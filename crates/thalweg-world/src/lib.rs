//! Whole systems of nodes in a world made up from a seed.
//!
//! One thread drives the nodes' own code ([`thalweg_node`]) under a clock that moves as far as the next thing that is
//! due. The network, the disks and the devices are made up; a [`Plan`] says what they do and what goes wrong. When all
//! nodes are done, [`judge`] compares what they report and what is on the disks with what the devices had. Equal plans
//! take equal courses.
//!
//! # Files
//!
//! | file | what is in it |
//! | --- | --- |
//! | `plan` | A system and what happens to it, from a seed |
//! | `clock` | The clocks of a host |
//! | `device` | A device that knows what it had |
//! | `instrument` | An instrument that counts the datagrams that it sends, and a cable on which they are lost |
//! | `hostile` | A source that keeps to the rules as long as it likes, and then to none |
//! | `world` | The nodes, and the time that passes between their turns |
//! | `judge` | Whether what they report and what is on their disks is so |
//! | `shrink` | A smaller plan that fails as well |
//! | `random` | Numbers drawn from a seed |
#![forbid(unsafe_code)]

mod clock;
mod device;
mod hostile;
mod instrument;
mod judge;
mod plan;
mod random;
mod shrink;
mod world;

pub use instrument::{Trial, try_instrument};
pub use judge::{Verdict, judge};
pub use plan::{ClockPlan, DatagramKind, Fault, InstrumentPlan, Medium, NodeName, Plan, SourcePlan};
pub use shrink::shrink;
pub use world::{Course, Death, World};

use std::path::Path;

/// Plays the plan in a new directory under `folder`. Returns what is wrong, if anything.
pub fn try_plan(plan: &Plan, folder: &Path) -> Verdict {
    match tempfile::tempdir_in(folder) {
        Ok(directory) => judge(plan, &World::new(plan, directory.path()).take_course()),
        Err(error) => Verdict { wrong: vec![format!("no directory: {error}")], ..Verdict::default() },
    }
}

/// As [`try_plan`], twice: equal plans take equal courses.
pub fn try_twice(plan: &Plan, folder: &Path) -> Verdict {
    let mut first = try_plan(plan, folder);
    // The kernel's TCP takes its own time on a busy machine.
    if plan.medium == Medium::Stream {
        return first;
    }
    let second = try_plan(plan, folder);
    if first.trace != second.trace {
        first.wrong.push("it took another course when it was played again".into());
    }
    first
}
