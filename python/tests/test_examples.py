"""Execution of the files in `examples/`."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from conftest import ROOT

import thalweg

sys.path.insert(0, str(ROOT / "scripts"))

import documents

if TYPE_CHECKING:
    from conftest import Written

EXAMPLES = ROOT / "examples"


def check(program: Path, topology: Path, *options: str) -> dict:
    """Returns the output of `thalweg check` for a topology."""
    command = [program, "check", topology, "--json", *options]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    return json.loads(ended.stdout.splitlines()[-1])


@pytest.mark.parametrize(
    ("name", "sources"),
    [
        ("one-host", ["adc-0", "adc-1", "adc-2"]),
        ("many-hosts", ["adc-0", "adc-1", "adc-2"]),
        ("push", ["digitizer", "camera"]),
        ("shift", ["adc-0", "adc-1", "adc-2"]),
    ],
)
def test_a_topology_passes_its_check(name: str, sources: list[str], program: Path) -> None:
    # Ports of these topologies may be in use on this machine.
    checked = check(program, EXAMPLES / f"{name}.toml", "--file-only")
    assert checked["ok"]
    assert [source["name"] for source in checked["sources"]] == sources


def test_the_replay_plays_the_file_next_to_it(program: Path, tmp_path: Path) -> None:
    topology = Path(shutil.copy(EXAMPLES / "replay.toml", tmp_path))
    np.arange(20_000, dtype="<i2").tofile(tmp_path / "recording.sigmf-data")
    about = {"core:datatype": "ri16_le", "core:sample_rate": 1e6, "core:num_channels": 2, "core:version": "1.2.0"}
    meta = {"global": about, "captures": [{"core:sample_start": 0}], "annotations": []}
    (tmp_path / "recording.sigmf-meta").write_text(json.dumps(meta))
    (source,) = check(program, topology)["sources"]
    assert source["device"]["channels"] == 2
    assert source["device"]["replayed"]


def test_every_topology_is_tested() -> None:
    assert {file.name for file in EXAMPLES.glob("*.toml")} == {
        "interferometer.toml",
        "one-host.toml",
        "many-hosts.toml",
        "six_cameras.toml",
        "replay.toml",
        "push.toml",
        "shift.toml",
        "tdaq.toml",
    }


def test_the_topology_of_a_shift_is_that_of_its_document() -> None:
    parts = documents.parts((ROOT / "docs/control.md").read_text())
    (shown,) = [part.text for part in parts if isinstance(part, documents.File) and part.name == "shift.toml"]
    assert shown == (EXAMPLES / "shift.toml").read_text()


def play(name: str, program: Path, folder: Path, rate: int, *changes: tuple[str, str]) -> tuple[thalweg.Run, dict]:
    """Runs an example on smaller and fewer images at a lower rate, and returns the parameters of the images."""
    subprocess.run([sys.executable, EXAMPLES / "beam_images.py", "--width", "320", folder], check=True)
    shown = sorted(folder.glob("camera-*.npy")) if "cameras" in name else [folder / "interferometer.npy"]
    # Its cameras have addresses and names of this host: one at a time.
    command = [program.parent / "thalweg-lab", "--json", "camera", "--rate", str(rate), *shown]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as cameras:
        try:
            assert cameras.stdout is not None
            assert len(json.loads(cameras.stdout.readline())["cameras"]) == len(shown)
            return _play(name, program, folder, *changes)
        finally:
            cameras.kill()


def _play(name: str, program: Path, folder: Path, *changes: tuple[str, str]) -> tuple[thalweg.Run, dict]:
    text = (EXAMPLES / name).read_text()
    for old, new in (("events = ", "events = 12 # "), *changes):
        assert old in text
        text = text.replace(old, new)
    (folder / name).write_text(text)
    ended = subprocess.run([program, "--json", "run", folder / name], capture_output=True, text=True, check=False)
    report = json.loads(ended.stdout.splitlines()[-1])
    assert report["state"] == "COMPLETE", report["reasons"]
    assert report["ledger"]["unaccounted"] == 0
    return thalweg.open(folder / "runs" / "run-000001"), json.loads((folder / "truth.json").read_text())


def test_the_interferometer_measures_the_size_of_its_source(program: Path, tmp_path: Path) -> None:
    pytest.importorskip("pandas")
    run, truth = play("interferometer.toml", program, tmp_path, 10, (":7720", ":0"), ("rate = 100 ", "rate = 10 "))
    table = run.features()
    assert len(table) == 12
    for wave, size in [("line.visibility", "line.source_size"), ("image.visibility_x", "image.source_size_x")]:
        assert np.allclose(table[wave], truth["visibility"], atol=5 * table[f"{wave}_std"].max())
        assert np.allclose(table[size], truth["source_size"], rtol=0.01)


def test_six_cameras_show_the_shape_of_the_bunches_that_level_2_keeps(program: Path, tmp_path: Path) -> None:
    pytest.importorskip("pandas")
    # The images are half as wide.
    slower = [(":7721", ":0"), ("rate = 60 ", "rate = 4 "), ("pixel_mm = 0.02", "pixel_mm = 0.04")]
    run, truth = play("six_cameras.toml", program, tmp_path, 4, *slower)
    table = run.features()
    assert list(table.index) == [number for number, x in enumerate(truth["x_mm"]) if x > 6.2]
    for number, (across, upright) in enumerate(truth["sigma_mm"]):
        assert np.allclose(table[f"beam-{number}.sigma_major_mm"], across, rtol=0.01)
        assert np.allclose(table[f"beam-{number}.sigma_minor_mm"], upright, rtol=0.01)
    picture = tmp_path / "bunch.svg"
    drawn = subprocess.run(
        [sys.executable, EXAMPLES / "bunch_shape.py", run.path, picture], capture_output=True, text=True, check=True
    )
    assert "longer axis: 0.7" in drawn.stdout
    assert picture.stat().st_size > 5000
    # Matplotlib writes each text as a comment, too.
    assert "bunches, mean and scatter (simulated)" in picture.read_text()


def test_the_trigger_chain_keeps_few_events_and_accounts_for_all(program: Path, tmp_path: Path) -> None:
    # Fixed ports may be in use on this machine, and a tenth of the events is enough.
    text = (EXAMPLES / "tdaq.toml").read_text()
    text = text.replace(":7710", ":0").replace(":7711", ":0").replace("events = 5000", "events = 500")
    (tmp_path / "tdaq.toml").write_text(text)
    ended = subprocess.run(
        [program, "run", tmp_path / "tdaq.toml", "--json"], capture_output=True, text=True, check=False
    )
    report = json.loads(ended.stdout.splitlines()[-1])
    assert report["state"] == "COMPLETE", report["reasons"]
    assert report["ledger"]["unaccounted"] == 0
    trigger = report["trigger"]
    assert 500 == trigger["level1"] > trigger["level2_accepted"] >= trigger["filter_accepted"]


def test_the_program_pushes_both_sources(program: Path, tmp_path: Path) -> None:
    # Port 7700 may be in use on this machine.
    text = (EXAMPLES / "push.toml").read_text().replace(":7700", ":0")
    (tmp_path / "push.toml").write_text(text)
    builder = subprocess.Popen(
        [program, "node", "builder", tmp_path / "push.toml", "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert builder.stderr is not None
        address = builder.stderr.readline().split()[-1]
        command = [sys.executable, EXAMPLES / "push.py", address]
        output = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout
        report = json.loads(builder.communicate(timeout=60)[0].splitlines()[-1])
    finally:
        builder.kill()
    assert output.splitlines() == ["digitizer: 1000 fragments, 16.4 MB", "camera: 1000 fragments, 307.2 MB"]
    assert report["state"] == "COMPLETE"
    run = thalweg.open(report["directory"])
    assert len(run) == 1000
    event = run.event(7)
    assert event["1.0"].array.shape == (4096, 2)
    assert event["2.0"].array.shape == (480, 640)
    assert event["2.0"].status == ["simulated"]


def test_the_histogram_has_every_sample(model: Written, serve: Callable[..., str]) -> None:
    pytest.importorskip("distributed", reason="Dask's distributed is not installed")
    run = thalweg.open(model.directory)
    samples = sum(event["1.0"].array.size for event in run)
    for path in (model.directory, f"{serve(model.directory.parent)}/runs/{run.number}"):
        command = [sys.executable, EXAMPLES / "dask_histogram.py", path, "1.0"]
        output = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120).stdout.splitlines()
        assert output[0].startswith(f"{samples:,} samples in 1 parts")
        assert len(output) == 17
