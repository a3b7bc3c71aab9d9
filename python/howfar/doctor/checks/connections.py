"""Connections that are opened for each use: handshakes that take more than a hundredth of the time."""

from __future__ import annotations

from howfar.doctor.checks.context import Context, Draft, do, format_interval
from howfar.doctor.findings import Client, Floor, Gain, Kind, Severity, Transport
from howfar.doctor.proposals import family, keeping_connections, naming_an_authority

_NAMES = {
    Transport.SOCKET: "the socket",
    Transport.TCP: "TCP",
    Transport.TLS: "TLS",
    Transport.SOCKET_TLS: "TLS in the socket",
}
SHARE = 0.01
"""Of a second, spent in handshakes each second. Less is no reason to change an application."""
_STATEMENTS = 100
"""A connection that asks more than this is not opened for each use; then it is their number that makes the rate."""


def connect_churn(seen: Context) -> list[Draft]:
    rates = seen.server.rates
    floor = _cheapest(seen)
    if rates is None or floor is None or floor.connect_ns is None or rates.connects == 0:
        return []
    share = rates.connects * floor.connect_ns.median / 1e9
    if share < SHARE or rates.statements / rates.connects > _STATEMENTS:
        return []
    using = _who(seen)
    who = do(using, "makes", "make") if using else "clients make"
    price = f"{format_interval(floor.connect_ns)} a connect by {_NAMES[floor.transport]} with howfar's own client, without a network"
    return [
        Draft(
            f"{who} a new connection for each use: {rates.connects:.3g} connects and {rates.statements:.3g} statements a second",
            keeping_connections(seen.server.kind, using),
            Gain(
                says=f"handshakes take about {share * 100:.2g} % of one processor's time or of somebody's waiting",
                basis=price,
                saves_ns=floor.connect_ns,
            ),
        )
    ]


def _who(seen: Context) -> list[Client]:
    """Who alone made half of the connects that the server counted. Whoever came again once is not accused of the rest."""
    assert seen.server.rates is not None, "asked before"
    half = seen.server.rates.connects * seen.seconds / 2
    return [client for client in seen.server.clients if client.connects_seen - client.connections >= max(half, 1)]


def _cheapest(seen: Context) -> Floor | None:
    """Of how those who make them come, else of how anybody may."""
    rates = seen.server.rates
    if (
        seen.server.kind is Kind.MYSQL
        and rates is not None
        and rates.tls_connects
        and rates.tls_connects >= 0.9 * rates.connects
    ):
        return seen.server.floor(Transport.TLS, Transport.SOCKET_TLS)
    using = _who(seen) if rates is not None else []
    if any(client.by == "tcp" for client in using):
        encrypted = any(client.tls for client in using)
        return seen.server.floor(*((Transport.TLS,) if encrypted else ()), Transport.TCP, Transport.TLS)
    return seen.server.floor(Transport.SOCKET, Transport.TCP, Transport.TLS)


FEWEST_LOOKS = 2
"""One may be a program that starts."""
_FEWEST_CONNECTS = 2


def authority_bundle(seen: Context) -> list[Draft]:
    """Of MySQL alone. Programs read the bundle for any HTTPS too; PHP reads none for MySQL."""
    if seen.server.kind is not Kind.MYSQL or seen.server.bundle_ns is None:
        return []
    using = [
        client
        for client in seen.server.clients
        if client.bundle_looks >= FEWEST_LOOKS
        and client.connects_seen > client.connections
        and family(client.program) != "php"
    ]
    sure = [client for client in using if _is_for_connects(client)]
    unsure = [client for client in using if client not in sure]
    return [_made(seen, clients, clients is sure) for clients in (sure, unsure) if clients]


def _is_for_connects(client: Client) -> bool:
    """Where a program reads it for something else, a new connection is beside it now and then, not mostly."""
    return client.bundle_connects >= _FEWEST_CONNECTS and 2 * client.bundle_connects >= client.bundle_reads


def _made(seen: Context, using: list[Client], sure: bool) -> Draft:
    assert seen.server.bundle_ns is not None, "asked before"
    most = min(max(client.bundle_looks for client in using), seen.looks)
    says = f"{do(using, 'was', 'were')} reading the machine's bundle of certificate authorities at {most} of {seen.looks} looks, "
    price = format_interval(seen.server.bundle_ns)
    gain = Gain(
        says=f"{price} of its CPU at each {'connect' if sure else 'reading'}",
        basis="reading that bundle here, six times",
        saves_ns=seen.server.bundle_ns,
    )
    if not sure:
        return Draft(f"{says}whether for this server cannot be told", (), gain, Severity.NOTE)
    changes = naming_an_authority(using)
    severity = Severity.CHANGE if changes else Severity.NOTE
    return Draft(f"{says}next to new connections: no authority of its own is named", changes, gain, severity)
