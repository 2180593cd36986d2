//! Fringes over an image, as a double slit, or four slits at the corners of a rectangle, make them.

use crate::fit::{Estimate, Quality};
use crate::fringes::{Wave, envelope_start, fringe_start as line_start, wave_from_minimum as waves};
use crate::gaussian_2d::search_minimum;
use crate::math::{load_vector, splat, vectorised, whole_vectors};
use crate::minimise::Minimum;
use crate::normal::{Model, Normal};
use crate::pattern::{Envelope, pattern_derivatives, wave_derivatives};
use crate::period::{magnitude_spectrum, parabola_peak, spectrum_peaks, windowed_values};
use crate::{Axis, Failure, Image, Profile};
use fearless_simd::prelude::*;
use rustfft::num_complex::Complex;
use std::f64::consts::{FRAC_PI_3, PI, TAU};

/// Slits or holes that the light came through.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Slits {
    /// Two slits (or holes) side by side in this direction: one system of fringes, which change in this direction.
    Double(Axis),
    /// Four holes at the corners of a rectangle: two systems of fringes, which multiply.
    Four,
}

/// Options of [`fit_fringes_2d`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fringes2dOptions {
    /// Shape of the light of one slit.
    pub envelope: Envelope,
    /// Slits or holes that the light came through.
    pub slits: Slits,
    /// True if the slits may be rotated with respect to the camera, up to 60°. If they are not, a fit takes a tenth of
    /// the time, since the model is then a product of a function of x and one of y.
    pub turned: bool,
}

/// Fitted model: background + amplitude · E(u / width x) · E(v / width y) · wave x(u) · wave y(v), at the pixels'
/// centres, where (u, v) is the distance from the centre (x, y), rotated by the angle, E the [`Envelope`] and a wave 1
/// + visibility · cos(2π u / period + phase).
///
/// Four holes give this product if the light has a degree of coherence that is a product, γ(dx, dy) = γ(dx) γ(dy), as
/// that of an upright Gaussian beam.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Fringes2d {
    /// Background, in the pixels' unit.
    pub background: Estimate,
    /// Amplitude of the envelope above the background, in the pixels' unit.
    pub amplitude: Estimate,
    /// Centre of the envelope along x, in pixels.
    pub x: Estimate,
    /// Centre of the envelope along y, in pixels.
    pub y: Estimate,
    /// Width of the envelope along u, in pixels.
    pub width_x: Estimate,
    /// Width of the envelope along v, in pixels.
    pub width_y: Estimate,
    /// Fringes that change along u.
    pub wave_x: Option<Wave>,
    /// Fringes that change along v.
    pub wave_y: Option<Wave>,
    /// Angle from the rows' direction to u, in radians, counter-clockwise as the image is seen, with its first row on
    /// top; 0 ± 0 if rotation was not enabled.
    pub angle: Estimate,
    /// Lengths in millimetres, if the image is calibrated. (Not if the slits are rotated and the pixels are not square:
    /// there u and v are not at right angles.)
    pub millimetres: Option<Fringes2dMillimetres>,
    /// Quality of the fit.
    pub quality: Quality,
}

/// Lengths of a fit in millimetres.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Fringes2dMillimetres {
    /// Centre of the envelope along x.
    pub x: Estimate,
    /// Centre of the envelope along y.
    pub y: Estimate,
    /// Width of the envelope along u.
    pub width_x: Estimate,
    /// Width of the envelope along v.
    pub width_y: Estimate,
    /// Distance from fringe to fringe along u.
    pub period_x: Option<Estimate>,
    /// Distance from fringe to fringe along v.
    pub period_y: Option<Estimate>,
}

