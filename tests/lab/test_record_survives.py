"""What the recorder may never do: change a byte, end a connection, outlive the application, leave something behind."""

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
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from howfar.contract.messages import RecordEnded, TcpListen, TcpTarget, UnixTarget
from howfar.recording.record_tap import RecordTap

TIMEOUT_S = 60.0
HOWFAR = str(Path(sys.executable).with_name("howfar"))
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


@contextmanager
def echo(address: str | tuple[str, int]) -> Iterator[socket.socket]:
    listener = socket.socket(socket.AF_UNIX if isinstance(address, str) else socket.AF_INET)
    listener.bind(address)
    listener.listen()

    def serve(line: socket.socket) -> None:
        with line:
            while data := line.recv(1 << 16):
                line.sendall(data)

    def accept() -> None:
        while True:
            try:
                line, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=serve, args=(line,), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    try:
        yield listener
    finally:
        listener.close()


def pushed(line: socket.socket, blocks: list[bytes], count: int) -> tuple[str, str, int]:
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
    came = hashlib.sha256()
    while data := line.recv(1 << 18):
        came.update(data)
    sender.join()
    return sent.hexdigest(), came.hexdigest(), crc


@pytest.mark.parametrize("count", [10_000_000, pytest.param(1_000_000_000, marks=pytest.mark.thorough)])
@pytest.mark.parametrize("kind", ["unix", "tcp"])
def test_every_byte_passes_unchanged_and_what_was_seen_is_what_was_sent(kind: str, count: int, tmp_path: Path) -> None:
    chosen = random.Random(3)
    blocks = [chosen.randbytes(size) for size in (1, 7, 1_000, 65_536, 65_537, 1 << 20)]
    with echo(str(tmp_path / "echo") if kind == "unix" else ("127.0.0.1", 0)) as listener:
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
            sent, came, crc = pushed(line, blocks, count)
        assert sent == came
        tap.finish()
        *_, ended = tap.events()
        assert isinstance(ended, RecordEnded)
        assert ended.taken_to_server == ended.passed_to_server == count
        assert ended.taken_to_client == ended.passed_to_client == count
        if count < 100_000_000:
            assert ended.stopped is None
        # A bulk stream in both directions at once may be too fast to record: that ends the recording, but no traffic.
        assert ended.stopped is None or "fell behind" in ended.stopped
        if ended.stopped is None:
            assert ended.crc32_to_server == ended.crc32_to_client == crc
        assert tap.leave(), "nobody needs it"
    assert not (tmp_path / "tap").exists()


def test_a_reader_that_stops_reading_ends_the_recording_and_no_traffic(tmp_path: Path) -> None:
    """The events are not read: the pipe fills, the queue fills, and every round trip still passes."""
    with echo(str(tmp_path / "echo")):
        tap = RecordTap(UnixTarget(path=str(tmp_path / "echo")), UnixTarget(path=str(tmp_path / "tap")))
        line = socket.socket(socket.AF_UNIX)
        line.connect(str(tmp_path / "tap"))
        line.settimeout(TIMEOUT_S)
        with line:
            sent, came, _ = pushed(line, [b"x" * 100_000], 400_000_000)
            assert sent == came
        assert tap.leave()


def children(pid: int) -> list[int]:
    """The descendants of a process."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parent = int((entry / "stat").read_text().rsplit(")", 1)[1].split()[1])
            except OSError:
                continue
            if parent == pid:
                found += [int(entry.name), *children(int(entry.name))]
    return found


def is_engine(pid: int, what: str) -> bool:
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return False
    return words[0].endswith(b"howfar-engine") and words[1] == what.encode()


def wait_for(condition: object, what: str) -> None:
    assert callable(condition)
    deadline = time.monotonic() + TIMEOUT_S
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.01)


def run_and_kill(tmp_path: Path, victim: str, after_s: float, count: int) -> None:
    """Record an application that exchanges data, and kill one of the recorder's processes meanwhile. The application must complete."""
    done, temporary = tmp_path / "done", tmp_path / "t"
    temporary.mkdir()
    with echo(str(tmp_path / "echo")):
        command = [sys.executable, "-c", TALK, str(tmp_path / "echo"), str(count), "0.001", str(done)]
        arguments = [HOWFAR, "record", "--server", str(tmp_path / "echo"), "--out", str(tmp_path / "r"), "--", *command]
        environment = {**os.environ, "TMPDIR": str(temporary)}
        with subprocess.Popen(
            arguments, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, start_new_session=True
        ) as recorder:
            wait_for((tmp_path / "done.begun").exists, "the application did not begin")
            family = children(recorder.pid)
            (tap,) = [pid for pid in family if is_engine(pid, "record")]
            (keeper,) = [pid for pid in family if is_engine(pid, "keep")]
            time.sleep(after_s)
            os.kill({"recorder": recorder.pid, "tap": tap, "keeper": keeper}[victim], signal.SIGKILL)
            wait_for(done.exists, f"the application did not survive the {victim}'s end")
            recorder.wait(TIMEOUT_S)
        for pid in (tap, keeper):
            wait_for(lambda pid=pid: not is_engine(pid, "record") and not is_engine(pid, "keep"), "it outlives all")
    assert not [one for one in temporary.iterdir() if one.name.startswith("howfar-")]
    assert done.read_text() != str(Path("/proc/self/ns/mnt").readlink())
    assert "tap.sock" not in Path("/proc/self/mountinfo").read_text()


@pytest.mark.usefixtures("namespaces")
def test_a_namespace_that_takes_the_application_s_number_keeps_no_tap_alive(tmp_path: Path) -> None:
    """The kernel reuses the number of a namespace for the next one at once, and the tap checks only twice a second."""
    with echo(str(tmp_path / "echo")):
        application = ["unshare", "--mount", "sh", "-c", f"readlink /proc/self/ns/mnt > {tmp_path}/it; exec sleep 60"]
        others: list[subprocess.Popen[bytes]] = []
        with subprocess.Popen(application) as running:
            wait_for(
                lambda: (tmp_path / "it").exists() and (tmp_path / "it").read_text().endswith("]\n"), "no namespace"
            )
            number = int((tmp_path / "it").read_text().strip().removeprefix("mnt:[").removesuffix("]"))
            tap = RecordTap(UnixTarget(path=str(tmp_path / "echo")), UnixTarget(path=str(tmp_path / "tap")))
            (keeper,) = children(tap.pid)
            tap.serve(number)
            assert not tap.leave(1.5), "the application runs"
            os.kill(tap.pid, signal.SIGKILL)
            running.kill()
        try:
            for _ in range(40):
                others.append(subprocess.Popen(["unshare", "--mount", "sleep", "60"]))
            wait_for(lambda: not is_engine(keeper, "keep"), "it outlives all")
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
