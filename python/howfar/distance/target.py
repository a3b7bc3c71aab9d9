"""Makes a `MeasuredServer` from a complete address: determines the kind of server, and the session to use.

If the port does not determine the kind, each protocol is tried in turn. Servers do not count or log these attempts as errors: a
MySQL server sends the first message, after which the login is completed; the other servers have received nothing that they count.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import replace

from howfar.address import Login, ServerAddress, SslMode
from howfar.contract.ping_messages import NotOpened, Opened, Session, Target, Tls
from howfar.distance.record import NOT_VERIFIED, Failure
from howfar.distance.session import ConnectionLost, MeasuredServer, PingSession, make_failure, ping_session
from howfar.engine.tls import tls_settings
from howfar.services import SERVICES, ServiceName


def make_server(login: Login, service: ServiceName) -> MeasuredServer:
    """Make the server of kind `service` at an address. Raises UsageError for a session that is not possible."""
    address = login.address
    return MeasuredServer(
        service=service,
        url=format_target(address, service),
        host=None if address.socket is not None else address.hostaddr or address.host or "localhost",
        port=None if address.socket is not None else address.port,
        socket=address.socket,
        user=address.user or "",
        password=login.password.reveal(),
        database=_database(address, service),
        session=_session(address, service),
        verified=_describe_verification(address),
        notes=login.notes,
    )


def format_target(address: ServerAddress, service: ServiceName) -> str:
    """Format an address as a URL without a password: `mysql://app@db.internal:3306/shop`."""
    user = f"{address.user}@" if address.user else ""
    database = address.database or ("" if address.database_number is None else str(address.database_number))
    if address.socket is not None:
        return f"{service}://{user}{address.socket}" + (f"?db={database}" if database else "")
    return f"{service}://{user}{address.location}" + (f"/{database}" if database else "")


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
    """Choose TLS as the server's own client does: by default, MySQL's and PostgreSQL's encrypt over TCP if the server offers it."""
    default: SslMode = "PREFERRED" if service in ("mysql", "postgresql") and address.socket is None else "DISABLED"
    return tls_settings(address, address.ssl_mode or default, resumption=False)


def _describe_verification(address: ServerAddress) -> str:
    authority = f"the CA in {address.ssl_ca}"
    if address.ssl_mode == "VERIFY_IDENTITY":
        return f"{authority} and the name {address.host}" if address.ssl_ca else "the password"
    return authority if address.ssl_mode == "VERIFY_CA" else NOT_VERIFIED


# ---------------------------------------------------------------- a port that does not determine the kind of its server

_PROBE_TIMEOUT_NS = 2_000_000_000
"""Timeout for the first answer in each protocol: a server of another kind may send nothing."""


DETECTION_ORDER: tuple[ServiceName, ...] = ("mysql", "postgresql", "redis", "memcached")


class NoConnection(Exception):
    """No connection could be made, so the kind of server cannot be determined."""


def detect(
    make_server_of_kind: Callable[[ServiceName], MeasuredServer], target: Target, timeout_ns: int
) -> MeasuredServer | Failure:
    """Detect the kind of a server. Returns the server, or a Failure if it is of no supported kind. Raises NoConnection, EngineError.

    `make_server_of_kind` returns the server as one of the given kind, with that kind's account and session.
    """
    probe_timeout_ns = min(timeout_ns, _PROBE_TIMEOUT_NS)
    other_failure: Failure | None = None
    refusal_codes = set[str]()
    for service in DETECTION_ORDER:
        server = make_server_of_kind(service)
        refusal = _find_mismatch(server, target, probe_timeout_ns)
        if refusal is None:
            return server
        refusal_codes.add(refusal.code)
        if refusal.code == _OTHER_PROTOCOL:
            other_failure = refusal
    address = server.place.partition(" ")[2]
    if other_failure is None and _answers_tls(server, target, probe_timeout_ns):
        return _other_protocol_failure(
            f"{address} expects TLS from the first byte", "Begin the address with rediss:// or memcacheds://."
        )
    behaviour = "does not speak the protocol"
    if refusal_codes == {"stalled"}:
        behaviour = f"takes connections and said nothing for {probe_timeout_ns / 1e9:g} s to a client"
    elif refusal_codes <= {"server_gone", "connect"}:
        behaviour = "takes connections and closes them without an answer to a client"
    return other_failure or _protocol_failure(
        f"{address} {behaviour} of MySQL, PostgreSQL, Redis or Memcached",
        "Name the kind of server: mysql://…, postgresql://…, redis://… or memcached://….",
    )


