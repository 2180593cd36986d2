"""What a connection to `thalweg serve` costs in memory.

Starts a server, opens connections over loopback, and prints how much it has: memory of its own (RssAnon), page tables
(VmPTE), threads with their kernel stacks (16 KiB each), and what the kernel keeps for its sockets (`ss -tm`: received,
queued to be sent, set aside). Three states: idle clients, which have asked for something and stay; clients that fetch
a large file as fast as they can; and clients that fetch it and take nothing. What is queued by sendfile is the page
cache's own pages, counted once for each connection.
"""

from __future__ import annotations

import argparse
import os
import re
import resource
import select
import socket
import ssl
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

Sockets = list[socket.socket]
# How long clients are left to it.
SECONDS = 5


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--thalweg", default=os.environ.get("THALWEG_BIN", "thalweg"), help="the program")
    parser.add_argument("--connections", type=int, nargs="*", default=[100, 1000], help="how many")
    parser.add_argument("--path", default="sendfile", help="the way from disk to network")
    parser.add_argument("--tls", action="store_true", help="with TLS; needs openssl")
    options = parser.parse_args()
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    print(f"{options.path}{' through TLS' if options.tls else ''}, KiB for each connection")
    print(f"{'':28}{'own':>8}{'tables':>8}{'stacks':>8}{'sockets':>9}")
    for state, ask in [("idle", idle), ("fetching", fetching), ("taking nothing", deaf)]:
        for connections in options.connections:
            with tempfile.TemporaryDirectory() as name, serve(options, Path(name), connections + 1) as (pid, address):
                # What the first client brings about is not the connections'.
                with connect(address, options.tls) as first:
                    idle([first])
                before = memory(pid, address)
                sockets = [connect(address, options.tls) for _ in range(connections)]
                ask(sockets)
                after = memory(pid, address)
                each = [(now - then) / connections / 1024 for now, then in zip(after, before, strict=True)]
                numbers = "".join(f"{number:{width}.1f}" for number, width in zip(each, [8, 8, 8, 9], strict=True))
                print(f"{connections:8} {state:19}{numbers}")
                for one in sockets:
                    one.close()


@contextmanager
def serve(options: argparse.Namespace, directory: Path, connections: int) -> Iterator[tuple[int, tuple[str, int]]]:
    """A server of a small and a large file: its process, and where it listens."""
    root = directory / "root"
    root.mkdir()
    (root / "small").write_bytes(b"0123456789")
    with (root / "large").open("wb") as file:
        file.truncate(1 << 30)
    command = [options.thalweg, "serve", "--listen", "127.0.0.1:0", "--path", options.path]
    command += ["--connections", str(connections), "--idle-timeout", "10min", str(root)]
    if options.tls:
        certificate, key = directory / "server.pem", directory / "server.key"
        openssl = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
        openssl += ["-keyout", key, "-out", certificate, "-days", "2", "-subj", "/CN=test"]
        subprocess.run(openssl, check=True, capture_output=True)
        command += ["--certificate", str(certificate), "--key", str(key)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        try:
            where = server.stdout.readline().split()[0].rstrip("/").rpartition("/")[2]
            host, _, port = where.rpartition(":")
            yield server.pid, (host, int(port))
        finally:
            server.terminate()


def connect(address: tuple[str, int], tls: bool) -> socket.socket:
    """A client."""
    plain = socket.create_connection(address)
    if not tls:
        return plain
    # The server is the one that was just started.
    context = ssl._create_unverified_context()
    return context.wrap_socket(plain)


def request(of: socket.socket, path: str) -> None:
    """Asks for a file."""
    of.sendall(f"GET /{path} HTTP/1.1\r\nHost: here\r\n\r\n".encode())


def idle(sockets: Sockets) -> None:
    """Each connection has received an answer, and sends no more."""
    for one in sockets:
        request(one, "small")
        while not one.recv(4096).endswith(b"0123456789"):
            pass


def fetching(sockets: Sockets) -> None:
    """Each takes what comes, for some seconds."""
    start(sockets)
    waiting = select.poll()
    for one in sockets:
        one.setblocking(False)
        waiting.register(one, select.POLLIN)
    of_number = {one.fileno(): one for one in sockets}
    until = time.monotonic() + SECONDS
    while time.monotonic() < until:
        for number, _ in waiting.poll(100):
            with suppress(ssl.SSLWantReadError):
                of_number[number].recv(1 << 16)


def deaf(sockets: Sockets) -> None:
    """Each takes nothing, until all is queued that can be."""
    start(sockets)
    time.sleep(SECONDS)


def start(sockets: Sockets) -> None:
    """Each asks for the large file."""
    for one in sockets:
        request(one, "large")


def memory(pid: int, address: tuple[str, int]) -> tuple[int, int, int, int]:
    """Bytes of its own, of page tables, of kernel stacks, and of sockets."""
    status = Path(f"/proc/{pid}/status").read_text()
    fields = {name: int(number) for name, number in re.findall(r"^(\w+):\s*(\d+)", status, re.MULTILINE)}
    listing = subprocess.run(
        ["ss", "-tmHn", "state", "established", f"sport = :{address[1]}"], capture_output=True, text=True, check=True
    )
    kept = re.findall(r"skmem:\(r(\d+),.*?,f(\d+),w(\d+)", listing.stdout)
    sockets = sum(int(number) for each in kept for number in each)
    return fields["RssAnon"] << 10, fields["VmPTE"] << 10, fields["Threads"] * 16 << 10, sockets


if __name__ == "__main__":
    main()
