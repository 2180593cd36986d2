"""Parquet tables: a folder for each stream, a row for each fragment. See docs/export.md."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING, Any

import numpy as np

from thalweg.export._reading import NO_TIME, Batch, Form, Missing, Stream, utc_ns
from thalweg.export._writer import About, Writer, library, write_description

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from numpy.typing import NDArray


class Parquet(Writer):
    """Writes a folder of Parquet files. A file is closed where it is noted how far the export is."""

    suffix = ".parquet"

    def __init__(self, output: Path, about: About, state: dict[str, Any] | None) -> None:
        """See `Writer`."""
        super().__init__(output, about, state)
        self._pa = library("pyarrow", "parquet")
        self._parquet = library("pyarrow.parquet", "parquet")
        self._part: int = state["part"] if state else 0
        self._open: dict[str, Any] = {}
        output.mkdir(exist_ok=True)
        for file in output.glob("*/*.parquet"):
            if int(file.stem) >= self._part:
                file.unlink()
        for folder in [folder for folder in output.iterdir() if folder.is_dir() and not any(folder.iterdir())]:
            shutil.rmtree(folder)

    def _write(self, name: str, table: Any) -> None:
        if name not in self._open:
            folder = self.output / name
            folder.mkdir(exist_ok=True)
            compression = "NONE" if self.about.compression == "none" else "GZIP"
            file = folder / f"{self._part:05d}.parquet"
            self._open[name] = self._parquet.ParquetWriter(file, table.schema, compression=compression)
        self._open[name].write_table(table)

    def append(self, stream: Stream, batch: Batch) -> None:
        """See `Writer`."""
        pa, count = self._pa, len(batch.arrays)
        columns = {name: pa.array(values) for name, values in batch.columns().items()}
        utc = utc_ns(batch)
        columns["time_utc"] = pa.array(utc, pa.timestamp("ns", "UTC"), mask=utc == NO_TIME)
        # Status bit 9: the source computed none.
        columns["crc32c"] = pa.array(batch.crc32c, mask=(batch.status & 1 << 9) != 0)
        columns["source"] = pa.array([stream.source] * count)
        columns["payload_type"] = pa.array([stream.form.payload_type] * count)
        lengths = batch.lengths
        shapes = np.tile(np.array([0, *stream.form.row], np.int64), (count, 1))
        shapes[:, 0] = lengths
        columns["shape"] = self._lists(np.full(count, shapes.shape[1]), shapes.reshape(-1))
        columns["data"] = self._data(stream.form, batch)
        known = {"run": self.about.info, "source": self.about.source(stream.source), "start_time": self.about.started}
        described = {f"thalweg.{key}": json.dumps(value, ensure_ascii=False) for key, value in known.items()}
        described["thalweg.form"] = json.dumps(stream.form.to_json())
        self._write(stream.name, pa.table(columns).replace_schema_metadata(described))

    def _data(self, form: Form, batch: Batch) -> Any:
        """Returns the samples: binary where they are bytes, and lists of numbers otherwise."""
        if form.payload_type in ("raw", "vdif"):
            flat = np.concatenate([array.reshape(-1) for array in batch.arrays])
            ends = np.concatenate(([0], np.cumsum(batch.lengths)))
            buffers = [None, self._pa.py_buffer(ends.astype(np.int32)), self._pa.py_buffer(flat)]
            return self._pa.BinaryArray.from_buffers(self._pa.binary(), len(batch.arrays), buffers)
        flat, numbers = numbers_of(form, batch.joined())
        return self._lists(batch.lengths * numbers, flat)

    def _lists(self, lengths: NDArray[np.int64], flat: NDArray[Any]) -> Any:
        offsets = np.concatenate(([0], np.cumsum(lengths))).astype(np.int32)
        return self._pa.ListArray.from_arrays(self._pa.array(offsets), self._pa.array(flat))

    def add_missing(self, missing: Sequence[Missing]) -> None:
        """See `Writer`."""
        event = self._pa.array([row.event for row in missing], self._pa.uint64())
        columns = {"event_id": event, "source": self._pa.array([row.source for row in missing])}
        self._write("missing", self._pa.table(columns | {"reason": self._pa.array([row.reason for row in missing])}))

    def checkpoint(self) -> dict[str, Any]:
        """See `Writer`."""
        self.close()
        self._part += 1
        return {"part": self._part}

    def finish(self, summary: dict[str, Any], streams: Sequence[Stream]) -> None:
        """See `Writer`."""
        self.close()
        write_description(self.output, summary)

    def close(self) -> None:
        """See `Writer`."""
        for file in self._open.values():
            file.close()
        self._open.clear()


def numbers_of(form: Form, array: NDArray[Any]) -> tuple[NDArray[Any], int]:
    """Returns the numbers of an array, each real part before its imaginary one, and their count in a row."""
    row = int(np.prod(form.row, dtype=np.int64))
    flat = np.ascontiguousarray(array).reshape(-1)
    if form.dtype.names is not None:
        return flat.view(form.dtype["r"]), 2 * row
    if form.dtype.kind == "c":
        return flat.view(np.dtype(f"f{form.dtype.itemsize // 2}")), 2 * row
    return flat, row
