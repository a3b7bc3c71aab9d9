"""`howfar record` keeps its recording, whichever signal ends it and whenever the signal arrives."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import pytest

from howfar.recording.recording import read
from tests.lab.howfar_runs import HOWFAR
from tests.lab.listeners import serve_tcp
from tests.rarely import rarely_but

pytestmark = pytest.mark.usefixtures("namespaces")
_TIMEOUT_S = 120.0
_PINGS = """
import socket, sys, time
with socket.create_connection((sys.argv[1], int(sys.argv[2]))) as line:
    for number in range(int(sys.argv[3])):
        line.sendall(b"*1\\r\\n$4\\r\\nPING\\r\\n")
        assert line.recv(100)
        time.sleep(0.005)
        if number == 20:
            print("begun", flush=True)
"""


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    """The port of a server that answers each PING."""

    def answer(connection: socket.socket) -> None:
        with connection:
            while connection.recv(4096):
                connection.sendall(b"+PONG\r\n")

    with serve_tcp(answer) as port:
        yield port


def _start_recording(port: int, out: Path, pings: int) -> subprocess.Popen[str]:
    """Start a recording in a new session, with its own folder for temporary files."""
    out.parent.mkdir(exist_ok=True)
    application = [sys.executable, "-c", _PINGS, "{host}", "{port}", str(pings)]
    record = [HOWFAR, "record", "--server", f"127.0.0.1:{port}", "--out", str(out), "--", *application]
    return subprocess.Popen(
        ["env", "--default-signal=HUP,INT", *record],  # under nohup, SIGHUP is ignored
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env={**os.environ, "TMPDIR": str(out.parent)},
    )


def _read_until(stream: IO[str] | None, fragment: str) -> str:
    """The first line that contains `fragment`."""
    assert stream is not None
    for line in stream:
        if fragment in line:
            return line
    raise AssertionError(f"no line has {fragment!r}")


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGTERM])
def test_pages_so_far_are_kept_when_a_signal_ends_the_command(
    number: signal.Signals, port: int, tmp_path: Path
) -> None:
    """[rec-15] A closed terminal (SIGHUP) ends a recording as SIGTERM does."""
    process = _start_recording(port, tmp_path / "f" / "a.recording", 100_000)
    _read_until(process.stdout, "begun")
    process.send_signal(number)
    process.communicate(timeout=_TIMEOUT_S)
    found = read(tmp_path / "f" / "a.recording")
    assert process.returncode == 128 + number
    assert found.facts.complete and len(found.pages) == 1 and (found.facts.round_trips or 0) >= 20


@pytest.mark.parametrize(
    "number", rarely_but((signal.SIGTERM, signal.SIGKILL), (signal.SIGINT, signal.SIGTERM, signal.SIGKILL))
)
def test_a_recording_is_complete_before_the_taps_cost_is_measured(
    number: signal.Signals, port: int, tmp_path: Path
) -> None:
    """[rec-14] Measuring the tap's cost takes more than a second and is announced. A signal during it skips only this measurement."""
    process = _start_recording(port, tmp_path / "f" / "a.recording", 60)
    assert "the recording is complete" in _read_until(process.stderr, "measuring what the tap costs")
    process.send_signal(number)
    _, said = process.communicate(timeout=_TIMEOUT_S)
    found = read(tmp_path / "f" / "a.recording")
    assert found.facts.complete and len(found.pages) == 1 and (found.facts.round_trips or 0) >= 60
    assert found.facts.tap_ns is None and "interrupted" in (found.facts.tap_unknown or "")
    if number != signal.SIGKILL:
        assert process.returncode == 0, said
        assert [path.name for path in (tmp_path / "f").iterdir()] == ["a.recording"]


@pytest.mark.parametrize("after_s", rarely_but((0.05, 1.2), (0.05, 0.3, 0.6, 0.9, 1.2, 1.8)))
def test_no_folder_remains_whenever_a_signal_comes(after_s: float, port: int, tmp_path: Path) -> None:
    """[rec-16] Folders for sockets are made and removed at several moments; none outlives the command."""
    process = _start_recording(port, tmp_path / "f" / "a.recording", 60)
    time.sleep(after_s)
    process.terminate()
    process.communicate(timeout=_TIMEOUT_S)
    assert [path.name for path in (tmp_path / "f").iterdir() if path.name.startswith("howfar-")] == []
