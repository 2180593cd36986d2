"""SigMF export: one recording per stream. See docs/export.md."""

from __future__ import annotations

import hashlib
import json
from typing import IO, TYPE_CHECKING, Any, NamedTuple

import numpy as np

from thalweg.export._csv import Tables, utc_texts
from thalweg.export._partial import ExportError
from thalweg.export._reading import NS_PER_SECOND, Batch, Form, MissingFragment, Stream, utc_ns
from thalweg.export._writer import ExportContext, FormatWriter, write_description

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

# Values of a fragment that are kept in a temporary file until the metadata are written.
ROW_TYPE = np.dtype(
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
# Number of fragments whose values are read together.
ROWS_PER_READ = 1 << 14
# Largest index of a sample that SigMF allows.
MAX_SAMPLE_INDEX = (1 << 63) - 1
# Types that SigMF has, also as real and imaginary parts.
NUMBER_TYPES = {"u1", "i1", "u2", "i2", "u4", "i4", "f4", "f8"}


class Sigmf(FormatWriter):
    """Writer of a folder of SigMF recordings."""

    suffix = ".sigmf"
    compressions = ("none",)

    def __init__(self, output: Path, context: ExportContext, state: dict[str, Any] | None) -> None:
        super().__init__(output, context, state)
        saved = state or {"data": {}, "rows": {}}
        self._data = Tables(output, saved["data"])
        self._rows = Tables(output.with_name("rows"), saved["rows"])

    def append(self, stream: Stream, batch: Batch) -> None:
        datatype(stream)
        file = self._data.file(f"{stream.name}.sigmf-data")
        for array in batch.arrays:
            file.write(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
        rows = np.zeros(len(batch.arrays), ROW_TYPE)
        for name, column in batch.columns().items():
            if name in ROW_TYPE.names:  # type: ignore[operator]
                rows[name] = column
        rows["utc_ns"], rows["length"] = utc_ns(batch), batch.lengths
        self._rows.file(stream.name).write(rows.tobytes())

    def add_missing(self, missing: Sequence[MissingFragment]) -> None:
        for row in missing:
            file = self._rows.file(f"missing-{row.source}")
            file.write(f"{row.event}\t{row.reason}\n".encode())

    def checkpoint(self) -> dict[str, Any]:
        return {"data": self._data.checkpoint(), "rows": self._rows.checkpoint()}

    def finish(self, summary: dict[str, Any], streams: Sequence[Stream]) -> None:
        self._data.checkpoint()
        self._rows.checkpoint()
        described: set[str] = set()
        for stream in streams:
            # The first recording of a source has the annotations of its missing fragments.
            missing = None if stream.source in described else f"missing-{stream.source}"
            described.add(stream.source)
            self._write_metadata(stream, missing)
        write_description(self.output, summary)

    def _write_metadata(self, stream: Stream, missing: str | None) -> None:
        """Writes the metadata of a recording piece by piece, since they may be larger than the memory.

        `missing` is the name of the temporary file with missing fragments.
        """
        rows = self.output.with_name("rows")
        meta = self._data.file(f"{stream.name}.sigmf-meta")
        meta.seek(0)
        meta.truncate()
        write = _JsonObject(meta)
        write.text(b'{\n"global": ' + json.dumps(self._global_object(stream), indent=1, ensure_ascii=False).encode())
        rate = sample_rate(self.context.source(stream.source)["description"])
        write.array("captures", captures(_read_fragments(rows / stream.name), rate))
        lost = _read_missing(rows / missing) if missing is not None and (rows / missing).exists() else iter(())
        write.array("annotations", _annotations(_read_fragments(rows / stream.name), lost))
        write.text(b"\n}\n")
        meta.flush()

    def _global_object(self, stream: Stream) -> dict[str, Any]:
        info, source = self.context.run_info, self.context.source(stream.source)
        with (self.output / f"{stream.name}.sigmf-data").open("rb") as file:
            checksum = hashlib.file_digest(file, "sha512") if hasattr(hashlib, "file_digest") else _file_digest(file)
        values: dict[str, Any] = {
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
        return values if rate is None else values | {"core:sample_rate": rate}

    def close(self) -> None:
        self._data.close()
        self._rows.close()


class _JsonObject:
    """JSON object that is written piece by piece."""

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
    """Fragment in a recording."""

    # Index of its first sample in the recording.
    start: int
    # Number of samples of each channel.
    length: int
    event: int
    # TAI nanoseconds since 1970.
    tai: int
    # UTC as ISO 8601, or "" before 1972.
    utc: str
    sequence: int
    status: int
    crc32c: int


def _read_fragments(path: Path) -> Iterator[Fragment]:
    """Yields the fragments of a stream from its temporary file."""
    start = 0
    with path.open("rb") as file:
        while part := file.read(ROWS_PER_READ * ROW_TYPE.itemsize):
            rows = np.frombuffer(part, ROW_TYPE)
            for row, utc in zip(rows.tolist(), utc_texts(rows["utc_ns"]), strict=True):
                event, tai, _, length, sequence, status, crc32c = row
                yield Fragment(start, length, event, tai, utc, sequence, status, crc32c)
                start += length


def _read_missing(path: Path) -> Iterator[MissingFragment]:
    """Yields the missing fragments of a source from its temporary file."""
    with path.open() as file:
        for line in file:
            event, reason = line.rstrip("\n").split("\t")
            yield MissingFragment(int(event), "", reason)


def captures(fragments: Iterator[Fragment], rate: float | None) -> Iterator[dict[str, Any]]:
    """Yields a capture for the first sample, and for each sample after a gap.

    `rate` is the number of samples per second, or None if it is not known. `core:global_index` is the index of the
    first sample if no samples were missing: computed from time stamps with `rate`, otherwise from event numbers, with
    the length of the previous event for each missing one.
    """
    first: Fragment | None = None
    last: Fragment | None = None
    index = 0
    for fragment in fragments:
        first = first or fragment
        if last is None:
            is_gap = True
        elif rate is not None:
            # The difference is computed with integers: as a float, a date has no nanoseconds.
            expected = index + last.length
            measured = round((fragment.tai - first.tai) * rate / NS_PER_SECOND)
            is_gap = abs(measured - expected) > 1
            index = max(measured, expected) if is_gap else expected
        else:
            is_gap = fragment.event != last.event + 1
            index += last.length * (fragment.event - last.event)
        if is_gap:
            capture: dict[str, Any] = {"core:sample_start": fragment.start}
            capture |= {"core:global_index": index} if index <= MAX_SAMPLE_INDEX else {}
            yield capture | ({"core:datetime": fragment.utc} if fragment.utc else {})
        last = fragment


def _annotations(fragments: Iterator[Fragment], missing: Iterator[MissingFragment]) -> Iterator[dict[str, Any]]:
    """Yields an annotation for each fragment, and one of 0 samples at the position of each missing fragment."""
    lost, end = next(missing, None), 0
    for fragment in fragments:
        while lost is not None and lost.event < fragment.event:
            yield _missing_annotation(lost, fragment.start)
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
        yield _missing_annotation(lost, end)
        lost = next(missing, None)


def _missing_annotation(row: MissingFragment, start: int) -> dict[str, Any]:
    return {
        "core:sample_start": start,
        "core:sample_count": 0,
        "core:label": f"missing {row.event}",
        "core:comment": row.reason,
        "thalweg:event_id": row.event,
        "thalweg:missing": row.reason,
    }


def datatype(stream: Stream) -> str:
    """Returns the SigMF data type of a stream, such as "ci16_le". Raises ExportError if SigMF has none."""
    form: Form = stream.form
    number = form.dtype["r"] if form.dtype.names is not None else form.dtype
    kind = "c" if form.dtype.names is not None or form.dtype.kind == "c" else "r"
    letters = f"f{number.itemsize // 2}" if number.kind == "c" else number.str[1:]
    if letters not in NUMBER_TYPES:
        msg = (
            f"source {stream.source} has the type {form.payload_type}, which SigMF does not have: "
            "select the other sources with --source, or export to another format"
        )
        raise ExportError(msg)
    size = int(letters[1:])
    return f"{kind}{letters[0]}{size * 8}{'_le' if size > 1 else ''}"


def sample_rate(description: Any) -> float | None:
    """Returns the samples per second in the description of a source, or None if it has no valid number."""
    rate = description.get("sample_rate") if isinstance(description, dict) else None
    if isinstance(rate, bool) or not isinstance(rate, (int, float)) or not 0 < rate <= 1e12:
        return None
    return float(rate)


def _file_digest(file: IO[bytes]) -> Any:
    """Returns the SHA-512 of a file, for Python 3.10, which does not have hashlib.file_digest."""
    checksum = hashlib.sha512()
    while part := file.read(1 << 20):
        checksum.update(part)
    return checksum
