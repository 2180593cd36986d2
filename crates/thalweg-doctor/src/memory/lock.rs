//! Limit on locked memory of this process: blocks are registered with io_uring, which counts against it.

use crate::kernel::privileges;
use crate::{Finding, Needs};
use rustix::process::{Resource, getrlimit};
use rustix::thread::CapabilitySet;

/// Eight blocks of 4 MiB, in bytes: a builder with everything at its default.
const DEFAULT_BUILDER_BYTES: u64 = 32 << 20;

pub(crate) fn probe_locked_memory(needs: &Needs) -> Finding {
    let blocks = needs.nodes.iter().map(|node| node.blocks).fold(0, u64::saturating_add);
    let wanted = if needs.nodes.is_empty() { DEFAULT_BUILDER_BYTES } else { blocks };
    let limit = getrlimit(Resource::Memlock);
    judge_locked_memory(wanted, limit.current, limit.maximum, privileges::has_capability(CapabilitySet::IPC_LOCK))
}

/// Judges the limits, in bytes, `None` if unlimited: `limit` holds now, and a process may raise it to `hard` by itself.
fn judge_locked_memory(wanted: u64, limit: Option<u64>, hard: Option<u64>, exempt: bool) -> Finding {
    let limit_text = limit.map_or_else(|| "none".to_owned(), thalweg_text::format_volume);
    let evidence = match exempt {
        true => format!("no limit for this process (CAP_IPC_LOCK); RLIMIT_MEMLOCK: {limit_text}"),
        false => {
            format!("RLIMIT_MEMLOCK: {limit_text}; blocks to be registered: {}", thalweg_text::format_volume(wanted))
        }
    };
    let finding = Finding::new("locked memory", evidence);
    if exempt || limit.is_none_or(|limit| wanted <= limit) {
        return finding;
    }
    let finding = finding
        .with_degraded_level("blocks are not registered with the kernel, which looks up their pages for each write");
    match hard.is_none_or(|hard| wanted <= hard) {
        true => finding.with_remedy(format!("ulimit -l {}", wanted.div_ceil(1024))),
        // Needs CAP_SYS_RESOURCE; holds for processes started from this shell.
        false => finding.with_remedy(format!("prlimit --pid $$ --memlock={wanted}:{wanted}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Level;

    #[test]
    fn the_limit_binds_only_those_without_the_capability() {
        let low = Some(8 << 20);
        assert_eq!(judge_locked_memory(DEFAULT_BUILDER_BYTES, low, low, true).level, Level::Ok);
        assert_eq!(judge_locked_memory(DEFAULT_BUILDER_BYTES, None, None, false).level, Level::Ok);
        let bound = judge_locked_memory(DEFAULT_BUILDER_BYTES, low, None, false);
        assert_eq!((bound.level, bound.remedy.as_deref()), (Level::Degraded, Some("ulimit -l 32768")));
        let hard = judge_locked_memory(DEFAULT_BUILDER_BYTES, low, low, false);
        assert_eq!(hard.remedy.as_deref(), Some("prlimit --pid $$ --memlock=33554432:33554432"));
    }
}
