"""Reader of a run that yields batches of fragments, and lists missing and damaged ones.

A *stream* is all fragments of one source with the same form: type, axes, and for some formats the length of the first
axis. Nearly every source has one stream.
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

# Limits of the data read before they are passed on as batches: fragments, and bytes of payload.
BATCH_FRAGMENTS = 16_384
BATCH_BYTES = 32 << 20
# Number of events whose numbers are looked up together.
LOOKUP_EVENTS = 65_536
# Latest time that is exported, in the year 2262, since times are int64.
MAX_TAI_NS = (1 << 63) - 1
# UTC of times for which UTC is not defined (before 1972).
NO_UTC_TIME = -(1 << 63)
NS_PER_SECOND = 10**9

# Reasons of the export itself, in addition to those of `thalweg.Event.missing`.
REASON_DAMAGED = "damaged"
REASON_CHECKSUM = "checksum"
REASON_TIME_RANGE = "time-out-of-range"

# Maximum number of descriptions of damage.
MAX_PROBLEMS = 16

# Names and types of the columns with one value per fragment.
COLUMN_TYPES: dict[str, Any] = {
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
    # Type of an element. Complex integers are structures with the fields r and i.
    dtype: np.dtype[Any]
    # Lengths of all axes but the first.
    row: tuple[int, ...]
    # Length of the first axis, or None if it differs between fragments.
    length: int | None

    @property
    def shape(self) -> tuple[int, ...]:
        """Lengths of all axes; 0 for the first one if it differs between fragments."""
        return (self.length or 0, *self.row)

    @property
    def axes(self) -> list[str]:
        """Names of the axes of a fragment."""
        kind = self.payload_type.partition("-")[0]
        names = {("samples", 1): ["sample", "channel"], ("image", 1): ["row", "column"]}
        if not self.row:
            return ["byte" if self.payload_type in ("raw", "vdif") else "sample"]
        return names.get((kind, len(self.row))) or [f"axis_{axis}" for axis in range(len(self.row) + 1)]

    def to_json(self) -> list[Any]:
        """Returns the form as JSON, for `from_json`."""
        return [self.payload_type, np.lib.format.dtype_to_descr(self.dtype), list(self.row), self.length]

    @staticmethod
    def from_json(value: list[Any]) -> Form:
        """Returns the form that `to_json` converted."""
        descr = value[1] if isinstance(value[1], str) else [(name, number) for name, number in value[1]]
        return Form(value[0], np.dtype(descr), tuple(value[2]), value[3])


@dataclass
class Stream:
    """All fragments of one source with the same form."""

    source: str
    # Name of the stream in the export: letters, digits, "_", "-" and "." only.
    name: str
    form: Form
    # Number of fragments passed to the writer.
    fragments: int = 0
    # Sum of the lengths of their first axes.
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
    # CRC32C of the payload; 0 if the source did not compute it (status bit 9).
    crc32c: NDArray[np.uint32]

    def seconds_since(self, began: int) -> NDArray[np.float64]:
        """Returns the times in seconds since `began`, in TAI nanoseconds. NaN for a fragment without a time."""
        has_time = (self.tai_ns != 0) | (self.window_ns != 0)
        return np.where(has_time, (self.tai_ns - began) / NS_PER_SECOND, np.nan)

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Lengths of the first axes."""
        return np.fromiter((len(array) for array in self.arrays), np.int64, len(self.arrays))

    def joined(self) -> NDArray[Any]:
        """Returns all arrays concatenated along their first axis."""
        return self.arrays[0] if len(self.arrays) == 1 else np.concatenate(self.arrays)

    def columns(self) -> dict[str, NDArray[Any]]:
        """Returns the columns with one value per fragment, by name."""
        return {name: getattr(self, name) for name in COLUMN_TYPES}


class MissingFragment(NamedTuple):
    """Fragment that is not exported."""

    event: int
    # Id of the source.
    source: str
    reason: str


@dataclass
class _Pending:
    """Fragments of a source that are read, but not yet in a batch."""

    arrays: list[NDArray[Any]] = field(default_factory=list)
    # Payload types.
    types: list[str] = field(default_factory=list)
    # Values of COLUMN_TYPES.
    rows: list[tuple[int, int, int, int, int, int]] = field(default_factory=list)


