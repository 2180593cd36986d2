//! Charts: series of values over a quantity, with axes, ranges, limits, a legend, and the origin below.

use super::axis::{Axis, Coordinate};
use super::{Area, DrawError, GRID, INK, PAPER, PICTURE_WIDTH, Provenance, Refused, SeriesStyle, draw_svg};
use crate::html::{escape_html, figure_with_notes_html};
use crate::{break_into_lines, format_number, replace_controls};
use plotters::coord::cartesian::Cartesian2d;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};
use serde::Serialize;
use std::collections::BTreeSet;

/// Series of values over a quantity. As JSON: its title, axes, series and limits, and its origin.
#[derive(Debug, Clone, Serialize)]
pub struct Chart {
    /// Text above the chart.
    pub title: String,
    /// Axis of the quantity.
    pub horizontal: Axis,
    /// Axis of the values.
    pub vertical: Axis,
    /// Series, in the order of the legend.
    pub series: Vec<Series>,
    /// Horizontal lines with a name: the room of a buffer, the rate of a link.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub limits: Vec<Limit>,
    /// Sentences below the chart: the meaning of points and bars.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
    /// Warnings about the values. They are below the chart in an SVG file; a page has a list of its own.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
    /// Origin, which is shown below the notes.
    pub provenance: Provenance,
}

/// Values that belong together.
#[derive(Debug, Clone, Serialize)]
pub struct Series {
    /// Name in the legend.
    pub name: String,
    /// Values, in the order in which a line joins them.
    pub points: Vec<DataPoint>,
    /// Line between the points.
    #[serde(skip)]
    pub join: Join,
    /// Whether each point has a marker.
    #[serde(skip)]
    pub has_markers: bool,
}

/// Line between the points of a series.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Join {
    /// Straight lines.
    Lines,
    /// A value holds until the next: distributions, levels over time.
    Steps,
    /// No line.
    None,
}

/// Value of a series.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct DataPoint {
    /// Place on the horizontal axis.
    pub x: f64,
    /// Value on the vertical axis.
    pub y: f64,
    /// Least and greatest value, shown as a bar.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub range: Option<(f64, f64)>,
    /// Whether a warning applies to the value; its marker is hollow.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub doubtful: bool,
    /// Text below the marker.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub label: Option<String>,
}

/// Horizontal line with a name.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Limit {
    /// Name: `room of the buffer`.
    pub name: String,
    /// Value on the vertical axis.
    pub value: f64,
}

/// Text of a chart whose markers are hollow.
const HOLLOW_NOTE: &str = "Hollow markers: a warning applies to the value.";

const TITLE_LINE_HEIGHT: u32 = 26;
const CHART_HEIGHT: u32 = 380;
const LEGEND_ROW_HEIGHT: u32 = 24;
const NOTE_LINE_HEIGHT: u32 = 18;
/// Font sizes, in pixels; the SVG backend divides them by 1.24.
const TITLE_FONT: u32 = 24;
const LABEL_FONT: u32 = 20;
const NOTE_FONT: u32 = 16;
const TITLE_COLUMNS: usize = 58;
/// Characters of the vertical axis's title that fit its height in [`LABEL_FONT`].
const VERTICAL_TITLE_COLUMNS: u32 = 38;
/// Smallest font of the axes' titles, in pixels.
const MIN_TITLE_FONT: u32 = 12;
/// Width of a character and height of a line in [`NOTE_FONT`], in pixels.
const LABEL_CHARACTER_WIDTH: i32 = 7;
const LABEL_HEIGHT: i32 = 15;
const NOTE_COLUMNS: usize = 92;
/// Longest name for a legend in two columns, in characters.
const HALF_COLUMNS: usize = 30;
const MAX_LEGEND_COLUMNS: usize = 66;
/// Number of series that are drawn.
const MAX_SERIES: usize = 100;

impl Series {
    /// Returns a series whose points have markers that lines join.
    pub fn new(name: impl Into<String>, points: Vec<DataPoint>) -> Self {
        Self { name: name.into(), points, join: Join::Lines, has_markers: true }
    }

    /// Returns a series as a line without markers.
    pub fn line(name: impl Into<String>, points: Vec<(f64, f64)>, join: Join) -> Self {
        let points = points.into_iter().map(|(x, y)| DataPoint { x, y, ..DataPoint::default() }).collect();
        Self { name: name.into(), points, join, has_markers: false }
    }
}

