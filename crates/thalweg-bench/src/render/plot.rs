//! Pictures: a figure by message size or by offered load, or bars if there is only one size. Bars and whiskers reach
//! from the least to the greatest of the repeats.

use super::columns::group_title;
use crate::principal::{Principal, goodput_unit};
use crate::{Figures, Point, Report};
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, VPos};
use std::collections::BTreeSet;
use thalweg_text::html::figure_with_notes_html;
use thalweg_text::plot::{
    Area, Axis, COLOURS, Chart, DataPoint, DrawError, INK, PAPER, PICTURE_WIDTH, Provenance, Refused, Series,
    caption_height, caption_lines, draw_caption, draw_panels_svg, draw_svg, loss_label, shorten_text, text_style,
};
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

/// Draws the principal figure of a report by message size as an SVG file; of `under-load`, percentiles of the latency
/// over the offered load, below each other for each link.
///
/// # Errors
/// [`PlotError::Empty`] if no point has figures; others if the picture cannot be drawn.
pub fn report_svg(report: &Report) -> Result<String, PlotError> {
    match &report_pictures(report)[..] {
        [] => Err(PlotError::Empty),
        [Picture::Bars(bars), ..] => Ok(bars.draw_svg()?),
        [Picture::Chart(first), others @ ..] => {
            let same_kind = others.iter().filter_map(|picture| match picture {
                Picture::Chart(chart) if chart.vertical.label == first.vertical.label => Some(chart.clone()),
                _ => None,
            });
            Ok(draw_panels_svg(&std::iter::once(first.clone()).chain(same_kind).collect::<Vec<_>>())?)
        }
    }
}

/// Picture of one figure.
#[derive(Debug, Clone)]
pub(crate) enum Picture {
    /// Figure of several sizes or loads.
    Chart(Chart),
    /// Figure of one size.
    Bars(Bars),
}

impl Picture {
    /// Returns the name of the figure that it shows.
    pub(crate) fn title(&self) -> &str {
        match self {
            Self::Chart(chart) => &chart.vertical.label,
            Self::Bars(bars) => &bars.title,
        }
    }

    /// Returns the picture as an SVG file.
    pub(crate) fn draw_svg(&self) -> Result<String, DrawError> {
        match self {
            Self::Chart(chart) => chart.draw_svg(),
            Self::Bars(bars) => bars.draw_svg(),
        }
    }

    /// Returns the picture as a figure of a page.
    pub(crate) fn figure_html(&self) -> Result<String, DrawError> {
        match self {
            Self::Chart(chart) => chart.figure_html(),
            Self::Bars(bars) => bars.figure_html(),
        }
    }
}

/// Returns the pictures of a report, the principal ones first.
pub(crate) fn report_pictures(report: &Report) -> Vec<Picture> {
    if report.instrument == "under-load" {
        return load_charts(report).into_iter().map(Picture::Chart).collect();
    }
    let instrument = report.instrument.as_str();
    let quantities = Principal::order_for(instrument).into_iter().flat_map(|principal| match principal {
        Principal::Latency => LATENCIES.to_vec(),
        Principal::Goodput => vec![goodput_quantity(instrument)],
        Principal::Rate if instrument == "packets" => vec![PACKETS],
        Principal::Rate => vec![MESSAGES],
    });
    quantities.chain([CPU]).filter_map(|quantity| quantity_picture(report, quantity)).collect()
}

const LATENCIES: [Quantity; 2] = [
    Quantity { name: "Median latency", unit: "µs", divisor: 1.0, log: true, get: |f| Some(f.latency_us?.p50) },
    Quantity {
        name: "99th percentile of the latency",
        unit: "µs",
        divisor: 1.0,
        log: true,
        get: |f| Some(f.latency_us?.p99),
    },
];
const PACKETS: Quantity =
    Quantity { name: "Packets per second", unit: "1/s", divisor: 1.0, log: true, get: |f| f.messages_per_second };
/// Rate of messages, of points without a goodput.
const MESSAGES: Quantity = Quantity {
    name: "Messages per second",
    unit: "1/s",
    divisor: 1.0,
    log: true,
    get: |f| f.goodput_bits_per_second.is_none().then_some(f.messages_per_second)?,
};
const CPU: Quantity = Quantity {
    name: "CPU of the processes",
    unit: "% of one processor",
    divisor: 1.0,
    log: false,
    get: |f| Some(f.cpu?.process_percent),
};

/// Returns the goodput in the unit of the instrument's table.
fn goodput_quantity(instrument: &str) -> Quantity {
    let (unit, divisor) = goodput_unit(instrument);
    Quantity { name: "Goodput", unit, divisor, log: true, get: |f| f.goodput_bits_per_second }
}

/// Quantity that a picture shows.
#[derive(Clone, Copy)]
struct Quantity {
    name: &'static str,
    unit: &'static str,
    /// Whether the value axis is logarithmic.
    log: bool,
    /// Value of the unit in that of `get`.
    divisor: f64,
    get: fn(&Figures) -> Option<f64>,
}

