"""Replay of recordings of every kind, written by the libraries of the field and compared number by number."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import thalweg

if TYPE_CHECKING:
    from conftest import Written

CI16 = np.dtype([("r", "<i2"), ("i", "<i2")])


def numbers(dtype: Any, *shape: int) -> np.ndarray:
    """Returns different numbers of a type."""
    kind = np.dtype(dtype)
    if kind.kind == "c":
        return (np.arange(np.prod(shape)) * (1 - 2j)).astype(kind).reshape(shape)
    return np.arange(np.prod(shape)).astype(kind).reshape(shape)


def played(written: Written) -> list[thalweg.Fragment]:
    """Returns the fragments of a run with one source."""
    run = thalweg.open(written.directory)
    (source,) = run.sources
    return [event[source] for event in run]


def described(written: Written) -> dict[str, Any]:
    """Returns the description of the only source."""
    return thalweg.open(written.directory).info["sources"][0]["description"]


@pytest.mark.parametrize("dtype", ["<f4", ">f8", "|u1", "|i1", ">i2", "<u2", ">u4", "<i8", "<c8", ">c16", CI16])
@pytest.mark.parametrize("version", [(1, 0), (2, 0), (3, 0)])
def test_numpy_arrays_are_played_row_by_row(
    dtype: Any, version: tuple[int, int], tmp_path: Path, record: Callable[..., Written]
) -> None:
    array = np.zeros((5, 4, 3), CI16) if dtype == CI16 else numbers(dtype, 5, 4, 3)
    if dtype == CI16:
        array["i"] = np.arange(60).reshape(5, 4, 3)
    with (tmp_path / "array.npy").open("wb") as file:
        np.lib.format.write_array(file, array, version=version)
    fragments = played(record("--input", tmp_path / "array.npy", events=10))
    assert len(fragments) >= 5
    for event, fragment in enumerate(fragments):
        assert fragment.array.dtype == array.dtype.newbyteorder("<")
        np.testing.assert_array_equal(fragment.array, array[event % 5])


@pytest.mark.parametrize("dtype", ["uint8", "uint16", "uint32", "int16", "float32", "float64"])
@pytest.mark.parametrize("options", [{}, {"byteorder": ">"}, {"compression": "zlib"}, {"bigtiff": True}])
def test_tiff_stacks_are_played_page_by_page(
    dtype: str, options: dict[str, Any], tmp_path: Path, record: Callable[..., Written]
) -> None:
    tifffile = pytest.importorskip("tifffile", reason="the PyPI package tifffile is not installed")
    stack = numbers(dtype, 4, 20, 30)
    tifffile.imwrite(tmp_path / "stack.tif", stack, photometric="minisblack", **options)
    fragments = played(record("--input", tmp_path / "stack.tif", events=10))
    assert len(fragments) >= 4
    for event, fragment in enumerate(fragments):
        assert fragment.payload_type.startswith("image-")
        assert fragment.array.dtype == stack.dtype
        np.testing.assert_array_equal(fragment.array, stack[event % 4])


def test_colour_images_have_a_third_axis(tmp_path: Path, record: Callable[..., Written]) -> None:
    tifffile = pytest.importorskip("tifffile", reason="the PyPI package tifffile is not installed")
    for number in range(3):
        image = numbers("uint8", 6, 5, 3) + number
        tifffile.imwrite(tmp_path / f"{number}.tiff", image.astype(np.uint8), photometric="rgb")
    fragments = played(record("--input", tmp_path, events=10))
    for event, fragment in enumerate(fragments):
        np.testing.assert_array_equal(fragment.array, numbers("uint8", 6, 5, 3) + event % 3)


@pytest.mark.parametrize("domain", ["r", "c"])
@pytest.mark.parametrize("number", ["f4", "f8", "i4", "i2", "i1", "u4", "u2", "u1"])
@pytest.mark.parametrize("order", ["<", ">"])
def test_sigmf_of_every_type_is_played_little_endian(
    domain: str, number: str, order: str, tmp_path: Path, record: Callable[..., Written]
) -> None:
    bits = int(number[1]) * 8
    suffix = "" if bits == 8 else {"<": "_le", ">": "_be"}[order]
    # Two channels of ten samples.
    stored = numbers(order + number, 20 if domain == "r" else 40)
    stored.tofile(tmp_path / "x.sigmf-data")
    meta = {
        "global": {
            "core:datatype": f"{domain}{number[0]}{bits}{suffix}",
            "core:num_channels": 2,
            "core:version": "1.2.0",
        },
        "captures": [],
        "annotations": [],
    }
    (tmp_path / "x.sigmf-meta").write_text(json.dumps(meta))
    written = record("--input", tmp_path / "x.sigmf-meta", events=10)
    fragment = played(written)[0]
    assert fragment.array.shape == (10, 2)
    name = f"{'c' if domain == 'c' else ''}{number[0]}{bits}"
    assert fragment.payload_type == f"samples-{name}"
    np.testing.assert_array_equal(fragment.payload.view("<" + number), stored)
    if domain == "c" and number in ("f4", "f8"):
        assert fragment.array.dtype == np.dtype(f"c{bits // 4}")
    notes = " ".join(described(written).get("notes", []))
    assert ("big-endian" in notes) == (order == ">" and bits > 8)


def test_recordings_of_the_sigmf_package_are_played(tmp_path: Path, record: Callable[..., Written]) -> None:
    sigmf = pytest.importorskip("sigmf", reason="the PyPI package sigmf is not installed")
    recordings = {}
    for name in ["one", "two"]:
        samples = numbers("<c8", 1000) * (2 if name == "two" else 1)
        samples.tofile(tmp_path / f"{name}.sigmf-data")
        global_info = {"core:datatype": "cf32_le", "core:sample_rate": 48_000}
        meta = sigmf.SigMFFile(data_file=str(tmp_path / f"{name}.sigmf-data"), global_info=global_info)
        meta.add_capture(0)
        meta.tofile(str(tmp_path / f"{name}.sigmf-meta"))
        recordings[name] = samples
        if name == "one":
            meta.archive(str(tmp_path / "archive.sigmf"))
    (fragment, *_) = played(record("--input", tmp_path / "archive.sigmf", events=10))
    np.testing.assert_array_equal(fragment.array[:, 0], recordings["one"])
    collection = sigmf.SigMFCollection(["one.sigmf-meta", "two.sigmf-meta"], base_path=tmp_path)
    collection.tofile(str(tmp_path / "both.sigmf-collection"))
    run = thalweg.open(record("--input", tmp_path / "both.sigmf-collection", events=10).directory)
    (event, *_) = run
    assert len(run.sources) == 2
    for source, samples in zip(run.sources, recordings.values(), strict=True):
        np.testing.assert_array_equal(event[source].array[:, 0], samples)


TOPOLOGY = """
[run]
directory = "runs"
duration = "1s"
[[builder]]
name = "builder"
listen = ["tcp:127.0.0.1:0"]
[[source]]
name = "replayed"
id = "1.0"
device = {{ {device} }}
"""


@pytest.mark.parametrize(
    ("device", "message"),
    [
        ('kind = "raw", file = "x.bin", skip = 4, type = "i16_be", shape = [2, 2], rate = 100.0', "i16 is big-endian"),
        ('kind = "raw", file = "x.bin", record = 5', "2 records of 5 bytes and 2 bytes left over"),
        ('kind = "raw", file = "x.bin"', 'type = "i16", shape = [1024, 2]'),
        ('kind = "raw", file = "x.bin", type = "int16", shape = [2]', "'int16' is not a type: write one of u8"),
        ('kind = "raw", file = "x.bin", type = "i16", shape = [2], rate = "100 Hz"', "without a unit, such as 100.0"),
        ('kind = "raw", file = "x.bin", type = "i16", shape = [4, 4]', "12 bytes of data: 0 records of 32 bytes"),
        ('kind = "npy", file = "flat.npy"', "save array.reshape(fragments, -1)"),
        ('kind = "npy", file = "fortran.npy"', "save numpy.ascontiguousarray(array)"),
        ('kind = "npy", file = "objects.npy"', "descr at byte 10 is"),
        ('kind = "npy", file = "x.bin"', "the magic number"),
        ('kind = "tiff", files = ["x.bin"]', "page 0 of"),
        ('kind = "sigmf", file = "x", recording = "y"', "goes with an archive (.sigmf)"),
    ],
)
def test_check_reports_what_is_wrong_and_what_to_write(
    device: str, message: str, tmp_path: Path, program: Path
) -> None:
    (tmp_path / "x.bin").write_bytes(bytes(12))
    np.save(tmp_path / "flat.npy", np.zeros(12))
    np.save(tmp_path / "fortran.npy", np.zeros((3, 4), order="F"))
    np.save(tmp_path / "objects.npy", np.array([[None], [1]]), allow_pickle=True)
    (tmp_path / "lab.toml").write_text(TOPOLOGY.format(device=device))
    ended = subprocess.run(
        [str(program), "check", str(tmp_path / "lab.toml")], capture_output=True, text=True, check=False, timeout=60
    )
    assert message in " ".join((ended.stdout + ended.stderr).split())
    assert (ended.returncode == 0) == ("big-endian" in message)
