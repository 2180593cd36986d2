//! Clock source of the kernel.

use crate::{Finding, read};

const DIRECTORY: &str = "/sys/devices/system/clocksource/clocksource0";
/// Clock sources that are read without a system call or a device.
const FAST: [&str; 5] = ["tsc", "kvm-clock", "arch_sys_counter", "hyperv_clocksource_tsc_page", "timebase"];

pub(super) fn probe_clock_source() -> Finding {
    let current = read::read_text(format!("{DIRECTORY}/current_clocksource"));
    let available = read::read_text(format!("{DIRECTORY}/available_clocksource"));
    judge_clock_source(current.as_deref(), available.as_deref())
}

fn judge_clock_source(current: Option<&str>, available: Option<&str>) -> Finding {
    let Some(current) = current else {
        return Finding::new("clock source", format!("unknown: {DIRECTORY} cannot be read"));
    };
    let available = available.unwrap_or_default();
    let finding = Finding::new("clock source", format!("{current}, of {available} ({DIRECTORY})"));
    if FAST.contains(&current) {
        return finding;
    }
    let finding =
        finding.with_degraded_level("each reading of the clock takes a microsecond, and hot threads read it often");
    match available.split_whitespace().find(|name| FAST.contains(name)) {
        Some(name) => finding.with_remedy(format!("echo {name} > {DIRECTORY}/current_clocksource")),
        None => finding,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Level;

    #[test]
    fn slow_clocks_are_named_with_a_faster_one() {
        assert_eq!(judge_clock_source(Some("tsc"), Some("tsc kvm-clock")).level, Level::Ok);
        let slow = judge_clock_source(Some("hpet"), Some("tsc hpet acpi_pm"));
        assert_eq!(slow.level, Level::Degraded);
        assert!(slow.remedy.unwrap().starts_with("echo tsc > "));
        assert_eq!(judge_clock_source(Some("hpet"), Some("hpet acpi_pm")).remedy, None);
    }
}
