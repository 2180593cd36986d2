//! Vectorised exp, sin and cos, for several pixels at a time.
//!
//! The functions of the standard library are calls, one pixel each; a fit spent most of its time in them.

use fearless_simd::prelude::*;
use std::f64::consts::{FRAC_2_PI, LOG2_E};

/// Calls a function that is always inlined, with the widest vectors that this processor has.
macro_rules! vectorised {
    ($simd:ident => $call:expr) => {
        fearless_simd::dispatch!(fearless_simd::Level::new(), $simd => $call)
    };
}
pub(crate) use vectorised;

/// Returns a vector with the same value in each lane.
///
/// Here and below, code on vectors is written in functions that are always inlined and in plain loops: in a closure
/// that is compiled to a function of its own, each vector instruction becomes a call.
#[inline(always)]
pub(crate) fn splat<S: Simd>(simd: S, value: f64) -> S::f64s {
    S::f64s::splat(simd, value)
}

/// Returns 0, 1, 2, … in the lanes.
#[inline(always)]
pub(crate) fn lane_indices<S: Simd>(simd: S) -> S::f64s {
    const RAMP: [f64; 8] = [0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0];
    S::f64s::from_slice(simd, &RAMP[..S::f64s::LEN])
}

/// Loads as many values from `at` on as there are lanes.
#[inline(always)]
pub(crate) fn load_vector<S: Simd>(simd: S, values: &[f64], at: usize) -> S::f64s {
    S::f64s::from_slice(simd, &values[at..at + S::f64s::LEN])
}

/// Returns `length` rounded up to a whole number of vectors, on any processor.
pub(crate) fn whole_vectors(length: usize) -> usize {
    length.next_multiple_of(8)
}

/// Constant 1.5·2⁵²: a smaller number added to it is rounded to a whole one, which is in the lowest bits.
const ROUNDING_SHIFT: f64 = 6_755_399_441_055_744.0;

/// Returns e to the power of `x`, for x ≤ 700; almost 0 below −700. Within 2 units in the last place.
#[inline(always)]
pub(crate) fn exp<S: Simd>(simd: S, x: S::f64s) -> S::f64s {
    // ln 2 in two parts, the first of which is exact in products with whole numbers (fdlibm, e_exp.c).
    let (high, low) = (-6.931_471_803_691_238e-1, -1.908_214_929_270_587_7e-10);
    let x = x.max(-700.0);
    let rounded = x.mul_add(LOG2_E, ROUNDING_SHIFT);
    let n = rounded - ROUNDING_SHIFT;
    let r = n.mul_add(low, n.mul_add(high, x));
    // Taylor's series: |r| ≤ ln 2 / 2, so that the terms after the last are below 2⁻⁵³.
    let mut sum = splat(simd, 1.0 / 6_227_020_800.0);
    for k in [
        1.0 / 479_001_600.0,
        1.0 / 39_916_800.0,
        1.0 / 3_628_800.0,
        1.0 / 362_880.0,
        1.0 / 40_320.0,
        1.0 / 5_040.0,
        1.0 / 720.0,
        1.0 / 120.0,
        1.0 / 24.0,
        1.0 / 6.0,
        0.5,
        1.0,
        1.0,
    ] {
        sum = sum.mul_add(r, k);
    }
    // Times 2ⁿ: n is added to the exponent.
    S::f64s::from_bits(sum.to_bits() + (rounded.to_bits() << 52))
}

/// Returns sine and cosine of `x` radians, for |x| up to 10⁵. Within 1e-15.
#[inline(always)]
pub(crate) fn sin_cos<S: Simd>(simd: S, x: S::f64s) -> [S::f64s; 2] {
    let rounded = x.mul_add(FRAC_2_PI, ROUNDING_SHIFT);
    let n = rounded - ROUNDING_SHIFT;
    // π/2 in three parts, and the series, of fdlibm (e_rem_pio2.c, k_sin.c, k_cos.c).
    let r = n.mul_add(-1.570_796_326_734_125_6, x);
    let r = n.mul_add(-6.077_100_506_303_966e-11, r);
    let r = n.mul_add(-2.022_266_248_795_950_6e-21, r);
    let z = r * r;
    let s = evaluate_series(
        simd,
        z,
        [
            1.589_690_995_211_55e-10,
            -2.505_076_025_340_686_3e-8,
            2.755_731_370_707_006_8e-6,
            -1.984_126_982_985_795e-4,
            8.333_333_333_322_49e-3,
            -1.666_666_666_666_663_2e-1,
        ],
    );
    let s = (r * z).mul_add(s, r);
    let c = evaluate_series(
        simd,
        z,
        [
            -1.135_964_755_778_819_5e-11,
            2.087_572_321_298_175e-9,
            -2.755_731_435_139_066_3e-7,
            2.480_158_728_947_673e-5,
            -1.388_888_888_887_411e-3,
            4.166_666_666_666_66e-2,
        ],
    );
    let c = (z * z).mul_add(c, z.mul_add(-0.5, 1.0));
    // Each quarter turn exchanges the two, and two quarters change the sign.
    let quarters = n * 0.5;
    let odd = (quarters - quarters.floor()).simd_gt(0.25);
    let turned = rounded.to_bits();
    let sign_of_sine = (turned & 2) << 62;
    let sign_of_cosine = ((turned + 1) & 2) << 62;
    [
        S::f64s::from_bits(odd.select(c, s).to_bits() ^ sign_of_sine),
        S::f64s::from_bits(odd.select(s, c).to_bits() ^ sign_of_cosine),
    ]
}

/// Evaluates a polynomial, its highest term first.
#[inline(always)]
fn evaluate_series<S: Simd>(simd: S, z: S::f64s, terms: [f64; 6]) -> S::f64s {
    let mut sum = splat(simd, terms[0]);
    for term in &terms[1..] {
        sum = sum.mul_add(z, *term);
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn one(x: f64) -> [f64; 3] {
        vectorised!(simd => {
            let x = splat(simd, x);
            let [sine, cosine] = sin_cos(simd, x);
            [exp(simd, x), sine, cosine].map(|vector| vector.as_slice()[0])
        })
    }

    proptest! {
        #[test]
        fn exp_is_that_of_the_standard_library(x in -690.0..700.0f64) {
            let [exp, ..] = one(x);
            prop_assert!((exp / x.exp() - 1.0).abs() < 6e-16, "{x}: {exp} {}", x.exp());
        }

        #[test]
        fn sine_and_cosine_are_those_of_the_standard_library(x in -1e5..1e5f64) {
            let [_, s, c] = one(x);
            prop_assert!((s - x.sin()).abs() < 1e-15 && (c - x.cos()).abs() < 1e-15, "{x}: {s} {c}");
        }
    }

    #[test]
    fn what_is_nothing_is_next_to_nothing() {
        assert!(one(-1e9)[0] < 1e-300 && one(f64::NEG_INFINITY)[0] < 1e-300);
        assert_eq!(one(0.0), [1.0, 0.0, 1.0]);
    }
}
