"""Following a run while it is written."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import pytest

import thalweg


class Writer:
    """`thalweg demo` under way."""

    def __init__(self, program: Path, out: Path) -> None:
        command = [program, "demo", "--sources", "2", "--size", "4KiB", "--rate", "1000"]
        command += ["--duration", "60s", "--out", out, "--json"]
        self.process = subprocess.Popen(
            [str(word) for word in command], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        deadline = time.monotonic() + 30
        # The run appears under its name as soon as it is begun.
        while not (found := list(out.glob("run-*/run.json"))):
            assert self.process.poll() is None, "the writer ended before it began"
            assert time.monotonic() < deadline, "no run within 30 s"
            time.sleep(0.01)
        self.directory = found[0].parent

    def stop(self) -> dict[str, object]:
        """Ends the run as Ctrl-C does, and returns what the program reports."""
        self.process.send_signal(signal.SIGINT)
        output, _ = self.process.communicate(timeout=60)
        return json.loads(output.splitlines()[-1])


@pytest.fixture
def writer(program: Path, tmp_path: Path) -> Iterator[Writer]:
    """A run that is being written until the test stops it."""
    writer = Writer(program, tmp_path)
    yield writer
    if writer.process.poll() is None:
        writer.process.kill()
        writer.process.wait()


def test_events_come_while_they_are_written_and_end_with_the_run(writer: Writer) -> None:
    seen: set[int] = set()
    report = None
    for event in thalweg.open(writer.directory).follow():
        seen.add(event.id)
        if len(seen) == 100:
            assert thalweg.open(writer.directory).state == "OPEN"
            report = writer.stop()
    assert report is not None
    assert len(seen) == report["events"]["built"]
    assert seen == set(range(len(seen)))
    assert thalweg.open(writer.directory).state == "COMPLETE"


def test_other_threads_run_while_one_waits(writer: Writer) -> None:
    events = thalweg.open(writer.directory).follow()
    next(events)
    received: list[int] = []
    follower = threading.Thread(target=lambda: received.extend(event.id for event in events))
    follower.start()
    report = writer.stop()
    follower.join(timeout=60)
    assert not follower.is_alive()
    assert len(received) == report["events"]["built"] - 1


FOLLOWER = """
import sys, thalweg
try:
    events = thalweg.open(sys.argv[1]).follow()
    next(events)
    print("following", flush=True)
    for event in events:
        pass
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""


def last_line(stream: IO[str]) -> str:
    """The last line of what is left of a stream."""
    return stream.read().splitlines()[-1]


def test_ctrl_c_ends_the_wait(writer: Writer) -> None:
    # Blocks come once a second at this rate: whoever follows waits nearly all the time.
    follower = subprocess.Popen(
        [sys.executable, "-c", FOLLOWER, str(writer.directory)], stdout=subprocess.PIPE, text=True
    )
    assert follower.stdout is not None
    assert follower.stdout.readline() == "following\n"
    follower.send_signal(signal.SIGINT)
    assert last_line(follower.stdout) == "interrupted"
    assert follower.wait(timeout=60) == 0
