"""The recorder changes no byte, ends no connection, does not outlive the application, and leaves no file or mount."""

from __future__ import annotations

import hashlib
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
import zlib
from pathlib import Path

import pytest

from howfar.contract.messages import RecordEnded, TcpListen, TcpTarget, UnixTarget
from howfar.lab.sandbox import children_of
from howfar.recording.record_tap import RecordTap
from tests.lab.howfar_runs import HOWFAR
from tests.lab.listeners import echo, serve
from tests.lab.sandboxes import wait_until

TIMEOUT_S = 60.0
TALK = """
import os, random, socket, sys, time
to, count, pause, out = sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), sys.argv[4]
chosen = random.Random(7)
def talk(line, times):
    for _ in range(times):
        sent = chosen.randbytes(chosen.choice((1, 100, 5000, 200000)))
        line.sendall(sent)
        got = b""
        while len(got) < len(sent):
            piece = line.recv(65536)
            assert piece, "the connection ended"
            got += piece
        assert got == sent, "other bytes"
        time.sleep(pause)
line = socket.socket(socket.AF_UNIX)
line.connect(to)
open(out + ".begun", "w").close()
for _ in range(count):
    talk(line, 5)
    with socket.socket(socket.AF_UNIX) as other:
        other.connect(to)
        talk(other, 1)
open(out, "w").write(os.readlink("/proc/self/ns/mnt"))
"""


def send_and_receive(line: socket.socket, blocks: list[bytes], count: int) -> tuple[str, str, int]:
    """Send `count` bytes and receive them back; returns the hashes of the bytes sent and received, and the CRC of those sent."""
    sent, crc = hashlib.sha256(), 0

    def send() -> None:
        nonlocal crc
        done = 0
        for number in range(count):
            block = blocks[number % len(blocks)][: count - done]
            if not block:
                break
            line.sendall(block)
            sent.update(block)
            crc = zlib.crc32(block, crc)
            done += len(block)
        line.shutdown(socket.SHUT_WR)

    sender = threading.Thread(target=send, daemon=True)
    sender.start()
    received = hashlib.sha256()
    while data := line.recv(1 << 18):
        received.update(data)
    sender.join()
    return sent.hexdigest(), received.hexdigest(), crc


@pytest.mark.parametrize("count", [10_000_000, pytest.param(1_000_000_000, marks=pytest.mark.thorough)])
@pytest.mark.parametrize("kind", ["unix", "tcp"])
def test_every_byte_passes_unchanged_and_is_recorded(kind: str, count: int, tmp_path: Path) -> None:
    chosen = random.Random(3)
    blocks = [chosen.randbytes(size) for size in (1, 7, 1_000, 65_536, 65_537, 1 << 20)]
    with serve(echo, str(tmp_path / "echo") if kind == "unix" else ("127.0.0.1", 0)) as listener:
        if kind == "unix":
            tap = RecordTap(UnixTarget(path=str(tmp_path / "echo")), UnixTarget(path=str(tmp_path / "tap")))
            line = socket.socket(socket.AF_UNIX)
            line.connect(str(tmp_path / "tap"))
        else:
            server = TcpTarget(host="127.0.0.1", port=listener.getsockname()[1])
            tap = RecordTap(server, TcpListen(host="127.0.0.1", port=0))
            assert isinstance(tap.address, TcpTarget)
            line = socket.create_connection((tap.address.host, tap.address.port))
        with line:
            sent, received, crc = send_and_receive(line, blocks, count)
        assert sent == received
        tap.finish()
        *_, ended = tap.events()
        assert isinstance(ended, RecordEnded)
        assert ended.taken_to_server == ended.passed_to_server == count
        assert ended.taken_to_client == ended.passed_to_client == count
        if count < 100_000_000:
            assert ended.stopped is None
        # A bulk stream in both directions may be too fast to record: that ends the recording, but not the traffic.
        assert ended.stopped is None or "fell behind" in ended.stopped
        if ended.stopped is None:
            assert ended.crc32_to_server == ended.crc32_to_client == crc
        assert tap.leave(), "no application needs the tap"
    assert not (tmp_path / "tap").exists()


def test_a_reader_that_stops_reading_ends_the_recording_and_no_traffic(tmp_path: Path) -> None:
    """Its events are not read: the pipe and the queue fill, and every round trip still passes."""
    with serve(echo, str(tmp_path / "echo")):
        tap = RecordTap(UnixTarget(path=str(tmp_path / "echo")), UnixTarget(path=str(tmp_path / "tap")))
        line = socket.socket(socket.AF_UNIX)
        line.connect(str(tmp_path / "tap"))
        line.settimeout(TIMEOUT_S)
        with line:
            sent, received, _ = send_and_receive(line, [b"x" * 100_000], 400_000_000)
            assert sent == received
        assert tap.leave()


