"""Read runs recorded by Thalweg as NumPy arrays, and push data into a run.

- A *run* is the data recorded from a start to a stop: a directory, or a URL on a server (`thalweg serve`).
- A *source* is a device that delivers data: a digitizer, a camera, a recording that is replayed. It has an id, such as
  "1.0", and a name.
- An *event* is the data of all sources for one trigger or time frame. It has a number.
- A *fragment* is the data of one source for one event: an array, a time stamp, and a status.

To get a run to read, record one with simulated data; no device is needed:

    $ thalweg demo --sources 2 --size 10KiB --rate 1000 --duration 1s --out demo

Then:

>>> import numpy, thalweg
>>> run = thalweg.open("demo/run-000001")
>>> run.state, run.sources
('COMPLETE', ['1.0', '1.1'])
>>> for event in run:
...     for source, fragment in event.items():
...         mean = fragment.array.mean()  # a NumPy array: here (samples, channels), of int16

A run is a sequence of events: `len(run)`, `run[0]`, `run[-1]`, `run[10:20]`. These are positions in the run. Event
*numbers* may have gaps: `run.event(7)` is the event with number 7, and `run.events("7..10")` are those with the numbers
7, 8 and 9:

>>> event = run.event(7)
>>> fragment = event["1.0"]
>>> fragment.array.shape, fragment.status
((5120, 1), ['simulated'])

An event contains the fragments that were recorded. Sources without a fragment are in `missing`, with the reason:

>>> event.complete, event.missing
(True, {})

Tables, for pandas and xarray:

>>> table = run.to_dataframe(mean=numpy.mean)  # one row per fragment, with the mean of its array
>>> samples = run.to_xarray()["model-adc-0"]  # (event, sample, channel)

Time stamps are TAI: an integer in nanoseconds since 1970 (`fragment.timestamp`), or datetime64[ns]
(`fragment.time_tai`). `fragment.time_utc` is the same time in UTC, which is 37 s behind TAI since 2017.

Arrays are read-only views of the run's files, without a copy; a file stays mapped into memory as long as an array of it
exists.

More:

- `thalweg.Source`: push data of your own device into a run.
- `thalweg.dask`: read a run in parallel, on one machine or a cluster.
- `thalweg.image`: fit beam profiles and interferometer fringes in camera images.
- `thalweg.decide`: select with a Python function which events are recorded.
- `thalweg.control`: command runs of a service; `thalweg.ophyd`: take them in Bluesky plans.
- `thalweg.epics`, `thalweg.dectris`: record an EPICS PV or a Dectris detector.
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
