"""Trigger decisions by a Python function."""

from __future__ import annotations

import traceback
from typing import TYPE_CHECKING

from thalweg._thalweg import _Questions

if TYPE_CHECKING:
    from collections.abc import Callable

    from thalweg._thalweg import Event

# Number of exceptions of the function that are printed.
_MAX_TRACEBACKS = 10


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
    report. The first 10 exceptions are printed.

    Put slow preparations, such as loading a model, before the call of `decide`: the run waits for it, for at most 30 s.

    Returns at the end of the run. Raises RunError if the program was not started by a builder.
    """
    questions = _Questions()
    failed = 0
    for event in questions:
        try:
            verdict: bool | None = bool(accept(event))
        except Exception:
            failed += 1
            verdict = None
            if failed <= _MAX_TRACEBACKS:
                traceback.print_exc()
        questions.answer(event.id, verdict)
