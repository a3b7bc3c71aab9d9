"""Memcached: the text protocol, as much of it as a look needs."""

from __future__ import annotations

from dataclasses import replace

from howfar.doctor.protocols.session import (
    Counters,
    Endpoint,
    Greeting,
    Lines,
    NotThis,
    Refused,
    SelfReport,
    tries,
)
from howfar.doctor.targets import Login

_VERSION = b"version\r\n"
_ANSWERS = (b"VERSION ", b"CLIENT_ERROR unauth", b"ERROR Too many open connections")
_STATEMENTS = (
    "cmd_get", "cmd_set", "cmd_touch", "cmd_meta", "delete_hits", "delete_misses", "incr_hits", "incr_misses", "decr_hits",
    "decr_misses",
)  # fmt: skip
"""Of a get of several keys each key counts, and a meta command twice: there are at most so many."""


class Memcached:
    def greet(self, endpoint: Endpoint, login: Login) -> Greeting:
        for tls in tries(endpoint):
            try:
                session = MemcachedSession(replace(endpoint, tls=tls))
            except NotThis:
                if tls or endpoint.path is not None:
                    raise
                continue
            try:
                if session.refusal is not None:
                    return Greeting("Memcached", "always" if tls else "none", "none", session.refusal)
                pid = _number(session.stats().get("pid", ""))
            finally:
                session.close()
            return Greeting(f"Memcached {session.version}", "always" if tls else "none", "none", None, pid)
        raise AssertionError("the last attempt raises or returns")

    def open(self, endpoint: Endpoint, login: Login) -> MemcachedSession:
        session = MemcachedSession(endpoint)
        if session.refusal is not None:
            session.close()
            raise Refused(session.refusal)
        return session


class MemcachedSession:
    statements_by_counters = 0
    """`statements` are gets, sets and the like; not questions about them."""

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
            raise NotThis("it stopped telling its version")

    def stats(self, about: str = "") -> dict[str, str]:
        self._lines.send(f"stats {about}".strip().encode() + b"\r\n")
        found: dict[str, str] = {}
        while (line := self._lines.line().decode(errors="replace")) != "END":
            words = line.split(" ", 2)
            if words[0] != "STAT" or len(words) < 2:
                raise Refused(line)
            found[words[1]] = words[2] if len(words) > 2 else ""
        return found

    def counters(self) -> Counters:
        stats = self.stats()
        done = sum(int(stats.get(name, "0")) for name in _STATEMENTS)
        return Counters(int(stats["total_connections"]), done, None)

    def said(self) -> SelfReport:
        return SelfReport(None, (), (), self.stats("settings"))

    def close(self) -> None:
        self._lines.close()


def _number(text: str) -> int | None:
    return int(text) if text.isdecimal() else None
