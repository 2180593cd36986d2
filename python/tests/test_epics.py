"""Source for EPICS: areaDetector's simulator and servers of p4p, compared with another reader."""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import thalweg

if TYPE_CHECKING:
    from collections.abc import Iterator

p4p = pytest.importorskip("p4p.client.thread", reason="p4p is not installed")
SIMULATOR = Path(sys.executable).parent / "pvapy-ad-sim-server"
# Traffic on the loopback interface only.
HERE = {
    "EPICS_PVA_ADDR_LIST": "127.0.0.1",
    "EPICS_PVA_AUTO_ADDR_LIST": "NO",
    "EPICS_PVAS_INTF_ADDR_LIST": "127.0.0.1",
}
PV = f"thalweg:{os.getpid()}:image"
# Time in seconds from one post to the next: the source's queue of 64 arrays outlasts 2.5 s in which it does not run.
POST_SECONDS = 0.04
TOPOLOGY = """
[run]
directory = "runs"
events = 40
# The source is a Python program, which begins late on a busy machine.
timeout = "5m"

[[builder]]
name = "builder"
listen = ["tcp:127.0.0.1:0"]

[[source]]
name = "detector"
id = "1.0"
"""


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Restricts this process to the loopback interface."""
    for name, value in HERE.items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def detector(here: None, tmp_path: Path) -> Iterator[list[Any]]:
    """Simulator of areaDetector, which repeats random images, and a function that restarts it."""
    if not SIMULATOR.exists():
        pytest.skip("pvapy is not installed")
    command = [SIMULATOR, "-cn", PV, "-nx", "64", "-ny", "48", "-dt", "uint16", "-nf", "20", "-fps", "50", "-rt", "120"]
    command += ["--start-delay", "1", "--disable-curses"]
    running: list[Any] = []

    def start() -> None:
        with (tmp_path / "simulator.log").open("ab") as log:
            running.append(subprocess.Popen(command, stdout=log, stderr=log, env=os.environ | HERE))

    start()
    yield [running, start]
    for process in running:
        process.kill()
        process.wait()


def builder(program: Path, folder: Path, events: int = 40) -> tuple[subprocess.Popen[str], str]:
    (folder / "epics.toml").write_text(TOPOLOGY.replace("events = 40", f"events = {events}"))
    command = [program, "node", "builder", folder / "epics.toml", "--json"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    return process, process.stderr.readline().split()[-1]


def source(address: str, pv: str = PV) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "thalweg.epics", pv, address, "--id", "1.0", "--timeout", "20"]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60, env=os.environ | HERE)


def test_every_array_in_the_run_equals_that_of_another_reader(
    detector: list[Any], program: Path, tmp_path: Path
) -> None:
    seen: queue.Queue[Any] = queue.Queue()
    with p4p.Context("pva", nt=False) as context:
        watch = context.monitor(PV, seen.put, request="record[queueSize=64]field()")
        building, address = builder(program, tmp_path)
        try:
            ended = source(address)
            report = json.loads(building.communicate(timeout=60)[0].splitlines()[-1])
        finally:
            building.kill()
            watch.close()
    assert ended.returncode == 0, ended.stderr
    assert report["ledger"]["unaccounted"] == 0
    others = {}
    while not seen.empty():
        value = seen.get()
        # The update of a server without an array.
        if value.value is None:
            continue
        stamp = value.dataTimeStamp
        others[(stamp.secondsPastEpoch + 37) * 10**9 + stamp.nanoseconds] = np.asarray(value.value).reshape(48, 64)
    run = thalweg.open(report["directory"])
    assert run.info["sources"][0]["description"]["pv"] == PV
    compared = 0
    for event in run:
        fragment = event["detector"]
        assert fragment.array.dtype == np.uint16
        if fragment.timestamp in others:
            assert (fragment.array == others[fragment.timestamp]).all()
            compared += 1
    # Both may have lost arrays.
    assert compared > 0
    ledger = report["ledger"]["sources"][0]
    assert ledger["recorded"] + ledger["lost_in_device"] == 40


def test_a_detector_that_is_restarted_goes_on_in_the_same_run(
    detector: list[Any], program: Path, tmp_path: Path
) -> None:
    running, start = detector
    building, address = builder(program, tmp_path, events=200)
    command = [sys.executable, "-m", "thalweg.epics", PV, address, "--id", "1.0", "--timeout", "20"]
    taking = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=os.environ | HERE)
    try:
        run = tmp_path / "runs" / "run-000001"
        deadline = time.monotonic() + 300
        while not (run / "run.json").exists():
            assert taking.poll() is None, taking.communicate()[1]
            assert time.monotonic() < deadline
            time.sleep(0.01)
        for event in thalweg.open(run).follow():
            if event.id >= 20:
                break
        running[0].kill()
        running[0].wait()
        start()
        report = json.loads(building.communicate(timeout=60)[0].splitlines()[-1])
        assert taking.wait(timeout=60) == 0
    finally:
        building.kill()
        taking.kill()
    assert report["ledger"]["unaccounted"] == 0
    assert report["events"]["built"] > 21


def test_arrays_without_numbers_are_all_in_the_run_and_in_their_order(
    here: None, program: Path, tmp_path: Path
) -> None:
    from p4p.nt import NTNDArray
    from p4p.server import Server
    from p4p.server.thread import SharedPV

    # `wrap` sets neither uniqueId nor times.
    pv = SharedPV(nt=NTNDArray(), initial=np.zeros((4, 6), np.uint16))
    with Server(providers=[{PV: pv}]):
        building, address = builder(program, tmp_path, events=30)
        command = [sys.executable, "-m", "thalweg.epics", PV, address, "--id", "1.0", "--timeout", "20"]
        taking = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=os.environ | HERE)
        try:
            number = 0
            while building.poll() is None:
                number += 1
                pv.post(np.full((4, 6), number, np.uint16))
                time.sleep(POST_SECONDS)
            report = json.loads(building.communicate(timeout=60)[0].splitlines()[-1])
            output = taking.communicate(timeout=60)[1]
        finally:
            building.kill()
            taking.kill()
    assert taking.returncode == 0, output
    assert "the PV does not number its arrays, so lost arrays cannot be detected" in output
    # Losses cannot be detected.
    assert report["ledger"]["sources"][0]["uncertain"] == 29
    assert report["reasons"] == ["source 1.0 (detector): 29 fragments that may belong to other events"]
    values = [int(event["detector"].array[0, 0]) for event in thalweg.open(report["directory"])]
    assert len(values) == 30
    assert values == sorted(set(values))


def published(codec: str, pixels: np.ndarray[Any, Any], data: bytes) -> Any:
    """Returns an array as areaDetector's codec plugin publishes it."""
    from p4p.nt import NTNDArray

    value = NTNDArray().wrap(np.frombuffer(data, np.uint8))
    value.dimension = [{"size": length, "fullSize": length} for length in reversed(pixels.shape)]
    value.uniqueId = 5
    value.codec.name = codec
    value.codec.parameters = {"u1": 5, "u2": 6, "f4": 9}[pixels.dtype.str[1:]]
    value.attribute = [{"name": "Gain", "value": 2.5}, {"name": "Model", "value": "none"}]
    return value


