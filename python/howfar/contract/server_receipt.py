"""The parts of a receipt about the servers, the sessions with them and the programs on the path, and their checks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pydantic import Field

from howfar.contract.receipt_messages import Receipt
from howfar.contract.receipt_part import ReceiptPart
from howfar.contract.violation import Violation, violation

if TYPE_CHECKING:
    from howfar.paths import ClientEndpoint
    from howfar.plan.sessions import SessionSpec

_PROTOCOLS_WITHOUT_TLS_STATUS = ("resp2", "resp3", "memcached_text", "memcached_meta")
"""Protocols in which a server reports nothing about TLS to its client."""
_MIN_PAGES_ALLOWED = 32
"""Number of pages that a server may read from files during any trial that writes. MySQL read one to six of its own pages (undo,
dictionary), and MariaDB 17 to 19 after rows of a megabyte had evicted them. Reading this many takes less than a millisecond."""
_COMMITS_PER_PAGE = 1000
OFF_IF_NONE = frozenset({"tls_version", "tls_cipher", "compression"})
"""Fields of `SessionReceipt` in which None means off. In all others it means unknown."""


def pages_allowed(commits: int | None) -> int:
    """Maximum number of pages that may be read from files during a trial with this many commits; 0 if `commits` is None, because a
    load that only reads finds all pages in memory."""
    return 0 if commits is None else max(_MIN_PAGES_ALLOWED, commits // _COMMITS_PER_PAGE)


class SessionReceipt(Receipt):
    """The load's first session, as the engine and the server report it."""

    @classmethod
    def from_engine(cls, receipt: Receipt) -> SessionReceipt:
        return cls.model_construct(receipt.model_fields_set, **dict(receipt))

    def violations(self, endpoint: ClientEndpoint, spec: SessionSpec) -> tuple[Violation, ...]:
        """Differences from the requirements of path and cell, also of the settings that slices add: that a job requests what its cell
        says is not assumed. A missing TLS version is accepted only if the protocol cannot report it."""
        violations = []
        expected_family = "unix" if endpoint.socket else "inet"
        if self.address_family != expected_family:
            families = {"obtained": self.address_family, "required": expected_family}
            violations.append(violation("session-address-family", **families))
        if endpoint.socket:
            expected_peer = endpoint.socket
            if self.peer_pid != endpoint.peer_pid:
                pids = {"pid": self.peer_pid, "expected_pid": endpoint.peer_pid}
                violations.append(violation("socket-of-other-process", **pids))
        else:
            expected_peer = f"{endpoint.host}:{endpoint.port}"
        if self.peer_address != expected_peer:
            violations.append(violation("session-peer", peer=self.peer_address, expected_peer=expected_peer))
        # The TLS version as both sides report it: the server's status, and what the engine itself negotiated.
        reports = [("server", self.tls_version), ("engine", self.tls_client_version)]
        if self.protocol_mode in _PROTOCOLS_WITHOUT_TLS_STATUS:
            del reports[0]  # the server's view of a second session is checked instead: `SessionView.violations`
        for reporter, version in reports:
            if (version or None) != spec.tls_version:
                versions = {"obtained_tls": version or "", "expected_tls": spec.tls_version or ""}
                violations.append(violation("session-encryption", reporter=reporter, **versions))
        differences = spec.setting_differences(self)
        return (*violations, *(violation(id, **parameters) for id, parameters in differences))


class SessionView(ReceiptPart):
    """A server's view of a session beside the load's."""

    of: str | None = None
    """Which session that is, in words."""
    host: str | None = None
    """The client's address; `localhost` over a Unix socket."""
    ssl_cipher: str | None = None
    ssl_version: str | None = None
    listener: str | None = None
    """The address where a key-value store accepted it."""
    compression: str | None = Field(None, exclude=True)
    """`OFF` or `ON`. Not in receipts: this session never compresses, whether or not the load's do."""

    def violations(self, endpoint: ClientEndpoint, spec: SessionSpec) -> tuple[Violation, ...]:
        """Differences between the server's view of our own session (its row in the process list, its TLS) and the request. Our client
        cannot compress: if the server reports compression even for this session, its reports about compression cannot be trusted."""
        violations = []
        host = (self.host or "").partition(":")[0]
        if host != endpoint.expected_client_host:
            violations.append(violation("other-client", client=host, expected_client=endpoint.expected_client_host))
        version = self.ssl_version or None
        if version != spec.tls_version:
            versions = {"obtained_tls": version or "", "expected_tls": spec.tls_version or ""}
            violations.append(violation("reported-encryption", **versions))
        if self.compression not in (None, "OFF"):
            violations.append(violation("reported-compression"))
        return tuple(violations)


class StoreAddress(ReceiptPart):
    """An address on which a key-value store listens, and the protocols that it answers there."""

    at: str
    """The socket's path, or the address with its port."""
    plain: bool
    """Whether the server answers plain text."""
    tls: str | None
    """TLS version after a handshake with our CA; None if no handshake was tried, or if it failed."""

    def violations(self, is_encrypted: bool) -> tuple[Violation, ...]:
        """Violations if the server does not answer here as requested. `is_encrypted`: whether it must accept only TLS."""
        if not is_encrypted:
            return () if self.plain else (violation("no-plain-text", address=self.at),)
        violations = []
        if self.tls is None:
            violations.append(violation("no-tls-at-address", address=self.at))
        if self.plain:
            violations.append(violation("plain-text-at-address", address=self.at))
        return tuple(violations)


@dataclass(frozen=True)
class RequestedServer:
    """Requirements for a server with tables."""

    commits: int | None
    """The load's commits; None if it only reads, or if their number is unknown."""
    counts_commits: bool
    """Whether the server's counters include each commit."""
    has_network: bool
    no_network_setting: str | None
    """A setting that must be ON without a network."""


