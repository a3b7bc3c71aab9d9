"""What the doctor reports about a refused login: the reason given by the server or a library, and the remedy."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import replace

import pytest

from howfar.doctor import minimum_latency
from howfar.doctor.candidates import Candidate, ListenAddress
from howfar.doctor.discovery import IdentifiedServer, identify
from howfar.doctor.examine import _login_advice, _note_unseen, _ServerState
from howfar.doctor.findings import Kind, Transport
from howfar.doctor.procfs import Process
from howfar.doctor.protocols import PROTOCOLS
from howfar.doctor.protocols.session import Endpoint, Greeting, GuardedProtocol, NoValidAnswer, ServerRefused
from howfar.doctor.targets import Logins, TargetLogin

_PLUGIN_LACKING = b"\xfeparsec\0salt"
_CAPABILITIES = (1 << 9 | 1 << 15 | 1 << 19).to_bytes(4, "little")


def _mysql_packet(number: int, body: bytes) -> bytes:
    return len(body).to_bytes(3, "little") + bytes([number]) + body


def _mysql_greeting() -> bytes:
    rest = b"\xff\x02\0" + _CAPABILITIES[2:] + b"\x15" + bytes(10) + b"pepperpepper\0mysql_native_password\0"
    return _mysql_packet(0, b"\x0a11.8.6-MariaDB\0\x01\0\0\0saltsalt\0" + _CAPABILITIES[:2] + rest)


@contextmanager
def _server(*connections: list[bytes]) -> Iterator[int]:
    """Serve one connection after another: send the first part at once, each other part after a request, then close."""

    def serve() -> None:
        for parts in connections:
            with suppress(OSError):
                made, _ = listening.accept()
                with made:
                    made.sendall(parts[0])
                    for part in parts[1:]:
                        made.recv(4096)
                        made.sendall(part)

    with closing(socket.create_server(("127.0.0.1", 0))) as listening:
        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield listening.getsockname()[1]
        thread.join(5)


def _unseen_of(known: IdentifiedServer) -> tuple[str, str]:
    (row,) = _note_unseen(_ServerState(known, None), {})
    return row.why, row.how


def _found(kind: Kind, port: int, login: TargetLogin) -> IdentifiedServer:
    process = Process(os.getpid(), "server", os.geteuid(), ())
    candidate = Candidate(kind, process, (ListenAddress(None, "127.0.0.1", port),), True)
    known = identify(candidate, Logins(login, login, login), None)
    assert known is not None
    return known


def test_a_plugin_that_the_library_lacks_is_named_with_what_helps() -> None:
    """[doc-7] The advice is not to give a user and a password, which were given."""
    with _server([_mysql_greeting(), _mysql_packet(2, _PLUGIN_LACKING)]) as port:
        why, how = _unseen_of(_found(Kind.MYSQL, port, TargetLogin("doctor", "hush")))
    assert "parsec" in why and how == "an account with another plugin: howfar doctor does not have this one"


def test_a_wrong_password_that_was_given_is_not_asked_for_again() -> None:
    """[doc-7] The advice is another account or password."""
    denied = _mysql_packet(2, b"\xff" + (1045).to_bytes(2, "little") + b"#28000Access denied")
    for password, says in (("hush", "another account or password"), ("", "howfar doctor --user USER")):
        with _server([_mysql_greeting(), denied]) as port:
            why, how = _unseen_of(_found(Kind.MYSQL, port, TargetLogin("doctor", password)))
        assert "Access denied" in why and how.startswith(says)


def test_a_refusal_of_postgresql_is_told_although_it_closes_early() -> None:
    """[doc-7] The report quotes its message, not a network error."""
    body = b'SFATAL\0VFATAL\0C28000\0Mrole "doctor" does not exist\0\0'
    error = b"E" + (len(body) + 4).to_bytes(4, "big") + body
    with _server([b"N"], [error]) as port:
        greeting = PROTOCOLS[Kind.POSTGRESQL].greet(Endpoint(None, "127.0.0.1", port), TargetLogin("doctor", ""))
    assert greeting.refused == 'role "doctor" does not exist (28000)' and greeting.remedy is None


@pytest.mark.parametrize(
    ("why", "remedy"),
    [
        (NoValidAnswer("no TLS: handshake failure"), ""),
        (OSError("reset"), ""),
        (ServerRefused("access denied"), "an account that may log in there"),
        (ServerRefused("too many connections", ""), ""),
    ],
    ids=["no TLS", "broken", "login", "full"],
)
def test_another_account_is_advised_only_where_it_would_help(why: Exception, remedy: str) -> None:
    """[doc-7] Where a floor is missing because of TLS, another account would not help."""

    class Closed:
        def open(self, endpoint: Endpoint, login: TargetLogin) -> None:
            raise why

    endpoints = {Transport.TLS: Endpoint(None, "127.0.0.1", 1)}
    _, reasons = minimum_latency.measure(GuardedProtocol(Kind.MYSQL, Closed()), endpoints, TargetLogin("", ""))  # type: ignore[arg-type]
    assert reasons[Transport.TLS][1] == remedy


def test_a_user_of_another_kind_of_server_gives_way_to_the_own_account(monkeypatch: pytest.MonkeyPatch) -> None:
    """[doc-7] `--user doctor` may be an account of MySQL alone; for PostgreSQL the account that its package sets up is used then."""

    class Postgresql:
        def greet(self, endpoint: Endpoint, login: TargetLogin) -> Greeting:
            refused = None if login.is_default_user else f"role {login.user} does not exist"
            return Greeting("PostgreSQL 15", "none", "none", refused)

    monkeypatch.setitem(PROTOCOLS, Kind.POSTGRESQL, GuardedProtocol(Kind.POSTGRESQL, Postgresql()))  # type: ignore[arg-type]
    known = _found(Kind.POSTGRESQL, 5432, TargetLogin("doctor", "hush"))
    assert not known.refusals and known.login.is_default_user and known.login.user != "doctor"
    assert "hush" not in known.login.password
    assert _login_advice(replace(known, login=TargetLogin("x", "hush"))).startswith("another account")