/// Fits fringes to an image of at least 16 × 16 pixels. Starting values come from its average row and column or, where
/// the slits may be turned, from the spectra of rows or columns.
///
/// # Errors
/// No light, no fringes, saturated, not numbers, too few pixels, too wide, at the edge, does not converge.
pub fn fit_fringes_2d(image: &Image<'_>, options: &Fringes2dOptions) -> Result<Fringes2d, Failure> {
    let (columns, rows) = (image.column_count(), image.row_count());
    if columns < 16 || rows < 16 {
        return Err(Failure::TooFewPixels { pixels: columns * rows, needed: 256 });
    }
    let survey = image.survey_pixels()?;
    let &Fringes2dOptions { envelope, slits, turned } = options;
    let start = plane_start(image, options)?;
    let model = Plane { envelope, slits, turned, reference: [start[X.center], start[Y.center]] };
    let minimum = search_minimum(image, &survey, &model, start, model.fixed_parameters())?;
    let quality = Quality::from_minimum(&minimum, survey.squares)?;
    let [background, amplitude, x, y, width_x, width_y, turn] =
        [0, 1, X.center, Y.center, X.width, Y.width, ANGLE_INDEX].map(|k| Estimate::from_minimum(&minimum, k));
    if !amplitude.is_significant() {
        return Err(Failure::NoLight);
    }
    if !image.contains_place(x.value, y.value) {
        return Err(Failure::AtTheEdge);
    }
    if width_x.value.max(width_y.value) > envelope.width_for_sigma(columns.max(rows) as f64) {
        return Err(Failure::TooWide);
    }
    let [wave_x, wave_y] = model.fitted_waves(&minimum);
    if [wave_x, wave_y].into_iter().flatten().any(|wave| !wave.visibility.is_significant()) {
        return Err(Failure::NoFringes);
    }
    // Counter-clockwise as the image is seen, not with y going down.
    let angle = if turned { turn.scaled_by(-1.0) } else { Estimate { value: 0.0, std: 0.0 } };
    let size = image.calibration().filter(|size| !turned || size.x == size.y);
    let millimetres = size.map(|size| Fringes2dMillimetres {
        x: x.scaled_by(size.x),
        y: y.scaled_by(size.y),
        width_x: width_x.scaled_by(size.x),
        width_y: width_y.scaled_by(size.y),
        period_x: wave_x.map(|wave| wave.period.scaled_by(size.x)),
        period_y: wave_y.map(|wave| wave.period.scaled_by(size.y)),
    });
    Ok(Fringes2d { background, amplitude, x, y, width_x, width_y, wave_x, wave_y, angle, millimetres, quality })
}

/// Indices of the parameters of one direction; 0 and 1 are background and amplitude.
#[derive(Debug, Clone, Copy)]
struct Direction {
    center: usize,
    width: usize,
    c: usize,
    s: usize,
    k: usize,
}

const X: Direction = Direction { center: 2, width: 3, c: 4, s: 5, k: 6 };
const Y: Direction = Direction { center: 7, width: 8, c: 9, s: 10, k: 11 };
const ANGLE_INDEX: usize = 12;
const PARAMETER_COUNT: usize = 13;

/// Model of an image with fringes. Angles are those with y going down.
#[derive(Debug)]
struct Plane {
    envelope: Envelope,
    slits: Slits,
    turned: bool,
    /// Place to which the phases of the waves, as given by c and s, refer.
    reference: [f64; 2],
}

impl Plane {
    /// Returns whether there are fringes along u, and along v.
    fn wave_directions(&self) -> [bool; 2] {
        [self.slits != Slits::Double(Axis::Y), self.slits != Slits::Double(Axis::X)]
    }

    fn fixed_parameters(&self) -> [bool; PARAMETER_COUNT] {
        let mut fixed = [false; PARAMETER_COUNT];
        for (direction, waved) in [X, Y].iter().zip(self.wave_directions()) {
            for at in [direction.c, direction.s, direction.k] {
                fixed[at] = !waved;
            }
        }
        fixed[ANGLE_INDEX] = !self.turned;
        fixed
    }

    fn fitted_waves(&self, minimum: &Minimum<PARAMETER_COUNT>) -> [Option<Wave>; 2] {
        let at = &minimum.parameters;
        let (sin, cos) = at[ANGLE_INDEX].sin_cos();
        let (dx, dy) = (at[X.center] - self.reference[0], at[Y.center] - self.reference[1]);
        let (u, v) = (dx * cos + dy * sin, dy * cos - dx * sin);
        let [x, y] = self.wave_directions();
        let along_u = [(X.center, cos), (Y.center, sin), (ANGLE_INDEX, v)];
        let along_v = [(X.center, -sin), (Y.center, cos), (ANGLE_INDEX, -u)];
        [
            x.then(|| waves(minimum, [X.c, X.s, X.k], &along_u, u)),
            y.then(|| waves(minimum, [Y.c, Y.s, Y.k], &along_v, v)),
        ]
    }

