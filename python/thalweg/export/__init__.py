"""Export of runs to NeXus, HDF5, SigMF, Parquet, Zarr, ROOT and CSV.

    thalweg export runs/run-000042 --to nexus

>>> import thalweg
>>> run = thalweg.open("demo/run-000001")
>>> exported = run.export("csv", "first.csv", events="..10")
>>> exported.events, exported.fragments, exported.missing
(10, 20, 0)

docs/export.md describes the layout of each format. `thalweg.replay` plays an exported file into a new run. Needs
`pip install thalweg[export]`.
"""

from __future__ import annotations

import importlib
import os
import re
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, SupportsIndex

import thalweg
from thalweg._thalweg import _utc_of_tai
from thalweg.export._partial import ExportError, PartialExport
from thalweg.export._reading import NS_PER_SECOND, Batch, BatchReader, Form, MissingFragment, Stream
from thalweg.export._writer import ExportContext, FormatWriter

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["FORMATS", "ExportError", "Exported", "export"]

# Module and class of the writer of each format.
FORMATS = {
    "nexus": ("_hdf5", "Nexus"),
    "hdf5": ("_hdf5", "Hdf5"),
    "sigmf": ("_sigmf", "Sigmf"),
    "parquet": ("_parquet", "Parquet"),
    "zarr": ("_zarr", "Zarr"),
    "root": ("_root", "Root"),
    "csv": ("_csv", "Csv"),
}
# Limits of the data between two checkpoints, which an interrupted export writes again: bytes of payload, and fragments.
CHECKPOINT_BYTES = 256 << 20
CHECKPOINT_FRAGMENTS = 1 << 20
# Maximum length of a stream's name in characters. File systems limit names to 255 bytes, with suffixes.
MAX_NAME_LENGTH = 120
# Counts of a `BatchReader` that are saved at a checkpoint and restored when an export is continued.
COUNT_NAMES = (
    "fragments",
    "bytes",
    "missing_fragments",
    "damaged_fragments",
    "damaged_events",
    "out_of_range_fragments",
)


@dataclass(frozen=True)
class Exported:
    """Report of a finished export."""

    path: Path
    # Number of selected events.
    events: int
    # Number of exported fragments.
    fragments: int
    # Size of their payloads in bytes.
    bytes: int
    # Number of fragments that the run does not have. The table `missing` of the export lists them with the reason.
    missing: int
    # Number of fragments left out because they are unreadable or do not match their checksum. They are in the table
    # `missing`, too.
    damaged: int
    # Number of selected events of which no fragment was exported because of damage.
    damaged_events: int
    # Number of intact fragments left out because their time is after the year 2262. They are in the table `missing`,
    # too.
    out_of_range: int
    # Descriptions of the damage, at most 16.
    problems: list[str]
    # State of the run when it was exported: "COMPLETE", "INCOMPLETE" or "OPEN".
    state: str
    # Number of events that an interrupted export had written before this call continued it.
    resumed_events: int
    # Size in bytes of the payloads that it had written.
    resumed_bytes: int


class Progress(NamedTuple):
    """Progress of an export: events processed, events in total, and bytes of payload read."""

    events: int
    all_events: int
    bytes: int


