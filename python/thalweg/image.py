"""What a camera's frame says of a beam: moments, Gaussians, fringes, at the camera's rate.

Simulated here, since this needs no camera; `fragment.array` of a run is such an array as well:

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
>>> round(beam.d_major), round(beam.d_minor)  # four sigma, less what the faintest light would add
(158, 99)

Arrays are images of shape (height, width), of uint8, uint16, float32 or float64; of other numbers a copy is made.
Coordinates are in pixels, 0 at the centre of the first one on the upper left: x along a row, y from row to row. Angles
are counter-clockwise as the image is seen, its first row on top, in radians.

All functions take `region`, the part to look at as (x, y, width, height); `pixel_mm`, the size of a pixel in
millimetres or that in both directions, with which results are in `millimetres`, too; and `white`, the most that a pixel
can show.

A value that is fitted is an `Estimate`: `value` and `std`. Where there is nothing to say, FitError has the `reason`.
Python's other threads go on while an image is fitted.
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
    """A fitted value and its standard deviation.

    The deviation is that of scipy.optimize.curve_fit(absolute_sigma=False): from the covariance, scaled with the
    reduced chi squared.
    """

    value: float
    std: float

    def __float__(self) -> float:
        """The value."""
        return self.value


@dataclass(frozen=True, slots=True)
class Quality:
    """How well a model describes what is seen.

    `rms` is the root mean square of what it leaves; `reduced_chi2` the sum of its squares over pixels less parameters,
    which is the variance of the noise where the model is right; `r2` the part of the variance that it explains;
    `pixels` how many were fitted; `iterations` how many sets of parameters were tried on all of them.
    """

    rms: float
    reduced_chi2: float
    r2: float
    pixels: int
    iterations: int


@dataclass(frozen=True, slots=True)
class Beam:
    """A beam as an ellipse: centroid, diameters (four standard deviations of the light), angle of the longer axis."""

    x: float
    y: float
    d_major: float
    d_minor: float
    angle: float


@dataclass(frozen=True, slots=True)
class Moments:
    """What the moments of an image say of a beam, in pixels and, where pixel_mm was given, in millimetres.

    `background` is what was subtracted, `noise` its standard deviation; `total` the sum of the light. `cut` says that
    the integration region reaches beyond the image, `settled` that it came to rest (else noise weighs as much as the
    beam, and the diameters are hardly the beam's), `iterations` how often it was taken.
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
    """Lengths of a Gaussian in millimetres."""

    center: Estimate
    sigma: Estimate


@dataclass(frozen=True, slots=True)
class Gaussian:
    """background + amplitude * exp(-(x - center)**2 / (2 * sigma**2))."""

    background: Estimate
    amplitude: Estimate
    center: Estimate
    sigma: Estimate
    millimetres: GaussianMillimetres | None
    quality: Quality


@dataclass(frozen=True, slots=True)
class Gaussian2dMillimetres:
    """Where a Gaussian is and how large, in millimetres: where pixels are not square, its axes are others."""

    x: Estimate
    y: Estimate
    sigma_major: Estimate
    sigma_minor: Estimate
    angle: Estimate


@dataclass(frozen=True, slots=True)
class Gaussian2d:
    """An elliptical Gaussian on a background: sigma along its two axes, and the angle of the longer."""

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

    u is counted from the envelope's centre.
    """

    visibility: Estimate
    period: Estimate
    phase: Estimate


@dataclass(frozen=True, slots=True)
class FringesMillimetres:
    """Lengths of fringes in millimetres."""

    center: Estimate
    width: Estimate
    period: Estimate


@dataclass(frozen=True, slots=True)
class Fringes:
    """background + amplitude * envelope((x - center) / width) * wave(x - center)."""

    background: Estimate
    amplitude: Estimate
    center: Estimate
    width: Estimate
    wave: Wave
    millimetres: FringesMillimetres | None
    quality: Quality


@dataclass(frozen=True, slots=True)
class Fringes2dMillimetres:
    """Lengths of fringes over an image in millimetres."""

    x: Estimate
    y: Estimate
    width_x: Estimate
    width_y: Estimate
    period_x: Estimate | None
    period_y: Estimate | None


@dataclass(frozen=True, slots=True)
class Fringes2d:
    """background + amplitude * envelope(u / width_x) * envelope(v / width_y) * wave_x(u) * wave_y(v).

    (u, v) is the distance from the centre (x, y), turned by `angle`.
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
    """Centroid, diameters and azimuth of a beam after ISO 11146, as the package laserbeamsize has them.

    `corners` is the part of width and height that each corner takes in which there is only background, `threshold` how
    many of its standard deviations light is above it, `diameters` the sides of the integration region in diameters of
    the beam; it follows the beam until centre and diameters change by less than `tolerance` pixels, at most
    `iterations` times.
    """
    got = _image_moments(
        _pixels(image), _about(region, pixel_mm, white), corners, threshold, diameters, tolerance, iterations
    )
    got["beam"] = Beam(*got["beam"])
    got["millimetres"] = got["millimetres"] and Beam(*got["millimetres"])
    return Moments(**got)


def fit_gaussian(
    array: ArrayLike,
    axis: Literal["x", "y"] = "x",
    *,
    region: tuple[int, int, int, int] | None = None,
    pixel_mm: float | tuple[float, float] | None = None,
    white: float | None = None,
) -> Gaussian:
    """Fits a Gaussian to an image's average row (`axis` "x") or column ("y"), or to an array with one axis as it is."""
    got = _image_gaussian(_pixels(array), _about(region, pixel_mm, white), axis)
    return Gaussian(**_fields(got, GaussianMillimetres))


def fit_gaussian_2d(
    image: ArrayLike,
    *,
    region: tuple[int, int, int, int] | None = None,
    pixel_mm: float | tuple[float, float] | None = None,
    white: float | None = None,
) -> Gaussian2d:
    """Fits an elliptical Gaussian to an image."""
    got = _image_gaussian_2d(_pixels(image), _about(region, pixel_mm, white))
    return Gaussian2d(**_fields(got, Gaussian2dMillimetres))


def fit_fringes(
    array: ArrayLike,
    axis: Literal["x", "y"] = "x",
    *,
    envelope: Literal["sinc2", "gaussian"] = "sinc2",
    region: tuple[int, int, int, int] | None = None,
    pixel_mm: float | tuple[float, float] | None = None,
    white: float | None = None,
) -> Fringes:
    """Fits fringes to an image's average row (`axis` "x") or column ("y"), or to an array with one axis as it is.

    The envelope is the light of one slit: "sinc2" (its width is from the centre to the first dark line) or "gaussian"
    (its width is sigma).
    """
    got = _image_fringes(_pixels(array), _about(region, pixel_mm, white), axis, envelope)
    return Fringes(**_fields(got, FringesMillimetres))


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
    """Fits fringes to an image: of two slits side by side in the direction "x" or "y", or of "four" at a rectangle's
    corners.

    With `turned` the slits may be turned against the camera; that takes about ten times as long.
    """
    got = _image_fringes_2d(_pixels(image), _about(region, pixel_mm, white), slits, envelope, turned)
    return Fringes2d(**_fields(got, Fringes2dMillimetres))


def source_size(
    visibility: Estimate | float,
    *,
    wavelength: float,
    separation: float,
    distance: float,
    intensity_ratio: float = 1.0,
) -> Estimate | None:
    """The sigma of a Gaussian source whose light has fringes of this visibility behind two slits, in metres.

    `wavelength`, the slits' `separation` and their `distance` from the source are in metres, too. `intensity_ratio` is
    what comes through one slit over what comes through the other. None where no source has such fringes.

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
    """As what the fits take, without a copy where it is that already."""
    given = np.asarray(array)
    if given.ndim == 1 or given.dtype not in (np.uint8, np.uint16, np.float32, np.float64):
        if given.dtype.kind not in "buif":
            msg = f"pixels must be real numbers, not {given.dtype}"
            raise TypeError(msg)
        given = given.astype(np.float64, copy=False)
    return np.ascontiguousarray(given)


def _about(
    region: tuple[int, int, int, int] | None, pixel_mm: float | tuple[float, float] | None, white: float | None
) -> dict[str, Any]:
    both = (pixel_mm, pixel_mm) if isinstance(pixel_mm, (int, float)) else pixel_mm
    if region is not None and not (len(region) == 4 and all(isinstance(n, Integral) and n >= 0 for n in region)):
        msg = f"region={region}: x, y, width and height, in whole pixels"
        raise ValueError(msg)
    if both is not None and not (len(both) == 2 and all(isinstance(mm, Real) for mm in both)):
        msg = f"pixel_mm={pixel_mm}: write the distance of two pixels in mm, or a pair for x and y"
        raise ValueError(msg)
    return {"region": region, "pixel_mm": both, "white": white}


def _fields(got: dict[str, Any], millimetres: type) -> dict[str, Any]:
    """Pairs as estimates, triples of them as waves."""
    lengths = got.pop("millimetres")
    quality = Quality(*got.pop("quality"))
    fields = {name: _estimate(value) for name, value in got.items()}
    return {
        **fields,
        "millimetres": lengths and millimetres(*map(_estimate, lengths)),
        "quality": quality,
    }


def _estimate(value: Any) -> Any:
    if value is None:
        return None
    return Wave(*(Estimate(*pair) for pair in value)) if len(value) == 3 else Estimate(*value)
