//! Period of fringes, if unknown: the highest peak of the spectrum beyond the envelope's.

use crate::Failure;
use rustfft::FftPlanner;
use rustfft::num_complex::Complex;
use std::f64::consts::TAU;

/// Minimum height of a peak, in medians of the spectrum.
const MIN_PEAK_MEDIANS: f64 = 5.0;
/// Minimum height of a peak, relative to the light: less, if there is no noise, is rounding error.
const MIN_PEAK_RATIO: f64 = 1e-4;

/// Returns the wave number (radians per pixel) of the fringes in these values, to about a tenth of the spectrum's
/// resolution.
///
/// # Errors
/// No fringes: the spectrum has no second peak.
pub(crate) fn find_wave_number(values: &[f64], background: f64) -> Result<f64, Failure> {
    let spectrum = magnitude_spectrum(
        &windowed_values(values, background).map(|value| Complex::new(value, 0.0)).collect::<Vec<_>>(),
    );
    Ok(spectrum_peaks(&spectrum[..spectrum.len() / 2])?[0])
}

/// Returns the values less the background, falling to zero at both ends (von Hann's window), so that the cut-off at the
/// ends leaves no trace in the spectrum.
pub(crate) fn windowed_values(values: &[f64], background: f64) -> impl Iterator<Item = f64> {
    let turn = TAU / values.len() as f64;
    values.iter().enumerate().map(move |(n, value)| {
        let window = 0.5 - 0.5 * ((n as f64 + 0.5) * turn).cos();
        (value - background) * window
    })
}

/// Returns the magnitudes at 0, 1, 2, … turns over a length that is at least twice that of the values (so that a peak
/// is never between two of them).
pub(crate) fn magnitude_spectrum(values: &[Complex<f64>]) -> Vec<f64> {
    let length = (2 * values.len()).next_power_of_two();
    let mut buffer = values.to_vec();
    buffer.resize(length, Complex::default());
    FftPlanner::new().plan_fft_forward(length).process(&mut buffer);
    buffer.iter().map(|value| value.norm()).collect()
}

/// Returns the wave numbers of the peaks beyond the first valley, of the first half of a spectrum: the highest first,
/// at most four.
///
/// # Errors
/// No fringes: there are no such peaks.
pub(crate) fn spectrum_peaks(spectrum: &[f64]) -> Result<Vec<f64>, Failure> {
    let valley = spectrum.windows(2).position(|pair| pair[1] > pair[0]).ok_or(Failure::NoFringes)?;
    let mut sorted = spectrum.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    let least = (MIN_PEAK_MEDIANS * sorted[sorted.len() / 2]).max(MIN_PEAK_RATIO * sorted[sorted.len() - 1]);
    let mut tops: Vec<usize> = (valley + 1..spectrum.len() - 1)
        .filter(|at| spectrum[*at] >= spectrum[at - 1].max(spectrum[at + 1]).max(least))
        .collect();
    tops.sort_unstable_by(|a, b| spectrum[*b].total_cmp(&spectrum[*a]));
    tops.truncate(4);
    if tops.is_empty() {
        return Err(Failure::NoFringes);
    }
    let wave_numbers = tops.into_iter().map(|top| {
        let place = top as f64 + parabola_peak(spectrum[top - 1], spectrum[top], spectrum[top + 1]);
        TAU * place / (2 * spectrum.len()) as f64
    });
    Ok(wave_numbers.collect())
}

/// Returns the place, from the middle one of three equidistant values, at which the parabola through them is highest:
/// within ±½.
pub(crate) fn parabola_peak(left: f64, middle: f64, right: f64) -> f64 {
    let bent = left - 2.0 * middle + right;
    if bent < 0.0 { (0.5 * (left - right) / bent).clamp(-0.5, 0.5) } else { 0.0 }
}

/// Returns each value averaged with its neighbours over one period, so that fringes vanish and the envelope stays.
pub(crate) fn without_fringes(values: &[f64], period: f64) -> Vec<f64> {
    let n = values.len();
    // Integral from the first pixel's left edge on, interpolated linearly between pixels.
    let mut integral = vec![0.0; n + 1];
    for (at, value) in values.iter().enumerate() {
        integral[at + 1] = integral[at] + value;
    }
    let averages = (0..n).map(|at| {
        let half = (period / 2.0).min(at as f64 + 0.5).min((n - at) as f64 - 0.5);
        let [from, to] = [at as f64 + 0.5 - half, at as f64 + 0.5 + half].map(|edge| {
            let whole = (edge as usize).min(n - 1);
            integral[whole] + (edge - whole as f64) * values[whole]
        });
        (to - from) / (2.0 * half)
    });
    averages.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fringes(n: usize, sigma: f64, period: f64, visibility: f64) -> Vec<f64> {
        let at = |x: usize| {
            let u = x as f64 - n as f64 / 2.0 - 0.3;
            10.0 + 100.0 * (-0.5 * (u / sigma).powi(2)).exp() * (1.0 + visibility * (TAU * u / period + 1.0).cos())
        };
        (0..n).map(at).collect()
    }

    #[test]
    fn the_period_is_found_whatever_the_visibility() {
        for (period, visibility) in [(8.0, 0.9), (20.5, 0.05), (33.3, 0.3), (50.0, 1.0)] {
            let k = find_wave_number(&fringes(640, 90.0, period, visibility), 10.0).unwrap();
            assert!((TAU / k / period - 1.0).abs() < 0.05, "{} for {period}", TAU / k);
        }
    }

    #[test]
    fn a_spot_has_no_period() {
        assert_eq!(find_wave_number(&fringes(640, 60.0, 9.0, 0.0), 10.0), Err(Failure::NoFringes));
    }

    #[test]
    fn averaging_over_a_period_leaves_the_envelope() {
        let smooth = without_fringes(&fringes(640, 90.0, 17.3, 0.8), 17.3);
        for (x, value) in smooth.iter().enumerate().skip(20).take(600) {
            let plain = 10.0 + 100.0 * (-0.5 * ((x as f64 - 320.3) / 90.0).powi(2)).exp();
            assert!((value - plain).abs() < 2.0, "{x}: {value} {plain}");
        }
    }
}
