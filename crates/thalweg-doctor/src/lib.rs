//! Examination of this machine for a run: what it offers, and what would lose data on it.
//!
//! [`examine_machine`] checks everything, [`examine_preflight`] only what a node would otherwise notice in the middle of a run. Both
//! only read: they read `/proc` and `/sys`, ask the kernel over netlink, and try operations that leave no trace (a
//! socket that is bound and closed, a ring that is made and dropped). One file holds one probe, which makes one kind of
//! [`Finding`]; texts of `/proc` and `/sys` are parsed by pure functions, and what cannot be read is reported as
//! unknown, never guessed. Nothing is changed, except by [`Steered`], which restores it.
//!
//! # Files, in the order of the data's way
//!
//! | file | what is in it |
//! | --- | --- |
//! | `needs` | Requirements of a run on the machine |
//! | `finding` | Findings of an examination |
//! | `cpu` | Processors for hot threads |
//! | `placement` | Placement of a server's threads: off the processors that the network interrupts, if possible |
//! | `memory` | Memory for slots and blocks |
//! | `clock` | Clocks that date fragments |
//! | `kernel` | Features of the kernel that are available to this process |
//! | `network` | Interfaces and TCP |
//! | `disk` | The record directory |
//! | `userspace` | Ways around the kernel: DPDK, VFIO, RDMA, GPUs |
//! | `steering` | Temporary steering of interrupts to chosen processors |
//! | `read` | Reading of the kernel's texts for people: small, and never trusted to have the expected shape |
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

pub use clock::is_clock_synchronised;
pub use finding::{Finding, Level, Section};
pub use needs::{Data, Needs, NodeNeeds};
pub use placement::{Placement, choose_placement};
pub use steering::{SteerError, Steered};

/// Returns all findings about this machine, in the order of [`Section`].
///
/// Takes about a quarter of a second, in which the processors are observed; with [`Needs::measure_disk`] two more.
pub fn examine_machine(needs: &Needs) -> Vec<Finding> {
    let sections = [
        (Section::Kernel, kernel::examine_kernel()),
        (Section::Memory, memory::examine_memory(needs)),
        (Section::Cpu, cpu::examine_processors(needs)),
        (Section::Network, network::examine_network(needs)),
        (Section::Userspace, userspace::examine_userspace()),
        (Section::Clock, clock::examine_clocks()),
        (Section::Disk, disk::examine_disk(needs)),
    ];
    sections
        .into_iter()
        .flat_map(|(section, found)| found.into_iter().map(move |one| one.in_section(section)))
        .collect()
}

/// Returns the findings about problems that would end a node, or lose data, after it has begun: processors, addresses,
/// congestion controls, memory, files, the record directory and its free space, for what the node is about to do. Takes
/// a few milliseconds, and as long as it takes to resolve names.
pub fn examine_preflight(needs: &Needs) -> Vec<Finding> {
    let sections = [
        (Section::Cpu, vec![cpu::pinned::probe_bound_processors(needs)]),
        (Section::Network, network::probe_requested(needs)),
        (Section::Userspace, userspace::dpdk::probe_if_needed(needs).into_iter().collect()),
        (
            Section::Memory,
            vec![
                memory::room::probe_available_memory(needs),
                memory::lock::probe_locked_memory(needs),
                memory::files::probe_file_limit(needs),
            ],
        ),
        (Section::Disk, vec![disk::directory::probe_directory(needs), disk::space::probe_free_space(needs)]),
    ];
    sections
        .into_iter()
        .flat_map(|(section, found)| found.into_iter().map(move |one| one.in_section(section)))
        .collect()
}

/// Returns the worst of the levels; [`Level::Ok`] if there are no findings.
pub fn worst_level(findings: &[Finding]) -> Level {
    findings.iter().map(|finding| finding.level).max().unwrap_or_default()
}
