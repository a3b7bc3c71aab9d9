"""PostgreSQL. pg8000 logs in; pings use the socket directly."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from pg8000.exceptions import DatabaseError, InterfaceError

from howfar.clients.peer import PeerConnection
from howfar.clients.postgresql import SSL_REQUEST, PostgresqlConnection, error_fields
from howfar.doctor.kind import Tls, product_name
from howfar.doctor.protocols.session import (
    Counters,
    Endpoint,
    Greeting,
    ListedSession,
    NoValidAnswer,
    SelfReport,
    ServerRefused,
    dial,
    encrypt,
)
from howfar.doctor.targets import TargetLogin

_PING = b"Q\0\0\0\x05\0"
"""An empty query; the answer is EmptyQueryResponse and ReadyForQuery."""
_PONG = b"I\0\0\0\x04Z\0\0\0\x05I"
_DATABASE = "postgres"
_TLS_NAMES: dict[bytes, Tls] = {b"S": "offered", b"N": "none"}
_COUNTER_QUERY = (
    "SELECT sum(sessions)::bigint, sum(xact_commit + xact_rollback)::bigint, sum(active_time)::float8, "
    "sum(idle_in_transaction_time)::float8 FROM pg_catalog.pg_stat_database"
)
_FIRST_COUNTING_VERSION = 14
_SETTINGS_QUERY = (
    "SELECT name, setting FROM pg_catalog.pg_settings WHERE name IN "
    "('unix_socket_directories', 'port', 'listen_addresses', 'ssl', 'config_file', 'max_connections')"
)
_SESSIONS_QUERY = (
    "SELECT a.client_port, s.ssl, a.backend_start IS NULL, a.state = 'idle' FROM pg_catalog.pg_stat_activity a "
    "LEFT JOIN pg_catalog.pg_stat_ssl s USING (pid) "
    "WHERE a.pid <> pg_catalog.pg_backend_pid() AND (a.backend_type = 'client backend' OR a.backend_type IS NULL)"
)


class Postgresql:
    def greet(self, endpoint: Endpoint, login: TargetLogin) -> Greeting:
        tls = _probe_tls(endpoint)
        try:
            connection, _ = _connect(endpoint, login)
        except ServerRefused as refused:
            return Greeting("PostgreSQL", tls, "none", str(refused), remedy=refused.remedy)
        name = product_name("postgresql", connection.parameter_statuses.get("server_version", ""))
        connection.close()
        return Greeting(name, tls, "none", None)

    def open(self, endpoint: Endpoint, login: TargetLogin) -> PostgresqlSession:
        return PostgresqlSession(*_connect(endpoint, login))


def _probe_tls(endpoint: Endpoint) -> Tls:
    """Determine an endpoint's TLS support by an SSLRequest, which only PostgreSQL answers with one letter. Raises NoValidAnswer."""
    if endpoint.path is not None:
        return "none"
    with contextlib.closing(dial(replace(endpoint, tls=False))) as peer:
        return _TLS_NAMES[_request_tls(peer)]


def _request_tls(peer: PeerConnection) -> bytes:
    peer.sendall(SSL_REQUEST)
    answer = peer.read(1)
    if answer not in _TLS_NAMES:
        raise NoValidAnswer("it does not answer a request for TLS as PostgreSQL does")
    return answer


def _connect(endpoint: Endpoint, login: TargetLogin) -> tuple[PostgresqlConnection, PeerConnection]:
    """Connect and log in. Raises NoValidAnswer, ServerRefused."""
    with _as_server_account(endpoint, login):
        peer = dial(replace(endpoint, tls=False))
    try:
        if endpoint.tls:
            if _request_tls(peer) != b"S":
                raise NoValidAnswer("it offers no TLS")
            encrypt(peer, endpoint)
        allowed = endpoint.path is not None or (endpoint.tls and login.consent.cleartext_password)
        connection = PostgresqlConnection(
            login.user,
            may_send_password=allowed,
            peer=peer,
            database=login.database or _DATABASE,
            password=login.password,
            application_name="howfar doctor",
        )
        return connection, peer
    except DatabaseError as error:
        raise ServerRefused(_message(error), _remedy(error)) from error
    except InterfaceError as error:
        raise ServerRefused(str(error), "") from error
    except Exception:
        peer.close()
        raise


@contextlib.contextmanager
def _as_server_account(endpoint: Endpoint, login: TargetLogin) -> Iterator[None]:
    """Assume the server's account while root connects as that account: peer authentication checks the client's account."""
    needs_account = (
        endpoint.path is not None and endpoint.owner is not None and login.is_default_user and os.geteuid() == 0
    )
    if not needs_account:
        yield
        return
    assert endpoint.owner is not None, "checked above"
    os.seteuid(endpoint.owner.uid)
    try:
        yield
    finally:
        os.seteuid(0)


class PostgresqlSession:
    statements_by_counters = 1

    def __init__(self, connection: PostgresqlConnection, peer: PeerConnection) -> None:
        self._connection = connection
        self.peer = peer

    def ping(self) -> None:
        answer = self.peer.exchange(_PING)
        while 0 < len(answer) < len(_PONG):
            more = self.peer.socket.recv(512)
            answer = answer + more if more else b""
        if answer != _PONG:
            raise NoValidAnswer("it stopped answering an empty query")

    def rows(self, statement: str) -> Sequence[Sequence[Any]]:
        self.peer.begin_answer()
        try:
            return self._connection.values(statement)
        except DatabaseError as error:
            raise ServerRefused(_message(error)) from error

    def counters(self) -> Counters:
        """Sessions and transactions of all databases. The server does not count TLS handshakes."""
        version = self._connection.parameter_statuses.get("server_version", "")
        if int(re.match(r"\d*", version)[0] or 0) < _FIRST_COUNTING_VERSION:  # type: ignore[index]  # it matches nothing at least
            raise ServerRefused(f"PostgreSQL before {_FIRST_COUNTING_VERSION} does not count connections")
        ((sessions, transactions, working, waiting),) = self.rows(_COUNTER_QUERY)
        return Counters(int(sessions), int(transactions), None, float(working), float(waiting))

    def report(self) -> SelfReport:
        settings = {name: str(value) for name, value in self.rows(_SETTINGS_QUERY)}
        listed = self.rows(_SESSIONS_QUERY)
        sessions = [ListedSession(port, None, tls, None) for port, tls, *_ in listed if port is not None and port > 0]
        are_hidden = any(row[2] for row in listed)
        hidden = []
        if are_hidden:
            ((role,),) = self.rows("SELECT pg_catalog.quote_ident(current_user)")
            grant = f"GRANT pg_monitor TO {role}"
            hidden.append(("other sessions", "its role is not a member of pg_monitor or pg_read_all_stats", grant))
        no_socket = {"socket": ""} if settings.get("unix_socket_directories") == "" else {}
        counted = None if are_hidden else (len(listed), sum(bool(row[3]) for row in listed))
        return SelfReport(settings.get("config_file"), tuple(sessions), tuple(hidden), settings | no_socket, counted)

    def close(self) -> None:
        self._connection.close()


def _remedy(error: DatabaseError) -> str | None:
    """Return the remedy for a refused login, as in `ServerRefused`, by the class of its SQLSTATE."""
    state = str(error_fields(error).get("C", ""))
    if state.startswith("28"):
        return None
    return "a DSN that names a database of the server" if state.startswith("3D") else ""


def _message(error: DatabaseError) -> str:
    """An error's message and SQLSTATE."""
    fields = error_fields(error)
    return f"{fields.get('M', 'no message')} ({fields.get('C', 'no code')})"
