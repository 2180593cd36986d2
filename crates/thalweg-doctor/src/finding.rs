//! Findings of an examination.

use serde::Serialize;
use std::fmt;

/// Severity of a finding, best first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    /// As it should be, or absent and not needed.
    #[default]
    Ok,
    /// Works, but slower or with less margin than possible.
    Degraded,
    /// The requested run would lose data, or cannot take place.
    Missing,
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Ok => "ok",
            Self::Degraded => "degraded",
            Self::Missing => "missing",
        })
    }
}

/// The part of the machine that a finding is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Section {
    /// Features of the kernel that are available to this process.
    #[default]
    Kernel,
    /// Memory for slots and blocks.
    Memory,
    /// Processors for hot threads.
    Cpu,
    /// Interfaces and TCP.
    Network,
    /// Ways around the kernel: DPDK, VFIO, RDMA, GPUs.
    Userspace,
    /// Clocks that date fragments.
    Clock,
    /// The record directory.
    Disk,
}

impl fmt::Display for Section {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Kernel => "kernel",
            Self::Memory => "memory",
            Self::Cpu => "cpu",
            Self::Network => "network",
            Self::Userspace => "userspace",
            Self::Clock => "clock",
            Self::Disk => "disk",
        })
    }
}

/// Result of one check.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// The part of the machine that was checked.
    pub section: Section,
    /// Name of the check, unique in its section.
    pub name: String,
    /// Severity of the finding.
    pub level: Level,
    /// Values that were read, and their source.
    pub evidence: String,
    /// Consequence for a run; `None` if the level is ok.
    pub cost: Option<String>,
    /// Command that solves the problem, if there is one.
    pub remedy: Option<String>,
    /// Whether the caller requested this very figure, which is then shown at any level.
    #[serde(skip)]
    pub requested: bool,
}

impl Finding {
    pub(crate) fn new(name: impl Into<String>, evidence: impl Into<String>) -> Self {
        Self {
            section: Section::default(),
            name: name.into(),
            level: Level::Ok,
            evidence: evidence.into(),
            cost: None,
            remedy: None,
            requested: false,
        }
    }

    pub(crate) fn with_degraded_level(self, cost: impl Into<String>) -> Self {
        Self { level: Level::Degraded, cost: Some(cost.into()), ..self }
    }

    pub(crate) fn with_missing_level(self, cost: impl Into<String>) -> Self {
        Self { level: Level::Missing, cost: Some(cost.into()), ..self }
    }

    pub(crate) fn with_remedy(self, command: impl Into<String>) -> Self {
        Self { remedy: Some(command.into()), ..self }
    }

    pub(crate) fn with_request(self) -> Self {
        Self { requested: true, ..self }
    }

    pub(crate) fn in_section(self, section: Section) -> Self {
        Self { section, ..self }
    }
}
