//! Published measurements repeated: the paper's measurements, the method here, the figures side by side, and which of
//! the findings hold here. An experiment is data (`experiments/NAME.toml`), not code.
//!
//! Experiments share what is in this file, and differ in the [`ExperimentReport`] that their figures are taken from:
//! some are measured on this machine (`machine`), others in the laboratory (`thalweg_lab::reproduce`).

mod check;
mod machine;
mod page;
mod paper;

pub use machine::Measure;
pub use paper::{Finding, Row, Table, Verdict};

use crate::render::PlotError;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::fmt::{Debug, Write};
use thalweg_text::html::{list_html, paragraph_html, render_page};
use thalweg_text::wrap_words;

/// Report of one measurement, which decides what an experiment's file holds, and how what was measured is shown.
pub trait ExperimentReport: Serialize + Debug + Sized + 'static {
    /// Measurement in a file.
    type Measure: DeserializeOwned + Debug;
    /// Table in a file.
    type Table: DeserializeOwned + Debug;
    /// Finding in a file.
    type Finding: DeserializeOwned + Debug;

    /// Built-in experiments: names and files.
    const EXPERIMENTS: &'static [(&'static str, &'static str)];
    /// Remark on a first look.
    const QUICK: &'static str;
    /// Style sheet of the page, in addition to that of all pages.
    const STYLE: &'static str = "";

    /// Returns tables, findings, and further parts of the page (HTML).
    fn conclusions(experiment: &Experiment<Self>, measured: &[Measured<Self>]) -> (Vec<Table>, Vec<Finding>, String);

    /// Returns the laboratory of the report, or `None` if it is of this machine.
    fn laboratory(&self) -> Option<&str> {
        None
    }

    /// Formats the headings and rows of a table for a terminal.
    fn rows_text(table: &Table) -> String;

    /// Formats a page's parts about the measurements.
    ///
    /// # Errors
    /// If a picture cannot be drawn.
    fn measured_html(measured: &[Measured<Self>]) -> Result<String, PlotError>;

    /// Returns the files of a report, by name.
    ///
    /// # Errors
    /// If a picture cannot be drawn.
    fn files(reproduction: &Reproduction<Self>) -> Result<Vec<(String, String)>, PlotError> {
        Ok(vec![("report.html".to_owned(), reproduction.format_html()?)])
    }
}

/// Measurements of a paper, and how they are repeated here.
#[derive(Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields, bound = "")]
pub struct Experiment<R: ExperimentReport> {
    /// Short name of the experiment.
    #[serde(skip_deserializing)]
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
    #[serde(rename = "measure", alias = "sweep", skip_serializing)]
    pub measures: Vec<R::Measure>,
    /// Tables of the paper, and additional ones.
    #[serde(rename = "table", default, skip_serializing)]
    pub tables: Vec<R::Table>,
    /// Findings of the paper, and their tests.
    #[serde(rename = "finding", default, skip_serializing)]
    pub findings: Vec<R::Finding>,
}

/// Outcome of a measurement.
#[derive(Debug, Serialize)]
pub struct Measured<R> {
    /// Name by which the tables and findings refer to it.
    pub id: String,
    /// Command of the measurement; on this machine, the words after `thalweg bench`.
    pub line: String,
    /// Report of the measurement.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub report: Option<R>,
    /// Reason why there is no report.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// Measurements of a paper beside those here: the file `thalweg-reproduction/1`.
#[derive(Debug, Serialize)]
#[serde(bound = "")]
pub struct Reproduction<R: ExperimentReport> {
    format: &'static str,
    #[serde(flatten)]
    experiment: Experiment<R>,
    /// Laboratories of the measurements, or `None` if they are of this machine.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub laboratory: Option<String>,
    quick: bool,
    /// Tables of the paper, with the rows measured here, and additional tables.
    pub tables: Vec<Table>,
    /// Findings of the paper, and whether they hold here.
    pub findings: Vec<Finding>,
    #[serde(skip)]
    pictures: String,
    measured: Vec<Measured<R>>,
}

impl<R: ExperimentReport> Experiment<R> {
    /// Returns all experiments with reports of this type.
    pub fn all_experiments() -> impl Iterator<Item = Self> {
        R::EXPERIMENTS.iter().map(|(name, text)| Self::parse_experiment(name, text))
    }

    /// Returns the experiment of this name, or `None`.
    pub fn find_by_name(name: &str) -> Option<Self> {
        Self::all_experiments().find(|one| one.name == name)
    }

    fn parse_experiment(name: &str, text: &str) -> Self {
        let experiment = toml::from_str(text).unwrap_or_else(|error| panic!("experiments/{name}.toml: {error}"));
        Self { name: name.to_owned(), ..experiment }
    }

    /// Compares what was measured, in the order of [`Experiment::measures`], with the paper.
    pub fn build_reproduction(self, quick: bool, measured: Vec<Measured<R>>) -> Reproduction<R> {
        let (tables, findings, pictures) = R::conclusions(&self, &measured);
        let mut laboratories: Vec<&str> = reports(&measured).filter_map(R::laboratory).collect();
        laboratories.dedup();
        let laboratory = (!laboratories.is_empty()).then(|| laboratories.join(", "));
        let format = "thalweg-reproduction/1";
        Reproduction { format, experiment: self, laboratory, quick, tables, findings, pictures, measured }
    }
}

/// Returns the reports of the measurements that have one.
pub fn reports<R>(measured: &[Measured<R>]) -> impl Iterator<Item = &R> {
    measured.iter().filter_map(|one| one.report.as_ref())
}

impl<R: ExperimentReport> Reproduction<R> {
    /// Formats the tables and the findings for a terminal.
    pub fn format_text(&self) -> String {
        let mut out = wrap_words("", &self.experiment.title) + &wrap_words("", &self.experiment.source);
        let laboratory = self.laboratory.iter().map(|names| format!("laboratory: {names}"));
        let quick = self.quick.then(|| R::QUICK.to_owned());
        out.extend(laboratory.chain(quick).map(|line| wrap_words("", &line)));
        for table in &self.tables {
            let _ = write!(out, "\n{}{}", wrap_words("", &table.title), R::rows_text(table));
            out.extend(table.remarks.iter().map(|remark| wrap_words("  * ", remark)));
        }
        out + "\n" + &paper::findings_text(&self.findings)
    }

    /// Formats the whole report as a self-contained page.
    ///
    /// # Errors
    /// If a picture cannot be drawn.
    pub fn format_html(&self) -> Result<String, PlotError> {
        let Experiment { title, source, method, here, .. } = &self.experiment;
        let mut body = paragraph_html("quiet", source);
        body.extend(self.laboratory.iter().map(|names| paragraph_html("quiet", &format!("laboratory: {names}"))));
        body.push_str(&list_html("warnings", self.quick.then_some(R::QUICK)));
        body.push_str(&paper::findings_and_tables_html(method, here, &self.findings, &self.tables));
        body.push_str(&self.pictures);
        Ok(render_page(title, R::STYLE, &(body + &R::measured_html(&self.measured)?)))
    }
}
