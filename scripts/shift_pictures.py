#!/usr/bin/env python3
"""Draws the pictures of docs/shift.md and docs/control.md: scripts/shift_pictures.py [PROGRAM] (`make pictures`).

They show the real page of run control in Chromium, with simulated sources: idle, a run, an alarm, a source whose
process is gone, the judgement of a run. The service runs on a host of its own (namespaces of the kernel).
"""

from __future__ import annotations

import io
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import shift
from PIL import Image
from playwright.sync_api import sync_playwright

from thalweg.control import Control

ROOT = Path(__file__).resolve().parent.parent
# A host of its own: network, name, and the directory /mnt.
INSIDE = ["unshare", "--net", "--uts", "--mount", "--pid", "--fork", "--mount-proc", "--kill-child"]
HOST = "daq-0"
SIZE = {"width": 1280, "height": 720}
# Longest time in seconds for each of the things that are waited for.
PATIENCE_SECONDS = 120.0
# Time in seconds of a run before it is shown: its history has points then.
RUN_SECONDS = 20
# Number of events that a source is missing in.
MISSING_EVENTS = 1000
# Time in which a disk must not be full: longer than any disk lasts.
DISK_TIME = "10000h"
# Number of colors of a picture.
COLORS = 128


def main() -> None:
    """Enters the namespaces, and draws."""
    program = Path(sys.argv[1] if len(sys.argv) > 1 else ROOT / "target/debug/thalweg").resolve()
    if os.environ.get("SHIFT_PICTURES") is None:
        command = [*INSIDE, sys.executable, __file__, str(program)]
        sys.exit(subprocess.run(command, env=os.environ | {"SHIFT_PICTURES": "inside"}, check=False).returncode)
    socket.sethostname(HOST)
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    with tempfile.TemporaryDirectory() as state, tempfile.TemporaryDirectory() as parent:
        os.environ["XDG_STATE_HOME"] = state
        subprocess.run(["mount", "--bind", parent, "/mnt"], check=True)
        topology = Path("/mnt/shift/shift.toml")
        topology.parent.mkdir()
        shutil.copy(ROOT / "examples/shift.toml", topology)
        with shift.control_service(str(program), topology) as (_, url, page):
            control = Control(url, page.partition("#token=")[2])
            with shift.nodes_of(control), sync_playwright() as started:
                browser = started.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
                draw_shift(Pictures(browser, page), control, program, topology)
                browser.close()


class Pictures:
    """Page in a browser, and the pictures that are drawn of it."""

    def __init__(self, browser: Any, url: str) -> None:
        """Opens the page."""
        self.page = browser.new_page(viewport=SIZE, color_scheme="light", reduced_motion="reduce")
        self.page.goto(url)
        self.page.wait_for_selector("[data-name=configure]")

    def draw(self, name: str) -> None:
        """Draws the page as it is."""
        # What was announced a moment ago is shown.
        self.page.wait_for_timeout(1000)
        path = ROOT / "docs" / f"{name}.png"
        Image.open(io.BytesIO(self.page.screenshot())).quantize(COLORS).save(path, optimize=True)
        print(f"{path.relative_to(ROOT)}: {path.stat().st_size // 1000} kB", flush=True)


def draw_shift(pictures: Pictures, control: Control, program: Path, topology: Path) -> None:
    """Draws the pictures of a shift, in their order."""
    pictures.draw("shift-idle")
    take_run(control, "first beam")
    pictures.draw("shift-running")
    control.command("stop")
    control.wait_until(lambda status: not status["run"], PATIENCE_SECONDS)
    with topology.open("a") as file:
        file.write(f'\n[control.alarms]\ndisk_time = "{DISK_TIME}"\n')
    take_run(control, "second beam")
    control.wait_until(lambda status: has_alarm(status, "disk-nearly-full"), PATIENCE_SECONDS)
    pictures.draw("shift-alarm")
    acknowledge = [program, "ctl", "acknowledge", "disk-nearly-full", "--why", "data move at six"]
    subprocess.run(acknowledge, check=True, capture_output=True)
    pids = {process["node"]: process["pid"] for process in control.status()["processes"]}
    os.kill(pids["adc-1"], signal.SIGKILL)
    control.wait_until(lambda status: status["totals"]["incomplete"] > MISSING_EVENTS, PATIENCE_SECONDS)
    pictures.draw("control")
    control.command("stop")
    control.wait_until(lambda status: not status["run"], PATIENCE_SECONDS)
    pictures.page.click("[data-run='2'] >> text=Flag")
    pictures.page.click("dialog >> text=bad")
    pictures.page.fill("dialog [name=why]", "adc-1 was gone")
    pictures.draw("shift-flag")


def take_run(control: Control, note: str) -> None:
    """Starts a run, and waits until it has lasted for a while."""
    control.command("configure")
    control.command("arm")
    control.wait_until(lambda status: status["commands"]["start"]["legal"], PATIENCE_SECONDS)
    control.command("start", note=note)
    control.wait_until(lambda status: has_lasted(status, RUN_SECONDS), PATIENCE_SECONDS)


def has_lasted(status: dict[str, Any], seconds: float) -> bool:
    """Returns whether the run is that old."""
    return status["run"] is not None and status["run"]["seconds"] >= seconds


def has_alarm(status: dict[str, Any], name: str) -> bool:
    """Returns whether an alarm is active."""
    return any(alarm["is_active"] and name in alarm.values() for alarm in status["alarms"])


if __name__ == "__main__":
    main()
