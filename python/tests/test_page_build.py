"""Page of run control as it is committed: built from its sources, of sound types."""

from __future__ import annotations

import shutil
import subprocess

import pytest
from conftest import ROOT

PAGE = ROOT / "crates" / "thalweg-control" / "page"


@pytest.mark.parametrize("step", ["verify", "check", "test"])
def test_the_page_is_what_its_sources_give(step: str) -> None:
    npm = shutil.which("npm")
    if npm is None:
        pytest.skip("npm is not installed")
    if not (PAGE / "node_modules").exists():
        pytest.skip(f"the page's packages are not installed (npm ci --prefix {PAGE.relative_to(ROOT)})")
    ended = subprocess.run([npm, "run", step], cwd=PAGE, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
