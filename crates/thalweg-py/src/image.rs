//! Fits of NumPy arrays, called by `thalweg.image`. `python/thalweg/image.py` makes dataclasses of the results.

use numpy::{PyReadonlyArrayDyn, PyUntypedArrayMethods};
use pyo3::create_exception;
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyDict;
use thalweg_image::{
    Axis, Beam, Calibration, Envelope, Estimate, Failure, Fringes2dOptions, Image, Interferometer, MomentOptions,
    Pixels, Profile, Quality, Region, Slits, Wave,
};

create_exception!(
    thalweg.image,
    FitError,
    PyValueError,
    "An image has no fit. `reason` is a name, such as \"no-light\" or \"saturated\" (docs/images.md has all)."
);

/// Pixels in an array that NumPy owns.
#[derive(FromPyObject)]
pub(crate) enum Array<'py> {
    U8(PyReadonlyArrayDyn<'py, u8>),
    U16(PyReadonlyArrayDyn<'py, u16>),
    F32(PyReadonlyArrayDyn<'py, f32>),
    F64(PyReadonlyArrayDyn<'py, f64>),
}

impl Array<'_> {
    fn pixel_values(&self) -> PyResult<Pixels<'_>> {
        Ok(match self {
            Self::U8(array) => array.as_slice()?.into(),
            Self::U16(array) => array.as_slice()?.into(),
            Self::F32(array) => array.as_slice()?.into(),
            Self::F64(array) => array.as_slice()?.into(),
        })
    }

    fn axis_lengths(&self) -> &[usize] {
        match self {
            Self::U8(array) => array.shape(),
            Self::U16(array) => array.shape(),
            Self::F32(array) => array.shape(),
            Self::F64(array) => array.shape(),
        }
    }
}

/// Properties of an image other than its pixels.
#[derive(FromPyObject)]
pub(crate) struct About {
    /// Region of interest: x, y, width, height.
    #[pyo3(item)]
    region: Option<(usize, usize, usize, usize)>,
    /// Size of a pixel in millimetres, along x and y.
    #[pyo3(item)]
    pixel_mm: Option<(f64, f64)>,
    #[pyo3(item)]
    white: Option<f64>,
}

impl About {
    fn to_image<'a>(&self, array: &'a Array<'_>) -> PyResult<Image<'a>> {
        let &[height, width] = array.axis_lengths() else {
            return Err(PyTypeError::new_err(format!("an image has two axes, not {}", array.axis_lengths().len())));
        };
        let mut image = Image::new(width, height, array.pixel_values()?).map_err(image_error)?;
        if let Some((x, y)) = self.pixel_mm {
            image = image.with_calibration(Calibration { x, y }).map_err(image_error)?;
        }
        if let Some((x, y, width, height)) = self.region {
            image = image.with_region(Region { x, y, width, height }).map_err(image_error)?;
        }
        match self.white {
            Some(white) if !(white.is_finite() && white > 0.0) => {
                Err(PyValueError::new_err(format!("white={white}: it must be the largest value of a pixel, above 0")))
            }
            white => Ok(white.map_or(image, |white| image.saturating_at(white))),
        }
    }

    /// Returns a profile as it is, or the profile of an image along an axis.
    fn to_profile(&self, array: &Array<'_>, axis: &str) -> PyResult<Result<Profile, Failure>> {
        let axis = match axis {
            "x" => Axis::X,
            "y" => Axis::Y,
            other => return Err(PyValueError::new_err(format!("axis is \"x\" or \"y\", not {other:?}"))),
        };
        if array.axis_lengths().len() != 1 {
            return Ok(Profile::along_axis(&self.to_image(array)?, axis));
        }
        let Array::F64(values) = array else {
            return Err(PyTypeError::new_err("a profile has numbers of float64"));
        };
        let profile = Profile::new(values.as_slice()?.to_vec());
        Ok(Ok(match self.pixel_mm {
            Some((x, y)) => profile.with_calibration(if axis == Axis::X { x } else { y }),
            None => profile,
        }))
    }
}

fn image_error(error: thalweg_image::ImageError) -> PyErr {
    PyValueError::new_err(error.to_string())
}

fn parse_envelope(name: &str) -> PyResult<Envelope> {
    match name {
        "gaussian" => Ok(Envelope::Gaussian),
        "sinc2" => Ok(Envelope::Sinc2),
        other => Err(PyValueError::new_err(format!("envelope is \"gaussian\" or \"sinc2\", not {other:?}"))),
    }
}

/// Converts a failure to Python's exception.
fn fit_error(py: Python<'_>, failure: Failure) -> PyErr {
    let error = FitError::new_err(failure.to_string());
    match error.value(py).setattr("reason", failure.name()) {
        Ok(()) => error,
        Err(other) => other,
    }
}

type Pair = (f64, f64);

fn pair(estimate: Estimate) -> Pair {
    (estimate.value, estimate.std)
}

fn quality(quality: Quality) -> (f64, f64, f64, usize, usize) {
    (quality.rms, quality.reduced_chi2, quality.r2, quality.pixels, quality.iterations)
}

fn wave(wave: Wave) -> (Pair, Pair, Pair) {
    (pair(wave.visibility), pair(wave.period), pair(wave.phase))
}

fn beam(beam: Beam) -> (f64, f64, f64, f64, f64) {
    (beam.x, beam.y, beam.d_major, beam.d_minor, beam.angle)
}

/// Fields of a dataclass, as a dict.
macro_rules! fields {
    ($py:expr, $($name:ident = $value:expr),* $(,)?) => {{
        let fields = PyDict::new($py);
        $(fields.set_item(stringify!($name), $value)?;)*
        Ok(fields)
    }};
}

/// Implementation of thalweg.image.moments.
#[pyfunction]
#[pyo3(signature = (array, about, corners, threshold, diameters, tolerance, iterations))]
#[expect(clippy::too_many_arguments, reason = "each has a name where a person gives it")]
pub(crate) fn _image_moments<'py>(
    py: Python<'py>,
    array: Array<'py>,
    about: About,
    corners: f64,
    threshold: f64,
    diameters: f64,
    tolerance: f64,
    iterations: usize,
) -> PyResult<Bound<'py, PyDict>> {
    if !(0.0..=0.25).contains(&corners) || diameters.is_nan() || diameters <= 0.0 {
        return Err(PyValueError::new_err("corners is from 0 to 0.25, and diameters above 0"));
    }
    let image = about.to_image(&array)?;
    let options = MomentOptions { corners, threshold, diameters, tolerance, iterations };
    let got = py.detach(|| thalweg_image::beam_moments(&image, &options)).map_err(|failure| fit_error(py, failure))?;
    fields!(
        py,
        background = got.background,
        noise = got.noise,
        total = got.total,
        beam = beam(got.beam),
        millimetres = got.millimetres.map(beam),
        cut = got.cut,
        settled = got.settled,
        iterations = got.iterations,
    )
}

