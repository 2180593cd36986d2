"""Read the runs that Thalweg records, event by event, and push data into one as a source.

- A *run* is what was recorded from its beginning to its end: a directory, or a URL on a server (`thalweg serve`).
- A *source* is what data comes from: a digitizer, a camera, a recording that is played. It has an id, such as "1.0",
  and a name.
- A *fragment* is what one source says of one event: an array, a time, and a status.
- An *event* has one fragment of each source, of the same trigger or time frame, and a number.

To have a run to look at, record one; no device is needed:

    $ thalweg demo --sources 2 --size 10KiB --rate 1000 --duration 1s --out demo

Then:

>>> import numpy, thalweg
>>> run = thalweg.open("demo/run-000001")
>>> run.state, run.sources
('COMPLETE', ['1.0', '1.1'])
>>> for event in run:
...     for source, fragment in event.items():
...         mean = fragment.array.mean()  # a NumPy array: here (samples, channels), of int16

A run is a sequence: `len(run)`, `run[0]`, `run[-1]`, `run[10:20]`. Event *numbers* may have gaps, so the event of a
number is `run.event(7)`, and a range of numbers `run.events("7..10")`:

>>> event = run.event(7)
>>> fragment = event["1.0"]
>>> fragment.array.shape, fragment.status
((5120, 1), ['simulated'])

An event has the fragments that came. What did not come is in `missing`, with the reason:

>>> event.complete, event.missing
(True, {})

Tables, for pandas and xarray:

>>> table = run.to_dataframe(mean=numpy.mean)  # a row for each fragment
>>> samples = run.to_xarray()["model-adc-0"]  # (event, sample, channel)

Times are TAI, in nanoseconds since 1970 (`fragment.timestamp`) and as datetime64[ns] (`fragment.time_tai`); UTC, which
is 37 s behind, is `fragment.time_utc`.

Reading copies nothing: arrays look into the run's files, and keep them mapped for as long as they live. `thalweg.dask`
reads a run in parallel. A program that has a device of its own pushes what it reads from it; `help(thalweg.Source)`
says how. `thalweg.image` says what a camera's frame shows of a beam. `thalweg.decide` lets a function say which events
are kept.
"""

from thalweg import image
from thalweg._decide import decide
from thalweg._thalweg import (
    DamageWarning,
    Event,
    Events,
    Fragment,
    Run,
    RunError,
    RunOver,
    Source,
    __version__,
    open,
)

__all__ = [
    "DamageWarning",
    "Event",
    "Events",
    "Fragment",
    "Run",
    "RunError",
    "RunOver",
    "Source",
    "__version__",
    "decide",
    "image",
    "open",
]
