//! Beam moments: centroid, diameters and azimuth after ISO 11146.

use crate::ellipse::{Axes, Spread};
use crate::math::{lane_indices, load_vector, splat, vectorised, whole_vectors};
use crate::{Failure, Image};
use fearless_simd::prelude::*;

/// Options of [`beam_moments`]. [`Default`] has the values of ISO 11146, and where that gives a range, the values of the
/// Python package `laserbeamsize`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct MomentOptions {
    /// Fraction of the image's width and height taken by each of four corners, in which there is only background: from
    /// 0 to 0.25. ISO 11146-3 recommends 0.02 to 0.05. With 0 nothing is subtracted.
    pub corners: f64,
    /// Threshold for light above the corners' mean, in their standard deviations (n_T, ISO/TR 11146-3:2004, equation
    /// 59): from 2 to 4.
    pub threshold: f64,
    /// Sides of the integration region, in diameters of the beam (ISO 11146-1, 7.2: 3).
    pub diameters: f64,
    /// Change of the centre and of the diameters, in pixels, below which the region no longer follows the beam.
    pub tolerance: f64,
    /// Maximum number of times that the region follows the beam.
    pub iterations: usize,
}

impl Default for MomentOptions {
    fn default() -> Self {
        Self { corners: 0.035, threshold: 3.0, diameters: 3.0, tolerance: 1.0, iterations: 24 }
    }
}

/// Beam moments of an image.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Moments {
    /// Background that was subtracted: the mean of the pixels without light.
    pub background: f64,
    /// Standard deviation of the pixels without light.
    pub noise: f64,
    /// Σ (pixel − background) over the integration region.
    pub total: f64,
    /// Beam in pixels.
    pub beam: Beam,
    /// Beam in millimetres, if the image is calibrated. (If pixels are not square the axes differ from those in
    /// pixels.)
    pub millimetres: Option<Beam>,
    /// True if the integration region extends beyond the selected region. The part of the beam outside is not counted.
    pub cut: bool,
    /// True if the region came to rest. If it did not, noise on a large part of the image weighs as much as the beam:
    /// the diameters are those after the maximum number of [`iterations`](MomentOptions::iterations), and hardly the
    /// beam's.
    pub settled: bool,
    /// Number of times that the region was computed.
    pub iterations: usize,
}

/// A beam as an ellipse.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Beam {
    /// Centroid: the mean of x, weighted with the light.
    pub x: f64,
    /// Centroid: the mean of y, weighted with the light.
    pub y: f64,
    /// Diameter dσ along the longer principal axis: four standard deviations of the light (ISO 11146-1, 3.2: for a
    /// Gaussian beam the diameter at which 1/e² of the peak is left).
    pub d_major: f64,
    /// Diameter dσ along the shorter principal axis.
    pub d_minor: f64,
    /// Azimuth: from the rows' direction (x) to the longer axis, in radians, above −π/2 and up to π/2,
    /// counter-clockwise as the image is seen, with its first row on top.
    pub angle: f64,
}

/// Computes the moments of a beam.
///
/// 1. Background (ISO/TR 11146-3, 3.4): the mean of all pixels that are not above the corners' mean by more than
///    `threshold` of their standard deviations.
/// 2. First moments: from the pixels above the background by as much.
/// 3. Then, from all pixels within a rectangle along the beam's axes, `diameters` times its diameters, negative values
///    included; repeatedly, until the rectangle stays in place ([`Moments::settled`]).
///
/// # Errors
/// No light, saturated, not numbers, too few pixels, at the edge (the beam's own ellipse is not within the selected
/// region); undetermined if noise leaves no diameter.
pub fn beam_moments(image: &Image<'_>, options: &MomentOptions) -> Result<Moments, Failure> {
    let (columns, rows) = (image.column_count(), image.row_count());
    if columns < 3 || rows < 3 {
        return Err(Failure::TooFewPixels { pixels: columns * rows, needed: 9 });
    }
    image.survey_pixels()?;
    let (background, noise) = corner_background(image, options);
    let cleared = options.threshold * noise;
    let mut taken = Sums::over_columns(image, |_| (f64::NEG_INFINITY, f64::INFINITY), background, cleared);
    let mut beam = taken.beam_ellipse(1.0, 1.0)?;
    let mut iterations = 0;
    let mut region = Rectangle::around_beam(beam, options.diameters);
    let mut settled = false;
    while !settled && iterations < options.iterations {
        iterations += 1;
        region = Rectangle::around_beam(beam, options.diameters);
        taken = Sums::over_columns(image, |y| region.columns_at(y), background, f64::NEG_INFINITY);
        let next = taken.beam_ellipse(1.0, 1.0)?;
        let changes = [next.x - beam.x, next.y - beam.y, next.d_major - beam.d_major, next.d_minor - beam.d_minor];
        beam = next;
        settled = changes.iter().all(|change| change.abs() < options.tolerance);
    }
    // An ellipse extends two standard deviations of the light along x and y.
    let spread = taken.second_moments();
    if !image.encloses_rectangle([beam.x, beam.y], [2.0 * spread.xx.sqrt(), 2.0 * spread.yy.sqrt()]) {
        return Err(Failure::AtTheEdge);
    }
    let millimetres = image.calibration().map(|size| taken.beam_ellipse(size.x, size.y)).transpose()?;
    let cut = !image.encloses_rectangle([region.x, region.y], region.half_extents());
    Ok(Moments { background, noise, total: taken.light, beam, millimetres, cut, settled, iterations })
}

