"""A source that takes what EPICS publishes: NTNDArray, as areaDetector's pvAccess plugin does, waveforms and scalars.

    python -m thalweg.epics 13SIM1:Pva1:Image tcp:127.0.0.1:7700 --id 1.0

Each array is one fragment. Events are numbered by `uniqueId`, the counter of the camera's driver: a number
that is left out is an array that was lost on the way, `lost_in_device` in the run's ledger. Arrays are dated by their
`dataTimeStamp`, and as they come where that is not set. Arrays that overtake each other are put in order.

When the server goes away and counts anew, numbers go on where they were. What was lost meanwhile is not known: what
follows is `uncertain`, and the run is INCOMPLETE. So it is with arrays without `uniqueId`: all that come are in the
run, in their order.

What was published before the run began is not of it.

Waveforms (NTScalarArray) and scalars (NTScalar), too, have no numbers: each update is a fragment.

Arrays of another shape or type than the first one end the source. Those that areaDetector's codec plugin compressed
(lz4, bslz4, blosc, jpeg) are decompressed. The attributes of the first array are in the source's description, in
`run.json`. Needs p4p, and lz4, bitshuffle and imagecodecs for compressed arrays: pip install thalweg[epics].
"""

from __future__ import annotations

import queue
import warnings
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from thalweg import _codecs, _published
from thalweg._published import LOOK, TAI_UTC, Image, Order

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Sequence

__all__ = ["Image", "images", "record"]

# uniqueId is an int.
ID_BITS = 32
# Arrays that wait here, and in the server. Of more, some are lost, and counted.
WAITING = 64


class _Gone(NamedTuple):
    """The server went away."""


