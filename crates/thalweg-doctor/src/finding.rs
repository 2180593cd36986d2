//! What was found.

use serde::Serialize;
use std::fmt;

/// How good or bad a finding is, best first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    /// As it should be, or not there and not needed.
    #[default]
    Ok,
    /// It works, slower or with less margin than it could.
    Degraded,
    /// What was asked for would lose data, or cannot run.
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
    /// What the kernel offers this process.
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

/// One thing that was looked at.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// The part of the machine.
    pub section: Section,
    /// What was looked at, unique in its section.
    pub name: String,
    /// How it is.
    pub level: Level,
    /// What was read, and where.
    pub evidence: String,
    /// What it costs. Nothing where the level is ok.
    pub cost: Option<String>,
    /// The command that mends it, where there is one.
    pub remedy: Option<String>,
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
        }
    }

    pub(crate) fn degraded(self, cost: impl Into<String>) -> Self {
        Self { level: Level::Degraded, cost: Some(cost.into()), ..self }
    }

    pub(crate) fn missing(self, cost: impl Into<String>) -> Self {
        Self { level: Level::Missing, cost: Some(cost.into()), ..self }
    }

    pub(crate) fn mended_by(self, command: impl Into<String>) -> Self {
        Self { remedy: Some(command.into()), ..self }
    }

    pub(crate) fn of(self, section: Section) -> Self {
        Self { section, ..self }
    }
}
