//! The answer of a sweep, before all its figures: the rates that its cells carried, and their limits.

use super::Results;
use crate::verdict::LimitKind;
use crate::{Report, Verdict};
use serde::Serialize;
use std::collections::BTreeMap;
use thalweg_text::{format_bit_rate, format_quantity};

/// Limits of all cells of a sweep.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct SweepVerdict {
    /// Number of cells for each limit, the most frequent limit first.
    pub limits: Vec<LimitCount>,
    /// All of this in one sentence.
    pub sentence: String,
}

/// Number of cells with one limit.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct LimitCount {
    /// Kind of the limit.
    pub kind: LimitKind,
    /// Name of the link, the node or the congestion control; of several equal links, their kind.
    pub name: String,
    /// Limit in a few words.
    #[serde(skip)]
    pub title: String,
    /// Number of cells.
    pub cells: usize,
}

/// Number of limits that the sentence names.
const MAX_NAMED_LIMITS: usize = 3;

impl Results {
    fn cell_reports(&self) -> impl Iterator<Item = &Report> {
        self.outcomes.iter().flatten().filter_map(|outcome| outcome.as_deref().ok())
    }

    fn cell_verdicts(&self) -> impl Iterator<Item = &Verdict> {
        self.cell_reports().filter_map(|report| report.verdict.as_ref())
    }

    /// Returns whether a cell failed or did not carry its offered rate.
    pub fn has_uncarried_cells(&self) -> bool {
        let carried = self.cell_verdicts().filter(|verdict| verdict.carries_offered == Some(true)).count();
        carried < self.outcomes.len()
    }

    /// Returns the limits of all cells that have a report; `None` without any.
    pub fn sweep_verdict(&self) -> Option<SweepVerdict> {
        let mut counts: BTreeMap<(LimitKind, String), LimitCount> = BTreeMap::new();
        for Verdict { limit, .. } in self.cell_verdicts() {
            let (kind, title) = (limit.kind, limit.title());
            let name = if limit.links.len() > 1 { title.clone() } else { limit.name.clone() };
            let count = LimitCount { kind, name, title: title.clone(), cells: 0 };
            counts.entry((kind, title)).or_insert(count).cells += 1;
        }
        let limits = counts.into_values();
        let mut limits: Vec<LimitCount> = limits.collect();
        limits.sort_by_key(|limit| std::cmp::Reverse(limit.cells));
        let rates = self.cell_verdicts().map(|verdict| verdict.carried_bits_per_second);
        let (least, most) = rates.fold((f64::INFINITY, 0.0_f64), |(a, b), rate| (a.min(rate), b.max(rate)));
        let mut named: Vec<String> = limits
            .iter()
            .take(MAX_NAMED_LIMITS)
            .map(|limit| format!("{} in {}", limit.title, format_quantity(limit.cells as u64, "cell")))
            .collect();
        let rest: usize = limits.iter().skip(MAX_NAMED_LIMITS).map(|limit| limit.cells).sum();
        if rest > 0 {
            named.push(format!("others in {}", format_quantity(rest as u64, "cell")));
        }
        let offering = self.cell_verdicts().filter(|verdict| verdict.carries_offered.is_some()).count();
        let carried = self.cell_verdicts().filter(|verdict| verdict.carries_offered == Some(true)).count();
        let offered = match offering {
            0 => "The sources always have more".to_owned(),
            offering => {
                format!("The offered rate is carried in {carried} of {}", format_quantity(offering as u64, "cell"))
            }
        };
        let rates = match least < 0.999 * most {
            true => format!("carried {} to {}", format_bit_rate(least), format_bit_rate(most)),
            false => format!("carried {}", format_bit_rate(most)),
        };
        let sentence = format!("{offered}, {rates}; the limit: {}.", named.join(", "));
        (!limits.is_empty()).then_some(SweepVerdict { limits, sentence })
    }
}
