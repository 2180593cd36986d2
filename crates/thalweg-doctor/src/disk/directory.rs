//! The record directory: whether runs can be made in it.

use super::place;
use crate::{Finding, Needs, read};
use rustix::fs::{Access, StatVfsMountFlags, access, statvfs};

pub(crate) fn probe_directory(needs: &Needs) -> Finding {
    let nearest = place::nearest_existing(&needs.directory);
    let what = match nearest == needs.directory {
        true => format!("{}", nearest.display()),
        false => format!("{} (to be created in {})", needs.directory.display(), nearest.display()),
    };
    let kind = read::text_or_unknown(place::file_system_type(&nearest));
    let problem = if !nearest.is_dir() {
        Some("Not a directory".to_owned())
    } else if let Err(error) = access(&nearest, Access::WRITE_OK | Access::EXEC_OK) {
        Some(error.to_string())
    } else if statvfs(&nearest).is_ok_and(|at| at.f_flag.contains(StatVfsMountFlags::RDONLY)) {
        Some("Read-only file system".to_owned())
    } else if statvfs(&nearest).is_ok_and(|at| at.f_blocks == 0) {
        // As that of /proc: it has no room for any file, free or not.
        Some("a file system of the kernel, which keeps no files".to_owned())
    } else {
        None
    };
    let Some(problem) = problem else {
        return Finding::new("record directory", format!("{what}: {kind}, writable"));
    };
    let finding = Finding::new("record directory", format!("{what}: {kind}, not writable: {problem}"));
    match needs.record {
        true => finding.with_missing_level("no run can be recorded: choose another `directory`"),
        // No recording there was requested.
        false => finding,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Level;

    #[test]
    fn a_directory_is_looked_at_without_making_it() {
        let base = tempfile::tempdir().unwrap();
        let at =
            |path: std::path::PathBuf| probe_directory(&Needs { directory: path, record: true, ..Needs::default() });
        let deep = base.path().join("a/b/runs");
        assert_eq!(at(deep).level, Level::Ok);
        assert!(!base.path().join("a").exists());
        let file = base.path().join("file");
        std::fs::write(&file, "").unwrap();
        let missing = at(file.join("runs"));
        assert_eq!(missing.level, Level::Missing);
        assert!(missing.evidence.ends_with("Not a directory"), "{}", missing.evidence);
        let kernel = at("/proc/xx".into());
        assert_eq!(kernel.level, Level::Missing);
        assert!(kernel.evidence.contains("not writable"), "{}", kernel.evidence);
    }
}
