//! Clocks in network devices, and the hypervisor's.

use crate::{Finding, read};

const DIRECTORY: &str = "/sys/class/ptp";

pub(super) fn probe() -> Finding {
    let names = read::names(DIRECTORY).into_iter();
    let clocks: Vec<String> = names
        .map(|name| {
            let clock_name = read::text(format!("{DIRECTORY}/{name}/clock_name"));
            format!("{name} ({})", read::or_unknown(clock_name))
        })
        .collect();
    let evidence = if clocks.is_empty() { format!("none here ({DIRECTORY})") } else { clocks.join(", ") };
    Finding::new("PTP clocks", evidence)
}
