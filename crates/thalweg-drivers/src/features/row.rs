//! The result of a fit as a row of numbers with names.

use crate::features::{FitConfig, FitKind, InterferometerConfig};
use thalweg_image::{
    Axis, Beam, Estimate, Failure, Fringes2dOptions, Image, Interferometer, MomentOptions, Profile, Quality, Slits,
    Wave, beam_moments, fit_fringes, fit_fringes_2d, fit_gaussian, fit_gaussian_2d,
};

/// Reasons why a row has no numbers. Its first number, `failure`, is the index of the reason in this list; 0 is
/// success.
pub const FAILURES: [&str; 12] = [
    "",
    "damaged",
    "no-light",
    "saturated",
    "not-numbers",
    "too-few-pixels",
    "too-narrow",
    "too-wide",
    "at-the-edge",
    "no-fringes",
    "not-converged",
    "undetermined",
];

/// A row of numbers, each with its name. Unknown numbers are NaN.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Row {
    /// Names of the numbers. They are the same for all rows of one kind of fit.
    pub names: Vec<String>,
    /// Values of the numbers, as many as names.
    pub values: Vec<f64>,
}

impl Row {
    /// Fits an image and returns the result; a row without numbers, with the reason, if there is no image or no fit.
    pub fn from_image(config: &FitConfig, image: Result<&Image<'_>, &'static str>) -> Self {
        match config.fit {
            FitKind::Moments => Self::moments_row(config, image),
            FitKind::GaussianX | FitKind::GaussianY => Self::gaussian_row(config, image),
            FitKind::Gaussian2d => Self::gaussian_2d_row(config, image),
            FitKind::FringesX | FitKind::FringesY => Self::fringes_row(config, image),
            FitKind::Fringes2dX | FitKind::Fringes2dY | FitKind::Fringes2dFour => Self::fringes_2d_row(config, image),
        }
    }

    /// Fits the moments of an image.
    fn moments_row(config: &FitConfig, image: Result<&Image<'_>, &'static str>) -> Self {
        let calibrated = config.pixel_mm.is_some();
        let fit = image.and_then(|image| failure_name(beam_moments(image, &MomentOptions::default())));
        Self::with_failure(&fit, |row, fit| {
            row.push_value("background", fit.map(|fit| fit.background));
            row.push_value("noise", fit.map(|fit| fit.noise));
            row.push_value("total", fit.map(|fit| fit.total));
            row.push_beam("", fit.map(|fit| fit.beam));
            if calibrated {
                row.push_beam("_mm", fit.and_then(|fit| fit.millimetres));
            }
            row.push_value("cut", fit.map(|fit| f64::from(u8::from(fit.cut))));
            row.push_value("settled", fit.map(|fit| f64::from(u8::from(fit.settled))));
        })
    }

    /// Fits a Gaussian along one axis.
    fn gaussian_row(config: &FitConfig, image: Result<&Image<'_>, &'static str>) -> Self {
        let calibrated = config.pixel_mm.is_some();
        let axis = if config.fit == FitKind::GaussianX { Axis::X } else { Axis::Y };
        let fit =
            image.and_then(|image| failure_name(Profile::along_axis(image, axis).and_then(|line| fit_gaussian(&line))));
        Self::with_failure(&fit, |row, fit| {
            row.push_estimate("background", fit.map(|fit| fit.background));
            row.push_estimate("amplitude", fit.map(|fit| fit.amplitude));
            row.push_estimate("center", fit.map(|fit| fit.center));
            row.push_estimate("sigma", fit.map(|fit| fit.sigma));
            if calibrated {
                let millimetres = fit.and_then(|fit| fit.millimetres);
                row.push_estimate("center_mm", millimetres.map(|[center, _]| center));
                row.push_estimate("sigma_mm", millimetres.map(|[_, sigma]| sigma));
            }
            row.push_quality(fit.map(|fit| fit.quality));
        })
    }

