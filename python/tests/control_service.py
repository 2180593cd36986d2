"""Service of run control that a test starts, with its nodes."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import time
import urllib.error
import urllib.request
from typing import TYPE_CHECKING, Any

from conftest import free_port

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

# Longest time in seconds for each of the things that a test waits for: a failure, and not a measurement.
PATIENCE_SECONDS = 60.0


def wait_until(holds: Callable[[], Any], what: str) -> Any:
    """Returns the first true value of a function."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not (value := holds()):
        assert time.monotonic() < deadline, f"{what} does not come"
        time.sleep(0.02)
    return value


class ControlService:
    """Running `thalweg control` of an experiment with a builder and two digitizers, in a folder of its own."""

    def __init__(
        self,
        program: Path,
        folder: Path,
        control: str = "",
        environment: dict[str, str] | None = None,
        # Longer than any source is silent on a busy machine: runs are complete.
        deadline: str = "60s",
    ) -> None:
        self.folder = folder
        self.environment = os.environ | {"XDG_STATE_HOME": str(folder / "state")} | (environment or {})
        self.pids: set[int] = set()
        sources = "".join(
            f'[[source]]\nname = "{name}"\nid = "{id}"\nrate = 100\ndevice = {{ kind = "model-adc", size = "4KiB" }}\n'
            for name, id in (("adc-0", "1.0"), ("adc-1", "1.1"))
        )
        builder = f'[[builder]]\nname = "builder"\nlisten = ["tcp:127.0.0.1:{free_port()}"]\ndeadline = "{deadline}"\n'
        (folder / "lab.toml").write_text(f'[run]\ndirectory = "runs"\n[control]\n{control}\n{builder}{sources}')
        self.program = program.with_name("thalweg-control")
        assert self.program.exists(), f"{self.program} does not exist: build it (`make build`)"
        # It begins again at the same address.
        self.address = f"127.0.0.1:{free_port()}"
        self.begin()

    def begin(self) -> None:
        """Starts the service."""
        command = [self.program, "control", "lab.toml", "--listen", self.address, "--json"]
        with (self.folder / "control.log").open("ab") as log:
            self.process = subprocess.Popen(
                command, cwd=self.folder, stdout=subprocess.PIPE, stderr=log, text=True, env=self.environment
            )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, (self.folder / "control.log").read_text()
        self.url = json.loads(line)["listening"]
        tokens = (self.folder / "runs/.control/tokens.toml").read_text()
        self.secrets = dict(re.findall(r'role = "(\w+)"\nsecret = "(\w+)"', tokens))

    def end(self) -> None:
        """Ends the service and its nodes, which outlive it."""
        with contextlib.suppress(OSError):
            self.status()
        self.process.terminate()
        self.process.wait(PATIENCE_SECONDS)
        for pid in self.pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def ask(self, path: str, body: object = None, role: str = "configure") -> Any:
        """Returns the answer of the API, text or JSON: a request that changes something has a body."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"{self.url}{path}", data=data)
        request.add_header("Authorization", f"Bearer {self.secrets[role]}")
        with urllib.request.urlopen(request, timeout=PATIENCE_SECONDS) as answer:
            text = answer.read().decode()
            return json.loads(text) if answer.headers.get_content_type() == "application/json" else text

    def refusal(self, path: str, body: object) -> tuple[int, str]:
        """Returns the status and the reason with which a request is refused."""
        try:
            answer = self.ask(path, body)
        except urllib.error.HTTPError as error:
            return error.code, json.load(error)["error"]["reason"]
        raise AssertionError(f"{path} is not refused: {answer}")

    def command(self, command: str, **arguments: str) -> None:
        """Executes a command."""
        self.ask(f"/api/v1/commands/{command}", arguments)

    def status(self) -> dict[str, Any]:
        """Returns the status."""
        status = self.ask("/api/v1/status")
        self.pids.update(process["pid"] for process in status["processes"] if process["pid"])
        return status

    def wait_for(self, holds: Callable[[dict[str, Any]], Any], what: str) -> dict[str, Any]:
        """Returns the first status for which something holds."""
        return wait_until(lambda: status if holds(status := self.status()) else None, what)

    def arm(self) -> None:
        """Brings the experiment from `idle` to `armed`."""
        self.command("configure")
        self.command("arm")

    def take_run(self, note: str = "") -> int:
        """Takes a run of some events, and returns its number."""
        self.command("start", note=note)
        number = self.wait_for(lambda status: status["totals"]["events"] > 20, "an event")["run"]["number"]
        self.command("stop")
        self.wait_for(lambda status: status["state"] == "armed", "the end of the run")
        return number
