//! Reasons why there is no result.

use thiserror::Error;

/// Reason why an image or a profile gives no result.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum Failure {
    /// All pixels are alike, or bright pixels are not more than noise.
    #[error("there is no light")]
    NoLight,
    /// Two pixels side by side have the camera's highest value ([`Image::saturating_at`](crate::Image)).
    #[error("the image is saturated")]
    Saturated,
    /// A pixel is NaN or infinite, or so large that its square is infinite.
    #[error("a pixel is not a number, or is too large")]
    NotNumbers,
    /// The number of pixels does not exceed the number of the fit's parameters.
    #[error("too few pixels: {pixels}, but {needed} are needed")]
    TooFewPixels {
        /// Number of pixels available.
        pixels: usize,
        /// Number of pixels needed.
        needed: usize,
    },
    /// The light is on about one pixel: its size cannot be determined. It may be a hot pixel.
    #[error("the light is narrower than a pixel")]
    TooNarrow,
    /// The light is wider than the selected region: the background is not visible.
    #[error("the light is wider than the image")]
    TooWide,
    /// The centre is not within the selected region, or (moments) the beam's ellipse is not.
    #[error("the light is at the edge of the image")]
    AtTheEdge,
    /// There is light, but no fringes.
    #[error("no fringes")]
    NoFringes,
    /// The search did not converge.
    #[error("the fit does not converge: {iterations} iterations")]
    NotConverged {
        /// Number of iterations.
        iterations: usize,
    },
    /// Several sets of parameters fit equally well, so that there are no standard deviations.
    #[error("the parameters are not determined by the image")]
    Undetermined,
}

impl Failure {
    /// Returns the name, as used in Python and JSON: `no-light`, `saturated`, …
    pub fn name(&self) -> &'static str {
        match self {
            Self::NoLight => "no-light",
            Self::Saturated => "saturated",
            Self::NotNumbers => "not-numbers",
            Self::TooFewPixels { .. } => "too-few-pixels",
            Self::TooNarrow => "too-narrow",
            Self::TooWide => "too-wide",
            Self::AtTheEdge => "at-the-edge",
            Self::NoFringes => "no-fringes",
            Self::NotConverged { .. } => "not-converged",
            Self::Undetermined => "undetermined",
        }
    }
}
