//! Commands to a node, and orders for its next run.

use serde::{Deserialize, Serialize};
use std::fmt;
use thalweg_core::control::Command;
use thalweg_store::RunKind;

/// Command to a node.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum NodeCommand {
    /// Command to the run control of a builder, or to a source.
    Control(Command),
    /// Order for the next run. Carried out before the run begins.
    Prepare(RunOrder),
    /// Begins the run that was prepared with this number, and no other one.
    Begin(u32),
    /// Begins the next run at an event that all sources agree on: without a gap, and without a pause but for that.
    Next(RunOrder),
    /// Marks the beginning of a step of a scan, at an event that all sources agree on.
    Step(StepOrder),
}

impl From<Command> for NodeCommand {
    fn from(command: Command) -> Self {
        Self::Control(command)
    }
}

impl fmt::Display for NodeCommand {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Control(command) => command.fmt(f),
            Self::Prepare(_) => f.write_str("prepare the run"),
            Self::Begin(run) => write!(f, "begin run {run}"),
            Self::Next(_) => f.write_str("begin the next run"),
            Self::Step(_) => f.write_str("mark a step"),
        }
    }
}

/// Order for the next run: what it is to be. It takes the place of what the topology has.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RunOrder {
    /// Number of the run; the topology's, or the next free one in the directory, when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub number: Option<u32>,
    /// Kind of the run.
    pub kind: RunKind,
    /// Comment on the run, for `run.json`; the topology's when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub comment: Option<String>,
}

/// Step of a scan that is to be marked.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct StepOrder {
    /// Label of the step, of at most 256 bytes.
    pub label: String,
    /// Facts about the step, of at most 4 KiB of JSON.
    #[serde(skip_serializing_if = "serde_json::Value::is_null")]
    pub data: serde_json::Value,
}
