//! Distance between an interface and the processors that serve it.

use crate::network::Interface;
use crate::{Finding, Needs, read};

pub(super) fn probe_distance(needs: &Needs, interface: &Interface) -> Finding {
    // -1 if the firmware does not state it, or if there is only one node.
    let node = interface.device_file("numa_node").and_then(read::read_text).and_then(|text| text.parse::<u32>().ok());
    let near = node
        .and_then(|node| read::read_text(format!("/sys/devices/system/node/node{node}/cpulist")))
        .map(|text| read::parse_number_list(&text));
    let distances = node.and_then(|node| read::read_text(format!("/sys/devices/system/node/node{node}/distance")));
    judge_distance(&interface.name, node.zip(near), distances.as_deref(), &super::bound_processors(needs))
}

fn judge_distance(name: &str, home: Option<(u32, Vec<u32>)>, distances: Option<&str>, bound: &[u32]) -> Finding {
    let title = format!("{name} distance");
    let Some((node, near)) = home else {
        return Finding::new(title, "the same from all processors, or not reported (device/numa_node)");
    };
    let evidence = format!("at NUMA node {node}; distances from there: {}", distances.unwrap_or("unknown"));
    let finding = Finding::new(title, evidence);
    let far: Vec<_> = bound.iter().filter(|cpu| !near.contains(cpu)).map(u32::to_string).collect();
    match far.is_empty() {
        true => finding,
        false => finding.with_degraded_level(format!(
            "nodes are bound to {}, on another NUMA node: their traffic crosses between NUMA nodes; use the \
             processors in /sys/class/net/{name}/device/local_cpulist",
            far.join(", ")
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Level;

    #[test]
    fn a_node_bound_across_the_machine_is_reported() {
        let home = || Some((1, vec![8, 9]));
        assert_eq!(judge_distance("eth0", None, None, &[0]).level, Level::Ok);
        assert_eq!(judge_distance("eth0", home(), Some("21 10"), &[8]).level, Level::Ok);
        assert_eq!(judge_distance("eth0", home(), Some("21 10"), &[0, 8]).level, Level::Degraded);
    }
}
