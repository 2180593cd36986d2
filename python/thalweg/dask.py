"""Runs as Dask collections, to read events in parallel on the cores of one machine or on a cluster.

`events` returns a bag of events, `array` the samples of one source as an array:

    >>> import thalweg.dask
    >>> peaks = thalweg.dask.events("http://daq-0:8042/runs/42").map(lambda event: int(event["1.0"].array.max()))
    >>> peaks.max().compute()
    >>> samples = thalweg.dask.array("http://daq-0:8042/runs/42", "1.0")  # (events, samples, channels)
    >>> samples.mean(axis=0).compute()

Each task reads a range of events. Each worker opens the run itself: workers on other hosts need a URL of
`thalweg serve`, or a directory on a shared file system. Needs Dask: `pip install thalweg[dask]`.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal

import dask.array
import dask.bag
import numpy as np
from dask.delayed import delayed

import thalweg

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["array", "events"]

_PART_BYTES = 64 << 20
"""Size of a task's range of events without `chunk`, so large that the overhead of a task is small."""


def events(
    run: str | os.PathLike[str],
    *,
    chunk: int | None = None,
    sources: Sequence[str] | None = None,
    errors: Literal["warn", "raise"] = "raise",
    **options: Any,
) -> dask.bag.Bag:
    """Returns the events of a run as a Dask bag of `thalweg.Event`, in ascending order of event numbers.

    - `run` is a directory or URL, and `options` are the keyword arguments of `thalweg.open`. Do not pass `token`: it
      would be part of the task graph, which other users may see. Set THALWEG_TOKEN in the environment of the workers.
    - `chunk` is the number of events per task; the default is as many as have about 64 MiB.
    - `sources` is a list of ids or names; events then contain fragments of these sources only.
    - `errors` is that of `thalweg.Run.events`. The default is "raise", since the warnings of "warn" appear only in the
      log of a worker.

    If the run is still being recorded, the bag contains the events recorded so far. Reduce events with `map` or `fold`,
    which run on the worker that reads them: events returned to the client are copied with all their data.

    Raises RunError if there is no run, KeyError for a source that the run does not have, and ValueError if `chunk` is
    less than 1.
    """
    location, opened = _open(run, options)
    named = None if sources is None else list(sources)
    opened.events(sources=named)  # raises KeyError here, not in a worker
    parts = [delayed(_read, pure=True)(location, ids, named, errors) for ids, _ in _parts(opened, chunk)]
    bag: dask.bag.Bag = dask.bag.from_delayed(parts) if parts else dask.bag.from_sequence([], npartitions=1)
    return bag


def array(
    run: str | os.PathLike[str],
    source: str,
    *,
    chunk: int | None = None,
    **options: Any,
) -> dask.array.Array:
    """Returns all fragments of one source as a Dask array.

    The first axis is that of events, in ascending order of their numbers (`thalweg.Run.ids()`); the others are those of
    `thalweg.Fragment.array`: (events, samples, channels) for samples, (events, height, width) for images. `source` is
    an id or name; `run`, `chunk` and `options` are those of `events`.

    All fragments must have the shape and dtype of the first one. Computing a part in which one differs or is missing
    raises ValueError with the event's number. Raises ValueError if the run has no events.
    """
    location, opened = _open(run, options)
    if len(opened) == 0:
        msg = f"{opened.path} has no events"
        raise ValueError(msg)
    first = _fragment(opened.events(sources=[source])[0], source).array
    shape, dtype = first.shape, first.dtype
    parts = [
        dask.array.from_delayed(
            delayed(_stack, pure=True)(location, ids, source, shape, dtype), shape=(count, *shape), dtype=dtype
        )
        for ids, count in _parts(opened, chunk)
    ]
    whole: dask.array.Array = dask.array.concatenate(parts)
    return whole


@dataclass(frozen=True)
class _RunLocation:
    """Path or URL and options from which a worker opens the run."""

    path: str
    options: tuple[tuple[str, Any], ...]
    events: int
    """Number of events; part of the cache key, since a run that is being recorded grows."""


def _open(run: str | os.PathLike[str], options: dict[str, Any]) -> tuple[_RunLocation, thalweg.Run]:
    """Opens a run by its absolute path, since workers may have other working directories."""
    path = os.fspath(run)
    if not path.startswith(("http://", "https://")):
        path = os.path.abspath(path)  # noqa: PTH100
    opened = thalweg.open(path, **options)
    return _RunLocation(path, tuple(sorted(options.items())), len(opened)), opened


@lru_cache(maxsize=4)
def _opened(location: _RunLocation) -> thalweg.Run:
    """Returns the run, opened once in each worker: all tasks share the blocks that were fetched."""
    return thalweg.open(location.path, **dict(location.options))


def _read(
    location: _RunLocation, ids: range, sources: list[str] | None, errors: Literal["warn", "raise"]
) -> list[thalweg.Event]:
    """Reads a range of events, in a worker."""
    return list(_opened(location).events(ids, sources=sources, errors=errors))


def _fragment(event: thalweg.Event, source: str) -> thalweg.Fragment:
    """Returns the fragment of an event that was read with one source. Raises ValueError if it is missing."""
    if event.missing:
        msg = f"event {event.id}: source {source} is missing ({', '.join(event.missing.values())})"
        raise ValueError(msg)
    return event[source]


def _stack(
    location: _RunLocation, ids: range, source: str, shape: tuple[int, ...], dtype: np.dtype[Any]
) -> NDArray[Any]:
    """Reads the arrays of a range of events into one array, in a worker."""
    arrays = []
    for event in _opened(location).events(ids, sources=[source], errors="raise"):
        fragment = _fragment(event, source)
        array = fragment.array
        if array.shape != shape or array.dtype != dtype:
            has = f"{array.shape} of {array.dtype} ({', '.join(fragment.status)})"
            msg = f"event {event.id}: source {source} has {has}, not {shape} of {dtype} as in the first event"
            raise ValueError(msg)
        arrays.append(array)
    return np.stack(arrays)


def _parts(run: thalweg.Run, chunk: int | None) -> list[tuple[range, int]]:
    """Returns the ranges of event numbers for tasks of `chunk` events each, with the number of events in them."""
    ids = run.ids()
    if chunk is None:
        chunk = max(1, len(ids) * _PART_BYTES // max(1, run.nbytes))
    if chunk < 1:
        msg = f"chunk={chunk}: the number of events per task must be at least 1"
        raise ValueError(msg)
    starts = range(0, len(ids), chunk)
    parts = (ids[start : start + chunk] for start in starts)
    return [(range(int(part[0]), int(part[-1]) + 1), len(part)) for part in parts]
