"""Parquet export: one table per stream, one row per fragment. See docs/export.md."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING, Any

import numpy as np

from thalweg.export._reading import NO_UTC_TIME, Batch, Form, MissingFragment, Stream, utc_ns
from thalweg.export._writer import ExportContext, FormatWriter, import_library, write_description

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from numpy.typing import NDArray


class Parquet(FormatWriter):
    """Writer of a folder of Parquet files. Each checkpoint begins a new file for each stream."""

    suffix = ".parquet"

    def __init__(self, output: Path, context: ExportContext, state: dict[str, Any] | None) -> None:
        super().__init__(output, context, state)
        self._pa = import_library("pyarrow", "parquet")
        self._parquet = import_library("pyarrow.parquet", "parquet")
        # Number of the files after the last checkpoint.
        self._part: int = state["part"] if state else 0
        # Open files, by the name of the stream.
        self._files: dict[str, Any] = {}
        output.mkdir(exist_ok=True)
        for file in output.glob("*/*.parquet"):
            if int(file.stem) >= self._part:
                file.unlink()
        for folder in [folder for folder in output.iterdir() if folder.is_dir() and not any(folder.iterdir())]:
            shutil.rmtree(folder)

    def _write_table(self, name: str, table: Any) -> None:
        """Appends a table to the open file of a stream, or to a new one."""
        if name not in self._files:
            folder = self.output / name
            folder.mkdir(exist_ok=True)
            compression = "NONE" if self.context.compression == "none" else "GZIP"
            file = folder / f"{self._part:05d}.parquet"
            self._files[name] = self._parquet.ParquetWriter(file, table.schema, compression=compression)
        self._files[name].write_table(table)

    def append(self, stream: Stream, batch: Batch) -> None:
        pa, count = self._pa, len(batch.arrays)
        columns = {name: pa.array(values) for name, values in batch.columns().items()}
        utc = utc_ns(batch)
        columns["time_utc"] = pa.array(utc, pa.timestamp("ns", "UTC"), mask=utc == NO_UTC_TIME)
        # Status bit 9: the source did not compute a checksum.
        columns["crc32c"] = pa.array(batch.crc32c, mask=(batch.status & 1 << 9) != 0)
        columns["source"] = pa.array([stream.source] * count)
        columns["payload_type"] = pa.array([stream.form.payload_type] * count)
        lengths = batch.lengths
        shapes = np.tile(np.array([0, *stream.form.row], np.int64), (count, 1))
        shapes[:, 0] = lengths
        columns["shape"] = self._list_array(np.full(count, shapes.shape[1]), shapes.reshape(-1))
        columns["data"] = self._data_column(stream.form, batch)
        metadata = {
            "run": self.context.run_info,
            "source": self.context.source(stream.source),
            "start_time": self.context.started,
        }
        encoded = {f"thalweg.{key}": json.dumps(value, ensure_ascii=False) for key, value in metadata.items()}
        encoded["thalweg.form"] = json.dumps(stream.form.to_json())
        self._write_table(stream.name, pa.table(columns).replace_schema_metadata(encoded))

    def _data_column(self, form: Form, batch: Batch) -> Any:
        """Returns the column `data`: binary for the payload types raw and vdif, otherwise lists of numbers."""
        if form.payload_type in ("raw", "vdif"):
            flat = np.concatenate([array.reshape(-1) for array in batch.arrays])
            ends = np.concatenate(([0], np.cumsum(batch.lengths)))
            buffers = [None, self._pa.py_buffer(ends.astype(np.int32)), self._pa.py_buffer(flat)]
            return self._pa.BinaryArray.from_buffers(self._pa.binary(), len(batch.arrays), buffers)
        flat, numbers = flatten_numbers(form, batch.joined())
        return self._list_array(batch.lengths * numbers, flat)

    def _list_array(self, lengths: NDArray[np.int64], flat: NDArray[Any]) -> Any:
        """Divides a one-dimensional array into lists of the given lengths."""
        offsets = np.concatenate(([0], np.cumsum(lengths))).astype(np.int32)
        return self._pa.ListArray.from_arrays(self._pa.array(offsets), self._pa.array(flat))

    def add_missing(self, missing: Sequence[MissingFragment]) -> None:
        event = self._pa.array([row.event for row in missing], self._pa.uint64())
        columns = {"event_id": event, "source": self._pa.array([row.source for row in missing])}
        self._write_table(
            "missing", self._pa.table(columns | {"reason": self._pa.array([row.reason for row in missing])})
        )

    def checkpoint(self) -> dict[str, Any]:
        self.close()
        self._part += 1
        return {"part": self._part}

    def finish(self, summary: dict[str, Any], streams: Sequence[Stream]) -> None:
        self.close()
        write_description(self.output, summary)

    def close(self) -> None:
        for file in self._files.values():
            file.close()
        self._files.clear()


def flatten_numbers(form: Form, array: NDArray[Any]) -> tuple[NDArray[Any], int]:
    """Returns a one-dimensional array of real numbers, and their count per row along the first axis.

    A complex number is two numbers: the real part, then the imaginary part.
    """
    row = int(np.prod(form.row, dtype=np.int64))
    flat = np.ascontiguousarray(array).reshape(-1)
    if form.dtype.names is not None:
        return flat.view(form.dtype["r"]), 2 * row
    if form.dtype.kind == "c":
        return flat.view(np.dtype(f"f{form.dtype.itemsize // 2}")), 2 * row
    return flat, row
