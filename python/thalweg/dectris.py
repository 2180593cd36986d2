"""Source for Dectris detectors: receives the SIMPLON stream, versions 1 and 2, over ZeroMQ.

Run as a program, with the detector's endpoint, the builder's address and the id of the source:

    python -m thalweg.dectris tcp://detector:9999 tcp:127.0.0.1:7700 --id 1.0

Each image becomes one fragment, of shape (height, width), or (thresholds, height, width) if there are several
thresholds. Event numbers follow the image numbers of a series. A gap in the image numbers is an image that was lost on
the way, and is counted as `lost_in_device` in the run's ledger. Images that arrive up to 16 late are sorted. Time
stamps are those of the detector for version 2 of the stream, and the time of arrival for version 1.

Several series can be recorded into one run: the first image of a series gets the event number after the last image of
the series before. The number of images of a series is stated in its header if the detector's `header_detail` is `basic`
or `all`; the header also states shape and type of the images. Without a header the run begins with the first image.

Fragments have the status `uncertain` if the number of images in the series before is unknown: its header is missing,
the whole series is missing, or its last image did not arrive, so that it may have been ended early.

An image whose shape or type differs from the first one ends the source with an error. Needs pyzmq, cbor2 for version 2
of the stream, and lz4 and bitshuffle for compressed images: pip install thalweg[dectris].
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np

from thalweg import _codecs, _published
from thalweg._published import POLL_SECONDS, TAI_UTC, Image, ImageFormat, ImageQueue

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Sequence

__all__ = ["Image", "decoded", "images", "record"]

# Messages that ZeroMQ queues here. If the queue is full, the detector drops images.
MAX_QUEUED_MESSAGES = 16
# Largest number of missing images at the end of a series that count as lost. If more are missing, they were not taken.
MAX_LOST_IMAGES = 1 << 24
# Largest size in bytes of a part of a message, and of an image.
MAX_IMAGE_BYTES = 1 << 30
PIXEL_TYPES = {"uint8", "uint16", "uint32", "int8", "int16", "int32", "float32", "float64"}
ENCODING = re.compile(r"(?:bs(?P<bits>\d+)-)?(?P<lz4>lz4)?(?P<order>[<>])")


def decoded(data: bytes, shape: Sequence[int], dtype: str, encoding: str) -> np.ndarray[Any, Any]:
    """Decodes the data of one image of version 1 of the stream.

    `shape` is (width, height) as in the stream; the array returned has the shape (height, width), the type `dtype`, and
    the native byte order. `encoding` is the encoding that the stream states, such as "bs16-lz4<" or "<".

    Raises ValueError if the type or encoding is not supported, or the data do not match them.
    """
    form = ENCODING.fullmatch(encoding)
    if form is None or dtype not in PIXEL_TYPES:
        msg = f"an image of type {dtype!r} with encoding {encoding!r} is not supported"
        raise ValueError(msg)
    rows = tuple(int(length) for length in reversed(shape))
    pixel = np.dtype(form["order"] + np.dtype(dtype).str[1:])
    if not rows or min(rows) < 1 or len(rows) > 3 or (size := int(np.prod(rows)) * pixel.itemsize) > MAX_IMAGE_BYTES:
        msg = f"an image of {list(shape)} pixels: it must have 1 to 3 axes and at most {MAX_IMAGE_BYTES} bytes"
        raise ValueError(msg)
    if form["lz4"] is None:
        if form["bits"] is not None or len(data) != size:
            msg = f"an image of {len(data)} bytes with encoding {encoding!r}: expected {size} bytes"
            raise ValueError(msg)
        image = np.frombuffer(data, pixel)
    elif form["bits"] is None:
        image = np.frombuffer(_codecs.lz4_block(data, size), pixel)
    else:
        image = _codecs.bitshuffle_lz4(data, size // pixel.itemsize, pixel)
    return image.reshape(rows).astype(dtype, copy=False)


# NumPy types of CBOR's typed arrays (RFC 8746, section 2), by tag.
ARRAY_TYPES = {64: "u1", 68: "u1", 72: "i1"}
ARRAY_TYPES |= {65 + i: f">u{2 << i}" for i in range(3)} | {69 + i: f"<u{2 << i}" for i in range(3)}
ARRAY_TYPES |= {73 + i: f">i{2 << i}" for i in range(3)} | {77 + i: f"<i{2 << i}" for i in range(3)}
ARRAY_TYPES |= {81: ">f4", 82: ">f8", 85: "<f4", 86: "<f8"}
# Tags of an array of several axes in C order (RFC 8746, section 3.1), and of data compressed by Dectris.
ARRAY_TAG, COMPRESSED_TAG = 40, 56500


def _tagged(item: Any, *tags: int) -> tuple[int, Any]:
    """Returns tag and value of a tagged item. Raises ValueError if the tag is not one of `tags`."""
    tag = getattr(item, "tag", None)
    if tag not in tags:
        msg = f"the data of an image are {type(item).__name__} with tag {tag}, not an array"
        raise ValueError(msg)
    return tag, item.value


def _array(item: Any) -> np.ndarray[Any, Any]:
    """Decodes one channel of an image of version 2, a CBOR array."""
    _, (lengths, typed) = _tagged(item, ARRAY_TAG)
    tag, data = _tagged(typed, *ARRAY_TYPES)
    pixel = np.dtype(ARRAY_TYPES[tag])
    shape = tuple(int(length) for length in lengths)
    if (
        not shape
        or min(shape) < 1
        or len(shape) > 3
        or (size := int(np.prod(shape)) * pixel.itemsize) > MAX_IMAGE_BYTES
    ):
        msg = f"an image of {list(shape)} pixels: it must have 1 to 3 axes and at most {MAX_IMAGE_BYTES} bytes"
        raise ValueError(msg)
    if not isinstance(data, bytes):
        _, (algorithm, width, packed) = _tagged(data, COMPRESSED_TAG)
        if algorithm == "bslz4" and width == pixel.itemsize:
            image = _codecs.bitshuffle_lz4(packed, size // width, pixel)
        elif algorithm == "lz4":
            image = np.frombuffer(_codecs.lz4_hdf5(packed, size), pixel)
        else:
            msg = f"an image compressed by {algorithm!r} with elements of {width} bytes is not supported"
            raise ValueError(msg)
    elif len(data) == size:
        image = np.frombuffer(data, pixel)
    else:
        msg = f"an image of {len(data)} bytes: expected {size} bytes"
        raise ValueError(msg)
    return image.reshape(shape).astype(pixel.newbyteorder("="), copy=False)


def _channels(data: Any) -> np.ndarray[Any, Any]:
    """Decodes all channels of an image: (height, width), or (channels, height, width) if there are several."""
    if not isinstance(data, Mapping) or not data:
        msg = "an image has no data"
        raise ValueError(msg)
    arrays = [_array(channel) for channel in data.values()]
    if len(arrays) == 1:
        return arrays[0]
    if len({(array.shape, array.dtype) for array in arrays}) > 1:
        msg = "the channels of an image differ in shape or type"
        raise ValueError(msg)
    return np.stack(arrays)


def _time(message: Mapping[str, Any]) -> int | None:
    """Returns the start time of an image in nanoseconds of TAI since 1970, or None if the message has none."""
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
    """Parses a part of a message of version 1, a JSON object whose `htype` begins with `kind`."""
    try:
        header = json.loads(part)
    except ValueError:
        header = None
    if not isinstance(header, dict) or not str(header.get("htype", "")).startswith(kind):
        msg = f"the message is not of a SIMPLON stream: {part[:60]!r}, expected a part of htype {kind!r}"
        raise ValueError(msg)
    return header


def _read_config(config: Any) -> tuple[int | None, ImageFormat | None]:
    """Returns the number of images of a series and their format, as stated in a header of version 1, or None each."""
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
        form = ImageFormat(np.dtype(f"uint{bits}"), lengths)
    return total, form


# First bytes of a CBOR map: of definite or indefinite length (RFC 8949, section 3.1).
CBOR_MAPS = {bytes([first]) for first in range(0xA0, 0xC0)}


def _cbor(message: bytes) -> Mapping[str, Any]:
    """Parses a message of version 2, a CBOR map."""
    try:
        import cbor2
    except ImportError as error:
        msg = "version 2 of the stream needs cbor2: pip install thalweg[dectris]"
        raise ImportError(msg) from error
    try:
        read = cbor2.loads(message)
    except (cbor2.CBORDecodeError, ValueError, TypeError, OverflowError, RecursionError) as error:
        msg = f"a message is not valid CBOR: {error}"
        raise ValueError(msg) from error
    read = getattr(read, "value", read)
    if not isinstance(read, Mapping):
        msg = f"a message is a CBOR {type(read).__name__}: version 2 of the stream consists of maps"
        raise ValueError(msg)
    return read


def _read_start(message: Mapping[str, Any]) -> tuple[ImageFormat | None, int | None]:
    """Returns the format and number of the images of a series, as stated in its start message, or None each."""
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
    form = ImageFormat(pixel, shape) if pixel.name in PIXEL_TYPES and len(shape) == len(lengths) else None
    return form, total


class Series(NamedTuple):
    """Series of images: its number, and its unique id in version 2 of the stream."""

    number: int
    unique: str | None = None


class _Numbering:
    """Converter from the image numbers of series to event numbers.

    Event 0 is image 0 of the first series whose header was received, or the first image without a header. The first
    image of a series gets the number after the last image of the series before. Numbers are `certain` as long as that
    last image is known.
    """

    def __init__(self) -> None:
        """Creates a converter before the first series."""
        self._queue = ImageQueue(64)
        self._series: Series | None = None
        # Event number of the series' first image, and the number of its images, if known.
        self._base, self._total = 0, cast("int | None", None)
        # Highest image number of the series so far, and whether its end was received.
        self._last, self._has_ended = -1, False
        # The series before, and the event number of its first image.
        self._previous: tuple[Series, int] | None = None

    def add_header(self, series: Series, total: int | None) -> None:
        """Accepts the header of a series. `total` is the number of its images, if the header states it."""
        if series == self._series and series.unique is not None:
            # The header arrived after images of its series, or twice.
            self._total = self._total if total is None else total
            return
        certain = self._begin(series, 0, total)
        self._queue.begin_at_count(self._base, self._base, certain=certain)

    def add_end(self, series: Series) -> None:
        """Accepts the end message of a series, which does not state the number of images."""
        if series == self._series:
            self._has_ended = True

    def add_image(self, series: Series, number: int, time: int | None, array: np.ndarray[Any, Any]) -> None:
        """Accepts an image of a series. Raises ValueError if its number is not valid."""
        if not 0 <= number < 1 << 31:
            msg = f"an image has the number {number}: it must be 0 to 2**31 - 1"
            raise ValueError(msg)
        if series != self._series:
            if self._previous is not None and series == self._previous[0]:
                # Either the image is late, or the detector has restarted its series counter.
                self._queue.add(self._previous[1] + number, time, array, certain=False)
                return
            certain = self._begin(series, -number, None)
            self._queue.begin_at_count(self._base + number, self._base + number, certain=certain)
        # An image after the end of its series, or after its last image, may be of another series with the same number.
        is_inside = not self._has_ended and (self._total is None or number < self._total)
        self._last = max(self._last, number)
        self._queue.add(self._base + number, time, array, certain=is_inside)

    def _begin(self, series: Series, first: int, total: int | None) -> bool:
        """Begins a series, with event number `first` for its image 0 if it is the first series.

        Returns whether the event numbers are certain. They are not if the last image of the series before was not
        received, since a series may be ended before the number of images that its header states.
        """
        base, certain = first, True
        if self._series is not None:
            end = self._queue.end_number
            base = end if self._total is None else self._base + self._total
            if not end <= base <= end + MAX_LOST_IMAGES:
                base = end
            certain = series.number == self._series.number + 1 and self._total == self._last + 1
            self._previous = self._series, self._base
        self._series, self._base, self._total = series, base, total
        self._last, self._has_ended = -1, False
        return certain

    def take(self, *, idle: bool = False) -> Image | None:
        """Returns the next image, or None: see ImageQueue.take."""
        return self._queue.take(idle=idle)


class _Stream:
    """Connection to the stream of a detector."""

    # No image is left out.
    unused = 0

    def __init__(self, endpoint: str) -> None:
        """Connects to a ZeroMQ endpoint, at which the detector may appear later."""
        try:
            import zmq
        except ImportError as error:
            msg = "thalweg.dectris needs pyzmq: pip install thalweg[dectris]"
            raise ImportError(msg) from error
        self.name = f"{endpoint}: no image"
        self._timed_out: type[Exception] = zmq.Again
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.PULL)
        self._socket.setsockopt(zmq.RCVHWM, MAX_QUEUED_MESSAGES)
        self._socket.setsockopt(zmq.MAXMSGSIZE, MAX_IMAGE_BYTES)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.setsockopt(zmq.RCVTIMEO, int(POLL_SECONDS * 1000))
        self._numbering = _Numbering()
        try:
            self._socket.connect(endpoint)
        except zmq.ZMQError as error:
            self.close()
            msg = f"{endpoint}: {error}"
            raise ValueError(msg) from error

    def take(self) -> ImageFormat | Image | None:
        """Returns the next image, or the format of the images of a series. None after POLL_SECONDS."""
        while (image := self._numbering.take()) is None:
            try:
                parts = self._socket.recv_multipart()
            except self._timed_out:
                return self._numbering.take(idle=True)
            form = self._accept_message(parts)
            if form is not None:
                return form
        return image

    def _accept_message(self, parts: list[bytes]) -> ImageFormat | None:
        # Version 2: a CBOR map, with or without the tag of self-described CBOR (RFC 8949, section 3.4.6).
        if len(parts) == 1 and (parts[0][:3] == b"\xd9\xd9\xf7" or parts[0][:1] in CBOR_MAPS):
            return self._accept_cbor(_cbor(parts[0]))
        header = _header(parts[0], "d")
        kind = header["htype"]
        if kind.startswith("dheader-"):
            try:
                total, form = _read_config(json.loads(parts[1]) if len(parts) > 1 else None)
                self._numbering.add_header(Series(int(header["series"])), total)
            except (KeyError, TypeError, ValueError) as error:
                msg = f"the header of a series is not valid: {error}"
                raise ValueError(msg) from error
            return form
        if kind.startswith("dimage-"):
            self._accept_image(header, parts)
        elif kind.startswith("dseries_end-"):
            try:
                self._numbering.add_end(Series(int(header["series"])))
            except (KeyError, TypeError, ValueError) as error:
                msg = f"the end message of a series is not valid: {error}"
                raise ValueError(msg) from error
        return None

    def _accept_cbor(self, message: Mapping[str, Any]) -> ImageFormat | None:
        """Accepts a message of version 2."""
        form = None
        try:
            kind, unique = message["type"], message.get("series_unique_id")
            series = Series(int(message["series_id"]), unique if isinstance(unique, str) else None)
            if kind == "start":
                form, total = _read_start(message)
                self._numbering.add_header(series, total)
            elif kind == "image":
                number, array = int(message["image_id"]), _channels(message["data"])
                self._numbering.add_image(series, number, _time(message), array)
            elif kind == "end":
                self._numbering.add_end(series)
        except (KeyError, TypeError, ValueError) as error:
            if isinstance(error, ValueError):
                raise
            msg = f"a message is not valid: {error} is missing or wrong"
            raise ValueError(msg) from error
        return form

    def _accept_image(self, header: dict[str, Any], parts: list[bytes]) -> None:
        if len(parts) < 3:
            msg = f"an image message has {len(parts)} parts, expected 4"
            raise ValueError(msg)
        data_header = _header(parts[1], "dimage_d-")
        try:
            series, number = int(header["series"]), int(header["frame"])
            array = decoded(parts[2], data_header["shape"], data_header["type"], data_header["encoding"])
        except (KeyError, TypeError) as error:
            msg = f"an image message is not valid: {error} is missing or wrong"
            raise ValueError(msg) from error
        self._numbering.add_image(Series(series), number, None, array)

    def begin_run(self) -> bool:
        """Returns True: a detector streams to a connected receiver only, so images before the run belong to it."""
        return True

    def close(self) -> None:
        """Disconnects."""
        self._socket.close()
        self._context.term()


def images(
    endpoint: str, *, timeout: float = 10.0, over: Callable[[], bool] = lambda: False
) -> Generator[Image, None, None]:
    """Yields the images of a detector's stream, in order, as Image (number, time, array, certain).

    `endpoint` is the ZeroMQ address of the stream, such as "tcp://detector:9999". `over` is called every 0.5 s while no
    image arrives; the generator ends when it returns true.

    Raises TimeoutError if the first image does not arrive within `timeout` seconds, and ValueError for a message that
    is not of a SIMPLON stream.
    """
    return _published.images(_Stream(endpoint), timeout, over)


def record(
    endpoint: str, builders: str | Sequence[str], *, id: str, name: str | None = None, timeout: float = 10.0
) -> dict[str, Any]:
    """Pushes the images of a detector's stream into a run, until the run ends.

    `endpoint` is the ZeroMQ address of the stream, `builders` and `id` are those of thalweg.Source, and `name` is the
    name of the source. `timeout` is the longest time in seconds to wait for the first image, and for a builder.

    Returns the report of thalweg.Source.finish, a dict. Raises TimeoutError if no image arrives in time, ValueError for
    a message that is not of a SIMPLON stream, and RunError if data cannot be pushed.
    """
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
        "Records the image stream of a Dectris detector into a run",
        ("endpoint", "the stream's ZeroMQ address, such as tcp://detector:9999"),
        record,
        "images",
    )
