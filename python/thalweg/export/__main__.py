"""`thalweg export`, and `python -m thalweg.export`."""

from __future__ import annotations

import argparse
import json
import sys
import time
import warnings

import thalweg
from thalweg.export import FORMATS, Exported, ExportError, Progress, export

# Seconds from one look at the progress to the next.
REDRAW = 0.1
# Exit codes, as the program has them: it failed, the request is impossible, SIGINT ended it.
FAILED, USAGE, INTERRUPTED = 1, 2, 130


def main(program: str = "python -m thalweg.export", words: list[str] | None = None) -> int:
    """Exports as the words of a command say, and returns the exit code."""
    options = _arguments(program).parse_args(words)
    line = _Line(enabled=sys.stderr.isatty() and not options.quiet)
    begun = time.monotonic()
    try:
        with warnings.catch_warnings():
            # The report has what the run lacks.
            warnings.simplefilter("ignore", thalweg.DamageWarning)
            run = thalweg.open(options.run)
        exported = export(
            run,
            options.to,
            options.out,
            sources=[name for names in options.source for name in names.split(",")] or None,
            events=options.event,
            compression=options.compression,
            force=options.force,
            progress=line.draw,
        )
    except KeyboardInterrupt:
        return _fail("interrupted; the same command continues from here", INTERRUPTED, options.json, line)
    except (ExportError, ValueError, KeyError, ImportError) as error:
        text = error.args[0] if isinstance(error, KeyError) else error
        return _fail(str(text), USAGE, options.json, line)
    except thalweg.RunError as error:
        code = USAGE if " is not a run" in str(error) else FAILED
        return _fail(str(error), code, options.json, line)
    except OSError as error:
        return _fail(f"writing: {error}", FAILED, options.json, line)
    line.clear()
    seconds = time.monotonic() - begun
    print(_report_json(exported, seconds) if options.json else "\n".join(_report(exported, seconds)))
    return FAILED if exported.damaged else 0


def _arguments(program: str) -> argparse.ArgumentParser:
    arguments = argparse.ArgumentParser(prog=program, description="Writes a run as a file of another format")
    arguments.add_argument("run", metavar="RUN", help="a run's directory, or its URL on a data server")
    arguments.add_argument("--to", required=True, choices=tuple(FORMATS), help="format of the export")
    arguments.add_argument("--out", metavar="PATH", help="file or folder to write")
    arguments.add_argument(
        "--event", "--events", metavar="E|A..B", help="only this event, or those from A on, before B"
    )
    arguments.add_argument(
        "--source", metavar="SOURCE", action="append", default=[], help="only this source, by its name or id"
    )
    arguments.add_argument("--compression", choices=("none", "gzip"), default="none", help="compress the data")
    arguments.add_argument("--force", action="store_true", help="replace what is at PATH")
    arguments.add_argument("--json", action="store_true", help="print one JSON object as the last line")
    arguments.add_argument("-q", "--quiet", action="store_true", help="no progress")
    return arguments


class _Line:
    """The line on a terminal that shows how far the export is."""

    def __init__(self, *, enabled: bool) -> None:
        self._enabled, self._drawn = enabled, 0.0
        self._begun = time.monotonic()
        self._first: int | None = None

    def draw(self, progress: Progress) -> None:
        """Draws the line anew, a few times a second."""
        now = time.monotonic()
        self._first = progress.bytes if self._first is None else self._first
        if not self._enabled or now - self._drawn < REDRAW:
            return
        self._drawn = now
        rate = (progress.bytes - self._first) / max(now - self._begun, 1e-3)
        share = 100 * progress.events // max(progress.all_events, 1)
        text = (
            f"exporting {share} %, {_count(progress.events)} of {_count(progress.all_events)} events, {_size(rate)}/s"
        )
        print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)

    def clear(self) -> None:
        """Removes the line."""
        if self._drawn:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)


def _fail(text: str, code: int, as_json: bool, line: _Line) -> int:
    line.clear()
    print(f"thalweg: {_printable(text)}", file=sys.stderr)
    if as_json:
        print(json.dumps({"error": text}))
    return code


def _report_json(exported: Exported, seconds: float) -> str:
    return json.dumps(vars(exported) | {"path": str(exported.path), "seconds": seconds})


def _report(exported: Exported, seconds: float) -> list[str]:
    """Returns what was exported, in lines."""
    rate = f"{_size(exported.bytes / max(seconds, 1e-3))}/s"
    first = (
        f"{exported.path}: {_number(exported.events, 'event')}, {_number(exported.fragments, 'fragment')}, "
        f"{_size(exported.bytes)} in {seconds:.1f} s ({rate})"
    )
    lines = [_printable(first)]
    if exported.resumed_events:
        lines.append(f"  {_number(exported.resumed_events, 'event')} of them by an earlier try")
    if exported.missing:
        lines.append(f"  {_number(exported.missing, 'fragment')} missing in the run: listed with the reason")
    if exported.damaged:
        lines.append(f"  {_number(exported.damaged, 'fragment')} DAMAGED, and left out: listed with the reason")
        lines += [f"    {_printable(problem)}" for problem in exported.problems]
    if exported.state == "OPEN":
        lines.append("  the run is OPEN: it has not ended, or its writer died; this is what it had")
    return lines


def _number(number: int, noun: str) -> str:
    return f"{_count(number)} {noun}{'' if number == 1 else 's'}"


def _count(number: int) -> str:
    return f"{number:,}"


def _size(size: float) -> str:
    """Returns a number of bytes in decimal units, of three digits."""
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if size < 999.5 or unit == "TB":
            break
        size /= 1000
    digits = 0 if unit == "B" or size >= 99.5 else 1 if size >= 9.95 else 2
    return f"{size:.{digits}f} {unit}"


def _printable(text: str) -> str:
    """Returns a text from a file or a server without what controls a terminal."""
    return "".join(letter if letter.isprintable() else "�" for letter in text)


if __name__ == "__main__":
    sys.exit(main())
