//! A Gaussian on a background, along a profile.

use crate::fit::{Estimate, Quality};
use crate::math::{exp, splat};
use crate::minimise::{FINE, minimise_squares};
use crate::normal::Model;
use crate::{Failure, Profile};
use fearless_simd::prelude::*;

/// Fitted model: background + amplitude · exp(−(x − center)² / 2 sigma²), at the pixels' centres.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Gaussian {
    /// Background, in the pixels' unit.
    pub background: Estimate,
    /// Amplitude above the background, in the pixels' unit.
    pub amplitude: Estimate,
    /// Centre in pixels, 0 at the centre of the image's first.
    pub center: Estimate,
    /// Standard deviation σ, in pixels.
    pub sigma: Estimate,
    /// [`center`](Self::center) and [`sigma`](Self::sigma) in millimetres, if the image is calibrated.
    pub millimetres: Option<[Estimate; 2]>,
    /// Quality of the fit.
    pub quality: Quality,
}

/// Minimum σ of light, in pixels. The shape of narrower light is that of the pixel.
pub(crate) const MIN_SIGMA_PIXELS: f64 = 0.25;

/// Fits a Gaussian to a profile of at least five values. Determines the starting values.
///
/// # Errors
/// No light, not numbers, too few values, too narrow, too wide, at the edge, does not converge.
pub fn fit_gaussian(profile: &Profile) -> Result<Gaussian, Failure> {
    let pixels = profile.values().len();
    if pixels < 5 {
        return Err(Failure::TooFewPixels { pixels, needed: 5 });
    }
    let image = profile.as_image();
    let total = image.survey_pixels()?.squares;
    let start = gaussian_start(profile.values())?;
    let minimum = minimise_squares(
        start,
        [false; 4],
        total,
        FINE,
        |at| Line.allows_parameters(at),
        |at| Line.normal_equations(&image, 1, at),
    )?;
    let quality = Quality::from_minimum(&minimum, total)?;
    let [background, amplitude, mut center, sigma] = std::array::from_fn(|k| Estimate::from_minimum(&minimum, k));
    if !amplitude.is_significant() {
        return Err(Failure::NoLight);
    }
    if sigma.value < MIN_SIGMA_PIXELS {
        return Err(Failure::TooNarrow);
    }
    if !(0.0..=(pixels - 1) as f64).contains(&center.value) {
        return Err(Failure::AtTheEdge);
    }
    if sigma.value > pixels as f64 {
        return Err(Failure::TooWide);
    }
    center.value += profile.first_coordinate() as f64;
    let millimetres = profile.calibration().map(|size| [center.scaled_by(size), sigma.scaled_by(size)]);
    Ok(Gaussian { background, amplitude, center, sigma, millimetres, quality })
}

/// Returns background, amplitude, centre and sigma to start from. For a few widths, the centre is where the light
/// averaged over that width is brightest; the set with the smallest sum of squares is taken. This is less sensitive to
/// noise than a search for half the height.
pub(crate) fn gaussian_start(values: &[f64]) -> Result<[f64; 4], Failure> {
    let n = values.len();
    let mut before = Vec::with_capacity(n + 1);
    before.push(0.0);
    for value in values {
        before.push(before[before.len() - 1] + value);
    }
    let mut best: Option<(f64, [f64; 4])> = None;
    let mut sigma = 0.7;
    while sigma < n as f64 {
        let half = sigma as usize;
        let averages = (0..n).map(|at| {
            let (from, to) = (at.saturating_sub(half), (at + half + 1).min(n));
            (before[to] - before[from]) / (to - from) as f64
        });
        let brightest = averages.enumerate().max_by(|(_, a), (_, b)| a.total_cmp(b));
        let center = brightest.map_or(n / 2, |(at, _)| at) as f64;
        let line = fit_straight_line(values, |x| {
            let u = (x as f64 - center) / sigma;
            if u.abs() < 6.0 { (-0.5 * u * u).exp() } else { 0.0 }
        });
        if let Some((squares, background, amplitude)) = line
            && amplitude > 0.0
            && best.is_none_or(|(least, _)| squares < least)
        {
            best = Some((squares, [background, amplitude, center, sigma]));
        }
        sigma *= 2.0;
    }
    best.map(|(_, start)| start).ok_or(Failure::NoLight)
}

/// Fits value ≈ background + amplitude · shape. Returns the smallest sum of squares, and that background and amplitude.
fn fit_straight_line(values: &[f64], shape: impl Fn(usize) -> f64) -> Option<(f64, f64, f64)> {
    let (mut s, mut ss, mut v, mut vs) = (0.0, 0.0, 0.0, 0.0);
    let n = values.len() as f64;
    let mean = values.iter().sum::<f64>() / n;
    let mut vv = 0.0;
    for (x, value) in values.iter().enumerate() {
        let (shape, value) = (shape(x), value - mean);
        s += shape;
        ss += shape * shape;
        v += value;
        vs += value * shape;
        vv += value * value;
    }
    let spread = ss - s * s / n;
    let amplitude = (vs - s * v / n) / spread;
    (spread > 1e-12 * ss).then(|| (vv - amplitude * amplitude * spread, mean + (v - amplitude * s) / n, amplitude))
}