    /// Computes the pattern in one direction, and its derivatives, at each of these places.
    #[inline(always)]
    fn fill_vectors<S: Simd>(
        &self,
        simd: S,
        of: Direction,
        at: &[f64; PARAMETER_COUNT],
        places: &[f64],
        out: &mut [Vec<f64>; 7],
    ) {
        let reference = self.reference[usize::from(of.center == Y.center)];
        let with = [at[of.c], at[of.s], at[of.k]];
        for from in (0..places.len()).step_by(S::f64s::LEN) {
            let x = load_vector(simd, places, from);
            let vectors =
                pattern_derivatives(simd, self.envelope, x - at[of.center], x - reference, at[of.width], with);
            for k in 0..6 {
                vectors[k].store_slice(&mut out[k][from..from + S::f64s::LEN]);
            }
        }
    }

    /// Computes the normal equations if the slits are not rotated: each column of J is a vector along x times one along
    /// y, so that JᵀJ consists of sums along the two, and only Jᵀr has to be summed over the pixels.
    fn upright_equations(
        &self,
        image: &Image<'_>,
        step: usize,
        at: &[f64; PARAMETER_COUNT],
    ) -> Normal<PARAMETER_COUNT> {
        let seen = image.selected_region();
        let lines = [(X, seen.x, seen.width, 1), (Y, seen.y, seen.height, step)].map(|(of, from, length, step)| {
            let count = length.div_ceil(step);
            let places: Vec<f64> = (0..whole_vectors(count)).map(|n| (from + n * step) as f64).collect();
            let mut vectors: [Vec<f64>; 7] = std::array::from_fn(|_| vec![1.0; places.len()]);
            vectorised!(simd => self.fill_vectors(simd, of, at, &places, &mut vectors));
            vectors.iter_mut().for_each(|vector| vector.truncate(count));
            Vectors(vectors)
        });
        let [across, down] = &lines;
        let sums = vectorised!(simd => residual_sums(simd, image, step, at[0], at[1], across, down));
        // Column k is its factor times vector a along x times vector b along y.
        let amplitude = at[1];
        let columns: [(f64, usize, usize); PARAMETER_COUNT] = std::array::from_fn(|k| match k {
            0 => (1.0, ONES_INDEX, ONES_INDEX),
            1 => (1.0, 0, 0),
            ANGLE_INDEX => (0.0, ONES_INDEX, ONES_INDEX),
            k if k < Y.center => (amplitude, k - X.center + 1, 0),
            k => (amplitude, 0, k - Y.center + 1),
        });
        let (by_x, by_y) = (across.vector_products(), down.vector_products());
        let matrix = columns.map(|(f, a, b)| columns.map(|(g, c, d)| f * g * by_x[a][c] * by_y[b][d]));
        Normal {
            matrix,
            gradient: std::array::from_fn(|k| match (k, columns[k]) {
                (0, _) => sums.residuals,
                (ANGLE_INDEX, _) => 0.0,
                (_, (factor, a, 0)) => factor * sums.along_x[a],
                (_, (factor, _, b)) => factor * sums.along_y[b],
            }),
            squares: sums.squares,
            pixels: seen.width * seen.height.div_ceil(step),
        }
    }
}

/// A pattern along a line; its derivatives by centre, width, c, s, k; and ones.
#[derive(Debug)]
struct Vectors([Vec<f64>; 7]);

const ONES_INDEX: usize = 6;

impl Vectors {
    fn vector_products(&self) -> [[f64; 7]; 7] {
        let vectors = self.0.each_ref();
        vectors.map(|one| vectors.map(|other| one.iter().zip(other).map(|(a, b)| a * b).sum()))
    }
}

/// Sums over the residuals of an image.
#[derive(Debug, Default)]
struct Residuals {
    residuals: f64,
    squares: f64,
    /// Σ r · (vector a along x) · (the pattern along y).
    along_x: [f64; 6],
    /// Σ r · (the pattern along x) · (vector b along y).
    along_y: [f64; 6],
}

