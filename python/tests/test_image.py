"""Images are understood as scipy and laserbeamsize understand them, and failures have their reasons."""

from __future__ import annotations

import dataclasses
import doctest
import importlib.util
import inspect
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import ROOT

import thalweg.image
from thalweg.image import Estimate, FitError

sys.path.insert(0, str(ROOT / "scripts"))

import image_fits

Model = Callable[..., np.ndarray]

gaussian, gaussian_2d = image_fits.gaussian, image_fits.gaussian_2d
fringes, fringes_2d = image_fits.fringes, image_fits.fringes_2d


@dataclasses.dataclass(frozen=True)
class Case:
    """What is fitted: a model of these parameters, on these places, and ours in the same order."""

    name: str
    model: Model
    places: np.ndarray | tuple[np.ndarray, ...]
    truth: tuple[float, ...]
    ours: Callable[[np.ndarray], list[Estimate]]

    def image(self) -> np.ndarray:
        return self.model(self.places, *self.truth)


def grid(height: int, width: int) -> tuple[np.ndarray, ...]:
    y, x = np.mgrid[:height, :width]
    return x, y


def of_gaussian(image: np.ndarray) -> list[Estimate]:
    fit = thalweg.image.fit_gaussian(image)
    return [fit.background, fit.amplitude, fit.center, fit.sigma]


def of_gaussian_2d(image: np.ndarray) -> list[Estimate]:
    fit = thalweg.image.fit_gaussian_2d(image)
    return [fit.background, fit.amplitude, fit.x, fit.y, fit.sigma_major, fit.sigma_minor, fit.angle]


def of_fringes(envelope: Any) -> Callable[[np.ndarray], list[Estimate]]:
    def fit(image: np.ndarray) -> list[Estimate]:
        got = thalweg.image.fit_fringes(image, envelope=envelope)
        return [got.background, got.amplitude, got.center, got.width, *estimates(got.wave)]

    return fit


def of_fringes_2d(slits: Any, envelope: Any, turned: bool) -> Callable[[np.ndarray], list[Estimate]]:
    def fit(image: np.ndarray) -> list[Estimate]:
        got = thalweg.image.fit_fringes_2d(image, slits, envelope=envelope, turned=turned)
        waves = [estimate for wave in (got.wave_x, got.wave_y) if wave for estimate in estimates(wave)]
        lengths = [got.background, got.amplitude, got.x, got.y, got.width_x, got.width_y]
        return [*lengths, *waves, *([got.angle] if turned else [])]

    return fit


def estimates(wave: thalweg.image.Wave) -> list[Estimate]:
    return [wave.visibility, wave.period, wave.phase]


def cases() -> list[Case]:
    found = [
        Case("gaussian", gaussian, np.arange(64.0), (12.0, 80.0, 30.3, 6.2), of_gaussian),
        Case("gaussian-2d", gaussian_2d, grid(24, 30), (12.0, 80.0, 14.3, 11.6, 5.2, 3.1, 0.4), of_gaussian_2d),
    ]
    for envelope, width in (("gaussian", 22.0), ("sinc2", 60.0)):
        truth = (12.0, 80.0, 83.3, width, 0.6, 11.3, 0.7)
        model = fringes(envelope)
        found.append(Case(f"fringes-{envelope}", model, np.arange(160.0), truth, of_fringes(envelope)))
        for slits, turned in (("x", False), ("y", False), ("four", False), ("x", True), ("four", True)):
            waves = {"x": (0.6, 9.3, 0.7), "y": (0.4, 8.1, -1.1), "four": (0.6, 9.3, 0.7, 0.4, 8.1, -1.1)}[slits]
            lengths = (12.0, 80.0, 32.4, 24.3, 0.45 * width, 0.4 * width)
            found.append(
                Case(
                    f"fringes-2d-{envelope}-{slits}{'-turned' * turned}",
                    fringes_2d(envelope, slits),
                    grid(50, 64),
                    (*lengths, *waves, *((0.12,) if turned else ())),
                    of_fringes_2d(slits, envelope, turned),
                )
            )
    return found


CASES = {case.name: case for case in cases()}


def scipys(case: Case, image: np.ndarray, start: list[float]) -> tuple[np.ndarray, np.ndarray]:
    """What scipy ends with, and its standard deviations."""
    optimize = pytest.importorskip("scipy.optimize", reason="scipy is not installed")
    places = np.array([np.ravel(axis) for axis in case.places]) if isinstance(case.places, tuple) else case.places
    # As exact as it gets: by default it stops where the sum of squares changes by less than 1e-8.
    exact = {"ftol": 3e-16, "xtol": 3e-16, "gtol": 3e-16, "maxfev": 20_000}
    values, covariance = optimize.curve_fit(
        lambda at, *of: case.model(at, *of), places, image.ravel().astype(float), p0=start, **exact
    )
    return values, np.sqrt(np.diag(covariance))


