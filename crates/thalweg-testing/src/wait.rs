//! Waits for a process, a file or a peer, without taking the processor from it.

use std::thread;
use std::time::{Duration, Instant};

/// Time until a wait is given up: a machine may be busy.
const PATIENCE: Duration = Duration::from_secs(300);
const INTERVAL: Duration = Duration::from_millis(10);

/// Waits until `holds` returns true.
///
/// # Panics
/// After five minutes, with the name of the condition.
#[track_caller]
pub fn wait_until(condition: &str, mut holds: impl FnMut() -> bool) {
    wait_for(condition, || holds().then_some(()));
}

/// Returns the first result of `attempt`.
///
/// # Panics
/// After five minutes without a result, with the name of what is waited for.
#[track_caller]
pub fn wait_for<T>(awaited: &str, mut attempt: impl FnMut() -> Option<T>) -> T {
    let begun = Instant::now();
    loop {
        if let Some(result) = attempt() {
            return result;
        }
        assert!(begun.elapsed() < PATIENCE, "waited for {awaited}");
        thread::sleep(INTERVAL);
    }
}
