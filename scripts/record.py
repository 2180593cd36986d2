#!/usr/bin/env python3
"""Records `thalweg demo` in a terminal of 80 columns, as the README shows it.

scripts/record.py PROGRAM docs/demo.svg

What it needs beside Python: `pip install termtosvg setuptools`.
"""

from __future__ import annotations

import os
import pty
import shlex
import sys
import tempfile
from pathlib import Path

COMMAND = "thalweg demo --rate 40 --duration 4s"


def main(program: str, picture: str) -> int:
    """Types the command into a terminal of its own."""
    folder = tempfile.mkdtemp()
    os.environ["PATH"] = f"{Path(program).resolve().parent}:{os.environ['PATH']}"
    os.environ["TERM"] = "xterm-256color"
    typed = f"cd {folder}; printf '$ %s\\n' {shlex.quote(COMMAND)}; {COMMAND}; sleep 3; rm -r {folder}"
    look = ["-g", "80x18", "-D", "4000"]
    recorder = [sys.executable, "-m", "termtosvg", picture, *look, "-c", f"bash -c {shlex.quote(typed)}"]
    # It listens to a keyboard, on which nothing is typed.
    return os.waitstatus_to_exitcode(pty.spawn(recorder, lambda fd: os.read(fd, 65536), lambda _: b""))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
