//! Pictures: a figure by message size, or bars if there is only one size. Bars and whiskers reach from the least to the
//! greatest of the repeats; points that lost messages are marked with a cross.

use super::columns::group_title;
use crate::{Figures, Report};
use plotters::coord::ranged1d::{KeyPointHint, KeyPointWeight, NoDefaultFormatting, Ranged, ValueFormatter};
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};
use std::collections::BTreeSet;
use std::ops::Range;
use thalweg_text::plot::{Area, COLOURS, DrawError, GRID, INK, PICTURE_WIDTH, Refused};
use thalweg_text::{format_number, format_size, replace_controls};
use thiserror::Error;

/// Reason why a picture cannot be drawn.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum PlotError {
    /// Report without measured points.
    #[error("there is no point with figures to draw")]
    Empty,
    /// Error of the drawing library.
    #[error(transparent)]
    Draw(#[from] DrawError),
}

/// Draws the principal figure of a report by message size, as an SVG file: latency p50 (logarithmic), or else goodput,
/// or else the rate.
///
/// # Errors
/// [`PlotError::Empty`] if no point has figures; others if the picture cannot be drawn.
pub fn report_svg(report: &Report) -> Result<String, PlotError> {
    report_plots(report).first().ok_or(PlotError::Empty)?.draw_svg()
}

/// Picture of one figure.
#[derive(Debug, Clone)]
pub(crate) struct Plot {
    pub(crate) title: String,
    /// Whether the value axis is logarithmic.
    pub(crate) log: bool,
    pub(crate) lines: Vec<Line>,
}

/// Points of one group, joined by a line.
#[derive(Debug, Clone)]
pub(crate) struct Line {
    pub(crate) name: String,
    pub(crate) points: Vec<Dot>,
}

/// Point of a picture.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Dot {
    pub(crate) size: u64,
    pub(crate) value: f64,
    /// Least and greatest of the repeats.
    pub(crate) spread: (f64, f64),
    /// Messages that did not arrive, in percent of those sent.
    pub(crate) lost: f64,
}

/// Returns the pictures of a report, the principal one first.
pub(crate) fn report_plots(report: &Report) -> Vec<Plot> {
    const ALL: [(&str, bool, Get); 5] = [
        ("Latency, median (µs)", true, |f| Some(f.latency_us?.p50)),
        ("Latency, 99 of 100 below (µs)", true, |f| Some(f.latency_us?.p99)),
        ("Goodput (Gbit/s)", false, |f| Some(f.goodput_bits_per_second? * 1e-9)),
        ("Messages per second", true, |f| f.goodput_bits_per_second.is_none().then_some(f.messages_per_second)?),
        ("CPU of the measuring processes (% of one processor)", false, |f| Some(f.cpu?.process_percent)),
    ];
    let all = ALL.into_iter().map(|(title, log, get)| figure_plot(report, title, log, get));
    all.filter(|plot| !plot.lines.is_empty()).collect()
}

/// Function that returns a figure, if it was measured.
type Get = fn(&Figures) -> Option<f64>;

/// Returns the picture of one figure.
fn figure_plot(report: &Report, title: &str, log: bool, get: Get) -> Plot {
    let mut lines: Vec<Line> = Vec::new();
    for point in report.points.iter().filter(|point| !point.repeats.is_empty()) {
        let Some(value) = get(&point.figures).filter(|value| value.is_finite() && (!log || *value > 0.0)) else {
            continue;
        };
        let name = replace_controls(&group_title("", &point.key)).into_owned();
        let repeats = point.repeats.iter().filter_map(get).filter(|value| value.is_finite() && *value > 0.0);
        let spread = repeats.fold((value, value), |(least, most), value| (least.min(value), most.max(value)));
        // Loss matters to the figures of what arrived.
        let loss = point.figures.loss.filter(|_| !title.starts_with("CPU"));
        let lost = loss.map_or(0.0, |loss| loss.lost_percent());
        let dot = Dot { size: point.key.size, value, spread, lost };
        match lines.iter_mut().find(|line| line.name == name) {
            Some(line) => line.points.push(dot),
            None => lines.push(Line { name, points: vec![dot] }),
        }
    }
    Plot { title: title.to_owned(), log, lines }
}

