"""Redis, Valkey and Memcached: the requests of an examination, in RESP2 and in the text protocol."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, TypeVar

from howfar.clients.peer import PeerError
from howfar.doctor.kind import Tls
from howfar.doctor.protocols.session import (
    Counters,
    Endpoint,
    Greeting,
    ListedSession,
    NothingListens,
    NoValidAnswer,
    SelfReport,
    ServerRefused,
    dial,
    parse_counter,
)
from howfar.doctor.targets import TargetLogin
from howfar.errors import LabError
from howfar.lab.servers.text_protocol import (
    LineConnection,
    ServerError,
    parse_pairs,
    query_stats,
    send_command,
    split_parts,
)

_PING = b"*1\r\n$4\r\nPING\r\n"
_REDIS_ANSWERS = (
    "+PONG",
    "-NOAUTH",
    "-NOPERM",
    "-DENIED",
    "-LOADING",
    "-MASTERDOWN",
    "-ERR max number of clients",
)
_SETTINGS = ("unixsocket", "unixsocketperm", "port", "tls-port", "bind")
_VERSION = b"version\r\n"
_MEMCACHED_ANSWERS = ("VERSION ", "CLIENT_ERROR unauth", "ERROR Too many open connections")
_STATEMENTS = (
    "cmd_get", "cmd_set", "cmd_touch", "cmd_meta", "delete_hits", "delete_misses", "incr_hits", "incr_misses", "decr_hits",
    "decr_misses",
)  # fmt: skip
"""Counters whose sum is an upper bound of the number of commands: a get counts each of its keys, and a meta command counts twice."""

OpenedSession = TypeVar("OpenedSession")


@contextlib.contextmanager
def _translating_refusals() -> Iterator[None]:
    """Translate the server's errors into ServerRefused."""
    try:
        yield
    except ServerError as error:
        raise ServerRefused(error.reply) from error


class _Session:
    """A session of a line protocol. Its first answer shows which protocol the server speaks."""

    def __init__(self, endpoint: Endpoint, request: bytes, expected_starts: tuple[str, ...]) -> None:
        """Connect and send `request`. Raises NoValidAnswer if the answer begins with none of `expected_starts`."""
        self.peer = dial(endpoint)
        self.lines = LineConnection(self.peer)
        try:
            with contextlib.suppress(
                LabError
            ):  # a server with too many clients sends an error and closes the connection
                self.lines.send(request)
            self.first = self.lines.read_line()
            if not self.first.startswith(expected_starts):
                raise NoValidAnswer("it speaks another protocol")
        except PeerError as error:
            self.close()
            raise NoValidAnswer(error.message) from error
        except NoValidAnswer:
            self.close()
            raise

    def exchange(self, request: bytes, expected_start: bytes) -> None:
        if not self.peer.exchange(request).startswith(expected_start):
            raise NoValidAnswer("it stopped answering pings")

    def close(self) -> None:
        self.lines.close()


def _open_plain_or_tls(
    endpoint: Endpoint, open_session: Callable[[Endpoint], OpenedSession]
) -> tuple[OpenedSession, Tls]:
    """Open a session without TLS or, if that fails, with TLS. If TLS was requested, only TLS is tried; Unix sockets never use it."""
    if endpoint.path is not None:
        return open_session(replace(endpoint, tls=False)), "none"
    if endpoint.tls:
        return open_session(endpoint), "always"
    try:
        return open_session(endpoint), "none"
    except NothingListens:
        raise
    except NoValidAnswer as in_plain_text:
        try:
            return open_session(replace(endpoint, tls=True)), "always"
        except NoValidAnswer:
            raise in_plain_text from None


def _parse_pid(text: str) -> int | None:
    return int(text) if text.isdecimal() else None


class Redis:
    def greet(self, endpoint: Endpoint, login: TargetLogin) -> Greeting:
        session, tls = _open_plain_or_tls(endpoint, RedisSession)
        try:
            session.log_in(login)
            info = session.info("server")
        except ServerRefused as refused:
            return Greeting("Redis", tls, "none", str(refused), remedy=refused.remedy)
        finally:
            session.close()
        name = "Valkey" if "valkey_version" in info else "Redis"
        version = info.get("valkey_version", info.get("redis_version", ""))
        return Greeting(f"{name} {version}".strip(), tls, "none", None, _parse_pid(info.get("process_id", "")))

    def open(self, endpoint: Endpoint, login: TargetLogin) -> RedisSession:
        session = RedisSession(endpoint)
        try:
            session.log_in(login)
        except Exception:
            session.close()
            raise
        return session


