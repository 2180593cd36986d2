"""Types of the extension module; what the names mean is told in ``thalweg``."""

import os
from collections.abc import Iterator
from typing import Any, Literal, final

import numpy as np
from numpy.typing import NDArray

__version__: str

class RunError(Exception):
    """A run cannot be read: no run there, damaged bytes, an unknown version. The message names file and place."""

def open(path: str | os.PathLike[str]) -> Run:
    """Opens a run directory, also one that is still being written or whose writer died."""

@final
class Run:
    """A run on disk. Iterating gives the closed events in the order of their numbers."""

    @property
    def path(self) -> str:
        """The run's directory."""
    @property
    def info(self) -> dict[str, Any]:
        """What ``run.json`` says, as it was when the run was opened."""
    @property
    def number(self) -> int:
        """The run's number."""
    @property
    def state(self) -> Literal["OPEN", "COMPLETE", "INCOMPLETE"]:
        """Whether all that was accepted is here (COMPLETE), something is missing (INCOMPLETE, see ``info["reasons"]``),
        or the run is being written or its writer died (OPEN)."""
    @property
    def sources(self) -> list[str]:
        """The sources, as ``"subsystem.element"``."""
    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[Event]: ...
    def event(self, event: int) -> Event:
        """The event of that number. Raises ``KeyError`` where it is not in this run, or was never closed."""
    def follow(self) -> Iterator[Event]:
        """All events in the order in which they were closed, waiting for more until the writer has closed the run or
        died. Other threads run while this one waits, and Ctrl-C ends the wait."""

@final
class Event:
    """A built event: one fragment of each source, a mapping from source to fragment."""

    @property
    def id(self) -> int:
        """The event's number."""
    @property
    def run(self) -> int:
        """The run's number."""
    @property
    def complete(self) -> bool:
        """Whether every source's fragment is here."""
    @property
    def status(self) -> Literal["complete", "incomplete"]: ...
    @property
    def missing(self) -> list[str]:
        """The sources of which nothing came."""
    @property
    def timestamp(self) -> int | None:
        """When it happened, in TAI nanoseconds since 1970: the earliest timestamp of a fragment that came, or nothing
        where none did."""
    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[str]: ...
    def __contains__(self, source: object) -> bool: ...
    def __getitem__(self, source: str) -> Fragment: ...
    def get(self, source: str, default: Any = None) -> Any: ...
    def keys(self) -> list[str]: ...
    def values(self) -> list[Fragment]: ...
    def items(self) -> list[tuple[str, Fragment]]: ...

@final
class Fragment:
    """What one source says of one event: the fields of its header, and its payload."""

    @property
    def run(self) -> int: ...
    @property
    def event(self) -> int: ...
    @property
    def source(self) -> str: ...
    @property
    def timestamp(self) -> int:
        """TAI nanoseconds since 1970."""
    @property
    def sequence(self) -> int:
        """Counts the source's fragments, modulo 2**32."""
    @property
    def window(self) -> int:
        """Nanoseconds that the payload covers; 0 where that has no meaning."""
    @property
    def status(self) -> list[str]:
        """Names of the status bits that are set, such as ``"simulated"``, ``"replayed"``, ``"missing"``."""
    @property
    def status_bits(self) -> int: ...
    @property
    def payload_type(self) -> str:
        """``"samples-i16"``, ``"image-u8"``, ``"image-u16"``, ``"vdif"``, ``"raw"`` or ``"unknown"``."""
    @property
    def payload_crc(self) -> int | None:
        """CRC32C of the payload as the source computed it, or nothing where it did not."""
    @property
    def payload(self) -> NDArray[np.uint8]:
        """The payload's bytes, read-only, not copied."""
    @property
    def array(self) -> NDArray[np.int16] | NDArray[np.uint8] | NDArray[np.uint16]:
        """The payload as what it is, read-only, not copied: samples as ``(samples, channels)``, an image as
        ``(height, width)``, anything else as bytes. Raises ``RunError`` where its length does not fit the dimensions
        that the run states for this source."""
    def verify(self) -> bool:
        """Whether the payload is what its CRC was computed from; true where the source computed none."""
    def __len__(self) -> int:
        """Bytes in the payload."""
