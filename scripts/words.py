#!/usr/bin/env python3
"""Counts how plainly comments and names speak, and how long functions are: scripts/words.py [--check].

See CONTRIBUTING.md, "Words". With `--check` it fails where a count is above its limit below. Limits only fall:
lower the limit with the count.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LIMITS = {
    "doc comments that open without a noun, in a thousand": 2,
    "doc comments of one word": 0,
    "numeric constants of one word, in a thousand": 115,
    "functions with a name of one word, in a thousand": 140,
    "named local closures, in a hundred thousand lines": 40,
    "functions of more than 70 lines": 0,
    "words of talking (said, told, heard, nobody)": 8,
}
NO_NOUN = re.compile(r"(What|Who|Whose|Whoever|So|Of|Nothing|Nobody|It|Its|Those|Where|Which|How)\b")
ONE_WORD = re.compile(r"(\w+|Who it is|How many|Since when|Up to where)\.?")
VISIBILITY = r"(?:pub(?:\([^)]*\))? )?"
CONSTANT = re.compile(VISIBILITY + r"const ([A-Z][A-Z0-9_]*): (?:u\d+|i\d+|usize|f\d+|Duration)\b")
FUNCTION = re.compile(r"( *)" + VISIBILITY + r"(?:const |async |unsafe |extern \"C\" )*fn (\w+)")
CLOSURE = re.compile(r" *let (?:mut )?\w+ = (?:move )?\|")
TALKING = re.compile(r"\b(?:said|told|heard|nobody)\b")


class Counted:
    """Counts of the crates' sources, without their tests."""

    def __init__(self) -> None:
        self.docs: list[str] = []
        self.constants: list[str] = []
        self.functions: list[str] = []
        self.lines = self.closures = self.long = self.talking = 0

    def add(self, text: str) -> None:
        """Counts a source file."""
        self.talking += len(TALKING.findall(text))
        before, function = "", None
        for number, line in enumerate(text.split("#[cfg(test)]\nmod tests {")[0].splitlines()):
            bare = line.strip()
            self.lines += bool(bare) and not bare.startswith("//")
            self.closures += bool(CLOSURE.match(line))
            if bare.startswith("///") and not before.startswith("///") and len(bare) > 4:
                self.docs.append(bare[3:].strip())
            if found := CONSTANT.match(bare):
                self.constants.append(found.group(1))
            if found := FUNCTION.match(line):
                self.functions.append(found.group(2))
                function = function or (number, found.group(1))
            if function and line.startswith(function[1]) and line[len(function[1]) :] in ("}", ");", ";"):
                self.long += line.endswith("}") and number - function[0] >= 70
                function = None
            elif function and bare and not line.startswith(function[1]):
                function = None
            before = bare


def in_a_thousand(of: list[str], counted: list[bool]) -> int:
    """Returns how many of a thousand are counted."""
    return 1000 * sum(counted) // max(1, len(of))


def counts() -> dict[str, int]:
    """Returns the counts of all crates, by their names in LIMITS."""
    of = Counted()
    for file in sorted(ROOT.glob("crates/*/src/**/*.rs")):
        if "tests" not in file.parts:
            of.add(file.read_text(encoding="utf-8"))
    found = [
        in_a_thousand(of.docs, [bool(NO_NOUN.match(doc)) for doc in of.docs]),
        sum(bool(ONE_WORD.fullmatch(doc)) for doc in of.docs),
        in_a_thousand(of.constants, ["_" not in name for name in of.constants]),
        in_a_thousand(of.functions, ["_" not in name for name in of.functions]),
        100_000 * of.closures // max(1, of.lines),
        of.long,
        of.talking,
    ]
    return dict(zip(LIMITS, found, strict=True))


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
