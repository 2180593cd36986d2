//! Measurements of a paper beside ours: its tables with our rows, and which of its findings hold here.

use serde::{Deserialize, Serialize};
use thalweg_text::html;
use thalweg_text::tone::paint_verdict;
use thalweg_text::{NOTHING, wrap_words};

/// A finding of a paper, and the result here.
#[derive(Debug, Clone, Serialize)]
pub struct Finding {
    /// The paper's finding, in a sentence.
    pub paper: String,
    /// The statement that is tested here in its place.
    pub here: String,
    /// Result of the test.
    pub verdict: Verdict,
    /// Figures on which the verdict rests, or the reason why there are none.
    pub measured: String,
}

/// Result of testing a finding.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub enum Verdict {
    /// The finding holds here.
    #[serde(rename = "holds here")]
    Holds,
    /// The finding does not hold here.
    #[serde(rename = "does not hold here")]
    DoesNotHold,
    /// The hardware or software that the finding is about is not available here.
    #[serde(rename = "cannot be tested here")]
    CannotBeTested,
}

/// A table of the paper's with our rows, or one in addition to the paper's, without rows of the paper.
#[derive(Debug, Clone, Serialize)]
pub struct Table {
    /// Title of the table.
    pub title: String,
    /// Headings of the column of names, which every table has, and of each column of cells.
    pub headings: Vec<String>,
    /// Rows of the paper.
    pub paper: Vec<Row>,
    /// Rows of the measurements here.
    pub here: Vec<Row>,
    /// Remarks on the rows, and reasons why cells are empty.
    pub remarks: Vec<String>,
}

/// A row of a table.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Row {
    /// Name of the row.
    pub name: String,
    /// Cells as they are shown, one for each column.
    pub cells: Vec<String>,
}

/// Returns the HTML of a report: the methods there and here (paragraphs with an empty line between them), findings and
/// tables.
pub(super) fn findings_and_tables_html(method: &str, here: &str, findings: &[Finding], tables: &[Table]) -> String {
    let (headings, rows) = findings_table(findings);
    format!(
        "<h2>How the paper measured</h2>\n{}<h2>How it is measured here</h2>\n{}<h2>Findings</h2>\n{}{}",
        paragraphs_html(method),
        paragraphs_html(here),
        html::table_html("words", &headings, rows),
        tables.iter().map(Table::table_html).collect::<String>()
    )
}

fn paragraphs_html(text: &str) -> String {
    text.trim().split("\n\n").map(|text| html::paragraph_html("", text)).collect()
}

/// Returns the findings as text for a terminal, under a heading.
pub(super) fn findings_text(findings: &[Finding]) -> String {
    let mut out = String::from("Findings\n");
    for finding in findings {
        out.push_str(&wrap_words("  - ", &finding.paper));
        out.push_str(&wrap_words("    ", &finding.here));
        out.push_str(&wrap_words(&format!("    {}: ", paint_verdict(&finding.verdict.to_string())), &finding.measured));
    }
    out
}

/// Returns the findings as a table: its headings, and a row for each.
pub(super) fn findings_table(findings: &[Finding]) -> ([&'static str; 4], impl Iterator<Item = Vec<String>>) {
    let rows = findings.iter().map(|Finding { paper, here, verdict, measured }| {
        vec![paper.clone(), here.clone(), verdict.to_string(), measured.clone()]
    });
    (["The paper finds", "Tested here", "", "Measured"], rows)
}

impl Finding {
    /// Creates a finding. `outcome` is whether it holds, with the figures for it, or the reason why that is not known.
    pub fn new(paper: &str, here: &str, outcome: Result<(bool, String), impl Into<String>>) -> Self {
        let (verdict, measured) = match outcome {
            Ok((true, figures)) => (Verdict::Holds, figures),
            Ok((false, figures)) => (Verdict::DoesNotHold, figures),
            Err(why) => (Verdict::CannotBeTested, why.into()),
        };
        Self { paper: paper.to_owned(), here: here.to_owned(), verdict, measured }
    }
}

impl std::fmt::Display for Verdict {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Holds => "holds here",
            Self::DoesNotHold => "does not hold here",
            Self::CannotBeTested => "cannot be tested here",
        })
    }
}

