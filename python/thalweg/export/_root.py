"""ROOT export: one RNTuple per stream, one entry per fragment. See docs/export.md."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np

from thalweg.export._parquet import flatten_numbers
from thalweg.export._reading import Batch, MissingFragment, Stream
from thalweg.export._writer import ExportContext, FormatWriter, import_library, write_description

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


class Root(FormatWriter):
    """Writer of a folder of ROOT files. Each checkpoint begins a new file."""

    suffix = ".root"

    def __init__(self, output: Path, context: ExportContext, state: dict[str, Any] | None) -> None:
        super().__init__(output, context, state)
        self._uproot = import_library("uproot", "root")
        self._awkward = import_library("awkward", "root")
        # Number of the file after the last checkpoint.
        self._part: int = state["part"] if state else 0
        self._file: Any = None
        # RNTuples of the open file, by the name of the stream.
        self._tuples: dict[str, Any] = {}
        output.mkdir(exist_ok=True)
        for file in output.glob("*.root"):
            if int(file.stem) >= self._part:
                file.unlink()

    def _append_entries(self, name: str, entries: dict[str, Any]) -> None:
        """Appends entries to an RNTuple of the open file, or of a new one."""
        if self._file is None:
            compression = None if self.context.compression == "none" else self._uproot.ZLIB(4)
            self._file = self._uproot.recreate(self.output / f"{self._part:05d}.root", compression=compression)
            self._file["run_json"] = json.dumps(self.context.run_info)
        if name in self._tuples:
            self._tuples[name].extend(entries)
        else:
            self._tuples[name] = self._file.mkrntuple(name, entries)

    def append(self, stream: Stream, batch: Batch) -> None:
        ak, form, lengths = self._awkward, stream.form, batch.lengths
        flat, numbers = flatten_numbers(form, batch.joined())
        entries: dict[str, Any] = dict(batch.columns())
        entries["rows"] = lengths.astype(np.uint32)
        if form.dtype.names is not None or form.dtype.kind == "c":
            pairs = flat.reshape(-1, 2)
            for name, part in (("real", pairs[:, 0]), ("imaginary", pairs[:, 1])):
                entries[name] = ak.unflatten(np.ascontiguousarray(part), lengths * (numbers // 2))
        else:
            entries["data"] = ak.unflatten(flat, lengths * numbers)
        self._append_entries(stream.name, entries)

    def add_missing(self, missing: Sequence[MissingFragment]) -> None:
        ak = self._awkward
        entries = {
            "event_id": np.array([row.event for row in missing], np.uint64),
            "source": ak.Array([row.source for row in missing]),
            "reason": ak.Array([row.reason for row in missing]),
        }
        self._append_entries("missing", entries)

    def checkpoint(self) -> dict[str, Any]:
        self.close()
        self._part += 1
        return {"part": self._part}

    def finish(self, summary: dict[str, Any], streams: Sequence[Stream]) -> None:
        self.close()
        forms = {stream.name: stream.form.to_json() for stream in streams}
        write_description(self.output, summary | {"streams": {s.name: s.source for s in streams}, "forms": forms})

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None
            self._tuples.clear()