#[inline(always)]
fn residual_sums<S: Simd>(
    simd: S,
    image: &Image<'_>,
    step: usize,
    background: f64,
    amplitude: f64,
    Vectors(across): &Vectors,
    Vectors(down): &Vectors,
) -> Residuals {
    let columns = image.column_count();
    // Padding of the last vector of a row is background, where the pattern is 0.
    let mut row = vec![background; whole_vectors(columns)];
    let mut vectors: [Vec<f64>; 6] = Default::default();
    for (vector, across) in vectors.iter_mut().zip(across) {
        vector.extend_from_slice(across);
        vector.resize(row.len(), 0.0);
    }
    let [a, b, c, d, e, f] = vectors.each_ref().map(|vector| &vector[..row.len()]);
    let mut sums = Residuals::default();
    for (n, y) in (0..image.row_count()).step_by(step).enumerate() {
        image.load_row_part(0, y, &mut row[..columns]);
        let height = amplitude * down[0][n];
        let mut by = [splat(simd, 0.0); 8];
        for x in (0..row.len()).step_by(S::f64s::LEN) {
            let pattern = load_vector(simd, a, x);
            let r = load_vector(simd, &row, x) - background - pattern * height;
            by[0] = r.mul_add(pattern, by[0]);
            by[1] = r.mul_add(load_vector(simd, b, x), by[1]);
            by[2] = r.mul_add(load_vector(simd, c, x), by[2]);
            by[3] = r.mul_add(load_vector(simd, d, x), by[3]);
            by[4] = r.mul_add(load_vector(simd, e, x), by[4]);
            by[5] = r.mul_add(load_vector(simd, f, x), by[5]);
            by[6] += r;
            by[7] = r.mul_add(r, by[7]);
        }
        sums.residuals += by[6].reduce_sum();
        sums.squares += by[7].reduce_sum();
        let light = by[0].reduce_sum();
        for k in 0..6 {
            sums.along_x[k] += by[k].reduce_sum() * down[0][n];
            sums.along_y[k] += light * down[k][n];
        }
    }
    sums
}

impl Model<PARAMETER_COUNT, 14> for Plane {
    fn normal_equations(
        &self,
        image: &Image<'_>,
        step: usize,
        parameters: &[f64; PARAMETER_COUNT],
    ) -> Normal<PARAMETER_COUNT> {
        match self.turned {
            true => Normal::sum_over_image(image, step, self, parameters),
            false => self.upright_equations(image, step, parameters),
        }
    }

    #[inline(always)]
    fn derivative_columns<S: Simd>(&self, simd: S, at: &[f64; PARAMETER_COUNT], x: S::f64s, y: f64) -> [S::f64s; 14] {
        let (sin, cos) = at[ANGLE_INDEX].sin_cos();
        let (background, amplitude) = (at[0], at[1]);
        let (dx, dy) = (x - at[X.center], y - at[Y.center]);
        let (rx, ry) = (x - self.reference[0], y - self.reference[1]);
        let (u, v) = (dx.mul_add(cos, dy * sin), dx.mul_add(-sin, dy * cos));
        let (ru, rv) = (rx.mul_add(cos, ry * sin), rx.mul_add(-sin, ry * cos));
        let [e, e_u, e_width] = self.envelope.derivatives_at(simd, u, at[X.width]);
        let [f, f_v, f_width] = self.envelope.derivatives_at(simd, v, at[Y.width]);
        let [along_u, along_v] = self.wave_directions();
        let [p, p_u, p_c, p_s, p_k] = wave_or_none(simd, along_u, ru, [at[X.c], at[X.s], at[X.k]]);
        let [q, q_v, q_c, q_s, q_k] = wave_or_none(simd, along_v, rv, [at[Y.c], at[Y.s], at[Y.k]]);
        let (pq, ef) = (p * q * amplitude, e * f * amplitude);
        let (efp, efq) = (ef * p, ef * q);
        // Derivatives by moving along u and v: of the envelope, and of the waves.
        let (by_u, by_v) = (pq * e_u * f, pq * e * f_v);
        let turn = by_u * v - by_v * u + efq * p_u * rv - efp * q_v * ru;
        [
            splat(simd, 1.0),
            e * f * p * q,
            by_v * sin - by_u * cos,
            pq * e_width * f,
            efq * p_c,
            efq * p_s,
            efq * p_k,
            by_u * -sin - by_v * cos,
            pq * e * f_width,
            efp * q_c,
            efp * q_s,
            efp * q_k,
            turn,
            efp * q + background,
        ]
    }