impl Chart {
    /// Returns a chart without series.
    pub fn new(title: impl Into<String>, horizontal: Axis, vertical: Axis, provenance: Provenance) -> Self {
        Self {
            title: title.into(),
            horizontal,
            vertical,
            series: Vec::new(),
            limits: Vec::new(),
            notes: Vec::new(),
            warnings: Vec::new(),
            provenance,
        }
    }

    /// Draws the chart as an SVG file, with its notes and its origin below.
    ///
    /// # Errors
    /// Fails if the chart cannot be drawn.
    pub fn draw_svg(&self) -> Result<String, DrawError> {
        self.draw_with_lines(&caption_lines(&self.notes_and_warnings(), &self.provenance))
    }

    /// Returns the chart as a figure of a page: notes and origin are text, which fits any width.
    ///
    /// # Errors
    /// Fails if the chart cannot be drawn.
    pub fn figure_html(&self) -> Result<String, DrawError> {
        let label = format!("<svg role=\"img\" aria-label=\"{}\" ", escape_html(&self.title));
        let picture = self.draw_with_lines(&[])?.replacen("<svg ", &label, 1);
        Ok(figure_with_notes_html(&picture, &self.all_notes(), &self.provenance.sentences()))
    }

    /// Returns the data as CSV: a row for each point, after the origin as lines that begin with `#`.
    pub fn format_csv(&self) -> String {
        let headings = ["series", &self.horizontal.label, &self.vertical.label, "least", "greatest", "doubtful"];
        let rows = self.series.iter().flat_map(|series| {
            series.points.iter().map(|point| {
                let [least, greatest] = match point.range {
                    Some((least, greatest)) => [least.to_string(), greatest.to_string()],
                    None => [String::new(), String::new()],
                };
                let doubtful = if point.doubtful { "yes" } else { "" };
                vec![series.name.clone(), point.x.to_string(), point.y.to_string(), least, greatest, doubtful.into()]
            })
        });
        super::format_csv(&self.provenance, &headings, rows)
    }

    fn all_notes(&self) -> Vec<String> {
        let hollow = self.series.iter().filter(|series| series.has_markers).flat_map(|series| &series.points);
        let hollow = hollow.clone().any(|point| point.doubtful).then(|| HOLLOW_NOTE.to_owned());
        self.notes.iter().cloned().chain(hollow).collect()
    }

    fn notes_and_warnings(&self) -> Vec<String> {
        let warnings = self.warnings.iter().map(|warning| format!("Warning: {warning}."));
        self.all_notes().into_iter().chain(warnings).collect()
    }

    fn draw_with_lines(&self, lines: &[String]) -> Result<String, DrawError> {
        draw_svg(self.height(lines), |area| self.draw_at(area, 0, lines))
    }

    /// Returns the height with these lines below, in pixels.
    fn height(&self, lines: &[String]) -> u32 {
        self.head_height() + CHART_HEIGHT + self.legend_layout().height() + caption_height(lines)
    }

    fn head_height(&self) -> u32 {
        8 + TITLE_LINE_HEIGHT * break_into_lines(&self.title, TITLE_COLUMNS).len() as u32
    }

    /// Draws title, chart, legend and these lines on a picture, from `top` on.
    fn draw_at(&self, area: &Area<'_>, top: u32, lines: &[String]) -> Result<(), Refused> {
        let title = replace_controls(&self.title);
        draw_text_lines(area, &break_into_lines(&title, TITLE_COLUMNS), top + 8, TITLE_LINE_HEIGHT, TITLE_FONT)?;
        let (chart, legend) = (top + self.head_height(), self.legend_layout());
        self.draw_plot(area, chart)?;
        self.draw_legend(area, chart + CHART_HEIGHT, &legend)?;
        draw_caption(area, chart + CHART_HEIGHT + legend.height(), lines)
    }

