"""Iteration over a run while it is written."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from typing import IO, TYPE_CHECKING

import thalweg

if TYPE_CHECKING:
    from conftest import Writer


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
    """Returns the last line of the rest of a stream."""
    return stream.read().splitlines()[-1]


def test_ctrl_c_ends_the_wait(writer: Writer) -> None:
    # At this rate there is one block per second: the follower waits nearly all the time.
    follower = subprocess.Popen(
        [sys.executable, "-c", FOLLOWER, str(writer.directory)], stdout=subprocess.PIPE, text=True
    )
    assert follower.stdout is not None
    assert follower.stdout.readline() == "following\n"
    follower.send_signal(signal.SIGINT)
    assert last_line(follower.stdout) == "interrupted"
    assert follower.wait(timeout=60) == 0
