//! Frequency of processors under sudden load.

use crate::{Finding, read};
use std::collections::BTreeSet;

pub(super) fn probe_governor() -> Finding {
    let cpus = read::read_text("/sys/devices/system/cpu/online")
        .map(|text| read::parse_number_list(&text))
        .unwrap_or_default();
    let paths = cpus.iter().map(|cpu| format!("/sys/devices/system/cpu/cpu{cpu}/cpufreq/scaling_governor"));
    judge_governors(&paths.filter_map(read::read_text).collect())
}

fn judge_governors(governors: &BTreeSet<String>) -> Finding {
    if governors.is_empty() {
        return Finding::new("governor", "none: the firmware or the hypervisor controls the frequencies");
    }
    let list = governors.iter().map(String::as_str).collect::<Vec<_>>().join(", ");
    let finding = Finding::new("governor", format!("{list} (/sys/devices/system/cpu/cpu*/cpufreq/scaling_governor)"));
    match governors.iter().all(|governor| governor == "performance") {
        true => finding,
        false => finding
            .with_degraded_level(
                "a thread that wakes up runs slowly at first: the first fragments after a pause take longer",
            )
            .with_remedy("echo performance | tee /sys/devices/system/cpu/cpu*/cpufreq/scaling_governor"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Level;

    #[test]
    fn only_performance_is_always_fast() {
        let level = |names: &[&str]| judge_governors(&names.iter().map(|name| (*name).to_owned()).collect()).level;
        assert_eq!(level(&[]), Level::Ok);
        assert_eq!(level(&["performance"]), Level::Ok);
        assert_eq!(level(&["performance", "powersave"]), Level::Degraded);
    }
}
