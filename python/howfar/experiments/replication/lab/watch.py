"""Watches of a replica set under load: the lag of its replicas, and commits that cannot end.

Lag is recorded as the number of transactions not applied, and as the age of the newest applied heartbeat, a row that the primary
writes repeatedly. The heartbeat is itself a load of one commit per interval, so it can be omitted if commits wait for a replica. All
hosts are on one machine, so all times are from one clock. The age is at least the one-way delay to the replica, and exceeds the lag
by at most one interval.

A commit that cannot end must not hang the laboratory: a semi-synchronous primary would wait an hour for an acknowledgement, and a
primary whose disk is full waits for space. If no waiting session is acknowledged for too long, or no space is left, the primary is
killed. Switching it to asynchronous replication would release the sessions too, but would report commits as safe that are not.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

from howfar.contract.replication_receipt import PrimaryState
from howfar.errors import HowfarError, LabError
from howfar.experiments.replication.lab.dialect import SCHEMA
from howfar.experiments.replication.lab.member import Member, wait_for
from howfar.experiments.replication.lab.replica_set import ReplicaSet

LAG_INTERVAL_S = 0.1
_COMMIT_INTERVAL_S = 0.01
_HANG_CHECK_INTERVAL_S = 0.2
_ANSWER_TIMEOUT_S = 30.0
_SENT_SQL = f"SELECT sent_ns FROM {SCHEMA}.heartbeat WHERE id = 1"


class ReplicaSetWatch:
    """Threads that observe a replica set until `finish`, each over its own connections."""

    def __init__(self, replica_set: ReplicaSet, interval_s: float) -> None:
        self.replica_set = replica_set
        self._interval_s = interval_s * replica_set.poll_interval_factor
        self._stop = threading.Event()
        self._threads: list[threading.Thread] = []

    def _start(self, *functions: Callable[[], None]) -> None:
        for function in functions:
            self._threads.append(threading.Thread(target=self._run_until_server_ends, args=(function,), daemon=True))
            self._threads[-1].start()

    def _run_until_server_ends(self, function: Callable[[], None]) -> None:
        with suppress(HowfarError, OSError):  # a server has ended; its other clients report why
            function()

    def _wait_interval(self) -> bool:
        return not self._stop.wait(self._interval_s)

    def _end(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(_ANSWER_TIMEOUT_S + 1)


@dataclass(frozen=True)
class LagSample:
    at_ns: int
    """Monotonic time."""
    replica: str
    behind: int
    """Number of transactions that the primary had committed and the replica had not applied. The primary was queried first."""
    heartbeat_ns: int | None
    """Age of the newest heartbeat that was applied; None before the first."""


class LagWatch(ReplicaSetWatch):
    """Samples the replicas' lag. The heartbeat has its own thread, because its commits may wait for a replica, and sampling must
    not."""

    def __init__(
        self, replica_set: ReplicaSet, interval_s: float = LAG_INTERVAL_S, *, with_heartbeat: bool = True
    ) -> None:
        """`with_heartbeat`: write the heartbeat; if False, every age is None."""
        super().__init__(replica_set, interval_s)
        self.samples: list[LagSample] = []
        self._start(*((self._write_heartbeats, self._sample) if with_heartbeat else (self._sample,)))

    def finish(self) -> tuple[LagSample, ...]:
        """Stop sampling. Returns the samples up to now, or up to the death of a server."""
        self._end()
        return tuple(self.samples)

    def _write_heartbeats(self) -> None:
        with self.replica_set.primary.server.open_session(_ANSWER_TIMEOUT_S, as_client=True) as run_query:
            while self._wait_interval():
                run_query(self.replica_set.dialect.heartbeat_sql(time.monotonic_ns()))

    def _sample(self) -> None:
        dialect = self.replica_set.dialect
        with ExitStack() as stack:
            primary = _open_column_query(self.replica_set.primary, stack)
            replicas = {replica.name: _open_column_query(replica, stack) for replica in self.replica_set.replicas}
            while self._wait_interval():
                position = str(primary(dialect.position_sql, "position") or "")
                for name, replica in replicas.items():
                    applied = str(replica(dialect.applied_sql, "position") or "")
                    sent_ns, at_ns = replica(_SENT_SQL, "sent_ns"), time.monotonic_ns()
                    age_ns = None if sent_ns is None else at_ns - sent_ns
                    self.samples.append(
                        LagSample(at_ns, name, dialect.positions.count_missing(position, applied), age_ns)
                    )


@dataclass(frozen=True)
class AcknowledgedCommit:
    """A commit that was acknowledged to its client; times are monotonic."""

    node: str
    sent_ns: int
    ended_ns: int


class Writers(ReplicaSetWatch):
    """One client at each replica of a cluster. It keeps trying to commit, like a client whose own node has died."""

    def __init__(self, replica_set: ReplicaSet) -> None:
        super().__init__(replica_set, _COMMIT_INTERVAL_S)
        self.acknowledged: list[AcknowledgedCommit] = []
        self._start(*(partial(self._write, row, replica) for row, replica in enumerate(replica_set.replicas, 2)))

    def wait_for_commit(self, since_ns: int, timeout_s: float) -> None:
        """Wait for an acknowledged commit that began after `since_ns`. Raises LabError."""
        wait_for(
            lambda: any(write.sent_ns > since_ns for write in list(self.acknowledged)),
            timeout_s,
            lambda: "the rest of the cluster did not go on",
        )

    def finish(self) -> tuple[AcknowledgedCommit, ...]:
        self._end()
        return tuple(self.acknowledged)

    def _write(self, row: int, replica: Member) -> None:
        while self._wait_interval():
            with suppress(LabError), replica.server.open_session(_ANSWER_TIMEOUT_S, as_client=True) as run_query:
                while self._wait_interval():  # until the node refuses; then open a new session
                    sent_ns = time.monotonic_ns()
                    run_query(self.replica_set.dialect.heartbeat_sql(sent_ns, row))
                    self.acknowledged.append(AcknowledgedCommit(replica.name, sent_ns, time.monotonic_ns()))


def _open_column_query(member: Member, stack: ExitStack) -> Callable[[str, str], Any]:
    """A function that returns one column of a query's first row, over its own session; None without a row."""
    run_query = stack.enter_context(member.server.open_session(_ANSWER_TIMEOUT_S))

    def query_column(sql: str, column: str) -> Any:
        return next((row[column] for row in run_query(sql)), None)

    return query_column


