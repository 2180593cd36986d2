"""Source for Dectris detectors: the Eiger simulator, and images in all encodings."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from conftest import free_port

import thalweg
from thalweg import dectris

if TYPE_CHECKING:
    from collections.abc import Iterator

bitshuffle = pytest.importorskip("bitshuffle", reason="bitshuffle is not installed")
lz4 = pytest.importorskip("lz4.block", reason="lz4 is not installed")
pytest.importorskip("zmq", reason="pyzmq is not installed")
SIMULATOR = Path(sys.executable).parent / "eiger-simulator"
# Size of the simulator's detector, which cannot be changed.
WIDTH, HEIGHT = 3110, 3269
TOPOLOGY = """
[run]
directory = "runs"
events = {events}
# The source is a Python program, which begins late on a busy machine.
timeout = "5m"

[[builder]]
name = "builder"
listen = ["tcp:127.0.0.1:0"]
block = "64MiB"

[[source]]
name = "eiger"
id = "1.0"
"""


def pixels(image: int) -> np.ndarray[Any, Any]:
    pixels = np.zeros((HEIGHT, WIDTH), np.uint16)
    pixels[:, :10] = np.arange(10)
    pixels[100 * image : 100 * image + 50] = image + 1
    return pixels


class Detector:
    """Eiger simulator, and the commands for it."""

    def __init__(self, folder: Path) -> None:
        self.control, self.stream = free_port(), free_port()
        images = [bitshuffle.compress_lz4(pixels(image)).tobytes() for image in range(3)]
        (folder / "data").mkdir()
        (folder / "data" / "images.bslz4.pickle").write_bytes(pickle.dumps(images))
        command = [SIMULATOR, "--host", "127.0.0.1", "--port", str(self.control), "--zmq", self.endpoint]
        with (folder / "simulator.log").open("wb") as log:
            self.process = subprocess.Popen([*command, "--dataset", folder / "data"], stdout=log, stderr=log)
        deadline = time.monotonic() + 300
        while True:
            assert self.process.poll() is None, (folder / "simulator.log").read_text()
            assert time.monotonic() < deadline
            try:
                self.command("command/initialize")
                return
            except urllib.error.URLError:
                time.sleep(0.1)

    @property
    def endpoint(self) -> str:
        return f"tcp://127.0.0.1:{self.stream}"

    def command(self, what: str, value: Any = None) -> None:
        body = None if value is None else json.dumps({"value": value}).encode()
        address = f"http://127.0.0.1:{self.control}/detector/api/1.6.0/{what}"
        request = urllib.request.Request(address, body, {"Content-Type": "application/json"}, method="PUT")
        urllib.request.urlopen(request, timeout=60).read()

    def wait_for_receiver(self) -> None:
        """Waits until a source is connected: a detector streams to connected receivers only."""
        local, established = f":{self.stream:04X}", "01"
        deadline = time.monotonic() + 300
        while time.monotonic() < deadline:
            rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
            if any(row[1].endswith(local) and row[3] == established for row in rows):
                return
            time.sleep(0.05)
        pytest.fail("no source connected within 300 s")

    def series(self, images: int) -> None:
        """Takes a whole series."""
        self.command("config/nimages", images)
        self.command("config/count_time", 0.05)
        self.command("command/arm")
        self.command("command/trigger")


@pytest.fixture
def detector(tmp_path: Path) -> Iterator[Detector]:
    if not SIMULATOR.exists():
        pytest.skip("eiger-simulator is not installed")
    detector = Detector(tmp_path)
    yield detector
    detector.process.kill()
    detector.process.wait()


def builder(program: Path, folder: Path, events: int) -> tuple[subprocess.Popen[str], str]:
    """Starts a builder for a number of events. Returns it and its address."""
    (folder / "run.toml").write_text(TOPOLOGY.format(events=events))
    command = [program, "node", "builder", folder / "run.toml", "--json"]
    building = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert building.stderr is not None
    return building, building.stderr.readline().split()[-1]


def test_two_series_are_one_run(detector: Detector, program: Path, tmp_path: Path) -> None:
    building, address = builder(program, tmp_path, events=10)
    command = [sys.executable, "-m", "thalweg.dectris", detector.endpoint, address, "--id", "1.0", "--timeout", "30"]
    taking = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)

    def take() -> None:
        while taking.poll() is None:
            detector.series(5)

    series = threading.Thread(target=take)
    series.start()
    try:
        report = json.loads(building.communicate(timeout=90)[0].splitlines()[-1])
        assert taking.wait(timeout=60) == 0, taking.communicate()[1]
    finally:
        building.kill()
        taking.kill()
        series.join()
    assert report["ledger"]["unaccounted"] == 0
    run = thalweg.open(report["directory"])
    assert run.info["sources"][0]["description"]["endpoint"] == detector.endpoint
    # The first image depends on when the run began. The numbers continue over the end of a series.
    each = [int(event["eiger"].array[:, 20].max()) for event in run]
    assert len(each) == 10 == run.ids()[-1] + 1
    for event, image in zip(run, each, strict=True):
        assert (event["eiger"].array == pixels(image - 1)).all()
    assert set(each) == {1, 2, 3}


def test_each_image_of_a_series_is_an_event(detector: Detector, program: Path, tmp_path: Path) -> None:
    building, address = builder(program, tmp_path, events=5)
    command = [sys.executable, "-m", "thalweg.dectris", detector.endpoint, address, "--id", "1.0", "--timeout", "60"]
    taking = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        detector.wait_for_receiver()
        detector.series(5)
        report = json.loads(building.communicate(timeout=90)[0].splitlines()[-1])
        assert taking.wait(timeout=60) == 0, taking.communicate()[1]
    finally:
        building.kill()
        taking.kill()
    assert report["state"] == "COMPLETE", report["reasons"]
    run = thalweg.open(report["directory"])
    assert [int(event["eiger"].array[:, 20].max()) for event in run] == [1, 2, 3, 1, 2]


def receive(stream: dectris._Stream, *parts: Any) -> None:
    """Passes a message to the stream, with parts that are JSON or bytes."""
    stream._accept_message([part if isinstance(part, bytes) else json.dumps(part).encode() for part in parts])


def image(stream: dectris._Stream, series: int, frame: int) -> None:
    what = {"htype": "dimage_d-1.0", "shape": [1, 1], "type": "uint8", "encoding": "<"}
    receive(stream, {"htype": "dimage-1.0", "series": series, "frame": frame}, what, bytes([frame]), {})


def taken(stream: dectris._Stream) -> list[tuple[int, int, bool]]:
    """Returns number and content of each image, and whether its number is certain."""
    there = iter(lambda: stream._numbering.take(idle=True), None)
    return [(number, int(array[0, 0]), certain) for number, _, array, certain in there]


def test_images_are_numbered_by_their_series_and_guesses_are_uncertain() -> None:
    config = {"nimages": 3, "ntrigger": 2, "bit_depth_image": 16, "x_pixels_in_detector": 4, "y_pixels_in_detector": 2}
    stream = dectris._Stream(f"tcp://127.0.0.1:{free_port()}")
    header = {"htype": "dheader-1.0", "series": 7, "header_detail": "basic"}
    assert stream._accept_message([json.dumps(header).encode(), json.dumps(config).encode()]) == (
        np.dtype("uint16"),
        (2, 4),
    )
    # Two images are swapped, and one of six is lost.
    for frame in [1, 0, 2, 5, 4]:
        image(stream, 7, frame)
    assert taken(stream) == [(frame, frame, True) for frame in [0, 1, 2, 4, 5]]
    receive(stream, {"htype": "dseries_end-1.0", "series": 7})
    receive(stream, {"htype": "dheader-1.0", "series": 8, "header_detail": "basic"}, config)
    image(stream, 8, 1)
    assert taken(stream) == [(7, 1, True)]
    # The last images of the series are lost, or it was ended early.
    receive(stream, {"htype": "dheader-1.0", "series": 9, "header_detail": "none"})
    image(stream, 9, 0)
    # The number of images of this series is not stated.
    receive(stream, {"htype": "dheader-1.0", "series": 10, "header_detail": "none"})
    image(stream, 10, 0)
    assert taken(stream) == [(12, 0, False), (13, 0, False)]
    stream.close()
    # A series that had begun before the connection.
    stream = dectris._Stream(f"tcp://127.0.0.1:{free_port()}")
    image(stream, 3, 57)
    image(stream, 3, 59)
    assert taken(stream) == [(0, 57, True), (2, 59, True)]
    # Its number of images is not known.
    receive(stream, {"htype": "dheader-1.0", "series": 4, "header_detail": "basic"}, config)
    image(stream, 4, 0)
    assert taken(stream) == [(3, 0, False)]
    stream.close()


@pytest.mark.parametrize("dtype", ["uint8", "uint16", "uint32", "float32"])
def test_an_image_survives_every_encoding(dtype: str) -> None:
    # More than a block, and a number of pixels that is not a multiple of 8.
    image = np.random.default_rng(1).poisson(3, (149, 97)).astype(dtype)
    bits, size = 8 * image.itemsize, image.nbytes
    block = 4096 // image.itemsize
    shuffled = bitshuffle.compress_lz4(image, block).tobytes()
    # With the header of HDF5's filter, as detectors send it.
    headed = size.to_bytes(8, "big") + (block * image.itemsize).to_bytes(4, "big") + shuffled
    for data, encoding in [
        (image.tobytes(), "<"),
        (image.astype(image.dtype.newbyteorder(">")).tobytes(), ">"),
        (lz4.compress(image.tobytes(), store_size=False), "lz4<"),
        (headed, f"bs{bits}-lz4<"),
        (bitshuffle.compress_lz4(image).tobytes(), f"bs{bits}-lz4<"),
    ]:
        decoded = dectris.decoded(data, (97, 149), dtype, encoding)
        assert (decoded.dtype, decoded.shape) == (image.dtype, (149, 97))
        assert (decoded == image).all(), encoding


@pytest.mark.parametrize(
    ("data", "shape", "dtype", "encoding"),
    [
        (b"12", (2, 2), "uint8", "<"),
        (b"", (0, 2), "uint8", "<"),
        (b"", (1 << 20, 1 << 20), "uint8", "<"),
        (b"", (2, -2), "uint8", "<"),
        (b"1234", (2, 2), "object", "<"),
        (b"1234", (2, 2), "uint8", "zstd<"),
        (b"1234", (2, 2), "uint8", "bs8-<"),
        (b"1234", (2, 2), "uint8", "lz4<"),
        (b"1234" * 10, (64, 64), "uint8", "bs8-lz4<"),
        (b"", (64, 64), "uint16", "bs16-lz4<"),
        # A block that states a length beyond the end of the data.
        (b"\x7f\xff\xff\xff" + b"1234" * 10, (64, 64), "uint8", "bs8-lz4<"),
        ((4096).to_bytes(8, "big") + bytes(4) + b"1234" * 10, (64, 64), "uint8", "bs8-lz4<"),
    ],
)
def test_data_that_are_not_an_image_are_an_error(
    data: bytes, shape: tuple[int, ...], dtype: str, encoding: str
) -> None:
    with pytest.raises(ValueError, match="image"):
        dectris.decoded(data, shape, dtype, encoding)


def test_a_missing_detector_is_reported() -> None:
    ended = subprocess.run(
        [
            *(sys.executable, "-m", "thalweg.dectris", f"tcp://127.0.0.1:{free_port()}", "tcp:127.0.0.1:9"),
            *("--id", "1.0", "--timeout", "1"),
        ],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert ended.returncode == 1
    assert "no image within 1 s" in ended.stderr.splitlines()[-1]


def message(number: int, channels: dict[str, Any]) -> bytes:
    """Returns an image of version 2 of the stream, taken `number` milliseconds after the start of the series."""
    cbor2 = pytest.importorskip("cbor2", reason="cbor2 is not installed")
    date = datetime(2026, 5, 1, 12, 0, 0, 500_000, tzinfo=timezone(timedelta(hours=2)))
    header = {"type": "image", "series_id": 3, "image_id": number, "series_date": date}
    header |= {"start_time": [number * 50_000, 50_000_000], "data": channels}
    return cbor2.dumps(header, datetime_as_timestamp=False)


def channel(pixels: np.ndarray[Any, Any], packing: str = "") -> Any:
    """Returns a CBOR array, compressed by `packing`."""
    cbor2 = pytest.importorskip("cbor2", reason="cbor2 is not installed")
    size, tag = pixels.nbytes, {"uint8": 64, "uint16": 69, "uint32": 70}[pixels.dtype.name]
    data: Any = pixels.tobytes()
    if packing == "lz4":
        blocks = [data[at : at + 1000] for at in range(0, size, 1000)]
        packed = [lz4.compress(block, store_size=False) for block in blocks]
        # Blocks that compression does not shorten are stored uncompressed.
        packed = [one if len(one) < len(block) else block for one, block in zip(packed, blocks, strict=True)]
        framed = b"".join(len(one).to_bytes(4, "big") + one for one in packed)
        data = cbor2.CBORTag(56500, ["lz4", 0, size.to_bytes(8, "big") + (1000).to_bytes(4, "big") + framed])
    elif packing == "bslz4":
        framed = size.to_bytes(8, "big") + (8192).to_bytes(4, "big")
        framed += bitshuffle.compress_lz4(pixels.ravel(), 8192 // pixels.itemsize).tobytes()
        data = cbor2.CBORTag(56500, ["bslz4", pixels.itemsize, framed])
    return cbor2.CBORTag(40, [list(pixels.shape), cbor2.CBORTag(tag, data)])


@pytest.fixture
def stream() -> Iterator[Any]:
    stream = dectris._Stream("tcp://127.0.0.1:9")
    yield stream
    stream.close()


def test_version_2_of_the_stream_has_times_channels_and_compressed_arrays(stream: Any) -> None:
    cbor2 = pytest.importorskip("cbor2", reason="cbor2 is not installed")
    start = {"type": "start", "series_id": 3, "number_of_images": 6, "channels": ["threshold_1"]}
    start |= {"image_size_x": 70, "image_size_y": 50, "image_dtype": "uint16"}
    # With the tag of self-described CBOR, and without.
    form = stream._accept_message([cbor2.dumps(cbor2.CBORTag(55799, start))])
    assert (form.dtype, form.shape) == (np.uint16, (50, 70))
    random = np.random.default_rng(2)
    began = int(datetime(2026, 5, 1, 10, tzinfo=timezone.utc).timestamp()) + 37
    for number, (high, packing) in enumerate([(9, "lz4"), (65_535, "lz4"), (9, "bslz4"), (65_535, "bslz4"), (9, "")]):
        pixels = random.integers(0, high, (50, 70), np.uint16)
        stream._accept_message([message(number, {"threshold_1": channel(pixels, packing)})])
        image = stream.take()
        np.testing.assert_array_equal(image.array, pixels)
        assert (image.number, image.time) == (number, began * 10**9 + 500_000_000 + number * 1_000_000)
    two = [random.integers(0, 9, (50, 70), np.uint32) for _ in range(2)]
    stream._accept_message([message(5, {f"threshold_{one}": channel(two[one], "bslz4") for one in range(2)})])
    np.testing.assert_array_equal(stream.take().array, np.stack(two))
    stream._accept_message([cbor2.dumps({"type": "end", "series_id": 3})])


def test_messages_that_are_not_of_version_2_are_refused(stream: Any) -> None:
    cbor2 = pytest.importorskip("cbor2", reason="cbor2 is not installed")
    whole = message(0, {"threshold_1": channel(np.zeros((50, 70), np.uint16), "bslz4")})
    tag = cbor2.CBORTag
    arrays = [
        5,
        b"",
        tag(40, []),
        tag(40, [[5, 5], 7]),
        tag(40, [[5, 5], tag(69, b"")]),
        tag(40, [[1 << 20, 1 << 20], tag(69, b"")]),
        tag(40, [[-1, 5], tag(69, b"")]),
        tag(40, [[5], tag(69, tag(56500, ["zip", 0, b"1"]))]),
        tag(40, [[5], tag(69, tag(56500, ["lz4", 0, b"1"]))]),
        tag(40, [[5], tag(69, tag(56500, ["bslz4", 2, b"1"]))]),
        tag(40, [[5], tag(69, tag(56500, [1]))]),
    ]
    bad = [whole[:at] for at in range(1, len(whole) - 1, 7)] + [message(0, {"one": array}) for array in arrays]
    bad += [cbor2.dumps(value) for value in [{}, {"type": "image"}, {"type": "image", "series_id": 1, "image_id": -1}]]
    bad += [message(-1, {"one": channel(np.zeros((2, 2), np.uint8))}), message(0, {}), b"\xa1" * 5000]
    for one in bad:
        with pytest.raises(ValueError, match=" "):
            stream._accept_message([one])
