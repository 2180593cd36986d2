//! Clocks in network devices, and the hypervisor's.

use crate::{Finding, read};

const DIRECTORY: &str = "/sys/class/ptp";

pub(super) fn probe() -> Finding {
    let told = |name: &String| {
        let text = read::text(format!("{DIRECTORY}/{name}/clock_name"));
        format!("{name} ({})", read::or_unknown(text))
    };
    let clocks = read::names(DIRECTORY);
    Finding::new(
        "PTP clocks",
        match clocks.is_empty() {
            true => format!("none here ({DIRECTORY})"),
            false => clocks.iter().map(told).collect::<Vec<_>>().join(", "),
        },
    )
}