def other_protocol(server: MeasuredServer, target: Target, timeout_ns: int) -> Failure | None:
    """Find the protocol of a server that sent nothing in the requested one. Returns a Failure that names the protocol, or None if it
    is unknown. MySQL is not tried: its server sends the first message, so it would have been recognized already. Raises
    EngineError."""
    probe_timeout_ns = min(timeout_ns, _OTHER_PROBE_TIMEOUT_NS)
    begins_with_tls = _begins_with_tls(server)
    services: tuple[ServiceName, ...] = ("postgresql", "redis", "memcached")
    if not begins_with_tls:
        # Redis and Memcached would have answered each other's request.
        excluded = ("redis", "memcached") if server.service in ("redis", "memcached") else ()
        services = tuple(service for service in services if service != server.service and service not in excluded)
    address = server.place.partition(" ")[2]
    for service in services:
        with contextlib.suppress(NoConnection):
            if _find_mismatch(_as_other_kind(server, service), target, probe_timeout_ns) is None:
                message = f"{address} speaks the protocol of {SERVICES[service].label}"
                tls_text = ", without TLS" if begins_with_tls else ""
                return _other_protocol_failure(f"{message}{tls_text}", f"Begin the address with {service}://.")
    if not begins_with_tls and _answers_tls(server, target, probe_timeout_ns):
        advice = _DIRECT_TLS_ADVICE.get(server.service, "MySQL never begins that way: correct the port.")
        return _other_protocol_failure(f"{address} expects TLS from the first byte", advice)
    return None


_OTHER_PROTOCOL = "other_protocol"
"""The engine's code for a server whose first bytes are those of another protocol."""
_OTHER_PROBE_TIMEOUT_NS = 1_000_000_000
_DIRECT_TLS_ADVICE: dict[ServiceName, str] = {
    "redis": "Begin the address with rediss://.",
    "memcached": "Begin the address with memcacheds://.",
    "postgresql": "Add ?sslmode=require&sslnegotiation=direct to an address of PostgreSQL.",
}
"""Advice, by kind of server, if a server expects TLS from the first byte."""


def _begins_with_tls(server: MeasuredServer) -> bool:
    tls = server.session.tls
    return tls is not None and (server.service in ("redis", "memcached") or tls.direct)


def _other_protocol_failure(message: str, advice: str) -> Failure:
    return Failure(step="request", code=_OTHER_PROTOCOL, message=message, advice=advice, waited_ns=None)


def _protocol_failure(message: str, advice: str) -> Failure:
    return Failure(step="request", code="protocol", message=message, advice=advice, waited_ns=None)


def _as_other_kind(server: MeasuredServer, service: ServiceName, tls: Tls | None = None) -> MeasuredServer:
    """Return the server as one of another kind, without the password, which is not meant for that kind."""
    session = Session(tls=tls, multi_statements=False)
    return replace(server, service=service, user=server.user or "howfar", password="", database="", session=session)


def _answers_tls(server: MeasuredServer, target: Target, probe_timeout_ns: int) -> bool:
    """Whether a TLS handshake succeeds. With TLS 1.3, it succeeds even if the server requires a client certificate."""
    with ping_session(_as_other_kind(server, "redis", Tls(resumption=False)), target, probe_timeout_ns) as session:
        return isinstance(session.open(), Opened)


def _find_mismatch(server: MeasuredServer, target: Target, probe_timeout_ns: int) -> Failure | None:
    """Return the reason why the server is not of the kind `server.service`; None if it is. Raises NoConnection."""
    with ping_session(server, target, probe_timeout_ns) as session:
        opened = session.open()
        if isinstance(opened, NotOpened):
            if opened.step == "connect":
                raise NoConnection
            # A server that refuses the login, or requires TLS, has answered in this protocol.
            return None if opened.failure.code in ("auth", "tls", "server_error") else make_failure(opened)
        return None if server.service in ("mysql", "postgresql") else _find_mismatch_by_ping(server, session)


def _find_mismatch_by_ping(server: MeasuredServer, session: PingSession) -> Failure | None:
    """Like `_find_mismatch`, for Redis and Memcached, which accept connections without a greeting: only a ping identifies them."""
    try:
        answer = session.fetch(())
    except ConnectionLost as lost:
        return lost.failure
    text = (answer.rows[0][0] if answer.rows and answer.rows[0] else "") or ""
    is_expected = text.startswith("VERSION ")
    if server.service == "redis":
        is_expected = text == "PONG" or answer.refusal is not None  # such as NOAUTH, LOADING, MASTERDOWN
    return None if is_expected else _protocol_failure(f"{server.place} answers no ping", "Name the kind of server.")
