"""Exports contain all fragments of the run, other programs read them, and a partial export is continued."""

from __future__ import annotations

import csv
import doctest
import errno
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from conftest import ROOT, Writer, free_port
from handmade import (
    EMPTY,
    IMAGE_U16,
    MISSING,
    NO_PAYLOAD_CRC,
    RAW,
    SAMPLES_I16,
    SIMULATED,
    TIMED_OUT,
    Record,
    block,
    write_run,
)
from test_builders import TOPOLOGY as TWO_BUILDERS

import thalweg

pytest.importorskip("h5py")

from thalweg import replay
from thalweg.export import FORMATS, Exported, ExportError, export, stream_names
from thalweg.export.__main__ import _report
from thalweg.export._csv import _array_text
from thalweg.export._reading import Form
from thalweg.export._sigmf import Fragment, captures

if TYPE_CHECKING:
    from conftest import Written

# Module that a format needs.
LIBRARIES = {"nexus": "h5py", "hdf5": "h5py", "parquet": "pyarrow", "zarr": "zarr", "root": "uproot"}
# Formats that thalweg.replay plays.
REPLAY_FORMATS = ("nexus", "parquet", "zarr", "root", "csv")
# Start of the run in TAI nanoseconds since 1970.
START_TAI_NS = 1_800_000_000_000_000_000
# Payload types (docs/wire.md).
SAMPLES_CF32 = 0x11A
SAMPLES_CI16 = 0x115
ARRAY_F64 = 0x30B
ARRAY_U64 = 0x303


def require_library(to: str) -> None:
    """Skips the test if the library of a format is not installed."""
    if to in LIBRARIES:
        pytest.importorskip(LIBRARIES[to])


