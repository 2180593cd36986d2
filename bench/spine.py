"""The spine beside its peers: throughput, CPU and memory of the way from sources to a run on disk.

Peer and Thalweg take turns within one run, since absolute figures on shared machines drift; the table gives medians,
the spread, and the ratio of the medians. Everything stays on loopback and in one directory. Standard library only.

    make bench                     all of it, installing the peers where they are missing (Debian packages)
    python3 bench/spine.py --quick --only tcp
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import re
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO, Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent

CPU_NOTE = (
    "CPU seconds per gigabyte: user and system time of all processes of both ends, from their start to their end "
    "(`wait4`), over the payload bytes that arrived; one definition for Thalweg and its peers. It holds process start "
    "and, for Thalweg, the allocation of its memory."
)


def main() -> int:
    """Runs the comparisons asked for; 1 where one of them could not be measured. A bar that is missed is a figure."""
    options = arguments()
    bench = Bench(options)
    bench.prepare()
    print(f"# The spine beside its peers\n\n{bench.environment_line()}\n", flush=True)
    with contextlib.suppress(KeyboardInterrupt):
        for name, comparison in COMPARISONS.items():
            if not options.only or name in options.only:
                comparison(bench)
    bench.report()
    return 1 if any(line.error for line in bench.lines) else 0


# --- what is compared ------------------------------------------------------------------------------------------------


def tcp(bench: Bench) -> None:
    """3 sources → 1 builder over TCP, 1 MiB fragments, not recorded, beside iperf3 with sendfile."""
    ours, peer, cubic = bench.alternate(
        lambda: bench.demo("--link", "tcp", "--size", "1MiB", "--no-record"),
        bench.iperf3,
        lambda: bench.iperf3("-C", "cubic"),
        "tcp: 1 MiB",
    )
    bench.compare("TCP 3→1, 1 MiB: goodput, Gbit/s", ours, peer, "gigabit", ratio=0.9, peer_name="iperf3 -P 3 -Z -l 1M")
    bench.compare(
        "TCP 3→1, 1 MiB: CPU seconds per GB, both ends", ours, peer, "cpu", ratio=1.0, at_most=True, peer_name="iperf3"
    )
    # Thalweg's links use cubic whatever the system's default is.
    bench.compare("TCP 3→1, 1 MiB: goodput, Gbit/s", ours, cubic, "gigabit", peer_name="iperf3, the same, -C cubic")
    bench.compare("TCP 3→1, 1 MiB: CPU seconds per GB, both ends", ours, cubic, "cpu", peer_name="iperf3 -C cubic")
    bench.plain("TCP 3→1, 1 MiB: copies per byte, source", ours, "copies_source", at_most=0.01)
    bench.plain("TCP 3→1, 1 MiB: copies per byte, builder", ours, "copies_builder", at_most=1.01)


def small(bench: Bench) -> None:
    """64 KiB and 1 KiB fragments over TCP, beside libzmq PUSH/PULL."""
    for name, size, bar in (("64 KiB", 65536, 2.5), ("1 KiB", 1024, 2.0)):
        ours, peer, tuned = bench.alternate(
            lambda size=size: bench.demo("--link", "tcp", "--size", str(size), "--no-record"),
            lambda size=size: bench.zmq(size, io_threads=1),
            lambda size=size: bench.zmq(size, io_threads=2),
            f"small: {name}",
        )
        what = f"TCP 3→1, {name}: thousand fragments/s"
        bench.compare(what, ours, peer, "kilofragments", ratio=bar, peer_name="libzmq PUSH/PULL, defaults")
        bench.compare(what, ours, tuned, "kilofragments", peer_name="libzmq, 2 IO threads")
        bench.compare(f"TCP 3→1, {name}: CPU seconds per GB", ours, peer, "cpu", peer_name="libzmq, defaults")


def shm(bench: Bench) -> None:
    """1 MiB fragments over shared memory: handed over, and with each payload's CRC checked, beside TCP and memory."""
    handed, checked, over_tcp, memory = bench.alternate(
        lambda: bench.demo("--link", "shm", "--size", "1MiB", "--no-record"),
        lambda: bench.demo("--link", "shm", "--size", "1MiB", "--no-record", "--check", "payload"),
        lambda: bench.demo("--link", "tcp", "--size", "1MiB", "--no-record"),
        bench.memory_bandwidth,
        "shm: 1 MiB",
    )
    bench.compare("shm 3→1, 1 MiB handed over: Gbit/s", handed, over_tcp, "gigabit", ratio=5.0, peer_name="Thalweg TCP")
    bench.plain("shm 3→1, 1 MiB: copies per byte, source", handed, "copies_source", at_most=0.0)
    bench.plain("shm 3→1, 1 MiB: copies per byte, builder", handed, "copies_builder", at_most=0.0)
    bench.compare(
        "shm 3→1, 1 MiB, each CRC checked: Gbit/s", checked, memory, "gigabit", peer_name="one thread reading memory"
    )