    fn allows_parameters(&self, at: &[f64; PARAMETER_COUNT]) -> bool {
        let mut directions = [X, Y].into_iter().zip(self.wave_directions());
        at[ANGLE_INDEX].abs() < 1.2 * FRAC_PI_3
            && directions.all(|(of, waved)| at[of.width] > 0.1 && (!waved || at[of.k] > 0.0 && at[of.k] < PI))
    }
}

/// Returns the wave and its derivatives, or a constant 1 if there is no wave.
#[inline(always)]
fn wave_or_none<S: Simd>(simd: S, waved: bool, u: S::f64s, with: [f64; 3]) -> [S::f64s; 5] {
    if waved {
        return wave_derivatives(simd, u, with);
    }
    let (none, one) = (splat(simd, 0.0), splat(simd, 1.0));
    [one, none, none, none, none]
}

fn plane_start(image: &Image<'_>, options: &Fringes2dOptions) -> Result<[f64; PARAMETER_COUNT], Failure> {
    let &Fringes2dOptions { envelope, slits, turned } = options;
    let plane = Plane { envelope, slits, turned, reference: [0.0; 2] };
    let mut start = [0.0; PARAMETER_COUNT];
    let mut slants = Vec::new();
    let profiles = Profile::along_both_axes(image);
    for ((of, waved), (axis, profile)) in
        [X, Y].into_iter().zip(plane.wave_directions()).zip([Axis::X, Axis::Y].into_iter().zip(&profiles))
    {
        let from = profile.first_coordinate() as f64;
        let line = match (waved, turned) {
            (true, false) => line_start(profile, envelope)?,
            (true, true) => {
                let (along, across) =
                    find_wave_vector(image, axis, if slits == Slits::Four { 1.0 } else { MAX_FRINGE_SLOPE })?;
                slants.push(if axis == Axis::X { across.atan2(along) } else { -across.atan2(along) });
                let [background, amplitude, center, width] = envelope_start(profile, envelope, TAU / along)?;
                [background, amplitude, center, width, 0.0, 0.0, along.hypot(across)]
            }
            (false, _) => {
                let [background, amplitude, center, width] = envelope_start(profile, envelope, 1.0)?;
                [background, amplitude, center, width, 0.0, 0.0, 0.0]
            }
        };
        let [background, amplitude, center, width, c, s, k] = line;
        (start[0], start[1]) = (background, amplitude);
        (start[of.center], start[of.width], start[of.k]) = (center + from, width, k);
        (start[of.c], start[of.s]) = (c, s);
    }
    start[ANGLE_INDEX] = slants.iter().sum::<f64>() / slants.len().max(1) as f64;
    // The line along y has the light averaged over x.
    let seen = image.selected_region();
    let along_x = (0..seen.width).map(|n| {
        let u = (seen.x + n) as f64 - start[X.center];
        let (sin, cos) = (start[X.k] * u).sin_cos();
        envelope.value_at(u, start[X.width]) * (1.0 + start[X.c] * cos + start[X.s] * sin)
    });
    let average = along_x.sum::<f64>() / seen.width as f64;
    start[1] /= average.max(1e-3);
    if turned {
        start_waves(image, &plane, &mut start);
    }
    Ok(start)
}

