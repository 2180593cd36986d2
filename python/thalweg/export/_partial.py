"""Partial exports: the folder PATH.part, which contains the output and a checkpoint until the export is complete.

A checkpoint replaces `progress.json` atomically after the data that it describes were written. An interrupted export is
continued from its last checkpoint; data written later are discarded. The finished output is renamed to PATH.
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
    """Error of an export that is not possible. The message states the reason and a remedy."""


class PartialExport:
    """Folder of an export that is not yet complete. It is locked until it is closed."""

    def __init__(self, target: Path, identity: dict[str, Any], *, force: bool) -> None:
        """Creates the folder, or opens that of an interrupted export to `target`.

        `identity` describes the data and options of the export; only a partial export with the same identity is
        continued. Raises ExportError if `target` exists and `force` is false, if another process writes the folder, or
        if the folder belongs to another export.
        """
        self.target = target
        self.folder = target.with_name(target.name + ".part")
        # File or folder that is renamed to `target`.
        self.output = self.folder / "output"
        self._identity = identity
        # Last checkpoint, or None if there is none.
        self.progress: dict[str, Any] | None = None
        is_new = not self.folder.exists()
        if not is_new:
            self._check_folder()
            if self._is_leftover():
                shutil.rmtree(self.folder)
                is_new = True
        if target.exists() and not force:
            msg = f"{target} already exists: write to another path with --out, or replace it with --force"
            raise ExportError(msg)
        self.folder.mkdir(exist_ok=True)
        # Descriptor of the folder, which holds the lock.
        self._lock = self._lock_folder()
        if not is_new:
            try:
                self._load_progress(force=force)
            except ExportError:
                self.close()
                raise

    def _check_folder(self) -> None:
        """Raises ExportError if the folder contains files that are not those of a partial export."""
        if not self.folder.is_dir() or not all(FILE_NAMES.fullmatch(entry.name) for entry in self.folder.iterdir()):
            msg = f"{self.folder} exists and is not a partial export: move it, or write to another path with --out"
            raise ExportError(msg)

    def _is_leftover(self) -> bool:
        """Returns whether a process renamed the finished output, but was killed before it removed the folder."""
        try:
            found = json.loads((self.folder / "progress.json").read_text())
            return bool(found["progress"]["finished"]) and self.target.exists() and not self.output.exists()
        except (OSError, ValueError, TypeError, KeyError):
            return False

    def _lock_folder(self) -> int:
        """Locks the folder against other processes and returns the descriptor to close. Raises ExportError."""
        descriptor = os.open(self.folder, os.O_RDONLY)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            os.close(descriptor)
            msg = (
                f"{self.folder} is being written by another process: wait until it ends, "
                "or write to another path with --out"
            )
            raise ExportError(msg) from error
        return descriptor

    def _load_progress(self, *, force: bool) -> None:
        """Loads the last checkpoint. Empties the folder if there is none that can be continued.

        Raises ExportError if the checkpoint is that of another export and `force` is false.
        """
        file = self.folder / "progress.json"
        try:
            found = json.loads(file.read_text())
        except FileNotFoundError:
            found = None
        except (OSError, ValueError) as error:
            msg = f"cannot read {file}: {error}; remove {self.folder} to start again"
            raise ExportError(msg) from error
        # Checkpoints are not synced to disk: after a restart of the machine their data may be incomplete.
        if found is not None and found.get("boot") == _boot_id() and found.get("identity") == self._identity:
            self.progress = found["progress"]
            return
        if found is not None and found.get("identity") != self._identity and not force:
            before = found.get("identity") or {}
            keys = [key for key in self._identity if before.get(key) != self._identity[key]]
            differs = ", ".join(f"{key} {before.get(key)!r}, now {self._identity[key]!r}" for key in keys)
            msg = (
                f"{self.folder} is a partial export with other data or options ({differs}): repeat that "
                "command to finish it, write to another path with --out, or start again with --force"
            )
            raise ExportError(msg)
        for entry in self.folder.iterdir():
            shutil.rmtree(entry) if entry.is_dir() else entry.unlink()

    def save_progress(self, progress: dict[str, Any]) -> None:
        """Replaces the checkpoint atomically."""
        self.progress = progress
        new = self.folder / "progress.new"
        new.write_text(json.dumps({"identity": self._identity, "boot": _boot_id(), "progress": progress}))
        new.replace(self.folder / "progress.json")

    def finish(self) -> None:
        """Syncs the finished output to disk, renames it to `target`, and removes the folder."""
        if self.output.exists():
            _sync_files(self.output)
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
        """Unlocks the folder."""
        os.close(self._lock)


# Names of the files and folders in a partial export.
FILE_NAMES = re.compile(r"output|rows|replaced|progress\.json|progress\.new|journal-[0-9]+")


def _boot_id() -> str:
    """Returns an id that changes with each restart of the machine."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def _sync_files(path: Path) -> None:
    """Syncs a file, or a folder and all files in it, to disk."""
    for entry in [path, *path.rglob("*")] if path.is_dir() else [path]:
        descriptor = os.open(entry, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
