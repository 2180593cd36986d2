//! Report as CSV: a row for each point, a column for each figure, in the units and under the names of the JSON.

use crate::{Figures, Point, Report};
use serde_json::Value;
use std::collections::BTreeSet;
use thalweg_text::plot::format_csv;

/// Formats the points of a report as CSV, after its origin in lines that begin with `#`. A figure inside another has a
/// dot in its name: `latency_us.p50`.
pub fn report_csv(report: &Report) -> String {
    let settings: BTreeSet<&str> =
        report.points.iter().flat_map(|point| point.key.settings.keys()).map(String::as_str).collect();
    let figures: Vec<Vec<(String, String)>> = report.points.iter().map(|point| flat_figures(&point.figures)).collect();
    let mut names: Vec<&str> = Vec::new();
    for (name, _) in figures.iter().flatten() {
        if !names.contains(&name.as_str()) {
            names.push(name);
        }
    }
    let fixed = ["link", "method", "size"];
    let ends = ["spread_percent", "repeats", "warnings", "error"];
    let headings: Vec<&str> =
        fixed.into_iter().chain(settings.iter().copied()).chain(names.iter().copied()).chain(ends).collect();
    let rows = report.points.iter().zip(&figures).map(|(point, figures)| {
        let Point { key, spread_percent, repeats, warnings, error, .. } = point;
        let mut row = vec![key.link.clone(), key.method.clone(), key.size.to_string()];
        row.extend(settings.iter().map(|name| key.settings.get(*name).cloned().unwrap_or_default()));
        row.extend(names.iter().map(|name| {
            let value = figures.iter().find(|(own, _)| own == name).filter(|_| !repeats.is_empty());
            value.map(|(_, value)| value.clone()).unwrap_or_default()
        }));
        let warnings: Vec<&str> = warnings.iter().map(|warning| warning.text.as_str()).collect();
        let (spread, repeats) = (spread_percent.to_string(), repeats.len().to_string());
        row.extend([spread, repeats, warnings.join("; "), error.clone().unwrap_or_default()]);
        row
    });
    format_csv(&report.provenance(), &headings, rows)
}

/// Returns the figures by name, those inside others with a dot.
fn flat_figures(figures: &Figures) -> Vec<(String, String)> {
    let Ok(Value::Object(all)) = serde_json::to_value(figures) else { return Vec::new() };
    let mut out = Vec::new();
    for (name, value) in all {
        match value {
            Value::Object(inner) => {
                out.extend(inner.into_iter().map(|(own, value)| (format!("{name}.{own}"), value.to_string())))
            }
            value => out.push((name, value.to_string())),
        }
    }
    out
}
