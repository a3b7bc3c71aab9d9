"""`howfar TARGET --watch`: one server is asked on a schedule, with a live screen in a terminal and a line now and then elsewhere."""

from __future__ import annotations

import contextlib
import json
import queue
import shutil
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

import click

from howfar.cli.screen import is_terminal, rich_console
from howfar.distance.measure import MeasurementFailed, find_addresses
from howfar.distance.record import Distance, Failure
from howfar.distance.requests import REQUESTS
from howfar.distance.resolve import NameFailed
from howfar.distance.session import Lost, PingSession, Server, ping_session
from howfar.distance.watch import LEAST_INTERVAL_NS, Watched, frame, summary, window_line
from howfar.engine.messages import NotOpened, Target
from howfar.errors import HowfarError, UsageError
from howfar.units import format_duration_ns

if TYPE_CHECKING:
    from rich.live import Live

_SECOND_NS = 1_000_000_000
_FRAME_S = 0.1
_WINDOW_S = 15.0
_BACK_OFF_S = (1.0, 2.0, 5.0, 10.0, 30.0)
"""Waits before a lost connection is opened again; the last one from then on."""


@dataclass(frozen=True)
class Answered:
    """A request was answered so long after it was due."""

    latency_ns: int
    at: datetime


@dataclass(frozen=True)
class WasLost:
    why: str
    at: datetime


@dataclass(frozen=True)
class Skipped:
    """Requests that were due while another one was under way."""

    count: int


Happened = Answered | WasLost | Skipped


class _Asker(threading.Thread):
    """Asks on the schedule, and says what happened. It ends with `stop`, or after `count` requests."""

    def __init__(self, server: Server, target: Target, interval_ns: int, count: int | None, timeout_ns: int) -> None:
        super().__init__(name="asker", daemon=True)
        self.happened: queue.SimpleQueue[Happened | None] = queue.SimpleQueue()
        """Ends with None."""
        self.failed: Exception | None = None
        self.pending_since_ns: int | None = None
        self.stop = threading.Event()
        self._server, self._target = server, target
        self._interval_ns, self._count, self._timeout_ns = interval_ns, count, timeout_ns

    def run(self) -> None:
        try:
            with ping_session(self._server, self._target, self._timeout_ns) as session:
                self._connect(session)
                self._ask(session)
        except Exception as error:  # shown by the main thread, which has the screen
            self.failed = error
        self.happened.put(None)

    def _connect(self, session: PingSession) -> None:
        opened = session.open()
        if isinstance(opened, NotOpened):
            failure = opened.failure
            raise Lost(
                Failure(
                    step=opened.step, code=failure.code, message=failure.message, advice=failure.advice,
                    waited_ns=opened.waited_ns,
                )
            )  # fmt: skip

    def _ask(self, session: PingSession) -> None:
        query = REQUESTS[self._server.service].query
        session.ask([query], 1, 0)  # cold, and not counted
        due_ns, sent = time.monotonic_ns() + self._interval_ns, 0
        while not self.stop.is_set() and (self._count is None or sent < self._count):
            now_ns = time.monotonic_ns()
            if now_ns > due_ns + self._interval_ns:
                late = (now_ns - due_ns) // self._interval_ns
                self.happened.put(Skipped(late))
                due_ns += late * self._interval_ns
            if self.stop.wait(max(due_ns - now_ns - 2_000_000, 0) / 1e9):
                return
            self.pending_since_ns = due_ns
            try:
                asked = session.ask([query], 1, 0, due_ns)
                self.happened.put(Answered(asked.latencies_ns[0][0] + asked.late_ns, datetime.now()))
            except Lost as lost:
                self.happened.put(WasLost(lost.failure.message, datetime.now()))
                self._again(session)
            self.pending_since_ns = None
            sent, due_ns = sent + 1, due_ns + self._interval_ns

    def _again(self, session: PingSession) -> None:
        """Open the connection again, with longer and longer waits. One login that is refused ends it: a second one could lock it."""
        for wait_s in _waits():
            if self.stop.wait(wait_s):
                break
            try:
                self._connect(session)
                break
            except Lost as lost:
                if lost.failure.code == "auth":
                    raise
                self.happened.put(WasLost(lost.failure.message, datetime.now()))


