"""Run control as a Tango device: a real DeviceProxy at `thalweg-ioc --tango`, without a Tango database."""

from __future__ import annotations

import contextlib
import os
import queue
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from conftest import free_port
from control_service import PATIENCE_SECONDS, ControlService, wait_until

import thalweg
from thalweg.control import Control

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

DEVICE = "lab/daq/run"


@pytest.fixture(scope="module")
def service(program: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlService]:
    """Service with a builder and two digitizers."""
    service = ControlService(program, tmp_path_factory.mktemp("control"))
    yield service
    service.end()


class Server:
    """Running `thalweg-ioc --tango`."""

    def __init__(self, service: ControlService, folder: Path, *options: str) -> None:
        environment = service.environment | {
            "PYTHONPATH": str(Path(thalweg.__file__).parents[1]),
            "THALWEG_CONTROL_TOKEN": service.secrets["operate"],
        }
        self.log = folder / "ioc.log"
        command = [sys.executable, "-m", "thalweg.ioc", service.url, "--tango", DEVICE, *options]
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True, env=environment)

    def wait_for_name(self) -> str:
        """Waits until the device is served, again after the service was lost, and returns its name."""
        assert self.process.stdout is not None
        line = next((line for line in self.process.stdout if line.startswith("run control of ")), None)
        assert line is not None, self.log.read_text()
        return line.split()[-1]

    def end(self) -> None:
        """Ends the program."""
        self.process.terminate()
        assert self.process.wait(PATIENCE_SECONDS) == 0, self.log.read_text()


