//! Axes: linear or logarithmic, with marks at round numbers or at given places.

use crate::format_number;
use plotters::coord::ranged1d::{KeyPointHint, KeyPointWeight, NoDefaultFormatting, Ranged, ValueFormatter};
use plotters::coord::types::RangedCoordf64;
use plotters::prelude::{IntoLogRange, LogCoord};
use serde::Serialize;
use std::ops::Range;

/// Axis of a [`Chart`](super::Chart).
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Axis {
    /// Quantity and unit: `Goodput (Gbit/s)`.
    pub label: String,
    /// Distances on the axis.
    pub scale: Scale,
    /// Marks, each at a value and with a label. Without any, round numbers are marked.
    #[serde(skip)]
    pub marks: Vec<(f64, String)>,
}

/// Distances on an axis.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Scale {
    /// Equal differences are equal distances; zero is on the axis.
    Linear,
    /// Equal ratios are equal distances; only values above zero are on the axis.
    Logarithmic,
}

/// Largest value on an axis; beyond, arithmetic on its ends could overflow.
const MAX_MAGNITUDE: f64 = 1e300;

impl Axis {
    /// Returns an axis from zero on.
    pub fn linear(label: impl Into<String>) -> Self {
        Self { label: label.into(), scale: Scale::Linear, marks: Vec::new() }
    }

    /// Returns an axis for values above zero.
    pub fn logarithmic(label: impl Into<String>) -> Self {
        Self { label: label.into(), scale: Scale::Logarithmic, marks: Vec::new() }
    }

    /// Returns a logarithmic axis of sizes in bytes, with a mark at each of them. Size 0 is put at 1.
    pub fn of_sizes(label: impl Into<String>, sizes: impl IntoIterator<Item = u64>) -> Self {
        let marks = sizes.into_iter().map(|size| (size.max(1) as f64, format_short_size(size)));
        Self { marks: marks.collect(), ..Self::logarithmic(label) }
    }

    /// Returns whether a value has a place on the axis.
    pub(super) fn has_place_for(&self, value: f64) -> bool {
        value.abs() <= MAX_MAGNITUDE && (self.scale == Scale::Linear || value >= 1.0 / MAX_MAGNITUDE)
    }

    /// Returns the coordinates over these values. `margin`: whether the outermost marks keep a distance from the ends.
    pub(super) fn coordinate(&self, values: impl Iterator<Item = f64>, margin: bool) -> Coordinate {
        let marked = self.marks.iter().map(|(at, _)| *at);
        let values = values.chain(marked).filter(|value| self.has_place_for(*value));
        let ends = values.fold((f64::INFINITY, f64::NEG_INFINITY), |(a, b), value| (a.min(value), b.max(value)));
        let ends = if ends.0 <= ends.1 { ends } else { (1.0, 1.0) };
        match self.scale {
            Scale::Linear => self.linear_coordinate(ends, margin),
            Scale::Logarithmic => self.logarithmic_coordinate(ends, margin),
        }
    }

    fn linear_coordinate(&self, (least, most): (f64, f64), margin: bool) -> Coordinate {
        let (least, most) = (least.min(0.0), most.max(0.0));
        let length = if most > least { most - least } else { 1.0 };
        let step = round_step(length);
        let (first, last) = ((least / step + 1e-9).floor() as i64, ((least + length) / step - 1e-9).ceil() as i64);
        let round = (first..=last).map(|n| n as f64 * step);
        let (from, to) = match margin {
            true => (least, least + length * 1.02),
            false => (first as f64 * step, last as f64 * step),
        };
        let marks = if self.marks.is_empty() {
            round.filter(|mark| (from..=to).contains(mark)).map(|mark| (mark, format_mark(mark))).collect()
        } else {
            self.marks.clone()
        };
        Coordinate { inner: Inner::Linear((from..to).into()), marks }
    }

    fn logarithmic_coordinate(&self, (least, most): (f64, f64), margin: bool) -> Coordinate {
        let (from, to) = (least.log10(), most.log10());
        let decades = (from.floor() as i32..=to.ceil() as i32).flat_map(|power| {
            let unit = 10_f64.powi(power);
            if to - from > 3.0 { vec![unit] } else { vec![unit, 2.0 * unit, 5.0 * unit] }
        });
        let decades: Vec<f64> = decades.collect();
        let (below, above) = if margin {
            let factor = 10_f64.powf(((to - from) * 0.02).max(0.01));
            (least / factor, most * factor)
        } else {
            let below = decades.iter().copied().rfind(|mark| mark.log10() <= from + 1e-9).unwrap_or(least);
            let above = decades.iter().copied().find(|mark| mark.log10() >= to - 1e-9).unwrap_or(most);
            (below, if above > below { above } else { below * 2.0 })
        };
        let marks = if self.marks.is_empty() {
            let marks = decades.into_iter().filter(|mark| (below..=above).contains(mark));
            marks.map(|mark| (mark, format_mark(mark))).collect()
        } else {
            self.marks.clone()
        };
        Coordinate { inner: Inner::Logarithmic((below..above).log_scale().into()), marks }
    }
}

/// Returns the distance between marks, 1, 2 or 5 times a power of ten, of which a length has at most six.
fn round_step(length: f64) -> f64 {
    let unit = 10_f64.powf((length / 6.0).log10().floor());
    [1.0, 2.0, 5.0, 10.0].map(|n| n * unit).into_iter().find(|step| length / step <= 6.0).unwrap_or(length)
}

