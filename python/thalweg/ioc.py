"""EPICS PVs of a run control service: its state, commands, rates, ledger, sources, waveforms and images.

Run as a program, with the address of the service; both are found as `thalweg ctl` finds them if they are left out:

    thalweg-ioc http://127.0.0.1:8400 --prefix LAB

The PVs are served over Channel Access and pvAccess, waveforms and images over pvAccess. docs/epics-bluesky.md lists
them. Names of areaDetector are used where they mean the same: `Acquire`, `Capture`, `NumCaptured_RBV`.

PVs exist as long as the service does. When it is lost, or its topology has other sources, the program begins anew:
clients see its PVs disconnected, and not values of the past.

Needs FastCS, softioc and p4p, and Python 3.11: pip install thalweg[ioc].
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import enum
import os
import re
import signal
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from thalweg.control import Control, ControlError, ServiceLostError

try:
    import epicsdbbuilder
    from fastcs.attributes import Attribute, AttributeIO, AttributeIORef, AttrR, AttrRW, AttrW
    from fastcs.control_system import FastCS
    from fastcs.controllers import BaseController, Controller, ControllerAPI
    from fastcs.datatypes import Bool, Enum, Float, Int, String
    from fastcs.logging import logger
    from fastcs.methods import Command
    from fastcs.transports.epics import EpicsCAOptions, EpicsGUIOptions
    from fastcs.transports.epics.ca import EpicsCATransport
    from fastcs.transports.epics.util import pv_prefix_from_path
    from fastcs.util import snake_to_pascal
    from p4p import Value
    from p4p.nt import NTNDArray, NTScalar
    from p4p.server import Server, StaticProvider
    from p4p.server.raw import Handler
    from p4p.server.thread import SharedPV
    from softioc import builder, softioc
    from softioc.asyncio_dispatcher import AsyncioDispatcher
except ImportError as error:
    msg = f"thalweg.ioc needs FastCS, softioc and p4p ({error}): pip install thalweg[ioc]"
    raise ImportError(msg) from error

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator

__all__ = ["main"]

# Time in seconds from one request for the latest fragments to the next.
LATEST_SECONDS = 0.2
# Time in seconds from one attempt to reach the service to the next.
RETRY_SECONDS = 1.0
# Largest number of columns of waveforms, and of rows and columns of images.
MAX_COLUMNS = 2048
# Length of PVs with sentences, in bytes; longer ones are cut off.
SENTENCE_BYTES = 1000
# uniqueId and userTag are 32-bit signed integers.
ID_MASK = (1 << 31) - 1

ENTRIES_OF_LEDGER = (
    "accepted", "built", "rejected", "dropped", "lost_in_device", "late", "corrupt", "lost", "beyond_end", "on_the_way",
)  # fmt: skip
# Fragments that should have been built and were not.
DROPPED = ("dropped", "lost_in_device", "late", "corrupt", "lost")
# Severity of a count that is not 0.
SEVERITIES = {
    "dropped": "MINOR", "lost_in_device": "MINOR", "late": "MINOR", "corrupt": "MAJOR", "lost": "MAJOR",
    "dropped_arrays": "MAJOR", "incomplete": "MINOR", "absent_events": "MINOR", "alarms": "MAJOR",
}  # fmt: skip
MBB_PREFIXES = ("ZR", "ON", "TW", "TH", "FR", "FV", "SX", "SV", "EI", "NI", "TE", "EL", "TV", "TT", "FT", "FF")
IMAGE = NTNDArray.buildType()
WAVEFORM = NTScalar.buildType("ad")
# States in which a run has begun and is not over.
RUN_STATES = ("running", "pausing", "paused", "stopping", "closing")
# PVs that are read only, and whose names in areaDetector end in _RBV.
READ_BACK = ("num_captured", "array_counter", "dropped_arrays", "full_file_name")

State = enum.Enum(
    "State",
    "idle configuring configured arming armed starting running pausing paused stopping closing error",
    start=0,
)
Severity = enum.Enum("Severity", "ok minor major", start=0)
Kind = enum.Enum("Kind", "physics test", start=0)
# Severities of the states of a PV, by its name.
STATE_SEVERITIES: dict[str, dict[Any, str]] = {
    "state": {"error": "MAJOR"},
    "severity": {"minor": "MINOR", "major": "MAJOR"},
    "is_node_connected": {False: "MAJOR"},
}


def count(description: str, units: str = "") -> AttrR[float]:
    """Creates a PV of a count. It is a double, exact up to 2^53: EPICS' own integers have 32 bits."""
    return AttrR(Float(prec=0, units=units), description=description)


