"""The units under a real systemd: run control starts nodes, sees them fail, and ends them."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from test_packages import package, said

# Longest time in seconds for each of the things that a test waits for: a failure, and not a measurement.
PATIENCE = 60.0
TOPOLOGY = """
[run]
directory = "/var/lib/thalweg/runs"

[control.nodes]
builder = { manager = "systemd" }
adc = { manager = "systemd" }

[[builder]]
name = "builder"
listen = ["tcp:127.0.0.1:7411"]

[[source]]
name = "adc"
id = "1.0"
rate = 100
device = { kind = "model-adc", size = "4KiB" }
"""
TOPOLOGY_PATH = "/etc/thalweg/topology.toml"
# A node that stands still is ended sooner than in the package.
DROP_IN = """
[Service]
WatchdogSec=2s
TimeoutStopSec=2s
"""
DROP_IN_PATH = "/etc/systemd/system/thalweg-node@.service.d/test.conf"
# Arguments: a folder, and that of the packages. The unit is the one before the machine's own services.
BOOT = """
set -e
mkdir "$1/memory"
mount -t tmpfs tmpfs "$1/memory"
cd "$1/memory"
mkdir upper work root
mount -t overlay overlay -o lowerdir=/,upperdir=upper,workdir=work root
exec systemd-nspawn --quiet --boot --private-network --register=no --keep-unit --link-journal=no --console=pipe \\
    --directory="$1/memory/root" --bind-ro="$2:/root/dist" -- --unit=basic.target