    /// Fits a Gaussian over the image.
    fn gaussian_2d_row(config: &FitConfig, image: Result<&Image<'_>, &'static str>) -> Self {
        let calibrated = config.pixel_mm.is_some();
        let fit = image.and_then(|image| failure_name(fit_gaussian_2d(image)));
        Self::with_failure(&fit, |row, fit| {
            row.push_estimate("background", fit.map(|fit| fit.background));
            row.push_estimate("amplitude", fit.map(|fit| fit.amplitude));
            row.push_estimate("x", fit.map(|fit| fit.x));
            row.push_estimate("y", fit.map(|fit| fit.y));
            row.push_estimate("sigma_major", fit.map(|fit| fit.sigma_major));
            row.push_estimate("sigma_minor", fit.map(|fit| fit.sigma_minor));
            row.push_estimate("angle", fit.map(|fit| fit.angle));
            if calibrated {
                let millimetres = fit.and_then(|fit| fit.millimetres);
                row.push_estimate("x_mm", millimetres.map(|mm| mm.x));
                row.push_estimate("y_mm", millimetres.map(|mm| mm.y));
                row.push_estimate("sigma_major_mm", millimetres.map(|mm| mm.sigma_major));
                row.push_estimate("sigma_minor_mm", millimetres.map(|mm| mm.sigma_minor));
                row.push_estimate("angle_mm", millimetres.map(|mm| mm.angle));
            }
            row.push_quality(fit.map(|fit| fit.quality));
        })
    }

    /// Fits fringes along one axis.
    fn fringes_row(config: &FitConfig, image: Result<&Image<'_>, &'static str>) -> Self {
        let calibrated = config.pixel_mm.is_some();
        let envelope = config.envelope.into();
        let axis = if config.fit == FitKind::FringesX { Axis::X } else { Axis::Y };
        let fit = image.and_then(|image| {
            failure_name(Profile::along_axis(image, axis).and_then(|line| fit_fringes(&line, envelope)))
        });
        Self::with_failure(&fit, |row, fit| {
            row.push_estimate("background", fit.map(|fit| fit.background));
            row.push_estimate("amplitude", fit.map(|fit| fit.amplitude));
            row.push_estimate("center", fit.map(|fit| fit.center));
            row.push_estimate("width", fit.map(|fit| fit.width));
            row.push_wave("", fit.map(|fit| fit.wave), config.interferometer.as_ref());
            if calibrated {
                let millimetres = fit.and_then(|fit| fit.millimetres);
                row.push_estimate("center_mm", millimetres.map(|[center, ..]| center));
                row.push_estimate("width_mm", millimetres.map(|[_, width, _]| width));
                row.push_estimate("period_mm", millimetres.map(|[.., period]| period));
            }
            row.push_quality(fit.map(|fit| fit.quality));
        })
    }

    /// Fits fringes over the image.
    fn fringes_2d_row(config: &FitConfig, image: Result<&Image<'_>, &'static str>) -> Self {
        let calibrated = config.pixel_mm.is_some();
        let envelope = config.envelope.into();
        let slits = match config.fit {
            FitKind::Fringes2dX => Slits::Double(Axis::X),
            FitKind::Fringes2dY => Slits::Double(Axis::Y),
            _ => Slits::Four,
        };
        let options = Fringes2dOptions { envelope, slits, turned: config.turned };
        let fit = image.and_then(|image| failure_name(fit_fringes_2d(image, &options)));
        Self::with_failure(&fit, |row, fit| {
            row.push_estimate("background", fit.map(|fit| fit.background));
            row.push_estimate("amplitude", fit.map(|fit| fit.amplitude));
            row.push_estimate("x", fit.map(|fit| fit.x));
            row.push_estimate("y", fit.map(|fit| fit.y));
            row.push_estimate("width_x", fit.map(|fit| fit.width_x));
            row.push_estimate("width_y", fit.map(|fit| fit.width_y));
            if config.fit != FitKind::Fringes2dY {
                row.push_wave("_x", fit.and_then(|fit| fit.wave_x), config.interferometer.as_ref());
            }
            if config.fit != FitKind::Fringes2dX {
                row.push_wave("_y", fit.and_then(|fit| fit.wave_y), config.interferometer.as_ref());
            }
            if config.turned {
                row.push_estimate("angle", fit.map(|fit| fit.angle));
            }
            if calibrated {
                let millimetres = fit.and_then(|fit| fit.millimetres);
                row.push_estimate("x_mm", millimetres.map(|mm| mm.x));
                row.push_estimate("y_mm", millimetres.map(|mm| mm.y));
                row.push_estimate("width_x_mm", millimetres.map(|mm| mm.width_x));
                row.push_estimate("width_y_mm", millimetres.map(|mm| mm.width_y));
            }
            row.push_quality(fit.map(|fit| fit.quality));
        })
    }

