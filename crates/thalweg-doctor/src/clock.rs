//! Clocks that date fragments.

mod ptp;
mod source;
mod synchronised;
mod tai;

use crate::Finding;

pub(crate) fn examine() -> Vec<Finding> {
    vec![tai::probe(), synchronised::probe(), source::probe(), ptp::probe()]
}
