//! Driver of a node: its own thread in production, or a test.

use crate::wait::Idle;
use crate::{Handle, NodeError};
use std::sync::Arc;
use std::time::Duration;
use thalweg_link::{Endpoint, Endpoints, Poller};

/// Node that does its work in turns and waits between two of them.
pub trait Node {
    /// Report that it returns at its end.
    type Report;

    /// Adds `handle` to the node's poller, so that commands wake the node. Must be called before the first turn.
    ///
    /// # Errors
    /// The poller takes no more descriptors.
    fn begin(&self, handle: &Handle) -> Result<(), NodeError>;

    /// Does all work that is possible now. `woken` are the tokens that the poller reported. Returns the report at the
    /// end.
    ///
    /// # Errors
    /// The node cannot go on; the error is the reason.
    fn turn(&mut self, woken: &[u64], handle: &Handle) -> Result<Option<Self::Report>, NodeError>;

    /// Returns how to wait for the next turn. To be called before each wait: what arrives from then on is the next turn's.
    fn idle(&mut self) -> Idle;

    /// Returns the poller of the descriptors that the node waits on.
    fn poller(&self) -> &Arc<Poller>;
}

/// Longest time that a finished node repeats its last messages while they do not arrive.
const LAST_WORDS: Duration = Duration::from_secs(2);

/// End of a node's connections: its last messages are repeated until they have arrived, or a time limit has passed.
#[derive(Debug, Default)]
pub(crate) struct Leaving {
    /// Time limit; `None` before the node is done.
    until: Option<Duration>,
}

impl Leaving {
    pub(crate) fn has_begun(&self) -> bool {
        self.until.is_some()
    }

    /// Begins, or continues. Returns true once there is nothing left to repeat.
    pub(crate) fn turn<E: Endpoint + ?Sized>(
        &mut self,
        endpoints: &mut Endpoints<E>,
        woken: &[u64],
        now: Duration,
    ) -> bool {
        let until = *self.until.get_or_insert_with(|| {
            endpoints.prepare_to_leave();
            now + LAST_WORDS
        });
        endpoints.poll_peers(now, woken, &mut Vec::new());
        endpoints.flush_messages(now, &mut Vec::new());
        endpoints.has_left() || now >= until
    }

    /// Returns the time without work unless something arrives; `None` before the end has begun.
    pub(crate) fn time_to_next_turn<E: Endpoint + ?Sized>(
        &self,
        endpoints: &Endpoints<E>,
        now: Duration,
    ) -> Option<Duration> {
        let until = self.until?;
        Some(endpoints.next_timeout().map_or(until, |at| at.min(until)).saturating_sub(now))
    }
}

/// Takes turns until the node is done, and returns its report.
pub(crate) fn drive_node<N: Node>(node: &mut N, handle: &Handle) -> Result<N::Report, NodeError> {
    node.begin(handle)?;
    let mut woken = Vec::new();
    loop {
        if let Some(report) = node.turn(&woken, handle)? {
            return Ok(report);
        }
        let idle = node.idle();
        idle.wait_for_work(node.poller(), &mut woken)?;
    }
}