    /// Writes the row into a fragment's payload, as little-endian numbers.
    pub fn encode_into(&self, out: &mut [u8]) {
        for (place, value) in out.chunks_exact_mut(8).zip(&self.values) {
            place.copy_from_slice(&value.to_le_bytes());
        }
    }

    fn with_failure<T>(fit: &Result<T, &'static str>, put: impl FnOnce(&mut Self, Option<&T>)) -> Self {
        let mut row = Self::default();
        let failure = fit.as_ref().err().copied().unwrap_or("");
        let code = FAILURES.iter().position(|name| *name == failure).unwrap_or(FAILURES.len());
        #[expect(clippy::cast_precision_loss, reason = "a dozen")]
        row.push_value("failure", Some(code as f64));
        put(&mut row, fit.as_ref().ok());
        row
    }

    fn push_value(&mut self, name: &str, value: Option<f64>) {
        self.names.push(name.to_owned());
        self.values.push(value.unwrap_or(f64::NAN));
    }

    /// Adds a fitted value, followed by its standard deviation.
    fn push_estimate(&mut self, name: &str, estimate: Option<Estimate>) {
        self.push_value(name, estimate.map(|estimate| estimate.value));
        self.push_value(&format!("{name}_std"), estimate.map(|estimate| estimate.std));
    }

    fn push_quality(&mut self, quality: Option<Quality>) {
        self.push_value("rms", quality.map(|quality| quality.rms));
        self.push_value("r2", quality.map(|quality| quality.r2));
    }

    fn push_beam(&mut self, unit: &str, beam: Option<Beam>) {
        self.push_value(&format!("x{unit}"), beam.map(|beam| beam.x));
        self.push_value(&format!("y{unit}"), beam.map(|beam| beam.y));
        self.push_value(&format!("d_major{unit}"), beam.map(|beam| beam.d_major));
        self.push_value(&format!("d_minor{unit}"), beam.map(|beam| beam.d_minor));
        self.push_value(&format!("angle{unit}"), beam.map(|beam| beam.angle));
    }

    fn push_wave(&mut self, direction: &str, wave: Option<Wave>, interferometer: Option<&InterferometerConfig>) {
        self.push_estimate(&format!("visibility{direction}"), wave.map(|wave| wave.visibility));
        self.push_estimate(&format!("period{direction}"), wave.map(|wave| wave.period));
        self.push_estimate(&format!("phase{direction}"), wave.map(|wave| wave.phase));
        if let Some(InterferometerConfig { wavelength, separation, distance }) = interferometer {
            let interferometer = Interferometer::new(*wavelength, *separation, *distance);
            let size = wave.and_then(|wave| interferometer.source_size(wave.visibility));
            self.push_estimate(&format!("source_size{direction}"), size);
        }
    }
}

