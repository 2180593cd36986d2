"""Computes a histogram of all samples of one source in parallel, on the cores of this machine or a Dask cluster.

`python examples/dask_histogram.py RUN SOURCE [SCHEDULER]`, where RUN is a directory or a URL
(http://daq-0:8042/runs/42), SOURCE an id or a name, and SCHEDULER the address of a cluster (tcp://scheduler:8786).
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
from dask.distributed import Client
from numpy.typing import NDArray

import thalweg.dask

EDGES = np.arange(-32768, 32769, 4096)


def main(run: str, source: str, scheduler: str | None = None) -> None:
    """Adds up the histograms of all events, which the workers compute, and prints the sum."""
    with Client(scheduler) as client:
        events = thalweg.dask.events(run, sources=[source])
        counts = events.map(histogram).fold(np.add, initial=np.zeros(len(EDGES) - 1, dtype=int)).compute()
        workers: Any = client.nthreads()
        print(f"{counts.sum():,} samples in {events.npartitions} parts on {len(workers)} workers")
    for low, high, count in zip(EDGES[:-1], EDGES[1:], counts, strict=True):
        print(f"{low:7d} … {high - 1:6d} {count:12,d} {'#' * round(60 * count / max(1, counts.max()))}")


def histogram(event: thalweg.Event) -> NDArray[np.intp]:
    """Returns the histogram of one event's samples."""
    counts: NDArray[np.intp] = np.zeros(len(EDGES) - 1, dtype=np.intp)
    for fragment in event.values():  # empty if the fragment is missing
        counts += np.histogram(fragment.array, EDGES)[0]
    return counts


if __name__ == "__main__":  # workers that are processes import this file too
    main(*sys.argv[1:])
