"""Fragments of a run in batches, each of one source and one form, with what is missing.

A *stream* is the fragments of one source that have one form: type, axes, and, where a format needs that, the length of
the first axis. Nearly every source is one stream.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

import thalweg
from thalweg._thalweg import _utc_of_tai

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import NDArray

# Fragments and bytes that are kept before they are written.
BATCH_FRAGMENTS = 16_384
BATCH_BYTES = 32 << 20
# Events whose numbers are looked up at a time.
LOOKUP_EVENTS = 65_536
# Times are exported as int64: the last one is in the year 2262.
LAST_TIME = (1 << 63) - 1
SECOND = 10**9

# Reasons that the export itself states, beside those that an event gives (`thalweg.Event.missing`).
DAMAGED, CHECKSUM, TIME = "damaged", "checksum", "time-out-of-range"
BROKEN = (DAMAGED, CHECKSUM, TIME)

# What is known of each fragment, and its type.
COLUMNS: dict[str, Any] = {
    "event_id": np.uint64,
    "tai_ns": np.int64,
    "sequence": np.uint32,
    "window_ns": np.uint32,
    "status": np.uint32,
    "crc32c": np.uint32,
}


class Form(NamedTuple):
    """Type and axes of fragments."""

    payload_type: str
    # NumPy's type of an element; complex whole numbers are pairs with the names r and i.
    dtype: np.dtype[Any]
    # Lengths of the axes behind the first.
    row: tuple[int, ...]
    # Length of the first axis; None where it differs from fragment to fragment.
    length: int | None

    @property
    def shape(self) -> tuple[int, ...]:
        """Lengths of all axes of an even stream."""
        return (self.length or 0, *self.row)

    @property
    def axes(self) -> list[str]:
        """Names of the axes behind the event's."""
        kind = self.payload_type.partition("-")[0]
        names = {("samples", 1): ["sample", "channel"], ("image", 1): ["row", "column"]}
        if not self.row:
            return ["byte" if self.payload_type in ("raw", "vdif") else "sample"]
        return names.get((kind, len(self.row))) or [f"axis_{axis}" for axis in range(len(self.row) + 1)]

    def to_json(self) -> list[Any]:
        """Returns what `from_json` reads."""
        return [self.payload_type, np.lib.format.dtype_to_descr(self.dtype), list(self.row), self.length]

    @staticmethod
    def from_json(value: list[Any]) -> Form:
        """Returns the form that `to_json` wrote."""
        descr = value[1] if isinstance(value[1], str) else [(name, number) for name, number in value[1]]
        return Form(value[0], np.dtype(descr), tuple(value[2]), value[3])


@dataclass
class Stream:
    """Fragments of one source that have one form."""

    source: str
    # Name of the stream in the export: letters, digits, "_", "-" and "." only.
    name: str
    form: Form
    # Fragments, and rows along their first axis, that were handed to the writer.
    fragments: int = 0
    rows: int = 0