def descendants_of(pid: int) -> list[int]:
    return [found for child in children_of(pid) for found in (child, *descendants_of(child))]


def is_engine(pid: int, job: str) -> bool:
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return False
    return words[0].endswith(b"howfar-engine") and words[1] == job.encode()


def run_and_kill(tmp_path: Path, victim: str, after_s: float, count: int) -> None:
    """Record an application that exchanges data, kill one of the recorder's processes, and check that the application completes."""
    done, temporary = tmp_path / "done", tmp_path / "t"
    temporary.mkdir()
    with serve(echo, str(tmp_path / "echo")):
        command = [sys.executable, "-c", TALK, str(tmp_path / "echo"), str(count), "0.001", str(done)]
        arguments = [HOWFAR, "record", "--server", str(tmp_path / "echo"), "--out", str(tmp_path / "r"), "--", *command]
        environment = {**os.environ, "TMPDIR": str(temporary)}
        with subprocess.Popen(
            arguments, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, start_new_session=True
        ) as recorder:
            wait_until((tmp_path / "done.begun").exists, "the application's start")
            family = descendants_of(recorder.pid)
            (tap,) = [pid for pid in family if is_engine(pid, "record")]
            (keeper,) = [pid for pid in family if is_engine(pid, "keep")]
            time.sleep(after_s)
            os.kill({"recorder": recorder.pid, "tap": tap, "keeper": keeper}[victim], signal.SIGKILL)
            wait_until(done.exists, f"the application's end after the {victim}'s death")
            recorder.wait(TIMEOUT_S)
        engines = [(pid, job) for pid in (tap, keeper) for job in ("record", "keep")]
        wait_until(lambda: not any(is_engine(pid, job) for pid, job in engines), "the end of tap and keeper")
    assert not [one for one in temporary.iterdir() if one.name.startswith("howfar-")]
    assert done.read_text() != str(Path("/proc/self/ns/mnt").readlink())
    assert "tap.sock" not in Path("/proc/self/mountinfo").read_text()


@pytest.mark.usefixtures("namespaces")
def test_a_namespace_with_the_number_of_the_applications_keeps_no_tap_alive(tmp_path: Path) -> None:
    """The kernel reuses the number of a namespace for the next one at once, and the tap checks only twice a second."""
    with serve(echo, str(tmp_path / "echo")):
        application = [
            "unshare",
            "--mount",
            "sh",
            "-c",
            f"readlink /proc/self/ns/mnt > {tmp_path}/namespace; exec sleep 60",
        ]
        others: list[subprocess.Popen[bytes]] = []
        with subprocess.Popen(application) as running:
            link = tmp_path / "namespace"
            wait_until(lambda: link.exists() and link.read_text().endswith("]\n"), "a namespace")
            number = int(link.read_text().strip().removeprefix("mnt:[").removesuffix("]"))
            tap = RecordTap(UnixTarget(path=str(tmp_path / "echo")), UnixTarget(path=str(tmp_path / "tap")))
            (keeper,) = children_of(tap.pid)
            tap.serve(number)
            assert not tap.leave(1.5), "the tap stays while the application runs"
            os.kill(tap.pid, signal.SIGKILL)
            running.kill()
        try:
            for _ in range(40):
                others.append(subprocess.Popen(["unshare", "--mount", "sleep", "60"]))
            wait_until(lambda: not is_engine(keeper, "keep"), "the keeper's end")
        finally:
            for other in others:
                other.kill()
                other.wait()


@pytest.mark.usefixtures("namespaces")
@pytest.mark.parametrize("victim", ["recorder", "tap", "keeper"])
def test_the_application_survives_a_kill(victim: str, tmp_path: Path) -> None:
    run_and_kill(tmp_path, victim, 0.05, 30)


@pytest.mark.thorough
@pytest.mark.usefixtures("namespaces")
@pytest.mark.parametrize("number", range(30))
def test_the_application_survives_a_kill_at_any_moment(number: int, tmp_path: Path) -> None:
    chosen = random.Random(number)
    run_and_kill(tmp_path, ("recorder", "tap", "keeper")[number % 3], chosen.uniform(0, 0.5), 60)
