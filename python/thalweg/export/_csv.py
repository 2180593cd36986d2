"""Text tables: one for each stream, a row for each fragment. See docs/export.md."""

from __future__ import annotations

import csv
from typing import IO, TYPE_CHECKING, Any

import numpy as np

from thalweg.export._reading import COLUMNS, NO_TIME, Batch, Missing, Stream, utc_ns
from thalweg.export._writer import About, Writer, write_description

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

VALUES_AT_A_TIME = 1 << 16
HEAD = [*COLUMNS, "time_utc", "source", "payload_type", "dtype", "shape", "data"]


class Tables:
    """Files that grow at their end, and are cut off where an earlier try was recorded."""

    def __init__(self, folder: Path, lengths: dict[str, int]) -> None:
        """Opens the files whose lengths are given, and removes all others."""
        folder.mkdir(exist_ok=True)
        self._folder = folder
        self._files: dict[str, IO[bytes]] = {}
        for path in folder.iterdir():
            if path.name not in lengths:
                path.unlink()
        for name, length in lengths.items():
            self.file(name).truncate(length)
            self.file(name).seek(length)

    def file(self, name: str) -> IO[bytes]:
        """Returns a file to write to."""
        if name not in self._files:
            path = self._folder / name
            self._files[name] = path.open("r+b" if path.exists() else "w+b")
        return self._files[name]

    def checkpoint(self) -> dict[str, int]:
        """Hands all to the system, and returns the lengths."""
        for file in self._files.values():
            file.flush()
        return {name: file.tell() for name, file in self._files.items()}

    def close(self) -> None:
        """Closes the files."""
        for file in self._files.values():
            file.close()


class Csv(Writer):
    """Writes a folder of CSV files (RFC 4180, UTF-8)."""

    suffix = ".csv"
    compressions = ("none",)

    def __init__(self, output: Path, about: About, state: dict[str, Any] | None) -> None:
        """See `Writer`."""
        super().__init__(output, about, state)
        self._tables = Tables(output, state or {})
        self._rows("missing.csv", ["event_id", "source", "reason"], ())

    def _rows(self, name: str, head: Sequence[str], rows: Any) -> None:
        file = self._tables.file(name)
        lines = csv.writer(_Utf8(file))
        if file.tell() == 0:
            lines.writerow(head)
        lines.writerows(rows)

    def append(self, stream: Stream, batch: Batch) -> None:
        """See `Writer`."""
        form = stream.form
        dtype = form.dtype.str[1:] if form.dtype.names is None else f"c{form.dtype['r'].str[1:]}"
        known = zip(*(column.tolist() for column in batch.columns().values()), strict=True)
        times = utc_texts(utc_ns(batch))
        rows = (
            [*row, time, stream.source, form.payload_type, dtype, "x".join(map(str, array.shape)), _text(array)]
            for row, time, array in zip(known, times, batch.arrays, strict=True)
        )
        self._rows(f"{stream.name}.csv", HEAD, rows)

    def add_missing(self, missing: Sequence[Missing]) -> None:
        """See `Writer`."""
        self._rows("missing.csv", [], missing)

    def checkpoint(self) -> dict[str, Any]:
        """See `Writer`."""
        return self._tables.checkpoint()

    def finish(self, summary: dict[str, Any], streams: Sequence[Stream]) -> None:
        """See `Writer`."""
        write_description(self.output, summary)

    def close(self) -> None:
        """See `Writer`."""
        self._tables.close()


class _Utf8:
    """Text into a file of bytes."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file

    def write(self, text: str) -> None:
        self._file.write(text.encode())


def utc_texts(times: NDArray[np.int64]) -> Iterator[str]:
    """Returns times in UTC as ISO 8601 with nanoseconds; "" where there is none."""
    texts = np.datetime_as_string(times.astype("datetime64[ns]"), unit="ns")
    return (f"{text}Z" if time != NO_TIME else "" for text, time in zip(texts.tolist(), times.tolist(), strict=True))


def _text(array: NDArray[Any]) -> str:
    """Returns the values of an array with spaces between; bytes without axes in hexadecimal."""
    flat = array.reshape(-1)
    if flat.dtype == np.uint8 and array.ndim == 1:
        return flat.tobytes().hex()
    # Python's numbers take much more memory than an array's.
    parts = (flat[at : at + VALUES_AT_A_TIME] for at in range(0, len(flat), VALUES_AT_A_TIME))
    return " ".join(" ".join(_words(part)) for part in parts)


def _words(flat: NDArray[Any]) -> Iterator[str]:
    """Yields the text of each value, which is the same value when it is read."""
    if flat.dtype.names is not None:
        return (f"{real}{imaginary:+}j" for real, imaginary in flat.tolist())
    if flat.dtype.kind == "c":
        # With Python's text of a complex number, -0.0 and infinities would not come back.
        pairs = zip(np.real(flat).tolist(), np.imag(flat).tolist(), strict=True)
        return (f"{real!r}{'' if repr(part).startswith('-') else '+'}{part!r}j" for real, part in pairs)
    # NumPy's text of a float32 is shorter than that of the same number as Python's.
    return map(str, flat if flat.dtype == np.float32 else flat.tolist())
