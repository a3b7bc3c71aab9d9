"""Determines the path of a connection. Each statement has its evidence; nothing is stated without evidence."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from ipaddress import ip_address

from howfar.contract.ping_messages import Opened
from howfar.distance.record import Fact, PathFacts, PathKind
from howfar.distance.requests import Identity, named_proxy
from howfar.doctor.peer_location import PeerLocation, tcp_peer, unix_peer

_PING_FACTOR = 2.0
_MIN_EXCESS_NS = 200_000
"""If a request takes more than twice as long as a ping, and longer by more than this, something nearer probably answers the pings."""


def locate(opened: Opened) -> PeerLocation:
    """Location of the other end of an open connection, as far as this machine's procfs shows it."""
    if opened.local_address is None:
        return unix_peer(opened.peer_address, opened.peer_pid or 0)
    return tcp_peer(_endpoint(opened.local_address), _endpoint(opened.peer_address))


def path_facts(
    opened: Opened, location: PeerLocation, identity: Identity, query_ns: Sequence[int], ping_ns: Sequence[int]
) -> PathFacts:
    """Facts about the path of an open connection, each with its evidence. No I/O."""
    kind, statement, evidence = _classify(opened, location)
    facts = (
        *_proxy_facts(opened, identity),
        *_forwarder_facts(location),
        *_connection_id_facts(opened, identity),
        *_address_facts(opened, identity),
        *_ping_facts(query_ns, ping_ns),
    )
    return PathFacts(
        kind=kind,
        says=statement,
        evidence=evidence,
        mtu=opened.path_mtu,
        between=facts,
        peer_address=opened.peer_address,
        local_address=opened.local_address,
    )


def _classify(opened: Opened, location: PeerLocation) -> tuple[PathKind, str, str]:
    in_other_namespace, evidence = location.same_namespace.holds is False, location.same_namespace.evidence
    if opened.local_address is None:
        return (
            "socket",
            "a Unix socket into a container" if in_other_namespace else "a Unix socket of this machine",
            evidence,
        )
    if location.here.holds is None:
        return "unknown", location.here.evidence, location.here.evidence
    if not location.here.holds:
        return "other_machine", "another machine", location.here.evidence
    if in_other_namespace:
        return "passed_on", "this machine, into another network namespace (a container's published port?)", evidence
    if ip_address(host_of(opened.peer_address)).is_loopback:
        return "loopback", "this machine's loopback interface", location.here.evidence
    return "this_machine", "an address of this machine", location.here.evidence


def _endpoint(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    return host.strip("[]"), int(port)


def _forwarder_facts(location: PeerLocation) -> Iterator[Fact]:
    if location.passed_on == "forwarder" and location.listener is not None:
        name = location.listener.name
        yield Fact(what=name, says=f"{name} passes the connection on", evidence=f"{location.listens} listens there")


def host_of(endpoint: str) -> str:
    """The host of `host:port`, without brackets, zone and the prefix of IPv4-mapped addresses."""
    host = endpoint.rpartition(":")[0].strip("[]").partition("%")[0]
    return host.removeprefix("::ffff:") if "." in host else host


def _is_number(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True


def _proxy_facts(opened: Opened, identity: Identity) -> Iterator[Fact]:
    name = named_proxy(opened.server_version or "") or identity.between
    if name is not None:
        yield Fact(what=name, says=f"{name} answers", evidence="the version that it shows says so")


def _connection_id_facts(opened: Opened, identity: Identity) -> Iterator[Fact]:
    at_login, current = opened.connection_id, identity.connection_id
    # MySQL's greeting has only the lower 32 bits of the connection ID.
    if at_login is not None and current is not None and at_login != current & 0xFFFF_FFFF:
        yield Fact(
            what="a pooler or proxy",
            says="a pooler or proxy is in between",
            evidence=f"the connection ID was {at_login} at login, but the server reports {current}",
        )


def _address_facts(opened: Opened, identity: Identity) -> Iterator[Fact]:
    """Facts from comparing both ends of the connection as the server sees them with our own view."""
    local, seen_address, peer = opened.local_address, identity.client_address, opened.peer_address
    if local is None:
        if seen_address is not None:
            yield Fact(
                what="a forwarder",
                says="a program passes the socket on",
                evidence=f"the server sees a TCP connection from {seen_address}",
            )
        return
    if identity.by_socket:
        yield Fact(
            what="a proxy",
            says="a program passes the connection on",
            evidence="the server sees it come over its Unix socket",
        )
    elif seen_address is not None:
        host, port = host_of(seen_address), seen_address.rpartition(":")[2]
        local_host, local_port = host_of(local), local.rpartition(":")[2]
        if port != local_port:
            yield Fact(
                what="a proxy or NAT",
                says="a proxy or NAT is in between",
                evidence=f"the server sees the connection come from {seen_address}, it left here from {local}",
            )
        elif _is_number(host) and host != local_host:
            yield Fact(
                what="NAT",
                says="NAT is in between",
                evidence=f"the server sees the address {host}, here it is {local_host}",
            )
    reached_address = identity.server_address
    if reached_address is not None and (host_of(reached_address), reached_address.rpartition(":")[2]) != (
        host_of(peer),
        peer.rpartition(":")[2],
    ):
        yield Fact(
            what="a proxy or NAT",
            says="a proxy or NAT is in between",
            evidence=f"the server was reached at {reached_address}, the connection was made to {peer}",
        )


def _ping_facts(query_ns: Sequence[int], ping_ns: Sequence[int]) -> Iterator[Fact]:
    if not query_ns or not ping_ns:
        return
    query, ping = statistics.median(query_ns), statistics.median(ping_ns)
    if query > _PING_FACTOR * ping and query - ping > _MIN_EXCESS_NS:
        yield Fact(
            what=None,
            says="something nearer than the server may answer pings",
            evidence=f"a ping takes {ping / 1e6:.3g} ms, a request {query / 1e6:.3g} ms",
        )
