//! Processors for hot threads.

mod distance;
mod governor;
mod interrupts;
mod isolation;
mod number;
pub(crate) mod pinned;
mod smt;
mod steal;

use crate::network::Interface;
use crate::{Finding, Needs};

pub(crate) fn examine_processors(needs: &Needs) -> Vec<Finding> {
    let mut findings = vec![
        number::probe_processor_count(needs),
        pinned::probe_bound_processors(needs),
        governor::probe_governor(),
        isolation::probe_isolation(needs),
        smt::probe_multithreading(needs),
        steal::probe_stolen_time(),
    ];
    for interface in Interface::list_all().iter().filter(|interface| interface.up && interface.has_device()) {
        findings.push(interrupts::probe_interrupts(needs, interface));
        findings.push(distance::probe_distance(needs, interface));
    }
    findings
}

/// Returns the processors that nodes are bound to.
fn bound_processors(needs: &Needs) -> Vec<u32> {
    needs.nodes.iter().filter_map(|node| node.cpu).collect()
}
