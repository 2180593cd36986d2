//! What this machine can do for a run, and what would lose data on it, found out before the run.
//!
//! [`examine`] looks at everything, [`preflight`] at what a node would otherwise notice only in the middle of a run. Both
//! only look: they read `/proc` and `/sys`, ask the kernel over netlink, and try things that leave no trace (a socket
//! that is bound and closed, a ring that is made and dropped). One file holds one probe, which makes one kind of
//! [`Finding`]; what is written in `/proc` and `/sys` is read by pure functions, and what cannot be read is said to be
//! unknown, never guessed. Nothing is changed, but by [`Steered`], which changes it back.
//!
//! # Files, in the order of the data's way
//!
//! | file | what is in it |
//! | --- | --- |
//! | `needs` | What is asked of the machine |
//! | `finding` | What was found |
//! | `cpu` | Processors for hot threads |
//! | `placement` | Which processors a server's threads are best kept on: not those that the network interrupts, where there are others |
//! | `memory` | Memory for slots and blocks |
//! | `clock` | Clocks that date fragments |
//! | `kernel` | What the kernel offers this process |
//! | `network` | Interfaces and TCP |
//! | `disk` | The record directory |
//! | `userspace` | Ways around the kernel: DPDK, VFIO, RDMA, GPUs |
//! | `steering` | Interrupts that other processors take, for as long as somebody wants it |
//! | `read` | Reading what the kernel writes for people: small texts, never trusted to have the shape they should |
#![deny(unsafe_code)]

mod clock;
mod cpu;
mod disk;
mod finding;
mod kernel;
mod memory;
mod needs;
mod network;
mod placement;
mod read;
mod steering;
mod userspace;

pub use finding::{Finding, Level, Section};
pub use needs::{Data, Needs, NodeNeeds};
pub use placement::{Placement, placement};
pub use steering::{SteerError, Steered};

/// Everything there is to say about this machine, in the order of [`Section`].
///
/// Takes about a quarter of a second, in which it watches the processors; with [`Needs::measure_disk`] two more.
pub fn examine(needs: &Needs) -> Vec<Finding> {
    let sections = [
        (Section::Kernel, kernel::examine()),
        (Section::Memory, memory::examine(needs)),
        (Section::Cpu, cpu::examine(needs)),
        (Section::Network, network::examine(needs)),
        (Section::Userspace, userspace::examine()),
        (Section::Clock, clock::examine()),
        (Section::Disk, disk::examine(needs)),
    ];
    sections.into_iter().flat_map(|(section, found)| found.into_iter().map(move |one| one.of(section))).collect()
}

/// What would end a node, or lose data, after it has begun: processors, addresses, congestion controls, memory, files,
/// the record directory and the space there, for what it is about to do. Takes a few milliseconds, and as long as it
/// takes to resolve names.
pub fn preflight(needs: &Needs) -> Vec<Finding> {
    let sections = [
        (Section::Cpu, vec![cpu::pinned::probe(needs)]),
        (Section::Network, network::asked_for(needs)),
        (Section::Userspace, userspace::dpdk::needed(needs).into_iter().collect()),
        (Section::Memory, vec![memory::room::probe(needs), memory::lock::probe(needs), memory::files::probe(needs)]),
        (Section::Disk, vec![disk::directory::probe(needs), disk::space::probe(needs)]),
    ];
    sections.into_iter().flat_map(|(section, found)| found.into_iter().map(move |one| one.of(section))).collect()
}

/// The worst of the levels; [`Level::Ok`] where there is nothing.
pub fn worst(findings: &[Finding]) -> Level {
    findings.iter().map(|finding| finding.level).max().unwrap_or_default()
}
