//! `thalweg info --times`: each source's times against another's, as a page. It shows clocks that differ, drift or
//! step, and numbers that do.

use crate::terminal::Failure;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};
use std::path::Path;
use thalweg_store::{Run, StoreError};
use thalweg_text::format_count;
use thalweg_text::html;
use thalweg_text::plot::{Area, COLOURS, GRID, INK, PICTURE_WIDTH, Refused, draw_svg};
use thalweg_wire::Status;

/// Number of points of a picture: it determines how many events are read, evenly spread over the run.
const POINTS: usize = 12_000;
const CHART: u32 = 380;
const ROW: u32 = 22;

/// Differences of one source's times from those of the reference, in seconds, over the reference's time since its
/// first.
#[derive(Debug, Clone, PartialEq)]
struct Series {
    source: String,
    points: Vec<(f64, f64)>,
}

impl Series {
    /// Returns the median difference in seconds; `None` without any.
    fn median_offset(&self) -> Option<f64> {
        median_of(self.points.iter().map(|(_, difference)| *difference))
    }

    /// Returns the excess speed of the source's clock over the reference's, in parts per million: the slope of a line
    /// through the differences (Theil and Sen: the median of the slopes between the first and the second half's
    /// points).
    fn clock_drift_ppm(&self) -> Option<f64> {
        let half = self.points.len() / 2;
        let pairs = self.points.iter().zip(&self.points[half..]).filter(|(one, other)| other.0 > one.0);
        median_of(pairs.map(|(one, other)| (other.1 - one.1) / (other.0 - one.0) * 1e6))
    }

    /// Returns the median distance from that line, in seconds.
    fn median_spread(&self) -> Option<f64> {
        let (drift, from) = (self.clock_drift_ppm().unwrap_or(0.0) / 1e6, self.points.first()?.0);
        let points = self.points.iter();
        let straight: Vec<f64> = points.map(|(at, difference)| difference - drift * (at - from)).collect();
        let middle = median_of(straight.iter().copied())?;
        median_of(straight.into_iter().map(|difference| (difference - middle).abs()))
    }
}

fn median_of(values: impl Iterator<Item = f64>) -> Option<f64> {
    let mut values: Vec<f64> = values.filter(|value| value.is_finite()).collect();
    let middle = values.len().checked_sub(1)? / 2;
    Some(*values.select_nth_unstable_by(middle, f64::total_cmp).1)
}

/// Writes the page to `file`.
pub(super) fn write_times_page(run: &Run, file: &Path) -> Result<(), Failure> {
    let (reference, all) = differences_by_source(run).map_err(|error| Failure::broken(error.to_string()))?;
    let page = times_page(run, reference.as_deref(), &all).map_err(Failure::broken)?;
    std::fs::write(file, page).map_err(|error| Failure::usage(format!("{}: {error}", file.display())))
}

/// Returns the source that the others are compared with, the one with the most times, and every source's differences.
fn differences_by_source(run: &Run) -> Result<(Option<String>, Vec<Series>), StoreError> {
    let sources = &run.run_info().sources;
    let sampled = (POINTS / sources.len().max(1)).max(100) as u64;
    let step = run.len().div_ceil(sampled).max(1);
    let mut times: Vec<Vec<Option<u64>>> = Vec::new();
    for place in (0..run.len()).step_by(usize::try_from(step).unwrap_or(usize::MAX)) {
        let Some(event) = run.nth_event(place).map(|id| run.find_event(id)).transpose()?.flatten() else { continue };
        let mut row = vec![None; sources.len()];
        for fragment in &event.fragments {
            let header = &fragment.header;
            let of_the_device = !header.status.intersects(Status::MISSING | Status::ARRIVAL_TIME);
            let source = sources.iter().position(|source| source.id == header.source);
            if let Some(source) = source.filter(|_| of_the_device && header.timestamp.0 > 0) {
                row[source] = Some(header.timestamp.0);
            }
        }
        times.push(row);
    }
    let dated: Vec<usize> =
        (0..sources.len()).map(|source| times.iter().filter(|row| row[source].is_some()).count()).collect();
    let reference = (0..sources.len()).rev().max_by_key(|source| dated[*source]).filter(|source| dated[*source] > 0);
    let Some(reference) = reference else { return Ok((None, Vec::new())) };
    let names: Vec<String> = sources.iter().map(|source| format!("{} {}", source.id, source.name)).collect();
    let begin = times.iter().find_map(|row| row[reference]).unwrap_or(0);
    let series = names.iter().enumerate().map(|(source, name)| {
        let pairs = times.iter().filter_map(|row| Some((row[source]?, row[reference]?)));
        let points = pairs.map(|(time, other)| (seconds_between(begin, other), seconds_between(other, time)));
        Series { source: name.clone(), points: points.collect() }
    });
    Ok((Some(names[reference].clone()), series.collect()))
}

fn seconds_between(from: u64, to: u64) -> f64 {
    to.wrapping_sub(from).cast_signed() as f64 / 1e9
}

