"""Execution of the notebook in `examples/`, which is kept without outputs."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from conftest import ROOT

nbclient, nbformat, *_ = (
    pytest.importorskip(needed, reason=f"{needed} is not installed")
    for needed in ("nbclient", "nbformat", "ipykernel", "matplotlib", "pandas", "xarray")
)

NOTEBOOK = ROOT / "examples" / "first_hour.ipynb"


def test_the_notebook_is_kept_without_outputs() -> None:
    for cell in nbformat.read(NOTEBOOK, as_version=4).cells:
        assert not cell.get("outputs")
        assert cell.get("execution_count") is None


def test_the_notebook_runs(program: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", f"{program.resolve().parent}{os.pathsep}{os.environ['PATH']}")
    # The files that the notebook and its kernel write are removed with the test.
    for name in ("TMPDIR", "HOME", "IPYTHONDIR", "JUPYTER_RUNTIME_DIR", "MPLCONFIGDIR"):
        monkeypatch.setenv(name, str(tmp_path))
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    nbclient.NotebookClient(notebook, timeout=120, resources={"metadata": {"path": str(tmp_path)}}).execute()
    shown = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    assert not [output for output in shown if output.get("name") == "stderr"]
    pages = [output["data"]["text/html"] for output in shown if "text/html" in output.get("data", {})]
    assert "<b>COMPLETE</b>" in pages[0]
    (incomplete,) = [page for page in pages if "<b>INCOMPLETE</b>" in page]
    assert "<th>skipped</th>" in incomplete
    assert sum("image/png" in output.get("data", {}) for output in shown) == 4
    text = "".join(output.get("text", "") for output in shown)
    assert "10 events lack a fragment; the first is <thalweg.Event 3 of run 2: incomplete, 1.0; missing 2.0>" in text
    assert "KeyError: 'event 3 has no fragment of source 2.0" in text
    assert "{'event': 90, 'row': 48, 'column': 64}" in text
