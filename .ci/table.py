#!/usr/bin/env python3
"""Prints what a run of .ci/run took: .ci/table.py TARGET.

Each step's minutes, the slowest tests (from the test runners' JUnit files) and the crates that took longest to compile
(from cargo's timings). A part whose file is missing is named, not left out.
"""

from __future__ import annotations

import json
import re
import sys
import xml.etree.ElementTree as ET
from collections import Counter
from pathlib import Path

ROWS = 10


def table(title: str, rows: list[tuple[float, str]], unit: str, scale: float = 1) -> None:
    """Prints rows of a figure and a name."""
    print(f"\n== {title}")
    for figure, name in rows:
        print(f"{figure / scale:8.1f} {unit}  {name}")


def steps(target: Path) -> list[tuple[float, str]]:
    """The steps of the run, in their order, in seconds."""
    lines = (target / "ci/steps").read_text().splitlines()
    return [(float(seconds), name) for seconds, name in (line.split("\t") for line in lines)]


def tests(target: Path) -> list[tuple[float, str]]:
    """All tests, in seconds. A JUnit file has a `testsuite` for each program and a `testcase` for each test."""
    found = []
    # cargo-nextest keeps its results in the checkout, wherever it builds.
    nextest = Path(__file__).resolve().parents[1] / "target/nextest/default/junit.xml"
    for file in [nextest, target / "junit-python.xml"]:
        for case in ET.parse(file).iter("testcase"):
            found.append((float(case.get("time", 0)), f"{case.get('classname')} {case.get('name')}"))
    return found


def crates(target: Path) -> list[tuple[float, str]]:
    """The crates compiled for the tests, with their test programs, in seconds of one processor."""
    page = (target / "cargo-timings/cargo-timing.html").read_text()
    units = re.search(r"UNIT_DATA = (\[.*?\]);$", page, re.S | re.M)
    if units is None:
        raise ValueError("cargo-timing.html has no UNIT_DATA")
    sums: Counter[str] = Counter()
    for unit in json.loads(units[1]):
        sums[unit["name"]] += unit["duration"]
    return [(seconds, name) for name, seconds in sums.items()]


def main(target: Path) -> None:
    """Prints the three tables."""
    for title, read, unit, scale in [
        ("Steps", steps, "min", 60),
        ("Slowest tests", tests, "s", 1),
        ("Crates by compile time, with their tests", crates, "s", 1),
    ]:
        try:
            rows = read(target)
        except (OSError, ValueError, ET.ParseError) as error:
            print(f"\n== {title}: not known: {error}")
            continue
        table(title, rows if read is steps else sorted(rows, reverse=True)[:ROWS], unit, scale)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
