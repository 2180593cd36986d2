"""Each package is installed into an empty place, records a run there, and goes again without a trace.

`make test-dist` makes the packages of the program as tests build it, and runs this.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import venv
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DIST = ROOT / "dist"
# What every package must be able to do.
DEMO = "thalweg demo --size 64KiB --rate 100 --duration 1s && thalweg verify runs/run-000001"
INSTRUMENT = ["bench", "copy", "--sizes", "64KiB", "--min-time", "50ms"]


def package(pattern: str) -> Path:
    """The one package of a kind."""
    (found,) = DIST.glob(pattern)
    return found


def said(*command: str | Path, **options: object) -> str:
    """What a command prints; where it fails, the test does, with what it said."""
    ended = subprocess.run(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False, **options)
    assert ended.returncode == 0, f"{command}: {ended.stdout}"
    return ended.stdout


def test_the_checksums_are_those_of_the_packages() -> None:
    lines = [line.split("  ") for line in (DIST / "SHA256SUMS").read_text().splitlines()]
    assert {name for _, name in lines} == {file.name for file in DIST.iterdir()} - {"SHA256SUMS"}
    assert all(hashlib.sha256((DIST / name).read_bytes()).hexdigest() == digest for digest, name in lines)


def test_a_wheel_in_an_empty_venv_is_the_program_and_the_package(tmp_path: Path) -> None:
    venv.create(tmp_path / "venv", with_pip=True)
    bin = tmp_path / "venv/bin"
    said(bin / "pip", "install", "--quiet", package("*.whl"))
    # Nothing else of this machine: neither a compiler nor another thalweg.
    alone = {"PATH": f"{bin}:/usr/bin:/bin", "HOME": str(tmp_path)}
    told = said("bash", "-c", DEMO, cwd=tmp_path, env=alone)
    assert "run 1: COMPLETE" in told
    assert "COMPLETE, intact" in told
    read = "import thalweg; print(thalweg.__version__, sum(1 for _ in thalweg.open('runs/run-000001')))"
    version, events = said(bin / "python", "-c", read, cwd=tmp_path, env=alone).split()
    assert int(events) > 0
    assert said(bin / "thalweg", "--version", env=alone).startswith(f"thalweg {version} (")
    # The instruments are a program beside it.
    assert "64 KiB" in said(bin / "thalweg", *INSTRUMENT, env=alone)
    share = tmp_path / "venv/share"
    assert {"thalweg.1", "thalweg-lab-camera.1"} <= {page.name for page in (share / "man/man1").iterdir()}
    assert (share / "man/man5/thalweg-topology.5").exists()
    try_examples(share / "doc/thalweg/examples", tmp_path / "examples", bin, alone)


def try_examples(installed: Path, copy: Path, bin: Path, environment: dict[str, str]) -> None:
    """Copies the installed examples, and runs those that need neither other hosts nor further packages."""
    shutil.copytree(installed, copy)
    for topology in copy.glob("*.toml"):
        # The recording of this one is the reader's own.
        if topology.name != "replay.toml":
            said(bin / "thalweg", "check", "--file-only", topology, cwd=copy, env=environment)
    # One of its sources drops what a busy machine cannot take at its rate.
    example = (copy / "one-host.toml").read_text().replace("rate = 1000.0", "rate = 20.0").replace('"5s"', '"1s"')
    # Other tests check this topology, and listen at its port for that.
    (copy / "one-host.toml").write_text(example.replace(":7700", ":0"))
    assert "COMPLETE" in said(bin / "thalweg", "run", "one-host.toml", cwd=copy, env=environment)
    # Emulated cameras, of smaller images and slower than in the example, for a busy machine.
    said(bin / "python", "beam_images.py", "--width", "320", ".", cwd=copy, env=environment)
    example = (copy / "interferometer.toml").read_text().replace("rate = 100 ", "rate = 10 ")
    (copy / "interferometer.toml").write_text(example.replace("events = 500", "events = 10").replace(":7720", ":0"))
    command = [bin / "thalweg-lab", "--json", "camera", "--rate", "10", copy / "interferometer.npy"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as cameras:
        try:
            assert cameras.stdout is not None
            assert len(json.loads(cameras.stdout.readline())["cameras"]) == 1
            assert "COMPLETE" in said(bin / "thalweg", "run", "interferometer.toml", cwd=copy, env=environment)
        finally:
            cameras.kill()


class System:
    """A Debian system of its own, in a directory."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def run(self, commands: str) -> str:
        """What these print in it, with mounts that go when they have ended."""
        mounts = "".join(f"mount --rbind /{name} {self.root}/{name} && " for name in ("dev", "proc", "sys"))
        # Packages of PyPI and Debian are fetched from where this machine fetches them.
        shutil.copy("/etc/resolv.conf", self.root / "etc/resolv.conf")
        inside = ["chroot", self.root, "bash", "-ec", f"cd /root; export DEBIAN_FRONTEND=noninteractive; {commands}"]
        mounted = ["unshare", "--mount", "--propagation", "private", "bash", "-c", f'{mounts}exec "$@"', "-", *inside]
        clean = {key: os.environ[key] for key in ("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY") if key in os.environ}
        return said(
            *mounted, env={**clean, "PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root", "LANG": "C.UTF-8"}
        )

    def files(self) -> set[str]:
        """Everything in it that a package could have left."""
        passing = ("var/cache", "var/lib/apt", "var/log", "root", "tmp", "run", "proc", "sys", "dev", "etc/resolv.conf")
        all = (str(path.relative_to(self.root)) for path in self.root.rglob("*"))
        return {name for name in all if not name.startswith(passing) and "__pycache__" not in name}


