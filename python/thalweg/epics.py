"""A source that takes what EPICS publishes: NTNDArray, as areaDetector's pvAccess plugin does, waveforms and scalars.

    python -m thalweg.epics 13SIM1:Pva1:Image tcp:127.0.0.1:7700 --id 1.0

Each array is one fragment. Events are numbered by `uniqueId`, the counter of the camera's driver: a number
that is left out is an array that was lost on the way, `lost_in_device` in the run's ledger. Arrays are dated by their
`dataTimeStamp`, and as they come where that is not set. Arrays that overtake each other are put in order.

When the server goes away or counts anew, it is not known how many arrays it had meanwhile: numbers go on, and what
follows is `uncertain`, and the run is INCOMPLETE; not so where the server's last array comes once more. So it is with
arrays without `uniqueId`: all that come are in the run, in their order.

What was published before the run began is not of it. An array that comes once more, by its number and time, is left
out, as is one that the first of the run has overtaken: `unused` in the report counts them.

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
from thalweg._published import LOOK, REORDERED, TAI_UTC, Image, Order

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Sequence

__all__ = ["Image", "images", "record"]

# uniqueId is an int.
ID_BITS = 32
MASK = (1 << ID_BITS) - 1
# So many of the last arrays are known by their counts and times when they come once more.
RECENT = 64
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
            msg = f"its arrays are compressed ({codec}), but their type is not stated"
            raise ValueError(msg)
        pixel, count = np.dtype(SCALARS[kind]), int(np.prod(shape, dtype=object))
        if not 0 < count * pixel.itemsize <= LONGEST:
            msg = f"arrays of {shape} are not supported"
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
        msg = f"it publishes {value.getID()}: supported are NTNDArray, NTScalarArray and NTScalar"
        raise ValueError(msg)
    array = np.atleast_1d(np.asarray(value.value))
    if array.dtype.kind not in "iuf":
        msg = f"its values are {array.dtype} instead of numbers"
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


class _Arrived:
    """Arrays that have arrived and wait to be taken, and where among them the server went away."""

    def __init__(self) -> None:
        """No array has arrived."""
        self._items: queue.SimpleQueue[tuple[int, Any]] = queue.SimpleQueue()
        # Arrays that were dropped since one had a place.
        self._dropped = 0

    def put(self, item: Any) -> None:
        """Adds an array, or drops it where there is no place; all else has one. For the client's thread alone."""
        if isinstance(item, (_Gone, BaseException)):
            self._items.put((0, item))
        elif self._items.qsize() < WAITING:
            self._items.put((self._dropped, item))
            self._dropped = 0
        else:
            self._dropped += 1

    def get(self, timeout: float) -> tuple[int, Any]:
        """Returns the next, and how many arrays were dropped in front of it. Raises queue.Empty after `timeout`."""
        return self._items.get(timeout > 0, timeout)


