//! What drives a node: the thread that it has in production, or a test.

use crate::wait::Idle;
use crate::{Handle, NodeError};
use std::sync::Arc;
use std::time::Duration;
use thalweg_link::{Endpoint, Endpoints, Poller};

/// A node, which does what it can in turns and waits between two of them.
pub trait Node {
    /// What it says when it is done.
    type Report;

    /// To be called before the first turn: its poller tells of what `handle` is asked, from now on.
    ///
    /// # Errors
    /// The poller takes no more descriptors.
    fn begin(&self, handle: &Handle) -> Result<(), NodeError>;

    /// Does what can be done now. `woken` are the tokens of which its poller told. Returns its report when it is done.
    ///
    /// # Errors
    /// It cannot go on, and why.
    fn turn(&mut self, woken: &[u64], handle: &Handle) -> Result<Option<Self::Report>, NodeError>;

    /// How to wait for the next turn.
    fn idle(&mut self) -> Idle;

    /// What tells of the descriptors that it waits on.
    fn poller(&self) -> &Arc<Poller>;
}

/// How long a node that is done repeats its last messages, where they do not arrive.
const LAST_WORDS: Duration = Duration::from_secs(2);

/// The end of a node's conversations: its last messages are repeated until they have arrived, or it took too long.
#[derive(Debug, Default)]
pub(crate) struct Leaving {
    /// Until when; nothing before the node is done.
    until: Option<Duration>,
}

impl Leaving {
    pub(crate) fn has_begun(&self) -> bool {
        self.until.is_some()
    }

    /// Begins, or goes on. True once there is nothing left to repeat.
    pub(crate) fn turn<E: Endpoint + ?Sized>(
        &mut self,
        endpoints: &mut Endpoints<E>,
        woken: &[u64],
        now: Duration,
    ) -> bool {
        let until = *self.until.get_or_insert_with(|| {
            endpoints.leave();
            now + LAST_WORDS
        });
        endpoints.poll(now, woken, &mut Vec::new());
        endpoints.flush(now, &mut Vec::new());
        endpoints.has_left() || now >= until
    }

    /// How long there is nothing to do unless something comes; nothing before it has begun.
    pub(crate) fn timeout<E: Endpoint + ?Sized>(&self, endpoints: &Endpoints<E>, now: Duration) -> Option<Duration> {
        let until = self.until?;
        Some(endpoints.next_timeout().map_or(until, |at| at.min(until)).saturating_sub(now))
    }
}

/// Takes turns until the node is done.
pub(crate) fn drive<N: Node>(node: &mut N, handle: &Handle) -> Result<N::Report, NodeError> {
    node.begin(handle)?;
    let mut woken = Vec::new();
    loop {
        if let Some(report) = node.turn(&woken, handle)? {
            return Ok(report);
        }
        let idle = node.idle();
        idle.take(node.poller(), &mut woken)?;
    }
}
