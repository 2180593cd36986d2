"""Shift to try, behind `make shift`: run control of three simulated sources and a builder, with its page and EPICS PVs.

Starts `thalweg control` with examples/shift.toml and `thalweg-ioc`, prints where they are and what to type first, and
waits for Ctrl-C. Then it ends the run, the nodes, the PVs and the service, and removes what they have written.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from thalweg.control import Control, ControlError

ROOT = Path(__file__).resolve().parent.parent
# Longest times in seconds: until a run is over, until processes have ended.
RUN_END_SECONDS = 60.0
PROCESS_END_SECONDS = 20.0
# EPICS' traffic stays on this machine.
EPICS = {
    name: value
    for kind in ("CA", "PVA")
    for name, value in {
        f"EPICS_{kind}_ADDR_LIST": "127.0.0.1",
        f"EPICS_{kind}_AUTO_ADDR_LIST": "NO",
        f"EPICS_{kind}S_INTF_ADDR_LIST": "127.0.0.1",
        f"EPICS_{kind}S_BEACON_ADDR_LIST": "127.0.0.1",
        f"EPICS_{kind}S_AUTO_BEACON_ADDR_LIST": "NO",
    }.items()
}


def main() -> None:
    """Brings everything up, waits, and ends everything."""
    options = arguments()
    program = str(Path(options.thalweg).absolute())
    # Ctrl-C, `kill`, a closed terminal: each ends what was started.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, interrupt)
    with contextlib.ExitStack() as ends:
        folder = Path(options.out) if options.out else Path(ends.enter_context(temporary_folder()))
        folder.mkdir(parents=True, exist_ok=True)
        topology = Path(shutil.copy(ROOT / "examples/shift.toml", folder))
        ends.enter_context(kept_pointer())
        try:
            service, url, page = ends.enter_context(control_service(program, topology))
            token = page.partition("#token=")[2]
            control = Control(url, token)
            ends.enter_context(nodes_of(control))
            pvs = ends.enter_context(pvs_of(url, token, options.prefix))
            print(introduction(program, page, pvs, folder, bool(options.out)), flush=True)
            code = service.wait()
            print(f"thalweg control has ended by itself (exit code {code}): its reason is above", file=sys.stderr)
            sys.exit(1)
        except KeyboardInterrupt:
            print("\nending the run, the nodes, the PVs and the service …", flush=True)
    print("all of it has ended")


def interrupt(_number: int, _frame: object) -> None:
    """Ends the wait, once: what ends then ends in bounded time, and nothing is left behind."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    raise KeyboardInterrupt


def introduction(program: str, page: str, pvs: str, folder: Path, is_kept: bool) -> str:
    """Returns where everything is, and what to type first."""
    thalweg = shlex.quote(os.path.relpath(program) if Path(program).is_relative_to(Path.cwd()) else program)
    return f"""
The page:   {page}
The PVs:    {pvs}
The screen: {thalweg} top

A first run, by the buttons of the page, or by these commands in another terminal:

    {thalweg} ctl configure
    {thalweg} ctl arm
    {thalweg} ctl start --note "first beam"
    {thalweg} ctl status
    {thalweg} ctl next --note "second beam"
    {thalweg} ctl stop

The data are simulated. Runs are recorded in {folder / "runs"}.
Ctrl-C ends all of it{"." if is_kept else " and removes the runs (make shift ARGS='--out DIR' keeps them in DIR)."}"""


@contextlib.contextmanager
def temporary_folder() -> Iterator[str]:
    """Folder of runs that are not kept."""
    with tempfile.TemporaryDirectory(prefix="thalweg-shift-") as folder:
        yield folder


@contextlib.contextmanager
def kept_pointer() -> Iterator[None]:
    """Keeps the file in which this user's clients find a service: the new service replaces it."""
    state = Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local/state")
    file = state / "thalweg/service.json"
    had_folders = [folder for folder in (file.parent, state, state.parent) if folder.exists()]
    before = file.read_bytes() if file.exists() else None
    try:
        yield
    finally:
        if before is not None:
            file.write_bytes(before)
        else:
            file.unlink(missing_ok=True)
            for folder in (file.parent, state, state.parent):
                if folder not in had_folders:
                    with contextlib.suppress(OSError):
                        folder.rmdir()


