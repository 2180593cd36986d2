"""Fixtures: runs written by the program itself."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
# Sockets of `free_port`.
HELD: list[socket.socket] = []


def free_port() -> int:
    """Returns a TCP port at which a server of this test can listen, and that the kernel gives to no other socket.

    It is held until this process ends, by a socket that does not listen: servers that set SO_REUSEADDR share it, and a
    connection is refused where no server listens.
    """
    held = socket.socket()
    HELD.append(held)
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    held.bind(("127.0.0.1", 0))
    return int(held.getsockname()[1])


@dataclass(frozen=True)
class Written:
    """Run on disk, and the report that the program printed."""

    directory: Path
    report: dict[str, Any]


def keep_skipped(report: pytest.TestReport | pytest.CollectReport) -> None:
    """Appends a skipped test and the reason to the file that all tests share: see crates/thalweg-testing."""
    if report.skipped and "THALWEG_SKIPPED" in os.environ:
        reason = report.longrepr[-1] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        reason = " ".join(reason.removeprefix("Skipped: ").split())
        with Path(os.environ["THALWEG_SKIPPED"]).open("a") as file:
            file.write(f"python {report.nodeid}\t{reason}\n")


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Hook of pytest, called in the worker that ran the test, and again in the process that all workers report to."""
    if "PYTEST_XDIST_WORKER" not in os.environ:
        keep_skipped(report)


# Called in every worker, since each collects all files; scripts/test.py counts a line once.
pytest_collectreport = keep_skipped


# Pages of the documents, of which each is typed in by itself.
PAGES = "test_the_commands_of_a_page_print_what_it_shows"
# Parts of the names of tests whose emulated cameras have the same address and the same names.
CAMERAS = ("tests/test_examples.py::", "::test_a_wheel_in_an_empty_venv_")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Hook of pytest: the pages come first, since they take longest."""
    items.sort(key=lambda item: PAGES not in item.nodeid)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Hook of pytest-xdist: the tests of a file share a worker, except for the pages; those with cameras share one."""
    from xdist.scheduler import LoadFileScheduling

    class FileScheduling(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            if any(name in nodeid for name in CAMERAS):
                return "cameras"
            return nodeid if PAGES in nodeid else super()._split_scope(nodeid)

    config.option.loadscopereorder = False
    return FileScheduling(config, log)


@pytest.fixture(scope="session", autouse=True)
def interruptible() -> None:
    """Restores the handler of Ctrl-C, which a shell ignores for processes in the background."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def program() -> Path:
    """Path of the program `thalweg`, as built."""
    named = os.environ.get("THALWEG_BIN")
    candidates = [Path(named)] if named else [ROOT / "target" / kind / "thalweg" for kind in ("debug", "release")]
    for candidate in candidates:
        if candidate.exists():
            return candidate
    pytest.fail(f"none of {', '.join(map(str, candidates))} exists: build it (`make build`) or set THALWEG_BIN")


@pytest.fixture(scope="session")
def recordings() -> Path:
    """Directory of real recordings."""
    return ROOT / "crates" / "thalweg-device" / "recordings"


@pytest.fixture(scope="session")
def record(program: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Written]]:
    """Function that records the run of `thalweg demo` with some arguments, and returns the run that was written.

    The run has a number of events, since a busy machine may make none in a fixed time.
    """
    folder = tmp_path_factory.mktemp("runs")
    topology = tmp_path_factory.mktemp("demo") / "demo.toml"

    def output_of(*command: object) -> str:
        words = [str(word) for word in command]
        ended = subprocess.run(words, capture_output=True, text=True, check=False, timeout=300)
        assert ended.returncode == 0, f"{words}: {ended.stderr}"
        return ended.stdout

    def demo(*arguments: object, events: int, out: Path = folder) -> Written:
        topology.write_text(output_of(program, "demo", *arguments, "--out", out, "--print-topology"))
        # Neither a process that starts late nor a fragment that is late is given up.
        patience = ["--duration", "5m", "--set", "run.timeout=5m", "--set", "builder.0.deadline=60s"]
        output = output_of(program, "run", topology, "--events", events, *patience, "--json")
        report = json.loads(output.splitlines()[-1])
        assert report["ledger"]["unaccounted"] == 0
        return Written(Path(report["directory"]), report)

    yield demo
    shutil.rmtree(folder)


@pytest.fixture(scope="session")
def serve(program: Path) -> Iterator[Callable[..., str]]:
    """Function that runs `thalweg serve` on a directory with some arguments. Returns its URL, without a last slash."""
    servers = []

    def start(directory: Path, *arguments: object) -> str:
        command = [program, "serve", directory, "--listen", "127.0.0.1:0", "--path", "sendfile", "--json", *arguments]
        server = subprocess.Popen([str(word) for word in command], stdout=subprocess.PIPE, text=True)
        servers.append(server)
        assert server.stdout is not None
        return json.loads(server.stdout.readline())["url"].rstrip("/")

    yield start
    for server in servers:
        server.terminate()
    for server in servers:
        assert server.wait(timeout=60) == 0


@pytest.fixture(scope="session")
def model(record: Callable[..., Written]) -> Written:
    """Short run of three model ADCs, with a payload length that is not a multiple of any alignment of records."""
    return record("--sources", 3, "--size", 10_006, "--rate", 1000, "--link", "tcp", events=300)


class Writer:
    """Running `thalweg demo`."""

    def __init__(self, program: Path, out: Path) -> None:
        command = [program, "demo", "--sources", "2", "--size", "4KiB", "--rate", "1000"]
        command += ["--duration", "60s", "--out", out, "--json"]
        self.process = subprocess.Popen(
            [str(word) for word in command], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        deadline = time.monotonic() + 300
        # The run appears under its name as soon as it has begun.
        while not (found := list(out.glob("run-*/run.json"))):
            assert self.process.poll() is None, "the writer ended before it began"
            assert time.monotonic() < deadline, "no run within 300 s"
            time.sleep(0.01)
        self.directory = found[0].parent

    def stop(self) -> dict[str, object]:
        """Ends the run as Ctrl-C does, and returns the report of the program."""
        self.process.send_signal(signal.SIGINT)
        output, _ = self.process.communicate(timeout=60)
        return json.loads(output.splitlines()[-1])


@pytest.fixture
def writer(program: Path, tmp_path: Path) -> Iterator[Writer]:
    """Run that is being written until the test stops it."""
    writer = Writer(program, tmp_path)
    yield writer
    if writer.process.poll() is None:
        writer.process.kill()
        writer.process.wait()
