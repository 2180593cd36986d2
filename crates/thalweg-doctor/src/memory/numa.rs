//! NUMA nodes: memory of another node is farther away.

use crate::{Finding, read};

pub(super) fn probe_numa_nodes() -> Finding {
    let nodes = read::read_text("/sys/devices/system/node/online").map(|text| read::parse_number_list(&text));
    Finding::new(
        "NUMA nodes",
        match nodes.as_deref() {
            None | Some([]) => "unknown: /sys/devices/system/node/online cannot be read".to_owned(),
            Some([_]) => "one: all memory is equally near".to_owned(),
            Some(nodes) => {
                let free = nodes.iter().map(|node| format!("node {node}: {} free", free_memory_text(*node)));
                free.collect::<Vec<_>>().join(", ")
            }
        },
    )
}

fn free_memory_text(node: u32) -> String {
    let text = read::read_text(format!("/sys/devices/system/node/node{node}/meminfo")).unwrap_or_default();
    read::text_or_unknown(parse_free_memory(&text).map(thalweg_text::format_volume))
}

/// Returns the free memory in bytes. Each line begins with `Node 0 `.
fn parse_free_memory(text: &str) -> Option<u64> {
    text.lines().find_map(|line| read::kibibyte_value(line.trim_start().splitn(3, ' ').nth(2)?, "MemFree"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn free_memory_of_a_node_is_read() {
        let text =
            "Node 0 MemTotal:       24684084 kB\nNode 0 MemFree:        24139880 kB\nNode 0 MemUsed:         544204 kB";
        assert_eq!(parse_free_memory(text), Some(24_139_880 * 1024));
        assert_eq!(parse_free_memory("Node"), None);
    }
}
