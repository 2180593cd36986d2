"""Pushes data of two sources, a digitizer and a camera, from two threads of one program.

Start `thalweg run examples/push.toml` first. The data are simulated; replace them by those of your own devices.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from numpy.typing import NDArray

import thalweg

EVENTS = 1000


def main(builder: str = "tcp:127.0.0.1:7700") -> None:
    """Connects both sources, pushes data into them, and prints the number of fragments."""
    # The run begins when all sources are connected: create all of them before entering the first `with` block.
    digitizer = thalweg.Source(builder, id="1.0", name="digitizer", dtype="int16", shape=(4096, 2))
    camera = thalweg.Source(builder, id="2.0", name="camera", dtype="uint8", shape=(480, 640))
    with ThreadPoolExecutor() as threads:
        fed = [threads.submit(feed, digitizer, waveform), threads.submit(feed, camera, picture)]
        for report in (thread.result() for thread in fed):
            print(f"{report['name']}: {report['accepted']} fragments, {report['bytes'] / 1e6:.1f} MB")


def feed(source: thalweg.Source, read: Callable[[int], NDArray[Any]]) -> dict[str, Any]:
    """Pushes 1000 fragments into one source, and returns its report."""
    with source:  # waits for the run to begin
        try:
            for event in range(EVENTS):
                source.push(read(event), status="simulated")  # time stamp: now; waits for a free slot
        except thalweg.RunOver:
            pass  # an operator ended the run
    return source.finish()


def waveform(event: int) -> NDArray[np.int16]:
    """Returns a pulse in noise, of shape (samples, channels) with two channels, in 16-bit samples."""
    noise = np.random.default_rng(event).normal(0, 20, (4096, 2))
    noise[1000:1400] += 1500 * np.exp(-np.arange(400) / 80)[:, np.newaxis]
    return noise.astype(np.int16)


def picture(event: int) -> NDArray[np.uint8]:
    """Returns an image of shape (height, width) with a moving spot."""
    y, x = np.ogrid[:480, :640]
    spot = np.exp(-((x - 320 - 100 * np.cos(event / 50)) ** 2 + (y - 240 - 100 * np.sin(event / 50)) ** 2) / 800)
    picture: NDArray[np.uint8] = (200 * spot).astype(np.uint8)
    return picture


if __name__ == "__main__":
    main(*sys.argv[1:])
