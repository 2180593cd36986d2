"""The units on a Debian with its systemd: run control starts nodes, sees them fail, and ends them."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from test_packages import System, package, said

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
# A node that stands still is ended sooner than in the package.
DROP_IN = """
[Service]
WatchdogSec=2s
TimeoutStopSec=2s
"""


class Machine:
    """Debian system whose systemd is running, in namespaces of its own."""

    def __init__(self, leader: int) -> None:
        self.inside = ["nsenter", f"--target={leader}", "--pid", "--mount", "--uts", "--net", "--ipc", "--cgroup", "--"]

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
def booted(root: Path) -> Iterator[Machine]:
    """Boots a system. It has a network with a loopback alone, and /tmp, /dev and control groups of its own."""
    command = ["systemd-nspawn", "--quiet", "--boot", "--private-network", "--register=no", "--keep-unit"]
    command += ["--console=pipe", f"--directory={root}"]
    output = root.with_name("nspawn.log")
    with (
        output.open("wb") as log,
        subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT) as nspawn,
    ):
        try:
            children = Path(f"/proc/{nspawn.pid}/task/{nspawn.pid}/children")
            deadline = time.monotonic() + PATIENCE
            while not (leader := children.read_text().split()):
                assert nspawn.poll() is None, output.read_text()
                assert time.monotonic() < deadline
                time.sleep(0.05)
            machine = Machine(int(leader[0]))
            machine.wait_for("systemd", "systemctl is-system-running --wait || true", "running")
            yield machine
        finally:
            nspawn.kill()


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    """Debian 12 with the package, its systemd, D-Bus and polkit."""
    if os.geteuid() != 0 or not shutil.which("mmdebstrap") or not shutil.which("systemd-nspawn"):
        pytest.skip("a Debian is made with mmdebstrap and booted with systemd-nspawn (systemd-container), by root")
    root = tmp_path / "root"
    packages = "--include=systemd,passwd,dbus,polkitd"
    said("mmdebstrap", "--variant=apt", packages, "--skip=cleanup/apt/lists", "bookworm", root)
    shutil.copy(package("*.deb"), root / "root/thalweg.deb")
    System(root).run("apt-get install -y --no-install-recommends ./thalweg.deb")
    (root / "etc/thalweg").mkdir()
    (root / "etc/thalweg/topology.toml").write_text(TOPOLOGY)
    drop_in = root / "etc/systemd/system/thalweg-node@.service.d"
    drop_in.mkdir(parents=True)
    (drop_in / "test.conf").write_text(DROP_IN)
    with booted(root) as machine:
        yield machine
    shutil.rmtree(root)


def test_run_control_starts_units_and_sees_them_fail(machine: Machine) -> None:
    machine.run("systemctl start thalweg-control")
    assert machine.property("thalweg-control", "StatusText").startswith("idle: ")
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
    machine.run("systemctl kill --signal=STOP thalweg-node@adc")
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
