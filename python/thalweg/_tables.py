"""Events as tables: implementation of `to_dataframe`, `features` and `to_xarray`."""

from __future__ import annotations

import json
import warnings
from typing import TYPE_CHECKING, Any

import numpy as np

from thalweg._thalweg import DamageWarning, RunError

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterator

    import pandas as pd
    import xarray as xr
    from numpy.typing import NDArray

    from thalweg import Event, Events, Fragment, Run


_COLUMNS = ("event", "source", "name", "time_tai", "sequence", "window", "nbytes", "payload_type", "status")
_TYPES: dict[str, Any] = {"event": np.uint64, "time_tai": "datetime64[ns]", "sequence": np.uint32, "window": np.uint32}


def dataframe(events: Events, run: Run, /, **columns: Callable[[NDArray[Any]], Any]) -> pd.DataFrame:
    """Implements `thalweg.Events.to_dataframe`."""
    try:
        import pandas as pd
    except ImportError as error:
        msg = "to_dataframe needs pandas: pip install thalweg[pandas]"
        raise ImportError(msg) from error

    names = run.names
    table: dict[str, list[Any]] = {name: [] for name in _COLUMNS}
    if taken := [name for name in columns if name in table]:
        msg = f"{', '.join(taken)}: the table already has a column of that name; choose another one"
        raise ValueError(msg)
    if wrong := [name for name, function in columns.items() if not callable(function)]:
        msg = f"{', '.join(wrong)}: the value must be a function of a fragment's array, such as numpy.mean"
        raise TypeError(msg)
    table |= {name: [] for name in columns}
    for event in events:
        for source, fragment in event.items():
            about: list[Any] = [event.id, source, names[source], fragment.time_tai, fragment.sequence, fragment.window]
            about += [fragment.nbytes, fragment.payload_type, " ".join(fragment.status)]
            for name, value in zip(_COLUMNS, about, strict=True):
                table[name].append(value)
            for name, function in columns.items():
                table[name].append(function(fragment.array))
    typed = {name: np.array(column, _TYPES[name]) if name in _TYPES else column for name, column in table.items()}
    frame: pd.DataFrame = pd.DataFrame(typed)
    frame.attrs = _attributes(run)
    return frame


def _attributes(run: Run) -> dict[Hashable | None, Any]:
    """What is known of the run as a whole, and its metadata by their own names. Text and numbers stay what they are, as
    every file format takes them; anything else is JSON."""
    attributes: dict[Hashable | None, Any] = {"run": run.number, "path": run.path, "state": run.state}
    if run.comment:
        attributes["comment"] = run.comment
    for key, value in run.metadata.items():
        plain = isinstance(value, (str, int, float)) and not isinstance(value, bool)
        attributes.setdefault(key, value if plain else json.dumps(value))
    return attributes


def features(run: Run, /) -> pd.DataFrame:
    """Implements `thalweg.Run.features`."""
    try:
        import pandas as pd
    except ImportError as error:
        msg = "features needs pandas: pip install thalweg[pandas]"
        raise ImportError(msg) from error

    fits = {source["id"]: source for source in run.info["sources"] if source["description"].get("kind") == "fit"}
    found = ((event.id, event.features) for event in run.events(sources=fits)) if fits else ()
    rows = {number: features for number, features in found if features}
    index = pd.Index(list(rows), dtype="uint64", name="event")
    columns = [f"{fit['name']}.{name}" for fit in fits.values() for name in fit["description"]["metadata"]["features"]]
    frame: pd.DataFrame = pd.DataFrame(list(rows.values()), index=index, columns=columns)
    frame.attrs = _attributes(run)
    return frame


def dataset(events: Events, run: Run, missing: str) -> xr.Dataset:
    """Implements `thalweg.Events.to_xarray`."""
    if missing not in ("raise", "drop"):
        msg = f"missing={missing!r}: use 'raise' to stop at a missing fragment, or 'drop' to leave out its event"
        raise ValueError(msg)
    try:
        import xarray as xr
    except ImportError as error:
        msg = "to_xarray needs xarray: pip install thalweg[xarray]"
        raise ImportError(msg) from error

    sources, names = events.sources, run.names
    arrays: dict[str, NDArray[Any]] = {}
    dims: dict[str, tuple[str, ...]] = {}
    ids: list[int] = []
    times: list[np.datetime64 | None] = []
    for event in _whole(events, missing):
        for source, fragment in event.items():
            array = fragment.array
            if source not in arrays:
                arrays[source] = np.empty((len(events), *array.shape), array.dtype)
                dims[source] = _dims(fragment)
            _check(arrays[source][0], array, event, source)
            arrays[source][len(ids)] = array
        ids.append(event.id)
        times.append(event.time_tai)
    sizes: dict[str, int] = {}
    variables = {}
    for source in sources if ids else []:
        array, name = arrays[source][: len(ids)], _name(source, names)
        # A dimension whose length differs from that of another source is renamed.
        own = [
            dim if sizes.setdefault(dim, size) == size else f"{dim}_{name}"
            for dim, size in zip(dims[source], array.shape[1:], strict=True)
        ]
        variables[name] = (("event", *own), array, {"source": source})
    coordinates = {
        "event": np.array(ids, np.uint64),
        "time_tai": ("event", np.array(times, "datetime64[ns]"), {"scale": "TAI"}),
    }
    return xr.Dataset(variables, coordinates, _attributes(run))


def _whole(events: Events, missing: str) -> Iterator[Event]:
    """Yields the complete events. Raises ValueError at an incomplete one, unless `missing` is "drop"."""
    for event in _readable(events) if missing == "raise" else events:
        if not event.missing:
            yield event
        elif missing == "raise":
            lacks = ", ".join(f"{source} ({why})" for source, why in event.missing.items())
            msg = f"event {event.id} has no fragment of {lacks}: to_xarray(missing='drop') leaves out such events"
            raise ValueError(msg)


def _readable(events: Events) -> Iterator[Event]:
    """Yields all events. Raises RunError at one that cannot be read."""
    following = iter(events)
    while True:
        with warnings.catch_warnings():
            warnings.simplefilter("error", DamageWarning)
            try:
                event = next(following, None)
            except DamageWarning as damage:
                msg = f"{damage}; to_xarray(missing='drop') leaves out such events"
                raise RunError(msg) from None
        if event is None:
            return
        yield event


def _dims(fragment: Fragment) -> tuple[str, ...]:
    """Returns the names of the dimensions of a fragment's array."""
    kind, axes = fragment.payload_type.partition("-")[0], fragment.array.ndim
    named = {("samples", 2): ("sample", "channel"), ("image", 2): ("row", "column")}
    if fragment.array.ndim == 1:
        return ("byte",) if fragment.array.dtype == np.uint8 else ("sample",)
    return named.get((kind, axes)) or tuple(f"axis_{axis}" for axis in range(axes))


def _check(first: NDArray[Any], array: NDArray[Any], event: Event, source: str) -> None:
    """Raises ValueError if an array differs from the first one in shape or dtype."""
    if (array.shape, array.dtype) != (first.shape, first.dtype):
        msg = (
            f"event {event.id}: source {source} has shape {array.shape} of {array.dtype}, not {first.shape} of "
            f"{first.dtype} as in the events before: select events or sources of one shape, or use to_dataframe"
        )
        raise ValueError(msg)


def _name(source: str, names: dict[str, str]) -> str:
    """Returns the name of a source, or its id if the name is empty, not unique, or that of a coordinate."""
    name = names[source]
    return name if name and list(names.values()).count(name) == 1 and name not in ("event", "time_tai") else source
