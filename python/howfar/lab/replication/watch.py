"""A commit that nobody acknowledges must not hang the laboratory: a semi-synchronous primary would wait for an hour.

When sessions wait and none is answered for too long the primary is killed. Switching it to asynchronous would free them too, and
tell clients that a commit is safe which is not.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field

import pymysql
from pymysql.cursors import DictCursor

from howfar.errors import HowfarError
from howfar.lab.replication.pair import Pair
from howfar.lab.replication.semi_sync import PrimaryEnd, primary_end

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
        """Why the window is void; None: no commit hung."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(_ANSWER_S + 2 * _POLL_S)
        return self.hung

    def _run(self) -> None:
        primary = self.pair.primary
        try:
            with primary.server.session(_ANSWER_S) as connection, connection.cursor() as cursor:
                variables = _rows(cursor, "VARIABLES")
                clock = HangClock()
                while not self._stop.wait(_POLL_S):
                    end = primary_end(primary.names, variables, _rows(cursor, "STATUS"))
                    if end is None:
                        return
                    waited_ns = clock.look(time.monotonic_ns(), end)
                    if waited_ns > self.patience_s * 1e9:
                        self._give_up(end, waited_ns)
                        return
        except (HowfarError, pymysql.Error, OSError):
            return  # the primary has gone: nothing hangs on it any more, and whoever asks it hears why

    def _give_up(self, end: PrimaryEnd, waited_ns: int) -> None:
        dead = [replica.name for replica in self.pair.replicas if not replica.server.alive()]
        why = f"; {' and '.join(dead)} died" if dead else ""
        self.hung = (
            f"{end.waiting} commits waited {waited_ns / 1e9:.1f} s and no replica acknowledged any ({end.clients} connected{why}): "
            "the primary was killed"
        )
        self.pair.primary.server.kill()


def _rows(cursor: DictCursor, what: str) -> dict[str, str]:
    cursor.execute(f"SHOW GLOBAL {what} LIKE 'rpl\\_semi%'")
    return {row["Variable_name"]: row["Value"] for row in cursor.fetchall()}


def watch_commits(pair: Pair, patience_s: float) -> CommitWatch:
    """Begin to look. Without semi-synchronous replication no commit waits for anybody, and nothing is seen."""
    watch = CommitWatch(pair, patience_s)
    if pair.asked.semi_sync:
        watch.start()
    return watch
