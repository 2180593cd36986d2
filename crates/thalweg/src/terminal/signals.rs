//! Signals that ask a program to end.

use crate::terminal::{Failure, start_thread};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

/// Calls `act`, in a thread of its own, on each signal of Ctrl-C, `kill`, and a closed terminal. The last one is left
/// out if the program was started so that it ignores that signal (`nohup`).
///
/// # Errors
/// The system refuses to have them handled, or to start a thread.
pub fn on_interrupt(mut act: impl FnMut() + Send + 'static) -> Result<(), Failure> {
    let hangup = if is_signal_ignored(SIGHUP) { None } else { Some(SIGHUP) };
    let mut signals = Signals::new([SIGINT, SIGTERM].into_iter().chain(hangup)).map_err(Failure::broken)?;
    start_thread(move || signals.forever().for_each(|_| act()))
}

/// Returns true if a signal is ignored (`SigIgn`, proc(5)).
fn is_signal_ignored(signal: i32) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    mask.is_some_and(|mask| mask >> (signal - 1) & 1 == 1)
}