def disk(bench: Bench) -> None:
    """Recording, beside fio writing the same blocks with direct IO to the same directory, as many bytes."""
    bytes_written: list[int] = []

    def ours() -> Sample:
        sample = bench.demo("--link", "shm", "--size", "1MiB", record=True)
        bytes_written.append(int(sample["bytes"]))
        return sample

    recorded, peer = bench.alternate(ours, lambda: bench.fio(bytes_written[-1]), "disk")
    bench.compare(
        "recording, 1 MiB over shm: MB/s",
        recorded,
        peer,
        "megabytes",
        ratio=0.9,
        peer_name="fio 4 MiB, depth 4, direct, io_uring",
    )
    over_tcp, peer = bench.alternate(
        lambda: bench.demo("--link", "tcp", "--size", "64KiB", record=True),
        lambda: bench.fio(bytes_written[-1]),
        "disk",
    )
    bench.compare("recording, 64 KiB over TCP: MB/s", over_tcp, peer, "megabytes", peer_name="fio, the same")


def memory(bench: Bench) -> None:
    """Resident memory of every node at a tenth and at the end of a longer run."""
    for link in ("tcp", "shm"):
        name = f"memory, {link}, {bench.memory_seconds} s: growth of any node from 10 % to the end, MiB"
        try:
            bench.progress(name)
            growth = bench.memory_growth(link)
        except BenchError as error:
            bench.lines.append(Line(name, error=str(error)))
            continue
        bench.lines.append(Line(name, ours=[growth], bar="≤ 1", met=growth <= 1.0))


COMPARISONS: dict[str, Callable[[Bench], None]] = {
    "tcp": tcp,
    "small": small,
    "shm": shm,
    "disk": disk,
    "memory": memory,
}


# --- how it is measured ----------------------------------------------------------------------------------------------

Sample = dict[str, Any]


class BenchError(Exception):
    """A program that was measured failed, or is missing."""


@dataclass
class Line:
    """One line of the table."""

    what: str
    ours: list[float] = field(default_factory=list)
    peer_name: str = ""
    peer: list[float] = field(default_factory=list)
    ratio: float | None = None
    bar: str = ""
    met: bool | None = None
    error: str | None = None


@dataclass
class Ended:
    """What a program printed, and the user and system seconds of it and of all children it waited for."""

    out: str
    cpu: float


