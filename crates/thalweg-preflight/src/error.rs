//! Why a node does not begin.

use thalweg_doctor::Finding;
use thalweg_node::NodeError;
use thiserror::Error;

/// Why a node does not begin.
#[derive(Debug, Error)]
pub enum PreflightError {
    /// A machine on which the node would lose data, or not get to the end.
    #[error("{}", refusal(.0))]
    Machine(Box<Finding>),
    /// A topology that cannot work here.
    #[error(transparent)]
    Topology(#[from] NodeError),
}

impl PreflightError {
    /// Returns whether what was asked for cannot be done, as against something going wrong while it was done.
    pub fn is_usage(&self) -> bool {
        match self {
            Self::Machine(_) => true,
            Self::Topology(error) => error.is_usage(),
        }
    }
}

/// A finding of the preflight, in one sentence.
fn refusal(finding: &Finding) -> String {
    let Finding { name, evidence, cost, remedy, .. } = finding;
    let cost = cost.as_ref().map(|cost| format!(": {cost}")).unwrap_or_default();
    let remedy = remedy.as_ref().map(|remedy| format!(" ({remedy})")).unwrap_or_default();
    format!("{name}: {evidence}{cost}{remedy}")
}