def quantity(description: str, units: str, prec: int = 1) -> AttrR[float]:
    """Creates a PV of a quantity."""
    return AttrR(Float(prec=prec, units=units), description=description)


def sentence(description: str) -> AttrR[str]:
    """Creates a PV of a sentence."""
    return AttrR(String(length=SENTENCE_BYTES), description=description)


class Ledger(Controller):
    """PVs of a ledger: each fragment that was accepted is in exactly one entry."""

    def __init__(self) -> None:
        """Creates the PVs."""
        super().__init__(description="Ledger of the run")
        for entry in ENTRIES_OF_LEDGER:
            self.add_attribute(entry, count(f"Fragments: {entry.replace('_', ' ')}"))


class SourceController(Controller):
    """PVs of a source."""

    def __init__(self) -> None:
        """Creates the PVs."""
        super().__init__(description="Source")
        self.add_attribute("source", sentence("Name in the topology"))
        self.add_attribute("host", sentence("Host of its node"))
        self.add_attribute("is_node_connected", AttrR(Bool(), description="Its node is connected"))
        self.add_attribute("is_linked", AttrR(Bool(), description="Connected to the builder"))
        self.add_attribute("severity", AttrR(Enum(Severity), description="Severity of its trouble"))
        self.add_attribute("trouble", sentence("Its trouble, if it has one"))
        self.add_attribute("bytes_per_second", quantity("Payload built", "B/s"))
        self.add_attribute("events_per_second", quantity("Fragments built", "Hz"))
        self.add_attribute("backlog", count("Fragments waiting for the builder"))
        self.add_attribute("dead_percent", quantity("Time in which it took nothing", "%"))
        self.add_attribute("array_counter", count("Fragments accepted"))
        self.add_attribute("dropped_arrays", count("Fragments that were not built"))
        self.add_attribute("lost", count("Fragments lost"))
        self.add_attribute("absent_events", count("Events closed without it"))


def source_values(source: dict[str, Any]) -> dict[str, Any]:
    """Returns the values of a source's PVs that are not counts of a run."""
    names = ("host", "is_node_connected", "is_linked", "trouble", "bytes_per_second", "events_per_second", "backlog")
    values = {name: source[name] for name in (*names, "dead_percent")}
    return values | {"source": source["name"], "severity": member(Severity, source["severity"])}


def source_counts(source: dict[str, Any]) -> dict[str, Any]:
    """Returns the counts of a source."""
    counts = {"array_counter": source["accepted"], "dropped_arrays": dropped_fragments(source)}
    return counts | {"lost": source["lost"], "absent_events": source["absent_events"]}


@dataclass
class SwitchRef(AttributeIORef):
    """Reference of a PV whose values 1 and 0 are commands."""

    on: tuple[str, ...] = ()
    """Commands of 1: the first one that is legal is given."""
    off: tuple[str, ...] = ()
    """Commands of 0."""


class SwitchIO(AttributeIO[bool, SwitchRef]):
    """Writer of PVs whose values are commands."""

    def __init__(self, execute: Callable[[tuple[str, ...]], Coroutine[None, None, None]]) -> None:
        """Creates a writer that gives commands by `execute`."""
        super().__init__()
        self._execute = execute

    async def update(self, attr: AttrR[bool, SwitchRef]) -> None:
        """Does nothing: `RunController.show_status` updates all PVs."""

    async def send(self, attr: AttrW[bool, SwitchRef], value: bool) -> None:
        """Gives the command of a value."""
        await self._execute(attr.io_ref.on if value else attr.io_ref.off)


