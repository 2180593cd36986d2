//! Simultaneous multithreading: two processors in one core share its caches and its units.

use crate::{Finding, Needs, read};

pub(super) fn probe_multithreading(needs: &Needs) -> Finding {
    let active = match read::read_number("/sys/devices/system/cpu/smt/active") {
        Some(0) => "off",
        Some(_) => "on",
        None => "unknown",
    };
    let mut bound = Vec::new();
    for cpu in super::bound_processors(needs) {
        let siblings = read::read_text(format!("/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list"));
        bound.extend(siblings.map(|text| (cpu, read::parse_number_list(&text))));
    }
    let finding = Finding::new("SMT", format!("{active} (/sys/devices/system/cpu/smt/active)"));
    match find_core_siblings(&bound) {
        None => finding,
        Some((one, other)) => finding.with_degraded_level(format!(
            "nodes are bound to {one} and {other}, two threads of one core: each runs at about half its speed"
        )),
    }
}

/// Returns two different processors of one core. Each entry is a processor with all processors of its core.
fn find_core_siblings(bound: &[(u32, Vec<u32>)]) -> Option<(u32, u32)> {
    bound.iter().enumerate().find_map(|(at, (one, core))| {
        bound[at + 1..].iter().find(|(other, _)| other != one && core.contains(other)).map(|(other, _)| (*one, *other))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_of_one_core_are_found() {
        assert_eq!(find_core_siblings(&[(0, vec![0, 8]), (1, vec![1, 9])]), None);
        assert_eq!(
            find_core_siblings(&[(0, vec![0, 8]), (0, vec![0, 8])]),
            None,
            "one processor twice is another finding"
        );
        assert_eq!(find_core_siblings(&[(0, vec![0, 8]), (1, vec![1, 9]), (8, vec![0, 8])]), Some((0, 8)));
    }
}
