"""FastCS controllers of a run control service: the attributes and commands that `thalweg-ioc` serves.

EPICS calls them PVs. The same ones are served by EPICS (`_ioc_epics`) and by Tango (`_ioc_tango`).
"""

from __future__ import annotations

import asyncio
import enum
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fastcs.attributes import AttributeIO, AttributeIORef, AttrR, AttrRW, AttrW
from fastcs.controllers import BaseController, Controller
from fastcs.datatypes import Bool, Enum, Float, Int, String
from fastcs.methods import Command

from thalweg.control import Control, ControlError

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

# Length of PVs with sentences, in bytes; longer ones are cut off.
SENTENCE_BYTES = 1000

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
# States in which a run has begun and is not over.
RUN_STATES = ("running", "pausing", "paused", "switching", "stopping", "closing")

State = enum.Enum(
    "State",
    "idle configuring configured arming armed starting running pausing paused switching stopping closing error",
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
        """Gives the first of these commands that is legal. Where none is, the service refuses the one of this state."""
        legality = self._shown["commands"]
        refused = names[0] if self._shown["state"] in RUN_STATES else names[-1]
        name = next((name for name in names if legality[name]["legal"]), refused)
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
        counts = run_counts(status) if has_counts else {}
        if status["state"] in RUN_STATES and not self._is_capturing:
            # As areaDetector's file plugins: the count of the former run is gone before the run is seen.
            await show_values(self, {"num_captured": 0, "capture": True})
        self._is_capturing = status["state"] in RUN_STATES
        await show_values(self, counts | run_values(status))


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