/// Returns the mean and the standard deviation of the pixels without light.
fn corner_background(image: &Image<'_>, options: &MomentOptions) -> (f64, f64) {
    if options.corners <= 0.0 {
        return (0.0, 0.0);
    }
    let (columns, rows) = (image.column_count(), image.row_count());
    let [wide, high] = [columns, rows].map(|length| ((length as f64 * options.corners) as usize).clamp(1, length / 2));
    let mut corners = vec![0.0; 4 * wide * high];
    let (mut places, rows_of_corners) = (corners.chunks_exact_mut(wide), (0..high).chain(rows - high..rows));
    for y in rows_of_corners {
        for x in [0, columns - wide] {
            if let Some(place) = places.next() {
                image.load_row_part(x, y, place);
            }
        }
    }
    let pixels = corners.len() as f64;
    let mean = corners.iter().sum::<f64>() / pixels;
    let variance = corners.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / pixels;
    let limit = mean + options.threshold * variance.sqrt();
    let [dark, over, squares] = vectorised!(simd => dark_sums(simd, image, limit, mean));
    let (mean, over) = (mean + over / dark, over / dark);
    (mean, (squares / dark - over * over).max(0.0).sqrt())
}

/// Returns the number of pixels not above a limit, and the sums of their distances from `pivot` and of these squared.
#[inline(always)]
fn dark_sums<S: Simd>(simd: S, image: &Image<'_>, limit: f64, pivot: f64) -> [f64; 3] {
    let columns = image.column_count();
    // Padding of the last vector of a row is above the limit.
    let mut row = vec![f64::INFINITY; whole_vectors(columns)];
    let (none, one) = (splat(simd, 0.0), splat(simd, 1.0));
    let (mut pixels, mut sum, mut squares) = (none, none, none);
    for y in 0..image.row_count() {
        image.load_row_part(0, y, &mut row[..columns]);
        for at in (0..row.len()).step_by(S::f64s::LEN) {
            let values = load_vector(simd, &row, at);
            let is_dark = values.simd_le(limit);
            let over = is_dark.select(values - pivot, none);
            pixels += is_dark.select(one, none);
            sum += over;
            squares = over.mul_add(over, squares);
        }
    }
    [pixels.reduce_sum(), sum.reduce_sum(), squares.reduce_sum()]
}

/// Sums over the light of an image, from which its moments follow; x and y are counted from the middle of the selected
/// region, so that squares are not much larger than their differences.
#[derive(Debug, Clone, Copy, Default)]
struct Sums {
    middle: [f64; 2],
    light: f64,
    x: f64,
    y: f64,
    xx: f64,
    xy: f64,
    yy: f64,
}

impl Sums {
    /// Sums over the columns that `columns` gives for each row (from, to, inclusive, as coordinates of the image).
    /// Light is a pixel's excess above the background, if that is not less than `least`.
    fn over_columns(image: &Image<'_>, columns: impl Fn(f64) -> (f64, f64), background: f64, least: f64) -> Self {
        let seen = image.selected_region();
        let middle = [seen.x + seen.width / 2, seen.y + seen.height / 2].map(|at| at as f64);
        let mut sums = Self { middle, ..Self::default() };
        let mut row = vec![0.0; whole_vectors(seen.width)];
        for line in 0..seen.height {
            let y = (seen.y + line) as f64;
            let (from, to) = columns(y);
            let here = image.columns_between(from, to);
            if here.is_empty() {
                continue;
            }
            // Padding of the last vector has no light.
            let row = &mut row[..whole_vectors(here.len())];
            row[here.len()..].fill(background);
            let x = (seen.x + here.start) as f64 - middle[0];
            let [light, x, xx] = vectorised!(simd => {
                image.load_row_part(here.start, line, &mut row[..here.len()]);
                row_sums(simd, row, x, background, least)
            });
            let y = y - middle[1];
            sums.light += light;
            sums.x += x;
            sums.xx += xx;
            sums.y += light * y;
            sums.xy += x * y;
            sums.yy += light * y * y;
        }
        sums
    }

