"""Redis and Memcached for one test, on a Unix socket and on loopback; and jobs of the engine for them."""

from __future__ import annotations

import shutil
import socket
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pytest

from howfar.contract.message import Message
from howfar.contract.messages import (
    Finished,
    KeyValue,
    LoadJob,
    Ready,
    TablesDone,
    TablesJob,
    Target,
    TcpTarget,
    UnixTarget,
)
from howfar.engine.process import EngineProcess
from tests.lab.sandboxes import wait_until

Protocol = Literal["resp2", "resp3", "memcached_text", "memcached_meta"]
REDIS: tuple[Protocol, ...] = ("resp2", "resp3")
MEMCACHED: tuple[Protocol, ...] = ("memcached_text", "memcached_meta")
MILLISECOND = 1_000_000
TIMEOUT_S = 90.0


@dataclass(frozen=True)
class Store:
    """A running store."""

    unix: UnixTarget
    tcp: TcpTarget | None

    @property
    def port(self) -> int:
        assert self.tcp is not None, "the store listens on TCP"
        return self.tcp.port

    def command(self, *arguments: str) -> str:
        """The raw reply to one command."""
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(TIMEOUT_S)
            connection.connect(self.unix.path)
            connection.sendall((" ".join(arguments) + "\r\nquit\r\n").encode())
            return b"".join(iter(lambda: connection.recv(65536), b"")).decode()

    def memcached_stats(self) -> dict[str, int]:
        """Memcached's statistics that are numbers."""
        fields = (line.split() for line in self.command("stats").splitlines() if line.startswith("STAT"))
        return {name: int(value) for _, name, value, *_ in fields if value.isdigit()}

    def calls(self, command: str) -> int:
        """Calls of a command so far, by Redis's own counter."""
        for line in self.command("INFO", "commandstats").splitlines():
            if line.startswith(f"cmdstat_{command}:calls="):
                return int(line.split("=")[1].split(",")[0])
        return 0


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def is_listening(target: Target) -> bool:
    with socket.socket(socket.AF_INET if isinstance(target, TcpTarget) else socket.AF_UNIX) as probe:
        return probe.connect_ex((target.host, target.port) if isinstance(target, TcpTarget) else target.path) == 0


@contextmanager
def _running(command: Sequence[str], *targets: Target) -> Iterator[None]:
    if shutil.which(command[0]) is None:
        pytest.skip(f"{command[0]} is not installed (./setup --tests brings it)")
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait_until(lambda: process.poll() is not None or all(map(is_listening, targets)), f"the start of {command[0]}")
        assert process.poll() is None, f"{command[0]} ended at start"
        yield
    finally:
        process.kill()
        process.wait()


@contextmanager
def run_redis(directory: Path, *options: str) -> Iterator[Store]:
    store = Store(UnixTarget(path=str(directory / "r.sock")), TcpTarget(host="127.0.0.1", port=free_port()))
    assert store.tcp is not None
    command = ["redis-server", "--port", str(store.tcp.port), "--bind", "127.0.0.1", "--unixsocket", store.unix.path]
    command += ["--unixsocketperm", "700", "--save", "", "--appendonly", "no", "--dir", str(directory), *options]
    with _running(command, store.unix, store.tcp):
        yield store


@contextmanager
def run_memcached_tls(certificate: Path, key: Path) -> Iterator[TcpTarget]:
    """A Memcached with TLS, on loopback only: on a Unix socket it would not encrypt."""
    target = TcpTarget(host="127.0.0.1", port=free_port())
    command = ["memcached", "-u", "root", "-l", f"127.0.0.1:{target.port}", "-Z"]
    with _running([*command, "-o", f"ssl_chain_cert={certificate},ssl_key={key}"], target):
        yield target


@contextmanager
def run_memcached(directory: Path) -> Iterator[Store]:
    store = Store(UnixTarget(path=str(directory / "m.sock")), None)
    with _running(["memcached", "-u", "root", "-s", store.unix.path, "-a", "0700"], store.unix):
        yield store


# ---------------------------------------------------------------- jobs


def make_load_job(target: Target, workload: KeyValue, **fields: Any) -> LoadJob:
    """A load job of 300 ms, changed by `fields`."""
    fields = {"user": "", "database": "", "connections": 8, "measure_ns": 300 * MILLISECOND, **fields}
    return LoadJob(target=target, workload=workload, seed=7, warmup_ns=50 * MILLISECOND, **fields)


def run_tables_job(
    target: Target, workload: KeyValue, action: Literal["prepare", "warmup", "cleanup"] = "prepare"
) -> int:
    """Run a tables job; returns the number of keys that it set, read or deleted."""
    fields: dict[str, Any] = {"action": action, "target": target, "workload": workload, "user": "", "database": ""}
    done = run_job(TablesJob(**fields, connections=2, seed=7, stall_timeout_ns=10**10))[-1]
    assert isinstance(done, TablesDone)
    return done.rows


def run_job(message: Message) -> list[Any]:
    """All events of a job."""
    with EngineProcess(message) as engine:
        return list(engine.events())


def run_load_job(load_job: LoadJob) -> tuple[Ready, Finished]:
    received = run_job(load_job)
    ready, finished = received[0], received[-1]
    assert isinstance(ready, Ready) and isinstance(finished, Finished)
    return ready, finished
