"""Table of the fits that were made while a run was taken."""

from __future__ import annotations

import pickle
import subprocess
from typing import TYPE_CHECKING

import numpy as np
import pytest

import thalweg

if TYPE_CHECKING:
    from pathlib import Path

    from conftest import Written

TOPOLOGY = """
[run]
directory = "runs"

[[builder]]
name = "builder"
listen = ["tcp:127.0.0.1:0"]

[[source]]
name = "camera"
id = "1.0"
rate = 20
device = { kind = "npy", file = "beam.npy" }

[[source]]
name = "beam"
id = "2.0"
device = { kind = "fit", of = "camera", fit = "gaussian-2d", pixel_mm = 0.005, waiting = 8 }

[[source]]
name = "line"
id = "2.1"
device = { kind = "fit", of = "camera", fit = "gaussian-x", waiting = 8 }
"""


def record(program: Path, folder: Path) -> thalweg.Run:
    y, x = np.mgrid[:96, :128]
    light = [np.exp(-((x - 60 - 5 * n) ** 2) / 200 - (y - 50) ** 2 / 120) for n in range(3)]
    images = np.array([*light, np.zeros_like(light[0])])
    np.save(folder / "beam.npy", (100 + 3000 * images).round().astype("uint16"))
    (folder / "fits.toml").write_text(TOPOLOGY)
    subprocess.run([program, "--quiet", "run", "fits.toml"], cwd=folder, check=True, capture_output=True)
    return thalweg.open(folder / "runs" / "run-000001")


def test_the_features_of_a_run_are_a_table(program: Path, tmp_path: Path) -> None:
    pytest.importorskip("pandas")
    run = record(program, tmp_path)
    table = run.features()
    assert table.index.name == "event"
    assert list(table.index) == [0, 1, 2, 3]
    assert np.allclose(table["beam.x"][:3], [60, 65, 70], atol=1e-2)
    assert np.allclose(table["beam.sigma_major_mm"][:3], 0.05, atol=1e-4)
    assert np.allclose(table["line.center"][:3], [60, 65, 70], atol=1e-2)
    assert list(table["beam.failure"]) == ["", "", "", "no-light"]
    assert np.isnan(table.loc[3, "beam.x"])

    # An event has its own features, also after it was pickled.
    for event in run:
        one = event.features
        assert list(one) == list(table.columns)
        assert repr(one) == repr(pickle.loads(pickle.dumps(event)).features)
        assert one["beam.failure"] == table.loc[event.id, "beam.failure"]

    # The fits during the run equal fits of the recorded images.
    for event in run[:3]:
        fit = thalweg.image.fit_gaussian_2d(event["camera"].array, pixel_mm=0.005)
        assert fit.x.value == table.loc[event.id, "beam.x"]
        assert fit.millimetres.sigma_minor.std == table.loc[event.id, "beam.sigma_minor_mm_std"]


def test_a_run_without_fits_has_an_empty_table(model: Written) -> None:
    pytest.importorskip("pandas")
    assert thalweg.open(model.directory).features().shape == (0, 0)
