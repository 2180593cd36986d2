//! Size of a light source, from the visibility of its interference fringes.

use crate::Estimate;
use std::f64::consts::PI;

/// Double-slit interferometer for the size of a light source: the synchrotron radiation interferometer.
///
/// The light of a source with a Gaussian profile of standard deviation σ has, between two slits of separation D at
/// distance L from the source, the degree of coherence γ. By the van Cittert–Zernike theorem it is the Fourier
/// transform of the profile:
///
/// ```text
/// |γ| = exp(−2 (π σ D / λ L)²),   so that   σ = (λ L / π D) √(½ ln (1 / |γ|))
/// ```
///
/// The visibility is |γ| · 2 √(I₁ I₂) / (I₁ + I₂), where I₁ and I₂ are the intensities through the two slits.
///
/// M. Born and E. Wolf, *Principles of Optics*, section 10.4; T. Mitsuhashi, *Spatial coherency of the synchrotron
/// radiation at the visible light region and its application for the electron beam profile measurement*, PAC 1997, 766.
/// With four apertures, in both directions at once: M. Masaki and S. Takano, *Journal of Synchrotron Radiation* 10
/// (2003) 295.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Interferometer {
    /// Wavelength λ, in metres.
    pub wavelength: f64,
    /// Separation D, from the centre of one slit to that of the other, in metres.
    pub separation: f64,
    /// Distance L from the source to the slits, in metres.
    pub distance: f64,
    /// Intensity ratio I₁ / I₂; 1 if both slits are equally illuminated.
    pub intensity_ratio: f64,
}

impl Interferometer {
    /// Creates an interferometer with equally illuminated slits. All lengths are in metres.
    pub fn new(wavelength: f64, separation: f64, distance: f64) -> Self {
        Self { wavelength, separation, distance, intensity_ratio: 1.0 }
    }

    /// Returns the σ of the light source, in metres, for a measured fringe visibility. `None` if the visibility is 0 or
    /// less, or is not below that of a point source. The standard deviation is propagated from the visibility alone.
    pub fn source_size(&self, visibility: Estimate) -> Option<Estimate> {
        let coherence = visibility.value * (1.0 + self.intensity_ratio) / (2.0 * self.intensity_ratio.sqrt());
        if !(coherence > 0.0 && coherence < 1.0) {
            return None;
        }
        let unit = self.coherence_unit();
        let value = unit * (-0.5 * coherence.ln()).sqrt();
        // dσ/dV = −unit² / 4 σ V.
        Some(Estimate { value, std: unit * unit / (4.0 * value * visibility.value) * visibility.std })
    }

    /// Returns the fringe visibility, from 0 to 1, for a light source whose σ is `source_size` metres.
    pub fn fringe_visibility(&self, source_size: f64) -> f64 {
        let point_visibility = 2.0 * self.intensity_ratio.sqrt() / (1.0 + self.intensity_ratio);
        point_visibility * (-2.0 * (source_size / self.coherence_unit()).powi(2)).exp()
    }

    /// Returns λ L / π D in metres: the σ of the source for which |γ| is e⁻².
    fn coherence_unit(&self) -> f64 {
        self.wavelength * self.distance / (PI * self.separation)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::f64::consts::TAU;

    #[test]
    fn the_visibility_is_that_of_the_fringes_summed_over_the_points_of_the_source() {
        // 16.7 m, 400 nm, slits 30 mm apart: a beam of tens of micrometres.
        let ours = Interferometer::new(400e-9, 0.03, 16.7);
        for sigma in [20e-6, 50e-6, 100e-6] {
            // A point at s shifts the phase by 2π D s / λ L.
            let (mut sum, mut cosine) = (0.0, 0.0);
            for n in -6000..=6000 {
                let s = f64::from(n) * sigma / 1000.0;
                let weight = (-0.5 * (s / sigma).powi(2)).exp();
                sum += weight;
                cosine += weight * (TAU * ours.separation * s / (ours.wavelength * ours.distance)).cos();
            }
            assert!((ours.fringe_visibility(sigma) - cosine / sum).abs() < 1e-8, "{sigma}");
        }
    }

    proptest! {
        #[test]
        fn source_size_is_the_inverse_of_fringe_visibility(sigma in 0.05..2.0f64, ratio in 0.1..10.0f64) {
            let ours = Interferometer { intensity_ratio: ratio, ..Interferometer::new(400e-9, 0.03, 16.7) };
            let sigma = sigma * 70e-6;
            let value = ours.fringe_visibility(sigma);
            let size = |value| ours.source_size(Estimate { value, std: 1e-3 }).unwrap();
            prop_assert!((size(value).value / sigma - 1.0).abs() < 1e-9);
            let step = 1e-6 * value;
            let slope = (size(value - step).value - size(value + step).value) / (2.0 * step);
            prop_assert!((size(value).std / (slope * 1e-3) - 1.0).abs() < 1e-4);
        }
    }

    #[test]
    fn no_source_has_more_visibility_than_a_point() {
        let ours = Interferometer::new(400e-9, 0.03, 16.7);
        for value in [1.0, 1.2, 0.0, -0.1, f64::NAN] {
            assert_eq!(ours.source_size(Estimate { value, std: 0.01 }), None, "{value}");
        }
        let uneven = Interferometer { intensity_ratio: 4.0, ..ours };
        assert_eq!(uneven.source_size(Estimate { value: 0.81, std: 0.01 }), None, "0.8 is what a point has");
    }
}
