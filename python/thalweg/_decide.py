"""Trigger decisions by a Python function."""

from __future__ import annotations

import sys
import time
import traceback
from typing import TYPE_CHECKING

from thalweg._thalweg import _Questions

if TYPE_CHECKING:
    from collections.abc import Callable

    from thalweg._thalweg import Event

# Interval between two counts of repeated exceptions, in seconds.
_COUNT_INTERVAL = 5.0
# Number of places that are distinguished; further ones share a count.
_MAX_PLACES = 20


class _Failures:
    """Exceptions of a function: the traceback of the first one of each place, and the number of the others."""

    def __init__(self) -> None:
        self._places: dict[object, _Repeated] = {}

    def record(self, error: Exception) -> None:
        """Prints an exception that is the first of its place, and counts any other."""
        trace = traceback.extract_tb(error.__traceback__)
        place: object = (type(error), *((frame.filename, frame.lineno) for frame in trace))
        if place not in self._places and len(self._places) >= _MAX_PLACES:
            place = None
        if known := self._places.get(place):
            known.more += 1
            known.last = error
            if time.monotonic() - known.since >= _COUNT_INTERVAL:
                known.print_count()
            return
        self._places[place] = _Repeated()
        traceback.print_exception(error)

    def print_count(self) -> None:
        """Prints the number of repeated exceptions, for each place."""
        for repeated in self._places.values():
            repeated.print_count()


class _Repeated:
    """Count of the exceptions of one place after the first one, which was printed."""

    def __init__(self) -> None:
        self.since = time.monotonic()
        self.more = 0
        self.last: Exception | None = None

    def print_count(self) -> None:
        """Prints the number of exceptions since the last time."""
        if self.last is not None:
            seconds = max(1, round(time.monotonic() - self.since))
            name = type(self.last).__name__
            count = f"{self.more} more like this in the last {seconds} s"
            print(f"{name}: {self.last} ({count}; the first is above)", file=sys.stderr, flush=True)
        self.since, self.more, self.last = time.monotonic(), 0, None


def decide(accept: Callable[[Event], object], /) -> None:
    """Decides for a builder which events are recorded: those for which `accept(event)` is true.

    To be called by a program that a topology names as a trigger level, such as
    `filter = { program = ["python3", "keep.py"] }`. The builder starts the program. For example, `keep.py`:

        import thalweg

        def keep(event):
            return event["camera"].array.max() > 40

        thalweg.decide(keep)

    `accept` is called with a thalweg.Event for each event: of all sources for `filter`, of the level's `sources` for
    `level2`. `event.features` has the results of fits. If `accept` takes longer than the level's `deadline`, or raises
    an exception, the event is undecided: the builder applies the level's `otherwise`, and counts the event in the
    report. The first exception of each
    place is printed, and the number of the others.

    Put slow preparations, such as loading a model, before the call of `decide`: the run waits for it, for at most 30 s.

    Returns at the end of the run. Raises RunError if the program was not started by a builder.
    """
    questions = _Questions()
    failures = _Failures()
    for event in questions:
        verdict: bool | None = None
        try:
            verdict = bool(accept(event))
        except Exception as error:
            failures.record(error)
        questions.answer(event.id, verdict)
    failures.print_count()
