"""Arrays as read-only views of the run's files, which outlive run, event and fragment."""

from __future__ import annotations

import gc
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

import thalweg

if TYPE_CHECKING:
    from conftest import Written


def test_an_array_outlives_run_event_fragment_and_files(model: Written, tmp_path: Path) -> None:
    copy = shutil.copytree(model.directory, tmp_path / "run")
    run = thalweg.open(copy)
    event = run.event(1)
    fragment = event[run.sources[0]]
    array, payload = fragment.array, fragment.payload
    before = array.copy()
    del run, event, fragment
    shutil.rmtree(copy)
    gc.collect()
    np.testing.assert_array_equal(array, before)
    assert payload.tobytes() == before.tobytes()


def test_nothing_is_copied(model: Written) -> None:
    run = thalweg.open(model.directory)
    source = run.sources[0]
    again = thalweg.open(model.directory).event(0)[source].payload
    payload, array = run.event(0)[source].payload, run.event(0)[source].array
    assert np.shares_memory(payload, array)
    # A run that is opened twice is mapped twice.
    assert not np.shares_memory(payload, again)
    assert not payload.flags.owndata
    assert not array.flags.owndata
    # The array lies in this process's mapping of the segment.
    address = payload.__array_interface__["data"][0]
    maps = [line.split() for line in Path("/proc/self/maps").read_text().splitlines() if ".seg" in line]
    ranges = [tuple(int(end, 16) for end in fields[0].split("-")) for fields in maps]
    assert any(begin <= address < end for begin, end in ranges)


def test_recorded_data_cannot_be_written(model: Written) -> None:
    fragment = next(iter(thalweg.open(model.directory)))["1.0"]
    for array in (fragment.array, fragment.payload):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 1
        with pytest.raises(ValueError, match="WRITEABLE"):
            array.flags.writeable = True


def test_the_mapping_ends_with_the_last_array(model: Written) -> None:
    def mapped() -> int:
        gc.collect()
        return Path("/proc/self/maps").read_text().count(str(model.directory))

    before = mapped()
    arrays = [fragment.array for event in thalweg.open(model.directory) for fragment in event.values()]
    assert mapped() > before
    del arrays
    assert mapped() == before
