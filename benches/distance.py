"""Does `howfar TARGET` measure correctly? Compares its median with the kernel's view of the same requests and a loop in C.

    .venv/bin/python benches/distance.py mysql://app@127.0.0.1:3306/shop [--rounds 10] [--count 300] [--counted]    (as root)
    howfar lab --server mariadb --rtt 2.9ms -- .venv/bin/python benches/distance.py

Without a target it takes the server of the enclosing `howfar lab`. *kernel*: the time from the system call that sends a request to the
return of the call that received the last of its answer, by tracepoints. *C*: the same request by the server's own client library
(libmariadb, libpq, hiredis, libmemcached; their header files must be installed), alternating with ours. `--counted` adds what a
request costs either client: system calls and bytes by the same tracepoints, which do not stop the clients, and instructions in user
space by valgrind. Each is the difference between runs of two lengths, so connecting is not included.
"""

from __future__ import annotations

import argparse
import array
import contextlib
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from instructions import build, count_instructions

from howfar.cli.target import find_server
from howfar.contract.messages import AskInTurn, OpenConnection, Opened, PingJob, PingRequest, TcpTarget
from howfar.distance.measure import find_addresses
from howfar.distance.requests import REQUESTS
from howfar.distance.session import MeasuredServer, ping_session
from howfar.distance.target import server_of
from howfar.engine.process import find_engine

HERE = Path(__file__).parent
TIMED = ("sys_enter_sendto", "sys_exit_recvfrom")
LENGTHS = (1_000, 3_000)
"""Numbers of requests of the two runs whose difference is counted."""
SENDS = {"sendto", "sendmsg", "write", "writev"}
RECEIVES = {"recvfrom", "recvmsg", "read", "readv"}
MIN_SHOWN = 0.005
"""Smaller counts per request are not shown: they come from the report, whose size grows with the number of requests."""
Run = tuple[list[str], str]
"""A command and its stdin."""
LIBRARIES = {
    "mysql": ("-DOF_MYSQL", "mariadb_config --cflags --libs"),
    "postgresql": ("-DOF_POSTGRESQL -I/usr/include/postgresql -lpq", ""),
    "redis": ("-DOF_REDIS -lhiredis", ""),
    "memcached": ("-DOF_MEMCACHED -lmemcached", ""),
}
PEER = "distance-peer"
_LINE = re.compile(r"\s(\d+\.\d+): (sys_\w+)(?:\(| -> )")
_CALL = re.compile(r"-(\d+) +\[\d+\].* sys_(\w+)(?:\((?:\w+: ([0-9a-f]+))?| -> 0x([0-9a-f]+))")


@contextlib.contextmanager
def tracing(*calls: str) -> Iterator[Path | None]:
    """A trace of these system calls, or of all, of the engine and the loop in C, in a separate instance; None if tracing is
    impossible."""
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
        (instance / "buffer_size_kb").write_text("16384")
        events = instance / "events" / "syscalls"
        for event in [events / call for call in calls] or [events]:
            (event / "filter").write_text(f'comm == "howfar-engine" || comm == "{PEER}"')
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


def ours(server: MeasuredServer, count: int) -> list[float]:
    """Microseconds of each of `count` requests, as the command measures them."""
    _, targets = find_addresses(server, 5_000_000_000)
    with ping_session(server, targets[0], 5_000_000_000) as session:
        opened = session.open()
        if not isinstance(opened, Opened):
            raise SystemExit(opened.failure.message)
        query = REQUESTS[server.service].query
        session.ask([query], 1, 0)
        return [ns / 1e3 for ns in session.ask([query], count, 3600 * 10**9).latencies_ns[0]]


def build_peer(server: MeasuredServer, folder: str) -> Path | None:
    """The compiled loop in C; None if it cannot be compiled with its library."""
    flags, config = LIBRARIES[server.service]
    more = subprocess.run(config.split(), capture_output=True, text=True).stdout if config else ""
    program = Path(folder) / PEER
    command = ["cc", "-O2", "-o", program, HERE / "distance_peer.c", *flags.split(), *more.split()]
    done = subprocess.run(command, capture_output=True, text=True)
    return program if done.returncode == 0 else None


def peer_command(program: Path, server: MeasuredServer, count: int) -> list[str]:
    _, targets = find_addresses(server, 5_000_000_000)
    to, port = (targets[0].host, server.port) if isinstance(targets[0], TcpTarget) else (str(server.socket), 0)
    if server.service == "postgresql" and server.socket is not None:  # libpq takes the directory and the port
        folder, _, number = server.socket.rpartition("/.s.PGSQL.")
        to, port = folder, int(number)
    return [str(program), str(count), to, str(port or 0), server.user, server.password, server.database]


