//! Number of files and sockets that a node may have open.

use crate::{Finding, Needs};
use rustix::process::{Resource, getrlimit};

pub(crate) fn probe_file_limit(needs: &Needs) -> Finding {
    // The limit is per process, and each node is one. Nodes raise theirs to the hard limit.
    judge_file_limit(needs.nodes.iter().map(|node| node.files).max().unwrap_or(0), getrlimit(Resource::Nofile).maximum)
}

fn judge_file_limit(wanted: u64, limit: Option<u64>) -> Finding {
    let limit_text = limit.map_or_else(|| "none".to_owned(), |limit| limit.to_string());
    let evidence = match wanted {
        0 => format!("RLIMIT_NOFILE: {limit_text}"),
        some => format!("RLIMIT_NOFILE: {limit_text}; a node opens up to {some}"),
    };
    let finding = Finding::new("open files", evidence);
    if limit.is_none_or(|limit| wanted <= limit) {
        return finding;
    }
    finding
        .with_missing_level("sources are refused when a builder cannot open more files")
        .with_remedy(format!("ulimit -n {wanted}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Level;

    #[test]
    fn more_sources_than_files_are_refused() {
        assert_eq!(judge_file_limit(100, Some(1024)).level, Level::Ok);
        assert_eq!(judge_file_limit(100, None).level, Level::Ok);
        let refused = judge_file_limit(5000, Some(1024));
        assert_eq!((refused.level, refused.remedy.as_deref()), (Level::Missing, Some("ulimit -n 5000")));
    }
}
