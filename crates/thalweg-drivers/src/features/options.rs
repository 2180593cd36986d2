//! Options of a fit: its `device = { kind = "fit", … }` table.

use crate::features::{Fit, Row};
use serde::{Deserialize, Serialize};
use thalweg_device::{
    Acquisition, Adapter, Copies, Description, DeviceError, DeviceKind, DeviceOptions, Observed, OpenDevice,
};
use thalweg_image::Envelope;

/// Fits of another source's images: see `docs/images.md`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FitConfig {
    /// Name of the source that takes the images. The fit is a part of its process.
    pub of: String,
    /// Kind of the fit.
    pub fit: FitKind,
    /// Region of the image that is fitted: x, y, width, height; the whole image where left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub region: Option<[usize; 4]>,
    /// Distance from pixel to pixel, in millimetres: lengths are then reported in millimetres as well.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pixel_mm: Option<f64>,
    /// Highest value that a pixel can have.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub white: Option<f64>,
    /// Fringes: shape of the light of one slit.
    #[serde(default, skip_serializing_if = "EnvelopeConfig::is_default")]
    pub envelope: EnvelopeConfig,
    /// Fringes in two dimensions: true if the slits may be rotated with respect to the camera.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub turned: bool,
    /// Fringes: interferometer that makes them; with it the size of the light source is reported as well.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interferometer: Option<InterferometerConfig>,
    /// Maximum number of images that may wait to be fitted. An image that comes while this many wait has no fit.
    #[serde(default = "FitConfig::waiting", skip_serializing_if = "FitConfig::is_usual")]
    pub waiting: u32,
}

// NaN is refused before anything is compared.
impl Eq for FitConfig {}

impl FitConfig {
    fn waiting() -> u32 {
        4
    }

    fn is_usual(waiting: &u32) -> bool {
        *waiting == Self::waiting()
    }
}

/// Kind of a fit to an image.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum FitKind {
    /// Beam moments after ISO 11146.
    #[serde(rename = "moments")]
    Moments,
    /// A Gaussian along the average row.
    #[serde(rename = "gaussian-x")]
    GaussianX,
    /// A Gaussian along the average column.
    #[serde(rename = "gaussian-y")]
    GaussianY,
    /// An elliptical Gaussian.
    #[serde(rename = "gaussian-2d")]
    Gaussian2d,
    /// Fringes along the average row.
    #[serde(rename = "fringes-x")]
    FringesX,
    /// Fringes along the average column.
    #[serde(rename = "fringes-y")]
    FringesY,
    /// Fringes of two slits side by side.
    #[serde(rename = "fringes-2d-x")]
    Fringes2dX,
    /// Fringes of two slits one above the other.
    #[serde(rename = "fringes-2d-y")]
    Fringes2dY,
    /// Fringes of four holes.
    #[serde(rename = "fringes-2d-four")]
    Fringes2dFour,
}

impl FitKind {
    fn is_of_fringes(self) -> bool {
        matches!(self, Self::FringesX | Self::FringesY) || self.is_of_fringes_2d()
    }

    fn is_of_fringes_2d(self) -> bool {
        matches!(self, Self::Fringes2dX | Self::Fringes2dY | Self::Fringes2dFour)
    }
}

/// Shape of the light of one slit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum EnvelopeConfig {
    /// Light of a slit of uniform illumination: (sin x / x)².
    #[default]
    Sinc2,
    /// A Gaussian.
    Gaussian,
}

impl From<EnvelopeConfig> for Envelope {
    fn from(config: EnvelopeConfig) -> Self {
        match config {
            EnvelopeConfig::Sinc2 => Self::Sinc2,
            EnvelopeConfig::Gaussian => Self::Gaussian,
        }
    }
}

impl EnvelopeConfig {
    fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

/// A double slit before a light source. Lengths are in metres.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct InterferometerConfig {
    /// Wavelength of the light.
    pub wavelength: f64,
    /// Distance from the centre of one slit to that of the other.
    pub separation: f64,
    /// Distance from the light source to the slits.
    pub distance: f64,
}

impl DeviceOptions for FitConfig {
    fn open_device(&self, _adapter: Option<&Adapter>) -> Result<OpenDevice, DeviceError> {
        let problem = format!("a fit is part of '{}' and is opened together with it", self.of);
        Err(DeviceError::Option { option: "of", problem })
    }

    fn check_options(&self) -> Result<(), DeviceError> {
        require_option(
            self.pixel_mm.is_none_or(is_positive),
            "pixel_mm",
            "it must be a distance of two pixels above \
            0",
        )?;
        require_option(
            self.white.is_none_or(is_positive),
            "white",
            "it must be the largest value of a pixel, above 0",
        )?;
        require_option(
            (1..=1024).contains(&self.waiting),
            "waiting",
            "the number of waiting images must be 1 to 1024",
        )?;
        let fringes = self.fit.is_of_fringes();
        require_option(!self.turned || self.fit.is_of_fringes_2d(), "turned", "it needs fringes in two dimensions")?;
        require_option(fringes || self.envelope.is_default(), "envelope", "it needs fringes")?;
        require_option(fringes || self.interferometer.is_none(), "interferometer", "it needs fringes")?;
        let sizes = self.interferometer.map(|i| [i.wavelength, i.separation, i.distance]);
        require_option(
            sizes.is_none_or(|sizes| sizes.into_iter().all(is_positive)),
            "interferometer",
            "wavelength, separation and distance are in metres, above 0",
        )
    }

    fn is_acquisition(&self) -> bool {
        true
    }

    fn observed_source(&self) -> Option<Observed<'_>> {
        Some(Observed { source: &self.of, waiting: self.waiting as usize })
    }

    fn open_observer(
        &self,
        observed: &Description,
        reorders: u32,
        copies: Copies,
    ) -> Result<Box<dyn Acquisition>, DeviceError> {
        Ok(Box::new(Fit::new(self, observed, reorders, copies)?))
    }

    fn feature_names(&self) -> Option<Vec<String>> {
        Some(Row::from_image(self, Err("damaged")).names)
    }
}

fn is_positive(number: f64) -> bool {
    number.is_finite() && number > 0.0
}

/// Returns an error of an option unless the condition holds.
fn require_option(holds: bool, option: &'static str, problem: &str) -> Result<(), DeviceError> {
    match holds {
        true => Ok(()),
        false => Err(DeviceError::Option { option, problem: problem.to_owned() }),
    }
}

impl DeviceKind for FitConfig {
    const NAME: &'static str = "fit";
}

#[cfg(test)]
mod tests {
    use super::*;

    thalweg_device::device_conformance!(
        FitConfig,
        [
            "of = \"camera\"\nfit = \"moments\"",
            "of = \"camera\"\nfit = \"fringes-x\"\nenvelope = \"gaussian\"\nwaiting = 8"
        ]
    );
}