class RunController(Controller):
    """PVs of an experiment, with a controller for each source."""

    def __init__(self, control: Control, prefix: str, status: dict[str, Any], *, read_only: bool) -> None:
        """Creates the PVs for the sources of a status. Raises ValueError if two of them have the same PVs."""
        super().__init__(description="Run control", ios=[SwitchIO(self.execute_first)])
        self.set_path([prefix])
        self._control = control
        self._shown = status
        self._is_capturing = False
        # Statuses arrive from the service's changes and with the answers to commands.
        self._lock = asyncio.Lock()
        self.add_state_pvs(read_only=read_only)
        self.add_count_pvs()
        self.add_sub_controller("ledger", Ledger())
        self.source_pvs = source_pvs(status)
        for pv in self.source_pvs.values():
            self.add_sub_controller(pv, SourceController())
        if not read_only:
            for name in status["commands"]:
                self.add_command(name, Command(self._command_method(name)))

    def add_state_pvs(self, *, read_only: bool) -> None:
        """Adds the PVs of the state, and those with which it is changed."""
        self.add_attribute("state", AttrR(Enum(State), description="State"))
        self.add_attribute("sentence", sentence("State in a sentence"))
        self.add_attribute("reasons", sentence("Reasons of an error or a refusal"))
        self.add_attribute("last_error", sentence("Reason why the last command was refused"))
        for name in self._shown["commands"]:
            self.add_attribute(f"{name}_is_legal", AttrR(Bool(), description=f"The command {name} is legal now"))
            self.add_attribute(f"{name}_reason", sentence(f"Reason why {name} is not legal"))
        switches = {
            "acquire": SwitchRef(on=("resume", "start"), off=("stop",)),
            "capture": SwitchRef(on=("start",), off=("stop",)),
        }
        for name, switch in switches.items():
            description = {"acquire": "Sources accept events", "capture": "A run is under way"}[name]
            attribute = AttrR(Bool(), description=description)
            self.add_attribute(name, attribute if read_only else AttrRW(Bool(), switch, description=description))
        if not read_only:
            self.add_attribute("next_kind", AttrRW(Enum(Kind), description="Kind of the next run"))
            self.add_attribute("next_note", AttrRW(String(length=SENTENCE_BYTES), description="Note of the next run"))

    def add_count_pvs(self) -> None:
        """Adds the PVs of the run, its counts and its rates."""
        self.add_attribute("experiment", sentence("Name of the experiment"))
        self.add_attribute("run_number", AttrR(Int(), initial_value=-1, description="Run under way, or the last one"))
        self.add_attribute("next_number", AttrR(Int(), initial_value=-1, description="Number of the next run"))
        self.add_attribute("run_kind", sentence("Kind of the run: physics or test"))
        self.add_attribute("run_note", sentence("Note of the run"))
        self.add_attribute("run_seconds", quantity("Time since its beginning", "s"))
        self.add_attribute("num_captured", count("Events built"))
        self.add_attribute("incomplete", count("Events closed incomplete"))
        self.add_attribute("array_counter", count("Fragments accepted"))
        self.add_attribute("dropped_arrays", count("Fragments that were not built"))
        self.add_attribute("full_file_name", sentence("Directory of the run"))
        self.add_attribute("events_per_second", quantity("Events built", "Hz"))
        self.add_attribute("bytes_per_second", quantity("Payload built", "B/s"))
        self.add_attribute("stalled_percent", quantity("Time held up by the disk", "%"))
        self.add_attribute("disk_free_bytes", count("Room on the disk", "B"))
        self.add_attribute("alarms", count("Alarms active and not acknowledged"))
        self.add_attribute("alarm_text", sentence("Texts of these alarms"))

    def _command_method(self, name: str) -> Callable[[], Coroutine[None, None, None]]:
        async def give_command() -> None:
            await self.execute_first((name,))

        return give_command

    async def execute_first(self, names: tuple[str, ...]) -> None:
        """Gives the first of these commands that is legal, or else the last one, for the reason of its refusal."""
        legality = self._shown["commands"]
        name = next((name for name in names if legality[name]["legal"]), names[-1])
        arguments = {}
        if name == "start":
            kind, note = self.attributes["next_kind"], self.attributes["next_note"]
            assert isinstance(kind, AttrR)
            assert isinstance(note, AttrR)
            arguments = {"kind": kind.get().name, "note": note.get()}
        try:
            status = await asyncio.to_thread(self._control.command, name, **arguments)
        except ControlError as error:
            await show_values(self, {"last_error": str(error)})
            raise
        await show_values(self, {"last_error": ""})
        await self.show_status(status)

    async def show_status(self, status: dict[str, Any]) -> None:
        """Shows a status, unless a newer one is shown already."""
        async with self._lock:
            if status["id"] >= self._shown["id"]:
                self._shown = status
                await self._show_values(status)

    async def _show_values(self, status: dict[str, Any]) -> None:
        # An experiment that is armed again has no counts: those of the last run stay.
        has_counts = status["run"] is not None or status["ledger"]["accepted"] > 0
        for source in status["sources"]:
            controller = self.sub_controllers[self.source_pvs[source["name"]]]
            await show_values(controller, source_values(source) | (source_counts(source) if has_counts else {}))
        await show_values(self.sub_controllers["ledger"], status["ledger"] if has_counts else {})
        if status["state"] in RUN_STATES and not self._is_capturing:
            # As areaDetector's file plugins: the count of the former run is gone before the run is seen.
            await show_values(self, {"num_captured": 0, "capture": True})
        self._is_capturing = status["state"] in RUN_STATES
        await show_values(self, (run_counts(status) if has_counts else {}) | run_values(status))


