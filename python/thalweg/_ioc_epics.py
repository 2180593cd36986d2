"""EPICS PVs of the controllers of a run control service, with waveforms and images: see `thalweg.ioc`."""

from __future__ import annotations

import asyncio
import base64
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

import epicsdbbuilder
import numpy as np
from fastcs.attributes import Attribute, AttrR, AttrW
from fastcs.controllers import ControllerAPI
from fastcs.datatypes import Bool, Enum
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
from softioc.device_core import LookupRecord

from thalweg._run_controller import SEVERITIES, STATE_SEVERITIES, RunController
from thalweg.control import Control, ControlError

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator
    from pathlib import Path

# Time in seconds from one request for the latest fragments to the next.
LATEST_SECONDS = 0.2
# Largest number of columns of waveforms, and of rows and columns of images.
MAX_COLUMNS = 2048
# uniqueId and userTag are 32-bit signed integers.
ID_MASK = (1 << 31) - 1
MBB_PREFIXES = ("ZR", "ON", "TW", "TH", "FR", "FV", "SX", "SV", "EI", "NI", "TE", "EL", "TV", "TT", "FT", "FF")
IMAGE = NTNDArray.buildType()
WAVEFORM = NTScalar.buildType("ad")
# PVs that are read only, and whose names in areaDetector end in _RBV.
READ_BACK = ("num_captured", "array_counter", "dropped_arrays", "full_file_name")


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
            record_name = f"{pv}_RBV" if is_written else pv
            record = epicsdbbuilder.LookupRecord(record_name)
            self.pv_count += 2 if is_written or name in READ_BACK else 1
            for field, value in severity_fields(name, attribute).items():
                setattr(record, field, value)
            if isinstance(attribute, AttrR):
                # Processed by `_show_at_once` instead of by EPICS' own threads.
                record.SCAN = "Passive"
                attribute.add_on_update_callback(self._show_at_once(record_name))

    def _show_at_once(self, record_name: str) -> Callable[[Any], Coroutine[None, None, None]]:
        """Returns a callback that processes a record whose value was set.

        Clients see values in the order in which they are set, and each of them. Records that EPICS' threads process
        some time later show the last of two values, or one that was set later first.
        """

        async def process(_value: Any) -> None:
            # The values of before are those that the records begin with.
            if self.is_serving.is_set():
                LookupRecord(record_name).set_field("PROC", 1)

        return process

    async def serve(self) -> None:
        """Serves the records."""
        dispatcher = AsyncioDispatcher(self._loop)
        builder.LoadDatabase()
        softioc.iocInit(dispatcher, enable_pva=True)
        self.is_serving.set()


class EpicsServer:
    """Server of a controller's PVs over Channel Access and pvAccess."""

    def __init__(self, control: Control, controller: RunController, screens: Path | None) -> None:
        """Creates a server, which FastCS starts by its transport."""
        self.transport = Transport(controller, screens)
        self._control = control
        self._controller = controller
        self._fragments: FragmentServer | None = None

    async def begin(self) -> str:
        """Waits until the records are served, then serves the latest fragments too. Returns where clients find them."""
        await self.transport.is_serving.wait()
        self._fragments = FragmentServer(self._control, self._controller)
        prefix = self._controller.path[0]
        return f"{self.transport.pv_count} PVs of {self._control.url}, {prefix}:State is one"

    def note_status(self, status: dict[str, Any]) -> None:
        """Notes the run under way, whose fragments are shown."""
        if self._fragments:
            self._fragments.note_status(status)

    def close(self) -> None:
        """Ends the server of fragments. Records are served until the process ends."""
        if self._fragments:
            self._fragments.close()


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
