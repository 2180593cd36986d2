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

pub(crate) fn examine(needs: &Needs) -> Vec<Finding> {
    let mut findings = vec![
        number::probe(needs),
        pinned::probe(needs),
        governor::probe(),
        isolation::probe(needs),
        smt::probe(needs),
        steal::probe(),
    ];
    for interface in Interface::all().iter().filter(|interface| interface.up && interface.physical()) {
        findings.push(interrupts::probe(needs, interface));
        findings.push(distance::probe(needs, interface));
    }
    findings
}

/// Returns the processors that nodes are bound to.
fn bound(needs: &Needs) -> Vec<u32> {
    needs.nodes.iter().filter_map(|node| node.cpu).collect()
}
