"""The doctor and programs that are no servers: whatever answers, a protocol says so and raises nothing else."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from howfar.doctor.discovery import Candidate, Known, ListenAddress, identify
from howfar.doctor.findings import Kind
from howfar.doctor.procfs import Process
from howfar.doctor.protocols import PROTOCOLS
from howfar.doctor.protocols.session import Elsewhere, Endpoint, Greeting, NotThis, Owner
from howfar.doctor.targets import Login, Logins

NOBODY = Login("x", "hush")
GREETING = b"\x40\0\0\0\x0a10.11.19-MariaDB\0\x01\0\0\0saltsalt\0"
"""Of MariaDB, up to its capabilities."""
BEGINNINGS = (
    b"",
    GREETING,
    b"+PONG\r\n",
    b"VERSION 1.6.18\r\n",
    b"-NOAUTH \r\n",
    b"\x05\0\0\0\x0b",
    b"+PONG\r\n$5\r\n",
    b"+PONG\r\n*99\r\n",
    b"+PONG\r\n*0\r\n",
)


@contextmanager
def answering(answer: bytes, path: Path | None = None) -> Iterator[tuple[int, list[bytes]]]:
    """Whoever comes gets `answer`, is read once, and is left. Gives the port (0 at a path), and what was read."""
    heard: list[bytes] = []
    with closing(_listening(path)) as listening:

        def serve() -> None:
            while True:
                try:
                    made, _ = listening.accept()
                except OSError:
                    return
                with made:
                    try:
                        made.sendall(answer)
                        made.shutdown(socket.SHUT_WR)
                        while got := made.recv(4096):
                            heard.append(got)
                    except OSError:
                        continue

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        try:
            yield 0 if path is not None else listening.getsockname()[1], heard
        finally:
            listening.shutdown(socket.SHUT_RDWR)
            thread.join(5)


def _listening(path: Path | None) -> socket.socket:
    if path is None:
        return socket.create_server(("127.0.0.1", 0))
    return socket.create_server(str(path), family=socket.AF_UNIX)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.sampled_from(BEGINNINGS), st.binary(max_size=120), st.sampled_from(list(Kind)))
def test_whoever_answers_is_told_apart(beginning: bytes, rest: bytes, kind: Kind) -> None:
    with answering(beginning + rest) as (port, _):
        try:
            answered = PROTOCOLS[kind].greet(Endpoint(None, "127.0.0.1", port), NOBODY)
        except NotThis:
            return
        assert isinstance(answered, Greeting)


@pytest.mark.parametrize(
    ("kind", "answer"),
    [
        (Kind.MYSQL, GREETING + b"\0\x02" + b"\0" * 40),
        (Kind.REDIS, b"-NOAUTH x\r\n" * 9),
        (Kind.MEMCACHED, b"VERSION 1\r\n" * 9),
    ],
)
def test_who_asked_for_tls_sends_no_login_in_plain(kind: Kind, answer: bytes) -> None:
    with answering(answer) as (port, heard), pytest.raises(NotThis):
        PROTOCOLS[kind].greet(Endpoint(None, "127.0.0.1", port, tls=True), NOBODY)
    assert not any(word in b"".join(heard) for word in (b"hush", b"AUTH", b"mysql_native_password"))


@pytest.mark.parametrize("kind", list(Kind))
def test_nobody_there(kind: Kind) -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as listening:
        port: int = listening.getsockname()[1]
    with pytest.raises(NotThis):
        PROTOCOLS[kind].greet(Endpoint(None, "127.0.0.1", port), NOBODY)


def _of(path: Path, pid: int, kind: Kind, certain: bool = True) -> Known | None:
    """What is known of a server of our own account that is said to listen there."""
    process = Process(pid, "mysqld", os.geteuid(), ())
    return identify(Candidate(kind, process, (ListenAddress(str(path)),), certain), Logins(NOBODY, NOBODY), None)


@pytest.mark.parametrize("kind", list(Kind))
def test_who_took_a_servers_path_hears_nothing(kind: Kind, tmp_path: Path) -> None:
    path = tmp_path / "s.sock"
    with answering(b"-NOAUTH\r\n", path) as (_, heard):
        with pytest.raises(Elsewhere):
            PROTOCOLS[kind].greet(Endpoint(str(path), None, None, owner=Owner(os.getppid(), os.geteuid())), NOBODY)
        known = _of(path, os.getppid(), kind)
        guessed = _of(path, os.getppid(), kind, certain=False)
    assert known is not None and [listener.state for listener in known.listeners] == ["elsewhere"]
    assert guessed is None and heard == []


@pytest.mark.parametrize("kind", list(Kind))
def test_silence_is_no_proof(kind: Kind, tmp_path: Path) -> None:
    with answering(b"", tmp_path / "s.sock"):
        known = _of(tmp_path / "s.sock", os.getpid(), kind)
    assert known is not None and [listener.state for listener in known.listeners] == ["unseen"] and known.unseen
    known = _of(tmp_path / "s.sock", os.getpid(), kind)
    assert known is not None and [listener.state for listener in known.listeners] == ["gone"], "nobody listens any more"


@pytest.mark.parametrize(
    ("kind", "answer"),
    [
        (Kind.MYSQL, b"\x17\0\0\0\xff\x10\x04Too many connections"),
        (Kind.REDIS, b"-ERR max number of clients reached\r\n"),
        (Kind.MEMCACHED, b"ERROR Too many open connections\r\n"),
    ],
)
def test_a_full_server_refuses_and_is_there(kind: Kind, answer: bytes, tmp_path: Path) -> None:
    with answering(answer, tmp_path / "s.sock"):
        known = _of(tmp_path / "s.sock", os.getpid(), kind)
    assert known is not None and [listener.state for listener in known.listeners] == ["works"]
    assert "many" in next(iter(known.refusals.values())) or "max number" in next(iter(known.refusals.values()))


@pytest.mark.parametrize("shared", [False, True])
def test_a_port_that_may_be_anothers_is_not_taken_for_its_own(shared: bool) -> None:
    with answering(GREETING + b"\0\x02" + b"\0" * 40) as (port, _):
        process = Process(os.getpid(), "mysqld", os.geteuid(), ())
        address = ListenAddress(None, "127.0.0.1", port, shared=shared)
        known = identify(Candidate(Kind.MYSQL, process, (address,), False), Logins(NOBODY, NOBODY), None)
    assert (known is None) == shared
