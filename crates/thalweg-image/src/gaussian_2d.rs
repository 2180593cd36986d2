//! An elliptical Gaussian on a background, over an image.

use crate::ellipse::{Axes, Spread};
use crate::fit::{Estimate, Quality};
use crate::gaussian::{self, MIN_SIGMA_PIXELS};
use crate::image::Survey;
use crate::math::{exp, lane_indices, load_vector, splat, vectorised, whole_vectors};
use crate::minimise::{COARSE, FINE, Minimum, Precision, minimise_squares};
use crate::normal::{CHUNK_PIXELS, Model, Normal};
use crate::{Failure, Image, Profile};
use fearless_simd::prelude::*;
use std::ops::Range;

/// Fitted model: background + amplitude · exp(−½ (d − c)ᵀ Σ⁻¹ (d − c)), at the pixels' centres d = (x, y).
///
/// Σ has the variances σ² along two axes at right angles.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Gaussian2d {
    /// Background, in the pixels' unit.
    pub background: Estimate,
    /// Amplitude above the background, in the pixels' unit.
    pub amplitude: Estimate,
    /// Centre along x, in pixels.
    pub x: Estimate,
    /// Centre along y, in pixels.
    pub y: Estimate,
    /// Standard deviation σ along the longer axis, in pixels.
    pub sigma_major: Estimate,
    /// Standard deviation σ along the shorter axis, in pixels.
    pub sigma_minor: Estimate,
    /// Angle from the direction of the rows (x) to the longer axis, in radians, above −π/2 and up to π/2:
    /// counter-clockwise as the image is seen, with its first row on top. The rounder the light, the less it is
    /// determined, and the larger its standard deviation.
    pub angle: Estimate,
    /// Position and size in millimetres, if the image is calibrated.
    pub millimetres: Option<Gaussian2dMillimetres>,
    /// Quality of the fit.
    pub quality: Quality,
}

/// Position and size of a Gaussian in millimetres. If pixels are not square the axes differ from those in pixels.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Gaussian2dMillimetres {
    /// Centre along x.
    pub x: Estimate,
    /// Centre along y.
    pub y: Estimate,
    /// Standard deviation σ along the longer axis.
    pub sigma_major: Estimate,
    /// Standard deviation σ along the shorter axis.
    pub sigma_minor: Estimate,
    /// Angle of the longer axis, as [`Gaussian2d::angle`].
    pub angle: Estimate,
}

/// Number of pixels in every fourth row above which an image is first fitted with only these rows.
pub(crate) const MIN_SPARSE_PIXELS: usize = 10_000;
/// Step from row to row in that first fit.
pub(crate) const SPARSE_ROW_STEP: usize = 4;

/// Fits an elliptical Gaussian to an image of at least 5 × 5 pixels. Starting values come from its average row and
/// column.
///
/// # Errors
/// No light, saturated, not numbers, too few pixels, too narrow, too wide, at the edge, does not converge.
pub fn fit_gaussian_2d(image: &Image<'_>) -> Result<Gaussian2d, Failure> {
    let (columns, rows) = (image.column_count(), image.row_count());
    if columns < 5 || rows < 5 {
        return Err(Failure::TooFewPixels { pixels: columns * rows, needed: 25 });
    }
    let survey = image.survey_pixels()?;
    let start = spot_start(image, &survey)?;
    let minimum = search_minimum(image, &survey, &Spot, start, [false; 7])?;
    let quality = Quality::from_minimum(&minimum, survey.squares)?;
    let [background, amplitude, x, y] = std::array::from_fn(|k| Estimate::from_minimum(&minimum, k));
    if !amplitude.is_significant() {
        return Err(Failure::NoLight);
    }
    if !image.contains_place(x.value, y.value) {
        return Err(Failure::AtTheEdge);
    }
    let (spread, by) = covariance_spread(&minimum.parameters);
    let [sigma_major, sigma_minor, angle] = axis_estimates(&minimum, spread, by, [1.0; 2]);
    if sigma_minor.value < MIN_SIGMA_PIXELS {
        return Err(Failure::TooNarrow);
    }
    if sigma_major.value > columns.max(rows) as f64 {
        return Err(Failure::TooWide);
    }
    let millimetres = image.calibration().map(|size| {
        let [sigma_major, sigma_minor, angle] = axis_estimates(&minimum, spread, by, [size.x, size.y]);
        Gaussian2dMillimetres { x: x.scaled_by(size.x), y: y.scaled_by(size.y), sigma_major, sigma_minor, angle }
    });
    Ok(Gaussian2d { background, amplitude, x, y, sigma_major, sigma_minor, angle, millimetres, quality })
}

