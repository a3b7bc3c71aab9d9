"""What servers report about replication: acknowledgements, nodes of a cluster, and positions, in each server's format."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from howfar.contract.receipt import PrimaryEnd
from howfar.lab.replication.links import ReplicationSpec

_PREFIX = "rpl_semi_sync_"
_PRIMARY_WORDS = ("source", "master")
_REPLICA_WORDS = ("replica", "slave")


@dataclass(frozen=True)
class SemiSyncNames:
    """Prefixes of one server's variables for semi-synchronous replication, by role. None if it cannot take that role, or its plugin is
    not loaded yet."""

    primary: str | None
    replica: str | None
    wait_for: str | None
    """The variable that sets how many replicas must acknowledge; None if it is always one."""

    def enable_primary_sql(self, spec: ReplicationSpec) -> tuple[str, ...]:
        assert self.primary is not None, "its plugin comes first"
        settings = [
            f"SET GLOBAL {self.primary}timeout = {spec.timeout_ms}",
            f"SET GLOBAL {self.primary}wait_point = '{spec.wait_point}'",
        ]
        if self.wait_for is not None:
            settings.append(f"SET GLOBAL {self.wait_for} = {spec.wait_for}")
        return (*settings, f"SET GLOBAL {self.primary}enabled = ON")

    def enable_replica_sql(self) -> str:
        assert self.replica is not None, "its plugin comes first"
        return f"SET GLOBAL {self.replica}enabled = ON"


def semi_sync_names(variables: Iterable[str]) -> SemiSyncNames:
    """The names that a server uses, found among the names of its variables."""
    known = {name.lower() for name in variables}

    def prefix(roles: Iterable[str]) -> str | None:
        return next((f"{_PREFIX}{word}_" for word in roles if f"{_PREFIX}{word}_enabled" in known), None)

    counts = (f"{_PREFIX}{one}_wait_for_{other}_count" for one in _PRIMARY_WORDS for other in _REPLICA_WORDS)
    return SemiSyncNames(
        primary=prefix(_PRIMARY_WORDS),
        replica=prefix(_REPLICA_WORDS),
        wait_for=next((name for name in counts if name in known), None),
    )


def primary_end(names: SemiSyncNames, variables: Mapping[str, str], status: Mapping[str, str]) -> PrimaryEnd | None:
    """The primary's report from its variables and status; None if this server cannot be a semi-synchronous primary."""
    if names.primary is None:
        return None
    values = {name.lower(): value for name, value in {**variables, **status}.items()}

    def counter(name: str) -> int:
        return int(values.get(f"{names.primary}{name}", "0"))

    return PrimaryEnd(
        enabled=values[f"{names.primary}enabled"] == "ON",
        status=values[f"{names.primary}status"] == "ON",
        clients=counter("clients"),
        timeout_ms=counter("timeout"),
        wait_point=values[f"{names.primary}wait_point"],
        wait_for=1 if names.wait_for is None else int(values[names.wait_for]),
        yes_tx=counter("yes_tx"),
        no_tx=counter("no_tx"),
        no_times=counter("no_times"),
        tx_waits=counter("tx_waits"),
        tx_wait_us=counter("tx_wait_time"),
        waiting=counter("wait_sessions"),
    )


def replica_status(names: SemiSyncNames, status: Mapping[str, str]) -> bool | None:
    """Whether a replica acknowledges; None if it cannot."""
    if names.replica is None:
        return None
    return {name.lower(): value for name, value in status.items()}.get(f"{names.replica}status") == "ON"


Interval = tuple[int, int]
"""First and last number, both inclusive."""


class Positions(Protocol):
    """How one kind of server writes positions in its history, and how to compare them."""

    counts_received: bool
    """Whether a replica's position shows the number of transactions that it has received but not applied."""

    def lacking(self, ahead: str, behind: str) -> int:
        """Number of transactions in `ahead` that are not in `behind`. Raises ValueError for an invalid position."""
        ...

    def strangers(self, replica_state: str, primary_state: str, writer: str = "") -> str:
        """The replica's errant transactions, which the primary never had; empty without any. `writer`: origin of the primary's own
        transactions, which are not counted: one being committed may reach a replica before it is in the primary's state."""
        ...


class MariadbPositions:
    """See `Positions`. A state is `gtid_binlog_state`: the last number of each server in each domain."""

    counts_received = True

    def lacking(self, ahead: str, behind: str) -> int:
        behind_numbers = numbers_by_domain(behind)
        return sum(
            max(number - behind_numbers.get(domain, 0), 0) for domain, number in numbers_by_domain(ahead).items()
        )

    def strangers(self, replica_state: str, primary_state: str, writer: str = "") -> str:
        known = _last_by_server(primary_state)
        found = {
            origin: number
            for origin, number in _last_by_server(replica_state).items()
            if number > known.get(origin, 0) and str(origin[1]) != writer
        }
        return ",".join(f"{domain}-{server}-{number}" for (domain, server), number in sorted(found.items()))


class MysqlPositions:
    """See `Positions`. State and position are both `gtid_executed`."""

    counts_received = True

    def lacking(self, ahead: str, behind: str) -> int:
        behind_intervals = intervals_by_origin(behind)
        return sum(
            _count_outside(intervals, behind_intervals.get(origin, ()))
            for origin, intervals in intervals_by_origin(ahead).items()
        )

    def strangers(self, replica_state: str, primary_state: str, writer: str = "") -> str:
        known = intervals_by_origin(primary_state)
        origins = {
            origin: _count_outside(own, known.get(origin, ()))
            for origin, own in intervals_by_origin(replica_state).items()
            if not writer or origin.partition(":")[0] != writer
        }
        return ", ".join(f"{count} of {origin}" for origin, count in sorted(origins.items()) if count)


def numbers_by_domain(text: str) -> dict[int, int]:
    """The highest number of each domain."""
    found: dict[int, int] = {}
    for (domain, _), number in _last_by_server(text).items():
        found[domain] = max(number, found.get(domain, 0))
    return found


def _last_by_server(text: str) -> dict[tuple[int, int], int]:
    found = {}
    for item in filter(None, (part.strip() for part in text.split(","))):
        domain, server, number = (int(part) for part in item.split("-"))
        found[domain, server] = number
    return found


def intervals_by_origin(text: str) -> Mapping[str, Sequence[Interval]]:
    """Sorted intervals of a GTID set, by origin: a server's UUID, with the tag if there is one. Raises ValueError."""
    found: dict[str, list[Interval]] = {}
    for item in filter(None, (part.strip() for part in text.split(","))):
        uuid, *parts = item.split(":")
        if not parts:
            raise ValueError(f"{item!r} is no set of GTIDs")
        origin = uuid
        for part in parts:
            if not part[0].isdigit():
                origin = f"{uuid}:{part}"
                continue
            first, _, last = part.partition("-")
            found.setdefault(origin, []).append((int(first), int(last or first)))
    return {origin: sorted(intervals) for origin, intervals in found.items()}


def _count_outside(intervals: Sequence[Interval], excluded: Sequence[Interval]) -> int:
    total = sum(last - first + 1 for first, last in intervals)
    shared = sum(max(min(a[1], b[1]) - max(a[0], b[0]) + 1, 0) for a in intervals for b in excluded)
    return total - shared
