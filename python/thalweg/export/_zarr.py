"""Zarr groups, of version 3: a group for each stream, with an array of samples. See docs/export.md."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING, Any

import numpy as np

from thalweg.export._reading import COLUMNS, SECOND, Batch, Missing, Stream
from thalweg.export._writer import About, Writer, library

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

# A chunk, which is a file, has about so many bytes; a larger fragment is a chunk of its own.
CHUNK_BYTES = 4 << 20
COLUMN_CHUNK = 1 << 16


class Zarr(Writer):
    """Writes a group of Zarr, version 3, in a folder."""

    suffix = ".zarr"
    even = True

    def __init__(self, output: Path, about: About, state: dict[str, Any] | None) -> None:
        """See `Writer`."""
        super().__init__(output, about, state)
        self._zarr = library("zarr", "zarr")
        self._compressors = None if about.compression == "none" else [self._zarr.codecs.GzipCodec(level=4)]
        self._root = self._zarr.open_group(output, mode="a", zarr_format=3)
        # Rows of each array.
        self._rows: dict[str, int] = dict(state["rows"]) if state else {}
        self._sources = list(about.sources)
        self._reasons: list[str] = list(state["reasons"]) if state else []
        known = {path.split("/")[0] for path in self._rows}
        for folder in [entry for entry in output.iterdir() if entry.is_dir() and entry.name not in known]:
            shutil.rmtree(folder)
        for path, rows in self._rows.items():
            array = self._root[path]
            array.resize((rows, *array.shape[1:]))
        if "missing" not in self._root:
            missing = self._root.create_group("missing")
            for name, kind in (("event_id", np.uint64), ("source", np.uint32), ("reason", np.uint32)):
                self._array(missing, name, (), np.dtype(kind), COLUMN_CHUNK, ["missing"])

    def _array(
        self, group: Any, name: str, row: tuple[int, ...], dtype: np.dtype[Any], rows: int, axes: list[str]
    ) -> Any:
        array = group.create_array(
            name,
            shape=(0, *row),
            chunks=(rows, *row),
            dtype=dtype,
            compressors=self._compressors,
            dimension_names=axes,
        )
        self._rows[array.path] = 0
        return array

    def _create(self, stream: Stream) -> Any:
        form, source = stream.form, self.about.source(stream.source)
        group = self._root.create_group(stream.name)
        is_pair = form.dtype.names is not None
        group.attrs.update(
            source=stream.source,
            name=source["name"],
            description=source["description"],
            form=json.dumps(form.to_json()),
            payload_type=form.payload_type,
            complex_pairs=is_pair,
        )
        axes, row, dtype = form.axes, form.row, form.dtype
        if is_pair:
            axes, row, dtype = [*axes, "real_imaginary"], (*row, 2), form.dtype["r"]
        if form.length is None:
            axes = ["row", *axes[1:]] if axes[0] != "row" else ["all_rows", *axes[1:]]
            offsets = self._array(group, "offsets", (), np.dtype(np.int64), COLUMN_CHUNK, ["boundary"])
            offsets.attrs["description"] = "fragment i is data[offsets[i]:offsets[i+1]]"
            self._extend(offsets, np.zeros(1, np.int64))
        else:
            axes, row = ["event", *axes], (form.length, *row)
        row_bytes = dtype.itemsize * int(np.prod(row, dtype=np.int64))
        self._array(group, "data", row, dtype, max(1, CHUNK_BYTES // max(row_bytes, 1)), axes)
        for name, kind in COLUMNS.items():
            self._array(group, name, (), np.dtype(kind), COLUMN_CHUNK, ["event"])
        time = self._array(group, "time", (), np.dtype(np.float64), COLUMN_CHUNK, ["event"])
        time.attrs.update(units="s", since=self.about.started, description="time since the run began")
        return group

    def _extend(self, array: Any, values: Any) -> None:
        at = self._rows[array.path]
        array.resize((at + len(values), *array.shape[1:]))
        array[at:] = values
        self._rows[array.path] = at + len(values)

    def append(self, stream: Stream, batch: Batch) -> None:
        """See `Writer`."""
        group = self._root[stream.name] if stream.name in self._root else self._create(stream)
        for name, values in batch.columns().items():
            self._extend(group[name], values)
        self._extend(group["time"], (batch.tai_ns - self.about.began) / SECOND)
        if stream.form.length is None:
            offsets = group["offsets"]
            last = int(offsets[self._rows[offsets.path] - 1])
            self._extend(offsets, last + np.cumsum(batch.lengths))
            values = batch.joined()
        else:
            values = np.stack(batch.arrays)
        if stream.form.dtype.names is not None:
            number = stream.form.dtype["r"]
            values = np.ascontiguousarray(values).view(number).reshape(*values.shape, 2)
        self._extend(group["data"], values)

    def add_missing(self, missing: Sequence[Missing]) -> None:
        """See `Writer`."""
        for row in missing:
            if row.reason not in self._reasons:
                self._reasons.append(row.reason)
        table = self._root["missing"]
        self._extend(table["event_id"], np.array([row.event for row in missing], np.uint64))
        self._extend(table["source"], np.array([self._sources.index(row.source) for row in missing], np.uint32))
        self._extend(table["reason"], np.array([self._reasons.index(row.reason) for row in missing], np.uint32))

    def checkpoint(self) -> dict[str, Any]:
        """See `Writer`."""
        return {"rows": self._rows, "reasons": self._reasons}

    def finish(self, summary: dict[str, Any], streams: Sequence[Stream]) -> None:
        """See `Writer`."""
        self._root["missing"].attrs.update(sources=self._sources, reasons=self._reasons)
        self._root.attrs.update(thalweg=summary)
