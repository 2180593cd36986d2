"""A trigger level's decision, by a function."""

from __future__ import annotations

import traceback
from typing import TYPE_CHECKING

from thalweg._thalweg import _Questions

if TYPE_CHECKING:
    from collections.abc import Callable

    from thalweg._thalweg import Event

# Of how many events it is shown how the function failed.
_SHOWN = 10


def decide(accept: Callable[[Event], object], /) -> None:
    """Decides for a builder which events are kept: those of which `accept` says something true.

    A topology names the program, `filter = { program = ["python3", "keep.py"] }`, and the builder starts it:

        import thalweg

        def keep(event):
            return event["camera"].array.max() > 40

        thalweg.decide(keep)

    The function is given events as readers are, with the fragments that came: at level 2 those of its sources.
    `event.features` are the numbers of fits. What takes longer than the level's `deadline`, and what raises an
    exception, gets the answer of `otherwise`, and is counted as undecided in the report. The first few exceptions are
    printed. At the end of the run `decide` returns.

    What it does once, such as loading a model, it does before `decide`: the run waits for it, for at most 30 s.

    Raises RunError where no builder has started this program.
    """
    questions = _Questions()
    failed = 0
    for event in questions:
        try:
            verdict: bool | None = bool(accept(event))
        except Exception:
            failed += 1
            verdict = None
            if failed <= _SHOWN:
                traceback.print_exc()
        questions.answer(event.id, verdict)
