//! Why a node could not do its work.

use std::sync::Arc;
use thalweg_arena::{ArenaError, DoorbellError};
use thalweg_device::DeviceError;
use thalweg_link::LinkError;
use thalweg_store::StoreError;
use thalweg_wire::Refusal;
use thiserror::Error;

/// Why a node ended before its work was done.
#[derive(Debug, Error)]
pub enum NodeError {
    /// Memory for slots or blocks.
    #[error(transparent)]
    Arena(#[from] ArenaError),
    /// The device.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// A link.
    #[error("{who}: {error}")]
    Link {
        /// The peer.
        who: String,
        /// What happened.
        error: LinkError,
    },
    /// Waiting itself.
    #[error(transparent)]
    Wait(#[from] LinkError),
    /// A wake-up.
    #[error(transparent)]
    Doorbell(#[from] DoorbellError),
    /// The run's directory or files.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// A disk that does not answer: the run stays open.
    #[error(
        "{0}; what they hold is not on disk, and the run was not closed. Look at the disk, then `thalweg verify` the run"
    )]
    Disk(String),
    /// Peers that did not come.
    #[error("{0}")]
    Absent(String),
    /// A configuration that cannot work.
    #[error("{0}")]
    Config(String),
    /// A fragment for a run that takes no more.
    #[error("the run is over: nothing more can be pushed")]
    Over,
    /// What ended a source that a program feeds, as everyone who asks it for more is told.
    #[error("{0}")]
    Ended(Arc<NodeError>),
    /// A thread of this program panicked.
    #[error("the thread that serves the builders panicked: this is a defect in Thalweg")]
    Panicked,
    /// Stopped at once, on request.
    #[error("stopped at once, on request")]
    Stopped,
}

impl NodeError {
    /// Whether what was asked for cannot be done, as against something going wrong while it was done.
    pub fn is_usage(&self) -> bool {
        match self {
            Self::Config(_) | Self::Device(_) | Self::Arena(_) => true,
            Self::Wait(LinkError::Unusable { .. } | LinkError::Listening { .. }) => true,
            // Two nodes whose topologies, or whose sizes, do not go together.
            Self::Link { error: LinkError::Refused { reason: Refusal::Mismatch, .. }, .. } => true,
            Self::Store(StoreError::Exists(_) | StoreError::NoNumber(_)) => true,
            Self::Ended(error) => error.is_usage(),
            _ => false,
        }
    }

    /// Whether it only follows from the end of another node, which has a better reason.
    pub fn is_consequence(&self) -> bool {
        match self {
            Self::Link { error: LinkError::Refused { reason: Refusal::Ended, .. }, .. } => true,
            Self::Ended(error) => error.is_consequence(),
            _ => false,
        }
    }
}