/// Implementation of thalweg.image.fit_gaussian.
#[pyfunction]
pub(crate) fn _image_gaussian<'py>(
    py: Python<'py>,
    array: Array<'py>,
    about: About,
    axis: &str,
) -> PyResult<Bound<'py, PyDict>> {
    let profile = about.to_profile(&array, axis)?.map_err(|failure| fit_error(py, failure))?;
    let fit = py.detach(|| thalweg_image::fit_gaussian(&profile)).map_err(|failure| fit_error(py, failure))?;
    fields!(
        py,
        background = pair(fit.background),
        amplitude = pair(fit.amplitude),
        center = pair(fit.center),
        sigma = pair(fit.sigma),
        millimetres = fit.millimetres.map(|both| both.map(pair)),
        quality = quality(fit.quality),
    )
}

/// Implementation of thalweg.image.fit_gaussian_2d.
#[pyfunction]
pub(crate) fn _image_gaussian_2d<'py>(
    py: Python<'py>,
    array: Array<'py>,
    about: About,
) -> PyResult<Bound<'py, PyDict>> {
    let image = about.to_image(&array)?;
    let fit = py.detach(|| thalweg_image::fit_gaussian_2d(&image)).map_err(|failure| fit_error(py, failure))?;
    let millimetres = fit.millimetres.map(|mm| [mm.x, mm.y, mm.sigma_major, mm.sigma_minor, mm.angle].map(pair));
    fields!(
        py,
        background = pair(fit.background),
        amplitude = pair(fit.amplitude),
        x = pair(fit.x),
        y = pair(fit.y),
        sigma_major = pair(fit.sigma_major),
        sigma_minor = pair(fit.sigma_minor),
        angle = pair(fit.angle),
        millimetres = millimetres,
        quality = quality(fit.quality),
    )
}

