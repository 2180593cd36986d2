"""Errors and warnings for damaged, incomplete and missing runs."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from conftest import free_port
from handmade import Record, block, write_run

import thalweg

if TYPE_CHECKING:
    from conftest import Writer, Written


def test_a_path_without_a_run_is_named_with_a_suggestion(model: Written, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for wrong, output in {
        tmp_path: "not a run: it has no run.json",
        tmp_path / "nothing-here": "nothing-here is not a run: no such directory",
        tmp_path / "file": "this is a file",
        model.directory.parent: f"it contains runs; open one of them, such as {model.directory.parent}/run-",
        "127.0.0.1:8042/runs/1": "by its URL: http://127.0.0.1:8042/runs/1",
        Path("http://daq-0:8042/runs/1"): "a URL as a string",
        "ftp://daq-0/runs/1": "a URL of a run begins with http:// or https://",
        "~/runs/run-000001": "os.path.expanduser",
    }.items():
        with pytest.raises(thalweg.RunError, match=re.escape(output)):
            thalweg.open(wrong)


@pytest.fixture
def copy(model: Written, tmp_path: Path) -> Path:
    """Copy of the model's run, to be damaged."""
    return Path(shutil.copytree(model.directory, tmp_path / model.directory.name))


def edit(path: Path, change: Callable[[dict], None]) -> None:
    """Changes the content of a JSON file."""
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


def test_damage_is_reported_by_file_and_position_and_other_blocks_are_read(copy: Path) -> None:
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


@pytest.fixture(scope="module")
def blocks(record: Callable[..., Written]) -> Written:
    """Run of many blocks."""
    return record("--sources", 3, "--size", 100_006, "--rate", 1000, events=200)


