"""SigMF: a recording for each stream. See docs/export.md."""

from __future__ import annotations

import hashlib
import json
from typing import IO, TYPE_CHECKING, Any, NamedTuple

import numpy as np

from thalweg.export._csv import Tables, utc_texts
from thalweg.export._partial import ExportError
from thalweg.export._reading import SECOND, Batch, Form, Missing, Stream, utc_ns
from thalweg.export._writer import About, Writer, write_description

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

# What is kept of each fragment until the metadata are written.
ROW = np.dtype(
    [
        ("event_id", "<u8"),
        ("tai_ns", "<i8"),
        ("utc_ns", "<i8"),
        ("length", "<i8"),
        ("sequence", "<u4"),
        ("status", "<u4"),
        ("crc32c", "<u4"),
    ]
)
ROWS_AT_A_TIME = 1 << 14
# The largest number that SigMF has for a sample.
LAST_INDEX = (1 << 63) - 1
TYPES = {"u1", "i1", "u2", "i2", "u4", "i4", "f4", "f8"}


class Sigmf(Writer):
    """Writes a folder of recordings of SigMF."""

    suffix = ".sigmf"
    compressions = ("none",)

    def __init__(self, output: Path, about: About, state: dict[str, Any] | None) -> None:
        """See `Writer`."""
        super().__init__(output, about, state)
        known = state or {"data": {}, "rows": {}}
        self._data = Tables(output, known["data"])
        self._rows = Tables(output.with_name("rows"), known["rows"])

    def append(self, stream: Stream, batch: Batch) -> None:
        """See `Writer`."""
        datatype(stream)
        file = self._data.file(f"{stream.name}.sigmf-data")
        for array in batch.arrays:
            file.write(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
        rows = np.zeros(len(batch.arrays), ROW)
        for name, column in batch.columns().items():
            if name in ROW.names:  # type: ignore[operator]
                rows[name] = column
        rows["utc_ns"], rows["length"] = utc_ns(batch), batch.lengths
        self._rows.file(stream.name).write(rows.tobytes())

    def add_missing(self, missing: Sequence[Missing]) -> None:
        """See `Writer`."""
        for row in missing:
            file = self._rows.file(f"missing-{row.source}")
            file.write(f"{row.event}\t{row.reason}\n".encode())

    def checkpoint(self) -> dict[str, Any]:
        """See `Writer`."""
        return {"data": self._data.checkpoint(), "rows": self._rows.checkpoint()}

    def finish(self, summary: dict[str, Any], streams: Sequence[Stream]) -> None:
        """See `Writer`."""
        self._data.checkpoint()
        self._rows.checkpoint()
        described: set[str] = set()
        for stream in streams:
            # What is missing of a source is with its first recording.
            missing = None if stream.source in described else f"missing-{stream.source}"
            described.add(stream.source)
            self._describe(stream, missing)
        write_description(self.output, summary)

    def _describe(self, stream: Stream, missing: str | None) -> None:
        """Writes the metadata of a recording, without having all of it in memory."""
        rows = self.output.with_name("rows")
        meta = self._data.file(f"{stream.name}.sigmf-meta")
        meta.seek(0)
        meta.truncate()
        write = _Json(meta)
        write.text(b'{\n"global": ' + json.dumps(self._global(stream), indent=1, ensure_ascii=False).encode())
        rate = sample_rate(self.about.source(stream.source)["description"])
        write.array("captures", captures(_fragments(rows / stream.name), rate))
        lost = _missing(rows / missing) if missing is not None and (rows / missing).exists() else iter(())
        write.array("annotations", _annotations(_fragments(rows / stream.name), lost))
        write.text(b"\n}\n")
        meta.flush()

    def _global(self, stream: Stream) -> dict[str, Any]:
        info, source = self.about.info, self.about.source(stream.source)
        with (self.output / f"{stream.name}.sigmf-data").open("rb") as file:
            checksum = hashlib.file_digest(file, "sha512") if hasattr(hashlib, "file_digest") else _digest(file)
        about: dict[str, Any] = {
            "core:datatype": datatype(stream),
            "core:version": "1.2.0",
            "core:num_channels": int(np.prod(stream.form.row, dtype=np.int64)),
            "core:sha512": checksum.hexdigest(),
            "core:description": f"run {info['run']}, source {source['name']}",
            "core:recorder": f"{info['writer']['program']} {info['writer']['version']}",
            "core:extensions": [{"name": "thalweg", "version": "1.0.0", "optional": True}],
            "thalweg:run": info,
            "thalweg:source": stream.source,
            "thalweg:form": stream.form.to_json(),
        }
        rate = sample_rate(source["description"])
        return about if rate is None else about | {"core:sample_rate": rate}

    def close(self) -> None:
        """See `Writer`."""
        self._data.close()
        self._rows.close()


class _Json:
    """An object of JSON that is written piece by piece."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file

    def text(self, text: bytes) -> None:
        self._file.write(text)

    def array(self, name: str, items: Iterator[dict[str, Any]]) -> None:
        self._file.write(f',\n"{name}": ['.encode())
        for at, item in enumerate(items):
            self._file.write((",\n" if at else "\n").encode() + json.dumps(item).encode())
        self._file.write(b"\n]")


class Fragment(NamedTuple):
    """A fragment in a recording."""

    start: int
    length: int
    event: int
    tai: int
    utc: str
    sequence: int
    status: int
    crc32c: int


def _fragments(path: Path) -> Iterator[Fragment]:
    start = 0
    with path.open("rb") as file:
        while part := file.read(ROWS_AT_A_TIME * ROW.itemsize):
            rows = np.frombuffer(part, ROW)
            for row, utc in zip(rows.tolist(), utc_texts(rows["utc_ns"]), strict=True):
                event, tai, _, length, sequence, status, crc32c = row
                yield Fragment(start, length, event, tai, utc, sequence, status, crc32c)
                start += length


def _missing(path: Path) -> Iterator[Missing]:
    with path.open() as file:
        for line in file:
            event, reason = line.rstrip("\n").split("\t")
            yield Missing(int(event), "", reason)


def captures(fragments: Iterator[Fragment], rate: float | None) -> Iterator[dict[str, Any]]:
    """Yields a capture for each place from which on samples do not follow those before without a gap.

    `core:global_index` counts the samples from the first one on, those that are not here too: by their times where the
    rate of samples is known, else by the numbers of events, as if each had as many as the one before.
    """
    first: Fragment | None = None
    last: Fragment | None = None
    index = 0
    for fragment in fragments:
        first = first or fragment
        if last is None:
            is_gap = True
        elif rate is not None:
            # Whole numbers: a float has not the nanoseconds of a date.
            due = index + last.length
            found = round((fragment.tai - first.tai) * rate / SECOND)
            is_gap = abs(found - due) > 1
            index = max(found, due) if is_gap else due
        else:
            is_gap = fragment.event != last.event + 1
            index += last.length * (fragment.event - last.event)
        if is_gap:
            capture: dict[str, Any] = {"core:sample_start": fragment.start}
            capture |= {"core:global_index": index} if index <= LAST_INDEX else {}
            yield capture | ({"core:datetime": fragment.utc} if fragment.utc else {})
        last = fragment


def _annotations(fragments: Iterator[Fragment], missing: Iterator[Missing]) -> Iterator[dict[str, Any]]:
    """Yields an annotation for each event, and for each that is missing, of no samples, where it would be."""
    lost, end = next(missing, None), 0
    for fragment in fragments:
        while lost is not None and lost.event < fragment.event:
            yield _lost(lost, fragment.start)
            lost = next(missing, None)
        end = fragment.start + fragment.length
        yield {
            "core:sample_start": fragment.start,
            "core:sample_count": fragment.length,
            "core:label": f"event {fragment.event}",
            "thalweg:event_id": fragment.event,
            "thalweg:tai_ns": fragment.tai,
            "thalweg:sequence": fragment.sequence,
            "thalweg:status": fragment.status,
            "thalweg:crc32c": fragment.crc32c,
        }
    while lost is not None:
        yield _lost(lost, end)
        lost = next(missing, None)


def _lost(row: Missing, start: int) -> dict[str, Any]:
    return {
        "core:sample_start": start,
        "core:sample_count": 0,
        "core:label": f"missing {row.event}",
        "core:comment": row.reason,
        "thalweg:event_id": row.event,
        "thalweg:missing": row.reason,
    }


def datatype(stream: Stream) -> str:
    """Returns SigMF's name of a stream's type."""
    form: Form = stream.form
    number = form.dtype["r"] if form.dtype.names is not None else form.dtype
    kind = "c" if form.dtype.names is not None or form.dtype.kind == "c" else "r"
    letters = f"f{number.itemsize // 2}" if number.kind == "c" else number.str[1:]
    if letters not in TYPES:
        msg = f"source {stream.source} has {form.payload_type}, and SigMF no type for it: leave it out with --source"
        raise ExportError(msg)
    size = int(letters[1:])
    return f"{kind}{letters[0]}{size * 8}{'_le' if size > 1 else ''}"


def sample_rate(description: Any) -> float | None:
    """Returns the samples per second that a source states; None where it states none."""
    rate = description.get("sample_rate") if isinstance(description, dict) else None
    if isinstance(rate, bool) or not isinstance(rate, (int, float)) or not 0 < rate <= 1e12:
        return None
    return float(rate)


def _digest(file: IO[bytes]) -> Any:
    # Python 3.10 has no hashlib.file_digest.
    checksum = hashlib.sha512()
    while part := file.read(1 << 20):
        checksum.update(part)
    return checksum
