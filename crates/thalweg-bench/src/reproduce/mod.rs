//! Published measurements repeated: the paper's measurements, the method here, the figures side by side, and which of
//! the findings hold on this machine. An experiment is data (`experiments/NAME.toml`), not code.

mod check;
mod page;

use crate::paper::{FORMAT, Finding, Row, Table};
use crate::point::Report;
use crate::{BenchError, Plan};
use check::{Check, Quantity, Selector};
use serde::{Deserialize, Serialize};
use thalweg_text::NOTHING;

/// Measurements of a paper, and how they are repeated here.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Experiment {
    /// Short name of the experiment.
    #[serde(skip)]
    pub name: String,
    /// Title of the experiment.
    pub title: String,
    /// Paper: authors, title.
    pub source: String,
    /// Description of the paper's method.
    pub method: String,
    /// Description of the method here, and of the differences.
    pub here: String,
    /// Measurements, in this order.
    #[serde(rename = "measure")]
    pub measures: Vec<Measure>,
    #[serde(rename = "table")]
    tables: Vec<TableSpec>,
    #[serde(rename = "finding")]
    findings: Vec<FindingSpec>,
}

/// One line of `thalweg bench`.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Measure {
    /// Name by which the tables and findings refer to it.
    pub id: String,
    /// Words after `thalweg bench`.
    line: String,
    /// Options that replace those in `line`, for a first look.
    quick: String,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct TableSpec {
    title: String,
    /// Heading of the first column.
    rows: String,
    columns: Vec<ColumnSpec>,
    paper: Vec<PaperRow>,
    here: Vec<HereRow>,
    note: Option<String>,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct ColumnSpec {
    heading: String,
    show: Quantity,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct PaperRow {
    name: String,
    cells: Vec<String>,
}

/// Row measured here; `at` sets the properties that the columns leave open.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct HereRow {
    name: String,
    at: Selector,
    /// Reason why the row may be empty.
    lacks: Option<String>,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct FindingSpec {
    /// Finding of the paper, in a sentence.
    paper: String,
    /// Statement that is tested here in its place.
    here: String,
    check: Check,
    /// Reason why there may be no figures to test it with.
    lacks: Option<String>,
}

/// Built-in experiments: name and text.
const EXPERIMENTS: [(&str, &str); 4] = [
    ("fc-myrinet", include_str!("../../experiments/fc-myrinet.toml")),
    ("expether", include_str!("../../experiments/expether.toml")),
    ("olive", include_str!("../../experiments/olive.toml")),
    ("mtca4", include_str!("../../experiments/mtca4.toml")),
];

impl Experiment {
    /// Returns all experiments.
    pub fn all() -> Vec<Self> {
        EXPERIMENTS.iter().map(|(name, text)| Self::parse(name, text)).collect()
    }

    /// Returns the experiment of this name.
    pub fn named(name: &str) -> Option<Self> {
        EXPERIMENTS.iter().find(|(own, _)| *own == name).map(|(name, text)| Self::parse(name, text))
    }

    fn parse(name: &str, text: &str) -> Self {
        let experiment = toml::from_str(text).unwrap_or_else(|error| panic!("experiments/{name}.toml: {error}"));
        Self { name: name.to_owned(), ..experiment }
    }

    /// Returns the result of what was measured, in the order of [`Experiment::measures`].
    pub fn reproduction(&self, quick: bool, measured: Vec<Measured>) -> Reproduction {
        let findings = self
            .findings
            .iter()
            .map(|spec| Finding::new(&spec.paper, &spec.here, spec.check.outcome(&measured, spec.lacks.as_deref())));
        Reproduction {
            format: FORMAT.to_owned(),
            name: self.name.clone(),
            title: self.title.clone(),
            source: self.source.clone(),
            method: self.method.clone(),
            here: self.here.clone(),
            quick,
            tables: self.tables.iter().map(|spec| spec.table(&measured)).collect(),
            findings: findings.collect(),
            measured,
        }
    }
}

impl TableSpec {
    /// Returns the table with the rows that were measured here.
    fn table(&self, measured: &[Measured]) -> Table {
        let mut remarks: Vec<String> = self.note.iter().cloned().collect();
        let mut here = Vec::new();
        for row in &self.here {
            let mut cells = Vec::new();
            for column in &self.columns {
                match column.show.at(&row.at).value(measured) {
                    Ok(value) => cells.push(value.number()),
                    Err(why) => {
                        cells.push(NOTHING.to_owned());
                        let why = why.text(row.lacks.as_deref());
                        if !remarks.contains(&why) {
                            remarks.push(why);
                        }
                    }
                }
            }
            here.push(Row { name: row.name.clone(), cells });
        }
        let headings = [&self.rows].into_iter().chain(self.columns.iter().map(|column| &column.heading));
        Table {
            title: self.title.clone(),
            headings: headings.cloned().collect(),
            paper: self.paper.iter().map(|row| Row { name: row.name.clone(), cells: row.cells.clone() }).collect(),
            here,
            remarks,
        }
    }
}

impl Measure {
    /// Returns the words after `thalweg bench`. For a first look, some options are replaced.
    pub fn words(&self, quick: bool) -> Vec<String> {
        let mut words: Vec<String> = self.line.split_whitespace().map(str::to_owned).collect();
        let mut replaced = self.quick.split_whitespace().filter(|_| quick);
        while let (Some(option), Some(value)) = (replaced.next(), replaced.next()) {
            match words.iter().position(|word| word == option) {
                Some(at) => words[at + 1] = value.to_owned(),
                None => words.extend([option.to_owned(), value.to_owned()]),
            }
        }
        words
    }

    /// Returns the plan of these words.
    ///
    /// # Errors
    /// As [`Plan::parse`].
    pub fn plan(&self, quick: bool) -> Result<Plan, BenchError> {
        Plan::parse(&self.words(quick))
    }
}

/// Outcome of a measurement.
#[derive(Debug, Clone, Serialize)]
pub struct Measured {
    /// Name by which the tables and findings refer to it.
    pub id: String,
    /// Words after `thalweg bench`.
    pub line: String,
    /// Report of the measurement.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub report: Option<Report>,
    /// Reason why there is no report.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// Measurements of a paper beside those of this machine.
#[derive(Debug, Clone, Serialize)]
pub struct Reproduction {
    /// File format: [`FORMAT`].
    pub format: String,
    /// Short name of the experiment.
    pub name: String,
    /// Title of the experiment.
    pub title: String,
    /// Paper: authors, title.
    pub source: String,
    /// Description of the paper's method.
    pub method: String,
    /// Description of the method here.
    pub here: String,
    /// Whether this was only a first look.
    pub quick: bool,
    /// Tables of the paper, with this machine's rows.
    pub tables: Vec<Table>,
    /// Findings of the paper, and whether they hold here.
    pub findings: Vec<Finding>,
    /// Outcomes of all measurements.
    pub measured: Vec<Measured>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_experiment_is_valid_and_complete() {
        for experiment in Experiment::all() {
            for measure in &experiment.measures {
                for quick in [false, true] {
                    measure.plan(quick).unwrap_or_else(|error| panic!("{} {}: {error}", experiment.name, measure.id));
                }
            }
            let ids: Vec<&str> = experiment.measures.iter().map(|measure| measure.id.as_str()).collect();
            for table in &experiment.tables {
                let columns = table.columns.len();
                assert!(table.paper.iter().all(|row| row.cells.len() == columns), "{}", table.title);
                for (column, row) in table.columns.iter().flat_map(|c| table.here.iter().map(move |r| (c, r))) {
                    column.show.at(&row.at).assert_complete(&ids);
                }
            }
            assert!(!experiment.findings.is_empty());
            experiment.findings.iter().for_each(|finding| finding.check.assert_complete(&ids));
        }
    }

    #[test]
    fn quick_options_take_the_place_of_others() {
        let measure =
            Measure { id: "a".into(), line: "copy --sizes 1MiB -t 1s".into(), quick: "-t 10ms --repeat 1".into() };
        assert_eq!(measure.words(false).join(" "), "copy --sizes 1MiB -t 1s");
        assert_eq!(measure.words(true).join(" "), "copy --sizes 1MiB -t 10ms --repeat 1");
    }
}
