"""Every command that talks to a server or forwards an application's connection, with hostile peers."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import pytest

from howfar.doctor.kind import Kind
from howfar.lab.sandbox import children_of
from tests.lab.howfar_runs import PYTHON_HOWFAR
from tests.unit.fake_peers import MODES, FakePeer
from tests.unit.test_hostile_peers import LARGE, MAX_GROWTH_KB

pytestmark = pytest.mark.thorough
MAX_EXTRA_S = 30
"""Maximum time of a command beyond its time with a well-behaved peer, also on a busy machine."""
HOSTILE = [
    pytest.param(kind, mode, id=f"{kind.value} {mode}")
    for kind, modes in MODES.items()
    for mode in modes
    if mode in (*LARGE, "drip", "two-answers")
]
APPLICATION = """
import os, signal, sys
from contextlib import suppress
from howfar.doctor.kind import Kind
from howfar.doctor.protocols import PROTOCOLS
from howfar.doctor.protocols.session import Endpoint, NoValidAnswer, ServerRefused
from howfar.doctor.targets import TargetLogin

signal.signal(signal.SIGALRM, lambda *_: os._exit(0))
signal.setitimer(signal.ITIMER_REAL, 0.5)
with suppress(NoValidAnswer, ServerRefused, OSError):
    session = PROTOCOLS[Kind(sys.argv[1])].open(Endpoint(None, sys.argv[2], int(sys.argv[3])), TargetLogin("me", ""))
    session.counters()
"""
"""An application that sends a few requests and exits after half a second, so that it never waits long for the peer."""
SCHEMES = {Kind.MYSQL: "mysql", Kind.POSTGRESQL: "postgresql", Kind.REDIS: "redis", Kind.MEMCACHED: "memcached"}


def command(name: str, kind: Kind, port: int, folder: Path) -> list[str]:
    own = [sys.executable, "-c", APPLICATION, kind.value, "{host}", "{port}"]
    server = ["--server", f"127.0.0.1:{port}"]
    target = f"{SCHEMES[kind]}://me@127.0.0.1:{port}/{'' if kind in (Kind.REDIS, Kind.MEMCACHED) else 'd'}"
    if kind is Kind.MEMCACHED:
        target = f"memcached://127.0.0.1:{port}"
    workload = "oltp_point_select" if kind in (Kind.MYSQL, Kind.POSTGRESQL) else "get"
    return {
        "target": ["--timeout", "1s", target],
        "load": ["load", "--dsn", target, "--time=1", "--thread-init-timeout=2", "--threads=1", workload],
        "record": ["record", *server, "--out", str(folder / "a.recording"), "--", *own],
        "slope": ["slope", *server, "--delays", "0ms,1ms", "--blocks", "4", "--", *own],
    }[name]


def run(words: Sequence[str]) -> tuple[int, float, int, str]:
    """Run a command; returns its exit code, its seconds, the peak memory in kB of its simultaneous processes, and stderr."""
    began = time.monotonic()
    process = subprocess.Popen([*PYTHON_HOWFAR, *words], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    peak_kb = 0
    try:
        while process.poll() is None:
            pids, total_kb = [process.pid], 0
            while pids:
                pid = pids.pop()
                pids += children_of(pid)
                total_kb += _peak_kb(pid)
            peak_kb = max(peak_kb, total_kb)
            assert time.monotonic() - began < 200, "the command ends"
            time.sleep(0.02)
        took_s = time.monotonic() - began
        assert process.stderr is not None
        return process.returncode, took_s, peak_kb, process.stderr.read()
    finally:
        process.kill()
        process.wait()


def _peak_kb(pid: int) -> int:
    try:
        found = re.search(r"VmHWM:\s*(\d+)", Path(f"/proc/{pid}/status").read_text())
    except OSError:
        return 0
    return int(found[1]) if found else 0


@cache
def usual_cost(name: str, folder: Path) -> tuple[float, int]:
    """Maximum seconds and memory with well-behaved peers of all kinds; with some of them an application does not get far enough for a
    recording."""
    folder.mkdir(exist_ok=True)
    times, peaks = [], []
    for kind in SCHEMES:
        with FakePeer(kind) as peer:
            _, took_s, peak_kb, _ = run(command(name, kind, peer.port, folder))
        times.append(took_s)
        peaks.append(peak_kb)
    return max(times), max(peaks)


@pytest.mark.parametrize("name", ["target", "load", "record", "slope"])
@pytest.mark.parametrize(("kind", "mode"), HOSTILE)
def test_each_command_ends_within_its_time_and_memory_whatever_the_server_sends(
    name: str, kind: Kind, mode: str, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """[peer-1] [peer-2] [peer-3] [peer-4]"""
    usual_s, usual_kb = usual_cost(name, tmp_path_factory.getbasetemp() / "usual")
    with FakePeer(kind, mode) as peer:
        code, took_s, peak_kb, errors = run(command(name, kind, peer.port, tmp_path))
    print(
        f"{name} {kind.value} {mode}: {took_s:.1f} s ({usual_s:.1f}), {(peak_kb - usual_kb) >> 10} MiB more, exit code {code}"
    )
    assert "a bug in howfar" not in errors and "Traceback" not in errors
    assert took_s < usual_s + MAX_EXTRA_S
    assert peak_kb - usual_kb < MAX_GROWTH_KB
