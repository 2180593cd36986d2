"""Tango device with the attributes and commands of a run control service: see `thalweg.ioc`.

FastCS's own transport needs a Tango database, has a `State` that is none of Tango's, and sends no events: this one
serves the same controllers.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
import threading
from concurrent.futures import CancelledError
from typing import TYPE_CHECKING, Any

import tango
import tango.server
from fastcs.attributes import Attribute, AttrR, AttrW
from fastcs.datatypes import Bool, Enum, Float, String
from fastcs.transports import Transport
from fastcs.util import snake_to_pascal

from thalweg._run_controller import SEVERITIES, RunController
from thalweg.control import Control, ControlError

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator

    from fastcs.controllers import ControllerAPI
    from fastcs.methods import Command

# Name of the device server and of its class. The instance is the last part of the device's name.
SERVER = "ThalwegRun"
# Reason of errors without a code of the service.
FAILED = "failed"
# What Tango's own states mean is the same for all devices: the exact one is the attribute RunState.
STATES = {
    "idle": tango.DevState.OFF,
    "configuring": tango.DevState.INIT,
    "configured": tango.DevState.STANDBY,
    "arming": tango.DevState.INIT,
    "armed": tango.DevState.ON,
    "starting": tango.DevState.MOVING,
    "running": tango.DevState.RUNNING,
    "pausing": tango.DevState.MOVING,
    "paused": tango.DevState.STANDBY,
    "switching": tango.DevState.MOVING,
    "stopping": tango.DevState.MOVING,
    "closing": tango.DevState.MOVING,
    "error": tango.DevState.FAULT,
}
ALARM_LIMITS = {"MINOR": {"max_warning": 1}, "MAJOR": {"max_alarm": 1}}


class RunDevice(tango.server.Device):
    """Device of a run control service. Its class for a service, from `device_class`, has the attributes."""

    served: TangoTransport
    """Transport whose controllers the device shows."""

    def init_device(self) -> None:
        """Shows the values of now, and sends events of all changes from here on."""
        super().init_device()
        for name in ("State", "Status", *(name for name, _ in self.served.readable)):
            self.set_change_event(name, True, False)
            self.set_archive_event(name, True, False)
        self.show_state()
        if self not in self.served.devices:
            self.served.devices.append(self)

    def show_state(self) -> None:
        """Shows the state of the experiment, and its sentence as Tango's status."""
        shown = {name: attribute.get() for name, attribute in self.served.readable if name in ("RunState", "Sentence")}
        self.set_state(STATES[shown["RunState"].name])
        self.set_status(shown["Sentence"] or shown["RunState"].name)