const TITLE_HEIGHT: u32 = 40;
const CHART_HEIGHT: u32 = 380;
const LEGEND_ROW_HEIGHT: u32 = 22;
const BAR_HEIGHT: u32 = 44;

impl Plot {
    /// Draws the picture as an SVG file.
    pub(crate) fn draw_svg(&self) -> Result<String, PlotError> {
        let sizes: BTreeSet<u64> = self.lines.iter().flat_map(|line| &line.points).map(|dot| dot.size).collect();
        let bars = sizes.len() < 2;
        let rows = u32::try_from(self.lines.len()).unwrap_or(u32::MAX).min(1000);
        let height =
            TITLE_HEIGHT + if bars { rows * BAR_HEIGHT + 8 } else { CHART_HEIGHT + rows * LEGEND_ROW_HEIGHT + 12 };
        let title = match sizes.first() {
            Some(only) if bars => format!("{}, {}", self.title, format_size(*only)),
            _ => self.title.clone(),
        };
        let svg = thalweg_text::plot::draw_svg(height, |area| {
            area.draw(&Text::new(title, (16, 12), text_style(20, HPos::Left, VPos::Top)))?;
            if bars { self.draw_bars(area) } else { self.draw_chart(area, &sizes) }
        });
        Ok(svg?)
    }

    /// Draws a bar for each line, its name and value above it.
    fn draw_bars(&self, area: &Area<'_>) -> Result<(), Refused> {
        let most = self.lines.iter().filter_map(|line| Some(line.points.first()?.spread.1)).fold(0.0, f64::max);
        let mut top = i32::try_from(TITLE_HEIGHT).unwrap_or(0) + 4;
        let first_dots = self.lines.iter().filter_map(|line| Some((line, line.points.first()?)));
        for (at, (line, dot)) in first_dots.take(1000).enumerate() {
            let label = shorten_text(&line.name, 80);
            area.draw(&Text::new(label, (16, top), text_style(16, HPos::Left, VPos::Top)))?;
            let right = (PICTURE_WIDTH - 16) as i32;
            area.draw(&Text::new(value_label(dot), (right, top), text_style(16, HPos::Right, VPos::Top)))?;
            let [least, end, greatest] = [dot.spread.0, dot.value, dot.spread.1].map(|value| {
                let share = if most > 0.0 { value / most } else { 0.0 };
                16 + (share * f64::from(PICTURE_WIDTH - 32)).max(1.0) as i32
            });
            let bar = [(16, top + 18), (end, top + 30)];
            area.draw(&Rectangle::new(bar, COLOURS[at % COLOURS.len()].filled()))?;
            if greatest > least + 1 {
                let ends = [least, greatest].map(|x| [(x, top + 20), (x, top + 28)]);
                for path in [[(least, top + 24), (greatest, top + 24)], ends[0], ends[1]] {
                    area.draw(&PathElement::new(path, INK))?;
                }
            }
            top += BAR_HEIGHT as i32;
        }
        Ok(())
    }

