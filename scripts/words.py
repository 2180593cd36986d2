#!/usr/bin/env python3
"""Counts how plainly comments and names speak: scripts/words.py [--check]. See CONTRIBUTING.md, "Words".

With `--check` it fails where a count is above its limit below. Limits only fall: who lowers a count lowers its limit.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LIMITS = {
    "doc comments that open without a noun, in a thousand": 8,
    "doc comments of one word": 2,
    "numeric constants of one word, in a thousand": 151,
}
NO_NOUN = re.compile(r"(What|Who|Whose|Whoever|So|Of|Nothing|Nobody|It|Its|Those|Where|Which|How)\b")
ONE_WORD = re.compile(r"(\w+|Who it is|How many|Since when|Up to where)\.?")
CONSTANT = re.compile(r"(?:pub(?:\([^)]*\))? )?const ([A-Z][A-Z0-9_]*): (?:u\d+|i\d+|usize|f\d+|Duration)\b")


def code_of(file: Path) -> list[str]:
    """Returns the lines of a source file without its tests."""
    text = file.read_text(encoding="utf-8").split("#[cfg(test)]\nmod tests {")[0]
    return [line.strip() for line in text.splitlines()]


def counts() -> dict[str, int]:
    """Returns the counts of all crates, by their names in LIMITS."""
    docs, constants = [], []
    for file in sorted(ROOT.glob("crates/*/src/**/*.rs")):
        if "tests" in file.parts:
            continue
        lines = code_of(file)
        for before, line in zip(["", *lines], lines, strict=False):
            if line.startswith("///") and not before.startswith("///") and len(line) > 4:
                docs.append(line[3:].strip())
            if found := CONSTANT.match(line):
                constants.append(found.group(1))
    return dict(
        zip(
            LIMITS,
            [
                1000 * sum(bool(NO_NOUN.match(doc)) for doc in docs) // len(docs),
                sum(bool(ONE_WORD.fullmatch(doc)) for doc in docs),
                1000 * sum("_" not in name for name in constants) // len(constants),
            ],
            strict=True,
        )
    )


def main() -> int:
    """Prints the counts. Returns 1 where `--check` is given and one is above its limit."""
    above = False
    for name, count in counts().items():
        limit = LIMITS[name]
        above |= count > limit
        print(f"{count:5}  {name} (at most {limit})" + ("  TOO MANY: see CONTRIBUTING.md" if count > limit else ""))
    return int(above and "--check" in sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