def run_counts(status: dict[str, Any]) -> dict[str, Any]:
    """Returns the counts of a run."""
    counts = {"num_captured": status["totals"]["events"], "incomplete": status["totals"]["incomplete"]}
    ledger = status["ledger"]
    return counts | {"array_counter": ledger["accepted"], "dropped_arrays": dropped_fragments(ledger)}


def run_values(status: dict[str, Any]) -> dict[str, Any]:
    """Returns the values of an experiment's own PVs that are not counts, in the order in which they are shown."""
    run, last, totals = status["run"], status["last_run"], status["totals"]
    alarms = [alarm for alarm in status["alarms"] if alarm["is_active"] and not alarm["is_acknowledged"]]
    values: dict[str, Any] = {
        "experiment": status["experiment"],
        "sentence": status["sentence"],
        "reasons": "; ".join(status["reasons"]),
        "next_number": -1 if status["next_number"] is None else status["next_number"],
        "disk_free_bytes": status["disk"]["free_bytes"],
        "alarms": len(alarms),
        "alarm_text": "; ".join(alarm["text"] for alarm in alarms),
    }
    values |= {name: totals[name] for name in ("events_per_second", "bytes_per_second", "stalled_percent")}
    for name, legality in status["commands"].items():
        values |= {f"{name}_is_legal": legality["legal"], f"{name}_reason": legality["reason"]}
    if run is None and last is not None:
        values |= {"num_captured": last["events"], "incomplete": last["incomplete"]}
    if shown := run or last:
        values |= {"run_number": shown["number"], "run_kind": shown["kind"], "run_note": shown["note"]}
        values["run_seconds"] = shown["seconds"]
        is_recorded = bool(status["directory"])
        in_directory = f"{status['directory']}/run-{shown['number']:06d}" if is_recorded else ""
        values["full_file_name"] = shown.get("directory") or in_directory
    values["capture"] = status["state"] in RUN_STATES
    values["acquire"] = status["state"] == "running"
    # Last: a client that sees a state reads the values of it.
    values["state"] = member(State, status["state"])
    return values


async def show_values(controller: BaseController, values: dict[str, Any]) -> None:
    """Shows values in the PVs of these names. None, as for a figure that is not known, leaves a PV as it is."""
    for name, value in values.items():
        attribute = controller.attributes.get(name)
        if isinstance(attribute, AttrR) and value is not None:
            await attribute.update(value)


def dropped_fragments(ledger: dict[str, Any]) -> int:
    """Returns the number of fragments that should have been built and were not."""
    return sum(int(ledger[name]) for name in DROPPED)


def member(names: type[enum.Enum], name: str) -> enum.Enum:
    """Returns the member of a name. Raises ValueError if a newer service has other names."""
    if name not in names.__members__:
        kind = names.__name__.lower()
        msg = f"the service has a {kind} '{name}' that this program does not know: install its version"
        raise ValueError(msg)
    return names[name]


def source_pvs(status: dict[str, Any]) -> dict[str, str]:
    """Returns the names of the controllers of sources, in snake case, by the sources' names.

    Raises ValueError if two sources have the same one.
    """
    names: dict[str, str] = {}
    for source in status["sources"]:
        pv = "_".join(re.findall(r"[a-z0-9]+", source["name"].lower()))
        pv = pv if pv[:1].isalpha() else f"source_{pv}"
        if other := next((other for other, taken in names.items() if taken == pv), None):
            msg = f"the sources '{other}' and '{source['name']}' would have the same PVs: rename one of them"
            raise ValueError(msg)
        names[source["name"]] = pv
    return names


