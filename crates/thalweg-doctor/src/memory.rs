//! Memory for slots and blocks.

pub(crate) mod files;
mod huge;
pub(crate) mod lock;
mod numa;
pub(crate) mod room;
mod transparent;

use crate::{Finding, Needs};

pub(crate) fn examine(needs: &Needs) -> Vec<Finding> {
    vec![
        room::probe(needs),
        transparent::probe(),
        huge::probe(needs),
        lock::probe(needs),
        files::probe(needs),
        numa::probe(),
    ]
}
