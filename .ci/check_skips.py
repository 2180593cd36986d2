#!/usr/bin/env python3
"""Fails if anything was skipped that need not be: .ci/check_skips.py SKIPPED MAY_SKIP.

SKIPPED has a line `NAME<tab>REASON` for each thing that was not done. MAY_SKIP has a line `PATTERN # why` for each
that may be: the pattern of a whole `NAME: REASON`, with the shell's `*` and `?`.
"""

from __future__ import annotations

import sys
from fnmatch import fnmatchcase
from pathlib import Path


def main(skipped: Path, may_skip: Path) -> int:
    """Compares the two files, prints the differences, and returns the exit code."""
    allowed = {}
    for number, line in enumerate(may_skip.read_text().splitlines(), 1):
        if line.strip() and not line.startswith("#"):
            pattern, mark, why = line.partition(" # ")
            if not (mark and why.strip()):
                print(f"{may_skip}:{number}: an entry is `PATTERN # why`, not `{line}`")
                return 2
            allowed[pattern.strip()] = why.strip()
    # Brackets are ordinary here: reasons have them.
    patterns = {pattern: pattern.replace("[", "[[]") for pattern in allowed}
    used = set()
    wrong = []
    for line in dict.fromkeys(skipped.read_text().splitlines()):
        text = line.replace("\t", ": ", 1)
        found = [pattern for pattern, escaped in patterns.items() if fnmatchcase(text, escaped)]
        used.update(found)
        if not found:
            wrong.append(text)
    for pattern, why in allowed.items():
        print(f"may be skipped, and was: {pattern} # {why}" if pattern in used else f"note: nothing matched {pattern}")
    for text in wrong:
        print(f"skipped, and may not be: {text}")
    if wrong:
        print(
            f"{len(wrong)} skipped that may not be: set the machine up for them (.ci/setup), or say why in {may_skip}"
        )
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2])))
