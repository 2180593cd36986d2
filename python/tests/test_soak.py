"""Short version of the soak test: it reports its results, and detects errors."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from conftest import ROOT

sys.path.insert(0, str(ROOT / "scripts"))

from soak import tenth_from

SOAK = ROOT / "scripts/soak.py"


def soak(program: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(SOAK), *arguments]
    environment = os.environ | {"THALWEG_BIN": str(program)}
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=120)


def test_a_short_soak_test_passes_over_two_links(program: Path) -> None:
    done = soak(program, "--time", "2s", "--link", "shm,udp", "--", "--size", "64KiB")
    assert done.returncode == 0, done.stderr
    assert [line.split()[0] for line in done.stdout.splitlines()] == ["shm", "udp"]
    assert all(" 0 incomplete" in line and " 0 unaccounted" in line for line in done.stdout.splitlines())


def test_a_soak_test_that_cannot_begin_is_reported_and_fails(program: Path) -> None:
    done = soak(program, "--time", "1s", "--link", "no-such-link")
    assert done.returncode == 1
    assert "no-such-link: it ended with 2" in done.stderr


def test_durations_are_parsed(program: Path) -> None:
    assert "write a time" in soak(program, "--time", "soon").stderr


def test_a_tenth_in_which_nothing_was_seen_is_what_was_seen_after_it() -> None:
    seen = [(0.0, 1), (3.0, 7), (3.5, 8), (3.9, 12), (6.0, 9)]
    assert [tenth_from(seen, begin, 1.0) for begin in (3.0, 1.0, 4.0, 8.0)] == [8, 7, 9, 9]
