//! Fringes along one line: an envelope, and the wave on it.

use crate::math::{exp, sin_cos, splat};
use fearless_simd::prelude::*;
use std::f64::consts::PI;

/// Envelope of the fringes: the light of one slit alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Envelope {
    /// Gaussian exp(−u² / 2 width²): `width` is σ.
    Gaussian,
    /// Diffraction of a slit, (sin(πu / width) / (πu / width))²: `width` is the distance from the centre to the first
    /// dark line, λ f / a after a slit of width a and a lens of focal length f.
    #[default]
    Sinc2,
}

impl Envelope {
    /// Returns the width of an envelope that looks like a Gaussian with this σ: with the same width at half height.
    pub(crate) fn width_for_sigma(self, sigma: f64) -> f64 {
        match self {
            Self::Gaussian => sigma,
            Self::Sinc2 => 2.658 * sigma,
        }
    }

    /// Returns the envelope at distance `u` from its centre.
    pub(crate) fn value_at(self, u: f64, width: f64) -> f64 {
        let t = u / width;
        match self {
            Self::Gaussian => (-0.5 * t * t).exp(),
            Self::Sinc2 if t.abs() < 1e-9 => 1.0,
            Self::Sinc2 => ((PI * t).sin() / (PI * t)).powi(2),
        }
    }

    /// Returns the envelope at distance `u` from its centre, and its derivatives by `u` and by the width.
    #[inline(always)]
    pub(crate) fn derivatives_at<S: Simd>(self, simd: S, u: S::f64s, width: f64) -> [S::f64s; 3] {
        match self {
            Self::Gaussian => {
                let t = u * (1.0 / width);
                let value = exp(simd, t * t * -0.5);
                let slope = value * t * (1.0 / width);
                [value, -slope, slope * t]
            }
            Self::Sinc2 => {
                let (one, narrow) = (splat(simd, 1.0), PI / width);
                let t = u * narrow;
                let [sin, cos] = sin_cos(simd, t);
                // Series near the centre: of sin t / t, and of its derivative.
                let near = t.abs().simd_lt(0.03);
                let z = t * t;
                let apart = one / near.select(one, t);
                let series = one - z * (one - z * (one - z * (1.0 / 42.0)) * (1.0 / 20.0)) * (1.0 / 6.0);
                let sinc = near.select(series, sin * apart);
                let series = t * (one - z * (one - z * (1.0 / 28.0)) * (1.0 / 10.0)) * (-1.0 / 3.0);
                let by_t = near.select(series, (cos - sinc) * apart);
                let slope = sinc * by_t * 2.0;
                [sinc * sinc, slope * narrow, slope * t * (-1.0 / width)]
            }
        }
    }
}

/// Returns the wave 1 + c · cos(k u) + s · sin(k u), and its derivatives by u, c, s and k.
#[inline(always)]
pub(crate) fn wave_derivatives<S: Simd>(simd: S, u: S::f64s, [c, s, k]: [f64; 3]) -> [S::f64s; 5] {
    let [sin, cos] = sin_cos(simd, u * k);
    let turned = cos * s - sin * c;
    [cos.mul_add(c, sin.mul_add(s, 1.0)), turned * k, cos, sin, turned * u]
}

/// Returns a pattern along a line, and its derivatives: value; by centre, width, c, s, k. `u` is counted from the
/// envelope's centre and `w` from the place of the wave's phase: two places, so that moving one does not move the
/// other.
#[inline(always)]
pub(crate) fn pattern_derivatives<S: Simd>(
    simd: S,
    envelope: Envelope,
    u: S::f64s,
    w: S::f64s,
    width: f64,
    with: [f64; 3],
) -> [S::f64s; 6] {
    let [e, by_u, by_width] = envelope.derivatives_at(simd, u, width);
    let [p, _, by_c, by_s, by_k] = wave_derivatives(simd, w, with);
    [e * p, -(by_u * p), by_width * p, e * by_c, e * by_s, e * by_k]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::math::vectorised;
    use proptest::prelude::*;

    fn envelope_at(envelope: Envelope, u: f64, width: f64) -> [f64; 3] {
        vectorised!(simd => envelope.derivatives_at(simd, splat(simd, u), width).map(|vector| vector.as_slice()[0]))
    }

    fn pattern_at(envelope: Envelope, u: f64, w: f64, width: f64, with: [f64; 3]) -> [f64; 6] {
        vectorised!(simd => {
            let (u, w) = (splat(simd, u), splat(simd, w));
            pattern_derivatives(simd, envelope, u, w, width, with).map(|vector| vector.as_slice()[0])
        })
    }

    proptest! {
        #[test]
        fn derivatives_are_those_that_small_steps_have(
            sinc in any::<bool>(), u in -40.0..40.0f64, width in 5.0..40.0f64,
            (c, s, k) in (-1.0..1.0f64, -1.0..1.0f64, 0.1..2.0f64),
        ) {
            let envelope = if sinc { Envelope::Sinc2 } else { Envelope::Gaussian };
            let at = |[center, width, c, s, k]: [f64; 5]| pattern_at(envelope, u - center, u, width, [c, s, k]);
            let put = [0.0, width, c, s, k];
            let derivatives = at(put);
            prop_assert!((envelope_at(envelope, u, width)[0] - envelope.value_at(u, width)).abs() < 1e-15);
            for k in 0..5 {
                let step = 1e-6;
                let [mut more, mut less] = [put; 2];
                (more[k], less[k]) = (put[k] + step, put[k] - step);
                let change = (at(more)[0] - at(less)[0]) / (2.0 * step);
                prop_assert!((change - derivatives[k + 1]).abs() < 1e-6, "{k}: {change} {derivatives:?}");
            }
        }

        #[test]
        fn a_slit_has_no_seam_where_the_series_begins(t in 0.0299..0.0301f64) {
            let [value, slope, _] = envelope_at(Envelope::Sinc2, t, PI);
            let sinc = t.sin() / t;
            prop_assert!((value - sinc * sinc).abs() < 1e-15);
            prop_assert!((slope - 2.0 * sinc * (t.cos() - sinc) / t).abs() < 1e-12);
        }
    }

    #[test]
    fn the_first_dark_line_is_one_width_away() {
        assert!(envelope_at(Envelope::Sinc2, 17.0, 17.0)[0] < 1e-30);
        assert!((envelope_at(Envelope::Gaussian, 17.0, 17.0)[0] - (-0.5f64).exp()).abs() < 1e-15);
        assert_eq!(envelope_at(Envelope::Sinc2, 0.0, 17.0), [1.0, 0.0, 0.0]);
    }
}