/// Searches from a start for the minimum over every fourth row, if these are many, and from there for that over all
/// rows.
pub(crate) fn search_minimum<const N: usize, const M: usize>(
    image: &Image<'_>,
    survey: &Survey,
    model: &impl Model<N, M>,
    mut start: [f64; N],
    fixed: [bool; N],
) -> Result<Minimum<N>, Failure> {
    if image.column_count() * image.row_count() / SPARSE_ROW_STEP > MIN_SPARSE_PIXELS {
        // If that fails, the search over all rows has more data.
        let sparse = search_rows(image, survey, model, start, fixed, SPARSE_ROW_STEP, COARSE);
        start = sparse.map_or(start, |minimum| minimum.parameters);
    }
    search_rows(image, survey, model, start, fixed, 1, FINE)
}

/// Searches for the minimum over every `step`th row.
fn search_rows<const N: usize, const M: usize>(
    image: &Image<'_>,
    survey: &Survey,
    model: &impl Model<N, M>,
    start: [f64; N],
    fixed: [bool; N],
    step: usize,
    precision: Precision,
) -> Result<Minimum<N>, Failure> {
    let total = survey.squares / step as f64;
    minimise_squares(
        start,
        fixed,
        total,
        precision,
        |at| model.allows_parameters(at),
        |at| model.normal_equations(image, step, at),
    )
}

fn spot_start(image: &Image<'_>, survey: &Survey) -> Result<[f64; 7], Failure> {
    let seen = image.selected_region();
    // σ and centre: the two lines see the same light on the same background.
    let [across, down] = Profile::along_both_axes(image);
    let ([background, over_x, x, sigma_x], [_, over_y, y, sigma_y]) = (line_start(&across)?, line_start(&down)?);
    // A line has the light averaged over the other direction.
    let [by_x, by_y] = [(over_x, sigma_y, seen.height), (over_y, sigma_x, seen.width)]
        .map(|(over, sigma, length)| over * (length as f64 / (sigma * 2.506_628_274_631)).max(1.0));
    let amplitude = (by_x * by_y).sqrt().min(2.0 * (survey.brightest - survey.darkest));
    // Covariance, from the pixels around the centre.
    let columns = two_sigma_range(x, sigma_x, seen.x, seen.width);
    let mut row = vec![0.0; columns.len()];
    let (mut xx, mut xy, mut yy) = (0.0, 0.0, 0.0);
    for at in two_sigma_range(y, sigma_y, seen.y, seen.height) {
        image.load_row_part(columns.start, at, &mut row);
        let dy = (seen.y + at) as f64 - y;
        for (value, column) in row.iter().zip(columns.clone()) {
            let (light, dx) = (value - background, (seen.x + column) as f64 - x);
            xx += light * dx * dx;
            xy += light * dx * dy;
            yy += light * dy * dy;
        }
    }
    let correlation = if xx > 0.0 && yy > 0.0 { (xy / (xx * yy).sqrt()).clamp(-0.95, 0.95) } else { 0.0 };
    let [a, b, c] =
        Spread { xx: sigma_x * sigma_x, xy: correlation * sigma_x * sigma_y, yy: sigma_y * sigma_y }.inverse_elements();
    Ok([background, amplitude, x, y, a, b, c])
}

/// Returns background, amplitude, centre and σ of the light along a line.
fn line_start(profile: &Profile) -> Result<[f64; 4], Failure> {
    if let Ok(fit) = gaussian::fit_gaussian(profile) {
        return Ok([fit.background.value, fit.amplitude.value, fit.center.value, fit.sigma.value]);
    }
    let [background, amplitude, center, sigma] = gaussian::gaussian_start(profile.values())?;
    Ok([background, amplitude, center + profile.first_coordinate() as f64, sigma])
}

/// Returns the pixels within two σ of a centre, of `length` pixels from coordinate `from` on.
fn two_sigma_range(center: f64, sigma: f64, from: usize, length: usize) -> Range<usize> {
    let [begin, end] = [center - 2.0 * sigma, center + 2.0 * sigma + 1.0]
        .map(|edge| (edge - from as f64).clamp(0.0, length as f64) as usize);
    begin..end
}

