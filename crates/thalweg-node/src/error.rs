//! Errors that end a node.

use std::sync::Arc;
use thalweg_arena::{ArenaError, DoorbellError};
use thalweg_device::DeviceError;
use thalweg_link::LinkError;
use thalweg_store::StoreError;
use thalweg_wire::Refusal;
use thiserror::Error;

/// Reason why a node ended before its work was done.
#[derive(Debug, Error)]
pub enum NodeError {
    /// Memory for slots or blocks could not be allocated.
    #[error(transparent)]
    Arena(#[from] ArenaError),
    /// The device failed.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// A link failed.
    #[error("{who}: {error}")]
    Link {
        /// Description of the peer.
        who: String,
        /// Error of the link.
        error: LinkError,
    },
    /// Waiting failed.
    #[error(transparent)]
    Wait(#[from] LinkError),
    /// A doorbell failed.
    #[error(transparent)]
    Doorbell(#[from] DoorbellError),
    /// A file or directory of the run failed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The disk does not answer, so the run stays open.
    #[error(
        "{0}; their contents are not on disk, and the run was not closed. Check the disk, then run `thalweg verify` \
         on the run"
    )]
    Disk(String),
    /// Peers did not connect.
    #[error("{0}")]
    Absent(String),
    /// The configuration cannot work.
    #[error("{0}")]
    Config(String),
    /// A fragment was pushed for a run that takes no more.
    #[error("the run has ended: no more fragments can be pushed")]
    Over,
    /// A source that a program feeds has ended for this reason; returned to every later caller.
    #[error("{0}")]
    Ended(Arc<NodeError>),
    /// A thread of this program panicked.
    #[error("the thread that serves the builders panicked: this is a defect in Thalweg")]
    Panicked,
    /// The node was aborted on request.
    #[error("aborted on request")]
    Stopped,
}

impl NodeError {
    /// Returns whether the request itself cannot be carried out, as opposed to a failure while it was carried out.
    pub fn is_usage(&self) -> bool {
        match self {
            Self::Config(_) | Self::Device(_) | Self::Arena(_) => true,
            Self::Wait(LinkError::Unusable { .. } | LinkError::Listening { .. }) => true,
            // Two nodes whose topologies, or whose sizes, do not match.
            Self::Link { error: LinkError::Refused { reason: Refusal::Mismatch, .. }, .. } => true,
            Self::Store(StoreError::Exists(_) | StoreError::NoNumber(_)) => true,
            Self::Ended(error) => error.is_usage(),
            _ => false,
        }
    }

    /// Returns whether the error only follows from the end of another node, whose own error is more specific.
    pub fn is_consequence(&self) -> bool {
        match self {
            Self::Link { error: LinkError::Refused { reason: Refusal::Ended, .. }, .. } => true,
            Self::Ended(error) => error.is_consequence(),
            _ => false,
        }
    }
}
