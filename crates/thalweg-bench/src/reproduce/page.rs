//! Reproduction for people: in a terminal, as Markdown, as a page.

use super::Reproduction;
use crate::paper::{self, Table};
use crate::render::plot::{PlotError, plots};
use crate::render::{html, markdown};
use std::fmt::Write;
use thalweg_text::html::{escaped, list, page, paragraph};
use thalweg_text::{TEXT_COLUMNS, broken, wrapped};

const QUICK: &str = "A first look (--quick): points are shorter, and some measurements leave sizes out. The commands are shown as they \
                     were run.";

impl Reproduction {
    /// Formats the tables and the findings for a terminal.
    pub fn text(&self) -> String {
        let mut out = wrapped("", &self.title);
        out.push_str(&wrapped("", &self.source));
        if self.quick {
            out.push_str(&wrapped("", QUICK));
        }
        for table in &self.tables {
            out.push('\n');
            out.push_str(&text(table));
        }
        out + "\n" + &paper::findings_text(&self.findings)
    }

    /// Formats the whole report in Markdown. Its pictures are files beside it: [`Reproduction::pictures`].
    pub fn markdown(&self) -> String {
        let mut out = format!("# {}\n\n{}\n\n", markdown::escaped(&self.title), markdown::escaped(&self.source));
        if self.quick {
            let _ = writeln!(out, "{QUICK}\n");
        }
        for (heading, text) in [("How the paper measured", &self.method), ("How it is measured here", &self.here)] {
            let _ = writeln!(out, "## {heading}\n\n{}\n", markdown::escaped(text.trim()));
        }
        out.push_str("## Findings\n\n");
        let (headings, findings) = paper::findings_table(&self.findings);
        out.push_str(&markdown::table(&headings.map(str::to_owned), "---", findings));
        for table in &self.tables {
            let _ = writeln!(out, "## {}\n", markdown::escaped(&table.title));
            let (headings, rows) = table.beside();
            out.push_str(&markdown::table(&headings, "---", rows.into_iter()));
            out.push_str(&markdown::list(&table.remarks));
        }
        for one in &self.measured {
            let _ = writeln!(out, "## Measured: {}\n\n{}\n", markdown::escaped(&one.id), markdown::code(&one.line));
            if let Some(report) = &one.report {
                out.push_str(&markdown::warnings(&report.warnings));
                for (at, plot) in plots(report).iter().enumerate() {
                    let _ = writeln!(out, "![{}]({})\n", markdown::escaped(&plot.title), picture_name(&one.id, at));
                }
                out.push_str(&markdown::tables(report).replace("## ", "### "));
            }
            out.push_str(&markdown::list(&one.error.iter().cloned().collect::<Vec<_>>()));
        }
        if let Some(report) = self.measured.iter().find_map(|one| one.report.as_ref()) {
            out.push_str(&markdown::host("Host", &report.host));
        }
        out.truncate(out.trim_end().len());
        out.push('\n');
        out
    }

    /// Returns the pictures that the Markdown shows: names and SVG.
    ///
    /// # Errors
    /// If one cannot be drawn.
    pub fn pictures(&self) -> Result<Vec<(String, String)>, PlotError> {
        let reports = self.measured.iter().filter_map(|one| Some((&one.id, one.report.as_ref()?)));
        let all = reports.flat_map(|(id, report)| {
            plots(report).into_iter().enumerate().map(move |(at, plot)| Ok((picture_name(id, at), plot.svg()?)))
        });
        all.collect()
    }

    /// Formats the whole report as a self-contained page.
    ///
    /// # Errors
    /// As [`pictures`](Self::pictures).
    pub fn html(&self) -> Result<String, PlotError> {
        let mut body = paragraph("quiet", &self.source);
        if self.quick {
            body.push_str(&html::warnings(&[QUICK.to_owned()]));
        }
        body.push_str(&paper::html(&self.method, &self.here, &self.findings, &self.tables));
        for one in &self.measured {
            let _ = writeln!(
                body,
                "<h2>Measured: {}</h2>\n<pre>thalweg bench {}</pre>",
                escaped(&one.id),
                escaped(&one.line)
            );
            if let Some(report) = &one.report {
                body.push_str(&html::warnings(&report.warnings));
                body.push_str(&html::pictures(report)?);
                body.push_str(&html::tables(report).replace("<h2>", "<h3>").replace("</h2>", "</h3>"));
            }
            body.push_str(&list("", &one.error));
        }
        if let Some(report) = self.measured.iter().find_map(|one| one.report.as_ref()) {
            body.push_str(&html::host("Host", &report.host));
        }
        Ok(page(&self.title, "", &body))
    }
}