/// Returns Σ, and its elements' derivatives by the parameters.
fn covariance_spread(&[_, _, _, _, a, b, c]: &[f64; 7]) -> (Spread, [[f64; 7]; 3]) {
    let [xx, xy, yy] = Spread { xx: a, xy: b, yy: c }.inverse_elements();
    // dΣ = −Σ dP Σ, where P = Σ⁻¹.
    let by = [
        [-xx * xx, -2.0 * xx * xy, -xy * xy],
        [-xx * xy, -(xx * yy + xy * xy), -xy * yy],
        [-xy * xy, -2.0 * xy * yy, -yy * yy],
    ];
    (Spread { xx, xy, yy }, by.map(|[a, b, c]| [0.0, 0.0, 0.0, 0.0, a, b, c]))
}

/// Returns σ major, σ minor and angle, with pixels of this size.
fn axis_estimates(minimum: &Minimum<7>, spread: Spread, by: [[f64; 7]; 3], [x, y]: [f64; 2]) -> [Estimate; 3] {
    let scales = [x * x, x * y, y * y];
    let spread = Spread { xx: spread.xx * scales[0], xy: spread.xy * scales[1], yy: spread.yy * scales[2] };
    let (Axes { major, minor, angle }, derivatives) = spread.principal_axes();
    let [major_std, minor_std, angle_std] = derivatives.map(|derivatives| {
        let by = std::array::from_fn(|k| (0..3).map(|e| derivatives[e] * scales[e] * by[e][k]).sum());
        minimum.std_deviation_of(&by)
    });
    let [sigma_major, sigma_minor] = [(major, major_std), (minor, minor_std)].map(|(variance, std)| {
        let sigma = variance.max(0.0).sqrt();
        Estimate { value: sigma, std: std / (2.0 * sigma) }
    });
    let is_determined = derivatives[2].iter().all(|derivative| derivative.is_finite());
    let angle = Estimate { value: angle, std: if is_determined { angle_std } else { f64::INFINITY } };
    [sigma_major, sigma_minor, angle]
}

/// Model of light as an ellipse: background, amplitude, x, y, and Σ⁻¹ = (a b; b c).
#[derive(Debug)]
struct Spot;

/// Exponent beyond which the light is ignored: exp(−30) is below 10⁻¹³, which changes no 64-bit sum over an image.
const DARK_EXPONENT: f64 = 30.0;

impl Model<7, 8> for Spot {
    fn normal_equations(&self, image: &Image<'_>, step: usize, at: &[f64; 7]) -> Normal<7> {
        match at[4] < MAX_INVERSE_VARIANCE {
            true => vectorised!(simd => light_moments(simd, image, step, at)).normal_equations(at),
            false => Normal::sum_over_image(image, step, self, at),
        }
    }

    #[inline(always)]
    fn derivative_columns<S: Simd>(&self, simd: S, at: &[f64; 7], x: S::f64s, y: f64) -> [S::f64s; 8] {
        let &[background, amplitude, x0, y0, a, b, c] = at;
        let (dx, dy) = (x - x0, y - y0);
        let (along, down) = (dx.mul_add(a, b * dy), dx.mul_add(b, c * dy));
        let g = exp(simd, dx.mul_add(along, down * dy) * -0.5);
        let light = g * amplitude;
        let (lever, half) = (light * dx, light * -0.5);
        [
            splat(simd, 1.0),
            g,
            light * along,
            light * down,
            lever * dx * -0.5,
            lever * -dy,
            half * (dy * dy),
            light + background,
        ]
    }

    #[inline(always)]
    fn is_dark_chunk(&self, &[_, _, x0, y0, a, b, c]: &[f64; 7], x: f64, y: f64) -> bool {
        // The ellipse of that exponent touches these lines.
        let determinant = a * c - b * b;
        let (reach_x, reach_y) = (2.0 * DARK_EXPONENT * c / determinant, 2.0 * DARK_EXPONENT * a / determinant);
        let (dx, dy) = (x - x0, y - y0);
        let nearest = if dx > 0.0 { dx } else { (dx + CHUNK_PIXELS as f64).min(0.0) };
        dy * dy > reach_y || nearest * nearest > reach_x
    }

    fn allows_parameters(&self, &[_, _, _, _, a, b, c]: &[f64; 7]) -> bool {
        // No narrower than a few hundredths of a pixel.
        a > 0.0 && c > 0.0 && a * c - b * b > 0.0 && a + c < 1e3
    }
}

/// Maximum of Σ⁻¹ along x at which the recurrence is used: g then changes from vector to vector by no more than a
/// number can represent.
const MAX_INVERSE_VARIANCE: f64 = 0.5;