/// Sets c and s to their best fit with the other parameters fixed, from some pixels of some rows.
fn start_waves(image: &Image<'_>, plane: &Plane, start: &mut [f64; PARAMETER_COUNT]) {
    let seen = image.selected_region();
    let mut row = vec![0.0; seen.width];
    let (sin, cos) = start[ANGLE_INDEX].sin_cos();
    let mut sums = [[0.0; 5]; 2];
    for y in (0..seen.height).step_by(seen.height.div_ceil(64)) {
        image.load_row_part(0, y, &mut row);
        for (x, value) in row.iter().enumerate().step_by(seen.width.div_ceil(256)) {
            let (dx, dy) = ((seen.x + x) as f64 - start[X.center], (seen.y + y) as f64 - start[Y.center]);
            let (u, v) = (dx * cos + dy * sin, dy * cos - dx * sin);
            let e = start[1] * plane.envelope.value_at(u, start[X.width]) * plane.envelope.value_at(v, start[Y.width]);
            let rest = value - start[0] - e;
            for (sums, phase) in sums.iter_mut().zip([start[X.k] * u, start[Y.k] * v]) {
                let (s, c) = phase.sin_cos();
                let (c, s) = (e * c, e * s);
                [c * c, c * s, s * s, rest * c, rest * s].iter().zip(sums).for_each(|(add, sum)| *sum += add);
            }
        }
    }
    for ((of, waved), [cc, cs, ss, rc, rs]) in [X, Y].into_iter().zip(plane.wave_directions()).zip(sums) {
        let determinant = cc * ss - cs * cs;
        if waved && determinant > 0.0 {
            let (c, s) = ((rc * ss - rs * cs) / determinant, (rs * cc - rc * cs) / determinant);
            let most = 1.0 / c.hypot(s).max(1.0);
            (start[of.c], start[of.s]) = (c * most, s * most);
        }
    }
}

/// Returns the wave vector of fringes that change mostly along this axis, in radians per pixel: along it, and across.
///
/// Lines along the axis have fringes of the same period, which is found in the sum of their spectra. From line to line
/// the phase changes if the fringes are rotated: the lines' amplitudes at that period form a wave across the lines. Of
/// several periods, the result is the one whose wave across is at most `steepest` times as fast: the others belong to
/// the other slits.
fn find_wave_vector(image: &Image<'_>, axis: Axis, steepest: f64) -> Result<(f64, f64), Failure> {
    let seen = image.selected_region();
    let (length, across) = match axis {
        Axis::X => (seen.width, seen.height),
        Axis::Y => (seen.height, seen.width),
    };
    let gap = across.div_ceil(256);
    let mut lines = vec![Vec::with_capacity(length); across.div_ceil(gap)];
    let mut row = vec![0.0; seen.width];
    for y in 0..seen.height {
        match axis {
            Axis::X if y % gap > 0 => {}
            Axis::X => {
                image.load_row_part(0, y, &mut row);
                lines[y / gap].extend_from_slice(&row);
            }
            Axis::Y => {
                image.load_row_part(0, y, &mut row);
                lines.iter_mut().zip(row.iter().step_by(gap)).for_each(|(line, value)| line.push(*value));
            }
        }
    }
    let mut power: Vec<f64> = Vec::new();
    // Sixty-four lines are enough for the period.
    for line in lines.iter().step_by(lines.len().div_ceil(64)) {
        let values: Vec<_> = windowed_values(line, darkest_value(line)).map(|value| Complex::new(value, 0.0)).collect();
        let spectrum = magnitude_spectrum(&values);
        power.resize(spectrum.len() / 2, 0.0);
        power.iter_mut().zip(&spectrum).for_each(|(sum, value)| *sum += value);
    }
    let mut waves = spectrum_peaks(&power)?.into_iter().map(|along| (along, wave_number_across(&lines, gap, along)));
    waves.find(|(along, across)| across.abs() <= steepest * along).ok_or(Failure::NoFringes)
}

/// Returns the wave number across lines that are `gap` pixels apart, of fringes with wave number `along` along them.
fn wave_number_across(lines: &[Vec<f64>], gap: usize, along: f64) -> f64 {
    let length = lines.first().map_or(0, Vec::len);
    let turns: Vec<Complex<f64>> = (0..length).map(|n| Complex::from_polar(1.0, -along * n as f64)).collect();
    let amplitudes = lines
        .iter()
        .map(|line| windowed_values(line, darkest_value(line)).zip(&turns).map(|(value, turn)| turn * value).sum());
    let spectrum = magnitude_spectrum(&amplitudes.collect::<Vec<_>>());
    let n = spectrum.len();
    let top = (0..n).max_by(|a, b| spectrum[*a].total_cmp(&spectrum[*b])).unwrap_or(0);
    let place = top as f64 + parabola_peak(spectrum[(top + n - 1) % n], spectrum[top], spectrum[(top + 1) % n]);
    TAU * (place - if top > n / 2 { n as f64 } else { 0.0 }) / (n * gap) as f64
}

