//! Published measurements taken again: what a paper measured, how it is measured here, what stands beside what, and
//! which of its findings hold on this machine. An experiment is data (`experiments/NAME.toml`), not code.

mod check;
mod page;

use crate::point::Report;
use crate::{BenchError, Plan};
use check::{Check, Quantity, Selector};
use serde::{Deserialize, Serialize};
use thalweg_page::paper::{FORMAT, Finding, Row, Table};
use thalweg_text::NOTHING;

/// What a paper measured, and how that is done here.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Experiment {
    /// Its short name.
    #[serde(skip)]
    pub name: String,
    /// What it is about.
    pub title: String,
    /// The paper: authors, title.
    pub source: String,
    /// How the paper measured.
    pub method: String,
    /// How it is measured here, and what differs.
    pub here: String,
    /// What is measured, in this order.
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
    /// What the tables and findings call it.
    pub id: String,
    /// The words behind `thalweg bench`.
    line: String,
    /// Options that take the place of those in `line`, for a first look.
    quick: String,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct TableSpec {
    title: String,
    /// Of the first column.
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

/// `at` says what the columns leave open.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct HereRow {
    name: String,
    at: Selector,
    /// Why there may be nothing of it.
    lacks: Option<String>,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct FindingSpec {
    /// The paper's, in a sentence.
    paper: String,
    /// What is tested here in its place.
    here: String,
    check: Check,
    /// Why there may be nothing to test it with.
    lacks: Option<String>,
}

/// The experiments there are.
const EXPERIMENTS: [(&str, &str); 4] = [
    ("fc-myrinet", include_str!("../../experiments/fc-myrinet.toml")),
    ("expether", include_str!("../../experiments/expether.toml")),
    ("olive", include_str!("../../experiments/olive.toml")),
    ("mtca4", include_str!("../../experiments/mtca4.toml")),
];

impl Experiment {
    /// All there are.
    pub fn all() -> Vec<Self> {
        EXPERIMENTS.iter().map(|(name, text)| Self::parse(name, text)).collect()
    }

    /// The one of this name.
    pub fn named(name: &str) -> Option<Self> {
        EXPERIMENTS.iter().find(|(own, _)| *own == name).map(|(name, text)| Self::parse(name, text))
    }

    fn parse(name: &str, text: &str) -> Self {
        let experiment = toml::from_str(text).unwrap_or_else(|error| panic!("experiments/{name}.toml: {error}"));
        Self { name: name.to_owned(), ..experiment }
    }

    /// What came out, from what was measured, in the order of [`Experiment::measures`].
    pub fn reproduction(&self, quick: bool, measured: Vec<Measured>) -> Reproduction {
        let table = |spec: &TableSpec| {
            let mut remarks: Vec<String> = spec.note.iter().cloned().collect();
            let mut here = Vec::new();
            for row in &spec.here {
                let mut cells = Vec::new();
                for column in &spec.columns {
                    match column.show.at(&row.at).value(&measured) {
                        Ok(value) => cells.push(value.number()),
                        Err(why) => {
                            cells.push(NOTHING.to_owned());
                            let why = why.told(row.lacks.as_deref());
                            if !remarks.contains(&why) {
                                remarks.push(why);
                            }
                        }
                    }
                }
                here.push(Row { name: row.name.clone(), cells });
            }
            Table {
                title: spec.title.clone(),
                headings: [&spec.rows]
                    .into_iter()
                    .chain(spec.columns.iter().map(|one| &one.heading))
                    .cloned()
                    .collect(),
                paper: spec.paper.iter().map(|row| Row { name: row.name.clone(), cells: row.cells.clone() }).collect(),
                here,
                remarks,
            }
        };
        let finding = |spec: &FindingSpec| {
            Finding::new(&spec.paper, &spec.here, spec.check.outcome(&measured, spec.lacks.as_deref()))
        };
        Reproduction {
            format: FORMAT.to_owned(),
            name: self.name.clone(),
            title: self.title.clone(),
            source: self.source.clone(),
            method: self.method.clone(),
            here: self.here.clone(),
            quick,
            tables: self.tables.iter().map(table).collect(),
            findings: self.findings.iter().map(finding).collect(),
            measured,
        }
    }
}

impl Measure {
    /// The words behind `thalweg bench`. For a first look, options take the place of others.
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

    /// What that asks for.
    ///
    /// # Errors
    /// As [`Plan::parse`].
    pub fn plan(&self, quick: bool) -> Result<Plan, BenchError> {
        Plan::parse(&self.words(quick))
    }
}

/// What became of a measure.
#[derive(Debug, Clone, Serialize)]
pub struct Measured {
    /// What the tables and findings call it.
    pub id: String,
    /// The words behind `thalweg bench`.
    pub line: String,
    /// What was measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub report: Option<Report>,
    /// Why nothing was.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// A paper's measurements beside this machine's.
#[derive(Debug, Clone, Serialize)]
pub struct Reproduction {
    /// What kind of file this is: [`FORMAT`].
    pub format: String,
    /// The experiment's short name.
    pub name: String,
    /// What it is about.
    pub title: String,
    /// The paper.
    pub source: String,
    /// How the paper measured.
    pub method: String,
    /// How it was measured here.
    pub here: String,
    /// Whether this was only a first look.
    pub quick: bool,
    /// The paper's tables, with this machine's rows.
    pub tables: Vec<Table>,
    /// The paper's findings, and whether they hold here.
    pub findings: Vec<Finding>,
    /// The reports themselves.
    pub measured: Vec<Measured>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_experiment_can_be_run_and_says_what_it_shows() {
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