fn picture_name(id: &str, at: usize) -> String {
    format!("{id}-{}.svg", at + 1)
}

/// Width of a cell that is not a name, in characters.
const CELL_WIDTH: usize = 13;

/// Formats a table with names at the left, wrapped if they are long, and cells at the right.
fn text(table: &Table) -> String {
    let cells = table.headings.len().saturating_sub(1);
    let name_width = TEXT_COLUMNS.saturating_sub(2 + cells * (CELL_WIDTH + 2)).max(16);
    let mut out = wrapped("", &table.title);
    let (first, rest) = table.headings.split_first().map_or(("", &[][..]), |(first, rest)| (first.as_str(), rest));
    out.push_str(&text_row(first, rest, name_width));
    for (side, rows) in [("the paper", &table.paper), ("here", &table.here)] {
        let _ = writeln!(out, "{side}");
        rows.iter().for_each(|row| out.push_str(&text_row(&row.name, &row.cells, name_width)));
    }
    for remark in &table.remarks {
        out.push_str(&wrapped("  * ", remark));
    }
    out
}

/// Formats a row of a table, in as many lines as its longest cell needs.
fn text_row(name: &str, cells: &[String], name_width: usize) -> String {
    let mut names = broken(name, name_width).into_iter();
    let mut cells: Vec<_> = cells.iter().map(|cell| broken(cell, CELL_WIDTH).into_iter()).collect();
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
    use super::super::{Experiment, check::tests::measured};

    /// Made-up experiment.
    const EXPERIMENT: &str = r#"
        title = "A paper that no one wrote, with a title that takes more than the eighty columns of a terminal"
        source = "N. Obody: <Nothing>"
        method = "None."
        here = "None."
        measure = [{ id = "pin", line = "pin", quick = "" }]

        [[table]]
        title = "Table 1"
        rows = "memory"
        columns = [{ heading = "page list, microseconds", show = { measure = "pin", method = "page list" } }]
        paper = [{ name = "1 KiB", cells = ["2.00"] }]
        here = [
            { name = "1 KiB", at = { size = "1KiB" } },
            { name = "1 GiB", at = { size = "1GiB" }, lacks = "no one has as much" },
        ]

        [[finding]]
        paper = "It takes a while."
        here = "At least half a microsecond."
        check = { at-least = { a = { measure = "pin", method = "page list", size = "1KiB" }, value = 0.5 } }
    "#;

    #[test]
    fn figures_of_the_paper_and_of_this_machine_are_shown_together() {
        let reproduction = Experiment::parse("made-up", EXPERIMENT).reproduction(true, measured());
        insta::assert_snapshot!(reproduction.text(), @"
        A paper that no one wrote, with a title that takes more than the eighty columns
        of a terminal
        N. Obody: <Nothing>
        A first look (--quick): points are shorter, and some measurements leave sizes
        out. The commands are shown as they were run.

        Table 1
          memory                                                              page list,
                                                                            microseconds
        the paper
          1 KiB                                                                     2.00
        here
          1 KiB                                                                     1.00
          1 GiB                                                                        -
          * no one has as much

        Findings
          - It takes a while.
            At least half a microsecond.
            holds here: 1.00 µs (page list, 1 KiB); asked for: at least 0.500
        ");
        let page = reproduction.html().unwrap();
        assert!(page.contains("&lt;Nothing&gt;") && page.contains("<svg") && page.contains("holds here"));
        let markdown = reproduction.markdown();
        for (name, picture) in reproduction.pictures().unwrap() {
            assert!(markdown.contains(&format!("({name})")) && picture.starts_with("<svg"), "{name}");
        }
    }
}
