"""Base class of the writers of all formats, and their common functions."""

from __future__ import annotations

import importlib
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from thalweg.export._partial import ExportError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from thalweg.export._reading import Batch, MissingFragment, Stream

# File with the description of the run and the export, in formats that are folders. With the name `run.json` the folder
# would be taken for a run.
DESCRIPTION_FILE = "_thalweg.json"


@dataclass(frozen=True)
class ExportContext:
    """Description of the run, and options of the export, for the writers."""

    # Content of `run.json`.
    run_info: dict[str, Any]
    # Names of the exported sources in the export, by id.
    sources: dict[str, str]
    # Start of the run in UTC as ISO 8601, or None before 1972.
    started: str | None
    # End of the run in UTC as ISO 8601, or None if it has not ended.
    ended: str | None
    # "none" or "gzip".
    compression: str

    @property
    def began(self) -> int:
        """Start of the run in TAI nanoseconds since 1970."""
        began: int = self.run_info["began"]
        return began

    def source(self, id: str) -> dict[str, Any]:
        """Returns the entry of a source in `run.json`."""
        return next(source for source in self.run_info["sources"] if source["id"] == id)

    def summary(self) -> dict[str, Any]:
        """Returns the content of DESCRIPTION_FILE, without the counts of the export."""
        return {
            "format": "thalweg-export",
            "version": 1,
            "run": self.run_info,
            "sources": self.sources,
            "start_time": self.started,
            "end_time": self.ended,
        }


class FormatWriter:
    """Writer of one format, to the file or folder `output`. The folder `rows` next to it is for temporary files."""

    # Suffix of the default path.
    suffix = ""
    # True if the format stores fragments of equal length as one array. They are a stream of their own then.
    fixed_length = False
    # Values of `compression` that the format has.
    compressions: tuple[str, ...] = ("none", "gzip")

    def __init__(self, output: Path, context: ExportContext, state: dict[str, Any] | None) -> None:
        """Creates the output, or restores it to a `state` that `checkpoint` returned, without later data."""
        self.output, self.context = output, context

    def append(self, stream: Stream, batch: Batch) -> None:
        """Writes fragments of a stream, after those written before."""
        raise NotImplementedError

    def add_missing(self, missing: Sequence[MissingFragment]) -> None:
        """Writes rows of the table of missing fragments."""
        raise NotImplementedError

    def checkpoint(self) -> dict[str, Any]:
        """Flushes the output and returns the state, as JSON, from which a new writer can continue it."""
        raise NotImplementedError

    def committed(self) -> None:
        """Called after the state that `checkpoint` returned was saved."""

    def finish(self, summary: dict[str, Any], streams: Sequence[Stream]) -> None:
        """Completes the output with a summary of the export. `checkpoint` and `committed` are called afterwards."""
        raise NotImplementedError

    @staticmethod
    def recover(output: Path, state: dict[str, Any]) -> None:
        """Performs `committed` for a finished output whose process was killed before it did."""

    def close(self) -> None:
        """Closes all files, whether or not the output is complete."""


def import_library(name: str, format: str) -> Any:
    """Imports a module that a format needs. Raises ExportError with the command to install it."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        msg = f"exporting to {format} needs {name.partition('.')[0]}: pip install 'thalweg[export]' ({error})"
        raise ExportError(msg) from error


def write_description(folder: Path, summary: dict[str, Any]) -> None:
    """Writes a summary of the run and the export to DESCRIPTION_FILE."""
    (folder / DESCRIPTION_FILE).write_text(json.dumps(summary, indent=2, ensure_ascii=False) + "\n")