fn times_page(run: &Run, reference: Option<&str>, all: &[Series]) -> Result<String, String> {
    let title = format!("Run {}: times of the sources", run.run_info().run);
    let Some(reference) = reference else {
        let text = "No fragment of this run has a time from its device.";
        return Ok(html::render_page(&title, "", &html::paragraph_html("", text)));
    };
    let looked = all.iter().map(|series| series.points.len()).max().unwrap_or(0);
    let mut body = html::paragraph_html(
        "",
        &format!(
            "Each source's time of an event less that of source {reference}, for {} of {} events. Straight lines show \
             clock drift. Steps show clocks that were set, or wrong event numbers: a shift by one trigger is a step \
             by the interval between triggers.",
            format_count(looked as u64),
            format_count(run.len())
        ),
    );
    let picture = draw_differences(all).map_err(|error| error.to_string())?;
    body += &html::figure_html("Differences from their medians", &picture);
    let headings = ["source", "events with times", "median difference", "drift in ppm", "spread around it"];
    let rows = all.iter().map(|series| {
        vec![
            series.source.clone(),
            format_count(series.points.len() as u64),
            series.median_offset().map_or_else(String::new, duration_text),
            series.clock_drift_ppm().map_or_else(String::new, |drift| format!("{drift:.3}")),
            series.median_spread().map_or_else(String::new, duration_text),
        ]
    });
    body += &html::table_html("figures", &headings, rows);
    Ok(html::render_page(&title, "", &body))
}

/// Returns the factor for a picture's values, and the unit that results.
fn unit_for_magnitude(most: f64) -> (f64, &'static str) {
    match most {
        most if most < 1e-6 => (1e9, "ns"),
        most if most < 1e-3 => (1e6, "µs"),
        most if most < 1.0 => (1e3, "ms"),
        _ => (1.0, "s"),
    }
}

fn duration_text(seconds: f64) -> String {
    let (factor, unit) = unit_for_magnitude(seconds.abs());
    format!("{:.3} {unit}", seconds * factor)
}

fn draw_differences(all: &[Series]) -> Result<String, thalweg_text::plot::DrawError> {
    let centred: Vec<(usize, &Series, f64)> =
        all.iter().enumerate().filter_map(|(at, series)| Some((at, series, series.median_offset()?))).collect();
    let values = centred.iter().flat_map(|(_, series, middle)| series.points.iter().map(move |point| point.1 - middle));
    let most = values.map(f64::abs).fold(0.0, f64::max).max(1e-9);
    let end =
        centred.iter().flat_map(|(_, series, _)| &series.points).map(|point| point.0).fold(0.0, f64::max).max(1e-9);
    let (factor, unit) = unit_for_magnitude(most);
    let rows = u32::try_from(centred.len()).unwrap_or(u32::MAX).min(100);
    draw_svg(CHART + rows * ROW + 12, |area| {
        let (upper, legend) = area.split_vertically(CHART);
        let top = most * factor * 1.05;
        let mut chart = ChartBuilder::on(&upper)
            .margin(12)
            .margin_right(28)
            .x_label_area_size(44)
            .y_label_area_size(76)
            .build_cartesian_2d(0.0..end, -top..top)?;
        chart
            .configure_mesh()
            .light_line_style(TRANSPARENT)
            .bold_line_style(GRID)
            .axis_style(INK)
            .label_style(("sans-serif", 16, &INK))
            .x_desc("seconds of the run")
            .y_desc(unit)
            .draw()?;
        for (row, (at, series, middle)) in centred.iter().take(100).enumerate() {
            let colour = COLOURS[at % COLOURS.len()];
            let points =
                series.points.iter().map(|(x, y)| Circle::new((*x, (y - middle) * factor), 2, colour.filled()));
            chart.draw_series(points)?;
            draw_legend_entry(&legend, row, colour, &series.source)?;
        }
        Ok(())
    })
}

/// Draws a source's colour and name below the chart.
fn draw_legend_entry(legend: &Area<'_>, row: usize, colour: RGBColor, source: &str) -> Result<(), Refused> {
    let y = i32::try_from(row).unwrap_or(0) * ROW as i32 + 10;
    let style =
        ("sans-serif", 16).into_text_style(&(PICTURE_WIDTH, CHART)).color(&INK).pos(Pos::new(HPos::Left, VPos::Center));
    legend.draw(&Rectangle::new([(72, y - 2), (100, y + 2)], colour.filled()))?;
    legend.draw(&Text::new(source.chars().take(90).collect::<String>(), (110, y), style))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_that_drifts_and_is_off_is_measured() {
        let noise = |at: u32| (thalweg_wire::mix_bits(at.into()) % 3) as f64 * 1e-6;
        let point = |at: u32| (f64::from(at), 0.5 + f64::from(at) * 20e-6 + noise(at));
        let points = (0..1000).map(point).collect();
        let series = Series { source: "1.0 a".into(), points };
        assert!((series.clock_drift_ppm().unwrap() - 20.0).abs() < 0.01, "{series:?}");
        assert!((series.median_offset().unwrap() - 0.51).abs() < 0.001);
        assert!((series.median_spread().unwrap() - 1e-6).abs() < 5e-7);
        assert_eq!(
            (duration_text(0.0012), duration_text(-3e-9), duration_text(2.0)),
            ("1.200 ms".into(), "-3.000 ns".into(), "2.000 s".into())
        );
        let none = Series { source: "1.1 b".into(), points: Vec::new() };
        assert_eq!((none.median_offset(), none.clock_drift_ppm(), none.median_spread()), (None, None, None));
        assert!(draw_differences(&[series, none]).unwrap().contains("seconds of the run"));
    }
}