class Transport(EpicsCATransport):
    """Channel Access by FastCS, with what it leaves out: pvAccess with alarms, severities, areaDetector's names.

    The records are served over both protocols, so that values, alarms and time stamps are the same.
    """

    def __init__(self, controller: RunController, screens: Path | None) -> None:
        """Creates a transport for the controller's PVs. Its screens for Phoebus are written into `screens`."""
        self.is_serving = asyncio.Event()
        self.pv_count = 0
        gui = EpicsGUIOptions(output_dir=screens, title=controller.path[0]) if screens else None
        super().__init__(EpicsCAOptions(aliases=read_back_names(controller)), gui=gui)

    def connect(self, controller_apis: list[ControllerAPI], loop: asyncio.AbstractEventLoop) -> None:
        """Creates the records, with their severities."""
        super().connect(controller_apis, loop)
        for pv, name, attribute in all_attributes(controller_apis):
            is_written = isinstance(attribute, AttrW)
            record = epicsdbbuilder.LookupRecord(f"{pv}_RBV" if is_written else pv)
            self.pv_count += 2 if is_written or name in READ_BACK else 1
            for field, value in severity_fields(name, attribute).items():
                setattr(record, field, value)

    async def serve(self) -> None:
        """Serves the records."""
        dispatcher = AsyncioDispatcher(self._loop)
        builder.LoadDatabase()
        softioc.iocInit(dispatcher, enable_pva=True)
        self.is_serving.set()


def all_attributes(apis: list[ControllerAPI]) -> Iterator[tuple[str, str, Attribute[Any, Any]]]:
    """Yields the name of the PV, the name and the attribute for all attributes."""
    for root in apis:
        for api in root.walk_api():
            for name, attribute in api.attributes.items():
                yield f"{pv_prefix_from_path(api.path)}:{snake_to_pascal(name)}", name, attribute


def severity_fields(name: str, attribute: Attribute[Any, Any]) -> dict[str, Any]:
    """Returns the fields of a record that make its severity (EPICS Record Reference: longin, ai, bi, mbbi)."""
    datatype = attribute.datatype
    prefixes: dict[Any, str]
    if isinstance(datatype, Bool):
        prefixes = {False: "Z", True: "O"}
    elif isinstance(datatype, Enum):
        prefixes = dict(zip(datatype.names, MBB_PREFIXES, strict=False))
    else:
        severity = SEVERITIES.get(name)
        return {"HIGH": 1, "HSV": severity} if severity else {}
    return {f"{prefixes[state]}SV": severity for state, severity in STATE_SEVERITIES.get(name, {}).items()}


def read_back_names(controller: RunController) -> dict[str, str]:
    """Returns the names with _RBV of PVs that are read only, by the names that FastCS gives them."""
    apis = [controller.create_api_and_tasks()[0]]
    pvs = [(pv, name, attribute) for pv, name, attribute in all_attributes(apis) if not isinstance(attribute, AttrW)]
    return {pv: f"{pv}_RBV" for pv, name, _ in pvs if name in READ_BACK}


class Watched(Handler):
    """Handler of a PV that knows whether a client is connected."""

    def __init__(self) -> None:
        """Creates the handler of a PV without clients."""
        self.is_watched = False

    def onFirstConnect(self, pv: SharedPV) -> None:  # noqa: N802
        """Notes the first client."""
        self.is_watched = True

    def onLastDisconnect(self, pv: SharedPV) -> None:  # noqa: N802
        """Notes that the last client is gone."""
        self.is_watched = False


