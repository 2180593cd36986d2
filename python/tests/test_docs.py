"""Execution of the Python examples in docs/python.md and the READMEs."""

from __future__ import annotations

import doctest
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from conftest import ROOT
from handmade import MISSING, NO_PAYLOAD_CRC, SAMPLES_I16, Record, block, write_run

if TYPE_CHECKING:
    from conftest import Written

BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.M | re.S)
DEMO = "$ thalweg demo --sources 2 --size 10KiB --rate 1000 --duration 1s --out demo"


@pytest.fixture
def demo(record: Callable[..., Written], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Directory with the run that DEMO records."""
    record(*DEMO.split()[3:-2], events=1000, out=tmp_path / "demo")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_examples_of_the_page_are_correct(demo: Path, program: Path, serve: Callable[..., str]) -> None:
    for needed in ("pandas", "xarray"):
        pytest.importorskip(needed, reason=f"{needed} is not installed")
    started: list[subprocess.Popen[bytes]] = []
    known: dict[str, Any] = {}
    base = "http://127.0.0.1:8042"
    blocks = BLOCK.findall((ROOT / "docs/python.md").read_text())
    for kind, text in blocks:
        match kind, text.strip():
            case "toml", _:
                (demo / "push.toml").write_text(text)
            case "console", "$ thalweg run push.toml &":
                started.append(subprocess.Popen([program, "run", "push.toml"], stdout=subprocess.DEVNULL))
            case "console", "$ thalweg serve demo &":
                base = serve(demo / "demo")
            case "console", command:
                assert command == DEMO or command.startswith("$ pip install thalweg ")
            case "pycon", _:
                if "run-000002" in text:
                    assert [run.wait(timeout=60) for run in started] == [1], "the run that was pushed is INCOMPLETE"
                shows(text.replace("http://127.0.0.1:8042", base), known)
            case _:
                pytest.fail(f"a block of {kind}")
    assert [kind for kind, _ in blocks].count("pycon") == 11
    assert started


def shows(text: str, known: dict[str, Any]) -> None:
    """Runs the lines after `>>>`, and compares their output."""
    test = doctest.DocTestParser().get_doctest(text, known, "docs/python.md", None, None)
    failures: list[str] = []
    doctest.DocTestRunner(verbose=False, optionflags=doctest.ELLIPSIS).run(test, out=failures.append, clear_globs=False)
    known.update(test.globs)
    assert not failures, "".join(failures)


@pytest.mark.parametrize("page", ["README.md", "python/README.md"])
def test_the_first_snippet_works_on_an_incomplete_run(
    page: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    records = [Record(event, "1.0", b"ab", SAMPLES_I16, timestamp=event) for event in range(2)]
    records += [Record(0, "2.0", status=MISSING | NO_PAYLOAD_CRC), Record(1, "2.0", b"ab", SAMPLES_I16)]
    run = write_run(tmp_path / "run", [block(7, 0, records, [(0, 1, 1, 1), (1, 1, 1, 0)])], {"1.0": {}, "2.0": {}})
    snippet = next(text for kind, text in BLOCK.findall((ROOT / page).read_text()) if kind == "python")
    snippet, named = re.subn(r'(thalweg\.open)\("[^"]+"\)', rf'\1("{run}")', snippet)
    assert named == 1
    exec(compile(snippet, page, "exec"), {})
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[:2] for line in lines][-3:] == [["0", "1.0"], ["1", "1.0"], ["1", "2.0"]]
