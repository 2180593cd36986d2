"""Read the runs that Thalweg records, event by event, and push data into one as a source.

    >>> import thalweg
    >>> run = thalweg.open("demo/run-000001")
    >>> for event in run:
    ...     for source, fragment in event.items():
    ...         print(event.id, source, fragment.array.mean())

Nothing is copied: arrays look into the run's files, and keep them mapped for as long as they live. Times are TAI
nanoseconds since 1970.
"""

from thalweg._thalweg import Event, Fragment, Run, RunError, __version__, open

__all__ = ["Event", "Fragment", "Run", "RunError", "__version__", "open"]