    /// Draws a curve for each line, and its name below the chart.
    fn draw_chart(&self, area: &Area<'_>, sizes: &BTreeSet<u64>) -> Result<(), Refused> {
        let (upper, legend) = area.split_vertically(TITLE_HEIGHT + CHART_HEIGHT);
        let dots = self.lines.iter().flat_map(|line| &line.points);
        let vertical = Scale::for_values(dots.flat_map(|dot| [dot.spread.0, dot.value, dot.spread.1]), self.log);
        let mut chart = ChartBuilder::on(&upper)
            .margin_top(TITLE_HEIGHT)
            .margin_right(28)
            .margin_left(8)
            .x_label_area_size(44)
            .y_label_area_size(64)
            .build_cartesian_2d(Scale::for_sizes(sizes), vertical.clone())?;
        chart
            .configure_mesh()
            .light_line_style(TRANSPARENT)
            .bold_line_style(GRID)
            .axis_style(INK)
            .label_style(("sans-serif", 16, &INK))
            .x_desc("bytes")
            .draw()?;
        for (at, line) in self.lines.iter().take(1000).enumerate() {
            let mut dots = line.points.clone();
            dots.sort_by_key(|dot| dot.size);
            let colour = COLOURS[at % COLOURS.len()];
            let stroke = colour.stroke_width(2);
            // The range between two sizes more than an octave apart was not measured.
            for near in dots.chunk_by(|one, next| size_log2(next.size) - size_log2(one.size) <= 1.0 + 1e-9) {
                let points = near.iter().map(|dot| vertical.dot_position(dot));
                // When colours repeat, lines are dashed.
                match at / COLOURS.len() % 2 {
                    0 => chart.draw_series(LineSeries::new(points, stroke)).map(|_| ())?,
                    _ => chart.draw_series(DashedLineSeries::new(points, 6, 4, stroke)).map(|_| ())?,
                }
            }
            chart.draw_series(dots.iter().filter(|dot| dot.spread.1 > dot.spread.0).map(|dot| {
                let [least, greatest] = [dot.spread.0, dot.spread.1].map(|value| vertical.axis_position(value));
                let (x, y) = vertical.dot_position(dot);
                ErrorBar::new_vertical(x, least, y, greatest, colour.filled(), 8)
            }))?;
            let (lossy, whole): (Vec<&Dot>, Vec<&Dot>) = dots.iter().partition(|dot| dot.lost > 0.0);
            chart.draw_series(
                whole.into_iter().map(|dot| Circle::new(vertical.dot_position(dot), 3, colour.filled())),
            )?;
            chart.draw_series(lossy.iter().map(|dot| Cross::new(vertical.dot_position(dot), 5, stroke)))?;
            chart.draw_series(lossy.iter().map(|dot| {
                let text = format!("{} % lost", format_number(dot.lost));
                EmptyElement::at(vertical.dot_position(dot))
                    + Text::new(text, (0, 8), text_style(13, HPos::Center, VPos::Top))
            }))?;
            let y = i32::try_from(at).unwrap_or(0) * LEGEND_ROW_HEIGHT as i32 + 10;
            legend.draw(&Rectangle::new([(72, y - 2), (100, y + 2)], colour.filled()))?;
            let label = shorten_text(&line.name, 90);
            legend.draw(&Text::new(label, (110, y), text_style(16, HPos::Left, VPos::Center)))?;
        }
        Ok(())
    }
}

/// Formats a value beside its bar, and the loss.
fn value_label(dot: &Dot) -> String {
    match dot.lost {
        lost if lost > 0.0 => format!("{}; {} % lost", format_number(dot.value), format_number(lost)),
        _ => format_number(dot.value),
    }
}

pub(super) fn text_style(height: u32, horizontal: HPos, vertical: VPos) -> TextStyle<'static> {
    ("sans-serif", height)
        .into_text_style(&(PICTURE_WIDTH, CHART_HEIGHT))
        .color(&INK)
        .pos(Pos::new(horizontal, vertical))
}

fn shorten_text(text: &str, most: usize) -> String {
    match text.chars().count() > most {
        true => text.chars().take(most - 1).chain(['…']).collect(),
        false => text.to_owned(),
    }
}

/// Returns a size's place on its axis. Size 0 has none on a logarithmic one and is put at 1.
fn size_log2(size: u64) -> f64 {
    (size.max(1) as f64).log2()
}

/// Axis: its range and its marks.
#[derive(Clone)]
struct Scale {
    from: f64,
    to: f64,
    log: bool,
    marks: Vec<(f64, String)>,
}

impl Scale {
    /// Makes an axis with marks at powers of two, or at the sizes themselves if they are close together.
    fn for_sizes(sizes: &BTreeSet<u64>) -> Self {
        const MAX_AXIS_MARKS: usize = 10;
        let (least, most) = (sizes.first().map_or(0.0, |s| size_log2(*s)), sizes.last().map_or(1.0, |s| size_log2(*s)));
        let (first, last) = (least.ceil() as u32, most.floor() as u32);
        let marks: Vec<(f64, String)> = if last > first + 1 {
            let step = (last - first) as usize / MAX_AXIS_MARKS + 1;
            (first..=last)
                .step_by(step)
                .map(|power| (f64::from(power), format_short_size(1 << power.min(63))))
                .collect()
        } else {
            let step = sizes.len() / MAX_AXIS_MARKS + 1;
            sizes.iter().step_by(step).map(|size| (size_log2(*size), format_short_size(*size))).collect()
        };
        let margin = ((most - least) * 0.02).max(0.01);
        Self { from: least - margin, to: most + margin, log: false, marks }
    }

