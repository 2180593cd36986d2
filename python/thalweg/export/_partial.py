"""Output that is not finished: a folder PATH.part, in which the export grows, and how far it is.

`progress.json` in it is replaced in one step, after the data that it speaks of. An export that was killed is continued
from there; what was written after it is cut off. The finished output is renamed into its place.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
from pathlib import Path
from typing import Any


class ExportError(Exception):
    """An export cannot be made: the message says why, and what to do."""


class Partial:
    """A partial output."""

    def __init__(self, target: Path, identity: dict[str, Any], *, force: bool) -> None:
        """Begins or continues the output of `target`. `identity` is what is exported and how.

        Raises ExportError where `target` is there already, or a partial output of something else.
        """
        self.target = target
        self.folder = target.with_name(target.name + ".part")
        # What `target` will be.
        self.output = self.folder / "output"
        self._identity = identity
        # What was recorded last; None where nothing was.
        self.progress: dict[str, Any] | None = None
        is_new = not self.folder.exists()
        if not is_new:
            self._check_folder()
            if self._is_left_over():
                shutil.rmtree(self.folder)
                is_new = True
        if target.exists() and not force:
            msg = f"{target} exists already: choose another place with --out, or replace it with --force"
            raise ExportError(msg)
        self.folder.mkdir(exist_ok=True)
        self._lock = self._locked()
        if not is_new:
            try:
                self._continue(force=force)
            except ExportError:
                self.close()
                raise

    def _check_folder(self) -> None:
        """Raises ExportError where the folder has what no export wrote."""
        if not self.folder.is_dir() or not all(OURS.fullmatch(entry.name) for entry in self.folder.iterdir()):
            msg = f"{self.folder} is there and is no partial export: move it, or choose another place with --out"
            raise ExportError(msg)

    def _is_left_over(self) -> bool:
        """Returns whether the output was put into its place by a process that was killed then."""
        try:
            found = json.loads((self.folder / "progress.json").read_text())
            return bool(found["progress"]["finished"]) and self.target.exists() and not self.output.exists()
        except (OSError, ValueError, TypeError, KeyError):
            return False

    def _locked(self) -> int:
        """Keeps other processes from this folder for as long as this one lives."""
        descriptor = os.open(self.folder, os.O_RDONLY)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            os.close(descriptor)
            msg = f"{self.folder} is being written by another export: wait for its end, or choose another --out"
            raise ExportError(msg) from error
        return descriptor

    def _continue(self, *, force: bool) -> None:
        file = self.folder / "progress.json"
        try:
            found = json.loads(file.read_text())
        except FileNotFoundError:
            found = None
        except (OSError, ValueError) as error:
            msg = f"{file}: {error}: remove {self.folder} to begin anew"
            raise ExportError(msg) from error
        # After a machine went down, nothing says how much of it had reached the disk.
        if found is not None and found.get("boot") == _boot() and found.get("identity") == self._identity:
            self.progress = found["progress"]
            return
        if found is not None and found.get("identity") != self._identity and not force:
            before = found.get("identity") or {}
            keys = [key for key in self._identity if before.get(key) != self._identity[key]]
            differs = ", ".join(f"{key} {before.get(key)!r}, now {self._identity[key]!r}" for key in keys)
            msg = (
                f"{self.folder} is the partial output of another export ({differs}): repeat that command to finish it, "
                "choose another place with --out, or begin anew with --force"
            )
            raise ExportError(msg)
        for entry in self.folder.iterdir():
            shutil.rmtree(entry) if entry.is_dir() else entry.unlink()

    def record(self, progress: dict[str, Any]) -> None:
        """Notes how far the output is, in one step."""
        self.progress = progress
        new = self.folder / "progress.new"
        new.write_text(json.dumps({"identity": self._identity, "boot": _boot(), "progress": progress}))
        new.replace(self.folder / "progress.json")

    def finish(self) -> None:
        """Puts the finished output into its place, once it is on the disk."""
        if self.output.exists():
            _sync(self.output)
            if self.target.exists():
                self.target.rename(self.folder / "replaced")
            self.output.rename(self.target)
            directory = os.open(self.target.parent, os.O_RDONLY)
            try:
                os.fsync(directory)
            finally:
                os.close(directory)
        shutil.rmtree(self.folder)

    def close(self) -> None:
        """Lets other processes have the folder."""
        os.close(self._lock)


# Names of what is in a partial output.
OURS = re.compile(r"output|rows|replaced|progress\.json|progress\.new|journal-[0-9]+")


def _boot() -> str:
    """Returns a text that is another one after the machine was started anew."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def _sync(path: Path) -> None:
    """Waits until a file, or all files of a folder, are on the disk."""
    for entry in [path, *path.rglob("*")] if path.is_dir() else [path]:
        descriptor = os.open(entry, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
