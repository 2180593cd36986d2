//! Time that the hypervisor gives to others while a thread here wants to run.

use crate::{Finding, read};
use std::time::Duration;

/// Time for which processors are observed. The counters have steps of 10 ms.
const OBSERVATION_TIME: Duration = Duration::from_millis(200);
/// Share of stolen time from which on it is reported.
const MAX_STOLEN_SHARE: f64 = 0.01;

pub(super) fn probe_stolen_time() -> Finding {
    let before = read::read_text("/proc/stat");
    std::thread::sleep(OBSERVATION_TIME);
    let after = read::read_text("/proc/stat");
    match (before.as_deref().and_then(parse_stolen_time), after.as_deref().and_then(parse_stolen_time)) {
        (Some(before), Some(after)) => judge_stolen_time(before, after),
        _ => Finding::new("steal", "unknown: /proc/stat cannot be read"),
    }
}

/// Stolen time and total time, in the kernel's ticks, summed over processors.
type Times = (u64, u64);

fn judge_stolen_time(before: Times, after: Times) -> Finding {
    let now = stolen_share((after.0.saturating_sub(before.0), after.1.saturating_sub(before.1)));
    let ever = stolen_share(after);
    let evidence = format!("{:.1} % of the last 0.2 s, {:.1} % since boot (/proc/stat)", now * 100.0, ever * 100.0);
    let finding = Finding::new("steal", evidence);
    match now > MAX_STOLEN_SHARE || ever > MAX_STOLEN_SHARE {
        true => finding.with_degraded_level(
            "hot threads stop for milliseconds at a time: give the virtual machine dedicated processors",
        ),
        false => finding,
    }
}

#[expect(clippy::cast_precision_loss, reason = "a share for people")]
fn stolen_share((stolen, all): Times) -> f64 {
    if all == 0 { 0.0 } else { stolen as f64 / all as f64 }
}

/// Parses the first line of `/proc/stat`: user nice system idle iowait irq softirq steal guest guest_nice
/// (proc_stat(5)). Guest time is already part of user time.
fn parse_stolen_time(text: &str) -> Option<Times> {
    let numbers: Vec<u64> =
        text.strip_prefix("cpu ")?.lines().next()?.split_whitespace().map_while(|n| n.parse().ok()).collect();
    let first = numbers.get(..8)?;
    Some((first[7], first.iter().fold(0, |sum, n| sum.saturating_add(*n))))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Level;
    use proptest::prelude::*;

    #[test]
    fn stolen_time_is_read_and_weighed() {
        let text = "cpu  1029662 171668 314156 701134 21851 0 37934 1508 0 0\ncpu0 510215 85014 156021 361232\n";
        assert_eq!(parse_stolen_time(text), Some((1508, 2_277_913)));
        assert_eq!(judge_stolen_time((1508, 2_277_913), (1508, 2_277_953)).level, Level::Ok);
        assert_eq!(judge_stolen_time((1508, 2_277_913), (1518, 2_277_953)).level, Level::Degraded);
        assert_eq!(
            judge_stolen_time((9, 9), (0, 0)).level,
            Level::Ok,
            "counters that go back are no reason to fall over"
        );
    }

    proptest! {
        #[test]
        fn any_text_is_read_without_harm(text in "(cpu )?[0-9 \\n]*|\\PC*") {
            parse_stolen_time(&text);
        }
    }
}
