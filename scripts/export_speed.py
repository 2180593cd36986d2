#!/usr/bin/env python3
"""Measures how fast `thalweg export` writes a NeXus file, beside `cp` of the same run: scripts/export_speed.py FOLDER.

It records a run with `thalweg demo` into FOLDER, on the disk that is measured, then copies and exports it in turns.
Both are over when their bytes are on the disk (`sync`). It prints medians, and the lowest and highest of all turns; and
the processor time of both, which says more on a machine that is busy otherwise.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import thalweg
from thalweg.export import export


def main() -> None:
    """Measures and prints."""
    arguments = argparse.ArgumentParser(description="Measures thalweg export beside cp")
    arguments.add_argument("folder", type=Path, help="where the run is recorded, copied and exported")
    arguments.add_argument("--size", default="4MiB", help="bytes in a fragment")
    arguments.add_argument("--duration", default="5s", help="how long the run is recorded, with 40 events a second")
    arguments.add_argument("--turns", type=int, default=5, help="turns of cp and export")
    arguments.add_argument("--program", default="thalweg", help="the program thalweg")
    options = arguments.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    run = record(options.program, options.folder, options.size, options.duration)
    size = sum(file.stat().st_size for file in run.glob("*.seg"))
    turns = [
        (copy(run, options.folder / "copy"), exported(run, options.folder / "run.nxs")) for _ in range(options.turns)
    ]
    report("cp", size, [turn[0] for turn in turns])
    report("export --to nexus", size, [turn[1] for turn in turns])
    ratios = [copying.wall / exporting.wall for copying, exporting in turns]
    low, high = min(ratios), max(ratios)
    print(f"export is {statistics.median(ratios):.2f} as fast as cp ({low:.2f} to {high:.2f} in {len(ratios)} turns)")
    shutil.rmtree(run)


def record(program: str, folder: Path, size: str, duration: str) -> Path:
    """Records a run of two sources."""
    command = [program, "demo", "--sources", "2", "--size", size, "--rate", "40", "--duration", duration]
    command += ["--out", str(folder), "--json"]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    if ended.returncode:
        sys.exit(f"recording a run: {ended.stderr}")
    return Path(json.loads(ended.stdout.splitlines()[-1])["directory"])


class Seconds(NamedTuple):
    """Time that something took."""

    wall: float
    processor: float


def measured(work: Callable[[], object]) -> Seconds:
    """Returns the time that some work takes, that of child processes included."""
    begun, before = time.perf_counter(), os.times()
    work()
    after = os.times()
    return Seconds(time.perf_counter() - begun, sum(after[:4]) - sum(before[:4]))


def copy(run: Path, target: Path) -> Seconds:
    """Returns the time that `cp` takes, and that its bytes take to the disk."""

    def work() -> None:
        subprocess.run(["cp", "-r", run, target], check=True)
        subprocess.run(["sync", *target.iterdir()], check=True)

    taken = measured(work)
    shutil.rmtree(target)
    return taken


def exported(run: Path, target: Path) -> Seconds:
    """Returns the time that an export takes, which waits for the disk by itself."""
    taken = measured(lambda: export(thalweg.open(run), "nexus", target))
    target.unlink()
    return taken


def report(name: str, size: int, seconds: list[Seconds]) -> None:
    """Prints a rate."""
    rates = sorted(size / taken.wall / 1e6 for taken in seconds)
    processor = statistics.median(taken.processor for taken in seconds) / size * 1e9
    median = f"{statistics.median(rates):.0f} MB/s ({rates[0]:.0f} to {rates[-1]:.0f})"
    print(f"{name}: {median}, {processor:.2f} CPU seconds per GB, {size / 1e9:.2f} GB")


if __name__ == "__main__":
    main()