@pytest.mark.parametrize("name", CASES)
def test_without_noise_ours_are_scipys_and_the_truth(name: str) -> None:
    case = CASES[name]
    image = case.image()
    ours = np.array([estimate.value for estimate in case.ours(image)])
    near = [value * (1.01 if abs(value) > 1 else 1.0) + 1e-3 for value in case.truth]
    theirs, _ = scipys(case, image, near)
    np.testing.assert_allclose(ours, theirs, rtol=1e-6)
    np.testing.assert_allclose(ours, case.truth, rtol=1e-6)


@pytest.mark.parametrize("name", CASES)
def test_with_noise_ours_are_scipys_within_a_hundredth_of_sigma(name: str) -> None:
    case = CASES[name]
    for seed in range(3):
        image = case.image() + np.random.default_rng(seed).normal(0, 4, np.shape(case.image()))
        ours = case.ours(image)
        theirs, sigma = scipys(case, image, list(case.truth))
        differences = np.abs([estimate.value - their for estimate, their in zip(ours, theirs, strict=True)])
        assert np.all(differences < 0.01 * sigma), (seed, differences / sigma)
        np.testing.assert_allclose([estimate.std for estimate in ours], sigma, rtol=1e-3)


@pytest.mark.parametrize(
    "name", ["gaussian", "gaussian-2d", "fringes-gaussian", "fringes-sinc2", "fringes-2d-gaussian-four"]
)
def test_the_truth_is_within_sigma_as_often_as_it_should_be(name: str) -> None:
    case = CASES[name]
    image, seeds = case.image(), 1000
    normal = np.random.default_rng(7).normal
    within = np.zeros((2, len(case.truth)))
    for _ in range(seeds):
        fits = case.ours(image + normal(0, 4, image.shape))
        off = np.abs([(fit.value - true) / fit.std for fit, true in zip(fits, case.truth, strict=True)])
        within += [off < 1, off < 2]
    # Four standard deviations of a thousand draws.
    for share, wanted in zip(within / seeds, (0.6827, 0.9545), strict=True):
        assert np.all(np.abs(share - wanted) < 4 * np.sqrt(wanted * (1 - wanted) / seeds)), share


def beams() -> list[Any]:
    """Simulated beams with noise, and the pieces of real ones."""
    random = np.random.default_rng(3)
    found = []
    for at, (major, minor, angle) in enumerate([(25.0, 15.0, 0.3), (30.0, 22.0, -1.2), (12.0, 8.0, 0.9)]):
        light = gaussian_2d(grid(240, 320), 20.0, 180.0, 150.2, 121.7, major, minor, angle)
        found.append(pytest.param((light + random.normal(0, 1, light.shape)).round().astype(np.uint8), id=f"{at}"))
    for file in sorted((ROOT / "crates/thalweg-device/recordings/beam").glob("*.pgm")):
        found.append(pytest.param(image_fits.pgm(file), id=file.stem))
    return found


@pytest.mark.parametrize("image", beams())
@pytest.mark.parametrize("kind", ["uint8", "uint16", "float32", "float64"])
def test_moments_are_those_of_laserbeamsize(image: np.ndarray, kind: str) -> None:
    laserbeamsize = pytest.importorskip("laserbeamsize", reason="laserbeamsize is not installed")
    x, y, d_major, d_minor, angle = laserbeamsize.beam_size(image)
    beam = thalweg.image.moments(image.astype(kind)).beam
    assert beam.x == pytest.approx(x, abs=0.01 * d_minor)
    assert beam.y == pytest.approx(y, abs=0.01 * d_minor)
    assert beam.d_major == pytest.approx(d_major, rel=0.01)
    assert beam.d_minor == pytest.approx(d_minor, rel=0.01)
    assert d_major / d_minor < 1.2 or abs(np.sin(beam.angle - angle)) < 0.02


def spot(kind: str = "uint16") -> np.ndarray:
    return gaussian_2d(grid(48, 64), 100, 3000, 30, 20, 6, 4, 0.3).round().astype(kind)


def test_an_array_is_taken_as_it_is_stored_and_copied_where_it_has_to_be() -> None:
    image = spot()
    wanted = thalweg.image.fit_gaussian_2d(image)
    for same in (image.astype(float), image.astype(">u2"), image.astype(int), np.asfortranarray(image), image.tolist()):
        assert thalweg.image.fit_gaussian_2d(same).x.value == pytest.approx(wanted.x.value, rel=1e-9)
    doubled = np.repeat(image, 2, axis=1)[:, ::2]
    assert thalweg.image.fit_gaussian_2d(doubled) == wanted