# The types of numbers of pvData, as they are numbered (`ScalarType`), from boolean on.
SCALARS = ["bool", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f4", "f8"]
# Bytes of an array.
LONGEST = 1 << 30


def _time(stamp: Any) -> int | None:
    """A time stamp in nanoseconds of TAI; None where it is not set."""
    return (stamp.secondsPastEpoch + TAI_UTC) * 10**9 + stamp.nanoseconds if stamp.secondsPastEpoch else None


def _decoded(value: Any, shape: list[int]) -> np.ndarray[Any, Any]:
    """The array of an NTNDArray, of this shape, decompressed."""
    data = np.asarray(value.value)
    if codec := value.codec.name:
        kind = value.codec.parameters
        if not isinstance(kind, int) or not 0 < kind < len(SCALARS):
            msg = f"its arrays are compressed ({codec}), and their type is not stated"
            raise ValueError(msg)
        pixel, count = np.dtype(SCALARS[kind]), int(np.prod(shape, dtype=object))
        if not 0 < count * pixel.itemsize <= LONGEST:
            msg = f"arrays of {shape}: there is no such thing"
            raise ValueError(msg)
        data = _codecs.area_detector(codec, data.tobytes(), count, pixel)
    return data.reshape(shape)


def _taken(value: Any) -> tuple[int | None, int | None, np.ndarray[Any, Any]]:
    """The number, time and array of a normative NTNDArray, NTScalarArray or NTScalar (EPICS 7 Normative Types)."""
    kind = value.getID().partition(":")[2]
    if kind.startswith("nt/NTNDArray:"):
        # x comes first there, and last in an array.
        shape = [dimension.size for dimension in reversed(value.dimension)]
        return value.uniqueId, _time(value.dataTimeStamp), _decoded(value, shape)
    if not kind.startswith(("nt/NTScalarArray:", "nt/NTScalar:")):
        msg = f"it publishes {value.getID()}: NTNDArray, NTScalarArray and NTScalar can be taken"
        raise ValueError(msg)
    array = np.atleast_1d(np.asarray(value.value))
    if array.dtype.kind not in "iuf":
        msg = f"its values are {array.dtype}, and no numbers"
        raise ValueError(msg)
    return None, _time(value.timeStamp), array


def _attributes(value: Any) -> dict[str, Any]:
    """What areaDetector says of an array beside its pixels: numbers and text, by name."""
    found = {}
    for attribute in value.get("attribute") or []:
        content = attribute.value
        if isinstance(content, (bool, int, float, str)):
            found[str(attribute.name)] = content
    return found


class _Stream:
    """The arrays of a PV, from the last one that was published on."""

    def __init__(self, pv: str) -> None:
        """Begins to listen."""
        try:
            from p4p.client.thread import Context, Disconnected
        except ImportError as error:
            msg = "thalweg.epics needs p4p: pip install thalweg[epics]"
            raise ImportError(msg) from error
        self.name = f"{pv}: no array"
        self._pv = pv
        self._arrived: queue.Queue[Any] = queue.Queue(WAITING)
        self._order = Order(ID_BITS)
        # The number and time of the last array, and whether its server was connected since.
        self._last: tuple[int, int | None] | None = None
        self._connects, self._numbered = True, True
        # What is said of the first array beside its pixels.
        self.attributes: dict[str, Any] = {}

        def came(value: Any) -> None:
            item = _Gone() if isinstance(value, Disconnected) else value
            try:
                self._arrived.put_nowait(item)
            except queue.Full:
                # Its number will be missing.
                return

        self._context = Context("pva", nt=False)
        request = f"record[queueSize={WAITING}]field()"
        self._subscription = self._context.monitor(pv, came, request=request, notify_disconnect=True)

    def take(self) -> Image | None:
        """Returns the next array."""
        while (image := self._order.take()) is None:
            try:
                value = self._arrived.get(timeout=LOOK)
            except queue.Empty:
                return self._order.take(idle=True)
            self._came(value)
        return image

    def _came(self, value: Any) -> None:
        if isinstance(value, _Gone):
            self._connects = True
            return
        if isinstance(value, BaseException):
            raise value
        # A server has no array before the first one.
        if value.value is None:
            return
        number, time, array = _taken(value)
        if number is None:
            number = 0
            self._warn()
        if self._last is None:
            self.attributes = _attributes(value)
        # Whoever is connected anew is told once more what was the last.
        is_told_again, self._connects = self._connects and (number, time) == self._last, False
        if is_told_again:
            return
        if self._last is not None and number == self._last[0]:
            self._warn()
        self._last = number, time
        self._order.came(number, time, array)

    def _warn(self) -> None:
        if self._numbered:
            self._numbered = False
            warnings.warn(f"{self._pv}: its arrays have no numbers: what is lost of them is not known", stacklevel=3)

    def begin(self) -> bool:
        """What was published before the run is not of it."""
        while True:
            try:
                self._came(self._arrived.get_nowait())
            except queue.Empty:
                break
        self._order = Order(ID_BITS)
        return False

    def close(self) -> None:
        """Listens no more."""
        self._subscription.close()
        self._context.close()


def images(pv: str, *, timeout: float = 10.0, over: Callable[[], bool] = lambda: False) -> Generator[Image, None, None]:
    """All arrays of a PV, from the last one that was published on.

    The first one comes within `timeout` seconds, or TimeoutError is raised.

    Numbers never go back: where a server begins again, they go on, and are not `certain` any more. While nothing comes,
    `over` is asked now and then whether to end.
    """
    return _published.images(_Stream(pv), timeout, over)


def record(
    pv: str, builders: str | Sequence[str], *, id: str, name: str | None = None, timeout: float = 10.0
) -> dict[str, Any]:
    """Gives a PV's arrays to the builders, to the end of their run, and returns what the source counted."""
    stream = _Stream(pv)
    return _published.record(
        stream,
        builders,
        id=id,
        name=name,
        description=lambda: {"pv": pv} | ({"attributes": stream.attributes} if stream.attributes else {}),
        timeout=timeout,
    )


if __name__ == "__main__":
    _published.command(
        "thalweg.epics",
        "Records a PV of EPICS: NTNDArray, NTScalarArray or NTScalar",
        ("pv", "the PV, such as 13SIM1:Pva1:Image"),
        record,
        "arrays",
    )
