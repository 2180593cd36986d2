//! Mitigations of the processor's defects, which slow every system call and every switch between processes.

use crate::{Finding, read};
use std::path::Path;

const DIRECTORY: &str = "/sys/devices/system/cpu/vulnerabilities";

pub(super) fn probe_mitigations() -> Finding {
    let all: Vec<(String, String)> = read::read_names(DIRECTORY)
        .into_iter()
        .filter_map(|name| Some((read::read_text(Path::new(DIRECTORY).join(&name))?, name)))
        .map(|(text, name)| (name, text))
        .collect();
    // Whether to switch some off depends on the other users of the machine, not on this program.
    Finding::new("mitigations", format!("{} ({DIRECTORY})", summarize_mitigations(&all)))
}

fn summarize_mitigations(all: &[(String, String)]) -> String {
    let [mitigated, vulnerable] = ["Mitigation", "Vulnerable"].map(|prefix| {
        let found = all.iter().filter(|(_, text)| text.starts_with(prefix));
        let names: Vec<&str> = found.map(|(name, _)| name.as_str()).collect();
        if names.is_empty() { "none".to_owned() } else { names.join(", ") }
    });
    format!("mitigated: {mitigated}; vulnerable: {vulnerable}; of {} known", all.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_costs_time_is_named() {
        let all = [
            ("meltdown", "Not affected"),
            ("spec_store_bypass", "Vulnerable"),
            ("spectre_v1", "Mitigation: usercopy/swapgs barriers and __user pointer sanitization"),
            ("spectre_v2", "Mitigation: Retpolines; STIBP: disabled; RSB filling"),
        ];
        let all: Vec<_> = all.iter().map(|(name, text)| ((*name).to_owned(), (*text).to_owned())).collect();
        assert_eq!(
            summarize_mitigations(&all),
            "mitigated: spectre_v1, spectre_v2; vulnerable: spec_store_bypass; of 4 known"
        );
        assert_eq!(summarize_mitigations(&[]), "mitigated: none; vulnerable: none; of 0 known");
    }
}
