"""Docstrings of the public names: all have one, and the examples in them are correct."""

from __future__ import annotations

import doctest
import inspect
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy
import pytest

import thalweg

if TYPE_CHECKING:
    from conftest import Written

# Names that Python defines and documents.
PYTHONS = {"__new__", "__repr__", "__reduce__", "__module__", "__doc__", "__weakref__"}


def documented() -> Iterator[tuple[str, object]]:
    """Yields the package, its public names, and their public members."""
    yield "thalweg", thalweg
    for name in thalweg.__all__:
        item = getattr(thalweg, name)
        if isinstance(item, str):
            continue
        yield f"thalweg.{name}", item
        if inspect.isclass(item) and not issubclass(item, BaseException):
            for member, value in vars(item).items():
                if member not in PYTHONS and (not member.startswith("_") or callable(value)):
                    yield f"thalweg.{name}.{member}", value


# Sorted, since the members of a class of an extension module have no fixed order, and pytest needs one.
MEMBERS = dict(sorted(documented()))


@pytest.mark.parametrize("name", MEMBERS)
def test_every_public_name_has_a_docstring(name: str) -> None:
    text = inspect.getdoc(MEMBERS[name])
    assert text
    # Python shows docstrings as plain text, without markup.
    assert "```" not in text
    assert "[`" not in text


def test_dask_has_docstrings() -> None:
    pytest.importorskip("dask", reason="Dask is not installed")
    import thalweg.dask

    for item in (thalweg.dask, thalweg.dask.events, thalweg.dask.array):
        assert inspect.getdoc(item)


@pytest.fixture(scope="module")
def demo(record: Callable[..., Written], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Directory with `demo/run-000001`, recorded as in the docstring of the package."""
    folder = tmp_path_factory.mktemp("docstrings")
    record("--sources", 2, "--size", "10KiB", "--rate", 1000, events=1000, out=folder / "demo")
    return folder


EXAMPLES = [name for name, item in MEMBERS.items() if ">>> " in (inspect.getdoc(item) or "")]


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_is_correct(name: str, demo: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pandas", reason="pandas is not installed")
    pytest.importorskip("xarray", reason="xarray is not installed")
    monkeypatch.chdir(demo)
    text = inspect.getdoc(MEMBERS[name]) or ""
    test = doctest.DocTestParser().get_doctest(text, {"thalweg": thalweg, "numpy": numpy}, name, None, None)
    failures: list[str] = []
    doctest.DocTestRunner(verbose=False).run(test, out=failures.append)
    assert not failures, "".join(failures)


def test_the_examples_are_found() -> None:
    assert {"thalweg", "thalweg.open", "thalweg.Run", "thalweg.Event", "thalweg.Fragment"} <= set(EXAMPLES)
