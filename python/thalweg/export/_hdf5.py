"""NeXus and HDF5 export, in the layout of areaDetector. See docs/export.md."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np

from thalweg.export._journal import JournaledFile
from thalweg.export._reading import COLUMN_TYPES, Batch, MissingFragment, Stream
from thalweg.export._writer import ExportContext, FormatWriter, import_library

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

# Size of a chunk of several fragments of equal length. A larger fragment is one chunk.
CHUNK_BYTES = 64 << 10
# Size of a chunk of `data` for fragments of different lengths.
VARIABLE_LENGTH_CHUNK_BYTES = 1 << 20
# Number of rows in a chunk of the other datasets.
COLUMN_CHUNK_ROWS = 4096
# Attributes `units` and `long_name` of the datasets with one value per fragment.
COLUMN_UNITS = {"tai_ns": "ns", "window_ns": "ns"}
COLUMN_TEXTS = {
    "event_id": "number of the event",
    "tai_ns": "time in TAI nanoseconds since 1970-01-01 00:00:00 TAI",
    "sequence": "counts the source's fragments; wraps",
    "window_ns": "time that the fragment covers",
    "status": "status bits of the fragment: see thalweg_status_bits",
    "crc32c": "CRC32C of the payload as the source computed it; 0 where status bit 9 is set",
}
# Attribute `thalweg_status_bits`; the bits are defined in docs/wire.md, "Fragment header".
STATUS_BITS = (
    "0 truncated, 1 corrupt, 6 simulated, 7 replayed, 8 empty, 9 no-payload-crc, 12 uncertain, 13 arrival-time, "
    "16 and 17 clock: 1 locked, 2 holdover, 3 free-running"
)


class Hdf5(FormatWriter):
    """Writer of a NeXus file with the suffix .h5."""

    suffix = ".h5"
    fixed_length = True

    def __init__(self, output: Path, context: ExportContext, state: dict[str, Any] | None) -> None:
        super().__init__(output, context, state)
        self._h5py = import_library("h5py", "nexus and hdf5")
        self._disk = JournaledFile(output, state)
        self._file = self._h5py.File(self._disk, "r+" if state else "w")
        self._compression: dict[str, Any] = {}
        if context.compression == "gzip":
            self._compression = {"compression": "gzip", "compression_opts": 4, "shuffle": True}
        if not state:
            self._describe_run()

    def _create_group(self, parent: Any, name: str, nexus_class: str) -> Any:
        group = parent.create_group(name)
        group.attrs["NX_class"] = nexus_class
        return group

    def _describe_run(self) -> None:
        """Creates the groups and datasets that do not depend on fragments."""
        info = self.context.run_info
        self._file.attrs["NX_class"] = "NXroot"
        self._file.attrs["creator"] = "thalweg export"
        entry = self._create_group(self._file, "entry", "NXentry")
        self._file.attrs["default"] = "entry"
        entry["title"] = f"run {info['run']}"
        entry["entry_identifier"] = str(info["run"])
        for name, time in (("start_time", self.context.started), ("end_time", self.context.ended)):
            if time is not None:
                entry[name] = time
        entry["program_name"] = info["writer"]["program"]
        entry["program_name"].attrs["version"] = info["writer"]["version"]
        if isinstance(info.get("comment"), str):
            notes = self._create_group(entry, "notes", "NXnote")
            notes["type"], notes["data"] = "text/plain", info["comment"]
        collection = self._create_group(entry, "thalweg", "NXcollection")
        collection["run_json"] = json.dumps(info, ensure_ascii=False)
        collection["state"] = info["state"]
        collection["reasons"] = np.array(info["reasons"], self._h5py.string_dtype())
        collection["began_tai_ns"] = np.int64(info["began"])
        if "metadata" in info:
            collection["metadata_json"] = json.dumps(info["metadata"], ensure_ascii=False)
        missing = self._create_group(entry, "missing", "NXcollection")
        missing.attrs["description"] = "fragments that are not in this file, with the reason"
        for name, kind in (("event_id", "<u8"), ("source", "S24"), ("reason", "S48")):
            missing.create_dataset(name, (0,), kind, maxshape=(None,), chunks=(COLUMN_CHUNK_ROWS,))
        instrument = self._create_group(entry, "instrument", "NXinstrument")
        instrument["name"] = str(info["writer"].get("host", "thalweg"))
        for source, name in self.context.sources.items():
            self._describe_source(self._create_group(instrument, name, "NXdetector"), source)

    def _describe_source(self, detector: Any, source: str) -> None:
        """Writes the name and description of a source from run.json into its NXdetector."""
        stated = self.context.source(source)
        detector["description"] = stated["name"]
        detector["local_name"] = stated["name"]
        detector.attrs["thalweg_source"] = source
        detector.attrs["thalweg_status_bits"] = STATUS_BITS
        detector.attrs["thalweg_description"] = json.dumps(stated["description"], ensure_ascii=False)

    def _create_stream(self, stream: Stream) -> Any:
        """Creates the datasets of a stream and returns its NXdetector."""
        form, instrument = stream.form, self._file["entry/instrument"]
        if stream.name not in instrument:
            self._describe_source(self._create_group(instrument, stream.name, "NXdetector"), stream.source)
        group = instrument[stream.name]
        group.attrs["thalweg_payload_type"] = form.payload_type
        group.attrs["thalweg_axes"] = form.axes
        row_bytes = form.dtype.itemsize * int(np.prod(form.row, dtype=np.int64))
        if form.length is None:
            rows = max(1, VARIABLE_LENGTH_CHUNK_BYTES // max(row_bytes, 1))
            shape, chunks = (0, *form.row), (rows, *form.row)
            offsets = group.create_dataset("offsets", (1,), "<i8", maxshape=(None,), chunks=(COLUMN_CHUNK_ROWS,))
            offsets.attrs["description"] = "fragment i is data[offsets[i]:offsets[i+1]]"
        else:
            rows = max(1, CHUNK_BYTES // (row_bytes * form.length))
            shape, chunks = (0, *form.shape), (rows, *form.shape)
        limits = (None, *shape[1:])
        data = group.create_dataset("data", shape, form.dtype, maxshape=limits, chunks=chunks, **self._compression)
        data.attrs["long_name"] = self.context.source(stream.source)["name"]
        if form.payload_type.startswith("image-") and form.length is not None:
            data.attrs["interpretation"] = "image"
        for name, kind in COLUMN_TYPES.items():
            self._create_column(group, name, np.dtype(kind).newbyteorder("<"))
        time = group.create_dataset("time", (0,), "<f8", maxshape=(None,), chunks=(COLUMN_CHUNK_ROWS,))
        time.attrs["units"] = "s"
        if self.context.started is not None:
            time.attrs["start"] = self.context.started
        time.attrs["long_name"] = "time since the run began (s)"
        self._create_plot(stream, group)
        return group

    def _create_column(self, group: Any, name: str, kind: Any) -> None:
        column = group.create_dataset(name, (0,), kind, maxshape=(None,), chunks=(COLUMN_CHUNK_ROWS,))
        column.attrs["long_name"] = COLUMN_TEXTS[name]
        if name in COLUMN_UNITS:
            column.attrs["units"] = COLUMN_UNITS[name]

    def _create_plot(self, stream: Stream, detector: Any) -> None:
        """Creates the NXdata of a stream from hard links. That of the first stream is the default plot."""
        entry, form = self._file["entry"], stream.form
        if form.dtype.names is not None:
            # NeXus has no plots of complex integers.
            return
        is_first = "default" not in entry.attrs
        data = self._create_group(entry, "data" if is_first else f"data_{stream.name}", "NXdata")
        data["data"] = detector["data"]
        data.attrs["signal"] = "data"
        data.attrs["title"] = self.context.source(stream.source)["name"]
        if form.length is None:
            data.attrs["axes"] = ["."] * (1 + len(form.row))
        else:
            data["time"] = detector["time"]
            data.attrs["axes"] = ["time"] + ["."] * (1 + len(form.row))
            data.attrs["time_indices"] = 0
        if is_first:
            entry.attrs["default"] = "data"

    def append(self, stream: Stream, batch: Batch) -> None:
        instrument = self._file["entry/instrument"]
        is_new = stream.name not in instrument or "data" not in instrument[stream.name]
        group = self._create_stream(stream) if is_new else instrument[stream.name]
        for name, values in batch.columns().items():
            _extend(group[name], values)
        _extend(group["time"], batch.seconds_since(self.context.began))
        if stream.form.length is None:
            offsets = group["offsets"]
            _extend(offsets, int(offsets[-1]) + np.cumsum(batch.lengths))
            _extend(group["data"], batch.joined())
        else:
            self._append_fixed_length(group["data"], batch)
        self._disk.check()

    def _append_fixed_length(self, data: Any, batch: Batch) -> None:
        """Writes fragments of equal length. A fragment that is one uncompressed chunk is written without conversion."""
        first = data.shape[0]
        if data.chunks[0] > 1 or self._compression:
            _extend(data, np.stack(batch.arrays))
            return
        data.resize(first + len(batch.arrays), axis=0)
        offset = (0,) * (data.ndim - 1)
        for index, array in enumerate(batch.arrays, first):
            data.id.write_direct_chunk((index, *offset), array.reshape(-1).view(np.uint8))

    def add_missing(self, missing: Sequence[MissingFragment]) -> None:
        table = self._file["entry/missing"]
        _extend(table["event_id"], np.array([row.event for row in missing], np.uint64))
        _extend(table["source"], np.array([row.source for row in missing], "S24"))
        _extend(table["reason"], np.array([row.reason for row in missing], "S48"))

    def checkpoint(self) -> dict[str, Any]:
        if self._file:
            self._file.flush()
        return self._disk.prepare()

    def committed(self) -> None:
        self._disk.commit()

    def finish(self, summary: dict[str, Any], streams: Sequence[Stream]) -> None:
        self._file["entry/thalweg/export_json"] = json.dumps(summary, ensure_ascii=False)
        self._file.close()

    @staticmethod
    def recover(output: Path, state: dict[str, Any]) -> None:
        JournaledFile(output, state).close()

    def close(self) -> None:
        if self._file:
            self._file.close()
        self._disk.close()


class Nexus(Hdf5):
    """Writer of a NeXus file with the suffix .nxs."""

    suffix = ".nxs"


def _extend(dataset: Any, values: Any) -> None:
    """Appends values to a dataset along its first axis."""
    first = dataset.shape[0]
    dataset.resize(first + len(values), axis=0)
    dataset[first:] = values
