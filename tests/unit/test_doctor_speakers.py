"""The doctor and programs that are no servers: whatever answers, a protocol says so and raises nothing else."""

from __future__ import annotations

import os
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from howfar.doctor.discovery import Candidate, Known, ListenAddress, identify
from howfar.doctor.findings import Kind
from howfar.doctor.procfs import Process
from howfar.doctor.protocols import PROTOCOLS
from howfar.doctor.protocols.session import Elsewhere, Endpoint, Greeting, NotThis, Owner
from howfar.doctor.targets import Consent, Login, Logins

NOBODY = Login("x", "hush")
CERTIFICATES = Path(__file__).parents[2] / "crates/engine/tests/load"
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
    b"N",
    b"R\0\0\0\x08\0\0\0\0",
    b"R\0\0\0\x08\0\0\0\0Z\0\0\0\x05I",
    b"E\xff\xff\xff\xff",
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
        (Kind.POSTGRESQL, b"N" + b"R\0\0\0\x08\0\0\0\x03"),
    ],
)
def test_who_asked_for_tls_sends_no_login_in_plain(kind: Kind, answer: bytes) -> None:
    with answering(answer) as (port, heard), pytest.raises(NotThis):
        PROTOCOLS[kind].greet(Endpoint(None, "127.0.0.1", port, tls=True), NOBODY)
    assert not any(word in b"".join(heard) for word in (b"hush", b"AUTH", b"mysql_native_password"))


def _packet(number: int, payload: bytes) -> bytes:
    return len(payload).to_bytes(3, "little") + bytes([number]) + payload


def _greeting(plugin: bytes) -> bytes:
    """Of MySQL 8, with TLS and the plugins' names; the account follows."""
    able = (1 << 9 | 1 << 11 | 1 << 15 | 1 << 19).to_bytes(4, "little")
    rest = b"\xff" + b"\x02\0" + able[2:] + b"\x15" + b"\0" * 10 + b"pepperpepper\0" + plugin + b"\0"
    return _packet(0, b"\x0a8.4.0\0\x01\0\0\0saltsalt\0" + able[:2] + rest)


@contextmanager
def asking(greeting: bytes, asked: bytes, encrypted: bool) -> Iterator[tuple[int, list[bytes]]]:
    """Greets, and answers each packet with what was `asked`, rightly numbered; gives the port, and what was heard."""
    heard: list[bytes] = []
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(CERTIFICATES / "certificate.pem", CERTIFICATES / "key.pem")

    def serve() -> None:
        made, _ = listening.accept()
        with made:
            made.sendall(greeting)
            talking = made
            if encrypted:
                made.recv(36)
                talking = context.wrap_socket(made, server_side=True)
            while got := talking.recv(4096):
                heard.append(got)
                talking.sendall(_packet(got[3] + 1, asked))

    def until_it_leaves() -> None:
        with suppress(OSError):
            serve()

    with closing(_listening(None)) as listening:
        thread = threading.Thread(target=until_it_leaves, daemon=True)
        thread.start()
        yield listening.getsockname()[1], heard
        thread.join(5)


ASKED = {
    "mysql_clear_password": b"\xfemysql_clear_password\0",
    "dialog": b"\xfedialog\0\x04Password: ",
    "caching_sha2_password": b"\x01\x04",
    "sha256_password": b"\xfesha256_password\0saltsaltpepperpepper\0",
}
"""By what way a server asks for the password itself."""


