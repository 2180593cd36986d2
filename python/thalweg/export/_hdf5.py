"""NeXus files: HDF5, in the layout that areaDetector writes. See docs/export.md."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np

from thalweg.export._journal import JournaledFile
from thalweg.export._reading import COLUMNS, SECOND, Batch, Missing, Stream
from thalweg.export._writer import About, Writer, library

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

# A fragment of this size is a chunk of its own; of smaller ones, a chunk has about as many as fit.
CHUNK_BYTES = 64 << 10
COLUMN_CHUNK = 4096
UNITS = {"tai_ns": "ns", "window_ns": "ns"}
MEANINGS = {
    "event_id": "number of the event",
    "tai_ns": "time in TAI nanoseconds since 1970-01-01 00:00:00 TAI",
    "sequence": "counts the source's fragments; wraps",
    "window_ns": "time that the fragment covers",
    "status": "status bits of the fragment: see thalweg_status_bits",
    "crc32c": "CRC32C of the payload as the source computed it; 0 where status bit 9 is set",
}
# docs/wire.md, "Fragment header".
STATUS_BITS = (
    "0 truncated, 1 corrupt, 6 simulated, 7 replayed, 8 empty, 9 no-payload-crc, 12 uncertain, 13 arrival-time, "
    "16 and 17 clock: 1 locked, 2 holdover, 3 free-running"
)


class Hdf5(Writer):
    """Writes a NeXus file, which is an HDF5 file, under the name that HDF5's users expect."""

    suffix = ".h5"
    even = True

    def __init__(self, output: Path, about: About, state: dict[str, Any] | None) -> None:
        """See `Writer`."""
        super().__init__(output, about, state)
        self._h5py = library("h5py", "nexus and hdf5")
        self._disk = JournaledFile(output, state)
        self._file = self._h5py.File(self._disk, "r+" if state else "w")
        self._compression: dict[str, Any] = {}
        if about.compression == "gzip":
            self._compression = {"compression": "gzip", "compression_opts": 4, "shuffle": True}
        if not state:
            self._describe_run()

    def _group(self, parent: Any, name: str, nexus: str) -> Any:
        group = parent.create_group(name)
        group.attrs["NX_class"] = nexus
        return group

    def _describe_run(self) -> None:
        info = self.about.info
        self._file.attrs["NX_class"] = "NXroot"
        self._file.attrs["creator"] = "thalweg export"
        entry = self._group(self._file, "entry", "NXentry")
        self._file.attrs["default"] = "entry"
        entry["title"] = f"run {info['run']}"
        entry["entry_identifier"] = str(info["run"])
        for name, time in (("start_time", self.about.started), ("end_time", self.about.ended)):
            if time is not None:
                entry[name] = time
        entry["program_name"] = info["writer"]["program"]
        entry["program_name"].attrs["version"] = info["writer"]["version"]
        if isinstance(info.get("comment"), str):
            notes = self._group(entry, "notes", "NXnote")
            notes["type"], notes["data"] = "text/plain", info["comment"]
        about = self._group(entry, "thalweg", "NXcollection")
        about["run_json"] = json.dumps(info, ensure_ascii=False)
        about["state"] = info["state"]
        about["reasons"] = np.array(info["reasons"], self._h5py.string_dtype())
        about["began_tai_ns"] = np.int64(info["began"])
        if "metadata" in info:
            about["metadata_json"] = json.dumps(info["metadata"], ensure_ascii=False)
        missing = self._group(entry, "missing", "NXcollection")
        missing.attrs["description"] = "fragments that are not in this file, with the reason"
        for name, kind in (("event_id", "<u8"), ("source", "S24"), ("reason", "S48")):
            missing.create_dataset(name, (0,), kind, maxshape=(None,), chunks=(COLUMN_CHUNK,))
        instrument = self._group(entry, "instrument", "NXinstrument")
        instrument["name"] = str(info["writer"].get("host", "thalweg"))
        for source, name in self.about.sources.items():
            self._describe_source(self._group(instrument, name, "NXdetector"), source)

    def _describe_source(self, detector: Any, source: str) -> None:
        stated = self.about.source(source)
        detector["description"] = stated["name"]
        detector["local_name"] = stated["name"]
        detector.attrs["thalweg_source"] = source
        detector.attrs["thalweg_status_bits"] = STATUS_BITS
        detector.attrs["thalweg_description"] = json.dumps(stated["description"], ensure_ascii=False)

    def _create(self, stream: Stream) -> Any:
        """Makes the datasets of a stream."""
        form, instrument = stream.form, self._file["entry/instrument"]
        if stream.name not in instrument:
            self._describe_source(self._group(instrument, stream.name, "NXdetector"), stream.source)
        group = instrument[stream.name]
        group.attrs["thalweg_payload_type"] = form.payload_type
        group.attrs["thalweg_axes"] = form.axes
        row_bytes = form.dtype.itemsize * int(np.prod(form.row, dtype=np.int64))
        if form.length is None:
            rows = max(1, (1 << 20) // max(row_bytes, 1))
            shape, chunks = (0, *form.row), (rows, *form.row)
            offsets = group.create_dataset("offsets", (1,), "<i8", maxshape=(None,), chunks=(COLUMN_CHUNK,))
            offsets.attrs["description"] = "fragment i is data[offsets[i]:offsets[i+1]]"
        else:
            rows = max(1, CHUNK_BYTES // (row_bytes * form.length))
            shape, chunks = (0, *form.shape), (rows, *form.shape)
        limits = (None, *shape[1:])
        data = group.create_dataset("data", shape, form.dtype, maxshape=limits, chunks=chunks, **self._compression)
        data.attrs["long_name"] = self.about.source(stream.source)["name"]
        for name, kind in COLUMNS.items():
            self._column(group, name, np.dtype(kind).newbyteorder("<"))
        time = group.create_dataset("time", (0,), "<f8", maxshape=(None,), chunks=(COLUMN_CHUNK,))
        time.attrs["units"] = "s"
        if self.about.started is not None:
            time.attrs["start"] = self.about.started
        time.attrs["long_name"] = "time since the run began"
        self._plot(stream, group)
        return group

    def _column(self, group: Any, name: str, kind: Any) -> None:
        column = group.create_dataset(name, (0,), kind, maxshape=(None,), chunks=(COLUMN_CHUNK,))
        column.attrs["long_name"] = MEANINGS[name]
        if name in UNITS:
            column.attrs["units"] = UNITS[name]

    def _plot(self, stream: Stream, detector: Any) -> None:
        """Makes the NXdata of a stream, of hard links; the first that can be drawn is the one that programs show."""
        entry, form = self._file["entry"], stream.form
        if form.dtype.names is not None:
            # NeXus knows no pairs of whole numbers.
            return
        is_first = "default" not in entry.attrs
        data = self._group(entry, "data" if is_first else f"data_{stream.name}", "NXdata")
        data["data"] = detector["data"]
        data.attrs["signal"] = "data"
        data.attrs["title"] = self.about.source(stream.source)["name"]
        if form.length is None:
            data.attrs["axes"] = ["."] * (1 + len(form.row))
        else:
            data["time"] = detector["time"]
            data.attrs["axes"] = ["time"] + ["."] * (1 + len(form.row))
            data.attrs["time_indices"] = 0
        if is_first:
            entry.attrs["default"] = "data"

    def append(self, stream: Stream, batch: Batch) -> None:
        """See `Writer`."""
        instrument = self._file["entry/instrument"]
        is_new = stream.name not in instrument or "data" not in instrument[stream.name]
        group = self._create(stream) if is_new else instrument[stream.name]
        for name, values in batch.columns().items():
            _extend(group[name], values)
        _extend(group["time"], (batch.tai_ns - self.about.began) / SECOND)
        if stream.form.length is None:
            offsets = group["offsets"]
            _extend(offsets, int(offsets[-1]) + np.cumsum(batch.lengths))
            _extend(group["data"], batch.joined())
        else:
            self._append_even(group["data"], batch)
        self._disk.check()

    def _append_even(self, data: Any, batch: Batch) -> None:
        """Writes fragments of one length: large ones as they lie in the run, each as the chunk that it is."""
        at = data.shape[0]
        if data.chunks[0] > 1 or self._compression:
            _extend(data, np.stack(batch.arrays))
            return
        data.resize(at + len(batch.arrays), axis=0)
        behind = (0,) * (data.ndim - 1)
        for place, array in enumerate(batch.arrays, at):
            data.id.write_direct_chunk((place, *behind), array.reshape(-1).view(np.uint8))

    def add_missing(self, missing: Sequence[Missing]) -> None:
        """See `Writer`."""
        table = self._file["entry/missing"]
        _extend(table["event_id"], np.array([row.event for row in missing], np.uint64))
        _extend(table["source"], np.array([row.source for row in missing], "S24"))
        _extend(table["reason"], np.array([row.reason for row in missing], "S48"))

    def checkpoint(self) -> dict[str, Any]:
        """See `Writer`."""
        if self._file:
            self._file.flush()
        return self._disk.prepare()

    def committed(self) -> None:
        """See `Writer`."""
        self._disk.commit()

    def finish(self, summary: dict[str, Any], streams: Sequence[Stream]) -> None:
        """See `Writer`."""
        self._file["entry/thalweg/export_json"] = json.dumps(summary, ensure_ascii=False)
        self._file.close()

    @staticmethod
    def settle(output: Path, state: dict[str, Any]) -> None:
        """See `Writer`."""
        JournaledFile(output, state).close()

    def close(self) -> None:
        """See `Writer`."""
        if self._file:
            self._file.close()
        self._disk.close()


class Nexus(Hdf5):
    """Writes a NeXus file."""

    suffix = ".nxs"


def _extend(column: Any, values: Any) -> None:
    at = column.shape[0]
    column.resize(at + len(values), axis=0)
    column[at:] = values
