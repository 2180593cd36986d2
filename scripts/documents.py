#!/usr/bin/env python3
"""Runs what a document shows, in its order, and compares: scripts/documents.py [--write] [-v] PAGE...

A reader with the program and the Python package types what stands behind `$ ` in blocks marked `console`, into an empty
directory. So does this program, in a network of its own (a namespace with nothing but a loopback, in which the hosts
of the documents are known). What is printed must be what the page shows:

- A line of `…` stands for any lines, a `…` within a line for any text. How many spaces there are does not matter.
- Dates, times, and figures with a unit of time, of rate or `%` may be others. Numbers from 100 on, sizes with a
  decimal unit and counts of blocks may differ by a quarter: `--rate 200` for three seconds is 599, 600 or 601 events.
  All else is as shown.
- Where a block shows no output at all, its commands must end with 0.
- `adc-0$ ` is another terminal, and so is each name.

A block of another kind is a file where the line before it names one in backticks and ends with a colon; where that line
begins with `Add`, the file gets longer by it. Readers do not see these lines, which stand before a block:

    <!-- not run: WHY -->           the block's commands are not run here; listed with --skipped
    <!-- run instead: COMMAND -->   what is typed in the place of the block's first command
    <!-- run: COMMAND -->           typed as well, and must end with 0

With `--write`, all that is printed goes into the page; lines with a `…` stay where they are right.
"""

from __future__ import annotations

import argparse
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# Seconds until a command must have printed what the page shows.
PATIENCE = 300
HOSTS = ["adc-0", "adc-1", "adc-2", "daq-0", "archive"]
# So many lines that a terminal shows at most after what was typed, when the page shows something else.
SHOWN = 40


# --- commands of a page ---------------------------------------------------------------------------------------------


@dataclass
class Command:
    """What is typed, and what comes of it."""

    line: int
    terminal: str
    text: str
    # Output as the page shows it, and the line of the page on which it begins.
    output: list[str] = field(default_factory=list)
    compared: bool = True


@dataclass
class File:
    """A block that the reader saves."""

    name: str
    text: str
    longer: bool


@dataclass
class Skipped:
    """A block that cannot be run here, and why."""

    line: int
    why: str


PROMPT = re.compile(r"^([\w-]*)\$ (.*)$")
MARK = re.compile(r"^<!-- (not run|run instead|run): (.*) -->$")
NAMED = re.compile(r"`([\w-]+\.\w+)`.*:$")


def parts(text: str) -> list[Command | File | Skipped]:
    """The page's commands, files, and blocks that are not run, in their order."""
    found: list[Command | File | Skipped] = []
    lines = text.splitlines()
    before, marks, number = "", {}, 0
    while number < len(lines):
        line = lines[number]
        number += 1
        if mark := MARK.match(line):
            if mark[1] == "run":
                found.append(Command(number, "", mark[2], compared=False))
            else:
                marks[mark[1]] = mark[2]
        elif line.startswith("```"):
            begin = number
            while lines[number] != "```":
                number += 1
            block = lines[begin:number]
            if line == "```console" and "not run" in marks:
                found.append(Skipped(begin, marks["not run"]))
            elif line == "```console":
                commands = console(block, begin + 1)
                if "run instead" in marks:
                    commands[0].text = marks["run instead"]
                found += commands
            elif name := NAMED.search(before):
                found.append(File(name[1], "\n".join(block) + "\n", before.startswith("Add")))
            number += 1
            before, marks = "", {}
        elif line.strip():
            before = line
    return found


def console(block: list[str], first: int) -> list[Command]:
    """The commands of a block whose first line is the page's line `first`."""
    commands: list[Command] = []
    for number, line in enumerate(block, first):
        if commands and commands[-1].text.endswith("\\") and not commands[-1].output:
            commands[-1].text += "\n" + line
        elif prompt := PROMPT.match(line):
            commands.append(Command(number, prompt[1], prompt[2]))
        else:
            commands[-1].output.append(line)
    for command in commands:
        command.compared = any(one.output for one in commands)
    return commands


