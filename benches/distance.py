"""Does `howfar TARGET` measure what it says? Its median beside the kernel's view of the same requests, and beside a loop in C.

    .venv/bin/python benches/distance.py mysql://app@127.0.0.1:3306/shop [--rounds 10] [--count 300]     (as root, for the kernel)
    howfar lab --server mariadb --rtt 2.9ms -- .venv/bin/python benches/distance.py

Without a target it takes the server of `howfar lab` around it. *kernel*: the time from the system call that sends a request to the
return of the call that received the last of its answer, by tracepoints. *C*: the same request by the server's own client library
(libmariadb, libpq, hiredis, libmemcached; their header files must be installed), alternating with ours.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from howfar.cli.target import find_server
from howfar.distance.measure import find_addresses
from howfar.distance.requests import REQUESTS
from howfar.distance.session import Server, ping_session
from howfar.distance.target import server_of
from howfar.engine.messages import Opened, TcpTarget

HERE = Path(__file__).parent
CALLS = ("sys_enter_sendto", "sys_exit_recvfrom")
LIBRARIES = {
    "mysql": ("-DOF_MYSQL", "mariadb_config --cflags --libs"),
    "postgresql": ("-DOF_POSTGRESQL -I/usr/include/postgresql -lpq", ""),
    "redis": ("-DOF_REDIS -lhiredis", ""),
    "memcached": ("-DOF_MEMCACHED -lmemcached", ""),
}
_LINE = re.compile(r"\s(\d+\.\d+): (sys_\w+)(?:\(| -> )")


@contextlib.contextmanager
def tracing() -> Iterator[Path | None]:
    """A trace of the engine's system calls, in an instance of its own; None where it cannot be had."""
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as undo:
        root = Path(folder) / "tracefs"
        root.mkdir()
        if (
            os.geteuid() != 0
            or subprocess.run(["mount", "-t", "tracefs", "none", root], capture_output=True).returncode
        ):
            yield None
            return
        undo.callback(subprocess.run, ["umount", root], check=True)
        instance = root / "instances" / f"howfar-{os.getpid()}"
        instance.mkdir()
        undo.callback(instance.rmdir)
        (instance / "trace_clock").write_text("mono")
        (instance / "buffer_size_kb").write_text("4096")
        for call in CALLS:
            event = instance / "events" / "syscalls" / call
            (event / "filter").write_text('comm == "howfar-engine"')
            (event / "enable").write_text("1")
        yield instance


def exchanges(trace: str) -> list[float]:
    """Microseconds of each exchange: from a send to the last receive before the next send."""
    found: list[float] = []
    sent = received = None
    for match in _LINE.finditer(trace):
        at, call = float(match.group(1)) * 1e6, match.group(2)
        if "recvfrom" in call:
            received = at
            continue
        if sent is not None and received is not None and received > sent:
            found.append(received - sent)
        sent, received = at, None
    if sent is not None and received is not None and received > sent:
        found.append(received - sent)
    return found


def ours(server: Server, count: int) -> list[float]:
    """Microseconds of so many requests, as the command measures them."""
    _, targets = find_addresses(server, 5_000_000_000)
    with ping_session(server, targets[0], 5_000_000_000) as session:
        opened = session.open()
        if not isinstance(opened, Opened):
            raise SystemExit(opened.failure.message)
        query = REQUESTS[server.service].query
        session.ask([query], 1, 0)
        return [ns / 1e3 for ns in session.ask([query], count, 3600 * 10**9).latencies_ns[0]]


def built(server: Server, folder: str) -> Path | None:
    """The loop in C; None where its library cannot be compiled against."""
    flags, config = LIBRARIES[server.service]
    more = subprocess.run(config.split(), capture_output=True, text=True).stdout if config else ""
    program = Path(folder) / "peer"
    command = ["cc", "-O2", "-o", program, HERE / "distance_peer.c", *flags.split(), *more.split()]
    done = subprocess.run(command, capture_output=True, text=True)
    return program if done.returncode == 0 else None


def theirs(program: Path, server: Server, count: int) -> list[float]:
    _, targets = find_addresses(server, 5_000_000_000)
    to, port = (targets[0].host, server.port) if isinstance(targets[0], TcpTarget) else (str(server.socket), 0)
    if server.service == "postgresql" and server.socket is not None:  # libpq names the directory, and the port
        folder, _, number = server.socket.rpartition("/.s.PGSQL.")
        to, port = folder, int(number)
    words = [str(count), to, str(port or 0), server.user, server.password, server.database]
    done = subprocess.run([program, *words], capture_output=True, text=True, check=True)
    return [int(line) / 1e3 for line in done.stdout.split()]


def row(name: str, values: Sequence[float], by: Sequence[float]) -> str:
    ratios = [a / b for a, b in zip(values, by, strict=True)]
    return (
        f"{name:<8} p50 {statistics.median(values):9.2f} µs   ours/{name} {statistics.median(1 / one for one in ratios):.4f} "
        f"[{min(1 / one for one in ratios):.3f}, {max(1 / one for one in ratios):.3f}]"
    )


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target", nargs="?")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--count", type=int, default=300)
    options = parser.parse_args(arguments)
    login = find_server(options.target)
    service = login.address.protocol
    assert service is not None, "the target says which server it is"
    server = server_of(login, service)
    medians: dict[str, list[float]] = {"ours": [], "kernel": [], "C": []}
    with tempfile.TemporaryDirectory() as folder, tracing() as instance:
        peer = built(server, folder)
        for _ in range(options.rounds):
            if instance is not None:
                (instance / "trace").write_text("")
            medians["ours"].append(statistics.median(ours(server, options.count)))
            if instance is not None:
                seen = exchanges((instance / "trace").read_text())
                medians["kernel"].append(statistics.median(seen[-options.count :]))
            if peer is not None:
                medians["C"].append(statistics.median(theirs(peer, server, options.count)))
    print(f"{server.shown}: {options.rounds} rounds of {options.count} requests in turn")
    print(f"ours     p50 {statistics.median(medians['ours']):9.2f} µs")
    for name in ("kernel", "C"):
        if medians[name]:
            print(row(name, medians[name], medians["ours"]))
        else:
            print(f"{name:<8} could not be had here")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
