"""Recorded data through `thalweg mount`, as files that h5py and NumPy open."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

import thalweg

if TYPE_CHECKING:
    from conftest import Written


@pytest.fixture
def mount(program: Path, tmp_path: Path) -> Iterator[Callable[[str], Path]]:
    """Function that runs `thalweg mount` on a URL and returns the directory."""
    try:
        os.close(os.open("/dev/fuse", os.O_RDWR))
    except OSError as error:
        pytest.skip(f"no FUSE: {error}")
    mounts = []

    def start(url: str) -> Path:
        at = tmp_path / f"mount{len(mounts)}"
        at.mkdir()
        process = subprocess.Popen([program, "--json", "mount", url, at], stdout=subprocess.PIPE, text=True)
        mounts.append(process)
        assert process.stdout is not None
        assert json.loads(process.stdout.readline())["directory"] == str(at)
        return at

    yield start
    for process in mounts:
        process.terminate()
        output, _ = process.communicate(timeout=60)
        assert (process.returncode, json.loads(output)["errors"]) == (0, 0)


def test_h5py_reads_recorded_data(
    model: Written, serve: Callable[..., str], mount: Callable[[str], Path], tmp_path: Path
) -> None:
    h5py = pytest.importorskip("h5py", reason="h5py is not installed")
    run = thalweg.open(model.directory)
    samples = np.stack([event["1.0"].array for event in run])
    served = tmp_path / "served"
    served.mkdir()
    with h5py.File(served / "export.h5", "w") as file:
        file.create_dataset("entry/data", data=samples, chunks=(1, *samples.shape[1:]), compression="gzip")
        file["entry/run"] = run.number
    at = mount(serve(served))
    with h5py.File(at / "export.h5") as file:
        data = file["entry/data"]
        assert (data.shape, file["entry/run"][()]) == (samples.shape, run.number)
        for event in (len(samples) - 1, 0, len(samples) // 2):
            np.testing.assert_array_equal(data[event], samples[event])
        np.testing.assert_array_equal(data[...], samples)


def test_a_mounted_run_is_opened_and_mapped_like_a_local_one(
    model: Written, serve: Callable[..., str], mount: Callable[[str], Path]
) -> None:
    at = mount(serve(model.directory.parent))
    here, there = thalweg.open(model.directory), thalweg.open(at / model.directory.name)
    for event, again in zip(here, there, strict=True):
        np.testing.assert_array_equal(event["1.0"].array, again["1.0"].array)
    name = Path(model.directory.name, "00000.seg")
    mapped = np.memmap(at / name, mode="r")
    np.testing.assert_array_equal(mapped, np.fromfile(model.directory.parent / name, dtype=np.uint8))


def test_copies_are_the_same(
    model: Written, serve: Callable[..., str], mount: Callable[[str], Path], tmp_path: Path
) -> None:
    copy = shutil.copytree(mount(serve(model.directory)), tmp_path / "copy")
    assert {path.name for path in copy.iterdir()} == {path.name for path in model.directory.iterdir()}
    for path in copy.iterdir():
        assert path.read_bytes() == (model.directory / path.name).read_bytes()