/// Axis with its range and its marks.
pub(super) struct Coordinate {
    inner: Inner,
    marks: Vec<(f64, String)>,
}

enum Inner {
    Linear(RangedCoordf64),
    Logarithmic(LogCoord<f64>),
}

impl Coordinate {
    /// Removes the labels of marks that would run into each other on an axis of `pixels`, with `pixels_per_character`;
    /// the marks stay.
    pub(super) fn with_room_for_labels(mut self, pixels: i32, pixels_per_character: i32) -> Self {
        let mut free_from = i32::MIN;
        for at in 0..self.marks.len() {
            let (value, label) = &self.marks[at];
            let centre = self.map(value, (0, pixels));
            let half = (label.chars().count() as i32 * pixels_per_character) / 2 + 1;
            match centre - half >= free_from {
                true => free_from = centre + half + pixels_per_character / 2,
                false => self.marks[at].1.clear(),
            }
        }
        self
    }

    /// Returns the value on the axis that is nearest to `value`.
    pub(super) fn clamp(&self, value: f64) -> f64 {
        let range = self.range();
        value.clamp(range.start, range.end)
    }
}

impl Ranged for Coordinate {
    type FormatOption = NoDefaultFormatting;
    type ValueType = f64;

    fn map(&self, value: &f64, limit: (i32, i32)) -> i32 {
        match &self.inner {
            Inner::Linear(inner) => inner.map(value, limit),
            Inner::Logarithmic(inner) => inner.map(value, limit),
        }
    }

    fn key_points<Hint: KeyPointHint>(&self, hint: Hint) -> Vec<f64> {
        match hint.weight() {
            KeyPointWeight::Bold => self.marks.iter().map(|(at, _)| *at).collect(),
            KeyPointWeight::Any => Vec::new(),
        }
    }

    fn range(&self) -> Range<f64> {
        match &self.inner {
            Inner::Linear(inner) => inner.range(),
            Inner::Logarithmic(inner) => inner.range(),
        }
    }
}

impl ValueFormatter<f64> for Coordinate {
    fn format_ext(&self, value: &f64) -> String {
        self.marks.iter().find(|(at, _)| at == value).map(|(_, label)| label.clone()).unwrap_or_default()
    }
}

/// Formats a value as a mark on an axis: `0.5`, `50`, `20k`, `1M`, without the zeros that would suggest three digits.
fn format_mark(value: f64) -> String {
    const UNITS: [(f64, &str); 5] = [(1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")];
    // Below ten thousand, digits are as short.
    let unit = UNITS.into_iter().find(|(unit, _)| value.abs() >= 9.99e3 && value.abs() >= unit * 0.999);
    let (unit, name) = unit.unwrap_or((1.0, ""));
    if value.abs() >= 1e18 {
        return format!("{value:.0e}");
    }
    let text = format_number(value / unit);
    match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.').to_owned() + name,
        false => text + name,
    }
}

/// Formats a size in bytes as a mark on an axis: `1`, `1K`, `64K`, `1500`.
pub fn format_short_size(size: u64) -> String {
    const UNITS: [(u32, &str); 4] = [(40, "T"), (30, "G"), (20, "M"), (10, "K")];
    let whole = UNITS.iter().find(|(shift, _)| size > 0 && size.is_multiple_of(1 << shift));
    whole.map_or_else(|| size.to_string(), |(shift, unit)| format!("{}{unit}", size >> shift))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(axis: &Axis, values: &[f64], margin: bool) -> Vec<String> {
        axis.coordinate(values.iter().copied(), margin).marks.into_iter().map(|(_, label)| label).collect()
    }

    #[test]
    fn marks_are_round_and_cover_the_values() {
        assert_eq!(labels(&Axis::linear(""), &[3.0, 47.0], false), ["0", "10", "20", "30", "40", "50"]);
        assert_eq!(labels(&Axis::logarithmic(""), &[3.0, 47.0], false), ["2", "5", "10", "20", "50"]);
        assert_eq!(labels(&Axis::logarithmic(""), &[0.01, 1e5], true).len(), 8);
        assert_eq!(
            labels(&Axis::logarithmic(""), &[20.0, 3e6], false),
            ["10", "100", "1,000", "10k", "100k", "1M", "10M"]
        );
        assert_eq!(labels(&Axis::linear(""), &[90_000.0], false), ["0", "20k", "40k", "60k", "80k", "100k"]);
        assert_eq!(labels(&Axis::linear(""), &[], false), ["0", "0.2", "0.4", "0.6", "0.8", "1"]);
        assert_eq!(labels(&Axis::logarithmic(""), &[-1.0, 0.0, f64::NAN], false), ["1", "2"]);
        assert_eq!(labels(&Axis::linear(""), &[-0.1, 1.0], true).first().map(String::as_str), Some("0"));
    }

    #[test]
    fn every_size_has_a_mark_and_labels_do_not_run_into_each_other() {
        let axis = Axis::of_sizes("", [0, 1, 64, 1500, 4096, 65536, 1 << 30]);
        let values = axis.marks.iter().map(|(at, _)| *at).collect::<Vec<_>>();
        assert_eq!(labels(&axis, &values, true), ["0", "1", "64", "1500", "4K", "64K", "1G"]);
        let crowded = axis.coordinate(values.iter().copied(), true).with_room_for_labels(200, 10);
        let shown: Vec<&str> = crowded.marks.iter().map(|(_, label)| label.as_str()).collect();
        assert_eq!(shown, ["0", "", "64", "", "4K", "", "1G"]);
    }
}