/// Implementation of thalweg.image.fit_fringes.
#[pyfunction]
pub(crate) fn _image_fringes<'py>(
    py: Python<'py>,
    array: Array<'py>,
    about: About,
    axis: &str,
    envelope: &str,
) -> PyResult<Bound<'py, PyDict>> {
    let envelope = self::parse_envelope(envelope)?;
    let profile = about.to_profile(&array, axis)?.map_err(|failure| fit_error(py, failure))?;
    let fit = py.detach(|| thalweg_image::fit_fringes(&profile, envelope)).map_err(|failure| fit_error(py, failure))?;
    fields!(
        py,
        background = pair(fit.background),
        amplitude = pair(fit.amplitude),
        center = pair(fit.center),
        width = pair(fit.width),
        wave = wave(fit.wave),
        millimetres = fit.millimetres.map(|lengths| lengths.map(pair)),
        quality = quality(fit.quality),
    )
}

/// Implementation of thalweg.image.fit_fringes_2d.
#[pyfunction]
pub(crate) fn _image_fringes_2d<'py>(
    py: Python<'py>,
    array: Array<'py>,
    about: About,
    slits: &str,
    envelope: &str,
    turned: bool,
) -> PyResult<Bound<'py, PyDict>> {
    let slits = match slits {
        "x" => Slits::Double(Axis::X),
        "y" => Slits::Double(Axis::Y),
        "four" => Slits::Four,
        other => return Err(PyValueError::new_err(format!("slits is \"x\", \"y\" or \"four\", not {other:?}"))),
    };
    let options = Fringes2dOptions { envelope: self::parse_envelope(envelope)?, slits, turned };
    let image = about.to_image(&array)?;
    let fit =
        py.detach(|| thalweg_image::fit_fringes_2d(&image, &options)).map_err(|failure| fit_error(py, failure))?;
    let millimetres = fit.millimetres.map(|mm| {
        let lengths = [Some(mm.x), Some(mm.y), Some(mm.width_x), Some(mm.width_y), mm.period_x, mm.period_y];
        lengths.map(|length| length.map(pair))
    });
    fields!(
        py,
        background = pair(fit.background),
        amplitude = pair(fit.amplitude),
        x = pair(fit.x),
        y = pair(fit.y),
        width_x = pair(fit.width_x),
        width_y = pair(fit.width_y),
        wave_x = fit.wave_x.map(wave),
        wave_y = fit.wave_y.map(wave),
        angle = pair(fit.angle),
        millimetres = millimetres,
        quality = quality(fit.quality),
    )
}

/// Implementation of thalweg.image.source_size.
#[pyfunction]
pub(crate) fn _image_source_size(
    visibility: Pair,
    wavelength: f64,
    separation: f64,
    distance: f64,
    intensity_ratio: f64,
) -> Option<Pair> {
    let visibility = Estimate { value: visibility.0, std: visibility.1 };
    let interferometer = Interferometer { wavelength, separation, distance, intensity_ratio };
    interferometer.source_size(visibility).map(pair)
}