@contextlib.contextmanager
def control_service(program: str, topology: Path) -> Iterator[tuple[subprocess.Popen[str], str, str]]:
    """Service of the topology: its process, its address, and that of its page with a token."""
    command = [program, "--json", "control", topology.name]
    # In a session of its own: Ctrl-C in this terminal reaches this program alone, which ends things in their order.
    with subprocess.Popen(
        command, cwd=topology.parent, stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as service:
        try:
            line = service.stdout.readline() if service.stdout else ""
            announced = json.loads(line) if line.strip() else {}
            if "page" not in announced:
                service.wait()
                sys.exit("run control has not begun: the reason is above")
            yield service, announced["listening"], announced["page"]
        finally:
            end(service)


@contextlib.contextmanager
def nodes_of(control: Control) -> Iterator[None]:
    """Nodes that the service starts: ended, with their run, before the service is."""
    try:
        yield
    finally:
        pids: set[int] = set()
        with contextlib.suppress(ControlError, TimeoutError):
            pids = end_nodes(control)
        kill_nodes(pids, control.url)


def end_nodes(control: Control) -> set[int]:
    """Ends the run, and then the nodes. Returns the numbers of their processes."""
    with contextlib.suppress(ControlError, TimeoutError):
        if control.status()["run"]:
            with contextlib.suppress(ControlError):
                control.command("stop")
            control.wait_until(lambda status: not status["run"], RUN_END_SECONDS)
    processes = [process for process in control.status()["processes"] if process["pid"]]
    for process in processes:
        with contextlib.suppress(ControlError):
            control.process("stop", process["node"])
    pids = {int(process["pid"]) for process in processes}
    with contextlib.suppress(ControlError, TimeoutError):
        control.wait_until(
            lambda status: not any(process["pid"] for process in status["processes"]), PROCESS_END_SECONDS
        )
    return pids


def kill_nodes(pids: set[int], url: str) -> None:
    """Ends those of the processes that go on, and any other node of this service: one may be starting still."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        for pid in pids | node_pids(url):
            if is_node(pid, url):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)
        deadline = time.monotonic() + PROCESS_END_SECONDS
        while any(is_node(pid, url) for pid in pids | node_pids(url)) and time.monotonic() < deadline:
            time.sleep(0.05)


def node_pids(url: str) -> set[int]:
    """Numbers of all processes of this machine that are nodes of the service."""
    return {
        int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit() and is_node(int(entry.name), url)
    }


def is_node(pid: int, url: str) -> bool:
    """Whether a process is a node of the service, by its command line."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return False
    return b"node" in words and b"--control" in words and url.encode() in words


@contextlib.contextmanager
def pvs_of(url: str, token: str, prefix: str) -> Iterator[str]:
    """EPICS PVs of the service. Yields a sentence about them."""
    if importlib.util.find_spec("fastcs") is None:
        yield "none: thalweg-ioc needs Python 3.11 (this is " + ".".join(map(str, sys.version_info[:2])) + ")"
        return
    command = [sys.executable, "-m", "thalweg.ioc", url, "--prefix", prefix]
    environment = os.environ | EPICS | {"THALWEG_CONTROL_TOKEN": token}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True, env=environment) as ioc:
        try:
            lines = iter(ioc.stdout or [])
            line = next((line for line in lines if f"{prefix}:State" in line), None)
            if line is None:
                sys.exit("thalweg-ioc has not begun: the reason is above")
            # What it prints later is read, and not shown.
            threading.Thread(target=lambda: [None for _ in lines], daemon=True).start()
            yield f"{prefix}:State and others, on this machine (EPICS_CA_ADDR_LIST=127.0.0.1)"
        finally:
            end(ioc)


def end(process: subprocess.Popen[str]) -> None:
    """Ends a process: by an interrupt, or if that does not suffice, at once."""
    with contextlib.suppress(ProcessLookupError):
        process.send_signal(signal.SIGINT)
    try:
        process.wait(PROCESS_END_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    default = os.environ.get("THALWEG_BIN", str(ROOT / "target" / "debug" / "thalweg"))
    parser.add_argument("--thalweg", default=default, help="the program")
    parser.add_argument("--out", help="directory for the runs, which are kept; a temporary one if it is left out")
    parser.add_argument("--prefix", default="SHIFT", help="first part of the names of the PVs")
    return parser.parse_args()


if __name__ == "__main__":
    main()
