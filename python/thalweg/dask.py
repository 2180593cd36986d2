"""Runs as Dask collections: events in parallel, on the cores of this machine or on a cluster.

    >>> import thalweg.dask
    >>> peaks = thalweg.dask.events("http://daq-0:8042/runs/42").map(lambda event: int(event["1.0"].array.max()))
    >>> peaks.max().compute()
    >>> samples = thalweg.dask.array("http://daq-0:8042/runs/42", "1.0")  # events x samples x channels
    >>> samples.mean(axis=0).compute()

A task is a range of events. Each worker opens the run itself and reads its ranges, so workers on other hosts need a URL
of `thalweg serve`, or a directory that all of them see. Needs Dask: `pip install thalweg[dask]`.
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

_PART = 64 << 20
"""Bytes in a range of events where nobody says how many events: enough that what a task costs does not count."""


def events(
    run: str | os.PathLike[str],
    *,
    chunk: int | None = None,
    sources: Sequence[str] | None = None,
    errors: Literal["warn", "raise"] = "raise",
    **options: Any,
) -> dask.bag.Bag:
    """The events of a run as a bag, `chunk` of them to a task; without it, as many as have some 64 MiB.

    `run` and `options` are those of `thalweg.open`; a token comes from THALWEG_TOKEN in the workers' environment rather
    than in the task graph, which others may see. Of a run that is still being recorded, the bag has the events that are
    there now. With `sources`, by id or name, an event has their fragments only. `errors` is that of
    `thalweg.Run.events`; without "warn", what cannot be read is raised: a worker's warnings are in its log only.

    An event is what `thalweg.Event` says. Reduce it where it is read (`map`, `fold`): the arrays look into what the
    worker has of the run, and are copied when they leave it.
    """
    where, opened = _open(run, options)
    named = None if sources is None else list(sources)
    opened.events(sources=named)  # a source that the run does not have is told here, not by a worker
    parts = [delayed(_read, pure=True)(where, ids, named, errors) for ids, _ in _parts(opened, chunk)]
    bag: dask.bag.Bag = dask.bag.from_delayed(parts) if parts else dask.bag.from_sequence([], npartitions=1)
    return bag


def array(
    run: str | os.PathLike[str],
    source: str,
    *,
    chunk: int | None = None,
    **options: Any,
) -> dask.array.Array:
    """All fragments of one source as an array: events, in ascending order, by what `thalweg.Fragment.array` is; samples
    as (events, samples, channels), images as (events, height, width). Their numbers are `thalweg.Run.ids()`.

    Every event needs a fragment of the source, and all of them one shape, that of the first: computing a part
    where it is not so raises `ValueError`, which names the event. Other arguments are those of `events`.
    """
    where, opened = _open(run, options)
    if len(opened) == 0:
        msg = f"{opened.path} has no events"
        raise ValueError(msg)
    first = _fragment(opened.events(sources=[source])[0], source).array
    shape, dtype = first.shape, first.dtype
    parts = [
        dask.array.from_delayed(
            delayed(_stack, pure=True)(where, ids, source, shape, dtype), shape=(count, *shape), dtype=dtype
        )
        for ids, count in _parts(opened, chunk)
    ]
    whole: dask.array.Array = dask.array.concatenate(parts)
    return whole


@dataclass(frozen=True)
class _Where:
    """A run as a worker finds it again."""

    path: str
    options: tuple[tuple[str, Any], ...]
    events: int
    """How many it had: of a run that is being recorded, what a worker opened for fewer is not enough."""


def _open(run: str | os.PathLike[str], options: dict[str, Any]) -> tuple[_Where, thalweg.Run]:
    path = os.fspath(run)
    if not path.startswith(("http://", "https://")):
        path = os.path.abspath(path)  # noqa: PTH100
    opened = thalweg.open(path, **options)
    return _Where(path, tuple(sorted(options.items())), len(opened)), opened


@lru_cache(maxsize=4)
def _opened(where: _Where) -> thalweg.Run:
    """The run, opened once in each worker for all tasks that read it: they share what was fetched."""
    return thalweg.open(where.path, **dict(where.options))


def _read(
    where: _Where, ids: range, sources: list[str] | None, errors: Literal["warn", "raise"]
) -> list[thalweg.Event]:
    return list(_opened(where).events(ids, sources=sources, errors=errors))


def _fragment(event: thalweg.Event, source: str) -> thalweg.Fragment:
    if event.missing:
        msg = f"event {event.id}: source {source} is missing ({', '.join(event.missing.values())})"
        raise ValueError(msg)
    return event[source]


def _stack(where: _Where, ids: range, source: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
    arrays = []
    for event in _opened(where).events(ids, sources=[source], errors="raise"):
        fragment = _fragment(event, source)
        array = fragment.array
        if array.shape != shape or array.dtype != dtype:
            has = f"{array.shape} of {array.dtype} ({', '.join(fragment.status)})"
            msg = f"event {event.id}: source {source} has {has}, not {shape} of {dtype} as the first event"
            raise ValueError(msg)
        arrays.append(array)
    return np.stack(arrays)


def _parts(run: thalweg.Run, chunk: int | None) -> list[tuple[range, int]]:
    """Ranges of so many events: their numbers, and how many there are."""
    ids = run.ids()
    if chunk is None:
        chunk = max(1, len(ids) * _PART // max(1, run.nbytes))
    if chunk < 1:
        msg = f"chunk={chunk}: it must be at least 1 event"
        raise ValueError(msg)
    starts = range(0, len(ids), chunk)
    parts = (ids[start : start + chunk] for start in starts)
    return [(range(int(part[0]), int(part[-1]) + 1), len(part)) for part in parts]
