//! What this machine can do for a run, and what would lose data on it, found out before the run.
//!
//! [`examine`] looks at everything, [`preflight`] at what a node would otherwise notice only in the middle of a run. Both
//! only look: they read `/proc` and `/sys`, ask the kernel over netlink, and try things that leave no trace (a socket
//! that is bound and closed, a ring that is made and dropped). One file holds one probe, which makes one kind of
//! [`Finding`]; what is written in `/proc` and `/sys` is read by pure functions, and what cannot be read is said to be
//! unknown, never guessed. Nothing is changed, but by [`Steered`], which changes it back.
#![forbid(unsafe_code)]

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

/// What a node would find out too late: memory, files and disk space for what it is about to do. Takes a few
/// milliseconds at most.
///
/// Addresses, processors and the record directory are not looked at: a node that is made from its topology opens them
/// itself before it lets anybody in, and says what is wrong.
pub fn preflight(needs: &Needs) -> Vec<Finding> {
    let memory = [memory::room::probe(needs), memory::lock::probe(needs), memory::files::probe(needs)];
    let disk = [disk::space::probe(needs)];
    let memory = memory.into_iter().map(|one| one.of(Section::Memory));
    memory.chain(disk.into_iter().map(|one| one.of(Section::Disk))).collect()
}

/// The worst of the levels; [`Level::Ok`] where there is nothing.
pub fn worst(findings: &[Finding]) -> Level {
    findings.iter().map(|finding| finding.level).max().unwrap_or_default()
}
