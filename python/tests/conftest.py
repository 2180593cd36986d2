"""Runs for the tests, written by the program itself."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Written:
    """A run on disk, and what the program said of it."""

    directory: Path
    report: dict[str, Any]


@pytest.fixture(scope="session", autouse=True)
def interruptible() -> None:
    """Ctrl-C is heard even where the tests run in a shell's background, which has it ignored."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def program() -> Path:
    """The program `thalweg`, as built."""
    named = os.environ.get("THALWEG_BIN")
    candidates = [Path(named)] if named else [ROOT / "target" / kind / "thalweg" for kind in ("release", "debug")]
    for candidate in candidates:
        if candidate.exists():
            return candidate
    pytest.fail(f"none of {', '.join(map(str, candidates))} is there: build it (`make release`) or set THALWEG_BIN")


@pytest.fixture(scope="session")
def recordings() -> Path:
    """The folder of real recordings that lies beside the working copy."""
    folder = ROOT.parent / "shared" / "data"
    if not folder.is_dir():
        pytest.skip(f"skipped: no recordings in {folder}")
    return folder


@pytest.fixture(scope="session")
def record(program: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Written]]:
    """Runs `thalweg demo` with the arguments given and returns the run it wrote."""
    folder = tmp_path_factory.mktemp("runs")

    def demo(*arguments: object) -> Written:
        command = [program, "demo", "--out", folder, "--json", *arguments]
        ended = subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False, timeout=60)
        assert ended.returncode == 0, f"{command}: {ended.stderr}"
        report = json.loads(ended.stdout.splitlines()[-1])
        assert report["ledger"]["unaccounted"] == 0
        return Written(Path(report["directory"]), report)

    yield demo
    shutil.rmtree(folder)


@pytest.fixture(scope="session")
def model(record: Callable[..., Written]) -> Written:
    """Three model ADCs for a moment; the payload's length is no multiple of anything that records are aligned to."""
    return record("--sources", 3, "--size", 10_006, "--rate", 1000, "--duration", "300ms", "--link", "tcp")
