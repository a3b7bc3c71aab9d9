"""The doctor before servers that are none: whatever answers, a speaker says so and raises nothing else."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from howfar.doctor.findings import Kind
from howfar.doctor.speakers import SPEAKERS
from howfar.doctor.speakers.session import Greeting, NotThis, Way
from howfar.doctor.targets import Login

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
)


@contextmanager
def answering(answer: bytes) -> Iterator[tuple[int, list[bytes]]]:
    """Whoever comes gets `answer`, is read once, and is left. Gives the port, and what was read."""
    heard: list[bytes] = []
    with closing(socket.create_server(("127.0.0.1", 0))) as listening:

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
            yield listening.getsockname()[1], heard
        finally:
            listening.shutdown(socket.SHUT_RDWR)
            thread.join(5)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.sampled_from(BEGINNINGS), st.binary(max_size=120), st.sampled_from(list(Kind)))
def test_whoever_answers_is_told_apart(beginning: bytes, rest: bytes, kind: Kind) -> None:
    with answering(beginning + rest) as (port, _):
        try:
            answered = SPEAKERS[kind].greet(Way(None, "127.0.0.1", port), NOBODY)
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
        SPEAKERS[kind].greet(Way(None, "127.0.0.1", port, tls=True), NOBODY)
    assert not any(word in b"".join(heard) for word in (b"hush", b"AUTH", b"mysql_native_password"))


@pytest.mark.parametrize("kind", list(Kind))
def test_nobody_there(kind: Kind) -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as listening:
        port: int = listening.getsockname()[1]
    with pytest.raises(NotThis):
        SPEAKERS[kind].greet(Way(None, "127.0.0.1", port), NOBODY)
