//! Appearance of the series of a chart: colour, shape of the markers, dashes. Two series can be told apart in black and
//! white, too.

use super::{COLOURS, PAPER, Refused};
use plotters::coord::Shift;
use plotters::element::DashedPathElement;
use plotters::prelude::*;

/// Appearance of a series.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SeriesStyle {
    /// Colour of its line and markers.
    pub colour: RGBColor,
    /// Shape of its markers.
    pub shape: Shape,
    /// Lengths of a dash and of the gap after it, in pixels; `None` for a line without gaps.
    pub dash: Option<(i32, i32)>,
}

/// Shape of a marker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shape {
    /// Round marker.
    Circle,
    /// Square on its side.
    Square,
    /// Triangle with a corner at the top.
    Triangle,
    /// Square on a corner.
    Diamond,
    /// Triangle with a corner at the bottom.
    Wedge,
}

/// Half of the width of a marker, in pixels.
const MARKER_RADIUS: i32 = 5;

const SHAPES: [Shape; 5] = [Shape::Circle, Shape::Square, Shape::Triangle, Shape::Diamond, Shape::Wedge];
const DASHES: [Option<(i32, i32)>; 4] = [None, Some((8, 4)), Some((2, 4)), Some((16, 4))];

impl SeriesStyle {
    /// Returns the appearance of the series with this number, counted from 0; the first 140 differ.
    pub fn for_index(index: usize) -> Self {
        Self {
            colour: COLOURS[index % COLOURS.len()],
            shape: SHAPES[index % SHAPES.len()],
            dash: DASHES[index % DASHES.len()],
        }
    }

    /// Draws a marker at a place in pixels; a hollow one for a value that is in doubt.
    pub(super) fn draw_marker<DB: DrawingBackend>(
        &self,
        area: &DrawingArea<DB, Shift>,
        (x, y): (i32, i32),
        hollow: bool,
    ) -> Result<(), DrawingAreaErrorKind<DB::ErrorType>> {
        let r = MARKER_RADIUS;
        let corners: Vec<(i32, i32)> = match self.shape {
            Shape::Circle => {
                if hollow {
                    area.draw(&Circle::new((x, y), r, PAPER.filled()))?;
                    return area.draw(&Circle::new((x, y), r, self.colour.stroke_width(2)));
                }
                return area.draw(&Circle::new((x, y), r, self.colour.filled()));
            }
            Shape::Square => vec![(x - r, y - r), (x + r, y - r), (x + r, y + r), (x - r, y + r)],
            Shape::Triangle => vec![(x, y - r - 1), (x + r + 1, y + r), (x - r - 1, y + r)],
            Shape::Diamond => vec![(x, y - r - 2), (x + r + 2, y), (x, y + r + 2), (x - r - 2, y)],
            Shape::Wedge => vec![(x, y + r + 1), (x + r + 1, y - r), (x - r - 1, y - r)],
        };
        let fill = if hollow { PAPER } else { self.colour };
        area.draw(&Polygon::new(corners.clone(), fill.filled()))?;
        let outline = corners.iter().chain(corners.first()).copied().collect::<Vec<_>>();
        area.draw(&PathElement::new(outline, self.colour.stroke_width(2)))
    }

    /// Draws a line through places in pixels.
    pub(super) fn draw_line(&self, area: &super::Area<'_>, places: Vec<(i32, i32)>) -> Result<(), Refused> {
        let stroke = self.colour.stroke_width(2);
        match self.dash {
            None => area.draw(&PathElement::new(places, stroke)),
            Some((length, gap)) => area.draw(&DashedPathElement::new(places, length, gap, stroke)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn the_first_twenty_differ_without_colour() {
        let styles: HashSet<String> =
            (0..20).map(SeriesStyle::for_index).map(|style| format!("{:?} {:?}", style.shape, style.dash)).collect();
        assert_eq!(styles.len(), 20);
    }
}
