"""Beam profiles in camera images: moments after ISO 11146, Gaussian fits, fits of interferometer fringes.

The functions take an image as an array, such as `fragment.array` of a camera's fragment, and need no starting values.
An example with a simulated image:

>>> import numpy, thalweg.image
>>> y, x = numpy.mgrid[:480, :640]
>>> light = numpy.exp(-((x - 310) ** 2) / (2 * 40**2) - (y - 250) ** 2 / (2 * 25**2))
>>> noise = numpy.random.default_rng(1).normal(0, 5, light.shape)
>>> image = (100 + 3000 * light + noise).round().astype("uint16")

>>> fit = thalweg.image.fit_gaussian_2d(image, pixel_mm=0.005)
>>> abs(fit.x.value - 310) < 5 * fit.x.std < 0.05
True
>>> round(fit.sigma_major.value), round(fit.millimetres.sigma_major.value, 2)
(40, 0.2)

>>> beam = thalweg.image.moments(image).beam
>>> round(beam.d_major), round(beam.d_minor)  # about four sigma; the faintest light counts as background
(158, 99)

Images are arrays of shape (height, width), of uint8, uint16, float32 or float64; other real types are converted to
float64. Coordinates are in pixels: x along a row, y from row to row, and (0, 0) is the centre of the pixel in the upper
left corner. Angles are in radians, counter-clockwise in the image as displayed with its first row on top.

All fits and `moments` have three optional arguments:

- `region`: part of the image to use, as (x, y, width, height) in pixels. Results keep the coordinates of the whole
  image.
- `pixel_mm`: size of a pixel in millimetres, or (x, y) for pixels that are not square. Results then have lengths in
  millimetres too, in the field `millimetres`, which is None otherwise.
- `white`: highest value of a pixel. An image with two such pixels side by side in a row is rejected as saturated.

A fitted value is an `Estimate` with `value` and `std`. If a fit fails, FitError is raised, with a `reason`. Other
Python threads run while an image is fitted.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from thalweg._thalweg import (
    FitError,
    _image_fringes,
    _image_fringes_2d,
    _image_gaussian,
    _image_gaussian_2d,
    _image_moments,
    _image_source_size,
)

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

__all__ = [
    "Beam",
    "Estimate",
    "FitError",
    "Fringes",
    "Fringes2d",
    "Fringes2dMillimetres",
    "FringesMillimetres",
    "Gaussian",
    "Gaussian2d",
    "Gaussian2dMillimetres",
    "GaussianMillimetres",
    "Moments",
    "Quality",
    "Wave",
    "fit_fringes",
    "fit_fringes_2d",
    "fit_gaussian",
    "fit_gaussian_2d",
    "moments",
    "source_size",
]


@dataclass(frozen=True, slots=True)
class Estimate:
    """Fitted value and its standard deviation.

    The standard deviation is that of scipy.optimize.curve_fit(absolute_sigma=False): the square root of the variance in
    the covariance matrix, scaled with the reduced chi squared.
    """

    value: float
    std: float

    def __float__(self) -> float:
        """Returns `value`."""
        return self.value


@dataclass(frozen=True, slots=True)
class Quality:
    """Quality of a fit.

    - `rms`: root mean square of the residuals, in pixel values.
    - `reduced_chi2`: sum of the squared residuals divided by the number of pixels minus the number of parameters. If
      the model is right, this is the variance of the noise.
    - `r2`: coefficient of determination, the fraction of the variance that the model explains.
    - `pixels`: number of pixels that were fitted.
    - `iterations`: number of parameter sets that were tried.
    """

    rms: float
    reduced_chi2: float
    r2: float
    pixels: int
    iterations: int


@dataclass(frozen=True, slots=True)
class Beam:
    """Ellipse of a beam: centroid (x, y), diameters d_major and d_minor, and the angle of the major axis in radians.

    A diameter is four standard deviations of the light along its axis (D4sigma).
    """

    x: float
    y: float
    d_major: float
    d_minor: float
    angle: float


@dataclass(frozen=True, slots=True)
class Moments:
    """Result of `moments`.

    - `background`, `noise`: mean and standard deviation of the background, in pixel values; the mean was subtracted.
    - `total`: sum of all pixel values in the integration region, after subtraction of the background.
    - `beam`: the beam in pixels.
    - `millimetres`: the beam in millimetres, or None without `pixel_mm`.
    - `cut`: True if the integration region extends beyond the image or `region`: the light outside is not counted.
    - `settled`: True if the integration region converged. If False, noise dominates and the diameters are not reliable;
      a `region` around the beam helps.
    - `iterations`: number of times that the integration region was adjusted.
    """

    background: float
    noise: float
    total: float
    beam: Beam
    millimetres: Beam | None
    cut: bool
    settled: bool
    iterations: int


@dataclass(frozen=True, slots=True)
class GaussianMillimetres:
    """Centre and width of a one-dimensional Gaussian in millimetres."""

    center: Estimate
    sigma: Estimate


@dataclass(frozen=True, slots=True)
class Gaussian:
    """Fitted Gaussian: background + amplitude * exp(-(x - center)**2 / (2 * sigma**2)).

    `background` and `amplitude` are in pixel values, `center` and `sigma` in pixels.
    """

    background: Estimate
    amplitude: Estimate
    center: Estimate
    sigma: Estimate
    millimetres: GaussianMillimetres | None
    quality: Quality


@dataclass(frozen=True, slots=True)
class Gaussian2dMillimetres:
    """Centre, widths and angle of an elliptical Gaussian in millimetres.

    If pixels are not square, the axes of the ellipse and their angle differ from those in pixels.
    """

    x: Estimate
    y: Estimate
    sigma_major: Estimate
    sigma_minor: Estimate
    angle: Estimate


@dataclass(frozen=True, slots=True)
class Gaussian2d:
    """Fitted elliptical Gaussian on a constant background.

    `background` and `amplitude` are in pixel values; the centre (`x`, `y`) and the standard deviations along the major
    and minor axis are in pixels; `angle` is that of the major axis, in radians from x.
    """

    background: Estimate
    amplitude: Estimate
    x: Estimate
    y: Estimate
    sigma_major: Estimate
    sigma_minor: Estimate
    angle: Estimate
    millimetres: Gaussian2dMillimetres | None
    quality: Quality


@dataclass(frozen=True, slots=True)
class Wave:
    """Fringes in one direction: 1 + visibility * cos(2 * pi * u / period + phase).

    u is the distance from the centre of the envelope. `visibility` is a number without unit, `period` is in pixels,
    `phase` in radians.
    """

    visibility: Estimate
    period: Estimate
    phase: Estimate


@dataclass(frozen=True, slots=True)
class FringesMillimetres:
    """Centre, width and period of fringes in millimetres."""

    center: Estimate
    width: Estimate
    period: Estimate


@dataclass(frozen=True, slots=True)
class Fringes:
    """Fitted fringes: background + amplitude * envelope((x - center) / width) * wave(x - center).

    `background` and `amplitude` are in pixel values, `center` and `width` in pixels.
    """

    background: Estimate
    amplitude: Estimate
    center: Estimate
    width: Estimate
    wave: Wave
    millimetres: FringesMillimetres | None
    quality: Quality


@dataclass(frozen=True, slots=True)
class Fringes2dMillimetres:
    """Centre, widths and periods of two-dimensional fringes in millimetres. A period is None without fringes."""

    x: Estimate
    y: Estimate
    width_x: Estimate
    width_y: Estimate
    period_x: Estimate | None
    period_y: Estimate | None


@dataclass(frozen=True, slots=True)
class Fringes2d:
    """Fitted fringes: background + amplitude * envelope(u / width_x) * envelope(v / width_y) * wave_x(u) * wave_y(v).

    (u, v) is the distance from the centre (`x`, `y`), rotated by `angle` (radians). `wave_x` or `wave_y` is None if the
    slits make no fringes in that direction. `background` and `amplitude` are in pixel values, lengths in pixels.
    """

    background: Estimate
    amplitude: Estimate
    x: Estimate
    y: Estimate
    width_x: Estimate
    width_y: Estimate
    wave_x: Wave | None
    wave_y: Wave | None
    angle: Estimate
    millimetres: Fringes2dMillimetres | None
    quality: Quality


def moments(
    image: ArrayLike,
    *,
    corners: float = 0.035,
    threshold: float = 3.0,
    diameters: float = 3.0,
    tolerance: float = 1.0,
    iterations: int = 24,
    region: tuple[int, int, int, int] | None = None,
    pixel_mm: float | tuple[float, float] | None = None,
    white: float | None = None,
) -> Moments:
    """Returns centroid, diameters and angle of a beam after ISO 11146, as the package laserbeamsize computes them.

    - `corners`: size of the image's corners, which must contain background only, as a fraction of width and height.
    - `threshold`: number of standard deviations by which light is above the background.
    - `diameters`: side lengths of the integration region in diameters of the beam.
    - `tolerance`, `iterations`: the integration region is adjusted to the beam until centre and diameters change by
      less than `tolerance` pixels, but at most `iterations` times.

    Raises FitError if there is no beam, and ValueError for arguments out of range.
    """
    result = _image_moments(
        _pixels(image), _image_options(region, pixel_mm, white), corners, threshold, diameters, tolerance, iterations
    )
    result["beam"] = Beam(*result["beam"])
    result["millimetres"] = result["millimetres"] and Beam(*result["millimetres"])
    return Moments(**result)


def fit_gaussian(
    array: ArrayLike,
    axis: Literal["x", "y"] = "x",
    *,
    region: tuple[int, int, int, int] | None = None,
    pixel_mm: float | tuple[float, float] | None = None,
    white: float | None = None,
) -> Gaussian:
    """Fits a Gaussian to the average row (`axis="x"`) or column (`axis="y"`) of an image, or to a 1-D array.

    For a 1-D array, `axis` selects the element of `pixel_mm`. Raises FitError if the fit fails.
    """
    result = _image_gaussian(_pixels(array), _image_options(region, pixel_mm, white), axis)
    return Gaussian(**_fields(result, GaussianMillimetres))


def fit_gaussian_2d(
    image: ArrayLike,
    *,
    region: tuple[int, int, int, int] | None = None,
    pixel_mm: float | tuple[float, float] | None = None,
    white: float | None = None,
) -> Gaussian2d:
    """Fits an elliptical Gaussian to an image. Raises FitError if the fit fails."""
    result = _image_gaussian_2d(_pixels(image), _image_options(region, pixel_mm, white))
    return Gaussian2d(**_fields(result, Gaussian2dMillimetres))


def fit_fringes(
    array: ArrayLike,
    axis: Literal["x", "y"] = "x",
    *,
    envelope: Literal["sinc2", "gaussian"] = "sinc2",
    region: tuple[int, int, int, int] | None = None,
    pixel_mm: float | tuple[float, float] | None = None,
    white: float | None = None,
) -> Fringes:
    """Fits fringes to the average row (`axis="x"`) or column (`axis="y"`) of an image, or to a 1-D array.

    `envelope` is the intensity behind one slit: "sinc2", whose width is the distance from the centre to the first
    minimum, or "gaussian", whose width is its standard deviation. Raises FitError if the fit fails.
    """
    result = _image_fringes(_pixels(array), _image_options(region, pixel_mm, white), axis, envelope)
    return Fringes(**_fields(result, FringesMillimetres))


def fit_fringes_2d(
    image: ArrayLike,
    slits: Literal["x", "y", "four"] = "x",
    *,
    envelope: Literal["sinc2", "gaussian"] = "sinc2",
    turned: bool = False,
    region: tuple[int, int, int, int] | None = None,
    pixel_mm: float | tuple[float, float] | None = None,
    white: float | None = None,
) -> Fringes2d:
    """Fits fringes to an image.

    - `slits`: "x" or "y" for two slits side by side in that direction, "four" for four holes at the corners of a
      rectangle.
    - `envelope`: that of `fit_fringes`.
    - `turned`: also fit a rotation of the slits against the camera; this takes about ten times as long.

    Raises FitError if the fit fails.
    """
    result = _image_fringes_2d(_pixels(image), _image_options(region, pixel_mm, white), slits, envelope, turned)
    return Fringes2d(**_fields(result, Fringes2dMillimetres))


def source_size(
    visibility: Estimate | float,
    *,
    wavelength: float,
    separation: float,
    distance: float,
    intensity_ratio: float = 1.0,
) -> Estimate | None:
    """Returns the size of a Gaussian source from the visibility of its fringes behind two slits.

    The result is the standard deviation of the source's profile in metres; its `std` is 0 if `visibility` is a float.
    `wavelength`, the `separation` of the slits, and the `distance` from the source to the slits are in metres.
    `intensity_ratio` is the ratio of the intensities on the two slits. Returns None if no source size gives this
    visibility. Raises ValueError for lengths or ratios that are not above 0.

    >>> size = thalweg.image.source_size(0.6, wavelength=400e-9, separation=0.03, distance=16.7)
    >>> round(size.value * 1e6, 1)
    35.8
    """
    for name, length in [("wavelength", wavelength), ("separation", separation), ("distance", distance)]:
        if not 0 < length < inf:
            msg = f"{name}={length}: it must be a length in metres above 0"
            raise ValueError(msg)
    if not 0 < intensity_ratio < inf:
        msg = f"intensity_ratio={intensity_ratio}: it must be a number above 0"
        raise ValueError(msg)
    given = (visibility.value, visibility.std) if isinstance(visibility, Estimate) else (float(visibility), 0.0)
    size = _image_source_size(given, wavelength, separation, distance, intensity_ratio)
    return None if size is None else Estimate(*size)


def _pixels(array: ArrayLike) -> NDArray[Any]:
    """Converts an array to a type and layout that the fits support. Copies it only if needed."""
    given = np.asarray(array)
    if given.ndim == 1 or given.dtype not in (np.uint8, np.uint16, np.float32, np.float64):
        if given.dtype.kind not in "buif":
            msg = f"pixels must be real numbers, not {given.dtype}"
            raise TypeError(msg)
        given = given.astype(np.float64, copy=False)
    return np.ascontiguousarray(given)


def _image_options(
    region: tuple[int, int, int, int] | None, pixel_mm: float | tuple[float, float] | None, white: float | None
) -> dict[str, Any]:
    """Checks the arguments that all fits share. Raises ValueError for one that is not valid."""
    both = (pixel_mm, pixel_mm) if isinstance(pixel_mm, (int, float)) else pixel_mm
    if region is not None and not (len(region) == 4 and all(isinstance(n, Integral) and n >= 0 for n in region)):
        msg = f"region={region}: it must be (x, y, width, height) in whole pixels, 0 or more"
        raise ValueError(msg)
    if both is not None and not (len(both) == 2 and all(isinstance(mm, Real) for mm in both)):
        msg = f"pixel_mm={pixel_mm}: it must be the size of a pixel in millimetres, or (x, y)"
        raise ValueError(msg)
    return {"region": region, "pixel_mm": both, "white": white}


def _fields(result: dict[str, Any], millimetres: type) -> dict[str, Any]:
    """Converts the result of a fit to the fields of its dataclass: pairs to Estimate, triples of pairs to Wave."""
    lengths = result.pop("millimetres")
    quality = Quality(*result.pop("quality"))
    fields = {name: _estimate(value) for name, value in result.items()}
    return {
        **fields,
        "millimetres": lengths and millimetres(*map(_estimate, lengths)),
        "quality": quality,
    }


def _estimate(value: Any) -> Any:
    if value is None:
        return None
    return Wave(*(Estimate(*pair) for pair in value)) if len(value) == 3 else Estimate(*value)