    /// Draws axes, limits and series, from `top` on.
    fn draw_plot(&self, area: &Area<'_>, top: u32) -> Result<(), Refused> {
        let (horizontal, vertical) = self.coordinates();
        let (upper, _) = area.split_vertically(top + CHART_HEIGHT);
        let mut chart = ChartBuilder::on(&upper)
            .margin_top(top + 10)
            .margin_right(28)
            .margin_left(4)
            .x_label_area_size(52)
            .y_label_area_size(78)
            .build_cartesian_2d(horizontal, vertical)?;
        chart
            .configure_mesh()
            .light_line_style(TRANSPARENT)
            .bold_line_style(GRID)
            .axis_style(INK)
            .label_style(("sans-serif", LABEL_FONT, &INK))
            .x_desc(&self.horizontal.label)
            .y_desc(&self.vertical.label)
            .axis_desc_style(("sans-serif", self.axis_title_font(), &INK))
            .draw()?;
        let plot = chart.plotting_area();
        for limit in self.limits.iter().filter(|limit| self.vertical.has_place_for(limit.value)) {
            let range = plot.get_pixel_range();
            let (_, y) = plot.map_coordinate(&(plot.get_x_range().start, limit.value));
            area.draw(&PathElement::new([(range.0.start, y), (range.0.end, y)], INK.stroke_width(1)))?;
            let text = replace_controls(&limit.name).into_owned();
            area.draw(&Text::new(text, (range.0.end - 4, y - 3), text_style(NOTE_FONT, HPos::Right, VPos::Bottom)))?;
        }
        let mut taken = Vec::new();
        let mut labels = Vec::new();
        for (index, series) in self.series.iter().take(MAX_SERIES).enumerate() {
            let points = self.draw_series(area, plot, series, SeriesStyle::for_index(index))?;
            labels.extend(points.iter().filter_map(|(point, place)| Some((point.label.clone()?, *place))));
            taken.extend(points.iter().filter(|_| series.has_markers).map(|(_, place)| marker_box(*place)));
        }
        let (x, y) = plot.get_pixel_range();
        let bounds = (x.start, y.start, x.end, y.end);
        for (label, place) in labels {
            taken.push(draw_label(area, &label, place, bounds, &taken)?);
        }
        Ok(())
    }

    /// Returns the font of the axes' titles, at which both fit their axis, in pixels.
    fn axis_title_font(&self) -> u32 {
        let [vertical, horizontal] =
            [&self.vertical, &self.horizontal].map(|axis| axis.label.chars().count().max(1) as u32);
        let vertical = LABEL_FONT * VERTICAL_TITLE_COLUMNS / vertical;
        let horizontal = LABEL_FONT * TITLE_COLUMNS as u32 / horizontal;
        LABEL_FONT.min(vertical).min(horizontal).max(MIN_TITLE_FONT)
    }

    fn coordinates(&self) -> (Coordinate, Coordinate) {
        let points = self.series.iter().take(MAX_SERIES).flat_map(|series| &series.points);
        let values = points.clone().flat_map(|point| {
            let (least, greatest) = point.range.unwrap_or((point.y, point.y));
            [least, point.y, greatest]
        });
        // A limit at the edge would hide its name.
        let limits = self.limits.iter().map(|limit| limit.value * 1.06);
        let horizontal = self.horizontal.coordinate(points.map(|point| point.x), true);
        let width = PICTURE_WIDTH as i32 - 110;
        (horizontal.with_room_for_labels(width, 10), self.vertical.coordinate(values.chain(limits), false))
    }