@pytest.fixture(params=["bookworm", "trixie"])
def system(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[System]:
    """Debian 12 and 13 with nothing in them."""
    if os.geteuid() != 0 or not shutil.which("mmdebstrap"):
        pytest.skip("an empty Debian is made with mmdebstrap, by root")
    root = tmp_path / "root"
    # `man` and systemd are there to be asked what they think of pages and units.
    said(
        "mmdebstrap",
        "--variant=apt",
        "--include=systemd,man-db,passwd",
        "--skip=cleanup/apt/lists",
        request.param,
        root,
    )
    yield System(root)
    shutil.rmtree(root)


def test_a_deb_on_a_bare_system_records_a_run_and_goes_without_a_trace(system: System) -> None:
    before = system.files()
    shutil.copy(package("*.deb"), system.root / "root/thalweg.deb")
    system.run("apt-get install -y --no-install-recommends ./thalweg.deb")
    told = system.run(f"thalweg --version; {DEMO}")
    assert re.match(r"thalweg \d+\.\d+\.\d+ \(", told)
    assert "COMPLETE, intact" in told
    for section in ("EXAMPLES", "EXIT STATUS", "FILES", "ENVIRONMENT", "SEE ALSO"):
        assert section in system.run("man thalweg")
    # Every page is without warnings of man's.
    assert (
        system.run("for page in /usr/share/man/man[15]/thalweg*; do man --warnings -l $page 2>&1 >/dev/null; done")
        == ""
    )
    assert "assignment" in system.run("man 5 thalweg-topology")
    documents = "/usr/share/doc/thalweg"
    assert "<title>" in system.run(f"head -n 20 {documents}/html/tutorial.html")
    system.run(f"thalweg check {documents}/examples/one-host.toml")
    assert "64 KiB" in system.run(f"thalweg {' '.join(INSTRUMENT)}")
    assert "-F _thalweg" in system.run("source /usr/share/bash-completion/completions/thalweg; complete -p thalweg")
    system.run("cd /usr/lib/systemd/system && systemd-analyze verify ./thalweg-*.service")
    system.run("getent passwd thalweg")
    # What came with it goes, too, even where something else could use it.
    unused = "-o APT::AutoRemove::RecommendsImportant=false -o APT::AutoRemove::SuggestsImportant=false"
    system.run(f"apt-get purge -y thalweg && apt-get autoremove -y --purge {unused}")
    left = {
        name for name in system.files() - before if not re.match(r"etc/.*-$|var/cache|var/lib/(dpkg|systemd)", name)
    }
    assert left == set()
    assert system.run("getent passwd thalweg || echo gone").strip() == "gone"


def test_the_manual_of_the_topology_has_all_of_its_reference() -> None:
    reference = ROOT / "docs/topology.md"
    page = said(ROOT / "scripts/manual.py", reference, "thalweg-topology", "5")
    headings = re.findall(r"^## (.*)", reference.read_text(), re.M)
    assert len(headings) > 5
    for heading in headings:
        assert f'.SH "{heading.replace("`", "")}"' in re.sub(r"\\f[BR]|\\(?=-)", "", page), heading
    assert "](" not in page, "links are their text"


def test_make_install_and_uninstall_leave_nothing(tmp_path: Path) -> None:
    program = Path(os.environ["THALWEG_BIN"])
    install = ROOT / "scripts/install.sh"
    said(install, program, tmp_path, "/opt/thalweg")
    installed = tmp_path / "opt/thalweg"
    assert said(installed / "bin/thalweg", "--version").startswith("thalweg ")
    assert "/opt/thalweg/bin/thalweg serve" in (installed / "lib/systemd/system/thalweg-serve.service").read_text()
    assert (installed / "share/man/man1/thalweg-verify.1").exists()
    assert (installed / "share/doc/thalweg/html/index.html").exists()
    assert (installed / "share/doc/thalweg/examples/interferometer.toml").exists()
    assert (installed / "share/thalweg/monitoring/thalweg.rules.yml").exists()
    assert said(installed / "bin/thalweg-lab", "--version").startswith("thalweg-lab ")
    for library in ("libthalweg-rdmav34.so", "libthalweg-rdma-preload.so"):
        assert (installed / "lib/thalweg" / library).exists()
    said(install, "--remove", program, tmp_path, "/opt/thalweg")
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_the_container_is_made_of_what_there_is(tmp_path: Path) -> None:
    # Without an engine: that the recipe's words are those of the packages, which are tried above on the same Debian.
    recipe = (ROOT / "packaging/Containerfile").read_text()
    (copied,) = re.findall(r"^COPY (\S+) ", recipe, re.M)
    assert len(list(DIST.glob(copied))) == 1
    assert "debian:12" in recipe


@pytest.mark.skipif(sys.version_info < (3, 11), reason="tomllib is newer")
def test_versions_agree() -> None:
    import tomllib

    version = tomllib.loads((ROOT / "Cargo.toml").read_text())["workspace"]["package"]["version"]
    assert f"version: {version}\n" in (ROOT / "CITATION.cff").read_text()
    assert version in (ROOT / "CHANGELOG.md").read_text()
