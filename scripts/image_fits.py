#!/usr/bin/env python3
"""Images understood per second on one core: by thalweg.image, and by the Python packages that people use.

scripts/image_fits.py [--quick] [--json]

Each line is one task on one simulated image (VGA, or 1024 x 1024, noise of 1 %). Ours and theirs take turns in one
process, so that both have the same machine; shown are the median and the spread (the quarters) of the processor's time
for an image. Theirs are `scipy.optimize.curve_fit` as one would write it (float64, all pixels, starting values next to
the truth, which ours does not get) and `laserbeamsize.beam_size`. One core: run it under `taskset -c 1` to be sure.

What it needs beside thalweg: `pip install scipy laserbeamsize`. What limits ours is arithmetic: of the fits, about a
microsecond for a hundred pixels and step.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

# One core is one core, also for what NumPy calls.
for threads in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(threads, "1")

import numpy as np  # noqa: E402 - it reads them when it is loaded


def gaussian(x: np.ndarray, background: float, amplitude: float, center: float, sigma: float) -> np.ndarray:
    """A Gaussian along a line."""
    return background + amplitude * np.exp(-0.5 * ((x - center) / sigma) ** 2)


def gaussian_2d(
    at: Any, background: float, amplitude: float, x: float, y: float, major: float, minor: float, angle: float
) -> np.ndarray:
    """An elliptical Gaussian; the angle is counter-clockwise as the image is seen."""
    (u, v) = turned(at, x, y, angle)
    return background + amplitude * np.exp(-0.5 * ((u / major) ** 2 + (v / minor) ** 2))


def turned(at: Any, x: float, y: float, angle: float) -> tuple[np.ndarray, np.ndarray]:
    """Distances from the centre, along turned axes; y goes down."""
    dx, dy = at[0] - x, at[1] - y
    return dx * np.cos(angle) - dy * np.sin(angle), dx * np.sin(angle) + dy * np.cos(angle)


def envelope_of(kind: str, u: np.ndarray, width: float) -> np.ndarray:
    """The light of one slit."""
    return np.sinc(u / width) ** 2 if kind == "sinc2" else np.exp(-0.5 * (u / width) ** 2)


def wave(u: np.ndarray, visibility: float, period: float, phase: float) -> np.ndarray:
    """Fringes."""
    return 1 + visibility * np.cos(2 * np.pi * u / period + phase)


def fringes(kind: str) -> Callable[..., np.ndarray]:
    """Fringes along a line."""

    def model(x: np.ndarray, background: float, amplitude: float, center: float, *of: float) -> np.ndarray:
        return background + amplitude * envelope_of(kind, x - center, of[0]) * wave(x - center, *of[1:])

    return model


def fringes_2d(kind: str, slits: str) -> Callable[..., np.ndarray]:
    """Fringes over an image; the parameters of the waves and, where there is one more, the angle come last."""

    def model(
        at: Any, background: float, amplitude: float, x: float, y: float, width_x: float, width_y: float, *of: float
    ) -> np.ndarray:
        waves = 6 if slits == "four" else 3
        u, v = turned(at, x, y, of[waves] if len(of) > waves else 0.0)
        light = amplitude * envelope_of(kind, u, width_x) * envelope_of(kind, v, width_y)
        if slits != "y":
            light = light * wave(u, *of[:3])
        if slits != "x":
            light = light * wave(v, *of[waves - 3 : waves])
        return background + light

    return model


def pgm(path: Path) -> np.ndarray:
    """The image in a binary PGM file with 8 bits."""
    data = path.read_bytes()
    header = re.match(rb"P5\s+(\d+)\s+(\d+)\s+255\s", data)
    assert header, f"{path} is no PGM file with 8 bits"
    width, height = int(header[1]), int(header[2])
    return np.frombuffer(data[header.end() :], np.uint8).reshape(height, width)


Model = Callable[..., np.ndarray]
Task = tuple[str, str, Callable[[], Any], Callable[[], Any]]


def tasks(quick: bool) -> list[Task]:
    """Name, whose theirs is, ours, theirs."""
    import laserbeamsize
    from scipy.optimize import curve_fit

    import thalweg.image as ours

    small = 4 if quick else 1
    noise = np.random.default_rng(1).normal
    y, x = np.mgrid[: 480 // small, : 640 // small]
    at = np.array([x.ravel(), y.ravel()])

    def simulated(model: Model, truth: tuple[float, ...]) -> np.ndarray:
        light = model((x, y), *truth)
        return (light + noise(0, 30, light.shape)).round().astype(np.uint16)

    def scipys(model: Model, places: np.ndarray, pixels: np.ndarray, truth: tuple[float, ...]) -> Any:
        near = [value * 1.02 for value in truth]
        return curve_fit(model, places, pixels.ravel().astype(float), p0=near, maxfev=10_000)

    def lines(image: np.ndarray, model: Model, truths: tuple[tuple[float, ...], ...]) -> None:
        for axis, truth in zip((0, 1), truths, strict=True):
            profile = image.mean(axis=axis)
            scipys(model, np.arange(len(profile), dtype=float), profile, truth)

    found: list[Task] = []
    spot = (200.0, 3000.0, 310.4 / small, 250.7 / small, 60.0 / small, 40.0 / small, 0.6)
    image = simulated(gaussian_2d, spot)
    across = (200.0, 600.0, spot[2], 55.0 / small), (200.0, 500.0, spot[3], 47.0 / small)
    found += [
        (
            "Gaussian, 1-D (both axes)",
            "scipy",
            lambda: [ours.fit_gaussian(image, axis) for axis in ("x", "y")],
            lambda: lines(image, gaussian, across),
        ),
        (
            "Gaussian, 2-D",
            "scipy",
            lambda: ours.fit_gaussian_2d(image),
            lambda: scipys(gaussian_2d, at, image, spot),
        ),
    ]
    for slits in ("x", "four"):
        waves = (0.6, 31.0 / small, 0.5, 0.5, 23.0 / small, -0.4)[: 6 if slits == "four" else 3]
        truth = (200.0, 1500.0, 322.0 / small, 236.0 / small, 240.0 / small, 190.0 / small, *waves)
        model = fringes_2d("sinc2", slits)
        pattern = simulated(model, truth)
        line = (200.0, 700.0, truth[2], truth[4], *waves[:3])
        if slits == "x":
            found.append(
                (
                    "fringes, 1-D",
                    "scipy",
                    lambda pattern=pattern: ours.fit_fringes(pattern, "x"),
                    lambda pattern=pattern, line=line: scipys(
                        fringes("sinc2"), np.arange(pattern.shape[1], dtype=float), pattern.mean(axis=0), line
                    ),
                )
            )
        found.append(
            (
                f"fringes, 2-D, {'two slits' if slits == 'x' else 'four holes'}",
                "scipy",
                lambda pattern=pattern, slits=slits: ours.fit_fringes_2d(pattern, slits),
                lambda pattern=pattern, truth=truth, model=model: scipys(model, at, pattern, truth),
            )
        )
        if slits == "x":
            tilted = simulated(model, (*truth, 0.1))
            found.append(
                (
                    "fringes, 2-D, two slits, turned",
                    "scipy",
                    lambda tilted=tilted: ours.fit_fringes_2d(tilted, "x", turned=True),
                    lambda tilted=tilted, truth=truth, model=model: scipys(model, at, tilted, (*truth, 0.1)),
                )
            )
    y, x = np.mgrid[: 1024 // small, : 1024 // small]
    beam = simulated(gaussian_2d, (200.0, 3000.0, 500.0 / small, 540.0 / small, 80.0 / small, 60.0 / small, 0.3))
    for kind in ("uint16", "float32"):
        pixels = beam.astype(kind)
        found.append(
            (
                f"moments, 1024², {kind}",
                "laserbeamsize",
                lambda pixels=pixels: ours.moments(pixels),
                lambda pixels=pixels: laserbeamsize.beam_size(pixels),
            )
        )
    return found


def timed(call: Callable[[], Any]) -> float:
    """Seconds of a processor that a call takes: what else runs on the machine does not count."""
    began = time.process_time()
    call()
    return time.process_time() - began


def measured(task: Task, quick: bool) -> dict[str, Any]:
    """Medians and quarters of both, in milliseconds; they take turns."""
    name, whose, ours, theirs = task
    times: dict[str, list[float]] = {"ours": [], "theirs": []}
    ours()
    for _ in range(2 if quick else 5):
        # As many of ours as make about as long as one of theirs, so that both see as much of the machine.
        theirs_took = timed(theirs)
        times["theirs"].append(theirs_took)
        until = time.perf_counter() + min(theirs_took, 1.0)
        times["ours"].append(timed(ours))
        while time.perf_counter() < until:
            times["ours"].append(timed(ours))
    result: dict[str, Any] = {"task": name, "peer": whose}
    for side, seconds in times.items():
        quarters = statistics.quantiles(seconds, n=4) if len(seconds) > 1 else seconds * 3
        ms = [1e3 * value for value in quarters]
        result[side] = {"ms": ms, "frames_per_s": 1 / quarters[1], "runs": len(seconds)}
    result["ratio"] = result["ours"]["frames_per_s"] / result["theirs"]["frames_per_s"]
    return result


def main(arguments: list[str]) -> int:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="small images, few runs: to see that it works")
    parser.add_argument("--json", action="store_true", help="one JSON object per task")
    options = parser.parse_args(arguments)
    if not options.json:
        heads = ("thalweg: ms (quarters)", "theirs: ms (quarters)")
        print(f"{'task':34} {heads[0]:>26} {'/s':>7}   {heads[1]:>36} {'/s':>7} {'ratio':>7}")
    for task in tasks(options.quick):
        result = measured(task, options.quick)
        if options.json:
            print(json.dumps(result), flush=True)
            continue
        sides = []
        for side in ("ours", "theirs"):
            low, median, high = result[side]["ms"]
            sides.append((f"{median:.2f} ({low:.2f}-{high:.2f})", f"{result[side]['frames_per_s']:.3g}"))
        (ours, ours_rate), (theirs, theirs_rate) = sides
        print(
            f"{result['task']:34} {ours:>26} {ours_rate:>7}   {result['peer'] + ' ' + theirs:>36} {theirs_rate:>7} "
            f"{result['ratio']:>6.1f}x",
            flush=True,
        )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