/// Sums over an image of light g = exp(…) and residuals r, times powers of the distance from the centre.
///
/// All derivatives by the parameters are g times a polynomial of second degree in that distance, and their products are
/// g² times one of fourth. So these few sums contain all of JᵀJ and Jᵀr.
#[derive(Debug, Default)]
struct Moments {
    pixels: usize,
    /// Σ r.
    residuals: f64,
    /// Σ r².
    squares: f64,
    /// Σ g² dxⁱ dyʲ.
    light_squared: [[f64; 5]; 5],
    /// Σ g dxⁱ dyʲ.
    light: [[f64; 3]; 3],
    /// Σ r g dxⁱ dyʲ.
    residual_light: [[f64; 3]; 3],
}

#[inline(always)]
fn light_moments<S: Simd>(simd: S, image: &Image<'_>, step: usize, at: &[f64; 7]) -> Moments {
    let &[background, amplitude, x0, y0, a, b, c] = at;
    let (seen, lanes) = (image.selected_region(), S::f64s::LEN);
    let mut sums = Moments { pixels: seen.width * seen.height.div_ceil(step), ..Moments::default() };
    // Padding of the last vector of a row has no light, and equals the background.
    let mut row = vec![background; whole_vectors(seen.width)];
    let mut is_pixel = vec![1.0; row.len()];
    is_pixel[seen.width..].fill(0.0);
    let stride = lanes as f64;
    // Along a row, g is a Gaussian in x. From vector to vector it is multiplied by a ratio, and the ratio by this.
    let bend = splat(simd, (-a * stride * stride).exp());
    for line in (0..seen.height).step_by(step) {
        image.load_row_part(0, line, &mut row[..seen.width]);
        let dy = (seen.y + line) as f64 - y0;
        let center = x0 - b / a * dy;
        let away = 0.5 * (c - b * b / a) * dy * dy;
        let reach = (2.0 * (DARK_EXPONENT - away).max(0.0) / a).sqrt();
        let lit = if away < DARK_EXPONENT { image.columns_between(center - reach, center + reach) } else { 0..0 };
        let (from, to) = (lit.start / lanes * lanes, lit.end.next_multiple_of(lanes).min(row.len()));
        let (mut residuals, mut squares) = (splat(simd, 0.0), splat(simd, 0.0));
        for x in (0..from).step_by(lanes) {
            let r = load_vector(simd, &row, x) - background;
            residuals += r;
            squares = r.mul_add(r, squares);
        }
        for x in (to..row.len()).step_by(lanes) {
            let r = load_vector(simd, &row, x) - background;
            residuals += r;
            squares = r.mul_add(r, squares);
        }
        let mut by = [splat(simd, 0.0); 11];
        let first = lane_indices(simd) + (seen.x + from) as f64;
        let mut dx = first - x0;
        let u = first - center;
        let mut g = exp(simd, (u * u).mul_add(-0.5 * a, splat(simd, -away)));
        let mut ratio = exp(simd, u.mul_add(-a * stride, splat(simd, -0.5 * a * stride * stride)));
        for x in (from..to).step_by(lanes) {
            let light = g * load_vector(simd, &is_pixel, x);
            let r = load_vector(simd, &row, x) - background - light * amplitude;
            residuals += r;
            squares = r.mul_add(r, squares);
            let (gg, rg, dx2) = (light * light, r * light, dx * dx);
            let gg2 = gg * dx2;
            by[0] += gg;
            by[1] = gg.mul_add(dx, by[1]);
            by[2] += gg2;
            by[3] = gg2.mul_add(dx, by[3]);
            by[4] = gg2.mul_add(dx2, by[4]);
            by[5] += light;
            by[6] = light.mul_add(dx, by[6]);
            by[7] = light.mul_add(dx2, by[7]);
            by[8] += rg;
            by[9] = rg.mul_add(dx, by[9]);
            by[10] = rg.mul_add(dx2, by[10]);
            g *= ratio;
            ratio *= bend;
            dx += stride;
        }
        sums.residuals += residuals.reduce_sum();
        sums.squares += squares.reduce_sum();
        let mut row_sums = [0.0; 11];
        for (sum, by) in row_sums.iter_mut().zip(by) {
            *sum = by.reduce_sum();
        }
        sums.add_row_sums(dy, &row_sums);
    }
    sums
}

