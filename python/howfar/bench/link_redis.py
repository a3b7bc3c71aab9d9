"""redis over a road: GETs a second by redis's own benchmark, 50 connections. A fresh server each time, on the server's host."""

from __future__ import annotations

import contextlib
import csv
import shutil
import socket
import subprocess
import tempfile
from typing import Final

from howfar.bench.meter import wait_until
from howfar.engine.process import Launcher
from howfar.errors import LabError
from howfar.lab.hosts import Companion, Host
from howfar.lab.network import SERVER_ADDRESS

_PROGRAMS: Final = ("redis-server", "redis-benchmark")
_PORT: Final = 6379
_CONNECTIONS: Final = 50
_REQUESTS, _REQUESTS_QUICK = 200_000, 20_000
_READY_S: Final = 20.0
_LONGEST_S: Final = 120.0


def missing_program() -> str | None:
    """Why there will be no figure. None: both programs are here."""
    absent = [name for name in _PROGRAMS if shutil.which(name) is None]
    if not absent:
        return None
    return f"{' and '.join(absent)} not found (Debian's packages redis-server, redis-tools)"


def gets_per_s(host: Host, server: Launcher, client: Launcher, *, quick: bool) -> float:
    """Raises LabError."""
    quiet = subprocess.DEVNULL
    with tempfile.TemporaryDirectory(prefix="howfar-redis-") as folder:
        words = ["redis-server", "--bind", SERVER_ADDRESS, "--port", str(_PORT), "--protected-mode", "no"]
        words += ["--save", "", "--appendonly", "no", "--dir", folder]
        running = Companion(server, words, stdin=quiet, stdout=quiet, stderr=quiet)
        try:
            wait_until(lambda: _answers(host, running), "redis-server to answer", _READY_S)
            return _benchmark(client, _REQUESTS_QUICK if quick else _REQUESTS)
        finally:
            running.end()


def _answers(host: Host, running: Companion) -> bool:
    def asked() -> bytes:
        with socket.create_connection((SERVER_ADDRESS, _PORT), timeout=1) as connection:
            connection.sendall(b"PING\r\n")
            return connection.recv(64)

    if not running.alive():
        raise LabError("redis-server ended before it answered", "Try to start it by hand.")
    with contextlib.suppress(OSError):
        return host.within(asked).startswith(b"+PONG")
    return False


def _benchmark(client: Launcher, requests: int) -> float:
    command = ["redis-benchmark", "-h", SERVER_ADDRESS, "-p", str(_PORT), "-c", str(_CONNECTIONS)]
    command += ["-n", str(requests), "-t", "get", "--csv"]
    process = client.popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        said, wrong = process.communicate(timeout=_LONGEST_S)
    except subprocess.TimeoutExpired as error:
        raise LabError(f"redis-benchmark did not end within {_LONGEST_S:.0f} s") from error
    finally:
        process.kill()
        process.wait()
    if process.returncode != 0:
        raise LabError(f"redis-benchmark failed: {wrong.strip()[-300:]}")
    return read_rate(said)


def read_rate(text: str) -> float:
    """Requests a second from its CSV, with and without a line of headings. Raises LabError."""
    for fields in csv.reader(text.splitlines()):
        if len(fields) >= 2 and fields[0] == "GET":
            with contextlib.suppress(ValueError):
                return float(fields[1])
    raise LabError(f"redis-benchmark said no rate: {text[-300:]!r}")
