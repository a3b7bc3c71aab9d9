"""Connections that are opened for each use: handshakes that take more than a hundredth of the time."""

from __future__ import annotations

from howfar.doctor.checks.seen import Made, Seen, do, in_words
from howfar.doctor.findings import Client, Floor, Gain, Kind, Transport
from howfar.doctor.lines.clients import keeping_connections

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


def check(seen: Seen) -> list[Made]:
    rates = seen.server.rates
    floor = _cheapest(seen)
    if rates is None or floor is None or floor.connect_ns is None or rates.connects == 0:
        return []
    share = rates.connects * floor.connect_ns.median / 1e9
    if share < SHARE or rates.statements / rates.connects > _STATEMENTS:
        return []
    using = _who(seen)
    who = do(using, "makes", "make") if using else "clients make"
    price = f"{in_words(floor.connect_ns)} a connect by {_NAMES[floor.transport]} with howfar's own client, without a network"
    return [
        Made(
            f"{who} a new connection for each use: {rates.connects:.3g} connects and {rates.statements:.3g} statements a second",
            keeping_connections(seen.server.kind, using),
            Gain(
                says=f"handshakes take about {share * 100:.2g} % of one processor's time or of somebody's waiting",
                basis=price,
                saves_ns=floor.connect_ns,
            ),
        )
    ]


def _who(seen: Seen) -> list[Client]:
    """Who alone made half of the connects that the server counted. Whoever came again once is not accused of the rest."""
    assert seen.server.rates is not None, "asked before"
    half = seen.server.rates.connects * seen.seconds / 2
    return [client for client in seen.server.clients if client.connects_seen - client.connections >= max(half, 1)]


def _cheapest(seen: Seen) -> Floor | None:
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