    /// Draws line, bars and markers of a series, and returns its points with their places in pixels.
    fn draw_series<'a>(
        &self,
        area: &Area<'_>,
        plot: &DrawingArea<SVGBackend<'_>, Cartesian2d<Coordinate, Coordinate>>,
        series: &'a Series,
        style: SeriesStyle,
    ) -> Result<Vec<PlacedPoint<'a>>, Refused> {
        let (horizontal, vertical) = self.coordinates();
        let points = series.points.iter();
        let points: Vec<&'a DataPoint> =
            points.filter(|at| self.horizontal.has_place_for(at.x) && self.vertical.has_place_for(at.y)).collect();
        let place = |x: f64, y: f64| plot.map_coordinate(&(horizontal.clamp(x), vertical.clamp(y)));
        let places: Vec<(i32, i32)> = points.iter().map(|point| place(point.x, point.y)).collect();
        match series.join {
            Join::None => {}
            Join::Lines => style.draw_line(area, thin_out(&places))?,
            Join::Steps => {
                let steps = places.windows(2).flat_map(|pair| [pair[0], (pair[1].0, pair[0].1)]);
                style.draw_line(area, thin_out(&steps.chain(places.last().copied()).collect::<Vec<_>>()))?;
            }
        }
        for (point, (x, y)) in points.iter().zip(&places) {
            if let Some((least, greatest)) = point.range.filter(|(least, greatest)| greatest > least) {
                let [low, high] = [least, greatest].map(|value| place(point.x, value).1);
                for path in [[(*x, low), (*x, high)], [(x - 4, low), (x + 4, low)], [(x - 4, high), (x + 4, high)]] {
                    area.draw(&PathElement::new(path, style.colour.stroke_width(1)))?;
                }
            }
            if series.has_markers {
                style.draw_marker(area, (*x, *y), point.doubtful)?;
            }
        }
        Ok(points.into_iter().zip(places).collect())
    }

    fn legend_layout(&self) -> LegendLayout {
        let names = self.series.iter().take(MAX_SERIES);
        let count = names.clone().filter(|series| !series.name.is_empty()).count();
        let columns = if names.clone().all(|series| series.name.chars().count() <= HALF_COLUMNS) { 2 } else { 1 };
        LegendLayout { columns, rows: count.div_ceil(columns) }
    }

    /// Draws the line, the marker and the name of each series that has a name.
    fn draw_legend(&self, area: &Area<'_>, top: u32, layout: &LegendLayout) -> Result<(), Refused> {
        let named = self.series.iter().take(MAX_SERIES).enumerate().filter(|(_, series)| !series.name.is_empty());
        for (at, (index, series)) in named.enumerate() {
            let style = SeriesStyle::for_index(index);
            let column = (at % layout.columns) as i32;
            let left = 78 + column * (PICTURE_WIDTH as i32 - 90) / layout.columns as i32;
            let y = top as i32 + (at / layout.columns) as i32 * LEGEND_ROW_HEIGHT as i32 + 16;
            if series.join != Join::None {
                style.draw_line(area, vec![(left, y), (left + 44, y)])?;
            }
            if series.has_markers {
                style.draw_marker(area, (left + 22, y), false)?;
            }
            let name = shorten_text(&replace_controls(&series.name), MAX_LEGEND_COLUMNS);
            area.draw(&Text::new(name, (left + 54, y), text_style(LABEL_FONT - 1, HPos::Left, VPos::Center)))?;
        }
        Ok(())
    }
}

struct LegendLayout {
    columns: usize,
    rows: usize,
}

impl LegendLayout {
    fn height(&self) -> u32 {
        LEGEND_ROW_HEIGHT * self.rows as u32 + 10
    }
}

/// Draws charts of one origin below each other, as one SVG file. Notes, warnings and origin are below the last.
///
/// # Errors
/// Fails if a chart cannot be drawn.
pub fn draw_panels_svg(charts: &[Chart]) -> Result<String, DrawError> {
    let lines = charts.iter().enumerate().map(|(at, chart)| match at + 1 == charts.len() {
        true => caption_lines(&chart.notes_and_warnings(), &chart.provenance),
        false => Vec::new(),
    });
    let lines: Vec<Vec<String>> = lines.collect();
    let height = charts.iter().zip(&lines).map(|(chart, lines)| chart.height(lines)).sum();
    draw_svg(height, |area| {
        let mut top = 0;
        for (chart, lines) in charts.iter().zip(&lines) {
            chart.draw_at(area, top, lines)?;
            top += chart.height(lines);
        }
        Ok(())
    })
}

/// Point of a series, with its place in pixels.
type PlacedPoint<'a> = (&'a DataPoint, (i32, i32));

/// Part of a picture: left, top, right and bottom edge, in pixels.
type Edges = (i32, i32, i32, i32);

fn marker_box((x, y): (i32, i32)) -> Edges {
    const HALF_WIDTH: i32 = 7;
    (x - HALF_WIDTH, y - HALF_WIDTH, x + HALF_WIDTH, y + HALF_WIDTH)
}

/// Draws the label of a marker where it is on none of the `taken` places: below, above or beside the marker, or farther
/// away. Returns its place.
fn draw_label(
    area: &Area<'_>,
    label: &str,
    (x, y): (i32, i32),
    bounds: Edges,
    taken: &[Edges],
) -> Result<Edges, Refused> {
    let (width, height) = (LABEL_CHARACTER_WIDTH * label.chars().count() as i32, LABEL_HEIGHT);
    let place = free_label_place((x, y), (width, height), bounds, taken);
    let (left, top, right, bottom) = place.unwrap_or((x - width / 2, y + 8, x + width / 2, y + 8 + height));
    if place.is_some() {
        area.draw(&Rectangle::new([(left, top), (right, bottom)], PAPER.filled()))?;
    }
    let centre = (i32::midpoint(left, right), i32::midpoint(top, bottom));
    area.draw(&Text::new(label.to_owned(), centre, text_style(NOTE_FONT, HPos::Center, VPos::Center)))?;
    Ok((left, top, right, bottom))
}

