"""Front end of MIDAS in examples/midas_frontend.py: run transitions of a real MIDAS, with its own client."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from conftest import ROOT
from control_service import PATIENCE_SECONDS, ControlService, wait_until

import thalweg

if TYPE_CHECKING:
    from collections.abc import Iterator

# State of a MIDAS without a run (midas.h).
STATE_STOPPED = 1


@pytest.fixture(scope="module")
def service(program: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlService]:
    """Service with a builder and two digitizers."""
    pytest.importorskip("midas.frontend", reason="the Python package of MIDAS is not installed: MIDAS brings it")
    service = ControlService(program, tmp_path_factory.mktemp("control"))
    yield service
    service.end()


class Experiment:
    """Experiment of MIDAS in a folder of its own, with the front end."""

    def __init__(self, service: ControlService, folder: Path) -> None:
        import midas.client

        self.folder = folder
        self.client = midas.client.MidasClient("test")
        # As MIDAS's programs create it.
        self.client.odb_set("/Runinfo", {"State": STATE_STOPPED, "Run number": 6, "Transition in progress": 0})
        environment = {
            "PYTHONPATH": os.pathsep.join([str(Path(thalweg.__file__).parents[1]), os.environ.get("PYTHONPATH", "")]),
            "THALWEG_CONTROL_URL": service.url,
            "THALWEG_CONTROL_TOKEN": service.secrets["configure"],
        }
        with (folder / "frontend.log").open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, ROOT / "examples/midas_frontend.py"],
                stdout=log,
                stderr=log,
                env=service.environment | os.environ | environment,
            )
        wait_until(lambda: self.client.odb_exists("/Equipment/Thalweg/Variables"), "the front end")

    def value(self, path: str) -> Any:
        """Returns a value of the ODB; None if there is none."""
        return self.client.odb_get(path) if self.client.odb_exists(path) else None

    def end(self) -> None:
        """Ends the front end and the connection with MIDAS."""
        self.process.send_signal(signal.SIGINT)
        self.process.wait(PATIENCE_SECONDS)
        self.client.disconnect()


# One for all tests: MIDAS keeps the first experiment that a process is connected to.
@pytest.fixture(scope="module")
def experiment(service: ControlService, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Experiment]:
    """Experiment at the service."""
    folder = tmp_path_factory.mktemp("midas")
    table = folder.with_suffix(".exptab")
    table.write_text(f"test {folder} none\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MIDAS_EXPTAB", str(table))
        patch.setenv("MIDAS_EXPT_NAME", "test")
        experiment = Experiment(service, folder)
        yield experiment
        experiment.end()


def test_transitions_of_midas_drive_runs(experiment: Experiment, service: ControlService) -> None:
    client = experiment.client
    client.start_run(7)
    run = service.status()["run"]
    assert run["note"] == "run 7 of MIDAS"
    figures = "/Equipment/Thalweg/Variables/THLG"
    wait_until(lambda: (experiment.value(figures) or [0, 0])[1] > 20, "figures of the run in the history")
    number, _, incomplete, lost, rate, _ = experiment.value(figures)
    assert (number, incomplete, lost, rate > 0) == (run["number"], 0, 0, True)
    client.pause_run()
    assert service.status()["state"] == "paused"
    client.resume_run()
    assert service.status()["state"] == "running"
    # Another run cannot begin: MIDAS gives the reason of the service.
    service.wait_for(lambda status: status["commands"]["pause"]["legal"], "running")
    service.command("pause")
    _, reason = service.refusal("/api/v1/commands/pause", {})
    with pytest.raises(Exception, match="cannot pause") as refused:
        client.pause_run()
    assert reason in str(refused.value)
    client.stop_run()
    last = service.status()["last_run"]
    assert (last["number"], last["state"]) == (run["number"], "complete")
    # A run of MIDAS does not begin while one of another client is under way.
    service.wait_for(lambda status: status["commands"]["start"]["legal"], "armed")
    service.command("start")
    service.wait_for(lambda status: status["commands"]["stop"]["legal"], "running")
    _, reason = service.refusal("/api/v1/commands/configure", {})
    with pytest.raises(Exception, match="cannot configure") as refused:
        client.start_run(8)
    assert reason in str(refused.value)
    service.command("stop")
    service.wait_for(lambda status: status["commands"]["start"]["legal"], "the end of the run")


def test_a_run_that_ends_without_midas_is_an_alarm(experiment: Experiment, service: ControlService) -> None:
    experiment.client.start_run(7)
    service.wait_for(lambda status: status["commands"]["abort"]["legal"], "running")
    service.command("abort")
    alarm = "/Alarms/Alarms/Thalweg/Triggered"
    wait_until(lambda: experiment.value(alarm), "the alarm")
    assert "the run has ended" in experiment.value("/Alarms/Alarms/Thalweg/Alarm message")
    # The end of the run is not refused.
    experiment.client.stop_run()
    assert experiment.value("/Runinfo/State") == STATE_STOPPED