@pytest.fixture(scope="module")
def server(service: ControlService, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """`thalweg-ioc --tango` at the service."""
    for module in ("fastcs", "tango"):
        pytest.importorskip(module, reason=f"{module} is not installed")
    server = Server(service, tmp_path_factory.mktemp("ioc"), "--listen", f"127.0.0.1:{free_port()}")
    yield server
    server.end()


@pytest.fixture(scope="module")
def device(server: Server) -> Any:
    """Client of the device."""
    return patient_client(server.wait_for_name())


def patient_client(name: str) -> Any:
    """Returns the client of a device that waits for longer than Tango's three seconds: arming examines all hosts."""
    import tango

    device = tango.DeviceProxy(name)
    device.set_timeout_millis(int(PATIENCE_SECONDS * 1000))
    return device


class Events:
    """Change events of attributes, as they come."""

    def __init__(self, device: Any, *names: str) -> None:
        import tango

        self._device = device
        self._received: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._ids = [device.subscribe_event(name, tango.EventType.CHANGE_EVENT, self._received.put) for name in names]

    def until(self, name: str, holds: Callable[[Any], bool]) -> None:
        """Waits for an event in which the value of an attribute has a property."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while True:
            event = self._received.get(timeout=max(0.0, deadline - time.monotonic()))
            assert not event.err, event.errors
            if event.attr_value.name.lower() == name.lower() and holds(event.attr_value.value):
                return

    def until_state(self, state: object) -> None:
        """Waits for an event with this state."""
        self.until("State", lambda value: value == state)

    def end(self) -> None:
        """Ends the subscriptions."""
        for number in self._ids:
            self._device.unsubscribe_event(number)


def test_a_run_is_taken_by_a_device_proxy(service: ControlService, device: Any) -> None:
    import tango

    assert (device.state(), device.RunState.name) == (tango.DevState.OFF, "idle")
    service.arm()
    events = Events(device, "State", "RunState", "EventsPerSecond", "Adc0_BytesPerSecond")
    events.until_state(tango.DevState.ON)
    assert device.status() == service.status()["sentence"]
    device.NextNote = "by Tango"
    device.NextKind = "test"
    device.Start()
    events.until_state(tango.DevState.RUNNING)
    run = service.status()["run"]
    assert (run["number"], run["kind"], run["note"]) == (device.RunNumber, "test", "by Tango")
    events.until("Adc0_BytesPerSecond", lambda rate: rate > 0)
    events.until("EventsPerSecond", lambda rate: rate > 0)
    device.Pause()
    events.until_state(tango.DevState.STANDBY)
    # A run is resumed, as by the PV `Acquire` of areaDetector.
    device.Acquire = True
    events.until_state(tango.DevState.RUNNING)
    # Other clients' commands are seen, too: a new run without a gap.
    service.command("next")
    service.wait_for(lambda status: status["run"]["number"] == run["number"] + 1, "the next run")
    service.wait_for(lambda status: status["commands"]["stop"]["legal"], "running")
    device.Stop()
    events.until_state(tango.DevState.ON)
    events.end()
    record = Control(service.url, service.secrets["watch"]).runs()[0]
    assert (record["number"], record["state"]) == (device.RunNumber, "complete")
    assert (device.NumCaptured, device.Ledger_Lost) == (record["events"], 0)


def test_a_refusal_is_a_dev_failed_with_the_reason_of_the_service(service: ControlService, device: Any) -> None:
    import tango

    service.wait_for(lambda status: status["state"] == "armed", "armed")
    status, reason = service.refusal("/api/v1/commands/pause", {})
    assert (status, reason) == (409, "cannot pause: the experiment is armed: no run is under way")
    with pytest.raises(tango.DevFailed) as refused:
        device.Pause()
    assert (refused.value.args[0].reason, refused.value.args[0].desc) == ("not-legal", reason)
    assert (device.LastError, device.PauseReason, device.PauseIsLegal) == (reason, reason, False)
    with pytest.raises(tango.DevFailed) as refused:
        device.Acquire = False
    assert refused.value.args[0].desc == "cannot stop: the experiment is armed: no run is under way"
    # The token of this program may operate, and not configure.
    with pytest.raises(tango.DevFailed) as refused:
        device.Configure()
    assert refused.value.args[0].reason == "no-access"
    assert "has the role operate, and this needs configure" in refused.value.args[0].desc


def test_a_client_reads_while_another_one_waits_for_a_command(service: ControlService, device: Any) -> None:
    arming = device.command_inout_asynch("Arm")
    # A read is answered, however long the command takes.
    assert device.RunState.name
    device.command_inout_reply(arming, timeout=int(PATIENCE_SECONDS * 1000))
    service.wait_for(lambda status: status["state"] == "armed", "armed")


def test_the_device_goes_and_comes_with_the_service(service: ControlService, server: Server, device: Any) -> None:
    import tango

    device.Start()
    number = device.RunNumber
    service.process.terminate()
    assert service.process.wait(PATIENCE_SECONDS) == 0
    service.begin()
    server.wait_for_name()

    def state() -> object:
        # A client connects again by itself, a second after an attempt that failed.
        with contextlib.suppress(tango.DevFailed):
            return device.state()

    wait_until(lambda: state() == tango.DevState.RUNNING, "the device")
    assert device.RunNumber == number
    service.wait_for(lambda status: status["commands"]["stop"]["legal"], "running")
    device.Stop()
    service.wait_for(lambda status: status["state"] == "armed", "the end of the run")


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (["--tango", "lab"], "'lab' is no name of a Tango device: write DOMAIN/FAMILY/MEMBER, as lab/daq/run"),
        (["--listen", "nowhere"], "'nowhere' is no address: write HOST:PORT, as 127.0.0.1:45450"),
        (["--prefix", "LAB"], "--prefix and --screens are of EPICS PVs"),
    ],
)
def test_options_that_mean_nothing_are_refused(
    service: ControlService, tmp_path: Path, options: list[str], problem: str
) -> None:
    for module in ("fastcs", "tango"):
        pytest.importorskip(module, reason=f"{module} is not installed")
    refused = Server(service, tmp_path, *options)
    assert refused.process.wait(PATIENCE_SECONDS) != 0
    assert problem in refused.log.read_text()


@pytest.fixture
def database(tmp_path: Path) -> Iterator[str]:
    """Tango database of a test, as a value of TANGO_HOST."""
    for module in ("fastcs", "tango", "databaseds"):
        pytest.importorskip(module, reason=f"{module} is not installed")
    port = free_port()
    command = [sys.executable, "-m", "databaseds.database", "2", "--host", "127.0.0.1", "--port", str(port)]
    environment = os.environ | {"TANGO_HOST": f"127.0.0.1:{port}"}
    with (tmp_path / "database.log").open("wb") as log:
        process = subprocess.Popen(
            command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=log, text=True, env=environment
        )
    assert process.stdout is not None
    assert any("Ready to accept request" in line for line in process.stdout), (tmp_path / "database.log").read_text()
    yield f"127.0.0.1:{port}"
    process.terminate()
    process.wait(PATIENCE_SECONDS)


def test_a_tango_database_has_the_device(
    service: ControlService, database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import tango

    monkeypatch.setitem(service.environment, "TANGO_HOST", database)
    # Without it, Tango would listen on all networks.
    monkeypatch.setitem(service.environment, "ORBendPoint", "giop:tcp:127.0.0.1:")
    refused = Server(service, tmp_path)
    assert refused.process.wait(PATIENCE_SECONDS) == 1
    reason = "the Tango database does not have the device: tango_admin --add-server ThalwegRun/run ThalwegRun"
    assert refused.log.read_text().endswith(f"thalweg-ioc: {reason} {DEVICE}\n")
    host, port = database.split(":")
    # As tango_admin does.
    info = tango.DbDevInfo()
    info.name, info._class, info.server = DEVICE, "ThalwegRun", "ThalwegRun/run"
    directory = tango.Database(host, port)
    directory.set_timeout_millis(int(PATIENCE_SECONDS * 1000))
    directory.add_device(info)
    server = Server(service, tmp_path)
    assert server.wait_for_name() == DEVICE
    assert patient_client(f"tango://{database}/{DEVICE}").RunState.name == service.status()["state"]
    # As Tango's Astor ends servers.
    patient_client(f"tango://{database}/dserver/ThalwegRun/run").Kill()
    assert server.process.wait(PATIENCE_SECONDS) == 0


def test_a_database_that_is_not_there_is_an_error(
    service: ControlService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("fastcs", "tango"):
        pytest.importorskip(module, reason=f"{module} is not installed")
    monkeypatch.setitem(service.environment, "TANGO_HOST", f"127.0.0.1:{free_port()}")
    refused = Server(service, tmp_path)
    assert refused.process.wait(PATIENCE_SECONDS) == 1
    line = refused.log.read_text().splitlines()[-1]
    assert line.startswith("thalweg-ioc: no Tango database (")
    assert line.endswith("set TANGO_HOST, or serve the device without one, with --listen HOST:PORT")


def test_a_python_without_tango_is_named(service: ControlService, tmp_path: Path) -> None:
    pytest.importorskip("fastcs", reason="fastcs is not installed")
    # A package of this name that cannot be imported, as where it is missing.
    (tmp_path / "tango.py").write_text("raise ModuleNotFoundError(\"No module named 'tango'\", name='tango')\n")
    environment = service.environment | {
        "PYTHONPATH": os.pathsep.join([str(tmp_path), str(Path(thalweg.__file__).parents[1])]),
        "THALWEG_CONTROL_TOKEN": service.secrets["watch"],
    }
    command = [sys.executable, "-m", "thalweg.ioc", service.url, "--tango", DEVICE]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    reason = "Tango is not installed for this Python (No module named 'tango'): pip install thalweg[tango]"
    assert (ended.returncode, ended.stderr.splitlines()[-1]) == (1, f"thalweg-ioc: {reason}")