/// Returns a place for a text of this width and height near a marker: within the bounds, and on no taken place; `None`
/// without one.
fn free_label_place((x, y): (i32, i32), size: (i32, i32), bounds: Edges, taken: &[Edges]) -> Option<Edges> {
    let (width, height) = size;
    // The marker itself ends at 8 pixels from its centre.
    let distances = [8, 8 + height, 8 + 2 * height];
    let places = distances.into_iter().flat_map(|away| {
        let centred = [y + away, y - away - height].map(|top| (x - width / 2, top));
        let aside = [x + away, x - away - width].map(|left| (left, y - height / 2));
        centred.into_iter().chain(aside)
    });
    let mut places = places.map(|(left, top)| (left, top, left + width, top + height));
    places.find(|place| {
        let is_inside = place.0 >= bounds.0 && place.1 >= bounds.1 && place.2 <= bounds.2 && place.3 <= bounds.3;
        is_inside && taken.iter().all(|other| !overlap(*place, *other))
    })
}

fn overlap(one: Edges, other: Edges) -> bool {
    one.0 < other.2 && other.0 < one.2 && one.1 < other.3 && other.1 < one.3
}

/// Returns a path without places that it does not need: those that repeat the one before, and those between the
/// extremes of one column of pixels.
fn thin_out(places: &[(i32, i32)]) -> Vec<(i32, i32)> {
    let mut out = Vec::new();
    for column in places.chunk_by(|one, next| one.0 == next.0) {
        let ends = [column.first(), column.iter().min_by_key(|it| it.1), column.iter().max_by_key(|it| it.1)];
        let kept: BTreeSet<(i32, i32)> = ends.into_iter().chain([column.last()]).flatten().copied().collect();
        let first = column[0];
        let last = column[column.len() - 1];
        out.push(first);
        out.extend(kept.into_iter().filter(|place| *place != first && *place != last));
        out.push(last);
    }
    out.dedup();
    out
}

/// Returns the lines below a picture: sentences about it, and its origin.
pub fn caption_lines(notes: &[String], provenance: &Provenance) -> Vec<String> {
    let lines = notes.iter().flat_map(|note| break_into_lines(note, NOTE_COLUMNS));
    let lines = lines.map(|line| replace_controls(&line).into_owned());
    lines.chain(provenance.lines(NOTE_COLUMNS)).collect()
}

/// Returns the height of lines below a picture, in pixels.
pub fn caption_height(lines: &[String]) -> u32 {
    NOTE_LINE_HEIGHT * lines.len() as u32 + 8
}

/// Draws the lines below a picture, from `top` on.
///
/// # Errors
/// Fails if the text cannot be drawn.
pub fn draw_caption(area: &Area<'_>, top: u32, lines: &[String]) -> Result<(), Refused> {
    draw_text_lines(area, lines, top, NOTE_LINE_HEIGHT, NOTE_FONT)
}

fn draw_text_lines(
    area: &Area<'_>,
    lines: &[impl AsRef<str>],
    top: u32,
    height: u32,
    font: u32,
) -> Result<(), Refused> {
    for (line, at) in lines.iter().zip(0..) {
        let place = (12, top as i32 + at * height as i32);
        area.draw(&Text::new(line.as_ref(), place, text_style(font, HPos::Left, VPos::Top)))?;
    }
    Ok(())
}

/// Returns the style of a text in a picture; `height` in pixels.
pub fn text_style(height: u32, horizontal: HPos, vertical: VPos) -> TextStyle<'static> {
    ("sans-serif", height)
        .into_text_style(&(PICTURE_WIDTH, CHART_HEIGHT))
        .color(&INK)
        .pos(Pos::new(horizontal, vertical))
}

/// Returns a text with at most this number of characters; the rest is replaced by an ellipsis.
pub fn shorten_text(text: &str, max_characters: usize) -> String {
    match text.chars().count() > max_characters {
        true => text.chars().take(max_characters - 1).chain(['…']).collect(),
        false => text.to_owned(),
    }
}

