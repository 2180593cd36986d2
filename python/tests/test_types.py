"""Checks of the package's type annotations, for each version of Python."""

from __future__ import annotations

import subprocess
import sys

import pytest
from conftest import ROOT


def check(*command: str) -> None:
    """Runs a type checker, and fails with its output."""
    ended = subprocess.run(
        [sys.executable, "-m", *command], cwd=ROOT, capture_output=True, text=True, check=False, timeout=300
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr


# The oldest supported version and the newest.
@pytest.mark.parametrize("version", ["3.10", "3.13"])
def test_mypy_finds_nothing(version: str) -> None:
    pytest.importorskip("mypy", reason="mypy is not installed")
    check("mypy", "--python-version", version)


def test_pyright_finds_nothing() -> None:
    pytest.importorskip("pyright", reason="pyright is not installed")
    check("pyright", "--pythonpath", sys.executable)


def test_the_stub_agrees_with_the_extension_module() -> None:
    pytest.importorskip("mypy", reason="mypy is not installed")
    check("mypy.stubtest", "thalweg._thalweg", "--mypy-config-file", "pyproject.toml")
