"""A primary's own account of its acknowledgements, asked again and again from a thread of its own."""

from __future__ import annotations

import threading
import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import pymysql
from pymysql.cursors import DictCursor

from howfar.errors import HowfarError
from howfar.lab.replication import Pair
from howfar.lab.replication.semi_sync import PrimaryEnd, primary_end

INTERVAL_S = 0.1
_ANSWER_S = 30.0


@dataclass(frozen=True)
class Look:
    at_ns: int
    """Monotonic, when the primary had answered."""
    end: PrimaryEnd
    position: str
    """Of the primary, asked after that."""
    received: str | None
    """By the replica, asked last. None: it could not be asked."""


@dataclass
class Looks:
    """Made by `look_at`."""

    pair: Pair
    seen: list[Look] = field(default_factory=list)
    ended_by: str | None = None
    """Why nobody could look any more, before `finish`."""
    _stop: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    def start(self) -> None:
        self._thread = threading.Thread(target=self._run, name="looks", daemon=True)
        self._thread.start()

    def finish(self) -> list[Look]:
        self._stop.set()
        if self._thread is not None:
            self._thread.join(_ANSWER_S + 1)
        return list(self.seen)

    def _run(self) -> None:
        try:
            self._look()
        except (HowfarError, pymysql.Error, OSError) as error:
            self.ended_by = str(error)

    def _look(self) -> None:
        primary, (replica, *_), verbs = self.pair.primary, self.pair.replicas, self.pair.verbs
        with ExitStack() as ledger:
            on_primary = ledger.enter_context(primary.server.session(_ANSWER_S)).cursor()
            on_replica = ledger.enter_context(replica.server.session(_ANSWER_S)).cursor()
            variables = _semi_sync(on_primary, "VARIABLES")
            while True:
                end = primary_end(primary.names, variables, _semi_sync(on_primary, "STATUS"))
                at_ns = time.monotonic_ns()
                if end is None:
                    return
                position = str(_first(on_primary, verbs.position_sql)["position"] or "").replace("\n", "")
                row = _first(on_replica, verbs.status_sql)
                received = verbs.replica_state(row).received if row else None
                self.seen.append(Look(at_ns, end, position, received))
                if self._stop.wait(INTERVAL_S):
                    return


def _semi_sync(cursor: DictCursor, what: str) -> dict[str, str]:
    cursor.execute(f"SHOW GLOBAL {what} LIKE 'rpl\\_semi%'")
    return {row["Variable_name"]: row["Value"] for row in cursor.fetchall()}


def _first(cursor: DictCursor, sql: str) -> dict[str, Any]:
    cursor.execute(sql)
    return cursor.fetchone() or {}


def look_at(pair: Pair) -> Looks:
    """Begin to look. The pair has a replica."""
    looks = Looks(pair)
    looks.start()
    return looks
