"""Files on a server, read through fsspec, with which Dask, pandas and xarray open URLs."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

if TYPE_CHECKING:
    from conftest import Written

fsspec = pytest.importorskip("fsspec", reason="fsspec is not installed")
pytest.importorskip("aiohttp", reason="aiohttp is not installed")

HTML = {"headers": {"Accept": "text/html"}}
"""Header with which the server sends directory listings as HTML, which fsspec reads."""


def names(listed: list[str]) -> set[str]:
    """Returns the last components of paths."""
    return {path.rstrip("/").rsplit("/", 1)[-1] for path in listed}


def test_a_directory_is_listed_and_its_files_are_read(model: Written, serve: Callable[..., str]) -> None:
    base = serve(model.directory.parent)
    files = fsspec.filesystem("http", client_kwargs=HTML, skip_instance_cache=True)
    assert model.directory.name in names(files.ls(f"{base}/", detail=False))
    run = f"{base}/runs/{model.report['run']}"
    assert {"run.json", "00000.seg"} <= names(files.ls(f"{run}/", detail=False))
    assert json.loads(files.cat_file(f"{run}/run.json"))["run"] == model.report["run"]

    segment = (model.directory / "00000.seg").read_bytes()
    assert files.size(f"{run}/00000.seg") == len(segment)
    assert files.cat_file(f"{run}/00000.seg", start=4096, end=5000) == segment[4096:5000]
    ranges = files.cat_ranges([f"{run}/00000.seg"] * 3, [0, 64, 100_000], [64, 4096, 100_001])
    assert ranges == [segment[0:64], segment[64:4096], segment[100_000:100_001]]
    with files.open(f"{run}/00000.seg", block_size=64 << 10) as file:
        file.seek(-16, 2)
        assert file.read() == segment[-16:]
        file.seek(1000)
        assert file.read(5000) == segment[1000:6000]
    with pytest.raises(FileNotFoundError):
        files.cat_file(f"{run}/99999.seg")


def test_h5py_reads_a_part_of_a_file(serve: Callable[..., str], tmp_path: Path) -> None:
    h5py = pytest.importorskip("h5py", reason="h5py is not installed")
    images = np.arange(100 * 64 * 64, dtype=np.uint16).reshape(100, 64, 64)
    with h5py.File(tmp_path / "images.h5", "w") as file:
        file.create_dataset("entry/data", data=images, chunks=(1, 64, 64))
    with fsspec.open(f"{serve(tmp_path)}/images.h5", block_size=16 << 10) as remote, h5py.File(remote) as file:
        np.testing.assert_array_equal(file["entry/data"][42], images[42])


def test_pandas_reads_a_table(serve: Callable[..., str], tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas", reason="pandas is not installed")
    (tmp_path / "features.csv").write_text("event,peak\n1,2.5\n2,3.5\n")
    url = f"{serve(tmp_path)}/features.csv"
    assert pandas.read_csv(url)["peak"].tolist() == [2.5, 3.5]
    with fsspec.open(url) as file:
        assert pandas.read_csv(file)["event"].tolist() == [1, 2]
