"""`make shift`: what its script brings up, prints and ends. In a network of its own, since its ports are fixed."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from conftest import ROOT

sys.path.insert(0, str(ROOT / "scripts"))

import documents

# Longest time in seconds for what is waited for: a failure, and not a measurement.
PATIENCE = 120


def test_a_shift_is_brought_up_and_leaves_nothing_behind(program: Path, tmp_path: Path) -> None:
    for needed in ("unshare", "ip"):
        if shutil.which(needed, path=f"{os.environ['PATH']}:/usr/sbin:/sbin") is None:
            pytest.skip(f"{needed} is not installed")
    if subprocess.run([*documents.INSIDE, "true"], capture_output=True, check=False).returncode != 0:
        pytest.skip("a network of its own cannot be had here (unshare --net)")
    # All files of the script and of its processes are in this folder, or nowhere.
    environment = os.environ | {"TMPDIR": str(tmp_path), "XDG_STATE_HOME": str(tmp_path / "state")}
    inside = [*documents.INSIDE, sys.executable, str(Path(__file__)), str(program)]
    ended = subprocess.run(
        inside, env=environment, capture_output=True, text=True, check=False, timeout=4 * PATIENCE, cwd=ROOT
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert list(tmp_path.iterdir()) == [], ended.stdout
    assert "SHIFT:State" in ended.stdout or "needs Python 3.11" in ended.stdout, ended.stdout


def type_a_shift(program: str) -> None:
    """Starts the script, types what it prints, and interrupts it. The processes of this namespace are then gone."""
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    command = [sys.executable, str(ROOT / "scripts/shift.py"), "--thalweg", program]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as shift:
        watchdog = threading.Timer(3 * PATIENCE, shift.kill)
        watchdog.start()
        assert shift.stdout is not None
        printed = ""
        while "Ctrl-C ends all of it" not in printed:
            line = shift.stdout.readline()
            assert line, printed
            printed += line
        print(printed)
        commands = re.findall(r"^    (.* ctl .*)$", printed, re.MULTILINE)
        assert len(commands) == 6, commands
        for typed in commands:
            subprocess.run(typed, shell=True, check=True)
        # A run is under way at the end, too.
        thalweg = commands[0].partition(" ctl ")[0]
        subprocess.run(f"{thalweg} ctl status --until armed && {thalweg} ctl start", shell=True, check=True)
        shift.send_signal(signal.SIGINT)
        print(shift.stdout.read())
        assert shift.wait(PATIENCE) == 0
        watchdog.cancel()
    left = [entry for entry in Path("/proc").iterdir() if entry.name.isdigit() and int(entry.name) != os.getpid()]
    names = [(entry / "cmdline").read_bytes().replace(b"\0", b" ") for entry in left]
    assert not [name for name in names if name], names


if __name__ == "__main__":
    type_a_shift(sys.argv[1])