    /// Returns the second moments about the centroid.
    fn second_moments(&self) -> Spread {
        let (x, y) = (self.x / self.light, self.y / self.light);
        Spread { xx: self.xx / self.light - x * x, xy: self.xy / self.light - x * y, yy: self.yy / self.light - y * y }
    }

    /// Returns the beam, with pixels of this size.
    fn beam_ellipse(&self, x: f64, y: f64) -> Result<Beam, Failure> {
        if self.light.is_nan() || self.light <= 0.0 {
            return Err(Failure::NoLight);
        }
        let (Axes { major, minor, angle }, _) = self.second_moments().scaled_by(x, y).principal_axes();
        if minor.is_nan() || minor <= 0.0 {
            return Err(Failure::Undetermined);
        }
        Ok(Beam {
            x: (self.middle[0] + self.x / self.light) * x,
            y: (self.middle[1] + self.y / self.light) * y,
            d_major: 4.0 * major.sqrt(),
            d_minor: 4.0 * minor.sqrt(),
            angle,
        })
    }
}

/// Returns Σ light, Σ light · x and Σ light · x² along a row that begins at `from`.
#[inline(always)]
fn row_sums<S: Simd>(simd: S, row: &[f64], from: f64, background: f64, least: f64) -> [f64; 3] {
    let none = splat(simd, 0.0);
    let mut x = lane_indices(simd) + from;
    let (mut sum, mut first, mut second) = (none, none, none);
    for at in (0..row.len()).step_by(S::f64s::LEN) {
        let light = load_vector(simd, row, at) - background;
        let light = light.simd_ge(least).select(light, none);
        let lever = light * x;
        sum += light;
        first += lever;
        second = lever.mul_add(x, second);
        x += S::f64s::LEN as f64;
    }
    [sum.reduce_sum(), first.reduce_sum(), second.reduce_sum()]
}

/// Integration region: a rectangle along the beam's axes.
#[derive(Debug, Clone, Copy)]
struct Rectangle {
    x: f64,
    y: f64,
    /// Half of the lengths of its sides.
    along: f64,
    across: f64,
    /// Direction of the longer axis, with y going down.
    sin: f64,
    cos: f64,
}

impl Rectangle {
    fn around_beam(beam: Beam, diameters: f64) -> Self {
        let (sin, cos) = (-beam.angle).sin_cos();
        let half = diameters / 2.0;
        Self { x: beam.x, y: beam.y, along: half * beam.d_major, across: half * beam.d_minor, sin, cos }
    }

    /// Returns the first and the last x within the rectangle, for a row.
    #[inline(always)]
    fn columns_at(&self, y: f64) -> (f64, f64) {
        let dy = y - self.y;
        // |dx cos + dy sin| ≤ along and |dy cos − dx sin| ≤ across.
        let (a, b) = strip_bounds(self.cos, dy * self.sin, self.along);
        let (c, d) = strip_bounds(-self.sin, dy * self.cos, self.across);
        (self.x + a.max(c), self.x + b.min(d))
    }

    /// Returns its half extents along x and y.
    fn half_extents(&self) -> [f64; 2] {
        let (sin, cos) = (self.sin.abs(), self.cos.abs());
        [self.along * cos + self.across * sin, self.along * sin + self.across * cos]
    }
}

