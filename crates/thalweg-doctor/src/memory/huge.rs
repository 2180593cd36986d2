//! Reserved huge pages: the best memory for blocks.

use crate::{Finding, Needs, read};

const DIRECTORY: &str = "/sys/kernel/mm/hugepages";
const TWO_MIB: u64 = 2 << 20;

pub(super) fn probe(needs: &Needs) -> Finding {
    let of = |size: &str, what: &str| read::number(format!("{DIRECTORY}/hugepages-{size}/{what}"));
    let told = |size: &str, name: &str| match (of(size, "free_hugepages"), of(size, "nr_hugepages")) {
        (Some(free), Some(all)) => format!("{free} of {all} pages of {name} free"),
        _ => format!("pages of {name} unknown"),
    };
    let evidence = format!("{}, {} ({DIRECTORY})", told("2048kB", "2 MiB"), told("1048576kB", "1 GiB"));
    let finding = Finding::new("reserved huge pages", evidence);
    let blocks: u64 = needs.nodes.iter().map(|node| node.blocks.div_ceil(TWO_MIB)).fold(0, u64::saturating_add);
    let (free, all) = (of("2048kB", "free_hugepages").unwrap_or(0), of("2048kB", "nr_hugepages").unwrap_or(0));
    match free < blocks {
        // Without them blocks use transparent huge pages, which is the same as long as memory is not fragmented.
        true => finding.mended_by(format!("sysctl -w vm.nr_hugepages={}", all.saturating_add(blocks - free))),
        false => finding,
    }
}
