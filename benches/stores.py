"""What does a GET cost our client and redis-benchmark? Client CPU time per request, in blocks with random order, on one Redis.

    .venv/bin/python benches/stores.py [--connections 50,1000] [--pipeline 1] [--blocks 6] [--seconds 2] [--threads 1] [--bound 0.5]

A private server on a Unix socket holds 10 000 keys of 100 bytes. Both clients request keys of the same names, drawn uniformly, with
one thread each by default, and read every reply to its last byte. The clients' own figures are not used: CPU time is the kernel's
clock of the process, requests are those that the server counts, in a window in which all connections run. `--bound`: exit code 1 when
the whole interval of a ratio lies above it.
"""

from __future__ import annotations

import argparse
import os
import random
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from howfar.bench import comparison, meter
from howfar.bench.meter import Trial
from howfar.contract.messages import KeyValue, LoadJob, Ready, TablesJob, UnixTarget
from howfar.engine.process import EngineProcess, Launcher
from howfar.engine.run_load import run_tables

KEYS = 10_000
UNLIMITED_NS = 3_600_000_000_000
SETTLE_S = 0.3
TIMEOUT_S = 60.0


class Counters:
    """Redis's own counters, read over a separate connection."""

    def __init__(self, path: str) -> None:
        self._line = socket.socket(socket.AF_UNIX)
        self._line.settimeout(TIMEOUT_S)
        self._line.connect(path)

    def executed(self) -> int:
        return self._number("commandstats", "cmdstat_get:calls=")

    def connected(self) -> int:
        return self._number("clients", "connected_clients:") - 1

    def _number(self, section: str, before: str) -> int:
        self._line.sendall(f"INFO {section}\r\n".encode())
        reply = self._line.recv(65536)
        header, _, text = reply.partition(b"\r\n")
        while len(text) < int(header[1:]) + 2:
            text += self._line.recv(65536)
        for line in text.decode().splitlines():
            if line.startswith(before):
                return int(line.removeprefix(before).split(",")[0])
        return 0


@contextmanager
def running(directory: str) -> Iterator[str]:
    """Run the server, in its own session like a service."""
    path = f"{directory}/r.sock"
    command = ["redis-server", "--port", "0", "--unixsocket", path, "--save", "", "--dir", directory]
    command += ["--appendonly", "no", "--maxclients", "20000"]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, start_new_session=True)
    try:
        meter.wait_until(lambda: Path(path).exists(), "the server's socket", TIMEOUT_S)
        yield path
    finally:
        server.kill()
        server.wait()


@contextmanager
def ours(path: str, connections: int, options: argparse.Namespace) -> Iterator[tuple[int, str | None]]:
    job = LoadJob(
        target=UnixTarget(path=path),
        user="",
        database="",
        workload=KeyValue(protocol="resp2", keys=KEYS, set=0, pipeline=options.pipeline),
        connections=connections,
        threads=options.threads,
        driver=options.driver,
        seed=1,
        warmup_ns=0,
        measure_ns=UNLIMITED_NS,
        interval_ns=UNLIMITED_NS,
    )
    with EngineProcess(job) as engine:
        ready = engine.read()
        assert isinstance(ready, Ready), ready
        try:
            yield engine.pid, ready.receipt.driver
        finally:
            engine.kill()


@contextmanager
def peer(path: str, connections: int, options: argparse.Namespace) -> Iterator[tuple[int, str | None]]:
    command = ["redis-benchmark", "-s", path, "-t", "get", "-n", "2000000000", "-r", str(KEYS), "-q"]
    command += ["-c", str(connections), "-P", str(options.pipeline)]
    if options.threads > 1:
        command += ["--threads", str(options.threads)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield process.pid, None
    finally:
        process.kill()
        process.wait()


def trial(start: Callable[..., object], path: str, connections: int, options: argparse.Namespace) -> Trial:
    counters = Counters(path)
    meter.wait_until(lambda: counters.connected() == 0, "the client before to leave", TIMEOUT_S)
    began = counters.executed()
    with start(path, connections, options) as (pid, driver):  # type: ignore[attr-defined]
        meter.wait_until(
            lambda: counters.executed() > began and counters.connected() == connections, "the first answers", TIMEOUT_S
        )
        time.sleep(SETTLE_S)
        return meter.measure(pid, counters, options.seconds, began).model_copy(update={"driver": driver})


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--connections", default="50,1000")
    parser.add_argument("--pipeline", type=int, default=1)
    parser.add_argument("--blocks", type=int, default=6)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--driver", default="auto", choices=["auto", "epoll", "io_uring"])
    parser.add_argument("--bound", type=float)
    options = parser.parse_args()
    sizes = [int(part) for part in options.connections.split(",")]
    tools = {"ours": ours, "peer": peer}
    measured: dict[tuple[int, str], list[Trial]] = {}
    above = False
    with tempfile.TemporaryDirectory(prefix="howfar-bench-") as directory, running(directory) as path:
        tables = TablesJob(
            action="prepare",
            target=UnixTarget(path=path),
            user="",
            database="",
            workload=KeyValue(protocol="resp2", keys=KEYS),
            seed=1,
        )
        run_tables(tables, Launcher())
        rng = random.Random(0)
        trials = [(connections, tool) for connections in sizes for tool in tools]
        for _ in range(options.blocks):
            for connections, tool in rng.sample(trials, len(trials)):
                found = trial(tools[tool], path, connections, options)
                measured.setdefault((connections, tool), []).append(found)
    load = os.getloadavg()[0]
    for connections in sizes:
        row = comparison.make_row(connections, measured[connections, "ours"], measured[connections, "peer"])
        ratio, rate = row.cpu_ratio, row.qps_ratio
        print(
            f"{connections} connections, {options.pipeline} at once: client CPU {row.ours.client_cpu_us_per_query:.2f} / "
            f"{row.peer.client_cpu_us_per_query:.2f} us a GET, ratio {ratio.value:.2f} [{ratio.low or 0:.2f}, {ratio.high or 0:.2f}]; "
            f"GETs/s {row.ours.qps:.0f} / {row.peer.qps:.0f}, ratio {rate.value:.2f}; memory {row.ours.rss_mib:.1f} / "
            f"{row.peer.rss_mib:.1f} MiB; driver {row.driver}; load average {load:.1f}"
        )
        above |= options.bound is not None and (ratio.low or ratio.value) > options.bound
    return 1 if above else 0


if __name__ == "__main__":
    sys.exit(main())
