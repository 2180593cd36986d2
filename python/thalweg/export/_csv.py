"""CSV export: one table per stream, one row per fragment. See docs/export.md."""

from __future__ import annotations

import csv
from typing import IO, TYPE_CHECKING, Any

import numpy as np

from thalweg.export._reading import COLUMN_TYPES, NO_UTC_TIME, Batch, MissingFragment, Stream, utc_ns
from thalweg.export._writer import ExportContext, FormatWriter, write_description

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

# Number of values that are converted to text together; Python objects take much more memory than array elements.
VALUES_PER_PART = 1 << 16
# Columns of a stream's table.
COLUMN_NAMES = [*COLUMN_TYPES, "time_utc", "source", "payload_type", "dtype", "shape", "data"]


class Tables:
    """Folder of files that are only appended to, and truncated to their last checkpoint when they are opened."""

    def __init__(self, folder: Path, lengths: dict[str, int]) -> None:
        """Opens `folder`, truncates its files to `lengths` in bytes, and removes files that have no length."""
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
        """Returns the file of this name, positioned at its end. Creates it if it does not exist."""
        if name not in self._files:
            path = self._folder / name
            self._files[name] = path.open("r+b" if path.exists() else "w+b")
        return self._files[name]

    def checkpoint(self) -> dict[str, int]:
        """Flushes all files and returns their lengths in bytes."""
        for file in self._files.values():
            file.flush()
        return {name: file.tell() for name, file in self._files.items()}

    def close(self) -> None:
        """Closes all files."""
        for file in self._files.values():
            file.close()


class Csv(FormatWriter):
    """Writer of a folder of CSV files (RFC 4180, UTF-8)."""

    suffix = ".csv"
    compressions = ("none",)

    def __init__(self, output: Path, context: ExportContext, state: dict[str, Any] | None) -> None:
        super().__init__(output, context, state)
        self._tables = Tables(output, state or {})
        self._append_rows("missing.csv", ["event_id", "source", "reason"], ())

    def _append_rows(self, name: str, header: Sequence[str], rows: Any) -> None:
        """Appends rows to a table, after the header if the table is new."""
        file = self._tables.file(name)
        lines = csv.writer(_Utf8(file))
        if file.tell() == 0:
            lines.writerow(header)
        lines.writerows(rows)

    def append(self, stream: Stream, batch: Batch) -> None:
        form = stream.form
        dtype = form.dtype.str[1:] if form.dtype.names is None else f"c{form.dtype['r'].str[1:]}"
        columns = zip(*(column.tolist() for column in batch.columns().values()), strict=True)
        times = utc_texts(utc_ns(batch))
        rows = (
            [*row, time, stream.source, form.payload_type, dtype, "x".join(map(str, array.shape)), _array_text(array)]
            for row, time, array in zip(columns, times, batch.arrays, strict=True)
        )
        self._append_rows(f"{stream.name}.csv", COLUMN_NAMES, rows)

    def add_missing(self, missing: Sequence[MissingFragment]) -> None:
        self._append_rows("missing.csv", [], missing)

    def checkpoint(self) -> dict[str, Any]:
        return self._tables.checkpoint()

    def finish(self, summary: dict[str, Any], streams: Sequence[Stream]) -> None:
        write_description(self.output, summary)

    def close(self) -> None:
        self._tables.close()


class _Utf8:
    """Text stream that writes UTF-8 to a binary file, for csv.writer."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file

    def write(self, text: str) -> None:
        self._file.write(text.encode())


def utc_texts(times: NDArray[np.int64]) -> Iterator[str]:
    """Converts UTC nanoseconds to ISO 8601 with nanoseconds, and NO_UTC_TIME to ""."""
    texts = np.datetime_as_string(times.astype("datetime64[ns]"), unit="ns")
    return (
        f"{text}Z" if time != NO_UTC_TIME else "" for text, time in zip(texts.tolist(), times.tolist(), strict=True)
    )


def _array_text(array: NDArray[Any]) -> str:
    """Returns the values of an array separated by spaces, or a one-dimensional array of bytes in hexadecimal."""
    flat = array.reshape(-1)
    if flat.dtype == np.uint8 and array.ndim == 1:
        return flat.tobytes().hex()
    parts = (flat[at : at + VALUES_PER_PART] for at in range(0, len(flat), VALUES_PER_PART))
    return " ".join(" ".join(_value_texts(part)) for part in parts)


def _value_texts(flat: NDArray[Any]) -> Iterator[str]:
    """Yields a text for each value that is parsed to exactly the same value."""
    if flat.dtype.names is not None:
        return (f"{real}{imaginary:+}j" for real, imaginary in flat.tolist())
    if flat.dtype.kind == "c":
        # complex(str(value)) does not preserve -0.0 and infinities.
        pairs = zip(np.real(flat).tolist(), np.imag(flat).tolist(), strict=True)
        return (f"{real!r}{'' if repr(part).startswith('-') else '+'}{part!r}j" for real, part in pairs)
    # str of a NumPy float32 is shorter than that of the same value as a Python float.
    return map(str, flat if flat.dtype == np.float32 else flat.tolist())
