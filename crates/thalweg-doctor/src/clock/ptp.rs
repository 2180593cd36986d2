//! Clocks in network devices, and the hypervisor's.

use crate::{Finding, read};

const DIRECTORY: &str = "/sys/class/ptp";

pub(super) fn probe_ptp_clocks() -> Finding {
    let names = read::read_names(DIRECTORY).into_iter();
    let clocks: Vec<String> = names
        .map(|name| {
            let clock_name = read::read_text(format!("{DIRECTORY}/{name}/clock_name"));
            format!("{name} ({})", read::text_or_unknown(clock_name))
        })
        .collect();
    let evidence = if clocks.is_empty() { format!("none here ({DIRECTORY})") } else { clocks.join(", ") };
    Finding::new("PTP clocks", evidence)
}
