//! Charts, and the common properties of all pictures: width, colours, the appearance of series, the origin that is shown
//! below, and the conversion to SVG.

mod axis;
mod chart;
mod provenance;
mod style;

pub use axis::{Axis, Scale, format_short_size};
pub use chart::{
    Chart, DataPoint, Join, Limit, Series, caption_height, caption_lines, draw_caption, draw_panels_svg, loss_label,
    shorten_text, text_style,
};
pub use provenance::Provenance;
pub use style::{SeriesStyle, Shape};

use plotters::coord::Shift;
use plotters::prelude::*;
use thiserror::Error;

/// Width of a picture, in pixels: narrow enough for its text to be read on a telephone and in a column of a paper.
pub const PICTURE_WIDTH: u32 = 640;

/// Background colour. The page's style sheet refers to this colour, [`INK`], [`GRID`] and the first of [`COLOURS`], and
/// has others for dark paper.
pub const PAPER: RGBColor = RGBColor(0xff, 0xff, 0xff);
/// Colour of text and axes.
pub const INK: RGBColor = RGBColor(0x22, 0x22, 0x22);
/// Colour of grid lines.
pub const GRID: RGBColor = RGBColor(0xdd, 0xdd, 0xdd);
/// Colours that the colour-blind can distinguish (M. Okabe and K. Ito, "Color Universal Design", 2008).
pub const COLOURS: [RGBColor; 7] = [
    RGBColor(0x00, 0x72, 0xb2),
    RGBColor(0xd5, 0x5e, 0x00),
    RGBColor(0x00, 0x9e, 0x73),
    RGBColor(0xcc, 0x79, 0xa7),
    RGBColor(0xe6, 0x9f, 0x00),
    RGBColor(0x56, 0xb4, 0xe9),
    RGBColor(0x77, 0x77, 0x77),
];

/// The drawing area of a picture.
pub type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
/// Error of the drawing library.
pub type Refused = DrawingAreaErrorKind<std::io::Error>;

/// Error of drawing a picture.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("drawing: {0}")]
pub struct DrawError(String);

/// Returns a picture of this height in pixels, as the text of an SVG file.
///
/// # Errors
/// Fails if `draw` fails, or the background cannot be drawn.
pub fn draw_svg(height: u32, draw: impl FnOnce(&Area<'_>) -> Result<(), Refused>) -> Result<String, DrawError> {
    let mut out = String::new();
    let drawn = {
        let area = SVGBackend::with_string(&mut out, (PICTURE_WIDTH, height)).into_drawing_area();
        area.fill(&PAPER).and_then(|()| draw(&area)).and_then(|()| area.present())
    };
    drawn.map_err(|error| DrawError(error.to_string()))?;
    Ok(out)
}

/// Returns a table as CSV (RFC 4180), after the origin as lines that begin with `#`.
///
/// # Panics
/// If a row does not have the length of the headings.
pub fn format_csv(
    provenance: &Provenance,
    headings: &[impl AsRef<str>],
    rows: impl IntoIterator<Item = Vec<String>>,
) -> String {
    let mut out = String::new();
    for sentence in provenance.sentences() {
        out.push_str(&format!("# {}\n", crate::replace_controls(&sentence)));
    }
    let mut table = csv::Writer::from_writer(Vec::new());
    let head = headings.iter().map(|heading| heading.as_ref().to_owned()).collect();
    for row in std::iter::once(head).chain(rows) {
        table.write_record(&row).expect("all rows of a table have the length of its headings");
    }
    let table = table.into_inner().expect("memory takes every row");
    out + &String::from_utf8_lossy(&table)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_style_sheet_has_the_colours_of_pictures() {
        let bar = |area: &Area<'_>| area.draw(&Rectangle::new([(0, 0), (9, 9)], COLOURS[0].filled()));
        let picture = draw_svg(10, bar).unwrap();
        let style = include_str!("page.css");
        for colour in ["#FFFFFF", "#0072B2"] {
            let fill = format!("fill=\"{colour}\"");
            assert!(picture.contains(&fill) && style.contains(&fill), "{picture}");
        }
    }
}
