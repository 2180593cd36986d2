"""Real recordings, played through the whole path and compared sample by sample."""

from __future__ import annotations

import io
import json
import warnings
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

import thalweg

if TYPE_CHECKING:
    from conftest import Written


@pytest.mark.parametrize("link", ["tcp", "shm"])
@pytest.mark.parametrize("name", ["scope-4ch", "scope-2ch"])
def test_oscilloscope_channels_are_recorded_unchanged(
    name: str, link: str, recordings: Path, record: Callable[..., Written]
) -> None:
    path = recordings / f"{name}.sigmf-data"
    channels = json.loads(path.with_suffix(".sigmf-meta").read_text())["global"]["core:num_channels"]
    original = np.fromfile(path, "<i2").reshape(-1, channels)
    written = record("--input", path, "--link", link, events=20)
    run = thalweg.open(written.directory)
    (source,) = run.sources
    fragments = [event[source] for event in run]
    assert len(fragments) > 1
    # The recording is repeated; each pass must be whole.
    at = 0
    for fragment in fragments:
        assert "replayed" in fragment.status
        assert "simulated" not in fragment.status
        np.testing.assert_array_equal(fragment.array, original[at : at + len(fragment.array)])
        at = (at + len(fragment.array)) % len(original)
    passes = sum(len(fragment.array) for fragment in fragments) / len(original)
    assert passes >= 1, f"only {passes:.2f} of the recording was played"


def test_beam_images_are_recorded_as_images(recordings: Path, record: Callable[..., Written]) -> None:
    files = sorted((recordings / "beam").glob("*.pgm"))
    images = [np.frombuffer(file.read_bytes()[-40_000:], np.uint8).reshape(200, 200) for file in files]
    run = thalweg.open(record("--input", recordings / "beam", events=20).directory)
    (source,) = run.sources
    assert len(run) >= len(images)
    for event in run:
        image = event[source].array
        assert image.shape == (200, 200)
        np.testing.assert_array_equal(image, images[event.id % len(images)])


def test_baseband_decodes_the_same_from_the_run_as_from_the_file(record: Callable[..., Written]) -> None:
    reason = "the PyPI package baseband is not installed"
    vdif = pytest.importorskip("baseband.vdif", reason=reason)
    path = Path(pytest.importorskip("baseband.data", reason=reason).SAMPLE_VDIF)
    run = thalweg.open(record("--input", path, events=20).directory)
    frames = defaultdict(list)
    for event in run:
        for source, fragment in event.items():
            assert fragment.payload_type == "vdif"
            frames[source].append(fragment.payload.tobytes())
    assert len(frames) == 8
    described = {source["id"]: source["description"] for source in run.info["sources"]}
    count = {described[source]["records"] for source in frames}
    assert count == {2}
    file = io.BytesIO(b"".join(frames[source][at] for at in range(2) for source in frames))
    with warnings.catch_warnings():
        # astropy warns about the age of its leap second table.
        warnings.simplefilter("ignore")
        with vdif.open(file, "rs") as played, vdif.open(str(path), "rs") as original:
            assert played.start_time == original.start_time
            np.testing.assert_array_equal(played.read(), original.read())
    for source, played in frames.items():
        assert all(frame == played[at % 2] for at, frame in enumerate(played)), source
