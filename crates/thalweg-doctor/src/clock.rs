//! Clocks that date fragments.

mod ptp;
mod source;
mod synchronised;
mod tai;

use crate::Finding;
pub use synchronised::is_clock_synchronised;

pub(crate) fn examine_clocks() -> Vec<Finding> {
    vec![
        tai::probe_tai_offset(),
        synchronised::probe_synchronisation(),
        source::probe_clock_source(),
        ptp::probe_ptp_clocks(),
    ]
}