# --- comparing --------------------------------------------------------------------------------------------------------

TOKEN = re.compile(
    r"(?P<any>…)|(?P<date>\d{4}-\d\d-\d\d(?:[T ]\d\d:\d\d(?::\d\d(?:\.\d+)?)?Z?)?)"
    r"|(?P<speed>(?<![\w.,-])\d[\d,]*(?:\.\d+)? [kMGT]?B/s)"
    r"|(?P<measured>(?<![\w.,-])\d[\d,]*(?:\.\d+)?(?= ?(?:%|(?:ns|µs|us|ms|s|min|h)\b|[\w/]*bit/s|[\w]+/s)))"
    r"|(?P<size>(?<![\w.,-])\d[\d,]*(?:\.\d+)?(?= (?:bytes|kB|MB|GB|TB)\b))"
    r"|(?P<number>(?<![\w.,/:-])\d{1,3}(?:,\d{3})+(?![\w./:-])|(?<![\w.,/:#-])(?:\d{3,}(?![\w./:-])|\d+(?= blocks\b)))"
    r"|(?P<space>\s+)"
)
ALIKE = {
    "any": ".*?",
    "date": r"\d{4}-\d\d-\d\d(?:[T ]\d\d:\d\d(?::\d\d(?:\.\d+)?)?Z?)?",
    "speed": r"\d[\d,]*(?:\.\d+)? [kMGT]?B/s",
    "measured": r"\d[\d,]*(?:\.\d+)?",
    "size": r"(\d[\d,]*(?:\.\d+)?)",
    "number": r"(\d[\d,]*)",
    "space": r"\s+",
}


def agrees(shown: str, printed: str) -> bool:
    """Whether a line is what the page shows."""
    pattern, numbers, at = "", [], 0
    shown = shown.strip()
    for token in TOKEN.finditer(shown):
        kind = token.lastgroup
        assert kind is not None
        pattern += re.escape(shown[at : token.start()]) + ALIKE[kind]
        if kind in ("size", "number"):
            numbers.append(value(token[0]))
        at = token.end()
    found = re.fullmatch(pattern + re.escape(shown[at:]), printed.strip())
    return found is not None and all(
        abs(value(there) - here) <= here / 4 for there, here in zip(found.groups(), numbers, strict=True)
    )


def value(number: str) -> float:
    return float(number.replace(",", ""))


def is_gap(line: str) -> bool:
    return line.strip() == "…"


def without_dead_time(printed: list[str]) -> list[str]:
    """Without the lines, each with those that it goes on in, that only a machine with other work to do prints."""
    kept, indent = [], None
    for line in printed:
        depth = len(line) - len(line.lstrip())
        if indent is not None and line.strip() and depth > indent:
            continue
        indent = depth if line.lstrip().startswith("dead time") else None
        if indent is None:
            kept.append(line)
    return kept


# How the sentence on what limited a run begins and ends: what it says depends on what else the machine has to do.
LIMIT_BEGINS = re.compile(r"\s+(offered|carried|the sources had more)\b")
LIMIT_ENDS = re.compile(r"(offered no more|of the time|sources waited|its fragments|\(see the reasons\))$")


def without_limit(lines: list[str]) -> list[str]:
    """Without the sentence on what limited a run."""
    kept, inside = [], False
    for line in lines:
        inside = inside or bool(LIMIT_BEGINS.match(line))
        if not inside:
            kept.append(line)
        inside = inside and not LIMIT_ENDS.search(line)
    return kept


# A source whose builder begins late, on a machine with other work to do.
LATE_BUILDER = re.compile(r"WARN source \S+: .*; trying again until ")


