"""What others publish, pushed into a run: shared by thalweg.epics and thalweg.dectris."""

from __future__ import annotations

import argparse
import sys
from contextlib import closing
from dataclasses import dataclass
from time import monotonic
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import thalweg
from thalweg._thalweg import _FrameCounter

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Sequence

    import numpy as np

# TAI is so much ahead of UTC since 2017 (IERS Bulletin C).
TAI_UTC = 37
# Seconds from one look whether the run is over to the next, while nothing comes.
LOOK = 0.5
# Images that may come before one that was published earlier.
REORDERED = 16


class Form(NamedTuple):
    """What all images will be, before the first has come."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]


class Image(NamedTuple):
    """An array: where it is in the order of all, when it was taken (TAI, in nanoseconds), and what it is.

    `certain`: its number is more than a guess.
    """

    number: int
    time: int | None
    array: np.ndarray[Any, Any]
    certain: bool = True


class Stream(Protocol):
    """What is published at one place."""

    # How it is called in messages.
    name: str

    @property
    def unused(self) -> int:
        """Arrays of the run that are no fragments, since they repeated or from before the first one."""
        ...

    def take(self) -> Form | Image | None:
        """Returns what comes next, in order; None where nothing has come for LOOK seconds."""

    def begin(self) -> bool:
        """The run begins. Returns whether what has come is of it: not where the publisher goes on by itself."""
        ...

    def close(self) -> None:
        """Nothing more is taken."""


@dataclass(frozen=True)
class Newest:
    """The array with the highest number so far."""

    number: int
    count: int
    time: int | None


class Order:
    """Images in the order of their publisher's counter, which has so many bits. Numbers never go back."""

    def __init__(self, bits: int) -> None:
        """Nothing has come."""
        self._bits = bits
        self._counter = _FrameCounter(bits)
        self._waiting: dict[int, Image] = {}
        # The first number that is still waited for.
        self.next = 0
        self.newest: Newest | None = None
        # No number is a guess yet.
        self._is_certain = True

    def _count(self, count: int) -> int:
        return count & ((1 << self._bits) - 1)

    @property
    def end(self) -> int:
        """The number after all that have come."""
        return max(self._waiting, default=self.next - 1) + 1

    def begin(self, count: int, number: int, *, certain: bool) -> None:
        """What has this count has this number, whatever came before."""
        self._counter.begin(self._count(count), number, certain)

    def came(self, count: int, time: int | None, array: np.ndarray[Any, Any], *, certain: bool = True) -> None:
        """An array has come. `certain`: its count goes on from those before; else numbers are a guess from here on."""
        number = self._counter.came(self._count(count), self.next)
        if number is None or number in self._waiting or self._is_behind(number, time):
            self.came_anew(count, time, array)
            return
        if not certain or self._is_ahead(number, time):
            self._counter.begin(self._count(count), number, False)
        self._add(number, count, time, array)

    def came_anew(self, count: int, time: int | None, array: np.ndarray[Any, Any], *, lost: int = 0) -> None:
        """An array has come whose count does not go on from those before: it is behind all of them and `lost` others.

        From here on, numbers are a guess.
        """
        self._add(self._counter.begin_anew(self._count(count), self.end + lost), count, time, array)

    def _later(self, time: int | None) -> int | None:
        """Returns by how many nanoseconds it was taken later than the newest one, where both are dated."""
        before = self.newest.time if self.newest else None
        return None if time is None or before is None else time - before

    def _is_behind(self, number: int, time: int | None) -> bool:
        """Returns whether its number is behind the newest one, and it was taken later: it has not come late."""
        later = self._later(time)
        return self.newest is not None and number < self.newest.number and later is not None and later >= 0

    def _is_ahead(self, number: int, time: int | None) -> bool:
        """Returns whether others are missing between the newest one and it, and it was taken earlier."""
        later = self._later(time)
        return self.newest is not None and number > self.newest.number + 1 and later is not None and later < 0

    def _add(self, number: int, count: int, time: int | None, array: np.ndarray[Any, Any]) -> None:
        # Once a number is a guess, those of all that come later are, even where they are before it.
        self._is_certain = self._is_certain and self._counter.is_certain(number)
        self._waiting[number] = Image(number, time, array, self._is_certain)
        if self.newest is None or number > self.newest.number:
            self.newest = Newest(number, count, time)

    def take(self, *, idle: bool = False) -> Image | None:
        """Returns the next image; one that was published earlier is waited for, unless nothing has come for long."""
        first = min(self._waiting, default=None)
        if first is None or not (first == self.next or idle or len(self._waiting) > REORDERED):
            return None
        self.next = first + 1
        return self._waiting.pop(first)


def images(stream: Stream, timeout: float, over: Callable[[], bool]) -> Generator[Image, None, None]:
    """All images of a stream, until `over`. The first one comes within `timeout` seconds, or TimeoutError is raised."""
    begun, patience = False, monotonic() + timeout
    with closing(stream):
        while True:
            image = stream.take()
            if isinstance(image, Image):
                begun = True
                yield image
            elif over():
                return
            elif not begun and monotonic() > patience:
                msg = f"{stream.name} within {timeout:g} s"
                raise TimeoutError(msg)


def record(
    stream: Stream,
    builders: str | Sequence[str],
    *,
    id: str,
    name: str | None,
    description: Callable[[], dict[str, Any]],
    timeout: float,
) -> dict[str, Any]:
    """Gives images to the builders, to the end of their run, and returns what the source counted.

    `description` is asked once the first has come. `unused` counts those that repeated or from before the first.
    """
    with closing(stream):
        patience = monotonic() + timeout
        while (first := stream.take()) is None:
            if monotonic() > patience:
                msg = f"{stream.name} within {timeout:g} s"
                raise TimeoutError(msg)
        form = Form(first.array.dtype, first.array.shape) if isinstance(first, Image) else first
        source = thalweg.Source(
            builders,
            id=id,
            name=name,
            dtype=form.dtype,
            shape=form.shape,
            description=description(),
            policy="drop-newest",
            timeout=timeout,
        )
        # The run begins when all its sources are there.
        with source:
            item: Form | Image | None = first if stream.begin() else None
            # The number that comes next.
            due = 0
            try:
                while source.running:
                    if isinstance(item, Image):
                        if item.number > due:
                            source.lost(item.number - due)
                        status = None if item.certain else "uncertain"
                        source.push(item.array, timestamp=item.time, status=status)
                        due = item.number + 1
                    item = stream.take()
            except thalweg.RunOver:
                pass
            return source.finish() | {"unused": stream.unused}


def command(
    module: str, about: str, where: tuple[str, str], record: Callable[..., dict[str, Any]], images: str
) -> None:
    """Runs such a module as a program. `where`: what its first argument is called, and what it is."""
    arguments = argparse.ArgumentParser(prog=f"python -m {module}", description=about)
    arguments.add_argument("where", metavar=where[0], help=where[1])
    arguments.add_argument("builder", nargs="+", help="a builder's address, such as tcp:127.0.0.1:7700")
    arguments.add_argument("--id", required=True, help='the source\'s id, such as "1.0"')
    arguments.add_argument("--name", help="the source's name; the default is the stream's")
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
    unused = f", {report['unused']} repeated or from before the first" if report["unused"] else ""
    print(f"{options.where}: {report['accepted'] - lost} {images}, {lost} lost before{unused}")
