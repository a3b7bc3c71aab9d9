"""What opening connections costs: too many of them, and clients that read a bundle of certificates for each."""

from __future__ import annotations

from howfar.doctor.checks.context import Context, Draft, do, format_interval
from howfar.doctor.findings import Client, Floor, Gain, Kind, Severity, Transport
from howfar.doctor.proposals import family, keeping_connections, naming_an_authority

HANDSHAKE_SHARE = 0.01
"""Of the time, spent in handshakes. Less is no reason to change an application."""
_MOST_STATEMENTS = 100
"""Per connection. A connection that carries more is not opened for each use."""
FEWEST_LOOKS = 2
"""A single look with the bundle open may be a program that starts."""
_FEWEST_CONNECTS = 2
_NAMES = {
    Transport.SOCKET: "the socket",
    Transport.TCP: "TCP",
    Transport.TLS: "TLS",
    Transport.SOCKET_TLS: "TLS in the socket",
}


def connect_churn(context: Context) -> list[Draft]:
    """Connections that are opened for each use."""
    rates, floor = context.server.rates, _floor_in_use(context)
    if rates is None or floor is None or floor.connect_ns is None or rates.connects == 0:
        return []
    share = rates.connects * floor.connect_ns.median / 1e9
    if share < HANDSHAKE_SHARE or rates.statements / rates.connects > _MOST_STATEMENTS:
        return []
    using = _reconnecting(context)
    who = do(using, "opens", "open") if using else "clients open"
    work = f"{rates.statements:.3g} {context.server.kind.counts}/s"
    by = f"{format_interval(floor.connect_ns)} per connect over {_NAMES[floor.transport]}"
    return [
        Draft(
            f"{who} a new connection for each use: {rates.connects:.3g} connects/s and {work}",
            keeping_connections(context.server.kind, using),
            Gain(
                says=f"handshakes take about {share * 100:.2g} % of one CPU or of a client's waiting time",
                basis=f"{by} with howfar's own client, without a network",
                saves_ns=floor.connect_ns,
            ),
        )
    ]


def _reconnecting(context: Context) -> list[Client]:
    """Clients that alone made half of the connects that the server counted."""
    assert context.server.rates is not None, "checked before"
    half = context.server.rates.connects * context.seconds / 2
    return [client for client in context.server.clients if client.connects_seen - client.connections >= max(half, 1)]


def _floor_in_use(context: Context) -> Floor | None:
    """The floor of the transport that reconnecting clients use, else of the cheapest one."""
    server, rates = context.server, context.server.rates
    if (
        rates is not None
        and server.kind is Kind.MYSQL
        and rates.tls_connects
        and rates.tls_connects >= 0.9 * rates.connects
    ):
        return server.floor(Transport.TLS, Transport.SOCKET_TLS)
    using = _reconnecting(context) if rates is not None else []
    if any(client.by == "tcp" for client in using):
        encrypted = any(client.tls for client in using)
        return server.floor(*((Transport.TLS,) if encrypted else ()), Transport.TCP, Transport.TLS)
    return server.floor(Transport.SOCKET, Transport.TCP, Transport.TLS)


def authority_bundle(context: Context) -> list[Draft]:
    """MySQL clients that read the system's whole bundle of certificate authorities for each connect.

    Libraries do so when TLS is possible and no authority is named. Programs read it for HTTPS too; PHP reads none.
    """
    if context.server.kind is not Kind.MYSQL or context.server.bundle_ns is None:
        return []
    using = [
        client
        for client in context.server.clients
        if client.bundle_looks >= FEWEST_LOOKS
        and client.connects_seen > client.connections
        and family(client.program) != "php"
    ]
    sure = [client for client in using if _coincides(client)]
    unsure = [client for client in using if client not in sure]
    return [_bundle_draft(context, clients, clients is sure) for clients in (sure, unsure) if clients]


def _coincides(client: Client) -> bool:
    """Most readings of the bundle come with a new connection to this server."""
    return client.bundle_connects >= _FEWEST_CONNECTS and 2 * client.bundle_connects >= client.bundle_reads


def _bundle_draft(context: Context, using: list[Client], sure: bool) -> Draft:
    price = context.server.bundle_ns
    assert price is not None, "checked before"
    most = min(max(client.bundle_looks for client in using), context.looks)
    says = f"{do(using, 'was', 'were')} reading the system's CA bundle at {most} of {context.looks} looks"
    gain = Gain(
        says=f"{format_interval(price)} of client CPU per {'connect' if sure else 'reading'}",
        basis="reading that bundle here, six times",
        saves_ns=price,
    )
    if not sure:
        return Draft(f"{says}; whether for this server is unknown", (), gain, Severity.NOTE)
    changes = naming_an_authority(using)
    severity = Severity.CHANGE if changes else Severity.NOTE
    return Draft(f"{says}, next to new connections: no authority is configured", changes, gain, severity)
