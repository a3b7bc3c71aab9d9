"""A server to measure, and the engine's session that times requests to it on one connection at a time."""

from __future__ import annotations

import contextlib
import math
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from howfar.address.server_address import format_host_port
from howfar.contract.ping_messages import (
    Asked,
    AskInTurn,
    FetchAnswer,
    Fetched,
    Listen,
    NotOpened,
    NullJob,
    OpenConnection,
    Opened,
    PingJob,
    PingRequest,
    Session,
    Target,
    TcpListen,
    UnixTarget,
)
from howfar.distance.record import Failure
from howfar.distance.requests import REQUESTS, Identity
from howfar.engine.null_server import run_null_server
from howfar.engine.process import EngineFailed, EngineProcess, Launcher
from howfar.services import ServiceName
from howfar.stopping import temporary_folder

EngineEvent = TypeVar("EngineEvent", bound=Asked | Fetched)


@dataclass(frozen=True)
class MeasuredServer:
    """One server and its account, ready to be measured. The password is never printed."""

    service: ServiceName
    url: str
    """The target as a URL, without a password."""
    host: str | None
    port: int | None
    socket: str | None
    user: str
    password: str = field(repr=False)
    database: str
    session: Session
    verified: str
    """Description of what the server's certificate is verified against."""
    notes: tuple[str, ...] = ()

    @property
    def place(self) -> str:
        """The server's address as text: `on /run/mysqld/mysqld.sock`, `at db.internal:3306`."""
        if self.socket is not None:
            return f"on {self.socket}"
        return f"at {format_host_port(self.host, self.port)}"


