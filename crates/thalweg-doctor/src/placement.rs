//! Placement of a server's threads: off the processors that the network interrupts, if possible.
//!
//! A program on the processor that receives packets is interrupted for each batch of them (Olive, section 4.1; `thalweg
//! bench bandwidth --interrupts`). A disk's completions need no processor of their own: the kernel returns them to the
//! processor that requested the read (`rq_affinity`, Documentation/ABI/stable/sysfs-block), and with them comes what
//! the thread needs next.

use crate::network::Interface;
use crate::{disk, read};
use rustix::thread::{CpuSet, sched_getaffinity};
use std::net::IpAddr;
use std::path::Path;

/// Processors for a server's threads.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Placement {
    /// Numbers of the processors: all usable ones if none is better than another.
    pub cpus: Vec<u32>,
    /// Observations behind the choice, for people.
    pub why: String,
}

/// Returns the placement for a server that listens on this address and serves this directory. Reads where interrupts
/// are handled now, and changes nothing.
pub fn choose_placement(listen: IpAddr, directory: &Path) -> Placement {
    let allowed = sched_getaffinity(None).unwrap_or_else(|_| CpuSet::new());
    let allowed: Vec<u32> = (0..1024).filter(|cpu| allowed.is_set(*cpu as usize)).collect();
    let interrupts: Vec<(String, Vec<u32>)> = interfaces_towards(listen)
        .into_iter()
        .filter_map(|interface| {
            let lines = interface.device_file("msi_irqs").map(|path| interrupt_lines(&path))?;
            Some((interface.name, interrupted_processors(&lines)))
        })
        .collect();
    let disk = disk::completions::completions_of_disk(directory).map(|completions| completions.describe());
    judge_placement(&allowed, &interrupts, disk)
}

fn judge_placement(allowed: &[u32], interrupts: &[(String, Vec<u32>)], disk: Option<String>) -> Placement {
    let mut free = allowed.to_vec();
    free.retain(|cpu| interrupts.iter().all(|(_, cpus)| !cpus.contains(cpu)));
    let interrupted: Vec<String> =
        interrupts.iter().map(|(name, cpus)| format!("{name} interrupts processor {}", join_numbers(cpus))).collect();
    let (cpus, choice) = if interrupted.is_empty() {
        (allowed.to_vec(), "no network card faces its clients, so that it serves on all".to_owned())
    } else if free.is_empty() || free.len() == allowed.len() {
        (allowed.to_vec(), format!("{}, it serves on all", interrupted.join(", ")))
    } else {
        (free.clone(), format!("{}, it serves on {}", interrupted.join(", "), join_numbers(&free)))
    };
    Placement { cpus, why: [Some(choice), disk].into_iter().flatten().collect::<Vec<_>>().join("; ") }
}

/// Returns the interfaces on which packets for an address arrive: only those with a device, since others cause no
/// interrupts.
pub(crate) fn interfaces_towards(address: IpAddr) -> Vec<Interface> {
    let named: Vec<String> = if_addrs::get_if_addrs()
        .unwrap_or_default()
        .into_iter()
        .filter(|interface| interface.ip() == address)
        .map(|interface| interface.name)
        .collect();
    let mut interfaces = Interface::list_all();
    interfaces.retain(|one| one.up && one.has_device() && (address.is_unspecified() || named.contains(&one.name)));
    interfaces
}

/// Returns a device's message-signalled interrupts and the processors that handle them.
pub(crate) fn interrupt_lines(msi_irqs: &Path) -> Vec<(u32, Vec<u32>)> {
    let numbers = read::read_names(msi_irqs).into_iter().filter_map(|number| number.parse().ok());
    numbers
        .filter_map(|number: u32| {
            let [possible, now] = ["smp_affinity_list", "effective_affinity_list"].map(|kind| {
                read::read_text(format!("/proc/irq/{number}/{kind}")).map(|text| read::parse_number_list(&text))
            });
            let now = now.filter(|now| !now.is_empty());
            match (possible, now) {
                // An interrupt that was moved stays where it was until it occurs the next time.
                (Some(possible), Some(now)) => {
                    let is_moved = now.iter().any(|cpu| !possible.contains(cpu));
                    Some((number, if is_moved { possible } else { now }))
                }
                (possible, now) => Some((number, now.or(possible)?)),
            }
        })
        .collect()
}

pub(crate) fn interrupted_processors(lines: &[(u32, Vec<u32>)]) -> Vec<u32> {
    let mut cpus: Vec<u32> = lines.iter().flat_map(|(_, cpus)| cpus.iter().copied()).collect();
    cpus.sort_unstable();
    cpus.dedup();
    cpus
}

pub(crate) fn join_numbers(list: &[u32]) -> String {
    list.iter().map(u32::to_string).collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_go_where_the_network_does_not_interrupt() {
        let eth0 = |cpus: &[u32]| [("eth0".to_owned(), cpus.to_vec())];
        let placed = judge_placement(&[0, 1], &eth0(&[0]), None);
        assert_eq!((placed.cpus, placed.why.as_str()), (vec![1], "eth0 interrupts processor 0, it serves on 1"));
        assert_eq!(judge_placement(&[0, 1], &eth0(&[0, 1]), None).cpus, [0, 1], "there is nowhere to go");
        assert_eq!(judge_placement(&[2, 3], &eth0(&[0]), None).cpus, [2, 3], "it interrupts others");
        assert_eq!(judge_placement(&[0, 1], &[], None).cpus, [0, 1]);
        let why = judge_placement(&[0, 1], &[], Some("vda: rq_affinity 1".to_owned())).why;
        assert!(why.ends_with("; vda: rq_affinity 1"), "{why}");
    }

    #[test]
    fn loopback_interrupts_nobody() {
        let placed = choose_placement(IpAddr::from([127, 0, 0, 1]), Path::new("/"));
        assert!(!placed.cpus.is_empty() && placed.why.contains("it serves on all"), "{placed:?}");
    }
}
