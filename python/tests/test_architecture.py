"""Comparison of the crates with docs/architecture.md."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

tomllib = pytest.importorskip("tomllib", reason="Python is older than 3.11")

ROOT = Path(__file__).parents[2]
ROW = re.compile(r"^\| (\d) \| `(thalweg[a-z-]*)` \|.*\| ([^|]+) \|$", re.M)
CRATES = {
    name: (int(floor), unsafe) for floor, name, unsafe in ROW.findall((ROOT / "docs/architecture.md").read_text())
}


def test_every_crate_has_a_row() -> None:
    there = {tomllib.loads(file.read_text())["package"]["name"] for file in ROOT.glob("crates/*/Cargo.toml")}
    assert there == CRATES.keys()


@pytest.mark.parametrize("crate", CRATES)
def test_a_crate_uses_only_crates_on_lower_floors(crate: str) -> None:
    manifest = tomllib.loads((ROOT / "crates" / crate / "Cargo.toml").read_text())
    used = [name for name in manifest.get("dependencies", {}) if name in CRATES]
    assert {name: CRATES[name][0] for name in used if CRATES[name][0] >= CRATES[crate][0]} == {}


@pytest.mark.parametrize("crate", [crate for crate, (_, unsafe) in CRATES.items() if unsafe == "no"])
def test_a_crate_marked_no_forbids_unsafe_code(crate: str) -> None:
    source = ROOT / "crates" / crate / "src"
    first = source / ("lib.rs" if (source / "lib.rs").exists() else "main.rs")
    assert "#![forbid(unsafe_code)]" in first.read_text()


def features(*selection: str) -> dict[str, set[str]]:
    """Returns the features of each crate from a registry with which a selection of packages compiles it."""
    command = ["cargo", "tree", "--locked", "--prefix", "none", "--format", "{p}|{f}", *selection]
    output = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    found: dict[str, set[str]] = {}
    for line in output.stdout.splitlines():
        crate, bar, compiled = line.removesuffix(" (*)").partition("|")
        if bar and "(/" not in crate:
            found.setdefault(crate.removesuffix(" (proc-macro)"), set()).add(compiled)
    return found


@pytest.mark.skipif(shutil.which("cargo") is None, reason="cargo is not here")
def test_build_and_test_compile_each_dependency_with_the_same_features() -> None:
    build = features("--package", "thalweg", "--package", "thalweg-control", "--edges", "normal,build")
    test = features("--workspace", "--edges", "normal,build,dev")
    assert {crate: (of, test[crate]) for crate, of in build.items() if not of <= test[crate]} == {}


FILES = re.compile(r"^//! # Files.*?(?=^(?!//!))", re.M | re.S)
PAGES = {page.parent: FILES.search(page.read_text()) for page in ROOT.glob("crates/*/src/lib.rs")}


@pytest.mark.parametrize("source", [source for source, table in PAGES.items() if table], ids=lambda it: it.parent.name)
def test_a_first_page_shows_all_files(source: Path) -> None:
    table = PAGES[source]
    assert table is not None
    shown = re.findall(r"^//! \| `(\w+)` \|", table[0], re.M)
    there = [file.stem for file in source.glob("*.rs")] + [file.parent.name for file in source.glob("*/mod.rs")]
    assert sorted(shown) == sorted(set(there) - {"lib", "main", "tests"})


WAY = re.compile(r"^\| [^|`]+ \| (`[a-z]+/[^|]+) \| ([^|]+) \|$", re.M)


def test_the_names_on_the_path_of_a_fragment_exist() -> None:
    steps = WAY.findall((ROOT / "docs/architecture.md").read_text())
    assert len(steps) == 11
    sources = "\n".join(file.read_text() for file in ROOT.glob("crates/*/src/**/*.rs"))
    for files, names in steps:
        for file in re.findall(r"`(\w+)/([^`]+)`", files):
            assert (ROOT / f"crates/thalweg-{file[0]}/src" / file[1]).exists(), file
        for owner, name in re.findall(r"`(\w+)::(\w+)`", names):
            assert re.search(rf"\b{owner}\b", sources), owner
            assert re.search(rf"\bfn {name}\b|^    {name}\b", sources, re.M), name
