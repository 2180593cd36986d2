//! Source whose fragments a program pushes, from any thread, while another thread serves the builders.

use crate::clock::now;
use crate::drive::Node;
use crate::slots::PushedFragment;
use crate::source::Standing;
use crate::thread::run_as_node;
use crate::{Command, Handle, NodeError, SourceNode, SourceReport, SourceSettings};
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;
use thalweg_link::Poller;
use thalweg_wire::EventId;

/// Source that a program feeds. Dropping it ends its part of the run as [`finish`](Self::finish) does.
pub struct PushSource {
    shared: Arc<Shared>,
    handle: Handle,
    thread: Option<JoinHandle<()>>,
}

struct Shared {
    state: Mutex<State>,
    /// Notified when the state changed: the run began or stopped, a slot was released, the thread ended. Every change
    /// is made under the lock, so a thread that checks and then waits misses none.
    changed: Condvar,
}

enum State {
    Serving(Box<SourceNode>),
    /// The thread has ended, and with it all connections.
    Over(Result<Box<SourceReport>, Arc<NodeError>>),
}

impl PushSource {
    /// Creates the slots and begins to connect. `settings.feed` must be [`Feed::Pushed`](crate::Feed::Pushed).
    ///
    /// # Errors
    /// Those of [`SourceNode::new`]; or the system refuses a thread.
    pub fn start(settings: SourceSettings) -> Result<Self, NodeError> {
        let handle = Handle::new()?;
        let (name, cpu) = (settings.name.clone(), settings.cpu);
        let node = SourceNode::new(settings)?;
        node.begin(&handle)?;
        let poller = Arc::clone(node.poller());
        let shared = Arc::new(Shared { state: Mutex::new(State::Serving(Box::new(node))), changed: Condvar::new() });
        let thread = std::thread::Builder::new().spawn({
            let (shared, handle) = (Arc::clone(&shared), handle.clone());
            move || {
                let served = catch_unwind(AssertUnwindSafe(|| {
                    run_as_node(&name, cpu, || shared.serve_builders(&poller, &handle))
                }));
                // However the thread ended, callers must not wait for it for ever.
                *shared.lock_state() =
                    State::Over(served.unwrap_or(Err(NodeError::Panicked)).map(Box::new).map_err(Arc::new));
                shared.changed.notify_all();
            }
        });
        let thread = thread.map_err(|error| NodeError::Config(format!("starting a thread: {error}")))?;
        Ok(Self { shared, handle, thread: Some(thread) })
    }

    /// Waits until the run has begun, for at most `timeout`. Returns false if it has not.
    ///
    /// # Errors
    /// The run will never begin: no builder was found in time, or one refused this source.
    pub fn wait_for_start(&self, timeout: Duration) -> Result<bool, NodeError> {
        self.shared
            .wait_for_state(timeout, |state| match state {
                State::Serving(node) => Ok((node.push_standing() != Standing::Before).then_some(())),
                State::Over(Ok(_)) => Ok(Some(())),
                State::Over(Err(error)) => Err(NodeError::Ended(Arc::clone(error))),
            })
            .map(|begun| begun.is_some())
    }

    /// Pushes one fragment for event `event`, or for the next one. Waits, at most `timeout`, for the run to begin and,
    /// with policy `block`, for a slot. Returns the event's number, or `None` if time ran out. The payload is copied
    /// once, into the slot.
    ///
    /// # Errors
    /// The run is over, or failed. If the payload is longer than announced, or the event does not follow the last one,
    /// nothing was pushed, and further fragments can be.
    pub fn push(
        &self,
        event: Option<EventId>,
        fragment: &PushedFragment<'_>,
        timeout: Duration,
    ) -> Result<Option<EventId>, NodeError> {
        self.push_while_open(timeout, |node| node.push_fragment(event, fragment))
    }

    /// Reports that the device lost the next `count` fragments, which the ledger counts as `lost_in_device`. Waits, at
    /// most `timeout`, for the run to begin. Returns false if it has not.
    ///
    /// # Errors
    /// The run is over, or failed; or `count` is 2³² or more.
    pub fn report_lost(&self, count: u64, timeout: Duration) -> Result<bool, NodeError> {
        let lost = self.push_while_open(timeout, |node| node.push_lost(count).map(Some));
        lost.map(|lost| lost.is_some())
    }

