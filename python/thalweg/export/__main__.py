"""Command line of the export: `thalweg export` and `python -m thalweg.export`."""

from __future__ import annotations

import argparse
import errno
import json
import sys
import time
import warnings

import thalweg
from thalweg.export import FORMATS, Exported, ExportError, Progress, export

# Minimum interval between two updates of the progress line.
REDRAW_SECONDS = 0.1
# Exit code of an export that cannot read the run or write the output, or that left out fragments which the run has.
EXIT_FAILED = 1
# Exit code of an export that is not possible with the given arguments.
EXIT_USAGE = 2
# Exit code after SIGINT (128 + 2, as in shells).
EXIT_INTERRUPTED = 130


def main(program: str = "python -m thalweg.export", words: list[str] | None = None) -> int:
    """Runs the export that the command line `words` (default: sys.argv) describes and returns the exit code."""
    options = _arguments(program).parse_args(words)
    line = _ProgressLine(enabled=sys.stderr.isatty() and not options.quiet)
    begun = time.monotonic()
    try:
        with warnings.catch_warnings():
            # The report lists the damage.
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
        return _fail("interrupted; run the same command again to continue", EXIT_INTERRUPTED, options.json, line)
    except (ExportError, ValueError, KeyError, ImportError) as error:
        text = error.args[0] if isinstance(error, KeyError) else error
        return _fail(str(text), EXIT_USAGE, options.json, line)
    except thalweg.RunError as error:
        code = EXIT_USAGE if " is not a run" in str(error) else EXIT_FAILED
        return _fail(str(error), code, options.json, line)
    except OSError as error:
        hint = "; free space, then run the same command again to continue" if error.errno == errno.ENOSPC else ""
        return _fail(f"cannot write the export: {error}{hint}", EXIT_FAILED, options.json, line)
    line.clear()
    seconds = time.monotonic() - begun
    print(_report_json(exported, seconds) if options.json else "\n".join(_report(exported, seconds)))
    return EXIT_FAILED if exported.damaged or exported.out_of_range else 0


def _arguments(program: str) -> argparse.ArgumentParser:
    arguments = argparse.ArgumentParser(prog=program, description="Exports a run to a file or folder of another format")
    arguments.add_argument("run", metavar="RUN", help="directory of the run, or its URL on a data server")
    arguments.add_argument("--to", required=True, choices=tuple(FORMATS), help="format of the export")
    arguments.add_argument("--out", metavar="PATH", help="file or folder to write (default: run-000042.nxs etc.)")
    arguments.add_argument(
        "--event", "--events", metavar="E|A..B", help="only this event, or those from A up to but not including B"
    )
    arguments.add_argument(
        "--source",
        metavar="SOURCE",
        action="append",
        default=[],
        help="only this source, by name or id; separate several by commas",
    )
    arguments.add_argument("--compression", choices=("none", "gzip"), default="none", help="compression of the data")
    arguments.add_argument("--force", action="store_true", help="replace PATH if it exists")
    arguments.add_argument("--json", action="store_true", help="print the report as JSON")
    arguments.add_argument("-q", "--quiet", action="store_true", help="show no progress")
    return arguments


class _ProgressLine:
    """Line on a terminal that shows the progress of the export."""

    def __init__(self, *, enabled: bool) -> None:
        self._enabled = enabled
        # Time of the last update; 0 before the first one.
        self._drawn_at = 0.0
        self._started_at = time.monotonic()
        # Bytes at the first update, which an interrupted export had read before.
        self._initial_bytes: int | None = None

    def draw(self, progress: Progress) -> None:
        """Updates the line, unless the last update was less than REDRAW_SECONDS ago."""
        now = time.monotonic()
        self._initial_bytes = progress.bytes if self._initial_bytes is None else self._initial_bytes
        if not self._enabled or now - self._drawn_at < REDRAW_SECONDS:
            return
        self._drawn_at = now
        rate = (progress.bytes - self._initial_bytes) / max(now - self._started_at, 1e-3)
        share = 100 * progress.events // max(progress.all_events, 1)
        text = (
            f"exporting {share} %, {_count(progress.events)} of {_count(progress.all_events)} events, {_size(rate)}/s"
        )
        print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)

    def clear(self) -> None:
        """Removes the line."""
        if self._drawn_at:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)


def _fail(text: str, code: int, as_json: bool, line: _ProgressLine) -> int:
    line.clear()
    print(f"thalweg: {_printable(text)}", file=sys.stderr)
    if as_json:
        print(json.dumps({"error": text}))
    return code


def _report_json(exported: Exported, seconds: float) -> str:
    return json.dumps(vars(exported) | {"path": str(exported.path), "seconds": seconds})


def _report(exported: Exported, seconds: float) -> list[str]:
    """Returns the report as lines of text."""
    events = _number(exported.events, "event")
    if exported.damaged_events:
        events = f"{_count(exported.events - exported.damaged_events)} of {events}"
    contents = f"{exported.path}: {events}, {_number(exported.fragments, 'fragment')}, {_size(exported.bytes)}"
    new_bytes = exported.bytes - exported.resumed_bytes
    speed = f"in {seconds:.1f} s ({_size(new_bytes / max(seconds, 1e-3))}/s)"
    if exported.resumed_events:
        resumed = _number(exported.resumed_events, "event")
        lines = [_printable(contents), f"  continued an interrupted export of {resumed}: {_size(new_bytes)} {speed}"]
    else:
        lines = [_printable(f"{contents} {speed}")]
    if exported.missing:
        lines.append(
            f"  {_number(exported.missing, 'fragment')} missing in the run: the export lists them with the reasons"
        )
    if exported.damaged:
        lines.append(
            f"  {_number(exported.damaged, 'fragment')} DAMAGED and left out: the export lists them with the reasons"
        )
        lines += [f"    {_printable(problem)}" for problem in exported.problems]
    if exported.out_of_range:
        lines.append(
            f"  {_number(exported.out_of_range, 'fragment')} left out, with a time after the year 2262: "
            "the export lists them with the reason time-out-of-range"
        )
    if exported.state == "OPEN":
        lines.append(
            "  the run is OPEN: it is still being recorded, or its builder died; events up to now were exported"
        )
    return lines


def _number(number: int, noun: str) -> str:
    """Returns a number with its noun in singular or plural."""
    return f"{_count(number)} {noun}{'' if number == 1 else 's'}"


def _count(number: int) -> str:
    return f"{number:,}"


def _size(size: float) -> str:
    """Returns a number of bytes in decimal units with three significant digits, such as 20.5 MB."""
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if size < 999.5 or unit == "TB":
            break
        size /= 1000
    digits = 0 if unit == "B" or size >= 99.5 else 1 if size >= 9.95 else 2
    return f"{size:.{digits}f} {unit}"


def _printable(text: str) -> str:
    """Replaces control characters, which a text from a file or server may contain to control the terminal."""
    return "".join(letter if letter.isprintable() else "�" for letter in text)


if __name__ == "__main__":
    sys.exit(main())
