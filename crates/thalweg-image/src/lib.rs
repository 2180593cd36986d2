//! Analysis of camera images at the camera's rate: beam moments, Gaussians and fringes.
//!
//! - [`moments`]: centroid, diameters and azimuth after ISO 11146, as the Python package `laserbeamsize` has them.
//! - [`fit_gaussian`]: a Gaussian along a [`Profile`], the average row or column of an image.
//! - [`fit_gaussian_2d`]: an elliptical Gaussian over an image.
//! - [`fit_fringes`] and [`fit_fringes_2d`]: the fringes of a double slit, or of four holes, under the envelope of one:
//!   visibility, period, phase. [`Interferometer`] computes the size of the source from them.
//!
//! An [`Image`] is borrowed, whole or in part, with pixels of 8 or 16 bits or floats; with a [`Calibration`] results
//! are in millimetres as well. A fit needs no starting values. It gives each parameter with its standard deviation
//! ([`Estimate`]) and the quality of the fit ([`Quality`]), or the reason why there is no result ([`Failure`]).
//!
//! ```
//! use thalweg_image::{Image, fit_gaussian_2d};
//!
//! let at = |n: usize| ((n % 64) as f64 - 30.0).powi(2) / 50.0 + ((n / 64) as f64 - 20.0).powi(2) / 18.0;
//! let pixels: Vec<u16> = (0..64 * 48).map(|n| (100.0 + 3000.0 * (-at(n)).exp()).round() as u16).collect();
//! let fit = fit_gaussian_2d(&Image::new(64, 48, &pixels)?)?;
//! assert!((fit.x.value - 30.0).abs() < 1e-3 && (fit.sigma_major.value - 5.0).abs() < 1e-3);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Fits end in the minimum in which `scipy.optimize.curve_fit` ends; `python/tests/test_image.py` compares, and
//! `scripts/image_fits.py` measures both. They are fast for two reasons. The derivatives, which the search needs at
//! each pixel, are never stored: their products are summed as they are computed, for as many pixels of a row as a
//! processor can hold at a time. And where the model is a product of a function of x and one of y, as for fringes that
//! are not rotated, derivatives are computed per row and column, and not per pixel. Vector instructions are used where
//! the processor has them (crate `fearless_simd`); without them the results are the same, except for rounding.
//!
//! # Files, in the order of the data path
//!
//! | file | contents |
//! | --- | --- |
//! | `image` | Images as a camera delivers them: rows of pixels, a region of interest, millimetres, white |
//! | `failure` | Reasons why there is no result |
//! | `profile` | Images in one dimension: the average row, or the average column |
//! | `moments` | Beam moments: centroid, diameters and azimuth after ISO 11146 |
//! | `ellipse` | Second moments as an ellipse: its axes and their direction |
//! | `gaussian` | A Gaussian on a background, along a profile |
//! | `gaussian_2d` | An elliptical Gaussian on a background, over an image |
//! | `fringes` | Fringes along a profile, as a double slit makes them |
//! | `fringes_2d` | Fringes over an image, as a double slit, or four slits at the corners of a rectangle, make them |
//! | `pattern` | Fringes along one line: an envelope, and the wave on it |
//! | `period` | Period of fringes, if unknown: the highest peak of the spectrum beyond the envelope's |
//! | `interferometer` | Size of a source, from the visibility of the fringes that its light makes |
//! | `normal` | The normal equations of an image's fit, summed pixel by pixel without keeping J |
//! | `minimise` | Least squares: the Levenberg-Marquardt search for the smallest sum of squares |
//! | `fit` | Common results of all fits: values with standard deviations, and the quality of the fit |
//! | `math` | Vectorised exp, sin and cos, for several pixels at a time |
#![forbid(unsafe_code)]

mod ellipse;
mod failure;
mod fit;
mod fringes;
mod fringes_2d;
mod gaussian;
mod gaussian_2d;
mod image;
mod interferometer;
mod math;
mod minimise;
mod moments;
mod normal;
mod pattern;
mod period;
mod profile;

pub use failure::Failure;
pub use fit::{Estimate, Quality};
pub use fringes::{Fringes, Wave, fit_fringes};
pub use fringes_2d::{Fringes2d, Fringes2dMillimetres, Fringes2dOptions, Slits, fit_fringes_2d};
pub use gaussian::{Gaussian, fit_gaussian};
pub use gaussian_2d::{Gaussian2d, Gaussian2dMillimetres, fit_gaussian_2d};
pub use image::{Calibration, Image, ImageError, Pixels, Region};
pub use interferometer::Interferometer;
pub use moments::{Beam, MomentOptions, Moments, beam_moments};
pub use pattern::Envelope;
pub use profile::{Axis, Profile};