def matches(shown: list[str], printed: list[str]) -> bool:
    """Whether lines are what the page shows. `reached` has the lengths of `printed` that `shown` so far can explain."""
    if not any("dead time" in line for line in shown):
        printed = without_dead_time(printed)
    if not any("trying again" in line for line in shown):
        printed = [line for line in printed if not LATE_BUILDER.search(line)]
    shown, printed = without_limit(shown), without_limit(printed)
    reached = {0}
    for line in shown:
        if is_gap(line):
            reached = set(range(min(reached), len(printed) + 1))
        else:
            reached = {at + 1 for at in reached if at < len(printed) and agrees(line, printed[at])}
        if not reached:
            return False
    return len(printed) in reached


def rewritten(shown: list[str], printed: list[str]) -> list[str]:
    """What the page should show: what is printed, but for its lines with a `…` that are right."""
    # Which lines of the page are printed, after the longest common subsequence; a gap has what is between two of them.
    kept = [number for number, line in enumerate(shown) if not is_gap(line)]
    best = [[0] * (len(printed) + 1) for _ in range(len(kept) + 1)]
    for i in reversed(range(len(kept))):
        for j in reversed(range(len(printed))):
            same = best[i + 1][j + 1] + 1 if agrees(shown[kept[i]], printed[j]) else 0
            best[i][j] = max(same, best[i + 1][j], best[i][j + 1])
    pairs: list[tuple[int, int]] = []
    i = j = 0
    while i < len(kept) and j < len(printed):
        if best[i][j] == best[i + 1][j]:
            i += 1
        elif best[i][j] == best[i][j + 1]:
            j += 1
        else:
            pairs.append((kept[i], j))
            i, j = i + 1, j + 1
    out: list[str] = []
    last = (-1, -1)
    for here in [*pairs, (len(shown), len(printed))]:
        gaps = [line for line in shown[last[0] + 1 : here[0]] if is_gap(line)]
        out += gaps[:1] or printed[last[1] + 1 : here[1]]
        if here[0] < len(shown):
            out.append(shown[here[0]] if "…" in shown[here[0]] else printed[here[1]])
        last = here
    return out


# --- a terminal -------------------------------------------------------------------------------------------------------


class Terminal:
    """A shell that reads what is typed, and all that comes out of it."""

    def __init__(self, directory: Path, environment: dict[str, str]) -> None:
        script, typed = os.pipe()
        # What it reads is not the standard input of what it starts.
        self.shell = subprocess.Popen(
            ["bash", "--norc", f"/dev/fd/{script}"],
            cwd=directory,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            pass_fds=[script],
        )
        os.close(script)
        self.typed = os.fdopen(typed, "w")
        self.changed = threading.Condition()
        self.text = b""
        self.last: Command | None = None
        # How many commands were typed, and how the last of them ended.
        self.count = 0
        self.code: int | None = None
        threading.Thread(target=self.listen, daemon=True).start()

    def listen(self) -> None:
        """Takes in what is printed, prompts too: how many-th command it was, and how it ended."""
        assert self.shell.stdout is not None
        while piece := os.read(self.shell.stdout.fileno(), 65536):
            with self.changed:
                self.text += piece
                while prompt := re.search(rb"\x01(\d+) (\d+)\x01", self.text):
                    if int(prompt[1]) == self.count:
                        self.code = int(prompt[2])
                    self.text = self.text[: prompt.start()] + self.text[prompt.end() :]
                self.changed.notify_all()

    def lines(self) -> list[str]:
        lines = self.text.decode(errors="replace").splitlines()
        while lines and not lines[-1].strip():
            lines.pop()
        return lines

    def type(self, command: Command) -> None:
        self.text = b""
        self.code = None
        self.count += 1
        self.last = command
        prompt = f"{{ _code=$?; printf '\\001{self.count} %d\\001' $_code; (exit $_code); }}"
        self.typed.write(f"{command.text}\n{prompt}\n")
        self.typed.flush()

    def settled(self, prompt: bool) -> bool:
        """Whether the last command has printed what the page shows and, with `prompt`, has ended."""
        assert self.last is not None
        has_output = not self.last.compared or matches(self.last.output, self.lines())
        return has_output and (self.code is not None or not prompt)

    def settle(self, prompt: bool) -> None:
        """Waits for that, with `prompt` also for the command's end; or until nothing more comes of it."""
        with self.changed:
            deadline = time.monotonic() + PATIENCE
            while not self.settled(prompt):
                # What has ended and left no process prints no more.
                if self.code is not None and not jobs(self.shell.pid):
                    return
                left = deadline - time.monotonic()
                if left <= 0 or self.shell.poll() is not None:
                    return
                self.changed.wait(min(left, 1.0))

    def ended(self) -> bool:
        """Waits for the last command's end."""
        with self.changed:
            return self.changed.wait_for(lambda: self.count == 0 or self.code is not None, PATIENCE)


