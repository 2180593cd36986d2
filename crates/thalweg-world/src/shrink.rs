//! Search for a smaller plan that fails as well.

use crate::plan::Plan;

/// Removes faults, one after the other, as long as `fails` returns true for the rest. Returns the numbers of the
/// removed faults.
pub fn shrink_faults(plan: &Plan, mut fails: impl FnMut(&Plan) -> bool) -> Vec<usize> {
    let mut left_out = Vec::new();
    for at in (0..plan.faults.len()).rev() {
        left_out.push(at);
        if !fails(&plan.without_faults(&left_out)) {
            left_out.pop();
        }
    }
    left_out.sort_unstable();
    left_out
}
