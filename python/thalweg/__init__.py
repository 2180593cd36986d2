"""Read the runs that Thalweg records, event by event, and push data into one as a source.

    >>> import thalweg
    >>> run = thalweg.open("demo/run-000001")
    >>> for event in run:
    ...     for source, fragment in event.items():
    ...         print(event.id, source, fragment.array.mean())

Reading copies nothing: arrays look into the run's files, and keep them mapped for as long as they live. A run may be
on a server (``thalweg.open("http://daq-0:8042/runs/42")``), and ``thalweg.dask`` reads it in parallel. A program that
has a device of its own pushes what it reads from it:

    >>> camera = thalweg.Source("tcp:127.0.0.1:7700", id="2.0", dtype="uint8", shape=(800, 800))
    >>> with camera, contextlib.suppress(thalweg.RunOver):
    ...     while True:
    ...         camera.push(take_picture())

Times are TAI nanoseconds since 1970.
"""

from thalweg._thalweg import Event, Fragment, Run, RunError, RunOver, Source, __version__, open

__all__ = ["Event", "Fragment", "Run", "RunError", "RunOver", "Source", "__version__", "open"]
