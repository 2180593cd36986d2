"""What a reader is told about runs that are not what they should be."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import thalweg

if TYPE_CHECKING:
    from conftest import Written


def test_a_folder_without_a_run_is_named(tmp_path: Path) -> None:
    with pytest.raises(thalweg.RunError, match=rf"{tmp_path}.*not a run"):
        thalweg.open(tmp_path)
    with pytest.raises(thalweg.RunError, match="nothing-here"):
        thalweg.open(tmp_path / "nothing-here")


@pytest.fixture
def copy(model: Written, tmp_path: Path) -> Path:
    """The model's run, to be damaged."""
    return Path(shutil.copytree(model.directory, tmp_path / model.directory.name))


def edit(path: Path, change: Callable[[dict], None]) -> None:
    """Changes a JSON file."""
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


def test_another_version_is_refused(copy: Path) -> None:
    edit(copy / "run.json", lambda run: run.update(version=7))
    with pytest.raises(thalweg.RunError, match="version 7"):
        thalweg.open(copy)


def test_a_run_json_that_is_no_json_is_refused(copy: Path) -> None:
    (copy / "run.json").write_text("{")
    with pytest.raises(thalweg.RunError, match=r"run\.json"):
        thalweg.open(copy)


def test_damage_is_named_by_file_and_place_and_other_blocks_are_read(copy: Path) -> None:
    run = thalweg.open(copy)
    last = run.event(len(run) - 1)
    needle = last[run.sources[0]].payload[:64].tobytes()
    (segment, *_) = sorted(copy.glob("*.seg"))
    content = bytearray(segment.read_bytes())
    content[content.rindex(needle)] ^= 1
    segment.write_bytes(content)
    damaged = thalweg.open(copy)
    assert damaged.event(0).complete
    with pytest.raises(thalweg.RunError, match=r"00000\.seg at byte \d+: .*CRC"):
        damaged.event(last.id)


def test_that_less_is_there_than_was_written_is_said(copy: Path) -> None:
    whole = len(thalweg.open(copy))
    (segment, *_) = sorted(copy.glob("*.seg"))
    with segment.open("r+b") as file:
        file.truncate(segment.stat().st_size // 2)
    with pytest.warns(UserWarning, match=rf"\d+ of the {whole} events .*thalweg verify"):
        rest = thalweg.open(copy)
    assert len(list(rest)) == len(rest) < whole


def test_a_segment_that_is_gone_costs_its_own_events_and_is_said(copy: Path) -> None:
    whole = len(thalweg.open(copy))
    (segment, *_) = sorted(copy.glob("*.seg"))
    segment.unlink()
    with pytest.warns(UserWarning, match=r"is damaged: 00000\.seg: .*there is no such file"):
        rest = thalweg.open(copy)
    assert len(rest) < whole


def test_a_run_json_that_contradicts_itself_is_said(copy: Path) -> None:
    edit(copy / "run.json", lambda run: run.update(builders=0))
    with pytest.warns(UserWarning, match="'builders' is 0"):
        thalweg.open(copy)


def test_a_pipe_in_place_of_a_segment_keeps_nobody_waiting(copy: Path) -> None:
    (segment, *_) = sorted(copy.glob("*.seg"))
    segment.unlink()
    os.mkfifo(segment)
    with pytest.warns(UserWarning, match="this is not a file"):
        thalweg.open(copy)
