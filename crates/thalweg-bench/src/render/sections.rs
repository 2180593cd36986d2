//! Sections of a report for display: its host, and its points in groups.

use super::columns::{Column, group_title, instrument_columns};
use crate::{Host, Point, Report};
use thalweg_text::{NOTHING, format_number, format_size};

/// Points that have link, method and settings in common.
pub(super) struct Section<'a> {
    pub(super) title: String,
    /// Columns that have a value for at least one of the points.
    pub(super) columns: Vec<Column>,
    pub(super) points: Vec<&'a Point>,
}

/// Returns all points in groups, in the order in which the groups first appear.
pub(super) fn group_sections(report: &Report) -> Vec<Section<'_>> {
    let mut sections: Vec<Section> = Vec::new();
    for point in &report.points {
        let title = group_title(&report.instrument, &point.key);
        match sections.iter_mut().find(|section| section.title == title) {
            Some(section) => section.points.push(point),
            None => sections.push(Section { title, columns: Vec::new(), points: vec![point] }),
        }
    }
    for section in &mut sections {
        let columns = instrument_columns(&report.instrument).into_iter();
        let shown = columns.filter(|column| {
            column.identifies_points() || section.measured_points().any(|point| column.cell_text(point).is_some())
        });
        section.columns = shown.collect();
    }
    sections
}

impl<'a> Section<'a> {
    /// Returns the points that have figures.
    pub(super) fn measured_points(&self) -> impl Iterator<Item = &'a Point> {
        self.points.iter().copied().filter(|point| !point.repeats.is_empty())
    }

    /// Returns the cells of a point's row; the first has a mark if a warning applies to the point.
    pub(super) fn row_cells(&self, point: &Point) -> Vec<String> {
        let cells = self.columns.iter().map(|column| column.cell_text(point).unwrap_or_else(|| NOTHING.to_owned()));
        let mut cells: Vec<String> = cells.collect();
        if let Some(first) = cells.first_mut().filter(|_| !point.warnings.is_empty()) {
            first.push_str(" !");
        }
        cells
    }

    /// Returns the remarks on the points: failures, warnings, and each note once, with the size if it is of one point
    /// only.
    pub(super) fn point_remarks(&self) -> Vec<String> {
        let failed = self.points.iter().filter_map(|point| Some(prefix_with_size(point, point.error.as_ref()?)));
        let doubts = self.measured_points().filter(|point| !point.warnings.is_empty()).map(|point| {
            let texts: Vec<&str> = point.warnings.iter().map(|warning| warning.text.as_str()).collect();
            format!("! {}", prefix_with_size(point, &texts.join("; ")))
        });
        let mut remarks: Vec<String> = failed.chain(doubts).collect();
        for point in &self.points {
            for note in &point.notes {
                let shared = self.points.iter().filter(|other| other.notes.contains(note)).count() > 1;
                let remark =
                    if shared || self.points.len() == 1 { note.clone() } else { prefix_with_size(point, note) };
                if !remarks.contains(&remark) {
                    remarks.push(remark);
                }
            }
        }
        remarks
    }
}

fn prefix_with_size(point: &Point, text: &str) -> String {
    format!("{}: {text}", format_size(point.key.size))
}

/// Table over all points of an instrument.
pub(super) struct SummaryTable {
    pub(super) title: &'static str,
    pub(super) headings: Vec<&'static str>,
    pub(super) rows: Vec<Vec<String>>,
}

/// Returns the table of `pin`, page lists in percent of pinning, beside the ExpEther paper's, or that of `serve`, each
/// server beside nginx or fio.
pub(super) fn summary_table(report: &Report) -> Option<SummaryTable> {
    let together = match report.instrument.as_str() {
        "pin" => pin_summary(report),
        "serve" => serve_summary(report),
        _ => return None,
    };
    Some(together).filter(|together| !together.rows.is_empty())
}

fn pin_summary(report: &Report) -> SummaryTable {
    let rows = crate::pin::page_list_ratios(&report.points).into_iter().map(|ratio| {
        let before = if ratio.touched { "touched" } else { "untouched" };
        vec![
            format_size(ratio.size),
            ratio.pages,
            before.to_owned(),
            format_number(ratio.page_list_us),
            format_number(ratio.mlock_us),
            format_number(ratio.percent),
            ratio.paper_percent.map_or_else(|| NOTHING.to_owned(), format_number),
        ]
    });
    SummaryTable {
        title: "Page list beside mlock",
        headings: vec!["size", "pages", "before mlock", "page list µs", "mlock µs", "% of it", "paper %"],
        rows: rows.collect(),
    }
}

fn serve_summary(report: &Report) -> SummaryTable {
    let rows = crate::serve::compare_with_references(&report.points).into_iter().map(|one| {
        let [goodput, cpu, p99] = [one.goodput, one.cpu, one.p99]
            .map(|ratio: Option<f64>| ratio.map_or_else(|| NOTHING.to_owned(), format_number));
        vec![one.work, format_size(one.size), one.server, one.of, goodput, cpu, p99]
    });
    SummaryTable {
        title: "Beside nginx and fio: multiples of their figures, medians over the turns",
        headings: vec!["", "size", "server", "by that of", "goodput", "CPU s/GB", "p99"],
        rows: rows.collect(),
    }
}

/// Describes a machine, in words.
pub(crate) fn host_facts(host: &Host) -> Vec<(&'static str, String)> {
    let mut facts = vec![
        ("host", host.name.clone()),
        ("kernel", host.kernel.clone()),
        ("processors", format!("{} × {}", host.cpus, host.cpu)),
        ("of these allowed", host.affinity.clone()),
        ("memory", format!("{:.1} GB", host.memory as f64 * 1e-9)),
    ];
    let some = [
        ("frequency governor", &host.governor),
        ("hypervisor", &host.hypervisor),
        ("clock source", &host.clock_source),
        ("TCP congestion control", &host.congestion_control),
    ];
    facts.extend(some.into_iter().filter_map(|(name, value)| Some((name, value.clone()?))));
    if let Some(interface) = &host.interface {
        let driver = interface.driver.as_deref().unwrap_or("no driver");
        let rate = match interface.bits_per_second {
            Some(rate) => format!("{} Gbit/s", format_number(rate * 1e-9)),
            None => "no line rate".to_owned(),
        };
        facts.push(("interface", format!("{}, {driver}, MTU {}, {rate}", interface.name, interface.mtu)));
    }
    if !host.mitigations.is_empty() {
        facts.push(("mitigations", host.mitigations.join("; ")));
    }
    facts.push(("Thalweg", host.thalweg.clone()));
    facts
}
