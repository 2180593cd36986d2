#!/usr/bin/env python3
"""Converts a document to a man page: scripts/manual.py docs/topology.md thalweg-topology 5 > thalweg-topology.5.

Supports the Markdown of the documents: headings, paragraphs, lists, tables and code; of links only the text is kept.
Needs only Python, since `make install` runs it.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

# Characters at the start of a line that begin a roff command.
CONTROL_PATTERN = re.compile(r"^([.'])", re.M)
# Code, link, strong text and emphasis.
INLINE_PATTERN = re.compile(
    r"`([^`]+)`|\[((?:`[^`]*`|[^\]`])+)\]\([^)]*\)|\*\*([^*]+)\*\*|(?<![\w*])\*([^*\n]+)\*(?![\w*])"
)


def escape(text: str) -> str:
    """Escapes backslashes, hyphens, carets, tildes and commands for roff."""
    return CONTROL_PATTERN.sub(
        r"\\&\1", text.replace("\\", "\\e").replace("-", "\\-").replace("^", "\\(ha").replace("~", "\\(ti")
    )


def format_inline(text: str) -> str:
    """Converts inline Markdown to roff: code and strong text to bold, emphasis to italics, links to their text."""

    def replacement(match: re.Match[str]) -> str:
        code, link, strong, emphasis = match.groups()
        if code is not None:
            return f"\\fB{escape(code)}\\fR"
        if link is not None:
            return format_inline(link)
        return f"\\fB{format_inline(strong)}\\fR" if strong is not None else f"\\fI{format_inline(emphasis)}\\fR"

    parts, at = [], 0
    for match in INLINE_PATTERN.finditer(text):
        parts += [escape(text[at : match.start()]), replacement(match)]
        at = match.end()
    return CONTROL_PATTERN.sub(r"\\&\1", "".join([*parts, escape(text[at:])]))


def split_cells(row: str) -> list[str]:
    """Splits a row of a table into cells. Bars in code or after a backslash do not separate cells."""
    masked = re.sub(r"`[^`]*`", lambda code: code.group().replace("|", "\0"), row.strip().strip("|"))
    parts = re.split(r"(?<!\\)\|", masked)
    return [part.replace("\0", "|").replace("\\|", "|").strip() for part in parts]


def format_table(rows: list[str]) -> list[str]:
    """Converts a table to a list: the first cell of each row, followed by the other cells with their headings."""
    headings, out = split_cells(rows[0]), []
    last = ""
    for row in rows[2:]:
        first, *others = split_cells(row)
        last = first or last
        # A row without a first cell continues the row above; its second cell is added to the term.
        term, rest = (format_inline(first), 0) if first else (f"{format_inline(last)}: {format_inline(others[0])}", 1)
        values = zip(headings[1 + rest :], others[rest:], strict=False)
        text = [
            f"{format_inline(heading)}: {format_inline(value)}." if heading else format_inline(value)
            for heading, value in values
            if value
        ]
        out += [".TP", term, *(text or ["\\&"])]
    return out


def format_page(text: str, name: str, section: str, source: str) -> str:
    """Converts a document to a man page. `source` is the text of the footer."""
    lines = text.splitlines()
    title = lines[0].removeprefix("# ")
    out = [
        f'.TH "{name.upper()}" "{section}" "" "{source}" "Thalweg"',
        ".SH NAME",
        f"{name} \\- {format_inline(title[0].lower() + title[1:])}",
    ]
    out.append(".SH DESCRIPTION")
    paragraph: list[str] = []

    def end_paragraph() -> None:
        if paragraph:
            text = " ".join(paragraph)
            if text.startswith("*Reference. ") and text.endswith("*"):
                text = text.removeprefix("*Reference. ").removesuffix("*")
            out.extend([".PP", format_inline(text)])
            paragraph.clear()

    at = 1
    while at < len(lines):
        line = lines[at]
        if line.startswith("```"):
            end_paragraph()
            close = next(number for number in range(at + 1, len(lines)) if lines[number].startswith("```"))
            out += [".PP", ".RS 4", ".nf", *(escape(code) or "\\&" for code in lines[at + 1 : close]), ".fi", ".RE"]
            at = close
        elif line.startswith("|"):
            end_paragraph()
            close = next((number for number in range(at, len(lines)) if not lines[number].startswith("|")), len(lines))
            out += format_table(lines[at:close])
            at = close - 1
        elif line.startswith("#"):
            end_paragraph()
            level, heading = line.split(" ", 1)
            out.append(f'.{"SH" if level == "##" else "SS"} "{format_inline(heading)}"')
        elif match := re.match(r"(?:[-*]|(\d+)\.) (.*)", line):
            end_paragraph()
            out.append(f".IP {match[1] or chr(92) + '(bu'} 4")
            item = [match[2]]
            while at + 1 < len(lines) and re.match(r"  +\S", lines[at + 1]):
                at += 1
                item.append(lines[at].strip())
            out.append(format_inline(" ".join(item)))
        elif line.strip():
            paragraph.append(line.strip())
        else:
            end_paragraph()
        at += 1
    end_paragraph()
    out += [".SH FILES", ".TP", "/usr/share/doc/thalweg/examples", "Example topologies."]
    out += [".SH SEE ALSO", "thalweg(1), thalweg\\-check(1), thalweg\\-run(1), thalweg\\-doctor(1)"]
    return "\n".join(out) + "\n"


def main() -> None:
    """Prints the man page of the document on the command line."""
    document, name, section = sys.argv[1:]
    root = Path(__file__).resolve().parent.parent
    version = re.search(r'^version = "(.*)"', (root / "Cargo.toml").read_text(), re.M)
    print(format_page(Path(document).read_text(), name, section, f"thalweg {version[1] if version else ''}"), end="")


if __name__ == "__main__":
    main()
