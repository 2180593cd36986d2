"""Source for EPICS: subscribes to a PV over pvAccess and pushes each update into a run.

Run as a program, with the name of the PV, the builder's address and the id of the source:

    python -m thalweg.epics 13SIM1:Pva1:Image tcp:127.0.0.1:7700 --id 1.0

The PV is an NTNDArray, as published by areaDetector's pvAccess plugin, a waveform (NTScalarArray) or a scalar
(NTScalar). Each update becomes one fragment, from the beginning of the run on. Images have the shape (height, width),
waveforms (samples,), scalars (1,).

Event numbers of an NTNDArray follow `uniqueId`, the counter of the detector's driver. A gap in `uniqueId` is an array
that was lost on the way, and is counted as `lost_in_device` in the run's ledger. Arrays that arrive up to 16 late are
sorted. Time stamps are those of `dataTimeStamp` (or `timeStamp`), or the time of arrival if it is not set.

Fragments have the status `uncertain`, and the run is INCOMPLETE, once the number of lost arrays is unknown:

- after the server was disconnected, unless the first array after the reconnection is the last one before it;
- after the counter was reset;
- for arrays without `uniqueId`, waveforms and scalars, whose updates are numbered in the order of their arrival.

An array that arrives twice, with the same `uniqueId` and time, is left out, and so is one that is older than the first
array of the run. The report counts these as `unused`.

An array whose shape or type differs from the first one ends the source with an error. Arrays compressed by
areaDetector's codec plugin (lz4, bslz4, blosc, jpeg) are decompressed. The attributes of the first NTNDArray are
written to the source's description in run.json. Needs p4p, and lz4, bitshuffle and imagecodecs for compressed arrays:
pip install thalweg[epics].
"""

from __future__ import annotations

import queue
import warnings
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from thalweg import _codecs, _published
from thalweg._published import MAX_REORDERED_IMAGES, POLL_SECONDS, TAI_UTC, Image, ImageQueue

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Sequence

__all__ = ["Image", "images", "record"]

# uniqueId is a 32-bit int.
ID_BITS = 32
ID_MASK = (1 << ID_BITS) - 1
# Number of latest arrays whose counts and times are remembered, to recognise duplicates.
MAX_RECENT_ARRAYS = 64
# Arrays that are queued here, and in the server. Further ones are dropped, and counted as lost.
MAX_QUEUED_ARRAYS = 64


class _Disconnect(NamedTuple):
    """Mark in the queue of updates at which the server was disconnected."""