impl Quantity {
    fn axis(&self) -> Axis {
        let label = format!("{} ({})", self.name, self.unit);
        if self.log { Axis::logarithmic(label) } else { Axis::linear(label) }
    }

    fn can_show(&self, value: f64) -> bool {
        value.is_finite() && (!self.log || value > 0.0)
    }

    /// Returns the value of a point with its range over the repeats, at `x`.
    fn data_point(&self, point: &Point, x: f64) -> Option<DataPoint> {
        let get = |figures: &Figures| Some((self.get)(figures)? / self.divisor);
        let y = get(&point.figures).filter(|value| self.can_show(*value))?;
        let repeats = point.repeats.iter().filter_map(&get).filter(|value| self.can_show(*value));
        let range = repeats.fold((y, y), |(least, most), value| (least.min(value), most.max(value)));
        // Loss matters to the figures of what arrived.
        let loss = point.figures.loss.filter(|_| !self.name.starts_with("CPU"));
        let label = loss.and_then(|loss| loss_label(loss.lost_percent()));
        Some(DataPoint { x, y, range: Some(range), label, doubtful: !point.warnings.is_empty() })
    }
}

/// Returns the picture of one quantity; `None` if no point has it.
fn quantity_picture(report: &Report, quantity: Quantity) -> Option<Picture> {
    let mut series: Vec<Series> = Vec::new();
    for point in measured_points(report) {
        let Some(value) = quantity.data_point(point, point.key.size.max(1) as f64) else { continue };
        add_to_series(&mut series, group_title("", &point.key), value);
    }
    let sizes: BTreeSet<u64> = measured_points(report).map(|point| point.key.size).collect();
    for line in &mut series {
        line.points.sort_by(|one, next| one.x.total_cmp(&next.x));
    }
    let (notes, provenance) = (repeat_note(report).into_iter().collect(), report.provenance());
    match sizes.first() {
        None => None,
        _ if series.is_empty() => None,
        Some(only) if sizes.len() == 1 => Some(Picture::Bars(Bars {
            title: format!("{} ({}), {}", quantity.name, quantity.unit, format_size(*only)),
            series,
            notes,
            warnings: report.warnings.clone(),
            provenance,
        })),
        _ => {
            let label = if report.instrument == "packets" { "frame length (bytes)" } else { "size (bytes)" };
            let title = format!("{} by size", quantity.name);
            let mut chart = Chart::new(title, Axis::of_sizes(label, sizes), quantity.axis(), provenance);
            (chart.series, chart.notes, chart.warnings) = (series, notes, report.warnings.clone());
            Some(Picture::Chart(chart))
        }
    }
}

/// Returns the pictures of `under-load`: percentiles over the offered load for each link and size, and the rate that
/// arrived.
fn load_charts(report: &Report) -> Vec<Chart> {
    const PERCENTILES: [Quantity; 4] = [
        Quantity { name: "median", unit: "µs", divisor: 1.0, log: true, get: |f| Some(f.latency_us?.p50) },
        Quantity { name: "99th percentile", unit: "µs", divisor: 1.0, log: true, get: |f| Some(f.latency_us?.p99) },
        Quantity { name: "99.9th percentile", unit: "µs", divisor: 1.0, log: true, get: |f| Some(f.latency_us?.p999) },
        Quantity { name: "longest", unit: "µs", divisor: 1.0, log: true, get: |f| Some(f.latency_us?.max) },
    ];
    const ARRIVED: Quantity = Quantity {
        name: "Messages that arrived",
        unit: "1/s",
        divisor: 1.0,
        log: false,
        get: |f| f.messages_per_second,
    };
    let mut charts: Vec<Chart> = Vec::new();
    let mut arrived = new_load_chart(report, "Messages that arrived, by offered load", ARRIVED.axis());
    for point in measured_points(report) {
        let Some(offered) = point.figures.offered_per_second else { continue };
        let name = format!("{}, {}", group_title("under-load", &point.key), format_size(point.key.size));
        let title = format!("Latency by offered load: {name}");
        let at = charts.iter().position(|chart| chart.title == title).unwrap_or_else(|| {
            charts.push(new_load_chart(report, &title, Axis::logarithmic("latency from the time due (µs)")));
            charts.len() - 1
        });
        for quantity in PERCENTILES {
            if let Some(value) = quantity.data_point(point, offered) {
                add_to_series(&mut charts[at].series, quantity.name.to_owned(), value);
            }
        }
        if let Some(value) = ARRIVED.data_point(point, offered) {
            add_to_series(&mut arrived.series, name, value);
        }
    }
    charts.retain(|chart| !chart.series.is_empty());
    charts.extend(Some(arrived).filter(|chart| !chart.series.is_empty()));
    for series in charts.iter_mut().flat_map(|chart| &mut chart.series) {
        series.points.sort_by(|one, next| one.x.total_cmp(&next.x));
    }
    charts
}

