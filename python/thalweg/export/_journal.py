"""File with commits: after its writer was killed, its content is that of the last commit.

HDF5 updates its indexes in place, all over a file, so a file whose writer was killed may be unreadable. Therefore data
after the committed length are written to the file directly, but changes to committed pages are kept in memory. A commit
first writes these pages to a journal next to the file, and then copies them into the file.
"""

from __future__ import annotations

import io
import os
import struct
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

# Unit in which changes are kept in memory and written to the journal.
PAGE_BYTES = 4096
# Number of the page, which precedes each page in the journal.
PAGE_NUMBER = struct.Struct("<Q")
# Number of committed pages for which all writes are kept in memory: more than any file has.
ALL_PAGES = 1 << 62


class JournaledFile(io.RawIOBase):
    """Binary file for the h5py driver `fileobj`.

    `read` and `write` do not raise errors, since an error during a flush crashes the process (h5py 3.16, HDF5 1.14).
    After the first error all writes are kept in memory, and `check` raises the error.
    """

    def __init__(self, path: Path, state: dict[str, int] | None) -> None:
        """Opens `path` and restores the content of a `state` that `prepare` returned. Empties it if `state` is None."""
        super().__init__()
        self._path = path
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        self._position = 0
        # Changed pages within the committed length, by page number.
        self._pages: dict[int, bytearray] = {}
        # First error of a read or write.
        self._failure: BaseException | None = None
        # Number of the last journal, and length of the file in bytes.
        self._journal_number, self._end = (state["journal"], state["length"]) if state else (0, 0)
        self.commit()

    def _journal_path(self) -> Path:
        return self._path.with_name(f"journal-{self._journal_number}")

    def check(self) -> None:
        """Raises the first error of a read or write, such as OSError for a full disk, or KeyboardInterrupt."""
        if self._failure is not None:
            raise self._failure

    def prepare(self) -> dict[str, int]:
        """Writes the changed pages to a journal. Returns the state, which the caller must save before `commit`."""
        self.check()
        self._journal_number += 1
        with self._journal_path().open("wb") as file:
            for page, content in sorted(self._pages.items()):
                file.write(PAGE_NUMBER.pack(page) + content)
        return {"journal": self._journal_number, "length": self._end}

    def commit(self) -> None:
        """Copies the pages of the journal into the file and removes the journal."""
        journal = self._journal_path()
        if journal.exists():
            entries = memoryview(journal.read_bytes())
            for at in range(0, len(entries), PAGE_NUMBER.size + PAGE_BYTES):
                (page,) = PAGE_NUMBER.unpack_from(entries, at)
                os.pwrite(
                    self._descriptor,
                    entries[at + PAGE_NUMBER.size : at + PAGE_NUMBER.size + PAGE_BYTES],
                    page * PAGE_BYTES,
                )
        os.ftruncate(self._descriptor, self._end)
        for old in self._path.parent.glob("journal-*"):
            old.unlink()
        self._pages.clear()
        self._committed_pages = -(-self._end // PAGE_BYTES)

    def _page(self, number: int) -> bytearray:
        """Returns a committed page in memory, which is read from the file first if it is unchanged."""
        if number not in self._pages:
            content = os.pread(self._descriptor, PAGE_BYTES, number * PAGE_BYTES)
            self._pages[number] = bytearray(content.ljust(PAGE_BYTES, b"\0"))
        return self._pages[number]

    def write(self, data: Any) -> int:
        """Writes all of `data` at the current position and returns its length in bytes."""
        view, at = memoryview(data).cast("B"), self._position
        try:
            self._write_at(view, at)
        except BaseException as error:
            self._failure = self._failure or error
            self._committed_pages = ALL_PAGES
            self._write_at(view, at)
        self._position = at + len(view)
        self._end = max(self._end, self._position)
        return len(view)

    def _write_at(self, rest: memoryview, at: int) -> None:
        """Writes bytes within the committed length to pages in memory, and the others to the file."""
        while len(rest) and at < self._committed_pages * PAGE_BYTES:
            page, offset = divmod(at, PAGE_BYTES)
            count = min(PAGE_BYTES - offset, len(rest))
            self._page(page)[offset : offset + count] = rest[:count]
            rest, at = rest[count:], at + count
        while len(rest):
            count = os.pwrite(self._descriptor, rest, at)
            rest, at = rest[count:], at + count

    def readinto(self, buffer: Any) -> int:
        """Fills `buffer` from the current position, with zeros after the end of the file. Returns its length."""
        view, at = memoryview(buffer).cast("B"), self._position
        try:
            found = os.preadv(self._descriptor, [view], at)
        except BaseException as error:
            self._failure, found = self._failure or error, 0
        if found < len(view):
            view[found:] = bytes(len(view) - found)
        for page in range(at // PAGE_BYTES, -(-(at + len(view)) // PAGE_BYTES) if self._pages else 0):
            if (content := self._pages.get(page)) is not None:
                begin, end = max(page * PAGE_BYTES, at), min((page + 1) * PAGE_BYTES, at + len(view))
                view[begin - at : end - at] = content[begin - page * PAGE_BYTES : end - page * PAGE_BYTES]
        self._position = at + len(view)
        return len(view)

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Sets the position in bytes and returns it."""
        self._position = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._end}[whence]
        return self._position

    def tell(self) -> int:
        """Returns the position in bytes."""
        return self._position

    def truncate(self, size: int | None = None) -> int:
        """Sets the length in bytes (default: the position) and returns it. The next commit changes the file."""
        self._end = self._position if size is None else size
        return self._end

    def readable(self) -> bool:
        """Returns True."""
        return True

    def writable(self) -> bool:
        """Returns True."""
        return True

    def seekable(self) -> bool:
        """Returns True."""
        return True

    def close(self) -> None:
        """Closes the file."""
        if not self.closed:
            os.close(self._descriptor)
        super().close()
