//! Heat maps: a rectangle for each cell, with its figure in it, as SVG.

use std::fmt::Write;
use thalweg_text::html::{self, escape_html};

/// Mapping of figures to colours.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Scale {
    /// From dark (`from`) to bright (`to`).
    Linear { from: f64, to: f64 },
    /// From dark (`from`) to bright (`to`), logarithmic; values below 1e-9 count as 1e-9.
    Log { from: f64, to: f64 },
    /// Blue below 0, white at 0, orange above, symmetrically.
    Around { most: f64 },
}

/// A rectangle of a heat map.
#[derive(Debug, Clone, Default)]
pub(crate) struct Tile {
    /// Figure that decides the colour; without one it is grey.
    pub(crate) value: Option<f64>,
    /// Text in the rectangle.
    pub(crate) text: String,
    /// True if it is framed, as a sign of a failed check or an error.
    pub(crate) marked: bool,
}

/// Cividis, which the colour-blind see as others do (J. Nuñez and others, PLOS ONE 13(7), 2018).
const BRIGHT: [[f64; 3]; 6] = [
    [0.0, 34.0, 78.0],
    [53.0, 69.0, 108.0],
    [102.0, 105.0, 112.0],
    [148.0, 142.0, 119.0],
    [200.0, 184.0, 102.0],
    [254.0, 232.0, 56.0],
];
/// Blue and orange of M. Okabe and K. Ito's "Color Universal Design" (2008).
const AROUND: [[f64; 3]; 3] = [[0.0, 114.0, 178.0], [245.0, 245.0, 245.0], [230.0, 130.0, 0.0]];

const ROW_HEIGHT: usize = 24;
const LETTER_WIDTH: usize = 8;

/// Draws a heat map. `corner` names rows and columns.
pub(crate) fn draw_heat_map(
    corner: &str,
    rows: &[String],
    columns: &[String],
    tiles: &[Vec<Tile>],
    scale: Scale,
) -> String {
    let left = rows.iter().map(|name| text_width(name)).chain([text_width(corner)]).max().unwrap_or(0) + 12;
    let texts = tiles.iter().flatten().map(|tile| text_width(&tile.text));
    let wide = texts.chain(columns.iter().map(|name| text_width(name))).max().unwrap_or(0).max(44) + 12;
    let (width, height) = (left + wide * columns.len(), ROW_HEIGHT * (rows.len() + 1));
    let mut out = format!(
        "<svg class=\"heat\" role=\"img\" viewBox=\"0 0 {width} {height}\" width=\"{width}\" height=\"{height}\">\n"
    );
    write_label(&mut out, left - 8, 0, "end", "quiet", corner);
    for (at, name) in columns.iter().enumerate() {
        write_label(&mut out, left + wide * at + wide / 2, 0, "middle", "ink", name);
    }
    for (at, name) in rows.iter().enumerate() {
        write_label(&mut out, left - 8, at + 1, "end", "ink", name);
    }
    for (row, line) in tiles.iter().enumerate() {
        for (column, tile) in line.iter().enumerate() {
            let (x, y) = (left + wide * column, ROW_HEIGHT * (row + 1));
            let [r, g, b] = tile.value.map_or([128.0; 3], |value| scale.colour_of_value(value));
            // The choice of black or white depends on the perceived brightness (ITU-R BT.601).
            let ink = if 0.299 * r + 0.587 * g + 0.114 * b > 140.0 { "#111" } else { "#fefefe" };
            let frame = if tile.marked { " class=\"marked\"" } else { "" };
            let _ = writeln!(
                out,
                "<rect x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" fill=\"rgb({r:.0},{g:.0},{b:.0})\"{frame}/>\
                 <text x=\"{}\" y=\"{}\" text-anchor=\"middle\" fill=\"{ink}\">{}</text>",
                x + 1,
                y + 1,
                wide - 2,
                ROW_HEIGHT - 2,
                x + wide / 2,
                y + 17,
                escape_html(&tile.text)
            );
        }
    }
    out.push_str("</svg>\n");
    out
}

