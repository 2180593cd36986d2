//! Version of the kernel: whether it is new enough.

use crate::Finding;

/// First version with `MADV_POPULATE_WRITE`, by which arenas get their memory at the beginning instead of in the middle
/// of a run.
const NEEDED: (u32, u32) = (5, 14);

pub(super) fn probe_version() -> Finding {
    let release = kernel_release();
    let finding = Finding::new("version", format!("Linux {release} (uname)"));
    if is_release_at_least(&release, NEEDED) {
        return finding;
    }
    finding.with_missing_level("arenas cannot be created: MADV_POPULATE_WRITE needs Linux 5.14")
}

/// Returns the release of the running kernel: `6.18.44-custom`.
pub(crate) fn kernel_release() -> String {
    rustix::system::uname().release().to_string_lossy().into_owned()
}

/// Returns true if a release is that version or a later one, or cannot be parsed.
pub(crate) fn is_release_at_least(release: &str, (major, minor): (u32, u32)) -> bool {
    let mut parts = release.split(|c: char| !c.is_ascii_digit()).map(str::parse::<u32>);
    match (parts.next(), parts.next()) {
        (Some(Ok(a)), Some(Ok(b))) => (a, b) >= (major, minor),
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn releases_are_compared_by_number() {
        assert!(is_release_at_least("6.18.44-fc-v669", (6, 9)));
        assert!(is_release_at_least("5.14.0-427.el9", (5, 14)));
        assert!(!is_release_at_least("4.18.0-553.el8", (5, 14)));
        assert!(!is_release_at_least("5.9", (5, 14)));
        assert!(is_release_at_least("next", (5, 14)));
    }
}
