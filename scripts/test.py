#!/usr/bin/env python3
"""Runs steps of the Makefile, all of them even where one fails, and lists at the end what was skipped and why.

    scripts/test.py STEP...

Tests and steps that cannot do something here write a line, `NAME<tab>REASON`, into the file that THALWEG_SKIPPED names:
target/skipped, if the variable is not set. Needs nothing but Python itself.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

# cargo-nextest, which runs each test in a process of its own; libtest, for doc tests and loom.
NEXTEST = re.compile(r"^ *Summary \[[^\]]*\] (\d+)(?:/\d+)? tests? run: (\d+) passed")
NEXTEST_FAILED = re.compile(r"^ +(?:FAIL|TIMEOUT|ABORT|SIG\w+) \[[^\]]*\](?: \([^)]*\))? \S+ (\S+)$")
RUST = re.compile(r"^test result: \w+\. (\d+) passed; (\d+) failed; (\d+) ignored")
PYTHON = re.compile(r"^=+ (.*) in [\d.:]+s.* =+$")
# Below `failures:`, with four spaces, the names of the tests that failed.
FAILED = re.compile(r"^    ([\w:]+)$")


@dataclass
class Counted:
    """The tests of a step, as it printed them."""

    kind: str = ""
    passed: int = 0
    failed: int = 0
    ignored: int = 0
    names: set[str] = field(default_factory=set)

    def count_line(self, line: str) -> None:
        """Counts the tests of a line that the step printed."""
        if matched := RUST.match(line):
            self.kind = "Rust"
            self.passed += int(matched[1])
            self.failed += int(matched[2])
            self.ignored += int(matched[3])
        elif matched := PYTHON.match(line):
            counts = {word.rstrip("s"): int(number) for number, word in re.findall(r"(\d+) (\w+)", matched[1])}
            if counts.keys() & {"passed", "failed", "error"}:
                self.kind = "Python"
                self.passed += counts.get("passed", 0)
                self.failed += counts.get("failed", 0) + counts.get("error", 0)
        elif matched := NEXTEST.match(line):
            self.kind = "Rust"
            self.passed += int(matched[2])
            self.failed += int(matched[1]) - int(matched[2])
        elif matched := NEXTEST_FAILED.match(line) or FAILED.match(line):
            self.names.add(matched[1])


def run(step: str) -> tuple[Counted, int]:
    """Runs one step, showing its output. Returns its counts and its exit code."""
    counted = Counted()
    make = subprocess.Popen(
        [os.environ.get("MAKE", "make"), "--no-print-directory", step],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    )
    assert make.stdout is not None
    for line in make.stdout:
        sys.stdout.write(line)
        sys.stdout.flush()
        counted.count_line(line.rstrip("\n"))
    return counted, make.wait()


def main(steps: list[str]) -> int:
    """Runs the steps; 1 if one of them failed."""
    target = Path(os.environ.get("CARGO_TARGET_DIR", "target")).absolute()
    file = Path(os.environ.setdefault("THALWEG_SKIPPED", str(target / "skipped")))
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("")

    ran: dict[str, int] = {}
    passed = failed = 0
    broken: list[str] = []
    names: set[str] = set()
    times: list[str] = []
    for step in steps:
        print(f"== make {step}", flush=True)
        began = time.monotonic()
        counted, code = run(step)
        times.append(f"{step} {time.monotonic() - began:.0f} s")
        kind = "loom" if step == "test-loom" else counted.kind
        if counted.passed or counted.failed:
            ran[kind] = ran.get(kind, 0) + counted.passed + counted.failed
        passed += counted.passed
        names |= counted.names
        if counted.ignored:
            with file.open("a") as skipped:
                skipped.write(f"make {step}\t{counted.ignored} tests are marked #[ignore]\n")
        if code != 0:
            broken.append(step)
            # One that failed before it came to its tests is a failure too.
            failed += max(counted.failed, 1)

    # A test that skips counts as passed with libtest; one that fails after it has skipped a part has failed.
    lines = [line.split("\t", 1) for line in dict.fromkeys(file.read_text().splitlines())]
    skipped = {name for name, _ in lines if name.split(" ", 1)[-1] not in names}
    silent = sum(not name.startswith(("make ", "python ")) for name in skipped)
    passed -= silent
    if silent:
        ran["Rust"] -= silent
    print("\n== What was skipped here, and why")
    for name, reason in lines:
        print(f"{name}: {reason}")
    print("\n== Tests that ran:", ", ".join(f"{kind} {count}" for kind, count in ran.items()) or "none")
    print("== Time:", ", ".join(times))
    if broken:
        print("== Failed:", ", ".join(f"make {step}" for step in broken))
    print(f"{passed} passed, {failed} failed, {len(skipped)} skipped", flush=True)
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
