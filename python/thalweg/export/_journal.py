"""A file whose content is, whenever its writer is killed, as it was at the last commit.

What is written behind the length that was committed goes straight into the file. What changes bytes in front of that
is kept in memory, until a commit writes it beside the file, and then into it. HDF5 keeps its index in small pieces all
over a file, so that a file of which its writer was killed cannot be relied on otherwise.
"""

from __future__ import annotations

import io
import os
import struct
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

PAGE = 4096
ENTRY = struct.Struct("<Q")


# Number of pages that no file has.
ALL = 1 << 62


class JournaledFile(io.RawIOBase):
    """A file for h5py's driver `fileobj`.

    HDF5 must not see an error: a flush that fails ends the process (h5py 3.16, HDF5 1.14). After the first one, all
    that is written is kept in memory, and `check` raises it.
    """

    def __init__(self, path: Path, state: dict[str, int] | None) -> None:
        """Opens `path` with the content of the `state` that `prepare` returned, or makes it anew."""
        super().__init__()
        self._path = path
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        self._at = 0
        # Changed pages in front of what was committed.
        self._pages: dict[int, bytearray] = {}
        self._failure: BaseException | None = None
        self._number, self._end = (state["journal"], state["length"]) if state else (0, 0)
        self.commit()

    def _journal(self) -> Path:
        return self._path.with_name(f"journal-{self._number}")

    def check(self) -> None:
        """Raises the error of a write, such as a full disk, or what interrupted one."""
        if self._failure is not None:
            raise self._failure

    def prepare(self) -> dict[str, int]:
        """Writes the changed pages into a journal, and returns the state that is to be noted before `commit`."""
        self.check()
        self._number += 1
        with self._journal().open("wb") as file:
            for page, content in sorted(self._pages.items()):
                file.write(ENTRY.pack(page) + content)
        return {"journal": self._number, "length": self._end}

    def commit(self) -> None:
        """Takes the pages of the journal into the file."""
        journal = self._journal()
        if journal.exists():
            entries = memoryview(journal.read_bytes())
            for at in range(0, len(entries), ENTRY.size + PAGE):
                (page,) = ENTRY.unpack_from(entries, at)
                os.pwrite(self._descriptor, entries[at + ENTRY.size : at + ENTRY.size + PAGE], page * PAGE)
        os.ftruncate(self._descriptor, self._end)
        for old in self._path.parent.glob("journal-*"):
            old.unlink()
        self._pages.clear()
        self._committed = -(-self._end // PAGE)

    def _page(self, number: int) -> bytearray:
        if number not in self._pages:
            content = os.pread(self._descriptor, PAGE, number * PAGE)
            self._pages[number] = bytearray(content.ljust(PAGE, b"\0"))
        return self._pages[number]

    def write(self, data: Any) -> int:
        """Writes at the position."""
        view, at = memoryview(data).cast("B"), self._at
        try:
            self._write(view, at)
        except BaseException as error:
            self._failure = self._failure or error
            self._committed = ALL
            self._write(view, at)
        self._at = at + len(view)
        self._end = max(self._end, self._at)
        return len(view)

    def _write(self, rest: memoryview, at: int) -> None:
        while len(rest) and at < self._committed * PAGE:
            page, offset = divmod(at, PAGE)
            count = min(PAGE - offset, len(rest))
            self._page(page)[offset : offset + count] = rest[:count]
            rest, at = rest[count:], at + count
        while len(rest):
            count = os.pwrite(self._descriptor, rest, at)
            rest, at = rest[count:], at + count

    def readinto(self, buffer: Any) -> int:
        """Reads from the position on, with zeros behind the end."""
        view, at = memoryview(buffer).cast("B"), self._at
        try:
            found = os.preadv(self._descriptor, [view], at)
        except BaseException as error:
            self._failure, found = self._failure or error, 0
        if found < len(view):
            view[found:] = bytes(len(view) - found)
        for page in range(at // PAGE, -(-(at + len(view)) // PAGE) if self._pages else 0):
            if (content := self._pages.get(page)) is not None:
                begin, end = max(page * PAGE, at), min((page + 1) * PAGE, at + len(view))
                view[begin - at : end - at] = content[begin - page * PAGE : end - page * PAGE]
        self._at = at + len(view)
        return len(view)

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Moves the position."""
        self._at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._end}[whence]
        return self._at

    def tell(self) -> int:
        """Returns the position."""
        return self._at

    def truncate(self, size: int | None = None) -> int:
        """Sets the length, which counts from the next commit on."""
        self._end = self._at if size is None else size
        return self._end

    def readable(self) -> bool:
        """Returns true."""
        return True

    def writable(self) -> bool:
        """Returns true."""
        return True

    def seekable(self) -> bool:
        """Returns true."""
        return True

    def close(self) -> None:
        """Closes the file."""
        if not self.closed:
            os.close(self._descriptor)
        super().close()
