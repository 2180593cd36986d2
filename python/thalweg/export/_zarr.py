"""Zarr export: one group per stream, with an array of samples. See docs/export.md."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING, Any

import numpy as np

from thalweg.export._reading import COLUMN_TYPES, Batch, MissingFragment, Stream
from thalweg.export._writer import ExportContext, FormatWriter, import_library

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

# Size of a chunk of samples, which is one file. A larger fragment is one chunk.
CHUNK_BYTES = 4 << 20
# Number of rows in a chunk of the other arrays.
COLUMN_CHUNK_ROWS = 1 << 16


class Zarr(FormatWriter):
    """Writer of a Zarr group of format version 3."""

    suffix = ".zarr"
    fixed_length = True

    def __init__(self, output: Path, context: ExportContext, state: dict[str, Any] | None) -> None:
        super().__init__(output, context, state)
        self._zarr = import_library("zarr", "zarr")
        self._compressors = None if context.compression == "none" else [self._zarr.codecs.GzipCodec(level=4)]
        self._root = self._zarr.open_group(output, mode="a", zarr_format=3)
        # Number of rows of each array, by its path in the group.
        self._row_counts: dict[str, int] = dict(state["rows"]) if state else {}
        self._sources = list(context.sources)
        # Texts to which the array `missing/reason` has the indices.
        self._reasons: list[str] = list(state["reasons"]) if state else []
        saved_groups = {path.split("/")[0] for path in self._row_counts}
        for folder in [entry for entry in output.iterdir() if entry.is_dir() and entry.name not in saved_groups]:
            shutil.rmtree(folder)
        for path, rows in self._row_counts.items():
            array = self._root[path]
            array.resize((rows, *array.shape[1:]))
        if "missing" not in self._root:
            missing = self._root.create_group("missing")
            for name, kind in (("event_id", np.uint64), ("source", np.uint32), ("reason", np.uint32)):
                self._create_array(missing, name, (), np.dtype(kind), COLUMN_CHUNK_ROWS, ["missing"])

    def _create_array(
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
        self._row_counts[array.path] = 0
        return array

    def _create_stream(self, stream: Stream) -> Any:
        """Creates the group and arrays of a stream and returns the group."""
        form, source = stream.form, self.context.source(stream.source)
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
            offsets = self._create_array(group, "offsets", (), np.dtype(np.int64), COLUMN_CHUNK_ROWS, ["boundary"])
            offsets.attrs["description"] = "fragment i is data[offsets[i]:offsets[i+1]]"
            self._extend(offsets, np.zeros(1, np.int64))
        else:
            axes, row = ["event", *axes], (form.length, *row)
        row_bytes = dtype.itemsize * int(np.prod(row, dtype=np.int64))
        self._create_array(group, "data", row, dtype, max(1, CHUNK_BYTES // max(row_bytes, 1)), axes)
        for name, kind in COLUMN_TYPES.items():
            self._create_array(group, name, (), np.dtype(kind), COLUMN_CHUNK_ROWS, ["event"])
        time = self._create_array(group, "time", (), np.dtype(np.float64), COLUMN_CHUNK_ROWS, ["event"])
        time.attrs.update(units="s", since=self.context.started, description="time since the run began")
        return group

    def _extend(self, array: Any, values: Any) -> None:
        """Appends values to an array along its first axis."""
        first = self._row_counts[array.path]
        array.resize((first + len(values), *array.shape[1:]))
        array[first:] = values
        self._row_counts[array.path] = first + len(values)

    def append(self, stream: Stream, batch: Batch) -> None:
        group = self._root[stream.name] if stream.name in self._root else self._create_stream(stream)
        for name, values in batch.columns().items():
            self._extend(group[name], values)
        self._extend(group["time"], batch.seconds_since(self.context.began))
        if stream.form.length is None:
            offsets = group["offsets"]
            last = int(offsets[self._row_counts[offsets.path] - 1])
            self._extend(offsets, last + np.cumsum(batch.lengths))
            values = batch.joined()
        else:
            values = np.stack(batch.arrays)
        if stream.form.dtype.names is not None:
            number = stream.form.dtype["r"]
            values = np.ascontiguousarray(values).view(number).reshape(*values.shape, 2)
        self._extend(group["data"], values)

    def add_missing(self, missing: Sequence[MissingFragment]) -> None:
        for row in missing:
            if row.reason not in self._reasons:
                self._reasons.append(row.reason)
        table = self._root["missing"]
        self._extend(table["event_id"], np.array([row.event for row in missing], np.uint64))
        self._extend(table["source"], np.array([self._sources.index(row.source) for row in missing], np.uint32))
        self._extend(table["reason"], np.array([self._reasons.index(row.reason) for row in missing], np.uint32))

    def checkpoint(self) -> dict[str, Any]:
        return {"rows": self._row_counts, "reasons": self._reasons}

    def finish(self, summary: dict[str, Any], streams: Sequence[Stream]) -> None:
        self._root["missing"].attrs.update(sources=self._sources, reasons=self._reasons)
        self._root.attrs.update(thalweg=summary)