class Bench:
    """The programs, the repeats, and the lines so far."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.thalweg = Path(options.thalweg)
        self.repeats = options.repeats or (2 if options.quick else 5)
        self.seconds = options.seconds or (2 if options.quick else 5)
        self.memory_seconds = 10 if options.quick else 60
        self.install = options.install
        self.json = Path(options.json)
        self.directory = Path(options.dir)
        self.build = ROOT / "target" / "bench"
        self.peers: dict[str, Path | None] = {}
        self.lines: list[Line] = []
        self.samples: dict[str, list[Sample]] = {}
        self.versions: dict[str, str] = {}

    def prepare(self) -> None:
        """Finds Thalweg and the peers, installing what is missing where that was asked for."""
        if not self.thalweg.exists():
            sys.exit(f"bench: {self.thalweg} is not there: run `make release`, or name the program with --thalweg")
        missing = [package for package, there in PACKAGES.items() if not there()]
        if missing and self.install:
            command = ["apt-get", "install", "-y", "--no-install-recommends", *missing]
            print(f"bench: installing {' '.join(missing)}", file=sys.stderr)
            if os.geteuid() != 0:
                command.insert(0, "sudo")
            if subprocess.run(command, stdout=subprocess.DEVNULL, check=False).returncode != 0:
                print(f"bench: could not run {' '.join(command)}", file=sys.stderr)
        self.build.mkdir(parents=True, exist_ok=True)
        self.directory.mkdir(parents=True, exist_ok=True)
        for name, libraries in (("zmq_push_pull", ["-lzmq"]), ("memory_bandwidth", [])):
            self.peers[name] = self.compile(name, libraries)

    def compile(self, name: str, libraries: list[str]) -> Path | None:
        """Builds one of the C peers; nothing where that fails, which is said."""
        source, program = HERE / "peers" / f"{name}.c", self.build / name
        command = ["cc", "-O3", "-march=native", "-o", str(program), str(source), *libraries]
        built = subprocess.run(command, capture_output=True, text=True, check=False)
        if built.returncode != 0:
            print(f"bench: {name} could not be built:\n{built.stderr}", file=sys.stderr)
            return None
        return program

    def environment_line(self) -> str:
        """Machine and versions, for whoever compares two tables."""
        cpu = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text())
        control = Path("/proc/sys/net/ipv4/tcp_congestion_control").read_text().strip()
        for name, command in VERSIONS.items():
            with contextlib.suppress(OSError):
                text = subprocess.run(command, capture_output=True, text=True, check=False).stdout
                self.versions[name] = text.splitlines()[0].strip() if text else "?"
        self.versions["thalweg"] = subprocess.run(
            [self.thalweg, "--version"], capture_output=True, text=True, check=False
        ).stdout.strip()
        return (
            f"Linux {platform.release()}, {cpu[1] if cpu else platform.machine()}, {os.cpu_count()} cores, "
            f"congestion control {control}; {', '.join(self.versions.values())}; {self.repeats} repeats of "
            f"{self.seconds} s, taking turns; recording to {self.directory}."
        )

    def alternate(self, *runs: object) -> list[list[Sample]]:
        """Lets each of `runs` (the last argument names them) run once, `repeats` times over."""
        *measures, label = runs
        results: list[list[Sample]] = [[] for _ in measures]
        for repeat in range(self.repeats):
            self.progress(f"{label}, {repeat + 1} of {self.repeats}")
            for result, measure in zip(results, measures, strict=True):
                try:
                    result.append(measure())
                except BenchError as error:
                    result.append({"error": str(error)})
        for position, result in enumerate(results):
            self.samples[f"{label} [{position}]"] = result
        return results

    def progress(self, text: str) -> None:
        """What is being done, for someone waiting."""
        print(f"bench: {text}", file=sys.stderr, flush=True)

    def compare(
        self,
        what: str,
        ours: list[Sample],
        peer: list[Sample],
        key: str,
        *,
        peer_name: str,
        ratio: float | None = None,
        at_most: bool = False,
    ) -> None:
        """Adds a line with the ratio of medians and, where `ratio` is a bar, whether it is on its right side."""
        error = first_error(ours) or first_error(peer)
        line = Line(what, values(ours, key), peer_name, values(peer, key), error=error)
        if error is None:
            line.ratio = statistics.median(line.ours) / statistics.median(line.peer)
            if ratio is not None:
                line.bar = f"{'≤' if at_most else '≥'} {ratio:g}x"
                line.met = line.ratio <= ratio if at_most else line.ratio >= ratio
        self.lines.append(line)

    def plain(self, what: str, ours: list[Sample], key: str, *, at_most: float) -> None:
        """Adds a line without a peer."""
        line = Line(what, values(ours, key), bar=f"≤ {at_most:g}", error=first_error(ours))
        if line.error is None:
            line.met = statistics.median(line.ours) <= at_most
        self.lines.append(line)

    # The programs, one method each.

    def demo(self, *arguments: str, record: bool = False) -> Sample:
        """`thalweg demo` with three model sources. A run that loses or leaves anything open is an error here."""
        out = tempfile.mkdtemp(prefix="bench-", dir=self.directory)
        try:
            ended = run([
                self.thalweg, "demo", "--sources", "3", "--duration", f"{self.seconds}s", "--out", out, "--json",
                *arguments,
            ])  # fmt: skip
        finally:
            shutil.rmtree(out, ignore_errors=True)
        return read_demo(ended)

    def iperf3(self, *options: str) -> Sample:
        """`iperf3 -P 3 -Z -l 1M`, both ends started and waited for here."""
        need("iperf3")
        port = free_port()
        server = start(["iperf3", "-s", "-1", "-p", str(port), "--json"])
        try:
            wait_for_port(port, server)
            client = run([
                "iperf3", "-c", "127.0.0.1", "-p", str(port), "-P", "3", "-Z", "-l", "1M", "-t", str(self.seconds),
                "--json", *options,
            ])  # fmt: skip
            served = finish(server)
        except BenchError:
            server.process.kill()
            server.process.wait()
            raise
        received = json.loads(client.out)["end"]["sum_received"]
        return {
            "gigabit": received["bits_per_second"] / 1e9,
            "cpu": (client.cpu + served.cpu) / received["bytes"] * 1e9,
            "cpu_sender": client.cpu / received["bytes"] * 1e9,
            "cpu_receiver": served.cpu / received["bytes"] * 1e9,
        }

    def zmq(self, size: int, io_threads: int) -> Sample:
        """Three processes PUSH, one PULLs."""
        program = self.peers["zmq_push_pull"]
        if program is None:
            raise BenchError("libzmq is not here (apt-get install libzmq3-dev gcc, or run with --install)")
        ended = run([program, "3", str(size), str(self.seconds), "1000", str(io_threads)])
        got = json.loads(ended.out)
        self.versions["libzmq"] = f"libzmq {got['version']}"
        return {
            "kilofragments": got["messages"] / got["seconds"] / 1e3,
            "gigabit": got["bytes"] * 8 / got["seconds"] / 1e9,
            "cpu": ended.cpu / got["bytes"] * 1e9,
        }

    def memory_bandwidth(self) -> Sample:
        """One thread reading 1 GiB over and over."""
        program = self.peers["memory_bandwidth"]
        if program is None:
            raise BenchError("there is no C compiler for the memory probe (apt-get install gcc)")
        got = json.loads(run([program, "1024", str(min(self.seconds, 2))]).out)
        return {"gigabit": got["bytes_per_second"] * 8 / 1e9}

    def fio(self, size: int) -> Sample:
        """The program fio, writing `size` bytes the way the recorder does."""
        need("fio")
        size -= size % (4 << 20)
        out = tempfile.mkdtemp(prefix="bench-", dir=self.directory)
        try:
            ended = run([
                "fio", "--name=peer", f"--directory={out}", "--rw=write", "--direct=1", "--bs=4M",
                "--ioengine=io_uring", "--iodepth=4", f"--size={size}", "--output-format=json",
            ])  # fmt: skip
        finally:
            shutil.rmtree(out, ignore_errors=True)
        # fio prints notes in front of its JSON.
        written = json.loads(ended.out[ended.out.index("{") :])["jobs"][0]["write"]
        return {"megabytes": written["bw_bytes"] / 1e6, "cpu": ended.cpu / size * 1e9}

    def memory_growth(self, link: str) -> float:
        """The largest growth of a node's resident memory, in MiB, between a tenth and the end of a run."""
        out = tempfile.mkdtemp(prefix="bench-", dir=self.directory)
        seconds = self.memory_seconds
        began = time.monotonic()
        program = start([
            self.thalweg, "demo", "--sources", "3", "--size", "64KiB", "--duration", f"{seconds}s", "--link", link,
            "--no-record", "--out", out, "--json",
        ])  # fmt: skip
        readings = []
        for fraction in (0.1, 0.95):
            time.sleep(max(0.0, began + fraction * seconds - time.monotonic()))
            readings.append(resident(program.process.pid))
        try:
            read_demo(finish(program))
        finally:
            shutil.rmtree(out, ignore_errors=True)
        early, late = readings
        if len(early) < 2 or early.keys() != late.keys():
            raise BenchError(f"nodes came and went: {sorted(early)} at a tenth, {sorted(late)} at the end")
        self.samples[f"memory {link}"] = [
            {"pid": pid, "early_mib": early[pid] / 2**20, "late_mib": late[pid] / 2**20} for pid in early
        ]
        return max(late[pid] - early[pid] for pid in early) / 2**20

    # What is printed and kept.

    def report(self) -> None:
        """The Markdown table on standard output, everything measured in the JSON file."""
        print("| | Thalweg: median (min to max) | peer | median (min to max) | ratio | bar | met |")
        print("| --- | --- | --- | --- | --- | --- | --- |")
        for line in self.lines:
            if line.error:
                print(f"| {line.what} | could not be measured: {line.error} | {line.peer_name} | | | {line.bar} | |")
                continue
            ratio = f"{line.ratio:.2f}" if line.ratio is not None else ""
            met = {True: "yes", False: "**no**", None: ""}[line.met]
            cells = (line.what, spread(line.ours), line.peer_name, spread(line.peer), ratio, line.bar, met)
            print(f"| {' | '.join(cells)} |")
        print(f"\n{CPU_NOTE}")
        self.json.parent.mkdir(parents=True, exist_ok=True)
        everything = {
            "environment": self.environment_line(),
            "lines": [asdict(line) for line in self.lines],
            "samples": self.samples,
        }
        self.json.write_text(json.dumps(everything, indent=1))
        print(f"\nAll samples: {self.json}")


