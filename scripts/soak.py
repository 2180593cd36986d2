#!/usr/bin/env python3
"""Runs whole systems at full rate for a long time, one after the other, and looks at their books and at their memory.

Each is `thalweg demo` over one link: three model ADCs (simulated), without recording. It has passed if every fragment
is accounted for, no event is incomplete, and the memory of all processes together (their proportional share,
smaps_rollup of proc(5)) does not grow from the second tenth of the time (of a short one: from a later one) to the last
by more than a hundredth and 4 MiB, and the number of their open files does not grow.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import time
from pathlib import Path

UNITS = {"ms": 0.001, "s": 1, "min": 60, "m": 60, "h": 3600, "d": 86400}
LINKS = "shm,tcp,udp,rdma,rdma-efe,af-xdp,dpdk"
MIB = 1 << 20


def seconds(text: str) -> float:
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([a-z]+)", text)
    if not found or found[2] not in UNITS:
        raise argparse.ArgumentTypeError(f"{text}: write a time such as 10min or 40h")
    return float(found[1]) * UNITS[found[2]]


def family(pid: int) -> list[int]:
    """A process and all below it."""
    children: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(stat.read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
        children.setdefault(parent, []).append(int(stat.parent.name))
    members = [pid]
    for member in members:
        members.extend(children.get(member, []))
    return members


def memory(pid: int) -> int:
    """Bytes of a process and all below it, shared pages in parts."""
    total = 0
    for member in family(pid):
        try:
            rollup = Path(f"/proc/{member}/smaps_rollup").read_text()
        except OSError:
            continue
        total += sum(int(kib) << 10 for kib in re.findall(r"^Pss:\s+(\d+) kB", rollup, re.M))
    return total


def open_files(pid: int) -> int:
    """Open file descriptors of a process and all below it."""
    total = 0
    for member in family(pid):
        try:
            total += sum(1 for _ in Path(f"/proc/{member}/fd").iterdir())
        except OSError:
            continue
    return total


def tenth_from(seen: list[tuple[float, int]], begin: float, tenth: float) -> float:
    """The median of what was seen in a tenth of the time; if there is nothing, what was seen first after it, or last.

    What was seen before it would not do: memory that is touched later had not been touched.
    """
    since = [(at, size) for at, size in seen if at >= begin] or seen[-1:]
    return statistics.median([size for at, size in since if at < begin + tenth] or [since[0][1]])


def soak(program: str, link: str, lasting: float, arguments: list[str]) -> str | None:
    """Prints what came of it. Why it has not passed, if so."""
    command = [program, "--json", "demo", "--link", link, "--no-record", "--duration", f"{round(lasting * 1000)}ms"]
    begun = time.monotonic()
    process = subprocess.Popen([*command, *arguments], stdout=subprocess.PIPE, text=True)
    seen: list[tuple[float, int]] = []
    files: list[tuple[float, int]] = []
    every = min(10.0, max(0.05, lasting / 200))
    while process.poll() is None:
        if time.monotonic() - begun > lasting + 120:
            process.kill()
            return "it did not end by itself"
        seen.append((time.monotonic(), memory(process.pid)))
        files.append((time.monotonic(), open_files(process.pid)))
        time.sleep(every)
    ended = time.monotonic()
    output = process.stdout.read() if process.stdout else ""
    if process.returncode:
        return f"it ended with {process.returncode}"
    report = json.loads(output)
    # The time begins with the run, not when the processes are started. A tenth later, or on a busy machine a second,
    # all memory has been touched once.
    begin, tenth = ended - lasting, lasting / 10
    from_first, from_last = begin + max(tenth, min(1.0, lasting / 2)), begin + 8 * tenth
    first, last = (tenth_from(seen, start, tenth) for start in (from_first, from_last))
    files_first, files_last = (tenth_from(files, start, tenth) for start in (from_first, from_last))
    ledger, events = report["ledger"], report["events"]
    rate = report["goodput_bits_per_second"] / 1e9
    print(
        f"{link:8} {report['seconds']:10.1f} s {rate:8.2f} Gbit/s {events['built']:12} events"
        f" {events['incomplete']:6} incomplete {ledger['unaccounted']:6} unaccounted"
        f" {first / MIB:8.1f} MiB, then {last / MIB:8.1f}; {files_first:.0f} files open, then {files_last:.0f}",
        flush=True,
    )
    if report["state"] != "COMPLETE" or events["incomplete"] or ledger["unaccounted"] or not events["built"]:
        return f"{report['state']}: {'; '.join(map(str, report['reasons'])) or 'see its books'}"
    if last > first * 1.01 + 4 * MIB:
        return "its memory has grown"
    if files_last > files_first:
        return "more files are open"
    return None


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--time", type=seconds, default=600.0, help="how long each runs: 10min (the default), 40h")
    parser.add_argument("--link", default=LINKS, help=f"which links, with commas between: {LINKS}")
    parser.add_argument("demo", nargs="*", help="further options of `thalweg demo`, behind --")
    arguments = parser.parse_args()
    program = os.environ.get("THALWEG_BIN") or "thalweg"
    failed = False
    for link in arguments.link.split(","):
        why = soak(program, link, arguments.time, arguments.demo)
        if why:
            failed = True
            print(f"{link}: {why}", file=sys.stderr)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
