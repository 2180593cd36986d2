#!/usr/bin/env python3
"""Makes a man page of a document: scripts/manual.py docs/topology.md thalweg-topology 5 > thalweg-topology.5.

Reads the Markdown that the documents use: headings, paragraphs, lists, tables, and code; links become their text. Needs
nothing but Python, since `make install` calls it.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

# Words that open a line would be taken for commands of roff.
CONTROL = re.compile(r"^([.'])", re.M)
INLINE = re.compile(r"`([^`]+)`|\[((?:`[^`]*`|[^\]`])+)\]\([^)]*\)|\*\*([^*]+)\*\*|(?<![\w*])\*([^*\n]+)\*(?![\w*])")


def escaped(text: str) -> str:
    """The text, with what roff takes for commands and dashes escaped."""
    return CONTROL.sub(
        r"\\&\1", text.replace("\\", "\\e").replace("-", "\\-").replace("^", "\\(ha").replace("~", "\\(ti")
    )


def inline(text: str) -> str:
    """A line's Markdown as roff: code and strong in bold, emphasis in italics, links as their text."""

    def one(match: re.Match[str]) -> str:
        code, link, strong, emphasis = match.groups()
        if code is not None:
            return f"\\fB{escaped(code)}\\fR"
        if link is not None:
            return inline(link)
        return f"\\fB{inline(strong)}\\fR" if strong is not None else f"\\fI{inline(emphasis)}\\fR"

    parts, at = [], 0
    for match in INLINE.finditer(text):
        parts += [escaped(text[at : match.start()]), one(match)]
        at = match.end()
    return CONTROL.sub(r"\\&\1", "".join([*parts, escaped(text[at:])]))


def cells(row: str) -> list[str]:
    """The cells of a table's row. A bar in code, or behind a backslash, separates nothing."""
    held = re.sub(r"`[^`]*`", lambda code: code.group().replace("|", "\0"), row.strip().strip("|"))
    parts = re.split(r"(?<!\\)\|", held)
    return [part.replace("\0", "|").replace("\\|", "|").strip() for part in parts]


def table(rows: list[str]) -> list[str]:
    """A table as a list: each row's first cell, and below it the others with their headings."""
    headings, out = cells(rows[0]), []
    last = ""
    for row in rows[2:]:
        first, *others = cells(row)
        last = first or last
        # Rows without a first cell belong to the one above: the second cell tells them apart.
        term, rest = (inline(first), 0) if first else (f"{inline(last)}: {inline(others[0])}", 1)
        values = zip(headings[1 + rest :], others[rest:], strict=False)
        text = [
            f"{inline(heading)}: {inline(value)}." if heading else inline(value) for heading, value in values if value
        ]
        out += [".TP", term, *(text or ["\\&"])]
    return out


def page(text: str, name: str, section: str, source: str) -> str:
    """The man page of a document."""
    lines = text.splitlines()
    title = lines[0].removeprefix("# ")
    out = [
        f'.TH "{name.upper()}" "{section}" "" "{source}" "Thalweg"',
        ".SH NAME",
        f"{name} \\- {inline(title[0].lower() + title[1:])}",
    ]
    out.append(".SH DESCRIPTION")
    paragraph: list[str] = []

    def end() -> None:
        if paragraph:
            text = " ".join(paragraph)
            if text.startswith("*Reference. ") and text.endswith("*"):
                text = text.removeprefix("*Reference. ").removesuffix("*")
            out.extend([".PP", inline(text)])
            paragraph.clear()

    at = 1
    while at < len(lines):
        line = lines[at]
        if line.startswith("```"):
            end()
            close = next(number for number in range(at + 1, len(lines)) if lines[number].startswith("```"))
            out += [".PP", ".RS 4", ".nf", *(escaped(code) or "\\&" for code in lines[at + 1 : close]), ".fi", ".RE"]
            at = close
        elif line.startswith("|"):
            end()
            close = next((number for number in range(at, len(lines)) if not lines[number].startswith("|")), len(lines))
            out += table(lines[at:close])
            at = close - 1
        elif line.startswith("#"):
            end()
            level, heading = line.split(" ", 1)
            out.append(f'.{"SH" if level == "##" else "SS"} "{inline(heading)}"')
        elif match := re.match(r"(?:[-*]|(\d+)\.) (.*)", line):
            end()
            out.append(f".IP {match[1] or chr(92) + '(bu'} 4")
            item = [match[2]]
            while at + 1 < len(lines) and re.match(r"  +\S", lines[at + 1]):
                at += 1
                item.append(lines[at].strip())
            out.append(inline(" ".join(item)))
        elif line.strip():
            paragraph.append(line.strip())
        else:
            end()
        at += 1
    end()
    out += [".SH FILES", ".TP", "/usr/share/doc/thalweg/examples", "Example topologies."]
    out += [".SH SEE ALSO", "thalweg(1), thalweg\\-check(1), thalweg\\-run(1), thalweg\\-doctor(1)"]
    return "\n".join(out) + "\n"


def main() -> None:
    """Prints the page."""
    document, name, section = sys.argv[1:]
    root = Path(__file__).resolve().parent.parent
    version = re.search(r'^version = "(.*)"', (root / "Cargo.toml").read_text(), re.M)
    print(page(Path(document).read_text(), name, section, f"thalweg {version[1] if version else ''}"), end="")


if __name__ == "__main__":
    main()
