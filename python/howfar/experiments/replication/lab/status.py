"""Parses servers' reports about replication, acknowledgements and positions, each in its server's format."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from howfar.contract.replication_receipt import PrimaryState
from howfar.experiments.replication.lab.links import ReplicationSpec

_PREFIX = "rpl_semi_sync_"
_PRIMARY_WORDS = ("source", "master")
_REPLICA_WORDS = ("replica", "slave")


@dataclass(frozen=True)
class SemiSyncPrefixes:
    """Prefixes of one server's variables for semi-synchronous replication, by role. None if the server cannot take that role or has
    not loaded its plugin yet."""

    primary: str | None
    replica: str | None
    wait_for: str | None
    """The variable that sets how many replicas must acknowledge; None if it is always one."""

    def enable_primary_sql(self, spec: ReplicationSpec) -> tuple[str, ...]:
        assert self.primary is not None, "the primary's plugin is loaded"
        settings = [
            f"SET GLOBAL {self.primary}timeout = {spec.timeout_ms}",
            f"SET GLOBAL {self.primary}wait_point = '{spec.wait_point}'",
        ]
        if self.wait_for is not None:
            settings.append(f"SET GLOBAL {self.wait_for} = {spec.wait_for}")
        return (*settings, f"SET GLOBAL {self.primary}enabled = ON")

    def enable_replica_sql(self) -> str:
        assert self.replica is not None, "the replica's plugin is loaded"
        return f"SET GLOBAL {self.replica}enabled = ON"


def parse_semi_sync_prefixes(variables: Iterable[str]) -> SemiSyncPrefixes:
    """The prefixes that a server uses, found among the names of its variables."""
    known = {name.lower() for name in variables}

    def find_prefix(role_words: Iterable[str]) -> str | None:
        return next((f"{_PREFIX}{word}_" for word in role_words if f"{_PREFIX}{word}_enabled" in known), None)

    wait_for_names = (
        f"{_PREFIX}{primary}_wait_for_{replica}_count" for primary in _PRIMARY_WORDS for replica in _REPLICA_WORDS
    )
    return SemiSyncPrefixes(
        primary=find_prefix(_PRIMARY_WORDS),
        replica=find_prefix(_REPLICA_WORDS),
        wait_for=next((name for name in wait_for_names if name in known), None),
    )


def parse_primary_end(
    names: SemiSyncPrefixes, variables: Mapping[str, str], status: Mapping[str, str]
) -> PrimaryState | None:
    """The primary's report from its variables and status; None if this server cannot be a semi-synchronous primary."""
    if names.primary is None:
        return None
    values = {name.lower(): value for name, value in {**variables, **status}.items()}

    def counter(name: str) -> int:
        return int(values.get(f"{names.primary}{name}", "0"))

    return PrimaryState(
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


def is_acknowledging(names: SemiSyncPrefixes, status: Mapping[str, str]) -> bool | None:
    """Whether a replica acknowledges; None if it cannot."""
    if names.replica is None:
        return None
    return {name.lower(): value for name, value in status.items()}.get(f"{names.replica}status") == "ON"


Interval = tuple[int, int]
"""First and last number, both inclusive."""


class Positions(Protocol):
    """Compares positions in the history of one kind of server, in that server's notation."""

    counts_received: bool
    """Whether a replica's positions show how many transactions it has received but not applied."""

    def count_missing(self, ahead: str, behind: str) -> int:
        """Number of transactions in `ahead` that are not in `behind`. Raises ValueError for an invalid position."""
        ...

    def errant_transactions(self, replica_state: str, primary_state: str, writer: str = "") -> str:
        """The replica's errant transactions, which the primary never had; empty if there are none. `writer`: origin of the primary's
        own transactions, which are not counted: a transaction may reach a replica before it is in the primary's state."""
        ...


class MariadbPositions:
    """See `Positions`. A state is `gtid_binlog_state`: the last number of each server in each domain."""

    counts_received = True

    def count_missing(self, ahead: str, behind: str) -> int:
        behind_numbers = parse_last_numbers(behind)
        return sum(
            max(number - behind_numbers.get(domain, 0), 0) for domain, number in parse_last_numbers(ahead).items()
        )

    def errant_transactions(self, replica_state: str, primary_state: str, writer: str = "") -> str:
        known = _parse_gtid_list(primary_state)
        errant = {
            origin: number
            for origin, number in _parse_gtid_list(replica_state).items()
            if number > known.get(origin, 0) and str(origin[1]) != writer
        }
        return ",".join(f"{domain}-{server}-{number}" for (domain, server), number in sorted(errant.items()))


class MysqlPositions:
    """See `Positions`. State and position are both `gtid_executed`."""

    counts_received = True

    def count_missing(self, ahead: str, behind: str) -> int:
        behind_intervals = parse_gtid_set(behind)
        return sum(
            _count_outside(intervals, behind_intervals.get(origin, ()))
            for origin, intervals in parse_gtid_set(ahead).items()
        )

    def errant_transactions(self, replica_state: str, primary_state: str, writer: str = "") -> str:
        known = parse_gtid_set(primary_state)
        errant = {
            origin: _count_outside(own, known.get(origin, ()))
            for origin, own in parse_gtid_set(replica_state).items()
            if not writer or origin.partition(":")[0] != writer
        }
        return ", ".join(f"{count} of {origin}" for origin, count in sorted(errant.items()) if count)


def parse_last_numbers(text: str) -> dict[int, int]:
    """The highest number of each domain in a GTID list of MariaDB. Raises ValueError."""
    last_numbers: dict[int, int] = {}
    for (domain, _), number in _parse_gtid_list(text).items():
        last_numbers[domain] = max(number, last_numbers.get(domain, 0))
    return last_numbers


def _parse_gtid_list(text: str) -> dict[tuple[int, int], int]:
    """The last number by domain and server in a GTID list of MariaDB (`domain-server-number,…`). Raises ValueError."""
    last_numbers = {}
    for item in filter(None, (part.strip() for part in text.split(","))):
        domain, server, number = (int(part) for part in item.split("-"))
        last_numbers[domain, server] = number
    return last_numbers


def parse_gtid_set(text: str) -> Mapping[str, Sequence[Interval]]:
    """Sorted intervals of a GTID set of MySQL, by origin: a server's UUID, with the tag if there is one. Raises ValueError."""
    intervals_by_origin: dict[str, list[Interval]] = {}
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
            intervals_by_origin.setdefault(origin, []).append((int(first), int(last or first)))
    return {origin: sorted(intervals) for origin, intervals in intervals_by_origin.items()}


def _count_outside(intervals: Sequence[Interval], excluded: Sequence[Interval]) -> int:
    """Count the numbers in `intervals` that are not in `excluded`."""
    total = sum(last - first + 1 for first, last in intervals)
    shared = sum(max(min(a[1], b[1]) - max(a[0], b[0]) + 1, 0) for a in intervals for b in excluded)
    return total - shared