def export(
    run: thalweg.Run,
    to: str,
    path: str | os.PathLike[str] | None = None,
    *,
    sources: str | Iterable[str] | None = None,
    events: SupportsIndex | range | str | None = None,
    compression: str = "none",
    force: bool = False,
    progress: Callable[[Progress], None] = lambda _: None,
) -> Exported:
    """Exports a run to a file or folder of another format and returns a report.

    - `to` is the format, one of FORMATS.
    - `path` is the file or folder to write. The default is the run's number with the suffix of the format, such as
      run-000042.nxs, in the working directory.
    - `sources` and `events` select a part of the run, as in `thalweg.Run.events`. The default is the whole run.
    - `compression` is "none" or "gzip"; SigMF and CSV are not compressed.
    - `force` replaces an existing file or folder at `path`, and discards a partial export of other data or options.
    - `progress` is called after each batch of fragments.

    Until the export is complete, it is the folder PATH.part. The same call continues an interrupted export from its
    last checkpoint.

    Missing and damaged fragments are not part of the data: the table `missing` of the export lists them with the
    reason. Raises ExportError if the export is not possible, with the reason and a remedy; RunError if the run cannot
    be read; KeyError for a source that the run does not have; and OSError if the export cannot be written.
    """
    writer_class = _writer_class(to, compression)
    chosen = run.events(events, sources=sources)
    if events is not None and len(chosen) == 0:
        msg = f"{run.path} has no events in {events}: it has {_describe_events(run.events())}"
        raise ExportError(msg)
    target = Path(path) if path is not None else Path(f"run-{run.number:06d}{writer_class.suffix}")
    if not target.name or not target.absolute().parent.is_dir():
        msg = f"{target}: the directory {target.absolute().parent} does not exist"
        raise ExportError(msg)
    info = run.info
    identity = {
        "to": to,
        "run": [info["run"], info["began"], info["builder"], info["state"]],
        "sources": chosen.sources,
        "events": [len(chosen), _describe_events(chosen)],
        "compression": compression,
    }
    partial = PartialExport(target, identity, force=force)
    names = stream_names([(id, run.names[id]) for id in chosen.sources])
    context = ExportContext(info, names, _iso_time(info["began"]), _iso_time(info["ended"]), compression)
    with closing(partial):
        with _ExportTask(writer_class, partial, chosen, context) as task:
            if not task.finished:
                task.write(progress)
        partial.finish()
    return task.report(target)


class _ExportTask:
    """Export in progress, from its start or from the last checkpoint of an interrupted one."""

    def __init__(
        self, writer_class: type[FormatWriter], partial: PartialExport, events: thalweg.Events, context: ExportContext
    ) -> None:
        """Restores the last checkpoint of `partial`, if there is one."""
        saved: dict[str, Any] = partial.progress or {}
        # True if all events are written and the output is closed.
        self.finished: bool = saved.get("finished", False)
        self._partial, self._context = partial, context
        # Index of the first event after the last checkpoint.
        self._position: int = saved.get("place", 0)
        self._resumed_events = self._position
        streams = [
            Stream(source, name, Form.from_json(form), fragments, rows)
            for source, name, form, fragments, rows in saved.get("streams", [])
        ]
        self._reader = BatchReader(events, context.sources, streams, fixed_length=writer_class.fixed_length)
        for name in COUNT_NAMES:
            setattr(self._reader, name, saved.get(name, 0))
        self._resumed_bytes: int = self._reader.bytes
        self._reader.problems += saved.get("problems", [])
        self._writer: FormatWriter | None = None
        if self.finished:
            writer_class.recover(partial.output, saved["state"])
        else:
            self._writer = writer_class(partial.output, context, saved.get("state"))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        if self._writer is not None:
            self._writer.close()

    def write(self, progress: Callable[[Progress], None]) -> None:
        """Exports all events after the last checkpoint."""
        reader, writer = self._reader, self._writer
        assert writer is not None
        saved_bytes, saved_fragments = reader.bytes, reader.fragments
        # A thread writes one batch while the next one is read and its checksums are verified.
        with ThreadPoolExecutor(1) as thread:
            pending: Future[None] | None = None
            for position, batches, missing in reader.read(self._position):
                if pending is not None:
                    pending.result()
                pending = thread.submit(_write_batches, writer, batches, missing)
                progress(Progress(position, len(reader.events), reader.bytes))
                new_bytes, new_fragments = reader.bytes - saved_bytes, reader.fragments - saved_fragments
                if new_bytes >= CHECKPOINT_BYTES or new_fragments >= CHECKPOINT_FRAGMENTS:
                    pending.result()
                    saved_bytes, saved_fragments = reader.bytes, reader.fragments
                    self._position = position
                    self._save_checkpoint(writer)
            if pending is not None:
                pending.result()
        self._position = len(reader.events)
        self.finished = True
        writer.finish(self._context.summary() | {"export": self._counts()}, reader.streams)
        self._save_checkpoint(writer)

    def _counts(self) -> dict[str, Any]:
        counts: dict[str, Any] = {name: getattr(self._reader, name) for name in COUNT_NAMES}
        return counts | {"events": len(self._reader.events), "problems": self._reader.problems}

    def _save_checkpoint(self, writer: FormatWriter) -> None:
        state = writer.checkpoint()
        streams = [
            [stream.source, stream.name, stream.form.to_json(), stream.fragments, stream.rows]
            for stream in self._reader.streams
        ]
        saved = {"place": self._position, "finished": self.finished, "streams": streams, "state": state}
        self._partial.save_progress(self._counts() | saved)
        writer.committed()

    def report(self, target: Path) -> Exported:
        """Returns the report of the export to `target`."""
        reader = self._reader
        return Exported(
            path=target,
            events=len(reader.events),
            fragments=reader.fragments,
            bytes=reader.bytes,
            missing=reader.missing_fragments,
            damaged=reader.damaged_fragments,
            damaged_events=reader.damaged_events,
            out_of_range=reader.out_of_range_fragments,
            problems=reader.problems,
            state=self._context.run_info["state"],
            resumed_events=self._resumed_events,
            resumed_bytes=self._resumed_bytes,
        )