class FragmentServer:
    """Server of the latest fragments of all sources, over pvAccess.

    The PVs of a source appear with its first fragment: `Image`, or `Ch0Min` and `Ch0Max` for each channel. From then
    on, fragments are fetched only as long as a client is connected to one of them.
    """

    def __init__(self, control: Control, controller: RunController) -> None:
        """Starts the server."""
        self._control = control
        self._prefix = controller.path[0]
        self._sources = controller.source_pvs
        self._provider = StaticProvider("fragments")
        self._pvs: dict[str, dict[str, tuple[SharedPV, Watched]]] = {name: {} for name in self._sources}
        self._shown: dict[str, tuple[int, int]] = {}
        self._run: int | None = None
        self._problem = ""
        self._is_over = threading.Event()
        self._server = Server([self._provider])
        self._thread = threading.Thread(target=self._serve, name="fragments", daemon=True)
        self._thread.start()

    def note_status(self, status: dict[str, Any]) -> None:
        """Notes the run under way, whose fragments are shown."""
        self._run = status["run"]["number"] if status["run"] else None

    def close(self) -> None:
        """Ends the server."""
        self._is_over.set()
        self._thread.join()
        self._server.stop()

    def _serve(self) -> None:
        while not self._is_over.wait(LATEST_SECONDS):
            if self._run is None:
                continue
            for source, pvs in self._pvs.items():
                if not pvs or any(handler.is_watched for _, handler in pvs.values()):
                    try:
                        self._show_latest(source)
                    except ControlError:
                        # No answer of the builder; a service that is lost ends the program.
                        continue
                    except (KeyError, TypeError, ValueError) as error:
                        self._report(f"{source}: its latest fragment cannot be read: {error!r}")

    def _report(self, problem: str) -> None:
        """Writes a problem to stderr, once."""
        if problem != self._problem:
            self._problem = problem
            print(f"thalweg-ioc: {problem}", file=sys.stderr, flush=True)

    def _show_latest(self, source: str) -> None:
        latest = self._control.latest(source, MAX_COLUMNS)
        # The copy of a former run is kept until the first one of this run is there.
        if latest is None or latest["run"] != self._run:
            return
        shown = (latest["run"], latest["event"])
        if self._shown.get(source) == shown:
            return
        self._shown[source] = shown
        for name, value in fragment_values(latest).items():
            self._post(source, name, value)

    def _post(self, source: str, name: str, value: Value) -> None:
        pvs = self._pvs[source]
        if name in pvs:
            pvs[name][0].post(value)
        else:
            handler = Watched()
            pvs[name] = (SharedPV(handler=handler, initial=value), handler)
            self._provider.add(f"{self._prefix}:{snake_to_pascal(self._sources[source])}:{name}", pvs[name][0])