class BatchReader:
    """Reader of the fragments of a run in batches. Counts them, and describes damage."""

    def __init__(
        self, events: thalweg.Events, names: Mapping[str, str], streams: list[Stream], *, fixed_length: bool
    ) -> None:
        """Creates a reader of `events`.

        - `names` are the names of sources in the export, by id.
        - `streams` are those of earlier batches, if the export is continued.
        - `fixed_length` states that fragments of equal length are a stream of their own, if possible.
        """
        self.events = events
        self.sources = events.sources
        self.streams = streams
        self.bytes = self.fragments = self.missing_fragments = 0
        # Fragments left out because of damage, and events of which they leave no fragment.
        self.damaged_fragments = self.damaged_events = 0
        # Fragments left out because their time is later than MAX_TAI_NS.
        self.out_of_range_fragments = 0
        # Descriptions of the damage, at most MAX_PROBLEMS.
        self.problems: list[str] = []
        self._names = names
        self._fixed_length = fixed_length
        self._by_source: dict[str, list[Stream]] = {source: [] for source in self.sources}
        for stream in streams:
            self._by_source[stream.source].append(stream)
        self._pending: dict[str, _Pending] = {source: _Pending() for source in self.sources}
        self._pending_fragments = self._pending_bytes = 0
        self._missing: list[MissingFragment] = []

    def read(self, position: int) -> Iterator[tuple[int, list[tuple[Stream, Batch]], list[MissingFragment]]]:
        """Reads the events from index `position` on.

        Yields the index of the next event, batches of the fragments before it, and the missing and damaged fragments.
        """
        count = len(self.events)
        while position < count:
            part = self.events[position : min(position + LOOKUP_EVENTS, count)]
            ids = part.ids().tolist()
            index, following = 0, iter(part)
            while index < len(ids):
                index = self._read_events(ids, index, following)
                yield position + index, self._take_batches(), self._take_missing()
            position += len(ids)

    def _read_events(self, ids: list[int], index: int, following: Iterator[thalweg.Event]) -> int:
        """Reads events until there are enough for a batch. Returns the index of the next one in `ids`."""
        with warnings.catch_warnings():
            warnings.simplefilter("error", thalweg.DamageWarning)
            while index < len(ids) and not self._is_full():
                try:
                    event = next(following, None)
                except thalweg.DamageWarning as damage:
                    # The next event that is readable shows which ones are not.
                    self._add_problem(str(damage))
                    continue
                while index < len(ids) and (event is None or ids[index] != event.id):
                    self._add_damaged_event(ids[index])
                    index += 1
                if event is not None:
                    self._add_event(event)
                    index += 1
        return index

    def _add_problem(self, text: str) -> None:
        if len(self.problems) < MAX_PROBLEMS:
            self.problems.append(text)

    def _add_damaged_event(self, event: int) -> None:
        self._missing += [MissingFragment(event, source, REASON_DAMAGED) for source in self.sources]
        self.damaged_fragments += len(self.sources)
        self.damaged_events += 1
        self._pending_fragments += len(self.sources)

    def _add_event(self, event: thalweg.Event) -> None:
        """Adds the fragments of an event to the pending or the missing ones, after their checksums are verified."""
        number = event.id
        # Numbers of damaged fragments, and of fragments that are exported.
        damaged = exported = 0
        for source, fragment in event.items():
            time = fragment.timestamp
            if not fragment.verify():
                self._add_problem(f"event {number}, source {source}: {REASON_CHECKSUM}")
                self._missing.append(MissingFragment(number, source, REASON_CHECKSUM))
                damaged += 1
                continue
            if time > MAX_TAI_NS:
                self._missing.append(MissingFragment(number, source, REASON_TIME_RANGE))
                self.out_of_range_fragments += 1
                continue
            exported += 1
            pending = self._pending[source]
            try:
                array, kind = fragment.array, fragment.payload_type
            except thalweg.RunError:
                # The length does not match the axes that the source declares: the bytes are exported.
                array, kind = fragment.payload, "raw"
            status = fragment.status_bits
            row = (number, time, fragment.sequence, fragment.window, status, fragment.payload_crc or 0)
            pending.arrays.append(array)
            pending.types.append(kind)
            pending.rows.append(row)
            self._pending_bytes += array.nbytes
            self._pending_fragments += 1
        self.damaged_fragments += damaged
        self.damaged_events += 1 if damaged and not exported else 0
        if not event.complete:
            missing = event.missing
            self._missing += [MissingFragment(number, source, reason) for source, reason in missing.items()]
            self.missing_fragments += len(missing)
            self._pending_fragments += len(missing)

    def _is_full(self) -> bool:
        return self._pending_fragments >= BATCH_FRAGMENTS or self._pending_bytes >= BATCH_BYTES

    def _take_missing(self) -> list[MissingFragment]:
        missing, self._missing = self._missing, []
        return missing

    def _take_batches(self) -> list[tuple[Stream, Batch]]:
        """Returns all pending fragments in batches and removes them."""
        batches = []
        for source, pending in self._pending.items():
            if pending.rows:
                self._pending[source] = _Pending()
                batches += self._divide(source, pending)
        self.bytes += self._pending_bytes
        self._pending_fragments = self._pending_bytes = 0
        return batches

    def _divide(self, source: str, pending: _Pending) -> list[tuple[Stream, Batch]]:
        """Divides the pending fragments of a source into batches of its streams."""
        groups: dict[int, tuple[Stream, list[int]]] = {}
        last: tuple[Any, ...] = ()
        indices: list[int] = []
        for index, (array, kind) in enumerate(zip(pending.arrays, pending.types, strict=True)):
            # Nearly all fragments have the form of the previous one.
            if (form := (kind, array.shape, array.dtype)) != last:
                stream = self._find_stream(source, kind, array) or self._new_stream(source, kind, pending, index)
                last, indices = form, groups.setdefault(id(stream), (stream, []))[1]
            indices.append(index)
        return [(stream, self._batch(stream, pending, indices)) for stream, indices in groups.values()]

    def _find_stream(self, source: str, kind: str, array: NDArray[Any]) -> Stream | None:
        """Returns the stream of fragments of this form, if possible one for this length, or None."""
        variable_length = None
        for stream in self._by_source[source]:
            form = stream.form
            if form.payload_type == kind and form.row == array.shape[1:]:
                if form.dtype != array.dtype:
                    continue
                if form.length == len(array):
                    return stream
                variable_length = stream if form.length is None else variable_length
        return variable_length

    def _new_stream(self, source: str, kind: str, pending: _Pending, index: int) -> Stream:
        """Creates a stream for the pending fragment `index` and those of the same form.

        With `fixed_length` it is for one length, if all pending fragments from `index` on with this form have it.
        """
        array = pending.arrays[index]
        others = self._by_source[source]
        same_form = [stream for stream in others if stream.form[:3] == (kind, array.dtype, array.shape[1:])]
        length: int | None = len(array)
        waiting = zip(pending.arrays[index:], pending.types[index:], strict=True)
        lengths = {
            len(other) for other, other_kind in waiting if other_kind == kind and other.shape[1:] == array.shape[1:]
        }
        if not self._fixed_length or same_form or len(lengths) > 1 or array.nbytes == 0:
            length = None
        name = self._names[source]
        if others:
            name = f"{name}_{len(others) + 1}"
            taken = {stream.name for stream in self.streams} | set(self._names.values())
            while name in taken:
                name += "_"
        stream = Stream(source, name, Form(kind, array.dtype, array.shape[1:], length))
        self.streams.append(stream)
        others.append(stream)
        return stream

    def _batch(self, stream: Stream, pending: _Pending, indices: Sequence[int]) -> Batch:
        """Returns the pending fragments `indices` as a batch and counts them."""
        is_all = len(indices) == len(pending.rows)
        rows = pending.rows if is_all else [pending.rows[index] for index in indices]
        arrays = pending.arrays if is_all else [pending.arrays[index] for index in indices]
        columns = [
            np.array(column, kind) for column, kind in zip(zip(*rows, strict=True), COLUMN_TYPES.values(), strict=True)
        ]
        batch = Batch(arrays, *columns)
        stream.fragments += len(rows)
        stream.rows += int(batch.lengths.sum())
        self.fragments += len(rows)
        return batch


def utc_ns(batch: Batch) -> NDArray[np.int64]:
    """Returns the times of a batch in UTC nanoseconds since 1970, or NO_UTC_TIME before 1972."""
    tai = batch.tai_ns
    offsets = {_tai_offset(int(tai.min())), _tai_offset(int(tai.max()))}
    if len(offsets) == 1 and (offset := offsets.pop()) is not None:
        return tai - offset
    # A leap second is between the first and last time.
    utc = (_utc_of_tai(time) for time in tai.tolist())
    return np.fromiter((NO_UTC_TIME if time is None else time for time in utc), np.int64, len(tai))


def _tai_offset(tai: int) -> int | None:
    """Returns TAI - UTC in nanoseconds at a time, or None before 1972."""
    utc = _utc_of_tai(tai)
    return None if utc is None else tai - utc
