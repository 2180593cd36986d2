"""A source that takes what a detector of Dectris' streams: version 1 of the stream of SIMPLON, over ZeroMQ.

    python -m thalweg.dectris tcp://detector:9999 tcp:127.0.0.1:7700 --id 1.0

Each image is one fragment. Events are numbered by the image's number in its series: a number that is left out is an
image that was lost on the way, `lost_in_device` in the run's ledger. Images that overtake each other are put in
order, and dated as they come: the detector's clock is one of its own.

The next series goes on behind the last image of the one before. How many that has, the header of a series says, where
the detector's `header_detail` is `basic` or `all`; else what was lost at its end is not known, and the images of the
next series are `uncertain`. Such a header also says what images will be, before the first one comes. Without it the run
begins with the first image.

Images of another shape or type than the first one end the source. Needs pyzmq, and lz4 and bitshuffle where images are
compressed: pip install thalweg[dectris].
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from thalweg import _published
from thalweg._published import LOOK, Form, Image, Order

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Sequence

__all__ = ["Image", "decoded", "images", "record"]

# Messages that wait here. Of more, the detector has some to drop, and images of its own count are missing.
WAITING = 16
# The longest part of a message, and the most pixels of an image.
LONGEST = 1 << 30
TYPES = {"uint8", "uint16", "uint32", "int8", "int16", "int32", "float32", "float64"}
ENCODING = re.compile(r"(?:bs(?P<bits>\d+)-)?(?P<lz4>lz4)?(?P<order>[<>])")


def decoded(data: bytes, shape: Sequence[int], dtype: str, encoding: str) -> np.ndarray[Any, Any]:
    """An image as the stream has it: `shape` has its width first, and `encoding` is such as "bs16-lz4<".

    Raises ValueError where the bytes are not what they are said to be.
    """
    how = ENCODING.fullmatch(encoding)
    if how is None or dtype not in TYPES:
        msg = f"images of {dtype!r}, encoded as {encoding!r}: there is no such thing"
        raise ValueError(msg)
    rows = tuple(int(length) for length in reversed(shape))
    pixel = np.dtype(how["order"] + np.dtype(dtype).str[1:])
    if not rows or min(rows) < 1 or len(rows) > 3 or (size := int(np.prod(rows)) * pixel.itemsize) > LONGEST:
        msg = f"images of {list(shape)} pixels: there is no such thing"
        raise ValueError(msg)
    if how["lz4"] is None:
        if how["bits"] is not None or len(data) != size:
            msg = f"an image of {len(data)} bytes, encoded as {encoding!r}: {size} are right"
            raise ValueError(msg)
        return np.frombuffer(data, pixel).reshape(rows).astype(dtype, copy=False)
    try:
        import bitshuffle
        import lz4.block
    except ImportError as error:
        msg = "compressed images need lz4 and bitshuffle: pip install thalweg[dectris]"
        raise ImportError(msg) from error
    try:
        if how["bits"] is None:
            whole = lz4.block.decompress(data, uncompressed_size=size)
            if len(whole) != size:
                msg = f"an image is damaged: {len(whole)} bytes of {size}"
                raise ValueError(msg)
            return np.frombuffer(whole, pixel).reshape(rows).astype(dtype, copy=False)
        # In front stand the length of the image and of a block, in bytes (HDF5's filter 32008). A simulator may leave
        # that out.
        block = max(8192 // pixel.itemsize // 8 * 8, 128)
        if int.from_bytes(data[:8], "big") == size:
            block, data = int.from_bytes(data[8:12], "big") // pixel.itemsize, data[12:]
        _check_blocks(data, size // pixel.itemsize, pixel.itemsize, block)
        image: np.ndarray[Any, Any] = bitshuffle.decompress_lz4(np.frombuffer(data, np.uint8), rows, pixel, block)
        return image.astype(dtype, copy=False)
    except (RuntimeError, lz4.block.LZ4BlockError) as error:
        msg = f"an image is damaged: {error}"
        raise ValueError(msg) from error


def _check_blocks(data: bytes, count: int, itemsize: int, block: int) -> None:
    """Whether so many pixels are there in blocks of `block`: bitshuffle believes the lengths that stand in front."""
    at = 0
    if block >= 8 and block % 8 == 0:
        # Whole blocks, one of what is left in eights, and up to seven pixels as they are.
        for _ in range(count // block + (count % block >= 8)):
            at += 4 + int.from_bytes(data[at : at + 4], "big")
            if at > len(data):
                break
        at += count % 8 * itemsize
    if at != len(data) or at == 0:
        msg = f"an image is damaged: {len(data)} bytes are not {count} pixels in blocks of {block}"
        raise ValueError(msg)


def _header(part: bytes, kind: str) -> dict[str, Any]:
    """A part that is JSON."""
    try:
        header = json.loads(part)
    except ValueError:
        header = None
    if not isinstance(header, dict) or not str(header.get("htype", "")).startswith(kind):
        msg = f"what comes is no stream of SIMPLON's, version 1: {part[:60]!r} where {kind} should be"
        raise ValueError(msg)
    return header


def _form(config: Any) -> tuple[int | None, Form | None]:
    """How many images a series has, and what they are, as the header of the series says where it is told to."""
    if not isinstance(config, dict):
        return None, None
    total = form = None
    images, triggers = config.get("nimages"), config.get("ntrigger", 1)
    if isinstance(images, int) and isinstance(triggers, int) and 0 < images * triggers < 1 << 31:
        total = images * triggers
    bits = config.get("bit_depth_image")
    shape = [config.get("y_pixels_in_detector"), config.get("x_pixels_in_detector")]
    lengths = tuple(length for length in shape if isinstance(length, int) and 0 < length < 1 << 16)
    if bits in {8, 16, 32} and len(lengths) == len(shape):
        form = Form(np.dtype(f"uint{bits}"), lengths)
    return total, form


class _Stream:
    """The images of a detector."""

    def __init__(self, endpoint: str) -> None:
        """Connects, where there is a detector or will be one."""
        try:
            import zmq
        except ImportError as error:
            msg = "thalweg.dectris needs pyzmq: pip install thalweg[dectris]"
            raise ImportError(msg) from error
        self.name = f"{endpoint}: no image"
        self._nothing: type[Exception] = zmq.Again
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.PULL)
        self._socket.setsockopt(zmq.RCVHWM, WAITING)
        self._socket.setsockopt(zmq.MAXMSGSIZE, LONGEST)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.setsockopt(zmq.RCVTIMEO, int(LOOK * 1000))
        self._order = Order(64)
        self._series: int | None = None
        # The number of the series' first image, and how many it has, where that is known.
        self._base, self._total = 0, cast("int | None", None)
        try:
            self._socket.connect(endpoint)
        except zmq.ZMQError as error:
            self.close()
            msg = f"{endpoint}: {error}"
            raise ValueError(msg) from error

    def take(self) -> Form | Image | None:
        """Returns the next image, or what the images of a series will be."""
        while (image := self._order.take()) is None:
            try:
                parts = self._socket.recv_multipart()
            except self._nothing:
                return self._order.take(idle=True)
            form = self._came(parts)
            if form is not None:
                return form
        return image

    def _came(self, parts: list[bytes]) -> Form | None:
        about = _header(parts[0], "d")
        kind = about["htype"]
        if kind.startswith("dheader-"):
            try:
                total, form = _form(json.loads(parts[1]) if len(parts) > 1 else None)
                self._begin(int(about["series"]), 0, total, seen=True)
            except (KeyError, TypeError, ValueError) as error:
                msg = f"the header of a series says nothing of it: {error}"
                raise ValueError(msg) from error
            return form
        if kind.startswith("dimage-"):
            self._image(about, parts)
        return None

    def _begin(self, series: int, number: int, total: int | None, *, seen: bool) -> None:
        """A series begins, with this image of it. `seen`: its header says so."""
        if self._series is None:
            self._base, certain = (0 if seen else -number), True
        else:
            certain = self._total is not None
            self._base = self._order.end if self._total is None else self._base + self._total
        self._series, self._total = series, total
        self._order.begin(self._base + number, self._base + number, certain=certain)

    def _image(self, about: dict[str, Any], parts: list[bytes]) -> None:
        if len(parts) < 3:
            msg = f"an image in {len(parts)} parts: it has four"
            raise ValueError(msg)
        what = _header(parts[1], "dimage_d-")
        try:
            series, number = int(about["series"]), int(about["frame"])
            array = decoded(parts[2], what["shape"], what["type"], what["encoding"])
        except (KeyError, TypeError) as error:
            msg = f"an image says nothing of itself: {error} is missing or wrong"
            raise ValueError(msg) from error
        if not 0 <= number < 1 << 31:
            msg = f"an image says that it is number {number} of its series"
            raise ValueError(msg)
        if series != self._series:
            self._begin(series, number, None, seen=False)
        if self._total is not None and number >= self._total:
            self._total = None
        self._order.came(self._base + number, None, array)

    def begin(self) -> bool:
        """A detector streams to whoever takes: all that it streamed is of the run."""
        return True

    def close(self) -> None:
        """Disconnects."""
        self._socket.close()
        self._context.term()


def images(
    endpoint: str, *, timeout: float = 10.0, over: Callable[[], bool] = lambda: False
) -> Generator[Image, None, None]:
    """All images from now on. The first one comes within `timeout` seconds, or TimeoutError is raised.

    While nothing comes, `over` is asked now and then whether to end.
    """
    return _published.images(_Stream(endpoint), timeout, over)


def record(
    endpoint: str, builders: str | Sequence[str], *, id: str, name: str | None = None, timeout: float = 10.0
) -> dict[str, Any]:
    """Gives a detector's images to the builders, to the end of their run, and returns what the source counted."""
    return _published.record(
        _Stream(endpoint),
        builders,
        id=id,
        name=name,
        description={"endpoint": endpoint},
        timeout=timeout,
    )


if __name__ == "__main__":
    _published.command(
        "thalweg.dectris",
        "Records the images that a detector of Dectris' streams",
        ("endpoint", "where it streams, such as tcp://detector:9999"),
        record,
        "images",
    )