def test_a_part_has_the_coordinates_of_the_whole_and_millimetres_where_a_pixel_has_a_size() -> None:
    whole = thalweg.image.fit_gaussian_2d(spot("float64"), pixel_mm=(0.01, 0.02))
    part = thalweg.image.fit_gaussian_2d(spot("float64"), region=(5, 2, 50, 40))
    assert part.millimetres is None
    assert part.x.value == pytest.approx(whole.x.value, abs=0.05)
    assert whole.millimetres
    assert whole.millimetres.x.value == pytest.approx(0.01 * whole.x.value)
    assert whole.millimetres.y.value == pytest.approx(0.02 * whole.y.value)
    across = thalweg.image.fit_gaussian(spot(), "x", pixel_mm=0.01)
    assert across.millimetres
    assert across.millimetres.sigma.value == pytest.approx(0.01 * across.sigma.value)
    profile = thalweg.image.fit_gaussian(spot().mean(axis=0))
    assert profile.center.value == pytest.approx(across.center.value)
    assert thalweg.image.moments(spot(), pixel_mm=0.01).millimetres is not None


@pytest.mark.parametrize(
    ("reason", "image"),
    [
        ("no-light", np.full((20, 20), 7, np.uint8)),
        ("too-few-pixels", np.arange(16, dtype=np.uint8).reshape(4, 4)),
        ("not-numbers", np.where(spot("float64") > 3090, np.nan, spot("float64"))),
        ("saturated", np.minimum(spot(), 2000)),
        ("at-the-edge", gaussian_2d(grid(48, 64), 100, 3000, -9, 20, 8, 7, 0.0)),
    ],
)
def test_a_failure_has_its_reason(reason: str, image: np.ndarray) -> None:
    with pytest.raises(FitError) as raised:
        thalweg.image.fit_gaussian_2d(image, white=2000 if reason == "saturated" else None)
    assert raised.value.reason == reason
    assert isinstance(raised.value, ValueError)


def test_what_is_no_image_is_told() -> None:
    for wrong, error in ((np.zeros((3, 3, 3)), TypeError), (np.zeros((9, 9), complex), TypeError)):
        with pytest.raises(error):
            thalweg.image.fit_gaussian_2d(wrong)
    with pytest.raises(ValueError, match="not inside an image"):
        thalweg.image.fit_gaussian_2d(spot(), region=(0, 0, 65, 1))
    with pytest.raises(ValueError, match="pixel"):
        thalweg.image.moments(spot(), pixel_mm=-1)
    with pytest.raises(ValueError, match="axis"):
        thalweg.image.fit_gaussian(spot(), "z")  # type: ignore[arg-type]
    for empty in [(0, 0), (5, 0), (0, 5)]:
        with pytest.raises(ValueError, match="has none"):
            thalweg.image.fit_fringes(np.zeros(empty))
    for about in [{"region": (-1, 0, 9, 9)}, {"region": (1, 2, 3)}, {"pixel_mm": (1, 2, 3)}, {"white": np.nan}]:
        with pytest.raises(ValueError, match=next(iter(about))):
            thalweg.image.moments(spot(), **about)
    with pytest.raises(ValueError, match="distance=-1"):
        thalweg.image.source_size(0.6, wavelength=4e-7, separation=0.03, distance=-1)


def test_a_result_is_a_dataclass() -> None:
    fit = thalweg.image.fit_gaussian_2d(spot())
    assert dataclasses.asdict(fit)["x"] == {"value": fit.x.value, "std": fit.x.std}
    assert float(fit.x) == fit.x.value


def test_every_public_name_has_a_docstring() -> None:
    for name in thalweg.image.__all__:
        assert inspect.getdoc(getattr(thalweg.image, name)), name


def test_the_examples_of_the_module_and_of_the_page_show_what_happens() -> None:
    page = (ROOT / "docs/images.md").read_text()
    texts = [inspect.getdoc(thalweg.image), inspect.getdoc(thalweg.image.source_size)]
    texts += ["\n".join(re.findall(r"^```pycon\n(.*?)^```$", page, re.M | re.S))]
    said: list[str] = []
    for text in texts:
        test = doctest.DocTestParser().get_doctest(text or "", {"thalweg": thalweg, "numpy": np}, "image", None, None)
        assert test.examples
        doctest.DocTestRunner(verbose=False, optionflags=doctest.ELLIPSIS).run(test, out=said.append)
    assert not said, "".join(said)


def test_every_reason_is_on_the_page() -> None:
    names = re.findall(r'=> "([a-z-]+)"', (ROOT / "crates/thalweg-image/src/failure.rs").read_text())
    page = (ROOT / "docs/images.md").read_text()
    assert len(names) == 10
    assert [name for name in names if f"`{name}`" not in page] == []


def test_the_comparison_runs(capsys: pytest.CaptureFixture[str]) -> None:
    for needed in ("scipy", "laserbeamsize"):
        if importlib.util.find_spec(needed) is None:
            pytest.skip(f"{needed} is not installed")
    assert image_fits.main(["--quick"]) == 0
    shown = capsys.readouterr().out
    assert "moments, 1024" in shown
    assert "scipy" in shown


def test_the_beams_are_here() -> None:
    assert len(list(Path(ROOT / "crates/thalweg-device/recordings/beam").glob("*.pgm"))) == 2
