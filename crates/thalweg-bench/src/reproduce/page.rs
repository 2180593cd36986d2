//! Reproduction in Markdown with pictures, which only experiments of this machine have.

use super::{Experiment, ExperimentReport, Reproduction, paper, reports};
use crate::Report;
use crate::render::markdown;
use crate::render::plot::{PlotError, report_pictures};
use std::fmt::Write;

impl Reproduction<Report> {
    /// Formats the whole report in Markdown. Its pictures are files beside it: [`Reproduction::pictures`].
    pub fn format_markdown(&self) -> String {
        let Experiment { title, source, method, here, .. } = &self.experiment;
        let mut out = format!("# {}\n\n{}\n\n", markdown::escape_text(title), markdown::escape_text(source));
        if self.quick {
            let _ = writeln!(out, "{}\n", Report::QUICK);
        }
        for (heading, text) in [("How the paper measured", method), ("How it is measured here", here)] {
            let _ = writeln!(out, "## {heading}\n\n{}\n", markdown::escape_text(text.trim()));
        }
        out.push_str("## Findings\n\n");
        let (headings, findings) = paper::findings_table(&self.findings);
        out.push_str(&markdown::format_table(&headings.map(str::to_owned), "---", findings));
        for table in &self.tables {
            let _ = writeln!(out, "## {}\n", markdown::escape_text(&table.title));
            let (headings, rows) = table.rows_beside();
            out.push_str(&markdown::format_table(&headings, "---", rows.into_iter()));
            out.push_str(&markdown::format_list(&table.remarks));
        }
        for one in &self.measured {
            let _ = writeln!(
                out,
                "## Measured: {}\n\n{}\n",
                markdown::escape_text(&one.id),
                markdown::format_code(&one.line)
            );
            if let Some(report) = &one.report {
                out.push_str(&markdown::warning_list(&report.warnings));
                for (at, picture) in report_pictures(report).iter().enumerate() {
                    let _ =
                        writeln!(out, "![{}]({})\n", markdown::escape_text(picture.title()), picture_name(&one.id, at));
                }
                out.push_str(&markdown::group_tables(report).replace("## ", "### "));
            }
            out.push_str(&markdown::format_list(&one.error.iter().cloned().collect::<Vec<_>>()));
        }
        out.extend(reports(&self.measured).next().map(|report| markdown::host_table("Host", &report.host)));
        out.truncate(out.trim_end().len());
        out.push('\n');
        out
    }

    /// Returns the pictures that the Markdown shows: names and SVG.
    ///
    /// # Errors
    /// If one cannot be drawn.
    pub fn draw_pictures(&self) -> Result<Vec<(String, String)>, PlotError> {
        let reports = self.measured.iter().filter_map(|one| Some((&one.id, one.report.as_ref()?)));
        let all = reports.flat_map(|(id, report)| {
            report_pictures(report)
                .into_iter()
                .enumerate()
                .map(move |(at, picture)| Ok((picture_name(id, at), picture.draw_svg()?)))
        });
        all.collect()
    }
}

fn picture_name(id: &str, at: usize) -> String {
    format!("{id}-{}.svg", at + 1)
}

#[cfg(test)]
mod tests {
    use super::super::check::tests::measured;
    use super::{Experiment, Report};

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
    fn a_finding_names_the_warnings_about_its_points() {
        let mut measured = measured();
        let conditions = crate::Conditions { seconds: 1.0, others: 1.32, ..Default::default() };
        let report = measured[0].report.as_mut().unwrap();
        for size in [1024, 4096] {
            let point = report.points.iter_mut().find(|point| point.key.size == size && point.error.is_none());
            point.unwrap().warnings = conditions.warnings();
        }
        let reproduction =
            Experiment::<Report>::parse_experiment("made-up", EXPERIMENT).build_reproduction(true, measured);
        let text = reproduction.format_text().split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(text.contains("at least 0.500; in doubt: other processes used 132 % of a processor"), "{text}");
        assert_eq!(text.matches("in doubt").count(), 1);
    }

    #[test]
    fn figures_of_the_paper_and_of_this_machine_are_shown_together() {
        let reproduction =
            Experiment::<Report>::parse_experiment("made-up", EXPERIMENT).build_reproduction(true, measured());
        insta::assert_snapshot!(reproduction.format_text(), @"
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
        let page = reproduction.format_html().unwrap();
        assert!(page.contains("&lt;Nothing&gt;") && page.contains("<svg") && page.contains("holds here"));
        let markdown = reproduction.format_markdown();
        for (name, picture) in reproduction.draw_pictures().unwrap() {
            assert!(markdown.contains(&format!("({name})")) && picture.starts_with("<svg"), "{name}");
        }
    }
}