class ConnectionLost(Exception):
    """The connection could not be opened, or ended during a request."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.message)
        self.failure = failure


_LOGIN_REQUIRED = ("NOAUTH", "DENIED", "CLIENT_ERROR unauthenticated")


def check_answered(server: MeasuredServer, refusal: str | None) -> None:
    """Raise ConnectionLost if the server answered a request with an error, for example while it loads data or has no primary.

    Redis and Memcached accept every connection, and refuse the first request if a password is missing.
    """
    address = server.place.partition(" ")[2]
    if refusal is None:
        return
    if refusal.startswith(_LOGIN_REQUIRED):
        message = f"{address} wants a password: {refusal}"
        advice = "Give one: --ask-password, --password-file, --env, or one of its variables."
        raise ConnectionLost(Failure(step="login", code="auth", message=message, advice=advice, waited_ns=None))
    message = f"{address} answered `{REQUESTS[server.service].query_name}` with an error: {refusal}"
    advice = "Wait until the server is ready, or give the account the right to this request."
    raise ConnectionLost(Failure(step="request", code="server_error", message=message, advice=advice, waited_ns=None))


def check_kind(server: MeasuredServer, identity: Identity) -> None:
    """Raise ConnectionLost if the server was named as Memcached, but reports no version. No login of Memcached would fail for
    another kind of server."""
    if server.service != "memcached" or identity.product is not None:
        return
    message = f"{server.place.partition(' ')[2]} does not answer `version` as Memcached does"
    advice = "Is it another kind of server? Name its kind: mysql://…, postgresql://… or redis://…."
    raise ConnectionLost(Failure(step="request", code="protocol", message=message, advice=advice, waited_ns=None))


def make_failure(not_opened: NotOpened) -> Failure:
    """The failure of a connection that could not be opened."""
    failure = not_opened.failure
    return Failure(
        step=not_opened.step,
        code=failure.code,
        message=failure.message,
        advice=failure.advice,
        waited_ns=not_opened.waited_ns,
    )


class PingSession:
    """A ping job of the engine: one connection at a time to one address."""

    def __init__(self, engine: EngineProcess) -> None:
        self._engine = engine

    def end(self) -> None:
        """Let the engine close the connection properly and end, even in the middle of a request."""
        self._engine.close_input()

    def open(self) -> Opened | NotOpened:
        """Open a connection and log in, after properly closing the present one, if any. Raises EngineFailed for an invalid job."""
        self._engine.send(OpenConnection())
        event = self._engine.read()
        assert isinstance(event, Opened | NotOpened), "the engine answers a command with its event"
        return event

    def ask(self, requests: Sequence[tuple[str, ...]], rounds: int, within_ns: int, at_ns: int = 0) -> Asked:
        """Send the requests one after another, `rounds` times. Raises ConnectionLost if the connection ends before all answers."""
        ping_requests = tuple(PingRequest(words=words) for words in requests)
        self._engine.send(AskInTurn(requests=ping_requests, rounds=rounds, within_ns=within_ns, at_ns=at_ns))
        return self._answer(Asked)

    def fetch(self, words: tuple[str, ...], rows: bool = True) -> Fetched:
        """Send one request and read its answer. Raises ConnectionLost."""
        self._engine.send(FetchAnswer(request=PingRequest(words=words), rows=rows))
        return self._answer(Fetched)

    def _answer(self, kind: type[EngineEvent]) -> EngineEvent:
        event = self._engine.read()
        assert isinstance(event, kind), "the engine answers a command with its event"
        failure = getattr(event, "lost", None)
        if failure is not None:
            raise ConnectionLost(
                Failure(
                    step="request", code=failure.code, message=failure.message, advice=failure.advice, waited_ns=None
                )
            )
        return event


@contextlib.contextmanager
def ping_session(server: MeasuredServer, target: Target, timeout_ns: int) -> Iterator[PingSession]:
    """The engine, ready to connect to `target`."""
    job = PingJob(
        protocol=server.service,
        target=target,
        user=server.user,
        password=server.password,
        database=server.database,
        session=server.session,
        step_timeout_ns=timeout_ns,
    )
    with EngineProcess(job, closes_connections=True) as engine:
        yield PingSession(engine)


# ---------------------------------------------------------------- the saving of a socket

_ROUNDS, _REQUESTS_PER_ROUND = 12, 25
"""Number of rounds over each transport, and of requests in each round."""
_LIMIT_NS = 2_000_000_000


def socket_saving_ns() -> int | None:
    """Measure the time in ns that a Unix socket saves on this machine over the loopback interface, by requests to a dummy server.

    The transports alternate, and the fastest request over each counts, since other load only adds time. None if the socket was not
    faster or could not be measured, for example because no file can be written. Raises EngineError.
    """
    with contextlib.suppress(OSError, EngineFailed), temporary_folder() as folder:
        return _socket_saving_ns(folder)
    return None


def _socket_saving_ns(folder: Path) -> int | None:
    dummy_server = MeasuredServer(
        service="mysql", url="", host=None, port=None, socket=None, user="howfar", password="", database="howfar",
        session=Session(multi_statements=False), verified="",
    )  # fmt: skip
    min_latencies_ns = [math.inf, math.inf]
    with contextlib.ExitStack() as cleanup:
        endpoints: tuple[Listen, ...] = (UnixTarget(path=str(folder / "s")), TcpListen(host="127.0.0.1"))
        sessions = []
        for endpoint in endpoints:
            server = cleanup.enter_context(run_null_server(NullJob(listen=endpoint), Launcher()))
            session = cleanup.enter_context(ping_session(dummy_server, server.target, _LIMIT_NS))
            if not isinstance(session.open(), Opened):
                return None
            sessions.append(session)
            # Once connected, the socket needs no name: removing it now leaves nothing behind after a kill.
            shutil.rmtree(folder, ignore_errors=True)
        for round_number in range(2 * _ROUNDS):
            index = round_number % 2
            answer = sessions[index].ask([("SELECT 1",)], _REQUESTS_PER_ROUND, _LIMIT_NS)
            min_latencies_ns[index] = min(min_latencies_ns[index], *answer.latencies_ns[0])
    socket_ns, tcp_ns = min_latencies_ns
    return round(tcp_ns - socket_ns) if tcp_ns > socket_ns else None
