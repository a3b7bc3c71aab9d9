"""From a complete address to a server that can be measured: its kind, and the session to have with it.

At a port that does not say the kind, each kind is spoken to in turn. No handshake is abandoned: MySQL speaks first, and is then logged
in to; the others have heard nothing that they count or log.
"""

from __future__ import annotations

from collections.abc import Callable

from howfar.address import Login, ServerAddress, SslMode
from howfar.distance.record import NOT_VERIFIED
from howfar.distance.session import Lost, PingSession, Server, ping_session
from howfar.engine.messages import NotOpened, Session, Target, Tls
from howfar.engine.tls import tls_of
from howfar.services import ServiceName


def server_of(login: Login, service: ServiceName) -> Server:
    """Raises UsageError for a session that cannot be had."""
    address = login.address
    return Server(
        service=service,
        shown=shown_target(address, service),
        host=None if address.socket is not None else address.hostaddr or address.host or "localhost",
        port=None if address.socket is not None else address.port,
        socket=address.socket,
        user=address.user or "",
        password=login.password.reveal(),
        database=_database(address, service),
        session=_session(address, service),
        verified=_verified(address),
        notes=login.notes,
    )


def shown_target(address: ServerAddress, service: ServiceName) -> str:
    """The address as a URL without a password: `mysql://app@db.internal:3306/shop`."""
    user = f"{address.user}@" if address.user else ""
    database = address.database or ("" if address.database_number is None else str(address.database_number))
    if address.socket is not None:
        return f"{service}://{user}{address.socket}" + (f"?db={database}" if database else "")
    return f"{service}://{user}{address.where}" + (f"/{database}" if database else "")


def _database(address: ServerAddress, service: ServiceName) -> str:
    if service == "redis":
        return "" if not address.database_number else str(address.database_number)
    return address.database or ""


def _session(address: ServerAddress, service: ServiceName) -> Session:
    return Session(
        tls=_tls(address, service),
        fetch_server_key=address.fetch_server_key is True,
        allow_cleartext_password=address.allow_cleartext_password is True,
        options=address.options or "",
        server_key_file=address.server_key_file,
        multi_statements=False,
    )


def _tls(address: ServerAddress, service: ServiceName) -> Tls | None:
    """As the server's own client has it: where nothing is said, MySQL and PostgreSQL encrypt if the server offers it over TCP."""
    default: SslMode = "PREFERRED" if service in ("mysql", "postgresql") and address.socket is None else "DISABLED"
    return tls_of(address, address.ssl_mode or default, resumption=False)


def _verified(address: ServerAddress) -> str:
    authority = f"the CA in {address.ssl_ca}"
    if address.ssl_mode == "VERIFY_IDENTITY":
        return f"{authority} and the name {address.host}" if address.ssl_ca else "the password"
    return authority if address.ssl_mode == "VERIFY_CA" else NOT_VERIFIED


# ---------------------------------------------------------------- a port that does not say of which kind its server is

_WAIT_NS = 2_000_000_000
"""For the first word of each kind; a server of another kind waits in silence."""


ORDER: tuple[ServiceName, ...] = ("mysql", "postgresql", "redis", "memcached")


class NothingListens(Exception):
    """No connection could be made, of whatever kind the server is."""


def detect(as_kind: Callable[[ServiceName], Server], target: Target, timeout_ns: int) -> Server | None:
    """The server, of the kind that answers; None: none of those that are measured. `as_kind`: the server if it were of a kind, with
    that kind's account and session. Raises NothingListens, EngineError."""
    within_ns = min(timeout_ns, _WAIT_NS)
    return next((server for service in ORDER if _answers(server := as_kind(service), target, within_ns)), None)


def _answers(server: Server, target: Target, within_ns: int) -> bool:
    with ping_session(server, target, within_ns) as session:
        opened = session.open()
        if isinstance(opened, NotOpened):
            if opened.step == "connect":
                raise NothingListens
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
        return text == "PONG" or answer.refusal is not None  # such as NOAUTH, LOADING, MASTERDOWN
    return (text or "").startswith("VERSION ")
