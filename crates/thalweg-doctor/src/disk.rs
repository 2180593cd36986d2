//! The record directory.

pub(crate) mod completions;
pub(crate) mod directory;
mod place;
pub(crate) mod space;
mod speed;
mod writes;

use crate::{Finding, Needs};

pub(crate) fn examine_disk(needs: &Needs) -> Vec<Finding> {
    let mut findings = vec![directory::probe_directory(needs), space::probe_free_space(needs)];
    match needs.measure_disk {
        true => findings.extend(speed::probe_write_speed(needs)),
        false => findings.extend(writes::probe_write_methods(needs)),
    }
    findings.extend(completions::probe_completions(needs));
    findings
}
