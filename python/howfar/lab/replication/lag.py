"""How far replicas are behind, as a series: transactions not applied, and the age of a row that the primary writes again and again.

The heartbeat is a load of its own, a commit each interval: where commits wait for a replica one may do without it. Its times are of
one clock, for all hosts are on one machine. Its age is never less than the way to the replica, and at most an interval more than
the lag.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import pymysql

from howfar.errors import HowfarError
from howfar.lab.replication.member import Member
from howfar.lab.replication.pair import SCHEMA, Pair
from howfar.lab.replication.status import Positions

INTERVAL_S = 0.1
_ANSWER_S = 30.0
_SENT_SQL = f"SELECT sent_ns FROM {SCHEMA}.heartbeat WHERE id = 1"


@dataclass(frozen=True)
class LagSample:
    at_ns: int
    """Monotonic."""
    replica: str
    behind: int
    """Transactions that the primary had committed, asked first, and that were not applied."""
    heartbeat_ns: int | None
    """Age of the newest heartbeat that was applied; None: none has come yet."""


def lag_sample(
    positions: Positions, at_ns: int, replica: str, primary_position: str, applied: str, sent_ns: int | None
) -> LagSample:
    return LagSample(
        at_ns=at_ns,
        replica=replica,
        behind=positions.lacking(primary_position, applied),
        heartbeat_ns=None if sent_ns is None else at_ns - sent_ns,
    )


@dataclass
class LagWatch:
    """Two threads until `finish`: a commit of the heartbeat may wait for a replica, and looking must not wait with it."""

    pair: Pair
    interval_s: float = INTERVAL_S
    beats: bool = True
    """Write the row; else every age is None."""
    samples: list[LagSample] = field(default_factory=list)
    _stop: threading.Event = field(default_factory=threading.Event)
    _threads: tuple[threading.Thread, ...] = ()

    def start(self) -> None:
        self._threads = tuple(
            threading.Thread(target=self._until_gone, args=(work,), name=work.__name__, daemon=True)
            for work in ((self._beat, self._look) if self.beats else (self._look,))
        )
        for thread in self._threads:
            thread.start()

    def finish(self) -> tuple[LagSample, ...]:
        """What was seen until now, or until a server went."""
        self._stop.set()
        for thread in self._threads:
            thread.join(_ANSWER_S + 1)
        return tuple(self.samples)

    def _until_gone(self, work: Callable[[], None]) -> None:
        try:
            work()
        except (HowfarError, pymysql.Error, OSError):
            return  # a server has gone; whoever else asks it hears why

    def _beat(self) -> None:
        with self.pair.primary.server.session(_ANSWER_S) as connection, connection.cursor() as cursor:
            while not self._stop.wait(self.interval_s):
                cursor.execute(f"REPLACE INTO {SCHEMA}.heartbeat VALUES (1, {time.monotonic_ns()})")

    def _look(self) -> None:
        verbs = self.pair.verbs
        with ExitStack() as ledger:
            primary = _asker(self.pair.primary, ledger)
            replicas = {replica.name: _asker(replica, ledger) for replica in self.pair.replicas}
            while not self._stop.wait(self.interval_s):
                position = str(primary(verbs.position_sql, "position") or "")
                for name, replica in replicas.items():
                    applied = str(replica(verbs.applied_sql, "position") or "")
                    sent_ns = replica(_SENT_SQL, "sent_ns")
                    self.samples.append(
                        lag_sample(verbs.positions, time.monotonic_ns(), name, position, applied, sent_ns)
                    )


def _asker(member: Member, ledger: ExitStack) -> Callable[[str, str], Any]:
    """One column of the first row, over a connection of its own; None: no row."""
    connection = ledger.enter_context(member.server.session(_ANSWER_S))

    def ask(sql: str, column: str) -> Any:
        with connection.cursor() as cursor:
            cursor.execute(sql)
            row = cursor.fetchone()
            return row and row[column]

    return ask


def watch_lag(pair: Pair, interval_s: float = INTERVAL_S, *, beats: bool = True) -> LagWatch:
    """Begin to look."""
    watch = LagWatch(pair, interval_s, beats)
    watch.start()
    return watch
