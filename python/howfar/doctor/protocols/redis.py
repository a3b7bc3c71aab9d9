"""Redis and Valkey: as much of RESP2 as an examination needs."""

from __future__ import annotations

from typing import Any

from howfar.doctor.protocols.session import (
    Counters,
    Endpoint,
    Greeting,
    Lines,
    ListedSession,
    NotThis,
    Refused,
    SelfReport,
    first_answering,
)
from howfar.doctor.targets import Login

_PING = b"*1\r\n$4\r\nPING\r\n"
_PONG = b"+PONG\r\n"
_ANSWERS = (b"+PONG", b"-NOAUTH", b"-NOPERM", b"-DENIED", b"-LOADING", b"-MASTERDOWN", b"-ERR max number of clients")
_SETTINGS = ("unixsocket", "unixsocketperm", "port", "tls-port", "bind")


class Redis:
    def greet(self, endpoint: Endpoint, login: Login) -> Greeting:
        session, tls = first_answering(endpoint, RedisSession)
        try:
            session.log_in(login)
            info = session.info("server")
        except Refused as refused:
            return Greeting("Redis", tls, "none", str(refused))
        finally:
            session.close()
        name = "Valkey" if "valkey_version" in info else "Redis"
        version = info.get("valkey_version", info.get("redis_version", ""))
        pid = info.get("process_id", "")
        return Greeting(f"{name} {version}".strip(), tls, "none", None, int(pid) if pid.isdecimal() else None)

    def open(self, endpoint: Endpoint, login: Login) -> RedisSession:
        session = RedisSession(endpoint)
        try:
            session.log_in(login)
        except (Refused, NotThis):
            session.close()
            raise
        return session


class RedisSession:
    statements_by_counters = 1

    def __init__(self, endpoint: Endpoint) -> None:
        """Answers a PING, if only with a refusal. Raises NotThis."""
        self._lines, answer = Lines.greeted(endpoint, _PING, _ANSWERS, "it does not speak RESP")
        self._refusal = answer[1:].decode(errors="replace") if answer.startswith(b"-") else None

    def log_in(self, login: Login) -> None:
        if self._refusal is None:
            return
        if not (login.password and self._refusal.startswith("NOAUTH")):
            raise Refused(self._refusal)
        self.ask("AUTH", *([login.user] if login.user else []), login.password)

    def ping(self) -> None:
        made = self._lines.socket
        made.sendall(_PING)
        if made.recv(64) != _PONG:
            raise NotThis("it stopped answering PING")

    def ask(self, *request: str) -> Any:
        """Raises Refused with the server's error, NotThis."""
        encoded = [part.encode() for part in request]
        self._lines.send(b"*%d\r\n" % len(encoded) + b"".join(b"$%d\r\n%s\r\n" % (len(part), part) for part in encoded))
        try:
            return self._read()
        except (ValueError, RecursionError) as error:
            raise NotThis("it does not speak RESP") from error

    def _read(self) -> Any:
        line = self._lines.line()
        kind, rest = line[:1], line[1:]
        match kind:
            case b"-":
                raise Refused(rest.decode(errors="replace"))
            case b"+":
                return rest.decode(errors="replace")
            case b":":
                return int(rest)
            case b"$":
                return None if rest == b"-1" else self._lines.exactly(int(rest)).decode(errors="replace")
            case b"*":
                return [self._read() for _ in range(max(int(rest), 0))]
        raise NotThis("it does not speak RESP")

    def info(self, section: str) -> dict[str, str]:
        return _pairs(self._text("INFO", section), "\r\n", ":")

    def _text(self, *request: str) -> str:
        answer = self.ask(*request)
        if not isinstance(answer, str):
            raise NotThis(f"it does not answer {request[0]} as Redis does")
        return answer

    def counters(self) -> Counters:
        info = self.info("stats")
        return Counters(int(info["total_connections_received"]), int(info["total_commands_processed"]), None)

    def report(self) -> SelfReport:
        settings: dict[str, str] = {}
        hidden: list[tuple[str, str, str]] = []
        config_file = None
        try:
            config_file = self.info("server").get("config_file") or None
            for name in _SETTINGS:
                answer = self.ask("CONFIG", "GET", name)
                if not isinstance(answer, list):
                    raise NotThis("it does not answer CONFIG as Redis does")
                settings |= dict(zip(answer[::2], answer[1::2], strict=False))
        except Refused as refused:
            hidden.append(("its configuration", str(refused), "an account that may CONFIG GET"))
        sessions: tuple[ListedSession, ...] = ()
        try:
            own = self.ask("CLIENT", "ID")
            listed = [_pairs(line, " ", "=") for line in self._text("CLIENT", "LIST").splitlines()]
            tls_port = settings.get("tls-port", "0")
            sessions = tuple(_listed(client, tls_port) for client in listed if client.get("id") != str(own))
        except Refused as refused:
            hidden.append(("its sessions", str(refused), "an account that may CLIENT LIST"))
        return SelfReport(config_file, sessions, tuple(hidden), settings)

    def close(self) -> None:
        self._lines.close()


def _pairs(text: str, between: str, middle: str) -> dict[str, str]:
    split = (part.partition(middle) for part in text.split(between))
    return {name.strip(): value for name, separator, value in split if separator}


def _listed(client: dict[str, str], tls_port: str) -> ListedSession:
    if "U" in client.get("flags", "") or client.get("addr", "").endswith(":0"):
        return ListedSession(None, None, False, False)
    port = client.get("addr", "").rpartition(":")[2]
    to = client.get("laddr", "").rpartition(":")[2]
    return ListedSession(int(port) if port.isdigit() else None, None, to == tls_port if to else None, False)