# NumPy types by the number of their type in pvData (`ScalarType`).
SCALAR_TYPES = ["bool", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f4", "f8"]
# Largest size in bytes of a decompressed array.
MAX_ARRAY_BYTES = 1 << 30


def _time(stamp: Any) -> int | None:
    """Converts a time stamp to nanoseconds of TAI since 1970. None if it is not set."""
    return (stamp.secondsPastEpoch + TAI_UTC) * 10**9 + stamp.nanoseconds if stamp.secondsPastEpoch else None


def _decoded(value: Any, shape: list[int]) -> np.ndarray[Any, Any]:
    """Returns the array of an NTNDArray in this shape, decompressed."""
    data = np.asarray(value.value)
    if codec := value.codec.name:
        kind = value.codec.parameters
        if not isinstance(kind, int) or not 0 < kind < len(SCALAR_TYPES):
            msg = f"arrays compressed by {codec!r} do not state their type in codec.parameters"
            raise ValueError(msg)
        pixel, count = np.dtype(SCALAR_TYPES[kind]), int(np.prod(shape, dtype=object))
        if not 0 < count * pixel.itemsize <= MAX_ARRAY_BYTES:
            msg = f"an array of shape {shape}: it must have 1 to {MAX_ARRAY_BYTES} bytes"
            raise ValueError(msg)
        data = _codecs.area_detector(codec, data.tobytes(), count, pixel)
    return data.reshape(shape)


def _read_update(value: Any) -> tuple[int | None, int | None, np.ndarray[Any, Any]]:
    """Returns the count, time and array of an NTNDArray, NTScalarArray or NTScalar (EPICS 7 Normative Types).

    The count is `uniqueId`, or None for types without one.
    """
    kind = value.getID().partition(":")[2]
    if kind.startswith("nt/NTNDArray:"):
        # EPICS lists x first, NumPy last.
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
    """Returns the attributes of an NTNDArray that are numbers or strings, by name."""
    found = {}
    for attribute in value.get("attribute") or []:
        content = attribute.value
        if isinstance(content, (bool, int, float, str)):
            found[str(attribute.name)] = content
    return found


class _UpdateQueue:
    """Bounded queue of updates, from the thread of the pvAccess client to that of the source."""

    def __init__(self) -> None:
        """Creates an empty queue."""
        self._items: queue.SimpleQueue[tuple[int, Any]] = queue.SimpleQueue()
        # Number of updates that were dropped since the last one that was queued.
        self._dropped = 0

    def put(self, item: Any) -> None:
        """Queues an update, or drops it if the queue is full. Disconnects and exceptions are never dropped.

        To be called from one thread only.
        """
        if isinstance(item, (_Disconnect, BaseException)):
            self._items.put((0, item))
        elif self._items.qsize() < MAX_QUEUED_ARRAYS:
            self._items.put((self._dropped, item))
            self._dropped = 0
        else:
            self._dropped += 1

    def get(self, timeout: float) -> tuple[int, Any]:
        """Returns the number of updates that were dropped before the next item, and the item.

        Raises queue.Empty after `timeout` seconds.
        """
        return self._items.get(timeout > 0, timeout)


class _Numbering:
    """Converter from the counts and times of a PV's arrays to event numbers.

    The first array is number 0, and the numbers of the others follow their counts. Once the counts may not continue
    those before, numbers are not `certain` any more. All arrays get a number, except those that are `unused`.
    """

    def __init__(self) -> None:
        """Creates a converter before the first array."""
        # The last array: a server sends it again after a reconnection.
        self._last: tuple[int | None, int | None, np.ndarray[Any, Any]] | None = None
        # True after a (re)connection, until the first array.
        self._is_reconnected = True
        self.begin_run()

    def begin_run(self) -> None:
        """Begins the run: the next array is its first one."""
        self._queue = ImageQueue(ID_BITS)
        # Number of duplicates, and of arrays older than the first one.
        self.unused = 0
        # Count and time of the first array.
        self._first: tuple[int, int | None] | None = None
        # False as soon as an array without a count was received.
        self.has_counts = True
        # Whether the last array had a count.
        self._is_last_counted = True
        # Whether the counter may have been restarted.
        self._is_doubtful = False
        # Times of the latest arrays by count, oldest first, and the number of arrays so far.
        self._recent_times: dict[int, int] = {}
        self._array_count = 0

    def note_disconnect(self) -> None:
        """Notes that the server was disconnected."""
        self._is_reconnected = True

    def add(self, count: int | None, time: int | None, array: np.ndarray[Any, Any], *, lost: int = 0) -> bool:
        """Accepts an array, before which `lost` others were dropped. Returns False if it is left out as `unused`.

        `count` is None, or 0 as in an NTNDArray whose uniqueId is not set, if the array has no count.
        """
        count = None if count is None else count & ID_MASK
        reconnects, self._is_reconnected = self._is_reconnected, False
        last, self._last = self._last, (count, time, array)
        if reconnects and last is not None and last[:2] == (count, time):
            # Count and time identify an array.
            if count and time is not None:
                return True
            if np.array_equal(last[2], array):
                # Equal data need not be the same array.
                self._is_doubtful = True
                return self._leave_out()
        if count is not None and self._is_repeated(count, time):
            return self._leave_out()
        self._is_doubtful |= reconnects and self._first is not None
        if self._first is None:
            self._first, self._is_last_counted = (count or 0, time), bool(count)
            self.has_counts = count is not None
            self._queue.add(count or 0, time, array)
        elif count is None or (count == 0 and not self._is_count_zero(time)):
            self.has_counts = self._is_last_counted = False
            self._queue.add_after_restart(0, time, array, lost=lost)
        elif self._is_early(count, time):
            return self._leave_out()
        else:
            if last is not None and count == last[0]:
                self.has_counts = False
            self._add_counted(count, time, array)
        self._array_count += 1
        if count and time is not None:
            self._recent_times[count] = time
            if len(self._recent_times) > MAX_RECENT_ARRAYS:
                del self._recent_times[next(iter(self._recent_times))]
        return True

    def _add_counted(self, count: int, time: int | None, array: np.ndarray[Any, Any]) -> None:
        newest = self._queue.newest
        assert newest is not None
        # A first count of 0 may mean that no count is set, unless 1 follows.
        continues, self._is_last_counted = self._is_last_counted or count == newest.count + 1, True
        if not continues:
            self._queue.add_after_restart(count, time, array)
            return
        ahead = (count - newest.count) & ID_MASK
        # The counter has wrapped around while arrays were lost, or it was restarted.
        is_wrapped = count < newest.count and 1 < ahead <= ID_MASK // 2
        self._queue.add(count, time, array, certain=not (self._is_doubtful or is_wrapped))

    def _leave_out(self) -> bool:
        self.unused += 1
        return False

    def _is_count_zero(self, time: int | None) -> bool:
        """Returns whether 0 is a count, of the next array or a late one, and does not mean that no count is set."""
        newest = self._queue.newest
        if newest is None or newest.count == ID_MASK:
            return True
        return time is not None and newest.time is not None and time < newest.time

    def _is_repeated(self, count: int, time: int | None) -> bool:
        """Returns whether an array of this count and time is a duplicate of a recent one."""
        return time is not None and self._recent_times.get(count) == time

    def _is_early(self, count: int, time: int | None) -> bool:
        """Returns whether an array is older than the first one of the run, and arrived after it."""
        if self._first is None or self._is_doubtful or self._array_count > MAX_REORDERED_IMAGES:
            return False
        first, begun = self._first
        is_before = time is not None and begun is not None and time < begun
        return is_before and 0 < (first - count) & ID_MASK <= MAX_REORDERED_IMAGES

    def take(self, *, idle: bool = False) -> Image | None:
        """Returns the next array, or None: see ImageQueue.take."""
        return self._queue.take(idle=idle)


class _Stream:
    """Subscription to a PV, whose first array is the last one that was published."""

    def __init__(self, pv: str) -> None:
        """Subscribes to the PV, whose server may appear later."""
        try:
            from p4p.client.thread import Context, Disconnected
        except ImportError as error:
            msg = "thalweg.epics needs p4p: pip install thalweg[epics]"
            raise ImportError(msg) from error
        self.name = f"{pv}: no array"
        self._pv = pv
        self._updates = _UpdateQueue()
        self._numbering = _Numbering()
        self._warned: set[str] = set()
        # Attributes of the first array.
        self.attributes: dict[str, Any] | None = None

        def queue_update(value: Any) -> None:
            self._updates.put(_Disconnect() if isinstance(value, Disconnected) else value)

        self._context = Context("pva", nt=False)
        request = f"record[queueSize={MAX_QUEUED_ARRAYS}]field()"
        self._subscription = self._context.monitor(pv, queue_update, request=request, notify_disconnect=True)

    @property
    def unused(self) -> int:
        """Number of arrays that were left out of the run: duplicates, and arrays older than the first one."""
        return self._numbering.unused

    def take(self) -> Image | None:
        """Returns the next array in order, or None after POLL_SECONDS."""
        while (image := self._numbering.take()) is None:
            try:
                lost, value = self._updates.get(POLL_SECONDS)
            except queue.Empty:
                return self._numbering.take(idle=True)
            self._accept_update(value, lost)
        return image

    def _accept_update(self, value: Any, lost: int = 0) -> None:
        if isinstance(value, _Disconnect):
            self._numbering.note_disconnect()
            return
        if isinstance(value, BaseException):
            raise value
        # The update of a server that has not published an array yet.
        if value.value is None:
            return
        count, time, array = _read_update(value)
        if self.attributes is None:
            self.attributes = _attributes(value)
        if not self._numbering.add(count, time, array, lost=lost):
            self._warn("arrays that arrived twice, or are older than the first one of the run, are left out")
        if not self._numbering.has_counts:
            self._warn("the PV does not number its arrays, so lost arrays cannot be detected: fragments are uncertain")

    def _warn(self, about: str) -> None:
        if about not in self._warned:
            self._warned.add(about)
            warnings.warn(f"{self._pv}: {about}", stacklevel=3)

    def begin_run(self) -> bool:
        """Discards the arrays that were published before the run. Returns False, since they do not belong to it."""
        while True:
            try:
                lost, value = self._updates.get(0)
            except queue.Empty:
                break
            self._accept_update(value, lost)
        self._numbering.begin_run()
        return False

    def close(self) -> None:
        """Ends the subscription."""
        self._subscription.close()
        self._context.close()


def images(pv: str, *, timeout: float = 10.0, over: Callable[[], bool] = lambda: False) -> Generator[Image, None, None]:
    """Yields the arrays of a PV, in order, as Image (number, time, array, certain).

    The first one is the last array that was published. Numbers begin at 0 and only increase: after a restart of the
    server they continue, and `certain` is False. `over` is called every 0.5 s while no array arrives; the generator
    ends when it returns true.

    Raises TimeoutError if the first array does not arrive within `timeout` seconds, and ValueError if the PV is not an
    NTNDArray, NTScalarArray or NTScalar of numbers.
    """
    return _published.images(_Stream(pv), timeout, over)


def record(
    pv: str, builders: str | Sequence[str], *, id: str, name: str | None = None, timeout: float = 10.0
) -> dict[str, Any]:
    """Pushes the arrays of a PV into a run, from its beginning to its end.

    `pv` is the name of the PV, `builders` and `id` are those of thalweg.Source, and `name` is the name of the source.
    `timeout` is the longest time in seconds to wait for the first array, and for a builder.

    Returns the report of thalweg.Source.finish, a dict, with the additional key `unused`, the number of arrays that
    were left out (duplicates, and arrays older than the first one). Raises TimeoutError if no array arrives in time,
    ValueError if the PV is not an NTNDArray, NTScalarArray or NTScalar of numbers, and RunError if data cannot be
    pushed.
    """
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
        "Records an EPICS PV (NTNDArray, NTScalarArray or NTScalar) into a run",
        ("pv", "name of the PV, such as 13SIM1:Pva1:Image"),
        record,
        "arrays",
    )