class RedisSession(_Session):
    statements_by_counters = 1

    def __init__(self, endpoint: Endpoint) -> None:
        super().__init__(endpoint, _PING, _REDIS_ANSWERS)
        self._is_local = endpoint.is_local

    def log_in(self, login: TargetLogin) -> None:
        if not self.first.startswith("-"):
            return
        refusal = self.first[1:]
        if not (login.password and refusal.startswith("NOAUTH")):
            raise ServerRefused(refusal)
        if not (self._is_local or login.consent.cleartext_password):
            raise ServerRefused(
                "Redis takes the password itself, and this address is not known to be of this machine: it was not sent; "
                "the DSN's allow-cleartext-password=1 allows it"
            )
        self.request("AUTH", *([login.user] if login.user else []), login.password)

    def ping(self) -> None:
        self.exchange(_PING, b"+PONG\r\n")

    def request(self, *arguments: str) -> Any:
        """Send a command, and return its answer. Raises ServerRefused with the server's error, or NoValidAnswer."""
        with _translating_refusals():
            return send_command(self.lines, *arguments)

    def _text(self, *arguments: str) -> str:
        answer = self.request(*arguments)
        if not isinstance(answer, str):
            raise NoValidAnswer(f"it does not answer {arguments[0]} as Redis does")
        return answer

    def info(self, section: str) -> dict[str, str]:
        return parse_pairs(self._text("INFO", section), "\r\n", ":")

    def counters(self) -> Counters:
        info = self.info("stats")
        return Counters(
            parse_counter(info, "total_connections_received"), parse_counter(info, "total_commands_processed"), None
        )

    def report(self) -> SelfReport:
        settings: dict[str, str] = {}
        sessions: tuple[ListedSession, ...] = ()
        hidden: list[tuple[str, str, str]] = []
        config_file = None
        try:
            config_file = self.info("server").get("config_file") or None
            for name in _SETTINGS:
                answer = self.request("CONFIG", "GET", name)
                if not isinstance(answer, list):
                    raise NoValidAnswer("it does not answer CONFIG as Redis does")
                settings |= dict(zip(answer[::2], answer[1::2], strict=False))
        except ServerRefused as refused:
            hidden.append(("its configuration", str(refused), "an account that may CONFIG GET"))
        try:
            own_id = self.request("CLIENT", "ID")
            client_lines = (parse_pairs(line, " ", "=") for line in split_parts(self._text("CLIENT", "LIST"), "\n"))
            tls_port = settings.get("tls-port", "0")
            sessions = tuple(
                _parse_client(client, tls_port)
                for client in client_lines
                if client.get("id", str(own_id)) != str(own_id)
            )
        except ServerRefused as refused:
            hidden.append(("its sessions", str(refused), "an account that may CLIENT LIST"))
        return SelfReport(config_file, sessions, tuple(hidden), settings)


def _parse_client(client: dict[str, str], tls_port: str) -> ListedSession:
    if "U" in client.get("flags", "") or client.get("addr", "").endswith(":0"):
        return ListedSession(None, None, False, False)
    port = client.get("addr", "").rpartition(":")[2]
    server_port = client.get("laddr", "").rpartition(":")[2]
    return ListedSession(
        int(port) if port.isdigit() else None, None, server_port == tls_port if server_port else None, False
    )


class Memcached:
    def greet(self, endpoint: Endpoint, login: TargetLogin) -> Greeting:
        session, tls = _open_plain_or_tls(endpoint, MemcachedSession)
        with contextlib.closing(session):
            if session.refusal is not None:
                return Greeting("Memcached", tls, "none", session.refusal)
            pid = _parse_pid(session.stats().get("pid", ""))
        return Greeting(f"Memcached {session.first.removeprefix('VERSION ')}", tls, "none", None, pid)

    def open(self, endpoint: Endpoint, login: TargetLogin) -> MemcachedSession:
        session = MemcachedSession(endpoint)
        if session.refusal is not None:
            session.close()
            raise ServerRefused(session.refusal)
        return session


class MemcachedSession(_Session):
    statements_by_counters = 0
    """Zero, because `stats` is in none of the counters in `_STATEMENTS`."""

    def __init__(self, endpoint: Endpoint) -> None:
        super().__init__(endpoint, _VERSION, _MEMCACHED_ANSWERS)
        self.refusal = None if self.first.startswith("VERSION ") else self.first

    def ping(self) -> None:
        self.exchange(_VERSION, b"VERSION ")

    def stats(self, about: str = "") -> dict[str, str]:
        with _translating_refusals():
            return query_stats(self.lines, about)

    def counters(self) -> Counters:
        counts = self.stats()
        statements = sum(int(counts.get(name, "0")) for name in _STATEMENTS)
        return Counters(parse_counter(counts, "total_connections"), statements, None)

    def report(self) -> SelfReport:
        return SelfReport(None, (), (), self.stats("settings"))