def jobs(shell: int) -> bool:
    """Whether a shell has others under way."""
    return bool(Path(f"/proc/{shell}/task/{shell}/children").read_text().split())


# --- walking through a page -------------------------------------------------------------------------------------------


@dataclass
class Outcome:
    """What a command printed, and how it ended, if it has."""

    command: Command
    printed: list[str]
    code: int | None

    def wrong(self) -> str | None:
        """What is not as the page shows it."""
        if self.code is None and self.command.terminal == "":
            return "does not end: nothing behind it was typed"
        if self.command.compared:
            return None if matches(self.command.output, self.printed) else "prints something else"
        return None if self.code == 0 else f"ends with {self.code}" if self.code is not None else "does not end"


def walk(page: Path, directory: Path, verbose: bool) -> list[Outcome]:
    """Runs the commands of the page in `directory`, which is empty."""
    environment = surroundings(directory)
    terminals: dict[str, Terminal] = {}
    outcomes: list[Outcome] = []

    def settle(terminal: Terminal, prompt: bool) -> bool:
        """Whether more can be typed here."""
        if terminal.last is not None:
            terminal.settle(prompt or not terminal.last.compared)
            outcomes.append(Outcome(terminal.last, terminal.lines(), terminal.code))
            terminal.last = None
        return not prompt or terminal.ended()

    before = 0
    for part in parts(page.read_text()):
        if isinstance(part, File):
            with (where(terminals, directory) / part.name).open("a" if part.longer else "w") as file:
                file.write(part.text)
        if not isinstance(part, Command):
            continue
        # Another block: what the last one shows has happened. In terminals of their own things may still go on.
        if part.line > before + 1 and not all([settle(one, prompt=name == "") for name, one in terminals.items()]):
            break
        before = part.line + part.text.count("\n") + len(part.output)
        if part.terminal not in terminals:
            terminals[part.terminal] = Terminal(where(terminals, directory), environment)
        terminal = terminals[part.terminal]
        if not settle(terminal, prompt=True):
            break
        if verbose:
            print(f"{time.strftime('%X')} {page}:{part.line} {part.terminal}$ {part.text}", flush=True)
        terminal.type(part)
    for name, terminal in terminals.items():
        settle(terminal, prompt=name == "")
    for terminal in terminals.values():
        terminal.shell.kill()
    return outcomes


def where(terminals: dict[str, Terminal], directory: Path) -> Path:
    """The directory that the first terminal is in, in which the reader saves files and opens more terminals."""
    return Path(f"/proc/{terminals[''].shell.pid}/cwd").readlink() if "" in terminals else directory


def surroundings(directory: Path) -> dict[str, str]:
    """The environment of a reader whose home is `directory`: the program and Python are on the path."""
    programs = directory / ".bin"
    programs.mkdir()
    for name in ("thalweg", "thalweg-lab", "thalweg-control"):
        (programs / name).symlink_to(program().with_name(name))
    kept = {name: value for name, value in os.environ.items() if not name.startswith("THALWEG")}
    return kept | {
        "PATH": f"{programs}:{Path(sys.executable).parent}:{kept['PATH']}:/usr/sbin:/sbin",
        "HOME": str(directory),
        "LANG": "C.UTF-8",
        "COLUMNS": "80",
        "PYTHONUNBUFFERED": "1",
        "CHECKOUT": str(ROOT),
        "no_proxy": "*",
    }


