"""Hostile peers, against every command that talks to a server or forwards an application's connection."""

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
from tests.unit.fake_peers import MODES, FakePeer
from tests.unit.test_hostile_peers import LARGE, MAX_GROWTH_KB

pytestmark = pytest.mark.thorough
HOWFAR = [sys.executable, "-c", "import sys; from howfar.cli import main; sys.exit(main())"]
ENDS_S = 10
"""Time for a command, in addition to its time with a well-behaved peer; `_MARGIN` times this is allowed, for busy machines."""
_MARGIN = 3
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
"""Sends a few requests and exits after half a second: how long an application waits is not howfar's concern."""
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
    """Exit code, seconds, peak memory in kB of the command's processes that ran at the same time, and stderr."""
    began = time.monotonic()
    process = subprocess.Popen([*HOWFAR, *words], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    most_kb = 0
    try:
        while process.poll() is None:
            waiting, together_kb = [process.pid], 0
            while waiting:
                pid = waiting.pop()
                waiting += children_of(pid)
                together_kb += _peak_kb(pid)
            most_kb = max(most_kb, together_kb)
            assert time.monotonic() - began < 20 * ENDS_S, "it does not end"
            time.sleep(0.02)
        took_s = time.monotonic() - began
        assert process.stderr is not None
        return process.returncode, took_s, most_kb, process.stderr.read()
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
def usual(name: str, folder: Path) -> tuple[float, int]:
    """Seconds and memory with well-behaved peers: the maximum over all kinds, since not every kind gets an application far enough for
    a recording, whose cost is then measured."""
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
def test_each_command_ends_in_time_and_memory_whatever_the_server_sends(
    name: str, kind: Kind, mode: str, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """[peer-1] [peer-2] [peer-3] [peer-4]"""
    usual_s, usual_kb = usual(name, tmp_path_factory.getbasetemp() / "usual")
    with FakePeer(kind, mode) as peer:
        code, took_s, peak_kb, said = run(command(name, kind, peer.port, tmp_path))
    print(
        f"{name} {kind.value} {mode}: {took_s:.1f} s ({usual_s:.1f}), {(peak_kb - usual_kb) >> 10} MiB more, exit code {code}"
    )
    assert "a bug in howfar" not in said and "Traceback" not in said
    assert took_s < usual_s + _MARGIN * ENDS_S
    assert peak_kb - usual_kb < MAX_GROWTH_KB