    /// Makes an axis with marks at 1, 2, 5, 10, …: from 0 up, or over the range of the values if it is logarithmic.
    fn for_values(values: impl Iterator<Item = f64>, log: bool) -> Self {
        let (mut least, mut most) = (f64::INFINITY, 0.0_f64);
        for value in values {
            (least, most) = (least.min(value), most.max(value));
        }
        if log {
            let (from, to) = (least.log10(), most.log10());
            let decades = (from.floor() as i32..=to.ceil() as i32).flat_map(|power| {
                let unit = 10_f64.powi(power);
                if to - from > 3.0 { vec![unit] } else { vec![unit, 2.0 * unit, 5.0 * unit] }
            });
            let decades: Vec<f64> = decades.collect();
            let below = decades.iter().copied().rfind(|mark| mark.log10() <= from + 1e-9).unwrap_or(least);
            let above = decades.iter().copied().find(|mark| mark.log10() >= to - 1e-9).unwrap_or(most);
            let above = if above > below { above } else { below * 2.0 };
            let marks = decades.into_iter().filter(|mark| (below..=above).contains(mark));
            let marks = marks.map(|mark| (mark.log10(), format_mark(mark))).collect();
            Self { from: below.log10(), to: above.log10(), log, marks }
        } else {
            let most = if most > 0.0 { most } else { 1.0 };
            let unit = 10_f64.powf((most / 6.0).log10().floor());
            let step = [1.0, 2.0, 5.0, 10.0].map(|n| n * unit).into_iter().find(|step| most / step <= 6.0);
            let step = step.unwrap_or(most);
            let count = (most / step).ceil() as u32;
            let marks = (0..=count).map(|n| f64::from(n) * step).map(|mark| (mark, format_mark(mark))).collect();
            Self { from: 0.0, to: f64::from(count) * step, log, marks }
        }
    }

    fn axis_position(&self, value: f64) -> f64 {
        if self.log { value.log10() } else { value }
    }

    /// Returns the coordinates of a point, if this is the vertical axis.
    fn dot_position(&self, dot: &Dot) -> (f64, f64) {
        (size_log2(dot.size), self.axis_position(dot.value))
    }
}

impl Ranged for Scale {
    type FormatOption = NoDefaultFormatting;
    type ValueType = f64;

    fn map(&self, value: &f64, (begin, end): (i32, i32)) -> i32 {
        begin + (f64::from(end - begin) * (value - self.from) / (self.to - self.from)).round() as i32
    }

    fn key_points<Hint: KeyPointHint>(&self, hint: Hint) -> Vec<f64> {
        match hint.weight() {
            KeyPointWeight::Bold => self.marks.iter().map(|(at, _)| *at).collect(),
            KeyPointWeight::Any => Vec::new(),
        }
    }

    fn range(&self) -> Range<f64> {
        self.from..self.to
    }
}

impl ValueFormatter<f64> for Scale {
    fn format_ext(&self, value: &f64) -> String {
        self.marks.iter().find(|(at, _)| at == value).map(|(_, label)| label.clone()).unwrap_or_default()
    }
}

/// Formats a value as a mark on an axis: `0.5`, `50`, without the zeros that would suggest three digits.
fn format_mark(value: f64) -> String {
    let text = format_number(value);
    match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.').to_owned(),
        false => text,
    }
}

/// Formats a size as a mark on an axis: `1`, `1K`, `64K`, `1500`.
fn format_short_size(size: u64) -> String {
    const UNITS: [(u32, &str); 4] = [(40, "T"), (30, "G"), (20, "M"), (10, "K")];
    let whole = UNITS.iter().find(|(shift, _)| size > 0 && size.is_multiple_of(1 << shift));
    whole.map_or_else(|| size.to_string(), |(shift, unit)| format!("{}{unit}", size >> shift))
}
