//! Common results of all fits: values with standard deviations, and the quality of the fit.

use crate::Failure;
use crate::minimise::Minimum;
use std::fmt;

/// A fitted value with its standard deviation.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Estimate {
    /// Value at which the sum of squares is smallest.
    pub value: f64,
    /// Standard deviation of the value, from the covariance matrix scaled with the reduced χ² (as
    /// `scipy.optimize.curve_fit(absolute_sigma=False)`): the scatter of repeated measurements, if the model is right
    /// and the noise is independent from pixel to pixel and equal in all pixels.
    pub std: f64,
}

impl Estimate {
    pub(crate) fn from_minimum<const N: usize>(minimum: &Minimum<N>, parameter: usize) -> Self {
        let variance = minimum.covariance[parameter][parameter];
        Self { value: minimum.parameters[parameter], std: variance.max(0.0).sqrt() }
    }

    pub(crate) fn scaled_by(self, factor: f64) -> Self {
        Self { value: self.value * factor, std: self.std * factor.abs() }
    }

    /// Returns whether the value is more than three standard deviations above zero.
    pub(crate) fn is_significant(self) -> bool {
        self.value > 3.0 * self.std
    }
}

impl fmt::Display for Estimate {
    /// Writes `12.345 ± 0.012`: both with the decimals of two significant digits of the standard deviation, or with six
    /// decimals if it is 0 or not finite.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let digits = match self.std > 0.0 && self.std.is_finite() {
            true => (1.0 - self.std.log10().floor()).clamp(0.0, 15.0) as usize,
            false => 6,
        };
        write!(f, "{:.digits$} ± {:.digits$}", self.value, self.std)
    }
}

/// Quality of a fit.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Quality {
    /// Root mean square of the residuals, in the pixels' unit.
    pub rms: f64,
    /// Sum of squared residuals over the number of pixels less parameters, in the pixels' unit squared: the variance of
    /// the noise, if the model is right.
    pub reduced_chi2: f64,
    /// Coefficient of determination R²: the fraction of Σ (pixel − mean)² that the model explains; at most 1.
    pub r2: f64,
    /// Number of pixels that were fitted.
    pub pixels: usize,
    /// Number of steps of the search, those included that were not taken.
    pub iterations: usize,
}

/// Minimum reduction of the sum of squares by the model, compared with a constant, in units of the variance of the
/// noise; a fit that reduces it by less has found no light. A fit to pure noise reduces it by about 25, the square of
/// the largest excursion of the noise, and slightly more.
const MIN_CHI2_EXCESS: f64 = 40.0;

impl Quality {
    /// Returns the quality of a fit with this minimum. `total` is Σ (pixel − mean)².
    ///
    /// # Errors
    /// [`Failure::NoLight`]: the model explains no more than a fit to noise would.
    pub(crate) fn from_minimum<const N: usize>(minimum: &Minimum<N>, total: f64) -> Result<Self, Failure> {
        let &Minimum { squares, pixels, free, iterations, .. } = minimum;
        let reduced_chi2 = squares / (pixels - free) as f64;
        if total - squares < MIN_CHI2_EXCESS * reduced_chi2 {
            return Err(Failure::NoLight);
        }
        Ok(Self { rms: (squares / pixels as f64).sqrt(), reduced_chi2, r2: 1.0 - squares / total, pixels, iterations })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_estimate_shows_the_digits_that_mean_something() {
        let shown = |value, std| Estimate { value, std }.to_string();
        assert_eq!(shown(12.34567, 0.0123), "12.346 ± 0.012");
        assert_eq!(shown(1234.5, 56.0), "1234 ± 56");
        assert_eq!(shown(1.0, 0.0), "1.000000 ± 0.000000");
        assert_eq!(shown(0.5, f64::INFINITY), "0.500000 ± inf");
    }
}