fn darkest_value(line: &[f64]) -> f64 {
    line.iter().copied().fold(f64::INFINITY, f64::min)
}

/// Tangent of 60°: the steepest slope of fringes that is found.
const MAX_FRINGE_SLOPE: f64 = 1.732;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[derive(Debug, Clone, Copy)]
    struct Put {
        center: [f64; 2],
        width: [f64; 2],
        visibility: [f64; 2],
        period: [f64; 2],
        phase: [f64; 2],
        angle: f64,
    }

    fn image(width: usize, height: usize, envelope: Envelope, put: Put) -> Vec<f64> {
        let (sin, cos) = put.angle.sin_cos();
        let at = |n: usize| {
            let (dx, dy) = ((n % width) as f64 - put.center[0], (n / width) as f64 - put.center[1]);
            // Counter-clockwise as the image is seen: y goes down.
            let along = [dx * cos - dy * sin, dx * sin + dy * cos];
            let factor = |k: usize| {
                let wave = put.visibility[k] * (TAU * along[k] / put.period[k] + put.phase[k]).cos();
                envelope.value_at(along[k], put.width[k]) * (1.0 + wave)
            };
            12.0 + 150.0 * factor(0) * factor(1)
        };
        (0..width * height).map(at).collect()
    }

    fn check(fit: &Fringes2d, put: Put) -> Result<(), TestCaseError> {
        let close = |name: &str, got: Estimate, put: f64| {
            prop_assert!((got.value - put).abs() < 1e-7 * put.abs().max(1.0), "{name}: {got} for {put}");
            Ok(())
        };
        close("background", fit.background, 12.0)?;
        close("amplitude", fit.amplitude, 150.0)?;
        close("x", fit.x, put.center[0])?;
        close("y", fit.y, put.center[1])?;
        close("width x", fit.width_x, put.width[0])?;
        close("width y", fit.width_y, put.width[1])?;
        close("angle", fit.angle, put.angle)?;
        for (k, wave) in [fit.wave_x, fit.wave_y].into_iter().enumerate() {
            if let Some(wave) = wave {
                close("visibility", wave.visibility, put.visibility[k])?;
                close("period", wave.period, put.period[k])?;
                close("phase", wave.phase, put.phase[k])?;
            }
        }
        Ok(())
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(48))]
        #[test]
        fn what_was_put_in_comes_out_upright_or_turned(
            sinc in any::<bool>(),
            which in 0..3u8,
            turned in any::<bool>(),
            (x, y) in (0.45..0.55f64, 0.45..0.55f64),
            (width_x, width_y) in (0.10..0.14f64, 0.10..0.14f64),
            (vx, vy) in (0.1..0.95f64, 0.1..0.95f64),
            (px, py) in (9.0..15.0f64, 9.0..15.0f64),
            (ax, ay) in (-3.0..3.0f64, -3.0..3.0f64),
            angle in -0.6..0.6f64,
        ) {
            let envelope = if sinc { Envelope::Sinc2 } else { Envelope::Gaussian };
            let slits = [Slits::Double(Axis::X), Slits::Double(Axis::Y), Slits::Four][usize::from(which)];
            // The best fit is not always found for four holes that are rotated (docs/images.md).
            let turned = turned && which != 2;
            let (w, h) = (150usize, 130usize);
            let put = Put {
                center: [x * w as f64, y * h as f64],
                width: [envelope.width_for_sigma(width_x * w as f64), envelope.width_for_sigma(width_y * h as f64)],
                visibility: [if which == 1 { 0.0 } else { vx }, if which == 0 { 0.0 } else { vy }],
                period: [px, py],
                phase: [ax, ay],
                angle: if turned { angle } else { 0.0 },
            };
            let pixels = image(w, h, envelope, put);
            let options = Fringes2dOptions { envelope, slits, turned };
            let fit = fit_fringes_2d(&Image::new(w, h, &pixels).unwrap(), &options).unwrap();
            prop_assert_eq!((fit.wave_x.is_some(), fit.wave_y.is_some()), (which != 1, which != 0));
            check(&fit, put)?;
        }

        #[test]
        fn both_ways_to_sum_have_the_same_sums(
            sinc in any::<bool>(), (cx, cy) in (0.2..0.9f64, 0.2..0.9f64), step in 1usize..5,
        ) {
            let pixels: Vec<u16> = (0..61 * 37).map(|n| (n * n % 1013) as u16).collect();
            let image = Image::new(61, 37, &pixels).unwrap();
            let envelope = if sinc { Envelope::Sinc2 } else { Envelope::Gaussian };
            let plane = Plane { envelope, slits: Slits::Four, turned: false, reference: [29.0, 18.0] };
            let at = [9.0, 800.0, 30.0, 12.0, cx, 0.1, 0.7, 17.0, 9.0, 0.2, cy, 0.9, 0.0];
            let (fast, plain) = (plane.normal_equations(&image, step, &at), Normal::sum_over_image(&image, step, &plane, &at));
            prop_assert_eq!(fast.pixels, plain.pixels);
            prop_assert!((fast.squares / plain.squares - 1.0).abs() < 1e-12);
            for i in 0..ANGLE_INDEX {
                let scale = plain.matrix[i][i].sqrt();
                prop_assert!((fast.gradient[i] - plain.gradient[i]).abs() < 1e-11 * scale * plain.squares.sqrt(), "{i}");
                for j in 0..ANGLE_INDEX {
                    let scale = scale * plain.matrix[j][j].sqrt();
                    prop_assert!((fast.matrix[i][j] - plain.matrix[i][j]).abs() < 1e-11 * scale, "{i} {j}");
                }
            }
        }
    }

    #[test]
    fn derivatives_are_those_that_small_steps_have() {
        let plane = Plane { envelope: Envelope::Sinc2, slits: Slits::Four, turned: true, reference: [29.0, 18.0] };
        let put = [9.0, 800.0, 30.0, 22.0, 0.4, 0.1, 0.7, 17.0, 19.0, 0.2, 0.3, 0.9, 0.3];
        fn one<S: Simd>(simd: S, plane: &Plane, at: &[f64; PARAMETER_COUNT], x: f64) -> [f64; 14] {
            plane.derivative_columns(simd, at, splat(simd, x), 21.0).map(|vector| vector.as_slice()[0])
        }
        let columns = |at: &[f64; PARAMETER_COUNT]| -> Vec<[f64; 14]> {
            (0..60).map(|x| vectorised!(simd => one(simd, &plane, at, f64::from(x)))).collect()
        };
        let here = columns(&put);
        for k in 0..PARAMETER_COUNT {
            let step = 1e-6;
            let [mut more, mut less] = [put; 2];
            (more[k], less[k]) = (put[k] + step, put[k] - step);
            let (more, less) = (columns(&more), columns(&less));
            for x in 0..60 {
                let change = (more[x][PARAMETER_COUNT] - less[x][PARAMETER_COUNT]) / (2.0 * step);
                assert!((change - here[x][k]).abs() < 1e-3, "{k} {x}: {change} {}", here[x][k]);
            }
        }
    }

    #[test]
    fn a_spot_has_no_fringes() {
        let put = Put {
            center: [64.0; 2],
            width: [20.0; 2],
            visibility: [0.0; 2],
            period: [9.0; 2],
            phase: [0.0; 2],
            angle: 0.0,
        };
        let pixels = image(128, 128, Envelope::Gaussian, put);
        for turned in [false, true] {
            let options = Fringes2dOptions { envelope: Envelope::Gaussian, slits: Slits::Double(Axis::X), turned };
            let ended = fit_fringes_2d(&Image::new(128, 128, &pixels).unwrap(), &options);
            assert_eq!(ended.unwrap_err(), Failure::NoFringes, "{turned}");
        }
    }
}