impl Row {
    /// Creates a row, with a dash for each cell that has no value.
    pub fn new(name: &str, cells: impl IntoIterator<Item = Option<String>>) -> Self {
        let cells = cells.into_iter().map(|cell| cell.unwrap_or_else(|| NOTHING.to_owned()));
        Self { name: name.to_owned(), cells: cells.collect() }
    }
}

impl Table {
    /// Returns headings and rows, the paper's rows first; if the paper has rows, a first column names each row's side.
    pub(super) fn rows_beside(&self) -> (Vec<String>, Vec<Vec<String>>) {
        let rows = self.paper.iter().map(|row| ("paper", row)).chain(self.here.iter().map(|row| ("here", row)));
        let rows = rows.map(|(side, row)| self.with_side(side, [&row.name].into_iter().chain(&row.cells)));
        (self.with_side("", &self.headings), rows.collect())
    }

    /// Returns the cells of a row, after its side if the paper has rows.
    fn with_side<'a>(&self, side: &str, cells: impl IntoIterator<Item = &'a String>) -> Vec<String> {
        let side = (!self.paper.is_empty()).then(|| side.to_owned());
        side.into_iter().chain(cells.into_iter().cloned()).collect()
    }

    fn table_html(&self) -> String {
        let (headings, rows) = self.rows_beside();
        let class = if self.paper.is_empty() { "figures" } else { "beside" };
        let (title, table) = (html::escape_html(&self.title), html::table_html(class, &headings, rows));
        format!("<h2>{title}</h2>\n{table}{}", html::list_html("", &self.remarks))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(paper: &[&str]) -> Table {
        let row = |cell: &&str| Row { name: "1 KiB".into(), cells: vec![(*cell).to_owned()] };
        Table {
            title: "Table 1".into(),
            headings: ["memory", "µs"].map(str::to_owned).into(),
            paper: paper.iter().map(row).collect(),
            here: vec![row(&"1.00")],
            remarks: vec!["<made up>".into()],
        }
    }

    #[test]
    fn rows_name_their_side_if_the_paper_has_some() {
        let (headings, rows) = table(&["2.00"]).rows_beside();
        assert_eq!(headings, ["", "memory", "µs"]);
        assert_eq!(rows, [["paper", "1 KiB", "2.00"], ["here", "1 KiB", "1.00"]]);
        let (headings, rows) = table(&[]).rows_beside();
        assert_eq!((headings.len(), rows), (2, vec![vec!["1 KiB".to_owned(), "1.00".to_owned()]]));
    }

    #[test]
    fn findings_are_shown_with_their_figures_or_the_reason() {
        let findings = [
            Finding::new("It takes a while.", "At least 1 µs.", Ok::<_, String>((true, "2 µs".into()))),
            Finding::new("It is small.", "The same.", Ok::<_, String>((false, "1 GiB".into()))),
            Finding::new("It is <blue>.", "The same.", Err("there is no colour")),
        ];
        insta::assert_snapshot!(findings_text(&findings), @r"
        Findings
          - It takes a while.
            At least 1 µs.
            holds here: 2 µs
          - It is small.
            The same.
            does not hold here: 1 GiB
          - It is <blue>.
            The same.
            cannot be tested here: there is no colour
        ");
        let page = findings_and_tables_html("One.\n\nTwo.", "Here.", &findings, &[table(&["2.00"]), table(&[])]);
        assert_eq!(page.matches("<p class=\"\">").count(), 3);
        assert!(page.contains("<td>It is &lt;blue&gt;.</td>") && page.contains("<li>&lt;made up&gt;</li>"));
        assert!(page.contains("class=\"beside\"") && page.contains("class=\"figures\""));
    }
}