/// Returns the label of a point that lost messages: `3.2 % lost`; `None` without a loss.
pub fn loss_label(percent: f64) -> Option<String> {
    (percent > 0.0).then(|| format!("{} % lost", format_number(percent)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chart() -> Chart {
        let point = |x: f64, y: f64| DataPoint { x, y, range: Some((y * 0.9, y * 1.2)), ..DataPoint::default() };
        let sizes = [1, 64, 4096];
        let provenance = Provenance { subject: "bench <latency>".into(), ..Provenance::default() };
        let horizontal = Axis::of_sizes("message size (bytes)", sizes);
        let mut chart = Chart::new("Latency", horizontal, Axis::logarithmic("µs"), provenance);
        let points = |factor: f64| sizes.map(|size| point(size as f64, factor * (size as f64).sqrt())).to_vec();
        chart.series = vec![Series::new("tcp write", points(10.0)), Series::new("shm, copy", points(1.0))];
        chart
    }

    #[test]
    fn a_chart_has_axes_names_and_its_origin() {
        let svg = chart().draw_svg().unwrap();
        for text in ["message size (bytes)", ">\n64\n<", ">\n4K\n<", "shm, copy", "bench &lt;latency&gt;", "polyline"] {
            assert!(svg.contains(text), "{text}: {svg}");
        }
        assert!(!svg.contains("NaN") && !svg.contains(HOLLOW_NOTE));
        let page = chart().figure_html().unwrap();
        assert!(page.contains("bench &lt;latency&gt;") && page.starts_with("<figure>"), "{page}");
    }

    #[test]
    fn doubtful_values_are_hollow_and_explained() {
        let mut chart = chart();
        chart.series[0].points[0].doubtful = true;
        assert!(chart.draw_svg().unwrap().contains(HOLLOW_NOTE));
        assert!(chart.figure_html().unwrap().contains(HOLLOW_NOTE));
        assert!(chart.format_csv().lines().nth(2).unwrap().ends_with(",yes"), "{}", chart.format_csv());
    }

    #[test]
    fn values_without_a_place_are_left_out() {
        let mut chart = chart();
        for (x, y) in [(0.0, 1.0), (1.0, f64::NAN), (f64::INFINITY, 1.0), (1.0, -3.0)] {
            chart.series[0].points.push(DataPoint { x, y, range: Some((-1.0, f64::MAX)), ..DataPoint::default() });
        }
        let svg = chart.draw_svg().unwrap();
        assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
        chart.series.clear();
        chart.draw_svg().unwrap();
    }

    #[test]
    fn data_are_quoted_and_have_their_origin() {
        let csv = chart().format_csv();
        let mut lines = csv.lines();
        assert_eq!(lines.next(), Some("# bench <latency>."));
        assert_eq!(lines.next(), Some("series,message size (bytes),µs,least,greatest,doubtful"));
        assert_eq!(lines.next(), Some("tcp write,1,10,9,12,"));
        assert!(csv.contains("\"shm, copy\",64,8,"));
    }

    #[test]
    fn labels_lie_on_no_marker_and_on_no_other_label() {
        let bounds = (0, 0, 200, 200);
        let mut taken = vec![marker_box((100, 100)), marker_box((104, 114)), marker_box((100, 88))];
        for _ in 0..4 {
            let place = free_label_place((100, 100), (77, 15), bounds, &taken).unwrap();
            assert!(taken.iter().all(|other| !overlap(place, *other)), "{place:?} {taken:?}");
            taken.push(place);
        }
        assert_eq!(free_label_place((100, 100), (300, 15), bounds, &taken), None);
        let mut chart = chart();
        for series in &mut chart.series {
            series.points.iter_mut().for_each(|point| (point.y, point.label) = (5.0, loss_label(57.1)));
        }
        assert_eq!(chart.draw_svg().unwrap().matches("57.1 % lost").count(), 6);
    }

    #[test]
    fn titles_of_axes_fit_their_axis() {
        let mut chart = chart();
        assert_eq!(chart.axis_title_font(), LABEL_FONT);
        chart.vertical.label = "CPU of the measuring processes (% of one processor)".to_owned();
        let font = chart.axis_title_font();
        assert!(font < LABEL_FONT && font as usize * chart.vertical.label.len() <= 38 * LABEL_FONT as usize, "{font}");
    }

    #[test]
    fn a_long_path_is_as_short_as_the_picture() {
        let path: Vec<(i32, i32)> = (0..100_000).map(|at| (at / 1000, at * 7919 % 100)).collect();
        let thin = thin_out(&path);
        assert!(thin.len() <= 400, "{}", thin.len());
        for column in thin.chunk_by(|one, next| one.0 == next.0) {
            assert_eq!((column.iter().map(|it| it.1).min(), column.iter().map(|it| it.1).max()), (Some(0), Some(99)));
        }
    }
}
