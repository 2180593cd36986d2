"""A function decides which events are kept, in a process of its own; whatever it does, the run goes on."""

from __future__ import annotations

import json
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
# Of four, one is bright.
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
    behind: int | None = None,
) -> tuple[dict[str, Any], str]:
    """Takes a run, and returns its report and what was said while it was taken. It ends after EVENTS, or when an event
    behind another one is on disk."""
    (folder / "decides.py").write_text(text)
    np.save(folder / "images.npy", IMAGES)
    kind = listen.split(":")[0]
    said = TOPOLOGY.format(
        level=level,
        sources='sources = ["camera"],' if level == "level2" else "",
        python=sys.executable,
        deadline=deadline,
        otherwise=otherwise,
        listen=listen,
        link=kind,
        rate=rate,
        events=f"events = {EVENTS}" if behind is None else "",
    )
    (folder / "run.toml").write_text(said)
    command = [program, "run", "run.toml", "--json"]
    running = subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        if behind is not None:
            await_event(running, folder / "runs" / "run-000001", behind)
            running.send_signal(signal.SIGINT)
        out, err = running.communicate(timeout=300)
    finally:
        running.kill()
    report = json.loads(out.splitlines()[-1])
    undecided = sum(report["trigger"]["undecided"][why] for why in ("unsure", "late", "gone"))
    # An event that was not decided on is in the verdict.
    assert running.returncode == (0 if undecided == 0 else 1), err
    assert bool(report["reasons"]) == (undecided > 0), report["reasons"]
    report["directory"] = folder / report["directory"]
    assert report["ledger"]["unaccounted"] == 0
    assert behind is not None or report["trigger"]["level1"] == EVENTS
    return report, err


def await_event(running: subprocess.Popen[str], run: Path, behind: int) -> None:
    """Waits until an event with a higher number is on disk."""
    deadline = time.monotonic() + 300
    while not (run / "run.json").exists():
        assert running.poll() is None, running.communicate()[1]
        assert time.monotonic() < deadline, "the run does not begin"
        time.sleep(0.01)
    for event in thalweg.open(run).follow():
        assert time.monotonic() < deadline, f"no event behind {behind}"
        if event.id > behind:
            return


def bright(events: int = EVENTS) -> list[int]:
    return [event for event in range(events) if event % 4 == 2]


@pytest.mark.parametrize("listen", ["shm:run.sock", "tcp:127.0.0.1:0"])
@pytest.mark.parametrize("level", ["filter", "level2"])
def test_what_the_function_wants_is_on_disk(program: Path, tmp_path: Path, level: str, listen: str) -> None:
    # Level 2 has the camera alone.
    report, _ = run(program, tmp_path, KEEP, level=level, listen=listen)
    recorded = thalweg.open(report["directory"])
    assert recorded.ids().tolist() == bright()
    assert all(event.complete and (event["camera"].array == 200).all() for event in recorded)
    assert report["trigger"]["undecided"] == {"unsure": 0, "late": 0, "gone": 0, "ends": 0}
    assert report["trigger"]["simulated"] is False


def test_a_function_that_raises_costs_the_event_that_it_was_asked_for(program: Path, tmp_path: Path) -> None:
    text = KEEP.replace("    assert event.complete\n", "    1 / (event.id % 10)\n")
    report, said = run(program, tmp_path, text)
    undecided = [event for event in range(EVENTS) if event % 10 == 0]
    assert thalweg.open(report["directory"]).ids().tolist() == sorted({*bright(), *undecided})
    assert report["trigger"]["undecided"]["unsure"] == len(undecided)
    assert said.count("ZeroDivisionError") == 10, "more is not said"


def test_a_function_that_is_slow_costs_what_it_is_late_for(program: Path, tmp_path: Path) -> None:
    text = KEEP.replace("    assert event.complete\n", "    if event.id == 50:\n        time.sleep(1)\n").replace(
        "import thalweg", "import time\nimport thalweg"
    )
    report, _ = run(program, tmp_path, text, deadline="200ms", otherwise="reject", rate="500.0", behind=50)
    kept = set(thalweg.open(report["directory"]).ids().tolist())
    assert report["trigger"]["undecided"]["late"] > 0
    assert kept < set(bright(report["trigger"]["level1"]))
    # It is heard again.
    assert max(kept) > 50


def test_a_program_that_crashes_is_started_again(program: Path, tmp_path: Path) -> None:
    text = "import os\nfrom pathlib import Path\n" + KEEP.replace(
        "    assert event.complete\n",
        "    if event.id == 50:\n        os.abort()\n",
    )
    report, said = run(program, tmp_path, text, otherwise="reject", rate="200.0", behind=50)
    kept = set(thalweg.open(report["directory"]).ids().tolist())
    undecided = report["trigger"]["undecided"]
    assert (undecided["ends"], undecided["gone"] > 0) == (1, True)
    assert kept < set(bright(report["trigger"]["level1"]))
    assert max(kept) > 50
    assert "restarting it" in said


def test_what_is_no_such_program_is_said_before_the_run(program: Path, tmp_path: Path) -> None:
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


def test_a_program_by_itself_says_what_starts_it() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", KEEP], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, timeout=60
    )
    assert "standard input is not connected to a builder: name this program" in ended.stderr.splitlines()[-1]
