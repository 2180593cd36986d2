"""Satellite of Constellation in examples, driven by a real controller."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import threading
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from conftest import ROOT
from control_service import PATIENCE_SECONDS, ControlService, wait_until

import thalweg

if TYPE_CHECKING:
    from collections.abc import Iterator

SATELLITE = "ThalwegRun.daq"
METRICS = ["EVENTS", "EVENTS_PER_SECOND", "RUN_NUMBER", "LOST"]


@pytest.fixture
def service(program: Path, tmp_path: Path) -> Iterator[ControlService]:
    """Service with a builder and two digitizers."""
    service = ControlService(program, tmp_path)
    yield service
    service.end()


class Constellation:
    """Running satellite, a controller that commands it, and the metrics that it sends."""

    def __init__(self, service: ControlService, folder: Path) -> None:
        from constellation.core.controller import BaseController

        # Processes of other tests, before this one and beside it, are in groups of their own.
        group = f"test_{uuid.uuid4().hex}"
        environment = service.environment | {
            "PYTHONPATH": str(Path(thalweg.__file__).parents[1]),
            "THALWEG_CONTROL_TOKEN": service.secrets["configure"],
        }
        self.log = folder / "satellite.log"
        command = [sys.executable, ROOT / "examples/constellation_satellite.py"]
        names = ["--group", group, "--name", "daq", "--interface", "lo"]
        with self.log.open("wb") as log:
            self.process = subprocess.Popen([*command, *names], stdout=log, stderr=log, env=environment)
        self.service = service
        self.metrics: dict[str, Any] = {}
        self.listener = listener_of(group, self.metrics)
        self.listener.set_topics([f"STAT/{name}" for name in METRICS])
        self.listening = threading.Thread(target=self.listener.run_listener, daemon=True)
        self.listening.start()
        self.controller = BaseController(group, name="controller", interface=["lo"])

    def command(self, name: str, payload: object = None) -> Any:
        """Gives a command to the satellite."""
        answer = self.controller.command(name, payload, *SATELLITE.split("."))
        assert answer.success, answer.errmsg
        return answer

    def wait_for_state(self, state: str) -> str:
        """Waits for a state of the satellite, and returns its status."""
        wait_until(lambda: self.command("get_state").msg == state, f"the satellite's state {state}")
        return str(self.command("get_status").msg)

    def wait_for_metric(self, name: str, least: float) -> None:
        """Waits for a metric of at least a value."""
        wait_until(lambda: self.metrics.get(name, -1) >= least, f"{name} of {least}, in {self.metrics}")

    def end(self) -> None:
        """Ends the controller and the satellite."""
        # Constellation waits 1.5 s for each of its threads, which take longer on a busy machine, and raises then.
        with contextlib.suppress(OSError, RuntimeError):
            self.controller.terminate()
        with contextlib.suppress(OSError, RuntimeError):
            self.listener.reentry()
        self.process.send_signal(signal.SIGINT)
        try:
            self.process.wait(PATIENCE_SECONDS)
        finally:
            self.process.kill()


def listener_of(group: str, metrics: dict[str, Any]) -> Any:
    """Returns a listener that keeps the latest value of each metric."""
    from constellation.core.listener import StandaloneListener

    class Listener(StandaloneListener):
        def receive_metric(self, sender: str, metric: Any, timestamp: object, value: object) -> None:
            assert sender == SATELLITE
            metrics[metric.name] = value

    return Listener(name="listener", group=group, interface=["lo"])


@pytest.fixture
def constellation(service: ControlService, tmp_path: Path) -> Iterator[Constellation]:
    """Satellite and controller at the service."""
    pytest.importorskip("constellation.core", reason="ConstellationDAQ is not installed")
    with contextlib.ExitStack() as ends:
        ends.callback(setattr, threading, "excepthook", threading.excepthook)
        constellation = Constellation(service, tmp_path)
        ends.callback(constellation.end)
        constellation.controller.await_satellites([SATELLITE], int(PATIENCE_SECONDS))
        yield constellation


def test_a_constellation_takes_runs(constellation: Constellation, service: ControlService) -> None:
    constellation.command("initialize", {"url": service.url})
    assert constellation.wait_for_state("INIT").startswith(f"{service.url}: ")
    constellation.command("launch")
    assert constellation.wait_for_state("ORBIT").startswith("all hosts are fit")
    constellation.command("start", "calibration_7")
    constellation.wait_for_state("RUN")
    run = service.status()["run"]
    assert run["note"] == "calibration_7"
    constellation.wait_for_metric("EVENTS", 20)
    constellation.wait_for_metric("EVENTS_PER_SECOND", 1)
    assert (constellation.metrics["RUN_NUMBER"], constellation.metrics["LOST"]) == (run["number"], 0)
    assert constellation.command("get_status").msg.startswith(f"run {run['number']}: ")
    constellation.command("stop")
    status = constellation.wait_for_state("ORBIT")
    last = service.status()["last_run"]
    assert (last["number"], last["state"]) == (run["number"], "complete")
    assert status == f"run {run['number']}; run {run['number']}: {last['events']:,} events on disk"
    # A source is left out of the next runs.
    constellation.command("reconfigure", {"without": ["adc-1"]})
    constellation.wait_for_state("ORBIT")
    assert service.status()["left_out"] == ["adc-1"]
    constellation.command("land")
    constellation.wait_for_state("INIT")


def test_a_refusal_is_an_error_with_the_reason_of_the_service(
    constellation: Constellation, service: ControlService
) -> None:
    constellation.command("initialize", {"url": service.url})
    constellation.wait_for_state("INIT")
    constellation.command("launch")
    constellation.wait_for_state("ORBIT")
    service.command("start", note="of somebody else")
    _, reason = service.refusal("/api/v1/commands/start", {})
    assert reason == "cannot start: the experiment is running: a run is under way: stop it first"
    constellation.command("start", "mine")
    assert reason in constellation.wait_for_state("ERROR")
    # The run of another client goes on.
    assert service.status()["run"]["note"] == "of somebody else"


def test_a_run_outlives_the_service_and_its_end_is_seen(constellation: Constellation, service: ControlService) -> None:
    constellation.command("initialize", {"url": service.url})
    constellation.wait_for_state("INIT")
    constellation.command("launch")
    constellation.wait_for_state("ORBIT")
    constellation.command("start", "long")
    constellation.wait_for_state("RUN")
    number = service.status()["run"]["number"]
    service.process.terminate()
    assert service.process.wait(PATIENCE_SECONDS) == 0
    wait_until(lambda: "without run control" in constellation.command("get_status").msg, "the loss of the service")
    service.begin()
    wait_until(lambda: constellation.command("get_status").msg.startswith(f"run {number}: "), "the service")
    service.wait_for(lambda status: status["commands"]["abort"]["legal"], "running")
    service.command("abort")
    assert f"run {number} has ended: " in constellation.wait_for_state("ERROR")
