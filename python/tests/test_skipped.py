"""List of skipped tests, and its check against those allowed: scripts/test.py and .ci/check_skips.py."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def run(*command: object, at: Path) -> tuple[int, list[str]]:
    """Runs a script, and returns its exit code and the lines that it printed."""
    ours = ("MAKEFLAGS", "THALWEG_SKIPPED", "PYTEST_XDIST_WORKER")
    environment = {name: value for name, value in os.environ.items() if name not in ours}
    environment["CARGO_TARGET_DIR"] = str(at / "target")
    words = [sys.executable, *map(str, command)]
    ended = subprocess.run(words, cwd=at, env=environment, capture_output=True, text=True, check=False)
    assert not ended.stderr, ended.stderr
    return ended.returncode, ended.stdout.splitlines()


@pytest.fixture
def steps(tmp_path: Path) -> Path:
    """Directory with a Makefile whose steps print the same as cargo and pytest."""
    nextest = "     Summary [   0.012s] 6 tests run: 4 passed (1 slow), 2 failed, 0 skipped"
    libtest = "test result: ok. 5 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.01s"
    lines = [
        f"rust:\n\t@echo '{libtest}'\n\t@printf 'crate a::test\\tno device\\n' >>$$THALWEG_SKIPPED",
        f"test-loom:\n\t@echo '{libtest}'",
        f"broken:\n\t@printf '    a::test\\n{libtest.replace('0 failed', '2 failed')}\\n'; false",
        "pool:\n\t@echo '        FAIL [   0.004s] (2/6) crate::it a::test'; "
        f"echo '{nextest}'; printf 'crate a::test\\tno device\\n' >>$$THALWEG_SKIPPED; false",
        "nothing:\n\t@false",
        "python:\n\t@echo '=== 7 passed, 1 skipped in 0.10s ==='\n\t@printf 'python b\\tx\\n' >>$$THALWEG_SKIPPED",
        f"step:\n\t@{ROOT}/scripts/skip.sh step 'no program'",
    ]
    (tmp_path / "Makefile").write_text("\n".join(lines) + "\n")
    return tmp_path


def test_the_summary_counts_tests_and_lists_skipped_ones(steps: Path) -> None:
    code, output = run(ROOT / "scripts/test.py", "rust", "test-loom", "python", "step", at=steps)
    assert code == 0
    assert output[-1] == "16 passed, 0 failed, 3 skipped"
    assert {"crate a::test: no device", "python b: x", "make step: no program"} < set(output)
    assert "== Tests that ran: Rust 4, loom 5, Python 7" in output


def test_a_step_that_fails_does_not_hide_what_was_skipped(steps: Path) -> None:
    code, output = run(ROOT / "scripts/test.py", "nothing", "rust", "broken", "step", at=steps)
    assert code == 1
    # The test that skipped a part has failed, and is not counted twice.
    assert output[-1] == "10 passed, 3 failed, 1 skipped"
    assert {"crate a::test: no device", "make step: no program", "== Failed: make nothing, make broken"} < set(output)


def test_the_counts_of_nextest_are_used(steps: Path) -> None:
    code, output = run(ROOT / "scripts/test.py", "pool", "rust", at=steps)
    assert code == 1
    assert output[-1] == "9 passed, 2 failed, 0 skipped"
    assert "== Tests that ran: Rust 11" in output


def test_no_test_is_ignored() -> None:
    sources = [*ROOT.glob("crates/**/*.rs"), *ROOT.glob("examples/**/*.rs")]
    assert len(sources) > 100
    # An example in a document that is marked as ignored counts as an ignored test.
    ignored = re.compile(r"#\[ignore|```(rust,)?ignore")
    assert [str(source) for source in sources if ignored.search(source.read_text())] == []


def test_tests_skipped_in_an_earlier_run_are_not_listed(steps: Path) -> None:
    run(ROOT / "scripts/test.py", "step", at=steps)
    assert run(ROOT / "scripts/test.py", "test-loom", at=steps)[1][-1] == "5 passed, 0 failed, 0 skipped"


def test_python_tests_report_what_they_skip(tmp_path: Path) -> None:
    shutil.copy(ROOT / "python/tests/conftest.py", tmp_path)
    (tmp_path / "test_some.py").write_text(
        "import pytest\ndef test_a(): pytest.skip('no\\tdevice')\ndef test_b(): pass\n"
    )
    (tmp_path / "test_none.py").write_text("import pytest\npytest.importorskip('unknown', reason='no unknown')\n")
    (tmp_path / "Makefile").write_text(f"python:\n\t@{sys.executable} -m pytest --rootdir . -p no:cacheprovider\n")
    code, output = run(ROOT / "scripts/test.py", "python", at=tmp_path)
    assert (code, output[-1]) == (0, "1 passed, 0 failed, 2 skipped")
    assert {"python test_some.py::test_a: no device", "python test_none.py: no unknown"} < set(output)


def check(at: Path, skipped: str, may_skip: str) -> tuple[int, list[str]]:
    """Returns exit code and output of .ci/check_skips.py for two files."""
    (at / "skipped").write_text(skipped)
    (at / "may-skip").write_text(may_skip)
    return run(ROOT / ".ci/check_skips.py", "skipped", "may-skip", at=at)


def test_only_listed_tests_may_be_skipped(tmp_path: Path) -> None:
    listed = "# A comment.\n\n*: no device [a] # there is none\n*: other # never\n"
    code, output = check(tmp_path, "crate a::test\tno device [a]\n", listed)
    assert code == 0
    assert output == ["may be skipped, and was: *: no device [a] # there is none", "note: nothing matched *: other"]
    code, output = check(tmp_path, "crate a::test\tno device [a]\ncrate b\t/dev/fuse: No such file\n", listed)
    assert code == 1
    assert "skipped, and may not be: crate b: /dev/fuse: No such file" in output
    assert check(tmp_path, "", listed)[0] == 0


def test_an_entry_without_a_reason_is_refused(tmp_path: Path) -> None:
    code, output = check(tmp_path, "", "*\n")
    assert code == 2
    assert output == ["may-skip:1: an entry is `PATTERN # why`, not `*`"]


def test_the_list_itself_can_be_read_and_allows_neither_fuse_nor_the_kernel_to_be_missing(tmp_path: Path) -> None:
    listed = (ROOT / ".ci/may-skip").read_text()
    assert check(tmp_path, "", listed)[0] == 0
    for reason in ["mount: /dev/fuse: No such file", "no kernel in the cache; `thalweg lab build` makes one"]:
        assert check(tmp_path, f"thalweg a_test\t{reason}\n", listed)[0] == 1
