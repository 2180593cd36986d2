//! Processors that handle an interface's interrupts: they should not be those of hot threads.

use crate::network::Interface;
use crate::placement::{interrupt_lines, join_numbers};
use crate::{Finding, Needs, read};

pub(super) fn probe_interrupts(needs: &Needs, interface: &Interface) -> Finding {
    let lines = interface.device_file("msi_irqs").map(|path| interrupt_lines(&path)).unwrap_or_default();
    let online = read::parse_number_list(&read::read_text("/sys/devices/system/cpu/online").unwrap_or_default());
    judge_interrupts(&interface.name, &lines, &super::bound_processors(needs), &online)
}

fn judge_interrupts(name: &str, lines: &[(u32, Vec<u32>)], bound: &[u32], online: &[u32]) -> Finding {
    let title = format!("{name} interrupts");
    if lines.is_empty() {
        return Finding::new(title, "unknown: the device lists no message-signalled interrupts");
    }
    let affinities: Vec<_> = lines.iter().map(|(number, cpus)| format!("{number} on {}", join_numbers(cpus))).collect();
    let finding = Finding::new(title, format!("{} (/proc/irq/*/effective_affinity_list)", affinities.join(", ")));
    let Some((number, _)) = lines.iter().find(|(_, cpus)| cpus.iter().any(|cpu| bound.contains(cpu))) else {
        return finding;
    };
    let finding = finding.with_degraded_level("a hot thread is interrupted for each batch of packets");
    let others: Vec<u32> = online.iter().copied().filter(|cpu| !bound.contains(cpu)).collect();
    match others.is_empty() {
        true => finding,
        false => finding.with_remedy(format!("echo {} > /proc/irq/{number}/smp_affinity_list", join_numbers(&others))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Level;

    #[test]
    fn interrupts_go_where_no_node_is_bound() {
        let lines = [(38, vec![1]), (39, vec![0])];
        assert_eq!(judge_interrupts("eth0", &lines, &[], &[0, 1]).level, Level::Ok);
        let hit = judge_interrupts("eth0", &lines, &[0], &[0, 1]);
        assert_eq!(hit.level, Level::Degraded);
        assert_eq!(hit.remedy.as_deref(), Some("echo 1 > /proc/irq/39/smp_affinity_list"));
        assert_eq!(judge_interrupts("eth0", &lines, &[0, 1], &[0, 1]).remedy, None, "there is nowhere to go");
    }
}
