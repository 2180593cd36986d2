"""A trigger level's decision, by a function."""

from __future__ import annotations

import sys
import time
import traceback
from typing import TYPE_CHECKING

from thalweg._thalweg import _Questions

if TYPE_CHECKING:
    from collections.abc import Callable

    from thalweg._thalweg import Event

# After how many seconds what failed again is counted out.
_COUNTED_AFTER = 5.0
# How many places of a function are told apart.
_MAX_PLACES = 20


class _Failures:
    """Exceptions of a function: a traceback for the first of each place, and for the others how many there were."""

    def __init__(self) -> None:
        self._places: dict[object, _Repeated] = {}

    def came(self, error: Exception) -> None:
        """Shows an exception that is the first of its place, and counts it otherwise."""
        trace = traceback.extract_tb(error.__traceback__)
        place: object = (type(error), *((frame.filename, frame.lineno) for frame in trace))
        if place not in self._places and len(self._places) >= _MAX_PLACES:
            place = None
        if known := self._places.get(place):
            known.more += 1
            known.last = error
            if time.monotonic() - known.since >= _COUNTED_AFTER:
                known.show()
            return
        self._places[place] = _Repeated()
        traceback.print_exception(error)

    def show(self) -> None:
        """Shows how many more there were, of each place."""
        for repeated in self._places.values():
            repeated.show()


class _Repeated:
    """Exceptions of one place after the first, which was shown."""

    def __init__(self) -> None:
        self.since = time.monotonic()
        self.more = 0
        self.last: Exception | None = None

    def show(self) -> None:
        """Shows how many there were since it was shown before."""
        if self.last is not None:
            seconds = max(1, round(time.monotonic() - self.since))
            name = type(self.last).__name__
            count = f"{self.more} more like this in the last {seconds} s"
            print(f"{name}: {self.last} ({count}; the first is above)", file=sys.stderr, flush=True)
        self.since, self.more, self.last = time.monotonic(), 0, None


def decide(accept: Callable[[Event], object], /) -> None:
    """Decides for a builder which events are kept: those of which `accept` says something true.

    A topology names the program, `filter = { program = ["python3", "keep.py"] }`, and the builder starts it:

        import thalweg

        def keep(event):
            return event["camera"].array.max() > 40

        thalweg.decide(keep)

    The function is given events as readers are, with the fragments that came: at level 2 those of its sources.
    `event.features` are the numbers of fits. What takes longer than the level's `deadline`, and what raises an
    exception, gets the answer of `otherwise`, and is counted as undecided in the report. The first exception of each
    place is printed, and how many more there were. At the end of the run `decide` returns.

    What it does once, such as loading a model, it does before `decide`: the run waits for it, for at most 30 s.

    Raises RunError where no builder has started this program.
    """
    questions = _Questions()
    failures = _Failures()
    for event in questions:
        verdict: bool | None = None
        try:
            verdict = bool(accept(event))
        except Exception as error:
            failures.came(error)
        questions.answer(event.id, verdict)
    failures.show()
