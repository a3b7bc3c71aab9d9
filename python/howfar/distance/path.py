"""Determines the path of a connection, with the evidence for each statement about it."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from ipaddress import ip_address

from howfar.contract.ping_messages import Opened
from howfar.distance.record import Fact, PathFacts, PathKind
from howfar.distance.requests import Identity, find_proxy_name
from howfar.doctor.peer_location import PeerLocation, locate_tcp_peer, locate_unix_peer

_PING_FACTOR = 2.0
_MIN_EXCESS_NS = 200_000
"""If a request takes more than twice as long as a ping, and longer by more than this, something nearer than the server probably
answers the pings."""


def locate_peer(opened: Opened) -> PeerLocation:
    """Locate the other end of an open connection, as far as this machine's procfs shows it."""
    if opened.local_address is None:
        return locate_unix_peer(opened.peer_address, opened.peer_pid or 0)
    return locate_tcp_peer(_parse_endpoint(opened.local_address), _parse_endpoint(opened.peer_address))


def path_facts(
    opened: Opened, location: PeerLocation, identity: Identity, query_ns: Sequence[int], ping_ns: Sequence[int]
) -> PathFacts:
    """Collect facts about the path of an open connection, each with its evidence. No I/O."""
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
        text=statement,
        evidence=evidence,
        mtu=opened.path_mtu,
        between=facts,
        peer_address=opened.peer_address,
        local_address=opened.local_address,
    )


def _classify(opened: Opened, location: PeerLocation) -> tuple[PathKind, str, str]:
    is_in_other_namespace, evidence = location.same_namespace.is_true is False, location.same_namespace.evidence
    if opened.local_address is None:
        return (
            "socket",
            "a Unix socket into a container" if is_in_other_namespace else "a Unix socket of this machine",
            evidence,
        )
    if location.on_this_machine.is_true is None:
        return "unknown", location.on_this_machine.evidence, location.on_this_machine.evidence
    if not location.on_this_machine.is_true:
        return "other_machine", "another machine", location.on_this_machine.evidence
    if is_in_other_namespace:
        return "passed_on", "this machine, into another network namespace (a container's published port?)", evidence
    if ip_address(endpoint_host(opened.peer_address)).is_loopback:
        return "loopback", "this machine's loopback interface", location.on_this_machine.evidence
    return "this_machine", "an address of this machine", location.on_this_machine.evidence


def _parse_endpoint(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    return host.strip("[]"), int(port)


def _forwarder_facts(location: PeerLocation) -> Iterator[Fact]:
    if location.forwarded_by == "forwarder" and location.listener is not None:
        name = location.listener.name
        yield Fact(
            what=name,
            text=f"{name} passes the connection on",
            evidence=f"{location.listener_description} listens there",
        )


def endpoint_host(endpoint: str) -> str:
    """Return the host of `host:port`, without brackets, zone and the prefix of IPv4-mapped addresses."""
    host = endpoint.rpartition(":")[0].strip("[]").partition("%")[0]
    return host.removeprefix("::ffff:") if "." in host else host


def _is_number(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True


def _proxy_facts(opened: Opened, identity: Identity) -> Iterator[Fact]:
    name = find_proxy_name(opened.server_version or "") or identity.proxy_name
    if name is not None:
        yield Fact(what=name, text=f"{name} answers", evidence="the version that it shows says so")


def _connection_id_facts(opened: Opened, identity: Identity) -> Iterator[Fact]:
    login_id, current_id = opened.connection_id, identity.connection_id
    # MySQL's greeting has only the lower 32 bits of the connection ID.
    if login_id is not None and current_id is not None and login_id != current_id & 0xFFFF_FFFF:
        yield Fact(
            what="a pooler or proxy",
            text="a pooler or proxy is in between",
            evidence=f"the connection ID was {login_id} at login, but the server reports {current_id}",
        )


def _address_facts(opened: Opened, identity: Identity) -> Iterator[Fact]:
    """Compare both ends of the connection as the server sees them with both ends as this machine sees them."""
    local_address, client_address, peer_address = opened.local_address, identity.client_address, opened.peer_address
    if local_address is None:
        if client_address is not None:
            yield Fact(
                what="a forwarder",
                text="a program passes the socket on",
                evidence=f"the server sees a TCP connection from {client_address}",
            )
        return
    if identity.is_by_socket:
        yield Fact(
            what="a proxy",
            text="a program passes the connection on",
            evidence="the server sees it come over its Unix socket",
        )
    elif client_address is not None:
        client_host, client_port = endpoint_host(client_address), client_address.rpartition(":")[2]
        local_host, local_port = endpoint_host(local_address), local_address.rpartition(":")[2]
        if client_port != local_port:
            yield Fact(
                what="a proxy or NAT",
                text="a proxy or NAT is in between",
                evidence=f"the server sees the connection come from {client_address}, it left here from {local_address}",
            )
        elif _is_number(client_host) and client_host != local_host:
            yield Fact(
                what="NAT",
                text="NAT is in between",
                evidence=f"the server sees the address {client_host}, here it is {local_host}",
            )
    server_address = identity.server_address
    if server_address is not None and (endpoint_host(server_address), server_address.rpartition(":")[2]) != (
        endpoint_host(peer_address),
        peer_address.rpartition(":")[2],
    ):
        yield Fact(
            what="a proxy or NAT",
            text="a proxy or NAT is in between",
            evidence=f"the server was reached at {server_address}, the connection was made to {peer_address}",
        )


def _ping_facts(query_ns: Sequence[int], ping_ns: Sequence[int]) -> Iterator[Fact]:
    if not query_ns or not ping_ns:
        return
    query_median_ns, ping_median_ns = statistics.median(query_ns), statistics.median(ping_ns)
    if query_median_ns > _PING_FACTOR * ping_median_ns and query_median_ns - ping_median_ns > _MIN_EXCESS_NS:
        yield Fact(
            what=None,
            text="something nearer than the server may answer pings",
            evidence=f"a ping takes {ping_median_ns / 1e6:.3g} ms, a request {query_median_ns / 1e6:.3g} ms",
        )
