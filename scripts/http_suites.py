"""What public tests of HTTP servers say of `thalweg serve`.

REDbot (https://pypi.org/project/redbot) looks at answers: framing, caching, validators, conditions, ranges,
negotiation.
slowhttptest (Debian package of that name) opens many slow connections and asks meanwhile whether others are served.
One that is not installed is reported as skipped. Ends with 1 where one of them finds something.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

# Of slowhttptest: what it does, options, and how many connections. The server serves 512 at once: of those that ask for
# nothing more come than that, of those that are in the middle of something fewer. Of the bodies one is taken: all are
# for one file, and the others are refused.
ATTACKS = [
    ("heads that trickle in", ["-H"], 1000),
    ("bodies that trickle in", ["-B", "-t", "PUT", "-s", "1000000"], 400),
    ("absurd ranges", ["-R"], 400),
    ("answers that are read slowly", ["-X"], 400),
]
SECONDS = 12
# Seconds that REDbot may take for one address.
TIMEOUT = 60


def main() -> None:
    """Run what is there."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--thalweg", default=os.environ.get("THALWEG_BIN", "thalweg"), help="the program")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        (root / "data.bin").write_bytes(os.urandom(64 << 20))
        (root / "table.json").write_text("[1, 2, 3]" * 100)
        (root / "directory").mkdir()
        for number in range(60):
            (root / "directory" / f"{number}.csv").write_text("")
        for path in root.iterdir():
            os.utime(path, (1_600_000_000, 1_600_000_000))
        with serve(options.thalweg, root) as url:
            found = lint(url) + slow(url)
    sys.exit(1 if found else 0)


@contextmanager
def serve(thalweg: str, root: Path) -> Iterator[str]:
    """A server, and where it is."""
    command = [thalweg, "serve", "--listen", "127.0.0.1:0", "--write", "--path", "sendfile", str(root)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        try:
            yield server.stdout.readline().split()[0]
        finally:
            server.terminate()


def lint(url: str) -> int:
    """What REDbot finds: the number of its warnings and errors."""
    if shutil.which("redbot") is None:
        print("skipped: REDbot is not installed (pip install redbot)")
        return 0
    found = 0
    for path in ["data.bin", "table.json", "directory/", "directory/?format=html", "directory", "nothing"]:
        command = ["redbot", "-o", "har", url + path]
        ended = subprocess.run(command, capture_output=True, text=True, check=True, timeout=TIMEOUT)
        (entry,) = json.loads(ended.stdout)["log"]["entries"]
        print(f"REDbot, {entry['response']['status']} /{path}")
        for note in entry["_red_messages"]:
            found += note["level"] not in ("GOOD", "INFO")
            print(f"  {note['level']:5}{note['summary']}")
    return found


def slow(url: str) -> int:
    """What slowhttptest finds: the number of attacks under which others are not served."""
    if shutil.which("slowhttptest") is None:
        print("skipped: slowhttptest is not installed (apt install slowhttptest)")
        return 0
    found = 0
    for number, (what, how, connections) in enumerate(ATTACKS):
        target = f"{url}upload{number}" if "-B" in how else f"{url}data.bin"
        command = ["slowhttptest", *how, "-c", str(connections), "-r", "300", "-l", str(SECONDS), "-p", "3"]
        command += ["-u", target]
        ended = subprocess.run(command, capture_output=True, text=True, check=False)
        text = re.sub(r"\x1b\[[0-9;]*m", "", ended.stdout)
        available = re.findall(r"service available:\s*(\w+)", text)
        ok = bool(available) and set(available) == {"YES"}
        found += not ok
        state = "others are served" if ok else f"others are not served: {available}"
        print(f"slowhttptest, {what}, {connections} connections, {SECONDS} s: {state}")
    return found


if __name__ == "__main__":
    main()
