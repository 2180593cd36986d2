//! What drives a node: the thread that it has in production, or a test.

use crate::wait::Idle;
use crate::{Handle, NodeError};
use std::sync::Arc;
use std::time::Duration;
use thalweg_link::Poller;

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
pub(crate) const LAST_WORDS: Duration = Duration::from_secs(2);

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
