"""Logs of run control and its nodes as JSON."""

from __future__ import annotations

import json
import os
import signal
from typing import TYPE_CHECKING, Any

from control_service import ControlService, wait_until

if TYPE_CHECKING:
    from pathlib import Path


def lines_of(path: Path) -> list[dict[str, Any]]:
    """Returns the lines of a log; what a node prints for people when a run is over is beside them."""
    lines = path.read_text().splitlines()
    return [json.loads(line) for line in lines if line.startswith("{")]


def test_each_line_has_its_time_and_those_of_a_run_its_node_and_number(program: Path, tmp_path: Path) -> None:
    environment = {"THALWEG_LOG_FORMAT": "json", "THALWEG_LOG": "info"}
    # The end of the run waits for the source that was killed.
    service = ControlService(program, tmp_path, "", environment, deadline="2s")
    try:
        service.arm()
        service.command("start", note="first beam")
        service.wait_for(lambda status: status["totals"]["events"] > 20, "an event")
        pid = next(process["pid"] for process in service.status()["processes"] if process["node"] == "adc-1")
        os.kill(pid, signal.SIGKILL)
        logs = tmp_path / "runs/.control/log"

        def reported() -> list[dict[str, Any]]:
            return [line for line in lines_of(logs / "builder.log") if line["level"] == "WARN" and "run" in line]

        lost = wait_until(reported, "the builder's warning")[0]
        assert (lost["node"], lost["run"]) == ("builder", 1)
        service.command("stop")
        service.wait_for(lambda status: not status["run"], "the end of the run")
    finally:
        service.end()
    for path in logs.glob("*.log"):
        lines = lines_of(path)
        assert all(line["node"] == path.stem and line["time"] and line["message"] for line in lines), path
    of_service = lines_of(tmp_path / "control.log")
    assert all({"time", "level", "message"} <= line.keys() for line in of_service)
    running = next(line for line in of_service if line["message"].startswith("running: "))
    assert (running["run"], running["severity"]) == (1, "Info")
    assert any(line.get("node") == "adc-1" and line["message"].startswith("connected: ") for line in of_service)
