//! Accuracy of the clock, and whether a program synchronises it.

use crate::{Finding, read};
use std::path::Path;
use std::time::Duration;

/// Programs that synchronise the clock, as `/proc/PID/comm` names them.
const DAEMONS: [&str; 7] = ["chronyd", "ntpd", "openntpd", "phc2sys", "ptp4l", "systemd-timesyn", "timemaster"];
/// Error of the clock from which on dates are not reliable.
const TOO_FAR: Duration = Duration::from_millis(100);

/// State of the clock, as the program that synchronises it reported to the kernel (adjtimex(2)).
#[derive(Debug, Clone, Copy)]
struct ClockState {
    /// True if the clock is synchronised.
    is_synchronised: bool,
    /// Largest possible error against UTC: grows by 500 ppm from one correction to the next.
    most: Duration,
    /// Estimated error against UTC.
    estimate: Duration,
}

pub(super) fn probe_synchronisation() -> Finding {
    let processes = read::read_names("/proc").into_iter().filter(|name| name.bytes().all(|byte| byte.is_ascii_digit()));
    let names = processes.filter_map(|pid| read::read_text(Path::new("/proc").join(pid).join("comm")));
    let mut running: Vec<String> = names.filter(|name| DAEMONS.contains(&name.as_str())).collect();
    running.sort();
    running.dedup();
    judge_synchronisation(&running, read_clock_state())
}

/// Returns whether the kernel's clock is marked as synchronised; `None` if the kernel does not report it.
pub fn is_clock_synchronised() -> Option<bool> {
    read_clock_state().map(|state| state.is_synchronised)
}

/// Reads the state of the clock; `None` if the kernel does not report it.
#[expect(unsafe_code, reason = "no crate wraps adjtimex for reading its errors")]
fn read_clock_state() -> Option<ClockState> {
    let mut timex = std::mem::MaybeUninit::<libc::timex>::zeroed();
    // SAFETY: `timex` is valid for writes of its size; all bits zero are a valid value of it, and with no modes nothing
    // is set.
    let state = unsafe { libc::adjtimex(timex.as_mut_ptr()) };
    if state < 0 {
        return None;
    }
    // SAFETY: it consists of integers, for which every bit pattern is valid.
    let timex = unsafe { timex.assume_init() };
    let is_synchronised = state != libc::TIME_ERROR && timex.status & libc::STA_UNSYNC == 0;
    let [most, estimate] =
        [timex.maxerror, timex.esterror].map(|error| Duration::from_micros(u64::try_from(error).unwrap_or(0)));
    Some(ClockState { is_synchronised, most, estimate })
}

fn judge_synchronisation(running: &[String], kept: Option<ClockState>) -> Finding {
    let by = match running {
        [] => "no program that synchronises it is running (/proc/*/comm)".to_owned(),
        running => format!("{} runs (/proc/*/comm)", running.join(", ")),
    };
    let (state, is_good) = match kept {
        Some(ClockState { is_synchronised: true, most, estimate }) => {
            (format!("within {most:?} of UTC, estimated {estimate:?} (adjtimex); "), most < TOO_FAR)
        }
        Some(_) => ("the kernel's clock is not marked as synchronised (adjtimex); ".to_owned(), false),
        None => (String::new(), !running.is_empty()),
    };
    let finding = Finding::new("synchronisation", format!("{state}{by}"));
    let cost = "times drift and differ between hosts; within one host the order of events is safe";
    match (is_good, running.is_empty()) {
        (true, _) => finding,
        (false, true) => finding.with_degraded_level(cost).with_remedy("systemctl enable --now chrony"),
        (false, false) => finding.with_degraded_level(cost).with_remedy("chronyc tracking"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Level;

    #[test]
    fn the_kernels_word_counts_more_than_a_program_that_runs() {
        let kept = |is_synchronised, most| {
            Some(ClockState { is_synchronised, most: Duration::from_micros(most), estimate: Duration::from_micros(30) })
        };
        let chrony = ["chronyd".to_owned()];
        let good = judge_synchronisation(&chrony, kept(true, 1200));
        assert_eq!(good.level, Level::Ok);
        assert_eq!(good.evidence, "within 1.2ms of UTC, estimated 30µs (adjtimex); chronyd runs (/proc/*/comm)");
        // Synchronised once, and drifted since.
        assert_eq!(judge_synchronisation(&[], kept(true, 400_000)).level, Level::Degraded);
        assert_eq!(judge_synchronisation(&chrony, kept(false, 16_000_000)).level, Level::Degraded);
        assert_eq!(
            (judge_synchronisation(&chrony, None).level, judge_synchronisation(&[], None).level),
            (Level::Ok, Level::Degraded)
        );
        // The state of this machine, whatever it is.
        assert!(read_clock_state().is_some());
    }
}
