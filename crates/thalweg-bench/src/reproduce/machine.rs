//! Experiments that are measured on this machine, by lines of `thalweg bench`.

use super::check::{Check, Quantity, Selector};
use super::{Experiment, ExperimentReport, Finding, Measured, Reproduction, Row, Table, reports};
use crate::point::Report;
use crate::render::{PlotError, html, report_csv};
use crate::{BenchError, Plan};
use serde::Deserialize;
use std::fmt::Write;
use thalweg_text::html::{escape_html, list_html};
use thalweg_text::{NOTHING, TEXT_COLUMNS, break_into_lines};

impl ExperimentReport for Report {
    type Measure = Measure;
    type Table = TableSpec;
    type Finding = FindingSpec;

    const EXPERIMENTS: &'static [(&'static str, &'static str)] = &[
        ("fc-myrinet", include_str!("../../experiments/fc-myrinet.toml")),
        ("expether", include_str!("../../experiments/expether.toml")),
        ("olive", include_str!("../../experiments/olive.toml")),
        ("mtca4", include_str!("../../experiments/mtca4.toml")),
    ];
    const QUICK: &'static str = "A first look (--quick): points are shorter, and some measurements leave sizes out. The commands are shown as they \
                                 were run.";

    fn conclusions(experiment: &Experiment<Self>, measured: &[Measured<Self>]) -> (Vec<Table>, Vec<Finding>, String) {
        let tables = experiment.tables.iter().map(|spec| spec.table(measured));
        let findings = experiment.findings.iter().map(|FindingSpec { paper, here, check, lacks }| {
            let outcome = check.test_outcome(measured, lacks.as_deref());
            let doubts = check.doubts(measured);
            let outcome = outcome.map(|(holds, figures)| match doubts.is_empty() {
                true => (holds, figures),
                false => (holds, format!("{figures}; in doubt: {}", doubts.join("; "))),
            });
            Finding::new(paper, here, outcome)
        });
        (tables.collect(), findings.collect(), String::new())
    }

    /// Formats names at the left, wrapped if they are long, and cells at the right.
    fn rows_text(table: &Table) -> String {
        let cells = table.headings.len().saturating_sub(1);
        let name_width = TEXT_COLUMNS.saturating_sub(2 + cells * (CELL_WIDTH + 2)).max(16);
        let mut out = text_row(&table.headings[0], &table.headings[1..], name_width);
        let sides = [("the paper", &table.paper), ("here", &table.here)];
        for (side, rows) in sides.into_iter().filter(|(_, rows)| !rows.is_empty()) {
            let _ = writeln!(out, "{side}");
            rows.iter().for_each(|row| out.push_str(&text_row(&row.name, &row.cells, name_width)));
        }
        out
    }

    fn measured_html(measured: &[Measured<Self>]) -> Result<String, PlotError> {
        let mut body = String::new();
        for one in measured {
            let (title, line) = (escape_html(&one.id), escape_html(&one.line));
            let _ = writeln!(body, "<h2>Measured: {title}</h2>\n<pre>thalweg bench {line}</pre>");
            if let Some(report) = &one.report {
                body.push_str(&html::warning_list(&report.warnings));
                body.push_str(&html::picture_figures(report)?);
                body.push_str(&html::group_tables(report).replace("<h2>", "<h3>").replace("</h2>", "</h3>"));
            }
            body.push_str(&list_html("", &one.error));
        }
        body.extend(reports(measured).next().map(|report| html::host_table("Host", &report.host)));
        Ok(body)
    }

    fn files(reproduction: &Reproduction<Self>) -> Result<Vec<(String, String)>, PlotError> {
        let mut files = reproduction.draw_pictures()?;
        let reports = reproduction.measured.iter().filter_map(|one| Some((&one.id, one.report.as_ref()?)));
        files.extend(reports.map(|(id, report)| (format!("{id}.csv"), report_csv(report))));
        files.push(("report.md".to_owned(), reproduction.format_markdown()));
        files.push(("report.html".to_owned(), reproduction.format_html()?));
        Ok(files)
    }
}

/// One line of `thalweg bench`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Measure {
    /// Name by which the tables and findings refer to it.
    pub id: String,
    /// Words after `thalweg bench`.
    line: String,
    /// Options that replace those in `line`, for a first look.
    quick: String,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TableSpec {
    title: String,
    /// Heading of the first column.
    rows: String,
    columns: Vec<ColumnSpec>,
    paper: Vec<Row>,
    here: Vec<HereRow>,
    note: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ColumnSpec {
    heading: String,
    show: Quantity,
}

/// Row measured here; `at` sets the properties that the columns leave open.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct HereRow {
    name: String,
    at: Selector,
    /// Reason why the row may be empty.
    lacks: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FindingSpec {
    /// Finding of the paper, in a sentence.
    paper: String,
    /// Statement that is tested here in its place.
    here: String,
    check: Check,
    /// Reason why there may be no figures to test it with.
    lacks: Option<String>,
}

impl TableSpec {
    /// Returns the table with the rows that were measured here.
    fn table(&self, measured: &[Measured<Report>]) -> Table {
        let mut remarks: Vec<String> = self.note.iter().cloned().collect();
        let mut here = Vec::new();
        for row in &self.here {
            let mut cells = Vec::new();
            for column in &self.columns {
                match column.show.with_defaults(&row.at).measured_value(measured) {
                    Ok(value) => cells.push(value.formatted_number()),
                    Err(why) => {
                        cells.push(NOTHING.to_owned());
                        let why = why.reason_text(row.lacks.as_deref());
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
            paper: self.paper.clone(),
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
    /// As [`Plan::parse_words`].
    pub fn plan(&self, quick: bool) -> Result<Plan, BenchError> {
        Plan::parse_words(&self.words(quick))
    }
}

/// Width of a cell that is not a name, in characters.
const CELL_WIDTH: usize = 13;

/// Formats a row of a table, in as many lines as its longest cell needs.
fn text_row(name: &str, cells: &[String], name_width: usize) -> String {
    let mut names = break_into_lines(name, name_width).into_iter();
    let mut cells: Vec<_> = cells.iter().map(|cell| break_into_lines(cell, CELL_WIDTH).into_iter()).collect();
    let mut out = String::new();
    loop {
        let name = names.next();
        let row: Vec<_> = cells.iter_mut().map(Iterator::next).collect();
        if name.is_none() && row.iter().all(Option::is_none) {
            return out;
        }
        let mut line = format!("  {:<name_width$}", name.unwrap_or_default());
        for cell in row {
            let _ = write!(line, "  {:>CELL_WIDTH$}", cell.unwrap_or_default());
        }
        out.push_str(line.trim_end());
        out.push('\n');
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_experiment_is_valid_and_complete() {
        for experiment in Experiment::<Report>::all_experiments() {
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
                    column.show.with_defaults(&row.at).assert_complete(&ids);
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