"""


class Machine:
    """Debian system whose systemd is running, in namespaces of its own."""

    def __init__(self, init: int) -> None:
        self.inside = ["nsenter", f"--target={init}", "--pid", "--mount", "--uts", "--net", "--ipc", "--cgroup", "--"]

    def run(self, command: str, user: str = "root") -> str:
        """Returns what commands print, which must succeed."""
        as_user = f"exec setpriv --reuid={user} --regid={user} --init-groups env HOME=/var/lib/thalweg bash -ec"
        variables = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LANG": "C.UTF-8", "COMMAND": command}
        return said(*self.inside, "sh", "-c", f'{as_user} "$COMMAND"', env=variables).strip()

    def control(self, words: str) -> str:
        """Runs `thalweg ctl` as the user of the service."""
        return self.run(f"XDG_STATE_HOME=/var/lib/thalweg thalweg ctl {words}", user="thalweg")

    def property(self, unit: str, name: str) -> str:
        """Returns a property of a unit."""
        return self.run(f"systemctl show --property={name} --value {unit}")

    def wait_for(self, what: str, command: str, text: str) -> None:
        """Waits until a command prints a text."""
        deadline = time.monotonic() + PATIENCE
        while text not in (printed := self.run(command)):
            assert time.monotonic() < deadline, f"{what}: {printed}\n{self.run('journalctl --no-pager | tail -n 60')}"
            time.sleep(0.1)


@contextlib.contextmanager
def booted(folder: Path) -> Iterator[Machine]:
    """Boots this machine's system a second time, with a network, /tmp, /dev and control groups of its own.

    What it writes goes into memory.
    """
    (folder / "boot.sh").write_text(BOOT)
    command = [
        "unshare",
        "--mount",
        "--propagation",
        "private",
        "sh",
        folder / "boot.sh",
        folder,
        package("*.deb").parent,
    ]
    output = folder / "boot.log"
    with (
        output.open("wb") as log,
        subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT) as nspawn,
    ):
        try:
            children = Path(f"/proc/{nspawn.pid}/task/{nspawn.pid}/children")
            deadline = time.monotonic() + PATIENCE
            while (init := find_init(children)) is None:
                if nspawn.poll() is not None:
                    pytest.skip(f"no second system can be booted here: {output.read_text()}")
                assert time.monotonic() < deadline, output.read_text()
                time.sleep(0.05)
            machine = Machine(init)
            machine.wait_for("systemd", "systemctl is-system-running --wait || true", "running")
            yield machine
        finally:
            # All processes of the system end with its first one, and not with the program that has booted it.
            if (init := find_init(children)) is not None:
                os.kill(init, signal.SIGKILL)
            nspawn.kill()


def find_init(children: Path) -> int | None:
    """Returns the first process of a system that is being booted, among the children of what boots it."""
    with contextlib.suppress(OSError):
        for child in children.read_text().split():
            if Path(f"/proc/{child}/comm").read_text() == "systemd\n":
                return int(child)
    return None


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    """Debian system with the package."""
    needed = {"systemd-nspawn": "systemd-container", "dbus-daemon": "dbus", "pkaction": "polkitd"}
    missing = [packaged for program, packaged in needed.items() if not shutil.which(program)]
    if os.geteuid() != 0 or missing:
        pytest.skip(f"a second system is booted by root, with systemd-nspawn, D-Bus and polkit; missing: {missing}")
    with booted(tmp_path) as machine:
        machine.run("dpkg --install /root/dist/*.deb")
        for path, text in ((TOPOLOGY_PATH, TOPOLOGY), (DROP_IN_PATH, DROP_IN)):
            machine.run(f"mkdir -p $(dirname '{path}'); cat > '{path}' <<'END'\n{text}END")
        machine.run("systemctl daemon-reload")
        yield machine


def test_run_control_starts_units_and_sees_them_fail(machine: Machine) -> None:
    machine.run("systemctl start thalweg-control")
    # It comes in a message of its own, behind that of being ready.
    machine.wait_for("its status", "systemctl show --property=StatusText thalweg-control", "=idle: ")
    tokens = machine.run("cat /var/lib/thalweg/control/tokens.toml")
    token = re.search(r'name = "node"\n(?:.*\n)*?secret = "(.*)"', tokens)
    assert token is not None
    variables = f"THALWEG_NODE=--control http://127.0.0.1:8400\nTHALWEG_CONTROL_TOKEN={token[1]}"
    machine.run(f"umask 077; echo '{variables}' > /etc/thalweg/node.env")
    machine.control("configure")
    machine.control("arm")
    machine.control("start")
    machine.wait_for("a run", "systemctl status thalweg-node@builder", 'Status: "connected to 127.0.0.1:8400: running')
    assert machine.property("thalweg-node@adc", "ActiveState") == "active"

    # Run control may begin anew: nodes and their run go on.
    pid = machine.property("thalweg-node@builder", "MainPID")
    machine.run("systemctl restart thalweg-control")
    machine.control("status --until running")
    machine.control("stop")
    machine.control("status --until armed")
    assert machine.property("thalweg-node@builder", "MainPID") == pid
    assert "COMPLETE" in machine.run("thalweg verify /var/lib/thalweg/runs/run-000001")

    # One that stands still is ended, and begins again.
    machine.run(f"kill -STOP {machine.property('thalweg-node@adc', 'MainPID')}")
    machine.wait_for("another process", "systemctl show --property=NRestarts thalweg-node@adc", "NRestarts=1")
    machine.wait_for("its log", "thalweg --version; journalctl --unit=thalweg-node@adc", "watchdog")
    # One that is ended by run control stays away, and its log is the journal's.
    machine.control("process stop builder")
    machine.wait_for("its end", "systemctl show --property=ActiveState thalweg-node@builder", "=inactive")
    assert "listening on tcp:127.0.0.1:7411" in machine.control("log builder")
    machine.control("process start builder")
    machine.wait_for("its start", "systemctl show --property=ActiveState thalweg-node@builder", "=active")

    # Options that are wrong (exit code 2) are for a person: run control shows what systemd does.
    machine.control("process stop builder")
    machine.wait_for("its end", "systemctl show --property=ActiveState thalweg-node@builder", "=inactive")
    machine.run("echo THALWEG_NODE=--no-such-option > /etc/thalweg/node.env")
    machine.control("process start builder")
    machine.wait_for("its failure", "systemctl show --property=ActiveState thalweg-node@builder", "=failed")
    assert machine.property("thalweg-node@builder", "NRestarts") == "0"
    shown = "XDG_STATE_HOME=/var/lib/thalweg thalweg ctl --json status"
    machine.wait_for("its state", shown, "unit thalweg-node@builder has failed (exit-code, exit status 2)")
    # Other units are not its own.
    refused = machine.run("systemctl stop thalweg-serve 2>&1 || echo refused", user="thalweg")
    assert refused.endswith("refused")
