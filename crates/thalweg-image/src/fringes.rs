//! Fringes along a profile, as a double slit makes them.

use crate::fit::{Estimate, Quality};
use crate::math::splat;
use crate::minimise::{FINE, Minimum, minimise_squares};
use crate::normal::Model;
use crate::pattern::{Envelope, pattern_derivatives};
use crate::period::{find_wave_number, without_fringes};
use crate::{Failure, Profile, gaussian};
use fearless_simd::prelude::*;
use std::f64::consts::TAU;

/// Fitted model: background + amplitude · E(x − center) · (1 + visibility · cos(2π (x − center) / period + phase)), at
/// the pixels' centres, where E is the [`Envelope`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Fringes {
    /// Background, in the pixels' unit.
    pub background: Estimate,
    /// Amplitude of the envelope above the background, in the pixels' unit.
    pub amplitude: Estimate,
    /// Centre of the envelope, in pixels.
    pub center: Estimate,
    /// Width of the envelope, in pixels.
    pub width: Estimate,
    /// Visibility, period and phase of the fringes.
    pub wave: Wave,
    /// [`center`](Self::center), [`width`](Self::width) and the period in millimetres, if the image is calibrated.
    pub millimetres: Option<[Estimate; 3]>,
    /// Quality of the fit.
    pub quality: Quality,
}

/// Fringes in one direction.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Wave {
    /// Visibility (brightest − darkest) / (brightest + darkest) of fringes where the envelope is flat: from 0 to 1,
    /// except for noise.
    pub visibility: Estimate,
    /// Distance from fringe to fringe, in pixels.
    pub period: Estimate,
    /// Phase of the wave at the envelope's centre, in radians, above −π and up to π: 0 if a fringe is brightest there.
    pub phase: Estimate,
}

/// Fits fringes to a profile of at least sixteen values. Determines the starting values, including the period.
///
/// # Errors
/// No light, no fringes, not numbers, too few values, too narrow, too wide, at the edge, does not converge.
pub fn fit_fringes(profile: &Profile, envelope: Envelope) -> Result<Fringes, Failure> {
    let pixels = profile.values().len();
    let image = profile.as_image();
    let total = image.survey_pixels()?.squares;
    let start = fringe_start(profile, envelope)?;
    let line = Line { envelope, reference: start[2] };
    let minimum = minimise_squares(
        start,
        [false; 7],
        total,
        FINE,
        |at| line.allows_parameters(at),
        |at| line.normal_equations(&image, 1, at),
    )?;
    let quality = Quality::from_minimum(&minimum, total)?;
    let [background, amplitude, mut center, width] = std::array::from_fn(|k| Estimate::from_minimum(&minimum, k));
    if !amplitude.is_significant() {
        return Err(Failure::NoLight);
    }
    if !(0.0..=(pixels - 1) as f64).contains(&center.value) {
        return Err(Failure::AtTheEdge);
    }
    if width.value > envelope.width_for_sigma(pixels as f64) {
        return Err(Failure::TooWide);
    }
    let wave = wave_from_minimum(&minimum, [4, 5, 6], &[(2, 1.0)], center.value - line.reference);
    if !wave.visibility.is_significant() {
        return Err(Failure::NoFringes);
    }
    center.value += profile.first_coordinate() as f64;
    let millimetres =
        profile.calibration().map(|size| [center, width, wave.period].map(|length| length.scaled_by(size)));
    Ok(Fringes { background, amplitude, center, width, wave, millimetres, quality })
}