impl Moments {
    /// Adds the sums over a row `dy` from the centre: Σ g² dxⁱ for i up to 4, then Σ g dxⁱ and Σ r g dxⁱ for i up to 2.
    fn add_row_sums(&mut self, dy: f64, sums: &[f64; 11]) {
        let powers = [1.0, dy, dy * dy, dy * dy * dy, dy * dy * dy * dy];
        for (i, sum) in sums[..5].iter().enumerate() {
            for (j, power) in powers[..5 - i].iter().enumerate() {
                self.light_squared[i][j] += sum * power;
            }
        }
        for i in 0..3 {
            for (j, power) in powers[..3 - i].iter().enumerate() {
                self.light[i][j] += sums[5 + i] * power;
                self.residual_light[i][j] += sums[8 + i] * power;
            }
        }
    }

    fn normal_equations(&self, &[_, amplitude, _, _, a, b, c]: &[f64; 7]) -> Normal<7> {
        // Polynomials that g is multiplied by, for amplitude, x, y, a, b, c, as factors of dxⁱ dyʲ.
        let polynomials: [&[(f64, usize, usize)]; 6] = [
            &[(1.0, 0, 0)],
            &[(amplitude * a, 1, 0), (amplitude * b, 0, 1)],
            &[(amplitude * b, 1, 0), (amplitude * c, 0, 1)],
            &[(-0.5 * amplitude, 2, 0)],
            &[(-amplitude, 1, 1)],
            &[(-0.5 * amplitude, 0, 2)],
        ];
        let mut matrix = [[0.0; 7]; 7];
        let mut gradient = [0.0; 7];
        matrix[0][0] = self.pixels as f64;
        gradient[0] = self.residuals;
        for (k, polynomial) in polynomials.iter().enumerate() {
            for &(factor, i, j) in *polynomial {
                gradient[k + 1] += factor * self.residual_light[i][j];
                matrix[k + 1][0] += factor * self.light[i][j];
                for (l, other) in polynomials.iter().enumerate() {
                    for &(by, m, n) in *other {
                        matrix[k + 1][l + 1] += factor * by * self.light_squared[i + m][j + n];
                    }
                }
            }
            matrix[0][k + 1] = matrix[k + 1][0];
        }
        Normal { matrix, gradient, squares: self.squares, pixels: self.pixels }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Calibration, Region};
    use proptest::prelude::*;
    use std::f64::consts::{FRAC_PI_2, PI};

    fn spot(width: usize, height: usize, [background, amplitude, x, y, major, minor, angle]: [f64; 7]) -> Vec<f64> {
        let (sin, cos) = angle.sin_cos();
        let at = |n: usize| {
            let (dx, dy) = ((n % width) as f64 - x, (n / width) as f64 - y);
            // Counter-clockwise as the image is seen: y goes down.
            let (u, v) = (dx * cos - dy * sin, dx * sin + dy * cos);
            background + amplitude * (-0.5 * ((u / major).powi(2) + (v / minor).powi(2))).exp()
        };
        (0..width * height).map(at).collect()
    }

    /// Returns the smallest difference of two directions.
    fn turned(a: f64, b: f64) -> f64 {
        let d = (a - b).rem_euclid(PI);
        d.min(PI - d)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn what_was_put_in_comes_out(
            width in 24usize..160,
            height in 24usize..120,
            (x, y) in (0.3..0.7f64, 0.3..0.7f64),
            (major, minor) in (0.05..0.25f64, 0.3..0.9f64),
            angle in -FRAC_PI_2..FRAC_PI_2,
            (background, amplitude) in (-100.0..100.0f64, 1.0..1e4f64),
        ) {
            let major = (major * width.min(height) as f64).max(2.0);
            let put = [background, amplitude, x * width as f64, y * height as f64, major, minor * major, angle];
            let pixels = spot(width, height, put);
            let fit = fit_gaussian_2d(&Image::new(width, height, &pixels).unwrap()).unwrap();
            let got = [fit.background, fit.amplitude, fit.x, fit.y, fit.sigma_major, fit.sigma_minor];
            for (k, (got, put)) in got.iter().zip(put).enumerate() {
                let scale = if k == 0 { amplitude + background.abs() } else { put };
                prop_assert!((got.value - put).abs() < 1e-8 * scale, "{k}: {got} for {put}");
            }
            prop_assert!(turned(fit.angle.value, angle) < 1e-8, "{} for {angle}", fit.angle);
        }
    }