def read_demo(ended: Ended) -> Sample:
    """The figures out of the last line that `thalweg demo --json` printed."""
    try:
        got = json.loads(ended.out.splitlines()[-1])
        if got["ledger"]["unaccounted"] != 0 or got["events"]["incomplete"] != 0 or got["state"] != "COMPLETE":
            raise BenchError(f"the run ended {got['state']}, with {got['events']} and {got['ledger']}")
        return {
            "gigabit": got["goodput_bits_per_second"] / 1e9,
            "kilofragments": got["fragments_per_second"] / 1e3,
            "megabytes": got["goodput_bits_per_second"] / 8e6,
            "bytes": got["bytes"],
            "cpu": ended.cpu / got["bytes"] * 1e9,
            "cpu_source": got["cpu_seconds_per_gigabyte"]["source"],
            "cpu_builder": got["cpu_seconds_per_gigabyte"]["builder"],
            "copies_source": got["copies_per_byte"]["source"],
            "copies_builder": got["copies_per_byte"]["builder"],
        }
    except (IndexError, KeyError, TypeError, ValueError, ZeroDivisionError) as error:
        raise BenchError(f"thalweg demo printed no usable JSON ({error!r}): {ended.out[-300:]}") from error


@dataclass
class Started:
    """A program under way; what it says goes to files, so that it never waits for a reader."""

    process: subprocess.Popen[bytes]
    out: IO[str]
    err: IO[str]


