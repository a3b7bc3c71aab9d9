"""Which kind of server answers at an address whose port does not say so: each kind is spoken to in turn.

No handshake is abandoned: MySQL speaks first, and is then logged in to; the others have heard nothing that they count or log.
"""

from __future__ import annotations

from collections.abc import Callable

from howfar.distance.session import Lost, PingSession, Server, ping_session
from howfar.engine.messages import NotOpened, Target
from howfar.services import ServiceName

_WAIT_NS = 2_000_000_000
"""For the first word of each kind; a server of another kind waits in silence."""


ORDER: tuple[ServiceName, ...] = ("mysql", "postgresql", "redis", "memcached")


def detect(as_kind: Callable[[ServiceName], Server], target: Target) -> Server | None:
    """The server, of the kind that answers; None: none of those that are measured. `as_kind`: the server if it were of a kind, with
    that kind's account and session. Raises EngineError."""
    return next((server for service in ORDER if _answers(server := as_kind(service), target)), None)


def _answers(server: Server, target: Target) -> bool:
    with ping_session(server, target, _WAIT_NS) as session:
        opened = session.open()
        if isinstance(opened, NotOpened):
            # A server that refuses the login, or wants TLS, is of the kind that was spoken to.
            return opened.failure.code in ("auth", "tls", "server_error")
        return server.service in ("mysql", "postgresql") or _answers_ping(server.service, session)


def _answers_ping(service: ServiceName, session: PingSession) -> bool:
    """Redis and Memcached let anybody in without a word: what they answer to their ping tells them apart."""
    try:
        answer = session.fetch(())
    except Lost:
        return False
    text = answer.rows[0][0] if answer.rows and answer.rows[0] else ""
    if service == "redis":
        return text == "PONG" or (answer.refusal or "").startswith(("NOAUTH", "DENIED", "LOADING"))
    return (text or "").startswith("VERSION ")