class TangoTransport(Transport):
    """Transport of FastCS that serves a device, from a thread of its own."""

    def __init__(self, device: str, listen: str | None) -> None:
        """Creates a transport for a device's name. With `listen` (`HOST:PORT`) it needs no Tango database."""
        self.device = device
        self.listen = listen
        self.devices: list[RunDevice] = []
        self.readable: list[tuple[str, AttrR[Any, Any]]] = []
        self.is_serving = asyncio.Event()
        self._is_closed = False

    def connect(self, controller_apis: list[ControllerAPI], loop: asyncio.AbstractEventLoop) -> None:
        """Creates the device's class."""
        (root,) = controller_apis
        self._loop = loop
        self._class = device_class(self, root, loop)
        for name, _, attribute in device_attributes(root):
            if isinstance(attribute, AttrR):
                self.readable.append((name, attribute))
                attribute.add_on_update_callback(self._sender_of_events(name, attribute))

    async def serve(self) -> None:
        """Serves the device until `close`. Raises RuntimeError if Tango refuses it."""
        thread_ended: asyncio.Future[None] = self._loop.create_future()

        def run_server() -> None:
            try:
                # Tango's library knows this thread then, and can end the server from it.
                with tango.EnsureOmniThread():
                    tango.server.run(
                        (self._class,),
                        self._arguments(),
                        msg_stream=None,
                        pre_init_callback=allow_concurrent_requests,
                        post_init_callback=lambda: self._loop.call_soon_threadsafe(self.is_serving.set),
                        green_mode=tango.GreenMode.Synchronous,
                        raises=True,
                    )
            except tango.DevFailed as error:
                failure = RuntimeError(f"Tango does not serve {self.device}: {error.args[0].desc}")
                self._loop.call_soon_threadsafe(thread_ended.set_exception, failure)
            else:
                if not self._is_closed:
                    # A client has given the command Kill of Tango's admin device: the program ends with its server.
                    os.kill(os.getpid(), signal.SIGTERM)

        self._thread = threading.Thread(target=run_server, name="tango", daemon=True)
        self._thread.start()
        await thread_ended

    def close(self) -> None:
        """Ends the server."""
        self._is_closed = True
        if self._thread.is_alive():
            tango.Util.instance().get_dserver_device().kill()
            self._thread.join()

    def _arguments(self) -> list[str]:
        instance = self.device.rpartition("/")[2]
        if self.listen is None:
            return [SERVER, instance]
        return [SERVER, instance, "-nodb", "-dlist", self.device, "-ORBendPoint", f"giop:tcp:{self.listen}"]

    def _sender_of_events(self, name: str, attribute: AttrR[Any, Any]) -> Callable[[Any], Coroutine[None, None, None]]:
        async def send_events(value: Any) -> None:
            # Tango's library is called from its own threads, or from threads that it knows.
            with tango.EnsureOmniThread():
                for device in self.devices:
                    device.push_change_event(name, to_tango(attribute, value))
                    device.push_archive_event(name, to_tango(attribute, value))
                    if name in ("RunState", "Sentence"):
                        device.show_state()
                        device.push_change_event("State")
                        device.push_change_event("Status")

        return send_events


class TangoServer:
    """Server of a controller's attributes and commands as a Tango device."""

    def __init__(self, control: Control, controller: RunController, device: str, listen: str | None) -> None:
        """Creates a server, which FastCS starts by its transport. Raises ValueError if a name or an address is none."""
        if not re.fullmatch(r"[\w.+-]+(/[\w.+-]+){2}", device):
            msg = f"'{device}' is no name of a Tango device: write DOMAIN/FAMILY/MEMBER, as lab/daq/run"
            raise ValueError(msg)
        if listen is not None and not re.fullmatch(r"[\w.-]*:\d{1,5}", listen):
            msg = f"'{listen}' is no address: write HOST:PORT, as 127.0.0.1:45450"
            raise ValueError(msg)
        if listen is None:
            require_registration(device)
        self.transport = TangoTransport(device, listen)
        self._url = control.url

    async def begin(self) -> str:
        """Waits until the device is served. Returns its name for clients."""
        await self.transport.is_serving.wait()
        device, listen = self.transport.device, self.transport.listen
        return f"run control of {self._url}: " + (f"tango://{listen}/{device}#dbase=no" if listen else device)

    def note_status(self, status: dict[str, Any]) -> None:
        """Does nothing: the controllers have the status."""

    def close(self) -> None:
        """Ends the server."""
        self.transport.close()


def require_registration(device: str) -> None:
    """Raises ValueError if the Tango database cannot be reached, or does not have the device."""
    server = f"{SERVER}/{device.rpartition('/')[2]}"
    try:
        devices = tango.Database().get_device_name(server, SERVER).value_string
    except tango.DevFailed as error:
        msg = (
            f"no Tango database ({error.args[0].desc.strip()}): set TANGO_HOST, or serve the device without one, "
            "with --listen HOST:PORT"
        )
        raise ValueError(msg) from error
    if device.lower() not in (name.lower() for name in devices):
        msg = f"the Tango database does not have the device: tango_admin --add-server {server} {SERVER} {device}"
        raise ValueError(msg)