/// Returns a fit, or the name of the reason why there is none.
fn failure_name<T>(fit: Result<T, Failure>) -> Result<T, &'static str> {
    fit.map_err(|failure| failure.name())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(more: &str) -> FitConfig {
        toml::from_str(&format!("of = \"camera\"\n{more}")).unwrap()
    }

    const KINDS: [&str; 9] = [
        "moments",
        "gaussian-x",
        "gaussian-y",
        "gaussian-2d",
        "fringes-x",
        "fringes-y",
        "fringes-2d-x",
        "fringes-2d-y",
        "fringes-2d-four",
    ];

    /// Light with fringes in both directions on a background.
    fn light() -> Vec<f64> {
        let pixel = |n: usize| {
            let (x, y) = ((n % 128) as f64 - 60.0, (n / 128) as f64 - 50.0);
            let wave = |at: f64| 1.0 + 0.5 * (at / 2.0).cos();
            100.0 + 900.0 * (-(x * x) / 800.0 - y * y / 600.0).exp() * wave(x) * wave(y)
        };
        (0..128 * 100).map(pixel).collect()
    }

    #[test]
    fn a_row_has_the_same_names_whether_there_is_a_fit_or_not() {
        let pixels = light();
        let image = Image::new(128, 100, &pixels).unwrap();
        for kind in KINDS {
            for more in
                ["", "pixel_mm = 0.005\ninterferometer = { wavelength = 4e-7, separation = 0.03, distance = 16.7 }"]
            {
                let config = config(&format!("fit = {kind:?}\nenvelope = \"gaussian\"\n{more}"));
                let (failed, fitted) = (Row::from_image(&config, Err("damaged")), Row::from_image(&config, Ok(&image)));
                assert_eq!(failed.names, fitted.names, "{kind}");
                assert_eq!((failed.names.len(), failed.values[0]), (failed.values.len(), 1.0));
                assert!(failed.values[1..].iter().all(|value| value.is_nan()), "{kind}");
                let mut names = failed.names.clone();
                names.sort_unstable();
                names.dedup();
                assert_eq!(names.len(), failed.names.len(), "{kind}: each has a name of its own");
            }
        }
    }

    #[test]
    fn what_is_fitted_is_in_the_row_by_its_name() {
        let at = |n: usize| ((n % 64) as f64 - 30.0).powi(2) / 50.0 + ((n / 64) as f64 - 20.0).powi(2) / 18.0;
        let pixels: Vec<f64> = (0..64 * 48).map(|n| 100.0 + 3000.0 * (-at(n)).exp()).collect();
        let image = Image::new(64, 48, &pixels).unwrap();
        let calibrated = image.with_calibration(thalweg_image::Calibration { x: 0.01, y: 0.01 }).unwrap();
        let row = Row::from_image(&config("fit = \"gaussian-2d\"\npixel_mm = 0.01"), Ok(&calibrated));
        let value = |name: &str| row.values[row.names.iter().position(|known| known == name).unwrap()];
        for (name, wanted) in
            [("failure", 0.0), ("x", 30.0), ("y", 20.0), ("sigma_major", 5.0), ("sigma_minor_mm", 0.03), ("r2", 1.0)]
        {
            assert!((value(name) - wanted).abs() < 1e-6, "{name}: {}", value(name));
        }
        let mut bytes = vec![0; 8 * row.values.len()];
        row.encode_into(&mut bytes);
        let decoded: Vec<f64> = bytes.chunks_exact(8).map(|b| f64::from_le_bytes(b.try_into().unwrap())).collect();
        assert_eq!(decoded, row.values);
    }

    #[test]
    fn every_reason_has_its_number() {
        let dark = vec![7.0; 64 * 48];
        let image = Image::new(64, 48, &dark).unwrap();
        let row = Row::from_image(&config("fit = \"gaussian-2d\""), Ok(&image));
        assert_eq!(FAILURES[row.values[0] as usize], "no-light");
        let pixels = [Failure::NoLight, Failure::Saturated, Failure::NotNumbers, Failure::TooNarrow, Failure::TooWide]
            .into_iter()
            .chain([Failure::TooFewPixels { pixels: 1, needed: 2 }, Failure::AtTheEdge, Failure::NoFringes])
            .chain([Failure::NotConverged { iterations: 1 }, Failure::Undetermined]);
        for failure in pixels {
            assert!(FAILURES.contains(&failure.name()), "{failure:?}");
        }
    }
}
