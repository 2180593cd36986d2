"""Sources for data that other software publishes: common part of thalweg.epics and thalweg.dectris."""

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

# TAI - UTC in seconds since 2017 (IERS Bulletin C).
TAI_UTC = 37
# Longest time in seconds for which `Stream.take` waits for an image, and so the interval at which callers check whether
# the run has ended.
POLL_SECONDS = 0.5
# Largest number of later images that may arrive before an earlier one; an image that is missing for longer is lost.
MAX_REORDERED_IMAGES = 16


class ImageFormat(NamedTuple):
    """Type and shape of all images of a series, known before the first image arrives."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]


class Image(NamedTuple):
    """Published array.

    - `number`: event number, from 0 on. Numbers increase; a gap is an array that was lost.
    - `time`: time stamp in nanoseconds of TAI since 1970, or None if the publisher sent none.
    - `array`: the data.
    - `certain`: False if `number` is a guess, for example because the publisher's counter was restarted.
    """

    number: int
    time: int | None
    array: np.ndarray[Any, Any]
    certain: bool = True


class Stream(Protocol):
    """Connection to one publisher, such as a detector or a PV."""

    # Text for messages: the address, and what is missing if no image arrives.
    name: str

    @property
    def unused(self) -> int:
        """Number of arrays that were left out of the run: duplicates, and arrays older than the first one."""
        ...

    def take(self) -> ImageFormat | Image | None:
        """Returns the next image in order, or the format of the images that follow. None after POLL_SECONDS."""

    def begin_run(self) -> bool:
        """Notes that the run has begun. Returns whether images taken before belong to it.

        Returns False for a publisher that runs independently of the run.
        """
        ...

    def close(self) -> None:
        """Closes the connection."""


@dataclass(frozen=True)
class Newest:
    """Number, count and time of the image with the highest number so far."""

    number: int
    count: int
    time: int | None


class ImageQueue:
    """Queue that sorts images by the publisher's counter and numbers them. Numbers only increase."""

    def __init__(self, bits: int) -> None:
        """Creates an empty queue for a counter of `bits` bits."""
        self._bits = bits
        self._counter = _FrameCounter(bits)
        self._waiting: dict[int, Image] = {}
        # First number that is still expected.
        self.next_number = 0
        self.newest: Newest | None = None
        # False as soon as one number is a guess.
        self._is_certain = True

    def _wrap_count(self, count: int) -> int:
        return count & ((1 << self._bits) - 1)

    @property
    def end_number(self) -> int:
        """Number after the highest of all images so far."""
        return max(self._waiting, default=self.next_number - 1) + 1

    def begin_at_count(self, count: int, number: int, *, certain: bool) -> None:
        """Assigns a number to a count, independently of the counts before."""
        self._counter.begin_at_count(self._wrap_count(count), number, certain)

    def add(self, count: int, time: int | None, array: np.ndarray[Any, Any], *, certain: bool = True) -> None:
        """Adds an image. `certain` is False if its count may not continue those before; then its number is a guess."""
        number = self._counter.accept_count(self._wrap_count(count), self.next_number)
        if number is None or number in self._waiting or self._is_counter_behind(number, time):
            self.add_after_restart(count, time, array)
            return
        if not certain or self._is_counter_ahead(number, time):
            self._counter.begin_at_count(self._wrap_count(count), number, False)
        self._insert(number, count, time, array)

    def add_after_restart(self, count: int, time: int | None, array: np.ndarray[Any, Any], *, lost: int = 0) -> None:
        """Adds an image whose count does not continue those before, because the counter was restarted.

        Its number is after those of all other images and of `lost` further ones. All numbers from here on are guesses.
        """
        number = self._counter.restart_at_count(self._wrap_count(count), self.end_number + lost)
        self._insert(number, count, time, array)

    def _nanoseconds_after_newest(self, time: int | None) -> int | None:
        """Returns the time since the newest image in nanoseconds, or None if one of the two has no time stamp."""
        newest = self.newest.time if self.newest else None
        return None if time is None or newest is None else time - newest

    def _is_counter_behind(self, number: int, time: int | None) -> bool:
        """Returns whether an image with a lower number than the newest was taken after it, so is not a late image."""
        elapsed = self._nanoseconds_after_newest(time)
        return self.newest is not None and number < self.newest.number and elapsed is not None and elapsed >= 0

    def _is_counter_ahead(self, number: int, time: int | None) -> bool:
        """Returns whether an image whose number is ahead, with a gap, was taken before the newest image."""
        elapsed = self._nanoseconds_after_newest(time)
        return self.newest is not None and number > self.newest.number + 1 and elapsed is not None and elapsed < 0

    def _insert(self, number: int, count: int, time: int | None, array: np.ndarray[Any, Any]) -> None:
        # After the first guess all numbers are guesses, also those of late images with lower numbers.
        self._is_certain = self._is_certain and self._counter.is_certain(number)
        self._waiting[number] = Image(number, time, array, self._is_certain)
        if self.newest is None or number > self.newest.number:
            self.newest = Newest(number, count, time)

    def take(self, *, idle: bool = False) -> Image | None:
        """Returns the next image, or None.

        An image whose number has a gap before it is held back until MAX_REORDERED_IMAGES others wait, unless `idle`
        states that no image has arrived for some time.
        """
        first = min(self._waiting, default=None)
        if first is None or not (first == self.next_number or idle or len(self._waiting) > MAX_REORDERED_IMAGES):
            return None
        self.next_number = first + 1
        return self._waiting.pop(first)


def images(stream: Stream, timeout: float, over: Callable[[], bool]) -> Generator[Image, None, None]:
    """Yields the images of a stream until `over` returns true, which is called whenever no image has arrived.

    Raises TimeoutError if the first image does not arrive within `timeout` seconds.
    """
    begun, deadline = False, monotonic() + timeout
    with closing(stream):
        while True:
            image = stream.take()
            if isinstance(image, Image):
                begun = True
                yield image
            elif over():
                return
            elif not begun and monotonic() > deadline:
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
    """Pushes the images of a stream into a run until the run ends.

    `description` is called when the first image, or its format, has arrived. Returns the report of
    thalweg.Source.finish with the additional key `unused`, the number of arrays that were left out (duplicates, and
    arrays older than the first one). Raises TimeoutError if no image arrives within `timeout` seconds.
    """
    with closing(stream):
        deadline = monotonic() + timeout
        while (first := stream.take()) is None:
            if monotonic() > deadline:
                msg = f"{stream.name} within {timeout:g} s"
                raise TimeoutError(msg)
        form = ImageFormat(first.array.dtype, first.array.shape) if isinstance(first, Image) else first
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
        # Waits for the run to begin, which it does when all of its sources are connected.
        with source:
            item: ImageFormat | Image | None = first if stream.begin_run() else None
            # Number of the next event.
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
    """Runs a module that has a function `record` as a program.

    `where` is the name of its first argument and the help for it, `images` the plural for what it records.
    """
    arguments = argparse.ArgumentParser(prog=f"python -m {module}", description=about)
    arguments.add_argument("where", metavar=where[0], help=where[1])
    arguments.add_argument("builder", nargs="+", help="a builder's address, such as tcp:127.0.0.1:7700")
    arguments.add_argument("--id", required=True, help='the source\'s id, such as "1.0"')
    arguments.add_argument("--name", help=f"the source's name (default: the {where[0]})")
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
    unused = f", {report['unused']} left out (duplicates, or older than the first)" if report["unused"] else ""
    print(f"{options.where}: {report['accepted'] - lost} {images} recorded, {lost} lost before they arrived{unused}")
