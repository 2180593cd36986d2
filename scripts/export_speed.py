#!/usr/bin/env python3
"""Compares the speed of `thalweg export --to nexus` and `cp`: scripts/export_speed.py FOLDER.

Records a run with `thalweg demo` into FOLDER, then copies and exports it there, alternately. Times include syncing the
output to disk. Prints the median, lowest and highest rate of both, and the median of their processor time, which
depends less on other programs.
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
    """Measures and prints the rates."""
    arguments = argparse.ArgumentParser(description="Compares the speed of thalweg export and cp")
    arguments.add_argument("folder", type=Path, help="folder in which the run is recorded, copied and exported")
    arguments.add_argument("--size", default="4MiB", help="size of a fragment")
    arguments.add_argument("--duration", default="5s", help="duration of the run, with 40 events per second")
    arguments.add_argument("--turns", type=int, default=5, help="number of repetitions")
    arguments.add_argument("--program", default="thalweg", help="path of the program thalweg")
    options = arguments.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    run = record_run(options.program, options.folder, options.size, options.duration)
    size = sum(file.stat().st_size for file in run.glob("*.seg"))
    turns = [
        (measure_copy(run, options.folder / "copy"), measure_export(run, options.folder / "run.nxs"))
        for _ in range(options.turns)
    ]
    print_rates("cp", size, [turn[0] for turn in turns])
    print_rates("export --to nexus", size, [turn[1] for turn in turns])
    ratios = [copying.wall / exporting.wall for copying, exporting in turns]
    low, median, high = min(ratios), statistics.median(ratios), max(ratios)
    print(f"export is {median:.2f} times as fast as cp ({low:.2f} to {high:.2f} in {len(ratios)} turns)")
    shutil.rmtree(run)


def record_run(program: str, folder: Path, size: str, duration: str) -> Path:
    """Records a run of two sources and returns its directory."""
    command = [program, "demo", "--sources", "2", "--size", size, "--rate", "40", "--duration", duration]
    command += ["--out", str(folder), "--json"]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    if ended.returncode:
        sys.exit(f"cannot record a run: {ended.stderr}")
    return Path(json.loads(ended.stdout.splitlines()[-1])["directory"])


class Seconds(NamedTuple):
    """Elapsed time and processor time in seconds."""

    wall: float
    processor: float


def measure(work: Callable[[], object]) -> Seconds:
    """Returns the time that a function takes, including child processes that it waits for."""
    begun, before = time.perf_counter(), os.times()
    work()
    after = os.times()
    return Seconds(time.perf_counter() - begun, sum(after[:4]) - sum(before[:4]))


def measure_copy(run: Path, target: Path) -> Seconds:
    """Returns the time that `cp` takes, including a sync to disk."""

    def work() -> None:
        subprocess.run(["cp", "-r", run, target], check=True)
        subprocess.run(["sync", *target.iterdir()], check=True)

    taken = measure(work)
    shutil.rmtree(target)
    return taken


def measure_export(run: Path, target: Path) -> Seconds:
    """Returns the time that an export takes, which includes a sync to disk."""
    taken = measure(lambda: export(thalweg.open(run), "nexus", target))
    target.unlink()
    return taken


def print_rates(name: str, size: int, seconds: list[Seconds]) -> None:
    """Prints rates and processor time for `size` bytes."""
    rates = sorted(size / taken.wall / 1e6 for taken in seconds)
    processor = statistics.median(taken.processor for taken in seconds) / size * 1e9
    median = f"{statistics.median(rates):.0f} MB/s ({rates[0]:.0f} to {rates[-1]:.0f})"
    print(f"{name}: {median}, {processor:.2f} CPU seconds per GB, {size / 1e9:.2f} GB")


if __name__ == "__main__":
    main()
