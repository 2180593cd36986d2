"""Types of the extension module; what the names mean is told in ``thalweg``."""

import os
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import Any, Literal, final

import numpy as np
from numpy.typing import DTypeLike, NDArray
from typing_extensions import Buffer, Self

__version__: str

class RunError(Exception):
    """A run cannot be read (no run there, damaged bytes, an unknown version), or takes no data (no builder there,
    refused, over, too long a payload). The message says why, and names file and place or address."""

class RunOver(RunError):  # noqa: N818 - like StopIteration, it is no fault
    """A run has ended as it should (its time was over, an operator stopped it), and takes no more data."""

def open(
    path: str | os.PathLike[str],
    *,
    token: str | None = None,
    ca_file: str | os.PathLike[str] | None = None,
    timeout: float = 10.0,
) -> Run:
    """Opens a run, also one that is still being written or whose writer died: its directory, or its URL on a server
    (``thalweg serve``), such as ``"http://daq-0:8042/runs/42"``.

    A server gets ``token``, or what the environment variable ``THALWEG_TOKEN`` says; ``ca_file`` (PEM) has the
    certificates that vouch for it, instead of the system's. While it cannot be reached it is asked again, for
    ``timeout`` seconds, in all that is done with the run; then ``RunError`` is raised.

    Where less is there than ``run.json`` tells of, as of a file that was cut off, a ``UserWarning`` says so.
    """

@final
class Run:
    """A run on disk, or on a server. Iterating gives the closed events in the order of their numbers.

    What it says of itself is as it was when it was opened, also while the run is written: ``follow`` gives the events
    that come later, and a run that is opened again when that has ended says how.

    Of a run on a server whole blocks are fetched, when their events are read and once for all threads; in order, the
    next one meanwhile. Each is checked against its checksum. The last 128 MiB are kept, and what arrays look into.
    """

    @property
    def path(self) -> str:
        """The run's directory, or URL."""
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
    @property
    def nbytes(self) -> int:
        """Bytes in its blocks."""
    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[Event]: ...
    def ids(self) -> NDArray[np.uint64]:
        """The numbers of its events, in ascending order."""
    def events(
        self, first: int | None = None, last: int | None = None, sources: Sequence[str] | None = None
    ) -> Iterator[Event]:
        """The events from number ``first`` to ``last``, both included, in the order of their numbers; with ``sources``,
        by id or name, only their fragments. Raises ``KeyError`` for a source that the run does not have."""
    def event(self, event: int) -> Event:
        """The event of that number. Raises ``KeyError`` where it is not in this run, or was never closed."""
    def follow(self) -> Iterator[Event]:
        """All events in the order in which they were closed, waiting for more until the writer has closed the run or
        died. Other threads run while this one waits, and Ctrl-C ends the wait. A server is asked twice a second, and
        does not say that a writer died: that wait does not end by itself."""

@final
class Event:
    """A built event: one fragment of each source, a mapping from source to fragment. A pickled one has its payloads."""

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

@final
class Source:
    """A source of a run, which this program feeds.

    In the topology it is a ``[[source]]`` with this ``id`` and without a ``device``. Making one begins to look for the
    builders; a thread of its own then serves them, so that other threads of this program, and ``push``, only ever wait
    for a free slot. As a context manager it waits for the run to begin, and finishes at the end of the block, also when
    that is left by an exception. Where one thread has several sources, it makes all of them before it enters the first:
    the run begins when every source is there.

    ``builders`` is the address of the builder, or the addresses of all of them in the order of the topology:
    ``tcp:HOST:PORT``, or ``shm:PATH`` on the builder's own host.

    What will be pushed is said once, because readers are told in ``run.json``. Either with ``dtype`` and ``shape`` of
    the largest array:

    - ``int16`` with ``(samples,)`` or ``(samples, channels)``: samples of one or several channels. Each push may have
      fewer samples.
    - ``uint8`` or ``uint16`` with ``(height, width)``: images of that size.
    - ``uint8`` with ``(bytes,)``: the same as ``max_bytes``.

    Or with ``max_bytes``: bytes, of ``payload_type`` ``"raw"`` or ``"vdif"``, at most so many.

    ``description`` goes into ``run.json`` too, as JSON; what is said by ``dtype`` and ``shape`` wins over it.

    ``slots`` buffers of ``slot`` bytes are filled while builders ask for others; without ``slot`` one holds a fragment,
    or as many as fit 512 KiB. When all are full ``policy`` decides: with ``"block"`` ``push`` waits, with
    ``"drop-newest"`` what is pushed is dropped, with ``"drop-oldest"`` what has waited longest and was not asked for.
    Drops are counted, and the run says so.

    For ``timeout`` seconds a builder that is not there is looked for, at the beginning or when the connection broke;
    then everything raises ``RunError``.

    Several threads may use one source. A child process made by ``fork`` must make its own. A source that goes without
    ``finish`` finishes, but for no longer than ``timeout``.
    """

    def __init__(
        self,
        builders: str | Sequence[str],
        *,
        id: str,
        name: str | None = None,
        dtype: DTypeLike | None = None,
        shape: int | Sequence[int] | None = None,
        max_bytes: int | None = None,
        payload_type: Literal["raw", "vdif"] | None = None,
        description: dict[str, Any] | None = None,
        slots: int = 16,
        slot: int | None = None,
        policy: Literal["block", "drop-newest", "drop-oldest"] = "block",
        timeout: float = 10.0,
    ) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None: ...
    def push(
        self,
        data: Buffer,
        event: int | None = None,
        *,
        timestamp: int | None = None,
        window: int = 0,
        status: str | Sequence[str] | None = None,
        timeout: float | None = None,
    ) -> int:
        """Pushes one fragment, an array or bytes, and returns the number of its event.

        The bytes are copied once, into the slot from which they are sent: ``data`` may be changed when this returns.
        Nothing is converted: what is not ``int16``, ``uint8`` or ``uint16`` in this machine's byte order and C order
        raises ``TypeError`` or ``ValueError``. ``b""`` is an explicit *empty* fragment: this source has nothing to say
        of the event.

        ``event`` is the next one, or any later one: those left out count as ``skipped`` in the ledger, and the run is
        INCOMPLETE. ``timestamp`` is in TAI nanoseconds since 1970, now if left out; ``window`` the nanoseconds that the
        payload covers. ``status`` is one or several of ``"truncated"``, ``"corrupt"``, ``"simulated"``, ``"replayed"``,
        ``"clock-locked"``, ``"clock-holdover"``, ``"clock-free-running"``.

        Waits for the run to begin and, with policy ``"block"``, for a free slot; after ``timeout`` seconds raises
        ``TimeoutError``. Other threads run while it waits or copies, and Ctrl-C ends the wait. Raises ``RunOver`` where
        the run has ended, and any other ``RunError`` where it cannot go on.
        """
    def finish(self) -> dict[str, Any]:
        """Ends this source's part of the run, waits until what was pushed is delivered, and reports: ``accepted``,
        ``bytes``, ``dropped_newest``, ``dropped_oldest``, ``blocked``, ``copied_bytes``, ``seconds`` and more. May be
        called again. Ctrl-C gives up: what was not delivered is lost, and the run says so."""
    @property
    def running(self) -> bool:
        """Whether the run takes fragments: it has begun, and neither it nor this source's part of it is over. It may
        end at any time: a ``push`` that comes too late raises ``RunOver``."""