/// Returns the wave from the parameters c, s and k (at these indices), with the phase `away` pixels from the place
/// where c and s are; `along` has the derivatives of that distance by the parameters.
pub(crate) fn wave_from_minimum<const N: usize>(
    minimum: &Minimum<N>,
    [at_c, at_s, at_k]: [usize; 3],
    along: &[(usize, f64)],
    away: f64,
) -> Wave {
    let [c, s, k] = [at_c, at_s, at_k].map(|at| minimum.parameters[at]);
    let visibility = c.hypot(s);
    // c cos + s sin = V cos(k w + φ) has φ = atan2(−s, c).
    let phase = (-s).atan2(c) + k * away;
    let turned = phase - TAU * (phase / TAU - 0.5).ceil();
    let by_visibility = sparse_gradient(&[(at_c, c / visibility), (at_s, s / visibility)]);
    let by_period = sparse_gradient(&[(at_k, TAU / (k * k))]);
    let mut by_phase =
        sparse_gradient(&[(at_c, s / visibility.powi(2)), (at_s, -c / visibility.powi(2)), (at_k, away)]);
    along.iter().for_each(|(at, derivative)| by_phase[*at] += k * derivative);
    Wave {
        visibility: Estimate { value: visibility, std: minimum.std_deviation_of(&by_visibility) },
        period: Estimate { value: TAU / k, std: minimum.std_deviation_of(&by_period) },
        phase: Estimate { value: turned, std: minimum.std_deviation_of(&by_phase) },
    }
}

/// Returns the derivatives by all parameters from those that are not 0, each with the parameter's index.
fn sparse_gradient<const N: usize>(derivatives: &[(usize, f64)]) -> [f64; N] {
    let mut gradient = [0.0; N];
    derivatives.iter().for_each(|(at, derivative)| gradient[*at] += derivative);
    gradient
}

/// Returns background, amplitude, centre, width, c, s, k to start from, counted from the profile's first value; the
/// wave's phase is at the centre.
pub(crate) fn fringe_start(profile: &Profile, envelope: Envelope) -> Result<[f64; 7], Failure> {
    let values = profile.values();
    if values.len() < 16 {
        return Err(Failure::TooFewPixels { pixels: values.len(), needed: 16 });
    }
    let mut sorted = values.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    let k = find_wave_number(values, sorted[sorted.len() / 10])?;
    let [background, amplitude, center, width] = envelope_start(profile, envelope, TAU / k)?;
    // c and s are fitted to the residuals of the envelope.
    let (mut cc, mut cs, mut ss, mut rc, mut rs) = (0.0, 0.0, 0.0, 0.0, 0.0);
    for (x, value) in values.iter().enumerate() {
        let u = x as f64 - center;
        let e = envelope.value_at(u, width);
        let (sin, cos) = (k * u).sin_cos();
        let (c, s, r) = (amplitude * e * cos, amplitude * e * sin, value - background - amplitude * e);
        cc += c * c;
        cs += c * s;
        ss += s * s;
        rc += r * c;
        rs += r * s;
    }
    let determinant = cc * ss - cs * cs;
    let (c, s) = ((rc * ss - rs * cs) / determinant, (rs * cc - rc * cs) / determinant);
    // The envelope is a guess: limit the visibility to 1.
    let most = 1.0 / c.hypot(s).max(1.0);
    Ok([background, amplitude, center, width, c * most, s * most, k])
}

/// Returns background, amplitude, centre and width of the envelope under fringes of a known period, counted from the
/// first value.
pub(crate) fn envelope_start(profile: &Profile, envelope: Envelope, period: f64) -> Result<[f64; 4], Failure> {
    let smooth = profile.with_values(without_fringes(profile.values(), period));
    let [background, amplitude, center, sigma] = match gaussian::fit_gaussian(&smooth) {
        Ok(fit) => {
            let center = fit.center.value - profile.first_coordinate() as f64;
            [fit.background.value, fit.amplitude.value, center, fit.sigma.value]
        }
        Err(_) => gaussian::gaussian_start(smooth.values())?,
    };
    // Averaging has widened the envelope: the variance of a box is period² / 12.
    let sigma = (sigma * sigma - period * period / 12.0).max(sigma * sigma / 4.0).sqrt();
    Ok([background, amplitude, center, envelope.width_for_sigma(sigma)])
}

/// Model of a row of pixels with fringes: background, amplitude, centre, width, c, s, k.
#[derive(Debug)]
struct Line {
    envelope: Envelope,
    /// Place to which the wave's phase, as given by c and s, refers.
    reference: f64,
}

