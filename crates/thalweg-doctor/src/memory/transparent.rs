//! Transparent huge pages of shared memory, which slots use, and blocks if no huge pages are reserved.

use crate::{Finding, read};

const ALL: &str = "/sys/kernel/mm/transparent_hugepage/shmem_enabled";
const TWO_MIB: &str = "/sys/kernel/mm/transparent_hugepage/hugepages-2048kB/shmem_enabled";

pub(super) fn probe_transparent_pages() -> Finding {
    let (all, own) = (read::read_text(ALL), read::read_text(TWO_MIB));
    judge_transparent_pages(
        all.as_deref(),
        own.as_deref(),
        read::read_text("/sys/kernel/mm/transparent_hugepage/enabled").as_deref(),
    )
}

fn judge_transparent_pages(all: Option<&str>, own: Option<&str>, anonymous: Option<&str>) -> Finding {
    let all = all.and_then(read::bracketed_choice);
    // Since Linux 6.11 each size has its own setting, which may follow the one for all.
    let own = own.and_then(read::bracketed_choice);
    let effective = own.filter(|own| *own != "inherit").or(all);
    let evidence = format!(
        "shared memory: {} ({ALL}); anonymous: {}",
        effective.unwrap_or("unknown"),
        anonymous.and_then(read::bracketed_choice).unwrap_or("unknown")
    );
    let finding = Finding::new("transparent huge pages", evidence);
    match effective {
        Some("never" | "deny") => finding
            .with_degraded_level("slots use 4 KiB pages: 512 times the page-table and page-list entries")
            // Arenas ask for huge pages (madvise), so `advise` is enough, and no other program is affected.
            .with_remedy(format!(
                "echo advise > {}",
                if own.is_some_and(|own| own != "inherit") { TWO_MIB } else { ALL }
            )),
        _ => finding,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Level;

    const NEVER: &str = "always within_size advise [never] deny force";
    const ADVISE: &str = "always within_size [advise] never deny force";

    #[test]
    fn advise_is_enough_and_the_setting_for_the_size_counts_first() {
        assert_eq!(judge_transparent_pages(Some(ADVISE), None, None).level, Level::Ok);
        let bad = judge_transparent_pages(Some(NEVER), Some("always [inherit] within_size advise never"), None);
        assert_eq!((bad.level, bad.remedy), (Level::Degraded, Some(format!("echo advise > {ALL}"))));
        let own = judge_transparent_pages(Some(ADVISE), Some("always inherit within_size advise [never]"), None);
        assert_eq!((own.level, own.remedy), (Level::Degraded, Some(format!("echo advise > {TWO_MIB}"))));
        assert_eq!(judge_transparent_pages(None, None, Some("always [madvise] never")).level, Level::Ok);
    }
}
