"""What a run says of itself: its comment and its metadata, as Python has them."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

import pytest

import thalweg

if TYPE_CHECKING:
    from pathlib import Path

TOPOLOGY = """
[run]
events = 10
comment = "dark frames"

[run.metadata]
sample = "LaB6"
counts = 9223372036854775807
energy_keV = 12.4
tuned = true
at = 2026-11-29T08:30:00+01:00
stage = { x = 1.5, y = [1, 2] }
run = "the run's own name for it"

[[builder]]
name = "builder"
listen = ["tcp:127.0.0.1:0"]

[[source]]
name = "adc"
id = "1.0"
device = { kind = "model-adc", size = "1KiB" }
"""

METADATA = {
    "sample": "LaB6",
    "counts": 2**63 - 1,
    "energy_keV": 12.4,
    "tuned": True,
    "at": "2026-11-29T08:30:00+01:00",
    "stage": {"x": 1.5, "y": [1, 2]},
    "run": "the run's own name for it",
}


@pytest.fixture(scope="module")
def run(program: Path, tmp_path_factory: pytest.TempPathFactory) -> thalweg.Run:
    folder = tmp_path_factory.mktemp("words")
    (folder / "lab.toml").write_text(TOPOLOGY)
    subprocess.run([program, "run", folder / "lab.toml"], check=True, capture_output=True, timeout=60)
    return thalweg.open(folder / "runs" / "run-000001")


def test_a_run_has_its_comment_and_every_value_of_its_metadata(run: thalweg.Run) -> None:
    assert run.comment == "dark frames"
    assert run.metadata == METADATA
    assert "dark frames" in run._repr_html_()


def test_a_run_without_words_has_none(program: Path, tmp_path: Path) -> None:
    command = [program, "demo", "--sources", "1", "--size", "1KiB", "--duration", "50ms", "--out", tmp_path]
    subprocess.run(command, check=True, capture_output=True, timeout=60)
    run = thalweg.open(tmp_path / "run-000001")
    assert (run.comment, run.metadata) == ("", {})


def test_tables_carry_the_words_in_forms_that_files_take(run: thalweg.Run) -> None:
    pytest.importorskip("pandas")
    pytest.importorskip("xarray")
    attributes = {
        # The run's number, not the metadata of that name.
        "run": 1,
        "path": run.path,
        "state": "COMPLETE",
        "comment": "dark frames",
        "sample": "LaB6",
        "counts": 2**63 - 1,
        "energy_keV": 12.4,
        "tuned": "true",
        "at": "2026-11-29T08:30:00+01:00",
        "stage": '{"x": 1.5, "y": [1, 2]}',
    }
    assert run.to_xarray().attrs == attributes
    assert run.to_dataframe().attrs == attributes
