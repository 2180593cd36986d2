//! Whether somebody keeps the clock right.

use crate::{Finding, read};
use std::path::Path;

/// Programs that do, as `/proc/PID/comm` names them.
const DAEMONS: [&str; 7] = ["chronyd", "ntpd", "openntpd", "phc2sys", "ptp4l", "systemd-timesyn", "timemaster"];

/// The kernel's own word on it (`adjtimex`) is not asked: there is no safe call for it.
pub(super) fn probe() -> Finding {
    let comm = |pid: &String| read::text(Path::new("/proc").join(pid).join("comm"));
    let processes = read::names("/proc").into_iter().filter(|name| name.bytes().all(|byte| byte.is_ascii_digit()));
    let mut running: Vec<String> =
        processes.filter_map(|pid| comm(&pid)).filter(|name| DAEMONS.contains(&name.as_str())).collect();
    running.sort();
    running.dedup();
    judge(&running, Path::new("/run/systemd/timesync/synchronized").exists())
}

fn judge(running: &[String], timesync: bool) -> Finding {
    let mark = if timesync { "; systemd-timesyncd says it is right" } else { "" };
    if !running.is_empty() {
        return Finding::new("synchronisation", format!("{} runs (/proc/*/comm){mark}", running.join(", ")));
    }
    Finding::new(
        "synchronisation",
        format!("no program that keeps the clock right is seen to run (/proc/*/comm){mark}"),
    )
    .degraded("dates drift, and do not agree between hosts; within one host the order of events is safe")
    .mended_by("systemctl enable --now chrony")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Level;

    #[test]
    fn somebody_has_to_keep_the_clock() {
        assert_eq!(judge(&["chronyd".to_owned()], false).level, Level::Ok);
        assert_eq!(judge(&[], true).level, Level::Degraded, "the mark stays when its program is gone");
    }
}