/// Model of a row of pixels with a Gaussian: background, amplitude, centre, sigma.
#[derive(Debug)]
struct Line;

impl Model<4, 5> for Line {
    #[inline(always)]
    fn derivative_columns<S: Simd>(&self, simd: S, at: &[f64; 4], x: S::f64s, _y: f64) -> [S::f64s; 5] {
        let &[background, amplitude, center, sigma] = at;
        let u = (x - center) * (1.0 / sigma);
        let g = exp(simd, u * u * -0.5);
        let light = g * amplitude;
        let slope = light * u * (1.0 / sigma);
        [splat(simd, 1.0), g, slope, slope * u, light + background]
    }

    fn allows_parameters(&self, &[_, _, _, sigma]: &[f64; 4]) -> bool {
        sigma > 1e-2
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn gaussian(n: usize, [background, amplitude, center, sigma]: [f64; 4]) -> Vec<f64> {
        (0..n).map(|x| background + amplitude * (-0.5 * ((x as f64 - center) / sigma).powi(2)).exp()).collect()
    }

    proptest! {
        #[test]
        fn what_was_put_in_comes_out(
            n in 16usize..400,
            background in -1e3..1e3f64,
            amplitude in 1e-2..1e5f64,
            center in 0.1..0.9f64,
            sigma in 0.0..1.0f64,
        ) {
            let sigma = 0.6 * (n as f64 / 4.0 / 0.6).powf(sigma);
            let put = [background, amplitude, center * (n - 1) as f64, sigma];
            let fit = fit_gaussian(&Profile::new(gaussian(n, put))).unwrap();
            let got = [fit.background, fit.amplitude, fit.center, fit.sigma];
            for (k, (got, put)) in got.iter().zip(put).enumerate() {
                let scale = if k == 0 { amplitude + background.abs() } else { put };
                prop_assert!((got.value - put).abs() < 1e-8 * scale, "{k}: {got} for {put}");
            }
            prop_assert!(fit.quality.r2 > 1.0 - 1e-12);
        }
    }

    #[test]
    fn a_region_and_a_size_are_taken_into_account() {
        let pixels: Vec<f32> = (0..4).flat_map(|_| gaussian(60, [1.0, 9.0, 33.0, 4.0])).map(|v| v as f32).collect();
        let image = crate::Image::new(60, 4, &pixels).unwrap();
        let image = image.with_calibration(crate::Calibration { x: 0.01, y: 1.0 }).unwrap();
        let image = image.with_region(crate::Region { x: 10, y: 1, width: 45, height: 2 }).unwrap();
        let fit = fit_gaussian(&Profile::along_axis(&image, crate::Axis::X).unwrap()).unwrap();
        assert!((fit.center.value - 33.0).abs() < 1e-5 && (fit.sigma.value - 4.0).abs() < 1e-5);
        let [center, sigma] = fit.millimetres.unwrap();
        assert!((center.value - 0.33).abs() < 1e-7 && (sigma.value - 0.04).abs() < 1e-7);
        assert!((sigma.std - fit.sigma.std * 0.01).abs() < 1e-15);
    }

    #[test]
    fn each_failure_has_its_reason() {
        let fit = |values: Vec<f64>| fit_gaussian(&Profile::new(values)).map(|_| ());
        assert_eq!(fit(vec![3.0; 50]), Err(Failure::NoLight));
        assert_eq!(fit(vec![1.0, 2.0, 1.0]), Err(Failure::TooFewPixels { pixels: 3, needed: 5 }));
        assert_eq!(fit(vec![1.0, f64::NAN, 1.0, 2.0, 3.0, 4.0]), Err(Failure::NotNumbers));
        let mut hot = vec![0.0; 50];
        hot[20] = 100.0;
        assert!(matches!(fit(hot), Err(Failure::TooNarrow | Failure::NotConverged { .. } | Failure::Undetermined)));
        assert_eq!(fit(gaussian(50, [1.0, 5.0, -12.0, 9.0])), Err(Failure::AtTheEdge));
        assert_eq!(fit(gaussian(50, [1.0, 5.0, 25.0, 80.0])), Err(Failure::TooWide));
        assert!(fit(gaussian(50, [9.0, -5.0, 25.0, 4.0])).is_err(), "a shadow is no light");
    }

    #[test]
    fn noise_alone_is_no_light() {
        // SplitMix64, which anyone can repeat.
        let mut state = 1u64;
        let mut draw = || {
            state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let z = (state ^ state >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            let z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
            (z ^ z >> 31) as f64 / u64::MAX as f64
        };
        for _ in 0..50 {
            let values: Vec<f64> = (0..200).map(|_| (0..12).map(|_| draw()).sum()).collect();
            let ended = fit_gaussian(&Profile::new(values));
            assert!(ended.is_err(), "{ended:?}");
        }
    }
}