@pytest.mark.parametrize("tls", [False, True])
@pytest.mark.parametrize("plugin", list(ASKED))
def test_the_password_itself_leaves_by_consent_alone(plugin: str, tls: bool) -> None:
    """The rule of `howfar load`; no certificate is verified here, so TLS does not make a channel private."""
    greeting = _greeting(plugin.encode() if "sha" in plugin else b"mysql_native_password")

    def heard_with(consent: Consent) -> tuple[str, bytes]:
        with asking(greeting, ASKED[plugin], tls) as (port, heard):
            login = Login("x", "hush", consent)
            try:
                why = PROTOCOLS[Kind.MYSQL].greet(Endpoint(None, "127.0.0.1", port, tls=tls), login).refused
            except NotThis as error:  # what it sends for a key is none
                why = str(error)
        return str(why), b"".join(heard)

    why, heard = heard_with(Consent())
    assert b"hush" not in heard
    assert "it was not sent" in why and ("allow-cleartext" in why or "get-server" in why)
    # A key is asked for by one byte: \1 or \2.
    assert not heard.endswith((b"\x01\0\0\x03\x02", b"\x01\0\0\x03\x01"))
    _, heard = heard_with(Consent(fetch_server_key=True, cleartext_password=True))
    if tls:
        assert b"hush\0" in heard
    else:
        assert b"hush" not in heard
        assert heard.endswith((b"\x02", b"\x01")) == ("sha" in plugin), "the key was asked for"


def _message(letter: bytes, body: bytes) -> bytes:
    return letter + (len(body) + 4).to_bytes(4, "big") + body


def _authentication(code: int, rest: bytes = b"") -> bytes:
    return _message(b"R", code.to_bytes(4, "big") + rest)


ENDLESS = {
    "a password in clear": (_authentication(3), "it was not sent"),
    "an endless login": (_authentication(0) * 2000, "no end"),
    "an hour of hashing": (
        _authentication(10, b"SCRAM-SHA-256\0\0") + _authentication(11, b"r=x,s=c2FsdA==,i=999999999"),
        "too many iterations",
    ),
    "an answer of a gigabyte": (b"E\x40\0\0\0", "too long"),
    "an answer of less than nothing": (b"S\0\0\0\0", "too long"),
    "notices without end": (_message(b"N", b"SWARNING\0M" + b"x" * 80 + b"\0\0") * 100_000, "too long"),
}
"""What a peer that claims to be PostgreSQL answers to a login, and what is said of it."""


@pytest.mark.parametrize("what", list(ENDLESS))
def test_who_claims_to_be_postgresql_gets_no_password_and_no_time(what: str) -> None:
    """Its first byte is for the request for TLS, which has a connection of its own."""
    answer, says = ENDLESS[what]
    answers = iter([b"N", answer])
    heard: list[bytes] = []

    def serve(listening: socket.socket) -> None:
        for each in answers:
            made, _ = listening.accept()
            with made, suppress(OSError):
                heard.append(made.recv(4096))
                made.sendall(each)
                while got := made.recv(4096):
                    heard.append(got)

    with closing(_listening(None)) as listening:
        thread = threading.Thread(target=serve, args=(listening,), daemon=True)
        thread.start()
        endpoint = Endpoint(None, "127.0.0.1", listening.getsockname()[1])
        try:
            why = str(PROTOCOLS[Kind.POSTGRESQL].greet(endpoint, NOBODY).refused)
        except NotThis as error:
            why = str(error)
        thread.join(5)
    assert says in why and b"hush" not in b"".join(heard)


@pytest.mark.parametrize("kind", list(Kind))
def test_nobody_there(kind: Kind) -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as listening:
        port: int = listening.getsockname()[1]
    with pytest.raises(NotThis):
        PROTOCOLS[kind].greet(Endpoint(None, "127.0.0.1", port), NOBODY)


def _of(path: Path, pid: int, kind: Kind, certain: bool = True) -> Known | None:
    """What is known of a server of our own account that is said to listen there."""
    process = Process(pid, "mysqld", os.geteuid(), ())
    return identify(
        Candidate(kind, process, (ListenAddress(str(path)),), certain), Logins(NOBODY, NOBODY, NOBODY), None
    )


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
        known = identify(Candidate(Kind.MYSQL, process, (address,), False), Logins(NOBODY, NOBODY, NOBODY), None)
    assert (known is None) == shared