@pytest.fixture(scope="module")
def varied(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Run with samples of varying length, images, complex numbers, eight axes, bytes, empty and missing fragments."""
    records, closings = [], []
    for index, event in enumerate([0, 1, 2, 3, 14, 2**64 - 2]):
        at = {"timestamp": START_TAI_NS + index * 8000, "sequence": index, "window": 5}
        records += [
            Record(event, "1.0", np.arange(8 + index % 3 * 2, dtype="<i2").tobytes(), SAMPLES_I16, **at),
            Record(event, "1.1", np.full((3, 4), event % 65536, "<u2").tobytes(), IMAGE_U16, **at),
            Record(event, "1.2", (np.arange(6) - 1j * index).astype("<c8").tobytes(), SAMPLES_CF32, **at),
            Record(event, "1.3", np.linspace(0, 1, 256, dtype="<f8").tobytes(), ARRAY_F64, **at),
            Record(event, "1.4", bytes(index), RAW, SIMULATED | (0 if index else EMPTY), **at),
            Record(event, "1.5", np.array([1, -2, 3, -4], "<i2").tobytes(), SAMPLES_CI16, **at),
            Record(event, "1.6", b"abc", RAW, SIMULATED | NO_PAYLOAD_CRC, **at),
            Record(event, "1.7", status=MISSING | TIMED_OUT | NO_PAYLOAD_CRC),
        ]
        closings.append((event, 1, 1, 1))
    records[6 + 2 * 8] = Record(2, "1.6", status=MISSING | NO_PAYLOAD_CRC)
    sources: dict[str, dict[str, Any]] = {f"1.{element}": {} for element in range(8)}
    sources["1.0"] = {"payload_type": "samples-i16", "channels": 2, "sample_rate": 500_000}
    sources["1.1"] = {"payload_type": "image-u16", "width": 4, "height": 3}
    sources["1.2"] = sources["1.5"] = {"channels": 1}
    sources["1.3"] = {"payload_type": "array-f64", "shape": [2] * 8}
    return write_run(tmp_path_factory.mktemp("varied") / "run", [block(7, 0, records, closings)], sources)


def fragments_of(run: thalweg.Run, source: str) -> list[tuple[Any, ...]]:
    """Returns event, time stamp, window, status bits and array of each fragment of a source, as thalweg.replay does."""
    found = [(event.id, event[source]) for event in run if source in event]
    return [(id, it.timestamp, it.window, it.status_bits, it.array) for id, it in found]


def assert_same(expected: list[tuple[Any, ...]], found: list[tuple[Any, ...]]) -> None:
    assert [row[:4] for row in expected] == [tuple(row[:4]) for row in found]
    for left, right in zip(expected, found, strict=True):
        assert (left[4].dtype, left[4].shape) == (right[4].dtype, right[4].shape)
        assert left[4].tobytes() == right[4].tobytes()


def missing_of(path: Path, to: str) -> list[tuple[int, str, str]]:
    """Returns the table of missing fragments, read with the library of the format: event, source and reason."""
    if to in ("nexus", "hdf5"):
        import h5py

        with h5py.File(path) as file:
            table = file["entry/missing"]
            columns = [
                table["event_id"][:].tolist(),
                *(table[name].asstr()[:].tolist() for name in ("source", "reason")),
            ]
    elif to == "zarr":
        import zarr

        table = zarr.open_group(path, mode="r")["missing"]
        columns = [table["event_id"][:].tolist()]
        columns += [[table.attrs[f"{name}s"][at] for at in table[name][:].tolist()] for name in ("source", "reason")]
    elif to == "parquet":
        import pyarrow.dataset

        rows = pyarrow.dataset.dataset(path / "missing").to_table()
        columns = [rows[name].to_pylist() for name in ("event_id", "source", "reason")]
    elif to == "root":
        import uproot

        columns = [[], [], []]
        for file in sorted(path.glob("*.root")):
            with uproot.open(file) as opened:
                part = opened["missing"].arrays() if "missing" in opened else None
                for column, name in zip(columns, ("event_id", "source", "reason"), strict=True):
                    column += part[name].to_list() if part is not None else []
    else:
        with (path / "missing.csv").open(newline="") as file:
            return [(int(row["event_id"]), row["source"], row["reason"]) for row in csv.DictReader(file)]
    return list(zip(*columns, strict=True))


@pytest.mark.parametrize("to", REPLAY_FORMATS)
def test_exported_fragments_have_their_numbers_times_and_samples(to: str, varied: Path, tmp_path: Path) -> None:
    require_library(to)
    run = thalweg.open(varied)
    exported = run.export(to, tmp_path / "out")
    assert (exported.events, exported.fragments, exported.missing, exported.damaged) == (6, 41, 7, 0)
    for source in run.sources[:-1]:
        expected = fragments_of(run, source)
        assert_same(expected, list(replay.fragments(tmp_path / "out", source)))
        assert_same(expected, list(replay.fragments(tmp_path / "out", run.names[source])))
    missing = [(event.id, source, reason) for event in run for source, reason in event.missing.items()]
    assert missing_of(tmp_path / "out", to) == missing
    assert not (tmp_path / "out.part").exists()


@pytest.mark.parametrize("to", REPLAY_FORMATS)
def test_sources_and_events_can_be_selected(to: str, varied: Path, tmp_path: Path) -> None:
    require_library(to)
    run = thalweg.open(varied)
    exported = export(run, to, tmp_path / "out", sources=["n1.1", "1.7"], events="2..15", compression="none")
    assert (exported.events, exported.fragments, exported.missing) == (3, 3, 3)
    assert [played.event for played in replay.fragments(tmp_path / "out", "1.1")] == [2, 3, 14]
    assert missing_of(tmp_path / "out", to) == [(event, "1.7", "timed-out") for event in (2, 3, 14)]
    with pytest.raises(replay.ReplayError, match=r"no fragments of source '1\.0'; it has fragments of 1\.1"):
        replay.fragments(tmp_path / "out", "1.0")


@pytest.mark.parametrize("to", ["nexus", "zarr", "parquet", "root"])
def test_compression_keeps_all_fragments(to: str, model: Written, tmp_path: Path) -> None:
    require_library(to)
    run = thalweg.open(model.directory)
    export(run, to, tmp_path / "out", events="..20", compression="gzip")
    assert_same(fragments_of(run, "1.0")[:20], list(replay.fragments(tmp_path / "out", "1.0")))


def test_errors_of_arguments_state_the_reason(varied: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = thalweg.open(varied)
    for expected, arguments in {
        "'xml' is not a format: choose one of nexus, ": ("xml",),
        "csv does not have the compression 'gzip': choose none": ("csv", tmp_path / "out", {"compression": "gzip"}),
        "has no events in 4..6: it has 6 events, 0 to 18446744073709551614": (
            "csv",
            tmp_path / "o",
            {"events": "4..6"},
        ),
        "no does not exist": ("csv", tmp_path / "no/where"),
        "which SigMF does not have": ("sigmf", tmp_path / "wide"),
    }.items():
        if expected == "which SigMF does not have":
            wide = Record(0, "1.0", bytes(8), ARRAY_U64)
            run = thalweg.open(write_run(tmp_path / "u64", [block(7, 0, [wide], [(0, 1, 1, 0)])], {"1.0": {}}))
        options: dict[str, Any] = arguments[-1] if isinstance(arguments[-1], dict) else {}
        with pytest.raises(ExportError, match=re.escape(expected)):
            export(run, *[word for word in arguments if word is not options], **options)
    monkeypatch.setitem(sys.modules, "zarr", None)
    with pytest.raises(ExportError, match=r"needs zarr: pip install 'thalweg\[export\]'"):
        run.export("zarr", tmp_path / "x.zarr")


@dataclass
class Damaged(Record):
    """Fragment whose payload does not match its checksum."""

    def encode(self, run: int) -> bytes:
        encoded = bytearray(super().encode(run))
        encoded[64] ^= 1
        return bytes(encoded)


@pytest.mark.parametrize("to", REPLAY_FORMATS)
def test_damaged_fragments_are_left_out_and_listed(to: str, tmp_path: Path) -> None:
    require_library(to)
    records = [Record(event, source, b"abcd", SAMPLES_I16) for event in range(5) for source in ("1.0", "2.0")]
    records[2] = Damaged(1, "1.0", b"abcd", SAMPLES_I16)
    # A record of event 3 is missing, and the time stamp of event 4 is after the year 2262.
    records[9] = Record(4, "2.0", b"abcd", SAMPLES_I16, timestamp=2**63)
    del records[6]
    run = write_run(tmp_path / "run", [block(7, 0, records, [(0, 1, 5, 0)])], {"1.0": {}, "2.0": {}})
    exported = thalweg.open(run).export(to, tmp_path / "out")
    assert (exported.events, exported.fragments, exported.missing) == (5, 6, 0)
    assert (exported.damaged, exported.damaged_events, exported.out_of_range) == (3, 1, 1)
    assert not any("event 4" in problem for problem in exported.problems)
    assert any("event 1, source 1.0: checksum" in problem for problem in exported.problems)
    assert [played.event for played in replay.fragments(tmp_path / "out", "1.0")] == [0, 2, 4]
    assert sorted(missing_of(tmp_path / "out", to)) == [
        (1, "1.0", "checksum"),
        (3, "1.0", "damaged"),
        (3, "2.0", "damaged"),
        (4, "2.0", "time-out-of-range"),
    ]


def report_of(**counts: Any) -> list[str]:
    """Returns the report that the command prints for an export of 600 events in 2 s with these other counts."""
    counts = {"fragments": 1800, "bytes": 4_000_000, "missing": 0, "damaged": 0, "damaged_events": 0} | counts
    counts = {"out_of_range": 0, "problems": [], "resumed_events": 0, "resumed_bytes": 0} | counts
    return _report(Exported(path=Path("out.nxs"), events=600, state="COMPLETE", **counts), 2.0)


def test_the_report_counts_what_is_in_the_export() -> None:
    assert report_of() == ["out.nxs: 600 events, 1,800 fragments, 4.00 MB in 2.0 s (2.00 MB/s)"]
    assert report_of(fragments=1710, damaged=90, damaged_events=30, problems=["block 7: wrong checksum"]) == [
        "out.nxs: 570 of 600 events, 1,710 fragments, 4.00 MB in 2.0 s (2.00 MB/s)",
        "  90 fragments DAMAGED and left out: the export lists them with the reasons",
        "    block 7: wrong checksum",
    ]
    assert report_of(out_of_range=1)[1:] == [
        "  1 fragment left out, with a time after the year 2262: "
        "the export lists them with the reason time-out-of-range"
    ]


def test_the_speed_of_a_continued_export_is_that_of_the_bytes_that_were_left() -> None:
    assert report_of(resumed_events=500, resumed_bytes=3_000_000) == [
        "out.nxs: 600 events, 1,800 fragments, 4.00 MB",
        "  continued an interrupted export of 500 events: 1.00 MB in 2.0 s (500 kB/s)",
    ]


def test_fragments_without_a_time_have_no_seconds(tmp_path: Path) -> None:
    import h5py

    # The second one is the first of a recording whose times are counted from 0.
    records = [Record(event, "1.0", bytes(4), SAMPLES_I16, timestamp=0, window=event) for event in range(2)]
    run = thalweg.open(write_run(tmp_path / "run", [block(7, 0, records, [(0, 1, 2, 0)])], {"1.0": {}}))
    run.export("nexus", tmp_path / "out.nxs")
    with h5py.File(tmp_path / "out.nxs") as file:
        times = file["entry/instrument/n1_0/time"][:].tolist()
    assert np.isnan(times).tolist() == [True, False]
    assert times[1] == -run.info["began"] / 1e9


def test_a_source_that_changes_type_or_length_has_several_streams(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from thalweg.export import _reading

    monkeypatch.setattr(_reading, "BATCH_FRAGMENTS", 20)
    records = [Record(event, "1.0", bytes(4 + 2 * (event > 40)), SAMPLES_I16) for event in range(50)]
    records += [Record(50, "1.0", bytes(4), RAW), Record(51, "1.0", bytes(4), SAMPLES_I16)]
    run = thalweg.open(write_run(tmp_path / "run", [block(7, 0, records, [(0, 1, 52, 0)])], {"1.0": {}}))
    run.export("nexus", tmp_path / "out.nxs")
    import h5py

    with h5py.File(tmp_path / "out.nxs") as file:
        shapes = {name: group["data"].shape for name, group in file["entry/instrument"].items() if name != "name"}
    assert shapes == {"n1_0": (42, 2, 1), "n1_0_2": (27, 1), "n1_0_3": (1, 4)}
    assert_same(fragments_of(run, "1.0"), list(replay.fragments(tmp_path / "out.nxs", "1.0")))


# Script that exports a run and kills itself after `argv[3]` batches. Every second batch is followed by a checkpoint.
KILLED_EXPORT = """
import os, signal, sys
import thalweg, thalweg.export as exporting
from thalweg.export import _reading
run, to, batches, out = sys.argv[1:5]
_reading.BATCH_FRAGMENTS, exporting.CHECKPOINT_FRAGMENTS, calls = 60, 100, []
def progress(_):
    calls.append(1)
    if len(calls) == int(batches):
        os.kill(os.getpid(), signal.SIGKILL)
exporting.export(thalweg.open(run), to, out, progress=progress)
"""


@pytest.mark.parametrize("to", [name for name in FORMATS if name != "hdf5"])
def test_a_killed_export_is_continued(to: str, model: Written, tmp_path: Path) -> None:
    require_library(to)
    command = [sys.executable, "-c", KILLED_EXPORT, str(model.directory), to, "8", str(tmp_path / "out")]
    assert subprocess.run(command, check=False).returncode == -signal.SIGKILL
    assert not (tmp_path / "out").exists()
    run = thalweg.open(model.directory)
    exported = run.export(to, tmp_path / "out")
    assert 0 < exported.resumed_events < exported.events == len(run)
    assert 0 < exported.resumed_bytes < exported.bytes
    assert (exported.fragments, exported.missing) == (3 * len(run), 0)
    assert not (tmp_path / "out.part").exists()
    if to == "sigmf":
        for source in run.sources:
            name = stream_names([(source, run.names[source])])[source]
            samples = b"".join(event[source].payload.tobytes() for event in run)
            assert (tmp_path / "out" / f"{name}.sigmf-data").read_bytes() == samples
    else:
        for source in run.sources:
            assert_same(fragments_of(run, source), list(replay.fragments(tmp_path / "out", source)))


@pytest.mark.parametrize("writes_before_failure", range(0, 400, 25))
def test_an_hdf5_export_is_continued_after_any_failed_write(
    writes_before_failure: int, model: Written, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import thalweg.export as exporting
    from thalweg.export import _reading

    monkeypatch.setattr(_reading, "BATCH_FRAGMENTS", 60)
    monkeypatch.setattr(exporting, "CHECKPOINT_FRAGMENTS", 100)
    run = thalweg.open(model.directory)
    original_pwrite, writes = os.pwrite, []

    def pwrite_to_full_disk(*arguments: Any) -> int:
        writes.append(1)
        if len(writes) > writes_before_failure:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return original_pwrite(*arguments)

    # After the first failed write nothing is written to the file, as if the process had been killed.
    with monkeypatch.context() as patched:
        patched.setattr(os, "pwrite", pwrite_to_full_disk)
        with pytest.raises(OSError, match="No space left"):
            export(run, "nexus", tmp_path / "out.nxs")
    export(run, "nexus", tmp_path / "out.nxs")
    assert_same(fragments_of(run, "1.2"), list(replay.fragments(tmp_path / "out.nxs", "1.2")))


def test_existing_files_are_not_replaced_without_force(model: Written, tmp_path: Path) -> None:
    out = tmp_path / "out.csv"
    command = [sys.executable, "-c", KILLED_EXPORT, str(model.directory), "csv", "4", str(out)]
    subprocess.run(command, check=False)
    run = thalweg.open(model.directory)
    with pytest.raises(
        ExportError, match=r"partial export with other data or options \(sources .*'1\.2'\], now \['1\.0'\]\)"
    ):
        export(run, "csv", out, sources="1.0")
    export(run, "csv", out, sources="1.0", force=True)
    with pytest.raises(ExportError, match="already exists: write to another path with --out"):
        export(run, "csv", out)
    assert export(run, "csv", out, force=True).fragments == 3 * len(run)
    (tmp_path / "mine.part").mkdir()
    (tmp_path / "mine.part" / "notes.txt").write_text("not an export's")
    with pytest.raises(ExportError, match="is not a partial export: move it"):
        export(run, "csv", tmp_path / "mine", force=True)
    assert (tmp_path / "mine.part" / "notes.txt").exists()


# Topology that plays a recording.
RECORDING_TOPOLOGY = """
[run]
directory = "runs"

[[builder]]
name = "builder"
listen = ["tcp:127.0.0.1:0"]

[[source]]
name = "played"
id = "1.0"
device = {{ kind = "{0}", file = "{1}" }}
"""


def play_recording(program: Path, folder: Path, kind: str, file: str) -> thalweg.Run:
    """Plays a recording into a run and returns the run."""
    (folder / "play.toml").write_text(RECORDING_TOPOLOGY.format(kind, file))
    subprocess.run([program, "-q", "run", "play.toml"], cwd=folder, check=True, capture_output=True)
    return thalweg.open(folder / "runs/run-000001")


def test_a_run_larger_than_the_memory_is_exported(program: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "images.npy", np.zeros((96, 1024, 1024), np.uint8))
    run = play_recording(program, tmp_path, "npy", "images.npy").path
    script = """
import resource, sys, re, pathlib
import thalweg, thalweg.export, h5py
from thalweg.export import _hdf5
run = thalweg.open(sys.argv[1])
used = int(re.search(r"VmData:\\s+(\\d+)", pathlib.Path("/proc/self/status").read_text())[1]) << 10
resource.setrlimit(resource.RLIMIT_DATA, (used + (48 << 20),) * 2)
try:
    bytearray(64 << 20)
except MemoryError:
    print(run.export("nexus", sys.argv[2]).bytes)
"""
    command = [sys.executable, "-c", script, run, str(tmp_path / "out.nxs")]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    assert int(ended.stdout) == 96 << 20


def test_a_run_of_several_builders_is_one_export(program: Path, tmp_path: Path) -> None:
    (tmp_path / "two.toml").write_text(TWO_BUILDERS.format(free_port(), free_port()))
    subprocess.run([program, "run", "two.toml"], cwd=tmp_path, check=True, capture_output=True)
    run = thalweg.open(tmp_path / "runs/run-000042")
    exported = run.export("nexus", tmp_path / "out.nxs")
    assert (exported.events, exported.fragments, exported.state) == (101, 202, "COMPLETE")
    assert_same(fragments_of(run, "1.1"), list(replay.fragments(tmp_path / "out.nxs", "1.1")))
    part = thalweg.open(tmp_path / "runs/run-000042-b1").export("csv", tmp_path / "part")
    assert part.events == 50
    assert [played.event for played in replay.fragments(tmp_path / "part", "1.0")] == list(range(1, 101, 2))


def test_a_run_is_exported_while_it_is_recorded(writer: Writer, tmp_path: Path) -> None:
    followed = thalweg.open(writer.directory).follow()
    for _ in range(50):
        next(followed)
    run = thalweg.open(writer.directory)
    exported = run.export("nexus", tmp_path / "out.nxs")
    assert (exported.state, exported.events) == ("OPEN", len(run))
    assert exported.events > 0
    writer.stop()


def test_the_command_exports_a_run_on_a_server(
    model: Written, serve: Callable[..., str], program: Path, tmp_path: Path
) -> None:
    url = f"{serve(model.directory.parent)}/runs/{thalweg.open(model.directory).number}"
    command = [str(program), "export", url, "--to", "csv", "--out", "out.csv", "--event", "3..5", "--json"]
    environment = os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, env=environment)
    assert ended.returncode == 0, ended.stderr
    report = json.loads(ended.stdout)
    assert (report["events"], report["fragments"], report["path"]) == (2, 6, "out.csv")
    again = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, env=environment)
    assert (again.returncode, "out.csv already exists" in again.stderr) == (2, True)
    nowhere = [str(program), "export", "nowhere", "--to", "csv"]
    ended = subprocess.run(nowhere, cwd=tmp_path, capture_output=True, text=True, check=False, env=environment)
    assert (ended.returncode, ended.stderr) == (2, "thalweg: nowhere is not a run: no such directory\n")
    ended = subprocess.run(nowhere, cwd=tmp_path, capture_output=True, text=True, check=False, env={"PATH": "/none"})
    assert ended.returncode == 2
    assert "pip install 'thalweg[export]'" in ended.stderr


def test_the_example_in_the_docstring_is_correct(
    record: Callable[..., Written], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record("--sources", 2, "--size", "1KiB", "--rate", 100, events=20, out=tmp_path / "demo")
    monkeypatch.chdir(tmp_path)
    assert doctest.testmod(thalweg.export).failed == 0


def test_numbers_in_csv_are_parsed_to_the_same_values() -> None:
    def parsed(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        stream = object.__new__(replay._CsvStream)
        stream.form = Form("array", array.dtype, (), None)
        return stream._parse_values(_array_text(array), 2)

    values = [0.1, -0.0, np.inf, -np.inf, np.nan, 5e-324, 1.7976931348623157e308, 1e-7]
    floats = np.array(values)
    with np.errstate(over="ignore"):
        arrays = [floats, floats.astype("f4"), np.array([2**64 - 1], "u8"), np.array([-(2**63)], "i8")]
        arrays += [
            np.array([complex(real, imaginary) for real in values for imaginary in values], kind)
            for kind in ("c16", "c8")
        ]
    arrays.append(np.array([(-128, 127)], [("r", "<i8"), ("i", "<i8")]))
    for array in arrays:
        back = parsed(array)
        assert back.dtype == array.dtype
        assert back.tobytes() == array.tobytes() or np.array_equal(back, array, equal_nan=True)


def test_names_of_streams_are_valid_and_distinct() -> None:
    sources = [
        ("1.0", "../../etc"),
        ("1.1", "adc 0"),
        ("1.2", "adc_0"),
        ("1.3", "ADC 0"),
        ("1.4", ""),
        ("1.5", "missing"),
    ]
    assert stream_names([*sources, ("1.6", "ä/é"), ("1.7", "7"), ("1.8", "x" * 300)]) == {
        "1.0": "etc",
        "1.1": "adc_0",
        "1.2": "adc_0_1_2",
        "1.3": "ADC_0_1_3",
        "1.4": "source_1_4",
        "1.5": "missing_1_5",
        "1.6": "source_1_6",
        "1.7": "source_7_1_7",
        "1.8": "x" * 120,
    }


def test_a_recording_has_a_capture_for_each_gap() -> None:
    def fragment(index: int, event: int, tai: int) -> Fragment:
        return Fragment(index * 10, 10, event, tai, "2027-01-15T08:00:00Z", index, 0, 0)

    # 10 samples at 1 MHz take 10 µs. Event 2 is missing, and event 4 is 5 samples late.
    times = [(0, 0), (1, 10_000), (3, 30_000), (4, 45_000), (5, 55_000)]
    rows = [fragment(index, event, START_TAI_NS + since) for index, (event, since) in enumerate(times)]
    by_time = [(it["core:sample_start"], it["core:global_index"]) for it in captures(iter(rows), 1e6)]
    assert by_time == [(0, 0), (20, 30), (30, 45)]
    by_number = [(it["core:sample_start"], it["core:global_index"]) for it in captures(iter(rows), None)]
    assert by_number == [(0, 0), (20, 30)]


# Other programs that read exports.


@pytest.fixture(scope="module")
def nexus(varied: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("nexus") / "run.nxs"
    export(thalweg.open(varied), "nexus", out, sources=["1.1", "1.0", "1.3", "1.7"])
    return out


def test_nexus_files_are_valid(nexus: Path) -> None:
    validator = Path(sys.executable).parent / "nxcheck"
    if not validator.exists():
        pytest.skip("nxvalidate is not installed")
    found = subprocess.run([validator, nexus], capture_output=True, text=True, check=False).stdout
    assert "NXdetector: /entry/instrument/n1_1" in found
    assert "Total number of errors: 0" in found


def test_nexus_readers_find_the_default_plot(nexus: Path, varied: Path) -> None:
    silx = pytest.importorskip("silx.io.nxdata")
    tree = pytest.importorskip("nexusformat.nexus")
    import h5py

    images = np.stack([event["1.1"].array for event in thalweg.open(varied)])
    with h5py.File(nexus) as file:
        assert file["entry/data/data"].id == file["entry/instrument/n1_0/data"].id
        default = silx.get_default(file)
        assert default.is_valid
        assert default.signal.shape[1:] == (2,)
        image = silx.NXdata(file["entry/data_n1_1"])
        assert image.is_valid
        np.testing.assert_array_equal(image.signal[()], images)
        assert (image.interpretation, default.interpretation) == ("image", None)
        np.testing.assert_allclose(image.axes[0][()], np.arange(6) * 8e-6)
        detector = file["entry/instrument/n1_1"]
        assert detector["tai_ns"][:].tolist() == [START_TAI_NS + index * 8000 for index in range(6)]
        assert detector["data"].chunks[1:] == (3, 4)
        assert "data" not in file["entry/instrument/n1_7"]
        assert file["entry/start_time"].asstr()[()] == "2027-01-15T07:59:23.000000000+00:00"
    assert tree.nxload(nexus).get_default().nxpath == "/entry/data"


def test_sigmf_recordings_are_valid_and_can_be_played(program: Path, varied: Path, tmp_path: Path) -> None:
    sigmf = pytest.importorskip("sigmf.sigmffile")
    run = thalweg.open(varied)
    export(run, "sigmf", tmp_path / "out", sources=["1.0", "1.1", "1.2", "1.5"])
    for meta in (tmp_path / "out").glob("*.sigmf-meta"):
        recording = sigmf.fromfile(str(meta))
        recording.validate()
        assert recording.calculate_hash() == recording.get_global_info()["core:sha512"]
    recording = sigmf.fromfile(str(tmp_path / "out/n1_0.sigmf-meta"))
    samples = np.concatenate([event["1.0"].array for event in run])
    assert recording.sample_count == len(samples)
    np.testing.assert_array_equal(np.fromfile(tmp_path / "out/n1_0.sigmf-data", "<i2").reshape(-1, 2), samples)
    notes = [row for row in recording.get_annotations() if "thalweg:missing" not in row]
    assert [row["thalweg:event_id"] for row in notes] == run.ids().tolist()
    assert recording.get_captures()[0]["core:datetime"] == "2027-01-15T07:59:23.000000000Z"

    again = play_recording(program, tmp_path, "sigmf", "out/n1_0.sigmf-meta")
    np.testing.assert_array_equal(np.concatenate([event["1.0"].array for event in again]), samples)
    assert again[0]["1.0"].timestamp == run[0]["1.0"].timestamp


def test_duckdb_reads_parquet(varied: Path, tmp_path: Path) -> None:
    duckdb = pytest.importorskip("duckdb")
    require_library("parquet")
    run = thalweg.open(varied)
    export(run, "parquet", tmp_path / "out", sources=["1.0", "1.6"])
    rows = duckdb.sql(
        f"select event_id, tai_ns, epoch_ns(time_utc), crc32c, data from '{tmp_path}/out/n1_0/*.parquet' order by 1"
    ).fetchall()
    for row, event in zip(rows, run, strict=True):
        fragment = event["1.0"]
        assert row[:2] == (event.id, fragment.timestamp)
        assert row[2:4] == (fragment.timestamp - 37 * 10**9, fragment.payload_crc)
        assert row[4] == fragment.array.reshape(-1).tolist()
    (crc,) = duckdb.sql(f"select distinct crc32c from '{tmp_path}/out/n1_6/*.parquet'").fetchall()
    assert crc == (None,)


def test_tensorstore_reads_zarr(varied: Path, tmp_path: Path) -> None:
    tensorstore = pytest.importorskip("tensorstore")
    require_library("zarr")
    run = thalweg.open(varied)
    export(run, "zarr", tmp_path / "out", sources=["1.2"])
    spec = {"driver": "zarr3", "kvstore": {"driver": "file", "path": str(tmp_path / "out/n1_2/data")}}
    array = tensorstore.open(spec, read=True).result().read().result()
    np.testing.assert_array_equal(array, np.stack([event["1.2"].array for event in run]))


# Replay.

# Topology in which thalweg.replay is the source.
REPLAY_TOPOLOGY = """
[run]
directory = "runs"
# The source is a Python program, which begins late on a busy machine.
timeout = "5m"

[[builder]]
name = "builder"
listen = ["shm:builder.sock"]

[[source]]
name = "camera"
id = "3.0"
"""


@pytest.fixture
def waiting_builder(program: Path, tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """Builder that waits for a source."""
    (tmp_path / "replay.toml").write_text(REPLAY_TOPOLOGY)
    command = [str(program), "-q", "run", "replay.toml"]
    process = subprocess.Popen(command, cwd=tmp_path, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    yield process
    if process.poll() is None:
        process.kill()
        process.wait()


@pytest.mark.parametrize(("to", "source"), list(zip(REPLAY_FORMATS, ["1.1", "1.2", "1.5", "1.0", "1.3"], strict=True)))
def test_replay_records_the_same_fragments(
    to: str, source: str, varied: Path, waiting_builder: subprocess.Popen[str], tmp_path: Path
) -> None:
    require_library(to)
    run = thalweg.open(varied)
    export(run, to, tmp_path / "out", events="..15")
    arguments = [str(tmp_path / "out"), f"shm:{tmp_path}/builder.sock", "--source", source, "--id", "3.0"]
    # The builder takes longer than the default of 10 s to begin on a machine that is busy with other tests.
    command = [sys.executable, "-m", "thalweg.replay", *arguments, "--timeout", "60"]
    played = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (played.returncode, played.stderr) == (0, "")
    assert played.stdout == f"{tmp_path}/out: 5 fragments of {source}\n"
    waiting_builder.communicate(timeout=60)
    again = thalweg.open(tmp_path / "runs/run-000001")
    assert again.ids().tolist() == [0, 1, 2, 3, 14]
    for event in again:
        before, after = run.event(event.id)[source], event["3.0"]
        assert (after.timestamp, after.window) == (before.timestamp, before.window)
        assert set(after.status) == {"simulated", "replayed"}
        np.testing.assert_array_equal(after.array, before.array)
    described, original = again.info["sources"][0]["description"], run.info["sources"][int(source[2:])]["description"]
    assert described.get("sample_rate") == original.get("sample_rate")
    assert (described["kind"], described["replayed"]) == ("pushed", True)


class UnconnectedSource:
    """Stand-in for thalweg.Source that records its arguments and the pushed events, and connects to no builder."""

    def __init__(self, builders: str, **options: Any) -> None:
        self.builders, self.options, self.events = builders, options, list[int]()
        # Events that the test had read from the file before.
        self.read_before = list(READ_EVENTS)
        SOURCES.append(self)

    def __enter__(self) -> None: ...

    def __exit__(self, *_error: object) -> None: ...

    def push(self, _data: object, event: int, **_options: object) -> None:
        self.events.append(event)

    def finish(self) -> dict[str, Any]:
        return {"accepted": len(self.events)}


# Sources that the test created, and events that it read.
SOURCES: list[UnconnectedSource] = []
READ_EVENTS: list[int] = []


@pytest.fixture
def replayed(monkeypatch: pytest.MonkeyPatch) -> Callable[..., UnconnectedSource]:
    """Function that replays an export without builders and returns the source."""
    merge_fragments = replay._merge_fragments

    def noted_fragments(streams: Any) -> Iterator[replay.Played]:
        for played in merge_fragments(streams):
            READ_EVENTS.append(played.event)
            yield played

    def play(path: Path, source: str) -> UnconnectedSource:
        SOURCES.clear()
        READ_EVENTS.clear()
        replay.replay(path, "shm:none.sock", source=source, id="3.0")
        (created,) = SOURCES
        return created

    monkeypatch.setattr(replay, "_merge_fragments", noted_fragments)
    monkeypatch.setattr(thalweg, "Source", UnconnectedSource)
    return play


@pytest.mark.parametrize("to", REPLAY_FORMATS)
def test_a_replay_reads_its_first_fragment_before_it_connects(
    to: str, varied: Path, replayed: Callable[..., UnconnectedSource], tmp_path: Path
) -> None:
    require_library(to)
    export(thalweg.open(varied), to, tmp_path / "out", events="..15")
    source = replayed(tmp_path / "out", "1.0")
    assert source.read_before == [0]
    assert source.events == [0, 1, 2, 3, 14]


@pytest.mark.parametrize("to", REPLAY_FORMATS)
def test_a_replay_has_the_description_of_its_source(
    to: str, replayed: Callable[..., UnconnectedSource], tmp_path: Path
) -> None:
    require_library(to)
    own = {"simulated": True, "sample_rate": 500_000, "unit": "V", "calibration": {"gain": 0.5}}
    # The form is declared anew, and what is played once is not repeated.
    old = {"kind": "sigmf", "payload_type": "samples-i16", "channels": 2, "samples": 4, "loop": True, "records": 9}
    record = Record(0, "1.0", np.arange(8, dtype="<i2").tobytes(), SAMPLES_I16)
    path = write_run(tmp_path / "run", [block(7, 0, [record], [(0, 1, 1, 1)])], {"1.0": own | old})
    export(thalweg.open(path), to, tmp_path / "out")
    described = replayed(tmp_path / "out", "1.0").options["description"]
    assert described == own | {"replayed": True, "file": str(tmp_path / "out"), "source": "1.0"}


def test_files_that_are_not_exports_are_not_played(varied: Path, tmp_path: Path) -> None:
    import h5py

    with h5py.File(tmp_path / "other.h5", "w") as file:
        file["data"] = np.arange(3)
    (tmp_path / "empty").mkdir()
    for path in (tmp_path / "other.h5", tmp_path / "empty", ROOT / "README.md", tmp_path / "none"):
        with pytest.raises(
            replay.ReplayError, match=r"was not written by `thalweg export`|is not an export that can be played"
        ):
            replay.fragments(path, "1.0")
