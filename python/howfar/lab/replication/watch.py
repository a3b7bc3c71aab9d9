"""A commit that cannot end must not hang the laboratory: a semi-synchronous primary would wait for an acknowledgement for an hour, and
one whose disk is full waits for room, or dies without saying why.

When sessions wait and none is answered for too long, or there is no room left, the primary is killed. Switching it to asynchronous
would free them too, and tell clients that a commit is safe which is not.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pymysql
from pymysql.cursors import DictCursor

from howfar.errors import HowfarError
from howfar.lab.replication.member import read_state
from howfar.lab.replication.pair import Pair
from howfar.lab.replication.status import PrimaryEnd, primary_end

_POLL_S = 0.2
_ANSWER_S = 30.0
"""For a look at the counters, which no commit holds up."""


@dataclass
class HangClock:
    """How long sessions have waited without a single acknowledgement. Pure."""

    _progress: tuple[int, int, int] | None = None
    _since_ns: int = 0

    def look(self, now_ns: int, end: PrimaryEnd) -> int:
        """Nanoseconds; 0: nobody waits, or somebody was answered since the last look."""
        progress = (end.yes_tx, end.no_tx, end.tx_waits)
        if end.waiting == 0 or progress != self._progress:
            self._progress, self._since_ns = progress, now_ns
        return now_ns - self._since_ns


@dataclass
class CommitWatch:
    """Looks from a thread of its own until `finish`. Made by `watch_commits`."""

    pair: Pair
    patience_s: float
    _stop: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None
    hung: str | None = None
    """What was seen, once the primary was killed for it."""

    def start(self) -> None:
        self._thread = threading.Thread(target=self._run, name="commits", daemon=True)
        self._thread.start()

    def finish(self) -> str | None:
        """Why the window is void; None: every commit could end."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(_ANSWER_S + 2 * _POLL_S)
        return self.hung

    def _run(self) -> None:
        with ExitStack() as ledger, suppress(HowfarError, pymysql.Error, OSError):
            # Suppressed: the primary has gone, nothing hangs on it any more, and whoever asks it hears why.
            look = self._acknowledgements(ledger) if self.pair.asked.semi_sync else lambda: None
            while self.hung is None and not self._stop.wait(_POLL_S):
                look()
                if full := self.pair.primary.full():
                    self._give_up(f"the primary had {full}: it was killed")

    def _acknowledgements(self, ledger: ExitStack) -> Callable[[], None]:
        primary, clock = self.pair.primary, HangClock()
        connection = ledger.enter_context(primary.server.session(_ANSWER_S))
        cursor = ledger.enter_context(connection.cursor())
        variables = _rows(cursor, "VARIABLES")

        def look() -> None:
            end = primary_end(primary.names, variables, _rows(cursor, "STATUS"))
            waited_ns = 0 if end is None else clock.look(time.monotonic_ns(), end)
            if end is not None and waited_ns > self.patience_s * 1e9:
                self._give_up(self._of_hang(end, waited_ns))

        return look

    def _give_up(self, why: str) -> None:
        self.hung = why
        self.pair.primary.server.kill()

    def _of_hang(self, end: PrimaryEnd, waited_ns: int) -> str:
        why = "".join(f"; {reason}" for reason in _reasons(self.pair))
        return (
            f"{end.waiting} commits waited {waited_ns / 1e9:.1f} s and no replica acknowledged any ({end.clients} connected{why}): "
            "the primary was killed"
        )


def _reasons(pair: Pair) -> list[str]:
    """What is wrong with its replicas, as far as can be told."""
    found = [f"the link of {wire.host.name} had died" for wire in pair.wires if not wire.link.alive()]
    for replica in pair.replicas:
        if not replica.server.alive():
            found.append(f"{replica.name} died")
            continue
        try:
            with replica.server.session(_ANSWER_S) as connection, connection.cursor() as cursor:
                state = read_state(replica.verbs, partial(_all_rows, cursor))
        except (HowfarError, pymysql.Error, OSError) as error:
            found.append(f"{replica.name} does not answer: {error}")
            continue
        if state is not None and state.errors:
            found.append(f"{replica.name} says: {'; '.join(state.errors)}")
        if full := replica.full():
            found.append(f"{replica.name} had {full}")
    return found


def _all_rows(cursor: DictCursor, sql: str) -> list[dict[str, Any]]:
    cursor.execute(sql)
    return list(cursor.fetchall())


def _rows(cursor: DictCursor, what: str) -> dict[str, str]:
    cursor.execute(f"SHOW GLOBAL {what} LIKE 'rpl\\_semi%'")
    return {row["Variable_name"]: row["Value"] for row in cursor.fetchall()}


def watch_commits(pair: Pair, patience_s: float) -> CommitWatch:
    """Begin to look. Without semi-synchronous replication no commit waits for anybody: then at the primary's disk only."""
    watch = CommitWatch(pair, patience_s)
    watch.start()
    return watch