def start(command: list[str | Path]) -> Started:
    """Starts a program whose output is wanted."""
    out, err = (tempfile.TemporaryFile("w+", encoding="utf-8") for _ in range(2))  # noqa: SIM115 (closed in finish)
    process = subprocess.Popen([str(word) for word in command], stdout=out, stderr=err, stdin=subprocess.DEVNULL)
    return Started(process, out, err)


def finish(program: Started) -> Ended:
    """Waits for a program and adds up what it, and the children it waited for, used."""
    try:
        _, status, usage = os.wait4(program.process.pid, 0)
    except KeyboardInterrupt:
        program.process.send_signal(signal.SIGINT)
        program.process.wait()
        raise
    program.process.returncode = os.waitstatus_to_exitcode(status)
    for stream in (program.out, program.err):
        stream.seek(0)
    with program.out, program.err:
        out, err = program.out.read(), program.err.read()
    if program.process.returncode != 0:
        command = " ".join(map(str, program.process.args))
        raise BenchError(f"{command} ended with {program.process.returncode}: {(err or out).strip()[-300:]}")
    return Ended(out, usage.ru_utime + usage.ru_stime)


def run(command: list[str | Path]) -> Ended:
    """Starts a program and waits for it."""
    return finish(start(command))


def resident(root: int) -> dict[int, int]:
    """Resident bytes of `root` and every process below it, by process id."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                children.setdefault(parent, []).append(int(entry.name))
    wanted, found = [root], {}
    while wanted:
        pid = wanted.pop()
        wanted += children.get(pid, [])
        with contextlib.suppress(OSError):
            status = (Path("/proc") / str(pid) / "status").read_text()
            if match := re.search(r"VmRSS:\s*(\d+) kB", status):
                found[pid] = int(match[1]) * 1024
    return found


def free_port() -> int:
    """A port of loopback that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def wait_for_port(port: int, program: Started) -> None:
    """Waits until someone listens on `port`, looking in /proc: connecting would use up a one-shot server."""
    wanted = f":{port:04X} "
    for _ in range(500):
        tables = "".join(Path(f"/proc/net/{table}").read_text() for table in ("tcp", "tcp6"))
        if any(wanted in line and line.split()[3] == "0A" for line in tables.splitlines()):
            return
        if program.process.poll() is not None:
            break
        time.sleep(0.01)
    raise BenchError(f"{program.process.args} does not listen on port {port}")