def allow_concurrent_requests() -> None:
    """Lets clients read while a command of another one is under way: the controllers are changed by one thread only."""
    tango.Util.instance().set_serial_model(tango.SerialModel.NO_SYNC)


def device_attributes(root: ControllerAPI) -> Iterator[tuple[str, str, Attribute[Any, Any]]]:
    """Yields the attributes of a device: the name in Tango, the controller's name, the attribute."""
    for api in root.walk_api():
        # The first part of a path is the experiment's, as the name of the device.
        prefix = "".join(f"{snake_to_pascal(part)}_" for part in api.path[1:])
        for name, attribute in api.attributes.items():
            # A Tango device has a State of its own.
            yield ("RunState" if name == "state" else f"{prefix}{snake_to_pascal(name)}"), name, attribute


def device_class(transport: TangoTransport, root: ControllerAPI, loop: asyncio.AbstractEventLoop) -> type[RunDevice]:
    """Creates the class of a device with the controllers' attributes and commands."""
    members: dict[str, Any] = {"served": transport}
    for tango_name, name, attribute in device_attributes(root):
        members[tango_name] = tango_attribute(tango_name, name, attribute, loop)
    for name, command in root.command_methods.items():
        members[snake_to_pascal(name)] = tango_command(snake_to_pascal(name), command, loop)
    return type(SERVER, (RunDevice,), members)


def tango_attribute(tango_name: str, name: str, attribute: Attribute[Any, Any], loop: asyncio.AbstractEventLoop) -> Any:
    """Creates the attribute of a device, with its unit, its limits of alarms, and how it is read and written."""
    options: dict[str, Any] = {"label": tango_name, "doc": attribute.description or "", "dtype": str}
    datatype = attribute.datatype
    if isinstance(datatype, Float):
        options |= {"unit": datatype.units or "", "format": f"%.{datatype.prec}f", "dtype": float}
        options |= ALARM_LIMITS.get(SEVERITIES.get(name, ""), {})
    elif not isinstance(datatype, String):
        options["dtype"] = datatype.enum_cls if isinstance(datatype, Enum) else datatype.dtype
    if isinstance(attribute, AttrR):
        options["fget"] = lambda _device: to_tango(attribute, attribute.get())
    if isinstance(attribute, AttrW):
        options["fset"] = lambda _device, value: run_in_loop(attribute.put(from_tango(attribute, value)), loop)
        options["access"] = tango.AttrWriteType.READ_WRITE
    return tango.server.attribute(**options)


def tango_command(name: str, command: Command, loop: asyncio.AbstractEventLoop) -> Any:
    """Creates the command of a device."""

    def give_command(_device: RunDevice) -> None:
        run_in_loop(command(), loop)

    give_command.__name__ = name
    return tango.server.command(f=give_command)


def run_in_loop(coroutine: Coroutine[Any, Any, None], loop: asyncio.AbstractEventLoop) -> None:
    """Runs a coroutine in the loop of the controllers. Raises DevFailed with the service's reason if it refuses."""
    try:
        asyncio.run_coroutine_threadsafe(coroutine, loop).result()
    except ControlError as error:
        tango.Except.throw_exception(error.code, str(error), "thalweg control")
    except CancelledError:
        tango.Except.throw_exception(FAILED, "thalweg-ioc is ending: try again", "thalweg-ioc")


def to_tango(attribute: Attribute[Any, Any], value: Any) -> Any:
    """Returns a value as Tango has it: the position of one in an enumeration."""
    datatype = attribute.datatype
    if isinstance(datatype, Enum):
        return datatype.index_of(value)
    return bool(value) if isinstance(datatype, Bool) else value


def from_tango(attribute: Attribute[Any, Any], value: Any) -> Any:
    """Returns a value of the controllers."""
    return attribute.datatype.members[value] if isinstance(attribute.datatype, Enum) else value
