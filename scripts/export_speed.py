#!/usr/bin/env python3
"""Measures how fast `thalweg export` writes a NeXus file, beside `cp` of the same run: scripts/export_speed.py FOLDER.

It records a run with `thalweg demo` into FOLDER, on the disk that is measured, then copies and exports it in turns.
Both are over when their bytes are on the disk (`sync`). It prints medians, and the lowest and highest of all turns.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path

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
    copied: list[float] = []
    exported: list[float] = []
    for _ in range(options.turns):
        copied.append(seconds_of_copy(run, options.folder / "copy"))
        exported.append(seconds_of_export(run, options.folder / "run.nxs"))
    report("cp", size, copied)
    report("export --to nexus", size, exported)
    ratios = [copy / out for copy, out in zip(copied, exported, strict=True)]
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


def seconds_of_copy(run: Path, target: Path) -> float:
    """Returns the seconds that `cp` takes, and that its bytes take to the disk."""
    begun = time.perf_counter()
    subprocess.run(["cp", "-r", run, target], check=True)
    subprocess.run(["sync", *target.iterdir()], check=True)
    taken = time.perf_counter() - begun
    shutil.rmtree(target)
    return taken


def seconds_of_export(run: Path, target: Path) -> float:
    """Returns the seconds that an export takes, which waits for the disk by itself."""
    begun = time.perf_counter()
    export(thalweg.open(run), "nexus", target)
    taken = time.perf_counter() - begun
    target.unlink()
    return taken


def report(name: str, size: int, seconds: list[float]) -> None:
    """Prints a rate."""
    rates = sorted(size / second / 1e6 for second in seconds)
    print(f"{name}: {statistics.median(rates):.0f} MB/s ({rates[0]:.0f} to {rates[-1]:.0f}), {size / 1e9:.2f} GB")


if __name__ == "__main__":
    main()
