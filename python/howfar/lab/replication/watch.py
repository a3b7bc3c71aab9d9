"""Watches of a pair under load: the lag of its replicas, and commits that cannot end.

Lag is recorded as the number of transactions not applied, and as the age of a row that the primary writes repeatedly. That heartbeat
is itself a load, one commit per interval, and can be left out where commits wait for a replica. All hosts are on one machine, so all
times are from one clock. The age is never less than the one-way delay to the replica, and at most an interval more than the lag.

A commit that cannot end must not hang the laboratory: a semi-synchronous primary would wait an hour for an acknowledgement, and one
whose disk is full waits for space. If sessions wait and none is acknowledged for too long, or no space is left, the primary is
killed. Switching it to asynchronous would release them too, but would report commits as safe that are not.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

from howfar.errors import HowfarError, LabError
from howfar.lab.replication.dialect import SCHEMA
from howfar.lab.replication.member import Member, wait_for
from howfar.lab.replication.pair import Pair
from howfar.lab.replication.status import PrimaryEnd

LAG_INTERVAL_S = 0.1
_WRITES_INTERVAL_S = 0.01
_COMMITS_INTERVAL_S = 0.2
_ANSWER_S = 30.0
_SENT_SQL = f"SELECT sent_ns FROM {SCHEMA}.heartbeat WHERE id = 1"


class PairWatch:
    """Threads that observe a pair until `finish`, each over its own connections."""

    def __init__(self, pair: Pair, interval_s: float) -> None:
        self.pair = pair
        self._interval_s = interval_s * pair.patience
        self._stop = threading.Event()
        self._threads: list[threading.Thread] = []

    def _start(self, *works: Callable[[], None]) -> None:
        for work in works:
            self._threads.append(threading.Thread(target=self._until_gone, args=(work,), daemon=True))
            self._threads[-1].start()

    def _until_gone(self, work: Callable[[], None]) -> None:
        with suppress(HowfarError, OSError):  # a server has gone; its other clients get the reason
            work()

    def _again(self) -> bool:
        return not self._stop.wait(self._interval_s)

    def _end(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(_ANSWER_S + 1)


@dataclass(frozen=True)
class LagSample:
    at_ns: int
    """Monotonic time."""
    replica: str
    behind: int
    """Transactions that the primary had committed, read first, and that were not applied."""
    heartbeat_ns: int | None
    """Age of the newest heartbeat that was applied; None before the first."""


class LagWatch(PairWatch):
    """Samples the replicas' lag. Two threads: a commit of the heartbeat may wait for a replica, and sampling must not."""

    def __init__(self, pair: Pair, interval_s: float = LAG_INTERVAL_S, *, beats: bool = True) -> None:
        """`beats`: write the heartbeat; without it every age is None."""
        super().__init__(pair, interval_s)
        self.samples: list[LagSample] = []
        self._start(*((self._beat, self._look) if beats else (self._look,)))

    def finish(self) -> tuple[LagSample, ...]:
        """The samples until now, or until a server died."""
        self._end()
        return tuple(self.samples)

    def _beat(self) -> None:
        with self.pair.primary.server.asking(_ANSWER_S, as_client=True) as ask:
            while self._again():
                ask(self.pair.dialect.beat_sql(time.monotonic_ns()))

    def _look(self) -> None:
        dialect = self.pair.dialect
        with ExitStack() as ledger:
            primary = _asker(self.pair.primary, ledger)
            replicas = {replica.name: _asker(replica, ledger) for replica in self.pair.replicas}
            while self._again():
                position = str(primary(dialect.position_sql, "position") or "")
                for name, replica in replicas.items():
                    applied = str(replica(dialect.applied_sql, "position") or "")
                    sent_ns, at_ns = replica(_SENT_SQL, "sent_ns"), time.monotonic_ns()
                    age_ns = None if sent_ns is None else at_ns - sent_ns
                    self.samples.append(LagSample(at_ns, name, dialect.positions.lacking(position, applied), age_ns))


@dataclass(frozen=True)
class Write:
    """A commit that was acknowledged to its client. Monotonic times."""

    node: str
    sent_ns: int
    ended_ns: int