@dataclass
class HangClock:
    """Measures for how long sessions have waited without any acknowledgement. No I/O."""

    _last_progress: tuple[int, int, int] | None = None
    _since_ns: int = 0

    def sample(self, now_ns: int, end: PrimaryState) -> int:
        """Add a report; returns the waiting time in ns: 0 if no session waits, or one was acknowledged since the last report."""
        if end.waiting == 0 or end.progress != self._last_progress:
            self._last_progress, self._since_ns = end.progress, now_ns
        return now_ns - self._since_ns


class CommitWatch(ReplicaSetWatch):
    """Kills the primary when commits hang or its disk is full. Without semi-synchronous replication it watches only the disk, because
    no commit waits for a replica."""

    def __init__(self, replica_set: ReplicaSet, timeout_s: float) -> None:
        super().__init__(replica_set, _HANG_CHECK_INTERVAL_S)
        self._timeout_s = timeout_s
        self.kill_reason: str | None = None
        """The reason why the primary was killed; None if it was not."""
        self.hung = False
        """Whether it was killed because no replica acknowledged its commits."""
        self._start(self._sample)

    def finish(self) -> str | None:
        """The reason why the window is void; None if every commit could end."""
        self._end()
        return self.kill_reason

    def _sample(self) -> None:
        with ExitStack() as stack:
            sample = self._open_acknowledgement_check(stack) if self.replica_set.spec.semi_sync else lambda: None
            while self.kill_reason is None and self._wait_interval():
                sample()
                if free_space := self.replica_set.primary.describe_full_disk():
                    self._kill_primary(f"the primary had {free_space}: it was killed")

    def _open_acknowledgement_check(self, stack: ExitStack) -> Callable[[], None]:
        replica_set, primary, clock = self.replica_set, self.replica_set.primary.server, HangClock()
        run_query = stack.enter_context(primary.open_session(_ANSWER_TIMEOUT_S))

        def sample() -> None:
            end = replica_set.dialect.read_primary_end(run_query, primary, replica_set.spec)
            wait_ns = 0 if end is None else clock.sample(time.monotonic_ns(), end)
            if end is not None and wait_ns > self._timeout_s * 1e9:
                problems = "".join(f"; {problem}" for problem in _known_problems(replica_set))
                self.hung = True
                self._kill_primary(
                    f"{end.waiting} commits waited {wait_ns / 1e9:.1f} s and no replica acknowledged any "
                    f"({end.clients} connected{problems}): the primary was killed"
                )

        return sample

    def _kill_primary(self, reason: str) -> None:
        self.kill_reason = reason
        self.replica_set.primary.server.kill()


def _known_problems(replica_set: ReplicaSet) -> list[str]:
    """Known problems of the replicas and links, which may explain the hang."""
    problems = [f"the link of {link.name} had died" for link in replica_set.links if not link.alive()]
    for replica in replica_set.replicas:
        if not replica.server.alive():
            problems.append(f"{replica.name} died")
            continue
        try:
            with replica.server.open_session(_ANSWER_TIMEOUT_S) as run_query:
                state = replica.dialect.read_state(run_query)
        except HowfarError as error:
            problems.append(f"{replica.name} does not answer: {error.message}")
            continue
        if state is not None and state.errors:
            problems.append(f"{replica.name} says: {'; '.join(state.errors)}")
        if free_space := replica.describe_full_disk():
            problems.append(f"{replica.name} had {free_space}")
    return problems
