#!/usr/bin/env python3
"""Makes the images that interferometer.toml and six_cameras.toml play, beside them. All of it is simulated.

    python examples/beam_images.py [--width 640] [FOLDER]

What was put into the images is in truth.json, so that what a run makes of them can be compared.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np
import numpy.typing as npt

FRAMES = 12
# The interferometer: wavelength, distance of the slits, distance of the source, in metres; and the source's size.
WAVELENGTH, SEPARATION, DISTANCE, SIZE = 400e-9, 0.03, 16.7, 40e-6
# Millimetres from pixel to pixel in an image of 640 columns, and where along the beam six cameras stand, in metres.
PIXEL_MM = 0.02
STATIONS = np.array([-2.5, -1.5, -0.5, 0.5, 1.5, 2.5])


def frame(light: np.ndarray, noise: np.random.Generator) -> npt.NDArray[np.uint8]:
    """An image of eight bits, with the noise of a camera."""
    image: npt.NDArray[np.uint8] = np.clip(light + noise.normal(0, 2, light.shape), 0, 255).round().astype(np.uint8)
    return image


def bunch(station: float) -> tuple[float, float]:
    """Sigma of the beam across and upright, in millimetres: a waist, from which it widens both ways."""
    return 0.6 * np.hypot(1, station / 3), 0.35 * np.hypot(1, station / 1.5)


def main() -> None:
    """See above."""
    arguments = argparse.ArgumentParser(description="Images of a simulated beam")
    arguments.add_argument("folder", nargs="?", type=Path, default=Path(__file__).parent)
    arguments.add_argument("--width", type=int, default=640, help="columns; there are three quarters as many rows")
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
