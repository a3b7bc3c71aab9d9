"""Which path a connection took, each statement with its evidence. What no evidence supports is not said."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from ipaddress import ip_address

from howfar.distance.record import Fact, PathFacts, PathKind
from howfar.distance.requests import Identity
from howfar.engine.messages import Opened

_TIMES_PING = 2.0
_LEAST_NS = 200_000
"""A request takes twice a ping, and so much longer: something nearer than the server probably answers the pings."""


def path_facts(opened: Opened, identity: Identity, query_ns: Sequence[int], ping_ns: Sequence[int]) -> PathFacts:
    """What is known of the path of an open connection."""
    kind, says, evidence = _kind(opened)
    return PathFacts(
        kind=kind,
        says=says,
        evidence=evidence,
        mtu=opened.path_mtu,
        between=(
            *_named(identity),
            *_numbers(opened, identity),
            *_addresses(opened, identity),
            *_pings(query_ns, ping_ns),
        ),
        peer_address=opened.peer_address,
        local_address=opened.local_address,
    )


def _kind(opened: Opened) -> tuple[PathKind, str, str]:
    if opened.address_family == "unix":
        if opened.peer_pid == 0:
            return "socket", "a Unix socket into another container", "the listening process is in another PID namespace"
        return "socket", "a Unix socket of this machine", f"the process {opened.peer_pid} listens on it"
    peer, local = host_of(opened.peer_address), host_of(opened.local_address or "")
    if not local:
        return "unknown", "unknown", "the connection's own address is not known"
    if ip_address(peer).is_loopback:
        return "loopback", "this machine's loopback interface", f"{peer} is a loopback address"
    if peer == local:
        return "this_machine", "an address of this machine", f"both ends have the address {peer}"
    return "other_machine", "another machine", f"from {local} to {peer}"


def host_of(endpoint: str) -> str:
    """The host of `host:port`, without brackets, zone and the prefix of IPv4 in IPv6."""
    host = endpoint.rpartition(":")[0].strip("[]").partition("%")[0]
    return host.removeprefix("::ffff:") if "." in host else host


def _is_number(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True


def _named(identity: Identity) -> Iterator[Fact]:
    if identity.between is not None:
        yield Fact(what=identity.between, says=f"{identity.between} answers", evidence="its version says so")


def _numbers(opened: Opened, identity: Identity) -> Iterator[Fact]:
    at_login, now = opened.connection_id, identity.connection_id
    if at_login is not None and now is not None and at_login != now:
        yield Fact(
            what="a pooler or proxy",
            says="a pooler or proxy is in between",
            evidence=f"at the login the connection had the number {at_login}, the server calls it {now}",
        )


def _addresses(opened: Opened, identity: Identity) -> Iterator[Fact]:
    """Where the server sees the connection come from, and where it came in, against our own ends."""
    local, seen, peer = opened.local_address, identity.client_address, opened.peer_address
    if local is None:
        if seen is not None:
            yield Fact(
                what="a forwarder",
                says="a program passes the socket on",
                evidence=f"the server sees a TCP connection from {seen}",
            )
        return
    if identity.by_socket:
        yield Fact(
            what="a proxy",
            says="a program passes the connection on",
            evidence="the server sees it come over its Unix socket",
        )
    elif seen is not None:
        host, port = host_of(seen), seen.rpartition(":")[2]
        ours, our_port = host_of(local), local.rpartition(":")[2]
        if port != our_port:
            yield Fact(
                what="a proxy or NAT",
                says="a proxy or NAT is in between",
                evidence=f"the server sees the connection come from {seen}, it left here from {local}",
            )
        elif _is_number(host) and host != ours:
            yield Fact(
                what="NAT", says="NAT is in between", evidence=f"the server sees the address {host}, here it is {ours}"
            )
    came_in = identity.server_address
    if came_in is not None and (host_of(came_in), came_in.rpartition(":")[2]) != (
        host_of(peer),
        peer.rpartition(":")[2],
    ):
        yield Fact(
            what="a proxy or NAT",
            says="a proxy or NAT is in between",
            evidence=f"the server was reached at {came_in}, the connection was made to {peer}",
        )


def _pings(query_ns: Sequence[int], ping_ns: Sequence[int]) -> Iterator[Fact]:
    if not query_ns or not ping_ns:
        return
    query, ping = statistics.median(query_ns), statistics.median(ping_ns)
    if query > _TIMES_PING * ping and query - ping > _LEAST_NS:
        yield Fact(
            what=None,
            says="something nearer than the server may answer pings",
            evidence=f"a ping takes {ping / 1e6:.3g} ms, a request {query / 1e6:.3g} ms",
        )
