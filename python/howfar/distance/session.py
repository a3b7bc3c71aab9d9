"""One server to measure, and the engine that times one connection to it at a time."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from howfar.distance.record import Failure
from howfar.engine.messages import (
    Asked,
    AskInTurn,
    FetchAnswer,
    Fetched,
    NotOpened,
    OpenConnection,
    Opened,
    PingJob,
    PingRequest,
    Session,
    Target,
)
from howfar.engine.process import EngineProcess
from howfar.services import ServiceName

EngineEvent = TypeVar("EngineEvent", bound=Asked | Fetched)


@dataclass(frozen=True)
class Server:
    """One server and the account, ready to be measured. The password is never printed."""

    service: ServiceName
    shown: str
    """The target as it was given, without a password."""
    host: str | None
    port: int | None
    socket: str | None
    user: str
    password: str = field(repr=False)
    database: str
    session: Session
    verified: str
    """What a certificate is verified against, in words."""
    notes: tuple[str, ...] = ()

    @property
    def place(self) -> str:
        """`on /run/mysqld/mysqld.sock`, `at db.internal:3306`."""
        if self.socket is not None:
            return f"on {self.socket}"
        host = f"[{self.host}]" if self.host is not None and ":" in self.host else self.host
        return f"at {host}:{self.port}"


class Lost(Exception):
    """The connection ended during a request."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.message)
        self.failure = failure


class PingSession:
    """A ping job of the engine: one connection at a time to one address."""

    def __init__(self, engine: EngineProcess) -> None:
        self._engine = engine

    def open(self) -> Opened | NotOpened:
        """Open a connection and log in, after the present one, if any, has said goodbye. Raises EngineFailed for a bad job."""
        self._engine.send(OpenConnection())
        event = self._engine.read()
        assert isinstance(event, Opened | NotOpened), "the engine answers a command with its event"
        return event

    def ask(self, requests: Sequence[tuple[str, ...]], rounds: int, within_ns: int, at_ns: int = 0) -> Asked:
        """Requests in turn, for so many rounds. Raises Lost when the connection ended; what came before it is lost, too."""
        asked = tuple(PingRequest(words=words) for words in requests)
        self._engine.send(AskInTurn(requests=asked, rounds=rounds, within_ns=within_ns, at_ns=at_ns))
        return self._answer(Asked)

    def fetch(self, words: tuple[str, ...], rows: bool = True) -> Fetched:
        """One request and its answer. Raises Lost."""
        self._engine.send(FetchAnswer(request=PingRequest(words=words), rows=rows))
        return self._answer(Fetched)

    def _answer(self, kind: type[EngineEvent]) -> EngineEvent:
        event = self._engine.read()
        assert isinstance(event, kind), "the engine answers a command with its event"
        lost = getattr(event, "lost", None)
        if lost is not None:
            raise Lost(
                Failure(step="request", code=lost.code, message=lost.message, advice=lost.advice, waited_ns=None)
            )
        return event


@contextlib.contextmanager
def ping_session(server: Server, target: Target, timeout_ns: int) -> Iterator[PingSession]:
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
    with EngineProcess(job) as engine:
        yield PingSession(engine)
