"""A histogram of all samples of one source, event ranges in parallel: on this machine's cores, or on a Dask cluster.

`python examples/dask_histogram.py RUN SOURCE [SCHEDULER]`, where RUN is a directory or a URL (http://daq-0:8042/runs/42),
SOURCE an id or a name, and SCHEDULER the address of a cluster (tcp://scheduler:8786).
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
    """Adds up the histograms of all events, each made where its event is read."""
    with Client(scheduler) as client:
        events = thalweg.dask.events(run, sources=[source])
        counts = events.map(histogram).fold(np.add, initial=np.zeros(len(EDGES) - 1, dtype=int)).compute()
        workers: Any = client.nthreads()
        print(f"{counts.sum():,} samples in {events.npartitions} parts on {len(workers)} workers")
    for low, high, count in zip(EDGES[:-1], EDGES[1:], counts, strict=True):
        print(f"{low:7d} … {high - 1:6d} {count:12,d} {'#' * round(60 * count / max(1, counts.max()))}")


def histogram(event: thalweg.Event) -> NDArray[np.intp]:
    """What one event's samples count for."""
    (fragment,) = event.values()
    return np.histogram(fragment.array, EDGES)[0]


if __name__ == "__main__":  # workers that are processes import this file too
    main(*sys.argv[1:])
