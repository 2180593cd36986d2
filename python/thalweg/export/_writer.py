"""The interface of a format's writer, and what all of them need."""

from __future__ import annotations

import importlib
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from thalweg.export._partial import ExportError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from thalweg.export._reading import Batch, Missing, Stream

# What is known of run and export, in outputs that are folders. `run.json` would make a run of the folder.
DESCRIPTION = "_thalweg.json"


@dataclass(frozen=True)
class About:
    """What an export says of its run."""

    # `run.json`.
    info: dict[str, Any]
    # Ids of the sources that are exported, and their names in the export.
    sources: dict[str, str]
    # Beginning and end as ISO 8601; None where there is none.
    started: str | None
    ended: str | None
    compression: str

    @property
    def began(self) -> int:
        """TAI nanoseconds since 1970 of the run's beginning."""
        began: int = self.info["began"]
        return began

    def source(self, id: str) -> dict[str, Any]:
        """Returns what `run.json` states of a source."""
        return next(source for source in self.info["sources"] if source["id"] == id)

    def summary(self) -> dict[str, Any]:
        """Returns what is written beside the data of formats without a place for it."""
        return {
            "format": "thalweg-export",
            "version": 1,
            "run": self.info,
            "sources": self.sources,
            "start_time": self.started,
            "end_time": self.ended,
        }


class Writer:
    """Writes one format. The files are below `output`; it may keep others beside it, in `rows`."""

    # What is behind the run's name where no place is stated.
    suffix = ""
    # Whether it needs fragments of one length in a stream of their own.
    even = False
    compressions: tuple[str, ...] = ("none", "gzip")

    def __init__(self, output: Path, about: About, state: dict[str, Any] | None) -> None:
        """Begins, or goes on from a `state` that `checkpoint` returned."""
        self.output, self.about = output, about

    def append(self, stream: Stream, batch: Batch) -> None:
        """Writes fragments of a stream."""
        raise NotImplementedError

    def add_missing(self, missing: Sequence[Missing]) -> None:
        """Writes what is not in the export."""
        raise NotImplementedError

    def checkpoint(self) -> dict[str, Any]:
        """Makes sure that all that was written is found again with the state that is returned."""
        raise NotImplementedError

    def committed(self) -> None:
        """Called when the state of `checkpoint` was noted."""

    def finish(self, summary: dict[str, Any], streams: Sequence[Stream]) -> None:
        """Completes the output; `checkpoint` and `committed` follow."""
        raise NotImplementedError

    @staticmethod
    def settle(output: Path, state: dict[str, Any]) -> None:
        """Does what `committed` does, for an output that was completed by a process that was killed then."""

    def close(self) -> None:
        """Closes what is open, whether or not the output is complete."""


def library(name: str, format: str) -> Any:
    """Returns a library that a format needs."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        msg = f"exporting to {format} needs {name.partition('.')[0]}: pip install 'thalweg[export]' ({error})"
        raise ExportError(msg) from error


def write_description(folder: Path, summary: dict[str, Any]) -> None:
    """Writes what is known of run and export, beside the data."""
    (folder / DESCRIPTION).write_text(json.dumps(summary, indent=2, ensure_ascii=False) + "\n")
