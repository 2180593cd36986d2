//! Processors that a topology binds nodes to.

use crate::{Finding, Needs, read};
use rustix::thread::{CpuSet, sched_getaffinity};
use std::collections::BTreeMap;

pub(crate) fn probe_bound_processors(needs: &Needs) -> Finding {
    const NAME: &str = "bound processors";
    let bound: Vec<_> = needs.nodes.iter().filter_map(|node| Some((node.cpu?, node.name.as_str()))).collect();
    if bound.is_empty() {
        return Finding::new(NAME, "no node is bound to a processor");
    }
    let finding = Finding::new(NAME, format_bindings(&bound));
    let cannot: Vec<_> = bound.iter().filter(|(cpu, _)| !can_be_bound(*cpu)).copied().collect();
    if !cannot.is_empty() {
        let online = read::text_or_unknown(read::read_text("/sys/devices/system/cpu/online"));
        return finding.with_missing_level(format!(
            "this process may not run on {}; processors online: {online}: set `cpu` to one of them, or remove it",
            format_bindings(&cannot)
        ));
    }
    let shared = shared_processors(&bound);
    match shared.is_empty() {
        true => finding,
        false => finding
            .with_degraded_level(format!("several hot threads share processor {shared}: give each its own `cpu`")),
    }
}

fn format_bindings(bound: &[(u32, &str)]) -> String {
    bound.iter().map(|(cpu, name)| format!("{name} to {cpu}")).collect::<Vec<_>>().join(", ")
}

/// Returns true if this process may run on the processor: `taskset` and cpusets may exclude it.
fn can_be_bound(cpu: u32) -> bool {
    (cpu as usize) < CpuSet::MAX_CPU && sched_getaffinity(None).is_ok_and(|allowed| allowed.is_set(cpu as usize))
}

/// Returns the processors that more than one node is bound to, as a list.
fn shared_processors(bound: &[(u32, &str)]) -> String {
    let mut count = BTreeMap::<u32, usize>::new();
    for (cpu, _) in bound {
        *count.entry(*cpu).or_default() += 1;
    }
    let list: Vec<_> = count.into_iter().filter(|(_, count)| *count > 1).map(|(cpu, _)| cpu.to_string()).collect();
    list.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Level, NodeNeeds};

    fn bound_to(cpus: &[u32]) -> Finding {
        let node = |cpu: &u32| NodeNeeds { name: format!("node-{cpu}"), cpu: Some(*cpu), ..NodeNeeds::default() };
        probe_bound_processors(&Needs { nodes: cpus.iter().map(node).collect(), ..Needs::default() })
    }

    #[test]
    fn a_processor_that_is_not_there_is_missing_and_one_for_two_is_slow() {
        let here = read::parse_number_list(&read::read_text("/sys/devices/system/cpu/online").unwrap())
            .into_iter()
            .find(|cpu| can_be_bound(*cpu))
            .unwrap();
        assert_eq!(bound_to(&[here]).level, Level::Ok);
        assert_eq!(bound_to(&[here, here]).level, Level::Degraded);
        for nowhere in [1000, 4000, u32::MAX] {
            let missing = bound_to(&[here, nowhere]);
            assert_eq!(missing.level, Level::Missing);
            assert!(missing.cost.unwrap().contains(&format!("node-{nowhere} to {nowhere};")));
        }
        assert_eq!(probe_bound_processors(&Needs::default()).level, Level::Ok);
    }
}