impl Model<7, 8> for Line {
    #[inline(always)]
    fn derivative_columns<S: Simd>(&self, simd: S, at: &[f64; 7], x: S::f64s, _y: f64) -> [S::f64s; 8] {
        let &[background, amplitude, center, width, c, s, k] = at;
        let [f, by_center, by_width, by_c, by_s, by_k] =
            pattern_derivatives(simd, self.envelope, x - center, x - self.reference, width, [c, s, k]);
        [
            splat(simd, 1.0),
            f,
            by_center * amplitude,
            by_width * amplitude,
            by_c * amplitude,
            by_s * amplitude,
            by_k * amplitude,
            f * amplitude + background,
        ]
    }

    fn allows_parameters(&self, &[_, _, _, width, _, _, k]: &[f64; 7]) -> bool {
        width > 0.1 && k > 0.0 && k < std::f64::consts::PI
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::f64::consts::PI;

    fn fringes(n: usize, envelope: Envelope, put: [f64; 7]) -> Vec<f64> {
        let [background, amplitude, center, width, visibility, period, phase] = put;
        let at = |x: usize| {
            let u = x as f64 - center;
            let e = envelope.value_at(u, width);
            background + amplitude * e * (1.0 + visibility * (TAU * u / period + phase).cos())
        };
        (0..n).map(at).collect()
    }

    proptest! {
        #[test]
        fn what_was_put_in_comes_out(
            sinc in any::<bool>(),
            n in 200usize..700,
            (background, amplitude) in (-100.0..100.0f64, 1.0..1e4f64),
            center in 0.4..0.6f64,
            width in 0.08..0.16f64,
            visibility in 0.02..1.0f64,
            fringes_in_sigma in 0.8..3.0f64,
            phase in -3.1..3.1f64,
        ) {
            let envelope = if sinc { Envelope::Sinc2 } else { Envelope::Gaussian };
            let sigma = width * n as f64;
            let period = (sigma / fringes_in_sigma).max(4.0);
            let put = [background, amplitude, center * n as f64, envelope.width_for_sigma(sigma), visibility, period, phase];
            let fit = fit_fringes(&Profile::new(fringes(n, envelope, put)), envelope).unwrap();
            let Wave { visibility, period, phase } = fit.wave;
            let got = [fit.background, fit.amplitude, fit.center, fit.width, visibility, period, phase];
            for (k, (got, put)) in got.iter().zip(put).enumerate() {
                let scale = match k { 0 => amplitude + background.abs(), 6 => 10.0, _ => put };
                prop_assert!((got.value - put).abs() < 1e-7 * scale, "{k}: {got} for {put}");
            }
        }
    }

    #[test]
    fn a_phase_is_above_minus_pi_and_up_to_pi() {
        for phase in [-PI, PI, 3.0 * PI, 0.9 * PI, -0.9 * PI] {
            let put = [5.0, 100.0, 150.0, 30.0, 0.6, 20.0, phase];
            let fit = fit_fringes(&Profile::new(fringes(300, Envelope::Gaussian, put)), Envelope::Gaussian).unwrap();
            let got = fit.wave.phase.value;
            assert!((-PI..=PI).contains(&got) && ((got - phase).cos() - 1.0).abs() < 1e-12, "{got} for {phase}");
        }
    }

    #[test]
    fn each_failure_has_its_reason() {
        let fit =
            |put| fit_fringes(&Profile::new(fringes(300, Envelope::Gaussian, put)), Envelope::Gaussian).map(|_| ());
        assert_eq!(fit([5.0, 0.0, 150.0, 30.0, 0.6, 20.0, 0.0]), Err(Failure::NoLight));
        assert_eq!(fit([5.0, 100.0, 150.0, 30.0, 0.0, 20.0, 0.0]), Err(Failure::NoFringes));
        let few = fit_fringes(&Profile::new(vec![1.0, 2.0, 1.0]), Envelope::Gaussian).unwrap_err();
        assert_eq!(few, Failure::TooFewPixels { pixels: 3, needed: 16 });
    }
}