@dataclass
class Batch:
    """Fragments of one stream, in the order of their events."""

    arrays: list[NDArray[Any]]
    event_id: NDArray[np.uint64]
    tai_ns: NDArray[np.int64]
    sequence: NDArray[np.uint32]
    window_ns: NDArray[np.uint32]
    status: NDArray[np.uint32]
    # CRC32C of the payload; 0 where the source computed none (status bit 9).
    crc32c: NDArray[np.uint32]

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Lengths of the first axis."""
        return np.fromiter((len(array) for array in self.arrays), np.int64, len(self.arrays))

    def joined(self) -> NDArray[Any]:
        """Returns all arrays, one behind the other along their first axis."""
        return self.arrays[0] if len(self.arrays) == 1 else np.concatenate(self.arrays)

    def columns(self) -> dict[str, NDArray[Any]]:
        """Returns what is known of each fragment, by name."""
        return {name: getattr(self, name) for name in COLUMNS}


class Missing(NamedTuple):
    """A fragment that is not in the export."""

    event: int
    source: str
    reason: str


@dataclass
class _Pending:
    """Fragments of a source that were not handed on."""

    arrays: list[NDArray[Any]] = field(default_factory=list)
    types: list[str] = field(default_factory=list)
    rows: list[tuple[int, int, int, int, int, int]] = field(default_factory=list)


class Reader:
    """Goes through a run from one place to another and hands on what there is in batches."""

    def __init__(self, events: thalweg.Events, names: Mapping[str, str], streams: list[Stream], *, even: bool) -> None:
        """Reads `events`. With `even`, fragments of one length are a stream of their own."""
        self.events = events
        self.sources = events.sources
        self.streams = streams
        self.bytes = self.fragments = self.missing_fragments = self.damaged_fragments = 0
        # Descriptions of the damage, the first few.
        self.problems: list[str] = []
        self._names = names
        self._even = even
        self._by_source: dict[str, list[Stream]] = {source: [] for source in self.sources}
        for stream in streams:
            self._by_source[stream.source].append(stream)
        self._pending: dict[str, _Pending] = {source: _Pending() for source in self.sources}
        self._pending_fragments = self._pending_bytes = 0
        self._missing: list[Missing] = []

    def read(self, place: int) -> Iterator[tuple[int, list[tuple[Stream, Batch]], list[Missing]]]:
        """Yields what comes from a place on: the place that is next, batches, and what is missing."""
        count = len(self.events)
        while place < count:
            part = self.events[place : min(place + LOOKUP_EVENTS, count)]
            ids = part.ids().tolist()
            at, following = 0, iter(part)
            while at < len(ids):
                at = self._fill(ids, at, following)
                yield place + at, self._batches(), self._take_missing()
            place += len(ids)

    def _fill(self, ids: list[int], at: int, following: Iterator[thalweg.Event]) -> int:
        """Reads events until enough are there for a batch, and returns the place of the next one among `ids`."""
        with warnings.catch_warnings():
            warnings.simplefilter("error", thalweg.DamageWarning)
            while at < len(ids) and not self._is_full():
                try:
                    event = next(following, None)
                except thalweg.DamageWarning as damage:
                    # The events that cannot be read are those in front of the next one.
                    self._note_problem(str(damage))
                    continue
                while at < len(ids) and (event is None or ids[at] != event.id):
                    self._note_damaged_event(ids[at])
                    at += 1
                if event is not None:
                    self._take(event)
                    at += 1
        return at

    def _note_problem(self, text: str) -> None:
        if len(self.problems) < 16:
            self.problems.append(text)

    def _note_damaged_event(self, event: int) -> None:
        self._missing += [Missing(event, source, DAMAGED) for source in self.sources]
        self.damaged_fragments += len(self.sources)
        self._pending_fragments += len(self.sources)

    def _take(self, event: thalweg.Event) -> None:
        number = event.id
        for source, fragment in event.items():
            time = fragment.timestamp
            reason = None if fragment.verify() else CHECKSUM
            reason = TIME if reason is None and time > LAST_TIME else reason
            if reason is not None:
                self._note_problem(f"event {number}, source {source}: {reason}")
                self._missing.append(Missing(number, source, reason))
                self.damaged_fragments += 1
                continue
            pending = self._pending[source]
            try:
                array, kind = fragment.array, fragment.payload_type
            except thalweg.RunError:
                # Its length is not that of the axes that its source states: its bytes are there.
                array, kind = fragment.payload, "raw"
            status = fragment.status_bits
            row = (number, time, fragment.sequence, fragment.window, status, fragment.payload_crc or 0)
            pending.arrays.append(array)
            pending.types.append(kind)
            pending.rows.append(row)
            self._pending_bytes += array.nbytes
            self._pending_fragments += 1
        if not event.complete:
            missing = event.missing
            self._missing += [Missing(number, source, reason) for source, reason in missing.items()]
            self.missing_fragments += len(missing)
            self._pending_fragments += len(missing)

    def _is_full(self) -> bool:
        return self._pending_fragments >= BATCH_FRAGMENTS or self._pending_bytes >= BATCH_BYTES

    def _take_missing(self) -> list[Missing]:
        missing, self._missing = self._missing, []
        return missing

    def _batches(self) -> list[tuple[Stream, Batch]]:
        """Returns what is pending, in batches, and begins anew."""
        found = []
        for source, pending in self._pending.items():
            if pending.rows:
                self._pending[source] = _Pending()
                found += self._divide(source, pending)
        self.bytes += self._pending_bytes
        self._pending_fragments = self._pending_bytes = 0
        return found

    def _divide(self, source: str, pending: _Pending) -> list[tuple[Stream, Batch]]:
        """Divides the fragments of a source among its streams."""
        groups: dict[int, tuple[Stream, list[int]]] = {}
        last: tuple[Any, ...] = ()
        places: list[int] = []
        for place, (array, kind) in enumerate(zip(pending.arrays, pending.types, strict=True)):
            # Nearly all are as the one before.
            if (of := (kind, array.shape, array.dtype)) != last:
                stream = self._stream_of(source, kind, array) or self._new_stream(source, kind, pending, place)
                last, places = of, groups.setdefault(id(stream), (stream, []))[1]
            places.append(place)
        return [(stream, self._batch(stream, pending, places)) for stream, places in groups.values()]

    def _stream_of(self, source: str, kind: str, array: NDArray[Any]) -> Stream | None:
        """Returns the stream that fragments like this one are in, an even one before an uneven one."""
        uneven = None
        for stream in self._by_source[source]:
            form = stream.form
            if form.payload_type == kind and form.row == array.shape[1:]:
                if form.dtype != array.dtype:
                    continue
                if form.length == len(array):
                    return stream
                uneven = stream if form.length is None else uneven
        return uneven

    def _new_stream(self, source: str, kind: str, pending: _Pending, place: int) -> Stream:
        """Makes a stream for the fragment at `place`: an even one where all that are like it have its length."""
        array = pending.arrays[place]
        of_source = self._by_source[source]
        alike = [stream for stream in of_source if stream.form[:3] == (kind, array.dtype, array.shape[1:])]
        length: int | None = len(array)
        waiting = zip(pending.arrays[place:], pending.types[place:], strict=True)
        lengths = {len(other) for other, of in waiting if of == kind and other.shape[1:] == array.shape[1:]}
        if not self._even or alike or len(lengths) > 1 or array.nbytes == 0:
            length = None
        name = self._names[source]
        if of_source:
            name = f"{name}_{len(of_source) + 1}"
            taken = {stream.name for stream in self.streams} | set(self._names.values())
            while name in taken:
                name += "_"
        stream = Stream(source, name, Form(kind, array.dtype, array.shape[1:], length))
        self.streams.append(stream)
        of_source.append(stream)
        return stream

    def _batch(self, stream: Stream, pending: _Pending, places: Sequence[int]) -> Batch:
        all_of_it = len(places) == len(pending.rows)
        rows = pending.rows if all_of_it else [pending.rows[place] for place in places]
        arrays = pending.arrays if all_of_it else [pending.arrays[place] for place in places]
        columns = [
            np.array(column, kind) for column, kind in zip(zip(*rows, strict=True), COLUMNS.values(), strict=True)
        ]
        batch = Batch(arrays, *columns)
        stream.fragments += len(rows)
        stream.rows += int(batch.lengths.sum())
        self.fragments += len(rows)
        return batch


NO_TIME = -(1 << 63)


def utc_ns(batch: Batch) -> NDArray[np.int64]:
    """Returns the times of a batch in UTC, in nanoseconds since 1970; `NO_TIME` where UTC has none (before 1972)."""
    tai = batch.tai_ns
    offsets = {_offset(int(tai.min())), _offset(int(tai.max()))}
    if len(offsets) == 1 and (offset := offsets.pop()) is not None:
        return tai - offset
    # A leap second lies among them.
    utc = (_utc_of_tai(time) for time in tai.tolist())
    return np.fromiter((NO_TIME if time is None else time for time in utc), np.int64, len(tai))


def _offset(tai: int) -> int | None:
    utc = _utc_of_tai(tai)
    return None if utc is None else tai - utc