/// Returns the first and the last x with |slope · x + offset| ≤ half; the first is larger if there is none.
#[inline(always)]
fn strip_bounds(slope: f64, offset: f64, half: f64) -> (f64, f64) {
    if slope.abs() < 1e-12 {
        return if offset.abs() <= half { (f64::NEG_INFINITY, f64::INFINITY) } else { (1.0, -1.0) };
    }
    let (a, b) = ((-half - offset) / slope, (half - offset) / slope);
    (a.min(b), a.max(b))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Calibration, Region};
    use proptest::prelude::*;
    use std::f64::consts::{FRAC_PI_2, PI};

    /// Returns an elliptical Gaussian beam with these diameters (four σ), as 16-bit pixels.
    fn beam(width: usize, height: usize, put: Beam, background: f64) -> Vec<u16> {
        let (sin, cos) = put.angle.sin_cos();
        let at = |n: usize| {
            let (dx, dy) = ((n % width) as f64 - put.x, (n / width) as f64 - put.y);
            let (u, v) = (dx * cos - dy * sin, dx * sin + dy * cos);
            (background + 50_000.0 * (-8.0 * ((u / put.d_major).powi(2) + (v / put.d_minor).powi(2))).exp()).round()
        };
        (0..width * height).map(|n| at(n) as u16).collect()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn a_gaussian_beam_has_its_diameters(
            (x, y) in (190.0..210.0f64, 140.0..160.0f64),
            (d_major, round) in (20.0..70.0f64, 0.4..0.9f64),
            angle in -FRAC_PI_2..FRAC_PI_2,
            background in 0.0..900.0f64,
        ) {
            let put = Beam { x, y, d_major, d_minor: d_major * round, angle };
            let pixels = beam(400, 300, put, background);
            let got = beam_moments(&Image::new(400, 300, &pixels).unwrap(), &MomentOptions::default()).unwrap();
            let Beam { x, y, d_major, d_minor, .. } = got.beam;
            for (got, put) in [(x, put.x), (y, put.y), (d_major, put.d_major), (d_minor, put.d_minor)] {
                prop_assert!((got / put - 1.0).abs() < 2e-3, "{got} for {put}");
            }
            let turned = (got.beam.angle - angle).rem_euclid(PI);
            prop_assert!(turned.min(PI - turned) < 1e-2, "{} for {angle}", got.beam.angle);
            prop_assert!((got.background - background.round()).abs() < 1.0 && !got.cut);
        }

        #[test]
        fn a_row_is_within_the_rectangle_where_each_of_its_pixels_is(
            angle in -FRAC_PI_2..FRAC_PI_2, along in 3.0..30.0f64, across in 1.0..20.0f64, y in -40.0..40.0f64,
        ) {
            let beam = Beam { x: 5.3, y: 1.7, d_major: 2.0 * along, d_minor: 2.0 * across, angle };
            let region = Rectangle::around_beam(beam, 1.0);
            let (from, to) = region.columns_at(y.round());
            for x in -60..=60 {
                let (dx, dy) = (f64::from(x) - region.x, y.round() - region.y);
                let inside = (dx * region.cos + dy * region.sin).abs() <= along
                    && (dy * region.cos - dx * region.sin).abs() <= across;
                prop_assert_eq!((from..=to).contains(&f64::from(x)), inside, "{}", x);
            }
        }
    }

    #[test]
    fn a_beam_in_millimetres_is_that_of_square_pixels() {
        let pixels = beam(400, 300, Beam { x: 200.0, y: 150.0, d_major: 60.0, d_minor: 40.0, angle: 0.0 }, 3.0);
        let image = Image::new(400, 300, &pixels).unwrap().with_calibration(Calibration { x: 0.01, y: 0.02 }).unwrap();
        let got = beam_moments(&image, &MomentOptions::default()).unwrap().millimetres.unwrap();
        for (got, put) in [(got.x, 2.0), (got.y, 3.0), (got.d_major, 0.8), (got.d_minor, 0.6)] {
            assert!((got / put - 1.0).abs() < 2e-3, "{got} for {put}");
        }
        assert!((got.angle.abs() - FRAC_PI_2).abs() < 1e-2);
    }

    #[test]
    fn a_region_has_the_moments_of_the_image_it_is_cut_from() {
        let pixels = beam(400, 300, Beam { x: 210.0, y: 140.0, d_major: 40.0, d_minor: 30.0, angle: 0.5 }, 100.0);
        let image = Image::new(400, 300, &pixels).unwrap();
        let whole = beam_moments(&image, &MomentOptions::default()).unwrap().beam;
        let part = image.with_region(Region { x: 120, y: 50, width: 200, height: 190 }).unwrap();
        let part = beam_moments(&part, &MomentOptions::default()).unwrap().beam;
        assert!((whole.x - part.x).abs() < 0.05 && (whole.d_major - part.d_major).abs() < 0.05, "{whole:?} {part:?}");
    }

    #[test]
    fn each_failure_has_its_reason() {
        let of = |x, d_major| {
            let pixels = beam(120, 100, Beam { x, y: 50.0, d_major, d_minor: 0.8 * d_major, angle: 0.0 }, 100.0);
            beam_moments(&Image::new(120, 100, &pixels).unwrap(), &MomentOptions::default()).map(|got| got.cut)
        };
        assert_eq!(of(60.0, 20.0), Ok(false));
        assert_eq!(of(60.0, 60.0), Ok(true));
        assert_eq!(of(4.0, 30.0), Err(Failure::AtTheEdge));
        let options = MomentOptions::default();
        let pixels = vec![3u8; 400];
        assert_eq!(beam_moments(&Image::new(20, 20, &pixels).unwrap(), &options), Err(Failure::NoLight));
        assert!(matches!(
            beam_moments(&Image::new(200, 2, &pixels).unwrap(), &options),
            Err(Failure::TooFewPixels { .. })
        ));
        let never = MomentOptions { iterations: 0, ..options };
        let pixels = beam(120, 100, Beam { x: 60.0, y: 50.0, d_major: 20.0, d_minor: 16.0, angle: 0.0 }, 100.0);
        let ended = beam_moments(&Image::new(120, 100, &pixels).unwrap(), &never);
        assert!(!ended.unwrap().settled, "nothing says that the region would stay");
    }
}
