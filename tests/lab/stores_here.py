"""A test's own Redis and Memcached, on a Unix socket and on loopback, which end with the test; and jobs for them."""

from __future__ import annotations

import shutil
import socket
import subprocess
import time
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

    def command(self, *arguments: str) -> str:
        """Redis's raw reply to one command."""
        with socket.socket(socket.AF_UNIX) as line:
            line.settimeout(TIMEOUT_S)
            line.connect(self.unix.path)
            line.sendall((" ".join(arguments) + "\r\nQUIT\r\n").encode())
            return b"".join(iter(lambda: line.recv(65536), b"")).decode()

    def counted(self, command: str) -> int:
        """Calls of a command so far, by the server's own counter."""
        for line in self.command("INFO", "commandstats").splitlines():
            if line.startswith(f"cmdstat_{command}:calls="):
                return int(line.split("=")[1].split(",")[0])
        return 0


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def is_open(target: Target) -> bool:
    tcp = isinstance(target, TcpTarget)
    with socket.socket(socket.AF_INET if tcp else socket.AF_UNIX) as probe:
        try:
            probe.connect((target.host, target.port) if isinstance(target, TcpTarget) else target.path)
        except OSError:
            return False
    return True


@contextmanager
def _running(command: Sequence[str], *targets: Target) -> Iterator[None]:
    if shutil.which(command[0]) is None:
        pytest.skip(f"{command[0]} is not installed (./setup --tests brings it)")
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + TIMEOUT_S
        while not all(is_open(target) for target in targets):
            assert process.poll() is None and time.monotonic() < deadline, f"{command[0]} does not come up"
            time.sleep(0.01)
        yield
    finally:
        process.kill()
        process.wait()


@contextmanager
def redis(directory: Path, *options: str) -> Iterator[Store]:
    store = Store(UnixTarget(path=str(directory / "r.sock")), TcpTarget(host="127.0.0.1", port=free_port()))
    assert store.tcp is not None
    command = ["redis-server", "--port", str(store.tcp.port), "--bind", "127.0.0.1", "--unixsocket", store.unix.path]
    command += ["--unixsocketperm", "700", "--save", "", "--appendonly", "no", "--dir", str(directory), *options]
    with _running(command, store.unix, store.tcp):
        yield store


@contextmanager
def memcached_tls(certificate: Path, key: Path) -> Iterator[TcpTarget]:
    """A Memcached with TLS, on loopback only: with a Unix socket it would speak plain text."""
    target = TcpTarget(host="127.0.0.1", port=free_port())
    command = ["memcached", "-u", "root", "-l", f"127.0.0.1:{target.port}", "-Z"]
    with _running([*command, "-o", f"ssl_chain_cert={certificate},ssl_key={key}"], target):
        yield target


@contextmanager
def memcached(directory: Path) -> Iterator[Store]:
    store = Store(UnixTarget(path=str(directory / "m.sock")), None)
    with _running(["memcached", "-u", "root", "-s", store.unix.path, "-a", "0700"], store.unix):
        yield store


# ---------------------------------------------------------------- jobs


def job(target: Target, workload: KeyValue, **fields: Any) -> LoadJob:
    fields = {"user": "", "database": "", "connections": 8, "measure_ns": 300 * MILLISECOND, **fields}
    return LoadJob(target=target, workload=workload, seed=7, warmup_ns=50 * MILLISECOND, **fields)


def filled(target: Target, workload: KeyValue, action: Literal["prepare", "warmup", "cleanup"] = "prepare") -> int:
    """Run a tables job; returns the number of keys that it set, read or deleted."""
    tables = TablesJob(
        action=action,
        target=target,
        user="",
        database="",
        workload=workload,
        connections=2,
        seed=7,
        stall_timeout_ns=10**10,
    )
    done = events(tables)[-1]
    assert isinstance(done, TablesDone)
    return done.rows


def events(message: Message) -> list[Any]:
    with EngineProcess(message) as engine:
        return list(engine.events())


def run(load_job: LoadJob) -> tuple[Ready, Finished]:
    received = events(load_job)
    ready, finished = received[0], received[-1]
    assert isinstance(ready, Ready) and isinstance(finished, Finished)
    return ready, finished