@pytest.fixture
def damaged(blocks: Written, tmp_path: Path) -> Path:
    """Run with one wrong bit in a block in the middle."""
    copy = Path(shutil.copytree(blocks.directory, tmp_path / blocks.directory.name))
    run = thalweg.open(copy)
    needle = run[len(run) // 2][run.sources[0]].payload[:64].tobytes()
    (segment, *_) = sorted(copy.glob("*.seg"))
    content = bytearray(segment.read_bytes())
    # Its waveform comes again and again.
    content[content.index(needle, len(content) // 2)] ^= 1
    segment.write_bytes(content)
    return copy


def test_iteration_continues_after_a_damaged_block_and_warns_once(damaged: Path, serve: Callable[..., str]) -> None:
    for where in (damaged, f"{serve(damaged.parent)}/{damaged.name}"):
        run = thalweg.open(where)
        with pytest.warns(thalweg.DamageWarning) as warned:
            read = [event.id for event in run]
        lost = sorted(set(run.ids().tolist()) - set(read))
        assert lost == list(range(lost[0], lost[-1] + 1))
        assert read[0] == 0
        assert read[-1] == len(run) - 1
        (warning,) = warned
        assert f"{len(lost)} events, {lost[0]} to {lost[-1]}, cannot be read: " in str(warning.message)
        assert "00000.seg at byte" in str(warning.message)
        assert "`thalweg verify` shows what is lost" in str(warning.message)
        assert warning.filename == __file__
        with pytest.raises(thalweg.RunError, match=r"00000\.seg at byte \d+: .*CRC"):
            run[lost[0]]


def test_errors_raise_stops_at_the_first_damaged_event(damaged: Path) -> None:
    run = thalweg.open(damaged)
    read: list[thalweg.Event] = []
    with pytest.raises(thalweg.RunError, match="CRC"):
        read += run.events(errors="raise")
    first_lost = run.ids()[len(read)]
    assert [event.id for event in run.events(f"..{first_lost}", errors="raise")] == [event.id for event in read]


def test_events_that_cannot_be_read_are_left_out_of_a_dataset_only_on_request(damaged: Path) -> None:
    pytest.importorskip("xarray", reason="xarray is not installed")
    run = thalweg.open(damaged)
    with pytest.raises(thalweg.RunError, match=r"cannot be read.*missing='drop'"):
        run.to_xarray()
    with pytest.warns(thalweg.DamageWarning):
        assert 0 < run.to_xarray(missing="drop").sizes["event"] < len(run)


def test_no_event_is_lost_if_the_warning_is_an_exception(damaged: Path) -> None:
    run = thalweg.open(damaged)
    with pytest.warns(thalweg.DamageWarning):
        expected = [event.id for event in run]
    events, read = iter(run), []
    with warnings.catch_warnings():
        warnings.simplefilter("error", thalweg.DamageWarning)
        with pytest.raises(thalweg.DamageWarning, match="cannot be read"):
            read.extend(event.id for event in events)
        read.extend(event.id for event in events)
    assert read == expected


def test_a_run_that_lists_more_events_than_it_can_have_is_a_sequence(tmp_path: Path) -> None:
    closings = [(0, 1, 1, 0), (1, 3, 2**32 - 1, 0)]
    run = thalweg.open(write_run(tmp_path / "run", [block(7, 0, [Record(0, "1.0", b"x")], closings)], {"1.0": {}}))
    assert len(run) == 2**32
    assert run[-1:].ids().tolist() == [1 + 3 * (2**32 - 2)]
    with pytest.warns(thalweg.DamageWarning, match="999 events, 1 to 2995, cannot be read"):
        assert [event.id for event in run[:1000]] == [0]
    with pytest.raises(thalweg.RunError, match="0 of the 1 records"):
        run[-1]


def test_following_continues_after_damage(damaged: Path) -> None:
    run = thalweg.open(damaged)
    with pytest.warns(thalweg.DamageWarning):
        expected = [event.id for event in run]
    with pytest.warns(thalweg.DamageWarning, match="cannot be read"):
        # Events are followed in the order in which they were closed.
        assert sorted(event.id for event in run.follow()) == sorted(expected)
    with pytest.raises(thalweg.RunError, match="CRC"):
        list(run.follow(errors="raise"))


def test_a_truncated_segment_is_reported(copy: Path) -> None:
    whole = len(thalweg.open(copy))
    (segment, *_) = sorted(copy.glob("*.seg"))
    with segment.open("r+b") as file:
        file.truncate(segment.stat().st_size // 2)
    with pytest.warns(UserWarning, match=rf"\d+ of the {whole} events .*thalweg verify"):
        rest = thalweg.open(copy)
    assert len(list(rest)) == len(rest) < whole


def test_a_missing_segment_is_reported_and_other_events_are_read(copy: Path) -> None:
    whole = len(thalweg.open(copy))
    (segment, *_) = sorted(copy.glob("*.seg"))
    segment.unlink()
    with pytest.warns(UserWarning, match=r"is damaged: 00000\.seg: .*no such file"):
        rest = thalweg.open(copy)
    assert len(rest) < whole


def test_a_run_json_that_contradicts_itself_is_reported(copy: Path) -> None:
    edit(copy / "run.json", lambda run: run.update(builders=0))
    with pytest.warns(UserWarning, match="'builders' is 0"):
        thalweg.open(copy)


def test_a_pipe_in_place_of_a_segment_does_not_block(copy: Path) -> None:
    (segment, *_) = sorted(copy.glob("*.seg"))
    segment.unlink()
    os.mkfifo(segment)
    with pytest.warns(UserWarning, match="this is not a file"):
        thalweg.open(copy)


def test_an_event_of_an_open_run_may_be_recorded_later(writer: Writer) -> None:
    next(thalweg.open(writer.directory).follow())
    run = thalweg.open(writer.directory)
    assert run.state == "OPEN"
    assert run.writing
    assert "OPEN, being written" in repr(run)
    assert "being written" in run._repr_html_()
    assert run.ended_utc is None
    with pytest.raises(KeyError, match=r"event 1000000 is not in run 1: .* so far; follow\(\) waits for more"):
        run.event(1_000_000)
    writer.stop()
    assert not thalweg.open(writer.directory).writing


def test_a_server_that_has_ended_is_named_with_a_suggestion(
    copy: Path, program: Path, serve: Callable[..., str]
) -> None:
    with pytest.raises(thalweg.RunError, match=r"runs/4711 is not a run.*http://127\.0\.0\.1:\d+/ lists the runs"):
        thalweg.open(f"{serve(copy.parent)}/runs/4711")
    port = free_port()
    server = subprocess.Popen(
        [program, "serve", copy.parent, "--listen", f"127.0.0.1:{port}", "--json"], stdout=subprocess.PIPE, text=True
    )
    assert server.stdout is not None
    url = json.loads(server.stdout.readline())["url"]
    run = thalweg.open(f"{url}{copy.name}", timeout=0)
    server.terminate()
    server.communicate(timeout=60)
    # A missing server is not damage, which would be skipped.
    for reading in (lambda: list(run), lambda: run[0], lambda: thalweg.open(run.path, timeout=0)):
        with pytest.raises(thalweg.RunError, match=f"127.0.0.1:{port}.*thalweg serve"):
            reading()
