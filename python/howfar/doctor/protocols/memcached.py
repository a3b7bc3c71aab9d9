"""Memcached: as much of the text protocol as an examination needs."""

from __future__ import annotations

from howfar.doctor.protocols.session import (
    Counters,
    Endpoint,
    Greeting,
    Lines,
    NotThis,
    Refused,
    SelfReport,
    first_answering,
)
from howfar.doctor.targets import Login

_VERSION = b"version\r\n"
_ANSWERS = (b"VERSION ", b"CLIENT_ERROR unauth", b"ERROR Too many open connections")
_STATEMENTS = (
    "cmd_get", "cmd_set", "cmd_touch", "cmd_meta", "delete_hits", "delete_misses", "incr_hits", "incr_misses", "decr_hits",
    "decr_misses",
)  # fmt: skip
"""An upper bound: each key of a multi-key get counts, and a meta command counts twice."""


class Memcached:
    def greet(self, endpoint: Endpoint, login: Login) -> Greeting:
        session, tls = first_answering(endpoint, MemcachedSession)
        try:
            if session.refusal is not None:
                return Greeting("Memcached", tls, "none", session.refusal)
            pid = session.stats().get("pid", "")
        finally:
            session.close()
        return Greeting(f"Memcached {session.version}", tls, "none", None, int(pid) if pid.isdecimal() else None)

    def open(self, endpoint: Endpoint, login: Login) -> MemcachedSession:
        session = MemcachedSession(endpoint)
        if session.refusal is not None:
            session.close()
            raise Refused(session.refusal)
        return session


class MemcachedSession:
    statements_by_counters = 0
    """`statements` are gets, sets and the like, not `stats`."""

    def __init__(self, endpoint: Endpoint) -> None:
        """Raises NotThis."""
        self._lines, first = Lines.greeted(endpoint, _VERSION, _ANSWERS, "it does not speak memcached's text protocol")
        answer = first.decode(errors="replace")
        self.version = answer.removeprefix("VERSION ")
        self.refusal = None if answer.startswith("VERSION ") else answer

    def ping(self) -> None:
        made = self._lines.socket
        made.sendall(_VERSION)
        if not made.recv(256).startswith(b"VERSION "):
            raise NotThis("it stopped answering `version`")

    def stats(self, about: str = "") -> dict[str, str]:
        self._lines.send(f"stats {about}".strip().encode() + b"\r\n")
        found: dict[str, str] = {}
        while (line := self._lines.line().decode(errors="replace")) != "END":
            parts = line.split(" ", 2)
            if parts[0] != "STAT" or len(parts) < 2:
                raise Refused(line)
            found[parts[1]] = parts[2] if len(parts) > 2 else ""
        return found

    def counters(self) -> Counters:
        stats = self.stats()
        done = sum(int(stats.get(name, "0")) for name in _STATEMENTS)
        return Counters(int(stats["total_connections"]), done, None)

    def report(self) -> SelfReport:
        return SelfReport(None, (), (), self.stats("settings"))

    def close(self) -> None:
        self._lines.close()
