//! Why there is no result.

use thiserror::Error;

/// Why nothing can be said of an image or a profile.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum Failure {
    /// All pixels are alike, or what is bright is not more than noise makes.
    #[error("there is no light")]
    NoLight,
    /// Two pixels side by side are as bright as the camera can show ([`Image::saturating_at`](crate::Image)).
    #[error("the image is saturated")]
    Saturated,
    /// A pixel is NaN or infinite, or so large that its square is.
    #[error("a pixel is not a number, or too large a one")]
    NotNumbers,
    /// There are not more pixels than the fit has parameters.
    #[error("too few pixels: {pixels} where {needed} are needed, of an image in as many rows as columns")]
    TooFewPixels {
        /// What there is.
        pixels: usize,
        /// What it takes.
        needed: usize,
    },
    /// The light is on about one pixel: its size cannot be known. It may be a hot pixel.
    #[error("the light is narrower than a pixel")]
    TooNarrow,
    /// The light is wider than what is looked at: the background is not seen.
    #[error("the light is wider than the image")]
    TooWide,
    /// The centre is not within what is looked at, or (moments) the beam's ellipse is not.
    #[error("the light is at the edge of the image")]
    AtTheEdge,
    /// There is light, but no fringes.
    #[error("there are no fringes")]
    NoFringes,
    /// The search did not come to an end.
    #[error("the fit does not converge: {iterations} iterations")]
    NotConverged {
        /// How many there were.
        iterations: usize,
    },
    /// Several sets of parameters are as good, so that there are no standard deviations.
    #[error("the parameters are not determined by the image")]
    Undetermined,
}

impl Failure {
    /// Its name, as Python and JSON have it: `no-light`, `saturated`, …
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
