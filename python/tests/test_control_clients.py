"""Clients of a run control service: EPICS PVs, a Bluesky detector, the Python client and `thalweg ctl`, which agree."""

from __future__ import annotations

import base64
import contextlib
import http.client
import io
import itertools
import json
import os
import queue
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from xml.etree import ElementTree

import numpy as np
import pytest
from conftest import ROOT, free_port

import thalweg
from thalweg import control as control_module
from thalweg.control import Control, ControlError, ServiceLostError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

# Longest time in seconds for each of the things that a test waits for: a failure, and not a measurement.
PATIENCE = 60.0
PREFIX = "LAB"
BEAM = ROOT / "crates/thalweg-device/recordings/beam"
TOPOLOGY = f"""
[run]
directory = "runs"

[control]
experiment = "lab"

[[builder]]
name = "builder"
listen = ["tcp:127.0.0.1:BUILDER_PORT"]
# Longer than any source is silent on a busy machine: runs are complete.
deadline = "60s"

[[source]]
name = "adc-0"
id = "1.0"
rate = 200
device = {{ kind = "model-adc", size = "4KiB" }}

[[source]]
name = "camera"
id = "2.0"
rate = 200
device = {{ kind = "pgm", files = ["{BEAM}/"], loop = true }}
"""


class Service:
    """Running `thalweg control` with its nodes, in a folder of its own."""

    def __init__(self, program: Path, folder: Path) -> None:
        self.program = program
        self.folder = folder
        self.environment = os.environ | {"XDG_STATE_HOME": str(folder / "state")}
        (folder / "lab.toml").write_text(TOPOLOGY.replace("BUILDER_PORT", str(free_port())))
        self.address = f"127.0.0.1:{free_port()}"
        self.begin()
        token = json.loads((folder / "state/thalweg/service.json").read_text())["token"]
        self.control = Control(self.url, token)

    def begin(self) -> None:
        """Starts the service, again at the same address."""
        command = [self.program, "control", "lab.toml", "--listen", self.address, "--json"]
        with (self.folder / "control.log").open("ab") as log:
            self.process = subprocess.Popen(
                command, cwd=self.folder, stdout=subprocess.PIPE, stderr=log, text=True, env=self.environment
            )
        assert self.process.stdout is not None
        self.url = json.loads(self.process.stdout.readline())["listening"]

    def end(self) -> None:
        """Ends the service; its nodes and their run go on."""
        self.process.terminate()
        assert self.process.wait(PATIENCE) == 0

    def ctl(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Runs `thalweg ctl`."""
        return subprocess.run(
            [self.program, "ctl", *arguments], capture_output=True, text=True, check=False, env=self.environment
        )

    def arm(self) -> None:
        """Brings the experiment to `armed`, whatever it does."""
        status = self.control.status()
        if status["run"]:
            self.control.command("stop")
        elif status["state"] in ("idle", "error"):
            self.control.command("configure")
            self.control.command("arm")
        # After a run, it arms by itself.
        self.control.wait_until(lambda status: status["commands"]["start"]["legal"], PATIENCE)


@pytest.fixture(scope="module")
def service(program: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """Service with a builder, a digitizer and a camera."""
    service = Service(program, tmp_path_factory.mktemp("control"))
    yield service
    # Nodes outlive their service.
    nodes = [process["pid"] for process in service.control.status()["processes"] if process["pid"]]
    service.end()
    for node in nodes:
        with contextlib.suppress(ProcessLookupError):
            os.kill(node, signal.SIGKILL)


@pytest.fixture
def armed(service: Service) -> Service:
    """Service with an experiment that is armed."""
    service.arm()
    return service


class Update(NamedTuple):
    """Update of a PV."""

    pv: str
    value: Any
    raw: Any


class Pvs:
    """Running `thalweg-ioc`, and clients of its PVs, on ports of their own on the loopback interface."""

    def __init__(self, url: str, environment: dict[str, str], folder: Path) -> None:
        from p4p.client.thread import Context

        # Ports of this process below those that the kernel gives to others (ip_local_port_range of ip(7)): a held UDP
        # port would take a server's datagrams.
        ca = 20_000 + 2 * (os.getpid() % 5000)
        self.environment = {
            "EPICS_CA_ADDR_LIST": "127.0.0.1",
            "EPICS_CA_AUTO_ADDR_LIST": "NO",
            "EPICS_CA_SERVER_PORT": str(ca),
            "EPICS_CAS_INTF_ADDR_LIST": "127.0.0.1",
            "EPICS_CAS_BEACON_ADDR_LIST": "127.0.0.1",
            "EPICS_PVA_ADDR_LIST": "127.0.0.1",
            "EPICS_PVA_AUTO_ADDR_LIST": "NO",
            "EPICS_PVA_BROADCAST_PORT": str(ca + 1),
            "EPICS_PVA_SERVER_PORT": "0",
            "EPICS_PVAS_INTF_ADDR_LIST": "127.0.0.1",
        }
        self.screens = folder / "screens"
        self._log = (folder / "ioc.log").open("ab")
        command = [sys.executable, "-m", "thalweg.ioc", url, "--prefix", PREFIX, "--screens", self.screens]
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=self._log, text=True, env=environment | self.environment
        )
        self.context = Context("pva", conf=self.environment, useenv=False, nt=False)
        self.wait_for_pvs()

    def wait_for_pvs(self) -> None:
        """Waits until the PVs are served, again after the service was lost: clients search less and less often."""
        assert self.process.stdout is not None
        assert any(" PVs of " in line for line in self.process.stdout), "thalweg-ioc has ended: see ioc.log"

    def pva(self, name: str) -> Any:
        """Reads a PV over pvAccess: texts and choices as such."""
        return plain(self.context.get(f"{PREFIX}:{name}", timeout=PATIENCE).value)

    def put_pva(self, name: str, value: Any) -> None:
        """Writes a PV over pvAccess, and waits until the record has processed it."""
        self.context.put(f"{PREFIX}:{name}", value, timeout=PATIENCE, wait=True)

    def ca(self, name: str) -> Any:
        """Reads a PV over Channel Access: texts and choices as such."""
        from caproto.sync.client import read

        with environment_of(self.environment):
            answer = read(f"{PREFIX}:{name}", data_type="control", timeout=PATIENCE)
        if hasattr(answer.metadata, "enum_strings"):
            return answer.metadata.enum_strings[answer.data[0]].decode()
        return bytes(answer.data).rstrip(b"\0").decode() if answer.data.dtype == np.uint8 else answer.data[0]

    def put_ca(self, name: str, value: int) -> None:
        """Writes a PV over Channel Access, and waits until the record has processed it."""
        from caproto.sync.client import write

        with environment_of(self.environment):
            write(f"{PREFIX}:{name}", value, notify=True, timeout=PATIENCE)

    @contextlib.contextmanager
    def updates(
        self, *names: str, disconnects: bool = False
    ) -> Iterator[Callable[[Callable[[Update], bool]], list[Update]]]:
        """Subscribes to PVs. Yields a function that returns the next updates, up to the first with a property."""
        received: queue.SimpleQueue[Update] = queue.SimpleQueue()

        def receiver(name: str) -> Callable[[Any], None]:
            return lambda raw: received.put(Update(name, plain(getattr(raw, "value", raw)), raw))

        def take_until(condition: Callable[[Update], bool]) -> list[Update]:
            taken: list[Update] = []
            while not taken or not condition(taken[-1]):
                taken.append(received.get(timeout=PATIENCE))
            return taken

        subscriptions = [
            self.context.monitor(f"{PREFIX}:{name}", receiver(name), notify_disconnect=disconnects) for name in names
        ]
        yield take_until
        for subscription in subscriptions:
            subscription.close()

    def end(self) -> None:
        """Ends the program and its clients."""
        self.context.close()
        self.process.terminate()
        assert self.process.wait(PATIENCE) == 0
        self._log.close()


def plain(value: Any) -> Any:
    """Returns the choice of an NTEnum's value, and other values as they are."""
    return value.choices[value.index] if hasattr(value, "choices") else value


@contextlib.contextmanager
def environment_of(variables: dict[str, str]) -> Iterator[None]:
    """Sets variables of this process's environment for a while."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in variables.items():
            patch.setenv(name, value)
        yield


@pytest.fixture(scope="module")
def pvs(service: Service, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pvs]:
    """`thalweg-ioc` at the service."""
    for module in ("fastcs", "softioc", "p4p", "caproto"):
        pytest.importorskip(module, reason=f"{module} is not installed")
    environment = service.environment | {"PYTHONPATH": str(Path(thalweg.__file__).parents[1])}
    pvs = Pvs(service.url, environment, tmp_path_factory.mktemp("ioc"))
    yield pvs
    pvs.end()


def test_pvs_the_client_and_ctl_command_one_run(service: Service, pvs: Pvs) -> None:
    service.arm()
    control = service.control
    with pvs.updates("State") as states:
        states(lambda update: update.value == "armed")
        pvs.put_ca("Start", 1)
        states(lambda update: update.value == "running")
        status = control.status()
        assert (status["state"], status["run"]["kind"]) == ("running", "physics")
        assert pvs.ca("State") == pvs.pva("State") == "running"
        assert pvs.ca("RunNumber") == pvs.pva("RunNumber") == status["run"]["number"]
        # Neither of the commands of Acquire is legal: the reason is that of the one for a run.
        pvs.put_pva("Acquire", 1)
        assert pvs.ca("LastError") == "cannot resume: the experiment is running: it is not paused"
        control.command("pause")
        states(lambda update: update.value == "paused")
        assert (pvs.pva("Acquire_RBV"), pvs.pva("Capture_RBV")) == ("False", "True")
        # areaDetector's word for it: a paused run is resumed.
        pvs.put_pva("Acquire", 1)
        states(lambda update: update.value == "running")
        control.wait_until(lambda status: status["totals"]["events"] >= 10, PATIENCE)
        assert service.ctl("stop").returncode == 0
        states(lambda update: update.value == "armed")
    record = control.runs()[0]
    assert (record["number"], record["state"]) == (status["run"]["number"], "complete")
    assert pvs.ca("NumCaptured_RBV") == pvs.pva("NumCaptured_RBV") == record["events"]
    directory = Path(pvs.ca("FullFileName_RBV"))
    assert service.folder / directory == service.folder / record["directory"]
    assert len(thalweg.open(service.folder / directory)) == record["events"]
    assert pvs.ca("DroppedArrays_RBV") == pvs.pva("Ledger:Lost") == 0


def test_a_refusal_has_one_reason(armed: Service, pvs: Pvs) -> None:
    with pytest.raises(ControlError) as refused:
        armed.control.command("pause")
    reason = str(refused.value)
    assert refused.value.code == "not-legal"
    assert reason == "cannot pause: the experiment is armed: no run is under way"
    assert armed.ctl("pause").stderr == f"thalweg: {reason}\n"
    assert armed.control.status()["commands"]["pause"] == {"legal": False, "reason": reason}
    with pvs.updates("PauseReason") as updates:
        updates(lambda update: update.value == reason)
    assert pvs.ca("PauseIsLegal") == "False"
    pvs.put_ca("Pause", 1)
    assert pvs.ca("LastError") == pvs.pva("LastError") == reason
    assert pvs.context.get(f"{PREFIX}:Pause", timeout=PATIENCE).alarm.severity == 2
    # The next command that is accepted clears it.
    pvs.put_pva("Capture", 1)
    assert pvs.ca("LastError") == ""


def test_a_process_is_restarted_where_no_run_has_it(armed: Service) -> None:
    control = armed.control
    control.command("start")
    reason = next(p for p in control.status()["processes"] if p["node"] == "camera")["actions"]["restart"]["reason"]
    assert reason.startswith("cannot restart node 'camera': it takes part in run ")
    with pytest.raises(ControlError, match="it takes part in run") as refused:
        control.process("restart", "camera")
    assert (refused.value.code, str(refused.value)) == ("not-legal", reason)
    assert armed.ctl("process", "restart", "camera").stderr == f"thalweg: {reason}\n"
    control.command("stop")
    status = control.wait_until(lambda status: status["commands"]["start"]["legal"], PATIENCE)
    before = {process["node"]: process["pid"] for process in status["processes"]}
    assert {process["node"] for process in control.process("restart", "camera")} == set(before)
    control.wait_until(lambda status: before["camera"] not in pids_of(status), PATIENCE)
    control.wait_until(lambda status: None not in pids_of(status) and status["state"] == "configured", PATIENCE)
    control.command("arm")


def pids_of(status: dict[str, Any]) -> list[int | None]:
    """Returns the numbers of the processes of all nodes."""
    return [process["pid"] for process in status["processes"]]


def test_the_count_of_a_run_is_0_before_the_run_is_seen(armed: Service, pvs: Pvs) -> None:
    for _ in range(2):
        with pvs.updates("NumCaptured_RBV", "Capture_RBV") as updates:
            # The values of now, in any order.
            first = updates(lambda update: update.pv == "Capture_RBV" and update.value == "False")
            if all(update.pv == "Capture_RBV" for update in first):
                first += updates(lambda update: update.pv == "NumCaptured_RBV")
            pvs.put_ca("Start", 1)
            seen = updates(lambda update: update.value == "True")
            seen += updates(lambda update: update.pv == "NumCaptured_RBV" and update.value > 0)
        seen.sort(key=lambda update: (update.raw.timeStamp.secondsPastEpoch, update.raw.timeStamp.nanoseconds))
        begins = next(index for index, update in enumerate(seen) if update.value == "True")
        # No update where the count was 0 already.
        former = [update.value for update in first if update.pv == "NumCaptured_RBV"]
        assert [*former, *(update.value for update in seen[:begins])][-1] == 0, seen
        armed.arm()
        assert pvs.pva("NumCaptured_RBV") > 0


def test_an_image_has_a_number_and_a_time(armed: Service, pvs: Pvs) -> None:
    pvs.put_ca("Start", 1)
    run = armed.control.status()["run"]
    with pvs.updates("Camera:Image") as images:
        raw = images(lambda update: attributes(update.raw).get("run") == run["number"] and update.raw.uniqueId > 10)[
            -1
        ].raw
    assert attributes(raw)["event"] == str(raw.uniqueId)
    assert attributes(raw)["source"] == "camera"
    assert raw.timeStamp.secondsPastEpoch >= int(run["asked_at"])
    assert raw.timeStamp.userTag == raw.uniqueId
    width, height = (dimension.size for dimension in raw.dimension)
    recorded = [file.read_bytes()[-width * height :] for file in sorted(BEAM.glob("*.pgm"))]
    pixels = np.asarray(raw.value)
    assert pixels.dtype == np.uint16
    assert pixels.astype(np.uint8).tobytes() in recorded
    with pvs.updates("Adc0:Ch0Min", "Adc0:Ch0Max") as waveforms:
        taken = waveforms(lambda update: update.pv == "Adc0:Ch0Max")
    highest = np.asarray(taken[-1].value)
    assert len(highest) > 0
    assert (np.asarray(pvs.pva("Adc0:Ch0Min")) <= highest.max()).all()


def attributes(raw: Any) -> dict[str, Any]:
    """Returns the attributes of an NTNDArray."""
    return {attribute.name: attribute.value for attribute in raw.get("attribute") or []}


def test_screens_show_the_pvs(pvs: Pvs) -> None:
    pvs.pva("State")
    shown = {name.text for file in pvs.screens.glob("*.bob") for name in ElementTree.parse(file).iter("pv_name")}
    assert {f"{PREFIX}:State", f"{PREFIX}:Start", f"{PREFIX}:Adc0:Backlog", f"{PREFIX}:Ledger:Lost"} <= shown


def test_pvs_go_and_come_with_the_service_and_the_run_goes_on(armed: Service, pvs: Pvs) -> None:
    from p4p.client.thread import Disconnected

    pvs.put_ca("Start", 1)
    number = armed.control.status()["run"]["number"]
    with pvs.updates("RunNumber", disconnects=True) as updates:
        updates(lambda update: update.value == number)
        armed.end()
        updates(lambda update: isinstance(update.raw, Disconnected))
    armed.begin()
    pvs.wait_for_pvs()
    assert pvs.ca("RunNumber") == number
    assert armed.control.status()["run"]["number"] == number
    armed.control.wait_until(lambda status: status["commands"]["stop"]["legal"], PATIENCE)
    pvs.put_ca("Stop", 1)
    assert armed.control.wait_until(lambda status: status["run"] is None, PATIENCE)["last_run"]["state"] == "complete"


def test_read_only_pvs_give_no_commands() -> None:
    ioc = pytest.importorskip("thalweg._run_controller", reason="fastcs is not installed", exc_type=ImportError)
    from fastcs.attributes import AttrW

    reasons = {name: {"legal": True, "reason": ""} for name in ("start", "stop", "resume")}
    status = {"id": 1, "commands": reasons, "sources": [{"name": "adc-0"}]}
    controllers = [ioc.RunController(None, PREFIX, status, read_only=read_only) for read_only in (True, False)]
    commands = [set(controller.command_methods) for controller in controllers]
    assert commands == [set(), {"start", "stop", "resume"}]
    written = [
        {name for name, attribute in controller.attributes.items() if isinstance(attribute, AttrW)}
        for controller in controllers
    ]
    assert written == [set(), {"acquire", "capture", "next_kind", "next_note"}]
    with pytest.raises(ValueError, match="'adc-0' and 'adc_0' would have the same PVs"):
        ioc.source_pvs({"sources": [{"name": "adc-0"}, {"name": "adc_0"}]})


class Answers:
    """Service that answers each request with the same bytes after some seconds, and ends the connection."""

    def __init__(self, answer: bytes, after: float = 0.0) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._answer = answer
        self._after = after
        threading.Thread(target=self._serve, daemon=True).start()
        self.control = Control(f"http://127.0.0.1:{self._listener.getsockname()[1]}", "a token of sixteen")

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                with connection:
                    connection.recv(1 << 16)
                    time.sleep(self._after)
                    connection.sendall(self._answer)

    def close(self) -> None:
        """Ends the service."""
        self._listener.close()


def answer(body: bytes, status: str = "200 OK") -> bytes:
    """Returns an answer of HTTP."""
    return b"HTTP/1.1 %s\r\nContent-Length: %d\r\n\r\n%s" % (status.encode(), len(body), body)


@pytest.mark.parametrize("seed", range(20))
def test_pixels_of_no_more_than_16_bits_are_got_back(seed: int) -> None:
    ioc = pytest.importorskip("thalweg._ioc_epics", reason="fastcs is not installed", exc_type=ImportError)
    random = np.random.default_rng(seed)
    least, most = sorted(random.integers(0, 1 << 16, 2))
    pixels = random.integers(least, most, (5, 7), endpoint=True)
    # As the node makes them.
    low, high = float(pixels.min()), float(pixels.max())
    scaled = np.round((pixels - low) * (65535 / max(high - low, 1e-300))).astype("<u2")
    encoded = base64.b64encode(scaled.tobytes()).decode()
    image = {"width": 7, "height": 5, "pixels": encoded, "minimum": low, "maximum": high}
    assert (ioc.image_pixels(image, "image-u16") == pixels).all()
    fractions = ioc.image_pixels(image | {"minimum": 0.0, "maximum": 1.0}, "image-f32")
    assert fractions.dtype == float
    assert fractions.min() >= 0
    assert fractions.max() <= 1


@pytest.mark.parametrize(
    ("bytes_sent", "problem"),
    [
        (b"", "end closed connection|Connection reset"),
        (b"SSH-2.0-OpenSSH_9.2\r\n", "SSH-2.0"),
        (answer(b"<html>"), "Expecting value"),
        (answer(b"[]"), "not an object"),
        (answer(b"[" * 100_000), "nested too deeply"),
        (answer(b"{}")[:-1], "Expecting property name"),
        (answer(b"\xff\xfe", "502 Bad Gateway"), "502 Bad Gateway, without a reason"),
        (answer(b"x" * 5000), "more than 4096 bytes"),
    ],
)
def test_an_answer_that_is_none_is_an_error(bytes_sent: bytes, problem: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if len(bytes_sent) < 10_000:
        monkeypatch.setattr(control_module, "MAX_ANSWER_BYTES", 4096)
    service = Answers(bytes_sent)
    with pytest.raises(ControlError, match=problem):
        service.control.status()
    service.close()


@pytest.mark.parametrize(
    ("stream", "problem"),
    [
        (b'event: status\ndata: {"id": 1}\n\n', "it ended the connection"),
        (b'event: status\ndata: {"id": 1}\n\ndata: [1]\n\n', "not an object"),
        (b'event: status\ndata: {"id": 1}\n\ndata: {', "cut off"),
        (b'event: status\ndata: {"id": 1}\n\n' + b"data: 1\n" * 1000, "more than 4096 bytes"),
    ],
)
def test_changes_end_with_an_error(stream: bytes, problem: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control_module, "MAX_ANSWER_BYTES", 4096)
    service = Answers(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n: welcome\n\n" + stream)
    changes = service.control.changes()
    assert next(changes) == ("status", "", {"id": 1})
    with pytest.raises(ServiceLostError, match=problem):
        next(changes)
    service.close()


def test_a_status_counts_if_the_service_answers_late() -> None:
    service = Answers(
        b'HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\nevent: status\ndata: {"id": 1}\n\n', after=0.2
    )
    assert service.control.wait_until(lambda status: status["id"] == 1, 0.1) == {"id": 1}
    service.close()


def test_any_bytes_are_changes_or_an_error() -> None:
    pieces = [
        b"event: status",
        b"data: ",
        b'{"id": 1}',
        b"[",
        b"id: 7",
        b"\n",
        b"\r\n",
        b"\n\n",
        b": x",
        b"\xff",
        b"9" * 5000,
    ]
    counts = {True: 0, False: 0}
    for seed in range(2000):
        random = np.random.default_rng(seed)
        stream = io.BytesIO(b"".join(pieces[choice] for choice in random.integers(0, len(pieces), 12)))
        try:
            for change in control_module._read_changes(stream):  # type: ignore[arg-type]
                assert change is None or isinstance(change.data, dict)
                counts[True] += change is not None
        except http.client.HTTPException:
            counts[False] += 1
    assert min(counts.values()) > 0, counts


def test_a_client_names_what_it_does_not_know(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("THALWEG_CONTROL_URL", "THALWEG_CONTROL_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    with pytest.raises(ValueError, match="no service is known"):
        Control()
    with pytest.raises(ValueError, match="no token for http"):
        Control("http://127.0.0.1:1")
    with pytest.raises(ValueError, match="write http://HOST:PORT"):
        Control("127.0.0.1:1", "token")
    with pytest.raises(ServiceLostError, match="is `thalweg control` running there"):
        Control("http://127.0.0.1:1", "token").status()


def test_a_token_that_may_only_watch_gives_no_commands(armed: Service) -> None:
    tokens = (armed.folder / "runs/.control/tokens.toml").read_text()
    watch = tokens.split('role = "watch"')[1].split('secret = "')[1].split('"')[0]
    watcher = Control(armed.url, watch)
    assert watcher.status()["state"] == "armed"
    with pytest.raises(ControlError, match="has the role watch, and this needs operate"):
        watcher.command("start")
    with pytest.raises(TimeoutError, match=r"not so after 0\.1 s: the experiment is armed"):
        watcher.wait_until(lambda status: status["state"] == "running", 0.1)


@pytest.fixture
def engine() -> Any:
    """RunEngine, without what it prints."""
    pytest.importorskip("ophyd_async", reason="ophyd-async is not installed")
    run_engine = pytest.importorskip("bluesky.run_engine", reason="bluesky is not installed")
    return run_engine.RunEngine(context_managers=[])


Documents = list[tuple[str, dict[str, Any]]]


def documents_of(engine: Any, plan: Any) -> Documents:
    """Carries out a plan, and returns its documents, which are valid."""
    from event_model import DocumentNames, schema_validators

    documents: Documents = []

    def keep(name: str, document: dict[str, Any]) -> None:
        schema_validators[DocumentNames[name]].validate(document)
        documents.append((name, document))

    engine(plan, keep)
    assert documents[-1][1]["exit_status"] == "success"
    return documents


def content(documents: Documents, kind: str) -> list[dict[str, Any]]:
    """Returns the documents of a kind."""
    return [document for name, document in documents if name == kind]


def test_each_point_of_a_plan_is_a_run(armed: Service, engine: Any) -> None:
    from bluesky.plans import count, scan
    from ophyd_async.core import init_devices, soft_signal_rw

    from thalweg.ophyd import RUN_MIMETYPE, RunDetector

    with init_devices():
        daq = RunDetector(armed.control, events=5)
        motor = soft_signal_rw(float, name="motor")
    next_number = armed.control.status()["next_number"]
    counted = documents_of(engine, count([daq], num=2))
    scanned = documents_of(engine, scan([daq], motor, 0, 1, 2))
    events = [event["data"] for event in content(counted, "event") + content(scanned, "event")]
    assert [event["daq-run_number"] for event in events] == list(range(next_number, next_number + 4))
    assert [event.get("motor") for event in events] == [None, None, 0.0, 1.0]
    resources = content(counted, "stream_resource") + content(scanned, "stream_resource")
    host = armed.control.status()["service"]["host"]
    for event, resource in zip(events, resources, strict=True):
        assert resource["mimetype"] == RUN_MIMETYPE
        run = thalweg.open(resource["uri"].removeprefix(f"file://{host}"))
        assert run.state == "COMPLETE"
        assert len(run) == event["daq-event_count"] >= 5
        assert event["daq-incomplete"] == 0
    datums = content(counted, "stream_datum") + content(scanned, "stream_datum")
    assert [datum["indices"] for datum in datums] == [{"start": 0, "stop": 1}] * 4
    assert [datum["seq_nums"]["start"] for datum in datums] == [1, 2, 1, 2]


def test_a_fly_scan_is_one_run(armed: Service, engine: Any) -> None:
    from bluesky import plan_stubs as stubs
    from bluesky import preprocessors
    from ophyd_async.core import TriggerInfo, init_devices

    from thalweg.ophyd import RunDetector

    with init_devices():
        daq = RunDetector(armed.control, events=5, directory=armed.folder / "runs")

    @preprocessors.stage_decorator([daq])
    @preprocessors.run_decorator()
    def fly() -> Any:
        yield from stubs.prepare(daq, TriggerInfo(number_of_events=4), wait=True)
        yield from stubs.declare_stream(daq, name="primary", collect=True)
        yield from stubs.kickoff(daq, wait=True)
        yield from stubs.collect_while_completing([daq], [daq], stream_name="primary")

    documents = documents_of(engine, fly())
    (resource,) = content(documents, "stream_resource")
    assert len(thalweg.open(resource["uri"].removeprefix("file://localhost"))) >= 20
    indices = [datum["indices"] for datum in content(documents, "stream_datum")]
    assert (indices[0]["start"], indices[-1]["stop"]) == (0, 4)
    assert all(one["stop"] == next["start"] for one, next in itertools.pairwise(indices))


def test_a_plan_leaves_a_run_of_somebody_else_alone(armed: Service, engine: Any) -> None:
    from bluesky.plans import count
    from bluesky.utils import FailedStatus
    from ophyd_async.core import init_devices

    from thalweg.ophyd import RunDetector

    with init_devices():
        daq = RunDetector(armed.control)
    with pytest.raises(ValueError, match="'runs' is no absolute path"):
        RunDetector(armed.control, directory="runs")
    number = armed.control.command("start")["run"]["number"]
    with pytest.raises(FailedStatus) as failed:
        engine(count([daq]))
    assert f"run {number} is under way: stop it first" in str(failed.value.__cause__)
    assert armed.control.status()["run"]["number"] == number


def test_a_source_that_dies_fails_the_plan_and_is_an_alarm(armed: Service, pvs: Pvs, engine: Any) -> None:
    from bluesky.plans import count
    from bluesky.utils import FailedStatus
    from ophyd_async.core import init_devices

    from thalweg.ophyd import RunDetector, RunFailedError

    # The events of the source that dies are given up soon.
    topology = armed.folder / "lab.toml"
    topology.write_text(topology.read_text().replace('deadline = "60s"', 'deadline = "5s"'))
    armed.control.command("configure")
    armed.control.command("arm")
    with init_devices():
        daq = RunDetector(armed.control, events=1_000_000)
    processes = {process["node"]: process["pid"] for process in armed.control.status()["processes"]}

    def kill_source() -> None:
        armed.control.wait_until(lambda status: status["run"] and status["totals"]["events"] > 10, PATIENCE)
        os.kill(processes["adc-0"], signal.SIGKILL)

    killer = threading.Thread(target=kill_source)
    killer.start()
    with pvs.updates("Adc0:Severity") as severities, pvs.updates("Adc0:IsNodeConnected") as connections:
        severities(lambda update: update.value == "ok")
        with pytest.raises(FailedStatus) as failed:
            engine(count([daq]))
        killer.join()
        # PVs may be behind the service.
        severities(lambda update: update.value == "major")
        connections(lambda update: update.value == "False")
    for name in ("Adc0:Severity", "Adc0:IsNodeConnected"):
        assert pvs.context.get(f"{PREFIX}:{name}", timeout=PATIENCE).alarm.severity == 2
    assert isinstance(failed.value.__cause__, RunFailedError)