class Writers(PairWatch):
    """A client at each replica of a cluster that keeps trying to commit, like a client whose own node has died."""

    def __init__(self, pair: Pair) -> None:
        super().__init__(pair, _WRITES_INTERVAL_S)
        self.acknowledged: list[Write] = []
        self._start(*(partial(self._write, row, replica) for row, replica in enumerate(pair.replicas, 2)))

    def await_commit(self, since_ns: int, patience_s: float) -> None:
        """Wait for an acknowledged commit that began after `since_ns`. Raises LabError."""
        wait_for(
            lambda: any(write.sent_ns > since_ns for write in list(self.acknowledged)),
            patience_s,
            lambda: "the rest of the cluster did not go on",
        )

    def finish(self) -> tuple[Write, ...]:
        self._end()
        return tuple(self.acknowledged)

    def _write(self, row: int, replica: Member) -> None:
        while self._again():
            with suppress(LabError), replica.server.asking(_ANSWER_S, as_client=True) as ask:
                while self._again():  # until the node refuses: then over a new session
                    sent_ns = time.monotonic_ns()
                    ask(self.pair.dialect.beat_sql(sent_ns, row))
                    self.acknowledged.append(Write(replica.name, sent_ns, time.monotonic_ns()))


def _asker(member: Member, ledger: ExitStack) -> Callable[[str, str], Any]:
    """A function that returns one column of a query's first row, over its own session; None without a row."""
    rows = ledger.enter_context(member.server.asking(_ANSWER_S))

    def ask(sql: str, column: str) -> Any:
        return next((row[column] for row in rows(sql)), None)

    return ask


@dataclass
class HangClock:
    """The time for which sessions have waited without any acknowledgement. Pure."""

    _progress: tuple[int, int, int] | None = None
    _since_ns: int = 0

    def look(self, now_ns: int, end: PrimaryEnd) -> int:
        """That time in ns; 0 if no session waits, or one has been acknowledged since the last look."""
        if end.waiting == 0 or end.progress != self._progress:
            self._progress, self._since_ns = end.progress, now_ns
        return now_ns - self._since_ns


class CommitWatch(PairWatch):
    """Kills the primary when commits hang or its disk is full. Without semi-synchronous replication it watches only the disk, as no
    commit waits for a replica."""

    def __init__(self, pair: Pair, patience_s: float) -> None:
        super().__init__(pair, _COMMITS_INTERVAL_S)
        self._patience_s = patience_s
        self.hung: str | None = None
        """The reason why the primary was killed; None if it was not."""
        self._start(self._look)

    def finish(self) -> str | None:
        """The reason why the window is void; None if every commit could end."""
        self._end()
        return self.hung

    def _look(self) -> None:
        with ExitStack() as ledger:
            look = self._acknowledgements(ledger) if self.pair.spec.semi_sync else lambda: None
            while self.hung is None and self._again():
                look()
                if full := self.pair.primary.full():
                    self._give_up(f"the primary had {full}: it was killed")

    def _acknowledgements(self, ledger: ExitStack) -> Callable[[], None]:
        pair, primary, clock = self.pair, self.pair.primary.server, HangClock()
        ask = ledger.enter_context(primary.asking(_ANSWER_S))

        def look() -> None:
            end = pair.dialect.primary_end(ask, primary, pair.spec)
            waited_ns = 0 if end is None else clock.look(time.monotonic_ns(), end)
            if end is not None and waited_ns > self._patience_s * 1e9:
                why = "".join(f"; {reason}" for reason in _reasons(pair))
                self._give_up(
                    f"{end.waiting} commits waited {waited_ns / 1e9:.1f} s and no replica acknowledged any "
                    f"({end.clients} connected{why}): the primary was killed"
                )

        return look

    def _give_up(self, why: str) -> None:
        self.hung = why
        self.pair.primary.server.kill()


def _reasons(pair: Pair) -> list[str]:
    """Known problems of the pair's replicas and links."""
    found = [f"the link of {wire.name} had died" for wire in pair.wires if not wire.alive()]
    for replica in pair.replicas:
        if not replica.server.alive():
            found.append(f"{replica.name} died")
            continue
        try:
            with replica.server.asking(_ANSWER_S) as ask:
                state = replica.dialect.read_state(ask)
        except HowfarError as error:
            found.append(f"{replica.name} does not answer: {error.message}")
            continue
        if state is not None and state.errors:
            found.append(f"{replica.name} says: {'; '.join(state.errors)}")
        if full := replica.full():
            found.append(f"{replica.name} had {full}")
    return found
