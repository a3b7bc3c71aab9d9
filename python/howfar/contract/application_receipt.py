"""The part of a receipt about an application, the proof that its pages do what they should, and its checks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pydantic import Field

from howfar.contract.receipt_part import ReceiptPart
from howfar.contract.violation import Violation, violation


@dataclass(frozen=True)
class RequestedService:
    """What each page requests of one server."""

    round_trips: int
    keys: int
    """Number of keys to look up."""
    is_key_store: bool
    is_encrypted: bool


@dataclass(frozen=True)
class RequestedPages:
    """What pages were to do."""

    services: Mapping[str, RequestedService]
    connects_per_page: bool
    """Whether each page makes its own connections."""
    client_hosts: Mapping[str, str]
    """By server that is used: the client's address that it must see."""


_COUNTED = {"turns": "round trips", "connects": "connections", "encrypted": "encrypted connections"}
"""What servers count, as text."""


def _client_violations(seen: Mapping[str, list[str]], client_hosts: Mapping[str, str]) -> list[Violation]:
    """Violations for clients whose connections do not come over the environment's path."""
    violations = []
    for name, expected_host in client_hosts.items():
        wrong_addresses = {
            address for address in seen.get(name, ["nowhere"]) if address.partition(":")[0] != expected_host
        }
        violations += [
            violation("php-at-other-address", service=name, client=address, expected_client=expected_host)
            for address in sorted(wrong_addresses)
        ]
    return violations


class PagesReceipt(ReceiptPart):
    """What pages reported and what the servers counted, before the load. Empty: no page had a round trip."""

    pages: int = 0
    reported: dict[str, int] = Field(default_factory=dict, alias="told")
    """Sums of the counts that the pages reported, by their names."""
    counted: dict[str, dict[str, int]] = Field(default_factory=dict)
    """By server: growth of its counts."""
    seen: dict[str, list[str]] = Field(default_factory=dict)
    """By server: addresses of the clients that it saw while a page kept its connections open."""

    def violations(self, requested: RequestedPages) -> tuple[Violation, ...]:
        """Differences between the pages' reports, the script and the servers' counts."""
        violations = self._script_violations(requested)
        for name, counts in self.counted.items():
            expected = self._expected_counts(name, requested)
            violations += [
                violation(
                    "service-counts",
                    service=name,
                    counted=count,
                    quantity=_COUNTED.get(quantity, quantity),
                    pages=self.pages,
                    reported=expected[quantity],
                )
                for quantity, count in counts.items()
                if count != expected[quantity]
            ]
        return (*violations, *_client_violations(self.seen, requested.client_hosts))

    def _count(self, name: str) -> int:
        return self.reported.get(name, 0)

    def _script_violations(self, requested: RequestedPages) -> list[Violation]:
        violations = []
        for name, service in requested.services.items():
            expected = service.round_trips * self.pages
            round_trips = self._count(f"{name}_turns") - self._count(f"{name}_checks")
            if round_trips != expected:
                counts = {"pages": self.pages, "reported": round_trips, "expected": expected}
                violations.append(violation("reported-round-trips", service=name, **counts))
            connects = self._count(f"{name}_connects")
            if requested.connects_per_page and service.round_trips and connects != self.pages:
                counts = {"pages": self.pages, "reported": connects}
                violations.append(violation("reported-connections", service=name, **counts))
        if misses := self._count("misses"):
            keys = sum(service.keys for service in requested.services.values()) * self.pages
            violations.append(violation("pages-missed-keys", misses=misses, keys=keys))
        return violations

    def _expected_counts(self, name: str, requested: RequestedPages) -> dict[str, int]:
        """Counts that a server should have, by the pages' reports."""
        service, connects = requested.services[name], self._count(f"{name}_connects")
        round_trips = self._count(f"{name}_turns")
        if not service.is_key_store and requested.connects_per_page:
            round_trips += connects  # the server also counts each connection's quit message, which has no reply
        return {
            "connects": connects,
            "turns": round_trips,
            "keys": service.keys * self.pages,
            "encrypted": connects if service.is_encrypted else 0,
        }


class PersistentClients(ReceiptPart):
    """The application's connections after the load, if it keeps them."""

    seen: dict[str, list[str]] = Field(default_factory=dict)
    """By server: addresses of the clients that are still connected."""
    connections: dict[str, int] = Field(default_factory=dict)
    """By server: connections since the pool's first."""

    def violations(self, children: int, client_hosts: Mapping[str, str]) -> tuple[Violation, ...]:
        """Violations if clients are not connected any more, or if a child process has opened more than one connection."""
        violations = _client_violations(self.seen, client_hosts)
        violations += [
            violation("persistent-connections", service=name, connections=connections, children=children)
            for name, connections in self.connections.items()
            if connections > children
        ]
        return tuple(violations)


class ApplicationReceipt(ReceiptPart):
    """The application in front of the servers, as it reported itself, and the proof that its pages do what they should."""

    version: str | None = None
    interface: str | None = None
    extensions: dict[str, str] = Field(default_factory=dict)
    opcache: bool | None = None
    settings: dict[str, object] = Field(default_factory=dict)
    children: int | None = None
    pid: int | None = None
    proof: PagesReceipt = Field(default_factory=PagesReceipt)
    after: PersistentClients | None = None
    """Clients of the servers after the load, with persistent connections."""
