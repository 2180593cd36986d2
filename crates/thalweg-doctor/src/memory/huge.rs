//! Reserved huge pages: the best memory for blocks.

use crate::{Finding, Needs, read};

const DIRECTORY: &str = "/sys/kernel/mm/hugepages";
const TWO_MIB: u64 = 2 << 20;

pub(super) fn probe_huge_pages(needs: &Needs) -> Finding {
    let pages = [("2048kB", "2 MiB"), ("1048576kB", "1 GiB")].map(|(size, name)| match huge_page_counts(size) {
        Some((free, all)) => format!("{free} of {all} pages of {name} free"),
        None => format!("pages of {name} unknown"),
    });
    let finding = Finding::new("reserved huge pages", format!("{} ({DIRECTORY})", pages.join(", ")));
    let blocks: u64 = needs.nodes.iter().map(|node| node.blocks.div_ceil(TWO_MIB)).fold(0, u64::saturating_add);
    let (free, all) = huge_page_counts("2048kB").unwrap_or_default();
    match free < blocks {
        // Without them blocks use transparent huge pages, which is the same as long as memory is not fragmented.
        true => finding.with_remedy(format!("sysctl -w vm.nr_hugepages={}", all.saturating_add(blocks - free))),
        false => finding,
    }
}

/// Returns the number of free huge pages of a size, and that of all.
fn huge_page_counts(size: &str) -> Option<(u64, u64)> {
    let directory = format!("{DIRECTORY}/hugepages-{size}");
    read::read_number(format!("{directory}/free_hugepages")).zip(read::read_number(format!("{directory}/nr_hugepages")))
}
