"""The documentation as a site: every page is in it, and every link has a target."""

from __future__ import annotations

import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urldefrag

import pytest
from conftest import ROOT

# Link targets that are files of the repository, not pages.
REPOSITORY = "https://github.com/thalweg-daq/thalweg/blob/main/"
# Directories that `make site` adds to the pages.
BESIDE = ("python/", "rust/")


class Page(HTMLParser):
    """Links of a page, and its anchors."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: set[str] = set()
        self.anchors: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Records the links and anchors of an element."""
        for name, value in attrs:
            if name in ("href", "src") and value:
                self.links.add(value)
            if name in ("id", "name") and value:
                self.anchors.add(value)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Directory of the built site."""
    if not shutil.which("mdbook"):
        pytest.skip("mdbook is not installed (make venv-test installs it into .venv)")
    directory = tmp_path_factory.mktemp("site")
    built = subprocess.run(
        ["mdbook", "build", "--dest-dir", directory, ROOT], capture_output=True, text=True, check=False
    )
    assert built.returncode == 0, built.stderr
    return directory.resolve()


def test_every_page_is_in_the_site() -> None:
    summary = (ROOT / "docs/SUMMARY.md").read_text()
    pages = {page.name for page in (ROOT / "docs").glob("*.md")} - {"SUMMARY.md"}
    assert {page for page in pages if f"({page})" not in summary} == set()


def test_every_link_has_a_target(site: Path) -> None:
    pages = {page.relative_to(site): Page(page.read_text()) for page in site.rglob("*.html")}
    lost = []
    for name, page in pages.items():
        if name.name in ("print.html", "404.html", "toc.html"):
            continue
        for link in page.links:
            where, anchor = urldefrag(unquote(link))
            if where.startswith(REPOSITORY) and not (ROOT / where.removeprefix(REPOSITORY)).exists():
                lost.append(f"{name}: {link}")
            if "://" in link or link.startswith(("mailto:", "data:", "javascript:", *BESIDE)):
                continue
            target = ((site / name).parent / where if where else site / name).resolve()
            known = pages.get(target.relative_to(site)) if target.is_relative_to(site) else None
            if (
                not target.is_relative_to(site)
                or not target.exists()
                or (anchor and known and anchor not in known.anchors)
            ):
                lost.append(f"{name}: {link}")
    assert lost == []