def theirs(program: Path, server: MeasuredServer, count: int) -> list[float]:
    """Microseconds of each of `count` requests of the loop in C."""
    done = subprocess.run(peer_command(program, server, count), capture_output=True, check=True)
    return [ns / 1e3 for ns in array.array("q", done.stdout)]


# ---------------------------------------------------------------- counted work


def engine_commands(server: MeasuredServer, count: int) -> str:
    """The engine's stdin for `count` requests, without Python in between."""
    _, targets = find_addresses(server, 5_000_000_000)
    limit_ns = 600_000_000_000
    job = PingJob(
        protocol=server.service,
        target=targets[0],
        user=server.user,
        password=server.password,
        database=server.database,
        session=server.session,
        step_timeout_ns=limit_ns,
    )
    requests = (PingRequest(words=REQUESTS[server.service].query),)
    ask = AskInTurn(requests=requests, rounds=count, within_ns=limit_ns, at_ns=0)
    return "".join(message.model_dump_json() + "\n" for message in (job, OpenConnection(), ask))


def calls_and_bytes(trace: str) -> Counter[str]:
    """Number of entries of each system call, and bytes sent and received, without the standard streams."""
    found: Counter[str] = Counter()
    entered: dict[str, bool] = {}
    for match in _CALL.finditer(trace):
        thread, call, descriptor, returned = match.groups()
        if returned is None:
            standard = call in SENDS | RECEIVES and descriptor in {"0", "1", "2"}
            entered[thread] = not standard
            found[call] += not standard
        elif entered.get(thread) and int(returned, 16) < 1 << 63:
            found["bytes to the server"] += int(returned, 16) if call in SENDS else 0
            found["bytes to the client"] += int(returned, 16) if call in RECEIVES else 0
    return found


def traced(runs: Sequence[Run], instance: Path) -> Counter[str]:
    """Calls and bytes of the longer run minus those of the shorter one."""
    found: Counter[str] = Counter()
    for sign, (command, stdin) in zip((-1, 1), runs, strict=True):
        (instance / "trace").write_text("")
        subprocess.run(command, input=stdin, stdout=subprocess.DEVNULL, encoding="utf-8", check=True)
        for name, number in calls_and_bytes((instance / "trace").read_text()).items():
            found[name] += sign * number
    return found


def instructions(runs: Sequence[Run]) -> int:
    """Instructions in user space of the longer run minus those of the shorter one."""
    shorter, longer = (count_instructions(command, stdin) for command, stdin in runs)
    return longer - shorter


def print_counts(server: MeasuredServer, peer: Path) -> None:
    """Print a table of what a request costs either client."""
    texts = [engine_commands(server, length) for length in LENGTHS]
    theirs = [(peer_command(peer, server, length), "") for length in LENGTHS]
    columns = []
    with tracing() as instance:
        for runs in ([([str(find_engine()), "ping"], text) for text in texts], theirs):
            columns.append(traced(runs, instance) if instance is not None else Counter())
    if shutil.which("valgrind") is not None:
        engine = str(build())
        for column, runs in zip(columns, ([([engine, "ping"], text) for text in texts], theirs), strict=True):
            column["instructions in user space"] = instructions(runs)
    per = LENGTHS[1] - LENGTHS[0]
    names = sorted({name for column in columns for name in column}, key=lambda name: (" " in name, name))
    print(f"{'counted per request':<28} {'ours':>9} {'C':>9}")
    for name in names:
        ours, others = (column[name] / per for column in columns)
        if max(ours, others) >= MIN_SHOWN:
            print(f"{name:<28} {ours:9.2f} {others:9.2f}")


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
    parser.add_argument("--counted", action="store_true")
    options = parser.parse_args(arguments)
    login = find_server(options.target)
    service = login.address.protocol or os.environ.get("HOWFAR_PROTOCOL")
    assert service is not None, "the target says which server it is"
    server = server_of(login, service)
    medians: dict[str, list[float]] = {"ours": [], "kernel": [], "C": []}
    with tempfile.TemporaryDirectory() as folder:
        peer = build_peer(server, folder)
        with tracing(*TIMED) as instance:
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
        if options.counted and peer is not None:
            print_counts(server, peer)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
