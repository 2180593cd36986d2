"""Data pushed by Python through a builder, and read back."""

from __future__ import annotations

import array
import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import thalweg


class Builder:
    """Running `thalweg node builder`, for sources that the test creates."""

    def __init__(self, program: Path, folder: Path, sources: dict[str, str], more: str = "") -> None:
        topology = folder / "topology.toml"
        listed = "".join(f'[[source]]\nname = "{name}"\nid = "{id}"\n' for name, id in sources.items())
        topology.write_text(
            f'[run]\ndirectory = "runs"\ntimeout = "30s"\n{more}\n'
            f'[[builder]]\nname = "builder"\nlisten = ["tcp:127.0.0.1:0", "shm:{folder}/builder.sock"]\n'
            # No event times out because the other thread got no processor time.
            f'deadline = "60s"\n{listed}'
        )
        self.process = subprocess.Popen(
            [program, "node", "builder", topology, "--json"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        assert self.process.stderr is not None
        line = self.process.stderr.readline()
        found = re.findall(r"(?:tcp|shm):[^\s,]+", line)
        assert len(found) == 2, line
        self.tcp, self.shm = found

    def report(self) -> dict[str, Any]:
        """Waits for the end of the run, and returns the report of the builder."""
        output, errors = self.process.communicate(timeout=60)
        assert output, errors
        report = json.loads(output.splitlines()[-1])
        assert report["ledger"]["unaccounted"] == 0
        return report

    def kill(self) -> None:
        """Kills the builder, as a power cut would."""
        self.process.kill()
        self.process.communicate()


@pytest.fixture
def builder(program: Path, tmp_path: Path) -> Iterator[Callable[..., Builder]]:
    """Function that starts builders, which are killed after the test."""
    made: list[Builder] = []

    def make(more: str = "", **sources: str) -> Builder:
        made.append(Builder(program, tmp_path, sources, more))
        return made[-1]

    yield make
    for one in made:
        one.kill()


def waveform(event: int) -> NDArray[np.int16]:
    """Returns samples of two channels, whose number differs from event to event."""
    rng = np.random.default_rng([1, event])
    return rng.integers(-2048, 2048, (500 + event % 12, 2), dtype=np.int16)


def image(event: int) -> NDArray[np.uint8]:
    """Returns an image of 120 x 80 pixels."""
    return np.random.default_rng([2, event]).integers(0, 256, (80, 120), dtype=np.uint8)


@pytest.mark.parametrize("link", ["tcp", "shm"])
def test_data_of_two_sources_pushed_by_two_threads_are_recorded_unchanged(
    builder: Callable[..., Builder], link: str
) -> None:
    built = builder(adc="1.0", camera="2.0")
    address = getattr(built, link)
    adc = thalweg.Source(address, id="1.0", name="adc", dtype="int16", shape=(511, 2), description={"gain": 4})
    camera = thalweg.Source(address, id="2.0", name="camera", dtype=np.uint8, shape=(80, 120), slots=4)
    reports: dict[str, dict[str, Any]] = {}

    def feed(source: thalweg.Source, make: Callable[[int], NDArray[Any]], name: str) -> None:
        with source:
            for event in range(1000):
                assert source.push(make(event), timestamp=10**18 + event, window=7, status="simulated") == event
        reports[name] = source.finish()

    threads = [
        threading.Thread(target=feed, args=arguments)
        for arguments in [(adc, waveform, "adc"), (camera, image, "camera")]
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    report = built.report()
    assert report["state"] == "COMPLETE", report["reasons"]
    run = thalweg.open(report["directory"])
    assert run.sources == ["1.0", "2.0"]
    assert [event.id for event in run] == list(range(1000))
    for event in run:
        assert event.timestamp == 10**18 + event.id
        np.testing.assert_array_equal(event["1.0"].array, waveform(event.id))
        np.testing.assert_array_equal(event["2.0"].array, image(event.id))
        assert event["1.0"].status == ["simulated"]
        assert event["1.0"].window == 7
    described = {source["name"]: source["description"] for source in run.info["sources"]}
    assert described["adc"]["gain"] == 4
    assert described["adc"]["channels"] == 2
    assert described["camera"]["kind"] == "pushed"
    assert (described["camera"]["width"], described["camera"]["height"]) == (120, 80)
    assert reports["camera"]["accepted"] == 1000
    assert reports["camera"]["bytes"] == 1000 * 80 * 120
    assert reports["adc"]["source"] == "1.0"


def test_any_object_with_bytes_can_be_pushed(builder: Callable[..., Builder]) -> None:
    built = builder(host="3.7")
    samples = array.array("B", range(200))
    pushed = [
        b"bytes",
        bytearray(b"bytearray"),
        memoryview(b"a view of something")[2:6],
        np.arange(100, dtype=np.uint8),
        samples,
        b"",
        b"x" * 1000,
    ]
    with thalweg.Source([built.tcp], id="3.7", max_bytes=1000, payload_type="vdif") as source:
        assert source.running
        assert "3.7" in repr(source)
        for data in pushed:
            source.push(data)
    assert not source.running
    run = thalweg.open(built.report()["directory"])
    assert [event["3.7"].payload.tobytes() for event in run] == [bytes(data) for data in pushed]
    assert {event["3.7"].payload_type for event in run} == {"vdif"}
    # An empty fragment is not a missing one.
    assert [event.id for event in run if "empty" in event["3.7"].status] == [5]
    assert run.state == "COMPLETE"


def test_an_array_may_be_changed_as_soon_as_it_is_pushed(builder: Callable[..., Builder]) -> None:
    built = builder(adc="1.0")
    samples = np.empty(10_000, np.int16)
    with thalweg.Source(built.tcp, id="1.0", dtype="i2", shape=10_000) as source:
        for event in range(100):
            samples[:] = event
            source.push(samples)
    for event in thalweg.open(built.report()["directory"]):
        assert event["1.0"].array.shape == (10_000, 1)
        assert (event["1.0"].array == event.id).all()


CI16 = np.dtype([("r", "<i2"), ("i", "<i2")])


@pytest.mark.parametrize(
    ("dtype", "shape", "payload_type", "read_shape"),
    [
        ("float32", (5, 4, 3), "array-f32", (5, 4, 3)),
        ("float64", 6, "array-f64", (6,)),
        ("int8", (2, 3), "array-i8", (2, 3)),
        ("int32", (2, 3), "array-i32", (2, 3)),
        ("int64", (1, 2, 1, 2, 1, 2, 1, 2), "array-i64", (1, 2, 1, 2, 1, 2, 1, 2)),
        ("uint32", (4,), "array-u32", (4,)),
        ("uint64", (4, 2), "array-u64", (4, 2)),
        ("uint8", (4, 3, 3), "array-u8", (4, 3, 3)),
        ("complex64", (8, 2), "samples-cf32", (8, 2)),
        ("complex128", 8, "samples-cf64", (8, 1)),
        ("ci16", (8, 2), "samples-ci16", (8, 2)),
        (CI16, (2, 2, 2), "array-ci16", (2, 2, 2)),
    ],
)
def test_arrays_of_every_type_and_shape_are_recorded_unchanged(
    dtype: Any, shape: Any, payload_type: str, read_shape: tuple[int, ...], builder: Callable[..., Builder]
) -> None:
    built = builder(array="1.0")
    kind = CI16 if dtype == "ci16" else np.dtype(dtype)
    rng = np.random.default_rng(1)
    full = np.frombuffer(rng.bytes(np.empty(shape, kind).nbytes), kind).reshape(shape)
    with thalweg.Source(built.tcp, id="1.0", dtype=dtype, shape=shape) as source:
        source.push(full)
        source.push(full[:1])
        with pytest.raises(thalweg.RunError, match="are too many: this source was created for at most"):
            source.push(np.concatenate([full, full]))
    run = thalweg.open(built.report()["directory"])
    pushed = {0: full.reshape(read_shape), 1: full[:1].reshape(1, *read_shape[1:])}
    for event in run:
        fragment = event["1.0"]
        assert (fragment.payload_type, fragment.array.dtype) == (payload_type, kind)
        assert fragment.array.shape == pushed[event.id].shape
        assert fragment.array.tobytes() == pushed[event.id].tobytes()
        assert not fragment.array.flags.writeable
        with pytest.raises(ValueError, match="WRITEABLE"):
            fragment.array.flags.writeable = True


def test_complex_numbers_with_other_names_for_their_parts_are_complex(builder: Callable[..., Builder]) -> None:
    built = builder(radio="1.0")
    iq = np.array([(1, -2), (3, 4)], [("re", "<i2"), ("im", "<i2")])
    with thalweg.Source(built.tcp, id="1.0", dtype="ci16", shape=2) as source:
        source.push(iq)
    (event,) = thalweg.open(built.report()["directory"])
    assert event["1.0"].array.dtype == CI16
    assert event["1.0"].array.ravel().tolist() == [(1, -2), (3, 4)]


def test_events_that_are_left_out_are_in_the_ledger(builder: Callable[..., Builder]) -> None:
    built = builder(trigger="1.0", tdc="1.1")
    trigger = thalweg.Source(built.tcp, id="1.0", max_bytes=8)
    tdc = thalweg.Source(built.tcp, id="1.1", max_bytes=8)
    with trigger, tdc:
        for event in range(10):
            trigger.push(event.to_bytes(8, "little"))
        assert tdc.push(b"first") == 0
        assert tdc.push(b"later", event=4) == 4
        assert tdc.push(b"next") == 5
        with pytest.raises(thalweg.RunError, match="event 3 was pushed after event 5"):
            tdc.push(b"too late", event=3)
        with pytest.raises(thalweg.RunError, match="more than the largest event number"):
            tdc.push(b"too far", event=2**64 - 2)
        assert tdc.push(b"last", event=9) == 9
    report = built.report()
    ledger = {entry["source"]: entry for entry in report["ledger"]["sources"]}
    assert ledger["1.1"]["accepted"] == ledger["1.1"]["recorded"] == 4
    assert ledger["1.1"]["skipped"] == 6
    assert ledger["1.0"]["skipped"] == 0
    assert report["state"] == "INCOMPLETE"
    run = thalweg.open(report["directory"])
    assert [event.id for event in run if event.complete] == [0, 4, 5, 9]
    assert run.event(4)["1.1"].payload.tobytes() == b"later"


def test_losses_of_a_device_are_in_the_ledger(builder: Callable[..., Builder]) -> None:
    built = builder(camera="1.0")
    with thalweg.Source(built.tcp, id="1.0", max_bytes=8) as camera:
        camera.lost(2)
        assert camera.push(b"first") == 2
        camera.lost()
        camera.lost(3)
        assert camera.push(b"second") == 7
        with pytest.raises(ValueError, match="count=-1"):
            camera.lost(-1)
    report = built.report()
    (entry,) = report["ledger"]["sources"]
    assert (entry["accepted"], entry["recorded"], entry["lost_in_device"], entry["unaccounted"]) == (8, 2, 6, 0)
    assert [event.id for event in thalweg.open(report["directory"])] == [2, 7]


def test_data_that_do_not_fit_the_source_are_refused_and_the_run_continues(builder: Callable[..., Builder]) -> None:
    built = builder(adc="1.0")
    with thalweg.Source(built.tcp, id="1.0", dtype=np.int16, shape=(64, 4)) as source:
        good = np.ones((64, 4), np.int16)
        with pytest.raises(TypeError, match=r"float64 of shape \[64, 4\] into a source of samples-i16"):
            source.push(np.ones((64, 4)))
        with pytest.raises(TypeError, match="arrays of <U1 cannot be pushed: supported are arrays of 1 to 8 axes"):
            source.push(np.full((64, 4), "x"))
        with pytest.raises(TypeError, match=r"uint8 of shape \[64, 4\].*samples-i16, up to 64 samples of 4 channels"):
            source.push(good.astype(np.uint8))
        with pytest.raises(TypeError, match=r"int16 of shape \[4, 64\]"):
            source.push(np.ascontiguousarray(good.T))
        with pytest.raises(TypeError, match=r"arrays of >i2 .*astype\(array.dtype.newbyteorder"):
            source.push(good.astype(">i2"))
        with pytest.raises(TypeError, match="list cannot be pushed"):
            source.push([1, 2, 3])
        with pytest.raises(ValueError, match="ascontiguousarray"):
            source.push(good[::2])
        with pytest.raises(TypeError, match=r"payloads have no mask: push array\.filled"):
            source.push(np.ma.masked_equal(good, 1))
        with pytest.raises(ValueError, match="status 'late': a source can set truncated, corrupt"):
            source.push(good, status="late")
        with pytest.raises(ValueError, match=r"event=-1: it must be 0 to"):
            source.push(good, event=-1)
        with pytest.raises(thalweg.RunError, match="65 samples are too many: this source was created for at most 64"):
            source.push(np.ones((65, 4), np.int16))
        with pytest.raises(ValueError, match=r"timestamp=1969.*not a TAI time since 1970"):
            source.push(good, timestamp=np.datetime64("1969-12-31"))
        with pytest.raises(TypeError, match=r"timestamp must be an integer .* or a numpy\.datetime64"):
            source.push(good, timestamp="now")
        time = np.datetime64("2026-01-02T03:04:05.000000006")
        assert source.push(good, timestamp=time, status=["replayed", "clock-locked"]) == 0
    report = built.report()
    assert report["state"] == "COMPLETE"
    assert report["ledger"]["sources"][0]["accepted"] == 1
    assert thalweg.open(report["directory"])[0].time_tai == time
    with pytest.raises(thalweg.RunError, match="was finished"), source:
        pass


def test_a_payload_that_is_too_long_is_refused(builder: Callable[..., Builder]) -> None:
    built = builder(host="3.7")
    with thalweg.Source(built.tcp, id="3.7", max_bytes=10) as source:
        with pytest.raises(thalweg.RunError, match="11 bytes is too long: this source was created for at most 10"):
            source.push(b"x" * 11)
        source.push(b"x" * 10)
    assert built.report()["state"] == "COMPLETE"


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ({}, "dtype= and shape= .* or max_bytes="),
        ({"dtype": "int16"}, "dtype= and shape="),
        ({"dtype": "int16", "shape": 8, "max_bytes": 8}, "dtype= and shape="),
        ({"dtype": "float16", "shape": (8, 8)}, "arrays of float16 with shape .*supported are arrays of 1 to 8 axes"),
        ({"dtype": "uint8", "shape": (1,) * 9}, "supported are"),
        ({"dtype": "float32", "shape": ()}, "supported are"),
        ({"dtype": ">f4", "shape": 8}, "little-endian"),
        ({"dtype": "cf16", "shape": 8}, "cf16"),
        ({"dtype": "float32", "shape": (8, 0)}, "1 to 1073741696 bytes"),
        ({"dtype": "uint8", "shape": (8, 8), "payload_type": "raw"}, "with max_bytes only"),
        ({"max_bytes": 8, "payload_type": "image-u8"}, "for samples and images, set dtype="),
        ({"max_bytes": 0}, "1 to 1073741696 bytes"),
        ({"dtype": "int16", "shape": (2**40, 2**40)}, "1 to 1073741696 bytes"),
        ({"max_bytes": 8, "policy": "drop"}, "'block', 'drop-newest' or 'drop-oldest'"),
        ({"max_bytes": 8, "slots": 0}, "slots=0: it must be 1 to 65536"),
        ({"max_bytes": 8, "slots": -1}, "slots=-1: it must be 1 to 65536"),
        ({"max_bytes": 8, "slot": 2**40}, "slot=1099511627776: it must be 1 to"),
        ({"max_bytes": -8}, "max_bytes=-8"),
        ({"dtype": "int16", "shape": (-8,)}, r"shape=\(-8,\): its numbers must be"),
        ({"max_bytes": 8000, "slot": 100}, "set slot to at least"),
        ({"max_bytes": 8, "timeout": -1.0}, "timeout=-1"),
        ({"max_bytes": 8, "id": "2"}, "SUBSYSTEM.ELEMENT"),
        ({"max_bytes": 8, "builders": "127.0.0.1:80"}, "tcp:HOST:PORT"),
        ({"max_bytes": 8, "builders": []}, "at least one address"),
        ({"max_bytes": 8, "builders": 7}, "a list of addresses"),
        ({"max_bytes": 8, "description": {"what": object()}}, "not JSON serializable"),
        ({"max_bytes": 8, "description": {"what": "x" * 2_000_000}}, "bytes of JSON, more than"),
    ],
)
def test_arguments_that_are_not_valid_are_refused(arguments: dict[str, Any], complaint: str) -> None:
    with pytest.raises((TypeError, ValueError, thalweg.RunError), match=complaint):
        thalweg.Source(**{"builders": "tcp:127.0.0.1:9", "id": "1.0", **arguments})


def test_a_missing_builder_is_tried_again_and_then_named() -> None:
    source = thalweg.Source("tcp:127.0.0.1:1", id="1.0", max_bytes=8, timeout=0.2)
    with pytest.raises(thalweg.RunError, match=r"no builder at tcp:127\.0\.0\.1:1 for 200ms: .*refused"):
        source.push(b"data")
    assert not source.running
    with pytest.raises(thalweg.RunError, match="no builder"), source:
        pytest.fail("there is no run")
    with pytest.raises(thalweg.RunError, match="no builder"):
        source.finish()


def test_the_reason_of_a_refusal_is_reported(builder: Callable[..., Builder]) -> None:
    built = builder(adc="1.0", camera="2.0")
    source = thalweg.Source(built.tcp, id="9.9", max_bytes=8)
    with pytest.raises(
        thalweg.RunError, match=r"tcp:127\.0\.0\.1:.*refused: source 9\.9 is not in this run's topology"
    ):
        source.push(b"data")
    first = thalweg.Source(built.tcp, id="1.0", max_bytes=8)
    with pytest.raises(TimeoutError, match=r"the run did not begin within \d"):
        first.push(b"data", timeout=0.05)
    with pytest.raises(thalweg.RunError, match="aborted on request"):
        first.finish()


def test_the_run_ends_after_the_events_of_the_topology(builder: Callable[..., Builder]) -> None:
    built = builder("events = 100", adc="1.0")
    pushed = 0
    with thalweg.Source(built.tcp, id="1.0", max_bytes=8) as source:
        while source.running:
            source.push(pushed.to_bytes(8, "little"))
            pushed += 1
        with pytest.raises(thalweg.RunOver, match="the run has ended"):
            source.push(b"more")
    assert pushed == 100
    report = built.report()
    assert (report["state"], report["events"]["built"]) == ("COMPLETE", 100)
    with pytest.raises(thalweg.RunError, match="this source was finished"):
        source.push(b"more")
    assert source.finish()["accepted"] == 100


def test_an_event_after_the_end_is_refused(builder: Callable[..., Builder]) -> None:
    built = builder("events = 100", adc="1.0")
    with thalweg.Source(built.tcp, id="1.0", max_bytes=8) as source:
        source.push(b"inside", event=99 - 1)
        with pytest.raises(thalweg.RunOver, match="the run has ended"):
            source.push(b"outside", event=100)
    assert built.report()["ledger"]["sources"][0]["accepted"] == 1


def test_an_operator_can_end_the_run_while_a_program_pushes(builder: Callable[..., Builder]) -> None:
    built = builder(adc="1.0")
    pushed = 0
    source = thalweg.Source(built.tcp, id="1.0", max_bytes=8)
    with source, contextlib.suppress(thalweg.RunOver):
        while True:
            source.push(b"data")
            pushed += 1
            if pushed == 500:
                built.process.send_signal(signal.SIGINT)
    assert source.finish()["accepted"] == pushed >= 500
    assert built.report()["state"] == "COMPLETE"


def test_an_exception_in_the_block_ends_the_run_cleanly(builder: Callable[..., Builder]) -> None:
    built = builder(adc="1.0")
    source = thalweg.Source(built.tcp, id="1.0", max_bytes=8)
    with pytest.raises(ZeroDivisionError), source:
        _ = source.push(b"data") / 0
    report = built.report()
    assert report["state"] == "COMPLETE"
    assert report["events"]["built"] == 1


@pytest.mark.parametrize("link", ["tcp", "shm"])
def test_a_push_reports_that_the_builder_died(builder: Callable[..., Builder], link: str) -> None:
    built = builder(adc="1.0")
    source = thalweg.Source(getattr(built, link), id="1.0", max_bytes=100_000, slots=2, slot=200_000, timeout=0.2)

    def fill() -> None:
        # A builder that does not answer in time is reported in the same way.
        source.push(b"data")
        built.kill()
        while True:
            source.push(b"x" * 100_000)

    with pytest.raises(thalweg.RunError, match="no builder at"), source:
        fill()
    with pytest.raises(thalweg.RunError, match="no builder at"):
        source.finish()


def test_drops_are_counted(builder: Callable[..., Builder]) -> None:
    built = builder(adc="1.0")
    with thalweg.Source(built.tcp, id="1.0", max_bytes=60_000, slots=1, slot=64_000, policy="drop-newest") as source:
        for _ in range(200):
            source.push(b"x" * 60_000)
    report = source.finish()
    assert report["accepted"] == 200
    entry = built.report()["ledger"]["sources"][0]
    assert entry["dropped_newest"] == report["dropped_newest"]
    assert entry["recorded"] + entry["dropped_newest"] == 200


def test_a_wait_for_a_slot_can_be_interrupted_and_other_threads_run(
    builder: Callable[..., Builder],
) -> None:
    built = builder(adc="1.0", absent="1.1")
    source = thalweg.Source(built.tcp, id="1.0", max_bytes=8)
    interrupt = threading.Timer(0.05, os.kill, (os.getpid(), signal.SIGINT))

    def push() -> None:
        interrupt.start()
        # The run does not begin, since the other source is missing.
        source.push(b"data")

    with pytest.raises(KeyboardInterrupt):
        push()
    interrupt.join()


def test_a_child_process_cannot_use_its_parents_source(builder: Callable[..., Builder]) -> None:
    built = builder(adc="1.0")
    with thalweg.Source(built.tcp, id="1.0", max_bytes=8) as source:
        child = os.fork()
        if child == 0:
            try:
                source.push(b"data")
            except RuntimeError as error:
                os._exit(7 if "process" in str(error) else 1)
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        source.push(b"data")
    assert built.report()["events"]["built"] == 1


def test_a_program_that_ends_without_finish_loses_no_data(builder: Callable[..., Builder]) -> None:
    built = builder(adc="1.0")
    program = f"""
import thalweg
source = thalweg.Source("{built.tcp}", id="1.0", max_bytes=100_000)
for event in range(100):
    source.push(bytes([event]) * 100_000)
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)
    report = built.report()
    assert (report["state"], report["events"]["built"]) == ("COMPLETE", 100)