def need(program: str) -> None:
    """Says so where a peer is not installed."""
    if shutil.which(program) is None:
        raise BenchError(f"{program} is not here (apt-get install {program}, or run with --install)")


def values(samples: list[Sample], key: str) -> list[float]:
    """What was measured under `key`."""
    return [float(sample[key]) for sample in samples if key in sample]


def first_error(samples: list[Sample]) -> str | None:
    """Why one of the samples is missing, if one is."""
    return next((str(sample["error"]) for sample in samples if "error" in sample), None)


def spread(numbers: list[float]) -> str:
    """Median and spread, three significant digits."""
    if not numbers:
        return ""
    digits = [
        f"{number:.3g}" if abs(number) < 1000 else f"{number:.0f}"
        for number in (statistics.median(numbers), min(numbers), max(numbers))
    ]
    return digits[0] if len(numbers) == 1 else f"{digits[0]} ({digits[1]} to {digits[2]})"


PACKAGES: dict[str, Callable[[], bool]] = {
    "iperf3": lambda: shutil.which("iperf3") is not None,
    "fio": lambda: shutil.which("fio") is not None,
    "libzmq3-dev": lambda: Path("/usr/include/zmq.h").exists(),
}

VERSIONS = {"iperf3": ["iperf3", "--version"], "fio": ["fio", "--version"]}


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    default = os.environ.get("THALWEG_BIN", str(ROOT / "target" / "release" / "thalweg"))
    parser.add_argument("--quick", action="store_true", help="two repeats of two seconds: a first look, not a figure")
    parser.add_argument(
        "--only", nargs="+", choices=list(COMPARISONS), metavar="NAME", help=f"of {', '.join(COMPARISONS)}"
    )
    parser.add_argument("--repeats", type=int, help="how often each takes its turn (5; quick 2)")
    parser.add_argument("--seconds", type=int, help="how long each turn takes (5; quick 2)")
    parser.add_argument("--install", action="store_true", help="install missing peers with apt-get")
    parser.add_argument("--thalweg", default=default, help="the program")
    parser.add_argument("--dir", default=str(ROOT / "target" / "bench" / "runs"), help="where runs are recorded")
    parser.add_argument("--json", default=str(ROOT / "target" / "bench" / "spine.json"), help="where samples are kept")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
