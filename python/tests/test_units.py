"""Units of systemd: they are well-formed, and their programs report themselves to it (sd_notify(3))."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from conftest import ROOT, free_port

if TYPE_CHECKING:
    from collections.abc import Iterator

UNITS = sorted((ROOT / "packaging/systemd").glob("*.service"))
# Longest time in seconds for each of the things that a test waits for: a failure, and not a measurement.
PATIENCE = 60.0
# Time in seconds after which systemd ends a unit that sends no keep-alive, as the units of these tests have it.
WATCHDOG_SECONDS = 2.0
TOPOLOGY = """
[run]
directory = "runs"

[[builder]]
name = "builder"
listen = ["shm:FOLDER/socket"]

[[source]]
name = "adc"
id = "1.0"
link = "shm"
rate = 100
device = { kind = "model-adc", size = "4KiB" }
"""
# Requests of ptrace(2) that stop one thread alone: a signal would stop all.
PTRACE_DETACH, PTRACE_SEIZE, PTRACE_INTERRUPT = 17, 0x4206, 0x4207


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="systemd-analyze is not installed (systemd)")
@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.stem)
def test_a_unit_is_well_formed(unit: Path, program: Path, tmp_path: Path) -> None:
    installed = tmp_path / unit.name.replace("@", "@builder")
    # The program is where it was built, and its manual is installed with it.
    installed.write_text(unit.read_text().replace("/usr/bin/thalweg", str(program)))
    command = ["systemd-analyze", "verify", "--man=no", installed]
    ended = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    assert (ended.returncode, ended.stdout) == (0, "")


class Manager:
    """Socket for the notices of a program, in the place of systemd's."""

    def __init__(self, path: Path) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(str(path))
        self.environment = os.environ | {
            "NOTIFY_SOCKET": str(path),
            "WATCHDOG_USEC": str(int(WATCHDOG_SECONDS * 1e6)),
            "XDG_STATE_HOME": str(path.parent),
        }
        self.notices: list[str] = []

    def receive(self, seconds: float) -> str | None:
        """Returns the next notice; None if there is none for this time."""
        self.socket.settimeout(seconds)
        try:
            notice = self.socket.recv(4096).decode().rstrip("\n")
        except TimeoutError:
            return None
        self.notices.append(notice)
        return notice

    def wait_for(self, text: str) -> str:
        """Waits for a notice with this text, and returns it."""
        deadline = time.monotonic() + PATIENCE
        while (notice := self.receive(PATIENCE)) is None or text not in notice:
            assert time.monotonic() < deadline, f"{text}: {self.notices}"
        return notice

    def wait_for_silence(self) -> None:
        """Waits until no keep-alive has come for the time after which systemd ends a unit."""
        deadline = time.monotonic() + PATIENCE
        last = time.monotonic()
        while (now := time.monotonic()) < last + WATCHDOG_SECONDS:
            assert now < deadline, "it goes on to send keep-alives"
            if self.receive(last + WATCHDOG_SECONDS - now) == "WATCHDOG=1":
                last = time.monotonic()

    @contextlib.contextmanager
    def run(self, *command: object, cwd: Path, **variables: str) -> Iterator[subprocess.Popen[str]]:
        """Runs a program, and ends it."""
        words = [str(word) for word in command]
        environment = self.environment | variables
        with subprocess.Popen(words, cwd=cwd, env=environment, stdout=subprocess.PIPE, text=True) as process:
            try:
                yield process
            finally:
                process.send_signal(signal.SIGINT)
                try:
                    process.wait(PATIENCE)
                finally:
                    process.kill()


@contextlib.contextmanager
def main_thread_stopped(process: subprocess.Popen[str]) -> Iterator[None]:
    """Stops the main thread of a process, as a device that never answers would. Its other threads go on."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
    for request in (PTRACE_SEIZE, PTRACE_INTERRUPT):
        if libc.ptrace(request, process.pid, None, None) != 0:
            pytest.skip(f"a thread cannot be stopped here: ptrace: {os.strerror(ctypes.get_errno())}")
    os.waitpid(process.pid, 0x40000000)  # __WALL
    try:
        yield
    finally:
        libc.ptrace(PTRACE_DETACH, process.pid, None, None)


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[Manager]:
    """Socket for notices, in a folder with a topology."""
    (tmp_path / "lab.toml").write_text(TOPOLOGY.replace("FOLDER", str(tmp_path)))
    manager = Manager(tmp_path / "notify")
    yield manager
    manager.socket.close()


def test_a_node_is_ready_when_it_listens_and_keeps_alive_while_it_takes_turns(
    manager: Manager, program: Path, tmp_path: Path
) -> None:
    with manager.run(program, "node", "builder", "lab.toml", cwd=tmp_path) as node:
        manager.wait_for("READY=1")
        assert "STATUS=" in manager.wait_for("adc")
        for _ in range(3):
            manager.wait_for("WATCHDOG=1")
        with main_thread_stopped(node):
            manager.wait_for_silence()
        manager.wait_for("WATCHDOG=1")


def test_a_node_under_run_control_is_ready_when_it_is_connected(
    manager: Manager, program: Path, tmp_path: Path
) -> None:
    service = Manager(tmp_path / "notify-service")
    address = f"127.0.0.1:{free_port()}"
    control = [program, "control", "lab.toml", "--listen", address, "--json"]
    # Its first start makes the tokens.
    with service.run(*control, cwd=tmp_path) as process:
        service.wait_for("READY=1")
        assert process.stdout is not None
        json.loads(process.stdout.readline())
    tokens = (tmp_path / "runs/.control/tokens.toml").read_text()
    token = re.search(r'name = "node"\n(?:.*\n)*?secret = "(.*)"', tokens)[1]
    node_command = [program, "node", "builder", "--control", f"http://{address}"]
    with manager.run(*node_command, cwd=tmp_path, THALWEG_CONTROL_TOKEN=token) as node:
        manager.wait_for(f"STATUS=no connection to the service at {address}")
        for _ in range(3):
            manager.wait_for("WATCHDOG=1")
        assert "READY=1" not in manager.notices
        with service.run(*control, cwd=tmp_path) as process:
            # A unit that is ready has a state.
            manager.wait_for(f"STATUS=connected to {address}")
            manager.wait_for("READY=1")
            service.wait_for("STATUS=idle: ")
            # A node without a topology waits for one: that is no work that could stand still.
            with main_thread_stopped(node):
                for _ in range(6):
                    manager.wait_for("WATCHDOG=1")
            configured = subprocess.run(
                [program, "ctl", "configure"], env=manager.environment, check=False, capture_output=True, text=True
            )
            assert configured.returncode == 0, configured.stderr
            service.wait_for("STATUS=configured: ")
            with main_thread_stopped(node):
                manager.wait_for_silence()
            manager.wait_for("WATCHDOG=1")
            # The service, too, sends none for a loop that stands still.
            with main_thread_stopped(process):
                service.wait_for_silence()
            service.wait_for("WATCHDOG=1")
            ended = subprocess.run(
                [program, "ctl", "process", "stop", "adc"], env=manager.environment, check=False, capture_output=True
            )
            assert ended.returncode == 0, ended.stderr
    service.socket.close()
