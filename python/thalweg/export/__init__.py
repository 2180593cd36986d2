"""Runs as files that other programs read: NeXus, HDF5, SigMF, Parquet, Zarr, ROOT and CSV.

    thalweg export runs/run-000042 --to nexus

>>> import thalweg
>>> run = thalweg.open("demo/run-000001")
>>> exported = run.export("csv", "first.csv", events="..10")
>>> exported.events, exported.fragments, exported.missing
(10, 20, 0)

docs/export.md describes the layouts. `thalweg.replay` plays such a file into a run. Needs pip install thalweg[export].
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
from thalweg.export._partial import ExportError, Partial
from thalweg.export._reading import SECOND, Batch, Form, Missing, Reader, Stream
from thalweg.export._writer import About, Writer

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["FORMATS", "ExportError", "Exported", "export"]

# Formats, and the module and class of the writer of each.
FORMATS = {
    "nexus": ("_hdf5", "Nexus"),
    "hdf5": ("_hdf5", "Hdf5"),
    "sigmf": ("_sigmf", "Sigmf"),
    "parquet": ("_parquet", "Parquet"),
    "zarr": ("_zarr", "Zarr"),
    "root": ("_root", "Root"),
    "csv": ("_csv", "Csv"),
}
# After so many bytes or fragments it is noted how far the export is.
NOTE_BYTES, NOTE_FRAGMENTS = 256 << 20, 1 << 20


@dataclass(frozen=True)
class Exported:
    """What was exported, and where."""

    path: Path
    # Events that were asked for and are in the run.
    events: int
    # Fragments that are in the export, and bytes of their payloads.
    fragments: int
    bytes: int
    # Fragments that the run has not: `missing` in the export says why.
    missing: int
    # Fragments that the run has and that cannot be used: damaged, or not of their checksum.
    damaged: int
    # What is damaged, in sentences, the first few.
    problems: list[str]
    # State of the run when it was exported.
    state: str
    # Events that an earlier try exported already.
    resumed_events: int


class Progress(NamedTuple):
    """How far an export is."""

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
    """Writes a run as a file, or a folder, of another format, and returns what was exported.

    `to` is one of FORMATS. Without `path` it is named by the run's number, in the working directory. `sources` and
    `events` choose as in `run.events`. `compression` is "none" or "gzip". What is at `path` already is replaced with
    `force`. While it grows the export is PATH.part; the same call continues what an earlier one left there.

    Fragments that are missing or damaged are not in the data: the export lists them, with the reason. Raises
    ExportError where it cannot be made, and RunError where the run cannot be read.
    """
    kind = _writer(to, compression)
    chosen = run.events(events, sources=sources)
    if events is not None and len(chosen) == 0:
        msg = f"{run.path} has no events of {events}: it has {_extent(run.events())}"
        raise ExportError(msg)
    target = Path(path) if path is not None else Path(f"run-{run.number:06d}{kind.suffix}")
    if not target.name or not target.absolute().parent.is_dir():
        msg = f"{target}: there is no directory {target.absolute().parent}"
        raise ExportError(msg)
    info = run.info
    identity = {
        "to": to,
        "run": [info["run"], info["began"], info["builder"], info["state"]],
        "sources": chosen.sources,
        "events": [len(chosen), _extent(chosen)],
        "compression": compression,
    }
    partial = Partial(target, identity, force=force)
    names = stream_names([(id, run.names[id]) for id in chosen.sources])
    about = About(info, names, _iso_time(info["began"]), _iso_time(info["ended"]), compression)
    with closing(partial):
        with _Export(kind, partial, chosen, about) as work:
            if not work.finished:
                work.write(progress)
        partial.finish()
    return work.report(target)


class _Export:
    """One export under way."""

    def __init__(self, kind: type[Writer], partial: Partial, events: thalweg.Events, about: About) -> None:
        """Begins, or goes on with what is there."""
        known: dict[str, Any] = partial.progress or {}
        self.finished: bool = known.get("finished", False)
        self._partial, self._about = partial, about
        self._place: int = known.get("place", 0)
        self._resumed = self._place
        streams = [
            Stream(source, name, Form.from_json(form), fragments, rows)
            for source, name, form, fragments, rows in known.get("streams", [])
        ]
        self._reader = Reader(events, about.sources, streams, even=kind.even)
        for name in COUNTS:
            setattr(self._reader, name, known.get(name, 0))
        self._reader.problems += known.get("problems", [])
        self._writer: Writer | None = None
        if self.finished:
            kind.settle(partial.output, known["state"])
        else:
            self._writer = kind(partial.output, about, known.get("state"))

    def __enter__(self) -> Self:
        """Returns itself."""
        return self

    def __exit__(self, *_error: object) -> None:
        """Closes the output."""
        if self._writer is not None:
            self._writer.close()

    def write(self, progress: Callable[[Progress], None]) -> None:
        """Exports what is left."""
        reader, writer = self._reader, self._writer
        assert writer is not None
        noted = reader.bytes, reader.fragments
        # One batch is written while the next one is read and compared with its checksums.
        with ThreadPoolExecutor(1) as thread:
            pending: Future[None] | None = None
            for place, batches, missing in reader.read(self._place):
                if pending is not None:
                    pending.result()
                pending = thread.submit(_append, writer, batches, missing)
                progress(Progress(place, len(reader.events), reader.bytes))
                if reader.bytes - noted[0] >= NOTE_BYTES or reader.fragments - noted[1] >= NOTE_FRAGMENTS:
                    pending.result()
                    noted, self._place = (reader.bytes, reader.fragments), place
                    self._note(writer)
            if pending is not None:
                pending.result()
        self._place = len(reader.events)
        self.finished = True
        writer.finish(self._about.summary() | {"export": self._counts()}, reader.streams)
        self._note(writer)

    def _counts(self) -> dict[str, Any]:
        counts: dict[str, Any] = {name: getattr(self._reader, name) for name in COUNTS}
        return counts | {"events": len(self._reader.events), "problems": self._reader.problems}

    def _note(self, writer: Writer) -> None:
        state = writer.checkpoint()
        streams = [
            [stream.source, stream.name, stream.form.to_json(), stream.fragments, stream.rows]
            for stream in self._reader.streams
        ]
        known = {"place": self._place, "finished": self.finished, "streams": streams, "state": state}
        self._partial.record(self._counts() | known)
        writer.committed()

    def report(self, target: Path) -> Exported:
        """Returns what was exported."""
        reader = self._reader
        return Exported(
            path=target,
            events=len(reader.events),
            fragments=reader.fragments,
            bytes=reader.bytes,
            missing=reader.missing_fragments,
            damaged=reader.damaged_fragments,
            problems=reader.problems,
            state=self._about.info["state"],
            resumed_events=self._resumed,
        )


def _append(writer: Writer, batches: Sequence[tuple[Stream, Batch]], missing: Sequence[Missing]) -> None:
    for stream, batch in batches:
        writer.append(stream, batch)
    if missing:
        writer.add_missing(missing)


# Counts of a reader that an export continues where it was interrupted.
COUNTS = ("fragments", "bytes", "missing_fragments", "damaged_fragments")


def _writer(to: str, compression: str) -> type[Writer]:
    """Returns the writer of a format."""
    if to not in FORMATS:
        msg = f"{to!r} is no format: {', '.join(FORMATS)} are"
        raise ExportError(msg)
    module, name = FORMATS[to]
    kind: type[Writer] = getattr(importlib.import_module(f"thalweg.export.{module}"), name)
    if compression not in kind.compressions:
        msg = f"{to} with compression {compression!r}: possible are {', '.join(kind.compressions)}"
        raise ExportError(msg)
    return kind


def _extent(events: thalweg.Events) -> str:
    """Returns how many events there are, and their first and last number."""
    count = len(events)
    if count == 0:
        return "no events"
    return f"{count} events, {events[:1].ids()[0]} to {events[-1:].ids()[0]}"


def _iso_time(tai: int | None) -> str | None:
    """Returns a time as ISO 8601 in UTC, with nanoseconds; None where there is none."""
    import numpy as np

    utc = None if tai is None else _utc_of_tai(tai)
    if utc is None:
        return None
    return f"{np.datetime64(utc // SECOND, 's')}.{utc % SECOND:09d}+00:00"


# The longest name of a stream: with what is put behind it, file systems take it.
LONGEST_NAME = 120


def stream_names(sources: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Returns a name of letters, digits and "_" for each source, by its id.

    The id is in the name where the source has no such name, or not one of its own.
    """
    names: dict[str, str] = {}
    taken = {"missing", "name"}
    for id, name in sources:
        plain = re.sub(r"[^A-Za-z0-9_]", "_", name)[:LONGEST_NAME].strip("_")
        if not plain or plain.lower() in taken or not plain[0].isalpha():
            plain = f"{plain or 'source'}_{id.replace('.', '_')}"
            plain = plain if plain[0].isalpha() else f"source_{plain}"
        while plain.lower() in taken:
            plain += "_"
        taken.add(plain.lower())
        names[id] = plain
    return names
