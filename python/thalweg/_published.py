"""What others publish, pushed into a run: shared by thalweg.epics and thalweg.dectris."""

from __future__ import annotations

import argparse
import sys
from itertools import islice
from math import inf
from typing import TYPE_CHECKING, Any, NamedTuple

import thalweg

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Sequence

    import numpy as np

# Seconds from one look whether the run is over to the next, while nothing comes.
LOOK = 0.5


class Image(NamedTuple):
    """An array: where it is in the order of all, when it was taken (TAI, in nanoseconds), and what it is."""

    number: int
    time: int | None
    array: np.ndarray[Any, Any]


class Counter:
    """Numbers that never go back: where what is counted begins anew, they go on."""

    def __init__(self) -> None:
        """Nothing was counted yet."""
        self.offset, self.last = 0, -1

    def anew(self, first: int) -> None:
        """The count begins anew, at this number."""
        self.offset = self.last + 1 - first

    def __call__(self, number: int) -> int:
        """The number of what comes next, by the count of who sends it."""
        self.last = number + self.offset
        return self.last


def record(
    images: Callable[[Callable[[], bool], float], Generator[Image, None, None]],
    builders: str | Sequence[str],
    *,
    id: str,
    name: str | None,
    description: dict[str, Any],
    timeout: float,
    old: int = 0,
) -> dict[str, Any]:
    """Gives images to the builders, to the end of their run, and returns what the source counted.

    `images` is called with a function that says whether it is to end, which it asks now and then, and with the seconds
    in which the first one is to come. It is called twice: what is published before the run is not of it, and says only
    what there will be. `old`: so many of its first images are from before it was called.
    """
    before = images(lambda: False, timeout)
    first = next(before).array
    before.close()
    source = thalweg.Source(
        builders,
        id=id,
        name=name,
        dtype=first.dtype,
        shape=first.shape,
        description=description,
        policy="drop-newest",
        timeout=timeout,
    )
    # The number that comes next.
    due: int | None = None
    # The run begins when all its sources are there.
    with source:
        stream = images(lambda: not source.running, inf)
        try:
            for image in islice(stream, old, None):
                if due is not None and image.number > due:
                    source.lost(image.number - due)
                source.push(image.array, timestamp=image.time)
                due = image.number + 1
        except thalweg.RunOver:
            pass
        finally:
            stream.close()
        return source.finish()


def command(
    module: str, about: str, where: tuple[str, str], record: Callable[..., dict[str, Any]], images: str
) -> None:
    """Runs such a module as a program. `where`: what its first argument is called, and what it is."""
    arguments = argparse.ArgumentParser(prog=f"python -m {module}", description=about)
    arguments.add_argument("where", metavar=where[0], help=where[1])
    arguments.add_argument("builder", nargs="+", help="a builder's address, such as tcp:127.0.0.1:7700")
    arguments.add_argument("--id", required=True, help='the source\'s id, such as "1.0"')
    arguments.add_argument("--name", help="the source's name; that of what it takes without it")
    arguments.add_argument(
        "--timeout", type=float, default=10.0, help="seconds to wait for the first image and for the builders"
    )
    options = arguments.parse_args()
    try:
        report = record(
            options.where, options.builder, id=options.id, name=options.name or options.where, timeout=options.timeout
        )
    except (OSError, RuntimeError, ValueError, ImportError, thalweg.RunError) as error:
        sys.exit(f"{module}: {error}")
    lost = report["lost_in_device"]
    print(f"{options.where}: {report['accepted'] - lost} {images}, {lost} lost before")