@dataclass(frozen=True)
class RequestedStore:
    """Requirements for a key-value store."""

    port: int | None
    """The only TCP port to listen on; None for none."""
    socket: str | None
    """The only Unix socket to listen on; None for none."""
    is_encrypted: bool
    """Whether it must accept only TLS."""


class ServerReceipt(ReceiptPart):
    """One server, after the load."""

    content: str | None = None
    """Content of its tables; None for a key-value store."""
    kind: str | None = None
    pid: int | None = None
    facts: dict[str, object] = Field(default_factory=dict)
    """Its settings, by their own names."""
    counters: dict[str, int] = Field(default_factory=dict)
    """Growth since the load began, by the names of `store.server_metrics` or the server's own."""
    tcp_ports: list[int] = Field(default_factory=list)
    sockets: list[str] = Field(default_factory=list)
    listen_address: StoreAddress | None = Field(None, alias="door")
    """What a key-value store's address answered."""
    listen_queue: int | None = None
    warnings: list[str] = Field(default_factory=list, alias="said")
    """Lines of its log."""
    session_view: SessionView | None = None
    certificate: str | None = None
    given: bool = False
    """Whether it is a user's own server."""
    unknown: list[str] = Field(default_factory=list)
    """What a user's own server does not show."""
    forwarder: HopsReceipt | None = None
    """The programs between the application and an auxiliary server."""

    def violations(self, requested: RequestedServer) -> tuple[Violation, ...]:
        """Violations by a server with tables: too many pages read, too few commits, a network that was not requested."""
        violations = []
        # PostgreSQL also counts a page as read when it extends a table.
        pages_read = self.counters.get("pages_read", 0) - self.counters.get("table_pages", 0)
        if pages_read > pages_allowed(requested.commits):
            violations.append(violation("pages-read", pages=pages_read))
        commits = requested.commits
        if requested.counts_commits and commits is not None and self.counters["commits"] < commits:
            violations.append(violation("too-few-commits", counted=self.counters["commits"], commits=commits))
        setting = requested.no_network_setting
        networking_is_off = setting is None or self.facts.get(setting) == "ON"
        if not requested.has_network and (self.tcp_ports or not networking_is_off):
            violations.append(violation("unrequested-network", ports=", ".join(map(str, sorted(self.tcp_ports)))))
        return tuple(violations)

    def store_violations(self, requested: RequestedStore) -> tuple[Violation, ...]:
        """Violations by a key-value store: other addresses than requested, evicted keys, rejected connections."""
        expected_ports = [] if requested.port is None else [requested.port]
        expected_sockets = [] if requested.socket is None else [requested.socket]
        violations = []
        if self.tcp_ports != expected_ports:
            violations.append(violation("other-ports", ports=str(self.tcp_ports), expected_ports=str(expected_ports)))
        if self.sockets != expected_sockets:
            violations.append(
                violation("other-sockets", sockets=str(self.sockets), expected_sockets=str(expected_sockets))
            )
        if self.listen_address is not None:
            violations += self.listen_address.violations(requested.is_encrypted)
        if evicted := self.counters.get("evicted_keys", 0):
            violations.append(violation("keys-evicted", keys=evicted))
        if rejected := self.counters.get("rejected_connections", 0):
            violations.append(violation("connections-rejected", connections=rejected))
        return tuple(violations)


class HopsReceipt(ReceiptPart):
    """The programs on the path to a server. What a hop is, is an extra field by its label."""

    program: str | None = None
    port: int | None = None
    server_side: object = None
    client_side: object = None
    hops: list[str] = Field(default_factory=list)
    """Labels of the hops; empty in older receipts."""
    max_processes: dict[str, int | None] = Field(default_factory=dict, alias="processes_most")
    """Maximum number of processes, by label, of hops that fork one for each connection."""
    connections: int | None = None
    """Connections of the load; None if unknown."""
    carried: dict[str, dict[str, int]] = Field(default_factory=dict)
    """By label: what the hop counted since the load began."""
    at_once: dict[str, dict[str, int]] = Field(default_factory=dict)
    """By label: maximum numbers of simultaneous connections `to_server` and `to_clients`."""

    @property
    def sides(self) -> frozenset[str]:
        """Hosts on which a hop ran: `client`, `server`. Older receipts name the sides as fields, or not at all."""
        labels = self.hops or self.model_fields_set
        return frozenset(side for side in ("client", "server") if f"{side}_side" in labels)

    def violations(self) -> tuple[Violation, ...]:
        """Violations by hops that did not carry all connections of the load. Unknown counts are not violations."""
        violations = [
            violation("hop-processes", hop=label.replace("_", " "), processes=count, connections=self.connections)
            for label, count in self.max_processes.items()
            if self.connections is not None and count is not None and count < self.connections
        ]
        for label, carried in self.carried.items():
            violations += self._carried_violations(label.replace("_", " "), carried)
        return tuple(violations)

    def _carried_violations(self, hop: str, carried: Mapping[str, int]) -> list[Violation]:
        """Violations by a hop that did not carry all connections of the load, or carried no bytes."""
        violations = []
        count = carried.get("connections_most", carried.get("connections"))
        if self.connections is not None and count is not None and count < self.connections:
            violations.append(violation("hop-connections", hop=hop, carried=count, connections=self.connections))
        return violations + [
            violation("hop-carried-nothing", hop=hop, quantity=quantity.replace("_", " "))
            for quantity in ("bytes_to_server", "bytes_to_client")
            if not carried[quantity]
        ]
