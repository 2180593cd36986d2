"""Runs of several builders, which Python opens as one run."""

from __future__ import annotations

import pickle
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from conftest import free_port

import thalweg

TOPOLOGY = """
[run]
number = 42
directory = "runs"
events = 101

[[builder]]
name = "builder-0"
listen = ["tcp:127.0.0.1:{0}"]

[[builder]]
name = "builder-1"
listen = ["tcp:127.0.0.1:{1}"]

[[source]]
name = "adc-0"
id = "1.0"
device = {{ kind = "model-adc", size = "4KiB" }}

[[source]]
name = "adc-1"
id = "1.1"
device = {{ kind = "model-adc", size = "4KiB" }}
"""


@pytest.fixture
def run(program: Path, tmp_path: Path) -> Path:
    (tmp_path / "two.toml").write_text(TOPOLOGY.format(free_port(), free_port()))
    subprocess.run([program, "run", "two.toml"], cwd=tmp_path, check=True, capture_output=True)
    return tmp_path / "runs/run-000042"


def test_the_events_of_all_builders_are_in_order(run: Path, serve: Callable[..., str]) -> None:
    whole = thalweg.open(run)
    assert (whole.state, len(whole), whole.number, whole.sources) == ("COMPLETE", 101, 42, ["1.0", "1.1"])
    assert whole.path == str(run)
    assert whole.ids().tolist() == list(range(101))
    assert [event.id for event in whole] == list(range(101))
    assert [whole[place].id for place in (0, 1, 50, -1)] == [0, 1, 50, 100]
    assert sorted(event.id for event in whole.follow()) == list(range(101))
    assert whole.info["totals"]["events"] == whole.info["ledger"][0]["recorded"] == 101
    part = thalweg.open(f"{run}-b1")
    assert part.ids().tolist() == list(range(1, 101, 2))

    again = pickle.loads(pickle.dumps(whole))
    there = thalweg.open(f"{serve(run.parent)}/runs/42")
    for other in (again, there):
        assert other.ids().tolist() == list(range(101))
        np.testing.assert_array_equal(other.event(51)["1.1"].array, whole.event(51)["1.1"].array)


def test_a_missing_part_of_a_builder_is_reported(run: Path) -> None:
    (run.parent / "run-000042-b0").rename(run.parent / "elsewhere")
    with pytest.warns(thalweg.DamageWarning, match="the data of builder 0 of 2 is missing"):
        rest = thalweg.open(run)
    assert (rest.state, rest.reasons) == ("INCOMPLETE", ["the data of builder 0 of 2 is missing"])
    assert rest.ids().tolist() == list(range(1, 101, 2))
