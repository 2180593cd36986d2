#!/usr/bin/env python3
"""Writes the simulated images that interferometer.toml and six_cameras.toml replay, next to these files.

    python examples/beam_images.py [--width 640] [FOLDER]

The parameters of the images are written to truth.json, for comparison with the fits of a run.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np
import numpy.typing as npt

FRAMES = 12
# The interferometer, in metres: wavelength, separation of the slits, distance to the source, sigma of the source.
WAVELENGTH, SEPARATION, DISTANCE, SIZE = 400e-9, 0.03, 16.7, 40e-6
# Size of a pixel in millimetres, for 640 columns; positions of the six cameras along the beam, in metres.
PIXEL_MM = 0.02
STATIONS = np.array([-2.5, -1.5, -0.5, 0.5, 1.5, 2.5])


def frame(light: np.ndarray, noise: np.random.Generator) -> npt.NDArray[np.uint8]:
    """Returns an 8-bit image with camera noise."""
    image: npt.NDArray[np.uint8] = np.clip(light + noise.normal(0, 2, light.shape), 0, 255).round().astype(np.uint8)
    return image


def bunch(station: float) -> tuple[float, float]:
    """Returns the horizontal and vertical sigma of the beam at a position, in millimetres, with a waist at 0."""
    return 0.6 * np.hypot(1, station / 3), 0.35 * np.hypot(1, station / 1.5)


def main() -> None:
    """Writes the images and truth.json."""
    arguments = argparse.ArgumentParser(description="Images of a simulated beam")
    arguments.add_argument("folder", nargs="?", type=Path, default=Path(__file__).parent)
    arguments.add_argument("--width", type=int, default=640, help="columns; the height is three quarters of it")
    options = arguments.parse_args()
    scale, noise = options.width / 640, np.random.default_rng(2026)
    y, x = np.mgrid[: options.width * 3 // 4, : options.width] / scale

    # The theorem of van Cittert and Zernike, for a Gaussian source: see docs/images.md.
    visibility = np.exp(-2 * (np.pi * SIZE * SEPARATION / (WAVELENGTH * DISTANCE)) ** 2)
    phases = noise.uniform(-np.pi, np.pi, FRAMES)
    envelope = np.sinc((x - 320) / 220) ** 2 * np.sinc((y - 240) / 180) ** 2
    fringes = [20 + 110 * envelope * (1 + visibility * np.cos(2 * np.pi * (x - 320) / 24 + phase)) for phase in phases]
    np.save(options.folder / "interferometer.npy", [frame(light, noise) for light in fringes])

    centres = noise.normal(0, 0.3, (FRAMES, 2))
    for number, station in enumerate(STATIONS):
        sigma = np.array(bunch(station)) / PIXEL_MM
        squares = [(((x - 320 - u) / sigma[0]) ** 2 + ((y - 240 - v) / sigma[1]) ** 2) for u, v in centres / PIXEL_MM]
        beam = [15 + 200 * np.exp(-square / 2) for square in squares]
        np.save(options.folder / f"camera-{number}.npy", [frame(light, noise) for light in beam])

    truth = {
        "visibility": visibility,
        "source_size": SIZE,
        "stations": STATIONS.tolist(),
        "sigma_mm": [bunch(station) for station in STATIONS],
        "x_mm": (centres[:, 0] + 320 * PIXEL_MM).tolist(),
    }
    (options.folder / "truth.json").write_text(json.dumps(truth, indent=2) + "\n")


if __name__ == "__main__":
    main()