def _waits() -> Iterator[float]:
    yield from _BACK_OFF_S
    while True:
        yield _BACK_OFF_S[-1]


def watch(server: Server, interval_ns: int | None, count: int | None, timeout_ns: int, as_json: bool) -> int:
    """Ask until Ctrl-C, or `count` times. Raises UsageError, MeasurementFailed."""
    interval_ns = interval_ns or _SECOND_NS
    if interval_ns < LEAST_INTERVAL_NS:
        raise UsageError(
            f"--interval {format_duration_ns(interval_ns)} is more than 100 requests a second",
            "howfar load makes load; here 10ms is the shortest interval.",
        )
    asker = _Asker(server, _first_address(server, timeout_ns), interval_ns, count, timeout_ns)
    watched = Watched(title=f"{server.shown}: {REQUESTS[server.service].query_name}", interval_ns=interval_ns)
    asker.start()
    with contextlib.suppress(KeyboardInterrupt):
        if as_json:
            _as_json(asker, watched)
        elif is_terminal(sys.stdout):
            _live(asker, watched)
        else:
            _lines(asker, watched)
    asker.stop.set()
    if isinstance(asker.failed, Lost):
        failure = asker.failed.failure
        raise MeasurementFailed(
            Distance(
                target=server.shown, began=datetime.now().isoformat(), product=None, place=server.place, failure=failure
            )
        )
    if asker.failed is not None:
        raise asker.failed
    if not as_json:
        click.echo("\n".join(summary(watched)))
    return 0


def _first_address(server: Server, timeout_ns: int) -> Target:
    try:
        return find_addresses(server, timeout_ns)[1][0]
    except NameFailed as error:
        raise HowfarError(error.message, error.advice) from error


def _take(asker: _Asker, watched: Watched, limit_s: float) -> tuple[list[Happened], bool]:
    """What happened within `limit_s`, counted; and whether more may come."""
    taken: list[Happened] = []
    until = time.monotonic() + limit_s
    while (left := until - time.monotonic()) > 0:
        try:
            one = asker.happened.get(timeout=left)
        except queue.Empty:
            break
        if one is None:
            return taken, False
        taken.append(one)
        match one:
            case Answered(latency_ns, at):
                watched.answered(latency_ns, at)
            case WasLost(why, at):
                watched.was_lost(why, at)
            case Skipped(number):
                watched.missed += number
    return taken, True


def _live(asker: _Asker, watched: Watched) -> None:
    from rich.live import Live
    from rich.text import Text

    with Live(console=rich_console(sys.stdout), auto_refresh=False, transient=True) as live:
        while _take(asker, watched, _FRAME_S)[1]:
            _draw(live, Text, asker, watched)


def _draw(live: Live, text: type, asker: _Asker, watched: Watched) -> None:
    size = shutil.get_terminal_size((80, 24))
    since = asker.pending_since_ns
    pending = None if since is None else max(time.monotonic_ns() - since, 0)
    live.update(text(frame(watched, pending, size.columns, size.lines), no_wrap=True), refresh=True)


def _lines(asker: _Asker, watched: Watched) -> None:
    while _take(asker, watched, _WINDOW_S)[1]:
        click.echo(window_line(watched, datetime.now()))


def _as_json(asker: _Asker, watched: Watched) -> None:
    """One object a request, as it is answered."""
    goes_on = True
    while goes_on:
        taken, goes_on = _take(asker, watched, _FRAME_S)
        for one in taken:
            if not isinstance(one, Skipped):
                latency = one.latency_ns if isinstance(one, Answered) else None
                lost = one.why if isinstance(one, WasLost) else None
                click.echo(json.dumps({"at": one.at.isoformat(), "latency_ns": latency, "lost": lost}))