def fragment_values(latest: dict[str, Any]) -> dict[str, Value]:
    """Returns the values of the PVs of a fragment, by their names."""
    now = time.time_ns()
    # The time at which the fragment was fetched: the service does not give that of the event.
    stamp = {"secondsPastEpoch": now // 10**9, "nanoseconds": now % 10**9, "userTag": latest["event"] & ID_MASK}
    if latest["kind"] == "image":
        return {"Image": image_value(latest, stamp)}
    values = {}
    for index, waveform in enumerate(latest.get("waveforms", [])):
        for name in ("min", "max"):
            # A column without a finite sample is null in JSON.
            columns = np.array([np.nan if value is None else value for value in waveform[name]], float)
            values[f"Ch{index}{name.title()}"] = Value(WAVEFORM, {"value": columns, "timeStamp": stamp})
    return values


def image_value(latest: dict[str, Any], stamp: dict[str, int]) -> Value:
    """Returns the NTNDArray of an image (EPICS 7 Normative Types, section 5.8).

    p4p's own wrapper leaves `uniqueId` 0 and the time unset.
    """
    image = latest["image"]
    array = image_pixels(image, latest["payload_type"])
    height, width = array.shape
    full = (image["full_width"], image["full_height"])
    steps = (-(-full[0] // width), -(-full[1] // height))
    attributes = {"ColorMode": 0, "run": latest["run"], "event": latest["event_text"], "source": latest["source"]}
    attributes["is_simulated"] = latest["is_simulated"]
    return Value(
        IMAGE,
        {
            "value": ("ushortValue" if array.dtype == np.uint16 else "doubleValue", array.ravel()),
            "codec.name": "",
            "compressedSize": array.nbytes,
            "uncompressedSize": array.nbytes,
            # EPICS lists x first, NumPy last.
            "dimension": [
                {"size": size, "offset": 0, "fullSize": full_size, "binning": step, "reverse": False}
                for size, full_size, step in zip((width, height), full, steps, strict=True)
            ],
            "uniqueId": latest["event"] & ID_MASK,
            "timeStamp": stamp,
            "attribute": [{"name": name, "value": value} for name, value in attributes.items()],
        },
    )


def image_pixels(image: dict[str, Any], payload_type: str) -> np.ndarray[Any, Any]:
    """Returns the pixels of an image: u16 for u8 and u16, otherwise f64."""
    scaled = np.frombuffer(base64.b64decode(image["pixels"]), "<u2").reshape(image["height"], image["width"])
    least, most = image["minimum"], image["maximum"]
    pixels = np.asarray(least + scaled * ((most - least) / 65535))
    # The service spreads them over 16 bits: numbers of no more than that are got back exactly.
    return np.rint(pixels).astype(np.uint16) if payload_type in ("image-u8", "image-u16") else pixels


async def serve_pvs(control: Control, options: argparse.Namespace, status: dict[str, Any]) -> str | None:
    """Serves the PVs of the sources of a status. Returns why they have to begin anew, or None if they were ended."""
    loop = asyncio.get_running_loop()
    prefix = options.prefix or status["experiment"]
    controller = RunController(control, prefix, status, read_only=options.read_only)
    # PVs have the values of now from the beginning.
    await controller.show_status(status)
    transport = Transport(controller, options.screens)
    ended = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, ended.set)
    server = asyncio.create_task(FastCS(controller, [transport], loop).serve(interactive=False))
    await first_of(server, transport.is_serving.wait())
    fragments = FragmentServer(control, controller)
    print(f"{transport.pv_count} PVs of {control.url}, {prefix}:State is one", flush=True)
    follower = asyncio.create_task(follow_service(control, controller, fragments))
    await first_of(server, follower, ended.wait())
    server.cancel()
    await asyncio.to_thread(fragments.close)
    return None if ended.is_set() else follower.result()


async def first_of(server: asyncio.Task[None], *others: Coroutine[Any, Any, Any] | asyncio.Task[Any]) -> None:
    """Waits for the first of the others. Raises RuntimeError if the server of FastCS ends before that."""
    tasks = [asyncio.ensure_future(other) for other in others]
    await asyncio.wait([server, *tasks], return_when=asyncio.FIRST_COMPLETED)
    if not any(task.done() for task in tasks):
        server.result()
        msg = "FastCS has ended: the lines before this one say why"
        raise RuntimeError(msg)


async def follow_service(control: Control, controller: RunController, fragments: FragmentServer) -> str:
    """Shows each status of the service. Returns the reason why that cannot go on."""
    changes = control.changes()
    try:
        while (change := await asyncio.to_thread(next, changes, None)) is not None:
            if change.kind != "status":
                continue
            if source_pvs(change.data) != controller.source_pvs:
                return "the topology has other sources"
            fragments.note_status(change.data)
            await controller.show_status(change.data)
    except ServiceLostError as error:
        return str(error)
    return "the service ended the connection"


def wait_for_service(control: Control) -> dict[str, Any]:
    """Waits for the service, and returns its status."""
    is_reported = False
    while True:
        try:
            return control.status()
        except ServiceLostError as error:
            if not is_reported:
                print(f"{error} Trying again", file=sys.stderr, flush=True)
            is_reported = True
            time.sleep(RETRY_SECONDS)


def log_errors() -> None:
    """Writes what FastCS logs to stderr, without refusals: they are shown in `LastError`."""

    def is_shown(record: Any) -> bool:
        return record["exception"] is None or not isinstance(record["exception"].value, ControlError)

    logger.remove()
    logger.add(sys.stderr, level="WARNING", format="{level}: {message}", diagnose=False, filter=is_shown)


def main() -> None:
    """Runs the program."""
    parser = argparse.ArgumentParser(prog="thalweg-ioc", description="EPICS PVs of a run control service")
    parser.add_argument("url", nargs="?", help="address of the service: http://HOST:PORT")
    parser.add_argument("--prefix", help="first part of the names of all PVs; the name of the experiment if left out")
    parser.add_argument("--read-only", action="store_true", help="PVs that give commands are left out")
    parser.add_argument("--screens", type=Path, metavar="DIR", help="write screens for Phoebus (.bob) into DIR")
    options = parser.parse_args()
    log_errors()
    try:
        control = Control(options.url)
        reason = asyncio.run(serve_pvs(control, options, wait_for_service(control)))
    except (RuntimeError, ValueError) as error:
        sys.exit(f"thalweg-ioc: {error}")
    except KeyError as error:
        sys.exit(f"thalweg-ioc: the status of the service has no {error}: install its version of this program")
    except KeyboardInterrupt:
        return
    if reason is not None:
        print(f"thalweg-ioc begins anew: {reason}", file=sys.stderr, flush=True)
        # EPICS' records cannot be removed from a process. Sockets are closed on the way.
        os.execv(sys.executable, [sys.executable, "-m", "thalweg.ioc", *sys.argv[1:]])


if __name__ == "__main__":
    main()
