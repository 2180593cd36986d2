"""Trigger decisions by a Python function in a process of its own. The run continues whatever the function does."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import thalweg

EVENTS = 200
# One of four is bright.
IMAGES = np.stack([np.full((8, 6), 200 if image == 2 else 5 + image, np.uint8) for image in range(4)])
TOPOLOGY = """
[run]
directory = "runs"
{events}

[[builder]]
name = "builder"
listen = ["{listen}"]
deadline = "60s"
flush = "20ms"
{level} = {{ {sources} program = ["{python}", "decides.py"], deadline = "{deadline}", otherwise = "{otherwise}" }}

[[source]]
name = "camera"
id = "1.0"
link = "{link}"
policy = "block"
rate = {rate}
device = {{ kind = "npy", file = "images.npy", loop = true }}

[[source]]
name = "adc"
id = "2.0"
link = "{link}"
policy = "block"
rate = {rate}
device = {{ kind = "model-adc", size = "1KiB" }}
"""
KEEP = """
import thalweg

def keep(event):
    assert event.complete
    return event["camera"].array.max() > 100

thalweg.decide(keep)
"""


def run(
    program: Path,
    folder: Path,
    text: str,
    *,
    level: str = "filter",
    listen: str = "shm:run.sock",
    deadline: str = "30s",
    otherwise: str = "accept",
    rate: str = "2000.0",
    after: int | None = None,
) -> tuple[dict[str, Any], str]:
    """Takes a run, and returns its report and the output of the program. It ends after EVENTS, or when an event with a
    higher number than `after` is on disk."""
    (folder / "decides.py").write_text(text)
    np.save(folder / "images.npy", IMAGES)
    kind = listen.split(":")[0]
    output = TOPOLOGY.format(
        level=level,
        sources='sources = ["camera"],' if level == "level2" else "",
        python=sys.executable,
        deadline=deadline,
        otherwise=otherwise,
        listen=listen,
        link=kind,
        rate=rate,
        events=f"events = {EVENTS}" if after is None else "",
    )
    (folder / "run.toml").write_text(output)
    command = [program, "run", "run.toml", "--json"]
    running = subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        if after is not None:
            await_event(running, folder / "runs" / "run-000001", after)
            running.send_signal(signal.SIGINT)
        out, err = running.communicate(timeout=300)
    finally:
        running.kill()
    report = json.loads(out.splitlines()[-1])
    undecided = sum(report["trigger"]["undecided"][why] for why in ("unsure", "late", "gone"))
    # Undecided events are in the verdict.
    assert running.returncode == (0 if undecided == 0 else 1), err
    assert bool(report["reasons"]) == (undecided > 0), report["reasons"]
    report["directory"] = folder / report["directory"]
    assert report["ledger"]["unaccounted"] == 0
    assert after is not None or report["trigger"]["level1"] == EVENTS
    return report, err


def await_event(running: subprocess.Popen[str], run: Path, after: int) -> None:
    """Waits until an event with a higher number is on disk."""
    deadline = time.monotonic() + 300
    while not (run / "run.json").exists():
        assert running.poll() is None, running.communicate()[1]
        assert time.monotonic() < deadline, "the run does not begin"
        time.sleep(0.01)
    for event in thalweg.open(run).follow():
        assert time.monotonic() < deadline, f"no event after {after}"
        if event.id > after:
            return


def bright(events: int = EVENTS) -> list[int]:
    return [event for event in range(events) if event % 4 == 2]


@pytest.mark.parametrize("listen", ["shm:run.sock", "tcp:127.0.0.1:0"])
@pytest.mark.parametrize("level", ["filter", "level2"])
def test_events_that_the_function_accepts_are_on_disk(program: Path, tmp_path: Path, level: str, listen: str) -> None:
    # Level 2 has the camera alone.
    report, _ = run(program, tmp_path, KEEP, level=level, listen=listen)
    recorded = thalweg.open(report["directory"])
    assert recorded.ids().tolist() == bright()
    assert all(event.complete and (event["camera"].array == 200).all() for event in recorded)
    assert report["trigger"]["undecided"] == {"unsure": 0, "late": 0, "gone": 0, "ends": 0}
    assert report["trigger"]["simulated"] is False


def test_an_exception_leaves_its_event_undecided(program: Path, tmp_path: Path) -> None:
    text = KEEP.replace("    assert event.complete\n", "    1 / (event.id % 10)\n")
    report, output = run(program, tmp_path, text)
    undecided = [event for event in range(EVENTS) if event % 10 == 0]
    assert thalweg.open(report["directory"]).ids().tolist() == sorted({*bright(), *undecided})
    assert report["trigger"]["undecided"]["unsure"] == len(undecided)
    assert output.count("Traceback") == 1, "the same place is shown once"
    more = [
        int(count) for count in re.findall(r"ZeroDivisionError: .* \((\d+) more like this in the last \d+ s", output)
    ]
    assert sum(more) == len(undecided) - 1, output


def test_exceptions_of_different_places_are_all_shown(program: Path, tmp_path: Path) -> None:
    wrong = "    if event.id == 10:\n        [][1]\n    if event.id % 50 == 20:\n        {}['key']\n"
    _, output = run(program, tmp_path, KEEP.replace("    assert event.complete\n", wrong))
    assert output.count("IndexError: ") == 1
    assert output.count("Traceback") == 2
    assert "KeyError: 'key' (3 more like this in the last " in output


def test_a_slow_function_leaves_late_events_undecided(program: Path, tmp_path: Path) -> None:
    text = KEEP.replace("    assert event.complete\n", "    if event.id == 50:\n        time.sleep(1)\n").replace(
        "import thalweg", "import time\nimport thalweg"
    )
    report, _ = run(program, tmp_path, text, deadline="200ms", otherwise="reject", rate="500.0", after=50)
    kept = set(thalweg.open(report["directory"]).ids().tolist())
    assert report["trigger"]["undecided"]["late"] > 0
    assert kept < set(bright(report["trigger"]["level1"]))
    # Later decisions are used again.
    assert max(kept) > 50


def test_a_program_that_crashes_is_started_again(program: Path, tmp_path: Path) -> None:
    text = "import os\nfrom pathlib import Path\n" + KEEP.replace(
        "    assert event.complete\n",
        "    if event.id == 50:\n        os.abort()\n",
    )
    report, output = run(program, tmp_path, text, otherwise="reject", rate="200.0", after=50)
    kept = set(thalweg.open(report["directory"]).ids().tolist())
    undecided = report["trigger"]["undecided"]
    assert (undecided["ends"], undecided["gone"] > 0) == (1, True)
    assert kept < set(bright(report["trigger"]["level1"]))
    assert max(kept) > 50
    assert "restarting it" in output


def test_a_program_that_does_not_decide_is_reported_before_the_run(program: Path, tmp_path: Path) -> None:
    (tmp_path / "decides.py").write_text("print('hello')\n")
    text = TOPOLOGY.format(
        level="filter",
        sources="",
        python=sys.executable,
        deadline="1s",
        otherwise="accept",
        listen="shm:run.sock",
        link="shm",
        rate="1.0",
        events="events = 1",
    )
    (tmp_path / "run.toml").write_text(text)
    np.save(tmp_path / "images.npy", IMAGES)
    # From another directory: the program is beside the file.
    for command in "run", "check":
        asked = [program, command, tmp_path / "run.toml"]
        ended = subprocess.run(asked, cwd="/", capture_output=True, text=True, check=False, timeout=60)
        assert ended.returncode != 0
        assert "builder 'builder': filter.program" in ended.stderr
        assert "it ended (exit status: 0)" in ended.stderr
    (tmp_path / "decides.py").write_text(KEEP)
    asked = [program, "check", tmp_path / "run.toml"]
    ended = subprocess.run(asked, cwd="/", capture_output=True, text=True, check=False, timeout=60)
    assert ended.returncode == 0, ended.stderr


def test_a_program_that_no_builder_started_reports_how_to_start_it() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", KEEP], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, timeout=60
    )
    assert "standard input is not connected to a builder: name this program" in ended.stderr.splitlines()[-1]