fn new_load_chart(report: &Report, title: &str, vertical: Axis) -> Chart {
    let mut chart = Chart::new(title, Axis::linear("messages offered (1/s)"), vertical, report.provenance());
    chart.notes = repeat_note(report).into_iter().collect();
    chart.warnings = report.warnings.clone();
    chart
}

fn measured_points(report: &Report) -> impl Iterator<Item = &Point> {
    report.points.iter().filter(|point| !point.repeats.is_empty())
}

fn add_to_series(series: &mut Vec<Series>, name: String, value: DataPoint) {
    let name = replace_controls(&name).into_owned();
    match series.iter_mut().find(|line| line.name == name) {
        Some(line) => line.points.push(value),
        None => series.push(Series::new(name, vec![value])),
    }
}

/// Returns the sentence that explains points and bars.
fn repeat_note(report: &Report) -> Option<String> {
    match measured_points(report).map(|point| point.repeats.len()).max() {
        None | Some(1) => None,
        Some(repeats) => {
            Some(format!("Values are medians of {repeats} repeats; bars reach from the least to the greatest."))
        }
    }
}

/// Picture of one size: a bar for each series.
#[derive(Debug, Clone)]
pub(crate) struct Bars {
    title: String,
    series: Vec<Series>,
    notes: Vec<String>,
    warnings: Vec<String>,
    provenance: Provenance,
}

const TITLE_HEIGHT: u32 = 40;
const BAR_HEIGHT: u32 = 48;
const MAX_BARS: usize = 1000;

impl Bars {
    fn draw_svg(&self) -> Result<String, DrawError> {
        let warnings = self.warnings.iter().map(|warning| format!("Warning: {warning}."));
        let notes: Vec<String> = self.notes.iter().cloned().chain(warnings).collect();
        self.draw_with_lines(&caption_lines(&notes, &self.provenance))
    }

    fn figure_html(&self) -> Result<String, DrawError> {
        Ok(figure_with_notes_html(&self.draw_with_lines(&[])?, &self.notes, &self.provenance.sentences()))
    }

    /// Draws a bar for each series, its name and value above it, and these lines below.
    fn draw_with_lines(&self, lines: &[String]) -> Result<String, DrawError> {
        let rows = u32::try_from(self.series.len().min(MAX_BARS)).unwrap_or(0);
        let foot = TITLE_HEIGHT + rows * BAR_HEIGHT + 8;
        draw_svg(foot + caption_height(lines), |area| {
            area.draw(&Text::new(self.title.clone(), (12, 10), text_style(24, HPos::Left, VPos::Top)))?;
            self.draw_bars(area)?;
            draw_caption(area, foot, lines)
        })
    }

    fn draw_bars(&self, area: &Area<'_>) -> Result<(), Refused> {
        let values = self.series.iter().filter_map(|series| Some((series, series.points.first()?)));
        let most = values.clone().map(|(_, point)| range_ends(point).1).fold(0.0, f64::max);
        let mut top = TITLE_HEIGHT as i32 + 4;
        for (at, (series, point)) in values.take(MAX_BARS).enumerate() {
            let label = shorten_text(&series.name, 48);
            area.draw(&Text::new(label, (12, top), text_style(19, HPos::Left, VPos::Top)))?;
            let right = (PICTURE_WIDTH - 12) as i32;
            area.draw(&Text::new(value_label(point), (right, top), text_style(19, HPos::Right, VPos::Top)))?;
            let [least, end, greatest] = [range_ends(point).0, point.y, range_ends(point).1].map(|value| {
                let share = if most > 0.0 { value / most } else { 0.0 };
                12 + (share * f64::from(PICTURE_WIDTH - 24)).max(1.0) as i32
            });
            let bar = [(12, top + 20), (end, top + 34)];
            let colour = COLOURS[at % COLOURS.len()];
            let fill = if point.doubtful { PAPER } else { colour };
            area.draw(&Rectangle::new(bar, fill.filled()))?;
            area.draw(&Rectangle::new(bar, colour.stroke_width(2)))?;
            if greatest > least + 1 {
                let ends = [least, greatest].map(|x| [(x, top + 22), (x, top + 32)]);
                for path in [[(least, top + 27), (greatest, top + 27)], ends[0], ends[1]] {
                    area.draw(&PathElement::new(path, INK))?;
                }
            }
            top += BAR_HEIGHT as i32;
        }
        Ok(())
    }
}

fn range_ends(point: &DataPoint) -> (f64, f64) {
    point.range.unwrap_or((point.y, point.y))
}

/// Formats a value beside its bar, and the loss.
fn value_label(point: &DataPoint) -> String {
    match &point.label {
        Some(loss) => format!("{}; {loss}", format_number(point.y)),
        None => format_number(point.y),
    }
}
