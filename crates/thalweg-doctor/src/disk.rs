//! The record directory.

pub(crate) mod completions;
pub(crate) mod directory;
mod place;
pub(crate) mod space;
mod speed;
mod writes;

use crate::{Finding, Needs};

pub(crate) fn examine(needs: &Needs) -> Vec<Finding> {
    let mut findings = vec![directory::probe(needs), space::probe(needs)];
    match needs.measure_disk {
        true => findings.extend(speed::probe(needs)),
        false => findings.extend(writes::probe(needs)),
    }
    findings.extend(completions::probe(needs));
    findings
}
