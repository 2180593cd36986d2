"""Decompression of images from detectors and EPICS, for thalweg.epics and thalweg.dectris.

The functions raise ImportError, with the package to install, if a library is missing, and ValueError if the data are
damaged. Lengths in the data are checked against the size of the image before memory is allocated.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable


def _library(name: str, codec: str, extra: str = "dectris") -> Any:
    """Imports a library. Raises ImportError with the extra of this package that installs it."""
    import importlib

    try:
        return importlib.import_module(name)
    except ImportError as error:
        msg = f"images compressed by {codec} need {name.split('.')[0]}: pip install thalweg[{extra}]"
        raise ImportError(msg) from error


def _damaged(why: object) -> ValueError:
    return ValueError(f"an image is damaged: {why}")


def lz4_block(data: bytes, size: int) -> bytes:
    """Returns the `size` bytes of one LZ4 block."""
    lz4 = _library("lz4.block", "lz4")
    try:
        whole: bytes = lz4.decompress(data, uncompressed_size=size)
    except (lz4.LZ4BlockError, ValueError) as error:
        raise _damaged(error) from error
    if len(whole) != size:
        raise _damaged(f"{len(whole)} bytes of {size}")
    return whole


def lz4_hdf5(data: bytes, size: int) -> bytes:
    """Returns the `size` bytes of LZ4 blocks as HDF5's filter 32004 frames them."""
    stated, block = int.from_bytes(data[:8], "big"), int.from_bytes(data[8:12], "big")
    if stated != size or block == 0:
        raise _damaged(f"its data state {stated} bytes in blocks of {block}, but the image has {size} bytes")
    at, parts, left = 12, [], size
    while left > 0:
        length = int.from_bytes(data[at : at + 4], "big")
        part = data[at + 4 : at + 4 + length]
        if not part or len(part) != length:
            raise _damaged(f"the {len(data)} bytes end within a block")
        whole = min(block, left)
        # A block that compression does not shorten is stored uncompressed.
        parts.append(part if length == whole else lz4_block(part, whole))
        at, left = at + 4 + length, left - whole
    return b"".join(parts)


def bitshuffle_lz4(data: bytes, count: int, pixel: np.dtype[Any]) -> np.ndarray[Any, Any]:
    """Returns `count` pixels of type `pixel` from blocks that were bit-shuffled and compressed by LZ4.

    The header of HDF5's filter 32008, with the sizes of the image and of a block in bytes, may precede the blocks.
    """
    bitshuffle = _library("bitshuffle", "bslz4")
    block = max(8192 // pixel.itemsize // 8 * 8, 128)
    if int.from_bytes(data[:8], "big") == count * pixel.itemsize:
        block, data = int.from_bytes(data[8:12], "big") // pixel.itemsize, data[12:]
    _check_blocks(data, count, pixel.itemsize, block)
    try:
        image: np.ndarray[Any, Any] = bitshuffle.decompress_lz4(np.frombuffer(data, np.uint8), (count,), pixel, block)
    except RuntimeError as error:
        raise _damaged(error) from error
    return image


def _check_blocks(data: bytes, count: int, itemsize: int, block: int) -> None:
    """Raises ValueError unless the data are exactly `count` pixels in blocks of `block` pixels.

    The library bitshuffle does not check the lengths of the blocks.
    """
    at = 0
    if block >= 8 and block % 8 == 0:
        # Whole blocks, one shorter block of a multiple of 8 pixels, and up to 7 uncompressed pixels.
        for _ in range(count // block + (count % block >= 8)):
            at += 4 + int.from_bytes(data[at : at + 4], "big")
            if at > len(data):
                break
        at += count % 8 * itemsize
    if at != len(data) or at == 0:
        raise _damaged(f"{len(data)} bytes are not {count} pixels in blocks of {block}")


def _blosc(data: bytes, size: int) -> bytes:
    """Returns the `size` bytes of a Blosc chunk."""
    imagecodecs = _library("imagecodecs", "blosc", "epics")
    # The header of a chunk has its sizes (c-blosc, README_CHUNK_FORMAT).
    if int.from_bytes(data[4:8], "little") != size or int.from_bytes(data[12:16], "little") != len(data):
        raise _damaged(f"{len(data)} bytes are not a chunk of {size}")
    try:
        whole: bytes = imagecodecs.blosc_decode(data)
    except (RuntimeError, ValueError) as error:
        raise _damaged(error) from error
    if len(whole) != size:
        raise _damaged(f"{len(whole)} bytes of {size}")
    return whole


def _jpeg(data: bytes, size: int) -> bytes:
    """Returns the `size` bytes of a JPEG image."""
    imagecodecs = _library("imagecodecs", "jpeg", "epics")
    try:
        whole: bytes = imagecodecs.jpeg8_decode(data).tobytes()
    except (RuntimeError, ValueError) as error:
        raise _damaged(error) from error
    if len(whole) != size:
        raise _damaged(f"{len(whole)} bytes of {size}")
    return whole


def area_detector(codec: str, data: bytes, count: int, pixel: np.dtype[Any]) -> np.ndarray[Any, Any]:
    """Returns `count` pixels of type `pixel` from data compressed by areaDetector's NDPluginCodec."""
    codecs: dict[str, Callable[[bytes, int], bytes]] = {"lz4": lz4_block, "blosc": _blosc, "jpeg": _jpeg}
    if codec == "bslz4":
        return bitshuffle_lz4(data, count, pixel)
    if codec not in codecs:
        msg = f"its arrays are compressed by {codec!r}: supported are {', '.join(sorted([*codecs, 'bslz4']))}"
        raise ValueError(msg)
    return np.frombuffer(codecs[codec](data, count * pixel.itemsize), pixel)