class _Numbering:
    """From the counts and times of a PV's arrays to the numbers of events.

    The first array is number 0. The others follow it by their counts, for as long as these go on from those before.
    Once that is in doubt, numbers are not `certain` any more. All arrays have a number, but those that are `unused`.
    """

    def __init__(self) -> None:
        """No array has come."""
        # The last array that came: a client that connects anew gets it once more.
        self._last: tuple[int | None, int | None, np.ndarray[Any, Any]] | None = None
        # A server is connected, of which no array has come yet.
        self._connects = True
        self.begin()

    def begin(self) -> None:
        """The run begins: the next array is its first one."""
        self._order = Order(ID_BITS)
        # Arrays that came once more or are from before the first one.
        self.unused = 0
        # The count and time of the first array.
        self._first: tuple[int, int | None] | None = None
        # Whether each array has a count, as far as that is known.
        self.counts = True
        # The last array had one.
        self._counted = True
        # The server may have begun anew.
        self._doubt = False
        # The times of the last counts, in their order, and how many arrays came.
        self._times: dict[int, int] = {}
        self._came = 0

    def gone(self) -> None:
        """The server went away."""
        self._connects = True

    def came(self, count: int | None, time: int | None, array: np.ndarray[Any, Any], *, lost: int = 0) -> bool:
        """An array has come, and before it so many were lost here. Returns whether it is used.

        An array without a count has None, or 0, which is what an NTNDArray has where none is set.
        """
        count = None if count is None else count & MASK
        reconnects, self._connects = self._connects, False
        last, self._last = self._last, (count, time, array)
        if reconnects and last is not None and last[:2] == (count, time):
            # A count and a time are one array's alone.
            if count and time is not None:
                return True
            if np.array_equal(last[2], array):
                # It need not be the same one.
                self._doubt = True
                return self._leave_out()
        if count is not None and self._is_repeated(count, time):
            return self._leave_out()
        self._doubt |= reconnects and self._first is not None
        if self._first is None:
            self._first, self._counted = (count or 0, time), bool(count)
            self.counts = count is not None
            self._order.came(count or 0, time, array)
        elif count is None or (count == 0 and not self._is_count_0(time)):
            self.counts = self._counted = False
            self._order.came_anew(0, time, array, lost=lost)
        elif self._is_early(count, time):
            return self._leave_out()
        else:
            if last is not None and count == last[0]:
                self.counts = False
            self._came_counted(count, time, array)
        self._came += 1
        if count and time is not None:
            self._times[count] = time
            if len(self._times) > RECENT:
                del self._times[next(iter(self._times))]
        return True

    def _came_counted(self, count: int, time: int | None, array: np.ndarray[Any, Any]) -> None:
        newest = self._order.newest
        assert newest is not None
        # A first count of 0 may stand for no count, unless 1 follows.
        goes_on, self._counted = self._counted or count == newest.count + 1, True
        if not goes_on:
            self._order.came_anew(count, time, array)
            return
        ahead = (count - newest.count) & MASK
        # It has come round while some were lost, or it counts anew.
        is_round = count < newest.count and 1 < ahead <= MASK // 2
        self._order.came(count, time, array, certain=not (self._doubt or is_round))

    def _leave_out(self) -> bool:
        self.unused += 1
        return False

    def _is_count_0(self, time: int | None) -> bool:
        """Returns whether a count of 0 is one, since it is the next or comes late; it may stand for no count."""
        newest = self._order.newest
        if newest is None or newest.count == MASK:
            return True
        return time is not None and newest.time is not None and time < newest.time

    def _is_repeated(self, count: int, time: int | None) -> bool:
        """Returns whether it is one of the last arrays once more."""
        return time is not None and self._times.get(count) == time

    def _is_early(self, count: int, time: int | None) -> bool:
        """Returns whether it was overtaken by the first array of the run."""
        if self._first is None or self._doubt or self._came > REORDERED:
            return False
        first, begun = self._first
        is_before = time is not None and begun is not None and time < begun
        return is_before and 0 < (first - count) & MASK <= REORDERED

    def take(self, *, idle: bool = False) -> Image | None:
        """Returns the next image; one that was published earlier is waited for, unless nothing has come for long."""
        return self._order.take(idle=idle)


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
        self._arrived = _Arrived()
        self._numbering = _Numbering()
        self._warned: set[str] = set()
        # What is said of the first array beside its pixels.
        self.attributes: dict[str, Any] | None = None

        def came(value: Any) -> None:
            self._arrived.put(_Gone() if isinstance(value, Disconnected) else value)

        self._context = Context("pva", nt=False)
        request = f"record[queueSize={WAITING}]field()"
        self._subscription = self._context.monitor(pv, came, request=request, notify_disconnect=True)

    @property
    def unused(self) -> int:
        """Arrays of the run that are no fragments, since they came twice or are from before the first one."""
        return self._numbering.unused

    def take(self) -> Image | None:
        """Returns the next array."""
        while (image := self._numbering.take()) is None:
            try:
                lost, value = self._arrived.get(LOOK)
            except queue.Empty:
                return self._numbering.take(idle=True)
            self._came(value, lost)
        return image

    def _came(self, value: Any, lost: int = 0) -> None:
        if isinstance(value, _Gone):
            self._numbering.gone()
            return
        if isinstance(value, BaseException):
            raise value
        # A server has no array before the first one.
        if value.value is None:
            return
        number, time, array = _taken(value)
        if self.attributes is None:
            self.attributes = _attributes(value)
        if not self._numbering.came(number, time, array, lost=lost):
            self._warn("some arrays came twice or are from before the first one: they are left out")
        if not self._numbering.counts:
            self._warn("its arrays have no numbers: what is lost of them is not known")

    def _warn(self, about: str) -> None:
        if about not in self._warned:
            self._warned.add(about)
            warnings.warn(f"{self._pv}: {about}", stacklevel=3)

    def begin(self) -> bool:
        """What was published before the run is not of it."""
        while True:
            try:
                lost, value = self._arrived.get(0)
            except queue.Empty:
                break
            self._came(value, lost)
        self._numbering.begin()
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
