//! Clock source of the kernel.

use crate::{Finding, read};

const DIRECTORY: &str = "/sys/devices/system/clocksource/clocksource0";
/// Clock sources that are read without a system call or a device.
const FAST: [&str; 5] = ["tsc", "kvm-clock", "arch_sys_counter", "hyperv_clocksource_tsc_page", "timebase"];

pub(super) fn probe() -> Finding {
    let current = read::text(format!("{DIRECTORY}/current_clocksource"));
    let available = read::text(format!("{DIRECTORY}/available_clocksource"));
    judge(current.as_deref(), available.as_deref())
}

fn judge(current: Option<&str>, available: Option<&str>) -> Finding {
    let Some(current) = current else {
        return Finding::new("clock source", format!("unknown: {DIRECTORY} cannot be read"));
    };
    let available = available.unwrap_or_default();
    let finding = Finding::new("clock source", format!("{current}, of {available} ({DIRECTORY})"));
    if FAST.contains(&current) {
        return finding;
    }
    let finding = finding.degraded("each reading of the clock takes a microsecond, and hot threads read it often");
    match available.split_whitespace().find(|name| FAST.contains(name)) {
        Some(name) => finding.mended_by(format!("echo {name} > {DIRECTORY}/current_clocksource")),
        None => finding,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Level;

    #[test]
    fn slow_clocks_are_named_with_a_faster_one() {
        assert_eq!(judge(Some("tsc"), Some("tsc kvm-clock")).level, Level::Ok);
        let slow = judge(Some("hpet"), Some("tsc hpet acpi_pm"));
        assert_eq!(slow.level, Level::Degraded);
        assert!(slow.remedy.unwrap().starts_with("echo tsc > "));
        assert_eq!(judge(Some("hpet"), Some("hpet acpi_pm")).remedy, None);
    }
}