    proptest! {
        #[test]
        fn both_ways_to_sum_have_the_same_sums(
            (x, y) in (5.0..65.0f64, 4.0..32.0f64),
            (major, minor) in (2.0..60.0f64, 0.3..1.0f64),
            angle in -FRAC_PI_2..FRAC_PI_2,
            step in 1usize..5,
        ) {
            let pixels: Vec<u16> = (0..71 * 37).map(|n| (n * n % 1013) as u16).collect();
            let image = Image::new(71, 37, &pixels).unwrap();
            let (sin, cos) = angle.sin_cos();
            let (u, v) = (1.0 / (major * major), 1.0 / (minor * major).max(1.5).powi(2));
            let at = [9.0, 800.0, x, y, u * cos * cos + v * sin * sin, (u - v) * sin * cos, u * sin * sin + v * cos * cos];
            let (fast, plain) = (Spot.normal_equations(&image, step, &at), Normal::sum_over_image(&image, step, &Spot, &at));
            prop_assert_eq!(fast.pixels, plain.pixels);
            prop_assert!((fast.squares / plain.squares - 1.0).abs() < 1e-9);
            for i in 0..7 {
                let scale = plain.matrix[i][i].sqrt() + 1e-6;
                let scaled = (fast.gradient[i] - plain.gradient[i]).abs() / scale / plain.squares.sqrt();
                prop_assert!(scaled < 1e-9, "{i}: {scaled}");
                for j in 0..7 {
                    let scale = scale * (plain.matrix[j][j].sqrt() + 1e-6);
                    let scaled = (fast.matrix[i][j] - plain.matrix[i][j]).abs() / scale;
                    prop_assert!(scaled < 1e-9, "{i} {j}: {scaled}");
                }
            }
        }
    }

    #[test]
    fn a_large_image_ends_where_a_small_one_would() {
        let put = [20.0, 150.0, 300.2, 250.7, 40.0, 25.0, 0.4];
        let pixels = spot(640, 480, put);
        let image = Image::new(640, 480, &pixels).unwrap();
        let whole = fit_gaussian_2d(&image).unwrap();
        let part =
            fit_gaussian_2d(&image.with_region(Region { x: 120, y: 100, width: 360, height: 301 }).unwrap()).unwrap();
        for fit in [whole, part] {
            assert!((fit.x.value - 300.2).abs() < 1e-8 && (fit.y.value - 250.7).abs() < 1e-8, "{fit:?}");
            assert!((fit.sigma_major.value - 40.0).abs() < 1e-8 && (fit.angle.value - 0.4).abs() < 1e-9, "{fit:?}");
        }
    }

    #[test]
    fn pixels_that_are_not_square_have_other_axes_in_millimetres() {
        // Round in millimetres, with pixels twice as high as wide.
        let pixels = spot(120, 80, [1.0, 100.0, 60.0, 40.0, 20.0, 10.0, 0.0]);
        let image = Image::new(120, 80, &pixels).unwrap().with_calibration(Calibration { x: 0.01, y: 0.02 }).unwrap();
        let fit = fit_gaussian_2d(&image).unwrap();
        let mm = fit.millimetres.unwrap();
        for (got, put) in [(mm.x, 0.6), (mm.y, 0.8), (mm.sigma_major, 0.2), (mm.sigma_minor, 0.2)] {
            assert!((got.value - put).abs() < 1e-8, "{got} for {put}");
        }
    }

    #[test]
    fn each_failure_has_its_reason() {
        let fit = |put| {
            let pixels = spot(64, 48, put);
            fit_gaussian_2d(&Image::new(64, 48, &pixels).unwrap()).map(|_| ())
        };
        assert_eq!(fit([5.0, 0.0, 30.0, 20.0, 5.0, 4.0, 0.0]), Err(Failure::NoLight));
        assert_eq!(fit([5.0, 50.0, -9.0, 20.0, 8.0, 7.0, 0.0]), Err(Failure::AtTheEdge));
        assert!(fit([5.0, 50.0, 30.0, 20.0, 300.0, 200.0, 0.0]).is_err());
        let pixels = [0u8; 16];
        let few = fit_gaussian_2d(&Image::new(4, 4, &pixels[..]).unwrap());
        assert_eq!(few.unwrap_err(), Failure::TooFewPixels { pixels: 16, needed: 25 });
        let mut hot = vec![10u8; 4096];
        hot[2000] = 255;
        let ended = fit_gaussian_2d(&Image::new(64, 64, &hot).unwrap());
        assert!(ended.is_err(), "{ended:?}");
        hot[2001] = 255;
        let ended = fit_gaussian_2d(&Image::new(64, 64, &hot).unwrap().saturating_at(255.0));
        assert_eq!(ended.unwrap_err(), Failure::Saturated);
    }
}
