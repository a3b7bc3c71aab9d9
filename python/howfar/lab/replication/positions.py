"""Positions in the history of transactions (GTIDs) of both servers, and how many transactions one lacks of another. Pure.

MariaDB: `0-1-57,1-4-9`, domain, server and number; the number counts all of a domain. MySQL: `uuid:1-57:60,uuid:tag:1-3`, intervals of
each origin.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

Interval = tuple[int, int]
"""Both ends belong to it."""


class Positions(Protocol):
    """One server's way to write positions."""

    def lacking(self, ahead: str, behind: str) -> int:
        """Transactions that are in `ahead` and not in `behind`. Raises ValueError for what is no position."""
        ...

    def strangers(self, replica_state: str, primary_state: str, writer: str = "") -> str:
        """What the replica has that the primary never had; empty: nothing. `writer`: whose own transactions do not count: those
        that a primary commits just now may be on a replica before they are in its own state."""
        ...


class MariadbPositions:
    """See `Positions`. A state is `gtid_binlog_state`: the last number of each server in each domain."""

    def lacking(self, ahead: str, behind: str) -> int:
        have = numbers_by_domain(behind)
        return sum(max(number - have.get(domain, 0), 0) for domain, number in numbers_by_domain(ahead).items())

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

    def lacking(self, ahead: str, behind: str) -> int:
        have = intervals_by_origin(behind)
        return sum(
            _count_outside(wanted, have.get(origin, ())) for origin, wanted in intervals_by_origin(ahead).items()
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
    for word in filter(None, (part.strip() for part in text.split(","))):
        domain, server, number = (int(part) for part in word.split("-"))
        found[domain, server] = number
    return found


def intervals_by_origin(text: str) -> Mapping[str, Sequence[Interval]]:
    """By origin: a server's UUID, with its tag when there is one."""
    found: dict[str, list[Interval]] = {}
    for word in filter(None, (part.strip() for part in text.split(","))):
        uuid, *parts = word.split(":")
        if not parts:
            raise ValueError(f"{word!r} is no set of GTIDs")
        origin = uuid
        for part in parts:
            if not part[0].isdigit():
                origin = f"{uuid}:{part}"
                continue
            first, _, last = part.partition("-")
            found.setdefault(origin, []).append((int(first), int(last or first)))
    return {origin: sorted(intervals) for origin, intervals in found.items()}


def _count_outside(wanted: Sequence[Interval], have: Sequence[Interval]) -> int:
    total = sum(last - first + 1 for first, last in wanted)
    shared = sum(max(min(a[1], b[1]) - max(a[0], b[0]) + 1, 0) for a in wanted for b in have)
    return total - shared
