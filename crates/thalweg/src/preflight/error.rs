//! Reasons why a node does not begin.

use thalweg_doctor::Finding;
use thalweg_node::NodeError;
use thiserror::Error;

/// Reason why a node does not begin.
#[derive(Debug, Error)]
pub enum PreflightError {
    /// The node would lose data on this machine, or not get to the end.
    #[error("{}", refusal_text(.0))]
    Machine(Box<Finding>),
    /// The topology cannot work here.
    #[error(transparent)]
    Topology(#[from] NodeError),
}

impl PreflightError {
    /// Returns true if the request cannot be fulfilled at all, as against a failure while it was carried out.
    pub fn is_usage(&self) -> bool {
        match self {
            Self::Machine(_) => true,
            Self::Topology(error) => error.is_usage(),
        }
    }
}

/// Returns a finding of the preflight as one sentence.
fn refusal_text(finding: &Finding) -> String {
    let Finding { name, evidence, cost, remedy, .. } = finding;
    let cost = cost.as_ref().map(|cost| format!(": {cost}")).unwrap_or_default();
    let remedy = remedy.as_ref().map(|remedy| format!(" ({remedy})")).unwrap_or_default();
    format!("{name}: {evidence}{cost}{remedy}")
}
