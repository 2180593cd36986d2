//! Memory for all slots and blocks: whether it is enough.

use crate::{Finding, Needs, read};

pub(crate) fn probe_available_memory(needs: &Needs) -> Finding {
    let info = read::read_text("/proc/meminfo").unwrap_or_default();
    let (available, reserved) = (read::kibibyte_value(&info, "MemAvailable"), unused_reserved_bytes(&info));
    judge_available_memory(needs, available, reserved, control_group_remaining())
}

/// Judges the memory. `available`: what the kernel can give without swapping, `reserved`: what it keeps in huge pages,
/// `limit`: what the control group allows on top of its present use; all in bytes.
fn judge_available_memory(needs: &Needs, available: Option<u64>, reserved: u64, limit: Option<u64>) -> Finding {
    let (slots, blocks) = needs.nodes.iter().fold((0u64, 0u64), |(slots, blocks), node| {
        (slots.saturating_add(node.slots), blocks.saturating_add(node.blocks))
    });
    // Blocks come out of reserved huge pages if those are enough for all of them.
    let ordinary = if blocks <= reserved { slots } else { slots.saturating_add(blocks) };
    let Some(available) = available else {
        return Finding::new("memory", "unknown: /proc/meminfo has no MemAvailable");
    };
    let there = available.min(limit.unwrap_or(u64::MAX));
    let mut evidence = format!("{} available (/proc/meminfo)", thalweg_text::format_volume(available));
    if let Some(limit) = limit.filter(|limit| *limit < available) {
        evidence = format!("{evidence}, {} left in this control group", thalweg_text::format_volume(limit));
    }
    if slots == 0 && blocks == 0 {
        return Finding::new("memory", evidence);
    }
    let evidence = format!(
        "{} for slots, {} for blocks; {evidence}",
        thalweg_text::format_volume(slots),
        thalweg_text::format_volume(blocks)
    );
    let finding = Finding::new("memory", evidence);
    if ordinary <= there {
        return finding;
    }
    finding.with_missing_level("the kernel kills the node when memory runs out: configure fewer `slots` or `blocks`")
}

/// Returns the number of bytes in reserved huge pages of 2 MiB that are unused.
fn unused_reserved_bytes(info: &str) -> u64 {
    let [free, promised] = ["HugePages_Free", "HugePages_Rsvd"]
        .map(|key| read::value_after_key(info, key).and_then(|value| value.parse::<u64>().ok()).unwrap_or(0));
    free.saturating_sub(promised).saturating_mul(read::kibibyte_value(info, "Hugepagesize").unwrap_or(0))
}

/// Returns the number of bytes that the control group of this process has left, if it has a limit: version 2, then
/// version 1 (Documentation/admin-guide/cgroup-v2.rst, cgroup-v1/memory.rst).
fn control_group_remaining() -> Option<u64> {
    let groups = read::read_text("/proc/self/cgroup")?;
    let (root, path, most, used) = match control_group_path(&groups, "memory") {
        Some(path) => ("/sys/fs/cgroup/memory", path, "memory.limit_in_bytes", "memory.usage_in_bytes"),
        None => ("/sys/fs/cgroup", control_group_path(&groups, "")?, "memory.max", "memory.current"),
    };
    // Any group above may have a limit.
    let mut least: Option<u64> = None;
    for group in std::path::Path::new(path).ancestors() {
        let directory = format!("{root}{}", group.display());
        if let (Some(most), Some(used)) =
            (read::read_number(format!("{directory}/{most}")), read::read_number(format!("{directory}/{used}")))
        {
            let left = most.saturating_sub(used);
            least = Some(least.map_or(left, |least| least.min(left)));
        }
    }
    least
}

/// Returns the path in a line `4:memory:/path` of `/proc/self/cgroup`; version 2 has no controller's name.
fn control_group_path<'a>(groups: &'a str, controller: &str) -> Option<&'a str> {
    groups.lines().find_map(|line| {
        let mut parts = line.splitn(3, ':').skip(1);
        parts.next()?.split(',').any(|name| name == controller).then(|| parts.next()).flatten()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Level, NodeNeeds};

    const GIB: u64 = 1 << 30;

    fn two_nodes() -> Needs {
        let node = |slots, blocks| NodeNeeds { slots, blocks, ..NodeNeeds::default() };
        Needs { nodes: vec![node(3 * GIB, 0), node(0, 2 * GIB)], ..Needs::default() }
    }

    #[test]
    fn nodes_that_together_need_too_much_are_refused() {
        let level =
            |available, reserved, limit| judge_available_memory(&two_nodes(), Some(available), reserved, limit).level;
        assert_eq!(level(6 * GIB, 0, None), Level::Ok);
        assert_eq!(level(4 * GIB, 0, None), Level::Missing);
        assert_eq!(level(4 * GIB, 2 * GIB, None), Level::Ok, "blocks lie in reserved huge pages");
        assert_eq!(level(6 * GIB, 0, Some(GIB)), Level::Missing, "the control group allows less");
        assert_eq!(
            judge_available_memory(&two_nodes(), None, 0, None).level,
            Level::Ok,
            "what cannot be read is not held against it"
        );
    }

    #[test]
    fn nothing_that_is_needed_can_overflow() {
        let mut needs = two_nodes();
        needs.nodes[0].slots = u64::MAX;
        assert_eq!(judge_available_memory(&needs, Some(GIB), 0, None).level, Level::Missing);
    }

    #[test]
    fn the_control_group_is_found_in_both_versions() {
        let one = "9:name=systemd:/\n4:memory:/lab/daq\n3:cpuset:/\n0::/\n";
        assert_eq!(control_group_path(one, "memory"), Some("/lab/daq"));
        assert_eq!(control_group_path("0::/user.slice/a:b", ""), Some("/user.slice/a:b"));
        assert_eq!(control_group_path("nonsense", "memory"), None);
        assert_eq!(control_group_path("1:memory", "memory"), None);
    }

    #[test]
    fn reserved_pages_that_are_spoken_for_do_not_count() {
        let info = "HugePages_Total:      10\nHugePages_Free:        8\nHugePages_Rsvd:        3\nHugepagesize:       \
            2048 kB\n";
        assert_eq!(unused_reserved_bytes(info), 10 << 20);
        assert_eq!(unused_reserved_bytes("Hugepagesize: 99999999999999999999 kB"), 0);
    }
}
