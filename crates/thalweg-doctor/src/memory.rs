//! Memory for slots and blocks.

pub(crate) mod files;
mod huge;
pub(crate) mod lock;
mod numa;
pub(crate) mod room;
mod transparent;

use crate::{Finding, Needs};

pub(crate) fn examine_memory(needs: &Needs) -> Vec<Finding> {
    vec![
        room::probe_available_memory(needs),
        transparent::probe_transparent_pages(),
        huge::probe_huge_pages(needs),
        lock::probe_locked_memory(needs),
        files::probe_file_limit(needs),
        numa::probe_numa_nodes(),
    ]
}
