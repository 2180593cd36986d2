//! Images as they come, understood: what a camera's frame says of a beam, at the camera's rate.
//!
//! - [`moments`]: centroid, diameters and azimuth after ISO 11146, as the Python package `laserbeamsize` has them.
//! - [`fit_gaussian`]: a Gaussian along a [`Profile`], the average row or column of an image.
//! - [`fit_gaussian_2d`]: an elliptical Gaussian over an image.
//! - [`fit_fringes`] and [`fit_fringes_2d`]: the fringes of a double slit, or of four holes, under the envelope of one:
//!   visibility, period, phase. [`Interferometer`] has the size of the source from them.
//!
//! An [`Image`] is borrowed, whole or in part, of 8 or 16 bits or floats; with a [`Calibration`] results are in
//! millimetres, too. A fit needs no starting values. It gives each parameter with its standard deviation ([`Estimate`]),
//! how well the model describes the image ([`Quality`]), or why there is nothing to say ([`Failure`]).
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
//! `scripts/image_fits.py` measures both. They are fast for two reasons. The derivatives, which the search needs at each
//! pixel, never lie in memory: their products are summed as they are made, for all pixels of a row that a processor
//! can hold at a time. And where x and y are factors of their own, fringes that are not turned, derivatives are made per row and
//! column, and not per pixel. Instructions for vectors are used where the processor has them (crate `fearless_simd`); without them
//! the results are the same, but for rounding.
//!
//! # Files, in the order of the data's way
//!
//! | file | what is in it |
//! | --- | --- |
//! | `image` | An image as a camera delivers it: rows of pixels, a part that matters, millimetres, white |
//! | `failure` | Why there is no result |
//! | `profile` | Images in one dimension: the average row, or the average column |
//! | `moments` | Beam moments: centroid, diameters and azimuth after ISO 11146 |
//! | `ellipse` | Second moments, and the ellipse that they are: its axes and where they point |
//! | `gaussian` | A Gaussian on a background, along a profile |
//! | `gaussian_2d` | An elliptical Gaussian on a background, over an image |
//! | `fringes` | Fringes along a profile: what a double slit makes of light |
//! | `fringes_2d` | Fringes over an image: what a double slit, or four slits at the corners of a rectangle, make of light |
//! | `pattern` | Fringes along one line: an envelope, and the wave on it |
//! | `period` | The period of fringes that nobody has told: the highest peak of the spectrum beyond the envelope's |
//! | `interferometer` | How large a source is whose light makes fringes of this visibility |
//! | `normal` | The normal equations of an image's fit, summed pixel by pixel without keeping J |
//! | `minimise` | Least squares: Levenberg's and Marquardt's way down to the smallest sum of squares |
//! | `fit` | What every fit says: values with standard deviations, how well the model describes the image |
//! | `math` | exp, sin and cos that a compiler can compute for several pixels at a time |
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
pub use moments::{Beam, MomentOptions, Moments, moments};
pub use pattern::Envelope;
pub use profile::{Axis, Profile};
