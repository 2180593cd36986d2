//! Keep-alives of a node to systemd, for as long as the thread that does its work takes turns.

use crate::terminal::service_manager::{self, KeepAlive};
use crate::terminal::{Failure, start_thread};
use std::thread;
use std::time::Duration;
use thalweg_node::{Handle, Snapshot};

/// Time from one look at a node to the next, where its watchdog needs none sooner.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// Starts to report a node to systemd, if it has started this program. Keep-alives are sent while `has_node` returns
/// false, since no run can be held up, and otherwise after each turn of the node. `shows_state`: the state of the run is
/// reported, too.
pub(crate) fn watch_node(
    handle: Handle,
    shows_state: bool,
    has_node: impl Fn() -> bool + Send + 'static,
) -> Result<(), Failure> {
    if !service_manager::is_present() {
        return Ok(());
    }
    let mut keep_alive = KeepAlive::new();
    let interval = keep_alive.as_ref().map_or(LOOK_INTERVAL, |keep_alive| keep_alive.interval().min(LOOK_INTERVAL));
    start_thread(move || {
        let mut turns = TurnWatch::default();
        loop {
            let has_node = has_node();
            let snapshot = handle.latest_snapshot();
            if let Some(keep_alive) = &mut keep_alive
                && (turns.has_turned(&snapshot) || !has_node)
            {
                keep_alive.send_if_due();
            }
            if shows_state {
                service_manager::report_status(&state_text(&snapshot));
            }
            thread::sleep(interval);
        }
    })
}

/// Returns the state of a run and what it waits for.
pub(crate) fn state_text(snapshot: &Snapshot) -> String {
    match snapshot.waits.as_str() {
        "" => snapshot.state.to_string(),
        waits => format!("{}: {waits}", snapshot.state),
    }
}

/// Watch on the turns of a node. Each request for a snapshot wakes the node, which makes another one in its next turn.
#[derive(Debug, Default)]
struct TurnWatch {
    /// Time of the last snapshot.
    last_nanos: u64,
}

impl TurnWatch {
    /// Returns whether the node has taken a turn since the last call.
    fn has_turned(&mut self, snapshot: &Snapshot) -> bool {
        std::mem::replace(&mut self.last_nanos, snapshot.at_nanos) != snapshot.at_nanos
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_that_takes_no_turn_makes_no_progress() {
        let mut turns = TurnWatch::default();
        let snapshots = [0, 7, 7, 8, 3].map(|at_nanos| Snapshot { at_nanos, ..Snapshot::default() });
        assert_eq!(snapshots.map(|snapshot| turns.has_turned(&snapshot)), [false, true, false, true, true]);
        // Without a node nothing answers the request.
        let handle = Handle::new().unwrap();
        assert!((0..3).all(|_| !TurnWatch::default().has_turned(&handle.latest_snapshot())));
    }
}