    /// Calls `act` while the run takes fragments. Waits until it does, for at most `timeout`.
    fn push_while_open<T>(
        &self,
        timeout: Duration,
        mut act: impl FnMut(&mut SourceNode) -> Result<Option<T>, NodeError>,
    ) -> Result<Option<T>, NodeError> {
        self.shared.wait_for_state(timeout, |state| match state {
            State::Serving(node) => match node.push_standing() {
                Standing::Open => {
                    let done = act(node);
                    self.wake_if_needed(node);
                    done
                }
                Standing::Over => Err(NodeError::Over),
                Standing::Before | Standing::Paused => Ok(None),
            },
            State::Over(Ok(_)) => Err(NodeError::Over),
            State::Over(Err(error)) => Err(NodeError::Ended(Arc::clone(error))),
        })
    }

    /// Returns whether the run takes fragments now: it has begun, and neither it nor this source's part of it is over.
    pub fn is_running(&self) -> bool {
        match &*self.shared.lock_state() {
            State::Serving(node) => matches!(node.push_standing(), Standing::Open | Standing::Paused),
            State::Over(_) => false,
        }
    }

    /// Ends this source's part of the run and waits, at most `timeout`, until everything pushed is delivered and
    /// accounted for. Returns `None` if it is not yet; the caller may call again. Before the run has begun there is
    /// nothing to deliver, and the source just leaves.
    ///
    /// # Errors
    /// The reason why this source's part failed: a builder was lost for good.
    pub fn close(&self, timeout: Duration) -> Result<Option<SourceReport>, NodeError> {
        if let State::Serving(node) = &mut *self.shared.lock_state() {
            if node.push_standing() == Standing::Before {
                self.handle.send_command(Command::Abort);
            } else {
                node.push_end();
                self.wake_if_needed(node);
            }
        }
        self.shared.wait_for_state(timeout, |state| match state {
            State::Serving(_) => Ok(None),
            State::Over(Ok(report)) => Ok(Some((**report).clone())),
            State::Over(Err(error)) => Err(NodeError::Ended(Arc::clone(error))),
        })
    }

    /// Leaves at once. Fragments not delivered are lost, and the run reports that.
    pub fn abandon(&self) {
        self.handle.send_command(Command::Abort);
    }

    /// Ends this source's part of the run, once everything pushed is delivered and accounted for.
    ///
    /// # Errors
    /// Those of [`close`](Self::close).
    pub fn finish(self) -> Result<SourceReport, NodeError> {
        loop {
            if let Some(report) = self.close(Duration::MAX)? {
                return Ok(report);
            }
        }
    }

    fn wake_if_needed(&self, node: &SourceNode) {
        if node.needs_turn() {
            self.handle.wake_node();
        }
    }
}

impl Shared {
    /// Serves the builders until the run is over.
    fn serve_builders(&self, poller: &Poller, handle: &Handle) -> Result<SourceReport, NodeError> {
        let mut tokens = Vec::new();
        loop {
            let idle = match &mut *self.lock_state() {
                State::Serving(node) => {
                    if let Some(report) = node.turn(&tokens, handle)? {
                        return Ok(report);
                    }
                    node.idle()
                }
                // Only this thread sets that, when it ends.
                State::Over(_) => return Err(NodeError::Stopped),
            };
            self.changed.notify_all();
            idle.wait_for_work(poller, &mut tokens)?;
        }
    }

    fn lock_state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Calls `look` on the state until it returns something, for at most `timeout`.
    fn wait_for_state<T>(
        &self,
        timeout: Duration,
        mut look: impl FnMut(&mut State) -> Result<Option<T>, NodeError>,
    ) -> Result<Option<T>, NodeError> {
        let until = now().saturating_add(timeout);
        let mut state = self.lock_state();
        loop {
            if let Some(found) = look(&mut state)? {
                return Ok(Some(found));
            }
            let left = until.saturating_sub(now());
            if left.is_zero() {
                return Ok(None);
            }
            state = self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

impl fmt::Debug for PushSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PushSource").field("running", &self.is_running()).finish_non_exhaustive()
    }
}

impl Drop for PushSource {
    fn drop(&mut self) {
        while matches!(self.close(Duration::MAX), Ok(None)) {}
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
