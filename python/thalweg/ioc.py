"""EPICS PVs, or a Tango device, of a run control service: its state, commands, rates, ledger and sources.

Run as a program, with the address of the service; both are found as `thalweg ctl` finds them if they are left out:

    thalweg-ioc http://127.0.0.1:8400 --prefix LAB
    thalweg-ioc http://127.0.0.1:8400 --tango lab/daq/run

The PVs are served over Channel Access and pvAccess, waveforms and images over pvAccess. The Tango device has the same
attributes and commands, without waveforms and images. docs/epics-bluesky.md lists them. Names of areaDetector are used
where they mean the same: `Acquire`, `Capture`, `NumCaptured_RBV`.

They exist as long as the service does. When it is lost, or its topology has other sources, the program begins anew:
clients see PVs and devices disconnected, and not values of the past.

Needs Python 3.11 and, for EPICS, FastCS, softioc and p4p: pip install thalweg[ioc]; for Tango, FastCS and PyTango:
pip install thalweg[tango].
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from thalweg.control import Control, ControlError, ServiceLostError

try:
    from fastcs.control_system import FastCS
    from fastcs.logging import logger
except ImportError as error:
    msg = f"thalweg.ioc needs FastCS ({error}): pip install thalweg[ioc], or thalweg[tango]"
    raise ImportError(msg) from error

from thalweg._run_controller import RunController, source_pvs

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from thalweg._ioc_epics import EpicsServer
    from thalweg._ioc_tango import TangoServer

__all__ = ["main"]

# Time in seconds from one attempt to reach the service to the next.
RETRY_SECONDS = 1.0


async def serve_pvs(control: Control, options: argparse.Namespace, status: dict[str, Any]) -> str | None:
    """Serves the sources of a status. Returns why that has to begin anew, or None if it was ended."""
    loop = asyncio.get_running_loop()
    prefix = options.prefix or status["experiment"]
    controller = RunController(control, prefix, status, read_only=options.read_only)
    # Clients find the values of now from the beginning.
    await controller.show_status(status)
    served = server_of(control, controller, options)
    ended = asyncio.Event()
    fastcs = asyncio.create_task(FastCS(controller, [served.transport], loop).serve(interactive=False))
    announcement = asyncio.create_task(served.begin())
    await first_of(fastcs, announcement)
    # Here, since servers of Tango take the signals for themselves when they begin.
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, ended.set)
    print(announcement.result(), flush=True)
    follower = asyncio.create_task(follow_service(control, controller, served))
    await first_of(fastcs, follower, ended.wait())
    fastcs.cancel()
    await asyncio.to_thread(served.close)
    return None if ended.is_set() else follower.result()


def server_of(control: Control, controller: RunController, options: argparse.Namespace) -> EpicsServer | TangoServer:
    """Returns the server that the options ask for. Raises ValueError if its packages are not installed."""
    try:
        if options.tango:
            from thalweg._ioc_tango import TangoServer

            return TangoServer(control, controller, options.tango, options.listen)
        from thalweg._ioc_epics import EpicsServer

        return EpicsServer(control, controller, options.screens)
    except ImportError as error:
        system, extra = ("Tango", "tango") if options.tango else ("EPICS", "ioc")
        msg = f"{system} is not installed for this Python ({error}): pip install thalweg[{extra}]"
        raise ValueError(msg) from error


async def first_of(server: asyncio.Task[None], *others: Coroutine[Any, Any, Any] | asyncio.Task[Any]) -> None:
    """Waits for the first of the others. Raises RuntimeError if the server of FastCS ends before that."""
    tasks = [asyncio.ensure_future(other) for other in others]
    await asyncio.wait([server, *tasks], return_when=asyncio.FIRST_COMPLETED)
    if not any(task.done() for task in tasks):
        server.result()
        msg = "FastCS has ended: the lines before this one say why"
        raise RuntimeError(msg)


async def follow_service(control: Control, controller: RunController, served: EpicsServer | TangoServer) -> str:
    """Shows each status of the service. Returns the reason why that cannot go on."""
    changes = control.changes()
    try:
        while (change := await asyncio.to_thread(next, changes, None)) is not None:
            if change.kind != "status":
                continue
            if source_pvs(change.data) != controller.source_pvs:
                return "the topology has other sources"
            served.note_status(change.data)
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
    parser = argparse.ArgumentParser(
        prog="thalweg-ioc", description="EPICS PVs, or a Tango device, of a run control service"
    )
    parser.add_argument("url", nargs="?", help="address of the service: http://HOST:PORT")
    parser.add_argument("--prefix", help="first part of the names of all PVs; the name of the experiment if left out")
    parser.add_argument("--read-only", action="store_true", help="what gives commands is left out")
    parser.add_argument("--screens", type=Path, metavar="DIR", help="write screens for Phoebus (.bob) into DIR")
    parser.add_argument(
        "--tango", metavar="DEVICE", help="serve a Tango device of this name, as lab/daq/run, instead of EPICS PVs"
    )
    parser.add_argument(
        "--listen",
        metavar="HOST:PORT",
        help="address of the Tango device, without a Tango database; left out: that of TANGO_HOST has its name",
    )
    options = parser.parse_args()
    if options.tango and (options.prefix or options.screens):
        parser.error("--prefix and --screens are of EPICS PVs, --tango serves none")
    if options.listen and not options.tango:
        parser.error("--listen is the address of a Tango device: give its name by --tango")
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