def _write_batches(
    writer: FormatWriter, batches: Sequence[tuple[Stream, Batch]], missing: Sequence[MissingFragment]
) -> None:
    for stream, batch in batches:
        writer.append(stream, batch)
    if missing:
        writer.add_missing(missing)


def _writer_class(to: str, compression: str) -> type[FormatWriter]:
    """Returns the writer of a format. Raises ExportError for an unknown format or a compression it does not have."""
    if to not in FORMATS:
        msg = f"{to!r} is not a format: choose one of {', '.join(FORMATS)}"
        raise ExportError(msg)
    module, name = FORMATS[to]
    writer_class: type[FormatWriter] = getattr(importlib.import_module(f"thalweg.export.{module}"), name)
    if compression not in writer_class.compressions:
        choices = " or ".join(writer_class.compressions)
        msg = f"{to} does not have the compression {compression!r}: choose {choices}"
        raise ExportError(msg)
    return writer_class


def _describe_events(events: thalweg.Events) -> str:
    """Returns a text with the count of events and the first and last event number."""
    count = len(events)
    if count == 0:
        return "no events"
    return f"{count} events, {events[:1].ids()[0]} to {events[-1:].ids()[0]}"


def _iso_time(tai: int | None) -> str | None:
    """Converts TAI nanoseconds to UTC in ISO 8601 with nanoseconds. Returns None for None and before 1972."""
    import numpy as np

    utc = None if tai is None else _utc_of_tai(tai)
    if utc is None:
        return None
    return f"{np.datetime64(utc // NS_PER_SECOND, 's')}.{utc % NS_PER_SECOND:09d}+00:00"


def stream_names(sources: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Returns the names of streams in the export, by source id, from pairs of id and name.

    They consist of ASCII letters, digits and "_", begin with a letter, and differ in more than case. The id is appended
    to a name that is empty, reserved, used by another source, or does not begin with a letter.
    """
    names: dict[str, str] = {}
    taken = {"missing", "name"}
    for id, name in sources:
        plain = re.sub(r"[^A-Za-z0-9_]", "_", name)[:MAX_NAME_LENGTH].strip("_")
        if not plain or plain.lower() in taken or not plain[0].isalpha():
            plain = f"{plain or 'source'}_{id.replace('.', '_')}"
            plain = plain if plain[0].isalpha() else f"source_{plain}"
        while plain.lower() in taken:
            plain += "_"
        taken.add(plain.lower())
        names[id] = plain
    return names
