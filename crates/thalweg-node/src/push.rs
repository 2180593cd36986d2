//! A source whose fragments a program pushes, from any thread, while another thread serves the builders.

use crate::{NodeError, Progress, SourceNode, SourceReport, SourceSettings, Stop, now};
use std::fmt;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;
use thalweg_wire::{EventId, PayloadType, Status, TaiNanos};

/// One fragment as a program has it.
#[derive(Debug, Clone, Copy, Default)]
pub struct PushedFragment<'a> {
    /// Its bytes.
    pub payload: &'a [u8],
    /// What they are.
    pub payload_type: PayloadType,
    /// What is to be known of them. *Empty* is set by itself where there are none.
    pub status: Status,
    /// When it happened; now, when absent.
    pub timestamp: Option<TaiNanos>,
    /// How much time it covers, in nanoseconds.
    pub window: u32,
}

/// Whether a run takes fragments.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Standing {
    Before,
    Open,
    Paused,
    Over,
}

/// A source that a program feeds. Dropping it ends its part of the run as [`finish`](Self::finish) does.
pub struct PushSource {
    shared: Arc<Shared>,
    stop: Stop,
    thread: Option<JoinHandle<Result<SourceReport, NodeError>>>,
}

struct Shared {
    node: Mutex<SourceNode>,
    /// Something changed: the run began or stopped, a slot was released, the thread ended.
    changed: Condvar,
    over: Mutex<bool>,
}

impl PushSource {
    /// Makes the slots and begins to connect. `settings.feed` must be [`Feed::Pushed`](crate::Feed::Pushed).
    pub fn start(settings: SourceSettings) -> Result<Self, NodeError> {
        let stop = Stop::new()?;
        let node = SourceNode::new(settings)?;
        let poller = node.begin(&stop)?;
        let shared = Arc::new(Shared { node: Mutex::new(node), changed: Condvar::new(), over: Mutex::new(false) });
        let thread = std::thread::spawn({
            let (shared, stop) = (Arc::clone(&shared), stop.clone());
            move || {
                let progress = Progress::default();
                let mut tokens = Vec::new();
                let result = loop {
                    let mut node = shared.node();
                    let timeout = match node.turn(&tokens, &stop, &progress) {
                        Ok(true) => break Ok(node.report()),
                        Ok(false) => node.timeout(now()),
                        Err(error) => break Err(error),
                    };
                    drop(node);
                    shared.changed.notify_all();
                    tokens.clear();
                    if let Err(error) = poller.wait(timeout, |token| tokens.push(token)) {
                        break Err(error.into());
                    }
                };
                *shared.over.lock().unwrap_or_else(PoisonError::into_inner) = true;
                shared.changed.notify_all();
                result
            }
        });
        Ok(Self { shared, stop, thread: Some(thread) })
    }

    /// Waits until the run has begun, at most so long. False where it has not, or the source has failed meanwhile (then
    /// [`finish`](Self::finish) says why).
    pub fn wait_for_start(&self, patience: Duration) -> bool {
        let node = self.shared.node();
        let waiting = |node: &mut SourceNode| node.standing() == Standing::Before && !self.shared.is_over();
        let waited = self.shared.changed.wait_timeout_while(node, patience, waiting);
        let (node, _) = waited.unwrap_or_else(PoisonError::into_inner);
        node.standing() != Standing::Before
    }

    /// Pushes one fragment for event `event`, or for the next one. Waits, at most `patience`, for the run to begin and, with
    /// policy `block`, for a slot. Returns the event's number, or nothing where time ran out; it is an error where the run
    /// is over.
    pub fn push(
        &self,
        event: Option<EventId>,
        fragment: &PushedFragment<'_>,
        patience: Duration,
    ) -> Result<Option<EventId>, NodeError> {
        let until = now() + patience;
        let mut node = self.shared.node();
        loop {
            match node.standing() {
                _ if self.shared.is_over() => return Err(NodeError::Stopped),
                Standing::Over => return Err(NodeError::Over),
                Standing::Open => {
                    if let Some(event) = node.push(event, fragment)? {
                        return Ok(Some(event));
                    }
                }
                Standing::Before | Standing::Paused => {}
            }
            let left = until.saturating_sub(now());
            if left.is_zero() {
                return Ok(None);
            }
            node = self.shared.changed.wait_timeout(node, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Ends this source's part of the run: what was pushed is delivered and accounted for.
    pub fn finish(mut self) -> Result<SourceReport, NodeError> {
        self.shared.node().push_end()?;
        // Before the run has begun there is nothing to deliver.
        if self.shared.node().standing() == Standing::Before {
            self.stop.at_once();
        }
        self.join().unwrap_or(Err(NodeError::Stopped))
    }

    fn join(&mut self) -> Option<Result<SourceReport, NodeError>> {
        // A thread that panicked has nothing to report.
        self.thread.take()?.join().ok()
    }
}

impl Shared {
    fn node(&self) -> MutexGuard<'_, SourceNode> {
        self.node.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_over(&self) -> bool {
        *self.over.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for PushSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PushSource").field("over", &self.shared.is_over()).finish_non_exhaustive()
    }
}

impl Drop for PushSource {
    fn drop(&mut self) {
        if self.thread.is_some() {
            let _ = self.shared.node().push_end();
            if self.shared.node().standing() == Standing::Before {
                self.stop.at_once();
            }
            let _ = self.join();
        }
    }
}
