"""Execution of the commands in the documents: scripts/documents.py types them and compares their output."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import ROOT

sys.path.insert(0, str(ROOT / "scripts"))

import documents

# The pages on Python are run by test_docs.py and test_image.py, in an interpreter.
PAGES = {
    page: documents.parts(page.read_text())
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
    if page.name != "python.md"
}
RUN = [page for page, parts in PAGES.items() if any(isinstance(part, documents.Command) for part in parts)]
LEFT_OUT = [(page, part) for page, parts in PAGES.items() for part in parts if isinstance(part, documents.Skipped)]


@pytest.mark.parametrize("page", RUN, ids=lambda page: page.stem)
def test_the_commands_of_a_page_print_what_it_shows(page: Path, program: Path) -> None:
    for needed in ("unshare", "ip", "pkill", "curl", "wget", "aria2c", "jq", "openssl", "fusermount3"):
        if shutil.which(needed, path=f"{os.environ['PATH']}:/usr/sbin:/sbin") is None:
            pytest.skip(f"{needed} is not installed")
    if subprocess.run([*documents.INSIDE, "true"], capture_output=True, check=False).returncode != 0:
        pytest.skip("a network of its own cannot be had here (unshare --net)")
    command = [sys.executable, str(ROOT / "scripts/documents.py"), str(page)]
    ended = subprocess.run(
        command, env=os.environ | {"THALWEG_BIN": str(program)}, capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr


@pytest.mark.parametrize(("page", "part"), LEFT_OUT, ids=[f"{page.stem}-{part.line}" for page, part in LEFT_OUT])
def test_a_part_that_is_not_run_states_the_reason(page: Path, part: documents.Skipped) -> None:
    assert len(part.why.split()) > 2
    pytest.skip(f"documents: {page.name}: {part.why}")


SHOWN = "  600 events (0 incomplete), … MB in 3.06 s"


@pytest.mark.parametrize(
    ("printed", "as_shown"),
    [
        ("  601 events (0 incomplete), 315 MB in 2.97 s", True),
        ("  400 events (0 incomplete), 315 MB in 2.97 s", False),
        ("  600 events (1 incomplete), 315 MB in 2.97 s", False),
        ("  600 events (0 incomplete), 315 MB in 2.97 ms", False),
    ],
)
def test_counts_are_compared_and_times_are_not(printed: str, as_shown: bool) -> None:
    assert documents.agrees(SHOWN, printed) == as_shown


def test_a_source_is_never_taken_for_another() -> None:
    assert not documents.agrees("1.1 adc-1", "1.0 adc-1")
    assert not documents.agrees("on disk: runs/run-000002", "on disk: runs/run-000003")
    assert documents.agrees("began 2026-11-21 20:43:24 UTC", "began 2027-01-01 00:00:00 UTC")


def test_a_gap_stands_for_lines_and_only_there() -> None:
    assert documents.matches(["a", "…", "d"], ["a", "b", "c", "d"])
    assert documents.matches(["a", "…"], ["a"])
    assert not documents.matches(["a", "…", "d"], ["a", "b", "d", "e"])
    assert not documents.matches(["a"], ["a", "b"])


def test_dead_time_is_of_the_machine_and_not_of_the_page() -> None:
    printed = [
        "run 1: COMPLETE",
        "  dead time: fragments not taken: 1.0 20 (all slots full for 0.0 s),",
        "             1.1 13 in 0.0 s",
        "  6 events",
    ]
    assert documents.matches(["run 1: COMPLETE", "  6 events"], printed)
    assert not documents.matches(["run 1: COMPLETE", "  7 events"], printed)
    assert not documents.matches(["run 1: COMPLETE", "  dead time: none", "  6 events"], printed)


def test_what_limited_a_run_is_of_the_machine_and_not_of_the_page() -> None:
    shown = ["run 1: COMPLETE", "  offered 8 Mbit/s, carried 8 Mbit/s: the sources offered no more", "  6 events"]
    printed = [
        "run 1: COMPLETE",
        "  the sources had more than was taken; carried 1.39 Gbit/s: limited by the link",
        "  tcp:127.0.0.1:40245, whose data 'builder' waited for 20 % of the time",
        "  6 events",
    ]
    assert documents.matches(shown, printed)
    assert not documents.matches(shown, [*printed[:-1], "  7 events"])


def test_gaps_are_kept_when_a_page_is_updated() -> None:
    written = documents.rewritten(["a 7", "…", "d … f", "g"], ["a 8", "b", "c", "d e f", "h"])
    assert written == ["a 8", "b", "c", "d … f", "h"] or written == ["…", "d … f", "h"]
    assert documents.rewritten(["a", "…", "d"], ["a", "b", "c", "d", "e"]) == ["a", "…", "d", "e"]