/// Draws the scale of heat maps: colours, and the values at its ends and in the middle. `title` has the unit.
pub(crate) fn draw_colour_scale(title: &str, scale: Scale, format: fn(f64) -> String) -> String {
    const STEPS: usize = 48;
    const STEP_WIDTH: usize = 5;
    let (left, width) = (40, STEPS * STEP_WIDTH);
    let mut out = format!(
        "<svg class=\"heat\" role=\"img\" viewBox=\"0 0 {0} 62\" width=\"{0}\" height=\"62\">\n",
        width + 2 * left
    );
    for step in 0..STEPS {
        let [r, g, b] = scale.colour_of_value(scale.value_at((step as f64 + 0.5) / STEPS as f64));
        let x = left + step * STEP_WIDTH;
        let _ = writeln!(
            out,
            "<rect x=\"{x}\" y=\"24\" width=\"{STEP_WIDTH}\" height=\"14\" fill=\"rgb({r:.0},{g:.0},{b:.0})\"/>"
        );
    }
    let _ = writeln!(out, "<text x=\"{left}\" y=\"16\" class=\"quiet\">{}</text>", escape_html(title));
    for part in [0.0, 0.5, 1.0] {
        let text = escape_html(&format(scale.value_at(part)));
        let x = left as f64 + part * width as f64;
        let _ = writeln!(out, "<text x=\"{x}\" y=\"54\" text-anchor=\"middle\" class=\"ink\">{text}</text>");
    }
    out.push_str("</svg>\n");
    out
}

fn text_width(text: &str) -> usize {
    text.chars().count() * LETTER_WIDTH
}

fn write_label(out: &mut String, x: usize, row: usize, anchor: &str, class: &str, text: &str) {
    let (y, text) = (row * ROW_HEIGHT + 17, escape_html(text));
    let _ = writeln!(out, "<text x=\"{x}\" y=\"{y}\" text-anchor=\"{anchor}\" class=\"{class}\">{text}</text>");
}

/// Returns a heat map in a page, with its caption.
pub(crate) fn heat_map_figure(caption: &str, svg: &str) -> String {
    html::figure_html(caption, &format!("<div class=\"wide\">{svg}</div>"))
}

/// Style sheet of heat maps, in addition to that of all pages.
pub(crate) const STYLE: &str = include_str!("heat.css");

impl Scale {
    /// Returns the value at this part of the scale, from 0 (dark) to 1 (bright).
    fn value_at(self, part: f64) -> f64 {
        match self {
            Self::Linear { from, to } => from + part * (to - from),
            Self::Log { from, to } => {
                let [from, to] = [from, to].map(|value| value.max(1e-9).ln());
                (from + part * (to - from)).exp()
            }
            Self::Around { most } => most * (2.0 * part - 1.0),
        }
    }

    fn colour_of_value(self, value: f64) -> [f64; 3] {
        let (stops, at) = match self {
            Self::Linear { from, to } => (&BRIGHT[..], fraction_of_range(value, from, to)),
            Self::Log { from, to } => {
                let [value, from, to] = [value, from, to].map(|value| value.max(1e-9).ln());
                (&BRIGHT[..], fraction_of_range(value, from, to))
            }
            Self::Around { most } => (&AROUND[..], fraction_of_range(value, -most, most)),
        };
        let at = if at.is_finite() { at.clamp(0.0, 1.0) } else { 0.0 } * (stops.len() - 1) as f64;
        let below = (at as usize).min(stops.len() - 2);
        let part = at - below as f64;
        std::array::from_fn(|channel| stops[below][channel] * (1.0 - part) + stops[below + 1][channel] * part)
    }
}

/// Returns the position of a value between two others: 0 at `from`, 1 at `to`.
fn fraction_of_range(value: f64, from: f64, to: f64) -> f64 {
    if from == to { 1.0 } else { (value - from) / (to - from) }
}
