//! Figures of the last hour: one value a second, in memory.

use serde::Serialize;
use std::collections::{BTreeMap, VecDeque};
use utoipa::ToSchema;

/// Number of seconds that are kept.
const MAX_SECONDS: usize = 3600;

/// Values of one second.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Second {
    /// Unix time in seconds.
    pub at: f64,
    /// Events closed per second; `None` where no run was under way.
    pub events_per_second: Option<f64>,
    /// Payload bytes built per second.
    pub bytes_per_second: Option<f64>,
    /// Events closed incomplete, in the run so far.
    pub incomplete: Option<u64>,
    /// Values of each source.
    pub sources: Vec<SourceSecond>,
}

/// Values of a source in one second.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct SourceSecond {
    /// Payload bytes built per second.
    pub bytes_per_second: Option<f64>,
    /// Open offers.
    pub backlog: u64,
    /// Fragments lost, in the run so far.
    pub lost: u64,
}

/// Values of the last hour.
#[derive(Debug, Default)]
pub struct History(VecDeque<Second>);

/// Values of a time, as columns.
#[derive(Debug, Default, Serialize, ToSchema)]
pub struct Columns {
    /// Time from one value to the next, in seconds.
    pub step_seconds: f64,
    /// Unix times in seconds.
    pub at: Vec<f64>,
    /// Events closed per second; `null` where no run was under way.
    pub events_per_second: Vec<Option<f64>>,
    /// Payload bytes built per second.
    pub bytes_per_second: Vec<Option<f64>>,
    /// Events closed incomplete, in the run so far.
    pub incomplete: Vec<Option<u64>>,
    /// Columns of each source, by its name.
    pub sources: BTreeMap<String, SourceColumns>,
}

/// Values of a source, as columns.
#[derive(Debug, Default, Serialize, ToSchema)]
pub struct SourceColumns {
    /// Payload bytes built per second.
    pub bytes_per_second: Vec<Option<f64>>,
    /// Open offers.
    pub backlog: Vec<u64>,
    /// Fragments lost, in the run so far.
    pub lost: Vec<u64>,
}

impl History {
    /// Adds the values of a second.
    pub fn add_second(&mut self, second: Second) {
        if self.0.len() == MAX_SECONDS {
            self.0.pop_front();
        }
        self.0.push_back(second);
    }

    /// Returns the values of the last `seconds`, with those of the sources of these names.
    pub fn columns(&self, seconds: usize, names: &[String]) -> Columns {
        let skipped = self.0.len().saturating_sub(seconds);
        let mut columns = Columns { step_seconds: 1.0, ..Columns::default() };
        for second in self.0.iter().skip(skipped) {
            columns.at.push(second.at);
            columns.events_per_second.push(second.events_per_second);
            columns.bytes_per_second.push(second.bytes_per_second);
            columns.incomplete.push(second.incomplete);
            for (index, name) in names.iter().enumerate() {
                let source = second.sources.get(index).cloned().unwrap_or_default();
                let column = columns.sources.entry(name.clone()).or_default();
                column.bytes_per_second.push(source.bytes_per_second);
                column.backlog.push(source.backlog);
                column.lost.push(source.lost);
            }
        }
        columns
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_hour_is_kept_and_columns_are_of_one_length() {
        let mut history = History::default();
        for at in 0..4000 {
            history.add_second(Second { at: f64::from(at), ..Second::default() });
        }
        let columns = history.columns(usize::MAX, &["adc".into()]);
        assert_eq!((columns.at.len(), columns.at[0]), (3600, 400.0));
        assert_eq!(columns.sources["adc"].lost.len(), 3600);
        assert_eq!(history.columns(2, &[]).at, [3998.0, 3999.0]);
    }
}
