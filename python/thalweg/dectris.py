"""A source that takes what a detector of Dectris' streams: SIMPLON's Stream, versions 1 and 2, over ZeroMQ.

    python -m thalweg.dectris tcp://detector:9999 tcp:127.0.0.1:7700 --id 1.0

Each image is one fragment. Events are numbered by the image's number in its series: a number that is left out is an
image that was lost on the way, `lost_in_device` in the run's ledger. Images that overtake each other are put in
order. Those of version 2 are dated by the detector, those of version 1 as they come. An image of several thresholds
has an axis more, in front.

The next series goes on behind the last image of the one before. How many that has is in the header of a series, where
the detector's `header_detail` is `basic` or `all`. A series may be ended before its last image: where that one did not
come, it is not known how many were taken, and the images of the next series are `uncertain`. So they are where there
was no such header, or a whole series is missing. The header also has what images will be, before the first one comes.
Without it the run begins with the first image.

Images of another shape or type than the first one end the source. Needs pyzmq, cbor2 for version 2, and lz4 and
bitshuffle where images are compressed: pip install thalweg[dectris].
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np

from thalweg import _codecs, _published
from thalweg._published import LOOK, TAI_UTC, Form, Image, Order

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Sequence

__all__ = ["Image", "decoded", "images", "record"]

# Messages that wait here. Of more, the detector has some to drop, and images of its own count are missing.
WAITING = 16
# So many images of a series that did not come may be lost; of more it is believed that they were never taken.
LARGEST_GAP = 1 << 24
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
        msg = f"images of {dtype!r}, encoded as {encoding!r}, are not supported"
        raise ValueError(msg)
    rows = tuple(int(length) for length in reversed(shape))
    pixel = np.dtype(how["order"] + np.dtype(dtype).str[1:])
    if not rows or min(rows) < 1 or len(rows) > 3 or (size := int(np.prod(rows)) * pixel.itemsize) > LONGEST:
        msg = f"images of {list(shape)} pixels are not supported"
        raise ValueError(msg)
    if how["lz4"] is None:
        if how["bits"] is not None or len(data) != size:
            msg = f"an image of {len(data)} bytes, encoded as {encoding!r}, instead of {size} bytes"
            raise ValueError(msg)
        image = np.frombuffer(data, pixel)
    elif how["bits"] is None:
        image = np.frombuffer(_codecs.lz4_block(data, size), pixel)
    else:
        image = _codecs.bitshuffle_lz4(data, size // pixel.itemsize, pixel)
    return image.reshape(rows).astype(dtype, copy=False)


# Typed arrays of CBOR (RFC 8746, section 2), by their tags.
TYPED = {64: "u1", 68: "u1", 72: "i1"}
TYPED |= {65 + i: f">u{2 << i}" for i in range(3)} | {69 + i: f"<u{2 << i}" for i in range(3)}
TYPED |= {73 + i: f">i{2 << i}" for i in range(3)} | {77 + i: f"<i{2 << i}" for i in range(3)}
TYPED |= {81: ">f4", 82: ">f8", 85: "<f4", 86: "<f8"}
# An array of several axes, the last without gaps (RFC 8746, section 3.1); bytes that Dectris compressed.
ROWS, COMPRESSED = 40, 56500


def _tagged(item: Any, *tags: int) -> tuple[int, Any]:
    tag = getattr(item, "tag", None)
    if tag not in tags:
        msg = f"an image's data are {type(item).__name__} {tag} instead of an array"
        raise ValueError(msg)
    return tag, item.value


def _array(item: Any) -> np.ndarray[Any, Any]:
    """An array of CBOR's: of a channel of an image."""
    _, (lengths, typed) = _tagged(item, ROWS)
    tag, data = _tagged(typed, *TYPED)
    pixel = np.dtype(TYPED[tag])
    shape = tuple(int(length) for length in lengths)
    if not shape or min(shape) < 1 or len(shape) > 3 or (size := int(np.prod(shape)) * pixel.itemsize) > LONGEST:
        msg = f"images of {list(shape)} pixels are not supported"
        raise ValueError(msg)
    if not isinstance(data, bytes):
        _, (algorithm, width, packed) = _tagged(data, COMPRESSED)
        if algorithm == "bslz4" and width == pixel.itemsize:
            image = _codecs.bitshuffle_lz4(packed, size // width, pixel)
        elif algorithm == "lz4":
            image = np.frombuffer(_codecs.lz4_hdf5(packed, size), pixel)
        else:
            msg = f"images compressed by {algorithm!r} of {width} bytes are not supported"
            raise ValueError(msg)
    elif len(data) == size:
        image = np.frombuffer(data, pixel)
    else:
        msg = f"an image of {len(data)} bytes instead of {size}"
        raise ValueError(msg)
    return image.reshape(shape).astype(pixel.newbyteorder("="), copy=False)


def _channels(data: Any) -> np.ndarray[Any, Any]:
    """An image of all channels: with one axis more in front where there are several thresholds."""
    if not isinstance(data, Mapping) or not data:
        msg = "an image has no data"
        raise ValueError(msg)
    arrays = [_array(channel) for channel in data.values()]
    if len(arrays) == 1:
        return arrays[0]
    if len({(array.shape, array.dtype) for array in arrays}) > 1:
        msg = "the channels of an image differ in their shapes or types"
        raise ValueError(msg)
    return np.stack(arrays)


def _time(message: Mapping[str, Any]) -> int | None:
    """When an image began, in nanoseconds of TAI, where the detector says so."""
    date, start = message.get("series_date"), message.get("start_time")
    if not isinstance(date, datetime) or date.tzinfo is None or not isinstance(start, (list, tuple)):
        return None
    ticks, hertz = start
    if not 0 < hertz < 1 << 64 or not 0 <= ticks < 1 << 64:
        return None
    since = date - datetime(1970, 1, 1, tzinfo=timezone.utc)
    seconds = since.days * 86_400 + since.seconds + TAI_UTC
    time = seconds * 10**9 + since.microseconds * 1000 + ticks * 10**9 // hertz
    return time if 0 < time < 1 << 63 else None


def _header(part: bytes, kind: str) -> dict[str, Any]:
    """A part that is JSON."""
    try:
        header = json.loads(part)
    except ValueError:
        header = None
    if not isinstance(header, dict) or not str(header.get("htype", "")).startswith(kind):
        msg = f"the data are not a SIMPLON stream of version 1: {part[:60]!r} instead of {kind}"
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


# How a map of CBOR begins: one of so many entries, or of some that ends by itself.
MAPS = {bytes([first]) for first in range(0xA0, 0xC0)}


def _cbor(message: bytes) -> Mapping[str, Any]:
    """A message of version 2."""
    try:
        import cbor2
    except ImportError as error:
        msg = "version 2 of the stream needs cbor2: pip install thalweg[dectris]"
        raise ImportError(msg) from error
    try:
        read = cbor2.loads(message)
    except (cbor2.CBORDecodeError, ValueError, TypeError, OverflowError, RecursionError) as error:
        msg = f"a message is not CBOR: {error}"
        raise ValueError(msg) from error
    read = getattr(read, "value", read)
    if not isinstance(read, Mapping):
        msg = f"a message is {type(read).__name__} instead of a map, as in version 2 of the stream"
        raise ValueError(msg)
    return read


def _start(message: Mapping[str, Any]) -> tuple[Form | None, int | None]:
    """What the images of a series will be, and how many there are, as its first message says."""
    images, channels = message.get("number_of_images"), message.get("channels")
    total = images if isinstance(images, int) and 0 < images < 1 << 31 else None
    lengths = [message.get("image_size_y"), message.get("image_size_x")]
    count = len(channels) if isinstance(channels, (list, tuple)) else 1
    if count > 1:
        lengths.insert(0, count)
    try:
        pixel = np.dtype(str(message.get("image_dtype")))
    except TypeError:
        return None, total
    shape = tuple(length for length in lengths if isinstance(length, int) and 0 < length < 1 << 16)
    form = Form(pixel, shape) if pixel.name in TYPES and len(shape) == len(lengths) else None
    return form, total


class Series(NamedTuple):
    """A series: its number, and its unique id, where version 2 of the stream states one."""

    number: int
    unique: str | None = None


class _Numbering:
    """From the numbers of images in their series to the numbers of events.

    Number 0 is image 0 of the first series whose header came, or the first image. The next series goes on behind the
    last image of the one before. Numbers are `certain` for as long as it is known which one that was.
    """

    def __init__(self) -> None:
        """No series has come."""
        self._order = Order(64)
        self._series: Series | None = None
        # The number of the series' first image, and how many images it has, where that is known.
        self._base, self._total = 0, cast("int | None", None)
        # Its last image so far, and whether its end has come.
        self._last, self._has_ended = -1, False
        # The series before it, and the number of that one's first image.
        self._before: tuple[Series, int] | None = None

    def header(self, series: Series, total: int | None) -> None:
        """The header of a series has come. `total`: how many images there will be, where it states that."""
        if series == self._series and series.unique is not None:
            # Images overtook it, or it came twice.
            self._total = self._total if total is None else total
            return
        certain = self._begin(series, 0, total)
        self._order.begin(self._base, self._base, certain=certain)

    def end(self, series: Series) -> None:
        """The end of a series has come. It does not state how many images there were."""
        if series == self._series:
            self._has_ended = True

    def image(self, series: Series, number: int, time: int | None, array: np.ndarray[Any, Any]) -> None:
        """An image of a series has come. Raises ValueError where its number is none."""
        if not 0 <= number < 1 << 31:
            msg = f"an image has the impossible number {number} of its series"
            raise ValueError(msg)
        if series != self._series:
            if self._before is not None and series == self._before[0]:
                # It is late, or the detector has begun to count its series anew.
                self._order.came(self._before[1] + number, time, array, certain=False)
                return
            certain = self._begin(series, -number, None)
            self._order.begin(self._base + number, self._base + number, certain=certain)
        # After the end of its series, or behind its last image, it may be of another one with the same number.
        is_inside = not self._has_ended and (self._total is None or number < self._total)
        self._last = max(self._last, number)
        self._order.came(self._base + number, time, array, certain=is_inside)

    def _begin(self, series: Series, first: int, total: int | None) -> bool:
        """A series begins. Its image 0 is number `first` if no other came before. Returns whether numbers are certain.

        A series may be ended before it has as many images as its header states: where its last one did not come, it is
        not known how many were taken.
        """
        base, certain = first, True
        if self._series is not None:
            end = self._order.end
            base = end if self._total is None else self._base + self._total
            if not end <= base <= end + LARGEST_GAP:
                base = end
            certain = series.number == self._series.number + 1 and self._total == self._last + 1
            self._before = self._series, self._base
        self._series, self._base, self._total = series, base, total
        self._last, self._has_ended = -1, False
        return certain

    def take(self, *, idle: bool = False) -> Image | None:
        """Returns the next image; one that was taken earlier is waited for, unless nothing has come for long."""
        return self._order.take(idle=idle)


class _Stream:
    """The images of a detector."""

    # Each image is a fragment.
    unused = 0

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
        self._numbering = _Numbering()
        try:
            self._socket.connect(endpoint)
        except zmq.ZMQError as error:
            self.close()
            msg = f"{endpoint}: {error}"
            raise ValueError(msg) from error

    def take(self) -> Form | Image | None:
        """Returns the next image, or what the images of a series will be."""
        while (image := self._numbering.take()) is None:
            try:
                parts = self._socket.recv_multipart()
            except self._nothing:
                return self._numbering.take(idle=True)
            form = self._came(parts)
            if form is not None:
                return form
        return image

    def _came(self, parts: list[bytes]) -> Form | None:
        # Version 2: a map of CBOR, with or without the tag that says that it is CBOR.
        if len(parts) == 1 and (parts[0][:3] == b"\xd9\xd9\xf7" or parts[0][:1] in MAPS):
            return self._message(_cbor(parts[0]))
        about = _header(parts[0], "d")
        kind = about["htype"]
        if kind.startswith("dheader-"):
            try:
                total, form = _form(json.loads(parts[1]) if len(parts) > 1 else None)
                self._numbering.header(Series(int(about["series"])), total)
            except (KeyError, TypeError, ValueError) as error:
                msg = f"the header of a series is invalid: {error}"
                raise ValueError(msg) from error
            return form
        if kind.startswith("dimage-"):
            self._image(about, parts)
        elif kind.startswith("dseries_end-"):
            try:
                self._numbering.end(Series(int(about["series"])))
            except (KeyError, TypeError, ValueError) as error:
                msg = f"the end of a series is invalid: {error}"
                raise ValueError(msg) from error
        return None

    def _message(self, message: Mapping[str, Any]) -> Form | None:
        """A message of version 2."""
        form = None
        try:
            kind, unique = message["type"], message.get("series_unique_id")
            series = Series(int(message["series_id"]), unique if isinstance(unique, str) else None)
            if kind == "start":
                form, total = _start(message)
                self._numbering.header(series, total)
            elif kind == "image":
                number, array = int(message["image_id"]), _channels(message["data"])
                self._numbering.image(series, number, _time(message), array)
            elif kind == "end":
                self._numbering.end(series)
        except (KeyError, TypeError, ValueError) as error:
            if isinstance(error, ValueError):
                raise
            msg = f"a message is invalid: {error} is missing or wrong"
            raise ValueError(msg) from error
        return form

    def _image(self, about: dict[str, Any], parts: list[bytes]) -> None:
        if len(parts) < 3:
            msg = f"an image in {len(parts)} parts instead of four"
            raise ValueError(msg)
        what = _header(parts[1], "dimage_d-")
        try:
            series, number = int(about["series"]), int(about["frame"])
            array = decoded(parts[2], what["shape"], what["type"], what["encoding"])
        except (KeyError, TypeError) as error:
            msg = f"an image is invalid: {error} is missing or wrong"
            raise ValueError(msg) from error
        self._numbering.image(Series(series), number, None, array)

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
        description=lambda: {"endpoint": endpoint},
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
