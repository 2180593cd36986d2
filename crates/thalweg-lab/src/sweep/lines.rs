//! Line charts of a sweep: a figure over the key that is swept, with a line for each congestion control.

use super::text::Shown;
use super::{Axis, Cell, Results};
use thalweg_text::plot::{self, Chart, DataPoint, Provenance, Series};
use thalweg_text::{BitRate, ByteSize, parse_duration};

/// Ratio of the largest to the smallest value from which on an axis is logarithmic.
const LOGARITHMIC_RATIO: f64 = 10.0;

impl Results {
    /// Returns the line charts of all figures; none if no key has several numbers as its values.
    pub fn line_charts(&self, provenance: &Provenance) -> Vec<Chart> {
        self.shown_figures().flat_map(|shown| self.charts_of_figure(&shown, provenance)).collect()
    }

    /// Returns the charts of one figure: one for each combination of the keys that are neither on the horizontal axis
    /// nor distinguish lines.
    pub(crate) fn charts_of_figure(&self, shown: &Shown, provenance: &Provenance) -> Vec<Chart> {
        let axes = &self.sweep.axes;
        let several: Vec<usize> = (0..axes.len()).rev().filter(|number| axes[*number].values.len() > 1).collect();
        let numbers = several.iter().filter(|number| axis_numbers(&axes[**number]).is_some());
        let Some(&swept) = numbers.max_by_key(|number| axes[**number].values.len()) else { return Vec::new() };
        let others = several.iter().copied().filter(|number| *number != swept);
        let control =
            self.sweep.axis_index("traffic.control").filter(|control| others.clone().any(|it| it == *control));
        let lines = control.or_else(|| others.max_by_key(|number| axes[*number].values.len()));
        let first_cells =
            self.sweep.cells.iter().filter(|cell| cell.at[swept] == 0 && lines.is_none_or(|lines| cell.at[lines] == 0));
        first_cells.filter_map(|first| self.chart_from_cell(shown, first, swept, lines, provenance)).collect()
    }

    /// Returns the chart of the cells that differ from `first` in two keys only; `None` without any result.
    fn chart_from_cell(
        &self,
        shown: &Shown,
        first: &Cell,
        swept: usize,
        lines: Option<usize>,
        provenance: &Provenance,
    ) -> Option<Chart> {
        let axis = &self.sweep.axes[swept];
        let numbers = axis_numbers(axis)?;
        let of = self.sweep.describe_cell_axes(first, |number| number != swept && Some(number) != lines);
        let title = if of.is_empty() { shown.title.to_owned() } else { format!("{} ({of})", shown.title) };
        let names = lines.map_or(vec![String::new()], |lines| self.sweep.axes[lines].values.clone());
        let series = names.iter().enumerate().map(|(line, name)| {
            let points = numbers.iter().enumerate().filter_map(|(value, x)| {
                let mut at = first.at.clone();
                at[swept] = value;
                if let Some(lines) = lines {
                    at[lines] = line;
                }
                let report = self.report_of_cell(&at)?;
                let doubtful = !report.warnings.is_empty();
                Some(DataPoint { x: *x, y: (shown.value)(report)?, doubtful, ..DataPoint::default() })
            });
            let name = lines.map_or(String::new(), |lines| format!("{} {name}", self.sweep.axes[lines].short_name()));
            Series::new(name, points.collect())
        });
        let series: Vec<Series> = series.filter(|series| !series.points.is_empty()).collect();
        let marks = numbers.iter().copied().zip(axis.values.iter().cloned()).collect();
        let horizontal = plot::Axis { marks, ..scaled_axis(axis.short_name(), numbers.iter().copied()) };
        let values = series.iter().flat_map(|series| &series.points).map(|point| point.y);
        let vertical = if shown.more { plot::Axis::linear(shown.title) } else { scaled_axis(shown.title, values) };
        let mut chart = Chart::new(title, horizontal, vertical, provenance.clone());
        chart.series = series;
        (!chart.series.is_empty()).then_some(chart)
    }
}

fn scaled_axis(label: impl Into<String>, values: impl Iterator<Item = f64>) -> plot::Axis {
    let (least, most) = values.fold((f64::INFINITY, 0.0_f64), |(a, b), value| (a.min(value), b.max(value)));
    match least > 0.0 && most >= LOGARITHMIC_RATIO * least {
        true => plot::Axis::logarithmic(label),
        false => plot::Axis::linear(label),
    }
}

/// Returns the values of a key as numbers, in seconds, bits per second or bytes if they have a unit; `None` if one of
/// them is no number.
fn axis_numbers(axis: &Axis) -> Option<Vec<f64>> {
    type Parse = fn(&str) -> Option<f64>;
    let forms: [Parse; 4] = [
        |text| text.parse().ok(),
        |text| Some(parse_duration(text).ok()?.as_secs_f64()),
        |text| Some(text.parse::<BitRate>().ok()?.0 as f64),
        |text| Some(text.parse::<ByteSize>().ok()?.0 as f64),
    ];
    forms.into_iter().find_map(|parse| axis.values.iter().map(|text| parse(text)).collect())
}