def program() -> Path:
    """The program `thalweg`, as built."""
    named = os.environ.get("THALWEG_BIN")
    candidates = [Path(named)] if named else [ROOT / "target" / kind / "thalweg" for kind in ("debug", "release")]
    for candidate in candidates:
        if candidate.exists():
            return candidate.absolute()
    sys.exit(f"none of {', '.join(map(str, candidates))} is there: build it (`make build`) or set THALWEG_BIN")


# --- the program ------------------------------------------------------------------------------------------------------

INSIDE = [
    "unshare",
    *([] if os.getuid() == 0 else ["--map-root-user"]),
    "--net",
    "--mount",
    "--pid",
    "--fork",
    "--kill-child",
    "--mount-proc",
]


def set_up(directory: Path) -> None:
    """The network of the documents, within a namespace: its hosts are all this one."""
    hosts = directory / ".hosts"
    hosts.write_text("127.0.0.1 localhost\n" + "".join(f"127.0.0.1 {name}\n" for name in HOSTS))
    for command in ("ip link set lo up", f"mount --bind {hosts} /etc/hosts"):
        subprocess.run(command.split(), check=True)


def main() -> int:
    """0 if all is as shown, or was made so."""
    parser = argparse.ArgumentParser(description="Runs what documents show, and compares.")
    parser.add_argument("pages", nargs="+", type=Path, metavar="PAGE")
    parser.add_argument("--write", action="store_true", help="write what happens into the page")
    parser.add_argument("--skipped", action="store_true", help="only list what is not run, and why")
    parser.add_argument("-v", "--verbose", action="store_true", help="say what is typed, and when")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.skipped:
        for page in options.pages:
            for part in parts(page.read_text()):
                if isinstance(part, Skipped):
                    print(f"{page}:{part.line}\t{part.why}")
        return 0
    if not options.inside:
        return subprocess.run([*INSIDE, sys.executable, *sys.argv, "--inside"], check=False).returncode
    # An interrupt must reach what is started here also where this was started in the background.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    failed = False
    for page in options.pages:
        with tempfile.TemporaryDirectory(prefix="documents-", ignore_cleanup_errors=True) as name:
            directory = Path(name)
            set_up(directory)
            began = time.monotonic()
            outcomes = walk(page, directory, options.verbose)
            wrong = [one for one in outcomes if one.wrong()]
            subprocess.run(["umount", "/etc/hosts"], check=True)
        print(f"{page}: {len(wrong)} not as shown, {time.monotonic() - began:.0f} s")
        for one in wrong:
            report(page, one)
        if options.write:
            write(page, outcomes)
        # What ends otherwise than it should cannot be written down.
        failed |= any(not (options.write and one.command.compared) for one in wrong)
    return int(failed)


def report(page: Path, one: Outcome) -> None:
    print(f"\n{page}:{one.command.line}: `{one.command.text}` {one.wrong()}:")
    for sign, lines in (("shown", one.command.output), ("printed", one.printed)):
        for line in lines[:SHOWN] + (["(and more)"] if len(lines) > SHOWN else []):
            print(f"  {sign:7} | {line}")


def write(page: Path, outcomes: list[Outcome]) -> None:
    """Replaces outputs in the page."""
    lines = page.read_text().splitlines()
    for one in sorted(outcomes, key=lambda one: one.command.line, reverse=True):
        if one.command.compared:
            begin = one.command.line + one.command.text.count("\n")
            lines[begin : begin + len(one.command.output)] = rewritten(one.command.output, one.printed)
    page.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    sys.exit(main())