def test_arrays_of_all_codecs_are_decompressed(here: None) -> None:
    bitshuffle = pytest.importorskip("bitshuffle", reason="bitshuffle is not installed")
    imagecodecs = pytest.importorskip("imagecodecs", reason="imagecodecs is not installed")
    lz4 = pytest.importorskip("lz4.block", reason="lz4 is not installed")
    from thalweg import epics

    random = np.random.default_rng(1)
    for pixels in [random.integers(0, 9, (48, 64), np.uint8), random.integers(0, 999, (31, 7), np.uint16)]:
        packed = {
            "lz4": lz4.compress(pixels.tobytes(), store_size=False),
            "bslz4": bitshuffle.compress_lz4(pixels.ravel()).tobytes(),
            "blosc": imagecodecs.blosc_encode(pixels.tobytes(), typesize=pixels.itemsize, shuffle=1),
        }
        for codec, data in packed.items():
            stream = epics._Stream(PV)
            stream._accept_update(published(codec, pixels, data))
            image = stream.take()
            assert image is not None
            np.testing.assert_array_equal(image.array, pixels, codec)
            assert stream.attributes == {"Gain": 2.5, "Model": "none"}
            stream.close()
            # Truncated data are an error.
            for damaged in [data[:-1], data[: len(data) // 2]]:
                with pytest.raises(ValueError, match="damaged"):
                    epics._read_update(published(codec, pixels, damaged))
    flat = np.full((16, 24), 77, np.uint8)
    jpeg = published("jpeg", flat, imagecodecs.jpeg8_encode(flat, level=95))
    assert np.abs(epics._read_update(jpeg)[2].astype(int) - 77).max() <= 2
    with pytest.raises(ValueError, match="compressed by 'zstd': supported are blosc, bslz4, jpeg, lz4"):
        epics._read_update(published("zstd", flat, b"1234"))


def test_waveforms_and_scalars_are_fragments_with_their_times(here: None, program: Path, tmp_path: Path) -> None:
    from p4p.nt import NTScalar
    from p4p.server import Server
    from p4p.server.thread import SharedPV

    pv = SharedPV(nt=NTScalar("ad"), initial=np.zeros(8))
    with Server(providers=[{PV: pv}]):
        building, address = builder(program, tmp_path, events=20)
        command = [sys.executable, "-m", "thalweg.epics", PV, address, "--id", "1.0", "--timeout", "20"]
        taking = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=os.environ | HERE)
        try:
            number = 0
            while building.poll() is None:
                number += 1
                pv.post(np.full(8, number, np.float64), timestamp=1_800_000_000 + number)
                time.sleep(POST_SECONDS)
            report = json.loads(building.communicate(timeout=60)[0].splitlines()[-1])
            taking.communicate(timeout=60)
        finally:
            building.kill()
            taking.kill()
    run = thalweg.open(report["directory"])
    for event in run:
        fragment = event["detector"]
        assert fragment.array.dtype == np.float64
        assert fragment.timestamp == (1_800_000_037 + int(fragment.array[0])) * 10**9
    assert report["ledger"]["sources"][0]["recorded"] == 20
    from thalweg import epics

    assert epics._read_update(NTScalar("i").wrap(7))[2].tolist() == [7]
    with pytest.raises(ValueError, match="instead of numbers"):
        epics._read_update(NTScalar("s").wrap("seven"))


def test_late_arrays_are_sorted_and_numbers_after_a_counter_reset_are_uncertain(here: None) -> None:
    from p4p.nt import NTNDArray

    from thalweg import epics

    stream = epics._Stream(PV)
    # The counter is reset after the tenth array, as an operator may do.
    for number in [100, 101, 103, 102, 104, 105, 107, 108, 109, 110, 1, 2, 3, 4]:
        value = NTNDArray().wrap(np.full((4, 6), number % 256, np.uint8))
        value.uniqueId = number
        stream._accept_update(value)
    there = [(image.number, int(image.array[0, 0]), image.certain) for image in iter(stream.take, None)]
    stream.close()
    before = [(number, 100 + number, True) for number in [*range(6), *range(7, 11)]]
    assert there == before + [(11 + number, 1 + number, False) for number in range(4)]


def test_numbers_after_a_disconnect_are_uncertain_unless_the_last_array_is_repeated(here: None) -> None:
    from p4p.nt import NTNDArray

    from thalweg import epics

    def receive(stream: Any, number: int) -> None:
        value = NTNDArray().wrap(np.full((4, 6), number, np.uint8), timestamp=1_800_000_000 + number)
        value.uniqueId, value.dataTimeStamp = number, value.timeStamp
        stream._accept_update(value)

    stream = epics._Stream(PV)
    for number in [10, 11]:
        receive(stream, number)
    with pytest.warns(UserWarning, match="arrays that arrived twice"):
        receive(stream, 11)
    stream._accept_update(epics._Disconnect())
    for number in [11, 12]:
        receive(stream, number)
    stream._accept_update(epics._Disconnect())
    # Either two arrays were lost, or the server was restarted and has counted up to here.
    receive(stream, 15)
    there = [(image.number, int(image.array[0, 0]), image.certain) for image in iter(stream.take, None)]
    assert there == [(0, 10, True), (1, 11, True), (2, 12, True), (5, 15, False)]
    assert stream.unused == 1
    stream.close()


def test_a_disconnect_is_queued_even_if_the_queue_is_full() -> None:
    from thalweg import epics

    updates = epics._UpdateQueue()
    for number in range(epics.MAX_QUEUED_ARRAYS + 3):
        updates.put(number)
    updates.put(epics._Disconnect())
    assert [updates.get(0) for _ in range(epics.MAX_QUEUED_ARRAYS)] == [
        (0, number) for number in range(epics.MAX_QUEUED_ARRAYS)
    ]
    assert updates.get(0) == (0, epics._Disconnect())
    updates.put(99)
    assert updates.get(0) == (3, 99)


def test_a_missing_pv_is_reported(here: None) -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "thalweg.epics", "no:such:pv", "tcp:127.0.0.1:9", "--id", "1.0", "--timeout", "1"],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        env=os.environ | HERE,
    )
    # Python packages may print warnings before.
    assert ended.returncode == 1
    assert ended.stderr.splitlines()[-1] == "thalweg.epics: no:such:pv: no array within 1 s"
